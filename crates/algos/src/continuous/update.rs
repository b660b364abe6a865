//! What an update computes: a gradient step of the critics, possibly one of the actor and of α, and
//! a step of the target networks.

use std::sync::Arc;

use starling_nets::{Kind, Mover, Params, QofAction, Tensor, UnitScale};

use super::temperature::TemperatureStep;
use super::{Method, Nets, TransitionValues, Transitions};
use crate::staged::TransitionColumns;

/// What an update reports, in order; the last four only if the actor took a step, and the last two
/// only of stochastic actors.
pub(super) const NUMBERS: [&str; 8] = [
    "loss",
    "td_error",
    "q_value",
    "grad_norm",
    "actor_loss",
    "actor_grad_norm",
    "entropy",
    "alpha",
];

/// A batch on the device, and the random numbers of its update, always in the same memory.
pub(super) struct Columns {
    pub(super) transitions: TransitionColumns,
    pub(super) weights: Tensor,
    /// Standard normal numbers, `[2, N, A]`: for the next actions, and for the actor's step.
    pub(super) noise: Tensor,
}

/// Which steps belong to an update besides that of the critics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Steps {
    pub(super) actor: bool,
    pub(super) targets: bool,
}

/// What an update leaves behind.
pub(super) struct Outcome {
    /// As [`NUMBERS`] names them.
    pub(super) numbers: Tensor,
    /// `[N]`.
    pub(super) priorities: Tensor,
}

/// Everything that an update reads and changes.
pub(super) struct Update<M> {
    pub(super) method: Arc<M>,
    pub(super) q: QofAction,
    pub(super) unit: UnitScale,
    pub(super) critics: Mover,
    pub(super) actor: Mover,
    /// The same critics without gradients.
    pub(super) frozen_critics: Params,
    pub(super) target_critics: Option<Params>,
    pub(super) target_actor: Option<Params>,
    /// The actor or its target network, without gradients.
    pub(super) next_actor: Params,
    pub(super) temperature: TemperatureStep,
    pub(super) tau: f64,
}

impl<M: Method> Update<M> {
    /// The whole update, where no other learner has to be asked in between.
    pub(super) fn whole(&self, columns: &Columns, steps: Steps) -> Outcome {
        let (mut numbers, priorities) = self.differentiate_critics(columns);
        numbers.push(self.critics.apply());
        if steps.actor {
            let (of_actor, log_prob) = self.differentiate_actor(columns);
            let norm = self.actor.apply();
            numbers.extend(in_order(of_actor, norm));
            if let Some(log_prob) = log_prob {
                self.temperature.step(&log_prob);
            }
        }
        if steps.targets {
            self.follow();
        }
        Outcome {
            numbers: Tensor::stack(&numbers, 0),
            priorities,
        }
    }

    /// The gradient of the critics' loss. Returns the first three of [`NUMBERS`], and priorities.
    pub(super) fn differentiate_critics(&self, columns: &Columns) -> (Vec<Tensor>, Tensor) {
        let seen = Transitions {
            obs: &columns.transitions.obs,
            actions: &self.unit.apply(&columns.transitions.actions),
            next_obs: &columns.transitions.next_obs,
            noise: &columns.noise.get(0),
        };
        let params = self.critics.params();
        let TransitionValues { values, following } =
            self.with(|nets| self.method.evaluate(nets, params, &seen));
        let targets = &columns.transitions.returns + &columns.transitions.discounts * following;
        let (loss, errors) = critic_loss(&values, &targets, &columns.weights);
        self.critics.differentiate(&loss);
        let priorities = errors.mean_dim([0].as_slice(), false, Kind::Float);
        let (surprise, value) = (priorities.mean(Kind::Float), values.mean(Kind::Float));
        (vec![loss.detach(), surprise, value.detach()], priorities)
    }

    /// The gradient of the actor's loss. Returns the loss, and of a stochastic actor its entropy and
    /// α; and the mean log-probability of its actions.
    pub(super) fn differentiate_actor(&self, columns: &Columns) -> (Vec<Tensor>, Option<Tensor>) {
        self.with(|nets| {
            let (params, noise) = (self.actor.params(), columns.noise.get(1));
            let found = self
                .method
                .actor_loss(nets, params, &columns.transitions.obs, &noise);
            self.actor.differentiate(&found.loss);
            let mut numbers = vec![found.loss.detach()];
            let log_prob = found.log_prob.map(|log_prob| log_prob.detach());
            if let Some(log_prob) = &log_prob {
                numbers.extend([-log_prob, nets.alpha.shallow_clone()]);
            }
            (numbers, log_prob)
        })
    }

    /// Moves the target networks.
    pub(super) fn follow(&self) {
        if let Some(target) = &self.target_critics {
            target.blend(self.critics.params(), self.tau);
        }
        if let Some(target) = &self.target_actor {
            target.blend(self.actor.params(), self.tau);
        }
    }

    fn with<T>(&self, compute: impl FnOnce(&Nets<'_>) -> T) -> T {
        compute(&Nets {
            q: &self.q,
            critics: &self.frozen_critics,
            target_critics: self.target_critics.as_ref().unwrap_or(&self.frozen_critics),
            next_actor: &self.next_actor,
            alpha: &self.temperature.alpha(),
        })
    }
}

/// What [`Update::differentiate_actor`] returned and the norm of the gradient, as [`NUMBERS`] names
/// them.
pub(super) fn in_order(of_actor: Vec<Tensor>, norm: Tensor) -> Vec<Tensor> {
    let mut numbers = of_actor;
    numbers.insert(1, norm);
    numbers
}

/// The sum over critics of the mean of half squared errors of values `[C, N]`, weighted by
/// `weights` `[N]`; and absolute errors `[C, N]`.
fn critic_loss(values: &Tensor, targets: &Tensor, weights: &Tensor) -> (Tensor, Tensor) {
    let errors = values - targets;
    let losses = errors.square() * 0.5 * weights;
    let critics = values.size()[0] as f64;
    (losses.mean(Kind::Float) * critics, errors.detach().abs())
}
