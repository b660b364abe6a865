//! From settings to the parts of a run: the learner, and who steps the environments.

use std::ops::Range;
use std::sync::Arc;

use starling_algos::{Algorithm, Progress};
use starling_envs::{EnvError, RestartBudget};
use starling_nets::Device;

use crate::central::{Central, GROUPS, crews};
use crate::collect::{Place, Recruits, rollout_steps};
use crate::config::{cores, spaces_of};
use crate::learn::Pupil;
use crate::pool::{Idle, Pace, Pool};
use crate::serial::SerialActor;
use crate::tally::Tally;
use crate::{Actor, EngineError, Mode, OnEnvError, RunConfig};

/// What is made the same way for a new and a resumed run.
pub(crate) struct Parts {
    pub(crate) algorithm: Arc<dyn Algorithm>,
    pub(crate) device: Device,
    pub(crate) pupil: Pupil,
    pub(crate) collectors: Collectors,
    /// How many environments were and may be restarted.
    pub(crate) restarts: Option<Arc<RestartBudget>>,
    /// Whether the environments count the points of whole games.
    pub(crate) counts_games: bool,
}

/// Who collects.
pub(crate) enum Collectors {
    /// The one actor of a serial run before its thread is started.
    Resting(Box<Actor>),
    /// One actor that takes turns with the learner.
    Serial(SerialActor),
    /// Actors that wait to be moved to threads.
    Waiting(Idle),
    /// Nobody, for the moment of moving them.
    Moving,
    /// Actors at work.
    Threads(Pool),
}

impl Parts {
    /// `step` is where the run stands. Actors on threads are not part of checkpoints: resumed
    /// there, they draw from other streams than those that began the run.
    pub(crate) fn make(config: &RunConfig, step: u64) -> Result<Self, EngineError> {
        // Before the first weights are drawn: how sums are split among threads shows in their
        // last bits.
        starling_nets::set_threads(config.torch_threads());
        let settings = &config.settings;
        let spec = config.env_spec()?;
        let algorithm = config.algorithm()?;
        let device = settings.device.resolve()?;
        starling_nets::allow_tf32(settings.tf32);
        let seed = match settings.mode {
            Mode::Serial => settings.seed,
            Mode::Threads | Mode::Central => settings.seed ^ step.rotate_left(32),
        };
        let restarts = config.restart_budget();
        let collectors = collectors(config, &*algorithm, device, seed, restarts.as_ref())?;
        let env = spec.make(&config.env)?;
        let spaces = spaces_of(&*env);
        Ok(Self {
            pupil: Pupil::new(&*algorithm, &spaces, settings, device)?,
            counts_games: env.counts_games(),
            algorithm: algorithm.into(),
            device,
            collectors,
            restarts,
        })
    }
}

/// Who steps the environments.
fn collectors(
    config: &RunConfig,
    algorithm: &dyn Algorithm,
    device: Device,
    seed: u64,
    restarts: Option<&Arc<RestartBudget>>,
) -> Result<Collectors, EngineError> {
    let settings = &config.settings;
    let (envs, threads) = (settings.envs, config.actor_threads());
    let spec = config.env_spec()?;
    let actor = |share: Range<usize>| {
        let place = Place {
            first_env: share.start,
            envs: share.len(),
            total_envs: envs,
        };
        let decorrelate = settings.decorrelate_steps;
        let mut actor = Actor::new(
            spec,
            &config.env,
            algorithm,
            device,
            seed,
            place,
            decorrelate,
        )?;
        if let Some(budget) = restarts {
            actor.restart_failed(spec, &config.env, budget)?;
        }
        Ok::<_, EnvError>(actor)
    };
    Ok(match settings.mode {
        Mode::Serial => Collectors::Resting(Box::new(actor(0..envs)?)),
        Mode::Threads => {
            let actors = shares(0..envs, threads).map(actor);
            Collectors::Waiting(Idle::Actors(actors.collect::<Result<_, _>>()?))
        }
        Mode::Central => {
            let policy = algorithm.policy(device);
            let recruits = Recruits {
                spec,
                options: &config.env,
                discount: algorithm.discount(),
                steps: rollout_steps(algorithm),
                records: policy.records(),
                state: policy.state(),
                seed,
                total_envs: envs,
                decorrelate_steps: settings.decorrelate_steps,
            };
            let groups = shares(0..envs, GROUPS).map(|group| {
                let parts = crews(group.len(), threads);
                let crews = shares(group, parts);
                let crew = |share: Range<usize>| {
                    let mut crew = recruits.crew(share.start, share.len())?;
                    if let Some(budget) = restarts {
                        crew.restart_failed(spec, &config.env, budget)?;
                    }
                    Ok::<_, EnvError>(crew)
                };
                crews.map(crew).collect()
            });
            let groups = groups.collect::<Result<Vec<Vec<_>>, _>>()?;
            let central = Central::new(policy, groups, threads, config.torch_threads());
            Collectors::Waiting(Idle::Central(Box::new(central)))
        }
    })
}

/// A range in parts, as even as it goes.
fn shares(whole: Range<usize>, parts: usize) -> impl Iterator<Item = Range<usize>> {
    let (start, length) = (whole.start, whole.len());
    (0..parts).map(move |i| start + i * length / parts..start + (i + 1) * length / parts)
}

impl RunConfig {
    /// How many environments may be restarted, if they are to be at all.
    pub(crate) fn restart_budget(&self) -> Option<Arc<RestartBudget>> {
        let settings = &self.settings;
        let restarts = settings.on_env_error == OnEnvError::Restart;
        restarts.then(|| Arc::new(RestartBudget::new(settings.max_env_restarts)))
    }

    /// How actors follow the learner.
    pub(crate) fn pace(&self) -> Pace {
        match (self.settings.asynchronous, self.settings.fixed_lag) {
            (false, _) => Pace::Lag(0),
            (true, Some(lag)) => Pace::Lag(lag),
            (true, None) => Pace::Free,
        }
    }

    /// How many threads an operation of the learner uses. Serial and lockstep runs never act
    /// and learn at once: there it may have all cores.
    pub(crate) fn torch_threads(&self) -> usize {
        match (self.settings.torch_threads, self.settings.asynchronous) {
            (0, false) => cores(),
            (0, true) => cores().saturating_sub(self.actor_threads()).max(1),
            (given, _) => given,
        }
    }

    /// Threads that step environments.
    pub(crate) fn collecting_threads(&self) -> usize {
        match self.settings.mode {
            Mode::Serial => 1,
            Mode::Threads | Mode::Central => self.actor_threads(),
        }
    }

    fn actor_threads(&self) -> usize {
        let settings = &self.settings;
        let threads = match settings.threads {
            // Those that draw ahead need cores too.
            0 => cores().saturating_sub(settings.prefetch_threads).max(1),
            given => given,
        };
        let groups = match settings.mode {
            Mode::Central => GROUPS,
            Mode::Serial | Mode::Threads => 1,
        };
        threads.min(settings.envs / groups)
    }

    pub(crate) fn progress(&self, tally: &Tally) -> Progress {
        Progress {
            env_steps: tally.env_steps,
            total_steps: self.settings.steps,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::Weights;
    use crate::profile::Profile;

    /// Actors on threads are not part of checkpoints. A resumed run must not repeat the streams
    /// with which the run began.
    #[test]
    fn resumed_actors_draw_from_other_streams() {
        let config = RunConfig::from_value(&json!({
            "env": {"id": "CartPole-v1"},
            "algo": {"name": "ppo"},
            "mode": "threads",
            "threads": 1,
            "envs": 2,
            "device": "cpu",
            "torch_threads": 1,
        }))
        .unwrap();
        let collected = |step| {
            let parts = Parts::make(&config, step).unwrap();
            let Collectors::Waiting(Idle::Actors(mut actors)) = parts.collectors else {
                panic!("the mode is threads");
            };
            let weights = Weights {
                version: 0,
                values: parts.pupil.learner.weights(),
            };
            actors[0].collect(&weights, 0, &Profile::default()).unwrap();
            let rollout = actors[0].rollout().clone();
            (rollout.obs, rollout.actions)
        };
        let first = collected(0);
        assert_eq!(collected(0), first);
        let resumed = collected(1_000);
        assert_ne!(resumed.0, first.0);
        assert_ne!(resumed.1, first.1);
    }
}
