//! Settings of a replay.

use serde::{Deserialize, Serialize};

use crate::ReplayError;

/// What a transition replay keeps and how it is drawn from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ReplayConfig {
    /// Steps kept, over all streams; rounded up to the same number of rows per stream. The end
    /// of a cut-off episode takes a row of its own.
    pub capacity_steps: usize,
    /// Steps whose rewards are summed before bootstrapping.
    pub n_steps: usize,
    /// Discount per step (γ).
    pub gamma: f64,
    /// Draw by priority; uniformly if absent.
    pub priority: Option<PriorityConfig>,
}

/// How entries are drawn by priority: P(i) ∝ p_i^α.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PriorityConfig {
    /// Exponent of priorities (α): 0 draws uniformly, 1 in proportion.
    pub alpha: f64,
    /// The smallest priority an entry can have, so that none is lost for good.
    pub min_priority: f64,
    /// How the draws of one batch relate to each other.
    pub draws: Draws,
}

/// How the draws of one batch relate to each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Draws {
    /// One draw from each of N equal parts of the total priority: less variance.
    #[default]
    Stratified,
    /// N draws that do not know of each other.
    Independent,
}

impl Default for ReplayConfig {
    fn default() -> Self {
        Self {
            capacity_steps: 1_000_000,
            n_steps: 1,
            gamma: 0.99,
            priority: None,
        }
    }
}

impl Default for PriorityConfig {
    fn default() -> Self {
        Self {
            alpha: 0.6,
            min_priority: 1e-6,
            draws: Draws::default(),
        }
    }
}

impl ReplayConfig {
    /// Rows that each of `streams` rings has.
    pub fn rows_per_stream(&self, streams: usize) -> usize {
        self.capacity_steps.div_ceil(streams.max(1))
    }

    /// Refuses settings that cannot work, for a replay of `streams` streams.
    ///
    /// # Errors
    /// Names the first setting that is out of range, and what is allowed.
    pub fn validate(&self, streams: usize) -> Result<(), ReplayError> {
        check(streams >= 1, "streams", streams, "at least 1")?;
        check(self.n_steps >= 1, "n_steps", self.n_steps, "at least 1")?;
        // A window of n steps, the observation that follows it and the end of a cut-off episode
        // have to fit into a ring beside at least one row that can be drawn.
        let rows = self.n_steps.saturating_add(3);
        let allowed = format!("at least {rows} for each of {streams} environments");
        let fits = self.rows_per_stream(streams) >= rows;
        check(fits, "capacity_steps", self.capacity_steps, &allowed)?;
        let gamma = (0.0..=1.0).contains(&self.gamma);
        check(gamma, "gamma", self.gamma, "0 to 1")?;
        if let Some(priority) = &self.priority {
            let alpha = (0.0..=1.0).contains(&priority.alpha);
            check(alpha, "priority.alpha", priority.alpha, "0 to 1")?;
            let min = priority.min_priority;
            let positive = min > 0.0 && min.is_finite();
            check(positive, "priority.min_priority", min, "above 0")?;
        }
        Ok(())
    }
}

fn check(
    ok: bool,
    key: &'static str,
    value: impl ToString,
    allowed: &str,
) -> Result<(), ReplayError> {
    if ok {
        return Ok(());
    }
    Err(ReplayError::Config {
        key,
        value: value.to_string(),
        allowed: allowed.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_keys_are_refused_by_name() {
        let config = serde_json::from_str::<ReplayConfig>(r#"{"capacity": 5}"#);
        assert!(config.unwrap_err().to_string().contains("capacity"));
        let config = serde_json::from_str::<ReplayConfig>(
            r#"{"capacity_steps": 50, "priority": {"alpha": 0.5, "draws": "independent"}}"#,
        );
        let priority = config.unwrap().priority.unwrap();
        assert_eq!(priority.draws, Draws::Independent);
        assert_eq!(priority.min_priority, 1e-6);
    }

    #[test]
    fn a_setting_out_of_range_is_named_with_what_is_allowed() {
        let config = ReplayConfig {
            gamma: 1.5,
            ..ReplayConfig::default()
        };
        let message = config.validate(4).unwrap_err().to_string();
        assert_eq!(message, "replay: gamma is 1.5; allowed: 0 to 1");
        let config = ReplayConfig {
            capacity_steps: 20,
            n_steps: 3,
            ..ReplayConfig::default()
        };
        assert!(
            config
                .validate(4)
                .unwrap_err()
                .to_string()
                .contains("at least 6")
        );
        assert!(config.validate(3).is_ok());
    }
}
