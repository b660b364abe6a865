//! Deep Q-learning (Mnih et al. 2015), with four switches: double (van Hasselt et al. 2016),
//! dueling (Wang et al. 2016), n-step returns, and prioritized replay (Schaul et al. 2016).
//!
//! Defaults are rlpyt's: Huber loss, Adam, a replay ratio of 8 (each step is used eight times on
//! average), hard target updates. Where we differ from the papers: an episode that was cut off
//! is bootstrapped from its final observation; priorities are plain |TD error|.

use std::sync::Arc;

use rand::RngExt as _;
use serde::{Deserialize, Serialize};
use starling_envs::{Rng, Rollout, stream};
use starling_nets::{
    Device, Kind, Layout, NetConfig, Optimizer, OptimizerConfig, Params, QNetwork, Schedule,
    ShapeMismatch, Tensor, argmax, array_of, clip_global_norm, no_grad, tensor_of, tree_of,
};
use starling_replay::{PriorityConfig, RateConfig, ReplayConfig, TransitionBatch};
use starling_tree::{Array, Spec, Tree};

use crate::config::{ConfigError, refuse, require, require_schedule};
use crate::ops::linear_decay;
use crate::registry::{load_learner, save_learner};
use crate::{
    Acting, Algorithm, Batch, Experience, LearnError, Learner, Policy, Progress, ReplayNeeds,
    Report, Saved, Spaces,
};

/// Q of an action that may not be taken.
const ILLEGAL: f64 = -1e8;

/// DQN's settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Steps of each environment between two looks at the replay.
    pub rollout_steps: usize,
    /// Transitions per update.
    pub batch_size: usize,
    /// Steps collected before learning begins.
    pub learning_starts_steps: u64,
    /// How often each step is used on average: batch_size · updates / steps.
    pub replay_ratio: f64,
    /// Steps kept in the replay.
    pub capacity_steps: usize,
    /// Steps of reward before the bootstrap (n).
    pub n_steps: usize,
    /// Discount per step (γ).
    pub gamma: f64,
    /// Step size, possibly a schedule.
    pub learning_rate: Schedule,
    /// How gradients become steps; rlpyt's Adam has eps = 0.01 / batch_size.
    pub optimizer: OptimizerConfig,
    /// Largest norm of a gradient.
    pub clip_norm: f64,
    /// Where the loss turns from square to linear; null for the squared error.
    pub huber_delta: Option<f64>,
    /// Choose the next action with the online network, value it with the target network.
    pub double: bool,
    /// Updates between two copies to the target network.
    pub target_every_updates: u64,
    /// Share of the way to the online network that the target goes each time; 1 copies it.
    pub target_tau: f64,
    /// Draw transitions by their error; null draws uniformly.
    pub priority: Option<PriorityConfig>,
    /// Exponent of importance weights (β) over the run.
    pub priority_beta: Schedule,
    /// Chance of a random action at the beginning.
    pub epsilon_start: f64,
    /// Chance of a random action after the decay.
    pub epsilon_end: f64,
    /// Steps over which it falls.
    pub epsilon_decay_steps: u64,
    /// Chance of a random action in evaluation.
    pub epsilon_eval: f64,
    /// The network.
    pub net: NetConfig,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            rollout_steps: 4,
            batch_size: 32,
            learning_starts_steps: 50_000,
            replay_ratio: 8.0,
            capacity_steps: 1_000_000,
            n_steps: 1,
            gamma: 0.99,
            learning_rate: Schedule::Constant(2.5e-4),
            optimizer: OptimizerConfig {
                eps: 0.01 / 32.0,
                ..OptimizerConfig::default()
            },
            clip_norm: 10.0,
            huber_delta: Some(1.0),
            double: false,
            target_every_updates: 312,
            target_tau: 1.0,
            priority: None,
            priority_beta: Schedule::linear(0.4, 1.0, 1.0),
            epsilon_start: 1.0,
            epsilon_end: 0.01,
            epsilon_decay_steps: 1_000_000,
            epsilon_eval: 0.001,
            net: NetConfig::default(),
        }
    }
}

impl Config {
    fn check(&self) -> Result<(), ConfigError> {
        let at_least_one = |key, value: usize| require(value >= 1, key, value, "at least 1");
        at_least_one("algo.rollout_steps", self.rollout_steps)?;
        at_least_one("algo.batch_size", self.batch_size)?;
        at_least_one("algo.n_steps", self.n_steps)?;
        at_least_one(
            "algo.target_every_updates",
            self.target_every_updates as usize,
        )?;
        let share =
            |key, value: f64| require((0.0..=1.0).contains(&value), key, value, "between 0 and 1");
        share("algo.gamma", self.gamma)?;
        share("algo.target_tau", self.target_tau)?;
        share("algo.epsilon_start", self.epsilon_start)?;
        share("algo.epsilon_end", self.epsilon_end)?;
        share("algo.epsilon_eval", self.epsilon_eval)?;
        let over_zero = |key, value: f64| require(value > 0.0, key, value, "over 0");
        over_zero("algo.replay_ratio", self.replay_ratio)?;
        over_zero("algo.clip_norm", self.clip_norm)?;
        over_zero("algo.huber_delta", self.huber_delta.unwrap_or(1.0))?;
        let ratio = self.replay_ratio;
        require(ratio <= 1e6, "algo.replay_ratio", ratio, "at most 1000000")?;
        require_schedule("algo.learning_rate", &self.learning_rate, 10.0)?;
        require_schedule("algo.priority_beta", &self.priority_beta, 1.0)?;
        refuse(self.optimizer.problem())?;
        refuse(self.net.problem())
    }
}

/// DQN for one environment's spaces.
#[derive(Debug)]
pub struct Dqn {
    config: Config,
    net: QNetwork,
    layout: Arc<Layout>,
}

impl Dqn {
    /// Checks the settings against each other and the spaces.
    pub fn new(config: Config, spaces: &Spaces) -> Result<Self, ConfigError> {
        config.check()?;
        let mut layout = Layout::default();
        let net = QNetwork::new(
            &mut layout,
            &config.net,
            &spaces.observation,
            &spaces.action,
        );
        let net = net.map_err(|error| {
            ConfigError::Misfit(format!("dqn cannot be used here: {}", error.0))
        })?;
        require(
            config.net.lstm == 0,
            "algo.net.lstm",
            config.net.lstm,
            "0: DQN draws single transitions and has no memory",
        )?;
        let layout = Arc::new(layout);
        Ok(Self {
            config,
            net,
            layout,
        })
    }
}

impl Algorithm for Dqn {
    fn experience(&self) -> Experience {
        let config = &self.config;
        Experience::Transitions(Box::new(ReplayNeeds {
            steps: config.rollout_steps,
            replay: ReplayConfig {
                capacity_steps: config.capacity_steps,
                n_steps: config.n_steps,
                gamma: config.gamma,
                priority: config.priority.clone(),
                ..ReplayConfig::default()
            },
            rate: RateConfig {
                min_size_steps: config.learning_starts_steps,
                samples_per_insert: Some(config.replay_ratio),
                tolerance_samples: 4.0 * config.batch_size as f64,
            },
            batch_size: config.batch_size,
            beta: config.priority_beta,
        }))
    }

    fn discount(&self) -> f64 {
        self.config.gamma
    }

    fn policy(&self, device: Device) -> Box<dyn Policy> {
        Box::new(EpsilonGreedy {
            config: self.config.clone(),
            net: self.net.clone(),
            params: Params::zeros(&self.layout, device),
            device,
        })
    }

    fn learner(&self, seed: u64, device: Device) -> Box<dyn Learner> {
        let mut rng = stream(seed, "learner", 0);
        let params = Params::init(&self.layout, &mut rng, device).trainable();
        let mut target = Params::zeros(&self.layout, device);
        target.copy_from(&params);
        Box::new(DqnLearner {
            optimizer: Optimizer::new(self.config.optimizer, params.flat()),
            config: self.config.clone(),
            net: self.net.clone(),
            params,
            target,
            updates: 0,
            rng,
            device,
        })
    }
}

struct EpsilonGreedy {
    config: Config,
    net: QNetwork,
    params: Params,
    device: Device,
}

impl Policy for EpsilonGreedy {
    fn records(&self) -> Tree<Spec> {
        Tree::empty()
    }

    fn state(&self) -> Tree<Spec> {
        Tree::empty()
    }

    fn load(&mut self, weights: &[f32]) -> Result<(), ShapeMismatch> {
        self.params.load_slice(weights)
    }

    fn act(&mut self, t: usize, rollout: &mut Rollout, acting: Acting<'_>) {
        let config = &self.config;
        let epsilon = match acting.explore {
            false => config.epsilon_eval,
            true => linear_decay(
                config.epsilon_start,
                config.epsilon_end,
                config.epsilon_decay_steps,
                acting.env_steps,
            ),
        };
        let obs = tree_of(&rollout.obs, &[t], self.device);
        let mut values = array_of(&no_grad(|| self.net.forward(&self.params, &obs)));
        for (b, rng) in acting.rngs.iter_mut().enumerate() {
            let legal = rollout.legal.as_ref().map(|mask| mask.at(&[t, b]));
            let legal = legal.map(|row| row.as_slice::<u8>());
            let mut row = values.at_mut(&[b]);
            let row = row.as_mut_slice::<f32>();
            let action = if rng.random::<f64>() < epsilon {
                random_action(row.len(), legal, rng)
            } else {
                mask_values(row, legal);
                argmax(row)
            };
            rollout.actions.at_mut(&[t, b]).write(&[action as i64]);
        }
    }
}

fn random_action(actions: usize, legal: Option<&[u8]>, rng: &mut Rng) -> usize {
    let Some(legal) = legal else {
        return rng.random_range(0..actions);
    };
    let choices: Vec<usize> = (0..actions).filter(|&a| legal[a] != 0).collect();
    match choices.len() {
        0 => 0,
        n => choices[rng.random_range(0..n)],
    }
}

fn mask_values(values: &mut [f32], legal: Option<&[u8]>) {
    for (value, legal) in values.iter_mut().zip(legal.unwrap_or_default()) {
        if *legal == 0 {
            *value = ILLEGAL as f32;
        }
    }
}

/// TD errors `[N]` and the weighted loss: Huber with the given δ, or squares.
pub fn loss(
    chosen: &Tensor,
    targets: &Tensor,
    weights: &Tensor,
    huber_delta: Option<f64>,
) -> (Tensor, Tensor) {
    let errors = targets - chosen;
    let size = errors.abs();
    let losses = match huber_delta {
        None => errors.square() * 0.5,
        Some(delta) => {
            let inner = size.clamp_max(delta);
            (&size - &inner * 0.5) * &inner
        }
    };
    (size.detach(), (losses * weights).mean(Kind::Float))
}

struct DqnLearner {
    config: Config,
    net: QNetwork,
    params: Params,
    target: Params,
    optimizer: Optimizer,
    updates: u64,
    rng: Rng,
    device: Device,
}

impl DqnLearner {
    /// returns + discounts · Q_target(s', a*), with a* from the target or the online network.
    fn targets(&self, batch: &TransitionBatch) -> Tensor {
        let device = self.device;
        let next = tree_of(&batch.next_obs, &[], device);
        let legal = batch.next_legal.as_ref();
        let illegal = legal.map(|mask| tensor_of(mask, device).eq(0));
        let masked = |values: Tensor| match &illegal {
            Some(illegal) => values.masked_fill(illegal, ILLEGAL),
            None => values,
        };
        let values = masked(self.net.forward(&self.target, &next));
        let best = match self.config.double {
            false => values.amax([-1].as_slice(), false),
            true => {
                let chosen = masked(self.net.forward(&self.params, &next)).argmax(-1, true);
                values.gather(1, &chosen, false).squeeze_dim(1)
            }
        };
        tensor_of(&batch.returns, device) + tensor_of(&batch.discounts, device) * best
    }
}

impl Learner for DqnLearner {
    fn update(&mut self, batch: Batch<'_>, progress: Progress) -> Result<Report, LearnError> {
        let Batch::Transitions(batch) = batch else {
            let wanted = "transitions";
            return Err(LearnError::WrongBatch { wanted });
        };
        let device = self.device;
        let targets = no_grad(|| self.targets(batch));
        let values = self
            .net
            .forward(&self.params, &tree_of(&batch.obs, &[], device));
        let actions = tensor_of(&batch.actions, device).reshape([-1, 1]);
        let chosen = values.gather(1, &actions, false).squeeze_dim(1);
        let weights = tensor_of(&batch.weights, device);
        let (errors, loss) = loss(&chosen, &targets, &weights, self.config.huber_delta);

        let gradient = self.params.gradient(&loss);
        let (gradient, norm) = clip_global_norm(gradient, self.config.clip_norm);
        let learning_rate = self.config.learning_rate.at(progress.fraction());
        self.optimizer
            .step(self.params.flat(), &gradient, learning_rate);
        self.updates += 1;
        if self
            .updates
            .is_multiple_of(self.config.target_every_updates)
        {
            self.target.blend(&self.params, self.config.target_tau);
        }
        let errors = array_of(&errors);
        let errors = errors.as_slice::<f32>();
        let mean_error = errors.iter().sum::<f32>() / errors.len() as f32;
        let metrics = vec![
            ("loss", loss.double_value(&[])),
            ("td_error", f64::from(mean_error)),
            ("q_value", chosen.mean(Kind::Float).double_value(&[])),
            ("grad_norm", norm.double_value(&[])),
        ];
        let priorities = self.config.priority.is_some().then(|| errors.to_vec());
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
    use starling_replay::Layout as Rows;
    use starling_tree::DType;

    /// Errors 0.5 and 3 with δ = 1: 0.125 and 2.5; squares: 0.125 and 4.5.
    #[test]
    fn loss_by_hand() {
        let chosen = Tensor::from_slice(&[1f32, 1.0]);
        let targets = Tensor::from_slice(&[1.5f32, -2.0]);
        let weights = Tensor::from_slice(&[1f32, 0.5]);
        let (errors, huber) = loss(&chosen, &targets, &weights, Some(1.0));
        assert_eq!(Vec::<f32>::try_from(errors).unwrap(), [0.5, 3.0]);
        assert!((huber.double_value(&[]) - (0.125 + 1.25) / 2.0).abs() < 1e-6);
        let (_, square) = loss(&chosen, &targets, &weights, None);
        assert!((square.double_value(&[]) - (0.125 + 2.25) / 2.0).abs() < 1e-6);
    }

    /// A network without hidden layers whose weights are set by hand: Q(s, a) = w_a · s. The
    /// online network prefers action 1 at s' = 1, which the target network values at 3; its own
    /// best is action 0 with 5. With r = 1 and γ = 0.5, DQN's target is 3.5, Double DQN's 2.5.
    #[test]
    fn double_values_the_online_choice_with_the_target_network() {
        let spaces = Spaces {
            observation: Space::unbounded(&[1]),
            action: Space::Discrete { n: 2 },
            legal_actions: Some(2),
        };
        let rows = Rows {
            observation: spaces.observation.spec(),
            action: Spec::scalar(DType::I64),
            legal_actions: Some(2),
            streams: 1,
        };
        let mut batch = TransitionBatch::new(&rows, 1);
        let Tree::Leaf(next) = &mut batch.next_obs else {
            panic!("an observation is one array here");
        };
        next.as_mut_slice::<f32>()[0] = 1.0;
        batch.returns.as_mut_slice::<f32>()[0] = 1.0;
        batch.discounts.as_mut_slice::<f32>()[0] = 0.5;
        let legal = |mask: [u8; 2]| Some(Array::from_slice(&mask, &[1, 2]));
        for (double, mask, expected) in [
            (false, [1, 1], 3.5),
            (true, [1, 1], 2.5),
            (false, [0, 1], 2.5),
            (true, [1, 0], 3.5),
        ] {
            let config = Config {
                double,
                net: NetConfig {
                    hidden: Some(vec![]),
                    ..NetConfig::default()
                },
                ..Config::default()
            };
            let dqn = Dqn::new(config.clone(), &spaces).unwrap();
            // Weights, then biases, of the two actions.
            let mut params = Params::zeros(&dqn.layout, Device::Cpu);
            params.load_slice(&[0.0, 1.0, 0.0, 0.0]).unwrap();
            let mut target = Params::zeros(&dqn.layout, Device::Cpu);
            target.load_slice(&[5.0, 3.0, 0.0, 0.0]).unwrap();
            let learner = DqnLearner {
                optimizer: Optimizer::new(config.optimizer, params.flat()),
                config,
                net: dqn.net.clone(),
                params,
                target,
                updates: 0,
                rng: stream(1, "learner", 0),
                device: Device::Cpu,
            };
            batch.next_legal = legal(mask);
            assert_eq!(learner.targets(&batch).double_value(&[0]), expected);
        }
    }

    #[test]
    fn random_actions_are_legal() {
        let mut rng = stream(1, "policy", 0);
        for _ in 0..100 {
            assert!([1, 3].contains(&random_action(4, Some(&[0, 1, 0, 1]), &mut rng)));
        }
    }
}
