//! Proximal policy optimisation (Schulman et al. 2017).
//!
//! Each rollout is used for several epochs of shuffled minibatches; the probability ratio is
//! clipped so that the policy stays near the one that collected. Defaults are rlpyt's: the
//! learning rate and the clip range fall to zero over the run, values are not clipped.
//!
//! Where we differ from the paper: the policy and value share their torso unless
//! `net.separate_critic` is set; a truncated episode is bootstrapped from its final
//! observation; recurrent networks train on whole sequences from the stored state, with
//! minibatches of environments instead of steps.

use std::collections::BTreeMap;

use rand::seq::SliceRandom as _;
use serde::{Deserialize, Serialize};
use starling_nets::{
    Device, Graph, Kind, NetConfig, Optimizer, OptimizerConfig, Params, Schedule, Tensor,
};

use crate::actor_critic::{Model, Prepared, normalized};
use crate::config::{ConfigError, refuse, require, require_schedule};
use crate::trained::Trained;
use crate::{
    Algorithm, Batch, Experience, LearnError, Learner, Policy, Progress, Report, Saved, Spaces,
};

/// PPO's settings.
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
    /// Weight of longer returns in the advantages (λ).
    pub gae_lambda: f64,
    /// How far the probability ratio may move, possibly a schedule.
    pub ratio_clip: Schedule,
    /// How far a value may move from the recorded one; null for no limit.
    pub value_clip: Option<f64>,
    /// Weight of the value loss.
    pub value_coef: f64,
    /// Weight of the entropy bonus.
    pub entropy_coef: f64,
    /// Maximum norm of the gradient.
    pub clip_norm: f64,
    /// Scale advantages to mean 0 and standard deviation 1.
    pub normalize_advantage: bool,
    /// What mean and deviation are taken over: each `minibatch`, or the whole `rollout` before it
    /// is split (rlpyt).
    pub normalize_advantage_over: Over,
    /// Divide rewards by the running deviation of discounted returns, which is kept with the
    /// weights.
    pub normalize_returns: bool,
    /// The optimiser.
    pub optimizer: OptimizerConfig,
    /// The network.
    pub net: NetConfig,
}

/// What advantages are normalised over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Over {
    /// The steps of one gradient step.
    #[default]
    Minibatch,
    /// All steps of a rollout, once, before it is split.
    Rollout,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            rollout_steps: 128,
            epochs: 4,
            minibatches: 4,
            learning_rate: Schedule::linear(1e-3, 0.0, 1.0),
            gamma: 0.99,
            gae_lambda: 1.0,
            ratio_clip: Schedule::linear(0.1, 0.0, 1.0),
            value_clip: None,
            value_coef: 1.0,
            entropy_coef: 0.01,
            clip_norm: 1.0,
            normalize_advantage: false,
            normalize_advantage_over: Over::default(),
            normalize_returns: false,
            optimizer: OptimizerConfig::default(),
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
        let coefficient =
            |key, value: f64| require(value.is_finite() && value >= 0.0, key, value, "0 or more");
        share("algo.gamma", self.gamma)?;
        share("algo.gae_lambda", self.gae_lambda)?;
        require(
            self.clip_norm > 0.0,
            "algo.clip_norm",
            self.clip_norm,
            "above 0",
        )?;
        coefficient("algo.value_coef", self.value_coef)?;
        coefficient("algo.entropy_coef", self.entropy_coef)?;
        coefficient("algo.value_clip", self.value_clip.unwrap_or(0.0))?;
        require_schedule("algo.learning_rate", &self.learning_rate, 10.0)?;
        require_schedule("algo.ratio_clip", &self.ratio_clip, 10.0)?;
        refuse(self.optimizer.problem())?;
        refuse(self.net.problem())
    }
}

/// PPO for one environment's spaces.
#[derive(Debug)]
pub struct Ppo {
    config: Config,
    model: Model,
}

impl Ppo {
    /// Checks the settings against each other and the spaces.
    pub fn new(config: Config, spaces: &Spaces) -> Result<Self, ConfigError> {
        config.check()?;
        let returns = config.normalize_returns.then_some(config.gamma);
        let model = Model::new(&config.net, spaces, returns).map_err(|error| {
            ConfigError::Misfit(format!("ppo cannot be used here: {}", error.0))
        })?;
        Ok(Self { config, model })
    }
}

impl Algorithm for Ppo {
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
        let optimizer = self.config.optimizer;
        Box::new(PpoLearner {
            config: self.config.clone(),
            model: self.model.clone(),
            trained: Trained::new(&self.model.layout, optimizer, seed, device),
            prepared: None,
            minibatches: BTreeMap::new(),
            ratio_clip: Tensor::zeros([], (Kind::Float, device)),
            sums: Tensor::zeros([REPORTED.len() as i64], (Kind::Float, device)),
        })
    }
}

/// The terms of PPO's loss, each averaged over the minibatch.
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
    /// Estimate of KL(old ‖ new): mean of (ratio − 1) − ln ratio.
    pub approx_kl: Tensor,
    /// Share of ratios outside the clip range.
    pub clip_fraction: Tensor,
}

/// What [`loss`] compares: vectors with one number per step.
#[derive(Debug)]
pub struct Compared<'a> {
    /// Log-probability of the action under the present policy.
    pub log_probs: &'a Tensor,
    /// Log-probability under the policy that acted.
    pub old_log_probs: &'a Tensor,
    /// Advantages.
    pub advantages: &'a Tensor,
    /// Present values.
    pub values: &'a Tensor,
    /// Values when acting.
    pub old_values: &'a Tensor,
    /// Value targets.
    pub returns: &'a Tensor,
    /// Entropy of the present policy.
    pub entropy: &'a Tensor,
}

/// PPO's loss over one minibatch; `ratio_clip` is a scalar.
pub fn loss(x: &Compared<'_>, config: &Config, ratio_clip: &Tensor) -> Terms {
    let log_ratio = x.log_probs - x.old_log_probs;
    let ratio = log_ratio.exp();
    let surrogate = &ratio * x.advantages;
    let range = (Some(1.0 - ratio_clip), Some(1.0 + ratio_clip));
    let clipped = ratio.clamp_tensor(range.0, range.1) * x.advantages;
    let policy_loss = -surrogate.minimum(&clipped).mean(Kind::Float);

    let mut value_error = (x.values - x.returns).square();
    if let Some(limit) = config.value_clip {
        let near = x.old_values + (x.values - x.old_values).clamp(-limit, limit);
        value_error = value_error.maximum(&(near - x.returns).square());
    }
    let value_loss = value_error.mean(Kind::Float) * 0.5;
    let entropy = x.entropy.mean(Kind::Float);
    let loss = &policy_loss + &value_loss * config.value_coef - &entropy * config.entropy_coef;

    let distance = (&ratio - 1.0).abs().detach();
    Terms {
        loss,
        policy_loss,
        value_loss,
        entropy,
        approx_kl: (&ratio - 1.0 - &log_ratio).mean(Kind::Float),
        clip_fraction: distance
            .gt_tensor(ratio_clip)
            .to_kind(Kind::Float)
            .mean(Kind::Float),
    }
}

/// The means over all minibatches that an update reports, in order.
const REPORTED: [&str; 7] = [
    "loss",
    "policy_loss",
    "value_loss",
    "entropy",
    "approx_kl",
    "clip_fraction",
    "grad_norm",
];

struct PpoLearner {
    config: Config,
    model: Model,
    trained: Trained,
    prepared: Option<Prepared>,
    /// By size: the numbers of the rows of a minibatch, and the step that learns from them.
    minibatches: BTreeMap<usize, (Tensor, Graph<()>)>,
    ratio_clip: Tensor,
    /// Sums of what is reported.
    sums: Tensor,
}

impl Learner for PpoLearner {
    fn update(&mut self, batch: Batch<'_>, progress: Progress) -> Result<Report, LearnError> {
        let Batch::Rollouts(rollouts) = batch else {
            return Err(LearnError::WrongBatch { wanted: "rollouts" });
        };
        let config = &self.config;
        let (gamma, lambda) = (config.gamma, config.gae_lambda);
        let Trained {
            params,
            optimizer,
            rng,
        } = &mut self.trained;
        let (model, params) = (&self.model, &*params);
        let loaded = Prepared::load(&mut self.prepared, model, params, rollouts, gamma, lambda)?;
        let Some(whole) = &self.prepared else {
            return Err(LearnError::Mismatch);
        };
        if loaded.moved {
            self.minibatches.clear();
        }
        if config.normalize_advantage && config.normalize_advantage_over == Over::Rollout {
            let advantages = normalized(&whole.advantages);
            whole.advantages.shallow_clone().copy_(&advantages);
        }
        let learning_rate = config.learning_rate.at(progress.fraction());
        optimizer.set_learning_rate(learning_rate);
        let _ = self
            .ratio_clip
            .fill_(config.ratio_clip.at(progress.fraction()));
        let _ = self.sums.zero_();

        let recurrent = self.model.is_recurrent();
        let items = if recurrent {
            whole.envs
        } else {
            whole.envs * whole.steps
        };
        let minibatch = items.div_ceil(config.minibatches.min(items));
        let mut order: Vec<i64> = (0..items as i64).collect();
        let device = self.sums.device();
        let mut updates = 0.0;
        for _ in 0..config.epochs {
            order.shuffle(rng);
            for indices in order.chunks(minibatch) {
                let entry = self.minibatches.entry(indices.len());
                let (rows, graph) = entry.or_insert_with(|| {
                    let rows = Tensor::zeros([indices.len() as i64], (Kind::Int64, device));
                    (rows, Graph::new(device, true))
                });
                rows.copy_(&Tensor::from_slice(indices));
                let (ratio_clip, sums) = (&self.ratio_clip, &mut self.sums);
                graph.run(|| {
                    let part = whole.select(rows, recurrent);
                    let terms = descend(&part, model, params, optimizer, config, ratio_clip);
                    *sums += terms;
                });
                updates += 1.0;
            }
        }
        whole.observe(model, params);
        let means = starling_nets::array_of(&(&self.sums / updates));
        let means = means.as_slice::<f32>().iter().map(|&mean| f64::from(mean));
        let mut metrics: Vec<_> = REPORTED.into_iter().zip(means).collect();
        metrics.push(("learning_rate", learning_rate));
        let mut report = Report::checked(metrics, None)?;
        report.assemble_s = loaded.seconds;
        Ok(report)
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

/// One gradient step on a minibatch; returns what is [`REPORTED`] of it.
fn descend(
    part: &Prepared,
    model: &Model,
    params: &Params,
    optimizer: &mut Optimizer,
    config: &Config,
    ratio_clip: &Tensor,
) -> Tensor {
    let output = part.forward(model, params);
    let by_minibatch =
        config.normalize_advantage && config.normalize_advantage_over == Over::Minibatch;
    let advantages = match by_minibatch && part.advantages.numel() > 1 {
        true => normalized(&part.advantages),
        false => part.advantages.shallow_clone(),
    };
    let terms = loss(
        &Compared {
            log_probs: &output.policy.log_prob(&part.actions),
            old_log_probs: &part.log_probs,
            advantages: &advantages,
            values: &output.value,
            old_values: &part.values,
            returns: &part.returns,
            entropy: &output.policy.entropy(),
        },
        config,
        ratio_clip,
    );
    let norm = optimizer.descend(params, &terms.loss, Some(config.clip_norm));
    let reported = [
        terms.loss,
        terms.policy_loss,
        terms.value_loss,
        terms.entropy,
        terms.approx_kl,
        terms.clip_fraction,
        norm,
    ];
    Tensor::stack(&reported, 0).detach()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two steps, clip 0.2, ratios 1.5 and 0.5, advantages 1 and −1:
    /// min(1.5, 1.2) = 1.2 and min(−0.5, −0.8) = −0.8, so the policy loss is −(1.2 − 0.8)/2.
    /// Values 1 and 3 against 2 and 2: half the mean square is 0.5.
    #[test]
    fn loss_by_hand() {
        let tensor = |values: [f32; 2]| Tensor::from_slice(&values);
        let config = Config {
            value_coef: 2.0,
            entropy_coef: 0.1,
            ..Config::default()
        };
        let terms = loss(
            &Compared {
                log_probs: &tensor([1.5f32.ln(), 0.5f32.ln()]),
                old_log_probs: &tensor([0.0, 0.0]),
                advantages: &tensor([1.0, -1.0]),
                values: &tensor([1.0, 3.0]),
                old_values: &tensor([1.0, 3.0]),
                returns: &tensor([2.0, 2.0]),
                entropy: &tensor([0.6, 0.4]),
            },
            &config,
            &Tensor::from(0.2f32),
        );
        let close = |tensor: &Tensor, expected: f64| {
            let value = tensor.double_value(&[]);
            assert!((value - expected).abs() < 1e-6, "{value} is not {expected}");
        };
        close(&terms.policy_loss, -0.2);
        close(&terms.value_loss, 0.5);
        close(&terms.entropy, 0.5);
        close(&terms.loss, -0.2 + 2.0 * 0.5 - 0.1 * 0.5);
        close(&terms.clip_fraction, 1.0);
        close(
            &terms.approx_kl,
            (0.5 - 1.5f64.ln() - 0.5 - 0.5f64.ln()) / 2.0,
        );
    }

    /// The value moved from 0 to 1 with limit 0.2: the clipped value 0.2 is further from the
    /// target 2, and the larger error counts: (0.2 − 2)²/2 = 1.62.
    #[test]
    fn value_clipping_by_hand() {
        let tensor = |value: f32| Tensor::from_slice(&[value]);
        let config = Config {
            value_clip: Some(0.2),
            ..Config::default()
        };
        let terms = loss(
            &Compared {
                log_probs: &tensor(0.0),
                old_log_probs: &tensor(0.0),
                advantages: &tensor(0.0),
                values: &tensor(1.0),
                old_values: &tensor(0.0),
                returns: &tensor(2.0),
                entropy: &tensor(0.0),
            },
            &config,
            &Tensor::from(0.2f32),
        );
        assert!((terms.value_loss.double_value(&[]) - 1.62).abs() < 1e-6);
    }
}
