//! The choice between several exploration policies: a sliding-window UCB bandit (Garivier and
//! Moulines 2008; Badia et al. 2020, "Agent57").

use rand::RngExt as _;
use starling_envs::Rng;

/// The arm to pull next, given the last pulls (arm and reward, in any order).
///
/// Arms that were not pulled within the window come first, in their order. With probability
/// `epsilon` it is any arm. Else it is the one with the highest upper bound x̄ + √(ln n / n_a ·
/// min(¼, V_a)) with V_a = variance + √(2 ln n / n_a) (Auer et al. 2002, "UCB1-tuned"), on rewards
/// scaled to the range from 0 to 1 by the window's extremes.
pub fn choose_arm(pulls: &[(usize, f32)], arms: usize, epsilon: f64, rng: &mut Rng) -> usize {
    if rng.random::<f64>() < epsilon {
        return rng.random_range(0..arms);
    }
    let mut best = (f64::NEG_INFINITY, 0);
    for arm in 0..arms {
        let Some(bound) = upper_bound(pulls, arm) else {
            return arm;
        };
        if bound > best.0 {
            best = (bound, arm);
        }
    }
    best.1
}

/// The upper bound of an arm's mean reward; `None` if it was not pulled within the window.
fn upper_bound(pulls: &[(usize, f32)], arm: usize) -> Option<f64> {
    let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
    for &(_, reward) in pulls {
        low = low.min(f64::from(reward));
        high = high.max(f64::from(reward));
    }
    let range = (high - low).max(1e-9);
    let own = pulls.iter().filter(|(pulled, _)| *pulled == arm);
    let rewards = own.map(|&(_, reward)| (f64::from(reward) - low) / range);
    let (mut count, mut sum, mut squares) = (0.0, 0.0, 0.0);
    for reward in rewards {
        count += 1.0;
        sum += reward;
        squares += reward * reward;
    }
    if count == 0.0 {
        return None;
    }
    let mean = sum / count;
    let log = (pulls.len() as f64).ln();
    let variance = (squares / count - mean * mean).max(0.0) + (2.0 * log / count).sqrt();
    Some(mean + (log / count * variance.min(0.25)).sqrt())
}

/// NGU's ladder of intrinsic weights: 0, then a sigmoid up to `high` (Badia et al. 2020).
pub fn intrinsic_weight(high: f64, index: usize, total: usize) -> f64 {
    if index == 0 {
        return 0.0;
    }
    if index + 1 >= total {
        return high;
    }
    let middle = total as f64 - 2.0;
    high / (1.0 + (-10.0 * (2.0 * index as f64 - middle) / middle).exp())
}

/// NGU's ladder of discounts: from `high` for the first arm to `low` for the last, evenly in the
/// logarithm of 1 − γ.
pub fn discount_ladder(high: f64, low: f64, index: usize, total: usize) -> f64 {
    if total < 2 {
        return high;
    }
    let along = index as f64 / (total - 1) as f64;
    1.0 - ((1.0 - along) * (1.0 - high).ln() + along * (1.0 - low).ln()).exp()
}

#[cfg(test)]
mod tests {
    use super::*;
    use starling_envs::stream;

    #[test]
    fn intrinsic_weights_computed_elsewhere() {
        let expected = [
            (0, 0.0),
            (10, 0.010334),
            (15, 0.15),
            (16, 0.198227),
            (31, 0.3),
        ];
        for (index, expected) in expected {
            assert!((intrinsic_weight(0.3, index, 32) - expected).abs() < 1e-6);
        }
    }

    #[test]
    fn discounts_run_from_the_highest_to_the_lowest() {
        assert!((discount_ladder(0.997, 0.99, 0, 32) - 0.997).abs() < 1e-12);
        assert!((discount_ladder(0.997, 0.99, 31, 32) - 0.99).abs() < 1e-12);
        // In the middle of three, 1 − γ is √(0.003 · 0.01).
        let middle = discount_ladder(0.997, 0.99, 1, 3);
        assert!((1.0 - middle - 3e-5f64.sqrt()).abs() < 1e-12);
        assert_eq!(discount_ladder(0.997, 0.99, 0, 1), 0.997);
    }

    /// Two arms, four pulls: rewards 0 and 1 of arm 0, 1 and 1 of arm 1. ln 4 = 1.386294; both
    /// V are over ¼, so the bounds are mean + √(1.386294/2 · ¼) = mean + 0.416277.
    #[test]
    fn bounds_by_hand() {
        let pulls = [(0, 0.0), (0, 1.0), (1, 1.0), (1, 1.0)];
        let bound = |arm| upper_bound(&pulls, arm);
        assert!((bound(0).unwrap() - 0.916277).abs() < 1e-6);
        assert!((bound(1).unwrap() - 1.416277).abs() < 1e-6);
        assert_eq!(bound(2), None);
        let mut rng = stream(1, "policy", 0);
        assert_eq!(choose_arm(&pulls, 3, 0.0, &mut rng), 2);
        assert_eq!(choose_arm(&pulls, 2, 0.0, &mut rng), 1);
    }

    /// The best arm is pulled most, and a change is followed once the window has slid over it.
    #[test]
    fn it_follows_the_best_arm() {
        let mut rng = stream(7, "policy", 0);
        let mut pulls: Vec<(usize, f32)> = Vec::new();
        let mut counts = [[0; 3]; 2];
        for (phase, best) in [(0, 2), (1, 0)] {
            for i in 0..600 {
                let arm = choose_arm(&pulls, 3, 0.1, &mut rng);
                let reward = if arm == best { 1.0 } else { 0.2 };
                pulls.push((arm, reward + rng.random::<f32>() * 0.1));
                if pulls.len() > 90 {
                    pulls.remove(0);
                }
                if i >= 300 {
                    counts[phase][arm] += 1;
                }
            }
        }
        assert!(counts[0][2] > 200 && counts[1][0] > 200, "{counts:?}");
    }
}
