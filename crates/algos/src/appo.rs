//! Asynchronous PPO: PPO's clipped loss on V-trace targets (Luo et al. 2020, Petrenko et al.
//! 2020), for rollouts whose policy is some updates old.
//!
//! At the beginning of an update the learner's present policy and values give V-trace targets
//! and advantages r_t + γ vs_{t+1} − V_t. Then few epochs of minibatches follow, with the
//! probability ratio against the policy that acted. The ratio already weighs the advantage, so
//! that V-trace's weight ρ̂_pg is not applied a second time.
//!
//! Where we differ from the papers: there is no target network and no KL penalty, and an episode
//! that was cut off is bootstrapped from its final observation. Minibatches are groups of whole
//! trajectories, with and without an LSTM.

use rand::seq::SliceRandom as _;
use serde::{Deserialize, Serialize};
use starling_envs::{Rng, stream};
use starling_nets::{
    Device, Kind, NetConfig, Optimizer, OptimizerConfig, Params, Schedule, Tensor,
    clip_global_norm, no_grad,
};

use crate::actor_critic::{Model, normalized};
use crate::config::{ConfigError, refuse, require, require_schedule};
use crate::impala::RewardClipping;
use crate::ops::{RhoClips, Trajectories, vtrace};
use crate::registry::{load_learner, save_learner};
use crate::trajectory::Trajectory;
use crate::{
    Algorithm, Batch, Experience, LearnError, Learner, Policy, Progress, Report, Saved, Spaces,
};

/// APPO's settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Steps of each environment per rollout.
    pub rollout_steps: usize,
    /// Passes over each rollout.
    pub epochs: usize,
    /// Parts that the environments of a rollout are split into; each gives one gradient step per
    /// epoch.
    pub minibatches: usize,
    /// Step size, possibly a schedule.
    pub learning_rate: Schedule,
    /// Discount per step (γ).
    pub gamma: f64,
    /// How rewards are limited: `abs_one`, `soft_asymmetric` or null.
    pub reward_clipping: Option<RewardClipping>,
    /// How far the probability ratio may move, possibly a schedule.
    pub ratio_clip: Schedule,
    /// Largest importance weight in the temporal differences (ρ̂); null for no limit.
    pub rho_clip: Option<f64>,
    /// Largest importance weight in the traces (ĉ); null for no limit.
    pub c_clip: Option<f64>,
    /// Factor on the traces (λ): less than 1 shortens them.
    pub trace_lambda: f64,
    /// Weight of the value loss.
    pub value_coef: f64,
    /// Weight of the entropy bonus.
    pub entropy_coef: f64,
    /// Largest norm of a gradient.
    pub clip_norm: f64,
    /// Scale the advantages of each minibatch to mean 0 and deviation 1.
    pub normalize_advantage: bool,
    /// How gradients become steps.
    pub optimizer: OptimizerConfig,
    /// The network.
    pub net: NetConfig,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            rollout_steps: 32,
            epochs: 1,
            minibatches: 4,
            learning_rate: Schedule::linear(5e-4, 0.0, 1.0),
            gamma: 0.99,
            reward_clipping: None,
            ratio_clip: Schedule::Constant(0.2),
            rho_clip: Some(1.0),
            c_clip: Some(1.0),
            trace_lambda: 0.95,
            value_coef: 0.5,
            entropy_coef: 0.01,
            clip_norm: 0.5,
            normalize_advantage: true,
            optimizer: OptimizerConfig {
                eps: 1e-5,
                ..OptimizerConfig::default()
            },
            net: NetConfig::default(),
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
        share("algo.trace_lambda", self.trace_lambda)?;
        let over_zero = |key, value: f64| require(value > 0.0, key, value, "over 0");
        over_zero("algo.rho_clip", self.rho_clip.unwrap_or(1.0))?;
        over_zero("algo.c_clip", self.c_clip.unwrap_or(1.0))?;
        over_zero("algo.clip_norm", self.clip_norm)?;
        let coefficient =
            |key, value: f64| require(value.is_finite() && value >= 0.0, key, value, "0 or more");
        coefficient("algo.value_coef", self.value_coef)?;
        coefficient("algo.entropy_coef", self.entropy_coef)?;
        require_schedule("algo.learning_rate", &self.learning_rate, 10.0)?;
        require_schedule("algo.ratio_clip", &self.ratio_clip, 10.0)?;
        refuse(self.optimizer.problem())?;
        refuse(self.net.problem())
    }
}

/// APPO for one environment's spaces.
#[derive(Debug)]
pub struct Appo {
    config: Config,
    model: Model,
}

impl Appo {
    /// Checks the settings against each other and the spaces.
    pub fn new(config: Config, spaces: &Spaces) -> Result<Self, ConfigError> {
        config.check()?;
        let model = Model::new(&config.net, spaces).map_err(|error| {
            ConfigError::Misfit(format!("appo cannot be used here: {}", error.0))
        })?;
        Ok(Self { config, model })
    }
}

impl Algorithm for Appo {
    fn experience(&self) -> Experience {
        Experience::Rollouts {
            steps: self.config.rollout_steps,
        }
    }

    fn discount(&self) -> f64 {
        self.config.gamma
    }

    fn policy(&self, device: Device) -> Box<dyn Policy> {
        Box::new(self.model.policy(device))
    }

    fn learner(&self, seed: u64, device: Device) -> Box<dyn Learner> {
        let mut rng = stream(seed, "learner", 0);
        let params = Params::init(&self.model.layout, &mut rng, device).trainable();
        Box::new(AppoLearner {
            optimizer: Optimizer::new(self.config.optimizer, params.flat()),
            config: self.config.clone(),
            model: self.model.clone(),
            params,
            rng,
            device,
        })
    }
}

/// The terms of APPO's loss, each averaged over the minibatch.
#[derive(Debug)]
pub struct Terms {
    /// What is minimised.
    pub loss: Tensor,
    /// Clipped surrogate, negated.
    pub policy_loss: Tensor,
    /// Half the squared error of the value.
    pub value_loss: Tensor,
    /// Mean entropy of the policy.
    pub entropy: Tensor,
    /// Share of ratios outside the clip range.
    pub clip_fraction: Tensor,
}

/// What [`loss`] compares; every tensor has one number per step, in one shape.
#[derive(Debug)]
pub struct Compared<'a> {
    /// Log-probability of the action under the present policy.
    pub log_probs: &'a Tensor,
    /// Log-probability under the policy that acted.
    pub acting_log_probs: &'a Tensor,
    /// V-trace's r_t + γ vs_{t+1} − V_t, possibly normalised.
    pub advantages: &'a Tensor,
    /// Present values.
    pub values: &'a Tensor,
    /// V-trace's value targets.
    pub targets: &'a Tensor,
    /// Entropy of the present policy.
    pub entropy: &'a Tensor,
}

/// APPO's loss over one minibatch.
pub fn loss(x: &Compared<'_>, config: &Config, ratio_clip: f64) -> Terms {
    let ratio = (x.log_probs - x.acting_log_probs).exp();
    let clipped = ratio.clamp(1.0 - ratio_clip, 1.0 + ratio_clip);
    let surrogate = (&ratio * x.advantages).minimum(&(&clipped * x.advantages));
    let policy_loss = -surrogate.mean(Kind::Float);
    let value_loss = (x.values - x.targets).square().mean(Kind::Float) * 0.5;
    let entropy = x.entropy.mean(Kind::Float);
    let outside = (&ratio - 1.0).abs().gt(ratio_clip).to_kind(Kind::Float);
    Terms {
        loss: &policy_loss + &value_loss * config.value_coef - &entropy * config.entropy_coef,
        policy_loss,
        value_loss,
        entropy,
        clip_fraction: outside.mean(Kind::Float),
    }
}

struct AppoLearner {
    config: Config,
    model: Model,
    params: Params,
    optimizer: Optimizer,
    rng: Rng,
    device: Device,
}

/// Advantages and value targets of a rollout, `[T, B]`, and the mean importance weight.
struct Targets {
    advantages: Tensor,
    values: Tensor,
    mean_rho: Tensor,
}

impl AppoLearner {
    /// V-trace with the present weights.
    fn targets(&self, whole: &Trajectory) -> Result<Targets, LearnError> {
        let config = &self.config;
        let output = no_grad(|| whole.forward(&self.model, &self.params));
        let (values, next_values) = whole.values(&self.model, &self.params, &output);
        let policy = output.policy.first(whole.steps * whole.envs);
        let log_probs = policy.log_prob(&whole.actions);
        let rewards = match config.reward_clipping {
            Some(clipping) => clipping.apply(&whole.rewards),
            None => whole.rewards.shallow_clone(),
        };
        let log_rhos = log_probs.reshape_as(&whole.log_probs) - &whole.log_probs;
        let trajectories = Trajectories {
            log_rhos: &log_rhos,
            discounts: &whole.discounts,
            rewards: &rewards,
            values: &values,
            next_values: &next_values,
            continues: &whole.continues,
        };
        let clips = RhoClips {
            rho: config.rho_clip,
            c: config.c_clip,
            pg_rho: None,
            lambda: config.trace_lambda,
        };
        let corrected = vtrace(&trajectories, clips)?;
        Ok(Targets {
            advantages: corrected.surpluses,
            values: corrected.targets,
            mean_rho: log_rhos.exp().mean(Kind::Float),
        })
    }

    /// One gradient step; returns [`METRICS`] of it.
    fn step(
        &mut self,
        whole: &Trajectory,
        targets: &Targets,
        chosen: &[i64],
        rates: Rates,
    ) -> Tensor {
        let config = &self.config;
        let part = whole.select(chosen);
        let chosen = Tensor::from_slice(chosen).to_device(self.device);
        let rows = part.steps * part.envs;
        let column = |tensor: &Tensor| tensor.index_select(1, &chosen).reshape([-1]);
        let advantages = column(&targets.advantages);
        let advantages = match config.normalize_advantage && rows > 1 {
            true => normalized(&advantages),
            false => advantages,
        };
        let output = part.forward(&self.model, &self.params);
        let policy = output.policy.first(rows);
        let terms = loss(
            &Compared {
                log_probs: &policy.log_prob(&part.actions),
                acting_log_probs: &part.log_probs.reshape([-1]),
                advantages: &advantages,
                values: &output.value.narrow(0, 0, rows as i64),
                targets: &column(&targets.values),
                entropy: &policy.entropy(),
            },
            config,
            rates.ratio_clip,
        );
        let gradient = self.params.gradient(&terms.loss);
        let (gradient, norm) = clip_global_norm(gradient, config.clip_norm);
        self.optimizer
            .step(self.params.flat(), &gradient, rates.learning_rate);
        let metrics = [
            terms.loss,
            terms.policy_loss,
            terms.value_loss,
            terms.entropy,
            terms.clip_fraction,
            norm,
        ];
        Tensor::stack(&metrics, 0).detach()
    }
}

/// The schedules' values of one update.
#[derive(Clone, Copy)]
struct Rates {
    learning_rate: f64,
    ratio_clip: f64,
}

/// What each gradient step reports.
const METRICS: [&str; 6] = [
    "loss",
    "policy_loss",
    "value_loss",
    "entropy",
    "clip_fraction",
    "grad_norm",
];

impl Learner for AppoLearner {
    fn update(&mut self, batch: Batch<'_>, progress: Progress) -> Result<Report, LearnError> {
        let Batch::Rollout(rollout) = batch else {
            return Err(LearnError::WrongBatch { wanted: "rollouts" });
        };
        let rates = Rates {
            learning_rate: self.config.learning_rate.at(progress.fraction()),
            ratio_clip: self.config.ratio_clip.at(progress.fraction()),
        };
        let whole = Trajectory::new(rollout, self.config.gamma, self.device);
        let targets = self.targets(&whole)?;
        let mut order: Vec<i64> = (0..whole.envs as i64).collect();
        let group = order
            .len()
            .div_ceil(self.config.minibatches.min(order.len()));
        let mut sums = Tensor::zeros([METRICS.len() as i64], (Kind::Float, self.device));
        let mut steps = 0.0;
        for _ in 0..self.config.epochs {
            order.shuffle(&mut self.rng);
            for chosen in order.chunks(group) {
                sums += self.step(&whole, &targets, chosen, rates);
                steps += 1.0;
            }
        }
        let means = starling_nets::array_of(&(sums / steps));
        let means = means.as_slice::<f32>().iter().map(|&mean| f64::from(mean));
        let mut metrics: Vec<_> = METRICS.into_iter().zip(means).collect();
        metrics.push(("importance_weight", targets.mean_rho.double_value(&[])));
        metrics.push(("learning_rate", rates.learning_rate));
        Report::checked(metrics, None)
    }

    fn weights(&self) -> Vec<f32> {
        self.params.to_vec()
    }

    fn save(&self) -> Saved {
        save_learner(&[("params", &self.params)], &self.optimizer, &self.rng)
    }

    fn load(&mut self, saved: &Saved) -> Result<(), LearnError> {
        let params = [("params", &mut self.params)];
        load_learner(saved, params, &mut self.optimizer, &mut self.rng)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two steps, clip 0.2, ratios 1.5 and 0.5, advantages 1 and −1: min(1.5, 1.2) = 1.2 and
    /// min(−0.5, −0.8) = −0.8. Values 1 and 3 against 2 and 2: half the mean square is 0.5.
    #[test]
    fn loss_by_hand() {
        let tensor = |values: [f32; 2]| Tensor::from_slice(&values);
        let terms = loss(
            &Compared {
                log_probs: &tensor([1.5f32.ln(), 0.5f32.ln()]),
                acting_log_probs: &tensor([0.0, 0.0]),
                advantages: &tensor([1.0, -1.0]),
                values: &tensor([1.0, 3.0]),
                targets: &tensor([2.0, 2.0]),
                entropy: &tensor([0.6, 0.4]),
            },
            &Config::default(),
            0.2,
        );
        let close = |tensor: &Tensor, expected: f64| {
            let value = tensor.double_value(&[]);
            assert!((value - expected).abs() < 1e-6, "{value} is not {expected}");
        };
        close(&terms.policy_loss, -0.2);
        close(&terms.value_loss, 0.5);
        close(&terms.clip_fraction, 1.0);
        close(&terms.loss, -0.2 + 0.5 * 0.5 - 0.01 * 0.5);
    }
}
