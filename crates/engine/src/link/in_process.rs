//! The link within one process: a bounded queue and a shared pointer to the weights.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use starling_envs::Rollout;

use super::patience::{Patience, SLICE};
use super::{
    ActorLink, Event, LearnerLink, LeaseId, LinkError, Loss, Parcel, Places, Publication, Wanted,
};

/// Parcels that may wait for the learner, for each place.
pub(crate) const QUEUED_PER_PLACE: usize = 2;

/// Both sides of the link within one process. Clones are the same link.
#[derive(Clone, Debug)]
pub struct InProcess(Arc<Link>);

#[derive(Debug)]
struct Link {
    places: Arc<Places>,
    shared: Mutex<Shared>,
    changed: Condvar,
    /// Versions of the weights that can be had.
    history: usize,
}

#[derive(Debug, Default)]
struct Shared {
    /// The last versions, oldest first.
    published: VecDeque<Publication>,
    events: VecDeque<Event>,
    /// How many of the events are parcels, by place.
    parcels: BTreeMap<usize, usize>,
    /// Used buffers by place: those of different places may differ in size.
    spares: BTreeMap<usize, Vec<Vec<Rollout>>>,
    busy: bool,
    closed: bool,
}

impl InProcess {
    /// A link that holds two parcels of each place, and the last `history` versions of the weights.
    pub fn new(places: Arc<Places>, history: usize) -> Self {
        Self(Arc::new(Link {
            places,
            shared: Mutex::default(),
            changed: Condvar::new(),
            history: history.max(1),
        }))
    }

    /// Tells the learner that an actor took a place.
    pub fn join(&self, lease: LeaseId, who: String) {
        let mut shared = self.lock();
        shared.events.push_back(Event::Joined { lease, who });
        self.0.changed.notify_all();
    }

    /// Tells the learner that an actor gave its place back.
    pub fn leave(&self, lease: LeaseId, who: String) {
        let mut shared = self.lock();
        shared.events.push_back(Event::Left { lease, who });
        self.0.changed.notify_all();
    }

    /// Whether the learner is busy with something long.
    pub fn is_busy(&self) -> bool {
        self.lock().busy
    }

    /// The weights that are asked for, if they are there within `limit`, however busy the learner is.
    ///
    /// # Errors
    /// [`LinkError::Closed`] when the run ends.
    pub fn look_for(
        &self,
        wanted: Wanted,
        limit: Duration,
    ) -> Result<Option<Publication>, LinkError> {
        self.wait_until(limit, |shared| found(shared, wanted).map(Ok))
    }

    /// Whether a parcel of this lease can be sent without waiting, if that is so within `limit`.
    ///
    /// # Errors
    /// [`LinkError::LeaseEnded`], or [`LinkError::Closed`] when the run ends.
    pub fn has_room(&self, lease: LeaseId, limit: Duration) -> Result<bool, LinkError> {
        let room = self.wait_until(limit, |shared| {
            if !self.0.places.holds(lease) {
                return Some(Err(LinkError::LeaseEnded(lease)));
            }
            let queued = shared.parcels.get(&lease.place).copied().unwrap_or(0);
            (queued < QUEUED_PER_PLACE && !shared.closed).then_some(Ok(()))
        })?;
        Ok(room.is_some())
    }

    /// Waits until `ready` gives something, the run closes, or the limit is reached.
    fn wait_until<T>(
        &self,
        limit: Duration,
        mut ready: impl FnMut(&Shared) -> Option<Result<T, LinkError>>,
    ) -> Result<Option<T>, LinkError> {
        let deadline = Instant::now() + limit;
        let mut shared = self.lock();
        loop {
            if let Some(result) = ready(&shared) {
                return result.map(Some);
            }
            if shared.closed {
                return Err(LinkError::Closed);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            let waited = self.0.changed.wait_timeout(shared, left.min(SLICE));
            shared = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The lock is held for moving pointers only, never while copying or computing. Nothing
    /// inside can panic halfway, so a poisoned lock is as good as any.
    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.0.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Parcels that wait for the learner.
    #[cfg(test)]
    pub(crate) fn queued(&self) -> usize {
        self.lock().parcels.values().sum()
    }

    /// Waits until `ready` gives something, the run closes, or patience ends.
    fn wait_for<T>(
        &self,
        who: &'static str,
        what: &'static str,
        patience: Duration,
        mut ready: impl FnMut(&mut Shared) -> Option<Result<T, LinkError>>,
    ) -> Result<T, LinkError> {
        let mut left = Patience::new(patience);
        let mut shared = self.lock();
        loop {
            if let Some(result) = ready(&mut shared) {
                return result;
            }
            if shared.closed {
                return Err(LinkError::Closed);
            }
            if shared.busy {
                left = Patience::new(patience);
            }
            let began = Instant::now();
            let waited = self.0.changed.wait_timeout(shared, left.slice());
            shared = waited.unwrap_or_else(PoisonError::into_inner).0;
            if !left.spend(began) && !shared.busy {
                // What was waited for may have come in the last moment.
                return ready(&mut shared).unwrap_or_else(|| {
                    let seconds = patience.as_secs();
                    Err(LinkError::TimedOut { who, what, seconds })
                });
            }
        }
    }
}

fn found(shared: &Shared, wanted: Wanted) -> Option<Publication> {
    let mut versions = shared.published.iter();
    let found = match wanted {
        Wanted::Latest => versions.next_back(),
        Wanted::Exactly(version) => versions.find(|all| all.weights.version == version),
    };
    found.cloned()
}

impl ActorLink for InProcess {
    fn weights(&self, wanted: Wanted, patience: Duration) -> Result<Publication, LinkError> {
        self.wait_for("an actor", "weights from the learner", patience, |shared| {
            found(shared, wanted).map(Ok)
        })
    }

    fn send(&self, parcel: Parcel, patience: Duration) -> Result<Option<Vec<Rollout>>, LinkError> {
        let lease = parcel.lease;
        let what = "the learner to take experience";
        let mut parcel = Some(parcel);
        self.wait_for("an actor", what, patience, |shared| {
            if !self.0.places.holds(lease) {
                return Some(Err(LinkError::LeaseEnded(lease)));
            }
            let queued = shared.parcels.entry(lease.place).or_default();
            // Each place has its own share of the queue, so a fast actor delays no other.
            if *queued >= QUEUED_PER_PLACE || shared.closed {
                return None;
            }
            *queued += 1;
            shared.events.extend(parcel.take().map(Event::Parcel));
            self.0.changed.notify_all();
            Some(Ok(shared.spares.get_mut(&lease.place).and_then(Vec::pop)))
        })
    }

    fn fail(&self, loss: Loss) {
        self.lock().events.push_back(Event::Lost(loss));
        self.0.changed.notify_all();
    }

    fn is_closed(&self) -> bool {
        self.lock().closed
    }
}

impl LearnerLink for InProcess {
    fn publish(&self, publication: Publication) {
        let mut shared = self.lock();
        match shared.published.back_mut() {
            Some(latest) if latest.weights.version == publication.weights.version => {
                latest.control = publication.control;
            }
            _ => shared.published.push_back(publication),
        }
        if shared.published.len() > self.0.history {
            shared.published.pop_front();
        }
        self.0.changed.notify_all();
    }

    fn receive(&self, patience: Duration) -> Result<Event, LinkError> {
        let what = "experience from an actor";
        self.wait_for("the learner", what, patience, |shared| {
            let event = shared.events.pop_front()?;
            if let Event::Parcel(parcel) = &event
                && let Some(queued) = shared.parcels.get_mut(&parcel.lease.place)
            {
                *queued -= 1;
                self.0.changed.notify_all();
            }
            Some(Ok(event))
        })
    }

    fn recycle(&self, place: usize, rollouts: Vec<Rollout>) {
        let mut shared = self.lock();
        let spares = shared.spares.entry(place).or_default();
        if spares.len() < QUEUED_PER_PLACE * self.0.places.len() {
            spares.push(rollouts);
        }
    }

    fn set_busy(&self, busy: bool) {
        self.lock().busy = busy;
        self.0.changed.notify_all();
    }

    fn close(&self) {
        self.lock().closed = true;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::super::conformance::{self, Rig};
    use super::*;

    #[test]
    fn it_conforms() {
        conformance::check(|terms| {
            let link = InProcess::new(Arc::clone(&terms.places), terms.history);
            let (joining, places) = (link.clone(), Arc::clone(&terms.places));
            Rig {
                learner: Box::new(link),
                join: Box::new(move || {
                    let lease = places.lease()?;
                    joining.join(lease.id, format!("actor-{}", lease.id.place));
                    Some((lease, Arc::new(joining.clone())))
                }),
            }
        })
        .unwrap();
    }

    /// An actor that waits for weights that never come says who waited for whom.
    #[test]
    fn waiting_for_ever_is_no_option() {
        let places = Arc::new(Places::new(
            std::iter::once(0..1),
            super::super::Start::default(),
        ));
        let link = InProcess::new(places, 1);
        let patience = Duration::from_millis(10);
        let error = link.weights(Wanted::Exactly(1), patience).unwrap_err();
        let message = error.to_string();
        assert!(
            message.contains("an actor waited 0 s for weights from the learner"),
            "{message}"
        );
    }
}
