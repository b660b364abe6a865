//! Never Give Up, "NGU" (Badia et al. 2020), with the meta-controller of Agent57: recurrent
//! Q-learning that is also rewarded for what is new.
//!
//! What is new within an episode is told by the distances of an embedding to its nearest
//! neighbours in the episode; what is new over the whole run, by random network distillation,
//! which scales the former by 1 to 5. Two networks learn the values of the task's rewards and of
//! these; both are told which *arm* is being played: how much the second counts (β) and how far
//! ahead to look (γ). A sliding-window bandit per environment chooses the arm of each episode by
//! the task's returns.
//!
//! Where we differ: the mean distance that distances are compared with is that of the episode so
//! far, so that it needs no memory beyond it; evaluation plays the first arm, which has β = 0.
//! The actor works out the new rewards of a rollout when it is full.

use std::sync::Arc;

use rand::RngExt as _;
use serde::{Deserialize, Serialize};
use starling_envs::{Rng, Rollout, stream};
use starling_nets::{
    Device, InverseModel, Kind, Layout, LstmState, Optimizer, Params, RandomDistillation,
    RecurrentInput, RecurrentQ, ShapeMismatch, Tensor, array_of, clip_global_norm, no_grad,
    previous_actions, tensor_of, tree_of,
};
use starling_replay::{SequenceBatch, SequenceConfig};
use starling_tree::{Array, DType, Spec, Tree};

use crate::config::{ConfigError, require};
use crate::ops::{
    EpisodicNovelty, choose_arm, discount_ladder, intrinsic_weight, rescale, unscale,
};
use crate::r2d2::{self, leaf, remember_reward, sequence_priorities};
use crate::registry::{load_learner, save_learner};
use crate::value_based::{ValueConfig, greedy_action, mask, random_action};
use crate::{
    Acting, Algorithm, Batch, Experience, LearnError, Learner, Part, Policy, Progress, Report,
    Saved, Spaces,
};

/// NGU's settings beside the shared ones; `batch_size` counts sequences, and `gamma` is the
/// discount of the first arm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// How episodes are cut into sequences.
    pub sequence: SequenceConfig,
    /// Size of each LSTM.
    pub lstm: usize,
    /// Number of arms.
    pub arms: usize,
    /// Weight of the intrinsic values of the last arm (β).
    pub beta_max: f64,
    /// Discount of the last arm.
    pub gamma_min: f64,
    /// Episodes of an environment that its bandit looks back on.
    pub bandit_episodes: usize,
    /// Chance of any arm.
    pub bandit_epsilon: f64,
    /// What is new within an episode.
    pub episodic: EpisodicNovelty,
    /// Size of the embedding.
    pub embedding: usize,
    /// Outputs of the random network.
    pub rnd_features: usize,
    /// At most so much does what is new over the run count (L).
    pub rnd_max: f64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            sequence: SequenceConfig::default(),
            lstm: 512,
            arms: 32,
            beta_max: 0.3,
            gamma_min: 0.99,
            bandit_episodes: 90,
            bandit_epsilon: 0.5,
            episodic: EpisodicNovelty::default(),
            embedding: 32,
            rnd_features: 64,
            rnd_max: 5.0,
        }
    }
}

/// All settings with their defaults.
pub fn defaults() -> (ValueConfig, Config) {
    let (shared, _) = r2d2::defaults();
    let shared = ValueConfig {
        actor_priorities: false,
        ..shared
    };
    (shared, Config::default())
}

/// NGU for the spaces of an environment.
pub fn build(
    shared: ValueConfig,
    config: Config,
    spaces: &Spaces,
) -> Result<Box<dyn Algorithm>, ConfigError> {
    Ok(Box::new(Ngu::new(shared, config, spaces)?))
}

#[derive(Clone)]
struct Ngu {
    shared: ValueConfig,
    config: Config,
    nets: Nets,
    layout: Arc<Layout>,
    frame_stack: Option<usize>,
}

#[derive(Clone)]
struct Nets {
    extrinsic: RecurrentQ,
    intrinsic: RecurrentQ,
    rnd: RandomDistillation,
    inverse: InverseModel,
}

/// The recurrent states of both networks.
struct Memories {
    extrinsic: LstmState,
    intrinsic: LstmState,
}

/// Values of both networks, `[T, B, A]`.
struct Values {
    extrinsic: Tensor,
    intrinsic: Tensor,
}

impl Values {
    /// What an agent acts by: both on the scale of rewards, the second times β (`[B, 1]`).
    fn mixed(&self, beta: &Tensor) -> Tensor {
        unscale(&self.extrinsic) + unscale(&self.intrinsic) * beta
    }
}

impl Nets {
    fn forward(
        &self,
        params: &Params,
        input: &RecurrentInput,
        from: &Memories,
    ) -> (Values, Memories) {
        let (extrinsic, after_extrinsic) = self.extrinsic.forward(params, input, &from.extrinsic);
        let (intrinsic, after_intrinsic) = self.intrinsic.forward(params, input, &from.intrinsic);
        let values = Values {
            extrinsic,
            intrinsic,
        };
        let memories = Memories {
            extrinsic: after_extrinsic,
            intrinsic: after_intrinsic,
        };
        (values, memories)
    }
}

/// Names of the parts of [`Memories`] in a policy's memory.
const MEMORIES: [&str; 4] = [
    "extrinsic_hidden",
    "extrinsic_cell",
    "intrinsic_hidden",
    "intrinsic_cell",
];

impl Ngu {
    fn new(shared: ValueConfig, config: Config, spaces: &Spaces) -> Result<Self, ConfigError> {
        shared.check()?;
        let between = |key, value: usize| {
            let good = (1..=1 << 16).contains(&value);
            require(good, key, value, "between 1 and 65536")
        };
        between("algo.lstm", config.lstm)?;
        between("algo.arms", config.arms)?;
        between("algo.bandit_episodes", config.bandit_episodes)?;
        between("algo.embedding", config.embedding)?;
        between("algo.rnd_features", config.rnd_features)?;
        between("algo.episodic.neighbours", config.episodic.neighbours)?;
        let room = config.episodic.memory_steps;
        let enough = room >= config.episodic.neighbours && room <= 1 << 20;
        let allowed = "at least episodic.neighbours, and at most 1048576";
        require(enough, "algo.episodic.memory_steps", room, allowed)?;
        let share =
            |key, value: f64| require((0.0..=1.0).contains(&value), key, value, "between 0 and 1");
        share("algo.gamma_min", config.gamma_min)?;
        share("algo.bandit_epsilon", config.bandit_epsilon)?;
        let limit = config.rnd_max;
        require(limit >= 1.0, "algo.rnd_max", limit, "at least 1")?;
        let misfit = |what: &str| ConfigError::Misfit(format!("ngu cannot be used {what}"));
        for (set, what) in [
            (shared.munchausen.is_some(), "with algo.munchausen"),
            (
                shared.net.noisy_sigma.is_some(),
                "with algo.net.noisy_sigma",
            ),
            (shared.actor_priorities, "with algo.actor_priorities"),
        ] {
            if set {
                return Err(misfit(what));
            }
        }
        let mut layout = Layout::default();
        let nets = Nets::new(&mut layout, &shared, &config, spaces);
        let nets = nets.map_err(|ShapeMismatch(reason)| misfit(&format!("here: {reason}")))?;
        Ok(Self {
            shared,
            config,
            nets,
            layout: Arc::new(layout),
            frame_stack: spaces.frame_stack,
        })
    }

    /// β of every arm, `[arms]`.
    fn betas(&self, device: Device) -> Tensor {
        let (high, total) = (self.config.beta_max, self.config.arms);
        let betas = (0..total).map(|arm| intrinsic_weight(high, arm, total) as f32);
        Tensor::from_slice(&betas.collect::<Vec<_>>()).to_device(device)
    }

    /// γ of every arm, `[arms]`.
    fn gammas(&self, device: Device) -> Tensor {
        let (high, low, total) = (self.shared.gamma, self.config.gamma_min, self.config.arms);
        let gammas = (0..total).map(|arm| discount_ladder(high, low.min(high), arm, total) as f32);
        Tensor::from_slice(&gammas.collect::<Vec<_>>()).to_device(device)
    }
}

impl Nets {
    fn new(
        layout: &mut Layout,
        shared: &ValueConfig,
        config: &Config,
        spaces: &Spaces,
    ) -> Result<Self, ShapeMismatch> {
        let both = (&spaces.observation, &spaces.action);
        let (net, size, arms) = (&shared.net, config.lstm, config.arms);
        Ok(Self {
            extrinsic: RecurrentQ::new(layout, net, "extrinsic.", both, size, arms)?,
            intrinsic: RecurrentQ::new(layout, net, "intrinsic.", both, size, arms)?,
            rnd: RandomDistillation::new(layout, net, both.0, config.rnd_features)?,
            inverse: InverseModel::new(layout, net, both.0, both.1, config.embedding)?,
        })
    }
}

impl Algorithm for Ngu {
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
        Box::new(Curious {
            params: Params::zeros(&self.layout, device),
            betas: self.betas(device),
            algorithm: self.clone(),
            device,
        })
    }

    fn learner(&self, seed: u64, device: Device) -> Box<dyn Learner> {
        let mut rng = stream(seed, "learner", 0);
        let params = Params::init(&self.layout, &mut rng, device).trainable();
        let mut target = Params::zeros(&self.layout, device);
        target.copy_from(&params);
        Box::new(NguLearner {
            optimizer: Optimizer::new(self.shared.optimizer, params.flat()),
            algorithm: self.clone(),
            params,
            target,
            updates: 0,
            rng,
            device,
        })
    }
}

/// Acts by both values, and rewards what is new.
struct Curious {
    algorithm: Ngu,
    params: Params,
    betas: Tensor,
    device: Device,
}

impl Curious {
    /// Chooses the arms of episodes that begin, by the bandit as of the rollout's beginning.
    fn choose_arms(&self, rollout: &Rollout, acting: &mut Acting<'_>) -> Vec<i64> {
        let config = &self.algorithm.config;
        let mut chosen = Vec::new();
        let Some(Tree::Leaf(arms)) = acting.state.get_mut("arm") else {
            return chosen;
        };
        let arms = arms.as_mut_slice::<i64>().iter_mut();
        for (b, (arm, rng)) in arms.zip(acting.rngs.iter_mut()).enumerate() {
            // 0 where an episode begins, else the number of the arm plus 1.
            if *arm == 0 {
                let pulls = pulls_of(&rollout.state, b);
                let next = match acting.explore {
                    true => choose_arm(&pulls, config.arms, config.bandit_epsilon, rng),
                    false => 0,
                };
                *arm = next as i64 + 1;
            }
            chosen.push(*arm - 1);
        }
        chosen
    }

    /// The rewards of what is new, step by step, and the memory of the episodes that go on.
    fn reward_novelty(&self, rollout: &mut Rollout, state: &mut Tree<Array>) {
        let (steps, envs) = (rollout.steps(), rollout.envs());
        let Novelties {
            embeddings,
            surprises,
        } = self.look_at(rollout);
        let size = self.algorithm.nets.inverse.size;
        let novelty = &self.algorithm.config.episodic;
        let most = self.algorithm.config.rnd_max as f32;
        let ends: Vec<bool> = ends(rollout).collect();
        for b in 0..envs {
            let mut memory = Remembered::of(&rollout.state, b, size);
            for t in 0..steps {
                let at = t * envs + b;
                let place = &embeddings[at * size..(at + 1) * size];
                let episodic = memory.visit(place, novelty);
                let reward = episodic as f32 * surprises[at].clamp(1.0, most);
                if let Some(Tree::Leaf(column)) = rollout.policy.get_mut("intrinsic") {
                    column.as_mut_slice::<f32>()[at] = reward;
                }
                if ends[at] {
                    memory = Remembered::default();
                }
            }
            memory.keep(state, b);
        }
    }

    /// Embeddings `[T·B, size]` and surprise `[T·B]` of what each step led to.
    fn look_at(&self, rollout: &Rollout) -> Novelties {
        let (steps, envs) = (rollout.steps(), rollout.envs());
        let mut after = rollout.obs.map(|array| {
            let all = tensor_of(array, self.device);
            all.narrow(0, 1, steps as i64).flatten(0, 1)
        });
        for (kept, &(t, b)) in rollout.final_at.iter().enumerate() {
            let last = tree_of(&rollout.final_obs, &[kept], self.device);
            let row = (t * envs + b) as i64;
            let same = after.zip_mut(&last, |all, last| {
                all.get(row).copy_(last);
            });
            debug_assert!(same.is_ok(), "both are observations of one space");
        }
        let nets = &self.algorithm.nets;
        let (embeddings, surprises) = no_grad(|| {
            let embeddings = nets.inverse.embed(&self.params, &after);
            let surprises = match after.leaf() {
                Some(obs) => nets.rnd.surprise(&self.params, obs),
                None => Tensor::ones([(steps * envs) as i64], (Kind::Float, self.device)),
            };
            (array_of(&embeddings), array_of(&surprises))
        });
        Novelties {
            embeddings: embeddings.as_slice::<f32>().to_vec(),
            surprises: surprises.as_slice::<f32>().to_vec(),
        }
    }

    /// Tells the bandits how episodes went.
    fn reward_arms(&self, rollout: &Rollout, state: &mut Tree<Array>) {
        let envs = rollout.envs();
        let most = self.algorithm.config.bandit_episodes;
        let rewards = rollout.rewards.as_slice::<f32>();
        let arms = leaf(&rollout.policy, "arm").map(|column| column.as_slice::<i64>());
        let scores = leaf(&rollout.state, "score").map(|column| column.as_slice::<f32>());
        let (Some(arms), Some(scores)) = (arms, scores) else {
            return;
        };
        let ends: Vec<bool> = ends(rollout).collect();
        for (b, &score) in scores.iter().enumerate() {
            let mut pulls = pulls_of(&rollout.state, b);
            let mut score = score;
            for at in (b..rewards.len()).step_by(envs) {
                score += rewards[at];
                if ends[at] {
                    pulls.push((arms[at] as usize, score));
                    score = 0.0;
                }
            }
            let late = pulls.len().saturating_sub(most);
            keep_pulls(state, b, &pulls[late..]);
            if let Some(Tree::Leaf(column)) = state.get_mut("score") {
                column.as_mut_slice::<f32>()[b] = score;
            }
        }
    }
}

struct Novelties {
    embeddings: Vec<f32>,
    surprises: Vec<f32>,
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

    fn act(&mut self, t: usize, rollout: &mut Rollout, mut acting: Acting<'_>) {
        if t > 0 {
            remember_reward(rollout, t - 1, acting.state);
        }
        let (envs, device) = (rollout.envs(), self.device);
        let arms = self.choose_arms(rollout, &mut acting);
        if let Some(Tree::Leaf(column)) = rollout.policy.get_mut("arm") {
            column.at_mut(&[t]).write(&arms);
        }
        if let Some(record) = rollout.policy.get_mut("state") {
            for (name, column) in record.leaves_mut() {
                if let Some(array) = leaf(acting.state, &name) {
                    column.at_mut(&[t]).bytes.copy_from_slice(array.bytes());
                }
            }
        }
        let algorithm = &self.algorithm;
        let count = algorithm.nets.extrinsic.actions();
        let part = |name: &str, shape: &[i64]| match leaf(acting.state, name) {
            Some(array) => tensor_of(array, device),
            None => Tensor::zeros(shape, (Kind::Float, device)),
        };
        let lstm = |name| part(name, &[envs as i64, algorithm.config.lstm as i64]);
        let memories = Memories {
            extrinsic: (lstm(MEMORIES[0]), lstm(MEMORIES[1])),
            intrinsic: (lstm(MEMORIES[2]), lstm(MEMORIES[3])),
        };
        let arms = Tensor::from_slice(&arms).to_device(device);
        let input = RecurrentInput {
            obs: tree_of(&rollout.obs, &[t], device),
            actions: part("action", &[envs as i64, count as i64]).unsqueeze(0),
            rewards: part("reward", &[envs as i64]).unsqueeze(0),
            extra: Some(one_hot(&arms, algorithm.config.arms).unsqueeze(0)),
            starts: Tensor::zeros([1, envs as i64], (Kind::Float, device)),
        };
        let (values, after) = no_grad(|| algorithm.nets.forward(&self.params, &input, &memories));
        let beta = self.betas.index_select(0, &arms).unsqueeze(-1);
        let mut values = array_of(&values.mixed(&beta).get(0));
        let mut previous = vec![0f32; envs * count];
        let shared = &algorithm.shared;
        for (b, rng) in acting.rngs.iter_mut().enumerate() {
            let legal = rollout.legal.as_ref().map(|mask| mask.at(&[t, b]));
            let legal = legal.map(|row| row.as_slice::<u8>());
            let mut row = values.at_mut(&[b]);
            let greedy = greedy_action(row.as_mut_slice::<f32>(), legal);
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
        }
        let mut keep = |name: &str, array: Array| {
            if let Some(Tree::Leaf(place)) = acting.state.get_mut(name) {
                *place = array;
            }
        };
        keep(MEMORIES[0], array_of(&after.extrinsic.0));
        keep(MEMORIES[1], array_of(&after.extrinsic.1));
        keep(MEMORIES[2], array_of(&after.intrinsic.0));
        keep(MEMORIES[3], array_of(&after.intrinsic.1));
        keep("action", Array::from_slice(&previous, &[envs, count]));
    }

    fn finish(&mut self, _group: usize, parts: &mut [Part<'_>]) {
        for Part { rollout, acting } in parts {
            remember_reward(rollout, rollout.steps() - 1, acting.state);
            if acting.explore {
                self.reward_novelty(rollout, acting.state);
                self.reward_arms(rollout, acting.state);
            }
        }
    }
}

/// What an episode has visited so far.
#[derive(Default)]
struct Remembered {
    /// Embeddings, one after the other, in a ring.
    places: Vec<f32>,
    visited: usize,
    /// Sum and number of the distances to nearest neighbours.
    distance: (f64, f64),
}

impl Remembered {
    fn of(state: &Tree<Array>, b: usize, size: usize) -> Self {
        let (Some(places), Some(visited), Some(distance)) = (
            leaf(state, "places"),
            leaf(state, "visited"),
            leaf(state, "distance"),
        ) else {
            return Self::default();
        };
        let visited = visited.as_slice::<i64>()[b] as usize;
        let row = places.at(&[b]);
        let row = row.as_slice::<f32>();
        let used = (visited * size).min(row.len());
        let distance = distance.at(&[b]);
        let distance = distance.as_slice::<f32>();
        Self {
            places: row[..used].to_vec(),
            visited,
            distance: (f64::from(distance[0]), f64::from(distance[1])),
        }
    }

    /// The reward of a place, which is remembered from then on.
    fn visit(&mut self, place: &[f32], novelty: &EpisodicNovelty) -> f64 {
        let reward = match novelty.nearest(place, &self.places) {
            None => 0.0,
            Some(distances) => {
                let sum: f64 = distances.iter().map(|&d| f64::from(d)).sum();
                self.distance.0 += sum;
                self.distance.1 += distances.len() as f64;
                novelty.reward(&distances, self.distance.0 / self.distance.1)
            }
        };
        let at = self.visited % novelty.memory_steps * place.len();
        match at < self.places.len() {
            true => self.places[at..at + place.len()].copy_from_slice(place),
            false => self.places.extend_from_slice(place),
        }
        self.visited += 1;
        reward
    }

    fn keep(&self, state: &mut Tree<Array>, b: usize) {
        if let Some(Tree::Leaf(column)) = state.get_mut("places") {
            let mut row = column.at_mut(&[b]);
            let row = row.as_mut_slice::<f32>();
            row.fill(0.0);
            row[..self.places.len()].copy_from_slice(&self.places);
        }
        if let Some(Tree::Leaf(column)) = state.get_mut("visited") {
            column.as_mut_slice::<i64>()[b] = self.visited as i64;
        }
        if let Some(Tree::Leaf(column)) = state.get_mut("distance") {
            let (sum, count) = (self.distance.0 as f32, self.distance.1 as f32);
            column.at_mut(&[b]).write(&[sum, count]);
        }
    }
}

/// The last arms of an environment and what they brought.
fn pulls_of(state: &Tree<Array>, b: usize) -> Vec<(usize, f32)> {
    let (Some(pulls), Some(pulled)) = (leaf(state, "pulls"), leaf(state, "pulled")) else {
        return Vec::new();
    };
    let count = pulled.as_slice::<i64>()[b] as usize;
    let row = pulls.at(&[b]);
    let pairs = row.as_slice::<f32>().chunks_exact(2).take(count);
    pairs.map(|pair| (pair[0] as usize, pair[1])).collect()
}

fn keep_pulls(state: &mut Tree<Array>, b: usize, pulls: &[(usize, f32)]) {
    if let Some(Tree::Leaf(column)) = state.get_mut("pulls") {
        let mut row = column.at_mut(&[b]);
        let row = row.as_mut_slice::<f32>();
        row.fill(0.0);
        for (pair, &(arm, reward)) in row.chunks_exact_mut(2).zip(pulls) {
            pair.copy_from_slice(&[arm as f32, reward]);
        }
    }
    if let Some(Tree::Leaf(column)) = state.get_mut("pulled") {
        column.as_mut_slice::<i64>()[b] = pulls.len() as i64;
    }
}

fn ends(rollout: &Rollout) -> impl Iterator<Item = bool> + '_ {
    let terminated = rollout.terminated.as_slice::<u8>().iter();
    let truncated = rollout.truncated.as_slice::<u8>().iter();
    terminated.zip(truncated).map(|(a, b)| *a != 0 || *b != 0)
}

fn one_hot(arms: &Tensor, count: usize) -> Tensor {
    arms.one_hot(count as i64).to_kind(Kind::Float)
}

struct NguLearner {
    algorithm: Ngu,
    params: Params,
    target: Params,
    optimizer: Optimizer,
    updates: u64,
    rng: Rng,
    device: Device,
}

/// What comes of a batch; all scalars but the errors.
struct Losses {
    /// Of the task's values and of the intrinsic ones, weighted by importance.
    extrinsic: Tensor,
    intrinsic: Tensor,
    rnd: Tensor,
    inverse: Tensor,
    /// |δ| of the task plus β·|δ| of the rest, `[L, B]`.
    errors: Tensor,
    value: Tensor,
    reward: Tensor,
    /// Observations and their novelty, for the running statistics.
    seen: Option<(Tensor, Tensor)>,
}

impl NguLearner {
    fn losses(&self, batch: &SequenceBatch) -> Losses {
        let (device, algorithm) = (self.device, &self.algorithm);
        let config = &algorithm.config;
        let burn_in = config.sequence.burn_in_steps as i64;
        let length = batch.mask.shape()[0] as i64;
        let record = |name| match leaf(&batch.records, name) {
            Some(array) => tensor_of(array, device),
            None => Tensor::zeros(
                [batch.rewards.shape()[0] as i64, batch.size() as i64],
                (Kind::Float, device),
            ),
        };
        // An episode has one arm; padding and the position behind its end have none.
        let arms = record("arm").to_kind(Kind::Int64).select(0, burn_in);
        let beta = algorithm.betas(device).index_select(0, &arms);
        let gamma = algorithm.gammas(device).index_select(0, &arms);

        let starts = tensor_of(&batch.resets, device).to_kind(Kind::Float);
        let total = starts.size()[0];
        let previous = tensor_of(&batch.prev_actions, device);
        let told = one_hot(&arms, config.arms).unsqueeze(0);
        let input = RecurrentInput {
            obs: batch
                .obs
                .map(|array| tensor_of(array, device).flatten(0, 1)),
            actions: previous_actions(&previous, &starts, algorithm.nets.extrinsic.actions()),
            rewards: tensor_of(&batch.prev_rewards, device),
            extra: Some(told.expand([total, -1, -1], false)),
            starts,
        };
        let stored = |name: &str| match leaf(&batch.state, name) {
            Some(array) => tensor_of(array, device),
            None => Tensor::zeros(
                [batch.size() as i64, config.lstm as i64],
                (Kind::Float, device),
            ),
        };
        let warmed = |params: &Params| {
            let first = Memories {
                extrinsic: (stored(MEMORIES[0]), stored(MEMORIES[1])),
                intrinsic: (stored(MEMORIES[2]), stored(MEMORIES[3])),
            };
            match burn_in {
                0 => first,
                _ => no_grad(|| {
                    let before = input.narrow(0, burn_in);
                    algorithm.nets.forward(params, &before, &first).1
                }),
            }
        };
        let rest = input.narrow(burn_in, total - burn_in);
        let (online, _) = algorithm
            .nets
            .forward(&self.params, &rest, &warmed(&self.params));
        let bootstrap = (tensor_of(&batch.bootstrap, device) - burn_in).clamp_min(0);
        let ended = tensor_of(&batch.discounts, device).eq(0.0);
        let following = no_grad(|| {
            let (values, _) = algorithm
                .nets
                .forward(&self.target, &rest, &warmed(&self.target));
            let judge = match algorithm.shared.double {
                true => online.mixed(&beta.unsqueeze(-1)),
                false => values.mixed(&beta.unsqueeze(-1)),
            };
            let legal = batch.legal.as_ref();
            let legal =
                legal.map(|legal| tensor_of(legal, device).narrow(0, burn_in, total - burn_in));
            let best = mask(judge.detach(), legal.as_ref()).argmax(-1, true);
            let pick = |values: &Tensor| {
                let best = values.gather(-1, &best, false).squeeze_dim(-1);
                best.gather(0, &bootstrap, false)
            };
            (pick(&values.extrinsic), pick(&values.intrinsic))
        });

        let counts = tensor_of(&batch.mask, device);
        let steps = counts.sum(Kind::Float).clamp_min(1.0);
        let weights = tensor_of(&batch.weights, device);
        let actions = tensor_of(&batch.actions, device).narrow(0, burn_in, length);
        let positions = Tensor::arange(length, (Kind::Int64, device)).unsqueeze(-1);
        // γ to the number of steps looked ahead; 0 where the task ended.
        let discounts = gamma.pow(&(&bootstrap - positions).to_kind(Kind::Float));
        let discounts = discounts.masked_fill(&ended, 0.0);
        let compare = |values: &Tensor, rewards: &Tensor, following: &Tensor| {
            let taken = values.narrow(0, 0, length);
            let taken = taken
                .gather(-1, &actions.unsqueeze(-1), false)
                .squeeze_dim(-1);
            let returns = n_step_returns(
                rewards,
                &gamma,
                burn_in,
                length,
                algorithm.shared.n_steps as i64,
            );
            let targets = rescale(&(returns + &discounts * unscale(following)));
            let errors = (targets - &taken) * &counts;
            let loss = (errors.square() * 0.5 * &weights).sum(Kind::Float) / &steps;
            (errors.detach().abs(), loss, taken)
        };
        let intrinsic_rewards = record("intrinsic");
        let (extrinsic_errors, extrinsic, taken) = compare(
            &online.extrinsic,
            &tensor_of(&batch.rewards, device),
            &following.0,
        );
        let (intrinsic_errors, intrinsic, _) =
            compare(&online.intrinsic, &intrinsic_rewards, &following.1);
        let rewards = intrinsic_rewards.narrow(0, burn_in, length);
        let (rnd, inverse, seen) = self.novelty_losses(batch, &counts, burn_in, length);
        Losses {
            extrinsic,
            intrinsic,
            rnd,
            inverse,
            errors: extrinsic_errors + intrinsic_errors * beta,
            value: (taken.detach() * &counts).sum(Kind::Float) / &steps,
            reward: (rewards * &counts).sum(Kind::Float) / &steps,
            seen,
        }
    }

    /// Losses of the random network's imitation and of the inverse model, over trained steps,
    /// and what the former saw.
    fn novelty_losses(
        &self,
        batch: &SequenceBatch,
        counts: &Tensor,
        burn_in: i64,
        length: i64,
    ) -> (Tensor, Tensor, Option<(Tensor, Tensor)>) {
        let (device, nets) = (self.device, &self.algorithm.nets);
        let part = |first: i64| {
            batch.obs.map(|array| {
                let all = tensor_of(array, device);
                all.narrow(0, first, length).flatten(0, 1)
            })
        };
        let (now, next) = (part(burn_in), part(burn_in + 1));
        let mut seen = None;
        let counted = counts.reshape([-1]);
        let steps = counted.sum(Kind::Float).clamp_min(1.0);
        let rnd = match now.leaf() {
            None => steps.zeros_like(),
            Some(obs) => {
                let rows = counted.nonzero().squeeze_dim(-1);
                let obs = obs.index_select(0, &rows);
                let errors = nets.rnd.errors(&self.params, &obs);
                seen = Some((obs, errors.detach()));
                errors.mean(Kind::Float)
            }
        };
        let from = nets.inverse.embed(&self.params, &now);
        let to = nets.inverse.embed(&self.params, &next);
        let log_probs = nets.inverse.actions_between(&self.params, &from, &to);
        let actions = tensor_of(&batch.actions, device).narrow(0, burn_in, length);
        let taken = log_probs.gather(1, &actions.reshape([-1, 1]), false);
        // Behind the last step of a task there is nothing to tell the action by.
        let valid = tensor_of(&batch.valid, device).narrow(0, burn_in + 1, length);
        let pairs = counted * valid.reshape([-1]).to_kind(Kind::Float);
        let inverse = -(taken.squeeze_dim(1) * &pairs).sum(Kind::Float)
            / pairs.sum(Kind::Float).clamp_min(1.0);
        (rnd, inverse, seen)
    }
}

/// Σ_{k<n} γ^k r_{t+k} of the trained steps, `[L, B]`, from rewards `[S, B]` that are zero behind
/// the end of an episode, and a discount per sequence.
fn n_step_returns(
    rewards: &Tensor,
    gamma: &Tensor,
    burn_in: i64,
    length: i64,
    n_steps: i64,
) -> Tensor {
    let mut returns = rewards.narrow(0, burn_in, length).copy();
    let mut power = gamma.copy();
    for k in 1..n_steps {
        returns += rewards.narrow(0, burn_in + k, length) * &power;
        power *= gamma;
    }
    returns
}

impl Learner for NguLearner {
    fn update(&mut self, batch: Batch<'_>, progress: Progress) -> Result<Report, LearnError> {
        let Batch::Sequences(batch) = batch else {
            let wanted = "sequences";
            return Err(LearnError::WrongBatch { wanted });
        };
        let losses = self.losses(batch);
        let loss = &losses.extrinsic + &losses.intrinsic + &losses.rnd + &losses.inverse;
        let shared = &self.algorithm.shared;
        let gradient = self.params.gradient(&loss);
        let limit = shared.clip_norm.unwrap_or(f64::INFINITY);
        let (gradient, norm) = clip_global_norm(gradient, limit);
        let learning_rate = shared.learning_rate.at(progress.fraction());
        self.optimizer
            .step(self.params.flat(), &gradient, learning_rate);
        // Not before: the gradient needs the statistics as they were.
        if let Some((obs, errors)) = &losses.seen {
            let rnd = &self.algorithm.nets.rnd;
            rnd.observe(&self.params, obs, errors);
        }
        self.updates += 1;
        if self.updates.is_multiple_of(shared.target_every_updates) {
            self.target.blend(&self.params, shared.target_tau);
        }
        let numbers = [
            loss,
            losses.extrinsic,
            losses.intrinsic,
            losses.rnd,
            losses.inverse,
            losses.value,
            losses.reward,
            norm,
        ];
        let numbers = array_of(&Tensor::stack(&numbers, 0).detach());
        let names = [
            "loss",
            "extrinsic_loss",
            "intrinsic_loss",
            "rnd_loss",
            "inverse_loss",
            "q_value",
            "intrinsic_reward",
            "grad_norm",
        ];
        let numbers = numbers.as_slice::<f32>().iter().map(|&x| f64::from(x));
        let mut metrics: Vec<(&'static str, f64)> = names.into_iter().zip(numbers).collect();
        metrics.push(("learning_rate", learning_rate));
        let priorities = shared.priority.is_some().then(|| {
            let eta = self.algorithm.config.sequence.priority_eta;
            sequence_priorities(&array_of(&losses.errors), &batch.mask, eta)
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

#[cfg(test)]
mod tests {
    use super::*;
    use starling_envs::Space;
    use starling_nets::QNetConfig;
    use starling_replay::{Layout as Rows, Replay};

    /// A rollout of two episodes through policy, replay and learner: the bandit learns of the
    /// first episode, places of the second are remembered, and an update moves the weights and
    /// the statistics but not the random network.
    #[test]
    fn a_rollout_becomes_an_update() {
        const STEPS: usize = 24;
        const END: usize = 13;
        let (obs, action) = (Space::unbounded(&[2]), Space::Discrete { n: 2 });
        let spaces = Spaces {
            observation: obs.clone(),
            action: action.clone(),
            legal_actions: None,
            frame_stack: None,
        };
        let (mut shared, mut config) = defaults();
        shared.capacity_steps = 200;
        shared.batch_size = 4;
        shared.n_steps = 2;
        shared.net = QNetConfig {
            hidden: Some(vec![8]),
            ..QNetConfig::default()
        };
        config.lstm = 4;
        config.arms = 3;
        config.episodic.memory_steps = 16;
        config.episodic.neighbours = 3;
        config.sequence = SequenceConfig {
            burn_in_steps: 4,
            length_steps: 4,
            overlap_steps: 2,
            state_interval_steps: 2,
            priority_eta: 0.9,
        };
        let ngu = Ngu::new(shared, config, &spaces).unwrap();
        let mut learner = ngu.learner(1, Device::Cpu);
        let mut policy = ngu.policy(Device::Cpu);
        policy.load(&learner.weights()).unwrap();
        let (records, memory) = (policy.records(), policy.state());
        let mut rollout = Rollout::new(STEPS, 1, &obs, &action, None, &records, &memory);
        let seen: Vec<f32> = (0..2 * (STEPS + 1)).map(|i| (i as f32).sin()).collect();
        rollout.obs = Tree::Leaf(Array::from_slice(&seen, &[STEPS + 1, 1, 2]));
        rollout.rewards = Array::from_slice(&[0.5f32; STEPS], &[STEPS, 1]);
        rollout.terminated.as_mut_slice::<u8>()[END] = 1;
        rollout.keep_final(END, 0);
        let mut state = Tree::zeros(&memory, &[1]);
        let mut rngs = [stream(1, "policy", 0)];
        let mut acting = Acting {
            explore: true,
            env_steps: 0,
            first_env: 0,
            total_envs: 1,
            rngs: &mut rngs,
            state: &mut state,
        };
        for t in 0..STEPS {
            policy.act(t, &mut rollout, acting.reborrow());
            if t == END {
                for (_, array) in acting.state.leaves_mut() {
                    array.bytes_mut().fill(0);
                }
            }
        }
        let rollout_and_acting = Part {
            rollout: &mut rollout,
            acting,
        };
        policy.finish(0, &mut [rollout_and_acting]);
        let pulls = pulls_of(&state, 0);
        assert_eq!(pulls.len(), 1);
        assert_eq!(pulls[0].1, 7.0, "fourteen rewards of a half");
        let visited = leaf(&state, "visited").unwrap().as_slice::<i64>();
        assert_eq!(visited, [(STEPS - END - 1) as i64]);
        let intrinsic = leaf(&rollout.policy, "intrinsic").unwrap();
        let intrinsic = intrinsic.as_slice::<f32>();
        assert_eq!(intrinsic[..3], [0.0; 3]);
        assert!(intrinsic[3..=END].iter().all(|reward| *reward > 0.0));
        assert_eq!(intrinsic[END + 1], 0.0);

        let Experience::Transitions(needs) = ngu.experience() else {
            panic!("ngu has a replay");
        };
        let replay = Replay::new(needs.replay, Rows::of_rollout(&rollout, 1)).unwrap();
        replay.insert(&rollout, 0, None).unwrap();
        let batch = replay.sample_sequences(4, 0.6, &mut stream(1, "replay", 0));
        let batch = batch.unwrap();
        let progress = Progress {
            env_steps: 0,
            total_steps: 1,
        };
        let before = learner.save();
        let report = learner.update(Batch::Sequences(&batch), progress).unwrap();
        assert_eq!(
            report.priorities.map(|priorities| priorities.len()),
            Some(4)
        );
        let after = learner.save();
        let moved = |name: &str| {
            let found = before.keys().filter(|key| key.starts_with(name));
            found.filter(|key| before[*key] != after[*key]).count()
        };
        assert!(moved("params.extrinsic.") > 0 && moved("params.intrinsic.") > 0);
        assert!(moved("params.embedding.") > 0 && moved("params.rnd.predictor.") > 0);
        assert!(moved("params.rnd.norm.") > 0);
        assert_eq!(moved("params.rnd.target."), 0);
    }

    /// γ = ½ and 1: 1 + ½·2 + ¼·4 = 3 and 7 for the first step, 2 + ½·4 = 4 and 6 for the second.
    #[test]
    fn returns_have_the_discount_of_their_arm() {
        let rewards = Tensor::from_slice(&[9f32, 9.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0, 0.0, 0.0]);
        let gamma = Tensor::from_slice(&[0.5f32, 1.0]);
        let returns = n_step_returns(&rewards.reshape([5, 2]), &gamma, 1, 2, 3);
        let returns = Vec::<f32>::try_from(returns.reshape([-1])).unwrap();
        assert_eq!(returns, [3.0, 7.0, 4.0, 6.0]);
    }

    /// What comes back to the same place is worth less than what goes on, and nothing is
    /// rewarded before there are k neighbours.
    #[test]
    fn new_places_are_worth_more() {
        let novelty = EpisodicNovelty {
            neighbours: 2,
            memory_steps: 8,
            ..EpisodicNovelty::default()
        };
        let walk = |places: &[f32]| {
            let mut memory = Remembered::default();
            let rewards = places.iter().map(|&x| memory.visit(&[x], &novelty));
            rewards.collect::<Vec<f64>>()
        };
        let onward = walk(&[0.0, 1.0, 2.0, 3.0, 4.0]);
        let back = walk(&[0.0, 1.0, 0.0, 1.0, 0.0]);
        assert_eq!(onward[..2], [0.0, 0.0]);
        for (onward, back) in onward[2..].iter().zip(&back[2..]) {
            assert!(onward > back, "{onward} {back}");
        }
        // The ring forgets: a ninth place takes the room of the first.
        let mut memory = Remembered::default();
        for i in 0..9 {
            memory.visit(&[i as f32], &novelty);
        }
        assert_eq!(memory.places[..2], [8.0, 1.0]);
    }

    #[test]
    fn bandits_survive_in_the_memory() {
        let spec = |dtype, shape: &[usize]| Tree::Leaf(Spec::new(dtype, shape));
        let state = Tree::node([
            ("pulls", spec(DType::F32, &[3, 2])),
            ("pulled", spec(DType::I64, &[])),
        ]);
        let mut state = Tree::zeros(&state, &[2]);
        keep_pulls(&mut state, 1, &[(4, 0.5), (2, -1.0)]);
        assert_eq!(pulls_of(&state, 1), [(4, 0.5), (2, -1.0)]);
        assert_eq!(pulls_of(&state, 0), []);
    }
}
