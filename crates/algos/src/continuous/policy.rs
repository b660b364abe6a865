//! Acting within bounds: random actions at first, then those of the method.

use std::sync::Arc;

use rand::RngExt as _;
use starling_envs::Rollout;
use starling_nets::{
    ActionBounds, Device, Params, Recorded, ShapeMismatch, Snapshot, Tensor, array_of, no_grad,
};
use starling_tree::{Spec, Tree};

use super::Method;
use crate::shown::Shown;
use crate::{Acting, Part, Policy};

/// Writes actions within their bounds: what the environment executes is what is recorded.
pub(super) struct BoundedPolicy<M> {
    method: Arc<M>,
    bounds: ActionBounds,
    /// Steps of the run in which actions are random.
    random_steps: u64,
    frame_stack: Option<usize>,
    params: Params,
    device: Device,
    groups: Vec<Option<Group>>,
}

/// A group of environments whose actions are chosen in one recorded pass.
struct Group {
    shown: Shown,
    pass: Recorded<Tree<Tensor>, Tensor>,
}

impl<M: Method> BoundedPolicy<M> {
    pub(super) fn new(
        method: Arc<M>,
        bounds: ActionBounds,
        random_steps: u64,
        frame_stack: Option<usize>,
        device: Device,
    ) -> Self {
        Self {
            params: Params::zeros(method.actor(), device),
            method,
            bounds,
            random_steps,
            frame_stack,
            device,
            groups: Vec::new(),
        }
    }

    /// The group of this number; a new one if its size has changed.
    fn group(&mut self, number: usize, parts: &[Part<'_>]) -> &mut Group {
        let envs = parts.iter().map(|part| part.acting.rngs.len()).sum();
        while self.groups.len() <= number {
            self.groups.push(None);
        }
        let group = self.groups[number].take();
        let group = group.filter(|old| old.shown.envs() == envs);
        let group = group.unwrap_or_else(|| {
            let shown = Shown::new(parts[0].rollout, envs, self.frame_stack, self.device);
            let (method, params) = (Arc::clone(&self.method), self.params.share());
            let pass = move |obs: &Tree<Tensor>| no_grad(|| method.propose(&params, obs));
            Group {
                pass: Recorded::new(self.device, shown.tensors(), pass),
                shown,
            }
        });
        self.groups[number].insert(group)
    }
}

impl<M: Method> Policy for BoundedPolicy<M> {
    fn records(&self) -> Tree<Spec> {
        Tree::empty()
    }

    fn state(&self) -> Tree<Spec> {
        Tree::empty()
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
        let (method, bounds) = (Arc::clone(&self.method), self.bounds.clone());
        let random_steps = self.random_steps;
        let is_random = |part: &Part<'_>| {
            let acting = &part.acting;
            acting.explore && acting.env_steps < random_steps
        };
        let group = self.group(group, parts);
        let proposed = match parts.iter().all(is_random) {
            true => {
                group.shown.skip();
                None
            }
            false => {
                group.shown.show(t, parts);
                Some(array_of(group.pass.run()))
            }
        };
        let mut first = 0;
        for part in parts {
            let proposed = proposed.as_ref().filter(|_| !is_random(part));
            let Part { rollout, acting } = part;
            for (b, rng) in acting.rngs.iter_mut().enumerate() {
                let mut item = rollout.actions.at_mut(&[t, b]);
                let action = item.as_mut_slice::<f32>();
                match proposed {
                    None => action.fill_with(|| rng.random_range(-1.0..=1.0)),
                    Some(proposed) => {
                        let row = proposed.at(&[first + b]);
                        let rng = acting.explore.then_some(rng);
                        method.choose(row.as_slice::<f32>(), rng, action);
                    }
                }
                bounds.scale(action);
            }
            first += acting.rngs.len();
        }
    }
}
