//! "PEARL", probabilistic embeddings for actor-critic reinforcement learning (Rakelly et al. 2019):
//! SAC whose networks are conditioned on a latent variable z that represents the task. An encoder infers
//! the posterior of z from transitions of the task, the *context*. At the beginning of a trial z is
//! sampled from the prior, which explores; then from the posterior, so that the agent adapts within a
//! few episodes, without a gradient step.
//!
//! Every environment of a run has one task, and every stream of the replay holds one task's steps. An
//! update samples tasks, for each of them transitions from the whole stream, and context from the newest
//! steps that the policy marked, which are all but those of the extra phase. Losses, networks and initial
//! weights are those of the authors' code. The encoder is trained by the critics' loss and the KL
//! divergence of the posterior from the prior only.
//!
//! Differences from the authors' code: all tasks are collected in parallel, a few steps of each, instead
//! of a few random tasks per iteration, with the same number of updates per step. The context of a task
//! is always the newest steps of its trials, and never empty. Trials go from the prior directly to the
//! posterior, without a trajectory on the prior at the beginning of each phase. An evaluation has a fixed
//! number of trajectories, whatever their length. In the context, the next observation of a step that
//! terminates an episode is replaced by the observation before it. Log-probabilities of actions are exact
//! near the bounds.

mod export;
mod learner;
mod networks;
mod policy;
#[cfg(test)]
mod tests;
mod update;

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use starling_nets::export::NotExported;
use starling_nets::{Device, Kind, OptimizerConfig, Schedule, Snapshot, Tensor};
use starling_replay::{GroupDraw, GroupedDraws, RateConfig, ReplayConfig};

use self::networks::Networks;
use crate::config::{ConfigError, require};
use crate::{Algorithm, Experience, Exported, Learner, Policy, ReplayNeeds, Spaces, Trial};

/// PEARL's settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Size of z. 0 for none: SAC over all tasks, and with `env.show_task` an oracle.
    #[schemars(range(max = 1024), extend("unit" = "numbers"))]
    pub latent_size: usize,
    /// Tasks per update, drawn with replacement.
    #[schemars(range(min = 1), extend("unit" = "tasks"))]
    pub meta_batch: usize,
    /// Transitions per task and update.
    #[schemars(range(min = 1), extend("unit" = "transitions"))]
    pub batch_size: usize,
    /// Transitions of context per task and update.
    #[schemars(range(min = 1), extend("unit" = "transitions"))]
    pub context_batch: usize,
    /// Whether the encoder also sees the observation after a step.
    pub context_next_obs: bool,
    /// Steps of each environment per rollout; learning happens between rollouts.
    #[schemars(range(min = 1))]
    pub rollout_steps: usize,
    /// Steps of all tasks that are collected before learning starts, with z from the prior.
    pub learning_starts_steps: u64,
    /// Updates per step of an environment.
    #[schemars(range(max = 1e3), extend("exclusiveMinimum" = 0.0, "unit" = "updates"))]
    pub updates_per_step: f64,
    /// Capacity of the replay in steps, over all tasks.
    pub capacity_steps: usize,
    /// Steps of a trial with z from the prior. Trajectories are completed.
    #[schemars(range(min = 1))]
    pub prior_steps: usize,
    /// Steps of a trial after that with z from the posterior, which are context too.
    pub posterior_steps: usize,
    /// Steps of a trial at its end with z from the posterior, which are not context.
    pub extra_steps: usize,
    /// Trajectories of a trial in evaluations.
    #[schemars(range(min = 1, max = 10_000), extend("unit" = "trajectories"))]
    pub eval_trajectories: usize,
    /// Trajectories with z from the prior at the beginning of a trial in evaluations.
    #[schemars(range(min = 1), extend("unit" = "trajectories"))]
    pub eval_prior_trajectories: usize,
    /// Discount per step (γ).
    #[schemars(range(min = 0.0, max = 1.0))]
    pub gamma: f64,
    /// Factor on rewards in the critics' targets. The weight of the entropy is 1.
    #[schemars(extend("unbounded" = true))]
    pub reward_scale: f64,
    /// Weight of the KL divergence of the posterior from the prior.
    #[schemars(range(min = 0.0))]
    pub kl_weight: f64,
    /// Weight of the squared means of actions, before tanh, in the actor's loss.
    #[schemars(range(min = 0.0))]
    pub mean_weight: f64,
    /// Weight of the squared log-stds of actions in the actor's loss.
    #[schemars(range(min = 0.0))]
    pub log_std_weight: f64,
    /// Learning rate of all networks, possibly a schedule.
    #[schemars(extend("minimum" = 0.0, "maximum" = 10.0))]
    pub learning_rate: Schedule,
    /// The optimiser of each network.
    pub optimizer: OptimizerConfig,
    /// Largest norm of a gradient, of critics with encoder, value and actor by themselves; null for
    /// no limit.
    #[schemars(extend("exclusiveMinimum" = 0.0))]
    pub clip_norm: Option<f64>,
    /// How far the target of the value network moves towards it with each update (τ).
    #[schemars(range(min = 0.0, max = 1.0))]
    pub target_tau: f64,
    /// Sizes of the fully connected layers of actor, critics and value.
    #[schemars(inner(range(min = 1, max = 65_536)), extend("unit" = "units"))]
    pub hidden: Vec<usize>,
    /// Sizes of the fully connected layers of the encoder.
    #[schemars(inner(range(min = 1, max = 65_536)), extend("unit" = "units"))]
    pub encoder_hidden: Vec<usize>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            latent_size: 5,
            meta_batch: 16,
            batch_size: 256,
            context_batch: 64,
            context_next_obs: false,
            rollout_steps: 20,
            learning_starts_steps: 200_000,
            updates_per_step: 0.4,
            capacity_steps: 3_000_000,
            prior_steps: 400,
            posterior_steps: 0,
            extra_steps: 600,
            eval_trajectories: 3,
            eval_prior_trajectories: 2,
            gamma: 0.99,
            reward_scale: 5.0,
            kl_weight: 0.1,
            mean_weight: 1e-3,
            log_std_weight: 1e-3,
            learning_rate: Schedule::Constant(3e-4),
            optimizer: OptimizerConfig::default(),
            clip_norm: None,
            target_tau: 0.005,
            hidden: vec![300, 300, 300],
            encoder_hidden: vec![200, 200, 200],
        }
    }
}

impl Config {
    /// Steps of context of a trial, without those that complete its trajectories.
    fn context_steps(&self) -> usize {
        self.prior_steps + self.posterior_steps
    }

    /// Draws of an update: what is learned from, and the context, if there is an encoder.
    fn draws(&self) -> GroupedDraws {
        let mut draws = vec![GroupDraw::all(self.batch_size)];
        if self.latent_size > 0 {
            draws.push(GroupDraw::marked(self.context_batch, self.context_steps()));
        }
        GroupedDraws {
            groups: Vec::new(),
            chosen: self.meta_batch,
            draws,
        }
    }
}

/// PEARL for the spaces of an environment.
pub fn build(config: Config, spaces: &Spaces) -> Result<Box<dyn Algorithm>, ConfigError> {
    Ok(Box::new(make(config, spaces)?))
}

fn make(config: Config, spaces: &Spaces) -> Result<Pearl, ConfigError> {
    require(
        config.eval_prior_trajectories < config.eval_trajectories,
        "algo.eval_prior_trajectories",
        config.eval_prior_trajectories,
        "less than algo.eval_trajectories",
    )?;
    let networks = Networks::new(&config, spaces)
        .map_err(|error| ConfigError::Misfit(format!("pearl cannot be used here: {}", error.0)))?;
    Ok(Pearl {
        config: Arc::new(config),
        networks: Arc::new(networks),
    })
}

struct Pearl {
    config: Arc<Config>,
    networks: Arc<Networks>,
}

impl Algorithm for Pearl {
    fn experience(&self) -> Experience {
        let config = &self.config;
        let draws = config.draws();
        let batch_size = draws.batch_size();
        Experience::Transitions(Box::new(ReplayNeeds {
            steps: config.rollout_steps,
            replay: ReplayConfig {
                capacity_steps: config.capacity_steps,
                n_steps: 1,
                gamma: config.gamma,
                ..ReplayConfig::default()
            },
            rate: RateConfig {
                min_size_steps: config.learning_starts_steps,
                samples_per_insert: Some(config.updates_per_step * batch_size as f64),
                tolerance_samples: 4.0 * batch_size as f64,
            },
            batch_size,
            draws: Some(draws),
            beta: Schedule::Constant(0.0),
        }))
    }

    fn discount(&self) -> f64 {
        self.config.gamma
    }

    fn policy(&self, device: Device) -> Box<dyn Policy> {
        let (config, networks) = (Arc::clone(&self.config), Arc::clone(&self.networks));
        Box::new(policy::PearlPolicy::new(config, networks, device))
    }

    fn export(&self, spaces: &Spaces, weights: &Snapshot) -> Result<Exported, NotExported> {
        export::export(self, spaces, weights)
    }

    fn learner(&self, seed: u64, device: Device) -> Box<dyn Learner> {
        Box::new(self.pearl_learner(seed, device))
    }

    fn trial(&self) -> Option<Trial> {
        Some(Trial {
            episodes: self.config.eval_trajectories,
            control: (self.config.latent_size > 0).then_some("Prior"),
        })
    }
}

impl Pearl {
    fn pearl_learner(&self, seed: u64, device: Device) -> learner::PearlLearner {
        let (config, networks) = (Arc::clone(&self.config), Arc::clone(&self.networks));
        learner::PearlLearner::new(config, networks, seed, device)
    }
}

/// The posterior of each task, its mean and variance `[M, L]`: the product of the normal
/// distributions with means and variances `[M, C, L]` that the encoder gives for C transitions.
fn product_of_gaussians(means: &Tensor, variances: &Tensor) -> (Tensor, Tensor) {
    let precisions = variances.reciprocal();
    let sum = |x: &Tensor| x.sum_dim_intlist([1].as_slice(), false, Kind::Float);
    let variance = sum(&precisions).reciprocal();
    (sum(&(means * precisions)) * &variance, variance)
}

/// The KL divergence of normal distributions from N(0, 1), summed over tasks and numbers.
fn divergence(mean: &Tensor, variance: &Tensor) -> Tensor {
    ((variance + mean.square() - variance.log() - 1.0) * 0.5).sum(Kind::Float)
}

/// The mean over transitions of the squared errors of values `[2, N]`, summed over both critics; and
/// absolute errors.
fn critic_loss(values: &Tensor, targets: &Tensor) -> (Tensor, Tensor) {
    let errors = values - targets;
    (
        errors.square().mean(Kind::Float) * 2.0,
        errors.detach().abs(),
    )
}

/// The mean squared error of values `[N]` of observations, of which the targets are the lowest of
/// `action_values` `[2, N]` and the entropy of actions with log-probabilities `[N]`.
fn value_loss(values: &Tensor, action_values: &Tensor, log_probs: &Tensor) -> Tensor {
    let targets = action_values.amin([0].as_slice(), false) - log_probs;
    (values - targets.detach()).square().mean(Kind::Float)
}

/// The loss of an actor whose actions have values `[2, N]` and log-probabilities `[N]`, from normal
/// distributions with means and log-stds `[N, A]`.
fn actor_loss(
    action_values: &Tensor,
    log_probs: &Tensor,
    (mean, log_std): (&Tensor, &Tensor),
    (mean_weight, log_std_weight): (f64, f64),
) -> Tensor {
    let values = action_values.amin([0].as_slice(), false);
    (log_probs - values).mean(Kind::Float)
        + mean.square().mean(Kind::Float) * mean_weight
        + log_std.square().mean(Kind::Float) * log_std_weight
}
