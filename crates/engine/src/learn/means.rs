//! Averages and times between two rows of metrics.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Means of named numbers since the last row of metrics.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Means {
    sums: Vec<(String, f64, f64)>,
}

impl Means {
    pub(crate) fn add(&mut self, name: &str, value: f64) {
        match self.sums.iter_mut().find(|(known, _, _)| known == name) {
            Some((_, sum, count)) => {
                *sum += value;
                *count += 1.0;
            }
            None => self.sums.push((name.to_owned(), value, 1.0)),
        }
    }

    /// The means so far, without forgetting them.
    pub(crate) fn get(&self, name: &str) -> Option<f64> {
        let found = self.sums.iter().find(|(known, _, _)| known == name);
        found.map(|(_, sum, count)| sum / count)
    }

    /// The means, and starts again.
    pub(crate) fn take(&mut self) -> Vec<(String, f64)> {
        let sums = std::mem::take(&mut self.sums).into_iter();
        sums.map(|(name, sum, count)| (name, sum / count)).collect()
    }
}

/// Where the learner's time went since the beginning.
#[derive(Clone, Copy, Default)]
pub(crate) struct Times {
    /// Everything.
    pub(crate) all: Duration,
    /// Experience went into the replay.
    pub(crate) insert: Duration,
    /// Batches were drawn from it, or waited for.
    pub(crate) draw: Duration,
    /// Batches were brought to the device.
    pub(crate) assemble: Duration,
    /// The replay was given new priorities.
    pub(crate) prioritize: Duration,
}

impl Times {
    /// What went by since `before`: by name, the rest being `update`.
    pub(crate) fn since(&self, before: &Times) -> [(&'static str, Duration); 5] {
        let insert = self.insert - before.insert;
        let draw = self.draw - before.draw;
        let assemble = self.assemble - before.assemble;
        let prioritize = self.prioritize - before.prioritize;
        let all = self.all - before.all;
        let update = all.saturating_sub(insert + draw + assemble + prioritize);
        [
            ("insert", insert),
            ("draw", draw),
            ("assemble", assemble),
            ("prioritize", prioritize),
            ("update", update),
        ]
    }
}
