//! The shared part of policy-gradient algorithms: settings, acting, rollouts on the device, the
//! update.
//!
//! Each algorithm is a [`Method`]: how targets are estimated, how a batch is split into gradient
//! steps, and the terms of its loss. Everything else is here: the network, acting with one forward
//! pass per group of environments (`acting.rs`), batches at fixed addresses (`batch.rs`,
//! `trajectory.rs`), what a policy keeps from step to step (`carried.rs`), and the gradient steps
//! (`learner.rs`).

mod acting;
mod batch;
mod carried;
mod export;
mod learner;
mod trajectory;

pub(crate) use batch::{Prepared, normalized};
pub(crate) use trajectory::Trajectory;

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use starling_nets::export::NotExported;
use starling_nets::{
    ActorCritic, Device, Layout, NetConfig, OptimizerConfig, Params, RunningNorm, Schedule,
    Snapshot, Tensor,
};

pub(crate) use crate::minibatches::Passes;

use crate::config::{ConfigError, refuse};
use crate::{Algorithm, Experience, Exported, Learner, Policy, Spaces};
use carried::ReturnScale;

/// Settings that all policy-gradient algorithms have.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PolicyGradientConfig {
    /// Steps of each environment per rollout.
    #[schemars(range(min = 1))]
    pub rollout_steps: usize,
    /// Learning rate, possibly a schedule.
    #[schemars(extend("minimum" = 0.0, "maximum" = 10.0))]
    pub learning_rate: Schedule,
    /// Discount per step (γ).
    #[schemars(range(min = 0.0, max = 1.0))]
    pub gamma: f64,
    /// Weight of the value loss.
    #[schemars(range(min = 0.0))]
    pub value_coef: f64,
    /// Weight of the entropy bonus.
    #[schemars(range(min = 0.0))]
    pub entropy_coef: f64,
    /// Maximum norm of the gradient; null for no limit.
    #[schemars(extend("exclusiveMinimum" = 0.0))]
    pub clip_norm: Option<f64>,
    /// Divide rewards by the running standard deviation of discounted returns, which is kept with the
    /// weights.
    pub normalize_returns: bool,
    /// The optimiser.
    pub optimizer: OptimizerConfig,
    /// The network.
    pub net: NetConfig,
}

impl Default for PolicyGradientConfig {
    fn default() -> Self {
        Self {
            rollout_steps: 20,
            learning_rate: Schedule::Constant(1e-3),
            gamma: 0.99,
            value_coef: 0.5,
            entropy_coef: 0.01,
            clip_norm: Some(1.0),
            normalize_returns: false,
            optimizer: OptimizerConfig::default(),
            net: NetConfig::default(),
        }
    }
}

impl PolicyGradientConfig {
    /// What is minimised: the policy's loss, the value's loss and the entropy bonus.
    pub fn total(&self, policy_loss: &Tensor, value_loss: &Tensor, entropy: &Tensor) -> Tensor {
        policy_loss + value_loss * self.value_coef - entropy * self.entropy_coef
    }
}

/// What one policy-gradient algorithm does differently from another.
pub(crate) trait Method: Send + Sync + 'static {
    /// What a gradient step reports beside the loss, its terms and the norm of the gradient:
    /// [`Terms::numbers`] by name.
    const REPORTED: &'static [&'static str];

    /// What [`prepare`](Method::prepare) reports, by name.
    const PREPARED: &'static [&'static str] = &[];

    /// Whether the loss is a sum over the batch, and not a mean.
    const SUMS: bool = false;

    /// Where advantages and value targets come from.
    fn estimate(&self) -> Estimate;

    /// How a batch is split into gradient steps.
    fn passes(&self, batch: &Prepared, recurrent: bool) -> Passes;

    /// How far the probability ratio may move, if it matters; [`Context::ratio_clip`] follows it.
    fn ratio_clip(&self) -> Option<&Schedule> {
        None
    }

    /// Whether there is something to [`prepare`](Method::prepare).
    fn prepares(&self) -> bool {
        false
    }

    /// What is computed once for a whole batch before its gradient steps, into the batch itself.
    fn prepare(&self, _context: &Context<'_>, _batch: &Prepared) -> Vec<Tensor> {
        Vec::new()
    }

    /// The terms of the loss over the chosen items of a batch, or over all of it.
    fn terms(&self, context: &Context<'_>, batch: &Prepared, chosen: Option<&Tensor>) -> Terms;
}

/// Where advantages and value targets come from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Estimate {
    /// Generalised advantage estimation with this λ, computed when a batch is loaded.
    Gae(f64),
    /// V-trace, computed by the method.
    Vtrace,
}

/// What a loss is computed with.
pub(crate) struct Context<'a> {
    pub(crate) model: &'a Model,
    pub(crate) params: &'a Params,
    /// Present value of [`Method::ratio_clip`], a scalar.
    pub(crate) ratio_clip: &'a Tensor,
}

/// The terms of a loss, scalars with gradients.
#[derive(Debug)]
pub struct Terms {
    /// What makes good actions more likely.
    pub policy_loss: Tensor,
    /// Error of the values.
    pub value_loss: Tensor,
    /// Entropy of the policy.
    pub entropy: Tensor,
    /// What else is reported.
    pub numbers: Vec<Tensor>,
    /// Steps that the terms are sums over, so that they are reported per step; 1 for means.
    pub summed_steps: f64,
}

/// A method with the shared settings, for one environment's spaces.
pub(crate) struct PolicyGradient<M> {
    shared: PolicyGradientConfig,
    method: Arc<M>,
    model: Model,
}

impl<M: Method> PolicyGradient<M> {
    /// Checks what the schema of the settings does not. `name` is the algorithm's.
    pub(crate) fn new(
        name: &str,
        shared: PolicyGradientConfig,
        method: M,
        spaces: &Spaces,
    ) -> Result<Self, ConfigError> {
        refuse(shared.net.problem())?;
        let returns = shared.normalize_returns.then_some(shared.gamma);
        let model = Model::new(&shared.net, spaces, returns).map_err(|error| {
            ConfigError::Misfit(format!("{name} cannot be used here: {}", error.0))
        })?;
        Ok(Self {
            shared,
            method: Arc::new(method),
            model,
        })
    }
}

impl<M: Method> Algorithm for PolicyGradient<M> {
    fn experience(&self) -> Experience {
        Experience::Rollouts {
            steps: self.shared.rollout_steps,
        }
    }

    fn discount(&self) -> f64 {
        self.shared.gamma
    }

    fn policy(&self, device: Device) -> Box<dyn Policy> {
        Box::new(self.model.policy(device))
    }

    fn export(&self, spaces: &Spaces, weights: &Snapshot) -> Result<Exported, NotExported> {
        self.model.export(spaces, weights)
    }

    fn learner(&self, seed: u64, device: Device) -> Box<dyn Learner> {
        let method = Arc::clone(&self.method);
        let (shared, model) = (self.shared.clone(), self.model.clone());
        Box::new(learner::PolicyGradientLearner::new(
            shared, method, model, seed, device,
        ))
    }
}

/// A network with the layout of its weights.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) net: ActorCritic,
    pub(crate) layout: Arc<Layout>,
    pub(crate) frame_stack: Option<usize>,
    /// How rewards are scaled, if they are.
    returns: Option<ReturnScale>,
}

impl Model {
    /// With `returns`, rewards are scaled by the deviation of returns with this discount.
    pub(crate) fn new(
        config: &NetConfig,
        spaces: &Spaces,
        returns: Option<f64>,
    ) -> Result<Self, starling_nets::ShapeMismatch> {
        let mut layout = Layout::default();
        let net = ActorCritic::new(&mut layout, config, &spaces.observation, &spaces.action)?;
        let returns = returns.map(|gamma| ReturnScale {
            norm: RunningNorm::new(&mut layout, "returns", &[1]),
            gamma: gamma as f32,
        });
        Ok(Self {
            net,
            returns,
            layout: Arc::new(layout),
            frame_stack: spaces.frame_stack,
        })
    }

    pub(crate) fn policy(&self, device: Device) -> acting::ActorCriticPolicy {
        acting::ActorCriticPolicy::new(self, device)
    }

    pub(crate) fn is_recurrent(&self) -> bool {
        !self.net.state_spec().is_empty()
    }
}
