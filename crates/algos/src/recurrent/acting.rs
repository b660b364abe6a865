//! Acting with recurrent state, in one recorded pass for a group of environments.
//!
//! The memory of an environment contains recurrent states by name, the previous action (`action`,
//! one-hot) and the previous reward (`reward`).

use rand::RngExt as _;
use starling_envs::Rollout;
use starling_nets::{Device, Landing, Recorded, RecurrentInput, RecurrentQ, Staging, Tensor};
use starling_tree::{Array, DType, Spec, Tree};

use crate::Part;
use crate::shown::Shown;
use crate::value_based::{ValueConfig, greedy_action, random_action};

/// The forward passes of a policy with a memory, by group of environments.
pub(crate) struct Passes {
    shape: PassShape,
    /// Makes the computation of a group.
    compute: Box<dyn Fn() -> Compute + Send>,
    groups: Vec<Option<Group>>,
}

/// What a pass computes.
pub(crate) type Compute = Box<dyn Fn(&PassInputs) -> Passed + Send>;

/// What the passes of a policy read.
#[derive(Clone)]
pub(crate) struct PassShape {
    /// Names of the recurrent states in the memory of an environment, and the size of each.
    pub(crate) memories: &'static [&'static str],
    pub(crate) size: usize,
    pub(crate) actions: usize,
    /// Whether the network uses the legal actions.
    pub(crate) legal: bool,
    pub(crate) frame_stack: Option<usize>,
    /// Whether the rows of a rollout are kept on a GPU.
    pub(crate) keep_rows: bool,
    pub(crate) device: Device,
}

impl PassShape {
    /// For a network with an LSTM of `size`, whose states have these names in the memory.
    pub(crate) fn new(
        net: &RecurrentQ,
        memories: &'static [&'static str],
        size: usize,
        frame_stack: Option<usize>,
        device: Device,
    ) -> Self {
        Self {
            memories,
            size,
            actions: net.actions(),
            legal: net.wants_legal(),
            frame_stack,
            keep_rows: false,
            device,
        }
    }

    /// Keeps the rows of each rollout, where the device is a GPU.
    pub(crate) fn keeping_rows(self) -> Self {
        Self {
            keep_rows: true,
            ..self
        }
    }
}

/// What a pass reads of B environments.
pub(crate) struct PassInputs {
    /// The tensors of [`Shown`].
    obs: Tree<Tensor>,
    /// Actions and rewards before.
    actions: Staging,
    rewards: Staging,
    legal: Option<Staging>,
    /// Which arm each environment plays, if the policy has arms; else zeros.
    arms: Staging,
    memories: Vec<Staging>,
}

/// What a pass gives.
pub(crate) struct Passed {
    /// `[B, A]`.
    pub(crate) values: Tensor,
    /// `[B, size]` each, in the order of [`PassShape::memories`].
    pub(crate) memories: Vec<Tensor>,
}

impl PassInputs {
    /// What a network sees: one step of B environments, and perhaps something extra `[B, E]`.
    pub(crate) fn seen(&self, extra: Option<Tensor>) -> RecurrentInput {
        let step = |column: &Staging| column.tensor().unsqueeze(0);
        let rewards = step(&self.rewards);
        RecurrentInput {
            obs: self.obs.map(Tensor::shallow_clone),
            actions: step(&self.actions),
            // Where an episode begins the memory is zero already.
            starts: rewards.zeros_like(),
            rewards,
            extra: extra.map(|extra| extra.unsqueeze(0)),
            legal: self.legal.as_ref().map(step),
        }
    }

    /// `[B]`.
    pub(crate) fn arms(&self) -> &Tensor {
        self.arms.tensor()
    }

    /// The recurrent state of this number, `[B, size]`.
    pub(crate) fn memory(&self, number: usize) -> Tensor {
        self.memories[number].tensor().shallow_clone()
    }
}

struct Group {
    shown: Shown,
    pass: Recorded<PassInputs, Passed>,
    landing: Landing,
}

impl Passes {
    /// `compute` makes the computation of one group; its tensors must be shared, not copied.
    pub(crate) fn new(shape: PassShape, compute: impl Fn() -> Compute + Send + 'static) -> Self {
        Self {
            shape,
            compute: Box::new(compute),
            groups: Vec::new(),
        }
    }

    /// The pass over row `t` of the rollouts of a group, whose environments play these arms.
    pub(crate) fn run(
        &mut self,
        t: usize,
        group: usize,
        parts: &[Part<'_>],
        arms: Option<&[i64]>,
    ) -> &Passed {
        self.prepare(t, group, parts, arms).pass.run()
    }

    /// Copies the inputs of the pass over row `t` to the device.
    fn prepare(
        &mut self,
        t: usize,
        group: usize,
        parts: &[Part<'_>],
        arms: Option<&[i64]>,
    ) -> &mut Group {
        let names = self.shape.memories;
        let group = self.group(group, parts);
        group.shown.show(t, parts);
        let inputs = group.pass.inputs();
        let mut first = 0;
        for Part { rollout, acting } in parts {
            let write = |column: &Staging, name: &str| {
                let array = leaf(acting.state, name);
                debug_assert!(array.is_some(), "the policy's memory has '{name}'");
                if let Some(array) = array {
                    column.write(first, array.bytes());
                }
            };
            write(&inputs.actions, "action");
            write(&inputs.rewards, "reward");
            for (column, name) in inputs.memories.iter().zip(names) {
                write(column, name);
            }
            if let (Some(column), Some(legal)) = (&inputs.legal, &rollout.legal) {
                column.write(first, legal.at(&[t]).bytes);
            }
            first += acting.rngs.len();
        }
        if let Some(arms) = arms {
            inputs.arms.load(&Array::from_slice(arms, &[arms.len()]));
        }
        let columns = [&inputs.actions, &inputs.rewards].into_iter();
        for column in columns.chain(&inputs.legal).chain(&inputs.memories) {
            column.upload();
        }
        group
    }

    /// As [`run`](Passes::run): values and memories on the host.
    pub(crate) fn run_to_host(
        &mut self,
        t: usize,
        group: usize,
        parts: &[Part<'_>],
        arms: Option<&[i64]>,
    ) -> (Array, Vec<Array>) {
        let Group { pass, landing, .. } = self.prepare(t, group, parts, arms);
        let passed = pass.run();
        let tensors = std::iter::once(&passed.values).chain(&passed.memories);
        let mut arrays = landing.fetch(&tensors.collect::<Vec<_>>());
        let values = arrays.remove(0);
        (values, arrays)
    }

    /// The observations of a group that were shown.
    pub(crate) fn shown(&mut self, group: usize, parts: &[Part<'_>]) -> &mut Shown {
        &mut self.group(group, parts).shown
    }

    /// The group of this number; a new one if its size has changed.
    fn group(&mut self, number: usize, parts: &[Part<'_>]) -> &mut Group {
        let envs = parts.iter().map(|part| part.acting.rngs.len()).sum();
        while self.groups.len() <= number {
            self.groups.push(None);
        }
        let group = self.groups[number].take();
        let group = group.filter(|old| old.shown.envs() == envs);
        let group = group.unwrap_or_else(|| self.make_group(parts[0].rollout, envs));
        self.groups[number].insert(group)
    }

    fn make_group(&self, rollout: &Rollout, envs: usize) -> Group {
        let shape = &self.shape;
        let column = |dtype, item: &[usize]| {
            let item = Spec::new(dtype, item);
            Staging::new(envs, &item, shape.device)
        };
        let shown = Shown::new(rollout, envs, shape.frame_stack, shape.device);
        let shown = match shape.keep_rows {
            true => shown.keeping_rows(),
            false => shown,
        };
        let memories = shape.memories.iter();
        let inputs = PassInputs {
            obs: shown.tensors(),
            actions: column(DType::F32, &[shape.actions]),
            rewards: column(DType::F32, &[]),
            legal: rollout
                .legal
                .as_ref()
                .filter(|_| shape.legal)
                .map(|legal| column(legal.dtype(), &legal.shape()[2..])),
            arms: column(DType::I64, &[]),
            memories: memories
                .map(|_| column(DType::F32, &[shape.size]))
                .collect(),
        };
        let compute = (self.compute)();
        Group {
            shown,
            pass: Recorded::new(shape.device, inputs, compute),
            landing: Landing::default(),
        }
    }
}

/// Before row `t`: writes the reward of the previous row into the memories, and records the
/// recurrent states that sequences may begin with.
pub(crate) fn begin(t: usize, parts: &mut [Part<'_>]) {
    for Part { rollout, acting } in parts {
        if t > 0 {
            remember_reward(rollout, t - 1, acting.state);
        }
        if let Some(record) = rollout.policy.get_mut("state") {
            for (name, column) in record.leaves_mut() {
                if let Some(array) = leaf(acting.state, &name) {
                    column.at_mut(&[t]).bytes.copy_from_slice(array.bytes());
                }
            }
        }
    }
}

/// Overwrites recurrent states in the memories of all rollouts with those after a pass.
pub(crate) fn keep(parts: &mut [Part<'_>], names: &[&str], memories: &[Array]) {
    for (name, rows) in names.iter().zip(memories) {
        let mut rest = rows.bytes();
        for part in parts.iter_mut() {
            let Some(Tree::Leaf(place)) = part.acting.state.get_mut(name) else {
                debug_assert!(false, "the policy's memory has '{name}'");
                continue;
            };
            let (own, others) = rest.split_at(place.bytes().len());
            place.bytes_mut().copy_from_slice(own);
            rest = others;
        }
        debug_assert!(rest.is_empty(), "one row for each environment");
    }
}

/// What was chosen for one rollout, with values `[B]` each.
pub(crate) struct Decided {
    /// Of the actions taken.
    pub(crate) taken: Vec<f32>,
    /// Of the best actions.
    pub(crate) best: Vec<f32>,
}

/// Writes the actions of row `t` of one rollout, whose values begin with row `first` of `[B, A]`,
/// and remembers them.
pub(crate) fn decide(
    t: usize,
    part: &mut Part<'_>,
    values: &mut Array,
    first: usize,
    config: &ValueConfig,
) -> Decided {
    let exploration = &config.exploration;
    let count = values.shape()[1];
    let Part { rollout, acting } = part;
    let mut previous = vec![0f32; acting.rngs.len() * count];
    let (mut taken, mut best) = (Vec::new(), Vec::new());
    for (b, rng) in acting.rngs.iter_mut().enumerate() {
        let legal = rollout.legal.as_ref().map(|mask| mask.at(&[t, b]));
        let legal = legal.map(|row| row.as_slice::<u8>());
        let mut row = values.at_mut(&[first + b]);
        let row = row.as_mut_slice::<f32>();
        let unmasked = row.to_vec();
        let greedy = greedy_action(row, legal);
        let epsilon = match acting.explore {
            true => exploration.at(acting.env_steps, acting.first_env + b, acting.total_envs),
            false => exploration.epsilon_eval,
        };
        let action = match rng.random::<f64>() < epsilon {
            true => random_action(count, legal, rng),
            false => greedy,
        };
        rollout.actions.at_mut(&[t, b]).write(&[action as i64]);
        previous[b * count + action] = 1.0;
        taken.push(unmasked[action]);
        best.push(unmasked[greedy]);
    }
    if let Some(Tree::Leaf(place)) = acting.state.get_mut("action") {
        place.as_mut_slice::<f32>().copy_from_slice(&previous);
    }
    Decided { taken, best }
}

/// Writes the reward of step `t` into a policy's memory, unless the episode ended with it.
pub(crate) fn remember_reward(rollout: &Rollout, t: usize, state: &mut Tree<Array>) {
    let Some(Tree::Leaf(column)) = state.get_mut("reward") else {
        return;
    };
    let rewards = rollout.rewards.at(&[t]);
    let ends = [&rollout.terminated, &rollout.truncated].map(|flags| flags.at(&[t]).bytes);
    let column = column.as_mut_slice::<f32>().iter_mut();
    for (b, (to, reward)) in column.zip(rewards.as_slice::<f32>()).enumerate() {
        *to = if ends.iter().any(|flags| flags[b] != 0) {
            0.0
        } else {
            *reward
        };
    }
}

/// An array of a tree by its name.
pub(crate) fn leaf<'a>(tree: &'a Tree<Array>, name: &str) -> Option<&'a Array> {
    tree.get(name)?.leaf()
}
