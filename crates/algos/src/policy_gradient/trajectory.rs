//! Whole trajectories of some environments, the input of V-trace.

use starling_nets::{ActorCriticOutput, Kind, Params, Tensor};
use starling_tree::Tree;

use super::{Model, Prepared};
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
pub(crate) struct TrajectoryOutput {
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
    pub(crate) fn judge(&self, model: &Model, params: &Params) -> TrajectoryOutput {
        let legal = self.legal.as_ref();
        let (steps, starts) = (self.steps + 1, &self.starts);
        let net = &model.net;
        let output = net.forward(params, &self.obs, legal, steps, starts, &self.state);
        let policy = output.policy.rows(0, self.rows());
        let shape = [self.steps as i64, self.envs as i64];
        TrajectoryOutput {
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
        judged: &TrajectoryOutput,
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

#[cfg(test)]
mod tests {
    use super::super::Estimate;
    use super::super::batch::loaded;
    use super::*;
    use crate::Spaces;
    use starling_envs::{Rollout, Space};
    use starling_nets::{Descent, Device, NetConfig, OptimizerConfig};
    use starling_tree::Array;

    /// A network without hidden layers with V(s) = s and a uniform policy over two actions.
    fn model() -> (Model, Descent) {
        let spaces = Spaces {
            observation: Space::unbounded(&[1]),
            action: Space::Discrete { n: 2 },
            legal_actions: None,
            frame_stack: None,
        };
        let config = NetConfig {
            hidden: Some(vec![]),
            ..NetConfig::default()
        };
        let model = Model::new(&config, &spaces, None).unwrap();
        let params = Params::zeros(&model.layout, Device::Cpu);
        // The policy's weights and biases, then the value's.
        params.load_slice(&[0.0, 0.0, 0.0, 0.0, 1.0, 0.0]).unwrap();
        let descent = Descent::new(params, OptimizerConfig::default(), None);
        (model, descent)
    }

    /// Three steps of one environment with these observations and rewards.
    fn rollout(model: &Model, seen: [f32; 4], rewards: [f32; 3]) -> Rollout {
        use crate::Policy as _;
        let (obs, action) = (Space::unbounded(&[1]), Space::Discrete { n: 2 });
        let records = model.policy(Device::Cpu).records();
        let mut rollout = Rollout::new(3, 1, &obs, &action, None, &records, &Tree::empty());
        rollout.obs = Tree::Leaf(Array::from_slice(&seen, &[4, 1, 1]));
        rollout.rewards = Array::from_slice(&rewards, &[3, 1]);
        for (name, values) in [("value", &seen[..3]), ("log_prob", &[0.5f32.ln(); 3])] {
            let Some(Tree::Leaf(column)) = rollout.policy.get_mut(name) else {
                panic!("the policy records its {name}");
            };
            column.as_mut_slice::<f32>().copy_from_slice(values);
        }
        rollout
    }

    const NO_CLIPS: RhoClips = RhoClips {
        rho: None,
        c: None,
        pg_rho: None,
        lambda: 1.0,
    };

    /// Returns and advantages `[T, B]` as A2C and PPO see them, and as IMPALA and APPO do.
    fn both(rollouts: &[&Rollout]) -> [[Vec<f32>; 2]; 2] {
        let (model, mut descent) = model();
        let numbers = |tensor: &Tensor| Vec::<f32>::try_from(tensor.reshape([-1])).unwrap();
        let prepared = loaded(&model, &mut descent, rollouts, Estimate::Gae(1.0), 0.5);
        let of_gae = [&prepared.returns, &prepared.advantages].map(numbers);
        let prepared = loaded(&model, &mut descent, rollouts, Estimate::Vtrace, 0.5);
        let whole = Trajectory::whole(&prepared);
        let judged = whole.judge(&model, descent.params());
        let (corrected, rho) = whole.correct(&judged, None, NO_CLIPS);
        assert!((rho.double_value(&[]) - 1.0).abs() < 1e-6);
        [
            of_gae,
            [&corrected.targets, &corrected.advantages].map(numbers),
        ]
    }

    fn close(ours: &[f32], expected: &[f32]) {
        assert_eq!(ours.len(), expected.len());
        for (ours_one, expected_one) in ours.iter().zip(expected) {
            let error = (ours_one - expected_one).abs();
            assert!(error < 1e-5, "{ours:?} is not {expected:?}");
        }
    }

    /// Two environments, γ = ½, on-policy. The first sees 1 everywhere and gets nothing: backwards
    /// its returns are ½, ¼ and ⅛. The second sees 1, 2, 3, 4 with rewards of 1: without an end
    /// 1 + ½·4 = 3, then 2.5 and 2.25. Its episode is truncated with the second step at the
    /// observation 10: 1 + ½·10 = 6, and 1 + ½·6 = 4 before it. Terminated there: 1 and 1.5.
    #[test]
    fn truncated_episodes_bootstrap_from_their_final_observation() {
        let (model, _) = model();
        let quiet = rollout(&model, [1.0; 4], [0.0; 3]);
        let mut ending = rollout(&model, [1.0, 2.0, 3.0, 4.0], [1.0; 3]);
        let check = |ending: &Rollout, returns: [f32; 3]| {
            let interleaved = [0.125, returns[0], 0.25, returns[1], 0.5, returns[2]];
            let values = [1.0, 1.0, 1.0, 2.0, 1.0, 3.0];
            let pairs = interleaved.iter().zip(values);
            let advantages: Vec<f32> = pairs.map(|(return_, value)| return_ - value).collect();
            for [found_returns, found_advantages] in both(&[&quiet, ending]) {
                close(&found_returns, &interleaved);
                close(&found_advantages, &advantages);
            }
        };
        check(&ending, [2.25, 2.5, 3.0]);
        ending.truncated.as_mut_slice::<u8>()[1] = 1;
        ending.final_at = vec![(1, 0)];
        ending.final_obs = Tree::Leaf(Array::from_slice(&[10f32], &[1, 1]));
        check(&ending, [4.0, 6.0, 3.0]);
        ending.terminated.as_mut_slice::<u8>()[1] = 1;
        check(&ending, [1.5, 1.0, 3.0]);
    }
}
