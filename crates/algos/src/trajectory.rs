//! Whole trajectories of some environments, as V-trace looks at them.

use starling_nets::{ActorCriticOutput, Kind, Params, Tensor};
use starling_tree::Tree;

use crate::actor_critic::{Model, Prepared};
use crate::impala::RewardClipping;
use crate::ops::{RhoClips, Trajectories, Vtrace, vtrace};

/// T steps of some environments as tensors: views of a [`Prepared`], or a choice of it.
#[derive(Debug)]
pub(crate) struct Trajectory {
    steps: usize,
    envs: usize,
    /// Observations `[(T + 1)·B, ..]` in time-major order: the last B rows are what follows.
    obs: Tree<Tensor>,
    legal: Option<Tensor>,
    /// Actions `[T·B, ..]`.
    pub(crate) actions: Tensor,
    /// Log-probabilities under the policy that acted, `[T, B]`.
    pub(crate) log_probs: Tensor,
    rewards: Tensor,
    discounts: Tensor,
    continues: Tensor,
    cut: Tensor,
    cut_values: Tensor,
    starts: Tensor,
    state: Tree<Tensor>,
}

/// What the network says about a trajectory, `[T, B]` each but the policy.
pub(crate) struct Judged {
    /// Policy and recurrent states of all `(T + 1)·B` rows.
    pub(crate) output: ActorCriticOutput,
    /// Log-probabilities of the actions.
    pub(crate) log_probs: Tensor,
    /// Entropies of the policy.
    pub(crate) entropy: Tensor,
    /// Values of the states that the actions were taken in.
    pub(crate) values: Tensor,
}

impl Trajectory {
    /// The trajectories of all environments of a batch.
    pub(crate) fn whole(prepared: &Prepared) -> Self {
        let (steps, envs) = (prepared.steps, prepared.envs);
        let shape = [steps as i64, envs as i64];
        let trace = &prepared.trace;
        Self {
            steps,
            envs,
            obs: prepared.rows.map(|rows| rows.flatten(0, 1)),
            legal: trace.legal.as_ref().map(Tensor::shallow_clone),
            actions: prepared.actions.shallow_clone(),
            log_probs: prepared.log_probs.view(shape),
            rewards: trace.rewards.shallow_clone(),
            discounts: trace.discounts.shallow_clone(),
            continues: trace.continues.shallow_clone(),
            cut: trace.cut.shallow_clone(),
            cut_values: trace.cut_values.shallow_clone(),
            starts: trace.starts.shallow_clone(),
            state: prepared.state.map(Tensor::shallow_clone),
        }
    }

    /// Those of the environments with these numbers, in this order.
    pub(crate) fn select(&self, chosen: &Tensor) -> Self {
        let rows = |tensor: &Tensor, steps: usize| {
            let shape = [steps as i64, self.envs as i64];
            let columns = tensor.unflatten(0, shape.as_slice());
            columns.index_select(1, chosen).flatten(0, 1)
        };
        let column = |tensor: &Tensor| tensor.index_select(1, chosen);
        Self {
            steps: self.steps,
            envs: chosen.numel(),
            obs: self.obs.map(|tensor| rows(tensor, self.steps + 1)),
            legal: self.legal.as_ref().map(|mask| rows(mask, self.steps + 1)),
            actions: rows(&self.actions, self.steps),
            log_probs: column(&self.log_probs),
            rewards: column(&self.rewards),
            discounts: column(&self.discounts),
            continues: column(&self.continues),
            cut: column(&self.cut),
            cut_values: column(&self.cut_values),
            starts: column(&self.starts),
            state: self.state.map(|tensor| tensor.index_select(0, chosen)),
        }
    }

    /// T·B.
    pub(crate) fn rows(&self) -> usize {
        self.steps * self.envs
    }

    /// What the network says now, with a graph for gradients.
    pub(crate) fn judge(&self, model: &Model, params: &Params) -> Judged {
        let legal = self.legal.as_ref();
        let (steps, starts) = (self.steps + 1, &self.starts);
        let net = &model.net;
        let output = net.forward(params, &self.obs, legal, steps, starts, &self.state);
        let policy = output.policy.rows(0, self.rows());
        let shape = [self.steps as i64, self.envs as i64];
        Judged {
            log_probs: policy.log_prob(&self.actions).reshape(shape),
            entropy: policy.entropy().reshape(shape),
            values: output.value.narrow(0, 0, self.rows() as i64).reshape(shape),
            output,
        }
    }

    /// V-trace's targets and advantages under that judgement, and the mean importance weight.
    #[expect(
        clippy::expect_used,
        reason = "all columns of a trajectory have one shape"
    )]
    pub(crate) fn correct(
        &self,
        judged: &Judged,
        clipping: Option<RewardClipping>,
        clips: RhoClips,
    ) -> (Vtrace, Tensor) {
        let (steps, envs) = (self.steps as i64, self.envs as i64);
        let following = judged.output.value.detach();
        let following = following
            .narrow(0, envs, steps * envs)
            .reshape([steps, envs]);
        let next_values = &following + (&self.cut_values - &following) * &self.cut;
        let rewards = match clipping {
            Some(clipping) => clipping.apply(&self.rewards),
            None => self.rewards.shallow_clone(),
        };
        let log_rhos = (&judged.log_probs - &self.log_probs).detach();
        let trajectories = Trajectories {
            log_rhos: &log_rhos,
            discounts: &self.discounts,
            rewards: &rewards,
            values: &judged.values,
            next_values: &next_values,
            continues: &self.continues,
        };
        let corrected = vtrace(&trajectories, clips).expect("one shape");
        (corrected, log_rhos.exp().mean(Kind::Float))
    }
}
