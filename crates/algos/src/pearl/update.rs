//! What an update computes: a gradient step of the critics and the encoder, one of the value network
//! and its target, and one of the actor.

use std::sync::Arc;

use starling_nets::{Kind, Mover, Params, SquashedGaussian, Tensor, UnitScale, no_grad};

use super::networks::Networks;
use super::{Config, actor_loss, critic_loss, divergence, product_of_gaussians, value_loss};
use crate::staged::TransitionColumns;

/// What an update reports, in order.
pub(super) const NUMBERS: [&str; 11] = [
    "loss",
    "td_error",
    "q_value",
    "kl",
    "z_std",
    "grad_norm",
    "value_loss",
    "value_grad_norm",
    "actor_loss",
    "entropy",
    "actor_grad_norm",
];

/// A batch on the device, and the random numbers of its update, always in the same memory. M tasks
/// with B transitions each come first, then C of each as context.
pub(super) struct Columns {
    /// Returns are the rewards.
    pub(super) transitions: TransitionColumns,
    /// Standard normal numbers `[M, L]` for z.
    pub(super) z_noise: Tensor,
    /// Standard normal numbers `[M·B, A]` for actions.
    pub(super) action_noise: Tensor,
    /// The z of every task, `[M, L]`, as the step of the critics drew it: later steps read it.
    pub(super) z: Tensor,
    /// Learners whose gradients are averaged, a scalar.
    pub(super) learners: Tensor,
}

/// Everything that an update reads and changes.
pub(super) struct Update {
    pub(super) config: Arc<Config>,
    pub(super) networks: Arc<Networks>,
    pub(super) unit: UnitScale,
    pub(super) critics: Mover,
    pub(super) value: Mover,
    pub(super) actor: Mover,
    /// The same critics without gradients.
    pub(super) frozen_critics: Params,
    pub(super) target_value: Params,
}

/// The transitions that are learned from.
struct Transitions {
    obs: Tensor,
    actions: Tensor,
    next_obs: Tensor,
    rewards: Tensor,
    discounts: Tensor,
}

/// Actions of the actor at the observations that are learned from.
pub(super) struct Proposed {
    policy: SquashedGaussian,
    /// `[M·B]`.
    log_probs: Tensor,
    /// `[2, M·B]`.
    values: Tensor,
}

impl Update {
    /// The whole update, where no other learner has to be asked in between. Returns what
    /// [`NUMBERS`] names.
    pub(super) fn whole(&self, columns: &Columns) -> Tensor {
        let mut numbers = self.differentiate_critics(columns);
        numbers.push(self.critics.apply());
        let proposed = self.propose(columns);
        numbers.extend(self.differentiate_value(columns, &proposed));
        numbers.push(self.value.apply());
        self.follow();
        numbers.extend(self.differentiate_actor(&proposed));
        numbers.push(self.actor.apply());
        Tensor::stack(&numbers, 0)
    }

    /// The gradient of the critics' loss and of the KL divergence, with respect to critics and
    /// encoder. Draws z.
    pub(super) fn differentiate_critics(&self, columns: &Columns) -> Vec<Tensor> {
        let params = self.critics.params();
        let (z, kl, z_std) = self.draw_z(params, columns);
        no_grad(|| columns.z.shallow_clone().copy_(&z));
        let seen = self.transitions(columns);
        let z = self.per_transition(&z);
        let following = no_grad(|| {
            let value = self.networks.v(&self.target_value, &seen.next_obs, &z);
            seen.rewards * self.config.reward_scale + seen.discounts * value
        });
        let values = self.networks.q(params, &seen.obs, &seen.actions, &z);
        let (loss, errors) = critic_loss(&values, &following);
        // The divergence is a sum over tasks: averaged over a group, it is that of all its tasks only
        // if each counts as often as there are learners.
        let divergence = &kl * self.config.kl_weight * &columns.learners;
        self.critics.differentiate(&(&loss + divergence));
        let mean = |x: &Tensor| x.detach().mean(Kind::Float);
        vec![
            loss.detach(),
            mean(&errors),
            mean(&values),
            kl.detach(),
            z_std,
        ]
    }

    /// What the actor would do, and what the critics think of it, with gradients for the actor.
    pub(super) fn propose(&self, columns: &Columns) -> Proposed {
        let (obs, z) = (self.obs(columns), self.per_transition(&columns.z));
        let policy = self.networks.policy(self.actor.params(), &obs, &z);
        let (actions, log_probs) = policy.sample(&columns.action_noise);
        let values = self.networks.q(&self.frozen_critics, &obs, &actions, &z);
        Proposed {
            policy,
            log_probs,
            values,
        }
    }

    /// The gradient of the value network's loss.
    pub(super) fn differentiate_value(
        &self,
        columns: &Columns,
        proposed: &Proposed,
    ) -> Vec<Tensor> {
        let (obs, z) = (self.obs(columns), self.per_transition(&columns.z));
        let values = self.networks.v(self.value.params(), &obs, &z);
        let loss = value_loss(&values, &proposed.values, &proposed.log_probs);
        self.value.differentiate(&loss);
        vec![loss.detach()]
    }

    /// The gradient of the actor's loss.
    pub(super) fn differentiate_actor(&self, proposed: &Proposed) -> Vec<Tensor> {
        let Proposed {
            policy,
            log_probs,
            values,
        } = proposed;
        let config = &self.config;
        let weights = (config.mean_weight, config.log_std_weight);
        let shape = (&policy.mean, &policy.log_std);
        let loss = actor_loss(values, log_probs, shape, weights);
        self.actor.differentiate(&loss);
        vec![loss.detach(), -log_probs.detach().mean(Kind::Float)]
    }

    /// Moves the target of the value network.
    pub(super) fn follow(&self) {
        let tau = self.config.target_tau;
        self.target_value.blend(self.value.params(), tau);
    }

    /// A z of every task `[M, L]` from its posterior, the KL divergence of the posteriors from the
    /// prior, and the mean of their deviations.
    fn draw_z(&self, params: &Params, columns: &Columns) -> (Tensor, Tensor, Tensor) {
        let (means, variances) = match self.networks.encode(params, &self.context(columns)) {
            Some(both) => both,
            None => {
                let none = columns.z_noise.shallow_clone();
                let zero = columns.transitions.returns.get(0) * 0.0;
                return (none, zero.shallow_clone(), zero);
            }
        };
        let shape = [self.config.meta_batch, self.config.context_batch].map(|n| n as i64);
        let shape = [shape[0], shape[1], self.networks.latent as i64];
        let (mean, variance) =
            product_of_gaussians(&means.reshape(shape), &variances.reshape(shape));
        let deviation = variance.sqrt();
        let z = &mean + &deviation * &columns.z_noise;
        let kl = divergence(&mean, &variance);
        (z, kl, deviation.detach().mean(Kind::Float))
    }

    /// Transitions of all tasks as the encoder sees them, `[M·C, context]`.
    fn context(&self, columns: &Columns) -> Tensor {
        let (first, count) = (self.learned(), self.config.meta_batch as i64);
        let count = count * self.config.context_batch as i64;
        if columns.transitions.returns.size()[0] <= first {
            // Without an encoder there is no context.
            return columns.transitions.returns.narrow(0, 0, 0);
        }
        let rows = |x: &Tensor| x.narrow(0, first, count);
        let (obs, next_obs) = (
            columns.transitions.obs.map(rows),
            columns.transitions.next_obs.map(rows),
        );
        let seen = &self.networks.seen;
        let obs = seen.of(&obs);
        let going_on = rows(&columns.transitions.discounts).ne(0.0);
        let mut rewards = rows(&columns.transitions.returns);
        if let Some(others) = seen.context_rewards(&next_obs) {
            rewards = others.where_self(&going_on, &rewards);
        }
        let actions = self.unit.apply(&rows(&columns.transitions.actions));
        let mut parts = vec![obs.shallow_clone(), actions, rewards.unsqueeze(1)];
        if self.networks.context.next_obs {
            // What follows the end of an episode is not known.
            let next = seen.of(&next_obs);
            parts.push(next.where_self(&going_on.unsqueeze(1), &obs));
        }
        Tensor::cat(&parts, 1)
    }

    /// Transitions that are learned from (M·B).
    fn learned(&self) -> i64 {
        (self.config.meta_batch * self.config.batch_size) as i64
    }

    fn obs(&self, columns: &Columns) -> Tensor {
        let rows = columns
            .transitions
            .obs
            .map(|x| x.narrow(0, 0, self.learned()));
        self.networks.seen.of(&rows)
    }

    fn transitions(&self, columns: &Columns) -> Transitions {
        let rows = |x: &Tensor| x.narrow(0, 0, self.learned());
        Transitions {
            obs: self.obs(columns),
            actions: self.unit.apply(&rows(&columns.transitions.actions)),
            next_obs: self
                .networks
                .seen
                .of(&columns.transitions.next_obs.map(rows)),
            rewards: rows(&columns.transitions.returns),
            discounts: rows(&columns.transitions.discounts),
        }
    }

    /// The z of its task for every transition, `[M·B, L]`.
    fn per_transition(&self, z: &Tensor) -> Tensor {
        let shape = [self.config.meta_batch, self.config.batch_size].map(|n| n as i64);
        let z = z.unsqueeze(1).expand([shape[0], shape[1], -1], false);
        z.reshape([shape[0] * shape[1], self.networks.latent as i64])
    }
}
