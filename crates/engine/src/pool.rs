//! Actor threads: N actors, each on a thread of its own.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::{Actor, EngineError, InProcess, Parcel, Transport, TransportError, Weights};

/// Actors on threads of their own, and the learner's end of the way to them.
pub(crate) struct Pool {
    transport: Arc<InProcess>,
    env_steps: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
    lockstep: bool,
    patience: Duration,
}

impl Pool {
    /// Starts one thread per actor (given with the number of its first environment). In
    /// `lockstep` an actor waits for the weights that follow from its last rollout; otherwise
    /// it goes on with the latest there are.
    pub(crate) fn start(
        actors: Vec<(usize, Actor)>,
        lockstep: bool,
        patience: Duration,
        weights: Weights,
        env_steps: u64,
    ) -> Result<Self, EngineError> {
        let transport = Arc::new(InProcess::new(2 * actors.len()));
        let env_steps = Arc::new(AtomicU64::new(env_steps));
        let first_version = weights.version;
        transport.publish(weights);
        let mut threads = Vec::new();
        for (number, (first_env, actor)) in actors.into_iter().enumerate() {
            let work = Work {
                number,
                first_env,
                transport: Arc::clone(&transport),
                env_steps: Arc::clone(&env_steps),
                wanted: lockstep.then_some(first_version),
                patience,
            };
            let thread = std::thread::Builder::new()
                .name(format!("actor-{number}"))
                .spawn(move || work.run(actor))
                .map_err(|error| TransportError::ActorFailed {
                    actor: number,
                    reason: format!("its thread could not be started: {error}"),
                })?;
            threads.push(thread);
        }
        Ok(Self {
            transport,
            env_steps,
            threads,
            lockstep,
            patience,
        })
    }

    /// One parcel of every actor (in lockstep, in their order), or as many parcels as there are
    /// actors, whosever they are.
    pub(crate) fn receive_all(&self) -> Result<Vec<Parcel>, EngineError> {
        let mut parcels = Vec::new();
        while parcels.len() < self.threads.len() {
            parcels.push(self.transport.receive(self.patience)?);
        }
        if self.lockstep {
            parcels.sort_by_key(|parcel: &Parcel| parcel.actor);
        }
        Ok(parcels)
    }

    /// What has arrived; waits for at least one parcel if `wait` is set.
    pub(crate) fn receive_ready(&self, wait: bool) -> Result<Vec<Parcel>, EngineError> {
        let mut parcels = Vec::new();
        if wait {
            parcels.push(self.transport.receive(self.patience)?);
        }
        while parcels.len() < self.threads.len() {
            match self.transport.receive(Duration::ZERO) {
                Ok(parcel) => parcels.push(parcel),
                Err(TransportError::TimedOut { .. }) => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(parcels)
    }

    pub(crate) fn publish(&self, weights: Weights, env_steps: u64) {
        self.env_steps.store(env_steps, Ordering::Relaxed);
        self.transport.publish(weights);
    }

    pub(crate) fn recycle(&self, parcels: Vec<Parcel>) {
        for parcel in parcels {
            self.transport.recycle(parcel.actor, parcel.rollout);
        }
    }

    /// Says that the learner is busy with something long, or no longer.
    pub(crate) fn set_busy(&self, busy: bool) {
        self.transport.set_busy(busy);
    }
}

/// How long the end of a run waits for an actor in the middle of a rollout.
const FAREWELL: Duration = Duration::from_secs(5);

impl Drop for Pool {
    fn drop(&mut self) {
        self.transport.close();
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

/// What one actor thread does.
struct Work {
    number: usize,
    first_env: usize,
    transport: Arc<InProcess>,
    env_steps: Arc<AtomicU64>,
    /// The version to wait for, in lockstep.
    wanted: Option<u64>,
    patience: Duration,
}

impl Work {
    fn run(self, actor: Actor) {
        let (transport, number) = (Arc::clone(&self.transport), self.number);
        let reason = match catch_unwind(AssertUnwindSafe(|| self.act(actor))) {
            Ok(Ok(()) | Err(EngineError::Transport(TransportError::Closed))) => return,
            Ok(Err(error)) => error.to_string(),
            Err(panic) => format!("it panicked: {}", panic_message(&*panic)),
        };
        transport.fail(number, reason);
    }

    fn act(mut self, mut actor: Actor) -> Result<(), EngineError> {
        starling_nets::set_threads(1);
        let mut spare = None;
        loop {
            let at_least = self.wanted.unwrap_or(0);
            let weights = self.transport.weights(at_least, self.patience)?;
            actor.collect(&weights, self.env_steps.load(Ordering::Relaxed))?;
            let parcel = Parcel {
                actor: self.number,
                first_env: self.first_env,
                episodes: actor.episodes(),
                rollout: actor.take_rollout(spare.take()),
            };
            spare = self.transport.send(parcel, self.patience)?;
            self.wanted = self.wanted.map(|version| version + 1);
        }
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
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
    use starling_envs::{Action, Env, EnvError, ObsMut, Rng, Space, Step, VecEnv};
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
                (left, _) => left - 1,
            };
            Ok(Step::default())
        }
    }

    fn start(fault: Fault, patience: Duration) -> Pool {
        let config = json!({"env": {"id": "CartPole-v1"}, "algo": {"name": "ppo"}});
        let config = RunConfig::from_value(&config).unwrap();
        let algorithm = config.algorithm().unwrap();
        let actors = (0..2).map(|i| {
            let faulty = Faulty {
                steps_left: if i == 1 { 200 } else { usize::MAX },
                fault,
            };
            let envs = VecEnv::from_envs(vec![Box::new(faulty)], 1, "env", i as u64);
            let place = Place {
                first_env: i,
                envs: 1,
                total_envs: 2,
            };
            let policy = algorithm.policy(Device::Cpu);
            (i, Actor::with_envs(envs, policy, 16, 1, place, 0))
        });
        let weights = Weights {
            version: 0,
            values: algorithm.learner(1, Device::Cpu).weights(),
        };
        Pool::start(actors.collect(), false, patience, weights, 0).unwrap()
    }

    /// Neither a failing nor a panicking environment hangs a run: its message comes through.
    #[test]
    fn a_faulty_environment_ends_the_run_with_its_message() {
        for (fault, expected) in [
            (Fault::Error, "out of fuel"),
            (Fault::Panic, "the wheel came off"),
        ] {
            let pool = start(fault, Duration::from_secs(60));
            let error = loop {
                match pool.receive_all() {
                    Ok(parcels) => pool.recycle(parcels),
                    Err(error) => break error.to_string(),
                }
            };
            assert!(error.contains("actor 1 failed"), "{error}");
            assert!(error.contains(expected), "{error}");
        }
    }

    /// An environment that never returns ends the run too, once patience is at its end.
    #[test]
    fn a_stuck_environment_ends_the_run() {
        let pool = start(Fault::Stuck, Duration::from_millis(500));
        let error = loop {
            match pool.receive_all() {
                Ok(parcels) => pool.recycle(parcels),
                Err(error) => break error.to_string(),
            }
        };
        assert!(error.contains("waited"), "{error}");
        let start = Instant::now();
        drop(pool);
        assert!(start.elapsed() < 2 * FAREWELL);
    }

    /// An actor that waits for weights that never come says who waited for whom.
    #[test]
    fn waiting_for_ever_is_no_option() {
        let transport = InProcess::new(1);
        let error = transport.weights(1, Duration::from_millis(10)).unwrap_err();
        let message = error.to_string();
        assert!(
            message.contains("an actor waited 0 s for weights from the learner"),
            "{message}"
        );
    }
}
