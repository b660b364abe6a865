//! PEARL's networks, and what they see.

use std::sync::Arc;

use starling_envs::Space;
use starling_nets::export::{Element, Graph, Value};
use starling_nets::{
    ActionBounds, Layout, Params, ShapeMismatch, SquashedGaussian, StackedMlp, Tensor,
};
use starling_tree::{DType, Tree};

use super::Config;
use crate::Spaces;

/// A part of an observation that is not shown to the agent: the reward of the last step by which a
/// task is to be recognised, where that is not the reward that is to be maximised.
pub(super) const CONTEXT_REWARD: &str = "context_reward";

/// Smallest variance of one transition's distribution.
const SMALLEST_VARIANCE: f64 = 1e-7;

/// Limits of the log-std of an action.
const LOG_STD: (f64, f64) = (-20.0, 2.0);

/// Descriptions of all networks. Each layout is moved by one optimiser.
pub(super) struct Networks {
    pub(super) seen: Seen,
    pub(super) bounds: ActionBounds,
    pub(super) latent: usize,
    pub(super) context: ContextParts,
    /// The encoder, then the critics.
    pub(super) critics: Arc<Layout>,
    pub(super) value: Arc<Layout>,
    pub(super) actor: Arc<Layout>,
    /// What policies have: the encoder, then the actor.
    pub(super) acting: Arc<Layout>,
    /// First in both layouts that have it.
    encoder: Option<StackedMlp>,
    q: StackedMlp,
    v: StackedMlp,
    /// The same network in the layout of the actor, and in that of policies.
    actor_nets: [StackedMlp; 2],
    /// Numbers in the encoder's parameters.
    pub(super) encoder_size: i64,
}

/// What of an observation the agent sees.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    /// Numbers.
    pub(super) size: usize,
    /// Whether there is a reward to recognise the task by.
    pub(super) context_reward: bool,
}

/// What a transition is as context: observation, action, reward, possibly the next observation.
#[derive(Clone, Copy, Debug)]
pub(super) struct ContextParts {
    pub(super) obs: usize,
    pub(super) actions: usize,
    pub(super) next_obs: bool,
}

impl ContextParts {
    pub(super) fn size(self) -> usize {
        let next = if self.next_obs { self.obs } else { 0 };
        self.obs + self.actions + 1 + next
    }
}

impl Seen {
    fn new(space: &Space) -> Result<Self, ShapeMismatch> {
        let (mut size, mut context_reward) = (0, false);
        for (path, spec) in space.spec().leaves() {
            if spec.dtype != DType::F32 {
                return Err(ShapeMismatch(
                    "it needs observations of floats, and those of this environment are not".into(),
                ));
            }
            match path == CONTEXT_REWARD {
                true => context_reward = true,
                false => size += spec.elements(),
            }
        }
        Ok(Self {
            size,
            context_reward,
        })
    }

    /// Observations as one vector each, `[N, O]`.
    pub(super) fn of(&self, obs: &Tree<Tensor>) -> Tensor {
        let leaves = obs.leaves().into_iter();
        let parts = leaves.filter(|(path, _)| path != CONTEXT_REWARD);
        let parts: Vec<Tensor> = parts
            .map(|(_, part)| part.reshape([part.size()[0], -1]))
            .collect();
        match &parts[..] {
            [one] => one.shallow_clone(),
            many => Tensor::cat(many, 1),
        }
    }

    /// The rewards `[N]` to recognise the task by, of transitions that led to these observations, if
    /// they are not the rewards themselves.
    pub(super) fn context_rewards(&self, next_obs: &Tree<Tensor>) -> Option<Tensor> {
        let part = next_obs.get(CONTEXT_REWARD)?.leaf()?;
        Some(part.reshape([-1]))
    }
}

impl Networks {
    pub(super) fn new(config: &Config, spaces: &Spaces) -> Result<Self, ShapeMismatch> {
        let seen = Seen::new(&spaces.observation)?;
        let bounds = ActionBounds::of(&spaces.action)?;
        let (obs, actions, latent) = (seen.size, bounds.len(), config.latent_size);
        let context = ContextParts {
            obs,
            actions,
            next_obs: config.context_next_obs,
        };
        let encoder_of = |layout: &mut Layout| {
            (latent > 0).then(|| {
                let (inputs, hidden) = (context.size(), &config.encoder_hidden);
                StackedMlp::new(layout, "encoder", 1, inputs, hidden, 2 * latent, 3e-3)
            })
        };
        let hidden = &config.hidden;
        let actor_of = |layout: &mut Layout| {
            StackedMlp::new(layout, "actor", 1, obs + latent, hidden, 2 * actions, 1e-3)
        };
        let [mut critics, mut value, mut actor, mut acting] =
            std::array::from_fn(|_| Layout::default());
        let encoder = encoder_of(&mut critics);
        let encoder_size = critics.elements() as i64;
        let inputs = obs + actions + latent;
        let q = StackedMlp::new(&mut critics, "q", 2, inputs, hidden, 1, 3e-3);
        let v = StackedMlp::new(&mut value, "value", 1, obs + latent, hidden, 1, 3e-3);
        encoder_of(&mut acting);
        let actor_nets = [actor_of(&mut actor), actor_of(&mut acting)];
        Ok(Self {
            seen,
            bounds,
            latent,
            context,
            critics: Arc::new(critics),
            value: Arc::new(value),
            actor: Arc::new(actor),
            acting: Arc::new(acting),
            encoder,
            q,
            v,
            actor_nets,
            encoder_size,
        })
    }

    /// What the encoder says about transitions `[N, context]`, each by itself: means and variances
    /// `[N, L]`.
    pub(super) fn encode(&self, params: &Params, context: &Tensor) -> Option<(Tensor, Tensor)> {
        let both = self.encoder.as_ref()?;
        let both = both.forward(params, &context.unsqueeze(0)).squeeze_dim(0);
        let latent = self.latent as i64;
        let variances = both.narrow(-1, latent, latent).softplus();
        let means = both.narrow(-1, 0, latent);
        Some((means, variances.clamp_min(SMALLEST_VARIANCE)))
    }

    /// The same in a graph. Variances are computed in double precision: there is no log1p in ONNX, and they
    /// may be close to zero.
    pub(super) fn export_encode(
        &self,
        graph: &mut Graph,
        params: &Params,
        context: &Value,
    ) -> Option<(Value, Value)> {
        let both = self.encoder.as_ref()?.export(graph, params, context);
        let latent = self.latent as i64;
        let mean = graph.slice(&both, 1, 0, latent);
        let raw = graph.slice(&both, 1, latent, 2 * latent);
        let raw = graph.cast(&raw, Element::F64);
        let number = |graph: &mut Graph, number: f64| graph.constant(&Tensor::from(number));
        // ln(1 + eˣ) = max(x, 0) + ln(1 + e^−|x|), which does not overflow.
        let (zero, one) = (number(graph, 0.0), number(graph, 1.0));
        let size = graph.abs(&raw);
        let negative = graph.sub(&zero, &size);
        let small = graph.exp(&negative);
        let small = graph.add(&small, &one);
        let small = graph.log(&small);
        let positive = graph.max(&raw, &zero);
        let variance = graph.add(&positive, &small);
        let variance = graph.cast(&variance, Element::F32);
        let smallest = graph.scalar(SMALLEST_VARIANCE);
        Some((mean, graph.max(&variance, &smallest)))
    }

    /// Values `[2, N]` of actions `[N, A]` at observations `[N, O]` with z `[N, L]`.
    pub(super) fn q(&self, params: &Params, obs: &Tensor, actions: &Tensor, z: &Tensor) -> Tensor {
        let x = Tensor::cat(&[obs, actions, z], 1).unsqueeze(0);
        self.q.forward(params, &x.expand([2, -1, -1], false))
    }

    /// Values `[N]` of observations.
    pub(super) fn v(&self, params: &Params, obs: &Tensor, z: &Tensor) -> Tensor {
        let x = Tensor::cat(&[obs, z], 1).unsqueeze(0);
        self.v.forward(params, &x).squeeze_dim(0)
    }

    /// The distributions of actions, by the parameters of the actor.
    pub(super) fn policy(&self, params: &Params, obs: &Tensor, z: &Tensor) -> SquashedGaussian {
        gaussian(&self.actor_nets[0], params, obs, z)
    }

    /// The same by the parameters that policies have.
    pub(super) fn acting(&self, params: &Params, obs: &Tensor, z: &Tensor) -> SquashedGaussian {
        gaussian(&self.actor_nets[1], params, obs, z)
    }

    /// Their means and log-stds in a graph, of observations with z `[N, O + L]`.
    pub(super) fn export_acting(
        &self,
        graph: &mut Graph,
        params: &Params,
        x: &Value,
    ) -> [Value; 2] {
        let both = self.actor_nets[1].export(graph, params, x);
        let actions = self.bounds.len() as i64;
        let mean = graph.slice(&both, 1, 0, actions);
        let log_std = graph.slice(&both, 1, actions, 2 * actions);
        let (low, high) = (graph.scalar(LOG_STD.0), graph.scalar(LOG_STD.1));
        [mean, graph.clamp(&log_std, &low, &high)]
    }
}

fn gaussian(net: &StackedMlp, params: &Params, obs: &Tensor, z: &Tensor) -> SquashedGaussian {
    let x = Tensor::cat(&[obs, z], 1).unsqueeze(0);
    let both = net.forward(params, &x).squeeze_dim(0);
    let actions = both.size()[1] / 2;
    SquashedGaussian {
        mean: both.narrow(1, 0, actions),
        log_std: both.narrow(1, actions, actions).clamp(LOG_STD.0, LOG_STD.1),
    }
}
