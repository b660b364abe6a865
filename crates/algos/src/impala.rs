//! IMPALA: actors that never wait, and a learner that corrects for their older policies with
//! V-trace (Espeholt et al. 2018).
//!
//! The learner makes one pass over each rollout, in gradient steps of `batch_envs` trajectories.
//! Losses are sums over steps and trajectories, not means, and the optimiser is RMSProp in
//! TensorFlow's form; defaults are those of the multi-learner IMPALA, with the rollouts of 20 steps
//! of its example.
//!
//! Where we differ from the paper: a truncated episode is bootstrapped from its final observation.
//! A rollout contains T steps and the observation after the last one; the learner computes all T +
//! 1 rows in one pass and bootstraps from the value of the last. The next rollout does not repeat
//! that row.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use starling_nets::{Kind, OptimizerConfig, OptimizerKind, Schedule, Tensor};

use crate::config::ConfigError;
use crate::ops::{RhoClips, Vtrace};
use crate::policy_gradient::{
    Context, Estimate, Method, Passes, PolicyGradient, PolicyGradientConfig, Prepared, Terms,
    Trajectory,
};
use crate::{Algorithm, Spaces};

/// IMPALA's settings beside the shared ones.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Trajectories per gradient step; null takes all environments of a rollout at once.
    #[schemars(range(min = 1))]
    pub batch_envs: Option<usize>,
    /// How rewards are limited before learning; null for no limit.
    pub reward_clipping: Option<RewardClipping>,
    /// Largest importance weight in the temporal differences (ρ̂); null for no limit.
    #[schemars(extend("exclusiveMinimum" = 0.0))]
    pub rho_clip: Option<f64>,
    /// Largest importance weight in the traces (ĉ); null for no limit.
    #[schemars(extend("exclusiveMinimum" = 0.0))]
    pub c_clip: Option<f64>,
    /// Largest importance weight in the policy gradient; null for no limit.
    #[schemars(extend("exclusiveMinimum" = 0.0))]
    pub pg_rho_clip: Option<f64>,
}

/// How rewards are limited before learning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RewardClipping {
    /// To the range from −1 to 1.
    AbsOne,
    /// 5·tanh(r/5), and 0.3 times that where it is negative.
    SoftAsymmetric,
}

impl RewardClipping {
    /// Limits every reward of a tensor.
    pub fn apply(self, rewards: &Tensor) -> Tensor {
        match self {
            RewardClipping::AbsOne => rewards.clamp(-1.0, 1.0),
            RewardClipping::SoftAsymmetric => {
                let squeezed = (rewards / 5.0).tanh() * 5.0;
                squeezed.maximum(&(&squeezed * 0.3))
            }
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            batch_envs: None,
            reward_clipping: Some(RewardClipping::AbsOne),
            rho_clip: Some(1.0),
            c_clip: Some(1.0),
            pg_rho_clip: Some(1.0),
        }
    }
}

/// All settings with their defaults.
pub fn defaults() -> (PolicyGradientConfig, Config) {
    let shared = PolicyGradientConfig {
        rollout_steps: 20,
        learning_rate: Schedule::linear(4.8e-4, 0.0, 1.0),
        entropy_coef: 2.5e-4,
        clip_norm: None,
        optimizer: OptimizerConfig {
            kind: OptimizerKind::RmspropTf,
            eps: 0.1,
            ..OptimizerConfig::default()
        },
        ..PolicyGradientConfig::default()
    };
    (shared, Config::default())
}

/// IMPALA for the spaces of an environment.
pub fn build(
    shared: PolicyGradientConfig,
    config: Config,
    spaces: &Spaces,
) -> Result<Box<dyn Algorithm>, ConfigError> {
    let host = PolicyGradient::new("impala", shared, Impala { config }, spaces)?;
    Ok(Box::new(host))
}

struct Impala {
    config: Config,
}

impl Method for Impala {
    const REPORTED: &'static [&'static str] = &["importance_weight", "value_target"];
    const SUMS: bool = true;

    fn estimate(&self) -> Estimate {
        Estimate::Vtrace
    }

    fn passes(&self, batch: &Prepared, _recurrent: bool) -> Passes {
        Passes::once(batch.envs, self.config.batch_envs.unwrap_or(batch.envs))
    }

    fn terms(&self, x: &Context<'_>, batch: &Prepared, chosen: Option<&Tensor>) -> Terms {
        let mut part = Trajectory::whole(batch);
        if let Some(chosen) = chosen {
            part = part.select(chosen);
        }
        let judged = part.judge(x.model, x.params);
        let clips = RhoClips {
            rho: self.config.rho_clip,
            c: self.config.c_clip,
            pg_rho: self.config.pg_rho_clip,
            lambda: 1.0,
        };
        let (corrected, mean_rho) = part.correct(&judged, self.config.reward_clipping, clips);
        let (log_probs, entropy) = (&judged.log_probs, &judged.entropy);
        Terms {
            numbers: vec![mean_rho, corrected.targets.mean(Kind::Float)],
            summed_steps: part.rows() as f64,
            ..loss(log_probs, &judged.values, entropy, &corrected)
        }
    }
}

/// The terms of IMPALA's loss over some trajectories, each summed over all steps; every input has
/// one number per step, in one shape.
pub fn loss(log_probs: &Tensor, values: &Tensor, entropy: &Tensor, vtrace: &Vtrace) -> Terms {
    Terms {
        policy_loss: -(log_probs * &vtrace.advantages).sum(Kind::Float),
        value_loss: (values - &vtrace.targets).square().sum(Kind::Float) * 0.5,
        entropy: entropy.sum(Kind::Float),
        numbers: Vec::new(),
        summed_steps: log_probs.numel() as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(values: &[f32]) -> Tensor {
        Tensor::from_slice(values)
    }

    /// −(ln .5 · 2 + ln .25 · (−1)), half of 1² + 2², and the entropies .4 + .6: sums.
    #[test]
    fn loss_by_hand() {
        let vtrace = Vtrace {
            targets: tensor(&[2.0, 2.0]),
            surpluses: tensor(&[0.0, 0.0]),
            advantages: tensor(&[2.0, -1.0]),
        };
        let terms = loss(
            &tensor(&[0.5f32.ln(), 0.25f32.ln()]),
            &tensor(&[1.0, 0.0]),
            &tensor(&[0.4, 0.6]),
            &vtrace,
        );
        let policy = -(2.0 * 0.5f64.ln() - 0.25f64.ln());
        let close = |tensor: &Tensor, expected: f64| {
            let value = tensor.double_value(&[]);
            assert!((value - expected).abs() < 1e-6, "{value} is not {expected}");
        };
        close(&terms.policy_loss, policy);
        close(&terms.value_loss, 2.5);
        close(&terms.entropy, 1.0);
        let (shared, _) = defaults();
        let total = shared.total(&terms.policy_loss, &terms.value_loss, &terms.entropy);
        close(&total, policy + 0.5 * 2.5 - 2.5e-4);
    }

    /// Numbers computed by an independent script.
    #[test]
    fn reward_clipping_by_numbers() {
        let rewards = tensor(&[-10.0, -1.0, 1.0, 10.0]);
        let soft = RewardClipping::SoftAsymmetric.apply(&rewards);
        let soft = Vec::<f32>::try_from(soft).unwrap();
        for (ours, expected) in soft.iter().zip([-1.446041, -0.296063, 0.986877, 4.820138]) {
            assert!((ours - expected).abs() < 1e-5, "{soft:?}");
        }
        let hard = RewardClipping::AbsOne.apply(&rewards);
        assert_eq!(Vec::<f32>::try_from(hard).unwrap(), [-1.0, -1.0, 1.0, 1.0]);
    }
}
