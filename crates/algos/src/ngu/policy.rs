//! Acting by both values of an arm.

use starling_envs::Rollout;
use starling_nets::{Device, Params, ShapeMismatch, Tensor, array_of, no_grad};
use starling_tree::{DType, Spec, Tree};

use super::{MEMORIES, Memories, Ngu, arms, novelty, one_hot};
use crate::recurrent::{begin, decide, keep, look, remember_reward, stored};
use crate::{Acting, Part, Policy};

/// Acts by both values, and rewards what is new.
pub(super) struct Curious {
    algorithm: Ngu,
    params: Params,
    /// Of every arm, `[arms]`.
    betas: Tensor,
    device: Device,
}

impl Curious {
    pub(super) fn new(algorithm: Ngu, device: Device) -> Self {
        Self {
            params: Params::zeros(&algorithm.layout, device),
            betas: algorithm.betas(device),
            algorithm,
            device,
        }
    }

    /// Mixed values `[B, A]` of row `t` of the rollouts side by side, whose environments play
    /// `arms`, and the memories after it.
    fn values(&self, t: usize, parts: &[Part<'_>], arms: &[i64]) -> (Tensor, Memories) {
        let (nets, device) = (&self.algorithm.nets, self.device);
        let config = &self.algorithm.config;
        let arms = Tensor::from_slice(arms).to_device(device);
        let told = one_hot(&arms, config.arms);
        let input = look(t, parts, &nets.extrinsic, Some(told), device);
        let memories = Memories::from(|name| stored(parts, name, &[config.lstm], device));
        let (values, after) = no_grad(|| nets.forward(&self.params, &input, &memories));
        let beta = self.betas.index_select(0, &arms).unsqueeze(-1);
        (values.mixed(&beta, config).get(0), after)
    }
}

impl Policy for Curious {
    fn records(&self) -> Tree<Spec> {
        let config = &self.algorithm.config;
        let mut records = vec![
            ("arm", Tree::Leaf(Spec::scalar(DType::I64))),
            ("intrinsic", Tree::Leaf(Spec::scalar(DType::F32))),
        ];
        if config.sequence.state_interval_steps > 0 {
            let spec = || Tree::Leaf(Spec::new(DType::F32, &[config.lstm]));
            records.push(("state", Tree::node(MEMORIES.map(|name| (name, spec())))));
        }
        Tree::node(records)
    }

    fn state(&self) -> Tree<Spec> {
        let config = &self.algorithm.config;
        let actions = self.algorithm.nets.extrinsic.actions();
        let spec = |dtype, shape: &[usize]| Tree::Leaf(Spec::new(dtype, shape));
        let floats = |shape: &[usize]| spec(DType::F32, shape);
        let mut parts: Vec<(&str, Tree<Spec>)> = MEMORIES
            .iter()
            .map(|&name| (name, floats(&[config.lstm])))
            .collect();
        parts.extend([
            ("action", floats(&[actions])),
            ("reward", floats(&[])),
            ("arm", spec(DType::I64, &[])),
            ("score", floats(&[])),
            ("pulls", floats(&[config.bandit_episodes, 2])),
            ("pulled", spec(DType::I64, &[])),
            (
                "places",
                floats(&[config.episodic.memory_steps, config.embedding]),
            ),
            ("visited", spec(DType::I64, &[])),
            ("distance", floats(&[2])),
        ]);
        Tree::node(parts)
    }

    fn load(&mut self, weights: &[f32]) -> Result<(), ShapeMismatch> {
        self.params.load_slice(weights)
    }

    fn act(&mut self, t: usize, rollout: &mut Rollout, acting: Acting<'_>) {
        self.act_together(t, 0, &mut [Part { rollout, acting }]);
    }

    fn act_together(&mut self, t: usize, _group: usize, parts: &mut [Part<'_>]) {
        if parts.is_empty() {
            return;
        }
        begin(t, parts);
        let mut arms = Vec::new();
        for part in parts.iter_mut() {
            let own = arms::choose(part, &self.algorithm.config);
            if let Some(Tree::Leaf(column)) = part.rollout.policy.get_mut("arm") {
                column.at_mut(&[t]).write(&own);
            }
            arms.extend(own);
        }
        let (values, after) = self.values(t, parts, &arms);
        let mut values = array_of(&values);
        let mut first = 0;
        for part in parts.iter_mut() {
            decide(t, part, &mut values, first, &self.algorithm.shared);
            first += part.acting.rngs.len();
        }
        for (name, state) in MEMORIES.iter().zip(after.parts()) {
            keep(parts, name, &array_of(state));
        }
    }

    fn finish(&mut self, _group: usize, parts: &mut [Part<'_>]) {
        for Part { rollout, acting } in parts {
            remember_reward(rollout, rollout.steps() - 1, acting.state);
            if acting.explore {
                let (ngu, params) = (&self.algorithm, &self.params);
                novelty::reward(ngu, params, self.device, rollout, acting.state);
                arms::reward(rollout, acting.state, &ngu.config);
            }
        }
    }
}
