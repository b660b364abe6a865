//! The rate limiter: how many samples are drawn per inserted step.

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

/// Counts inserted steps and drawn samples, and says which side may continue.
///
/// It waits for nothing itself: a side that may not continue has to ask again after the other side
/// has done something. The *balance* is how many samples are owed for the steps inserted since
/// the first `min_size_steps`. A side may continue if it moves the balance towards zero, or leaves
/// it within the tolerance.
///
/// **Both sides are never held at once**, whatever the sizes of blocks and batches: a balance of
/// zero or less lets inserting continue, one of zero or more lets sampling continue (once
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
        let refuse = |key: &str, value: f64, allowed: &str| ReplayError::Config {
            key: String::from(key),
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn limiter(min: u64, ratio: Option<f64>, tolerance: f64) -> RateLimiter {
        RateLimiter::new(RateConfig {
            min_size_steps: min,
            samples_per_insert: ratio,
            tolerance_samples: tolerance,
        })
        .unwrap()
    }

    #[test]
    fn samples_wait_for_the_first_steps_and_then_for_the_ratio() {
        // 8 samples per step (a batch of 32 every 4 steps), 64 ahead at most.
        let mut rate = limiter(100, Some(8.0), 64.0);
        assert!(!rate.may_sample(32));
        rate.inserted(99);
        assert!(!rate.may_sample(1));
        rate.inserted(1);
        // Balanced: two batches may be drawn ahead, a third one may not.
        for _ in 0..2 {
            assert!(rate.may_sample(32));
            rate.sampled(32);
        }
        assert!(!rate.may_sample(32));
        assert!(rate.may_insert(4));
        rate.inserted(4);
        assert!(rate.may_sample(32));
    }

    #[test]
    fn inserts_wait_for_samples_once_the_ratio_is_reached() {
        let mut rate = limiter(10, Some(2.0), 8.0);
        rate.inserted(10);
        assert!(rate.may_insert(4));
        rate.inserted(4);
        // 8 samples are owed: one step more would make it 10.
        assert!(!rate.may_insert(1));
        rate.sampled(2);
        assert!(rate.may_insert(1));
        assert!(!rate.may_insert(2));
    }

    #[test]
    fn without_a_ratio_only_the_first_steps_are_waited_for() {
        let mut rate = limiter(5, None, 0.0);
        assert!(!rate.may_sample(1));
        rate.inserted(5);
        rate.sampled(1_000_000);
        assert!(rate.may_sample(1_000_000) && rate.may_insert(1_000_000));
    }

    #[test]
    fn settings_out_of_range_are_refused() {
        for (ratio, tolerance) in [(0.0, 1.0), (f64::NAN, 1.0), (1.0, -1.0), (1.0, f64::NAN)] {
            let config = RateConfig {
                min_size_steps: 0,
                samples_per_insert: Some(ratio),
                tolerance_samples: tolerance,
            };
            assert!(RateLimiter::new(config).is_err(), "{ratio} {tolerance}");
        }
    }

    #[test]
    fn counters_survive_saving() {
        let mut rate = limiter(5, Some(0.1), 3.5);
        rate.inserted(77);
        rate.sampled(7);
        let saved = serde_json::to_string(&rate).unwrap();
        let loaded: RateLimiter = serde_json::from_str(&saved).unwrap();
        assert_eq!(loaded, rate);
    }

    proptest! {
        /// Two sides of any block sizes run into each other for a while: one may always go on,
        /// and the balance never leaves the tolerance by more than one block of either side.
        #[test]
        fn one_side_may_always_go_on(
            min in 0u64..200,
            ratio in 0.01f64..50.0,
            tolerance in 0.0f64..500.0,
            block in 1u64..300,
            batch in 1u64..600,
            order in prop::collection::vec(any::<bool>(), 50..300),
        ) {
            let rounding = 1e-6;
            let mut rate = limiter(min, Some(ratio), tolerance);
            for insert_first in order {
                let (insert, sample) = (rate.may_insert(block), rate.may_sample(batch));
                prop_assert!(insert || sample);
                if insert && (insert_first || !sample) {
                    rate.inserted(block);
                } else {
                    rate.sampled(batch);
                }
                let balance = rate.balance(ratio);
                prop_assert!(balance <= tolerance.max(block as f64 * ratio) + rounding);
                if rate.inserted_steps >= min {
                    prop_assert!(balance >= -tolerance.max(batch as f64) - rounding);
                }
            }
        }
    }
}
