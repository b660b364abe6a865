//! The update that all methods of action values share.

use std::slice;
use std::sync::Arc;

use starling_envs::{Rng, stream};
use starling_nets::{
    Device, Kind, Optimizer, Params, Tensor, array_of, clip_global_norm, draw_noise, no_grad,
    tensor_of, tree_of,
};
use starling_replay::TransitionBatch;
use starling_tree::Array;

use super::policy::draw_fractions;
use super::{Errors, Method, ValueConfig, mask, pick};
use crate::registry::{load_learner, save_learner};
use crate::{Batch, LearnError, Learner, Progress, Report, Saved};

/// Online and target network, and what moves them.
pub(crate) struct ValueLearner<M> {
    config: ValueConfig,
    method: Arc<M>,
    pub(crate) params: Params,
    pub(crate) target: Params,
    optimizer: Optimizer,
    updates: u64,
    rng: Rng,
    device: Device,
}

/// All chance of one update, drawn before it.
pub(crate) struct Draws {
    /// Noise of the online network at s and at s', and of the target network: `[3, length]`.
    noise: Option<Tensor>,
    /// Fractions of all parts side by side, `[N, ..]`.
    fractions: Option<Tensor>,
}

impl Draws {
    fn noise(&self, row: i64) -> Option<Tensor> {
        Some(self.noise.as_ref()?.narrow(0, row, 1))
    }

    fn fractions(&self, first: usize, count: usize) -> Option<Tensor> {
        let all = self.fractions.as_ref()?;
        Some(all.narrow(1, first as i64, count as i64))
    }
}

impl<M: Method> ValueLearner<M> {
    pub(crate) fn new(config: ValueConfig, method: Arc<M>, seed: u64, device: Device) -> Self {
        let mut rng = stream(seed, "learner", 0);
        let layout = method.net().1;
        let params = Params::init(layout, &mut rng, device).trainable();
        let mut target = Params::zeros(layout, device);
        target.copy_from(&params);
        Self {
            optimizer: Optimizer::new(config.optimizer, params.flat()),
            config,
            method,
            params,
            target,
            updates: 0,
            rng,
            device,
        }
    }

    /// The chance of one update on `size` transitions.
    pub(crate) fn draw(&mut self, size: usize) -> Draws {
        let (method, device) = (&self.method, self.device);
        let length = method.net().0.head().noise;
        let parts = method.fractions();
        let count = parts.predicted + parts.following + parts.choosing;
        let rng = slice::from_mut(&mut self.rng);
        let noise =
            (length > 0).then(|| draw_noise(3 * length, rng, device).reshape([3, length as i64]));
        let fractions = draw_fractions(size * count, rng, device);
        Draws {
            noise,
            fractions: fractions.map(|all| all.reshape([size as i64, count as i64])),
        }
    }

    /// What follows the transitions `[N, W']`, and their returns `[N]`.
    fn following(&self, batch: &TransitionBatch, draws: &Draws) -> (Tensor, Tensor) {
        let (method, device) = (&*self.method, self.device);
        let parts = method.fractions();
        let legal = |mask: &Option<Array>| mask.as_ref().map(|mask| tensor_of(mask, device));
        let next = tree_of(&batch.next_obs, &[], device);
        let next_legal = legal(&batch.next_legal);
        let returns = tensor_of(&batch.returns, device);
        let (noise, fractions) = (
            draws.noise(2),
            draws.fractions(parts.predicted, parts.following),
        );
        let judge = |params, obs| method.outputs(params, obs, noise.as_ref(), fractions.as_ref());
        let outputs = judge(&self.target, &next);
        if let Some(munchausen) = &self.config.munchausen {
            let values = mask(method.values(&outputs), next_legal.as_ref());
            let obs = tree_of(&batch.obs, &[], device);
            let now = method.values(&judge(&self.target, &obs));
            let now = mask(now, legal(&batch.legal).as_ref());
            let bonus = munchausen.bonus(&now, &actions_of(batch, device));
            return (munchausen.soft_value(&outputs, &values), returns + bonus);
        }
        let values = match self.config.double {
            false => method.values(&outputs),
            true => {
                let first = parts.predicted + parts.following;
                let fractions = draws.fractions(first, parts.choosing);
                let noise = draws.noise(1);
                let online =
                    method.outputs(&self.params, &next, noise.as_ref(), fractions.as_ref());
                method.values(&online)
            }
        };
        let best = mask(values, next_legal.as_ref()).argmax(-1, true);
        (pick(&outputs, &best), returns)
    }

    /// Errors of a batch, and the mean value of the actions taken.
    pub(crate) fn errors(&self, batch: &TransitionBatch, draws: &Draws) -> (Errors, Tensor) {
        let (method, device) = (&*self.method, self.device);
        let (following, returns) = no_grad(|| self.following(batch, draws));
        let obs = tree_of(&batch.obs, &[], device);
        let noise = draws.noise(0);
        let fractions = draws.fractions(0, method.fractions().predicted);
        let outputs = method.outputs(&self.params, &obs, noise.as_ref(), fractions.as_ref());
        let taken = pick(&outputs, &actions_of(batch, device));
        let discounts = tensor_of(&batch.discounts, device);
        let errors = method.errors(&taken, fractions.as_ref(), &following, &returns, &discounts);
        let value = method.values(&taken.detach().unsqueeze(1));
        (errors, value.mean(Kind::Float))
    }
}

fn actions_of(batch: &TransitionBatch, device: Device) -> Tensor {
    tensor_of(&batch.actions, device).reshape([-1, 1])
}

impl<M: Method> Learner for ValueLearner<M> {
    fn update(&mut self, batch: Batch<'_>, progress: Progress) -> Result<Report, LearnError> {
        let Batch::Transitions(batch) = batch else {
            let wanted = "transitions";
            return Err(LearnError::WrongBatch { wanted });
        };
        let draws = self.draw(batch.size());
        let (errors, value) = self.errors(batch, &draws);
        let weights = tensor_of(&batch.weights, self.device);
        let loss = (errors.losses * weights).mean(Kind::Float);

        let gradient = self.params.gradient(&loss);
        let limit = self.config.clip_norm.unwrap_or(f64::INFINITY);
        let (gradient, norm) = clip_global_norm(gradient, limit);
        let learning_rate = self.config.learning_rate.at(progress.fraction());
        self.optimizer
            .step(self.params.flat(), &gradient, learning_rate);
        self.updates += 1;
        let every = self.config.target_every_updates;
        if self.updates.is_multiple_of(every) {
            self.target.blend(&self.params, self.config.target_tau);
        }

        let priorities = errors.priorities.detach();
        // One copy from the device for all numbers.
        let surprise = priorities.mean(Kind::Float);
        let numbers = array_of(&Tensor::stack(&[loss, surprise, value, norm], 0));
        let numbers = numbers.as_slice::<f32>();
        let mut metrics = vec![
            ("loss", f64::from(numbers[0])),
            ("td_error", f64::from(numbers[1])),
            ("q_value", f64::from(numbers[2])),
            ("grad_norm", f64::from(numbers[3])),
            ("learning_rate", learning_rate),
        ];
        if self.config.epsilon_ladder.is_none() {
            let epsilon = self.config.decayed_epsilon(progress.env_steps);
            metrics.push(("epsilon", epsilon));
        }
        let priorities = self.config.priority.is_some().then(|| {
            let priorities = array_of(&priorities);
            priorities.as_slice::<f32>().to_vec()
        });
        Report::checked(metrics, priorities)
    }

    fn weights(&self) -> Vec<f32> {
        self.params.to_vec()
    }

    fn save(&self) -> Saved {
        let params = [("params", &self.params), ("target", &self.target)];
        let mut saved = save_learner(&params, &self.optimizer, &self.rng);
        let updates = Array::from_slice(&[self.updates as i64], &[1]);
        saved.insert("updates".into(), updates);
        saved
    }

    fn load(&mut self, saved: &Saved) -> Result<(), LearnError> {
        let params = [("params", &mut self.params), ("target", &mut self.target)];
        load_learner(saved, params, &mut self.optimizer, &mut self.rng)?;
        let updates = saved.get("updates");
        let updates = updates.and_then(|array| array.as_slice::<i64>().first());
        let missing = || LearnError::Saved("'updates' is missing".into());
        self.updates = *updates.ok_or_else(missing)? as u64;
        Ok(())
    }
}
