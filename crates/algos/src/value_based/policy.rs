//! Acting with action values: greedy, ε-greedy, or with noisy weights.

use std::sync::Arc;

use rand::RngExt as _;
use starling_envs::{Rng, Rollout};
use starling_nets::{
    Device, Kind, Params, Recorded, ShapeMismatch, Snapshot, Staging, Tensor, argmax, array_of,
    draw_noise, no_grad, tensor_of, unrecorded,
};
use starling_tree::{Array, DType, Spec, Tree};

use super::{Method, ValueConfig, mask, pick};
use crate::ops::{Ahead, Next, n_steps_ahead};
use crate::shown::Shown;
use crate::{Acting, Part, Policy};

/// Takes the action of the highest value, or with probability ε a random one.
pub(crate) struct Greedy<M> {
    config: ValueConfig,
    frame_stack: Option<usize>,
    method: Arc<M>,
    params: Params,
    device: Device,
    groups: Vec<Option<Group>>,
}

/// A group of environments whose actions are chosen in one recorded pass.
struct Group {
    shown: Shown,
    /// Whether noise is drawn.
    explore: bool,
    pass: Recorded<Inputs, Seen>,
    /// Numbers of the actions taken and of the best ones, `[2, B]`.
    actions: Staging,
    /// What was predicted, row by row, in the rollout under way; only if the actor gives
    /// priorities.
    trace: Vec<Traced>,
}

/// What a pass reads.
struct Inputs {
    /// The tensors of [`Shown`].
    obs: Tree<Tensor>,
    /// Legal actions, if the network's head uses them.
    legal: Option<Staging>,
    /// Different for each environment, while exploring.
    noise: Option<Tensor>,
    fractions: Option<Tensor>,
}

/// What the network says.
struct Seen {
    /// `[B, A, W]`.
    outputs: Tensor,
    /// `[B, A]`.
    values: Tensor,
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

impl Group {
    /// Draws the random numbers of one forward pass, from each environment's own stream; `keep`
    /// leaves the noise of the row before as it is.
    fn draw<M: Method>(&self, method: &M, parts: &mut [Part<'_>], keep: bool) {
        let count = method.fractions().choosing;
        let inputs = self.pass.inputs();
        let device = self.actions.tensor().device();
        let length = method.net().0.head().noise;
        let (mut noise, mut fractions) = (Vec::new(), Vec::new());
        for Part { acting, .. } in parts.iter_mut() {
            if inputs.noise.is_some() && !keep {
                noise.push(draw_noise(length, acting.rngs, device));
            }
            fractions.extend(draw_fractions(count, acting.rngs, device));
        }
        for (place, drawn) in [(&inputs.noise, noise), (&inputs.fractions, fractions)] {
            if let (Some(place), Some(drawn)) = (place, side_by_side(drawn)) {
                place.shallow_clone().copy_(&drawn);
            }
        }
    }

    /// Copies the legal actions of row `t` to the device, if the network uses them.
    fn show_legal(&self, t: usize, parts: &[Part<'_>]) {
        let Some(staging) = &self.pass.inputs().legal else {
            return;
        };
        let mut first = 0;
        for Part { rollout, acting } in parts {
            if let Some(legal) = &rollout.legal {
                staging.write(first, legal.at(&[t]).bytes);
            }
            first += acting.rngs.len();
        }
        staging.upload();
    }

    /// Keeps what was predicted for the actions taken and the best ones.
    fn keep(&mut self, t: usize, outputs: &Tensor, taken: &[i64], best: &[i64]) {
        let rows = Array::from_slice(&[taken, best].concat(), &[2, taken.len()]);
        self.actions.write(0, rows.bytes());
        self.actions.upload();
        let picked = |row| {
            let actions = self.actions.tensor().select(0, row);
            pick(outputs, &actions.unsqueeze(-1))
        };
        let traced = Traced {
            taken: picked(0),
            best: picked(1),
            fractions: self.pass.inputs().fractions.as_ref().map(Tensor::copy),
        };
        self.trace.truncate(t);
        self.trace.push(traced);
    }
}

impl<M: Method> Greedy<M> {
    pub(crate) fn new(
        config: ValueConfig,
        frame_stack: Option<usize>,
        method: Arc<M>,
        device: Device,
    ) -> Self {
        let params = Params::zeros(method.net().1, device);
        Self {
            config,
            frame_stack,
            method,
            params,
            device,
            groups: Vec::new(),
        }
    }

    /// The group of this number; a new one if its size has changed, or whether it explores.
    fn group(&mut self, number: usize, parts: &[Part<'_>]) -> &mut Group {
        let envs = parts.iter().map(|part| part.acting.rngs.len()).sum();
        let explore = parts.iter().any(|part| part.acting.explore);
        while self.groups.len() <= number {
            self.groups.push(None);
        }
        let fits = |old: &Group| old.shown.envs() == envs && old.explore == explore;
        let group = self.groups[number].take().filter(fits);
        let group = group.unwrap_or_else(|| self.make_group(parts[0].rollout, envs, explore));
        self.groups[number].insert(group)
    }

    fn make_group(&self, rollout: &Rollout, envs: usize, explore: bool) -> Group {
        let device = self.device;
        let floats = |columns: usize| {
            let shape = [envs as i64, columns as i64];
            (columns > 0).then(|| Tensor::zeros(shape, (Kind::Float, device)))
        };
        let head = self.method.net().0.head();
        let legal = rollout.legal.as_ref().filter(|_| head.legal);
        let shown = Shown::new(rollout, envs, self.frame_stack, device);
        let inputs = Inputs {
            obs: shown.tensors(),
            legal: legal.map(|array| {
                let item = Spec::new(array.dtype(), &array.shape()[2..]);
                Staging::new(envs, &item, device)
            }),
            noise: floats(head.noise).filter(|_| explore),
            fractions: floats(self.method.fractions().choosing),
        };
        let (method, params) = (Arc::clone(&self.method), self.params.share());
        let pass = move |inputs: &Inputs| {
            let legal = inputs.legal.as_ref().map(Staging::tensor);
            let (noise, fractions) = (inputs.noise.as_ref(), inputs.fractions.as_ref());
            no_grad(|| {
                let outputs = method.outputs(&params, &inputs.obs, noise, fractions, legal);
                let values = method.values(&outputs);
                Seen { outputs, values }
            })
        };
        Group {
            shown,
            explore,
            pass: Recorded::new(device, inputs, pass),
            actions: Staging::new(2, &Spec::new(DType::I64, &[envs]), device),
            trace: Vec::new(),
        }
    }

    /// Writes the actions of one rollout, whose values begin with row `first`, and notes the
    /// actions taken and the best ones.
    fn decide(
        &self,
        t: usize,
        part: &mut Part<'_>,
        values: &mut Array,
        taken: &mut Vec<i64>,
        best: &mut Vec<i64>,
    ) {
        let Part { rollout, acting } = part;
        let first = taken.len();
        for (b, rng) in acting.rngs.iter_mut().enumerate() {
            let legal = rollout.legal.as_ref().map(|mask| mask.at(&[t, b]));
            let legal = legal.map(|row| row.as_slice::<u8>());
            let mut row = values.at_mut(&[first + b]);
            let greedy = greedy_action(row.as_mut_slice::<f32>(), legal);
            let env = acting.first_env + b;
            let epsilon = match acting.explore {
                true => self
                    .config
                    .exploration
                    .at(acting.env_steps, env, acting.total_envs),
                false => self.config.exploration.epsilon_eval,
            };
            let action = match rng.random::<f64>() < epsilon {
                true => random_action(self.method.net().0.head().actions, legal, rng),
                false => greedy,
            };
            rollout.actions.at_mut(&[t, b]).write(&[action as i64]);
            taken.push(action as i64);
            best.push(greedy as i64);
        }
    }

    /// The outputs of the best legal actions `[N, W]`, for observations without an action.
    fn best_of(&self, obs: &Tree<Tensor>, legal: Option<&Tensor>) -> Tensor {
        let count = self.method.fractions().choosing;
        let middles = (count > 0).then(|| middles(count, self.device));
        let outputs = self
            .method
            .outputs(&self.params, obs, None, middles.as_ref(), legal);
        let values = mask(self.method.values(&outputs), legal);
        pick(&outputs, &values.argmax(-1, true))
    }

    /// [`best_of`](Greedy::best_of) the last observations of episodes that ended, of all parts
    /// in order; `None` if none ended.
    fn best_of_finals(&self, parts: &[Part<'_>]) -> Option<Tensor> {
        let (mut obs, mut legal, mut finals) = (Vec::new(), Vec::new(), 0);
        for Part { rollout, .. } in parts {
            let count = rollout.final_at.len();
            if count > 0 {
                let first =
                    |array: &Array| tensor_of(array, self.device).narrow(0, 0, count as i64);
                obs.push(rollout.final_obs.map(first));
                legal.extend_from_slice(&rollout.final_legal);
                finals += count;
            }
        }
        // How many there are changes all the time. Few sizes, because a GPU's libraries choose
        // their algorithms again for each.
        let rows = finals.next_power_of_two();
        let obs = join(&obs, rows)?;
        let legal = (!legal.is_empty()).then(|| {
            legal.resize(legal.len() / finals * rows, 1);
            let legal = Tensor::from_slice(&legal).reshape([rows as i64, -1]);
            legal.to_device(self.device)
        });
        let best = self.best_of(&obs, legal.as_ref());
        Some(best.narrow(0, 0, finals as i64))
    }

    /// The error of every step of the rollouts as the learner would see it, `[T · B]`, with the
    /// actor's network in place of the target network. Near the end of the rollout, steps look
    /// less than n steps ahead.
    fn errors(&self, group: &Group, parts: &[Part<'_>]) -> Tensor {
        let (steps, envs) = (group.trace.len(), group.shown.envs());
        let legal = parts.iter().map(|Part { rollout, .. }| {
            let legal = rollout.legal.as_ref()?.at(&[steps]);
            Some(starling_nets::tensor_of_view(legal, self.device))
        });
        let legal: Option<Vec<Tensor>> = legal.collect();
        let legal = legal.and_then(side_by_side);
        let mut following: Vec<Tensor> = group.trace.iter().map(|row| row.best.copy()).collect();
        following.push(self.best_of(&group.shown.tensors(), legal.as_ref()));
        following.extend(self.best_of_finals(parts));

        let count = steps * envs;
        let (mut returns, mut discounts) = (vec![0f32; count], vec![0f32; count]);
        let mut index = vec![0i64; count];
        let (mut first_env, mut first_final) = (0, 0);
        for Part { rollout, .. } in parts {
            for b in 0..rollout.envs() {
                let row = |t: usize| t * envs + first_env + b;
                for (t, ahead) in ahead(rollout, b, &self.config).into_iter().enumerate() {
                    let at = row(t);
                    (returns[at], discounts[at]) = (ahead.return_ as f32, ahead.discount as f32);
                    let ended = |t| rollout.final_at.iter().position(|&end| end == (t, b));
                    let next = match ahead.next {
                        Next::Row(t) => row(t),
                        // Every episode that ended has its last observation; if it had not, the
                        // row itself would do.
                        Next::Final(end) => match ended(end) {
                            Some(number) => (steps + 1) * envs + first_final + number,
                            None => row(end),
                        },
                    };
                    index[at] = next as i64;
                }
            }
            first_env += rollout.envs();
            first_final += rollout.final_at.len();
        }
        let vector = |values: &[f32]| Tensor::from_slice(values).to_device(self.device);
        let index = Tensor::from_slice(&index).to_device(self.device);
        let taken: Vec<&Tensor> = group.trace.iter().map(|row| &row.taken).collect();
        let fractions = group.trace.iter().map(|row| row.fractions.as_ref());
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
        let method = Arc::clone(&self.method);
        let keep_noise = !t.is_multiple_of(self.config.noise_every_steps);
        let its = self.group(group, parts);
        its.shown.show(t, parts);
        its.show_legal(t, parts);
        its.draw(&*method, parts, keep_noise);
        let Some(Some(mut its)) = self.groups.get_mut(group).map(Option::take) else {
            debug_assert!(false, "the group was made a moment ago");
            return;
        };
        let seen = its.pass.run();
        let mut values = array_of(&seen.values);
        let (mut taken, mut best) = (Vec::new(), Vec::new());
        for part in parts.iter_mut() {
            self.decide(t, part, &mut values, &mut taken, &mut best);
        }
        if parts[0].acting.explore && self.config.actor_priorities {
            let outputs = seen.outputs.shallow_clone();
            its.keep(t, &outputs, &taken, &best);
        }
        self.groups[group] = Some(its);
    }

    fn finish(&mut self, group: usize, parts: &mut [Part<'_>]) {
        let Some(steps) = parts.first().map(|part| part.rollout.steps()) else {
            return;
        };
        // Only those who explore with priorities of their own have anything to finish.
        if !(parts[0].acting.explore && self.config.actor_priorities) {
            return;
        }
        if let Some(Some(its)) = self.groups.get_mut(group) {
            its.shown.show(steps, parts);
        }
        let acted = |group: &&Group| group.trace.len() == steps;
        let its = self.groups.get(group).and_then(Option::as_ref);
        let Some(its) = its.filter(acted) else {
            debug_assert!(
                false,
                "every row of a rollout is acted on before it is finished"
            );
            return;
        };
        let errors = || no_grad(|| self.errors(its, parts));
        let priorities = array_of(&unrecorded(self.device, errors));
        let priorities = priorities.as_slice::<f32>();
        let (mut first, envs) = (0, its.shown.envs());
        for Part { rollout, .. } in parts {
            let its = rollout.envs();
            if let Some(Tree::Leaf(column)) = rollout.policy.get_mut("priority") {
                for t in 0..steps {
                    let row = t * envs + first;
                    column.at_mut(&[t]).write(&priorities[row..row + its]);
                }
            }
            first += its;
        }
        if let Some(Some(its)) = self.groups.get_mut(group) {
            its.trace.clear();
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

/// Observations of several rollouts as one batch, filled up to `rows` rows with zeros; `None`
/// without any.
fn join(parts: &[Tree<Tensor>], rows: usize) -> Option<Tree<Tensor>> {
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
    Some(parts.first()?.map(|first| {
        let mut column: Vec<Tensor> = columns
            .iter()
            .map(|part| part[leaf].shallow_clone())
            .collect();
        leaf += 1;
        let there: i64 = column.iter().map(|part| part.size()[0]).sum();
        let mut shape = first.size();
        shape[0] = rows as i64 - there;
        column.push(Tensor::zeros(&shape, (first.kind(), first.device())));
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
        config.replay.n_steps,
        config.replay.gamma,
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
    use crate::{Spaces, dqn};
    use starling_envs::{Space, stream};
    use starling_nets::QNetConfig;

    /// Rows 0 and 3 of a rollout of 5 have new noise, and so does the next rollout.
    #[test]
    fn noise_can_be_kept_for_some_steps() {
        let (obs, action) = (Space::unbounded(&[1]), Space::Discrete { n: 2 });
        let spaces = Spaces {
            observation: obs.clone(),
            action: action.clone(),
            legal_actions: None,
            frame_stack: None,
        };
        let rows = |new: &[usize]| -> Vec<bool> { (0..10).map(|row| new.contains(&row)).collect() };
        for (every, expected) in [(1, vec![true; 10]), (3, rows(&[0, 3, 5, 8]))] {
            let (mut config, _) = dqn::defaults();
            config.noise_every_steps = every;
            config.net = QNetConfig {
                noisy_sigma: Some(0.5),
                ..QNetConfig::default()
            };
            let method = dqn::Dqn::new("dqn", &config, dqn::Config::default(), &spaces).unwrap();
            let mut policy = Greedy::new(config, None, Arc::new(method), Device::Cpu);
            let none = Tree::empty();
            let mut rollout = Rollout::new(5, 1, &obs, &action, None, &none, &none);
            let mut rngs = [stream(1, "policy", 0)];
            let mut before = Vec::new();
            for (row, is_new) in expected.into_iter().enumerate() {
                let acting = Acting {
                    explore: true,
                    env_steps: 0,
                    first_env: 0,
                    total_envs: 1,
                    rngs: &mut rngs,
                    state: &mut Tree::empty(),
                };
                policy.act(row % 5, &mut rollout, acting);
                let group = policy.groups[0].as_ref().unwrap();
                let noise = group.pass.inputs().noise.as_ref().unwrap();
                let noise = Vec::<f32>::try_from(noise.reshape([-1])).unwrap();
                assert_eq!(noise != before, is_new, "row {row} of every {every}");
                before = noise;
            }
        }
    }

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
