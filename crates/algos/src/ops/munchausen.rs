//! Munchausen rewards: the scaled log-policy of the action is added to the reward (Vieillard et al.
//! 2020).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use starling_nets::{Kind, Tensor};

/// Settings of Munchausen learning.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Munchausen {
    /// Weight of the policy's log-probability in the reward (α).
    #[schemars(range(min = 0.0, max = 1.0))]
    pub alpha: f64,
    /// Temperature of the policy (τ).
    #[schemars(extend("exclusiveMinimum" = 0.0))]
    pub temperature: f64,
    /// The scaled log-probability is at least this (l₀).
    #[schemars(range(max = 0.0))]
    pub log_min: f64,
}

impl Default for Munchausen {
    fn default() -> Self {
        Self {
            alpha: 0.9,
            temperature: 0.03,
            log_min: -1.0,
        }
    }
}

impl Munchausen {
    /// Probabilities `[N, A]` of the policy softmax(Q/τ), and τ times their logarithms.
    /// Actions of very low value, such as masked ones, have probability 0.
    pub fn policy(&self, values: &Tensor) -> (Tensor, Tensor) {
        let log_policy = (values / self.temperature).log_softmax(-1, Kind::Float);
        (log_policy.exp(), log_policy * self.temperature)
    }

    /// What is added to the rewards of actions `[N, 1]` taken at values `[N, A]`: `[N]`.
    pub fn bonus(&self, values: &Tensor, actions: &Tensor) -> Tensor {
        let (_, scaled) = self.policy(values);
        let taken = scaled.gather(-1, actions, false).squeeze_dim(-1);
        taken.clamp(self.log_min, 0.0) * self.alpha
    }

    /// The soft value of what follows: Σ_a π(a)(z(a) − τ ln π(a)), `[N, W]` from outputs
    /// `[N, A, W]` and values `[N, A]`.
    pub fn soft_value(&self, outputs: &Tensor, values: &Tensor) -> Tensor {
        let (policy, scaled) = self.policy(values);
        // 0 · (−∞) is not a number: what has no probability does not count.
        let entropy =
            (&policy * scaled.clamp_min(-1e4)).sum_dim_intlist([-1].as_slice(), true, Kind::Float);
        let mean = policy.unsqueeze(1).matmul(outputs).squeeze_dim(1);
        mean - entropy
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two actions of values 0 and τ·ln 3: π = (¼, ¾). With τ = 1 and α = .9 the bonus of the
    /// first is .9·max(−1, −ln 4) = −.9, of the second −.9·ln(4/3). The soft value is
    /// τ·ln(1 + 3) = ln 4.
    #[test]
    fn numbers_by_hand() {
        let munchausen = Munchausen {
            temperature: 1.0,
            ..Munchausen::default()
        };
        let values = Tensor::from_slice(&[0f32, 3f32.ln(), 0.0, 3f32.ln()]).reshape([2, 2]);
        let actions = Tensor::from_slice(&[0i64, 1]).reshape([2, 1]);
        let bonus = munchausen.bonus(&values, &actions);
        assert!((bonus.double_value(&[0]) + 0.9).abs() < 1e-6);
        assert!((bonus.double_value(&[1]) + 0.9 * (4f64 / 3.0).ln()).abs() < 1e-6);
        let soft = munchausen.soft_value(&values.unsqueeze(-1), &values);
        assert_eq!(soft.size(), [2, 1]);
        assert!((soft.double_value(&[0, 0]) - 4f64.ln()).abs() < 1e-6);
        // A masked action has no part in it.
        let masked = Tensor::from_slice(&[0f32, -1e8]).reshape([1, 2]);
        let soft = munchausen.soft_value(&masked.unsqueeze(-1), &masked);
        assert!(soft.double_value(&[0, 0]).abs() < 1e-6);
    }
}
