//! The update that all value-based algorithms share.

use std::slice;
use std::sync::Arc;
use std::time::Instant;

use starling_nets::{
    Device, Kind, Params, Recorded, SharedReducer, Snapshot, Staging, Tensor, array_of, draw_noise,
    no_grad, own_stream,
};
use starling_replay::TransitionBatch;
use starling_tree::{Array, Spec, Tree};

use super::policy::draw_fractions;
use super::{Errors, Method, ValueConfig, mask, pick};
use crate::trained::Followed;
use crate::{Batch, LearnError, Learner, Progress, Report, Saved, Started};

/// Online and target network, and what moves them.
pub(crate) struct ValueLearner<M> {
    config: ValueConfig,
    method: Arc<M>,
    pub(crate) nets: Followed,
    device: Device,
    /// The first half of a gradient step, once there was a batch.
    step: Option<Recorded<Inputs, Outcome>>,
}

/// What an update reads, always in the same memory, so that it can be recorded.
struct Inputs {
    obs: Tree<Staging>,
    next_obs: Tree<Staging>,
    legal: Option<Staging>,
    next_legal: Option<Staging>,
    actions: Staging,
    returns: Staging,
    discounts: Staging,
    weights: Staging,
    /// Noise of the online network at s and at s', and of the target network: `[3, length]`.
    noise: Option<Tensor>,
    /// Quantile fractions of all parts side by side, `[N, ..]`.
    fractions: Option<Tensor>,
}

impl Inputs {
    /// Memory for batches like this one, and for random numbers like these.
    fn new(batch: &TransitionBatch, draws: &Draws, device: Device) -> Self {
        let column = |array: &Array| {
            let (rows, item) = (array.shape()[0], &array.shape()[1..]);
            Staging::new(rows, &Spec::new(array.dtype(), item), device)
        };
        Self {
            obs: batch.obs.map(column),
            next_obs: batch.next_obs.map(column),
            legal: batch.legal.as_ref().map(column),
            next_legal: batch.next_legal.as_ref().map(column),
            actions: column(&batch.actions),
            returns: column(&batch.returns),
            discounts: column(&batch.discounts),
            weights: column(&batch.weights),
            noise: draws.noise.as_ref().map(Tensor::zeros_like),
            fractions: draws.fractions.as_ref().map(Tensor::zeros_like),
        }
    }

    /// Takes over a batch of the same shape and the random numbers of one update.
    fn load(&self, batch: &TransitionBatch, draws: &Draws) {
        for (columns, arrays) in [(&self.obs, &batch.obs), (&self.next_obs, &batch.next_obs)] {
            let arrays = arrays.leaves().into_iter();
            for ((_, column), (_, array)) in columns.leaves().into_iter().zip(arrays) {
                column.load(array);
            }
        }
        for (column, array) in [
            (&self.legal, &batch.legal),
            (&self.next_legal, &batch.next_legal),
        ] {
            if let (Some(column), Some(array)) = (column, array) {
                column.load(array);
            }
        }
        self.actions.load(&batch.actions);
        self.returns.load(&batch.returns);
        self.discounts.load(&batch.discounts);
        self.weights.load(&batch.weights);
        for (place, drawn) in [
            (&self.noise, &draws.noise),
            (&self.fractions, &draws.fractions),
        ] {
            if let (Some(place), Some(drawn)) = (place, drawn) {
                place.shallow_clone().copy_(drawn);
            }
        }
    }

    fn rows(&self) -> i64 {
        self.weights.tensor().size()[0]
    }

    fn actions(&self) -> Tensor {
        self.actions.tensor().reshape([-1, 1])
    }

    fn noise(&self, row: i64) -> Option<Tensor> {
        Some(self.noise.as_ref()?.narrow(0, row, 1))
    }

    fn fractions(&self, first: usize, count: usize) -> Option<Tensor> {
        let all = self.fractions.as_ref()?;
        Some(all.narrow(1, first as i64, count as i64))
    }
}

/// All random numbers of one update, drawn before it.
struct Draws {
    noise: Option<Tensor>,
    fractions: Option<Tensor>,
}

/// What an update leaves behind.
struct Outcome {
    /// Those of [`REPORTED`] but the last.
    numbers: Tensor,
    /// `[N]`.
    priorities: Tensor,
}

/// What an update reports, in order.
const REPORTED: [&str; 4] = ["loss", "td_error", "q_value", "grad_norm"];

impl<M: Method> ValueLearner<M> {
    pub(crate) fn new(config: ValueConfig, method: Arc<M>, seed: u64, device: Device) -> Self {
        Self {
            nets: Followed::new(
                method.net().1,
                config.optimizer,
                config.clip_norm,
                seed,
                device,
            ),
            config,
            method,
            device,
            step: None,
        }
    }

    /// The random numbers of one update on `size` transitions.
    fn draw(&mut self, size: usize) -> Draws {
        let (method, device) = (&self.method, self.device);
        let length = method.net().0.head().noise;
        let parts = method.fractions();
        let count = parts.predicted + parts.following + parts.choosing;
        let rng = slice::from_mut(&mut self.nets.online.rng);
        let noise =
            (length > 0).then(|| draw_noise(3 * length, rng, device).reshape([3, length as i64]));
        let fractions = draw_fractions(size * count, rng, device);
        Draws {
            noise,
            fractions: fractions.map(|all| all.reshape([size as i64, count as i64])),
        }
    }

    /// Copies a batch to the device.
    fn load(&mut self, batch: &TransitionBatch) -> &mut Recorded<Inputs, Outcome> {
        own_stream(self.device);
        let draws = self.draw(batch.size());
        let size = batch.size() as i64;
        let step = self.step.take().filter(|old| old.inputs().rows() == size);
        let step = step.unwrap_or_else(|| self.record(Inputs::new(batch, &draws, self.device)));
        step.inputs().load(batch, &draws);
        self.step.insert(step)
    }

    /// The first half of a gradient step.
    fn record(&self, inputs: Inputs) -> Recorded<Inputs, Outcome> {
        let (config, method) = (self.config.clone(), Arc::clone(&self.method));
        let target = self.nets.target.share();
        let loss = move |inputs: &Inputs, online: &Params| {
            let (errors, value) = errors(&config, &*method, online, &target, inputs);
            let loss = (errors.losses * inputs.weights.tensor()).mean(Kind::Float);
            let priorities = errors.priorities.detach();
            let surprise = priorities.mean(Kind::Float);
            let outcome = Outcome {
                numbers: Tensor::stack(&[&loss, &surprise, &value], 0).detach(),
                priorities,
            };
            (loss, outcome)
        };
        self.nets.online.descent.of(inputs, loss)
    }

    /// The priorities that a batch would get.
    #[cfg(test)]
    pub(crate) fn priorities_of(&mut self, batch: &TransitionBatch) -> Tensor {
        self.load(batch).run().priorities.shallow_clone()
    }
}

/// What follows the transitions `[N, W']`, and their returns `[N]`.
fn following<M: Method>(
    config: &ValueConfig,
    method: &M,
    online: &Params,
    target: &Params,
    inputs: &Inputs,
) -> (Tensor, Tensor) {
    let parts = method.fractions();
    let next = inputs
        .next_obs
        .map(|column| column.tensor().shallow_clone());
    let next_legal = inputs.next_legal.as_ref().map(Staging::tensor);
    let returns = inputs.returns.tensor();
    let (noise, fractions) = (
        inputs.noise(2),
        inputs.fractions(parts.predicted, parts.following),
    );
    let judge = |obs, legal| method.outputs(target, obs, noise.as_ref(), fractions.as_ref(), legal);
    let outputs = judge(&next, next_legal);
    if let Some(munchausen) = &config.munchausen {
        let values = mask(method.values(&outputs), next_legal);
        let obs = inputs.obs.map(|column| column.tensor().shallow_clone());
        let legal = inputs.legal.as_ref().map(Staging::tensor);
        let now = mask(method.values(&judge(&obs, legal)), legal);
        let bonus = munchausen.bonus(&now, &inputs.actions());
        return (munchausen.soft_value(&outputs, &values), returns + bonus);
    }
    let values = match config.double {
        false => method.values(&outputs),
        true => {
            let first = parts.predicted + parts.following;
            let fractions = inputs.fractions(first, parts.choosing);
            let noise = inputs.noise(1);
            let (noise, fractions) = (noise.as_ref(), fractions.as_ref());
            method.values(&method.outputs(online, &next, noise, fractions, next_legal))
        }
    };
    let best = mask(values, next_legal).argmax(-1, true);
    (pick(&outputs, &best), returns.shallow_clone())
}

/// Errors of a batch, and the mean value of the actions taken.
fn errors<M: Method>(
    config: &ValueConfig,
    method: &M,
    online: &Params,
    target: &Params,
    inputs: &Inputs,
) -> (Errors, Tensor) {
    let (following, returns) = no_grad(|| following(config, method, online, target, inputs));
    let obs = inputs.obs.map(|column| column.tensor().shallow_clone());
    let noise = inputs.noise(0);
    let fractions = inputs.fractions(0, method.fractions().predicted);
    let legal = inputs.legal.as_ref().map(Staging::tensor);
    let outputs = method.outputs(online, &obs, noise.as_ref(), fractions.as_ref(), legal);
    let taken = pick(&outputs, &inputs.actions());
    let discounts = inputs.discounts.tensor();
    let errors = method.errors(&taken, fractions.as_ref(), &following, &returns, discounts);
    let value = method.values(&taken.detach().unsqueeze(1));
    (errors, value.mean(Kind::Float))
}

impl<M: Method> Learner for ValueLearner<M> {
    fn update(&mut self, batch: Batch<'_>, progress: Progress) -> Result<Report, LearnError> {
        self.start(batch, progress)?.finish()
    }

    fn start(&mut self, batch: Batch<'_>, progress: Progress) -> Result<Started, LearnError> {
        let Batch::Transitions(batch) = batch else {
            let wanted = "transitions";
            return Err(LearnError::WrongBatch { wanted });
        };
        let began = Instant::now();
        self.load(batch);
        let assemble_s = began.elapsed().as_secs_f64();
        let learning_rate = self.config.learning_rate.at(progress.fraction());
        let descent = &mut self.nets.online.descent;
        descent.optimizer().set_learning_rate(learning_rate);
        let Some(step) = &mut self.step else {
            return Err(LearnError::Mismatch);
        };
        let Outcome {
            numbers,
            priorities,
        } = step.run();
        let norm = descent.step()?.reshape([1]);
        let numbers = Tensor::cat(&[numbers, &norm], 0);
        let config = &self.config;
        let priorities = config
            .replay
            .priority
            .as_ref()
            .map(|_| priorities.shallow_clone());
        self.nets
            .updated(config.target.target_every_updates, config.target.target_tau);
        let mut known = vec![("learning_rate", learning_rate)];
        let epsilon = config.exploration.common(progress.env_steps);
        known.extend(epsilon.map(|epsilon| ("epsilon", epsilon)));
        Ok(Started::new(move || {
            let numbers = array_of(&numbers);
            let numbers = numbers.as_slice::<f32>().iter().map(|&x| f64::from(x));
            let metrics = REPORTED.into_iter().zip(numbers).chain(known).collect();
            let priorities = priorities.map(|all| array_of(&all).as_slice::<f32>().to_vec());
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
