//! Acting by action values: greedily, with chance and noise.

use std::collections::BTreeMap;
use std::sync::Arc;

use rand::RngExt as _;
use starling_envs::{Rng, Rollout};
use starling_nets::{
    Device, Kind, Params, ShapeMismatch, Tensor, argmax, array_of, draw_noise, no_grad, tensor_of,
    tensor_of_view, tree_of,
};
use starling_tree::{Array, DType, Spec, Tree};

use super::{Method, ValueConfig, mask, pick};
use crate::ops::{Ahead, Next, n_steps_ahead};
use crate::{Acting, Part, Policy};

/// Takes the action of the highest value, or by chance a random one.
pub(crate) struct Greedy<M> {
    config: ValueConfig,
    method: Arc<M>,
    params: Params,
    device: Device,
    /// What was predicted, row by row, for the rollout whose first environment has the number;
    /// only if the actor gives priorities.
    trace: BTreeMap<usize, Vec<Traced>>,
}

/// What was predicted at one row.
struct Traced {
    /// Numbers of the actions taken, `[B, W]`.
    taken: Tensor,
    /// Numbers of the best actions, `[B, W]`.
    best: Tensor,
    /// Fractions of both, `[B, W]`.
    fractions: Option<Tensor>,
}

impl<M: Method> Greedy<M> {
    pub(crate) fn new(config: ValueConfig, method: Arc<M>, device: Device) -> Self {
        let params = Params::zeros(method.net().1, device);
        Self {
            config,
            method,
            params,
            device,
            trace: BTreeMap::new(),
        }
    }

    /// Chooses the actions of row `t` of several rollouts, in one batch.
    fn choose(&mut self, t: usize, parts: &mut [Part<'_>]) {
        if parts.is_empty() {
            return;
        }
        let (method, device) = (&*self.method, self.device);
        let length = method.net().0.head().noise;
        let count = method.fractions().choosing;
        let (mut noise, mut fractions, mut obs) = (Vec::new(), Vec::new(), Vec::new());
        for Part { rollout, acting } in parts.iter_mut() {
            if acting.explore && length > 0 {
                noise.push(draw_noise(length, acting.rngs, device));
            }
            fractions.extend(draw_fractions(count, acting.rngs, device));
            obs.push(tree_of(&rollout.obs, &[t], device));
        }
        let (noise, fractions) = (side_by_side(noise), side_by_side(fractions));
        let Some(obs) = join(obs) else {
            return;
        };
        let outputs =
            no_grad(|| method.outputs(&self.params, &obs, noise.as_ref(), fractions.as_ref()));
        let mut values = array_of(&method.values(&outputs));
        let mut first = 0;
        for part in parts {
            let envs = part.acting.rngs.len();
            let (taken, best) = self.decide(t, part, &mut values, first);
            let (rollout_first, explore) = (part.acting.first_env, part.acting.explore);
            if explore && self.config.actor_priorities {
                let rows = |tensor: &Tensor| tensor.narrow(0, first as i64, envs as i64);
                let outputs = rows(&outputs);
                let pick = |actions: &[i64]| {
                    let actions = Tensor::from_slice(actions).to_device(device);
                    pick(&outputs, &actions.unsqueeze(-1))
                };
                let traced = Traced {
                    taken: pick(&taken),
                    best: pick(&best),
                    fractions: fractions.as_ref().map(rows),
                };
                let trace = self.trace.entry(rollout_first).or_default();
                trace.truncate(t);
                trace.push(traced);
            }
            first += envs;
        }
    }

    /// Writes the actions of one rollout, whose values begin with row `first`. Returns the actions
    /// taken and the best ones.
    fn decide(
        &self,
        t: usize,
        part: &mut Part<'_>,
        values: &mut Array,
        first: usize,
    ) -> (Vec<i64>, Vec<i64>) {
        let Part { rollout, acting } = part;
        let (mut taken, mut best) = (Vec::new(), Vec::new());
        for (b, rng) in acting.rngs.iter_mut().enumerate() {
            let legal = rollout.legal.as_ref().map(|mask| mask.at(&[t, b]));
            let legal = legal.map(|row| row.as_slice::<u8>());
            let mut row = values.at_mut(&[first + b]);
            let greedy = greedy_action(row.as_mut_slice::<f32>(), legal);
            let env = acting.first_env + b;
            let epsilon = match acting.explore {
                true => self
                    .config
                    .epsilon(acting.env_steps, env, acting.total_envs),
                false => self.config.epsilon_eval,
            };
            let action = match rng.random::<f64>() < epsilon {
                true => random_action(self.method.net().0.head().actions, legal, rng),
                false => greedy,
            };
            rollout.actions.at_mut(&[t, b]).write(&[action as i64]);
            taken.push(action as i64);
            best.push(greedy as i64);
        }
        (taken, best)
    }

    /// The numbers of the best legal actions `[N, W]` of observations that nobody acts on.
    fn best_of(&self, obs: &Tree<Tensor>, legal: Option<&Tensor>) -> Tensor {
        let count = self.method.fractions().choosing;
        let middles = (count > 0).then(|| middles(count, self.device));
        let outputs = self
            .method
            .outputs(&self.params, obs, None, middles.as_ref());
        let values = mask(self.method.values(&outputs), legal);
        pick(&outputs, &values.argmax(-1, true))
    }

    /// The error of every step of the rollout as the learner would see it, `[T, B]`, with the
    /// actor's network in place of the target network. Near the end of the rollout, steps look
    /// less than n steps ahead.
    fn errors(&self, rollout: &Rollout, trace: &[Traced]) -> Tensor {
        let (steps, envs) = (rollout.steps(), rollout.envs());
        let legal = rollout.legal.as_ref();
        let legal = legal.map(|legal| tensor_of_view(legal.at(&[steps]), self.device));
        let after = tree_of(&rollout.obs, &[steps], self.device);
        let mut following: Vec<Tensor> = trace.iter().map(|row| row.best.copy()).collect();
        following.push(self.best_of(&after, legal.as_ref()));
        let finals = rollout.final_at.len() as i64;
        if finals > 0 {
            let obs = rollout
                .final_obs
                .map(|array| tensor_of(array, self.device).narrow(0, 0, finals));
            let legal = (!rollout.final_legal.is_empty()).then(|| {
                let legal = Tensor::from_slice(&rollout.final_legal).reshape([finals, -1]);
                legal.to_device(self.device)
            });
            following.push(self.best_of(&obs, legal.as_ref()));
        }

        let count = steps * envs;
        let (mut returns, mut discounts) = (vec![0f32; count], vec![0f32; count]);
        let mut index = vec![0i64; count];
        for b in 0..envs {
            for (t, ahead) in ahead(rollout, b, &self.config).into_iter().enumerate() {
                let at = t * envs + b;
                (returns[at], discounts[at]) = (ahead.return_ as f32, ahead.discount as f32);
                let ended = |t| rollout.final_at.iter().position(|&end| end == (t, b));
                index[at] = match ahead.next {
                    Next::Row(row) => (row * envs + b) as i64,
                    // Every episode that ended has its last observation; if it had not, the
                    // row itself would do.
                    Next::Final(end) => match ended(end) {
                        Some(row) => ((steps + 1) * envs + row) as i64,
                        None => (end * envs + b) as i64,
                    },
                };
            }
        }
        let vector = |values: &[f32]| Tensor::from_slice(values).to_device(self.device);
        let index = Tensor::from_slice(&index).to_device(self.device);
        let taken: Vec<&Tensor> = trace.iter().map(|row| &row.taken).collect();
        let fractions = trace.iter().map(|row| row.fractions.as_ref());
        let fractions: Option<Vec<&Tensor>> = fractions.collect();
        let fractions = fractions.map(|parts| Tensor::cat(&parts, 0));
        let errors = self.method.errors(
            &Tensor::cat(&taken, 0),
            fractions.as_ref(),
            &Tensor::cat(&following, 0).index_select(0, &index),
            &vector(&returns),
            &vector(&discounts),
        );
        errors.priorities
    }
}

impl<M: Method> Policy for Greedy<M> {
    fn records(&self) -> Tree<Spec> {
        match self.config.actor_priorities {
            true => Tree::node([("priority", Tree::Leaf(Spec::scalar(DType::F32)))]),
            false => Tree::empty(),
        }
    }

    fn state(&self) -> Tree<Spec> {
        Tree::empty()
    }

    fn load(&mut self, weights: &[f32]) -> Result<(), ShapeMismatch> {
        self.params.load_slice(weights)
    }

    fn act(&mut self, t: usize, rollout: &mut Rollout, acting: Acting<'_>) {
        self.choose(t, &mut [Part { rollout, acting }]);
    }

    fn act_together(&mut self, t: usize, _group: usize, parts: &mut [Part<'_>]) {
        self.choose(t, parts);
    }

    fn finish(&mut self, _group: usize, parts: &mut [Part<'_>]) {
        for Part { rollout, acting } in parts {
            let trace = self.trace.remove(&acting.first_env).unwrap_or_default();
            if trace.len() != rollout.steps() {
                continue;
            }
            let priorities = array_of(&no_grad(|| self.errors(rollout, &trace)));
            if let Some(Tree::Leaf(column)) = rollout.policy.get_mut("priority") {
                let priorities = priorities.as_slice::<f32>();
                column.as_mut_slice::<f32>().copy_from_slice(priorities);
            }
        }
    }
}

/// Tensors joined along their first dimension; `None` without any.
fn side_by_side(mut tensors: Vec<Tensor>) -> Option<Tensor> {
    match tensors.len() {
        0 => None,
        1 => tensors.pop(),
        _ => Some(Tensor::cat(&tensors, 0)),
    }
}

/// Observations of several rollouts as one batch.
fn join(mut parts: Vec<Tree<Tensor>>) -> Option<Tree<Tensor>> {
    if parts.len() < 2 {
        return parts.pop();
    }
    let columns: Vec<Vec<&Tensor>> = parts
        .iter()
        .map(|part| {
            part.leaves()
                .into_iter()
                .map(|(_, tensor)| tensor)
                .collect()
        })
        .collect();
    let mut leaf = 0;
    Some(parts[0].map(|_| {
        let column: Vec<&Tensor> = columns.iter().map(|part| part[leaf]).collect();
        leaf += 1;
        Tensor::cat(&column, 0)
    }))
}

/// The n steps that follow each step of one environment.
pub(crate) fn ahead(rollout: &Rollout, b: usize, config: &ValueConfig) -> Vec<Ahead> {
    let envs = rollout.envs();
    let column = |array: &Array| {
        let flags = array.as_slice::<u8>().iter().skip(b).step_by(envs);
        flags.map(|flag| *flag != 0).collect::<Vec<bool>>()
    };
    let rewards = rollout.rewards.as_slice::<f32>().iter();
    let rewards: Vec<f32> = rewards.skip(b).step_by(envs).copied().collect();
    n_steps_ahead(
        &rewards,
        &column(&rollout.terminated),
        &column(&rollout.truncated),
        config.n_steps,
        config.gamma,
    )
}

/// The best of the legal actions; the values of the others are lowered.
pub(crate) fn greedy_action(values: &mut [f32], legal: Option<&[u8]>) -> usize {
    for (value, legal) in values.iter_mut().zip(legal.unwrap_or_default()) {
        if *legal == 0 {
            *value = f32::NEG_INFINITY;
        }
    }
    argmax(values)
}

/// Any of the legal actions.
pub(crate) fn random_action(actions: usize, legal: Option<&[u8]>, rng: &mut Rng) -> usize {
    let Some(legal) = legal else {
        return rng.random_range(0..actions);
    };
    let choices: Vec<usize> = (0..actions).filter(|&a| legal[a] != 0).collect();
    match choices.len() {
        0 => 0,
        n => choices[rng.random_range(0..n)],
    }
}

/// `count` numbers in [0, 1) from each generator, `[rngs, count]`; `None` if there are none.
pub(crate) fn draw_fractions(count: usize, rngs: &mut [Rng], device: Device) -> Option<Tensor> {
    if count == 0 {
        return None;
    }
    let mut fractions = Vec::with_capacity(count * rngs.len());
    for rng in rngs.iter_mut() {
        fractions.extend((0..count).map(|_| rng.random::<f32>()));
    }
    let fractions = Tensor::from_slice(&fractions).reshape([rngs.len() as i64, -1]);
    Some(fractions.to_device(device))
}

/// The middles of `count` equal parts of [0, 1], `[1, count]`.
pub(crate) fn middles(count: usize, device: Device) -> Tensor {
    let count = count as i64;
    let middles = (Tensor::arange(count, (Kind::Float, device)) + 0.5) / count as f64;
    middles.unsqueeze(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use starling_envs::stream;

    #[test]
    fn random_and_greedy_actions_are_legal() {
        let mut rng = stream(1, "policy", 0);
        for _ in 0..100 {
            assert!([1, 3].contains(&random_action(4, Some(&[0, 1, 0, 1]), &mut rng)));
        }
        assert_eq!(greedy_action(&mut [5.0, 1.0, 2.0], Some(&[0, 1, 1])), 2);
        assert_eq!(greedy_action(&mut [5.0, 1.0, 2.0], None), 0);
    }

    #[test]
    fn middles_lie_in_the_middle() {
        let middles = Vec::<f32>::try_from(middles(4, Device::Cpu).reshape([-1])).unwrap();
        assert_eq!(middles, [0.125, 0.375, 0.625, 0.875]);
    }
}
