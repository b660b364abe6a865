//! An interval in settings.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use starling_settings::{ConfigError, require};

/// An interval, written `[low, high]`; `null` in place of an end means that there is none.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(from = "[Option<f64>; 2]", into = "[Option<f64>; 2]")]
#[schemars(extend("unbounded" = true))]
pub struct Range {
    /// The smaller end, possibly −∞.
    pub low: f64,
    /// The larger end, possibly ∞.
    pub high: f64,
}

impl Range {
    /// The interval between two ends.
    pub const fn new(low: f64, high: f64) -> Self {
        Self { low, high }
    }

    /// Whether a value is between the ends and is neither of them; NaN never is.
    pub fn contains(self, value: f64) -> bool {
        self.low < value && value < self.high
    }

    /// The nearest value that is not outside, as numpy's `clip` has it: NaN stays NaN.
    pub fn clip(self, value: f64) -> f64 {
        if value.is_nan() {
            value
        } else {
            value.max(self.low).min(self.high)
        }
    }

    /// Refuses an interval whose ends are in the wrong order.
    pub(crate) fn check(self, name: &str) -> Result<(), ConfigError> {
        let text = format!("[{}, {}]", self.low, self.high);
        let allowed = "two numbers, the smaller one first; null stands for no end";
        require(self.low <= self.high, &format!("env.{name}"), text, allowed)
    }
}

impl From<[Option<f64>; 2]> for Range {
    fn from([low, high]: [Option<f64>; 2]) -> Self {
        Self {
            low: low.unwrap_or(f64::NEG_INFINITY),
            high: high.unwrap_or(f64::INFINITY),
        }
    }
}

impl From<Range> for [Option<f64>; 2] {
    fn from(range: Range) -> Self {
        [range.low, range.high].map(|end| Some(end).filter(|end| end.is_finite()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_that_are_not_there_are_null() {
        let range = Range::new(0.7, f64::INFINITY);
        let text = serde_json::to_string(&range).unwrap();
        assert_eq!(text, "[0.7,null]");
        assert_eq!(serde_json::from_str::<Range>(&text).unwrap(), range);
        assert!(range.contains(1e300) && !range.contains(0.7) && !range.contains(f64::NAN));
        assert!(Range::new(1.0, 0.0).check("healthy_z_range").is_err());
    }
}
