//! The threads of a run that collect, and the learner's end of the way to them.

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use starling_envs::Resident;

use crate::central::Central;
use crate::patience::{Patience, Watchdog};
use crate::profile::Profile;
use crate::{Actor, EngineError, InProcess, Parcel, Transport, TransportError, Wanted, Weights};

/// How actors follow the learner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    /// They continue with the latest weights.
    Free,
    /// A rollout is collected with the weights that followed from the rollouts of exactly this
    /// many rounds before the last one. At 0 actors and learner work in turns.
    Lag(u64),
}

/// What an actor on a thread needs of the run around it.
#[derive(Clone)]
pub(crate) struct Station {
    pub(crate) transport: Arc<InProcess>,
    pub(crate) env_steps: Arc<AtomicU64>,
    pub(crate) pace: Pace,
    pub(crate) first_version: u64,
    pub(crate) patience: Duration,
    pub(crate) profile: Arc<Profile>,
    /// Keep every thread on a core of its own.
    pub(crate) pin: bool,
}

impl Station {
    /// The weights for the rollout of this number.
    pub(crate) fn weights(&self, rollout: u64) -> Result<Arc<Weights>, TransportError> {
        let wanted = match self.pace {
            Pace::Free => Wanted::Latest,
            Pace::Lag(lag) => Wanted::Exactly(self.first_version + rollout.saturating_sub(lag)),
        };
        self.transport.weights(wanted, self.patience)
    }

    pub(crate) fn steps(&self) -> u64 {
        self.env_steps.load(Ordering::Relaxed)
    }

    /// Runs what a thread does, and reports how it failed if it did.
    pub(crate) fn guard(&self, who: &str, work: impl FnOnce() -> Result<(), EngineError>) {
        let reason = match catch_unwind(AssertUnwindSafe(work)) {
            Ok(Ok(()) | Err(EngineError::Transport(TransportError::Closed))) => return,
            Ok(Err(error)) => error.to_string(),
            Err(panic) => format!("it panicked: {}", panic_message(&*panic)),
        };
        self.transport.fail(who.to_owned(), reason);
    }

    /// Starts a thread, on a core of its own if so asked.
    pub(crate) fn spawn(
        &self,
        name: String,
        core: usize,
        work: impl FnOnce() + Send + 'static,
    ) -> Result<JoinHandle<()>, TransportError> {
        let (pin, who) = (self.pin, name.clone());
        let started = std::thread::Builder::new().name(name).spawn(move || {
            if pin {
                pin_to_core(core);
            }
            work();
        });
        started.map_err(|error| TransportError::ActorFailed {
            who,
            reason: format!("its thread could not be started: {error}"),
        })
    }
}

/// Keeps the calling thread on one core, counted round among those there are.
fn pin_to_core(number: usize) {
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    if let Some(core) = cores.get(number % cores.len().max(1)) {
        core_affinity::set_for_current(*core);
    }
}

/// Actors that wait to be moved to threads.
pub(crate) enum Idle {
    /// Each with environments and a policy of its own.
    Actors(Vec<Actor>),
    /// Environments on threads, one policy for all.
    Central(Box<Central>),
}

/// Actors on threads, and the learner's end of the way to them.
pub(crate) struct Pool {
    station: Station,
    threads: Vec<JoinHandle<()>>,
    actors: usize,
    watchdog: Watchdog,
    /// Parcels that came before it was their turn, by actor.
    early: Vec<VecDeque<Parcel>>,
}

/// What a pool is started with.
pub(crate) struct Start {
    pub(crate) pace: Pace,
    pub(crate) patience: Duration,
    pub(crate) weights: Arc<Weights>,
    pub(crate) env_steps: u64,
    pub(crate) profile: Arc<Profile>,
    pub(crate) pin: bool,
}

impl Pool {
    /// Moves actors to threads.
    pub(crate) fn start(idle: Idle, start: Start) -> Result<Self, EngineError> {
        let (actors, watchdog) = match &idle {
            Idle::Actors(actors) => {
                let pulses = actors.iter().map(|actor| Arc::clone(actor.crew().pulse()));
                (actors.len(), Watchdog::new(pulses))
            }
            Idle::Central(central) => (central.groups(), Watchdog::new(central.pulses())),
        };
        let history = match start.pace {
            Pace::Free => 1,
            Pace::Lag(lag) => lag as usize + 2,
        };
        let station = Station {
            transport: Arc::new(InProcess::new(QUEUED_PER_ACTOR * actors, history)),
            env_steps: Arc::new(AtomicU64::new(start.env_steps)),
            pace: start.pace,
            first_version: start.weights.version,
            patience: start.patience,
            profile: start.profile,
            pin: start.pin,
        };
        station.transport.publish(start.weights);
        let mut pool = Self {
            threads: Vec::new(),
            actors,
            watchdog,
            early: (0..actors).map(|_| VecDeque::new()).collect(),
            station,
        };
        match idle {
            Idle::Central(central) => pool.threads = central.start(&pool.station)?,
            Idle::Actors(actors) => {
                for (number, actor) in actors.into_iter().enumerate() {
                    let station = pool.station.clone();
                    let name = format!("actor-{number}");
                    let who = name.clone();
                    let work = move || station.guard(&who, || act(&station, number, actor));
                    pool.threads.push(pool.station.spawn(name, number, work)?);
                }
            }
        }
        Ok(pool)
    }

    /// One parcel of every actor in their order, or, at a free pace, any parcels, as many as there
    /// are actors. `None` when the run is told to stop before they are all here.
    pub(crate) fn receive_all(
        &mut self,
        stop: &AtomicBool,
    ) -> Result<Option<Vec<Parcel>>, EngineError> {
        if self.station.pace == Pace::Free {
            let parcels = (0..self.actors).map(|_| self.receive(stop));
            return parcels.collect();
        }
        while self.early.iter().any(VecDeque::is_empty) {
            let Some(parcel) = self.receive(stop)? else {
                return Ok(None);
            };
            self.early[parcel.actor].push_back(parcel);
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
        while parcels.len() < self.actors {
            match self.station.transport.receive(Duration::ZERO) {
                Ok(parcel) => parcels.push(parcel),
                Err(TransportError::TimedOut { .. }) => break,
                Err(error) => return Err(self.blame(error)),
            }
        }
        // At a free pace the others would keep the learner going and nobody would notice.
        self.check_environments()?;
        Ok(parcels)
    }

    /// The next parcel; `None` when the run is told to stop before there is one.
    fn receive(&mut self, stop: &AtomicBool) -> Result<Option<Parcel>, EngineError> {
        let mut patience = Patience::new(self.station.patience);
        while !stop.load(Ordering::Relaxed) {
            let began = Instant::now();
            let received = self.station.transport.receive(patience.slice());
            self.check_environments()?;
            match received {
                Ok(parcel) => return Ok(Some(parcel)),
                Err(TransportError::TimedOut { .. }) if patience.spend(began) => {}
                Err(TransportError::TimedOut { who, what, .. }) => {
                    let seconds = self.station.patience.as_secs();
                    return Err(self.blame(TransportError::TimedOut { who, what, seconds }));
                }
                Err(error) => return Err(self.blame(error)),
            }
        }
        Ok(None)
    }

    /// Fails if an environment does not return.
    fn check_environments(&mut self) -> Result<(), EngineError> {
        match self.watchdog.look() {
            Some(still) if still.time > self.station.patience => Err(still.into()),
            _ => Ok(()),
        }
    }

    /// A wait that ended without what was waited for is the fault of an environment that has been
    /// in one call for most of that time, if there is one: all others wait for it.
    fn blame(&mut self, error: TransportError) -> EngineError {
        let timed_out = match &error {
            TransportError::TimedOut { .. } => true,
            TransportError::ActorFailed { reason, .. } => reason.ends_with("(stall_timeout_s)"),
            TransportError::Closed => false,
        };
        match self.watchdog.look() {
            Some(still) if timed_out && still.time > self.station.patience / 2 => still.into(),
            _ => error.into(),
        }
    }

    /// Tells actors how far the run has come.
    pub(crate) fn progress(&self, env_steps: u64) {
        self.station.env_steps.store(env_steps, Ordering::Relaxed);
    }

    pub(crate) fn publish(&self, weights: Arc<Weights>) {
        self.station.transport.publish(weights);
    }

    pub(crate) fn recycle(&self, parcels: Vec<Parcel>) {
        for parcel in parcels {
            let rollouts = parcel.rollouts.into_iter().map(|(_, mut rollout)| {
                // It was used; on a GPU it would keep a whole group's observations there.
                rollout.resident = Resident::default();
                rollout
            });
            let rollouts = rollouts.collect();
            self.station.transport.recycle(parcel.actor, rollouts);
        }
    }

    /// Says that the learner is busy with something long, or no longer.
    pub(crate) fn set_busy(&self, busy: bool) {
        self.station.transport.set_busy(busy);
    }
}

/// Parcels that may wait for the learner, for each actor.
const QUEUED_PER_ACTOR: usize = 2;

/// How long the end of a run waits for an actor in the middle of a rollout.
const FAREWELL: Duration = Duration::from_secs(5);

impl Drop for Pool {
    fn drop(&mut self) {
        self.station.transport.close();
        let start = Instant::now();
        for thread in self.threads.drain(..) {
            while !thread.is_finished() && start.elapsed() < FAREWELL {
                std::thread::sleep(Duration::from_millis(1));
            }
            if thread.is_finished() {
                // A thread that panicked has reported it already.
                let _ = thread.join();
            } else {
                // An environment that never returns must not keep the run's message back.
                tracing::warn!("{:?} did not end in time", thread.thread().name());
            }
        }
    }
}

/// What the thread of one actor does.
fn act(station: &Station, number: usize, mut actor: Actor) -> Result<(), EngineError> {
    starling_nets::set_threads(1);
    let mut spare = None;
    for rollout in 0.. {
        let began = Instant::now();
        let weights = station.weights(rollout)?;
        station.profile.add("actor", "wait", began.elapsed());
        actor.collect(&weights, station.steps(), &station.profile)?;
        let episodes = actor.episodes();
        let crew = actor.crew_mut();
        let parcel = Parcel {
            actor: number,
            rollouts: vec![(crew.place().first_env, crew.take_rollout(spare.take()))],
            episodes,
        };
        let began = Instant::now();
        let spares = station.transport.send(parcel, station.patience)?;
        station.profile.add("actor", "wait", began.elapsed());
        spare = spares.and_then(|mut spares| spares.pop());
    }
    Ok(())
}

/// What a panic said.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> &str {
    match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(message), _) => message,
        (_, Some(message)) => message,
        _ => "no message",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Place, RunConfig};
    use serde_json::json;
    use starling_envs::{Action, Env, EnvError, ObsMut, Rng, Space, Step, SyncVecEnv};
    use starling_nets::Device;

    /// Goes wrong at a given step, one way or the other.
    struct Faulty {
        steps_left: usize,
        fault: Fault,
    }

    #[derive(Clone, Copy, PartialEq)]
    enum Fault {
        Error,
        Panic,
        Stuck,
        Never,
    }

    impl Env for Faulty {
        fn observation_space(&self) -> Space {
            Space::unbounded(&[4])
        }

        fn action_space(&self) -> Space {
            Space::Discrete { n: 2 }
        }

        fn reset(&mut self, _: &mut Rng, mut obs: ObsMut<'_>) -> Result<(), EnvError> {
            obs.write(&[0f32; 4]);
            Ok(())
        }

        fn step(&mut self, _: Action<'_>, _: &mut Rng, _: ObsMut<'_>) -> Result<Step, EnvError> {
            self.steps_left = match (self.steps_left, self.fault) {
                (0, Fault::Error) => return Err(EnvError::Failed("out of fuel".into())),
                (0, Fault::Panic) => panic!("the wheel came off"),
                (0, Fault::Stuck) => loop {
                    std::thread::sleep(Duration::from_secs(1));
                },
                (left, Fault::Never) => left,
                (left, _) => left - 1,
            };
            Ok(Step::default())
        }
    }

    fn ppo() -> Box<dyn starling_algos::Algorithm> {
        let config = json!({"env": {"id": "CartPole-v1"}, "algo": {"name": "ppo"}});
        RunConfig::from_value(&config).unwrap().algorithm().unwrap()
    }

    fn weights_of_ppo() -> Vec<f32> {
        ppo().learner(1, Device::Cpu).weights()
    }

    fn start(fault: Fault, patience: Duration, pace: Pace) -> Pool {
        let algorithm = ppo();
        let actors = (0..2).map(|i| {
            let faulty = Faulty {
                steps_left: if i == 1 { 200 } else { usize::MAX },
                fault,
            };
            let envs = SyncVecEnv::from_envs(vec![Box::new(faulty)], 1, "env", i as u64).unwrap();
            let place = Place {
                first_env: i,
                envs: 1,
                total_envs: 2,
            };
            let policy = algorithm.policy(Device::Cpu);
            Actor::with_envs(Box::new(envs), policy, 16, 1, place)
        });
        let weights = Arc::new(Weights {
            version: 0,
            values: weights_of_ppo(),
        });
        let start = Start {
            pace,
            patience,
            weights,
            env_steps: 0,
            profile: Arc::default(),
            pin: false,
        };
        Pool::start(Idle::Actors(actors.collect()), start).unwrap()
    }

    /// Neither a failing nor a panicking environment hangs a run: its message comes through.
    #[test]
    fn a_faulty_environment_ends_the_run_with_its_message() {
        for (fault, expected) in [
            (Fault::Error, "out of fuel"),
            (Fault::Panic, "the wheel came off"),
        ] {
            let mut pool = start(fault, Duration::from_secs(60), Pace::Free);
            let error = loop {
                match pool.receive_all(&AtomicBool::new(false)) {
                    Ok(parcels) => pool.recycle(parcels.unwrap()),
                    Err(error) => break error.to_string(),
                }
            };
            assert!(error.contains("actor-1 failed"), "{error}");
            assert!(error.contains(expected), "{error}");
        }
    }

    /// An environment that never returns ends the run too, once patience is at its end, and it is
    /// named. Others may have waited for it as long.
    #[test]
    fn a_stuck_environment_ends_the_run() {
        for pace in [Pace::Free, Pace::Lag(0)] {
            let mut pool = start(Fault::Stuck, Duration::from_millis(500), pace);
            let mut version = 0;
            let error = loop {
                match pool.receive_all(&AtomicBool::new(false)) {
                    Ok(parcels) => pool.recycle(parcels.unwrap()),
                    Err(error) => break error.to_string(),
                }
                version += 1;
                let values = weights_of_ppo();
                pool.publish(Arc::new(Weights { version, values }));
            };
            assert!(error.contains("environment 1 has not returned"), "{error}");
            let start = Instant::now();
            drop(pool);
            assert!(start.elapsed() < 2 * FAREWELL);
        }
    }

    /// Actors that are faster than the learner wait for it; what they collected does not pile up.
    #[test]
    fn actors_do_not_run_ahead_of_the_learner() {
        let pool = start(Fault::Never, Duration::from_secs(60), Pace::Free);
        let most = QUEUED_PER_ACTOR * 2;
        let began = Instant::now();
        while pool.station.transport.queued() < most {
            assert!(
                began.elapsed() < Duration::from_secs(30),
                "nothing is collected"
            );
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(200));
        assert_eq!(pool.station.transport.queued(), most);
    }

    /// A signal ends the wait for an environment that is stuck.
    #[test]
    fn a_stop_does_not_wait_for_a_stuck_environment() {
        let mut pool = start(Fault::Stuck, Duration::from_secs(3600), Pace::Free);
        let stop = Arc::new(AtomicBool::new(false));
        let signal = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(300));
            signal.store(true, Ordering::Relaxed);
        });
        while let Some(parcels) = pool.receive_all(&stop).unwrap() {
            pool.recycle(parcels);
        }
        thread.join().unwrap();
    }

    /// An actor that waits for weights that never come says who waited for whom.
    #[test]
    fn waiting_for_ever_is_no_option() {
        let transport = InProcess::new(1, 1);
        let patience = Duration::from_millis(10);
        let error = transport.weights(Wanted::Exactly(1), patience).unwrap_err();
        let message = error.to_string();
        assert!(
            message.contains("an actor waited 0 s for weights from the learner"),
            "{message}"
        );
    }
}
