//! The gradient step: loss → gradient → reduce → clip → apply.
//!
//! It has two halves, recorded separately. The first ([`Descent::of`]) computes a loss and writes
//! its gradient to where the second ([`Descent::step`]) reads it. Between them a [`Reducer`] can
//! average the gradient over a group of learners, which cannot be part of a recording.

use tch::{Device, Tensor};

use crate::{Moments, Optimizer, OptimizerConfig, Params, Recorded, RunningNorm};

/// Averages numbers over a group of learners.
pub trait Reducer: Send {
    /// Replaces every number of a tensor by its mean over the group. All learners of the group call
    /// it in the same order with tensors of the same shape.
    fn mean(&mut self, values: &Tensor) -> Result<(), ReduceError>;

    /// Learners in the group.
    fn size(&self) -> usize;
}

/// Why numbers could not be averaged over a group of learners.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the learners could not average their gradients: {0}")]
pub struct ReduceError(pub String);

/// Parameters and what moves them against the gradient of a loss.
pub struct Descent {
    apply: Recorded<Apply, Tensor>,
    reducer: Option<Box<dyn Reducer>>,
}

/// What the second half of a step works on.
#[derive(Debug)]
struct Apply {
    params: Params,
    optimizer: Optimizer,
    /// Of all parameters, in the order of their layout.
    gradient: Tensor,
}

impl Descent {
    /// Moves `params`; gradients are scaled so that their norm is at most `clip_norm`.
    pub fn new(params: Params, config: OptimizerConfig, clip_norm: Option<f64>) -> Self {
        let params = params.trainable();
        let device = params.device();
        let inputs = Apply {
            optimizer: Optimizer::new(config, params.flat()),
            gradient: params.flat().zeros_like(),
            params,
        };
        let apply = move |inputs: &Apply| {
            let Apply {
                params,
                optimizer,
                gradient,
            } = inputs;
            let norm = gradient.norm();
            match clip_norm {
                Some(limit) => {
                    let clipped = gradient * (limit / (&norm + 1e-6)).clamp_max(1.0);
                    optimizer.apply(params.flat(), &clipped);
                }
                None => optimizer.apply(params.flat(), gradient),
            }
            norm
        };
        Self {
            apply: Recorded::new(device, inputs, apply),
            reducer: None,
        }
    }

    /// From now on gradients and statistics are averaged over a group of learners.
    pub fn join(&mut self, reducer: Box<dyn Reducer>) {
        self.reducer = Some(reducer);
    }

    /// The parameters.
    pub fn params(&self) -> &Params {
        &self.apply.inputs().params
    }

    /// What moves them.
    pub fn optimizer(&self) -> &Optimizer {
        &self.apply.inputs().optimizer
    }

    /// Where the parameters are.
    pub fn device(&self) -> Device {
        self.params().device()
    }

    /// The first half of a step, to be run before each [`step`](Descent::step): `compute` gives the
    /// loss, and whatever else is wanted of it.
    pub fn of<I, O>(
        &self,
        inputs: I,
        compute: impl Fn(&I, &Params) -> (Tensor, O) + Send + 'static,
    ) -> Recorded<I, O> {
        let params = self.params().share();
        let gradient = self.apply.inputs().gradient.shallow_clone();
        Recorded::new(self.device(), inputs, move |inputs: &I| {
            let (loss, output) = compute(inputs, &params);
            params.gradient_into(&loss, &gradient);
            output
        })
    }

    /// The second half of a step. Returns the norm that the gradient had before clipping.
    pub fn step(&mut self) -> Result<&Tensor, ReduceError> {
        if let Some(reducer) = &mut self.reducer {
            reducer.mean(&self.apply.inputs().gradient)?;
        }
        Ok(self.apply.run())
    }

    /// Takes what was seen into running statistics that are kept among the parameters.
    pub fn observe(&mut self, seen: &[(RunningNorm, Moments)]) -> Result<(), ReduceError> {
        for (norm, moments) in seen {
            let params = &self.apply.inputs().params;
            match &mut self.reducer {
                Some(reducer) => norm.merge(params, &moments.reduced(&mut **reducer)?),
                None => norm.merge(params, moments),
            }
        }
        Ok(())
    }
}

impl std::fmt::Debug for Descent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Descent")
            .field("apply", &self.apply)
            .field("group", &self.reducer.as_ref().map(|group| group.size()))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Barrier, Mutex};

    use super::*;
    use crate::{Init, Layout, OptimizerKind, ParamId};
    use tch::Kind;

    /// With averages that stay at 1, RMSProp's step is the learning rate times the gradient.
    const PLAIN: OptimizerConfig = OptimizerConfig {
        kind: OptimizerKind::RmspropTf,
        alpha: 1.0,
        eps: 0.0,
        beta1: 0.9,
        beta2: 0.999,
    };

    fn descent(clip_norm: Option<f64>) -> (Descent, ParamId) {
        let mut layout = Layout::default();
        let xy = layout.add("xy", &[2], Init::Constant(0.0));
        let params = Params::zeros(&Arc::new(layout), Device::Cpu);
        let descent = Descent::new(params, PLAIN, clip_norm);
        descent.optimizer().set_learning_rate(0.1);
        (descent, xy)
    }

    /// The gradient of 3x + 4y has the norm 5; clipped to 1 it is (0.6, 0.8).
    #[test]
    fn clipping_keeps_the_direction() {
        for (clip_norm, expected) in [(Some(1.0), [0.06, 0.08]), (None, [0.3, 0.4])] {
            let (mut descent, xy) = descent(clip_norm);
            let factors = Tensor::from_slice(&[3f32, 4.0]);
            let mut loss = descent.of(factors, move |factors, params| {
                ((params.get(xy) * factors).sum(Kind::Float), ())
            });
            loss.run();
            assert_eq!(descent.step().unwrap().double_value(&[]), 5.0);
            for (moved, expected) in descent.params().to_vec().into_iter().zip(expected) {
                assert!((moved + expected).abs() < 1e-6, "{clip_norm:?}: {moved}");
            }
        }
    }

    /// Two learners in two threads that add up what both bring.
    struct Two {
        sum: Arc<Mutex<Vec<f32>>>,
        both: Arc<Barrier>,
    }

    impl Reducer for Two {
        fn mean(&mut self, values: &Tensor) -> Result<(), ReduceError> {
            let own = Vec::<f32>::try_from(values.reshape([-1])).unwrap();
            self.sum.lock().unwrap().resize(own.len(), 0.0);
            self.both.wait();
            for (sum, own) in self.sum.lock().unwrap().iter_mut().zip(&own) {
                *sum += own / 2.0;
            }
            self.both.wait();
            let mean = Tensor::from_slice(&self.sum.lock().unwrap()).reshape(values.size());
            values.shallow_clone().copy_(&mean);
            self.both.wait();
            self.sum.lock().unwrap().clear();
            self.both.wait();
            Ok(())
        }

        fn size(&self) -> usize {
            2
        }
    }

    /// Gradients (3, 4) and (5, 0) average to (4, 2). Statistics of (1, 3) and of (5) are those of
    /// all three: mean 3 and variance 8/3 (beside the first values, which count for 0.0001 items).
    #[test]
    fn a_group_of_learners_moves_as_one() {
        let (sum, both) = (Arc::default(), Arc::new(Barrier::new(2)));
        let learner = |factors: [f32; 2], items: Vec<f32>| {
            let two = Two {
                sum: Arc::clone(&sum),
                both: Arc::clone(&both),
            };
            std::thread::spawn(move || {
                let mut layout = Layout::default();
                let xy = layout.add("xy", &[2], Init::Constant(0.0));
                let norm = RunningNorm::new(&mut layout, "norm", &[1]);
                let mut rng = starling_envs::stream(1, "init", 0);
                let params = Params::init(&Arc::new(layout), &mut rng, Device::Cpu);
                let mut descent = Descent::new(params, PLAIN, None);
                descent.join(Box::new(two));
                descent.optimizer().set_learning_rate(1.0);
                let mut loss = descent.of(Tensor::from_slice(&factors), move |factors, params| {
                    ((params.get(xy) * factors).sum(Kind::Float), ())
                });
                loss.run();
                descent.step().unwrap();
                let items = Tensor::from_slice(&items).reshape([-1, 1]);
                let seen = norm.moments(&items);
                descent.observe(&[(norm, seen)]).unwrap();
                descent.params().to_vec()
            })
        };
        let learners = [
            learner([3.0, 4.0], vec![1.0, 3.0]),
            learner([5.0, 0.0], vec![5.0]),
        ];
        for learner in learners {
            let params = learner.join().unwrap();
            for (ours, expected) in params.iter().zip([-4.0, -2.0, 3.0, 8.0 / 3.0, 3.0001]) {
                assert!((ours - expected).abs() < 1e-3, "{params:?}");
            }
        }
    }
}
