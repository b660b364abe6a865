//! Asynchronous PPO: PPO's clipped loss on V-trace targets (Luo et al. 2020, Petrenko et al.
//! 2020), for rollouts whose policy is some updates old.
//!
//! At the beginning of an update, V-trace targets and advantages r_t + γ vs_{t+1} − V_t are
//! computed with the learner's current policy and values. A few epochs of minibatches follow, with
//! the probability ratio relative to the policy that acted. The ratio already weights the
//! advantage, so V-trace's weight ρ̂_pg is not applied again.
//!
//! Where we differ from the papers: there is no target network and no KL penalty, and a
//! truncated episode is bootstrapped from its final observation. Minibatches are groups of whole
//! trajectories, with and without an LSTM.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use starling_nets::{Kind, OptimizerConfig, Schedule, Tensor, no_grad};

use crate::config::ConfigError;
use crate::impala::RewardClipping;
use crate::ops::RhoClips;
use crate::policy_gradient::{
    Context, Estimate, Method, Passes, PolicyGradient, PolicyGradientConfig, Prepared, Terms,
    Trajectory, normalized,
};
use crate::{Algorithm, Spaces};

/// APPO's settings beside the shared ones.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Passes over each rollout.
    #[schemars(range(min = 1))]
    pub epochs: usize,
    /// Parts that the environments of a rollout are split into; each gives one gradient step per
    /// epoch.
    #[schemars(range(min = 1))]
    pub minibatches: usize,
    /// How rewards are limited before learning; null for no limit.
    pub reward_clipping: Option<RewardClipping>,
    /// How far the probability ratio may move, possibly a schedule.
    #[schemars(extend("minimum" = 0.0, "maximum" = 10.0))]
    pub ratio_clip: Schedule,
    /// Largest importance weight in the temporal differences (ρ̂); null for no limit.
    #[schemars(extend("exclusiveMinimum" = 0.0))]
    pub rho_clip: Option<f64>,
    /// Largest importance weight in the traces (ĉ); null for no limit.
    #[schemars(extend("exclusiveMinimum" = 0.0))]
    pub c_clip: Option<f64>,
    /// Factor on the traces (λ): less than 1 shortens them.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub trace_lambda: f64,
    /// Scale the advantages of each minibatch to mean 0 and standard deviation 1.
    pub normalize_advantage: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            epochs: 1,
            minibatches: 4,
            reward_clipping: None,
            ratio_clip: Schedule::Constant(0.2),
            rho_clip: Some(1.0),
            c_clip: Some(1.0),
            trace_lambda: 0.95,
            normalize_advantage: true,
        }
    }
}

/// All settings with their defaults.
pub fn defaults() -> (PolicyGradientConfig, Config) {
    let shared = PolicyGradientConfig {
        rollout_steps: 32,
        learning_rate: Schedule::linear(5e-4, 0.0, 1.0),
        clip_norm: Some(0.5),
        optimizer: OptimizerConfig {
            eps: 1e-5,
            ..OptimizerConfig::default()
        },
        ..PolicyGradientConfig::default()
    };
    (shared, Config::default())
}

/// APPO for the spaces of an environment.
pub fn build(
    shared: PolicyGradientConfig,
    config: Config,
    spaces: &Spaces,
) -> Result<Box<dyn Algorithm>, ConfigError> {
    let host = PolicyGradient::new("appo", shared, Appo { config }, spaces)?;
    Ok(Box::new(host))
}

struct Appo {
    config: Config,
}

impl Method for Appo {
    const REPORTED: &'static [&'static str] = &["clip_fraction"];
    const PREPARED: &'static [&'static str] = &["importance_weight"];

    fn estimate(&self) -> Estimate {
        Estimate::Vtrace
    }

    fn passes(&self, batch: &Prepared, _recurrent: bool) -> Passes {
        Passes::minibatches(self.config.epochs, self.config.minibatches, batch.envs)
    }

    fn ratio_clip(&self) -> Option<&Schedule> {
        Some(&self.config.ratio_clip)
    }

    fn prepares(&self) -> bool {
        true
    }

    /// V-trace with the weights at the start of an update; the mean importance weight.
    fn prepare(&self, x: &Context<'_>, batch: &Prepared) -> Vec<Tensor> {
        let clips = RhoClips {
            rho: self.config.rho_clip,
            c: self.config.c_clip,
            pg_rho: None,
            lambda: self.config.trace_lambda,
        };
        let whole = Trajectory::whole(batch);
        let judged = no_grad(|| whole.judge(x.model, x.params));
        let (corrected, mean_rho) = whole.correct(&judged, self.config.reward_clipping, clips);
        no_grad(|| {
            let [advantages, targets] = targets(batch);
            advantages.shallow_clone().copy_(&corrected.surpluses);
            targets.shallow_clone().copy_(&corrected.targets);
        });
        vec![mean_rho]
    }

    fn terms(&self, x: &Context<'_>, batch: &Prepared, chosen: Option<&Tensor>) -> Terms {
        let mut part = Trajectory::whole(batch);
        let [mut advantages, mut targets] = targets(batch);
        if let Some(chosen) = chosen {
            part = part.select(chosen);
            advantages = advantages.index_select(1, chosen);
            targets = targets.index_select(1, chosen);
        }
        let judged = part.judge(x.model, x.params);
        if self.config.normalize_advantage && part.rows() > 1 {
            advantages = normalized(&advantages);
        }
        let compared = Compared {
            log_probs: &judged.log_probs,
            acting_log_probs: &part.log_probs,
            advantages: &advantages,
            values: &judged.values,
            targets: &targets,
            entropy: &judged.entropy,
        };
        loss(&compared, x.ratio_clip)
    }
}

/// Where [`Appo::prepare`] puts advantages and value targets, `[T, B]`.
fn targets(batch: &Prepared) -> [Tensor; 2] {
    let shape = [batch.steps as i64, batch.envs as i64];
    [&batch.advantages, &batch.returns].map(|column| column.view(shape))
}

/// What [`loss`] compares; every tensor has one number per step, in one shape.
#[derive(Debug)]
pub struct Compared<'a> {
    /// Log-probability of the action under the present policy.
    pub log_probs: &'a Tensor,
    /// Log-probability under the policy that acted.
    pub acting_log_probs: &'a Tensor,
    /// V-trace's r_t + γ vs_{t+1} − V_t, possibly normalised.
    pub advantages: &'a Tensor,
    /// Present values.
    pub values: &'a Tensor,
    /// V-trace's value targets.
    pub targets: &'a Tensor,
    /// Entropy of the present policy.
    pub entropy: &'a Tensor,
}

/// The terms of APPO's loss, each averaged over the minibatch; `ratio_clip` is a scalar. Beside
/// them the share of ratios outside the clip range is reported.
pub fn loss(x: &Compared<'_>, ratio_clip: &Tensor) -> Terms {
    let ratio = (x.log_probs - x.acting_log_probs).exp();
    let clipped = ratio.clamp_tensor(Some(1.0 - ratio_clip), Some(1.0 + ratio_clip));
    let surrogate = (&ratio * x.advantages).minimum(&(&clipped * x.advantages));
    let outside = (&ratio - 1.0).abs().gt_tensor(ratio_clip);
    Terms {
        policy_loss: -surrogate.mean(Kind::Float),
        value_loss: (x.values - x.targets).square().mean(Kind::Float) * 0.5,
        entropy: x.entropy.mean(Kind::Float),
        numbers: vec![outside.to_kind(Kind::Float).mean(Kind::Float)],
        summed_steps: 1.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two steps, clip 0.2, ratios 1.5 and 0.5, advantages 1 and −1: min(1.5, 1.2) = 1.2 and
    /// min(−0.5, −0.8) = −0.8. Values 1 and 3 against 2 and 2: half the mean square is 0.5.
    #[test]
    fn loss_by_hand() {
        let tensor = |values: [f32; 2]| Tensor::from_slice(&values);
        let terms = loss(
            &Compared {
                log_probs: &tensor([1.5f32.ln(), 0.5f32.ln()]),
                acting_log_probs: &tensor([0.0, 0.0]),
                advantages: &tensor([1.0, -1.0]),
                values: &tensor([1.0, 3.0]),
                targets: &tensor([2.0, 2.0]),
                entropy: &tensor([0.6, 0.4]),
            },
            &Tensor::from(0.2f32),
        );
        let close = |tensor: &Tensor, expected: f64| {
            let value = tensor.double_value(&[]);
            assert!((value - expected).abs() < 1e-6, "{value} is not {expected}");
        };
        close(&terms.policy_loss, -0.2);
        close(&terms.value_loss, 0.5);
        close(&terms.numbers[0], 1.0);
        let (shared, _) = defaults();
        let total = shared.total(&terms.policy_loss, &terms.value_loss, &terms.entropy);
        close(&total, -0.2 + 0.5 * 0.5 - 0.01 * 0.5);
    }
}
