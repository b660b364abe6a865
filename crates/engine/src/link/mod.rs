//! How rollouts and weights pass between actors and the learner.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use starling_envs::{Episode, Rollout};
use starling_nets::Snapshot;

use self::patience::Patience;

pub(crate) mod patience;

/// One version of the weights that actors act with.
#[derive(Clone, Debug, PartialEq)]
pub struct Weights {
    /// Counts the learner's publications from 0.
    pub version: u64,
    /// All parameters in the order of the network's layout.
    pub values: Snapshot,
}

/// What an actor sends at once.
#[derive(Clone, Debug, PartialEq)]
pub struct Parcel {
    /// Number of the actor.
    pub actor: usize,
    /// What it collected, in the order of environments, each with the number of its first
    /// environment among all of the run.
    pub rollouts: Vec<(usize, Rollout)>,
    /// Episodes that ended meanwhile.
    pub episodes: Vec<Episode>,
}

/// Which weights an actor asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// The latest there are.
    Latest,
    /// One version and no other, so that a run does not depend on who was faster.
    Exactly(u64),
}

/// The way between actors and the learner. Every implementation passes the same tests.
///
/// All queues are bounded and every wait has a deadline. Experience arrives in the order in
/// which one actor sent it, and nothing is lost before [`close`](Transport::close).
pub trait Transport: Send + Sync {
    /// Actor: the weights it asks for, waiting for them if necessary. Versions older than the
    /// last few are gone.
    fn weights(&self, wanted: Wanted, patience: Duration) -> Result<Arc<Weights>, TransportError>;

    /// Actor: sends experience, waiting while the learner has not taken enough of the last.
    /// Returns used buffers to fill again, as many as it sent, if there are some.
    fn send(
        &self,
        parcel: Parcel,
        patience: Duration,
    ) -> Result<Option<Vec<Rollout>>, TransportError>;

    /// Actor: says that it cannot continue, who it is, and why. The learner's next wait ends with
    /// that.
    fn fail(&self, who: String, reason: String);

    /// Learner: makes weights available; never waits for a reader.
    fn publish(&self, weights: Arc<Weights>);

    /// Learner: the next parcel, waiting for it no longer than `patience`.
    fn receive(&self, patience: Duration) -> Result<Parcel, TransportError>;

    /// Learner: gives back the buffers of a parcel that was used, for the same actor.
    fn recycle(&self, actor: usize, rollouts: Vec<Rollout>);

    /// Learner: says that it is busy with something long (an evaluation, a checkpoint), or no
    /// longer. Actors are patient meanwhile.
    fn set_busy(&self, busy: bool);

    /// Either side: ends all waits, now and later.
    fn close(&self);
}

/// Why a wait ended without what was waited for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransportError {
    /// The other side did not come in time.
    #[error(
        "{who} waited {seconds} s for {what}; the run may be overloaded or stuck (stall_timeout_s)"
    )]
    TimedOut {
        /// Who waited.
        who: &'static str,
        /// For what.
        what: &'static str,
        /// How long.
        seconds: u64,
    },
    /// An actor reported that it cannot continue.
    #[error("{who} failed: {reason}")]
    ActorFailed {
        /// Name of its thread.
        who: String,
        /// What it said.
        reason: String,
    },
    /// The run is ending.
    #[error("the run is ending")]
    Closed,
}

/// The transport within one process: a bounded queue and a shared pointer to the weights.
#[derive(Debug)]
pub struct InProcess {
    shared: Mutex<Shared>,
    changed: Condvar,
    capacity: usize,
    history: usize,
}

#[derive(Debug, Default)]
struct Shared {
    /// The last versions, oldest first.
    weights: VecDeque<Arc<Weights>>,
    parcels: VecDeque<Parcel>,
    /// Used buffers by actor: those of different actors may differ in size.
    spares: BTreeMap<usize, Vec<Vec<Rollout>>>,
    busy: bool,
    failure: Option<(String, String)>,
    closed: bool,
}

impl InProcess {
    /// A transport that holds at most `capacity` parcels and the last `history` versions of the
    /// weights.
    pub fn new(capacity: usize, history: usize) -> Self {
        Self {
            shared: Mutex::default(),
            changed: Condvar::new(),
            capacity: capacity.max(1),
            history: history.max(1),
        }
    }

    /// The lock is held for moving pointers only, never while copying or computing. Nothing
    /// inside can panic halfway, so a poisoned lock is as good as any.
    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether [`close`](Transport::close) was called.
    pub(crate) fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// Parcels that wait for the learner.
    #[cfg(test)]
    pub(crate) fn queued(&self) -> usize {
        self.lock().parcels.len()
    }

    /// Waits until `ready` gives something, the run closes, or patience ends.
    fn wait_for<T>(
        &self,
        who: &'static str,
        what: &'static str,
        patience: Duration,
        mut ready: impl FnMut(&mut Shared) -> Option<Result<T, TransportError>>,
    ) -> Result<T, TransportError> {
        let mut left = Patience::new(patience);
        let mut shared = self.lock();
        loop {
            if let Some(result) = ready(&mut shared) {
                return result;
            }
            if shared.closed {
                return Err(TransportError::Closed);
            }
            if shared.busy {
                left = Patience::new(patience);
            }
            let began = Instant::now();
            let waited = self.changed.wait_timeout(shared, left.slice());
            shared = waited.unwrap_or_else(PoisonError::into_inner).0;
            if !left.spend(began) && !shared.busy {
                // What was waited for may have come in the last moment.
                return ready(&mut shared).unwrap_or_else(|| {
                    let seconds = patience.as_secs();
                    Err(TransportError::TimedOut { who, what, seconds })
                });
            }
        }
    }
}

impl Transport for InProcess {
    fn weights(&self, wanted: Wanted, patience: Duration) -> Result<Arc<Weights>, TransportError> {
        self.wait_for("an actor", "weights from the learner", patience, |shared| {
            let mut versions = shared.weights.iter();
            let found = match wanted {
                Wanted::Latest => versions.next_back(),
                Wanted::Exactly(version) => versions.find(|weights| weights.version == version),
            };
            found.map(|weights| Ok(Arc::clone(weights)))
        })
    }

    fn send(
        &self,
        parcel: Parcel,
        patience: Duration,
    ) -> Result<Option<Vec<Rollout>>, TransportError> {
        let actor = parcel.actor;
        let mut parcel = Some(parcel);
        self.wait_for(
            "an actor",
            "the learner to take experience",
            patience,
            |shared| {
                if shared.parcels.len() >= self.capacity || shared.closed {
                    return None;
                }
                shared.parcels.extend(parcel.take());
                self.changed.notify_all();
                Some(Ok(shared.spares.get_mut(&actor).and_then(Vec::pop)))
            },
        )
    }

    fn fail(&self, who: String, reason: String) {
        let mut shared = self.lock();
        shared.failure.get_or_insert((who, reason));
        self.changed.notify_all();
    }

    fn publish(&self, weights: Arc<Weights>) {
        let mut shared = self.lock();
        shared.weights.push_back(weights);
        if shared.weights.len() > self.history {
            shared.weights.pop_front();
        }
        self.changed.notify_all();
    }

    fn receive(&self, patience: Duration) -> Result<Parcel, TransportError> {
        self.wait_for(
            "the learner",
            "experience from an actor",
            patience,
            |shared| {
                if let Some((who, reason)) = shared.failure.clone() {
                    return Some(Err(TransportError::ActorFailed { who, reason }));
                }
                let parcel = shared.parcels.pop_front()?;
                self.changed.notify_all();
                Some(Ok(parcel))
            },
        )
    }

    fn recycle(&self, actor: usize, rollouts: Vec<Rollout>) {
        let mut shared = self.lock();
        let spares = shared.spares.entry(actor).or_default();
        if spares.len() < self.capacity {
            spares.push(rollouts);
        }
    }

    fn set_busy(&self, busy: bool) {
        self.lock().busy = busy;
        self.changed.notify_all();
    }

    fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use starling_envs::Space;
    use starling_tree::Tree;

    const SOON: Duration = Duration::from_millis(20);
    const PATIENT: Duration = Duration::from_secs(20);

    fn parcel(actor: usize, reward: f32) -> Parcel {
        let (obs, action) = (Space::unbounded(&[1]), Space::Discrete { n: 2 });
        let nothing = Tree::empty();
        let mut rollout = Rollout::new(1, 1, &obs, &action, None, &nothing, &nothing);
        rollout.rewards.as_mut_slice::<f32>()[0] = reward;
        Parcel {
            actor,
            rollouts: vec![(actor, rollout)],
            episodes: Vec::new(),
        }
    }

    fn weights(version: u64) -> Arc<Weights> {
        let values = Snapshot::from_values(vec![version as f32]);
        Arc::new(Weights { version, values })
    }

    /// What every transport has to do; `make` gives one that holds two parcels and two
    /// versions.
    fn conformance<T: Transport + 'static>(make: impl Fn() -> T) {
        order_is_kept_and_queues_are_bounded(make());
        weights_are_waited_for_by_version(make());
        actors_are_patient_with_a_busy_learner(make());
        failures_and_closing_end_waits(make());
    }

    fn order_is_kept_and_queues_are_bounded(transport: impl Transport + 'static) {
        let transport = Arc::new(transport);
        transport.send(parcel(0, 1.0), SOON).unwrap();
        transport.send(parcel(0, 2.0), SOON).unwrap();
        let full = transport.send(parcel(0, 9.0), SOON).unwrap_err();
        assert!(matches!(
            full,
            TransportError::TimedOut {
                who: "an actor",
                ..
            }
        ));
        let sender = Arc::clone(&transport);
        let thread = std::thread::spawn(move || sender.send(parcel(0, 3.0), PATIENT));
        for expected in [1.0, 2.0, 3.0] {
            let received = transport.receive(PATIENT).unwrap();
            let (_, rollout) = received.rollouts.into_iter().next().unwrap();
            assert_eq!(rollout.rewards.as_slice::<f32>(), [expected]);
            transport.recycle(received.actor, vec![rollout]);
        }
        thread.join().unwrap().unwrap();
        let empty = transport.receive(SOON).unwrap_err();
        assert!(matches!(
            empty,
            TransportError::TimedOut {
                who: "the learner",
                ..
            }
        ));
    }

    fn weights_are_waited_for_by_version(transport: impl Transport + 'static) {
        let transport = Arc::new(transport);
        assert!(transport.weights(Wanted::Latest, SOON).is_err());
        transport.publish(weights(0));
        let latest = transport.weights(Wanted::Latest, SOON).unwrap();
        assert_eq!(latest.version, 0);
        assert!(transport.weights(Wanted::Exactly(1), SOON).is_err());
        let reader = Arc::clone(&transport);
        let thread = std::thread::spawn(move || reader.weights(Wanted::Exactly(1), PATIENT));
        transport.publish(weights(1));
        assert_eq!(thread.join().unwrap().unwrap().values.values(), [1.0]);
        // The last two versions can be had, older ones are gone.
        transport.publish(weights(2));
        let before = transport.weights(Wanted::Exactly(1), SOON).unwrap();
        assert_eq!(before.values.values(), [1.0]);
        assert!(transport.weights(Wanted::Exactly(0), SOON).is_err());
    }

    fn actors_are_patient_with_a_busy_learner(transport: impl Transport + 'static) {
        let transport = Arc::new(transport);
        transport.set_busy(true);
        let actor = Arc::clone(&transport);
        let thread = std::thread::spawn(move || actor.weights(Wanted::Latest, SOON));
        std::thread::sleep(4 * SOON);
        assert!(!thread.is_finished());
        transport.set_busy(false);
        assert!(thread.join().unwrap().is_err());
    }

    fn failures_and_closing_end_waits(transport: impl Transport + 'static) {
        let transport = Arc::new(transport);
        let learner = Arc::clone(&transport);
        let thread = std::thread::spawn(move || learner.receive(PATIENT));
        transport.fail("actor 3".into(), "no more coins".into());
        let failed = thread.join().unwrap().unwrap_err();
        assert_eq!(failed.to_string(), "actor 3 failed: no more coins");
        let actor = Arc::clone(&transport);
        let thread = std::thread::spawn(move || actor.weights(Wanted::Latest, PATIENT));
        transport.close();
        assert_eq!(thread.join().unwrap().unwrap_err(), TransportError::Closed);
    }

    #[test]
    fn in_process_conforms() {
        conformance(|| InProcess::new(2, 2));
    }
}
