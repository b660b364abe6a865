//! Asynchronous PPO: PPO's clipped loss on V-trace targets (Luo et al. 2020, Petrenko et al.
//! 2020), for rollouts whose policy is some updates old.
//!
//! At the beginning of an update the learner's present policy and values give V-trace targets
//! and advantages r_t + γ vs_{t+1} − V_t. Then few epochs of minibatches follow, with the
//! probability ratio against the policy that acted. The ratio already weighs the advantage, so
//! that V-trace's weight ρ̂_pg is not applied a second time.
//!
//! Where we differ from the papers: there is no target network and no KL penalty, and a
//! truncated episode is bootstrapped from its final observation. Minibatches are groups of whole
//! trajectories, with and without an LSTM.

use std::collections::BTreeMap;

use rand::seq::SliceRandom as _;
use serde::{Deserialize, Serialize};
use starling_nets::{
    Device, Graph, Kind, NetConfig, Optimizer, OptimizerConfig, Params, Schedule, Tensor, no_grad,
};

use crate::actor_critic::{Model, Prepared, normalized};
use crate::config::{ConfigError, refuse, require, require_schedule};
use crate::impala::RewardClipping;
use crate::ops::RhoClips;
use crate::trained::Trained;
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
    /// Learning rate, possibly a schedule.
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
    /// Maximum norm of the gradient.
    pub clip_norm: f64,
    /// Scale the advantages of each minibatch to mean 0 and standard deviation 1.
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
            normalize_returns: false,
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
        let over_zero = |key, value: f64| require(value > 0.0, key, value, "above 0");
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
        let returns = config.normalize_returns.then_some(config.gamma);
        let model = Model::new(&config.net, spaces, returns).map_err(|error| {
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
        let optimizer = self.config.optimizer;
        Box::new(AppoLearner {
            config: self.config.clone(),
            model: self.model.clone(),
            trained: Trained::new(&self.model.layout, optimizer, seed, device),
            prepared: None,
            targets: Graph::new(device, true),
            minibatches: BTreeMap::new(),
            ratio_clip: Tensor::zeros([], (Kind::Float, device)),
            sums: Tensor::zeros([REPORTED.len() as i64], (Kind::Float, device)),
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

/// APPO's loss over one minibatch; `ratio_clip` is a scalar.
pub fn loss(x: &Compared<'_>, config: &Config, ratio_clip: &Tensor) -> Terms {
    let ratio = (x.log_probs - x.acting_log_probs).exp();
    let clipped = ratio.clamp_tensor(Some(1.0 - ratio_clip), Some(1.0 + ratio_clip));
    let surrogate = (&ratio * x.advantages).minimum(&(&clipped * x.advantages));
    let policy_loss = -surrogate.mean(Kind::Float);
    let value_loss = (x.values - x.targets).square().mean(Kind::Float) * 0.5;
    let entropy = x.entropy.mean(Kind::Float);
    let outside = (&ratio - 1.0).abs().gt_tensor(ratio_clip);
    let outside = outside.to_kind(Kind::Float);
    Terms {
        loss: &policy_loss + &value_loss * config.value_coef - &entropy * config.entropy_coef,
        policy_loss,
        value_loss,
        entropy,
        clip_fraction: outside.mean(Kind::Float),
    }
}

/// What each gradient step reports.
const REPORTED: [&str; 6] = [
    "loss",
    "policy_loss",
    "value_loss",
    "entropy",
    "clip_fraction",
    "grad_norm",
];

struct AppoLearner {
    config: Config,
    model: Model,
    trained: Trained,
    prepared: Option<Prepared>,
    /// V-trace with the weights at the start of an update, into `prepared`; its output is the
    /// mean importance weight.
    targets: Graph<Tensor>,
    /// By size: the numbers of the environments of a minibatch, and the step that learns from
    /// them.
    minibatches: BTreeMap<usize, (Tensor, Graph<()>)>,
    ratio_clip: Tensor,
    /// Sums of what is reported.
    sums: Tensor,
}

/// Advantages and value targets of a rollout, `[T, B]`.
///
/// They are views of the learner's [`Prepared`] memory, which stays in place for as long as a
/// recorded minibatch step reads from it. The output of another graph would not do: in its first
/// runs that is new memory each time.
struct Targets {
    advantages: Tensor,
    values: Tensor,
}

impl Learner for AppoLearner {
    fn update(&mut self, batch: Batch<'_>, progress: Progress) -> Result<Report, LearnError> {
        let Batch::Rollouts(rollouts) = batch else {
            return Err(LearnError::WrongBatch { wanted: "rollouts" });
        };
        let Trained {
            params,
            optimizer,
            rng,
        } = &mut self.trained;
        let (config, model, params) = (&self.config, &self.model, &*params);
        let gamma = config.gamma;
        let loaded = Prepared::load_trace(&mut self.prepared, model, params, rollouts, gamma)?;
        let Some(prepared) = &self.prepared else {
            return Err(LearnError::Mismatch);
        };
        if loaded.moved {
            self.targets.reset();
            self.minibatches.clear();
        }
        let learning_rate = config.learning_rate.at(progress.fraction());
        optimizer.set_learning_rate(learning_rate);
        let ratio_clip = config.ratio_clip.at(progress.fraction());
        let _ = self.ratio_clip.fill_(ratio_clip);
        let _ = self.sums.zero_();

        let whole = Trajectory::whole(prepared);
        let targets = Targets::of(prepared);
        let mean_rho = self
            .targets
            .run(|| targets.find(&whole, model, params, config));
        let mut order: Vec<i64> = (0..prepared.envs as i64).collect();
        let size = order.len().div_ceil(config.minibatches.min(order.len()));
        let device = self.sums.device();
        let mut steps = 0.0;
        for _ in 0..config.epochs {
            order.shuffle(rng);
            for indices in order.chunks(size) {
                let entry = self.minibatches.entry(indices.len());
                let (chosen, graph) = entry.or_insert_with(|| {
                    let chosen = Tensor::zeros([indices.len() as i64], (Kind::Int64, device));
                    (chosen, Graph::new(device, true))
                });
                chosen.copy_(&Tensor::from_slice(indices));
                let sums = &mut self.sums;
                let ratio_clip = &self.ratio_clip;
                graph.run(|| {
                    let part = whole.select(chosen);
                    let targets = targets.select(chosen);
                    *sums += descend(
                        &part, &targets, model, params, optimizer, config, ratio_clip,
                    );
                });
                steps += 1.0;
            }
        }
        prepared.observe(model, params);
        let means = starling_nets::array_of(&(&self.sums / steps));
        let means = means.as_slice::<f32>().iter().map(|&mean| f64::from(mean));
        let mut metrics: Vec<_> = REPORTED.into_iter().zip(means).collect();
        metrics.push(("importance_weight", mean_rho.double_value(&[])));
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

impl Targets {
    fn of(prepared: &Prepared) -> Self {
        let shape = [prepared.steps as i64, prepared.envs as i64];
        Self {
            advantages: prepared.advantages.view(shape),
            values: prepared.returns.view(shape),
        }
    }

    /// Computes V-trace with the present weights, overwrites the targets in place, and returns
    /// the mean importance weight.
    fn find(&self, whole: &Trajectory, model: &Model, params: &Params, config: &Config) -> Tensor {
        let clips = RhoClips {
            rho: config.rho_clip,
            c: config.c_clip,
            pg_rho: None,
            lambda: config.trace_lambda,
        };
        let judged = no_grad(|| whole.judge(model, params));
        let (corrected, mean_rho) = whole.correct(&judged, config.reward_clipping, clips);
        no_grad(|| {
            self.advantages.shallow_clone().copy_(&corrected.surpluses);
            self.values.shallow_clone().copy_(&corrected.targets);
        });
        mean_rho
    }

    /// Those of some environments.
    fn select(&self, chosen: &Tensor) -> Targets {
        let column = |tensor: &Tensor| tensor.index_select(1, chosen);
        Targets {
            advantages: column(&self.advantages),
            values: column(&self.values),
        }
    }
}

/// One gradient step on a minibatch; returns what is [`REPORTED`] of it.
fn descend(
    part: &Trajectory,
    targets: &Targets,
    model: &Model,
    params: &Params,
    optimizer: &mut Optimizer,
    config: &Config,
    ratio_clip: &Tensor,
) -> Tensor {
    let judged = part.judge(model, params);
    let advantages = match config.normalize_advantage && part.rows() > 1 {
        true => normalized(&targets.advantages),
        false => targets.advantages.shallow_clone(),
    };
    let terms = loss(
        &Compared {
            log_probs: &judged.log_probs,
            acting_log_probs: &part.log_probs,
            advantages: &advantages,
            values: &judged.values,
            targets: &targets.values,
            entropy: &judged.entropy,
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
        terms.clip_fraction,
        norm,
    ];
    Tensor::stack(&reported, 0).detach()
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
            &Tensor::from(0.2f32),
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
