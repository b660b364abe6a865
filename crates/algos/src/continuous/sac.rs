//! Soft actor-critic, "SAC" (Haarnoja et al. 2018, 2019): a stochastic actor that maximises return
//! and entropy, two critics of which the lower value is used, and an entropy weight (α) that is
//! fixed, or learned so that the entropy stays near a target.
//!
//! Defaults are those of Stable-Baselines3, with 10,000 random steps before learning starts as in its
//! RL Zoo. Where we differ from others: the entropy is that of actions between −1 and 1, as in Stable-Baselines3 (CleanRL's is of actions on the environment's
//! scale); actor and α take one step per step of the critics (CleanRL: two steps at every second
//! step).

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use starling_envs::Rng;
use starling_nets::export::{Graph, NotExported, Value};
use starling_nets::{
    ControlNetConfig, Kind, Layout, LogStdLimit, Params, Schedule, ShapeMismatch, SquashedActor,
    SquashedGaussian, Statistics, Tensor,
};
use starling_tree::Tree;

use super::temperature::TemperatureConfig;
use super::{
    ActorLoss, Continuous, ContinuousConfig, Method, Named, Nets, Noise, SLOW_TARGETS,
    TransitionValues, Transitions, choose_squashed,
};
use crate::config::{ConfigError, require};
use crate::off_policy::TargetSettings;
use crate::{Algorithm, Spaces};

/// SAC's settings beside the shared ones.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Config {
    /// The target networks.
    #[serde(flatten)]
    pub target: TargetSettings,
    /// Actor and entropy.
    #[serde(flatten)]
    pub entropy: EntropySettings,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            target: SLOW_TARGETS,
            entropy: EntropySettings::default(),
        }
    }
}

/// Settings of a stochastic actor and of the weight of its entropy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EntropySettings {
    /// Fixed weight of the entropy (α); null learns it.
    #[schemars(range(min = 0.0))]
    pub alpha: Option<f64>,
    /// Weight of the entropy at the start, if it is learned.
    #[schemars(extend("exclusiveMinimum" = 0.0))]
    pub initial_alpha: f64,
    /// Target entropy, if α is learned; null for minus the number of action dimensions.
    #[schemars(extend("unbounded" = true))]
    pub target_entropy: Option<f64>,
    /// Learning rate of the logarithm of α, possibly a schedule.
    #[schemars(extend("minimum" = 0.0, "maximum" = 10.0))]
    pub alpha_learning_rate: Schedule,
    /// How the actor's log-std is kept within its limits.
    pub log_std_limit: LogStdLimit,
    /// Smallest log-std; CleanRL has -5.
    #[schemars(range(min = -100.0, max = 10.0))]
    pub log_std_min: f64,
    /// Largest log-std.
    #[schemars(range(min = -100.0, max = 10.0))]
    pub log_std_max: f64,
}

impl Default for EntropySettings {
    fn default() -> Self {
        Self {
            alpha: None,
            initial_alpha: 1.0,
            target_entropy: None,
            alpha_learning_rate: Schedule::Constant(3e-4),
            log_std_limit: LogStdLimit::Clamp,
            log_std_min: -20.0,
            log_std_max: 2.0,
        }
    }
}

/// All settings with their defaults.
pub fn defaults() -> (ContinuousConfig, Config) {
    (ContinuousConfig::default(), Config::default())
}

/// SAC for the spaces of an environment.
pub fn build(
    shared: ContinuousConfig,
    config: Config,
    spaces: &Spaces,
) -> Result<Box<dyn Algorithm>, ConfigError> {
    Ok(Box::new(make(shared, config, spaces)?))
}

pub(super) fn make(
    shared: ContinuousConfig,
    config: Config,
    spaces: &Spaces,
) -> Result<Continuous<Sac>, ConfigError> {
    let net = shared.net.clone();
    let Config { target, entropy } = config;
    entropy.check()?;
    Continuous::new("sac", shared, Some(target), spaces, |actions| {
        sac(&net, &entropy, spaces, actions)
    })
}

impl EntropySettings {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let (low, high) = (self.log_std_min, self.log_std_max);
        let allowed = "at least algo.log_std_min";
        require(low <= high, "algo.log_std_max", high, allowed)
    }
}

/// SAC's actor and temperature for actions of some numbers.
pub(super) fn sac(
    net: &ControlNetConfig,
    config: &EntropySettings,
    spaces: &Spaces,
    actions: usize,
) -> Result<Sac, ShapeMismatch> {
    let mut layout = Layout::default();
    let (obs, limit) = (&spaces.observation, config.log_std_limit);
    let limits = (config.log_std_min, config.log_std_max);
    let actor = SquashedActor::new(&mut layout, net, obs, actions, limit, limits)?;
    Ok(Sac {
        actor,
        layout: Arc::new(layout),
        temperature: match config.alpha {
            Some(alpha) => TemperatureConfig::Fixed(alpha),
            None => TemperatureConfig::Learned {
                initial: config.initial_alpha,
                target_entropy: config.target_entropy.unwrap_or(-(actions as f64)),
                learning_rate: config.alpha_learning_rate,
            },
        },
    })
}

pub(super) struct Sac {
    actor: SquashedActor,
    layout: Arc<Layout>,
    temperature: TemperatureConfig,
}

impl Sac {
    /// The distributions of actions at observations.
    pub(super) fn policy(
        &self,
        actor: &Params,
        obs: &Tree<Tensor>,
        by: Statistics,
    ) -> SquashedGaussian {
        self.actor.forward_by(actor, obs, by)
    }

    /// The actor's loss for given distributions.
    pub(super) fn loss_of(
        policy: &SquashedGaussian,
        nets: &Nets<'_>,
        obs: &Tree<Tensor>,
        noise: &Tensor,
    ) -> ActorLoss {
        let (actions, log_probs) = policy.sample(noise);
        let values = nets.q.forward(nets.critics, obs, &actions);
        ActorLoss {
            loss: -soft_value(&values, &log_probs, nets.alpha).mean(Kind::Float),
            log_prob: Some(log_probs.mean(Kind::Float)),
        }
    }
}

impl Method for Sac {
    const CRITICS: usize = 2;
    const TARGET_ACTOR: bool = false;
    const NOISE: Noise = Noise {
        following: true,
        actor: true,
    };

    fn actor(&self) -> &Arc<Layout> {
        &self.layout
    }

    fn temperature(&self) -> Option<TemperatureConfig> {
        Some(self.temperature.clone())
    }

    fn propose(&self, actor: &Params, obs: &Tree<Tensor>) -> Tensor {
        let policy = self.actor.forward(actor, obs);
        Tensor::cat(&[policy.mean, policy.log_std], -1)
    }

    fn choose(&self, proposed: &[f32], rng: Option<&mut Rng>, action: &mut [f32]) {
        choose_squashed(proposed, rng, action);
    }

    fn export(
        &self,
        graph: &mut Graph,
        actor: &Params,
        obs: &Tree<Value>,
    ) -> Result<(Value, Named), NotExported> {
        let [mean, log_std] = self.actor.export(graph, actor, obs)?;
        let action = graph.tanh(&mean);
        Ok((action, vec![("mean", mean), ("log_std", log_std)]))
    }

    fn evaluate(
        &self,
        nets: &Nets<'_>,
        critics: &Params,
        seen: &Transitions<'_>,
    ) -> TransitionValues {
        TransitionValues::separate(nets, critics, seen, || {
            let next = seen.next_obs;
            let policy = self.actor.forward(nets.next_actor, next);
            let (actions, log_probs) = policy.sample(seen.noise);
            let values = nets.q.forward(nets.target_critics, next, &actions);
            soft_value(&values, &log_probs, nets.alpha)
        })
    }

    fn actor_loss(
        &self,
        nets: &Nets<'_>,
        actor: &Params,
        obs: &Tree<Tensor>,
        noise: &Tensor,
    ) -> ActorLoss {
        let policy = self.policy(actor, obs, Statistics::Running);
        Self::loss_of(&policy, nets, obs, noise)
    }
}

/// The lowest of values `[C, N]`, and the entropy of actions with log-probabilities `[N]`.
pub(super) fn soft_value(values: &Tensor, log_probs: &Tensor, alpha: &Tensor) -> Tensor {
    values.amin([0].as_slice(), false) - alpha * log_probs
}
