//! Advantage actor-critic, the synchronous form of A3C (Mnih et al. 2016).
//!
//! One gradient step per rollout. Defaults are rlpyt's: Adam instead of RMSProp, λ = 1 (plain
//! discounted returns), a gradient norm of at most 1. Where we differ from the paper: a
//! truncated episode is bootstrapped from its final observation.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use starling_nets::{Kind, Schedule, Tensor};

use crate::config::ConfigError;
use crate::policy_gradient::{
    Context, Estimate, Method, Passes, PolicyGradient, PolicyGradientConfig, Prepared, Terms,
    normalized,
};
use crate::{Algorithm, Spaces};

/// A2C's settings beside the shared ones.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Weight of longer returns in the advantages (λ); 1 for plain discounted returns.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub gae_lambda: f64,
    /// Scale the advantages of each rollout to mean 0 and standard deviation 1.
    pub normalize_advantage: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            gae_lambda: 1.0,
            normalize_advantage: false,
        }
    }
}

/// All settings with their defaults.
pub fn defaults() -> (PolicyGradientConfig, Config) {
    let shared = PolicyGradientConfig {
        rollout_steps: 5,
        learning_rate: Schedule::Constant(1e-3),
        ..PolicyGradientConfig::default()
    };
    (shared, Config::default())
}

/// A2C for the spaces of an environment.
pub fn build(
    shared: PolicyGradientConfig,
    config: Config,
    spaces: &Spaces,
) -> Result<Box<dyn Algorithm>, ConfigError> {
    let host = PolicyGradient::new("a2c", shared, A2c { config }, spaces)?;
    Ok(Box::new(host))
}

struct A2c {
    config: Config,
}

impl Method for A2c {
    const REPORTED: &'static [&'static str] = &[];

    fn estimate(&self) -> Estimate {
        Estimate::Gae(self.config.gae_lambda)
    }

    fn passes(&self, batch: &Prepared, _recurrent: bool) -> Passes {
        Passes::once(batch.envs, batch.envs)
    }

    fn terms(&self, x: &Context<'_>, batch: &Prepared, _chosen: Option<&Tensor>) -> Terms {
        let output = batch.forward(x.model, x.params);
        let advantages = match self.config.normalize_advantage {
            true => normalized(&batch.advantages),
            false => batch.advantages.shallow_clone(),
        };
        loss(
            &output.policy.log_prob(&batch.actions),
            &advantages,
            &output.value,
            &batch.returns,
            &output.policy.entropy(),
        )
    }
}

/// The terms of A2C's loss, each averaged over the rollout; every input has one number per step.
pub fn loss(
    log_probs: &Tensor,
    advantages: &Tensor,
    values: &Tensor,
    returns: &Tensor,
    entropy: &Tensor,
) -> Terms {
    Terms {
        policy_loss: -(log_probs * advantages).mean(Kind::Float),
        value_loss: (values - returns).square().mean(Kind::Float) * 0.5,
        entropy: entropy.mean(Kind::Float),
        numbers: Vec::new(),
        summed_steps: 1.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// −(ln .5 · 2 + ln .25 · (−1))/2, half the mean of 1² and 2², and the entropy .5.
    #[test]
    fn loss_by_hand() {
        let tensor = |values: [f32; 2]| Tensor::from_slice(&values);
        let terms = loss(
            &tensor([0.5f32.ln(), 0.25f32.ln()]),
            &tensor([2.0, -1.0]),
            &tensor([1.0, 0.0]),
            &tensor([2.0, 2.0]),
            &tensor([0.4, 0.6]),
        );
        let policy = -(2.0 * 0.5f64.ln() - 0.25f64.ln()) / 2.0;
        let close = |tensor: &Tensor, expected: f64| {
            let value = tensor.double_value(&[]);
            assert!((value - expected).abs() < 1e-6, "{value} is not {expected}");
        };
        close(&terms.policy_loss, policy);
        close(&terms.value_loss, 1.25);
        let Terms {
            policy_loss,
            value_loss,
            entropy,
            ..
        } = &terms;
        let (shared, _) = defaults();
        let total = shared.total(policy_loss, value_loss, entropy);
        close(&total, policy + 0.5 * 1.25 - 0.01 * 0.5);
    }
}
