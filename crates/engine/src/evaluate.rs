//! How good a policy is: whole episodes on environments of their own, without exploration.

use starling_algos::{Acting, Algorithm, Part};
use starling_envs::{Rng, Rollout, VecEnv, stream};
use starling_nets::Device;
use starling_record::{Row, Summary};
use starling_tree::Tree;

use crate::collect::forget_ended;
use crate::{EngineError, RunConfig, Weights};

/// The episodes of one evaluation, in a fixed order.
#[derive(Clone, Debug, PartialEq)]
pub struct Evaluation {
    /// Sum of rewards of each episode.
    pub returns: Vec<f64>,
    /// Steps of each episode.
    pub lengths: Vec<f64>,
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
/// than long ones. Seed and `index` (which evaluation this is) fix all chance in it.
pub fn evaluate(
    config: &RunConfig,
    algorithm: &dyn Algorithm,
    weights: &Weights,
    device: Device,
    episodes: usize,
    seed: u64,
    index: u64,
) -> Result<Evaluation, EngineError> {
    let count = episodes.min(MOST_ENVS);
    let first = index.wrapping_mul(MOST_ENVS as u64);
    let spec = config.env_spec()?;
    let options = config.env.for_evaluation();
    let mut envs = VecEnv::new(spec, &options, count, seed, "eval", first)?;
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
    let mut played: Vec<Vec<(f64, f64)>> = vec![Vec::new(); count];
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
        forget_ended(acting.state, &rollout, 0);
        let rollout_and_acting = Part {
            rollout: &mut rollout,
            acting,
        };
        policy.finish(0, &mut [rollout_and_acting]);
        rollout.carry_over();
        for episode in envs.finished() {
            if played[episode.env].len() < quota(episode.env) {
                played[episode.env].push((episode.return_, episode.length as f64));
            }
        }
    }
    let in_order = (0..episodes).map(|i| played[i % count][i / count]);
    let (returns, lengths) = in_order.unzip();
    Ok(Evaluation { returns, lengths })
}
