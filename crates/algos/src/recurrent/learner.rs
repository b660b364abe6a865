//! The update from sequences.

use std::sync::Arc;
use std::time::Instant;

use starling_envs::Rng;
use starling_nets::{
    Device, Kind, Layout, Moments, Params, Recorded, RecurrentInput, RunningNorm, SharedReducer,
    Snapshot, Tensor, array_of, no_grad, own_stream,
};
use starling_replay::{SequenceBatch, SequenceConfig, mixed_priority};
use starling_tree::Array;

use super::SequenceInputs;
use crate::trained::Followed;
use crate::value_based::ValueConfig;
use crate::{Batch, LearnError, Learner, Progress, Report, Saved, Started};

/// What one algorithm that learns from sequences does differently from another.
pub(crate) trait SequenceMethod: Send + Sized + 'static {
    /// What it reports beside the loss and the gradient's norm: [`Losses::numbers`] by name.
    const REPORTED: &'static [&'static str];

    /// The same method; tensors are shared.
    fn share(&self) -> Self;

    /// Its parameters.
    fn layout(&self) -> &Arc<Layout>;

    /// The shared settings.
    fn shared(&self) -> &ValueConfig;

    /// How episodes are cut into sequences.
    fn sequence(&self) -> &SequenceConfig;

    /// Random numbers of one update, a byte for each of its sequences.
    fn draw(&self, sequences: usize, _rng: &mut Rng) -> Vec<u8> {
        vec![0; sequences]
    }

    /// How far the values of a batch were off.
    fn losses(&self, online: &Params, target: &Params, inputs: &SequenceInputs) -> Losses;
}

/// How far the values of a batch were off.
pub(crate) struct Losses {
    /// What is minimised, a scalar.
    pub(crate) loss: Tensor,
    /// |error| of every trained step, `[L, B]`.
    pub(crate) errors: Tensor,
    /// Scalars to report.
    pub(crate) numbers: Vec<Tensor>,
    /// The batch's contribution to running statistics, after the step that uses the old ones.
    pub(crate) seen: Vec<(RunningNorm, Moments)>,
}

/// Online and target network, and what moves them.
pub(crate) struct SequenceLearner<M> {
    method: M,
    pub(crate) nets: Followed,
    device: Device,
    /// The first half of a gradient step, once there was a batch.
    step: Option<Recorded<SequenceInputs, Outcome>>,
}

/// What an update leaves behind.
struct Outcome {
    /// The loss and what is reported beside it.
    numbers: Tensor,
    /// |error| of every trained step, `[L, B]`.
    errors: Tensor,
    seen: Vec<(RunningNorm, Moments)>,
}

impl<M: SequenceMethod> SequenceLearner<M> {
    pub(crate) fn new(method: M, seed: u64, device: Device) -> Self {
        let (optimizer, clip_norm) = (method.shared().optimizer, method.shared().clip_norm);
        Self {
            nets: Followed::new(method.layout(), optimizer, clip_norm, seed, device),
            method,
            device,
            step: None,
        }
    }

    /// Copies a batch to the device.
    fn load_batch(&mut self, batch: &SequenceBatch) {
        own_stream(self.device);
        let (size, device) = (batch.size() as i64, self.device);
        let drawn = self.method.draw(batch.size(), &mut self.nets.online.rng);
        let step = self.step.take();
        let step = step.filter(|old| old.inputs().sequences() == size);
        let step = step.unwrap_or_else(|| {
            let burn_in = self.method.sequence().burn_in_steps;
            self.record(SequenceInputs::new(batch, burn_in, device))
        });
        step.inputs().load(batch, &drawn);
        self.step = Some(step);
    }

    /// The first half of a gradient step.
    fn record(&self, inputs: SequenceInputs) -> Recorded<SequenceInputs, Outcome> {
        let (method, target) = (self.method.share(), self.nets.target.share());
        let loss = move |inputs: &SequenceInputs, online: &Params| {
            let losses = method.losses(online, &target, inputs);
            let numbers: Vec<&Tensor> = [&losses.loss].into_iter().chain(&losses.numbers).collect();
            let outcome = Outcome {
                numbers: Tensor::stack(&numbers, 0).detach(),
                errors: losses.errors.detach(),
                seen: losses.seen,
            };
            (losses.loss, outcome)
        };
        self.nets.online.descent.of(inputs, loss)
    }
}

impl<M: SequenceMethod> Learner for SequenceLearner<M> {
    fn update(&mut self, batch: Batch<'_>, progress: Progress) -> Result<Report, LearnError> {
        self.start(batch, progress)?.finish()
    }

    fn start(&mut self, batch: Batch<'_>, progress: Progress) -> Result<Started, LearnError> {
        let Batch::Sequences(batch) = batch else {
            let wanted = "sequences";
            return Err(LearnError::WrongBatch { wanted });
        };
        let began = Instant::now();
        self.load_batch(batch);
        let assemble_s = began.elapsed().as_secs_f64();
        let shared = self.method.shared();
        let learning_rate = shared.learning_rate.at(progress.fraction());
        let descent = &mut self.nets.online.descent;
        descent.optimizer().set_learning_rate(learning_rate);
        let Some(step) = &mut self.step else {
            return Err(LearnError::Mismatch);
        };
        let outcome = step.run();
        let norm = descent.step()?.reshape([1]);
        descent.observe(&outcome.seen)?;
        let numbers = Tensor::cat(&[&outcome.numbers, &norm], 0);
        let eta = self.method.sequence().priority_eta;
        let prioritized = shared.replay.priority.as_ref();
        let errors = prioritized.map(|_| (outcome.errors.shallow_clone(), batch.mask.clone()));
        self.nets
            .updated(shared.target.target_every_updates, shared.target.target_tau);
        let mut known = vec![("learning_rate", learning_rate)];
        let epsilon = shared.exploration.common(progress.env_steps);
        known.extend(epsilon.map(|epsilon| ("epsilon", epsilon)));
        Ok(Started::new(move || {
            let numbers = array_of(&numbers);
            let numbers = numbers.as_slice::<f32>().iter().map(|&x| f64::from(x));
            let names = ["loss"]
                .iter()
                .chain(M::REPORTED)
                .chain(&["grad_norm"])
                .copied();
            let metrics = names.zip(numbers).chain(known).collect();
            let priorities =
                errors.map(|(errors, mask)| sequence_priorities(&array_of(&errors), &mask, eta));
            let mut report = Report::checked(metrics, priorities)?;
            report.assemble_s = assemble_s;
            Ok(report)
        }))
    }

    fn weights(&self) -> Snapshot {
        self.nets.online.params().snapshot()
    }

    fn join(&mut self, reducer: SharedReducer) {
        self.nets.online.descent.join(reducer);
    }

    fn save(&self) -> Saved {
        self.nets.save()
    }

    fn load(&mut self, saved: &Saved) -> Result<(), LearnError> {
        self.nets.load(saved)
    }
}

/// Runs a network over a whole sequence: `forward` gives its values and the memory after some
/// positions from the memory before them. Only what comes after the burn-in has gradients.
pub(crate) fn unroll<V, S>(
    input: &RecurrentInput,
    burn_in: i64,
    stored: S,
    forward: impl Fn(&RecurrentInput, &S) -> (V, S),
) -> V {
    let total = input.starts.size()[0];
    let warmed = match burn_in {
        0 => stored,
        _ => no_grad(|| forward(&input.narrow(0, burn_in), &stored).1),
    };
    forward(&input.narrow(burn_in, total - burn_in), &warmed).0
}

/// The mean over the steps that count, a scalar.
pub(crate) fn mean_counted(of: &Tensor, mask: &Tensor) -> Tensor {
    (of * mask).sum(Kind::Float) / mask.sum(Kind::Float).clamp_min(1.0)
}

/// η·max + (1 − η)·mean of the |errors| `[L, B]` of each sequence, over the steps that count.
pub(crate) fn sequence_priorities(errors: &Array, mask: &Array, eta: f64) -> Vec<f32> {
    let size = errors.shape()[1];
    let column = |b: usize| {
        let errors = errors.as_slice::<f32>().iter().skip(b).step_by(size);
        let mask = mask.as_slice::<f32>().iter().skip(b).step_by(size);
        let counted = errors.zip(mask).filter(|(_, mask)| **mask != 0.0);
        mixed_priority(counted.map(|(error, _)| *error), eta) as f32
    };
    (0..size).map(column).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// η = .9 of (.1, .5, 2, .4) is 1.875; the fifth step is behind the end of the episode.
    #[test]
    fn priorities_mix_the_largest_and_the_mean_error() {
        let errors = Array::from_slice(&[0.1f32, 0.5, 2.0, 0.4, 7.0], &[5, 1]);
        let mask = Array::from_slice(&[1f32, 1.0, 1.0, 1.0, 0.0], &[5, 1]);
        assert_eq!(sequence_priorities(&errors, &mask, 0.9), [1.875]);
    }
}
