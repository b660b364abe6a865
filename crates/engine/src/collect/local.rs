//! Actors on threads of this process.

use std::any::Any;
use std::ops::Range;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use starling_envs::Pulse;

use super::serve::{act, guard};
use super::{Actor, ActorKit, Central, Station};
use crate::link::{ActorLink, InProcess, Lease, Places};
use crate::{EngineError, Mode, RunConfig};

/// How long the end of a run waits for an actor in the middle of a rollout.
const FAREWELL: Duration = Duration::from_secs(5);

/// How often an actor that was lost looks whether its place is free.
const LOOK: Duration = Duration::from_millis(5);

/// The actors of this process.
pub(crate) struct LocalActors {
    link: InProcess,
    places: Arc<Places>,
    /// Those who are not at work yet.
    workers: Vec<Worker>,
    threads: Vec<JoinHandle<()>>,
    /// Pin every thread to a separate core.
    pin: bool,
    /// An actor that fails is followed by another one.
    replace_lost: bool,
}

/// One thread that collects at some places.
struct Worker {
    name: String,
    places: Range<usize>,
    make: Make,
}

type Make = Box<dyn Fn(&[Lease]) -> Result<Collector, EngineError> + Send>;

/// What collects at a worker's places.
pub(crate) enum Collector {
    /// One place, with a separate policy.
    Actor(Box<Actor>),
    /// Several places, one policy for all.
    Central(Box<Central>),
}

impl Collector {
    /// What shows whether its environments are moving.
    pub(super) fn pulses(&self) -> Vec<Arc<Pulse>> {
        match self {
            Collector::Actor(actor) => vec![Arc::clone(actor.crew().pulse())],
            Collector::Central(central) => central.pulses().collect(),
        }
    }

    /// Shows it there from now on.
    fn set_pulses(&mut self, pulses: &[Arc<Pulse>]) {
        let crews = match self {
            Collector::Actor(actor) => vec![actor.crew_mut()],
            Collector::Central(central) => central.crews_mut().collect(),
        };
        for (crew, pulse) in crews.into_iter().zip(pulses) {
            crew.set_pulse(Arc::clone(pulse));
        }
    }

    pub(super) fn run(
        self,
        station: &Station,
        leases: &[Lease],
        pin: bool,
    ) -> Result<(), EngineError> {
        match (self, leases) {
            (Collector::Actor(actor), [lease]) => act(station, lease, *actor),
            (Collector::Actor(_), _) => Err(EngineError::Thread("has no place".into())),
            (Collector::Central(central), leases) => central.run(station, leases, pin),
        }
    }
}

impl LocalActors {
    /// The actors of a run, one for each place, or one for all with `mode=central`.
    pub(crate) fn new(
        config: &RunConfig,
        kit: &ActorKit,
        link: InProcess,
        places: Arc<Places>,
    ) -> Self {
        let central = config.settings.mode == Mode::Central;
        let workers = match central {
            true => vec![Worker::central(kit.clone(), places.len())],
            false => (0..places.len())
                .map(|place| Worker::actor(kit.clone(), place))
                .collect(),
        };
        Self {
            link,
            places,
            workers,
            threads: Vec::new(),
            pin: config.settings.pin_threads,
            replace_lost: config.losses_allowed() > 0,
        }
    }

    /// Their side of the link.
    pub(crate) fn link(&self) -> Arc<dyn ActorLink> {
        Arc::new(self.link.clone())
    }

    /// Sets them to work. Returns what shows whether their environments are moving.
    pub(crate) fn start(&mut self, station: &Station) -> Result<Vec<Arc<Pulse>>, EngineError> {
        let mut all = Vec::new();
        for (core, worker) in std::mem::take(&mut self.workers).into_iter().enumerate() {
            let leases = worker.lease(&self.places)?;
            let collector = (worker.make)(&leases)?;
            let pulses = collector.pulses();
            all.extend(pulses.iter().cloned());
            let shift = Shift {
                worker,
                pulses,
                station: station.clone(),
                link: self.link.clone(),
                places: Arc::clone(&self.places),
                pin: self.pin,
                replace_lost: self.replace_lost,
            };
            let (name, pin) = (shift.worker.name.clone(), self.pin);
            let who = name.clone();
            let thread = std::thread::Builder::new().name(name).spawn(move || {
                if pin {
                    pin_to_core(core);
                }
                shift.work(collector, leases);
            });
            let thread = thread
                .map_err(|error| EngineError::Thread(format!("{who} did not start: {error}")))?;
            self.threads.push(thread);
        }
        Ok(all)
    }
}

/// The link must be closed before this is dropped.
impl Drop for LocalActors {
    fn drop(&mut self) {
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

impl Worker {
    fn actor(kit: ActorKit, place: usize) -> Self {
        let make = move |leases: &[Lease]| match leases {
            [lease] => {
                let actor = kit.actor(lease.place, lease.seed)?;
                Ok(Collector::Actor(Box::new(actor)))
            }
            _ => Err(EngineError::Thread("of an actor has one place".into())),
        };
        Self {
            name: format!("actor-{place}"),
            places: place..place + 1,
            make: Box::new(make),
        }
    }

    fn central(kit: ActorKit, places: usize) -> Self {
        let make = move |leases: &[Lease]| Ok(Collector::Central(Box::new(kit.central(leases)?)));
        Self {
            name: "central".into(),
            places: 0..places,
            make: Box::new(make),
        }
    }

    fn lease(&self, places: &Places) -> Result<Vec<Lease>, EngineError> {
        let lease = |place| {
            let taken = || EngineError::Thread(format!("{}: place {place} is taken", self.name));
            places.lease_at(place).ok_or_else(taken)
        };
        self.places.clone().map(lease).collect()
    }
}

/// A worker at work.
struct Shift {
    worker: Worker,
    pulses: Vec<Arc<Pulse>>,
    station: Station,
    link: InProcess,
    places: Arc<Places>,
    pin: bool,
    replace_lost: bool,
}

impl Shift {
    /// What a thread does.
    fn work(self, collector: Collector, mut leases: Vec<Lease>) {
        let mut first = Some(collector);
        loop {
            let worked = guard(|| {
                let mut collector = match first.take() {
                    Some(collector) => collector,
                    None => (self.worker.make)(&leases)?,
                };
                collector.set_pulses(&self.pulses);
                collector.run(&self.station, &leases, self.pin)
            });
            let Err(failure) = worked else {
                return;
            };
            let who = self.worker.name.clone();
            self.link.fail(failure.loss(&leases, who));
            if !self.replace_lost || !self.wait_for_places(&leases) {
                return;
            }
            leases = match self.worker.lease(&self.places) {
                Ok(leases) => leases,
                Err(_) => return,
            };
            for lease in &leases {
                self.link.join(lease.id, self.worker.name.clone());
            }
        }
    }

    /// A place is free once the learner has heard of the loss. Returns false if the run ends
    /// before that.
    fn wait_for_places(&self, leases: &[Lease]) -> bool {
        while leases.iter().any(|lease| self.places.holds(lease.id)) {
            if self.link.is_closed() {
                return false;
            }
            std::thread::sleep(LOOK);
        }
        true
    }
}

/// Keeps the calling thread on one core, counted round among those there are.
pub(super) fn pin_to_core(number: usize) {
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    if let Some(core) = cores.get(number % cores.len().max(1)) {
        core_affinity::set_for_current(*core);
    }
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
    use std::sync::atomic::{AtomicBool, Ordering};

    use serde_json::json;
    use starling_algos::Algorithm;
    use starling_envs::{Action, Env, EnvError, ObsMut, Rng, Space, Step, SyncVecEnv};
    use starling_nets::Device;

    use super::*;
    use crate::link::{
        Control, Inbox, Losses, Pace, Publication, QUEUED_PER_PLACE, Start, Weights,
    };

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

    fn config(pace: Pace) -> RunConfig {
        let (asynchronous, envs) = (pace == Pace::Free, 2);
        RunConfig::from_value(&json!({
            "env": {"id": "CartPole-v1"},
            "algo": {"name": "ppo", "rollout_steps": 16},
            "mode": "threads",
            "threads": 2,
            "envs": envs,
            "device": "cpu",
            "asynchronous": asynchronous,
        }))
        .unwrap()
    }

    /// Two actors, of which the second goes wrong after 200 steps, and the learner's end.
    struct Pair {
        inbox: Inbox,
        local: LocalActors,
        weights: starling_nets::Snapshot,
        version: u64,
    }

    impl Pair {
        fn start(fault: Fault, patience: Duration, pace: Pace, allowed: u64) -> Self {
            let config = config(pace);
            let kit = ActorKit::new(&config, None).unwrap();
            let places = Arc::new(Places::new([0..1, 1..2], Start::default()));
            let link = InProcess::new(Arc::clone(&places), 2);
            let workers = (0..2).map(|i| Worker {
                name: format!("actor-{i}"),
                places: i..i + 1,
                make: make(Arc::clone(&kit.algorithm), i, fault),
            });
            let mut local = LocalActors::new(&config, &kit, link.clone(), Arc::clone(&places));
            local.workers = workers.collect();
            local.replace_lost = allowed > 0;
            let losses = Losses { allowed, count: 0 };
            let inbox = Inbox::new(Box::new(link), places, pace, patience, losses);
            let weights = kit.algorithm.learner(1, Device::Cpu).weights();
            let mut station = Station::new(&config, &kit, local.link(), Arc::default());
            station.patience = patience;
            let mut pair = Self {
                inbox,
                local,
                weights,
                version: 0,
            };
            pair.publish();
            pair.inbox.watch(pair.local.start(&station).unwrap());
            pair
        }

        fn publish(&mut self) {
            let weights = Weights {
                version: self.version,
                values: self.weights.clone(),
            };
            self.version += 1;
            self.inbox.publish(Publication {
                weights: Arc::new(weights),
                control: Control::default(),
            });
        }

        /// Receives until it fails.
        fn error(&mut self) -> String {
            loop {
                match self.inbox.receive_all(&AtomicBool::new(false)) {
                    Ok(parcels) => self.inbox.recycle(parcels.unwrap()),
                    Err(error) => return error.to_string(),
                }
                self.publish();
            }
        }
    }

    fn make(algorithm: Arc<dyn Algorithm>, number: usize, fault: Fault) -> Make {
        Box::new(move |leases| {
            let faulty = Faulty {
                steps_left: if number == 1 { 200 } else { usize::MAX },
                fault,
            };
            let envs = SyncVecEnv::from_envs(vec![Box::new(faulty)], 1, "env", number as u64)?;
            let policy = algorithm.policy(Device::Cpu);
            let actor =
                Actor::with_envs(Box::new(envs), policy, 16, leases[0].seed, leases[0].place);
            Ok(Collector::Actor(Box::new(actor)))
        })
    }

    const LONG: Duration = Duration::from_secs(60);

    /// Neither a failing nor a panicking environment hangs a run: its message comes through.
    #[test]
    fn a_faulty_environment_ends_the_run_with_its_message() {
        for (fault, expected) in [
            (Fault::Error, "out of fuel"),
            (Fault::Panic, "the wheel came off"),
        ] {
            let error = Pair::start(fault, LONG, Pace::Free, 0).error();
            assert!(error.contains("actor-1 failed"), "{error}");
            assert!(error.contains(expected), "{error}");
        }
    }

    /// An actor that fails is followed by another one, as often as allowed. In rounds the run
    /// continues with the round that was missing: both actors take turns with the learner.
    #[test]
    fn a_lost_actor_is_replaced() {
        for pace in [Pace::Free, Pace::Lag(0)] {
            let mut pair = Pair::start(Fault::Panic, LONG, pace, 3);
            let error = pair.error();
            assert!(error.contains("the wheel came off"), "{error}");
            assert_eq!(pair.inbox.losses(), 3);
            if pace == Pace::Lag(0) {
                // 200 steps are 12 whole rollouts of 16; four actors held the place.
                assert_eq!(pair.version, 1 + 4 * 12);
            }
        }
    }

    /// An environment that never returns ends the run too, once patience is at its end, and it is
    /// named. Others may have waited for it as long.
    #[test]
    fn a_stuck_environment_ends_the_run() {
        for pace in [Pace::Free, Pace::Lag(0)] {
            let mut pair = Pair::start(Fault::Stuck, Duration::from_millis(500), pace, 0);
            let error = pair.error();
            assert!(error.contains("environment 1 has not returned"), "{error}");
            let start = Instant::now();
            drop(pair);
            assert!(start.elapsed() < 2 * FAREWELL);
        }
    }

    /// Actors that are faster than the learner wait for it; what they collected does not pile up.
    #[test]
    fn actors_do_not_run_ahead_of_the_learner() {
        let pair = Pair::start(Fault::Never, LONG, Pace::Free, 0);
        let (link, most) = (&pair.local.link, QUEUED_PER_PLACE * 2);
        let began = Instant::now();
        while link.queued() < most {
            assert!(began.elapsed() < LONG / 2, "nothing is collected");
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(200));
        assert_eq!(link.queued(), most);
    }

    /// A signal ends the wait for an environment that is stuck.
    #[test]
    fn a_stop_does_not_wait_for_a_stuck_environment() {
        let mut pair = Pair::start(Fault::Stuck, 60 * LONG, Pace::Free, 0);
        let stop = Arc::new(AtomicBool::new(false));
        let signal = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(300));
            signal.store(true, Ordering::Relaxed);
        });
        while let Some(parcels) = pair.inbox.receive_all(&stop).unwrap() {
            pair.inbox.recycle(parcels);
        }
        thread.join().unwrap();
    }
}
