//! How many samples are drawn for each inserted step.

use serde::{Deserialize, Serialize};

use crate::ReplayError;

/// How inserting and sampling are held together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RateConfig {
    /// Steps that have to be inserted before the first sample.
    pub min_size_steps: u64,
    /// Samples drawn for each step inserted, in the long run; neither side waits for the other
    /// if absent.
    pub samples_per_insert: Option<f64>,
    /// How many samples either side may be ahead of the ratio.
    pub tolerance_samples: f64,
}

impl Default for RateConfig {
    fn default() -> Self {
        Self {
            min_size_steps: 1000,
            samples_per_insert: None,
            tolerance_samples: 1000.0,
        }
    }
}

/// Counts inserted steps and drawn samples, and says which side may go on.
///
/// It waits for nothing itself: a side that may not go on has to ask again after the other side
/// has done something. The *balance* is how many samples are owed for the steps inserted since
/// the first `min_size_steps`. A side may go on if it moves the balance towards zero, or leaves
/// it within the tolerance.
///
/// **Both sides are never held at once**, whatever the sizes of blocks and batches: a balance of
/// zero or less lets inserting go on, one of zero or more lets sampling go on (once
/// `min_size_steps` are there; until then the balance is below zero).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RateLimiter {
    config: RateConfig,
    inserted_steps: u64,
    drawn_samples: u64,
}

impl RateLimiter {
    /// A limiter with nothing inserted yet.
    ///
    /// # Errors
    /// When a setting is out of range.
    pub fn new(config: RateConfig) -> Result<Self, ReplayError> {
        let refuse = |key, value: f64, allowed: &str| ReplayError::Config {
            key,
            value: value.to_string(),
            allowed: allowed.to_owned(),
        };
        if let Some(ratio) = config.samples_per_insert
            && !(ratio > 0.0 && ratio.is_finite())
        {
            return Err(refuse("samples_per_insert", ratio, "above 0"));
        }
        let tolerance = config.tolerance_samples;
        if !(tolerance >= 0.0 && tolerance.is_finite()) {
            return Err(refuse("tolerance_samples", tolerance, "at least 0"));
        }
        Ok(Self {
            config,
            inserted_steps: 0,
            drawn_samples: 0,
        })
    }

    /// Whether `steps` more may be inserted.
    pub fn may_insert(&self, steps: u64) -> bool {
        let Some(ratio) = self.config.samples_per_insert else {
            return true;
        };
        let balance = self.balance(ratio);
        balance <= 0.0 || balance + steps as f64 * ratio <= self.config.tolerance_samples
    }

    /// Whether `samples` more may be drawn.
    pub fn may_sample(&self, samples: u64) -> bool {
        if self.inserted_steps < self.config.min_size_steps {
            return false;
        }
        let Some(ratio) = self.config.samples_per_insert else {
            return true;
        };
        let balance = self.balance(ratio);
        balance >= 0.0 || balance - samples as f64 >= -self.config.tolerance_samples
    }

    /// Counts steps that were inserted.
    pub fn inserted(&mut self, steps: u64) {
        self.inserted_steps += steps;
    }

    /// Counts samples that were drawn.
    pub fn sampled(&mut self, samples: u64) {
        self.drawn_samples += samples;
    }

    /// Steps inserted so far.
    pub fn inserted_steps(&self) -> u64 {
        self.inserted_steps
    }

    /// Samples drawn so far.
    pub fn drawn_samples(&self) -> u64 {
        self.drawn_samples
    }

    /// Its settings.
    pub fn config(&self) -> &RateConfig {
        &self.config
    }

    /// Samples that are owed.
    fn balance(&self, ratio: f64) -> f64 {
        let since = self.inserted_steps as f64 - self.config.min_size_steps as f64;
        since * ratio - self.drawn_samples as f64
    }
}
