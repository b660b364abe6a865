//! Batch renormalisation (Ioffe 2017), as CrossQ uses it (Bhatt et al. 2024).

use tch::{Kind, Tensor, no_grad};

use crate::export::{Graph, Value};
use crate::native::unnoticed;
use crate::{Init, Layout, ParamId, Params};

/// How far the running statistics stay where they are with each batch.
const MOMENTUM: f64 = 0.99;

/// Keeps variances away from zero.
const EPSILON: f64 = 1e-3;

/// Keeps the root of a variance away from zero, where its gradient is infinite.
const SMALLEST_VARIANCE: f64 = 1e-12;

/// Batches before the correction by running statistics begins; until then it is batch normalisation.
const WARM_UP: f64 = 100_000.0;

/// Limits of the correction.
const MOST_SCALE: f64 = 3.0;
const MOST_SHIFT: f64 = 5.0;

/// By which statistics features are normalised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Statistics {
    /// By the running ones: acting, and networks that are used for inference only.
    Running,
    /// By those of the batch, corrected by the running ones, which take them over.
    Batch,
}

/// Normalises the features of several networks. Its statistics are parameters without a gradient.
#[derive(Clone, Debug)]
pub(crate) struct BatchRenorm {
    scale: ParamId,
    bias: ParamId,
    mean: ParamId,
    variance: ParamId,
    /// Batches seen, `[1]`.
    batches: ParamId,
}

impl BatchRenorm {
    /// Adds the parameters for `networks` networks to a layout, `[C, 1, features]` each.
    pub(crate) fn new(layout: &mut Layout, name: &str, networks: usize, features: usize) -> Self {
        let shape = [networks, 1, features];
        let mut add = |part: &str, shape: &[usize], first| {
            layout.add(format!("{name}.{part}"), shape, Init::Constant(first))
        };
        let norm = Self {
            scale: add("scale", &shape, 1.0),
            bias: add("bias", &shape, 0.0),
            mean: add("mean", &shape, 0.0),
            variance: add("variance", &shape, 1.0),
            batches: add("batches", &[1], 0.0),
        };
        for id in [norm.mean, norm.variance, norm.batches] {
            layout.is_statistic(id);
        }
        norm
    }

    /// Normalised features of `x`, `[C, N, features]`.
    pub(crate) fn forward(&self, params: &Params, x: &Tensor, by: Statistics) -> Tensor {
        let (mean, variance) = match by {
            Statistics::Running => (
                params.get(self.mean).detach(),
                params.get(self.variance).detach(),
            ),
            Statistics::Batch => self.corrected(params, x),
        };
        let scale = params.get(self.scale) * (variance + EPSILON).rsqrt();
        (x - mean) * scale + params.get(self.bias)
    }

    /// One network's in a graph, by the running statistics, for features `[N, features]`.
    pub(crate) fn export(&self, graph: &mut Graph, params: &Params, x: &Value) -> Value {
        let row = |id: ParamId| params.get(id).detach().reshape([1, -1]);
        let scale = row(self.scale) * (row(self.variance) + EPSILON).rsqrt();
        let [mean, scale, bias] =
            [row(self.mean), scale, row(self.bias)].map(|row| graph.constant(&row));
        let centred = graph.sub(x, &mean);
        let scaled = graph.mul(&centred, &scale);
        graph.add(&scaled, &bias)
    }

    /// Mean and variance of a batch, moved so far that the result is on average what the running
    /// statistics would give, within limits.
    fn corrected(&self, params: &Params, x: &Tensor) -> (Tensor, Tensor) {
        let rows = [-2].as_slice();
        let mean = x.mean_dim(rows, true, Kind::Float);
        let variance = (x - &mean).square().mean_dim(rows, true, Kind::Float);
        let (scale, shift) = no_grad(|| {
            let running = params.get(self.mean);
            let running_std = (params.get(self.variance) + EPSILON).sqrt();
            let scale = (&variance + EPSILON).sqrt() / &running_std;
            let shift = (&mean - running) / running_std;
            // 1 once it has seen enough.
            let warm = params.get(self.batches).ge(WARM_UP).to_kind(Kind::Float);
            let scale = (scale.clamp(1.0 / MOST_SCALE, MOST_SCALE) - 1.0) * &warm + 1.0;
            let shift = shift.clamp(-MOST_SHIFT, MOST_SHIFT) * warm;
            self.take_over(params, &mean, &variance);
            (scale, shift)
        });
        // A feature that is the same in the whole batch: the root has no gradient at 0.
        let root = variance.clamp_min(SMALLEST_VARIANCE).sqrt();
        let mean = mean - shift * root / &scale;
        (mean, variance / scale.square())
    }

    fn take_over(&self, params: &Params, mean: &Tensor, variance: &Tensor) {
        for (id, seen) in [(self.mean, mean), (self.variance, variance)] {
            let _ = unnoticed(params.get(id)).lerp_(&seen.detach(), 1.0 - MOMENTUM);
        }
        let _ = unnoticed(params.get(self.batches)).g_add_scalar_(1.0);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use starling_envs::stream;
    use tch::Device;

    fn layer() -> (BatchRenorm, Params) {
        let mut layout = Layout::default();
        let norm = BatchRenorm::new(&mut layout, "norm", 1, 1);
        let params = Params::init(&Arc::new(layout), &mut stream(1, "init", 0), Device::Cpu);
        (norm, params)
    }

    fn numbers(x: &Tensor) -> Vec<f64> {
        Vec::try_from(x.reshape([-1]).to_kind(Kind::Double)).unwrap()
    }

    /// The batch 1, 3 has mean 2 and variance 1. Running statistics go a hundredth of the way there.
    #[test]
    fn first_it_is_batch_normalisation() {
        let (norm, params) = layer();
        let x = Tensor::from_slice(&[1f32, 3.0]).reshape([1, 2, 1]);
        let y = numbers(&norm.forward(&params, &x, Statistics::Batch));
        let expected = 1.0 / 1.001f64.sqrt();
        assert!((y[0] + expected).abs() < 1e-6 && (y[1] - expected).abs() < 1e-6);
        assert!((params.get(norm.mean).double_value(&[0, 0, 0]) - 0.02).abs() < 1e-7);
        assert!((params.get(norm.variance).double_value(&[0, 0, 0]) - 1.0).abs() < 1e-7);
        assert_eq!(params.get(norm.batches).double_value(&[0]), 1.0);
        // By running statistics nothing changes.
        let y = numbers(&norm.forward(&params, &x, Statistics::Running));
        assert!((y[0] - 0.98 * expected).abs() < 1e-6);
        assert_eq!(params.get(norm.batches).double_value(&[0]), 1.0);
    }

    /// Taking over the statistics of a batch does not disturb the gradient of another parameter of the
    /// same vector.
    #[test]
    fn the_gradient_can_be_computed_afterwards() {
        let mut layout = Layout::default();
        let factor = layout.add("factor", &[1, 1, 1], Init::Constant(2.0));
        let norm = BatchRenorm::new(&mut layout, "norm", 1, 1);
        let params = Params::init(&Arc::new(layout), &mut stream(1, "init", 0), Device::Cpu);
        let params = params.trainable();
        let x = Tensor::from_slice(&[1f32, 3.0]).reshape([1, 2, 1]);
        let y = norm
            .forward(&params, &x, Statistics::Batch)
            .bmm(params.get(factor));
        let gradient = numbers(&params.gradient(&y.square().sum(Kind::Float)));
        assert!((gradient[0] - 8.0 / 1.001).abs() < 1e-5, "{gradient:?}");
        assert_eq!(gradient[3..], [0.0; 3]);
        assert_eq!(params.get(norm.batches).double_value(&[0]), 1.0);
    }

    /// A feature that is the same in the whole batch has a variance of exactly 0, and a gradient all the
    /// same: 0, before the correction begins and afterwards.
    #[test]
    fn a_constant_feature_has_a_finite_gradient() {
        for batches in [0.0, WARM_UP] {
            let (norm, params) = layer();
            let _ = params.get(norm.batches).shallow_clone().fill_(batches);
            let x = Tensor::from_slice(&[2f32, 2.0]).reshape([1, 2, 1]);
            let x = x.set_requires_grad(true);
            let y = norm.forward(&params, &x, Statistics::Batch);
            (y * Tensor::from_slice(&[1f32, 3.0]).reshape([1, 2, 1]))
                .sum(Kind::Float)
                .backward();
            let gradient = numbers(&x.grad());
            assert!(gradient.iter().all(|g| g.is_finite()), "{gradient:?}");
        }
    }

    /// With corrections within their limits, the result is that of the running statistics, but for
    /// `EPSILON`: mean 0 and variance 1 leave 1, 3 as they are.
    #[test]
    fn later_batches_are_corrected() {
        let (norm, params) = layer();
        let _ = params.get(norm.batches).shallow_clone().fill_(WARM_UP);
        let x = Tensor::from_slice(&[1f32, 3.0]).reshape([1, 2, 1]);
        let y = numbers(&norm.forward(&params, &x, Statistics::Batch));
        assert!(
            (y[0] - 1.0).abs() < 2e-3 && (y[1] - 3.0).abs() < 4e-3,
            "{y:?}"
        );
        // Far away the shift is limited to 5, and the scale to 3.
        let x = Tensor::from_slice(&[100f32, 120.0]).reshape([1, 2, 1]);
        let y = numbers(&norm.forward(&params, &x, Statistics::Batch));
        assert!(
            (y[0] - 2.0).abs() < 0.02 && (y[1] - 8.0).abs() < 0.02,
            "{y:?}"
        );
    }
}
