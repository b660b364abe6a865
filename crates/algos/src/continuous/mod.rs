//! The shared part of off-policy algorithms for continuous actions: settings, acting, the update.
//!
//! Each algorithm is a `Method`: an actor, its exploration, its targets, and the actor's loss.
//! Everything else is here: critics that are computed together, target networks, the replay, random
//! actions at the start, and the gradient steps. An update is a step of the critics, possibly one
//! of the actor (and of SAC's temperature), and one of the target networks.
//!
//! Networks use actions between −1 and 1. The environment and the replay use actions mapped to the
//! environment's bounds: what is stored is what was executed.

pub mod crossq;
pub mod ddpg;
pub mod sac;
pub mod td3;

mod learner;
mod policy;
mod temperature;
#[cfg(test)]
mod tests;
mod update;

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use starling_envs::{Rng, Space};
use starling_nets::export::{Graph, NotExported, Value};
use starling_nets::{
    ActionBounds, ControlLayers, ControlNetConfig, Device, Layout, OptimizerConfig, Params,
    QofAction, Schedule, ShapeMismatch, Snapshot, TanhActor, Tensor, array_of, fill_normal,
    no_grad,
};
use starling_tree::Tree;

use crate::config::{ConfigError, require};
use crate::export::{self, Exported, Inputs};
use crate::off_policy::{ReplaySettings, TargetSettings};
use crate::{Algorithm, Experience, Learner, Policy, Spaces};
use temperature::TemperatureConfig;

/// Settings that all off-policy algorithms for continuous actions have, in one table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ContinuousConfig {
    /// The replay.
    #[serde(flatten)]
    pub replay: ReplaySettings,
    /// Updates per step of an environment, whatever `batch_size` is; null: as `replay_ratio` says.
    #[schemars(range(max = 1e3), extend("exclusiveMinimum" = 0.0, "unit" = "updates"))]
    pub updates_per_step: Option<f64>,
    /// Steps at the start of the run in which actions are random, uniform within their bounds; null
    /// for `learning_starts_steps`.
    pub random_steps: Option<u64>,
    /// Learning rate of the critics, possibly a schedule.
    #[schemars(extend("minimum" = 0.0, "maximum" = 10.0))]
    pub learning_rate: Schedule,
    /// Learning rate of the actor, possibly a schedule.
    #[schemars(extend("minimum" = 0.0, "maximum" = 10.0))]
    pub actor_learning_rate: Schedule,
    /// The optimiser of each network. That of SAC's α is the same with β₁ = 0.9.
    pub optimizer: OptimizerConfig,
    /// Largest norm of a gradient, of each network by itself; null for no limit.
    #[schemars(extend("exclusiveMinimum" = 0.0))]
    pub clip_norm: Option<f64>,
    /// Critic updates per actor update (TD3's policy delay).
    #[schemars(range(min = 1))]
    pub actor_every_updates: u64,
    /// The networks.
    pub net: ControlNetConfig,
}

impl Default for ContinuousConfig {
    fn default() -> Self {
        Self {
            replay: ReplaySettings {
                rollout_steps: 1,
                batch_size: 256,
                learning_starts_steps: 10_000,
                replay_ratio: None,
                ..ReplaySettings::default()
            },
            updates_per_step: Some(1.0),
            random_steps: None,
            learning_rate: Schedule::Constant(3e-4),
            actor_learning_rate: Schedule::Constant(3e-4),
            optimizer: OptimizerConfig::default(),
            clip_norm: None,
            actor_every_updates: 1,
            net: ControlNetConfig::default(),
        }
    }
}

impl ContinuousConfig {
    /// Samples per step: those of `updates_per_step`, or `replay_ratio`. Refuses two that contradict
    /// each other.
    fn samples_per_step(&self) -> Result<Option<f64>, ConfigError> {
        let (updates, ratio) = (self.updates_per_step, self.replay.replay_ratio);
        let samples = updates.map(|updates| updates * self.replay.batch_size as f64);
        match (samples, ratio) {
            (Some(samples), Some(ratio)) if samples != ratio => {
                let allowed = format!(
                    "null, or {samples} (algo.updates_per_step · algo.batch_size); set \
                     algo.updates_per_step instead"
                );
                Err(ConfigError::Value {
                    key: "algo.replay_ratio".into(),
                    value: ratio.to_string(),
                    allowed,
                })
            }
            _ => Ok(samples.or(ratio)),
        }
    }

    fn random_steps(&self) -> u64 {
        let starts = self.replay.learning_starts_steps;
        self.random_steps.unwrap_or(starts)
    }
}

/// Target networks that follow slowly, at every update.
pub(crate) const SLOW_TARGETS: TargetSettings = TargetSettings {
    target_every_updates: 1,
    target_tau: 0.005,
};

/// What one off-policy algorithm for continuous actions does differently from another.
///
/// N is the number of transitions, A that of numbers of an action. Actions are between −1 and 1.
pub(crate) trait Method: Send + Sync + 'static {
    /// Critics that are trained together.
    const CRITICS: usize;

    /// Whether the actor has a target network too, where the critics have one.
    const TARGET_ACTOR: bool;

    /// Whether it normalises by the statistics of batches, which batch renormalisation needs.
    const BATCH_STATISTICS: bool = false;

    /// What it draws for each transition: `[A]` standard normal numbers for the targets, and as
    /// many for the actor's loss.
    const NOISE: Noise;

    /// The layout of the actor's parameters.
    fn actor(&self) -> &Arc<Layout>;

    /// The temperature of the entropy, if it has one.
    fn temperature(&self) -> Option<TemperatureConfig> {
        None
    }

    /// What [`choose`](Method::choose) needs to know about observations, `[N, W]`.
    fn propose(&self, actor: &Params, obs: &Tree<Tensor>) -> Tensor;

    /// Writes the action of one environment, from its row of [`propose`](Method::propose): with
    /// exploration, or in evaluation (without a generator) the best known one.
    fn choose(&self, proposed: &[f32], rng: Option<&mut Rng>, action: &mut [f32]);

    /// In a graph: actions `[N, A]` between −1 and 1 as in evaluation, and other outputs by name.
    fn export(
        &self,
        graph: &mut Graph,
        actor: &Params,
        obs: &Tree<Value>,
    ) -> Result<(Value, Named), NotExported>;

    /// What the online critics say about transitions, and the value of the next observations.
    fn evaluate(
        &self,
        nets: &Nets<'_>,
        critics: &Params,
        seen: &Transitions<'_>,
    ) -> TransitionValues;

    /// The actor's loss. `nets` have no gradients but `actor` has.
    fn actor_loss(
        &self,
        nets: &Nets<'_>,
        actor: &Params,
        obs: &Tree<Tensor>,
        noise: &Tensor,
    ) -> ActorLoss;
}

/// Values of a graph by name.
pub(crate) type Named = Vec<(&'static str, Value)>;

/// For which part of an update a method needs random numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Noise {
    pub(crate) following: bool,
    pub(crate) actor: bool,
}

/// The networks of an update.
pub(crate) struct Nets<'a> {
    pub(crate) q: &'a QofAction,
    pub(crate) critics: &'a Params,
    /// The critics themselves, if they have no target networks.
    pub(crate) target_critics: &'a Params,
    /// Chooses the next actions: the target network, or the actor itself.
    pub(crate) next_actor: &'a Params,
    /// Weight of the entropy (α), a scalar; 0 without a temperature.
    pub(crate) alpha: &'a Tensor,
}

/// Transitions of a batch.
pub(crate) struct Transitions<'a> {
    pub(crate) obs: &'a Tree<Tensor>,
    /// `[N, A]`.
    pub(crate) actions: &'a Tensor,
    pub(crate) next_obs: &'a Tree<Tensor>,
    /// Standard normal numbers for the next actions, `[N, A]`.
    pub(crate) noise: &'a Tensor,
}

/// Values of transitions.
pub(crate) struct TransitionValues {
    /// `[C, N]`, with gradients.
    pub(crate) values: Tensor,
    /// Value of the next observations, `[N]`, without.
    pub(crate) following: Tensor,
}

impl TransitionValues {
    /// Values of transitions by `critics`, and those of the next observations by `following`, which
    /// needs no gradient.
    fn separate(
        nets: &Nets<'_>,
        critics: &Params,
        seen: &Transitions<'_>,
        following: impl FnOnce() -> Tensor,
    ) -> Self {
        Self {
            following: no_grad(following),
            values: nets.q.forward(critics, seen.obs, seen.actions),
        }
    }
}

/// What the actor minimises.
pub(crate) struct ActorLoss {
    /// A scalar.
    pub(crate) loss: Tensor,
    /// Mean log-probability of the actions, a scalar, of stochastic actors.
    pub(crate) log_prob: Option<Tensor>,
}

/// A method with the shared settings, for one environment's spaces.
pub(crate) struct Continuous<M> {
    shared: ContinuousConfig,
    samples_per_step: Option<f64>,
    /// How the target networks follow, if there are any.
    target: Option<TargetSettings>,
    method: Arc<M>,
    critics: Critics,
    bounds: ActionBounds,
    frame_stack: Option<usize>,
}

/// The critics' networks, with the layout of their weights.
#[derive(Clone, Debug)]
struct Critics {
    q: QofAction,
    layout: Arc<Layout>,
}

impl<M: Method> Continuous<M> {
    /// Makes the method for actions of some numbers. `name` is the algorithm's.
    pub(crate) fn new(
        name: &str,
        shared: ContinuousConfig,
        target: Option<TargetSettings>,
        spaces: &Spaces,
        method: impl FnOnce(usize) -> Result<M, ShapeMismatch>,
    ) -> Result<Self, ConfigError> {
        check_layers(shared.net.layers, M::BATCH_STATISTICS)?;
        let samples_per_step = shared.samples_per_step()?;
        let make = || {
            let bounds = ActionBounds::of(&spaces.action)?;
            let (obs, actions) = (&spaces.observation, bounds.len());
            let mut layout = Layout::default();
            let q = QofAction::new(&mut layout, &shared.net, obs, actions, M::CRITICS)?;
            let layout = Arc::new(layout);
            Ok((Critics { q, layout }, method(actions)?, bounds))
        };
        let made: Result<_, ShapeMismatch> = make();
        let (critics, method, bounds) = made.map_err(|ShapeMismatch(reason)| {
            ConfigError::Misfit(format!("{name} cannot be used here: {reason}"))
        })?;
        Ok(Self {
            shared,
            samples_per_step,
            target,
            method: Arc::new(method),
            critics,
            bounds,
            frame_stack: spaces.frame_stack,
        })
    }
}

impl<M: Method> Algorithm for Continuous<M> {
    fn experience(&self) -> Experience {
        let mut needs = self.shared.replay.needs(self.frame_stack);
        needs.rate.samples_per_insert = self.samples_per_step;
        // A next observation that is not one would be part of the statistics.
        needs.replay.keep_terminal_obs = M::BATCH_STATISTICS;
        Experience::Transitions(Box::new(needs))
    }

    fn discount(&self) -> f64 {
        self.shared.replay.gamma
    }

    fn policy(&self, device: Device) -> Box<dyn Policy> {
        Box::new(policy::BoundedPolicy::new(
            Arc::clone(&self.method),
            self.bounds.clone(),
            self.shared.random_steps(),
            self.frame_stack,
            device,
        ))
    }

    fn export(&self, spaces: &Spaces, weights: &Snapshot) -> Result<Exported, NotExported> {
        let params = Params::zeros(self.method.actor(), Device::Cpu);
        params.load(weights).map_err(|error| NotExported(error.0))?;
        let mut graph = Graph::default();
        let (obs, _) = export::inputs(&mut graph, spaces);
        let (action, others) = self.method.export(&mut graph, &params, &obs)?;
        let action = self.bounds.export(&mut graph, &action);
        let shape: Vec<i64> = match &spaces.action {
            Space::Box { shape, .. } => shape.iter().map(|&n| n as i64).collect(),
            _ => Vec::new(),
        };
        let shape = [&[-1], &shape[..]].concat();
        let action = graph.reshape(&action, &shape);
        graph.output("action", &action);
        let names: Vec<&'static str> = others.iter().map(|(name, _)| *name).collect();
        for (name, value) in &others {
            graph.output(name, value);
        }
        let (method, bounds) = (Arc::clone(&self.method), self.bounds.clone());
        let spaces = spaces.clone();
        let reference = move |inputs: &Inputs<'_>| {
            let obs = inputs.obs(&spaces.observation);
            let proposed = no_grad(|| method.propose(&params, &obs));
            let size = bounds.len();
            let mut actions = Vec::new();
            for row in array_of(&proposed)
                .as_slice::<f32>()
                .chunks(proposed.size()[1] as usize)
            {
                let mut action = vec![0.0; size];
                method.choose(row, None, &mut action);
                bounds.scale(&mut action);
                actions.extend(action);
            }
            let actions = Tensor::from_slice(&actions).reshape(shape.as_slice());
            let mut outputs = vec![("action".to_owned(), actions)];
            // Those of `propose`, side by side.
            for (i, name) in names.iter().enumerate() {
                let part = proposed.narrow(1, (i * size) as i64, size as i64);
                outputs.push(((*name).to_owned(), part));
            }
            outputs
        };
        Ok(Exported::policy(graph, reference))
    }

    fn learner(&self, seed: u64, device: Device) -> Box<dyn Learner> {
        Box::new(self.continuous_learner(seed, device))
    }
}

impl<M: Method> Continuous<M> {
    fn continuous_learner(&self, seed: u64, device: Device) -> learner::ContinuousLearner<M> {
        learner::ContinuousLearner::new(
            self.shared.clone(),
            self.target.clone(),
            Arc::clone(&self.method),
            self.critics.clone(),
            &self.bounds,
            seed,
            device,
        )
    }
}

/// Batch renormalisation needs updates that normalise by batches, and those need the layers.
fn check_layers(layers: ControlLayers, by_batches: bool) -> Result<(), ConfigError> {
    let value = match layers {
        ControlLayers::Plain => "plain",
        ControlLayers::BatchRenorm => "batch_renorm",
        ControlLayers::Residual => "residual",
    };
    let allowed = match by_batches {
        true => "batch_renorm, in place of target networks; for other layers use `--algo sac`",
        false => "plain or residual; for batch renormalisation use `--algo crossq`",
    };
    let renorm = layers == ControlLayers::BatchRenorm;
    require(renorm == by_batches, "algo.net.layers", value, allowed)
}

/// Writes an action between −1 and 1 from its mean and log-std before tanh: sampled, or without a
/// generator the mode.
pub(crate) fn choose_squashed(proposed: &[f32], rng: Option<&mut Rng>, action: &mut [f32]) {
    let (mean, log_std) = proposed.split_at(action.len());
    let mut noise = vec![0.0; action.len()];
    if let Some(rng) = rng {
        fill_normal(rng, &mut noise);
    }
    for (i, value) in action.iter_mut().enumerate() {
        *value = (mean[i] + log_std[i].exp() * noise[i]).tanh();
    }
}

/// A deterministic actor that explores by normal noise.
#[derive(Debug)]
pub(crate) struct Deterministic {
    net: TanhActor,
    layout: Arc<Layout>,
    /// Standard deviation of the noise.
    noise: f64,
}

impl Deterministic {
    fn new(
        config: &ControlNetConfig,
        spaces: &Spaces,
        actions: usize,
        noise: f64,
    ) -> Result<Self, ShapeMismatch> {
        let mut layout = Layout::default();
        let net = TanhActor::new(&mut layout, config, &spaces.observation, actions)?;
        let layout = Arc::new(layout);
        Ok(Self { net, layout, noise })
    }

    fn choose(&self, proposed: &[f32], rng: Option<&mut Rng>, action: &mut [f32]) {
        action.copy_from_slice(proposed);
        if let Some(rng) = rng {
            let mut noise = vec![0.0; action.len()];
            fill_normal(rng, &mut noise);
            for (value, noise) in action.iter_mut().zip(noise) {
                *value = (*value + self.noise as f32 * noise).clamp(-1.0, 1.0);
            }
        }
    }
}
