//! Recurrent replay distributed DQN, "R2D2" (Kapturowski et al. 2019): Q-learning with an LSTM
//! over replayed sequences.
//!
//! Sequences begin with the recurrent state that the actor had, and with a burn-in that only
//! warms it up, for the online and the target network each. Targets are of n steps, double and on
//! the paper's scale h; priorities mix the largest and the mean error of a sequence. The network
//! sees the previous action and reward.
//!
//! Defaults are those of rlpyt's R2D1 and the paper. Where we differ: an episode that was cut off
//! is bootstrapped from its final observation; actors' priorities have no target network, and
//! bootstrap an episode that was cut off from the value before its end.

use std::collections::BTreeMap;
use std::sync::Arc;

use rand::RngExt as _;
use serde::{Deserialize, Serialize};
use starling_envs::{Rng, Rollout, stream};
use starling_nets::{
    Device, Kind, Layout, LstmState, Optimizer, OptimizerConfig, Params, QNetConfig,
    RecurrentInput, RecurrentQ, Schedule, ShapeMismatch, Tensor, array_of, clip_global_norm,
    no_grad, previous_actions, tensor_of, tensor_of_view, tree_of,
};
use starling_replay::{PriorityConfig, SequenceBatch, SequenceConfig, mixed_priority};
use starling_tree::{Array, DType, Spec, Tree};

use crate::config::{ConfigError, require};
use crate::ops::{Next, huber, rescale, unscale};
use crate::registry::{load_learner, save_learner};
use crate::value_based::{ValueConfig, ahead, greedy_action, mask, random_action};
use crate::{
    Acting, Algorithm, Batch, Experience, LearnError, Learner, Part, Policy, Progress, Report,
    Saved, Spaces,
};

/// R2D2's settings beside the shared ones; `batch_size` counts sequences.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// How episodes are cut into sequences.
    pub sequence: SequenceConfig,
    /// Size of the LSTM.
    pub lstm: usize,
    /// Learn values on the scale h(x) = sign(x)(√(|x| + 1) − 1) + εx.
    pub rescale: bool,
    /// Where the loss turns from square to linear; null for the squared error.
    pub huber_delta: Option<f64>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            sequence: SequenceConfig::default(),
            lstm: 512,
            rescale: true,
            huber_delta: None,
        }
    }
}

/// All settings with their defaults.
pub fn defaults() -> (ValueConfig, Config) {
    let shared = ValueConfig {
        rollout_steps: 40,
        batch_size: 64,
        learning_starts_steps: 100_000,
        replay_ratio: Some(1.0),
        n_steps: 5,
        gamma: 0.997,
        learning_rate: Schedule::Constant(1e-4),
        optimizer: OptimizerConfig {
            eps: 1e-3,
            ..OptimizerConfig::default()
        },
        clip_norm: Some(80.0),
        double: true,
        target_every_updates: 2500,
        priority: Some(PriorityConfig {
            alpha: 0.9,
            ..PriorityConfig::default()
        }),
        priority_beta: Schedule::Constant(0.6),
        actor_priorities: true,
        net: QNetConfig {
            dueling: true,
            head_hidden: 512,
            ..QNetConfig::default()
        },
        ..ValueConfig::default()
    };
    (shared, Config::default())
}

/// R2D2 for the spaces of an environment.
pub fn build(
    shared: ValueConfig,
    config: Config,
    spaces: &Spaces,
) -> Result<Box<dyn Algorithm>, ConfigError> {
    Ok(Box::new(R2d2::new(shared, config, spaces)?))
}

#[derive(Clone)]
struct R2d2 {
    shared: ValueConfig,
    config: Config,
    net: RecurrentQ,
    layout: Arc<Layout>,
    frame_stack: Option<usize>,
}

impl R2d2 {
    fn new(shared: ValueConfig, config: Config, spaces: &Spaces) -> Result<Self, ConfigError> {
        shared.check()?;
        let size = config.lstm;
        let good = (1..=1 << 16).contains(&size);
        require(good, "algo.lstm", size, "between 1 and 65536")?;
        let delta = config.huber_delta.unwrap_or(1.0);
        require(delta > 0.0, "algo.huber_delta", delta, "over 0")?;
        let misfit = |what: &str| Err(ConfigError::Misfit(format!("r2d2 cannot be used {what}")));
        if shared.munchausen.is_some() {
            return misfit("with algo.munchausen");
        }
        if shared.net.noisy_sigma.is_some() {
            return misfit("with algo.net.noisy_sigma");
        }
        let mut layout = Layout::default();
        let both = (&spaces.observation, &spaces.action);
        let net = RecurrentQ::new(&mut layout, &shared.net, "", both, size, 0);
        match net {
            Err(ShapeMismatch(reason)) => misfit(&format!("here: {reason}")),
            Ok(net) => Ok(Self {
                shared,
                config,
                net,
                layout: Arc::new(layout),
                frame_stack: spaces.frame_stack,
            }),
        }
    }

    /// The scale that values are learned on.
    fn scaled(&self, returns: &Tensor) -> Tensor {
        match self.config.rescale {
            true => rescale(returns),
            false => returns.shallow_clone(),
        }
    }

    /// `returns + discounts · following`, where `following` and the result are on the learned
    /// scale.
    fn targets(&self, returns: &Tensor, discounts: &Tensor, following: &Tensor) -> Tensor {
        let following = match self.config.rescale {
            true => unscale(following),
            false => following.shallow_clone(),
        };
        self.scaled(&(returns + discounts * following))
    }
}

impl Algorithm for R2d2 {
    fn experience(&self) -> Experience {
        let mut needs = self.shared.needs(self.frame_stack);
        needs.replay.sequence = Some(self.config.sequence.clone());
        needs.rate.tolerance_samples = 4.0 * needs.batch_steps() as f64;
        Experience::Transitions(Box::new(needs))
    }

    fn discount(&self) -> f64 {
        self.shared.gamma
    }

    fn policy(&self, device: Device) -> Box<dyn Policy> {
        Box::new(Remembering {
            params: Params::zeros(&self.layout, device),
            algorithm: self.clone(),
            device,
            trace: BTreeMap::new(),
        })
    }

    fn learner(&self, seed: u64, device: Device) -> Box<dyn Learner> {
        Box::new(R2d2Learner::new(self.clone(), seed, device))
    }
}

/// Acts greedily by action values that depend on what was seen before.
struct Remembering {
    algorithm: R2d2,
    params: Params,
    device: Device,
    /// What was predicted, row by row, for the rollout whose first environment has the number;
    /// only if the actor gives priorities.
    trace: BTreeMap<usize, Vec<Traced>>,
}

/// Values at one row, of `[B]` environments each.
struct Traced {
    /// Of the actions taken.
    taken: Vec<f32>,
    /// Of the best actions.
    best: Vec<f32>,
}

impl Remembering {
    /// What the network sees at row `t`: with the action and reward before it from the policy's
    /// memory.
    fn input(&self, t: usize, rollout: &Rollout, state: &Tree<Array>) -> RecurrentInput {
        let device = self.device;
        let part = |name| leaf(state, name).map(|array| tensor_of(array, device));
        let envs = rollout.envs() as i64;
        let cpu = (Kind::Float, device);
        let count = self.algorithm.net.actions() as i64;
        let actions = part("action").unwrap_or_else(|| Tensor::zeros([envs, count], cpu));
        let rewards = part("reward").unwrap_or_else(|| Tensor::zeros([envs], cpu));
        RecurrentInput {
            obs: tree_of(&rollout.obs, &[t], device),
            actions: actions.unsqueeze(0),
            rewards: rewards.unsqueeze(0),
            extra: None,
            // Where an episode begins the memory is zero already.
            starts: Tensor::zeros([1, envs], cpu),
        }
    }

    fn memory(&self, state: &Tree<Array>, envs: usize) -> LstmState {
        let zeros = || {
            let shape = [envs as i64, self.algorithm.config.lstm as i64];
            Tensor::zeros(shape, (Kind::Float, self.device))
        };
        let part = |name| match leaf(state, name) {
            Some(array) => tensor_of(array, self.device),
            None => zeros(),
        };
        (part("hidden"), part("cell"))
    }

    /// |error| of every step of a rollout, `[T, B]`, as the learner would see it.
    fn errors(&self, rollout: &Rollout, state: &Tree<Array>, trace: &[Traced]) -> Vec<f32> {
        let (steps, envs) = (rollout.steps(), rollout.envs());
        let input = self.input(steps, rollout, state);
        let memory = self.memory(state, envs);
        let net = &self.algorithm.net;
        let (values, _) = no_grad(|| net.forward(&self.params, &input, &memory));
        let legal = rollout.legal.as_ref();
        let legal = legal.map(|legal| tensor_of_view(legal.at(&[steps]), self.device));
        let after = array_of(&mask(values.get(0), legal.as_ref()).amax([-1].as_slice(), false));
        let after = after.as_slice::<f32>();
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
        if t > 0 {
            remember_reward(rollout, t - 1, acting.state);
        }
        let envs = rollout.envs();
        if let Some(record) = rollout.policy.get_mut("state") {
            for (name, column) in record.leaves_mut() {
                if let Some(array) = leaf(acting.state, &name) {
                    column.at_mut(&[t]).bytes.copy_from_slice(array.bytes());
                }
            }
        }
        let input = self.input(t, rollout, acting.state);
        let memory = self.memory(acting.state, envs);
        let net = &self.algorithm.net;
        let (values, (hidden, cell)) = no_grad(|| net.forward(&self.params, &input, &memory));
        let mut values = array_of(&values.get(0));
        let shared = &self.algorithm.shared;
        let count = net.actions();
        let mut previous = vec![0f32; envs * count];
        let (mut taken, mut best) = (Vec::new(), Vec::new());
        for (b, rng) in acting.rngs.iter_mut().enumerate() {
            let legal = rollout.legal.as_ref().map(|mask| mask.at(&[t, b]));
            let legal = legal.map(|row| row.as_slice::<u8>());
            let mut row = values.at_mut(&[b]);
            let row = row.as_mut_slice::<f32>();
            let unmasked = row.to_vec();
            let greedy = greedy_action(row, legal);
            let epsilon = match acting.explore {
                true => shared.epsilon(acting.env_steps, acting.first_env + b, acting.total_envs),
                false => shared.epsilon_eval,
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
        if acting.explore && shared.actor_priorities {
            let trace = self.trace.entry(acting.first_env).or_default();
            trace.truncate(t);
            trace.push(Traced { taken, best });
        }
        let mut keep = |name: &str, array: Array| {
            if let Some(Tree::Leaf(place)) = acting.state.get_mut(name) {
                *place = array;
            }
        };
        keep("hidden", array_of(&hidden));
        keep("cell", array_of(&cell));
        keep("action", Array::from_slice(&previous, &[envs, count]));
    }

    fn finish(&mut self, _group: usize, parts: &mut [Part<'_>]) {
        for Part { rollout, acting } in parts {
            remember_reward(rollout, rollout.steps() - 1, acting.state);
            let Some(trace) = self.trace.remove(&acting.first_env) else {
                continue;
            };
            if trace.len() == rollout.steps() {
                let errors = self.errors(rollout, acting.state, &trace);
                if let Some(Tree::Leaf(column)) = rollout.policy.get_mut("priority") {
                    column.as_mut_slice::<f32>().copy_from_slice(&errors);
                }
            }
        }
    }
}

/// Brings the reward of step `t` into a policy's memory, unless the episode ended with it.
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

pub(crate) fn leaf<'a>(tree: &'a Tree<Array>, name: &str) -> Option<&'a Array> {
    tree.get(name)?.leaf()
}

struct R2d2Learner {
    algorithm: R2d2,
    params: Params,
    target: Params,
    optimizer: Optimizer,
    updates: u64,
    rng: Rng,
    device: Device,
}

/// What comes of a batch: values of actions taken, their targets, and which count; `[L, B]`.
struct Compared {
    taken: Tensor,
    targets: Tensor,
    mask: Tensor,
}

impl R2d2Learner {
    fn new(algorithm: R2d2, seed: u64, device: Device) -> Self {
        let mut rng = stream(seed, "learner", 0);
        let params = Params::init(&algorithm.layout, &mut rng, device).trainable();
        let mut target = Params::zeros(&algorithm.layout, device);
        target.copy_from(&params);
        Self {
            optimizer: Optimizer::new(algorithm.shared.optimizer, params.flat()),
            algorithm,
            params,
            target,
            updates: 0,
            rng,
            device,
        }
    }

    fn compare(&self, batch: &SequenceBatch) -> Compared {
        let (device, net) = (self.device, &self.algorithm.net);
        let starts = tensor_of(&batch.resets, device).to_kind(Kind::Float);
        let previous = tensor_of(&batch.prev_actions, device);
        let input = RecurrentInput {
            obs: batch
                .obs
                .map(|array| tensor_of(array, device).flatten(0, 1)),
            actions: previous_actions(&previous, &starts, net.actions()),
            rewards: tensor_of(&batch.prev_rewards, device),
            extra: None,
            starts,
        };
        let total = input.starts.size()[0];
        let length = batch.mask.shape()[0] as i64;
        let burn_in = self.algorithm.config.sequence.burn_in_steps as i64;
        let memory = |name| match leaf(&batch.state, name) {
            Some(array) => tensor_of(array, device),
            None => {
                let shape = [batch.size() as i64, self.algorithm.config.lstm as i64];
                Tensor::zeros(shape, (Kind::Float, device))
            }
        };
        let stored = || (memory("hidden"), memory("cell"));
        let warmed = |params: &Params| match burn_in {
            0 => stored(),
            _ => no_grad(|| net.forward(params, &input.narrow(0, burn_in), &stored()).1),
        };
        let rest = input.narrow(burn_in, total - burn_in);
        let (online, _) = net.forward(&self.params, &rest, &warmed(&self.params));
        let following = no_grad(|| {
            let (values, _) = net.forward(&self.target, &rest, &warmed(&self.target));
            let judge = match self.algorithm.shared.double {
                true => online.detach(),
                false => values.shallow_clone(),
            };
            let legal = batch.legal.as_ref();
            let legal =
                legal.map(|legal| tensor_of(legal, device).narrow(0, burn_in, total - burn_in));
            let best = mask(judge, legal.as_ref()).argmax(-1, true);
            let best = values.gather(-1, &best, false).squeeze_dim(-1);
            let positions = tensor_of(&batch.bootstrap, device) - burn_in;
            best.gather(0, &positions.clamp_min(0), false)
        });
        let actions = tensor_of(&batch.actions, device).narrow(0, burn_in, length);
        let taken = online.narrow(0, 0, length);
        let taken = taken.gather(-1, &actions.unsqueeze(-1), false);
        let (returns, discounts) = (
            tensor_of(&batch.returns, device),
            tensor_of(&batch.discounts, device),
        );
        Compared {
            taken: taken.squeeze_dim(-1),
            targets: self.algorithm.targets(&returns, &discounts, &following),
            mask: tensor_of(&batch.mask, device),
        }
    }
}

impl Learner for R2d2Learner {
    fn update(&mut self, batch: Batch<'_>, progress: Progress) -> Result<Report, LearnError> {
        let Batch::Sequences(batch) = batch else {
            let wanted = "sequences";
            return Err(LearnError::WrongBatch { wanted });
        };
        let Compared {
            taken,
            targets,
            mask,
        } = self.compare(batch);
        let errors = (targets - &taken) * &mask;
        let losses = match self.algorithm.config.huber_delta {
            None => errors.square() * 0.5,
            Some(delta) => huber(&errors, delta),
        };
        let weights = tensor_of(&batch.weights, self.device);
        let steps = mask.sum(Kind::Float).clamp_min(1.0);
        let loss = (losses * weights).sum(Kind::Float) / &steps;

        let shared = &self.algorithm.shared;
        let gradient = self.params.gradient(&loss);
        let limit = shared.clip_norm.unwrap_or(f64::INFINITY);
        let (gradient, norm) = clip_global_norm(gradient, limit);
        let learning_rate = shared.learning_rate.at(progress.fraction());
        self.optimizer
            .step(self.params.flat(), &gradient, learning_rate);
        self.updates += 1;
        if self.updates.is_multiple_of(shared.target_every_updates) {
            self.target.blend(&self.params, shared.target_tau);
        }

        let sizes = errors.detach().abs();
        let mean = |of: &Tensor| (of * &mask).sum(Kind::Float) / &steps;
        let numbers = [loss.shallow_clone(), mean(&sizes), mean(&taken), norm];
        let numbers = array_of(&Tensor::stack(&numbers, 0));
        let numbers = numbers.as_slice::<f32>();
        let mut metrics = vec![
            ("loss", f64::from(numbers[0])),
            ("td_error", f64::from(numbers[1])),
            ("q_value", f64::from(numbers[2])),
            ("grad_norm", f64::from(numbers[3])),
            ("learning_rate", learning_rate),
        ];
        if shared.epsilon_ladder.is_none() {
            metrics.push(("epsilon", shared.decayed_epsilon(progress.env_steps)));
        }
        let priorities = shared.priority.is_some().then(|| {
            let eta = self.algorithm.config.sequence.priority_eta;
            sequence_priorities(&array_of(&sizes), &batch.mask, eta)
        });
        Report::checked(metrics, priorities)
    }

    fn weights(&self) -> Vec<f32> {
        self.params.to_vec()
    }

    fn save(&self) -> Saved {
        let params = [("params", &self.params), ("target", &self.target)];
        let mut saved = save_learner(&params, &self.optimizer, &self.rng);
        let updates = Array::from_slice(&[self.updates as i64], &[1]);
        saved.insert("updates".into(), updates);
        saved
    }

    fn load(&mut self, saved: &Saved) -> Result<(), LearnError> {
        let params = [("params", &mut self.params), ("target", &mut self.target)];
        load_learner(saved, params, &mut self.optimizer, &mut self.rng)?;
        let updates = saved.get("updates");
        let updates = updates.and_then(|array| array.as_slice::<i64>().first());
        let missing = || LearnError::Saved("'updates' is missing".into());
        self.updates = *updates.ok_or_else(missing)? as u64;
        Ok(())
    }
}

/// η·max + (1 − η)·mean of the |errors| `[L, B]` of each sequence, over the steps that count.
pub(crate) fn sequence_priorities(errors: &Array, mask: &Array, eta: f64) -> Vec<f32> {
    let size = errors.shape()[1];
    let column = |b: usize| {
        let errors = errors.as_slice::<f32>().iter().skip(b).step_by(size);
        let mask = mask.as_slice::<f32>().iter().skip(b).step_by(size);
        let counted = errors.zip(mask).filter(|(_, mask)| **mask != 0.0);
        mixed_priority(counted.map(|(error, _)| *error), eta) as f32
    };
    (0..size).map(column).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use starling_envs::Space;
    use starling_replay::{Layout as Rows, Replay, ReplayConfig};

    fn algorithm() -> R2d2 {
        let spaces = Spaces {
            observation: Space::unbounded(&[1]),
            action: Space::Discrete { n: 2 },
            legal_actions: None,
            frame_stack: None,
        };
        let (mut shared, mut config) = defaults();
        shared.n_steps = 2;
        shared.gamma = 0.9;
        shared.epsilon_start = 0.5;
        shared.epsilon_end = 0.5;
        shared.net = QNetConfig {
            hidden: Some(vec![4]),
            dueling: true,
            ..QNetConfig::default()
        };
        config.lstm = 5;
        config.sequence = SequenceConfig {
            burn_in_steps: 4,
            length_steps: 4,
            overlap_steps: 2,
            state_interval_steps: 2,
            priority_eta: 0.9,
        };
        R2d2::new(shared, config, &spaces).unwrap()
    }

    /// h(10) = 2.326625, and h(1 + ½·10) = √7 − 1 + 0.006.
    #[test]
    fn targets_are_on_the_learned_scale() {
        let one = |value: f32| Tensor::from_slice(&[value]);
        let target = algorithm().targets(&one(1.0), &one(0.5), &one(2.326625));
        let expected = 7f64.sqrt() - 1.0 + 0.006;
        assert!((target.double_value(&[0]) - expected).abs() < 1e-4);
    }

    /// η = .9 of (.1, .5, 2, .4) is 1.875; the fifth step is behind the end of the episode.
    #[test]
    fn priorities_mix_the_largest_and_the_mean_error() {
        let errors = Array::from_slice(&[0.1f32, 0.5, 2.0, 0.4, 7.0], &[5, 1]);
        let mask = Array::from_slice(&[1f32, 1.0, 1.0, 1.0, 0.0], &[5, 1]);
        assert_eq!(sequence_priorities(&errors, &mask, 0.9), [1.875]);
    }

    const STEPS: usize = 24;
    /// The task ends with this step.
    const END: usize = 9;

    /// A rollout of two episodes whose observations tell the step, acted by the policy.
    fn rollout(policy: &mut dyn Policy) -> Rollout {
        let (obs, action) = (Space::unbounded(&[1]), Space::Discrete { n: 2 });
        let (records, state) = (policy.records(), policy.state());
        let mut rollout = Rollout::new(STEPS, 1, &obs, &action, None, &records, &state);
        let seen: Vec<f32> = (0..=STEPS).map(|t| t as f32 / 10.0).collect();
        rollout.obs = Tree::Leaf(Array::from_slice(&seen, &[STEPS + 1, 1, 1]));
        let rewards: Vec<f32> = (0..STEPS).map(|t| (t % 3) as f32).collect();
        rollout.rewards = Array::from_slice(&rewards, &[STEPS, 1]);
        rollout.terminated.as_mut_slice::<u8>()[END] = 1;
        let mut state = Tree::zeros(&state, &[1]);
        let mut rngs = [stream(1, "policy", 0)];
        fn acting<'a>(rngs: &'a mut [Rng], state: &'a mut Tree<Array>) -> Acting<'a> {
            Acting {
                explore: true,
                env_steps: 0,
                first_env: 0,
                total_envs: 1,
                rngs,
                state,
            }
        }
        for t in 0..STEPS {
            policy.act(t, &mut rollout, acting(&mut rngs, &mut state));
            if t == END {
                // As the engine does it.
                for (_, array) in state.leaves_mut() {
                    array.bytes_mut().fill(0);
                }
            }
        }
        let part = Part {
            rollout: &mut rollout,
            acting: acting(&mut rngs, &mut state),
        };
        policy.finish(0, &mut [part]);
        rollout
    }

    /// Values `[T, A]` of one unbroken pass over the rollout.
    fn unbroken(learner: &R2d2Learner, rollout: &Rollout) -> Tensor {
        let (net, cpu) = (&learner.algorithm.net, Device::Cpu);
        let mut starts = [0f32; STEPS];
        (starts[0], starts[END + 1]) = (1.0, 1.0);
        let starts = Tensor::from_slice(&starts).reshape([-1, 1]);
        let shifted = |tensor: Tensor| {
            let first = tensor.narrow(0, 0, 1).zeros_like();
            let previous = Tensor::cat(&[first, tensor.narrow(0, 0, STEPS as i64 - 1)], 0);
            previous.reshape([-1, 1])
        };
        let actions = shifted(tensor_of(&rollout.actions, cpu));
        let rewards = shifted(tensor_of(&rollout.rewards, cpu));
        let input = RecurrentInput {
            obs: rollout.obs.map(|array| {
                let all = tensor_of(array, cpu).narrow(0, 0, STEPS as i64);
                all.flatten(0, 1)
            }),
            actions: previous_actions(&actions, &starts, 2),
            rewards: rewards * (starts.ones_like() - &starts),
            extra: None,
            starts,
        };
        let zero = || Tensor::zeros([1, 5], (Kind::Float, cpu));
        let (values, _) = net.forward(&learner.params, &input, &(zero(), zero()));
        values.squeeze_dim(1)
    }

    /// Stored states and burn-in give the values of an unbroken pass, in every sequence.
    #[test]
    fn sequences_with_stored_state_equal_an_unbroken_pass() {
        let algorithm = algorithm();
        let learner = R2d2Learner::new(algorithm.clone(), 1, Device::Cpu);
        let mut policy = algorithm.policy(Device::Cpu);
        policy.load(&learner.weights()).unwrap();
        let rollout = rollout(&mut *policy);
        let values = unbroken(&learner, &rollout);
        let actions = rollout.actions.as_slice::<i64>();
        let taken = |t: usize| values.double_value(&[t as i64, actions[t]]);

        let Experience::Transitions(needs) = algorithm.experience() else {
            panic!("r2d2 has a replay");
        };
        let config = ReplayConfig {
            capacity_steps: 100,
            ..needs.replay
        };
        let replay = Replay::new(config, Rows::of_rollout(&rollout, 1)).unwrap();
        replay.insert(&rollout, 0, None).unwrap();
        let batch = replay.sample_sequences(64, 0.6, &mut stream(1, "replay", 0));
        let batch = batch.unwrap();
        let compared = learner.compare(&batch);
        let (seen, mask) = (batch.obs.leaf().unwrap(), batch.mask.as_slice::<f32>());
        let mut steps = std::collections::BTreeSet::new();
        for b in 0..64 {
            for t in 0..4 {
                if mask[t * 64 + b] == 0.0 {
                    continue;
                }
                let step = seen.at(&[4 + t, b]).as_slice::<f32>()[0] * 10.0;
                let step = step.round() as usize;
                let value = compared.taken.double_value(&[t as i64, b as i64]);
                assert!((value - taken(step)).abs() < 1e-5, "step {step}");
                steps.insert(step);
            }
        }
        assert!(steps.len() > 15, "{steps:?}");
    }

    /// The actor's errors against those worked out from the unbroken pass.
    #[test]
    fn actors_see_errors_on_the_learned_scale() {
        let algorithm = algorithm();
        let learner = R2d2Learner::new(algorithm.clone(), 1, Device::Cpu);
        let mut policy = algorithm.policy(Device::Cpu);
        policy.load(&learner.weights()).unwrap();
        let rollout = rollout(&mut *policy);
        let values = unbroken(&learner, &rollout);
        let priorities = leaf(&rollout.policy, "priority").unwrap();
        let priorities = priorities.as_slice::<f32>();
        let (rewards, actions) = (
            rollout.rewards.as_slice::<f32>(),
            rollout.actions.as_slice::<i64>(),
        );
        let one = |value: f64| Tensor::from_slice(&[value as f32]);
        for t in 0..STEPS - 2 {
            let mut return_ = f64::from(rewards[t]);
            if t != END {
                return_ += 0.9 * f64::from(rewards[t + 1]);
            }
            let ended = t == END || t + 1 == END;
            let next = values.get(t as i64 + 2).max().double_value(&[]);
            let discount = if ended { 0.0 } else { 0.81 };
            let target = algorithm.targets(&one(return_), &one(discount), &one(next));
            let value = values.double_value(&[t as i64, actions[t]]);
            let expected = (target.double_value(&[0]) - value).abs();
            let given = f64::from(priorities[t]);
            assert!((given - expected).abs() < 1e-4, "{t}: {given}, {expected}");
        }
    }
}
