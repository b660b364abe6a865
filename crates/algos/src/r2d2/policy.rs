//! Acting with recurrent action values.

use std::collections::BTreeMap;

use starling_envs::Rollout;
use starling_nets::{
    Device, Params, ShapeMismatch, Snapshot, Tensor, array_of, no_grad, tensor_of_view,
};
use starling_tree::{DType, Spec, Tree};

use super::R2d2;
use crate::ops::Next;
use crate::recurrent::{
    Compute, Decided, PassInputs, PassShape, Passed, Passes, begin, decide, keep, remember_reward,
};
use crate::value_based::{ahead, mask};
use crate::{Acting, Part, Policy};

/// Names of the recurrent states in a policy's memory.
const MEMORIES: &[&str] = &["hidden", "cell"];

/// Acts greedily, or with probability ε at random.
pub(super) struct Remembering {
    algorithm: R2d2,
    params: Params,
    device: Device,
    passes: Passes,
    /// What was predicted, row by row, for the rollout whose first environment has the number;
    /// only if the actor gives priorities.
    trace: BTreeMap<usize, Vec<Decided>>,
}

impl Remembering {
    pub(super) fn new(algorithm: R2d2, device: Device) -> Self {
        let params = Params::zeros(&algorithm.layout, device);
        let (net, size) = (&algorithm.net, algorithm.config.lstm);
        let shape = PassShape::new(net, MEMORIES, size, algorithm.frame_stack, device);
        let (net, shared) = (net.clone(), params.share());
        let compute = move || -> Compute {
            let (net, params) = (net.clone(), shared.share());
            Box::new(move |inputs: &PassInputs| {
                let memory = (inputs.memory(0), inputs.memory(1));
                let input = inputs.seen(None);
                let (values, after) = no_grad(|| net.forward(&params, &input, &memory));
                Passed {
                    values: values.get(0),
                    memories: vec![after.0, after.1],
                }
            })
        };
        Self {
            passes: Passes::new(shape, compute),
            params,
            algorithm,
            device,
            trace: BTreeMap::new(),
        }
    }

    /// |error| of every step of a rollout, `[T, B]`, as the learner would see it, from the values
    /// `after` of the best actions behind its last step.
    fn errors(&self, rollout: &Rollout, after: &[f32], trace: &[Decided]) -> Vec<f32> {
        let (steps, envs) = (rollout.steps(), rollout.envs());
        let (mut taken, mut following) = (Vec::new(), vec![0f32; steps * envs]);
        let (mut returns, mut discounts) = (following.clone(), following.clone());
        for row in trace {
            taken.extend_from_slice(&row.taken);
        }
        for (b, &after) in after.iter().enumerate() {
            let looked = ahead(rollout, b, &self.algorithm.shared);
            for (t, ahead) in looked.into_iter().enumerate() {
                let at = t * envs + b;
                (returns[at], discounts[at]) = (ahead.return_ as f32, ahead.discount as f32);
                following[at] = match ahead.next {
                    Next::Row(row) if row == steps => after,
                    // The memory behind the end of an episode is gone: the value at its last
                    // step stands for that of its last observation.
                    Next::Row(row) | Next::Final(row) => trace[row].best[b],
                };
            }
        }
        let tensor = |values: &[f32]| Tensor::from_slice(values);
        let targets =
            self.algorithm
                .targets(&tensor(&returns), &tensor(&discounts), &tensor(&following));
        let errors = array_of(&(targets - tensor(&taken)).abs());
        errors.as_slice::<f32>().to_vec()
    }

    /// Writes the first priorities of rollouts that are full.
    fn give_priorities(&mut self, group: usize, parts: &mut [Part<'_>]) {
        let steps = parts[0].rollout.steps();
        let values = self.passes.run(steps, group, parts, None).values.copy();
        let legal = parts.iter().map(|part| {
            let legal = part.rollout.legal.as_ref()?.at(&[steps]);
            Some(tensor_of_view(legal, self.device))
        });
        let legal: Option<Vec<Tensor>> = legal.collect();
        let legal = legal.map(|parts| Tensor::cat(&parts, 0));
        let best = mask(values, legal.as_ref()).amax([-1].as_slice(), false);
        let best = array_of(&best);
        let mut best = best.as_slice::<f32>();
        for Part { rollout, acting } in parts {
            let (own, others) = best.split_at(rollout.envs());
            best = others;
            let trace = self.trace.remove(&acting.first_env);
            let Some(trace) = trace.filter(|trace| trace.len() == steps) else {
                continue;
            };
            let errors = self.errors(rollout, own, &trace);
            if let Some(Tree::Leaf(column)) = rollout.policy.get_mut("priority") {
                column.as_mut_slice::<f32>().copy_from_slice(&errors);
            }
        }
    }
}

impl Policy for Remembering {
    fn records(&self) -> Tree<Spec> {
        let mut records = Vec::new();
        if self.algorithm.shared.actor_priorities {
            records.push(("priority", Tree::Leaf(Spec::scalar(DType::F32))));
        }
        if self.algorithm.config.sequence.state_interval_steps > 0 {
            records.push(("state", self.algorithm.net.state_spec()));
        }
        Tree::node(records)
    }

    fn state(&self) -> Tree<Spec> {
        let Tree::Node(mut parts) = self.algorithm.net.state_spec() else {
            return Tree::empty();
        };
        let actions = Spec::new(DType::F32, &[self.algorithm.net.actions()]);
        parts.push(("action".into(), Tree::Leaf(actions)));
        parts.push(("reward".into(), Tree::Leaf(Spec::scalar(DType::F32))));
        Tree::Node(parts)
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
        let (mut values, memories) = self.passes.run_to_host(t, group, parts, None);
        let shared = &self.algorithm.shared;
        let mut first = 0;
        for part in parts.iter_mut() {
            let decided = decide(t, part, &mut values, first, shared);
            if part.acting.explore && shared.actor_priorities {
                let trace = self.trace.entry(part.acting.first_env).or_default();
                trace.truncate(t);
                trace.push(decided);
            }
            first += part.acting.rngs.len();
        }
        keep(parts, MEMORIES, &memories);
    }

    fn finish(&mut self, group: usize, parts: &mut [Part<'_>]) {
        for Part { rollout, acting } in parts.iter_mut() {
            remember_reward(rollout, rollout.steps() - 1, acting.state);
        }
        let explore = parts.iter().any(|part| part.acting.explore);
        if explore && self.algorithm.shared.actor_priorities {
            self.give_priorities(group, parts);
        }
    }
}
