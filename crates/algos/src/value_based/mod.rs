//! What algorithms that learn action values from transitions share: settings, acting, the update.
//!
//! Each of them is a [`Method`]: a network with some numbers per action, how these become values,
//! and how far a prediction was from what followed. Everything else is here, once: ε-greedy and
//! noisy exploration, Ape-X's ladder and priorities, double targets, Munchausen targets, legal
//! actions, target networks.

mod learner;
mod policy;

#[cfg(test)]
pub(crate) use learner::ValueLearner;
pub(crate) use policy::{Greedy, ahead, greedy_action, middles, random_action};

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use starling_nets::{
    Device, Layout, OptimizerConfig, Params, QNetConfig, QNetwork, Schedule, ShapeMismatch, Tensor,
};
use starling_replay::{PriorityConfig, RateConfig, ReplayConfig};
use starling_tree::Tree;

use crate::config::{ConfigError, refuse, require, require_schedule};
use crate::ops::{Munchausen, apex_ladder, linear_decay, log_spaced};
use crate::{Algorithm, Experience, Learner, Policy, ReplayNeeds, Spaces};

/// Settings that all algorithms of action values over transitions have.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ValueConfig {
    /// Steps of each environment per rollout; learning happens between rollouts.
    pub rollout_steps: usize,
    /// Transitions per update.
    pub batch_size: usize,
    /// Steps collected before learning starts.
    pub learning_starts_steps: u64,
    /// How often each step is used on average: batch_size · updates / steps. null: neither side
    /// waits for the other.
    pub replay_ratio: Option<f64>,
    /// Capacity of the replay in steps.
    pub capacity_steps: usize,
    /// Store observations compressed: less memory, slower sampling.
    pub compress: bool,
    /// Memory limit of the replay in bytes; null for no limit.
    pub memory_limit_bytes: Option<u64>,
    /// Steps of reward before the bootstrap (n).
    pub n_steps: usize,
    /// Discount per step (γ).
    pub gamma: f64,
    /// Learning rate, possibly a schedule.
    pub learning_rate: Schedule,
    /// The optimiser; rlpyt's Adam has eps = 0.01 / batch_size.
    pub optimizer: OptimizerConfig,
    /// Maximum norm of the gradient; null for no limit.
    pub clip_norm: Option<f64>,
    /// Choose the next action with the online network, value it with the target network.
    pub double: bool,
    /// Updates between two updates of the target network.
    pub target_every_updates: u64,
    /// How far the target network moves towards the online network each time (τ); 1 copies it.
    pub target_tau: f64,
    /// Munchausen targets; null for the usual ones.
    pub munchausen: Option<Munchausen>,
    /// Prioritized replay: sample transitions by their error; null samples uniformly.
    pub priority: Option<PriorityConfig>,
    /// Exponent of importance weights (β), possibly a schedule.
    pub priority_beta: Schedule,
    /// New steps get the error that the actor computed (Ape-X); false gives them
    /// `priority.initial_priority`.
    pub actor_priorities: bool,
    /// Probability of a random action (ε) at the start.
    pub epsilon_start: f64,
    /// Probability of a random action after the decay.
    pub epsilon_end: f64,
    /// Steps for which ε stays at `epsilon_start` before it decays.
    pub epsilon_hold_steps: u64,
    /// Steps over which ε decays.
    pub epsilon_decay_steps: u64,
    /// ε decays to a different value in each environment (rlpyt), instead of `epsilon_end`.
    pub epsilon_spread: Option<Spread>,
    /// A different constant ε for each environment (Ape-X), instead of the decay.
    pub epsilon_ladder: Option<Ladder>,
    /// Probability of a random action in evaluation.
    pub epsilon_eval: f64,
    /// Steps between two draws of the noise that actors explore with, counted from the start of
    /// each rollout; only with `net.noisy_sigma`.
    pub noise_every_steps: usize,
    /// The network.
    pub net: QNetConfig,
}

/// ε after the decay, from `low` for the first environment to `high` for the last, evenly spaced
/// in the logarithm.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Spread {
    /// ε of the first environment.
    pub low: f64,
    /// ε of the last environment.
    pub high: f64,
}

impl Default for Spread {
    fn default() -> Self {
        Self {
            low: 0.0005,
            high: 0.1,
        }
    }
}

/// Ape-X's ladder: environment i of N has ε = base^(1 + α·i/(N − 1)). Base and α can move over the
/// run, as in MarltasCore.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Ladder {
    /// ε of the first environment.
    pub base: f64,
    /// How steep the ladder is (α).
    pub alpha: f64,
    /// Base after `move_steps`; null keeps `base`.
    pub base_end: Option<f64>,
    /// α after `move_steps`; null keeps `alpha`.
    pub alpha_end: Option<f64>,
    /// Steps over which base and α move to their end values.
    pub move_steps: u64,
    /// Smallest ε.
    pub min: f64,
    /// Divide by N instead of N − 1, so that the last environment stays above the smallest ε.
    pub open_end: bool,
}

impl Default for Ladder {
    fn default() -> Self {
        Self {
            base: 0.4,
            alpha: 7.0,
            base_end: None,
            alpha_end: None,
            move_steps: 0,
            min: 0.0,
            open_end: false,
        }
    }
}

impl Ladder {
    /// ε of environment `env` of `envs`.
    fn epsilon(&self, env_steps: u64, env: usize, envs: usize) -> f64 {
        let now = |start: f64, end: Option<f64>| match end {
            Some(end) => linear_decay(start, end, self.move_steps, env_steps),
            None => start,
        };
        let base = now(self.base, self.base_end);
        let alpha = now(self.alpha, self.alpha_end);
        let rungs = envs + usize::from(self.open_end);
        apex_ladder(base, alpha, env, rungs).max(self.min)
    }
}

impl Default for ValueConfig {
    fn default() -> Self {
        Self {
            rollout_steps: 4,
            batch_size: 32,
            learning_starts_steps: 50_000,
            replay_ratio: Some(8.0),
            capacity_steps: 1_000_000,
            compress: false,
            memory_limit_bytes: None,
            n_steps: 1,
            gamma: 0.99,
            learning_rate: Schedule::Constant(2.5e-4),
            optimizer: OptimizerConfig {
                eps: 0.01 / 32.0,
                ..OptimizerConfig::default()
            },
            clip_norm: Some(10.0),
            double: false,
            target_every_updates: 312,
            target_tau: 1.0,
            munchausen: None,
            priority: None,
            priority_beta: Schedule::linear(0.4, 1.0, 1.0),
            actor_priorities: false,
            epsilon_start: 1.0,
            epsilon_end: 0.01,
            epsilon_hold_steps: 0,
            epsilon_decay_steps: 1_000_000,
            epsilon_spread: None,
            epsilon_ladder: None,
            epsilon_eval: 0.001,
            noise_every_steps: 1,
            net: QNetConfig::default(),
        }
    }
}

impl ValueConfig {
    /// Refuses settings that are out of range or do not go together.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let at_least_one = |key, value: usize| require(value >= 1, key, value, "at least 1");
        at_least_one("algo.rollout_steps", self.rollout_steps)?;
        at_least_one("algo.batch_size", self.batch_size)?;
        at_least_one("algo.n_steps", self.n_steps)?;
        at_least_one("algo.noise_every_steps", self.noise_every_steps)?;
        let every = self.target_every_updates as usize;
        at_least_one("algo.target_every_updates", every)?;
        let share =
            |key, value: f64| require((0.0..=1.0).contains(&value), key, value, "between 0 and 1");
        share("algo.gamma", self.gamma)?;
        share("algo.target_tau", self.target_tau)?;
        share("algo.epsilon_start", self.epsilon_start)?;
        share("algo.epsilon_end", self.epsilon_end)?;
        share("algo.epsilon_eval", self.epsilon_eval)?;
        let over_zero = |key, value: f64| require(value > 0.0, key, value, "above 0");
        over_zero("algo.clip_norm", self.clip_norm.unwrap_or(1.0))?;
        let ratio = self.replay_ratio.unwrap_or(1.0);
        over_zero("algo.replay_ratio", ratio)?;
        require(ratio <= 1e6, "algo.replay_ratio", ratio, "at most 1000000")?;
        require_schedule("algo.learning_rate", &self.learning_rate, 10.0)?;
        require_schedule("algo.priority_beta", &self.priority_beta, 1.0)?;
        if let Some(ladder) = &self.epsilon_ladder {
            share("algo.epsilon_ladder.base", ladder.base)?;
            let end = ladder.base_end.unwrap_or(0.0);
            share("algo.epsilon_ladder.base_end", end)?;
            share("algo.epsilon_ladder.min", ladder.min)?;
            let steep = |key, alpha: f64| {
                let good = alpha >= 0.0 && alpha.is_finite();
                require(good, key, alpha, "0 or more")
            };
            steep("algo.epsilon_ladder.alpha", ladder.alpha)?;
            let end = ladder.alpha_end.unwrap_or(0.0);
            steep("algo.epsilon_ladder.alpha_end", end)?;
        }
        if let Some(spread) = &self.epsilon_spread {
            let (low, high) = (spread.low, spread.high);
            let good = low > 0.0 && low <= 1.0;
            require(
                good,
                "algo.epsilon_spread.low",
                low,
                "above 0 and at most 1",
            )?;
            let good = (low..=1.0).contains(&high);
            let allowed = "between epsilon_spread.low and 1";
            require(good, "algo.epsilon_spread.high", high, allowed)?;
            if self.epsilon_ladder.is_some() {
                let message = "algo.epsilon_spread and algo.epsilon_ladder exclude each other: \
                               set one of them to null";
                return Err(ConfigError::Misfit(message.into()));
            }
        }
        if let Some(munchausen) = &self.munchausen {
            over_zero("algo.munchausen.temperature", munchausen.temperature)?;
            let alpha = munchausen.alpha;
            share("algo.munchausen.alpha", alpha)?;
            let low = munchausen.log_min;
            require(low <= 0.0, "algo.munchausen.log_min", low, "0 or less")?;
            let n = self.n_steps;
            require(n == 1, "algo.n_steps", n, "1 with Munchausen targets")?;
        }
        if self.actor_priorities && self.priority.is_none() {
            let message = "algo.actor_priorities needs algo.priority: a uniform replay has no \
                           priorities";
            return Err(ConfigError::Misfit(message.into()));
        }
        refuse(self.optimizer.problem())?;
        refuse(self.net.problem())
    }

    /// Probability of a random action of one environment in training.
    pub(crate) fn epsilon(&self, env_steps: u64, env: usize, envs: usize) -> f64 {
        match (&self.epsilon_ladder, &self.epsilon_spread) {
            (Some(ladder), _) => ladder.epsilon(env_steps, env, envs),
            (None, Some(spread)) => {
                let end = log_spaced(spread.low, spread.high, env, envs);
                self.decayed_epsilon(end, env_steps)
            }
            (None, None) => self.decayed_epsilon(self.epsilon_end, env_steps),
        }
    }

    /// [`epsilon`](ValueConfig::epsilon) of all environments, if they have the same.
    pub(crate) fn common_epsilon(&self, env_steps: u64) -> Option<f64> {
        let common = self.epsilon_ladder.is_none() && self.epsilon_spread.is_none();
        common.then(|| self.decayed_epsilon(self.epsilon_end, env_steps))
    }

    fn decayed_epsilon(&self, end: f64, env_steps: u64) -> f64 {
        match env_steps.checked_sub(self.epsilon_hold_steps) {
            None => self.epsilon_start,
            Some(steps) => linear_decay(self.epsilon_start, end, self.epsilon_decay_steps, steps),
        }
    }

    /// The replay of transitions and how it is used, for observations of a number of frames.
    pub(crate) fn needs(&self, frame_stack: Option<usize>) -> ReplayNeeds {
        ReplayNeeds {
            steps: self.rollout_steps,
            replay: ReplayConfig {
                capacity_steps: self.capacity_steps,
                n_steps: self.n_steps,
                gamma: self.gamma,
                priority: self.priority.clone(),
                sequence: None,
                frame_stack,
                compress: self.compress,
                memory_limit_bytes: self.memory_limit_bytes,
            },
            rate: RateConfig {
                min_size_steps: self.learning_starts_steps,
                samples_per_insert: self.replay_ratio,
                tolerance_samples: 4.0 * self.batch_size as f64,
            },
            batch_size: self.batch_size,
            beta: self.priority_beta,
        }
    }
}

/// What one algorithm of action values does differently from another.
///
/// W is the number of numbers per action: 1, atoms, or quantiles.
pub(crate) trait Method: Send + Sync + 'static {
    /// Its network, and the parameters that it needs.
    fn net(&self) -> (&QNetwork, &Arc<Layout>);

    /// Quantile fractions that are drawn for it.
    fn fractions(&self) -> Fractions {
        Fractions::default()
    }

    /// The network's numbers `[N, A, W]` for observations `[N, ..]`, with noise `[N or 1, ..]`
    /// and fractions `[N or 1, W]` if it has them, and legal actions `[N, A]` if its head wants
    /// them.
    fn outputs(
        &self,
        params: &Params,
        obs: &Tree<Tensor>,
        noise: Option<&Tensor>,
        fractions: Option<&Tensor>,
        legal: Option<&Tensor>,
    ) -> Tensor;

    /// Expected returns `[.., A]` from numbers `[.., A, W]`.
    fn values(&self, outputs: &Tensor) -> Tensor;

    /// How far predictions `[N, W]` of actions taken (at fractions `[N or 1, W]`) were from
    /// `returns + discounts · following`, with `following` `[N, W']`.
    fn errors(
        &self,
        taken: &Tensor,
        fractions: Option<&Tensor>,
        following: &Tensor,
        returns: &Tensor,
        discounts: &Tensor,
    ) -> Errors;
}

/// Quantile fractions per row; all 0 for methods without.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fractions {
    /// Of what is predicted (N).
    pub(crate) predicted: usize,
    /// Of what follows (N').
    pub(crate) following: usize,
    /// For choosing an action (K).
    pub(crate) choosing: usize,
}

/// How far predictions were off, `[N]` each.
pub(crate) struct Errors {
    /// What is minimised.
    pub(crate) losses: Tensor,
    /// How surprising each transition was.
    pub(crate) priorities: Tensor,
}

/// A method with the shared settings.
pub(crate) struct ValueBased<M> {
    config: ValueConfig,
    frame_stack: Option<usize>,
    method: Arc<M>,
}

impl<M: Method> ValueBased<M> {
    /// Checks the settings. The method has been made for the same ones and the same spaces.
    pub(crate) fn new(
        config: ValueConfig,
        method: M,
        spaces: &Spaces,
    ) -> Result<Self, ConfigError> {
        config.check()?;
        Ok(Self {
            config,
            frame_stack: spaces.frame_stack,
            method: Arc::new(method),
        })
    }
}

/// A network with `outputs` numbers per action, made for the spaces of an environment.
pub(crate) fn network(
    name: &str,
    config: &ValueConfig,
    spaces: &Spaces,
    outputs: usize,
) -> Result<(QNetwork, Layout), ConfigError> {
    // Before sizes are used to reserve memory.
    refuse(config.net.problem())?;
    let mut layout = Layout::default();
    let (obs, action) = (&spaces.observation, &spaces.action);
    let net = QNetwork::new(&mut layout, &config.net, obs, action, outputs);
    match net {
        Ok(net) => Ok((net, layout)),
        Err(ShapeMismatch(reason)) => Err(ConfigError::Misfit(format!(
            "{name} cannot be used here: {reason}"
        ))),
    }
}

impl<M: Method> Algorithm for ValueBased<M> {
    fn experience(&self) -> Experience {
        Experience::Transitions(Box::new(self.config.needs(self.frame_stack)))
    }

    fn discount(&self) -> f64 {
        self.config.gamma
    }

    fn policy(&self, device: Device) -> Box<dyn Policy> {
        let method = Arc::clone(&self.method);
        Box::new(policy::Greedy::new(
            self.config.clone(),
            self.frame_stack,
            method,
            device,
        ))
    }

    fn learner(&self, seed: u64, device: Device) -> Box<dyn Learner> {
        let method = Arc::clone(&self.method);
        let config = self.config.clone();
        Box::new(learner::ValueLearner::new(config, method, seed, device))
    }
}

/// Numbers `[N, W]` of one action `[N, 1]` per row, from `[N, A, W]`.
pub(crate) fn pick(outputs: &Tensor, actions: &Tensor) -> Tensor {
    let width = outputs.size()[2];
    let index = actions.unsqueeze(-1).expand([-1, -1, width], false);
    outputs.gather(1, &index, false).squeeze_dim(1)
}

/// Values of actions that may not be taken are very low.
pub(crate) fn mask(values: Tensor, legal: Option<&Tensor>) -> Tensor {
    const ILLEGAL: f64 = -1e8;
    match legal {
        Some(legal) => values.masked_fill(&legal.eq(0), ILLEGAL),
        None => values,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(ours: f64, expected: f64) {
        assert!((ours - expected).abs() < 1e-6, "{ours} is not {expected}");
    }

    /// Computed by an independent script (MarltasCore's formula without its noise).
    #[test]
    fn a_moving_ladder_by_numbers() {
        let config = ValueConfig {
            epsilon_ladder: Some(Ladder {
                base: 0.7,
                alpha: 7.0,
                base_end: Some(0.1),
                alpha_end: Some(3.0),
                move_steps: 30_000,
                min: 0.02,
                open_end: true,
            }),
            ..ValueConfig::default()
        };
        config.check().unwrap();
        let start = [
            0.7, 0.530419, 0.40192, 0.304551, 0.230771, 0.174864, 0.132502, 0.100402, 0.076079,
        ];
        let end = [0.1, 0.046416, 0.021544, 0.02, 0.02, 0.02, 0.02, 0.02, 0.02];
        for env in 0..9 {
            close(config.epsilon(0, env, 9), start[env]);
            close(config.epsilon(30_000, env, 9), end[env]);
            close(config.epsilon(1 << 40, env, 9), end[env]);
        }
        // Half-way the base is .4 and α is 5.
        close(
            config.epsilon(15_000, 3, 9),
            0.4f64.powf(1.0 + 5.0 * 3.0 / 9.0),
        );
        assert_eq!(config.common_epsilon(0), None);
    }

    /// rlpyt: 1 for the first 50 steps, then down to each environment's own value after 100 more.
    #[test]
    fn epsilon_can_be_held_and_spread() {
        let mut config = ValueConfig {
            epsilon_hold_steps: 50,
            epsilon_decay_steps: 100,
            epsilon_end: 0.5,
            ..ValueConfig::default()
        };
        for (steps, expected) in [(0, 1.0), (49, 1.0), (50, 1.0), (100, 0.75), (150, 0.5)] {
            assert_eq!(config.common_epsilon(steps), Some(expected));
            assert_eq!(config.epsilon(steps, 3, 4), expected);
        }
        config.epsilon_spread = Some(Spread::default());
        config.check().unwrap();
        for (env, end) in [0.0005, 0.00292402, 0.01709976, 0.1]
            .into_iter()
            .enumerate()
        {
            close(config.epsilon(49, env, 4), 1.0);
            close(config.epsilon(100, env, 4), (1.0 + end) / 2.0);
            close(config.epsilon(150, env, 4), end);
        }
        assert_eq!(config.common_epsilon(0), None);
        config.epsilon_ladder = Some(Ladder::default());
        let refused = config.check().unwrap_err().to_string();
        assert!(refused.contains("exclude each other"), "{refused}");
    }
}
