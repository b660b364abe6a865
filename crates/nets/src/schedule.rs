//! Schedules: numbers that change over a run.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A number as a function of progress; a plain number in a config file is a constant.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(
    untagged,
    expecting = "expected a number, or {start: …, end: …, by: …} for a straight line"
)]
pub enum Schedule {
    /// Always the same.
    Constant(f64),
    /// On a straight line from `start` to `end`, reached at fraction `by` of the run.
    Linear(Linear),
}

/// A straight line, then constant.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Linear {
    /// Value at the beginning.
    pub start: f64,
    /// Value from `by` on.
    pub end: f64,
    /// Fraction of the run at which `end` is reached.
    #[serde(default = "one")]
    #[schemars(range(max = 1.0), extend("exclusiveMinimum" = 0.0))]
    pub by: f64,
}

fn one() -> f64 {
    1.0
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Schedule::Constant(value) => write!(f, "{value}"),
            Schedule::Linear(Linear { start, end, by }) => {
                write!(f, "{{start: {start}, end: {end}, by: {by}}}")
            }
        }
    }
}

impl Schedule {
    /// A straight line that ends at fraction `by` of the run.
    pub fn linear(start: f64, end: f64, by: f64) -> Self {
        Schedule::Linear(Linear { start, end, by })
    }

    /// The value at a fraction of the run, from 0 to 1.
    pub fn at(&self, progress: f64) -> f64 {
        match *self {
            Schedule::Constant(value) => value,
            Schedule::Linear(Linear { start, end, by }) => {
                let along = (progress / by).clamp(0.0, 1.0);
                start + along * (end - start)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_reaches_its_end_and_stays() {
        let schedule = Schedule::linear(1.0, 0.5, 0.5);
        assert_eq!(schedule.at(0.0), 1.0);
        assert_eq!(schedule.at(0.25), 0.75);
        assert_eq!(schedule.at(0.5), 0.5);
        assert_eq!(schedule.at(1.0), 0.5);
    }

    #[test]
    fn a_plain_number_is_a_constant() {
        let schedule: Schedule = serde_json::from_str("0.25").unwrap();
        assert_eq!(schedule, Schedule::Constant(0.25));
        let schedule: Schedule = serde_json::from_str(r#"{"start": 1, "end": 0}"#).unwrap();
        assert_eq!(schedule, Schedule::linear(1.0, 0.0, 1.0));
    }
}
