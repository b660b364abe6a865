//! Deep deterministic policy gradient, "DDPG" (Lillicrap et al. 2016): a deterministic actor that
//! maximises the critic's value of its actions; both have target networks.
//!
//! Where we differ from the paper: exploration noise is Gaussian and not correlated in time,
//! actions are random for the first 10,000 steps (the preset `mujoco/ddpg`: 25,000), and networks, learning rates, τ and batch size
//! are those of TD3's authors.

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

/// DDPG's settings beside the shared ones.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Config {
    /// The target networks.
    #[serde(flatten)]
    pub target: TargetSettings,
    /// Standard deviation of the noise that is added to actions in training, on the scale from −1
    /// to 1.
    #[schemars(range(min = 0.0))]
    pub exploration_noise: f64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            target: SLOW_TARGETS,
            exploration_noise: 0.1,
        }
    }
}

/// All settings with their defaults.
pub fn defaults() -> (ContinuousConfig, Config) {
    (ContinuousConfig::default(), Config::default())
}

/// DDPG for the spaces of an environment.
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
) -> Result<Continuous<Ddpg>, ConfigError> {
    let net = shared.net.clone();
    let target = Some(config.target);
    Continuous::new("ddpg", shared, target, spaces, |actions| {
        let actor = Deterministic::new(&net, spaces, actions, config.exploration_noise)?;
        Ok(Ddpg { actor })
    })
}

pub(super) struct Ddpg {
    actor: Deterministic,
}

impl Method for Ddpg {
    const CRITICS: usize = 1;
    const TARGET_ACTOR: bool = true;
    const NOISE: Noise = Noise {
        following: false,
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
            let values = nets.q.forward(nets.target_critics, next, &actions);
            values.get(0)
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
        let values = nets.q.forward(nets.critics, obs, &actions);
        ActorLoss {
            loss: -values.mean(Kind::Float),
            log_prob: None,
        }
    }
}
