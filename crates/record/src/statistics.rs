//! Statistics over runs of several games (Agarwal et al. 2021): interquartile mean and median,
//! with confidence intervals by bootstrap.

use std::fmt;

/// A number and how certain it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The number.
    pub value: f64,
    /// The ends of the interval that holds it with 95 % confidence; none where a game has fewer
    /// than [`FEWEST_RUNS`] runs.
    pub interval: Option<(f64, f64)>,
}

impl fmt::Display for Estimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.2}", self.value)?;
        match self.interval {
            Some((low, high)) => write!(f, " [{low:.2}, {high:.2}]"),
            None => Ok(()),
        }
    }
}

/// Fewer runs of a game than this say nothing about how far runs differ.
pub const FEWEST_RUNS: usize = 3;

/// What several runs reached together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Aggregate {
    /// Mean of the middle half of all runs of all games.
    pub iqm: Estimate,
    /// Median over games of the mean over runs.
    pub median: Estimate,
    /// Games.
    pub games: usize,
    /// Runs of all games.
    pub runs: usize,
}

/// Bootstrap samples.
const SAMPLES: usize = 2000;

/// Interquartile mean and median of the scores of each game's runs; `None` without any.
///
/// The intervals are percentiles over samples in which each game's runs are drawn again, with
/// replacement. They are the same at every call.
pub fn aggregate(games: &[Vec<f64>]) -> Option<Aggregate> {
    let games: Vec<&[f64]> = games.iter().map(Vec::as_slice).collect();
    let games: Vec<&[f64]> = games.into_iter().filter(|runs| !runs.is_empty()).collect();
    if games.is_empty() {
        return None;
    }
    let whole: Vec<Vec<f64>> = games.iter().map(|runs| runs.to_vec()).collect();
    let all = whole.concat();
    let enough = games.iter().all(|runs| runs.len() >= FEWEST_RUNS);
    let samples = if enough { SAMPLES } else { 0 };
    let mut random = SplitMix(1);
    let (mut iqms, mut medians) = (Vec::new(), Vec::new());
    let mut sample = whole.clone();
    for _ in 0..samples {
        for (drawn, runs) in sample.iter_mut().zip(&games) {
            for score in drawn {
                *score = runs[random.below(runs.len())];
            }
        }
        iqms.push(interquartile_mean(&sample.concat()));
        medians.push(median_of_means(&sample));
    }
    Some(Aggregate {
        iqm: estimate(interquartile_mean(&all), iqms),
        median: estimate(median_of_means(&whole), medians),
        games: games.len(),
        runs: all.len(),
    })
}

/// The mean of what lies between the quartiles; scores at their edge count in part.
pub fn interquartile_mean(scores: &[f64]) -> f64 {
    let mut sorted = scores.to_vec();
    sorted.sort_by(f64::total_cmp);
    let count = sorted.len() as f64;
    let (low, high) = (count / 4.0, count * 3.0 / 4.0);
    let weighted = sorted.iter().enumerate().map(|(i, score)| {
        let (from, to) = (i as f64, i as f64 + 1.0);
        score * (to.min(high) - from.max(low)).max(0.0)
    });
    weighted.sum::<f64>() / (high - low)
}

fn median_of_means(games: &[Vec<f64>]) -> f64 {
    let means = games
        .iter()
        .map(|runs| runs.iter().sum::<f64>() / runs.len() as f64);
    let mut means: Vec<f64> = means.collect();
    means.sort_by(f64::total_cmp);
    let middle = means.len() / 2;
    match means.len() % 2 {
        1 => means[middle],
        _ => (means[middle - 1] + means[middle]) / 2.0,
    }
}

fn estimate(value: f64, mut samples: Vec<f64>) -> Estimate {
    samples.sort_by(f64::total_cmp);
    let at = |share: f64| samples[(share * (samples.len() - 1) as f64).round() as usize];
    Estimate {
        value,
        interval: (!samples.is_empty()).then(|| (at(0.025), at(0.975))),
    }
}

/// A small random number generator (Steele et al. 2014), the only one in this crate.
struct SplitMix(u64);

impl SplitMix {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % limit as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of 0 to 7 the middle half is 2, 3, 4, 5. Of three scores, the middle one counts once and
    /// the others a quarter each.
    #[test]
    fn interquartile_means_by_hand() {
        let scores: Vec<f64> = (0..8).map(f64::from).collect();
        assert_eq!(interquartile_mean(&scores), 3.5);
        let mean = interquartile_mean(&[9.0, 0.0, 1.0]);
        assert!((mean - (0.25 * 9.0 + 1.0) / 1.5).abs() < 1e-12);
    }

    #[test]
    fn the_median_is_over_games() {
        let games = vec![vec![0.0, 2.0], vec![10.0], vec![4.0, 6.0]];
        let all = aggregate(&games).unwrap();
        assert_eq!(all.median.value, 5.0);
        assert_eq!((all.games, all.runs), (3, 5));
        assert!(aggregate(&[Vec::new()]).is_none());
    }

    #[test]
    fn too_few_runs_have_no_interval() {
        let interval = |games: &[Vec<f64>]| aggregate(games).unwrap().iqm.interval;
        assert_eq!(interval(&[vec![1.0]]), None);
        assert_eq!(interval(&[vec![1.0, 2.0]]), None);
        assert!(interval(&[vec![1.0, 2.0, 3.0]]).is_some());
        // One game with a single run would look as if it never varied.
        assert_eq!(interval(&[vec![1.0, 2.0, 3.0], vec![1.0]]), None);
    }

    /// For the mean of 40 runs of deviation 1, the interval is about ±1.96/√40 = ±0.31 wide; the
    /// interquartile mean of a normal distribution is about a tenth wider.
    #[test]
    fn intervals_are_as_wide_as_they_should_be() {
        let mut random = SplitMix(5);
        let mut normal = || {
            let sum: f64 = (0..12).map(|_| random.below(1 << 20) as f64).sum();
            sum / (1 << 20) as f64 - 6.0
        };
        let mut widths = 0.0;
        for _ in 0..20 {
            let runs: Vec<f64> = (0..40).map(|_| normal()).collect();
            let all = aggregate(&[runs]).unwrap();
            let (low, high) = all.iqm.interval.unwrap();
            assert!(low <= all.iqm.value && all.iqm.value <= high);
            widths += high - low;
        }
        let width = widths / 20.0;
        assert!((0.5..0.9).contains(&width), "{width}");
    }
}
