//! Acting by values that depend on what was seen before.

use std::collections::BTreeMap;

use starling_envs::Rollout;
use starling_nets::{Device, Params, ShapeMismatch, Tensor, array_of, no_grad, tensor_of_view};
use starling_tree::{DType, Spec, Tree};

use super::R2d2;
use crate::ops::Next;
use crate::recurrent::{Decided, begin, decide, keep, look, remember_reward, stored};
use crate::value_based::{ahead, mask};
use crate::{Acting, Part, Policy};

/// Acts greedily, or with probability ε at random.
pub(super) struct Remembering {
    algorithm: R2d2,
    params: Params,
    device: Device,
    /// What was predicted, row by row, for the rollout whose first environment has the number;
    /// only if the actor gives priorities.
    trace: BTreeMap<usize, Vec<Decided>>,
}

impl Remembering {
    pub(super) fn new(algorithm: R2d2, device: Device) -> Self {
        Self {
            params: Params::zeros(&algorithm.layout, device),
            algorithm,
            device,
            trace: BTreeMap::new(),
        }
    }

    /// Values `[B, A]` of row `t` of the rollouts side by side, and the memories after it.
    fn values(&self, t: usize, parts: &[Part<'_>]) -> (Tensor, (Tensor, Tensor)) {
        let (net, device) = (&self.algorithm.net, self.device);
        let input = look(t, parts, net, None, device);
        let memory = |name| stored(parts, name, &[self.algorithm.config.lstm], device);
        let memory = (memory("hidden"), memory("cell"));
        let (values, after) = no_grad(|| net.forward(&self.params, &input, &memory));
        (values.get(0), after)
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

    /// Writes the first priorities of a rollout that is full.
    fn give_priorities(&mut self, mut part: Part<'_>) {
        let trace = self.trace.remove(&part.acting.first_env);
        let steps = part.rollout.steps();
        let Some(trace) = trace.filter(|trace| trace.len() == steps) else {
            return;
        };
        let legal = part.rollout.legal.as_ref();
        let legal = legal.map(|legal| tensor_of_view(legal.at(&[steps]), self.device));
        let part = std::slice::from_mut(&mut part);
        let values = mask(self.values(steps, part).0, legal.as_ref());
        let after = array_of(&values.amax([-1].as_slice(), false));
        let rollout = &mut *part[0].rollout;
        let errors = self.errors(rollout, after.as_slice::<f32>(), &trace);
        if let Some(Tree::Leaf(column)) = rollout.policy.get_mut("priority") {
            column.as_mut_slice::<f32>().copy_from_slice(&errors);
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
        let (values, (hidden, cell)) = self.values(t, parts);
        let mut values = array_of(&values);
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
        keep(parts, "hidden", &array_of(&hidden));
        keep(parts, "cell", &array_of(&cell));
    }

    fn finish(&mut self, _group: usize, parts: &mut [Part<'_>]) {
        for Part { rollout, acting } in parts {
            remember_reward(rollout, rollout.steps() - 1, acting.state);
            self.give_priorities(Part {
                rollout,
                acting: acting.reborrow(),
            });
        }
    }
}
