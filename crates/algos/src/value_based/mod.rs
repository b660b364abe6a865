//! The shared part of algorithms that learn action values from transitions: settings, acting, the
//! update.
//!
//! Each algorithm is a [`Method`]: a network with some outputs per action, how these become values,
//! and the error of a prediction. Everything else is here: ε-greedy and noisy exploration, Ape-X's
//! ladder and priorities, double targets, Munchausen targets, legal actions, target networks.

mod epsilon;
mod learner;
mod policy;

pub use epsilon::{EpsilonGreedy, Ladder, Spread};
#[cfg(test)]
pub(crate) use learner::ValueLearner;
pub(crate) use policy::{Greedy, ahead, greedy_action, middles, random_action};

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use starling_nets::export::{Graph, NotExported, Value};
use starling_nets::{
    Device, Layout, OptimizerConfig, Params, QNetConfig, QNetwork, Schedule, ShapeMismatch,
    Snapshot, Tensor, no_grad,
};
use starling_tree::Tree;

use crate::config::{ConfigError, refuse, require};
use crate::export::{self, Exported, Inputs};
use crate::off_policy::{ReplaySettings, TargetSettings};
use crate::ops::Munchausen;
use crate::{Algorithm, Experience, Learner, Policy, Spaces};

/// Settings that all algorithms of action values over transitions have, in one table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ValueConfig {
    /// The replay.
    #[serde(flatten)]
    pub replay: ReplaySettings,
    /// Learning rate, possibly a schedule.
    #[schemars(extend("minimum" = 0.0, "maximum" = 10.0))]
    pub learning_rate: Schedule,
    /// The optimiser; rlpyt's Adam has eps = 0.01 / batch_size.
    pub optimizer: OptimizerConfig,
    /// Maximum norm of the gradient; null for no limit.
    #[schemars(extend("exclusiveMinimum" = 0.0))]
    pub clip_norm: Option<f64>,
    /// Choose the next action with the online network, value it with the target network.
    pub double: bool,
    /// The target network.
    #[serde(flatten)]
    pub target: TargetSettings,
    /// Munchausen targets; null for the usual ones.
    pub munchausen: Option<Munchausen>,
    /// New steps get the error that the actor computed (Ape-X); false gives them
    /// `priority.initial_priority`.
    pub actor_priorities: bool,
    /// Random actions.
    #[serde(flatten)]
    pub exploration: EpsilonGreedy,
    /// Steps between two draws of the noise that actors explore with, counted from the start of
    /// each rollout; only with `net.noisy_sigma`.
    #[schemars(range(min = 1))]
    pub noise_every_steps: usize,
    /// The network.
    pub net: QNetConfig,
}

impl Default for ValueConfig {
    fn default() -> Self {
        Self {
            replay: ReplaySettings::default(),
            learning_rate: Schedule::Constant(2.5e-4),
            optimizer: OptimizerConfig {
                eps: 0.01 / 32.0,
                ..OptimizerConfig::default()
            },
            clip_norm: Some(10.0),
            double: false,
            target: TargetSettings::default(),
            munchausen: None,
            actor_priorities: false,
            exploration: EpsilonGreedy::default(),
            noise_every_steps: 1,
            net: QNetConfig::default(),
        }
    }
}

impl ValueConfig {
    /// Refuses settings that do not go together.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        self.exploration.check()?;
        let n = self.replay.n_steps;
        let good = n == 1 || self.munchausen.is_none();
        require(good, "algo.n_steps", n, "1 with Munchausen targets")?;
        if self.actor_priorities && self.replay.priority.is_none() {
            let message = "algo.actor_priorities needs algo.priority: a uniform replay has no \
                           priorities";
            return Err(ConfigError::Misfit(message.into()));
        }
        refuse(self.net.problem())
    }
}

/// What one algorithm of action values does differently from another.
///
/// W is the number of numbers per action: 1, atoms, or quantiles.
pub(crate) trait Method: Send + Sync + 'static {
    /// Its network, and the parameters that it needs.
    fn net(&self) -> (&QNetwork, &Arc<Layout>);

    /// Quantile fractions that are drawn for it.
    fn fractions(&self) -> Fractions {
        Fractions::default()
    }

    /// The network's numbers `[N, A, W]` for observations `[N, ..]`, with noise `[N or 1, ..]`
    /// and fractions `[N or 1, W]` if it has them, and legal actions `[N, A]` if its head wants
    /// them.
    fn outputs(
        &self,
        params: &Params,
        obs: &Tree<Tensor>,
        noise: Option<&Tensor>,
        fractions: Option<&Tensor>,
        legal: Option<&Tensor>,
    ) -> Tensor;

    /// Expected returns `[N, A]` in a graph, without noise and with evenly spaced fractions.
    fn export(
        &self,
        graph: &mut Graph,
        params: &Params,
        obs: &Tree<Value>,
        legal: Option<&Value>,
    ) -> Result<Value, NotExported>;

    /// Expected returns `[.., A]` from numbers `[.., A, W]`.
    fn values(&self, outputs: &Tensor) -> Tensor;

    /// How far predictions `[N, W]` of actions taken (at fractions `[N or 1, W]`) were from
    /// `returns + discounts · following`, with `following` `[N, W']`.
    fn errors(
        &self,
        taken: &Tensor,
        fractions: Option<&Tensor>,
        following: &Tensor,
        returns: &Tensor,
        discounts: &Tensor,
    ) -> Errors;
}

/// Quantile fractions per row; all 0 for methods without.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fractions {
    /// Of what is predicted (N).
    pub(crate) predicted: usize,
    /// Of what follows (N').
    pub(crate) following: usize,
    /// For choosing an action (K).
    pub(crate) choosing: usize,
}

/// How far predictions were off, `[N]` each.
pub(crate) struct Errors {
    /// What is minimised.
    pub(crate) losses: Tensor,
    /// How surprising each transition was.
    pub(crate) priorities: Tensor,
}

/// A method with the shared settings.
pub(crate) struct ValueBased<M> {
    config: ValueConfig,
    frame_stack: Option<usize>,
    method: Arc<M>,
}

impl<M: Method> ValueBased<M> {
    /// Checks the settings. The method has been made for the same ones and the same spaces.
    pub(crate) fn new(
        config: ValueConfig,
        method: M,
        spaces: &Spaces,
    ) -> Result<Self, ConfigError> {
        config.check()?;
        Ok(Self {
            config,
            frame_stack: spaces.frame_stack,
            method: Arc::new(method),
        })
    }
}

/// A network with `outputs` numbers per action, made for the spaces of an environment.
pub(crate) fn network(
    name: &str,
    config: &ValueConfig,
    spaces: &Spaces,
    outputs: usize,
) -> Result<(QNetwork, Layout), ConfigError> {
    refuse(config.net.problem())?;
    let mut layout = Layout::default();
    let (obs, action) = (&spaces.observation, &spaces.action);
    let net = QNetwork::new(&mut layout, &config.net, obs, action, outputs);
    match net {
        Ok(net) => Ok((net, layout)),
        Err(ShapeMismatch(reason)) => Err(ConfigError::Misfit(format!(
            "{name} cannot be used here: {reason}"
        ))),
    }
}

impl<M: Method> Algorithm for ValueBased<M> {
    fn experience(&self) -> Experience {
        Experience::Transitions(Box::new(self.config.replay.needs(self.frame_stack)))
    }

    fn discount(&self) -> f64 {
        self.config.replay.gamma
    }

    fn policy(&self, device: Device) -> Box<dyn Policy> {
        let method = Arc::clone(&self.method);
        Box::new(policy::Greedy::new(
            self.config.clone(),
            self.frame_stack,
            method,
            device,
        ))
    }

    fn export(&self, spaces: &Spaces, weights: &Snapshot) -> Result<Exported, NotExported> {
        exported(&self.method, spaces, weights)
    }

    fn learner(&self, seed: u64, device: Device) -> Box<dyn Learner> {
        let method = Arc::clone(&self.method);
        let config = self.config.clone();
        Box::new(learner::ValueLearner::new(config, method, seed, device))
    }
}

/// The greedy policy of a method for other programs.
pub(crate) fn exported<M: Method>(
    method: &Arc<M>,
    spaces: &Spaces,
    weights: &Snapshot,
) -> Result<Exported, NotExported> {
    let params = Params::zeros(method.net().1, Device::Cpu);
    params.load(weights).map_err(|error| NotExported(error.0))?;
    let mut graph = Graph::default();
    let (obs, legal) = export::inputs(&mut graph, spaces);
    let values = method.export(&mut graph, &params, &obs, legal.as_ref())?;
    let masked = graph.masked(&values, legal.as_ref());
    let action = graph.argmax(&masked);
    graph.output("action", &action);
    graph.output("q_values", &values);
    let (method, spaces) = (Arc::clone(method), spaces.clone());
    let reference = move |inputs: &Inputs<'_>| {
        let fractions = method.fractions().choosing;
        let fractions = (fractions > 0).then(|| middles(fractions, Device::Cpu));
        let obs = inputs.obs(&spaces.observation);
        let values = no_grad(|| {
            let outputs = method.outputs(&params, &obs, None, fractions.as_ref(), inputs.legal());
            method.values(&outputs)
        });
        let action = export::greedy(&values, inputs.legal());
        vec![
            ("action".to_owned(), action),
            ("q_values".to_owned(), values),
        ]
    };
    Ok(Exported::policy(graph, reference))
}

/// Numbers `[N, W]` of one action `[N, 1]` per row, from `[N, A, W]`.
pub(crate) fn pick(outputs: &Tensor, actions: &Tensor) -> Tensor {
    let width = outputs.size()[2];
    let index = actions.unsqueeze(-1).expand([-1, -1, width], false);
    outputs.gather(1, &index, false).squeeze_dim(1)
}

/// Values of actions that may not be taken are very low.
pub(crate) fn mask(values: Tensor, legal: Option<&Tensor>) -> Tensor {
    const ILLEGAL: f64 = -1e8;
    match legal {
        Some(legal) => values.masked_fill(&legal.eq(0), ILLEGAL),
        None => values,
    }
}
