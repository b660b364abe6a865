//! Recurrent replay distributed DQN, "R2D2" (Kapturowski et al. 2019): Q-learning with an LSTM
//! over replayed sequences.
//!
//! Sequences begin with the recurrent state of the actor, and with a burn-in that only updates this
//! state, separately for the online and the target network. Targets are n-step, double and rescaled
//! with the paper's h; priorities mix the largest and the mean error of a sequence.
//!
//! Defaults are those of rlpyt's R2D1 and the paper. Where we differ: a truncated episode is
//! bootstrapped from its final observation; actors compute priorities without a target network, and
//! bootstrap a truncated episode from the value before its end.

mod export;
mod loss;
mod policy;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use starling_nets::export::NotExported;
use starling_nets::{
    Device, Layout, OptimizerConfig, QNetConfig, RecurrentQ, Schedule, ShapeMismatch, Snapshot,
    Tensor,
};
use starling_replay::{PriorityConfig, SequenceConfig};

use crate::config::ConfigError;
use crate::off_policy::{ReplaySettings, TargetSettings};
use crate::ops::{rescale, unscale};
use crate::recurrent::{SequenceLearner, experience};
use crate::value_based::ValueConfig;
use crate::{Algorithm, Experience, Exported, Learner, Policy, Spaces};

/// R2D2's settings beside the shared ones; `batch_size` counts sequences.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// How episodes are cut into sequences.
    pub sequence: SequenceConfig,
    /// Size of the LSTM.
    #[schemars(range(min = 1, max = 65_536), extend("unit" = "units"))]
    pub lstm: usize,
    /// Feed the previous action and reward to the LSTM; RELA's does not see them.
    pub last_action_reward: bool,
    /// Learn values on the scale h(x) = sign(x)(√(|x| + 1) − 1) + εx.
    pub rescale: bool,
    /// Error at which the loss changes from quadratic to linear; null for the squared error.
    #[schemars(extend("exclusiveMinimum" = 0.0))]
    pub huber_delta: Option<f64>,
    /// The loss is the sum over the steps of a sequence, averaged over sequences (RELA); false
    /// averages over all steps.
    pub sum_over_time: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            sequence: SequenceConfig::default(),
            lstm: 512,
            last_action_reward: true,
            rescale: true,
            huber_delta: None,
            sum_over_time: false,
        }
    }
}

/// All settings with their defaults.
pub fn defaults() -> (ValueConfig, Config) {
    let shared = ValueConfig {
        replay: ReplaySettings {
            rollout_steps: 40,
            batch_size: 64,
            learning_starts_steps: 100_000,
            replay_ratio: Some(1.0),
            n_steps: 5,
            gamma: 0.997,
            priority: Some(PriorityConfig {
                alpha: 0.9,
                ..PriorityConfig::default()
            }),
            priority_beta: Schedule::Constant(0.6),
            ..ReplaySettings::default()
        },
        learning_rate: Schedule::Constant(1e-4),
        optimizer: OptimizerConfig {
            eps: 1e-3,
            ..OptimizerConfig::default()
        },
        clip_norm: Some(80.0),
        double: true,
        target: TargetSettings {
            target_every_updates: 2500,
            ..TargetSettings::default()
        },
        actor_priorities: true,
        net: QNetConfig {
            dueling: true,
            head_hidden: 512,
            ..QNetConfig::default()
        },
        ..ValueConfig::default()
    };
    (shared, Config::default())
}

/// R2D2 for the spaces of an environment.
pub fn build(
    shared: ValueConfig,
    config: Config,
    spaces: &Spaces,
) -> Result<Box<dyn Algorithm>, ConfigError> {
    Ok(Box::new(R2d2::new(shared, config, spaces)?))
}

#[derive(Clone)]
struct R2d2 {
    shared: ValueConfig,
    config: Config,
    net: RecurrentQ,
    layout: Arc<Layout>,
    frame_stack: Option<usize>,
}

impl R2d2 {
    fn new(shared: ValueConfig, config: Config, spaces: &Spaces) -> Result<Self, ConfigError> {
        shared.check()?;
        let size = config.lstm;
        let misfit = |what: &str| Err(ConfigError::Misfit(format!("r2d2 cannot be used {what}")));
        if shared.munchausen.is_some() {
            return misfit("with algo.munchausen");
        }
        if shared.net.noisy_sigma.is_some() {
            return misfit("with algo.net.noisy_sigma");
        }
        let mut layout = Layout::default();
        let both = (&spaces.observation, &spaces.action);
        let last = config.last_action_reward;
        let net = RecurrentQ::new(&mut layout, &shared.net, "", both, size, 0, last);
        match net {
            Err(ShapeMismatch(reason)) => misfit(&format!("here: {reason}")),
            Ok(net) => Ok(Self {
                shared,
                config,
                net,
                layout: Arc::new(layout),
                frame_stack: spaces.frame_stack,
            }),
        }
    }

    /// The scale that values are learned on.
    fn scaled(&self, returns: &Tensor) -> Tensor {
        match self.config.rescale {
            true => rescale(returns),
            false => returns.shallow_clone(),
        }
    }

    /// `returns + discounts · following`, where `following` and the result are on the learned
    /// scale.
    fn targets(&self, returns: &Tensor, discounts: &Tensor, following: &Tensor) -> Tensor {
        let following = match self.config.rescale {
            true => unscale(following),
            false => following.shallow_clone(),
        };
        self.scaled(&(returns + discounts * following))
    }
}

impl Algorithm for R2d2 {
    fn experience(&self) -> Experience {
        experience(&self.shared, &self.config.sequence, self.frame_stack)
    }

    fn discount(&self) -> f64 {
        self.shared.replay.gamma
    }

    fn policy(&self, device: Device) -> Box<dyn Policy> {
        Box::new(policy::Remembering::new(self.clone(), device))
    }

    fn export(&self, spaces: &Spaces, weights: &Snapshot) -> Result<Exported, NotExported> {
        export::export(self, spaces, weights)
    }

    fn learner(&self, seed: u64, device: Device) -> Box<dyn Learner> {
        Box::new(SequenceLearner::new(self.clone(), seed, device))
    }
}
