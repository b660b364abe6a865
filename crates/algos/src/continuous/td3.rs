//! Twin delayed deep deterministic policy gradient, "TD3" (Fujimoto et al. 2018): DDPG with two
//! critics of which the lower value is used, noise on the target actions, and updates of the actor
//! and the target networks at every second update of the critics.
//!
//! Defaults are those of the authors' code, but for 10,000 random steps at the start (the authors, and
//! the preset `mujoco/td3`: 25,000).

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use starling_envs::Rng;
use starling_nets::export::{Graph, NotExported, Value};
use starling_nets::{Kind, Layout, Params, Tensor};
use starling_tree::Tree;

use super::{
    ActorLoss, Continuous, ContinuousConfig, Deterministic, Method, Named, Nets, Noise,
    SLOW_TARGETS, TransitionValues, Transitions,
};
use crate::config::ConfigError;
use crate::off_policy::TargetSettings;
use crate::{Algorithm, Spaces};

/// TD3's settings beside the shared ones. Noise is measured on the scale from −1 to 1.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Config {
    /// The target networks.
    #[serde(flatten)]
    pub target: TargetSettings,
    /// Standard deviation of the noise that is added to actions in training.
    #[schemars(range(min = 0.0))]
    pub exploration_noise: f64,
    /// Standard deviation of the noise on the next actions (target policy smoothing).
    #[schemars(range(min = 0.0))]
    pub target_noise: f64,
    /// Largest noise on the next actions.
    #[schemars(range(min = 0.0))]
    pub target_noise_clip: f64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            target: TargetSettings {
                target_every_updates: 2,
                ..SLOW_TARGETS
            },
            exploration_noise: 0.1,
            target_noise: 0.2,
            target_noise_clip: 0.5,
        }
    }
}

/// All settings with their defaults.
pub fn defaults() -> (ContinuousConfig, Config) {
    let shared = ContinuousConfig::default();
    let shared = ContinuousConfig {
        actor_every_updates: 2,
        ..shared
    };
    (shared, Config::default())
}

/// TD3 for the spaces of an environment.
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
) -> Result<Continuous<Td3>, ConfigError> {
    let (net, target) = (shared.net.clone(), config.target.clone());
    Continuous::new("td3", shared, Some(target), spaces, |actions| {
        let actor = Deterministic::new(&net, spaces, actions, config.exploration_noise)?;
        Ok(Td3 { actor, config })
    })
}

pub(super) struct Td3 {
    actor: Deterministic,
    config: Config,
}

impl Method for Td3 {
    const CRITICS: usize = 2;
    const TARGET_ACTOR: bool = true;
    const NOISE: Noise = Noise {
        following: true,
        actor: false,
    };

    fn actor(&self) -> &Arc<Layout> {
        &self.actor.layout
    }

    fn propose(&self, actor: &Params, obs: &Tree<Tensor>) -> Tensor {
        self.actor.net.forward(actor, obs)
    }

    fn choose(&self, proposed: &[f32], rng: Option<&mut Rng>, action: &mut [f32]) {
        self.actor.choose(proposed, rng, action);
    }

    fn export(
        &self,
        graph: &mut Graph,
        actor: &Params,
        obs: &Tree<Value>,
    ) -> Result<(Value, Named), NotExported> {
        let action = self.actor.net.export(graph, actor, obs)?;
        Ok((action, Vec::new()))
    }

    fn evaluate(
        &self,
        nets: &Nets<'_>,
        critics: &Params,
        seen: &Transitions<'_>,
    ) -> TransitionValues {
        TransitionValues::separate(nets, critics, seen, || {
            let next = seen.next_obs;
            let actions = self.actor.net.forward(nets.next_actor, next);
            let actions = smoothed(&actions, seen.noise, &self.config);
            let values = nets.q.forward(nets.target_critics, next, &actions);
            values.amin([0].as_slice(), false)
        })
    }

    fn actor_loss(
        &self,
        nets: &Nets<'_>,
        actor: &Params,
        obs: &Tree<Tensor>,
        _noise: &Tensor,
    ) -> ActorLoss {
        let actions = self.actor.net.forward(actor, obs);
        let values = nets.q.forward_first(1, nets.critics, obs, &actions);
        ActorLoss {
            loss: -values.mean(Kind::Float),
            log_prob: None,
        }
    }
}

/// Actions with clipped noise, within −1 and 1.
fn smoothed(actions: &Tensor, noise: &Tensor, config: &Config) -> Tensor {
    let most = config.target_noise_clip;
    let noise = (noise * config.target_noise).clamp(-most, most);
    (actions + noise).clamp(-1.0, 1.0)
}
