//! Running statistics that are kept among a network's weights.
//!
//! They are parameters that no gradient reaches, so that an optimiser leaves them alone: they
//! are saved, published and resumed with the weights and need no way of their own.

use tch::{Kind, Tensor};

use crate::{Init, Layout, ParamId, Params};

/// Normalised numbers stay within ±10.
const LIMIT: f64 = 10.0;

/// Keeps variances away from zero.
const EPSILON: f64 = 1e-8;

/// Mean and variance of every element of an array, over all items seen.
#[derive(Clone, Debug)]
pub struct RunningNorm {
    mean: ParamId,
    variance: ParamId,
    count: ParamId,
}

impl RunningNorm {
    /// Adds the statistics of items of a shape to a layout: mean 0 and variance 1 at first.
    pub fn new(layout: &mut Layout, name: &str, shape: &[usize]) -> Self {
        // The first values count for next to nothing once there are any others.
        let first = Init::Constant(1e-4);
        Self {
            mean: layout.add(format!("{name}.mean"), shape, Init::Constant(0.0)),
            variance: layout.add(format!("{name}.variance"), shape, Init::Constant(1.0)),
            count: layout.add(format!("{name}.count"), &[1], first),
        }
    }

    /// Takes more items `[N, ..]` into the statistics, by merging means and variances (Chan et
    /// al. 1979).
    pub fn observe(&self, params: &Params, items: &Tensor) {
        tch::no_grad(|| {
            let items = items.detach().to_kind(Kind::Float);
            let added = items.size()[0] as f64;
            let dim = [0].as_slice();
            let mean = items.mean_dim(dim, false, Kind::Float);
            let variance = items.var_dim(dim, false, false);
            let write = |id: ParamId, value: Tensor| {
                params.get(id).shallow_clone().copy_(&value);
            };
            let [old_mean, old_variance, count] =
                [self.mean, self.variance, self.count].map(|id| params.get(id).detach());
            let total = &count + added;
            let difference = mean.reshape_as(&old_mean) - &old_mean;
            let spread = difference.square() * (&count * added / &total);
            let squares = &old_variance * &count + variance.reshape_as(&old_variance) * added;
            write(self.variance, (squares + spread) / &total);
            write(self.mean, &old_mean + difference * (added / &total));
            write(self.count, total);
        });
    }

    /// Items `[N, ..]` with the mean taken away, divided by the deviation.
    pub fn forward(&self, params: &Params, items: &Tensor) -> Tensor {
        let centred = items - params.get(self.mean).detach();
        (centred / self.deviation(params)).clamp(-LIMIT, LIMIT)
    }

    /// Items `[N, ..]` divided by the deviation; their sign stays.
    pub fn scale(&self, params: &Params, items: &Tensor) -> Tensor {
        (items / self.deviation(params)).clamp(-LIMIT, LIMIT)
    }

    fn deviation(&self, params: &Params) -> Tensor {
        (params.get(self.variance).detach() + EPSILON).sqrt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use starling_envs::stream;
    use std::sync::Arc;
    use tch::Device;

    /// Two batches give the mean and variance of all items together, and no gradient.
    #[test]
    fn batches_are_merged() {
        let mut layout = Layout::default();
        let norm = RunningNorm::new(&mut layout, "norm", &[2]);
        let params = Params::init(&Arc::new(layout), &mut stream(1, "init", 0), Device::Cpu);
        let params = params.trainable();
        let items = [1f32, 10.0, 2.0, 20.0, 6.0, -30.0];
        let items = Tensor::from_slice(&items).reshape([3, 2]);
        norm.observe(&params, &items.narrow(0, 0, 2));
        norm.observe(&params, &items.narrow(0, 2, 1));
        // Means 3 and 0; variances 14/3 and 1400/3.
        let normalised = norm.forward(&params, &items);
        let expected = -2.0 / (14f64 / 3.0).sqrt();
        let first = normalised.double_value(&[0, 0]);
        assert!((first - expected).abs() < 1e-3, "{first} is not {expected}");
        let last = normalised.double_value(&[2, 1]);
        let expected = -30.0 / (1400f64 / 3.0).sqrt();
        assert!((last - expected).abs() < 1e-3, "{last} is not {expected}");
        let gradient = params.gradient(
            &(norm.forward(&params, &items) + params.get(norm.mean) * 0.0).sum(Kind::Float),
        );
        assert_eq!(gradient.abs().max().double_value(&[]), 0.0);
    }
}
