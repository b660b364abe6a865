//! Advantage actor-critic, the synchronous form of A3C (Mnih et al. 2016).
//!
//! One gradient step per rollout. Defaults are rlpyt's: Adam instead of RMSProp, λ = 1 (plain
//! discounted returns), a gradient norm of at most 1. Where we differ from the paper: a
//! truncated episode is bootstrapped from its final observation.

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

/// A2C's settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Steps of each environment per rollout, and so per gradient step.
    pub rollout_steps: usize,
    /// Learning rate, possibly a schedule.
    pub learning_rate: Schedule,
    /// Discount per step (γ).
    pub gamma: f64,
    /// Weight of longer returns in the advantages (λ); 1 for plain discounted returns.
    pub gae_lambda: f64,
    /// Weight of the value loss.
    pub value_coef: f64,
    /// Weight of the entropy bonus.
    pub entropy_coef: f64,
    /// Maximum norm of the gradient.
    pub clip_norm: f64,
    /// Scale the advantages of each rollout to mean 0 and standard deviation 1.
    pub normalize_advantage: bool,
    /// Divide rewards by the running deviation of discounted returns, which is kept with the
    /// weights.
    pub normalize_returns: bool,
    /// The optimiser.
    pub optimizer: OptimizerConfig,
    /// The network.
    pub net: NetConfig,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            rollout_steps: 5,
            learning_rate: Schedule::Constant(1e-3),
            gamma: 0.99,
            gae_lambda: 1.0,
            value_coef: 0.5,
            entropy_coef: 0.01,
            clip_norm: 1.0,
            normalize_advantage: false,
            normalize_returns: false,
            optimizer: OptimizerConfig::default(),
            net: NetConfig::default(),
        }
    }
}

impl Config {
    fn check(&self) -> Result<(), ConfigError> {
        let steps = self.rollout_steps;
        require(steps >= 1, "algo.rollout_steps", steps, "at least 1")?;
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
        require_schedule("algo.learning_rate", &self.learning_rate, 10.0)?;
        refuse(self.optimizer.problem())?;
        refuse(self.net.problem())
    }
}

/// A2C for one environment's spaces.
#[derive(Debug)]
pub struct A2c {
    config: Config,
    model: Model,
}

impl A2c {
    /// Checks the settings against each other and the spaces.
    pub fn new(config: Config, spaces: &Spaces) -> Result<Self, ConfigError> {
        config.check()?;
        let returns = config.normalize_returns.then_some(config.gamma);
        let model = Model::new(&config.net, spaces, returns).map_err(|error| {
            ConfigError::Misfit(format!("a2c cannot be used here: {}", error.0))
        })?;
        Ok(Self { config, model })
    }
}

impl Algorithm for A2c {
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
        Box::new(A2cLearner {
            config: self.config.clone(),
            model: self.model.clone(),
            trained: Trained::new(&self.model.layout, optimizer, seed, device),
            prepared: None,
            graph: Graph::new(device, true),
        })
    }
}

/// The terms of A2C's loss, each averaged over the rollout.
#[derive(Debug)]
pub struct Terms {
    /// What is minimised.
    pub loss: Tensor,
    /// −log π · advantage.
    pub policy_loss: Tensor,
    /// Half the squared error of the value.
    pub value_loss: Tensor,
    /// Mean entropy of the policy.
    pub entropy: Tensor,
}

/// A2C's loss over one rollout; every input has one number per step.
pub fn loss(
    log_probs: &Tensor,
    advantages: &Tensor,
    values: &Tensor,
    returns: &Tensor,
    entropy: &Tensor,
    config: &Config,
) -> Terms {
    let policy_loss = -(log_probs * advantages).mean(Kind::Float);
    let value_loss = (values - returns).square().mean(Kind::Float) * 0.5;
    let entropy = entropy.mean(Kind::Float);
    Terms {
        loss: &policy_loss + &value_loss * config.value_coef - &entropy * config.entropy_coef,
        policy_loss,
        value_loss,
        entropy,
    }
}

/// What an update reports, in order.
const REPORTED: [&str; 5] = ["loss", "policy_loss", "value_loss", "entropy", "grad_norm"];

struct A2cLearner {
    config: Config,
    model: Model,
    trained: Trained,
    prepared: Option<Prepared>,
    graph: Graph<Tensor>,
}

impl Learner for A2cLearner {
    fn update(&mut self, batch: Batch<'_>, progress: Progress) -> Result<Report, LearnError> {
        let Batch::Rollouts(rollouts) = batch else {
            return Err(LearnError::WrongBatch { wanted: "rollouts" });
        };
        let config = &self.config;
        let (gamma, lambda) = (config.gamma, config.gae_lambda);
        let (model, params) = (&self.model, &self.trained.params);
        let loaded = Prepared::load(&mut self.prepared, model, params, rollouts, gamma, lambda)?;
        let Some(whole) = &self.prepared else {
            return Err(LearnError::Mismatch);
        };
        if loaded.moved {
            self.graph.reset();
        }
        let learning_rate = config.learning_rate.at(progress.fraction());
        let optimizer = &mut self.trained.optimizer;
        optimizer.set_learning_rate(learning_rate);
        let reported = self
            .graph
            .run(|| descend(whole, model, params, optimizer, config));
        whole.observe(model, params);
        let reported = starling_nets::array_of(reported);
        let reported = reported.as_slice::<f32>().iter().map(|&x| f64::from(x));
        let mut metrics: Vec<_> = REPORTED.into_iter().zip(reported).collect();
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

/// One gradient step; returns what is [`REPORTED`] of it.
fn descend(
    whole: &Prepared,
    model: &Model,
    params: &Params,
    optimizer: &mut Optimizer,
    config: &Config,
) -> Tensor {
    let output = whole.forward(model, params);
    let advantages = match config.normalize_advantage {
        true => normalized(&whole.advantages),
        false => whole.advantages.shallow_clone(),
    };
    let terms = loss(
        &output.policy.log_prob(&whole.actions),
        &advantages,
        &output.value,
        &whole.returns,
        &output.policy.entropy(),
        config,
    );
    let norm = optimizer.descend(params, &terms.loss, Some(config.clip_norm));
    let reported = [
        terms.loss,
        terms.policy_loss,
        terms.value_loss,
        terms.entropy,
        norm,
    ];
    Tensor::stack(&reported, 0).detach()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// −(ln .5 · 2 + ln .25 · (−1))/2, half the mean of 1² and 2², and the entropy .5.
    #[test]
    fn loss_by_hand() {
        let tensor = |values: [f32; 2]| Tensor::from_slice(&values);
        let config = Config::default();
        let terms = loss(
            &tensor([0.5f32.ln(), 0.25f32.ln()]),
            &tensor([2.0, -1.0]),
            &tensor([1.0, 0.0]),
            &tensor([2.0, 2.0]),
            &tensor([0.4, 0.6]),
            &config,
        );
        let policy = -(2.0 * 0.5f64.ln() - 0.25f64.ln()) / 2.0;
        let close = |tensor: &Tensor, expected: f64| {
            let value = tensor.double_value(&[]);
            assert!((value - expected).abs() < 1e-6, "{value} is not {expected}");
        };
        close(&terms.policy_loss, policy);
        close(&terms.value_loss, 1.25);
        close(&terms.loss, policy + 0.5 * 1.25 - 0.01 * 0.5);
    }
}
