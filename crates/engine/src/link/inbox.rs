//! The learner's end of a link: which parcels it uses and in which order, how long it waits, and
//! what the loss of an actor means.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use starling_envs::{Pulse, Resident};

use super::patience::{Patience, Watchdog};
use super::{Event, LearnerLink, LinkError, Loss, Parcel, Places, Publication, Verdict};
use crate::EngineError;

/// How actors follow the learner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    /// They continue with the latest weights.
    Free,
    /// A rollout is collected with the weights that followed from the rollouts of exactly this
    /// many rounds before the last one. At 0 actors and learner work in turns.
    Lag(u64),
}

/// How many actors may be lost, and how many were.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Losses {
    pub(crate) allowed: u64,
    pub(crate) count: u64,
}

/// The learner's end of a link.
pub(crate) struct Inbox {
    link: Arc<dyn LearnerLink>,
    places: Arc<Places>,
    pace: Pace,
    patience: Duration,
    /// Watches environments of this process.
    watchdog: Watchdog,
    losses: Losses,
    /// Parcels that came before it was their turn, by place.
    early: Vec<VecDeque<Parcel>>,
    /// Parcels of a round that is not complete, asynchronously.
    arrived: Vec<Parcel>,
}

impl Inbox {
    pub(crate) fn new(
        link: Box<dyn LearnerLink>,
        places: Arc<Places>,
        pace: Pace,
        patience: Duration,
        losses: Losses,
    ) -> Self {
        Self {
            link: link.into(),
            early: places.all().iter().map(|_| VecDeque::new()).collect(),
            arrived: Vec::new(),
            places,
            pace,
            patience,
            watchdog: Watchdog::new([]),
            losses,
        }
    }

    /// Watches environments of this process from now on.
    pub(crate) fn watch(&mut self, pulses: impl IntoIterator<Item = Arc<Pulse>>) {
        self.watchdog = Watchdog::new(pulses);
    }

    pub(crate) fn places(&self) -> &Arc<Places> {
        &self.places
    }

    /// The link itself, to look at from another thread.
    pub(crate) fn link(&self) -> Arc<dyn LearnerLink> {
        Arc::clone(&self.link)
    }

    /// Actors that were lost since the beginning of the run.
    pub(crate) fn losses(&self) -> u64 {
        self.losses.count
    }

    /// One parcel of every place in their order, or, asynchronously, any parcels, as many as there
    /// are places. `None` when the run is told to stop before they are all here; those that had
    /// arrived are kept.
    pub(crate) fn receive_all(
        &mut self,
        stop: &AtomicBool,
    ) -> Result<Option<Vec<Parcel>>, EngineError> {
        if self.pace == Pace::Free {
            while self.arrived.len() < self.early.len() {
                match self.receive(stop)? {
                    Some(parcel) => self.arrived.push(parcel),
                    None => return Ok(None),
                }
            }
            return Ok(Some(std::mem::take(&mut self.arrived)));
        }
        while self.early.iter().any(VecDeque::is_empty) {
            let Some(parcel) = self.receive(stop)? else {
                return Ok(None);
            };
            self.early[parcel.lease.place].push_back(parcel);
        }
        let first = self.early.iter_mut().filter_map(VecDeque::pop_front);
        Ok(Some(first.collect()))
    }

    /// What has arrived; waits for at least one parcel if `wait` is set, unless the run is told
    /// to stop.
    pub(crate) fn receive_ready(
        &mut self,
        wait: bool,
        stop: &AtomicBool,
    ) -> Result<Vec<Parcel>, EngineError> {
        let mut parcels = Vec::new();
        if wait {
            parcels.extend(self.receive(stop)?);
        }
        while parcels.len() < self.early.len() {
            match self.link.receive(Duration::ZERO) {
                Ok(event) => parcels.extend(self.admit(event)?),
                Err(LinkError::TimedOut { .. }) => break,
                Err(error) => return Err(self.blame(error)),
            }
        }
        // Asynchronously the others would keep the learner going and nobody would notice.
        self.check_environments()?;
        Ok(parcels)
    }

    pub(crate) fn publish(&self, publication: Publication) {
        self.link.publish(publication);
    }

    /// Gives back the buffers of parcels that were used.
    pub(crate) fn recycle(&self, parcels: Vec<Parcel>) {
        for parcel in parcels {
            let rollouts = parcel.rollouts.into_iter().map(|(_, mut rollout)| {
                // It was used; on a GPU it would keep a whole group's observations there.
                rollout.resident = Resident::default();
                rollout
            });
            let rollouts = rollouts.collect();
            self.link.recycle(parcel.lease.place, rollouts);
        }
    }

    /// Says that the learner is busy with something long, or no longer.
    pub(crate) fn set_busy(&self, busy: bool) {
        self.link.set_busy(busy);
    }

    /// The next parcel; `None` when the run is told to stop before there is one.
    fn receive(&mut self, stop: &AtomicBool) -> Result<Option<Parcel>, EngineError> {
        let (mut patience, mut joins) = (Patience::new(self.patience), 0);
        while !stop.load(Ordering::Relaxed) {
            let began = Instant::now();
            let received = self.link.receive(patience.slice());
            self.check_environments()?;
            match received {
                Ok(Event::Parcel(parcel)) => {
                    if let Some(parcel) = self.admit(Event::Parcel(parcel))? {
                        return Ok(Some(parcel));
                    }
                    patience.spend(began);
                }
                Ok(event) => {
                    // An actor that takes over a place needs time to start. Actors that only come and
                    // go are not waited for again and again.
                    let joined = matches!(event, Event::Joined { .. });
                    self.admit(event)?;
                    joins += u64::from(joined);
                    if joined && joins <= self.early.len() as u64 {
                        patience = Patience::new(self.patience);
                    } else {
                        patience.spend(began);
                    }
                }
                Err(LinkError::TimedOut { .. }) if patience.spend(began) => {}
                Err(LinkError::TimedOut { who, what, .. }) => {
                    let seconds = self.patience.as_secs();
                    return Err(self.blame(LinkError::TimedOut { who, what, seconds }));
                }
                Err(error) => return Err(self.blame(error)),
            }
        }
        Ok(None)
    }

    /// The parcel of an event, if it is to be used.
    fn admit(&mut self, event: Event) -> Result<Option<Parcel>, EngineError> {
        let parcel = match event {
            Event::Parcel(parcel) => parcel,
            Event::Joined { lease, who } => {
                let (held, all) = (self.places.held(), self.places.len());
                tracing::info!("{who} took place {}: {held} of {all}", lease.place);
                return Ok(None);
            }
            Event::Lost(loss) => {
                self.lose(loss)?;
                return Ok(None);
            }
            Event::Left { lease, who } => {
                if self.places.end(lease) {
                    let (held, all) = (self.places.held(), self.places.len());
                    tracing::info!("{who} left place {}: {held} of {all}", lease.place);
                }
                return Ok(None);
            }
        };
        let (lease, number) = (parcel.lease, parcel.number);
        match self.places.judge(lease, number) {
            Verdict::Use => Ok(Some(parcel)),
            Verdict::Duplicate | Verdict::Ended => {
                tracing::debug!("parcel {number} of place {} is not used", lease.place);
                Ok(None)
            }
            Verdict::Gap { expected } => {
                self.lose(Loss {
                    leases: vec![lease],
                    who: format!("the actor of place {}", lease.place),
                    reason: format!("its parcel {number} came, but {expected} is missing"),
                    stalled: false,
                })?;
                Ok(None)
            }
        }
    }

    /// Takes a lost actor's places from it. It counts once, however many it held. The run ends if no
    /// more actors may be lost.
    fn lose(&mut self, loss: Loss) -> Result<(), EngineError> {
        let Loss {
            leases,
            who,
            reason,
            stalled,
        } = loss;
        let ended = leases.iter().filter(|lease| self.places.end(**lease));
        let freed: Vec<String> = ended.map(|lease| lease.place.to_string()).collect();
        if freed.is_empty() {
            return Ok(());
        }
        if self.losses.count >= self.losses.allowed {
            let lost = LinkError::ActorLost { who, reason };
            return Err(match stalled {
                true => self.blame_environment(lost),
                false => lost.into(),
            });
        }
        self.losses.count += 1;
        let (held, all) = (self.places.held(), self.places.len());
        tracing::warn!(
            "{who} failed: {reason}; the run continues with {held} of {all} places (free: {})",
            freed.join(", ")
        );
        Ok(())
    }

    /// Fails if an environment does not return.
    fn check_environments(&mut self) -> Result<(), EngineError> {
        match self.watchdog.look() {
            Some(still) if still.time > self.patience => Err(still.into()),
            _ => Ok(()),
        }
    }

    fn blame(&mut self, error: LinkError) -> EngineError {
        match error {
            LinkError::TimedOut { .. } => self.blame_environment(error),
            other => other.into(),
        }
    }

    /// A wait that ended without what was waited for is the fault of an environment that has been
    /// in one call for most of that time, if there is one: all others wait for it.
    fn blame_environment(&mut self, error: LinkError) -> EngineError {
        match self.watchdog.look() {
            Some(still) if still.time > self.patience / 2 => still.into(),
            _ => error.into(),
        }
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        self.link.close();
        let unused = self.early.iter().flatten().chain(&self.arrived);
        let unused = unused.flat_map(|parcel| &parcel.rollouts);
        let steps: usize = unused.map(|(_, part)| part.steps() * part.envs()).sum();
        if steps > 0 {
            tracing::info!("{steps} steps that actors had sent were not used when the run ended");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::conformance::parcel;
    use super::super::{ActorLink as _, InProcess, Lease, Start};
    use super::*;

    static NEVER: AtomicBool = AtomicBool::new(false);

    fn inbox(pace: Pace, allowed: u64) -> (Inbox, InProcess, Vec<Lease>) {
        let places = Arc::new(Places::new([0..1, 1..2], Start::default()));
        let link = InProcess::new(Arc::clone(&places), 1);
        let leases = (0..2).filter_map(|place| places.lease_at(place)).collect();
        let losses = Losses { allowed, count: 0 };
        let patience = Duration::from_millis(200);
        let inbox = Inbox::new(Box::new(link.clone()), places, pace, patience, losses);
        (inbox, link, leases)
    }

    fn numbers(parcels: &[Parcel]) -> Vec<(usize, u64)> {
        let numbers = parcels
            .iter()
            .map(|parcel| (parcel.lease.place, parcel.number));
        numbers.collect()
    }

    fn lost(lease: &Lease) -> Loss {
        Loss {
            leases: vec![lease.id],
            who: "actor-1".into(),
            reason: "no more coins".into(),
            stalled: false,
        }
    }

    /// In rounds there is one parcel of every place, in the order of places; what came early
    /// waits. What comes twice is used once.
    #[test]
    fn a_round_is_one_parcel_of_every_place() {
        let (mut inbox, link, leases) = inbox(Pace::Lag(1), 0);
        let send = |all: &[(usize, u64)]| {
            for &(place, number) in all {
                link.send(parcel(&leases[place], number, 0.0), Duration::ZERO)
                    .unwrap();
            }
        };
        send(&[(1, 0), (1, 0), (0, 0)]);
        let round = inbox.receive_all(&NEVER).unwrap().unwrap();
        assert_eq!(numbers(&round), [(0, 0), (1, 0)]);
        send(&[(1, 1), (1, 2), (0, 1)]);
        let round = inbox.receive_all(&NEVER).unwrap().unwrap();
        assert_eq!(numbers(&round), [(0, 1), (1, 1)]);
        send(&[(0, 2)]);
        let round = inbox.receive_all(&NEVER).unwrap().unwrap();
        assert_eq!(numbers(&round), [(0, 2), (1, 2)]);
        let error = inbox.receive_all(&NEVER).unwrap_err().to_string();
        assert!(error.contains("the learner waited"), "{error}");
    }

    /// A stop loses nothing that has arrived: a run that continues has it.
    #[test]
    fn a_stop_keeps_what_has_arrived() {
        for pace in [Pace::Free, Pace::Lag(0)] {
            let (mut inbox, link, leases) = inbox(pace, 0);
            inbox.patience = Duration::from_secs(60);
            let send = |place: usize| {
                let sent = link.send(parcel(&leases[place], 0, 0.0), Duration::ZERO);
                sent.map(drop).unwrap();
            };
            send(1);
            let stop = Arc::new(AtomicBool::new(false));
            let signal = Arc::clone(&stop);
            let thread = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(100));
                signal.store(true, Ordering::Relaxed);
            });
            assert!(inbox.receive_all(&stop).unwrap().is_none());
            thread.join().unwrap();
            send(0);
            let mut round = numbers(&inbox.receive_all(&NEVER).unwrap().unwrap());
            round.sort();
            assert_eq!(round, [(0, 0), (1, 0)]);
        }
    }

    /// With `mode=central` one actor holds the places of all groups.
    #[test]
    fn an_actor_with_several_places_is_one_loss() {
        let (mut inbox, link, leases) = inbox(Pace::Free, 1);
        link.fail(Loss {
            leases: leases.iter().map(|lease| lease.id).collect(),
            ..lost(&leases[0])
        });
        assert!(inbox.receive_ready(false, &NEVER).unwrap().is_empty());
        assert_eq!((inbox.places().held(), inbox.losses()), (0, 1));
    }

    /// An actor that gives its place back is not a loss, and its parcels are used.
    #[test]
    fn an_actor_that_leaves_frees_its_place() {
        let (mut inbox, link, leases) = inbox(Pace::Free, 0);
        link.send(parcel(&leases[1], 0, 0.0), Duration::ZERO)
            .unwrap();
        link.leave(leases[1].id, "actor-1".into());
        let ready = inbox.receive_ready(false, &NEVER).unwrap();
        assert_eq!(numbers(&ready), [(1, 0)]);
        assert_eq!((inbox.places().held(), inbox.losses()), (1, 0));
        assert_eq!(inbox.places().lease().unwrap().first_round, 1);
    }

    #[test]
    fn the_loss_of_an_actor_ends_the_run_if_none_may_be_lost() {
        let (mut inbox, link, leases) = inbox(Pace::Free, 0);
        link.fail(lost(&leases[1]));
        let error = inbox.receive_all(&NEVER).unwrap_err().to_string();
        assert_eq!(error, "actor-1 failed: no more coins");
    }

    /// What was sent before the loss is used; what the old holder sends later is not.
    #[test]
    fn a_lost_place_is_leased_again() {
        let (mut inbox, link, leases) = inbox(Pace::Lag(0), 1);
        for lease in &leases {
            link.send(parcel(lease, 0, 0.0), Duration::ZERO).unwrap();
        }
        link.fail(lost(&leases[1]));
        link.send(parcel(&leases[0], 1, 0.0), Duration::ZERO)
            .unwrap();
        let round = inbox.receive_all(&NEVER).unwrap().unwrap();
        assert_eq!(numbers(&round), [(0, 0), (1, 0)]);
        assert!(inbox.receive_all(&NEVER).is_err(), "nobody is at place 1");
        assert_eq!((inbox.places().held(), inbox.losses()), (1, 1));
        let again = inbox.places().lease().unwrap();
        assert_eq!((again.id.place, again.first_round), (1, 1));
        let refused = link.send(parcel(&leases[1], 1, 0.0), Duration::ZERO);
        assert_eq!(refused, Err(LinkError::LeaseEnded(leases[1].id)));
        link.send(parcel(&again, 0, 0.0), Duration::ZERO).unwrap();
        let round = inbox.receive_all(&NEVER).unwrap().unwrap();
        assert_eq!(numbers(&round), [(0, 1), (1, 0)]);
        // One was allowed.
        link.fail(lost(&again));
        assert!(inbox.receive_all(&NEVER).is_err());
    }

    /// A parcel that is missing can never be used later: the actor has to start again.
    #[test]
    fn a_missing_parcel_ends_the_lease() {
        let (mut inbox, link, leases) = inbox(Pace::Free, 1);
        link.send(parcel(&leases[0], 1, 0.0), Duration::ZERO)
            .unwrap();
        let ready = inbox.receive_ready(false, &NEVER).unwrap();
        assert!(ready.is_empty());
        assert_eq!((inbox.places().held(), inbox.losses()), (1, 1));
    }
}
