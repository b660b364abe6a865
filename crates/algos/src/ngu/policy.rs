//! Acting with the two values of an arm.

use starling_envs::Rollout;
use starling_nets::{Device, Params, ShapeMismatch, Snapshot, Tensor, no_grad};
use starling_tree::{DType, Spec, Tree};

use super::{MEMORIES, Memories, Ngu, arms, novelty, one_hot};
use crate::recurrent::{
    Compute, PassInputs, PassShape, Passed, Passes, begin, decide, keep, remember_reward,
};
use crate::{Acting, Part, Policy};

/// Acts by both values, and rewards what is new.
pub(super) struct Curious {
    algorithm: Ngu,
    params: Params,
    passes: Passes,
}

impl Curious {
    pub(super) fn new(algorithm: Ngu, device: Device) -> Self {
        let params = Params::zeros(&algorithm.layout, device);
        let (net, size) = (&algorithm.nets.extrinsic, algorithm.config.lstm);
        let shape = PassShape::new(net, &MEMORIES, size, algorithm.frame_stack, device);
        let shape = shape.keeping_rows();
        let (ngu, shared, betas) = (algorithm.clone(), params.share(), algorithm.betas(device));
        let compute = move || -> Compute {
            let (ngu, params, betas) = (ngu.clone(), shared.share(), betas.shallow_clone());
            Box::new(move |inputs: &PassInputs| mixed(&ngu, &params, &betas, inputs))
        };
        Self {
            passes: Passes::new(shape, compute),
            params,
            algorithm,
        }
    }
}

/// Mixed values of environments that play arms with these weights of intrinsic values, `[arms]`.
fn mixed(ngu: &Ngu, params: &Params, betas: &Tensor, inputs: &PassInputs) -> Passed {
    let told = one_hot(inputs.arms(), ngu.config.arms);
    let input = inputs.seen(Some(told));
    let memories = Memories {
        extrinsic: (inputs.memory(0), inputs.memory(1)),
        intrinsic: (inputs.memory(2), inputs.memory(3)),
    };
    no_grad(|| {
        let (values, after) = ngu.nets.forward(params, &input, &memories);
        let beta = betas.index_select(0, inputs.arms()).unsqueeze(-1);
        Passed {
            values: values.mixed(&beta, &ngu.config).get(0),
            memories: after.parts().map(Tensor::shallow_clone).into(),
        }
    })
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

    fn load(&mut self, weights: &Snapshot) -> Result<(), ShapeMismatch> {
        self.params.load(weights)
    }

    fn act(&mut self, t: usize, rollout: &mut Rollout, acting: Acting<'_>) {
        self.act_together(t, 0, &mut [Part { rollout, acting }]);
    }

    fn act_together(&mut self, t: usize, group: usize, parts: &mut [Part<'_>]) {
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
        let (mut values, memories) = self.passes.run_to_host(t, group, parts, Some(&arms));
        let mut first = 0;
        for part in parts.iter_mut() {
            decide(t, part, &mut values, first, &self.algorithm.shared);
            first += part.acting.rngs.len();
        }
        keep(parts, &MEMORIES, &memories);
    }

    fn finish(&mut self, group: usize, parts: &mut [Part<'_>]) {
        for Part { rollout, acting } in parts.iter_mut() {
            remember_reward(rollout, rollout.steps() - 1, acting.state);
        }
        if !parts.iter().any(|part| part.acting.explore) {
            return;
        }
        let (ngu, shown) = (&self.algorithm, self.passes.shown(group, parts));
        novelty::reward(ngu, &self.params, shown, parts);
        for Part { rollout, acting } in parts {
            arms::reward(rollout, acting.state, &ngu.config);
        }
    }
}
