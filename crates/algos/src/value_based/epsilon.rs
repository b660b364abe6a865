//! ε-greedy exploration: the exploration rate of each environment.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::{ConfigError, require};
use crate::ops::{apex_ladder, linear_decay, log_spaced};

/// Probabilities of random actions (ε).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EpsilonGreedy {
    /// Probability of a random action (ε) at the start.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub epsilon_start: f64,
    /// Probability of a random action after the decay.
    #[schemars(range(min = 0.0, max = 1.0))]
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
    #[schemars(range(min = 0.0, max = 1.0))]
    pub epsilon_eval: f64,
}

impl Default for EpsilonGreedy {
    fn default() -> Self {
        Self {
            epsilon_start: 1.0,
            epsilon_end: 0.01,
            epsilon_hold_steps: 0,
            epsilon_decay_steps: 1_000_000,
            epsilon_spread: None,
            epsilon_ladder: None,
            epsilon_eval: 0.001,
        }
    }
}

impl EpsilonGreedy {
    /// Refuses settings that do not go together.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let Some(Spread { low, high }) = self.epsilon_spread else {
            return Ok(());
        };
        let allowed = "at least epsilon_spread.low";
        require(low <= high, "algo.epsilon_spread.high", high, allowed)?;
        if self.epsilon_ladder.is_some() {
            let message = "algo.epsilon_spread and algo.epsilon_ladder exclude each other: set \
                           one of them to null";
            return Err(ConfigError::Misfit(message.into()));
        }
        Ok(())
    }

    /// ε of one environment in training.
    pub(crate) fn at(&self, env_steps: u64, env: usize, envs: usize) -> f64 {
        match (&self.epsilon_ladder, &self.epsilon_spread) {
            (Some(ladder), _) => ladder.epsilon(env_steps, env, envs),
            (None, Some(spread)) => {
                let end = log_spaced(spread.low, spread.high, env, envs);
                self.decayed(end, env_steps)
            }
            (None, None) => self.decayed(self.epsilon_end, env_steps),
        }
    }

    /// [`at`](EpsilonGreedy::at) for all environments, if they have the same.
    pub(crate) fn common(&self, env_steps: u64) -> Option<f64> {
        let common = self.epsilon_ladder.is_none() && self.epsilon_spread.is_none();
        common.then(|| self.decayed(self.epsilon_end, env_steps))
    }

    fn decayed(&self, end: f64, env_steps: u64) -> f64 {
        match env_steps.checked_sub(self.epsilon_hold_steps) {
            None => self.epsilon_start,
            Some(steps) => linear_decay(self.epsilon_start, end, self.epsilon_decay_steps, steps),
        }
    }
}

/// ε after the decay, from `low` for the first environment to `high` for the last, evenly spaced
/// in the logarithm.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Spread {
    /// ε of the first environment.
    #[schemars(range(max = 1.0), extend("exclusiveMinimum" = 0.0))]
    pub low: f64,
    /// ε of the last environment.
    #[schemars(range(max = 1.0), extend("exclusiveMinimum" = 0.0))]
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
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Ladder {
    /// ε of the first environment.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub base: f64,
    /// How steep the ladder is (α).
    #[schemars(range(min = 0.0))]
    pub alpha: f64,
    /// Base after `move_steps`; null keeps `base`.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub base_end: Option<f64>,
    /// α after `move_steps`; null keeps `alpha`.
    #[schemars(range(min = 0.0))]
    pub alpha_end: Option<f64>,
    /// Steps over which base and α move to their end values.
    pub move_steps: u64,
    /// Smallest ε.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub min: f64,
    /// Divide by N instead of N − 1: no environment stands on the last rung.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn close(ours: f64, expected: f64) {
        assert!((ours - expected).abs() < 1e-6, "{ours} is not {expected}");
    }

    /// Computed by an independent script (MarltasCore's formula without its noise).
    #[test]
    fn a_moving_ladder_by_numbers() {
        let config = EpsilonGreedy {
            epsilon_ladder: Some(Ladder {
                base: 0.7,
                alpha: 7.0,
                base_end: Some(0.1),
                alpha_end: Some(3.0),
                move_steps: 30_000,
                min: 0.02,
                open_end: true,
            }),
            ..EpsilonGreedy::default()
        };
        config.check().unwrap();
        let start = [
            0.7, 0.530419, 0.40192, 0.304551, 0.230771, 0.174864, 0.132502, 0.100402, 0.076079,
        ];
        let end = [0.1, 0.046416, 0.021544, 0.02, 0.02, 0.02, 0.02, 0.02, 0.02];
        for env in 0..9 {
            close(config.at(0, env, 9), start[env]);
            close(config.at(30_000, env, 9), end[env]);
            close(config.at(1 << 40, env, 9), end[env]);
        }
        // Half-way the base is .4 and α is 5.
        close(config.at(15_000, 3, 9), 0.4f64.powf(1.0 + 5.0 * 3.0 / 9.0));
        assert_eq!(config.common(0), None);
    }

    /// rlpyt: 1 for the first 50 steps, then down to each environment's own value after 100 more.
    #[test]
    fn epsilon_can_be_held_and_spread() {
        let mut config = EpsilonGreedy {
            epsilon_hold_steps: 50,
            epsilon_decay_steps: 100,
            epsilon_end: 0.5,
            ..EpsilonGreedy::default()
        };
        for (steps, expected) in [(0, 1.0), (49, 1.0), (50, 1.0), (100, 0.75), (150, 0.5)] {
            assert_eq!(config.common(steps), Some(expected));
            assert_eq!(config.at(steps, 3, 4), expected);
        }
        config.epsilon_spread = Some(Spread::default());
        config.check().unwrap();
        for (env, end) in [0.0005, 0.00292402, 0.01709976, 0.1]
            .into_iter()
            .enumerate()
        {
            close(config.at(49, env, 4), 1.0);
            close(config.at(100, env, 4), (1.0 + end) / 2.0);
            close(config.at(150, env, 4), end);
        }
        assert_eq!(config.common(0), None);
        config.epsilon_ladder = Some(Ladder::default());
        let refused = config.check().unwrap_err().to_string();
        assert!(refused.contains("exclude each other"), "{refused}");
    }
}
