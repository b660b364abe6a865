//! How fast a device multiplies matrices.

use std::time::{Duration, Instant};

use tch::{Device, Kind, Tensor};

/// Floating-point operations per second of products of two 256×256 matrices of float32 numbers, two of
/// them at a time: the best of five parts, on as many threads as libtorch has.
pub fn product_speed(device: Device) -> f64 {
    const SIZE: i64 = 256;
    const PARTS: usize = 5;
    let matrices = || Tensor::ones([2, SIZE, SIZE], (Kind::Float, device));
    let (a, b) = (matrices(), matrices());
    let operations = (2 * 2 * SIZE * SIZE * SIZE) as f64;
    let part = || {
        let (began, mut products) = (Instant::now(), 0.0);
        while began.elapsed() < Duration::from_millis(100) {
            for _ in 0..10 {
                let _ = a.bmm(&b);
            }
            products += 10.0;
            crate::synchronize(device);
        }
        products * operations / began.elapsed().as_secs_f64()
    };
    (0..PARTS).map(|_| part()).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// More than a scalar loop, less than any processor.
    #[test]
    fn products_take_a_plausible_time() {
        let speed = product_speed(Device::Cpu);
        assert!((1e8..1e15).contains(&speed), "{speed}");
    }
}
