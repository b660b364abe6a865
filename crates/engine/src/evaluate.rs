//! How good a policy is: whole episodes on environments of their own, without exploration.

use starling_algos::{Acting, Algorithm, Part, Policy};
use starling_envs::{Rng, Rollout, VecEnv, stream};
use starling_nets::Device;
use starling_record::{Checkpoint, Row, Summary};
use starling_tree::Tree;

use crate::checkpoint;
use crate::collect::{forget_ended, restart_failed, warn_of_restarts};
use crate::{EngineError, RunConfig, Weights};

/// The episodes of one evaluation, in a fixed order.
#[derive(Clone, Debug, PartialEq)]
pub struct Evaluation {
    /// Sum of rewards of each episode.
    pub returns: Vec<f64>,
    /// Steps of each episode.
    pub lengths: Vec<f64>,
    /// For each of the steps that were asked for, the sum of rewards of each episode so far.
    pub returns_at: Vec<Vec<f64>>,
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
        row.set_summary("Return", &Summary::of(self.returns.iter().copied()));
        row.set_summary("Length", &Summary::of(self.lengths.iter().copied()));
        row
    }
}

/// Environments at most; more of them save nothing.
const MOST_ENVS: usize = 16;

/// Plays `episodes` episodes of a run's environment with the given weights.
///
/// Every environment plays a fixed number of them, so that short episodes do not count more
/// than long ones. Seed and `index` (which evaluation this is) fix all chance in it. `marks` are
/// steps of an episode at which its return so far is noted.
#[expect(clippy::too_many_arguments, reason = "each is another thing")]
pub fn evaluate(
    config: &RunConfig,
    algorithm: &dyn Algorithm,
    weights: &Weights,
    device: Device,
    episodes: usize,
    seed: u64,
    index: u64,
    marks: &[u64],
) -> Result<Evaluation, EngineError> {
    let count = episodes.min(MOST_ENVS);
    let first = index.wrapping_mul(MOST_ENVS as u64);
    let spec = config.env_spec()?;
    let options = config.env.for_evaluation();
    let mut envs = VecEnv::new(spec, &options, count, seed, "eval", first)?;
    if let Some(budget) = config.restart_budget() {
        restart_failed(&mut envs, spec, &options, &budget);
    }
    let mut policy = algorithm.policy(device);
    policy.load(&weights.values)?;
    let mut rollout = Rollout::new(
        1,
        count,
        envs.observation_space(),
        envs.action_space(),
        envs.legal_actions(),
        &policy.records(),
        &policy.state(),
    );
    let mut rngs: Vec<Rng> = (0..count as u64)
        .map(|i| stream(seed, "eval-policy", first + i))
        .collect();
    let mut state = Tree::zeros(&policy.state(), &[count]);
    // Environment i plays episodes i, i + count, i + 2·count, …
    let mut played: Vec<Vec<Played>> = vec![Vec::new(); count];
    let mut course = vec![Course::default(); count];
    let quota = |env: usize| (episodes - env).div_ceil(count);

    envs.reset(&mut rollout)?;
    while (0..count).any(|env| played[env].len() < quota(env)) {
        let mut acting = Acting {
            explore: false,
            env_steps: 0,
            first_env: 0,
            total_envs: count,
            rngs: &mut rngs,
            state: &mut state,
        };
        rollout.state.clone_from(acting.state);
        policy.act(0, &mut rollout, acting.reborrow());
        envs.step(0, &mut rollout)?;
        for (course, &reward) in course.iter_mut().zip(rollout.rewards.as_slice::<f32>()) {
            course.step(reward, marks);
        }
        // An episode that was cut off by a failure does not count; another takes its place.
        warn_of_restarts(&mut envs, |env| course[env] = Course::default());
        forget_ended(acting.state, &rollout, 0);
        let rollout_and_acting = Part {
            rollout: &mut rollout,
            acting,
        };
        policy.finish(0, &mut [rollout_and_acting]);
        rollout.carry_over();
        for episode in envs.finished() {
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
    let in_order: Vec<&Played> = (0..episodes)
        .map(|i| &played[i % count][i / count])
        .collect();
    let at = |mark: usize| {
        // An episode that ended before keeps what it had.
        let returns = in_order
            .iter()
            .map(|played| played.noted.get(mark).copied().unwrap_or(played.return_));
        returns.collect()
    };
    Ok(Evaluation {
        returns: in_order.iter().map(|played| played.return_).collect(),
        lengths: in_order.iter().map(|played| played.length).collect(),
        returns_at: (0..marks.len()).map(at).collect(),
    })
}

/// Plays episodes with the weights of a checkpoint, and notes the returns at some steps of each.
pub fn evaluate_checkpoint(
    config: &RunConfig,
    checkpoint: &Checkpoint,
    episodes: usize,
    seed: u64,
    marks: &[u64],
) -> Result<Evaluation, EngineError> {
    starling_nets::set_threads(config.torch_threads());
    let algorithm = config.algorithm()?;
    let device = config.settings.device.resolve()?;
    let weights = Weights {
        version: 0,
        values: weights_of(config, checkpoint, &*algorithm, device)?,
    };
    evaluate(
        config,
        &*algorithm,
        &weights,
        device,
        episodes,
        seed,
        0,
        marks,
    )
}

/// The policy of a checkpoint, ready to act.
pub fn policy_of_checkpoint(
    config: &RunConfig,
    checkpoint: &Checkpoint,
) -> Result<Box<dyn Policy>, EngineError> {
    let algorithm = config.algorithm()?;
    let device = config.settings.device.resolve()?;
    let mut policy = algorithm.policy(device);
    policy.load(&weights_of(config, checkpoint, &*algorithm, device)?)?;
    Ok(policy)
}

fn weights_of(
    config: &RunConfig,
    checkpoint: &Checkpoint,
    algorithm: &dyn Algorithm,
    device: Device,
) -> Result<Vec<f32>, EngineError> {
    let unusable = |reason: String| EngineError::Checkpoint {
        path: checkpoint.path().to_owned(),
        reason,
    };
    let saved = checkpoint::read_learner(checkpoint).map_err(|error| unusable(error.0))?;
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
    use super::*;

    #[test]
    fn returns_are_noted_at_the_marks() {
        let mut course = Course::default();
        for _ in 0..5 {
            course.step(2.0, &[2, 4, 9]);
        }
        assert_eq!(course.noted, [4.0, 8.0]);
    }
}
