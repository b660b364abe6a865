//! A rollout as tensors for algorithms that correct for the age of its policy: nothing in it
//! depends on the learner's weights, so that one rollout serves several gradient steps.

use starling_envs::Rollout;
use starling_nets::{ActorCriticOutput, Device, Kind, Params, Tensor, no_grad, tensor_of, tree_of};
use starling_tree::{Array, Tree};

use crate::actor_critic::Model;

/// T steps of B environments as tensors.
#[derive(Debug)]
pub(crate) struct Trajectory {
    pub(crate) steps: usize,
    pub(crate) envs: usize,
    /// Observations, `[(T + 1)·B, ..]` in time-major order: the last B rows are what follows.
    obs: Tree<Tensor>,
    /// Legal actions of the same rows.
    legal: Option<Tensor>,
    /// Actions, `[T·B, ..]`.
    pub(crate) actions: Tensor,
    /// Log-probabilities under the policy that acted, `[T, B]`.
    pub(crate) log_probs: Tensor,
    /// Rewards, `[T, B]`.
    pub(crate) rewards: Tensor,
    /// γ, or 0 where the task ended, `[T, B]`.
    pub(crate) discounts: Tensor,
    /// 1 where the episode goes on with the next row, `[T, B]`.
    pub(crate) continues: Tensor,
    /// 1 where a row is the first of an episode, `[T + 1, B]`.
    starts: Tensor,
    /// Recurrent state before the first step, `[B, ..]`.
    state: Tree<Tensor>,
    /// Episodes that were cut off, if there are any.
    cut: Option<Cut>,
}

/// Episodes that were cut off.
#[derive(Debug)]
struct Cut {
    /// t·B + b of each, `[K]`.
    at: Tensor,
    /// Their last observations, `[K, ..]`.
    obs: Tree<Tensor>,
}

impl Trajectory {
    pub(crate) fn new(rollout: &Rollout, gamma: f64, device: Device) -> Self {
        let (steps, envs) = (rollout.steps(), rollout.envs());
        let shape = [steps as i64, envs as i64];
        let column = |values: &[f32]| Tensor::from_slice(values).reshape(shape).to_device(device);
        let terminated = rollout.terminated.as_slice::<u8>();
        let truncated = rollout.truncated.as_slice::<u8>();
        let flags = terminated.iter().zip(truncated);
        let continues: Vec<f32> = flags
            .map(|(&terminated, &truncated)| f32::from(u8::from(terminated | truncated == 0)))
            .collect();
        let discount = |&flag: &u8| if flag == 0 { gamma as f32 } else { 0.0 };
        let discounts: Vec<f32> = terminated.iter().map(discount).collect();
        let continues = column(&continues);
        // The state that comes with the rollout is zero already where an episode begins.
        let first = continues.narrow(0, 0, 1).zeros_like();
        let starts = Tensor::cat(&[first, 1.0 - &continues], 0);
        let whole = |array: &Array| tensor_of(array, device).flatten(0, 1);
        let log_probs = match rollout.policy.get("log_prob") {
            Some(Tree::Leaf(record)) => record.as_slice::<f32>(),
            _ => panic!("the rollout has no record called 'log_prob'"),
        };
        Self {
            steps,
            envs,
            obs: rollout.obs.map(whole),
            legal: rollout.legal.as_ref().map(whole),
            actions: whole(&rollout.actions),
            log_probs: column(log_probs),
            rewards: column(rollout.rewards.as_slice()),
            discounts: column(&discounts),
            continues,
            starts,
            state: tree_of(&rollout.state, &[], device),
            cut: Cut::of(rollout, device),
        }
    }

    /// What the network says about all T + 1 rows, with a graph for gradients.
    pub(crate) fn forward(&self, model: &Model, params: &Params) -> ActorCriticOutput {
        let legal = self.legal.as_ref();
        let (steps, starts) = (self.steps + 1, &self.starts);
        model
            .net
            .forward(params, &self.obs, legal, steps, starts, &self.state)
    }

    /// Values of the rows that actions were taken in and of what followed within the same
    /// episode, `[T, B]` each; the second without gradients.
    pub(crate) fn values(
        &self,
        model: &Model,
        params: &Params,
        output: &ActorCriticOutput,
    ) -> (Tensor, Tensor) {
        let (steps, envs) = (self.steps as i64, self.envs as i64);
        let values = output.value.reshape([steps + 1, envs]);
        let mut next = values.narrow(0, 1, steps).detach();
        if let Some(cut) = &self.cut {
            let count = cut.at.size()[0];
            let starts = Tensor::zeros([1, count], (Kind::Float, cut.at.device()));
            let bootstrap = no_grad(|| {
                let state = output.states.map(|states| states.index_select(0, &cut.at));
                let output = model
                    .net
                    .forward(params, &cut.obs, None, 1, &starts, &state);
                output.value
            });
            let flat = next.reshape([-1]).index_copy(0, &cut.at, &bootstrap);
            next = flat.reshape([steps, envs]);
        }
        (values.narrow(0, 0, steps), next)
    }

    /// The part of some environments, in the given order.
    pub(crate) fn select(&self, envs: &[i64]) -> Trajectory {
        let device = self.rewards.device();
        let chosen = Tensor::from_slice(envs).to_device(device);
        let rows = |tensor: &Tensor, steps: usize| {
            let shape = [steps as i64, self.envs as i64];
            let columns = tensor.unflatten(0, shape.as_slice());
            columns.index_select(1, &chosen).flatten(0, 1)
        };
        let column = |tensor: &Tensor| tensor.index_select(1, &chosen);
        Trajectory {
            steps: self.steps,
            envs: envs.len(),
            obs: self.obs.map(|tensor| rows(tensor, self.steps + 1)),
            legal: self.legal.as_ref().map(|mask| rows(mask, self.steps + 1)),
            actions: rows(&self.actions, self.steps),
            log_probs: column(&self.log_probs),
            rewards: column(&self.rewards),
            discounts: column(&self.discounts),
            continues: column(&self.continues),
            starts: column(&self.starts),
            state: self.state.map(|tensor| tensor.index_select(0, &chosen)),
            cut: self
                .cut
                .as_ref()
                .and_then(|cut| cut.select(envs, self.envs)),
        }
    }
}

impl Cut {
    fn of(rollout: &Rollout, device: Device) -> Option<Self> {
        let envs = rollout.envs();
        let terminated = rollout.terminated.as_slice::<u8>();
        let finals = rollout.final_at.iter().map(|(t, b)| t * envs + b);
        let cut = finals.enumerate().filter(|&(_, at)| terminated[at] == 0);
        let (rows, at): (Vec<i64>, Vec<i64>) = cut.map(|(row, at)| (row as i64, at as i64)).unzip();
        if at.is_empty() {
            return None;
        }
        let rows = Tensor::from_slice(&rows).to_device(device);
        let pick = |array: &Array| tensor_of(array, device).index_select(0, &rows);
        Some(Self {
            at: Tensor::from_slice(&at).to_device(device),
            obs: rollout.final_obs.map(pick),
        })
    }

    /// Those of some of the environments.
    fn select(&self, chosen: &[i64], envs: usize) -> Option<Self> {
        let (envs, count) = (envs as i64, chosen.len() as i64);
        let all = starling_nets::array_of(&self.at);
        let all = all.as_slice::<i64>().iter().enumerate();
        let kept = all.filter_map(|(row, at)| {
            let place = chosen.iter().position(|&env| env == at % envs)?;
            Some((row as i64, at / envs * count + place as i64))
        });
        let (rows, at): (Vec<i64>, Vec<i64>) = kept.unzip();
        if at.is_empty() {
            return None;
        }
        let device = self.at.device();
        let rows = Tensor::from_slice(&rows).to_device(device);
        Some(Self {
            at: Tensor::from_slice(&at).to_device(device),
            obs: self.obs.map(|tensor| tensor.index_select(0, &rows)),
        })
    }
}
