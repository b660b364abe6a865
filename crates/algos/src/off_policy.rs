//! Settings that off-policy algorithms share: the replay and the target networks.
//!
//! Users write them in one table with those of the algorithm (`algo.batch_size`,
//! `algo.target_tau`).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use starling_nets::Schedule;
use starling_replay::{PriorityConfig, RateConfig, ReplayConfig};

use crate::ReplayNeeds;

/// A replay and how it is used.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ReplaySettings {
    /// Steps of each environment per rollout; learning happens between rollouts.
    #[schemars(range(min = 1))]
    pub rollout_steps: usize,
    /// Transitions per update; with R2D2 and NGU, sequences.
    #[schemars(range(min = 1))]
    pub batch_size: usize,
    /// Steps collected before learning starts.
    pub learning_starts_steps: u64,
    /// How often each step is used on average: batch_size · updates / steps. null: neither side
    /// waits for the other.
    #[schemars(range(max = 1e6), extend("exclusiveMinimum" = 0.0))]
    pub replay_ratio: Option<f64>,
    /// Capacity of the replay in steps.
    pub capacity_steps: usize,
    /// Store observations compressed: less memory, slower sampling.
    pub compress: bool,
    /// Memory limit of the replay in bytes; null for no limit.
    pub memory_limit_bytes: Option<u64>,
    /// Steps of reward before the bootstrap (n).
    #[schemars(range(min = 1))]
    pub n_steps: usize,
    /// Discount per step (γ).
    #[schemars(range(min = 0.0, max = 1.0))]
    pub gamma: f64,
    /// Prioritized replay: sample transitions by their error; null samples uniformly.
    pub priority: Option<PriorityConfig>,
    /// Exponent of importance weights (β), possibly a schedule.
    #[schemars(extend("minimum" = 0.0, "maximum" = 1.0))]
    pub priority_beta: Schedule,
}

impl Default for ReplaySettings {
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
            priority: None,
            priority_beta: Schedule::linear(0.4, 1.0, 1.0),
        }
    }
}

impl ReplaySettings {
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
                keep_terminal_obs: false,
            },
            rate: RateConfig {
                min_size_steps: self.learning_starts_steps,
                samples_per_insert: self.replay_ratio,
                tolerance_samples: 4.0 * self.batch_size as f64,
            },
            batch_size: self.batch_size,
            draws: None,
            beta: self.priority_beta,
        }
    }
}

/// How target networks follow the networks that learn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TargetSettings {
    /// Updates between two updates of the target network.
    #[schemars(range(min = 1))]
    pub target_every_updates: u64,
    /// How far the target network moves towards the online network each time (τ); 1 copies it.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub target_tau: f64,
}

impl Default for TargetSettings {
    fn default() -> Self {
        Self {
            target_every_updates: 312,
            target_tau: 1.0,
        }
    }
}
