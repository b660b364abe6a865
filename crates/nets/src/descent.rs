//! The gradient step: loss → gradient → reduce → clip → apply.
//!
//! It has two halves, recorded separately. The first ([`Descent::of`]) computes a loss and writes
//! its gradient to where the second ([`Descent::step`]) reads it. Between them a [`Reducer`] can
//! average the gradient over a group of learners, which cannot be part of a recording. On the CPU,
//! where nothing is recorded, it begins with the parts of the gradient that the backward pass has
//! computed.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tch::{Device, Tensor};

use crate::native::backward::BackwardParts;
use crate::native::unnoticed;
use crate::{Moments, Optimizer, OptimizerConfig, Params, Recorded, RunningNorm};

/// Numbers of a part of a gradient that is averaged at once: 1 MiB, which takes long enough on a
/// network that its latency does not matter.
const PART: i64 = 1 << 18;

/// Averages numbers over a group of learners.
pub trait Reducer: Send {
    /// Replaces every number of a tensor by its mean over the group. All learners of the group call
    /// it in the same order with tensors of the same shape.
    fn mean(&mut self, values: &Tensor) -> Result<(), ReduceError>;

    /// The same for a gradient, which may be rounded on the way.
    fn mean_gradient(&mut self, gradient: &Tensor) -> Result<(), ReduceError> {
        self.mean(gradient)
    }

    /// Whether it can average the next gradient in parts while the rest is being computed.
    fn takes_parts(&mut self) -> bool {
        false
    }

    /// Starts to average a part of a gradient, which must not be used before
    /// [`mean_gradient`](Reducer::mean_gradient) of the whole has returned.
    fn start(&mut self, part: &Tensor) {
        let _ = part;
    }

    /// Whether the next step of an update was applied already, by an attempt that broke later. Such a
    /// step is not applied again.
    fn skips_step(&mut self) -> bool {
        false
    }

    /// A step was applied.
    fn applied_step(&mut self) {}

    /// Learners in the group.
    fn size(&self) -> usize;
}

/// A reducer for the optimisers of a learner, which take their steps in turn.
pub type SharedReducer = Arc<Mutex<dyn Reducer>>;

fn lock(reducer: &SharedReducer) -> MutexGuard<'_, dyn Reducer + 'static> {
    // Whoever panicked has ended the run.
    reducer.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Why numbers could not be averaged over a group of learners.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the learners could not average their gradients: {0}")]
pub struct ReduceError(pub String);

/// Parameters and what moves them against the gradient of a loss.
pub struct Descent {
    apply: Recorded<Mover, Tensor>,
    reducer: Option<SharedReducer>,
    /// Whether gradients of a group are added up rather than averaged.
    sums: bool,
    /// In a group: the statistics of batches as they were after the last step.
    statistics: Option<Tensor>,
    /// The norm of a gradient that was not applied.
    skipped: Tensor,
}

/// What both halves of a step work on. With it a step can be part of a larger recorded computation,
/// where no group of learners has to be asked in between.
#[derive(Debug)]
pub struct Mover {
    params: Params,
    optimizer: Optimizer,
    /// Of all parameters, in the order of their layout.
    gradient: Tensor,
    clip_norm: Option<f64>,
    parts: Arc<OnceLock<Mutex<Parts>>>,
}

/// How a gradient is averaged over a group while it is being computed.
struct Parts {
    backward: BackwardParts,
    slices: Vec<Tensor>,
    reducer: SharedReducer,
}

impl Parts {
    /// Computes the gradient of a loss, and starts to average it. `false` if it cannot be averaged now.
    fn differentiate(&mut self, loss: &Tensor) -> bool {
        let Self {
            backward,
            slices,
            reducer,
        } = self;
        if !lock(reducer).takes_parts() {
            return false;
        }
        backward.run(loss, &mut |part| {
            if let Some(slice) = slices.get(part) {
                lock(reducer).start(slice);
            }
        });
        true
    }
}

impl std::fmt::Debug for Parts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Parts")
            .field("parts", &self.slices.len())
            .finish_non_exhaustive()
    }
}

impl Mover {
    /// The parameters, with gradients tracked.
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// The first half of a step: computes the gradient of a loss.
    pub fn differentiate(&self, loss: &Tensor) {
        let done = self.parts.get().is_some_and(|parts| {
            let mut parts = parts.lock().unwrap_or_else(PoisonError::into_inner);
            parts.differentiate(loss)
        });
        if !done {
            self.params.gradient_into(loss, &self.gradient);
        }
    }

    /// The second half: clips the gradient and applies it. Returns the norm that it had before.
    pub fn apply(&self) -> Tensor {
        let norm = self.gradient.norm();
        match self.clip_norm {
            Some(limit) => {
                let clipped = &self.gradient * (limit / (&norm + 1e-6)).clamp_max(1.0);
                self.optimizer.apply(self.params.flat(), &clipped);
            }
            None => self.optimizer.apply(self.params.flat(), &self.gradient),
        }
        norm
    }

    fn share(&self) -> Self {
        Self {
            params: self.params.share(),
            optimizer: self.optimizer.share(),
            gradient: self.gradient.shallow_clone(),
            clip_norm: self.clip_norm,
            parts: Arc::clone(&self.parts),
        }
    }

    /// From now on gradients are averaged while they are being computed, if they have several parts.
    fn join(&self, reducer: &SharedReducer) {
        let parts = self.params.in_parts(&self.gradient, PART);
        // On a GPU the backward pass is recorded.
        if self.params.device() != Device::Cpu || parts.slices.len() < 2 {
            return;
        }
        let params = self.params.views();
        let _ = self.parts.set(Mutex::new(Parts {
            backward: BackwardParts::new(params, &parts.places, &parts.part_of),
            slices: parts.slices,
            reducer: Arc::clone(reducer),
        }));
    }
}

impl Descent {
    /// Moves `params`; gradients are scaled so that their norm is at most `clip_norm`.
    pub fn new(params: Params, config: OptimizerConfig, clip_norm: Option<f64>) -> Self {
        let params = params.trainable();
        let device = params.device();
        let mover = Mover {
            optimizer: Optimizer::new(config, params.flat()),
            gradient: params.flat().zeros_like(),
            params,
            clip_norm,
            parts: Arc::default(),
        };
        Self {
            apply: Recorded::new(device, mover, Mover::apply),
            reducer: None,
            sums: false,
            statistics: None,
            skipped: Tensor::new(),
        }
    }

    /// From now on gradients of a group of learners are added up, and not averaged: for a loss that is
    /// a sum over the batch, so that the group moves as one learner with the batches of all would.
    pub fn sum_gradients(&mut self) {
        self.sums = true;
    }

    /// The same parameters and optimiser, not a copy, for a computation of several steps.
    pub fn mover(&self) -> Mover {
        self.apply.inputs().share()
    }

    /// Whether gradients are averaged over a group of learners.
    pub fn in_group(&self) -> bool {
        self.reducer.is_some()
    }

    /// Learners whose gradients are averaged, this one among them.
    pub fn group_size(&self) -> usize {
        self.reducer.as_ref().map_or(1, |group| lock(group).size())
    }

    /// From now on gradients and statistics are averaged over a group of learners. Called once.
    pub fn join(&mut self, reducer: SharedReducer) {
        let mover = self.apply.inputs();
        mover.join(&reducer);
        self.statistics = statistics(&mover.params);
        self.reducer = Some(reducer);
    }

    /// The parameters were loaded.
    pub fn loaded(&self) {
        if let (Some(known), Some(now)) = (&self.statistics, statistics(self.params())) {
            known.shallow_clone().copy_(&now);
        }
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
        let mover = self.mover();
        Recorded::new(self.device(), inputs, move |inputs: &I| {
            let (loss, output) = compute(inputs, mover.params());
            mover.differentiate(&loss);
            output
        })
    }

    /// The second half of a step. Returns the norm that the gradient had before clipping. After an
    /// error nothing was applied.
    pub fn step(&mut self) -> Result<&Tensor, ReduceError> {
        let Some(reducer) = &self.reducer else {
            return Ok(self.apply.run());
        };
        let mut reducer = lock(reducer);
        let Mover {
            gradient, params, ..
        } = self.apply.inputs();
        if reducer.skips_step() {
            set_statistics(params, self.statistics.as_ref());
            self.skipped = gradient.norm();
            return Ok(&self.skipped);
        }
        let reduced = reducer.mean_gradient(gradient).and_then(|()| {
            // What batches changed in the parameters of each learner becomes their mean.
            let changed = statistics(params);
            changed.as_ref().map_or(Ok(()), |all| reducer.mean(all))?;
            Ok(changed)
        });
        match reduced {
            Ok(changed) => self.statistics = changed,
            Err(error) => {
                set_statistics(params, self.statistics.as_ref());
                return Err(error);
            }
        }
        set_statistics(params, self.statistics.as_ref());
        if self.sums {
            let _ = gradient
                .shallow_clone()
                .g_mul_scalar_(reducer.size() as f64);
        }
        let norm = self.apply.run();
        reducer.applied_step();
        Ok(norm)
    }

    /// Takes what was seen into running statistics that are kept among the parameters.
    pub fn observe(&mut self, seen: &[(RunningNorm, Moments)]) -> Result<(), ReduceError> {
        for (norm, moments) in seen {
            let params = &self.apply.inputs().params;
            match self.reducer.as_ref().map(lock) {
                Some(mut reducer) => {
                    if !reducer.skips_step() {
                        norm.merge(params, &moments.reduced(&mut *reducer)?);
                        reducer.applied_step();
                    }
                }
                None => norm.merge(params, moments),
            }
        }
        Ok(())
    }
}

/// What batches change in parameters, as one vector.
fn statistics(params: &Params) -> Option<Tensor> {
    let parts: Vec<Tensor> = params
        .statistics()
        .map(|part| unnoticed(part).reshape([-1]))
        .collect();
    (!parts.is_empty()).then(|| Tensor::cat(&parts, 0))
}

fn set_statistics(params: &Params, all: Option<&Tensor>) {
    let Some(all) = all else { return };
    let mut start = 0;
    for part in params.statistics().map(unnoticed) {
        let length = part.numel() as i64;
        part.shallow_clone()
            .copy_(&all.narrow(0, start, length).reshape_as(&part));
        start += length;
    }
}

impl std::fmt::Debug for Descent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Descent")
            .field("apply", &self.apply)
            .field(
                "group",
                &self.reducer.as_ref().map(|group| lock(group).size()),
            )
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
                descent.join(Arc::new(Mutex::new(two)));
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
