//! Evaluation: whole episodes on separate environments, without exploration. Algorithms that adapt to
//! a task play trials of several episodes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use starling_algos::{Algorithm, Policy, Spaces};
use starling_envs::{Pulse, Rollout, stream};
use starling_nets::Device;
use starling_record::{Checkpoint, Row, Summary};

use crate::collect::{Player, restart_failed};
use crate::run::config::spaces_of;
use crate::save::moment;
use crate::{EngineError, RunConfig, Weights};

/// The episodes of one evaluation, in a fixed order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Evaluation {
    /// Sum of rewards of each episode.
    pub returns: Vec<f64>,
    /// Steps of each episode.
    pub lengths: Vec<f64>,
    /// For each of the requested steps, the sum of rewards of each episode so far.
    pub returns_at: Vec<Vec<f64>>,
    /// Episodes that were cut off at `eval.max_steps`.
    pub cut_off: usize,
    /// Of trials, the returns of each of their episodes by its name: `Trajectory1` and so on. The
    /// fields above are then of the last one of each trial.
    pub by_trajectory: Vec<(String, Vec<f64>)>,
}

/// Which episodes to play.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Episodes {
    /// How many; where an algorithm plays trials, how many trials.
    pub count: usize,
    /// Together with `index` it fixes all random streams.
    pub seed: u64,
    /// Which evaluation this is.
    pub index: u64,
    /// Steps of an episode at which its return so far is noted.
    pub marks: Vec<u64>,
}

impl Evaluation {
    /// Mean return.
    pub fn mean(&self) -> f64 {
        Summary::of(self.returns.iter().copied()).average
    }

    /// Statistics of returns and lengths, as a row of `eval.csv`.
    pub fn row(&self) -> Row {
        let mut row = Row::new();
        row.set("episodes", self.returns.len() as f64);
        row.set("cut_off", self.cut_off as f64);
        row.set_summary("Return", &Summary::of(self.returns.iter().copied()));
        row.set_summary("Length", &Summary::of(self.lengths.iter().copied()));
        for (name, returns) in &self.by_trajectory {
            let mean = Summary::of(returns.iter().copied()).average;
            row.set(format!("{name}ReturnAverage"), mean);
        }
        row
    }
}

/// A step of an evaluation.
#[derive(Debug)]
pub struct EpisodeStep<'a> {
    /// Which episode.
    pub episode: usize,
    /// Which step of it, from 0.
    pub step: u64,
    /// Its column in the rollout.
    pub env: usize,
    /// Row 0 has the observation, the action, and what came of it.
    pub rollout: &'a Rollout,
}

/// Environments at most; more of them save nothing.
pub(crate) const MOST_ENVS: usize = 16;

/// Plays episodes of a run's environment with the given weights, each cut off after
/// `eval.max_steps` steps. Returns `None` if `cancel` is set before the end.
///
/// Every environment plays a fixed number of them, so that short episodes do not count more
/// than long ones. If the environments are a family of tasks, each of them has one of the tasks of
/// evaluations. `pulse` shows other threads whether the environments are moving.
pub fn evaluate(
    config: &RunConfig,
    algorithm: &dyn Algorithm,
    weights: &Weights,
    device: Device,
    episodes: &Episodes,
    cancel: &AtomicBool,
    pulse: Arc<Pulse>,
) -> Result<Option<Evaluation>, EngineError> {
    let mut nobody = |_: EpisodeStep<'_>| {};
    evaluate_seen(
        config,
        algorithm,
        weights,
        device,
        episodes,
        cancel,
        pulse,
        &mut nobody,
    )
}

#[expect(
    clippy::too_many_arguments,
    reason = "private, and each is a different input"
)]
fn evaluate_seen(
    config: &RunConfig,
    algorithm: &dyn Algorithm,
    weights: &Weights,
    device: Device,
    episodes: &Episodes,
    cancel: &AtomicBool,
    pulse: Arc<Pulse>,
    see: &mut dyn FnMut(EpisodeStep<'_>),
) -> Result<Option<Evaluation>, EngineError> {
    let Episodes {
        count: episodes,
        seed,
        index,
        ref marks,
    } = *episodes;
    let spec = config.env_spec()?;
    let mut options = (spec.for_evaluation)(&config.env);
    let most_envs = spec.count_tasks(&options)?.unwrap_or(MOST_ENVS);
    let count = episodes.min(most_envs);
    let first = index.wrapping_mul(most_envs.max(MOST_ENVS) as u64);
    let trial = algorithm.trial();
    let per_trial = trial.map_or(1, |trial| {
        trial.episodes + usize::from(trial.control.is_some())
    });
    let most = config.settings.eval.max_steps;
    let own = spec.limit(&options)?;
    options.max_episode_steps = Some(own.map_or(most, |own| own.min(most)));
    let mut envs = spec.make_vec_from(0, &options, count, seed, "eval", first)?;
    envs.set_pulse(pulse);
    if let Some(budget) = config.restart_budget() {
        restart_failed(&mut *envs, 0, spec, &options, &budget)?;
    }
    let mut policy = algorithm.policy(device);
    policy.load(&weights.values)?;
    let rngs = (0..count as u64).map(|i| stream(seed, "eval-policy", first + i));
    let mut player = Player::new(envs, policy, rngs.collect());
    // Environment i plays episodes (or trials) i, i + count, i + 2·count, …
    let mut played: Vec<Vec<Played>> = vec![Vec::new(); count];
    let mut course = vec![Course::default(); count];
    let quota = |env: usize| (episodes - env).div_ceil(count) * per_trial;
    while (0..count).any(|env| played[env].len() < quota(env)) {
        if cancel.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let rollout = player.step()?;
        for env in 0..count {
            if played[env].len() < quota(env) {
                see(EpisodeStep {
                    episode: env + count * played[env].len(),
                    step: course[env].steps,
                    env,
                    rollout,
                });
            }
        }
        let rewards = &rollout.rewards;
        for (course, &reward) in course.iter_mut().zip(rewards.as_slice::<f32>()) {
            course.step(reward, marks);
        }
        // An episode that was cut off by a failure does not count; another takes its place. A trial
        // begins again.
        for env in player.restarted().to_vec() {
            course[env] = Course::default();
            if trial.is_some() {
                let whole = played[env].len() / per_trial * per_trial;
                played[env].truncate(whole);
                player.forget(env);
            }
        }
        for episode in player.episodes() {
            let noted = std::mem::take(&mut course[episode.env]).noted;
            if played[episode.env].len() < quota(episode.env) {
                played[episode.env].push(Played {
                    return_: episode.return_,
                    length: episode.length as f64,
                    noted,
                });
            }
        }
    }
    // Of trials, the episode with this number.
    let episode = |number: usize| -> Vec<&Played> {
        let all = (0..episodes).map(|i| &played[i % count][i / count * per_trial + number]);
        all.collect()
    };
    let in_order = episode(trial.map_or(0, |trial| trial.episodes - 1));
    let at = |mark: usize| {
        // An episode that ended before keeps what it had.
        let returns = in_order
            .iter()
            .map(|played| played.noted.get(mark).copied().unwrap_or(played.return_));
        returns.collect()
    };
    // Not counted where the environment's own limit is as short.
    let cut_off =
        |played: &&&Played| own.is_none_or(|own| own > most) && played.length >= most as f64;
    Ok(Some(Evaluation {
        returns: in_order.iter().map(|played| played.return_).collect(),
        lengths: in_order.iter().map(|played| played.length).collect(),
        returns_at: (0..marks.len()).map(at).collect(),
        cut_off: in_order.iter().filter(cut_off).count(),
        by_trajectory: match trial {
            None => Vec::new(),
            Some(trial) => {
                let numbered = (1..=trial.episodes).map(|number| format!("Trajectory{number}"));
                let names = numbered.chain(trial.control.map(str::to_owned));
                let returns = |number| {
                    episode(number)
                        .iter()
                        .map(|played| played.return_)
                        .collect()
                };
                names
                    .enumerate()
                    .map(|(number, name)| (name, returns(number)))
                    .collect()
            }
        },
    }))
}

/// Plays episodes with the weights of a checkpoint, and notes the returns at some steps of each.
pub fn evaluate_checkpoint(
    config: &RunConfig,
    checkpoint: &Checkpoint,
    episodes: &Episodes,
) -> Result<Evaluation, EngineError> {
    evaluate_checkpoint_seen(config, checkpoint, episodes, &mut |_| {})
}

/// The same; `see` is called with every step of the episodes that count. One that is cut off because its
/// environment failed begins again at step 0, and with it the trial that it belongs to.
pub fn evaluate_checkpoint_seen(
    config: &RunConfig,
    checkpoint: &Checkpoint,
    episodes: &Episodes,
    see: &mut dyn FnMut(EpisodeStep<'_>),
) -> Result<Evaluation, EngineError> {
    starling_nets::set_threads(config.torch_threads());
    let algorithm = config.algorithm()?;
    let device = config.settings.actor_device().resolve()?;
    let weights = Weights {
        version: 0,
        values: weights_of(config, checkpoint, &*algorithm, device)?,
    };
    let never = AtomicBool::new(false);
    let played = evaluate_seen(
        config,
        &*algorithm,
        &weights,
        device,
        episodes,
        &never,
        Arc::default(),
        see,
    )?;
    // Nobody can cancel it.
    Ok(played.unwrap_or_default())
}

/// The policy of a checkpoint, ready to act on observations from anywhere.
pub(crate) fn policy_of_checkpoint(
    config: &RunConfig,
    checkpoint: &Checkpoint,
) -> Result<Box<dyn Policy>, EngineError> {
    let algorithm = algorithm_of_agent(config)?;
    let device = config.settings.actor_device().resolve()?;
    let mut policy = algorithm.policy(device);
    policy.load(&weights_of(config, checkpoint, &*algorithm, device)?)?;
    Ok(policy)
}

/// The policy with these weights, ready to act on observations from anywhere.
pub(crate) fn policy_with(
    config: &RunConfig,
    weights: &starling_nets::Snapshot,
    device: Device,
) -> Result<Box<dyn Policy>, EngineError> {
    let mut policy = algorithm_of_agent(config)?.policy(device);
    policy.load(weights)?;
    Ok(policy)
}

fn algorithm_of_agent(config: &RunConfig) -> Result<Box<dyn Algorithm>, EngineError> {
    let env = config.env_spec()?.make(&config.env)?;
    let spaces = Spaces {
        // Whole observations: that they continue the frames before is not known.
        frame_stack: None,
        ..spaces_of(&*env)
    };
    Ok(config.algo_spec()?.build(&config.algo, &spaces)?)
}

pub(crate) fn weights_of(
    config: &RunConfig,
    checkpoint: &Checkpoint,
    algorithm: &dyn Algorithm,
    device: Device,
) -> Result<starling_nets::Snapshot, EngineError> {
    let unusable = |reason: String| EngineError::Checkpoint {
        path: checkpoint.path().to_owned(),
        reason,
    };
    let saved = moment::read_learner(checkpoint).map_err(|error| unusable(error.0))?;
    let mut learner = algorithm.learner(config.settings.seed, device);
    learner
        .load(&saved)
        .map_err(|error| unusable(error.to_string()))?;
    Ok(learner.weights())
}

/// One episode.
#[derive(Clone)]
struct Played {
    return_: f64,
    length: f64,
    /// Returns at the marks that it reached.
    noted: Vec<f64>,
}

/// An episode under way.
#[derive(Clone, Default)]
struct Course {
    steps: u64,
    return_: f64,
    noted: Vec<f64>,
}

impl Course {
    fn step(&mut self, reward: f32, marks: &[u64]) {
        self.steps += 1;
        self.return_ += f64::from(reward);
        if marks.get(self.noted.len()) == Some(&self.steps) {
            self.noted.push(self.return_);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use starling_envs::registry::{self, MakeEnv};
    use starling_envs::{Action, Env, EnvError, EnvSpec, ObsMut, Rng, Space, Step};

    use super::*;

    #[test]
    fn returns_are_noted_at_the_marks() {
        let mut course = Course::default();
        for _ in 0..5 {
            course.step(2.0, &[2, 4, 9]);
        }
        assert_eq!(course.noted, [4.0, 8.0]);
    }

    /// Pays the number of the lever that is pulled; ends after one step, or never.
    struct Levers {
        ends: bool,
    }

    impl Env for Levers {
        fn observation_space(&self) -> Space {
            Space::unbounded(&[1])
        }

        fn action_space(&self) -> Space {
            Space::Discrete { n: 2 }
        }

        fn reset(&mut self, _: &mut Rng, mut obs: ObsMut<'_>) -> Result<(), EnvError> {
            obs.write(&[1f32]);
            Ok(())
        }

        fn step(
            &mut self,
            action: Action<'_>,
            _: &mut Rng,
            mut obs: ObsMut<'_>,
        ) -> Result<Step, EnvError> {
            obs.write(&[1f32]);
            let Action::Discrete(lever) = action else {
                return Err(EnvError::Failed("no lever".into()));
            };
            Ok(Step {
                reward: lever as f32,
                terminated: self.ends,
                truncated: false,
            })
        }
    }

    /// Pays the action. In its second episode the first one that is made fails.
    #[derive(Default)]
    struct PaysAction {
        episodes: usize,
    }

    static FAILED: AtomicBool = AtomicBool::new(false);

    impl Env for PaysAction {
        fn observation_space(&self) -> Space {
            Space::unbounded(&[1])
        }

        fn action_space(&self) -> Space {
            Space::vector(&[-1.0], &[1.0])
        }

        fn reset(&mut self, _: &mut Rng, mut obs: ObsMut<'_>) -> Result<(), EnvError> {
            self.episodes += 1;
            obs.write(&[0f32]);
            Ok(())
        }

        fn step(
            &mut self,
            action: Action<'_>,
            _: &mut Rng,
            mut obs: ObsMut<'_>,
        ) -> Result<Step, EnvError> {
            obs.write(&[0f32]);
            if self.episodes == 2 && !FAILED.swap(true, Ordering::Relaxed) {
                return Err(EnvError::Failed("out of fuel".into()));
            }
            let Action::Continuous(action) = action else {
                return Err(EnvError::Failed("no number".into()));
            };
            Ok(Step {
                reward: action[0],
                terminated: true,
                truncated: false,
            })
        }
    }

    /// The encoder says z = 1 with certainty and the action is tanh z: episodes on the posterior, and
    /// only those, pay tanh 1. They are the same of a trial in which the environment was restarted.
    #[test]
    fn a_trial_begins_again_when_its_environment_is_restarted() {
        let make: MakeEnv = |_, _| Ok(Box::new(PaysAction::default()));
        let family = starling_envs::meta::Family {
            settings: |_| Ok(starling_envs::meta::TaskSettings::default()),
            task: |_, _| Ok(json!({})),
        };
        let spec = EnvSpec {
            tasks: Some(family),
            ..EnvSpec::new("PaysAction-v0", "test", "an action", make)
        };
        registry::add(spec).unwrap();
        let config = RunConfig::from_value(&json!({
            "env": {"id": "PaysAction-v0"},
            "algo": {"name": "pearl", "latent_size": 1, "hidden": [], "encoder_hidden": []},
            "device": "cpu",
            "on_env_error": "restart",
        }))
        .unwrap();
        let algorithm = config.algorithm().unwrap();
        // Weights and biases of the encoder (observation, action, reward), then of the actor
        // (observation, z): mean and deviation of each.
        let encoder = [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, -50.0];
        let actor = [0.0, 0.0, 1.0, 0.0, 0.0, 0.0];
        let weights = Weights {
            version: 0,
            values: starling_nets::Snapshot::from_values([&encoder[..], &actor].concat()),
        };
        let episodes = Episodes {
            count: 2,
            ..Episodes::default()
        };
        let never = AtomicBool::new(false);
        let (cpu, pulse) = (Device::Cpu, Arc::default());
        let evaluation = evaluate(
            &config,
            &*algorithm,
            &weights,
            cpu,
            &episodes,
            &never,
            pulse,
        );
        let evaluation = evaluation.unwrap().unwrap();
        assert!(FAILED.load(Ordering::Relaxed));
        let certain = |return_: f64| (return_ - 1f64.tanh()).abs() < 1e-3;
        for (name, returns) in &evaluation.by_trajectory {
            assert_eq!(returns.len(), 2);
            for &return_ in returns {
                assert_eq!(
                    certain(return_),
                    name == "Trajectory3",
                    "{name}: {returns:?}"
                );
            }
        }
        assert!(evaluation.returns.iter().all(|&return_| certain(return_)));
    }

    fn play(id: &'static str, ends: bool, count: usize, cancel: bool) -> Option<Evaluation> {
        let build: MakeEnv = match ends {
            true => |_, _| Ok(Box::new(Levers { ends: true })),
            false => |_, _| Ok(Box::new(Levers { ends: false })),
        };
        let spec = EnvSpec::new(id, "test", "two levers", build);
        registry::add(spec).unwrap();
        let config = RunConfig::from_value(&json!({
            "env": {"id": id},
            "algo": {"name": "dqn", "epsilon_end": 1.0, "epsilon_eval": 0.0},
            "device": "cpu",
            "eval": {"max_steps": 50},
        }))
        .unwrap();
        let algorithm = config.algorithm().unwrap();
        let weights = Weights {
            version: 0,
            values: algorithm.learner(1, Device::Cpu).weights(),
        };
        let episodes = Episodes {
            count,
            seed: 1,
            ..Episodes::default()
        };
        let cancel = AtomicBool::new(cancel);
        let played = evaluate(
            &config,
            &*algorithm,
            &weights,
            Device::Cpu,
            &episodes,
            &cancel,
            Arc::default(),
        );
        played.unwrap()
    }

    /// In training every action would be random here. In an evaluation the same state has the same
    /// action each time.
    #[test]
    fn evaluations_do_not_explore() {
        let played = play("LeversEnd-v0", true, 64, false).unwrap();
        assert_eq!(played.returns.len(), 64);
        assert!(
            played
                .returns
                .iter()
                .all(|other| *other == played.returns[0])
        );
        assert_eq!(played.cut_off, 0);
    }

    /// An agent that plays forever does not keep a run from continuing.
    #[test]
    fn evaluations_end_though_episodes_do_not() {
        let played = play("LeversGoOn-v0", false, 20, false).unwrap();
        assert!(played.lengths.iter().all(|length| *length == 50.0));
        assert_eq!(played.cut_off, 20);
    }

    #[test]
    fn evaluations_can_be_cancelled() {
        assert_eq!(play("LeversCancelled-v0", false, 2, true), None);
    }

    /// Four trials on two held-out tasks: three trajectories each and one to compare with. What is
    /// reported is the third.
    #[test]
    fn trials_report_every_trajectory() {
        let config = RunConfig::from_value(&json!({
            "env": {"id": "PointRobot-v0", "train_tasks": 3, "eval_tasks": 2},
            "algo": {
                "name": "pearl", "hidden": [4], "encoder_hidden": [4], "capacity_steps": 1000,
            },
            "device": "cpu",
            "envs": 3,
        }))
        .unwrap();
        let algorithm = config.algorithm().unwrap();
        let weights = Weights {
            version: 0,
            values: algorithm.learner(1, Device::Cpu).weights(),
        };
        let episodes = Episodes {
            count: 4,
            seed: 1,
            ..Episodes::default()
        };
        let never = AtomicBool::new(false);
        let played = evaluate(
            &config,
            &*algorithm,
            &weights,
            Device::Cpu,
            &episodes,
            &never,
            Arc::default(),
        );
        let played = played.unwrap().unwrap();
        let names: Vec<&str> = played
            .by_trajectory
            .iter()
            .map(|(name, _)| &**name)
            .collect();
        assert_eq!(
            names,
            ["Trajectory1", "Trajectory2", "Trajectory3", "Prior"]
        );
        assert!(played.by_trajectory.iter().all(|(_, all)| all.len() == 4));
        assert_eq!(played.returns, played.by_trajectory[2].1);
        assert!(played.row().get("Trajectory1ReturnAverage").is_some());
        let few = RunConfig::from_value(&json!({
            "env": {"id": "PointRobot-v0", "train_tasks": 30},
            "algo": {"name": "pearl"},
            "envs": 8,
        }));
        let message = few.unwrap_err().to_string();
        assert!(message.contains("at least env.train_tasks"), "{message}");
    }
}
