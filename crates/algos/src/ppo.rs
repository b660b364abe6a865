//! Proximal policy optimisation (Schulman et al. 2017).
//!
//! Each rollout is used for several epochs of shuffled minibatches; the probability ratio is
//! clipped so that the policy stays near the one that collected. Defaults are rlpyt's: the
//! learning rate and the clip range fall to zero over the run, values are not clipped.
//!
//! Where we differ from the paper: the policy and value share their torso unless
//! `net.separate_critic` is set; a truncated episode is bootstrapped from its final
//! observation; recurrent networks train on whole sequences from the stored state, with
//! minibatches of environments instead of steps.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use starling_nets::{Kind, Schedule, Tensor};

use crate::config::ConfigError;
use crate::policy_gradient::{
    Context, Estimate, Method, Passes, PolicyGradient, PolicyGradientConfig, Prepared, Terms,
    normalized,
};
use crate::{Algorithm, Spaces};

/// PPO's settings beside the shared ones.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Passes over each rollout.
    #[schemars(range(min = 1))]
    pub epochs: usize,
    /// Parts that a rollout is split into; each gives one gradient step per epoch.
    #[schemars(range(min = 1))]
    pub minibatches: usize,
    /// Weight of longer returns in the advantages (λ).
    #[schemars(range(min = 0.0, max = 1.0))]
    pub gae_lambda: f64,
    /// How far the probability ratio may move, possibly a schedule.
    #[schemars(extend("minimum" = 0.0, "maximum" = 10.0))]
    pub ratio_clip: Schedule,
    /// How far a value may move from the recorded one; null for no limit.
    #[schemars(range(min = 0.0))]
    pub value_clip: Option<f64>,
    /// Scale advantages to mean 0 and standard deviation 1.
    pub normalize_advantage: bool,
    /// What their mean and standard deviation are taken over.
    pub normalize_advantage_over: Over,
}

/// What advantages are normalised over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Over {
    /// The steps of one gradient step.
    #[default]
    Minibatch,
    /// All steps of a rollout, before it is split (rlpyt).
    Rollout,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            epochs: 4,
            minibatches: 4,
            gae_lambda: 1.0,
            ratio_clip: Schedule::linear(0.1, 0.0, 1.0),
            value_clip: None,
            normalize_advantage: false,
            normalize_advantage_over: Over::default(),
        }
    }
}

/// All settings with their defaults.
pub fn defaults() -> (PolicyGradientConfig, Config) {
    let shared = PolicyGradientConfig {
        rollout_steps: 128,
        learning_rate: Schedule::linear(1e-3, 0.0, 1.0),
        value_coef: 1.0,
        ..PolicyGradientConfig::default()
    };
    (shared, Config::default())
}

/// PPO for the spaces of an environment.
pub fn build(
    shared: PolicyGradientConfig,
    config: Config,
    spaces: &Spaces,
) -> Result<Box<dyn Algorithm>, ConfigError> {
    let host = PolicyGradient::new("ppo", shared, Ppo { config }, spaces)?;
    Ok(Box::new(host))
}

struct Ppo {
    config: Config,
}

impl Ppo {
    /// Whether advantages are normalised, and over this.
    fn normalizes(&self, over: Over) -> bool {
        self.config.normalize_advantage && self.config.normalize_advantage_over == over
    }
}

impl Method for Ppo {
    const REPORTED: &'static [&'static str] = &["approx_kl", "clip_fraction"];

    fn estimate(&self) -> Estimate {
        Estimate::Gae(self.config.gae_lambda)
    }

    fn passes(&self, batch: &Prepared, recurrent: bool) -> Passes {
        let items = match recurrent {
            true => batch.envs,
            false => batch.envs * batch.steps,
        };
        Passes::minibatches(self.config.epochs, self.config.minibatches, items)
    }

    fn ratio_clip(&self) -> Option<&Schedule> {
        Some(&self.config.ratio_clip)
    }

    fn prepares(&self) -> bool {
        self.normalizes(Over::Rollout)
    }

    fn prepare(&self, _context: &Context<'_>, batch: &Prepared) -> Vec<Tensor> {
        let advantages = normalized(&batch.advantages);
        batch.advantages.shallow_clone().copy_(&advantages);
        Vec::new()
    }

    fn terms(&self, x: &Context<'_>, batch: &Prepared, chosen: Option<&Tensor>) -> Terms {
        let part = chosen.map(|rows| batch.select(rows, x.model.is_recurrent()));
        let part = part.as_ref().unwrap_or(batch);
        let output = part.forward(x.model, x.params);
        let by_minibatch = self.normalizes(Over::Minibatch) && part.advantages.numel() > 1;
        let advantages = match by_minibatch {
            true => normalized(&part.advantages),
            false => part.advantages.shallow_clone(),
        };
        let compared = Compared {
            log_probs: &output.policy.log_prob(&part.actions),
            old_log_probs: &part.log_probs,
            advantages: &advantages,
            values: &output.value,
            old_values: &part.values,
            returns: &part.returns,
            entropy: &output.policy.entropy(),
        };
        loss(&compared, self.config.value_clip, x.ratio_clip)
    }
}

/// What [`loss`] compares: vectors with one number per step.
#[derive(Debug)]
pub struct Compared<'a> {
    /// Log-probability of the action under the present policy.
    pub log_probs: &'a Tensor,
    /// Log-probability under the policy that acted.
    pub old_log_probs: &'a Tensor,
    /// Advantages.
    pub advantages: &'a Tensor,
    /// Present values.
    pub values: &'a Tensor,
    /// Values when acting.
    pub old_values: &'a Tensor,
    /// Value targets.
    pub returns: &'a Tensor,
    /// Entropy of the present policy.
    pub entropy: &'a Tensor,
}

/// The terms of PPO's loss, each averaged over the minibatch; `ratio_clip` is a scalar.
///
/// Beside them the estimate of KL(old ‖ new), the mean of (ratio − 1) − ln ratio, and the share of
/// ratios outside the clip range are reported.
pub fn loss(x: &Compared<'_>, value_clip: Option<f64>, ratio_clip: &Tensor) -> Terms {
    let log_ratio = x.log_probs - x.old_log_probs;
    let ratio = log_ratio.exp();
    let surrogate = &ratio * x.advantages;
    let range = (Some(1.0 - ratio_clip), Some(1.0 + ratio_clip));
    let clipped = ratio.clamp_tensor(range.0, range.1) * x.advantages;

    let mut value_error = (x.values - x.returns).square();
    if let Some(limit) = value_clip {
        let near = x.old_values + (x.values - x.old_values).clamp(-limit, limit);
        value_error = value_error.maximum(&(near - x.returns).square());
    }
    let outside = (&ratio - 1.0).abs().detach().gt_tensor(ratio_clip);
    Terms {
        policy_loss: -surrogate.minimum(&clipped).mean(Kind::Float),
        value_loss: value_error.mean(Kind::Float) * 0.5,
        entropy: x.entropy.mean(Kind::Float),
        numbers: vec![
            (&ratio - 1.0 - &log_ratio).mean(Kind::Float),
            outside.to_kind(Kind::Float).mean(Kind::Float),
        ],
        summed_steps: 1.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two steps, clip 0.2, ratios 1.5 and 0.5, advantages 1 and −1:
    /// min(1.5, 1.2) = 1.2 and min(−0.5, −0.8) = −0.8, so the policy loss is −(1.2 − 0.8)/2.
    /// Values 1 and 3 against 2 and 2: half the mean square is 0.5.
    #[test]
    fn loss_by_hand() {
        let tensor = |values: [f32; 2]| Tensor::from_slice(&values);
        let shared = PolicyGradientConfig {
            value_coef: 2.0,
            entropy_coef: 0.1,
            ..PolicyGradientConfig::default()
        };
        let terms = loss(
            &Compared {
                log_probs: &tensor([1.5f32.ln(), 0.5f32.ln()]),
                old_log_probs: &tensor([0.0, 0.0]),
                advantages: &tensor([1.0, -1.0]),
                values: &tensor([1.0, 3.0]),
                old_values: &tensor([1.0, 3.0]),
                returns: &tensor([2.0, 2.0]),
                entropy: &tensor([0.6, 0.4]),
            },
            None,
            &Tensor::from(0.2f32),
        );
        let close = |tensor: &Tensor, expected: f64| {
            let value = tensor.double_value(&[]);
            assert!((value - expected).abs() < 1e-6, "{value} is not {expected}");
        };
        close(&terms.policy_loss, -0.2);
        close(&terms.value_loss, 0.5);
        close(&terms.entropy, 0.5);
        let total = shared.total(&terms.policy_loss, &terms.value_loss, &terms.entropy);
        close(&total, -0.2 + 2.0 * 0.5 - 0.1 * 0.5);
        let [approx_kl, clip_fraction] = &terms.numbers[..] else {
            panic!("two numbers are reported");
        };
        close(clip_fraction, 1.0);
        close(approx_kl, (0.5 - 1.5f64.ln() - 0.5 - 0.5f64.ln()) / 2.0);
    }

    /// The value moved from 0 to 1 with limit 0.2: the clipped value 0.2 is further from the
    /// target 2, and the larger error counts: (0.2 − 2)²/2 = 1.62.
    #[test]
    fn value_clipping_by_hand() {
        let tensor = |value: f32| Tensor::from_slice(&[value]);
        let terms = loss(
            &Compared {
                log_probs: &tensor(0.0),
                old_log_probs: &tensor(0.0),
                advantages: &tensor(0.0),
                values: &tensor(1.0),
                old_values: &tensor(0.0),
                returns: &tensor(2.0),
                entropy: &tensor(0.0),
            },
            Some(0.2),
            &Tensor::from(0.2f32),
        );
        assert!((terms.value_loss.double_value(&[]) - 1.62).abs() < 1e-6);
    }
}
