//! Exploration rates of ε-greedy policies.

/// On a straight line from `start` to `end` over `steps`, then constant.
pub fn linear_decay(start: f64, end: f64, steps: u64, now: u64) -> f64 {
    if now >= steps {
        return end;
    }
    start + (end - start) * now as f64 / steps as f64
}

/// Ape-X's ladder (Horgan et al. 2018): environment i of N explores with base^(1 + α·i/(N − 1)).
pub fn apex_ladder(base: f64, alpha: f64, index: usize, total: usize) -> f64 {
    if total < 2 {
        return base;
    }
    base.powf(1.0 + alpha * index as f64 / (total - 1) as f64)
}

/// N numbers from `low` to `high` whose logarithms are evenly spaced.
pub fn log_spaced(low: f64, high: f64, index: usize, total: usize) -> f64 {
    if total < 2 {
        return high;
    }
    let along = index as f64 / (total - 1) as f64;
    (low.ln() + along * (high.ln() - low.ln())).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ladders_computed_elsewhere() {
        let ladder = [
            0.4, 0.16, 0.064, 0.0256, 0.01024, 0.004096, 0.0016384, 0.00065536,
        ];
        for (i, expected) in ladder.iter().enumerate() {
            assert!((apex_ladder(0.4, 7.0, i, 8) - expected).abs() < 1e-12);
        }
        assert_eq!(apex_ladder(0.4, 7.0, 0, 1), 0.4);
        let spaced = [0.0005, 0.00292402, 0.01709976, 0.1];
        for (i, expected) in spaced.iter().enumerate() {
            assert!((log_spaced(0.0005, 0.1, i, 4) - expected).abs() < 1e-8);
        }
    }

    #[test]
    fn linear_decay_ends_and_stays() {
        assert_eq!(linear_decay(1.0, 0.5, 100, 0), 1.0);
        assert_eq!(linear_decay(1.0, 0.5, 100, 50), 0.75);
        assert_eq!(linear_decay(1.0, 0.5, 100, 1000), 0.5);
        assert_eq!(linear_decay(1.0, 0.5, 0, 0), 0.5);
    }
}
