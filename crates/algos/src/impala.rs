//! IMPALA: actors that never wait, and a learner that corrects for their older policies with
//! V-trace (Espeholt et al. 2018).
//!
//! One pass over each rollout, in gradient steps of `batch_envs` trajectories. Losses are sums
//! over steps and trajectories, not means, and the optimiser is RMSProp in TensorFlow's form;
//! defaults are those of the multi-learner IMPALA, with the rollouts of 20 steps of its example.
//!
//! Where we differ from the paper: a truncated episode is bootstrapped from its final
//! observation. A rollout holds T steps and what followed the last one, so that the learner
//! computes T + 1 rows at once and takes the value of the last as the bootstrap; a later rollout
//! does not repeat that row.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use starling_nets::{
    Device, Graph, Kind, NetConfig, Optimizer, OptimizerConfig, OptimizerKind, Params, Schedule,
    Tensor,
};

use crate::actor_critic::{Model, Prepared};
use crate::config::{ConfigError, refuse, require, require_schedule};
use crate::ops::{RhoClips, Vtrace};
use crate::trained::Trained;
use crate::trajectory::Trajectory;
use crate::{
    Algorithm, Batch, Experience, LearnError, Learner, Policy, Progress, Report, Saved, Spaces,
};

/// IMPALA's settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Steps of each environment per rollout.
    pub rollout_steps: usize,
    /// Trajectories per gradient step; null takes all environments of a rollout at once.
    pub batch_envs: Option<usize>,
    /// Learning rate, possibly a schedule.
    pub learning_rate: Schedule,
    /// Discount per step (γ).
    pub gamma: f64,
    /// How rewards are limited: `abs_one`, `soft_asymmetric` or null.
    pub reward_clipping: Option<RewardClipping>,
    /// Largest importance weight in the temporal differences (ρ̂); null for no limit.
    pub rho_clip: Option<f64>,
    /// Largest importance weight in the traces (ĉ); null for no limit.
    pub c_clip: Option<f64>,
    /// Largest importance weight in the policy gradient; null for no limit.
    pub pg_rho_clip: Option<f64>,
    /// Weight of the value loss.
    pub value_coef: f64,
    /// Weight of the entropy bonus.
    pub entropy_coef: f64,
    /// Maximum norm of the gradient; null for no limit.
    pub clip_norm: Option<f64>,
    /// Divide rewards by the running deviation of discounted returns, which is kept with the
    /// weights.
    pub normalize_returns: bool,
    /// The optimiser.
    pub optimizer: OptimizerConfig,
    /// The network.
    pub net: NetConfig,
}

/// How rewards are limited before learning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RewardClipping {
    /// To the range from −1 to 1.
    AbsOne,
    /// 5·tanh(r/5), and 0.3 times that where it is negative.
    SoftAsymmetric,
}

impl RewardClipping {
    /// Limits every reward of a tensor.
    pub fn apply(self, rewards: &Tensor) -> Tensor {
        match self {
            RewardClipping::AbsOne => rewards.clamp(-1.0, 1.0),
            RewardClipping::SoftAsymmetric => {
                let squeezed = (rewards / 5.0).tanh() * 5.0;
                squeezed.maximum(&(&squeezed * 0.3))
            }
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            rollout_steps: 20,
            batch_envs: None,
            learning_rate: Schedule::linear(4.8e-4, 0.0, 1.0),
            gamma: 0.99,
            reward_clipping: Some(RewardClipping::AbsOne),
            rho_clip: Some(1.0),
            c_clip: Some(1.0),
            pg_rho_clip: Some(1.0),
            value_coef: 0.5,
            entropy_coef: 2.5e-4,
            clip_norm: None,
            normalize_returns: false,
            optimizer: OptimizerConfig {
                kind: OptimizerKind::RmspropTf,
                eps: 0.1,
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
        at_least_one("algo.batch_envs", self.batch_envs.unwrap_or(1))?;
        let share = (0.0..=1.0).contains(&self.gamma);
        require(share, "algo.gamma", self.gamma, "between 0 and 1")?;
        let over_zero = |key, value: Option<f64>| {
            let value = value.unwrap_or(1.0);
            require(value > 0.0, key, value, "above 0, or null")
        };
        over_zero("algo.rho_clip", self.rho_clip)?;
        over_zero("algo.c_clip", self.c_clip)?;
        over_zero("algo.pg_rho_clip", self.pg_rho_clip)?;
        over_zero("algo.clip_norm", self.clip_norm)?;
        let coefficient =
            |key, value: f64| require(value.is_finite() && value >= 0.0, key, value, "0 or more");
        coefficient("algo.value_coef", self.value_coef)?;
        coefficient("algo.entropy_coef", self.entropy_coef)?;
        require_schedule("algo.learning_rate", &self.learning_rate, 10.0)?;
        refuse(self.optimizer.problem())?;
        refuse(self.net.problem())
    }
}

/// IMPALA for one environment's spaces.
#[derive(Debug)]
pub struct Impala {
    config: Config,
    model: Model,
}

impl Impala {
    /// Checks the settings against each other and the spaces.
    pub fn new(config: Config, spaces: &Spaces) -> Result<Self, ConfigError> {
        config.check()?;
        let returns = config.normalize_returns.then_some(config.gamma);
        let model = Model::new(&config.net, spaces, returns).map_err(|error| {
            ConfigError::Misfit(format!("impala cannot be used here: {}", error.0))
        })?;
        Ok(Self { config, model })
    }
}

impl Algorithm for Impala {
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
        Box::new(ImpalaLearner {
            config: self.config.clone(),
            model: self.model.clone(),
            trained: Trained::new(&self.model.layout, optimizer, seed, device),
            prepared: None,
            groups: BTreeMap::new(),
            sums: Tensor::zeros([REPORTED.len() as i64], (Kind::Float, device)),
        })
    }
}

/// The terms of IMPALA's loss, each summed over all steps.
#[derive(Debug)]
pub struct Terms {
    /// What is minimised.
    pub loss: Tensor,
    /// −log π · advantage.
    pub policy_loss: Tensor,
    /// Half the squared error of the value.
    pub value_loss: Tensor,
    /// Entropy of the policy.
    pub entropy: Tensor,
}

/// IMPALA's loss over some trajectories; every input has one number per step, in one shape.
pub fn loss(
    log_probs: &Tensor,
    values: &Tensor,
    entropy: &Tensor,
    vtrace: &Vtrace,
    config: &Config,
) -> Terms {
    let policy_loss = -(log_probs * &vtrace.advantages).sum(Kind::Float);
    let value_loss = (values - &vtrace.targets).square().sum(Kind::Float) * 0.5;
    let entropy = entropy.sum(Kind::Float);
    Terms {
        loss: &policy_loss + &value_loss * config.value_coef - &entropy * config.entropy_coef,
        policy_loss,
        value_loss,
        entropy,
    }
}

/// What each gradient step reports: the loss and its terms per step of an environment.
const REPORTED: [&str; 7] = [
    "loss",
    "policy_loss",
    "value_loss",
    "entropy",
    "importance_weight",
    "value_target",
    "grad_norm",
];

struct ImpalaLearner {
    config: Config,
    model: Model,
    trained: Trained,
    prepared: Option<Prepared>,
    /// By size: the numbers of the environments of a gradient step, and the step.
    groups: BTreeMap<usize, (Tensor, Graph<()>)>,
    /// Sums of what is reported.
    sums: Tensor,
}

impl Learner for ImpalaLearner {
    fn update(&mut self, batch: Batch<'_>, progress: Progress) -> Result<Report, LearnError> {
        let Batch::Rollouts(rollouts) = batch else {
            return Err(LearnError::WrongBatch { wanted: "rollouts" });
        };
        let (config, model) = (&self.config, &self.model);
        let (params, optimizer) = (&self.trained.params, &mut self.trained.optimizer);
        let gamma = config.gamma;
        let loaded = Prepared::load_trace(&mut self.prepared, model, params, rollouts, gamma)?;
        let Some(prepared) = &self.prepared else {
            return Err(LearnError::Mismatch);
        };
        if loaded.moved {
            self.groups.clear();
        }
        let learning_rate = config.learning_rate.at(progress.fraction());
        optimizer.set_learning_rate(learning_rate);
        let _ = self.sums.zero_();

        let device = self.sums.device();
        let whole = Trajectory::whole(prepared);
        let envs: Vec<i64> = (0..prepared.envs as i64).collect();
        let size = config.batch_envs.unwrap_or(envs.len()).min(envs.len());
        let mut steps = 0.0;
        for indices in envs.chunks(size) {
            let entry = self.groups.entry(indices.len());
            let (chosen, graph) = entry.or_insert_with(|| {
                let chosen = Tensor::zeros([indices.len() as i64], (Kind::Int64, device));
                (chosen, Graph::new(device, true))
            });
            chosen.copy_(&Tensor::from_slice(indices));
            let sums = &mut self.sums;
            graph.run(|| {
                *sums += if indices.len() == envs.len() {
                    descend(&whole, model, params, optimizer, config)
                } else {
                    descend(&whole.select(chosen), model, params, optimizer, config)
                };
            });
            steps += 1.0;
        }
        prepared.observe(model, params);
        let means = starling_nets::array_of(&(&self.sums / steps));
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

/// One gradient step; returns what is [`REPORTED`] of it.
fn descend(
    part: &Trajectory,
    model: &Model,
    params: &Params,
    optimizer: &mut Optimizer,
    config: &Config,
) -> Tensor {
    let judged = part.judge(model, params);
    let clips = RhoClips {
        rho: config.rho_clip,
        c: config.c_clip,
        pg_rho: config.pg_rho_clip,
        lambda: 1.0,
    };
    let (corrected, mean_rho) = part.correct(&judged, config.reward_clipping, clips);
    let (log_probs, entropy) = (&judged.log_probs, &judged.entropy);
    let terms = loss(log_probs, &judged.values, entropy, &corrected, config);
    let norm = optimizer.descend(params, &terms.loss, config.clip_norm);
    let rows = part.rows() as f64;
    let reported = [
        terms.loss / rows,
        terms.policy_loss / rows,
        terms.value_loss / rows,
        terms.entropy / rows,
        mean_rho,
        corrected.targets.mean(Kind::Float),
        norm,
    ];
    Tensor::stack(&reported, 0).detach()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(values: &[f32]) -> Tensor {
        Tensor::from_slice(values)
    }

    /// −(ln .5 · 2 + ln .25 · (−1)), half of 1² + 2², and the entropies .4 + .6: sums.
    #[test]
    fn loss_by_hand() {
        let vtrace = Vtrace {
            targets: tensor(&[2.0, 2.0]),
            surpluses: tensor(&[0.0, 0.0]),
            advantages: tensor(&[2.0, -1.0]),
        };
        let terms = loss(
            &tensor(&[0.5f32.ln(), 0.25f32.ln()]),
            &tensor(&[1.0, 0.0]),
            &tensor(&[0.4, 0.6]),
            &vtrace,
            &Config::default(),
        );
        let policy = -(2.0 * 0.5f64.ln() - 0.25f64.ln());
        let close = |tensor: &Tensor, expected: f64| {
            let value = tensor.double_value(&[]);
            assert!((value - expected).abs() < 1e-6, "{value} is not {expected}");
        };
        close(&terms.policy_loss, policy);
        close(&terms.value_loss, 2.5);
        close(&terms.entropy, 1.0);
        close(&terms.loss, policy + 0.5 * 2.5 - 2.5e-4);
    }

    /// Numbers computed by an independent script.
    #[test]
    fn reward_clipping_by_numbers() {
        let rewards = tensor(&[-10.0, -1.0, 1.0, 10.0]);
        let soft = RewardClipping::SoftAsymmetric.apply(&rewards);
        let soft = Vec::<f32>::try_from(soft).unwrap();
        for (ours, expected) in soft.iter().zip([-1.446041, -0.296063, 0.986877, 4.820138]) {
            assert!((ours - expected).abs() < 1e-5, "{soft:?}");
        }
        let hard = RewardClipping::AbsOne.apply(&rewards);
        assert_eq!(Vec::<f32>::try_from(hard).unwrap(), [-1.0, -1.0, 1.0, 1.0]);
    }
}
