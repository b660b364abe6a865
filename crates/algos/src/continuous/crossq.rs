//! CrossQ (Bhatt et al. 2024): SAC without target networks. The critics judge the batch and what
//! follows it in one pass, normalised by the statistics of both together (batch renormalisation), which
//! keeps them stable without slow copies.
//!
//! Defaults are the paper's: wide critics, an actor that learns at every third update, Adam with
//! β₁ = 0.5 (for α the usual 0.9). As there, next actions and those of the environment are chosen by the
//! actor's running statistics, the actor learns with those of its batch, and is judged by the critics'
//! running ones. Initial weights are uniform in ±1/√fan-in, as in all our continuous algorithms (there:
//! LeCun normal, with biases of zero).

use std::sync::Arc;

use starling_envs::Rng;
use starling_nets::export::{Graph, NotExported, Value};
use starling_nets::{
    ControlLayers, ControlNetConfig, Layout, OptimizerConfig, Params, Schedule, Statistics, Tensor,
};
use starling_tree::Tree;

use super::sac::{EntropySettings, Sac, sac};
use super::temperature::TemperatureConfig;
use super::{
    ActorLoss, Continuous, ContinuousConfig, Method, Named, Nets, Noise, TransitionValues,
    Transitions,
};
use crate::config::ConfigError;
use crate::off_policy::ReplaySettings;
use crate::{Algorithm, Spaces};

/// All settings with their defaults.
pub fn defaults() -> (ContinuousConfig, EntropySettings) {
    let shared = ContinuousConfig::default();
    let shared = ContinuousConfig {
        replay: ReplaySettings {
            learning_starts_steps: 5000,
            ..shared.replay
        },
        learning_rate: Schedule::Constant(1e-3),
        actor_learning_rate: Schedule::Constant(1e-3),
        optimizer: OptimizerConfig {
            beta1: 0.5,
            ..shared.optimizer
        },
        actor_every_updates: 3,
        net: ControlNetConfig {
            critic_hidden: Some(vec![2048, 2048]),
            layers: ControlLayers::BatchRenorm,
            ..shared.net
        },
        ..shared
    };
    let config = EntropySettings {
        alpha_learning_rate: Schedule::Constant(1e-3),
        ..EntropySettings::default()
    };
    (shared, config)
}

/// CrossQ for the spaces of an environment.
pub fn build(
    shared: ContinuousConfig,
    config: EntropySettings,
    spaces: &Spaces,
) -> Result<Box<dyn Algorithm>, ConfigError> {
    Ok(Box::new(make(shared, config, spaces)?))
}

pub(super) fn make(
    shared: ContinuousConfig,
    config: EntropySettings,
    spaces: &Spaces,
) -> Result<Continuous<CrossQ>, ConfigError> {
    let net = shared.net.clone();
    config.check()?;
    Continuous::new("crossq", shared, None, spaces, |actions| {
        Ok(CrossQ(sac(&net, &config, spaces, actions)?))
    })
}

pub(super) struct CrossQ(Sac);

impl Method for CrossQ {
    const CRITICS: usize = 2;
    const TARGET_ACTOR: bool = false;
    const BATCH_STATISTICS: bool = true;
    const NOISE: Noise = Sac::NOISE;

    fn actor(&self) -> &Arc<Layout> {
        self.0.actor()
    }

    fn temperature(&self) -> Option<TemperatureConfig> {
        self.0.temperature()
    }

    fn propose(&self, actor: &Params, obs: &Tree<Tensor>) -> Tensor {
        self.0.propose(actor, obs)
    }

    fn choose(&self, proposed: &[f32], rng: Option<&mut Rng>, action: &mut [f32]) {
        self.0.choose(proposed, rng, action);
    }

    fn export(
        &self,
        graph: &mut Graph,
        actor: &Params,
        obs: &Tree<Value>,
    ) -> Result<(Value, Named), NotExported> {
        self.0.export(graph, actor, obs)
    }

    /// Transitions and next observations in one pass. The values of the latter have no gradient, but
    /// their statistics are part of the normalisation, which has.
    fn evaluate(
        &self,
        nets: &Nets<'_>,
        critics: &Params,
        seen: &Transitions<'_>,
    ) -> TransitionValues {
        let (next_actions, log_probs) = starling_nets::no_grad(|| {
            let policy = self
                .0
                .policy(nets.next_actor, seen.next_obs, Statistics::Running);
            policy.sample(seen.noise)
        });
        let obs = both(seen.obs, seen.next_obs);
        let actions = Tensor::cat(&[seen.actions, &next_actions], 0);
        let values = nets.q.forward_batch(critics, &obs, &actions);
        let rows = seen.actions.size()[0];
        let next_values = values.narrow(1, rows, rows).detach();
        TransitionValues {
            values: values.narrow(1, 0, rows),
            following: super::sac::soft_value(&next_values, &log_probs, nets.alpha),
        }
    }

    fn actor_loss(
        &self,
        nets: &Nets<'_>,
        actor: &Params,
        obs: &Tree<Tensor>,
        noise: &Tensor,
    ) -> ActorLoss {
        let policy = self.0.policy(actor, obs, Statistics::Batch);
        Sac::loss_of(&policy, nets, obs, noise)
    }
}

/// Two observations one below the other.
fn both(first: &Tree<Tensor>, second: &Tree<Tensor>) -> Tree<Tensor> {
    let mut others = second.leaves().into_iter().map(|(_, leaf)| leaf);
    first.map(|leaf| match others.next() {
        Some(other) => Tensor::cat(&[leaf, other], 0),
        None => leaf.shallow_clone(),
    })
}
