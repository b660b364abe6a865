//! Running statistics that are stored with a network's weights.
//!
//! They are parameters without a gradient, so optimisers do not change them. They are saved,
//! published and resumed with the weights.

use tch::{Kind, Tensor};

use crate::export::{Graph, Value};
use crate::{Init, Layout, ParamId, Params, ReduceError, Reducer};

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
    /// No more items than this count: older ones fade.
    most: f64,
}

/// Mean and variance of every element of some items, and how many items there are.
#[derive(Debug)]
pub struct Moments {
    mean: Tensor,
    variance: Tensor,
    /// `[1]`.
    count: Tensor,
}

impl Moments {
    /// Those of the items of a whole group of learners.
    pub(crate) fn reduced(&self, group: &mut dyn Reducer) -> Result<Self, ReduceError> {
        let (own_mean, own_variance) = (self.mean.reshape([-1]), self.variance.reshape([-1]));
        let elements = own_mean.size()[0];
        let sums = Tensor::cat(&[&own_mean * &self.count, self.count.shallow_clone()], 0);
        group.mean(&sums)?;
        let count = sums.narrow(0, elements, 1);
        let mean = sums.narrow(0, 0, elements) / count.clamp_min(1e-8);
        // Around the mean of all, which a second reduction needs: the difference of large squares
        // would leave nothing of a small variance.
        let squares = (own_variance + (own_mean - &mean).square()) * &self.count;
        group.mean(&squares)?;
        let variance = squares / count.clamp_min(1e-8);
        Ok(Self {
            mean: mean.reshape_as(&self.mean),
            variance: variance.reshape_as(&self.variance),
            count: count * group.size() as f64,
        })
    }
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
            most: f64::INFINITY,
        }
    }

    /// Statistics of about the last `items`, for what changes in the course of a run.
    pub fn of_the_last(self, items: f64) -> Self {
        Self {
            most: items,
            ..self
        }
    }

    /// The contribution of more items `[N, ..]`.
    pub fn moments(&self, items: &Tensor) -> Moments {
        tch::no_grad(|| {
            let items = items.detach().to_kind(Kind::Float);
            let dim = [0].as_slice();
            Moments {
                mean: items.mean_dim(dim, false, Kind::Float),
                variance: items.var_dim(dim, false, false),
                count: Tensor::full([1], items.size()[0], (Kind::Float, items.device())),
            }
        })
    }

    /// What those of the items `[N, ..]` bring whose `counted` `[N]` is 1 and not 0.
    pub fn moments_counted(&self, items: &Tensor, counted: &Tensor) -> Moments {
        tch::no_grad(|| {
            let items = items.detach().to_kind(Kind::Float).flatten(1, -1);
            let counted = counted.detach().reshape([-1, 1]);
            let count = counted.sum(Kind::Float).reshape([1]);
            let mean_of = |mut x: Tensor| {
                let _ = x.g_mul_(&counted);
                let sum = x.sum_dim_intlist([0].as_slice(), false, Kind::Float);
                sum / count.clamp_min(1.0)
            };
            // In place where it can be: a batch of images is large.
            let mean = mean_of(items.copy());
            let variance = mean_of((items - &mean).square_());
            Moments {
                mean,
                variance,
                count,
            }
        })
    }

    /// Merges means and variances (Chan et al. 1979) of what is known and of more items.
    pub fn merge(&self, params: &Params, seen: &Moments) {
        tch::no_grad(|| {
            let write = |id: ParamId, value: Tensor| {
                params.get(id).shallow_clone().copy_(&value);
            };
            let [old_mean, old_variance, count] =
                [self.mean, self.variance, self.count].map(|id| params.get(id).detach());
            let added = &seen.count;
            let total = &count + added;
            let difference = seen.mean.reshape_as(&old_mean) - &old_mean;
            let spread = difference.square() * (&count * added / &total);
            let squares = &old_variance * &count + seen.variance.reshape_as(&old_variance) * added;
            write(self.variance, (squares + spread) / &total);
            write(self.mean, &old_mean + difference * (added / &total));
            write(self.count, total.clamp_max(self.most));
        });
    }

    /// Items `[N, ..]` with the mean taken away, divided by the deviation.
    pub fn forward(&self, params: &Params, items: &Tensor) -> Tensor {
        let centred = items - params.get(self.mean).detach();
        (centred / self.deviation(params)).clamp(-LIMIT, LIMIT)
    }

    /// The same as [`forward`](RunningNorm::forward) in a graph.
    pub fn export(&self, graph: &mut Graph, params: &Params, items: &Value) -> Value {
        let mean = graph.weight(params, self.mean);
        let deviation = graph.constant(&self.deviation(params));
        let centred = graph.sub(items, &mean);
        let scaled = graph.div(&centred, &deviation);
        let (low, high) = (graph.scalar(-LIMIT), graph.scalar(LIMIT));
        graph.clamp(&scaled, &low, &high)
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

    impl RunningNorm {
        fn observe(&self, params: &Params, items: &Tensor) {
            self.merge(params, &self.moments(items));
        }
    }

    /// Items that do not count change nothing, and what was long ago fades.
    #[test]
    fn some_items_do_not_count_and_old_ones_fade() {
        let mut layout = Layout::default();
        let all = RunningNorm::new(&mut layout, "all", &[1]);
        let some = RunningNorm::new(&mut layout, "some", &[1]);
        let last = RunningNorm::new(&mut layout, "last", &[1]).of_the_last(4.0);
        let params = Params::init(&Arc::new(layout), &mut stream(1, "init", 0), Device::Cpu);
        let column = |items: &[f32]| Tensor::from_slice(items).reshape([-1, 1]);
        all.observe(&params, &column(&[1.0, 3.0]));
        let counted = Tensor::from_slice(&[1f32, 0.0, 1.0]);
        let seen = some.moments_counted(&column(&[1.0, 100.0, 3.0]), &counted);
        some.merge(&params, &seen);
        for (a, b) in [(all.mean, some.mean), (all.variance, some.variance)] {
            let difference = (params.get(a) - params.get(b)).abs().max();
            assert!(difference.double_value(&[]) < 1e-4);
        }
        for _ in 0..20 {
            last.observe(&params, &column(&[50.0, 50.0]));
        }
        for _ in 0..20 {
            last.observe(&params, &column(&[1.0, 3.0]));
        }
        let mean = params.get(last.mean).double_value(&[0]);
        assert!((mean - 2.0).abs() < 0.1, "{mean}");
    }

    /// A group of one learner.
    struct Alone;

    impl Reducer for Alone {
        fn mean(&mut self, _: &Tensor) -> Result<(), ReduceError> {
            Ok(())
        }

        fn size(&self) -> usize {
            1
        }
    }

    /// Of 10001, 10003 and 10005 the variance is 8/3; their squares differ from that of the mean by
    /// less than single precision can tell.
    #[test]
    fn a_group_keeps_small_variances_of_large_numbers() {
        let mut layout = Layout::default();
        let norm = RunningNorm::new(&mut layout, "norm", &[1]);
        let items = Tensor::from_slice(&[10_001f32, 10_003.0, 10_005.0]).reshape([-1, 1]);
        let seen = norm.moments(&items).reduced(&mut Alone).unwrap();
        let [mean, variance] = [&seen.mean, &seen.variance].map(|x| x.double_value(&[0]));
        assert_eq!(mean, 10_003.0);
        assert!((variance - 8.0 / 3.0).abs() < 1e-4, "{variance}");
    }

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
