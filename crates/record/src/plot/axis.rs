//! The ticks of an axis and their labels.

/// The range of an axis and the marks on it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Axis {
    pub(super) low: f64,
    pub(super) high: f64,
    pub(super) ticks: Vec<f64>,
    step: f64,
}

impl Axis {
    /// An axis over exactly this range, with about `count` marks at round numbers.
    pub(super) fn exact(low: f64, high: f64, count: usize) -> Self {
        let (low, high) = widen(low, high);
        let step = round_step((high - low) / count as f64);
        let first = (low / step).ceil() as i64;
        let last = (high / step).floor() as i64;
        Self {
            low,
            high,
            ticks: (first..=last).map(|i| i as f64 * step).collect(),
            step,
        }
    }

    /// An axis that begins and ends at a mark.
    pub(super) fn rounded(low: f64, high: f64, count: usize) -> Self {
        let (low, high) = widen(low, high);
        let step = round_step((high - low) / count as f64);
        Self::exact(
            (low / step).floor() * step,
            (high / step).ceil() * step,
            count,
        )
    }

    /// Where a number lies: 0 at the low end, 1 at the high end.
    pub(super) fn position(&self, value: f64) -> f64 {
        (value - self.low) / (self.high - self.low)
    }

    /// The text at a mark: `1.5M`, `200k`, `0.25`.
    pub(super) fn label(&self, tick: f64) -> String {
        let size = self.low.abs().max(self.high.abs());
        let (unit, sign) = match size {
            s if s >= 1e9 => (1e9, "B"),
            s if s >= 1e6 => (1e6, "M"),
            s if s >= 1e4 => (1e3, "k"),
            _ => (1.0, ""),
        };
        if tick == 0.0 {
            return "0".to_owned();
        }
        if size < 1e-4 {
            return format!("{tick:.1e}");
        }
        let step = self.step / unit;
        let digits = (0..9).find(|digits| {
            let scaled = step * 10_f64.powi(*digits);
            (scaled - scaled.round()).abs() < 1e-6 * scaled
        });
        let digits = usize::try_from(digits.unwrap_or(9)).unwrap_or(0);
        format!("{:.digits$}{sign}", tick / unit).replace('-', "\u{2212}")
    }
}

/// A range of no length, or of one that is lost in rounding, gets one.
fn widen(low: f64, high: f64) -> (f64, f64) {
    if high - low > 1e-300 + 1e-12 * low.abs().max(high.abs()) {
        return (low, high);
    }
    let margin = if low == 0.0 { 1.0 } else { low.abs() * 0.1 };
    (low - margin, high + margin)
}

/// The smallest of 1, 2, 2.5, 5 times a power of ten that is not below `rough`.
fn round_step(rough: f64) -> f64 {
    let power = 10_f64.powf(rough.log10().floor());
    let steps = [1.0, 2.0, 2.5, 5.0];
    let fits = steps
        .iter()
        .map(|step| step * power)
        .find(|step| *step >= rough * 0.999_999);
    fits.unwrap_or(10.0 * power)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(axis: &Axis) -> Vec<String> {
        axis.ticks.iter().map(|tick| axis.label(*tick)).collect()
    }

    #[test]
    fn marks_are_round_numbers() {
        let axis = Axis::exact(0.0, 1_000_000.0, 5);
        assert_eq!(labels(&axis), ["0", "0.2M", "0.4M", "0.6M", "0.8M", "1.0M"]);
        let axis = Axis::exact(128.0, 50_048.0, 6);
        assert_eq!(labels(&axis), ["10k", "20k", "30k", "40k", "50k"]);
        let axis = Axis::rounded(9.3, 497.0, 5);
        assert_eq!(labels(&axis), ["0", "100", "200", "300", "400", "500"]);
        let axis = Axis::rounded(-1.62, -0.07, 5);
        assert_eq!((axis.low, axis.high), (-2.0, 0.0));
        assert_eq!(axis.label(-0.5), "\u{2212}0.5");
    }

    #[test]
    fn a_single_point_has_an_axis() {
        for value in [0.0, 5.0, -3.0, 1e300] {
            for high in [value, f64::next_up(value)] {
                let axis = Axis::rounded(value, high, 5);
                assert!(axis.low < value && value < axis.high && axis.ticks.len() > 2);
            }
        }
    }
}
