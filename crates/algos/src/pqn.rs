//! Parallelised Q-learning (PQN; Gallici et al. 2025): Q-learning on the fresh rollouts of many
//! environments, without a replay and without a target network.
//!
//! At the beginning of an update the present network gives λ-returns of the rollout; then some
//! epochs of shuffled minibatches follow. What keeps it stable is layer normalisation
//! (`net.layer_norm`, on by default) and a small λ.
//!
//! Where we differ from the paper: Adam in place of RAdam; a truncated episode is
//! bootstrapped from its final observation; the random action of ε-greedy is drawn from the
//! environment's own stream.

use std::sync::Arc;

use rand::RngExt as _;
use rand::seq::SliceRandom as _;
use serde::{Deserialize, Serialize};
use starling_envs::{Rng, Rollout};
use starling_nets::{
    Device, Kind, Layout, OptimizerConfig, Params, QNetConfig, QNetwork, Schedule, ShapeMismatch,
    Tensor, argmax, array_of, no_grad, tensor_of, tensor_of_view, tree_of,
};
use starling_tree::{Array, Spec, Tree};

use crate::config::{ConfigError, refuse, require, require_schedule};
use crate::ops::{lambda_returns, linear_decay};
use crate::trained::Trained;
use crate::{
    Acting, Algorithm, Batch, Experience, LearnError, Learner, Policy, Progress, Report, Saved,
    Spaces,
};

/// Q of an action that may not be taken.
const ILLEGAL: f64 = -1e8;

/// PQN's settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Steps of each environment per rollout.
    pub rollout_steps: usize,
    /// Passes over each rollout.
    pub epochs: usize,
    /// Parts that a rollout is split into; each gives one gradient step per epoch.
    pub minibatches: usize,
    /// Learning rate, possibly a schedule.
    pub learning_rate: Schedule,
    /// Discount per step (γ).
    pub gamma: f64,
    /// Weight of longer returns in the targets (λ).
    pub q_lambda: f64,
    /// Factor on every reward.
    pub reward_scale: f64,
    /// Probability of a random action (ε) at the start.
    pub epsilon_start: f64,
    /// Probability of a random action after the decay.
    pub epsilon_end: f64,
    /// Steps over which ε decays.
    pub epsilon_decay_steps: u64,
    /// Probability of a random action in evaluation.
    pub epsilon_eval: f64,
    /// Maximum norm of the gradient.
    pub clip_norm: f64,
    /// The optimiser.
    pub optimizer: OptimizerConfig,
    /// The network.
    pub net: QNetConfig,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            rollout_steps: 32,
            epochs: 2,
            minibatches: 32,
            learning_rate: Schedule::linear(5e-4, 0.0, 1.0),
            gamma: 0.99,
            q_lambda: 0.65,
            reward_scale: 1.0,
            epsilon_start: 1.0,
            epsilon_end: 0.05,
            epsilon_decay_steps: 1_000_000,
            epsilon_eval: 0.0,
            clip_norm: 10.0,
            optimizer: OptimizerConfig::default(),
            net: QNetConfig {
                layer_norm: true,
                orthogonal: false,
                ..QNetConfig::default()
            },
        }
    }
}

impl Config {
    fn check(&self) -> Result<(), ConfigError> {
        let at_least_one = |key, value: usize| require(value >= 1, key, value, "at least 1");
        at_least_one("algo.rollout_steps", self.rollout_steps)?;
        at_least_one("algo.epochs", self.epochs)?;
        at_least_one("algo.minibatches", self.minibatches)?;
        let share =
            |key, value: f64| require((0.0..=1.0).contains(&value), key, value, "between 0 and 1");
        share("algo.gamma", self.gamma)?;
        share("algo.q_lambda", self.q_lambda)?;
        share("algo.epsilon_start", self.epsilon_start)?;
        share("algo.epsilon_end", self.epsilon_end)?;
        share("algo.epsilon_eval", self.epsilon_eval)?;
        let over_zero =
            |key, value: f64| require(value > 0.0 && value.is_finite(), key, value, "above 0");
        over_zero("algo.clip_norm", self.clip_norm)?;
        over_zero("algo.reward_scale", self.reward_scale)?;
        require_schedule("algo.learning_rate", &self.learning_rate, 10.0)?;
        refuse(self.optimizer.problem())?;
        refuse(self.net.problem())?;
        let noise = self.net.noisy_sigma;
        require(
            noise.is_none(),
            "algo.net.noisy_sigma",
            noise.unwrap_or(0.0),
            "null: PQN explores by random actions",
        )
    }
}

/// PQN for one environment's spaces.
#[derive(Debug)]
pub struct Pqn {
    config: Config,
    net: QNetwork,
    layout: Arc<Layout>,
}

impl Pqn {
    /// Checks the settings against each other and the spaces.
    pub fn new(config: Config, spaces: &Spaces) -> Result<Self, ConfigError> {
        config.check()?;
        let mut layout = Layout::default();
        let (observation, action) = (&spaces.observation, &spaces.action);
        let net = QNetwork::new(&mut layout, &config.net, observation, action, 1);
        let net = net.map_err(|error| {
            ConfigError::Misfit(format!("pqn cannot be used here: {}", error.0))
        })?;
        let layout = Arc::new(layout);
        Ok(Self {
            config,
            net,
            layout,
        })
    }
}

impl Algorithm for Pqn {
    fn experience(&self) -> Experience {
        Experience::Rollouts {
            steps: self.config.rollout_steps,
        }
    }

    fn discount(&self) -> f64 {
        self.config.gamma
    }

    fn policy(&self, device: Device) -> Box<dyn Policy> {
        Box::new(PqnPolicy {
            config: self.config.clone(),
            net: self.net.clone(),
            params: Params::zeros(&self.layout, device),
            device,
        })
    }

    fn learner(&self, seed: u64, device: Device) -> Box<dyn Learner> {
        let optimizer = self.config.optimizer;
        Box::new(PqnLearner {
            config: self.config.clone(),
            net: self.net.clone(),
            trained: Trained::new(&self.layout, optimizer, seed, device),
            device,
        })
    }
}

struct PqnPolicy {
    config: Config,
    net: QNetwork,
    params: Params,
    device: Device,
}

impl Policy for PqnPolicy {
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
        let (start, end) = (config.epsilon_start, config.epsilon_end);
        let epsilon = match acting.explore {
            true => linear_decay(start, end, config.epsilon_decay_steps, acting.env_steps),
            false => config.epsilon_eval,
        };
        let obs = tree_of(&rollout.obs, &[t], self.device);
        let legal = rollout.legal.as_ref();
        let legal = legal.map(|mask| tensor_of_view(mask.at(&[t]), self.device));
        let values = no_grad(|| values_of(&self.net, &self.params, &obs, legal.as_ref()));
        let values = masked(values, legal.as_ref());
        let values = array_of(&values);
        for (b, rng) in acting.rngs.iter_mut().enumerate() {
            let row = values.at(&[b]);
            let row = row.as_slice::<f32>();
            let best = argmax(row);
            let action = match rng.random::<f64>() < epsilon {
                true => random_legal(row, best, rng),
                false => best,
            };
            rollout.actions.at_mut(&[t, b]).write(&[action as i64]);
        }
    }
}

/// Values `[N, A]` of observations `[N, ..]` with legal actions `[N, A]`.
fn values_of(
    net: &QNetwork,
    params: &Params,
    obs: &Tree<Tensor>,
    legal: Option<&Tensor>,
) -> Tensor {
    net.forward(params, obs, None, legal).squeeze_dim(-1)
}

/// Values `[N, A]` with those of illegal actions out of the way.
fn masked(values: Tensor, legal: Option<&Tensor>) -> Tensor {
    match legal {
        Some(legal) => values.masked_fill(&legal.eq(0), ILLEGAL),
        None => values,
    }
}

/// One of the legal actions; `best` if none is.
fn random_legal(values: &[f32], best: usize, rng: &mut Rng) -> usize {
    let is_legal = |action: &usize| values[*action] > ILLEGAL as f32;
    let count = (0..values.len()).filter(is_legal).count();
    if count == 0 {
        return best;
    }
    let chosen = rng.random_range(0..count);
    (0..values.len())
        .filter(is_legal)
        .nth(chosen)
        .unwrap_or(best)
}

/// PQN's loss over one minibatch: half the mean squared error of the chosen actions' values.
pub fn loss(chosen: &Tensor, targets: &Tensor) -> Tensor {
    (chosen - targets).square().mean(Kind::Float) * 0.5
}

struct PqnLearner {
    config: Config,
    net: QNetwork,
    trained: Trained,
    device: Device,
}

impl PqnLearner {
    /// λ-returns `[T·B]` under the present network.
    fn targets(&self, rollout: &Rollout, obs: &Tree<Tensor>, legal: Option<&Tensor>) -> Tensor {
        let (steps, envs) = (rollout.steps(), rollout.envs());
        let best = |obs: &Tree<Tensor>, legal: Option<&Tensor>| {
            let values = no_grad(|| values_of(&self.net, &self.trained.params, obs, legal));
            array_of(&masked(values, legal).amax([-1].as_slice(), false))
        };
        let all = best(obs, legal);
        // What follows each step within its episode; the final observation where it was cut off.
        let mut next = all.as_slice::<f32>()[envs..].to_vec();
        let (terminated, truncated) = (&rollout.terminated, &rollout.truncated);
        let (terminated, truncated) = (terminated.as_slice::<u8>(), truncated.as_slice::<u8>());
        if !rollout.final_at.is_empty() {
            let count = rollout.final_at.len() as i64;
            let device = self.device;
            let finals = &rollout.final_obs;
            let finals = finals.map(|array| tensor_of(array, device).narrow(0, 0, count));
            let mask = (!rollout.final_legal.is_empty()).then(|| {
                let mask = Tensor::from_slice(&rollout.final_legal).to_device(device);
                mask.reshape([count, -1])
            });
            let finals = best(&finals, mask.as_ref());
            for (&(t, b), &value) in rollout.final_at.iter().zip(finals.as_slice::<f32>()) {
                next[t * envs + b] = value;
            }
        }
        let flags = terminated.iter().zip(truncated);
        let ends: Vec<bool> = flags.map(|(a, b)| a | b != 0).collect();
        for (next, terminated) in next.iter_mut().zip(terminated) {
            if *terminated != 0 {
                *next = 0.0;
            }
        }
        let scale = self.config.reward_scale as f32;
        let rewards = rollout.rewards.as_slice::<f32>().iter();
        let rewards: Vec<f32> = rewards.map(|reward| reward * scale).collect();
        debug_assert_eq!(rewards.len(), steps * envs);
        let (gamma, lambda) = (self.config.gamma as f32, self.config.q_lambda as f32);
        let returns = lambda_returns(&rewards, &next, &ends, envs, gamma, lambda);
        Tensor::from_slice(&returns).to_device(self.device)
    }
}

impl Learner for PqnLearner {
    fn update(&mut self, batch: Batch<'_>, progress: Progress) -> Result<Report, LearnError> {
        let Batch::Rollouts(rollouts) = batch else {
            return Err(LearnError::WrongBatch { wanted: "rollouts" });
        };
        let rollout = &Rollout::side_by_side(rollouts).ok_or(LearnError::Mismatch)?;
        let device = self.device;
        let learning_rate = self.config.learning_rate.at(progress.fraction());
        self.trained.optimizer.set_learning_rate(learning_rate);
        let whole = |array: &Array| tensor_of(array, device).flatten(0, 1);
        let obs = rollout.obs.map(whole);
        let legal = rollout.legal.as_ref().map(whole);
        let actions = whole(&rollout.actions).reshape([-1, 1]);
        let targets = self.targets(rollout, &obs, legal.as_ref());

        let rows = rollout.steps() * rollout.envs();
        let minibatch = rows.div_ceil(self.config.minibatches.min(rows));
        let mut order: Vec<i64> = (0..rows as i64).collect();
        // Sums of (loss, value, gradient norm).
        let mut sums = Tensor::zeros([3], (Kind::Float, device));
        let mut steps = 0.0;
        for _ in 0..self.config.epochs {
            order.shuffle(&mut self.trained.rng);
            for indices in order.chunks(minibatch) {
                let indices = Tensor::from_slice(indices).to_device(device);
                let pick = |tensor: &Tensor| tensor.index_select(0, &indices);
                let legal = legal.as_ref().filter(|_| self.net.head().legal).map(pick);
                let (net, params) = (&self.net, &self.trained.params);
                let values = values_of(net, params, &obs.map(pick), legal.as_ref());
                let chosen = values.gather(1, &pick(&actions), false).squeeze_dim(1);
                let loss = loss(&chosen, &pick(&targets));
                let Trained {
                    params, optimizer, ..
                } = &mut self.trained;
                let norm = optimizer.descend(params, &loss, Some(self.config.clip_norm));
                let value = chosen.mean(Kind::Float);
                sums += Tensor::stack(&[loss, value, norm], 0).detach();
                steps += 1.0;
            }
        }
        let means = array_of(&(sums / steps));
        let means = means.as_slice::<f32>().iter().map(|&mean| f64::from(mean));
        let names = ["loss", "q_value", "grad_norm"];
        let mut metrics: Vec<_> = names.into_iter().zip(means).collect();
        metrics.push(("learning_rate", learning_rate));
        Report::checked(metrics, None)
    }

    fn weights(&self) -> Vec<f32> {
        self.trained.params.to_vec()
    }

    fn save(&self) -> Saved {
        self.trained.save()
    }

    fn load(&mut self, saved: &Saved) -> Result<(), LearnError> {
        self.trained.load(saved)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use starling_envs::{Space, stream};

    /// Observations 1, 2, 3, 4 of one environment, rewards of 1, Q(s, ·) = (s, 2s): the best values
    /// are 2, 4, 6, 8. γ = λ = ½. Without an end, backwards: 1 + ½·8 = 5, then
    /// 1 + ½(½·6 + ½·5) = 3.75 and 1 + ½(½·4 + ½·3.75) = 2.9375.
    #[test]
    fn targets_by_hand() {
        let (obs, action) = (Space::unbounded(&[1]), Space::Discrete { n: 2 });
        let spaces = Spaces {
            observation: obs.clone(),
            action: action.clone(),
            legal_actions: None,
            frame_stack: None,
        };
        let config = Config {
            gamma: 0.5,
            q_lambda: 0.5,
            net: QNetConfig {
                hidden: Some(vec![]),
                ..QNetConfig::default()
            },
            ..Config::default()
        };
        let pqn = Pqn::new(config.clone(), &spaces).unwrap();
        let (layout, optimizer) = (&pqn.layout, config.optimizer);
        let mut trained = Trained::new(layout, optimizer, 1, Device::Cpu);
        trained.params.load_slice(&[1.0, 2.0, 0.0, 0.0]).unwrap();
        let learner = PqnLearner {
            net: pqn.net.clone(),
            config,
            trained,
            device: Device::Cpu,
        };
        let none = Tree::empty();
        let mut rollout = Rollout::new(3, 1, &obs, &action, None, &none, &none);
        rollout.obs = Tree::Leaf(Array::from_slice(&[1f32, 2.0, 3.0, 4.0], &[4, 1, 1]));
        rollout.rewards = Array::from_slice(&[1f32; 3], &[3, 1]);
        let targets = |rollout: &Rollout| {
            let seen = rollout
                .obs
                .map(|array| tensor_of(array, Device::Cpu).flatten(0, 1));
            Vec::<f32>::try_from(learner.targets(rollout, &seen, None)).unwrap()
        };
        assert_eq!(targets(&rollout), [2.9375, 3.75, 5.0]);

        // Truncated with the second step, at the observation 10, worth 20: 1 + ½·20 = 11, and
        // 1 + ½(½·4 + ½·11) = 4.75 before it.
        rollout.truncated.as_mut_slice::<u8>()[1] = 1;
        rollout.final_at = vec![(1, 0)];
        rollout.final_obs = Tree::Leaf(Array::from_slice(&[10f32], &[1, 1]));
        assert_eq!(targets(&rollout), [4.75, 11.0, 5.0]);

        // Terminated there: 1, and 1 + ½(½·4 + ½·1) = 2.25.
        rollout.terminated.as_mut_slice::<u8>()[1] = 1;
        assert_eq!(targets(&rollout), [2.25, 1.0, 5.0]);

        // The better action is illegal at the observation 10, which is worth 10 then.
        rollout.terminated.as_mut_slice::<u8>()[1] = 0;
        rollout.final_legal = vec![1, 0];
        assert_eq!(targets(&rollout), [3.5, 6.0, 5.0]);
    }

    #[test]
    fn loss_by_hand() {
        let (chosen, targets) = (
            Tensor::from_slice(&[1f32, 3.0]),
            Tensor::from_slice(&[2f32, 6.0]),
        );
        assert_eq!(loss(&chosen, &targets).double_value(&[]), 2.5);
    }

    #[test]
    fn random_actions_are_legal() {
        let values = [0.5, ILLEGAL as f32, -3.0];
        let mut rng = stream(1, "test", 0);
        let mut counts = [0; 3];
        for _ in 0..1000 {
            counts[random_legal(&values, 0, &mut rng)] += 1;
        }
        assert_eq!(counts[1], 0);
        assert!(counts[0] > 400 && counts[2] > 400, "{counts:?}");
    }
}
