//! What a policy keeps from step to step besides its LSTM state: the last action and reward, if
//! they are inputs of the network, and the discounted return so far, if returns are normalised.
//!
//! Both can be computed from the rollout. The policy computes them when a rollout is full, for the
//! beginning of the next; the learner computes them for all rows.

use starling_envs::Rollout;
use starling_nets::{Descent, LastInput, RunningNorm, Tensor, array_of};
use starling_tree::{Array, DType, Spec, Tree};

use super::Model;
use super::batch::Whole;
use crate::LearnError;

/// The encoded last action and reward.
pub(super) const LAST: &str = "last";

/// The discounted return so far.
const RETURN: &str = "return";

/// Rewards are divided by the running deviation of discounted returns.
#[derive(Clone, Debug)]
pub(super) struct ReturnScale {
    pub(super) norm: RunningNorm,
    pub(super) gamma: f32,
}

/// Everything a policy carries from step to step; what belongs to the network comes first.
pub(super) fn spec(model: &Model) -> Tree<Spec> {
    let leaf = |name: &str, size| (name.to_owned(), Tree::Leaf(Spec::new(DType::F32, &[size])));
    let mut parts = match model.net.state_spec() {
        Tree::Node(parts) => parts,
        Tree::Leaf(_) => Vec::new(),
    };
    let last = model.net.last.as_ref();
    parts.extend(last.map(|last| leaf(LAST, last.size)));
    parts.extend(model.returns.as_ref().map(|_| leaf(RETURN, 1)));
    Tree::Node(parts)
}

/// Advances the memory to the end of a full rollout.
pub(super) fn remember(model: &Model, rollout: &Rollout, state: &mut Tree<Array>) {
    if let (Some(last), Some(memory)) = (&model.net.last, column_mut(state, LAST)) {
        for (b, encoded) in memory.chunks_mut(last.size).enumerate() {
            encode_last(last, rollout, rollout.steps(), b, encoded);
        }
    }
    if let (Some(scale), Some(memory)) = (&model.returns, column_mut(state, RETURN)) {
        let envs = rollout.envs();
        let ends = ends(rollout);
        if let Some(before) = column(&rollout.state, RETURN) {
            memory.copy_from_slice(before);
        }
        for (i, reward) in rollout.rewards.as_slice::<f32>().iter().enumerate() {
            let sum = &mut memory[i % envs];
            *sum = if ends[i] {
                0.0
            } else {
                *sum * scale.gamma + reward
            };
        }
    }
}

/// What environment `b` did before row `t` of a rollout, and what came of it.
pub(super) fn encode_last(
    last: &LastInput,
    rollout: &Rollout,
    t: usize,
    b: usize,
    encoded: &mut [f32],
) {
    let Some(before) = t.checked_sub(1) else {
        let first = column(&rollout.state, LAST).unwrap_or_default();
        encoded.copy_from_slice(&first[b * last.size..(b + 1) * last.size]);
        return;
    };
    let at = [before, b];
    let ended = [&rollout.terminated, &rollout.truncated];
    if ended.iter().any(|flags| flags.at(&at).bytes[0] != 0) {
        encoded.fill(0.0);
    } else {
        let reward = rollout.rewards.at(&at).as_slice::<f32>()[0];
        last.encode(rollout.actions.at(&at), reward, encoded);
    }
}

/// What all environments of a batch did before each of its T + 1 rows.
pub(super) fn last_rows(last: &LastInput, rollouts: &[&Rollout]) -> Vec<f32> {
    let steps = rollouts.first().map_or(0, |rollout| rollout.steps());
    let envs: usize = rollouts.iter().map(|rollout| rollout.envs()).sum();
    let mut rows = vec![0.0; (steps + 1) * envs * last.size];
    let mut items = rows.chunks_mut(last.size);
    for t in 0..=steps {
        for rollout in rollouts {
            for (b, encoded) in items.by_ref().take(rollout.envs()).enumerate() {
                encode_last(last, rollout, t, b, encoded);
            }
        }
    }
    rows
}

impl ReturnScale {
    /// Takes the returns of a batch into the statistics, and scales its rewards.
    pub(super) fn apply(&self, descent: &mut Descent, whole: &mut Whole) -> Result<(), LearnError> {
        let envs = whole.envs;
        let mut sums = column(&whole.state, RETURN).unwrap_or_default().to_vec();
        let rewards = whole.rewards.as_slice::<f32>();
        let mut returns = Vec::with_capacity(rewards.len());
        for (i, reward) in rewards.iter().enumerate() {
            let sum = &mut sums[i % envs];
            *sum = *sum * self.gamma + reward;
            returns.push(*sum);
            if whole.ends[i] {
                *sum = 0.0;
            }
        }
        let device = descent.device();
        let returns = Tensor::from_slice(&returns)
            .reshape([-1, 1])
            .to_device(device);
        let seen = self.norm.moments(&returns);
        descent.observe(&[(self.norm.clone(), seen)])?;
        let rewards = Tensor::from_slice(rewards).to_device(device);
        let shape = whole.rewards.shape().to_vec();
        let scaled = self.norm.scale(descent.params(), &rewards);
        whole.rewards = array_of(&scaled).reshaped(&shape);
        Ok(())
    }
}

fn ends(rollout: &Rollout) -> Vec<bool> {
    let terminated = rollout.terminated.as_slice::<u8>().iter();
    let flags = terminated.zip(rollout.truncated.as_slice::<u8>());
    flags.map(|(a, b)| a | b != 0).collect()
}

fn column<'a>(state: &'a Tree<Array>, name: &str) -> Option<&'a [f32]> {
    Some(state.get(name)?.leaf()?.as_slice())
}

fn column_mut<'a>(state: &'a mut Tree<Array>, name: &str) -> Option<&'a mut [f32]> {
    match state.get_mut(name)? {
        Tree::Leaf(array) => Some(array.as_mut_slice()),
        Tree::Node(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::Estimate;
    use super::super::batch::loaded;
    use super::*;
    use crate::{Policy as _, Spaces};
    use starling_envs::Space;
    use starling_nets::{Device, NetConfig, OptimizerConfig, Params};

    /// γ = ½, rewards 1, 2, −3, a return of 4 before, and an episode that ends with the second
    /// step: the returns so far are ½·4 + 1 = 3, ½·3 + 2 = 3.5 and, from 0, −3. Their mean is
    /// 1.16663 and their variance 8.72201 (beside the statistics' first values, which count for
    /// 0.0001 items), so that rewards are divided by 2.95331.
    #[test]
    fn returns_start_again_with_each_episode() {
        let (obs, action) = (Space::unbounded(&[1]), Space::Discrete { n: 2 });
        let spaces = Spaces {
            observation: obs.clone(),
            action: action.clone(),
            legal_actions: None,
            frame_stack: None,
        };
        let model = Model::new(&NetConfig::default(), &spaces, Some(0.5)).unwrap();
        let policy = model.policy(Device::Cpu);
        for flag in ["terminated", "truncated"] {
            let (records, state) = (policy.records(), policy.state());
            let mut rollout = Rollout::new(3, 1, &obs, &action, None, &records, &state);
            rollout.rewards = Array::from_slice(&[1f32, 2.0, -3.0], &[3, 1]);
            let ends = match flag {
                "terminated" => &mut rollout.terminated,
                _ => &mut rollout.truncated,
            };
            ends.as_mut_slice::<u8>()[1] = 1;
            rollout.keep_final(1, 0);
            column_mut(&mut rollout.state, RETURN).unwrap()[0] = 4.0;

            let mut rng = starling_envs::stream(1, "init", 0);
            let params = Params::init(&model.layout, &mut rng, Device::Cpu);
            let mut descent = Descent::new(params, OptimizerConfig::default(), None);
            let batch = loaded(&model, &mut descent, &[&rollout], Estimate::Vtrace, 0.5);
            let rewards = &batch.trace.rewards;
            let rewards = Vec::<f32>::try_from(rewards.reshape([-1])).unwrap();
            for (ours, expected) in rewards.iter().zip([0.338604, 0.677207, -1.015811]) {
                assert!((ours - expected).abs() < 1e-5, "{flag}: {rewards:?}");
            }
            let named = descent.params().named();
            let (_, mean) = named
                .iter()
                .find(|(name, _)| name == "returns.mean")
                .unwrap();
            assert!((mean.as_slice::<f32>()[0] - 1.166628).abs() < 1e-5);

            // The next rollout begins with the last return.
            let mut memory = Tree::zeros(&state, &[1]);
            remember(&model, &rollout, &mut memory);
            assert_eq!(column(&memory, RETURN).unwrap(), [-3.0], "{flag}");
        }
    }
}
