//! Arithmetic in numpy's order, so that rewards are equal to the last bit.

use std::ops::AddAssign;

/// `numpy.sum` of a contiguous array: eight sums side by side, and halves of long arrays by
/// themselves.
pub(crate) fn sum<F: Copy + Default + AddAssign>(values: &[F]) -> F {
    let mut total = F::default();
    match values.len() {
        0..8 => values.iter().for_each(|value| total += *value),
        length @ 8..=128 => {
            let (whole, rest) = values.split_at(length - length % 8);
            let mut sums = [F::default(); 8];
            sums.copy_from_slice(&whole[..8]);
            for eight in whole[8..].chunks_exact(8) {
                for (sum, value) in sums.iter_mut().zip(eight) {
                    *sum += *value;
                }
            }
            for step in [1, 2, 4] {
                for i in (0..8).step_by(2 * step) {
                    let other = sums[i + step];
                    sums[i] += other;
                }
            }
            total = sums[0];
            rest.iter().for_each(|value| total += *value);
        }
        length => {
            let half = length / 2 - length / 2 % 8;
            total = sum(&values[..half]);
            total += sum(&values[half..]);
        }
    }
    total
}

/// `numpy.sum(numpy.square(action))` of an action, which is in single precision.
pub(crate) fn sum_of_squares_f32(values: &[f32]) -> f32 {
    with_squares(values.iter().map(|value| value * value), sum)
}

/// The same in double precision.
pub(crate) fn sum_of_squares(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    with_squares(values.map(|value| value * value), sum)
}

/// Calls a function with numbers in a row, on the stack if they are not too many.
fn with_squares<F: Copy + Default, R>(
    squares: impl ExactSizeIterator<Item = F>,
    function: impl FnOnce(&[F]) -> R,
) -> R {
    let mut few = [F::default(); 128];
    let length = squares.len();
    if length > few.len() {
        return function(&squares.collect::<Vec<F>>());
    }
    few.iter_mut()
        .zip(squares)
        .for_each(|(place, square)| *place = square);
    function(&few[..length])
}

/// `numpy.linalg.norm` of the difference of two points. BLAS multiplies and adds with one rounding,
/// as it does on every processor of the last ten years.
pub(crate) fn distance(a: [f64; 3], b: [f64; 3]) -> f64 {
    let difference = [a[0] - b[0], a[1] - b[1], a[2] - b[2]];
    let squared = difference.iter().fold(0.0, |sum, x| x.mul_add(*x, sum));
    f64::sqrt(squared)
}

/// `x**2` of a numpy scalar: the C library's `pow`, which is not always `x * x`.
pub(crate) fn square(x: f64) -> f64 {
    // The compiler would make a product of a power that it knows.
    x.powf(std::hint::black_box(2.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_sums_are_sums_of_halves() {
        let ones = vec![1.0; 1000];
        assert_eq!(sum(&ones), 1000.0);
        // One after the other, 1 + 7 × 2⁻⁵³ loses each of the small numbers; numpy's order, one.
        let mut values = [f64::EPSILON / 2.0; 8];
        values[0] = 1.0;
        assert_eq!(values.iter().sum::<f64>(), 1.0);
        assert_eq!(sum(&values), 1.0 + 3.0 * f64::EPSILON);
        assert_eq!(sum::<f64>(&[]), 0.0);
        assert_eq!(sum_of_squares_f32(&[1.0, 2.0, 3.0]), 14.0);
        assert_eq!(sum_of_squares(vec![2.0; 200].into_iter()), 800.0);
    }

    #[test]
    fn distances_round_once() {
        assert_eq!(distance([3.0, 0.0, 1.0], [0.0, 4.0, 1.0]), 5.0);
    }

    /// A power that numpy and a product round differently.
    #[test]
    fn squares_are_powers() {
        assert_eq!(square(-3.0), 9.0);
        let x = -1.327_517_059_910_234_2_f64;
        assert_eq!(square(x), 1.762_301_544_352_712_4);
        assert_eq!(x * x, 1.762_301_544_352_712_1);
    }
}
