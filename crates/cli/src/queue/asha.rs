//! Asynchronous successive halving (Li et al. 2020): runs pause at rungs, and only the better ones
//! continue.

use serde::{Deserialize, Serialize};

/// When runs pause, and how many of them continue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Asha {
    /// The best 1/`eta` of the runs continue from each rung.
    #[serde(default = "three")]
    pub eta: usize,
    /// The steps at which runs pause.
    pub rungs: Vec<u64>,
}

fn three() -> usize {
    3
}

impl Asha {
    pub(super) fn check(&self) -> Result<(), String> {
        if self.eta < 2 {
            return Err("prune: `eta` must be at least 2".to_owned());
        }
        let rise = self.rungs.windows(2).all(|pair| pair[0] < pair[1]);
        match self.rungs.first() {
            Some(first) if *first > 0 && rise => Ok(()),
            _ => Err("prune: `rungs` must be increasing numbers of steps".to_owned()),
        }
    }

    /// Which runs may continue from a rung, given the score that each run had there (none where it
    /// has not come so far): the best `1/eta` of those that reached it.
    pub(super) fn promoted(&self, scores: &[Option<f64>]) -> Vec<usize> {
        let reached = scores.iter().enumerate();
        let mut reached: Vec<(usize, f64)> = reached
            .filter_map(|(run, score)| Some((run, (*score)?)))
            .collect();
        // A run without a score is worse than any other; of equal ones the first is better.
        let rank = |score: f64| {
            if score.is_nan() {
                f64::NEG_INFINITY
            } else {
                score
            }
        };
        reached.sort_by(|a, b| rank(b.1).total_cmp(&rank(a.1)).then(a.0.cmp(&b.0)));
        let best = reached.len() / self.eta;
        reached.iter().take(best).map(|(run, _)| *run).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_third_of_those_that_reached_a_rung_continues() {
        let asha = Asha {
            eta: 3,
            rungs: vec![10, 30],
        };
        asha.check().unwrap();
        assert!(asha.promoted(&[Some(1.0), Some(2.0)]).is_empty());
        let scores = [
            Some(1.0),
            None,
            Some(5.0),
            Some(f64::NAN),
            Some(5.0),
            Some(2.0),
            Some(0.0),
        ];
        assert_eq!(asha.promoted(&scores), [2, 4]);
        let falling = Asha {
            eta: 3,
            rungs: vec![30, 10],
        };
        falling.check().unwrap_err();
    }
}
