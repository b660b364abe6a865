//! Initialisation of weights.

use rand::RngExt as _;
use rand_distr::{Distribution as _, StandardNormal};
use starling_envs::Rng;
use tch::{Kind, Tensor};

/// The distribution of a parameter's first values.
///
/// All of them are drawn from a generator of ours, not from libtorch's global one, so that equal
/// seeds give equal networks whatever else the process does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// The same number everywhere.
    Constant(f64),
    /// Uniform in ±1/√fan_in: what PyTorch's layers do by default.
    FanIn {
        /// Inputs of one output.
        fan_in: usize,
    },
    /// Uniform in ±bound.
    Uniform {
        /// The largest value.
        bound: f64,
    },
    /// A random orthogonal matrix times a gain (Saxe et al. 2014).
    Orthogonal {
        /// √2 for hidden layers, 0.01 for policy heads, 1 for value heads.
        gain: f64,
    },
}

impl Init {
    /// First values for a parameter of the given shape.
    pub(crate) fn sample(self, shape: &[i64], rng: &mut Rng) -> Tensor {
        let count: i64 = shape.iter().product();
        match self {
            Init::Constant(value) => Tensor::full(shape, value, (Kind::Float, tch::Device::Cpu)),
            Init::FanIn { fan_in } => {
                uniform(shape, count, 1.0 / (fan_in.max(1) as f32).sqrt(), rng)
            }
            Init::Uniform { bound } => uniform(shape, count, bound as f32, rng),
            Init::Orthogonal { gain } => orthogonal(shape, gain, rng),
        }
    }
}

fn uniform(shape: &[i64], count: i64, bound: f32, rng: &mut Rng) -> Tensor {
    let draw = |_| match bound > 0.0 {
        true => rng.random_range(-bound..bound),
        false => 0.0,
    };
    let values: Vec<f32> = (0..count).map(draw).collect();
    Tensor::from_slice(&values).reshape(shape)
}

/// An orthogonal matrix from the QR decomposition of a Gaussian one; the dimensions after the
/// first are taken as columns.
fn orthogonal(shape: &[i64], gain: f64, rng: &mut Rng) -> Tensor {
    let rows = shape[0];
    let columns: i64 = shape[1..].iter().product();
    let (tall, wide) = (rows.max(columns), rows.min(columns));
    let values: Vec<f32> = (0..tall * wide)
        .map(|_| StandardNormal.sample(rng))
        .collect();
    let gaussian = Tensor::from_slice(&values).reshape([tall, wide]);
    let (q, r) = Tensor::linalg_qr(&gaussian, "reduced");
    // Without this the distribution would not be uniform: QR fixes signs by its own rule.
    let q = q * r.diagonal(0, 0, 1).sign();
    let q = if rows < columns { q.tr() } else { q };
    (q * gain).reshape(shape).contiguous()
}

#[cfg(test)]
mod tests {
    use super::*;
    use starling_envs::stream;

    #[test]
    fn orthogonal_rows_are_orthonormal_times_the_gain() {
        for shape in [[4, 6], [6, 4]] {
            let w = Init::Orthogonal { gain: 2.0 }.sample(&shape, &mut stream(1, "init", 0));
            let product = if shape[0] < shape[1] {
                w.matmul(&w.tr())
            } else {
                w.tr().matmul(&w)
            };
            let expected = Tensor::eye(4, (Kind::Float, tch::Device::Cpu)) * 4.0;
            let error = (product - expected).abs().max().double_value(&[]);
            assert!(error < 1e-5, "{error}");
        }
    }

    #[test]
    fn fan_in_stays_within_its_bound() {
        let w = Init::FanIn { fan_in: 16 }.sample(&[64, 16], &mut stream(1, "init", 0));
        let largest = w.abs().max().double_value(&[]);
        assert!(largest <= 0.25 && largest > 0.24, "{largest}");
    }
}
