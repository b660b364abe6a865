//! Rainbow (Hessel et al. 2018) and Rainbow-IQN (Toromanoff et al. 2019): all extensions of DQN
//! combined.
//!
//! Both are only sets of defaults: double targets, dueling streams, n = 3, prioritized replay and
//! noisy layers, for [`c51`] or [`iqn`]. ε-Rainbow (Stooke and Abbeel 2019) is Rainbow with
//! ε-greedy exploration instead of noisy layers.
//!
//! Where we differ from the code of Rainbow-IQN Ape-X: σ₀ is 0.5 as in Rainbow (there 0.1), noise
//! is drawn at every step (there at every fourth), β is annealed (a bug keeps it at 0.4 there),
//! gradients are clipped (there they are not). The presets `atari/apex-rainbow-iqn.valeoai` and
//! `atari/apex-rainbow.valeoai` have its settings.

use starling_nets::{OptimizerConfig, QNetConfig, Schedule};
use starling_replay::PriorityConfig;

use crate::off_policy::{ReplaySettings, TargetSettings};
use crate::value_based::{EpsilonGreedy, ValueConfig};
use crate::{c51, iqn};

/// Rainbow's defaults, over C51.
pub fn rainbow() -> (ValueConfig, c51::Config) {
    (shared(6.25e-5, 1.5e-4, 0.5), c51::Config::default())
}

/// ε-Rainbow's defaults, over C51.
pub fn epsilon_rainbow() -> (ValueConfig, c51::Config) {
    let (mut shared, config) = rainbow();
    shared.net.noisy_sigma = None;
    shared.exploration = EpsilonGreedy::default();
    (shared, config)
}

/// Rainbow-IQN's defaults, over IQN.
pub fn rainbow_iqn() -> (ValueConfig, iqn::Config) {
    (shared(5e-5, 3.125e-4, 0.2), iqn::Config::default())
}

fn shared(learning_rate: f64, eps: f64, alpha: f64) -> ValueConfig {
    ValueConfig {
        replay: ReplaySettings {
            learning_starts_steps: 80_000,
            n_steps: 3,
            priority: Some(PriorityConfig {
                alpha,
                ..PriorityConfig::default()
            }),
            ..ReplaySettings::default()
        },
        learning_rate: Schedule::Constant(learning_rate),
        optimizer: OptimizerConfig {
            eps,
            ..OptimizerConfig::default()
        },
        double: true,
        target: TargetSettings {
            target_every_updates: 8000,
            ..TargetSettings::default()
        },
        exploration: EpsilonGreedy {
            epsilon_start: 0.0,
            epsilon_end: 0.0,
            epsilon_eval: 0.0,
            ..EpsilonGreedy::default()
        },
        net: QNetConfig {
            hidden: Some(vec![]),
            dueling: true,
            head_hidden: 512,
            noisy_sigma: Some(0.5),
            ..QNetConfig::default()
        },
        ..ValueConfig::default()
    }
}
