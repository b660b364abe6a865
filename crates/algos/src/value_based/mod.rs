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
pub(crate) use policy::{ahead, greedy_action, middles, random_action};

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use starling_nets::{
    Device, Layout, OptimizerConfig, Params, QNetConfig, QNetwork, Schedule, ShapeMismatch, Tensor,
};
use starling_replay::{PriorityConfig, RateConfig, ReplayConfig};
use starling_tree::Tree;

use crate::config::{ConfigError, refuse, require, require_schedule};
use crate::ops::{Munchausen, apex_ladder, linear_decay};
use crate::{Algorithm, Experience, Learner, Policy, ReplayNeeds, Spaces};

/// Settings that all algorithms of action values over transitions have.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ValueConfig {
    /// Steps of each environment between two looks at the replay.
    pub rollout_steps: usize,
    /// Transitions per update.
    pub batch_size: usize,
    /// Steps collected before learning begins.
    pub learning_starts_steps: u64,
    /// How often each step is used on average: batch_size · updates / steps. null: neither side
    /// waits for the other.
    pub replay_ratio: Option<f64>,
    /// Steps kept in the replay.
    pub capacity_steps: usize,
    /// Keep observations compressed: less memory, slower draws.
    pub compress: bool,
    /// Bytes that the replay may take; null for as many as it needs.
    pub memory_limit_bytes: Option<u64>,
    /// Steps of reward before the bootstrap (n).
    pub n_steps: usize,
    /// Discount per step (γ).
    pub gamma: f64,
    /// Step size, possibly a schedule.
    pub learning_rate: Schedule,
    /// How gradients become steps; rlpyt's Adam has eps = 0.01 / batch_size.
    pub optimizer: OptimizerConfig,
    /// Largest norm of a gradient; null for any.
    pub clip_norm: Option<f64>,
    /// Choose the next action with the online network, value it with the target network.
    pub double: bool,
    /// Updates between two copies to the target network.
    pub target_every_updates: u64,
    /// Share of the way to the online network that the target goes each time; 1 copies it.
    pub target_tau: f64,
    /// Munchausen targets; null for the usual ones.
    pub munchausen: Option<Munchausen>,
    /// Draw transitions by their error; null draws uniformly.
    pub priority: Option<PriorityConfig>,
    /// Exponent of importance weights (β) over the run.
    pub priority_beta: Schedule,
    /// New steps come with the error that the actor saw (Ape-X); false gives them the largest
    /// priority so far.
    pub actor_priorities: bool,
    /// Chance of a random action at the beginning.
    pub epsilon_start: f64,
    /// Chance of a random action after the decay.
    pub epsilon_end: f64,
    /// Steps over which it falls.
    pub epsilon_decay_steps: u64,
    /// A chance of its own for each environment (Ape-X), instead of the decay.
    pub epsilon_ladder: Option<Ladder>,
    /// Chance of a random action in evaluation.
    pub epsilon_eval: f64,
    /// The network.
    pub net: QNetConfig,
}

/// Ape-X's ladder: environment i of N acts at random with chance base^(1 + α·i/(N − 1)).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Ladder {
    /// Chance of the first environment.
    pub base: f64,
    /// How steep the ladder is (α).
    pub alpha: f64,
}

impl Default for Ladder {
    fn default() -> Self {
        Self {
            base: 0.4,
            alpha: 7.0,
        }
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
            epsilon_decay_steps: 1_000_000,
            epsilon_ladder: None,
            epsilon_eval: 0.001,
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
        let every = self.target_every_updates as usize;
        at_least_one("algo.target_every_updates", every)?;
        let share =
            |key, value: f64| require((0.0..=1.0).contains(&value), key, value, "between 0 and 1");
        share("algo.gamma", self.gamma)?;
        share("algo.target_tau", self.target_tau)?;
        share("algo.epsilon_start", self.epsilon_start)?;
        share("algo.epsilon_end", self.epsilon_end)?;
        share("algo.epsilon_eval", self.epsilon_eval)?;
        let over_zero = |key, value: f64| require(value > 0.0, key, value, "over 0");
        over_zero("algo.clip_norm", self.clip_norm.unwrap_or(1.0))?;
        let ratio = self.replay_ratio.unwrap_or(1.0);
        over_zero("algo.replay_ratio", ratio)?;
        require(ratio <= 1e6, "algo.replay_ratio", ratio, "at most 1000000")?;
        require_schedule("algo.learning_rate", &self.learning_rate, 10.0)?;
        require_schedule("algo.priority_beta", &self.priority_beta, 1.0)?;
        if let Some(ladder) = &self.epsilon_ladder {
            share("algo.epsilon_ladder.base", ladder.base)?;
            let alpha = ladder.alpha;
            let good = alpha >= 0.0 && alpha.is_finite();
            require(good, "algo.epsilon_ladder.alpha", alpha, "0 or more")?;
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
            let message = "algo.actor_priorities needs algo.priority: a uniform replay has none";
            return Err(ConfigError::Misfit(message.into()));
        }
        refuse(self.optimizer.problem())?;
        refuse(self.net.problem())
    }

    /// Chance of a random action of one environment in training.
    pub(crate) fn epsilon(&self, env_steps: u64, env: usize, envs: usize) -> f64 {
        match &self.epsilon_ladder {
            Some(ladder) => apex_ladder(ladder.base, ladder.alpha, env, envs),
            None => self.decayed_epsilon(env_steps),
        }
    }

    /// Chance of a random action without a ladder.
    pub(crate) fn decayed_epsilon(&self, env_steps: u64) -> f64 {
        let (start, end) = (self.epsilon_start, self.epsilon_end);
        linear_decay(start, end, self.epsilon_decay_steps, env_steps)
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
    /// and fractions `[N or 1, W]` if it has them.
    fn outputs(
        &self,
        params: &Params,
        obs: &Tree<Tensor>,
        noise: Option<&Tensor>,
        fractions: Option<&Tensor>,
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

/// Overwrites the tensor that is there, so that it stays in its place, or takes the new one over.
fn replace(place: &mut Option<Tensor>, new: Option<Tensor>) {
    match (&mut *place, new) {
        (Some(old), Some(new)) => old.copy_(&new),
        (_, new) => *place = new,
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
