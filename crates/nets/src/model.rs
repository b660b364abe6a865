//! Networks with a policy and a value.

use serde::{Deserialize, Serialize};
use starling_envs::Space;
use starling_tree::{DType, Spec, Tree};
use tch::Tensor;

use crate::torso::layer_init;
use crate::{
    Activation, Distribution, Layout, Linear, Lstm, Params, PolicyHead, ShapeMismatch, Torso,
    TorsoKind,
};

/// What a network looks like.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NetConfig {
    /// Which network looks at observations: `auto`, `mlp`, `minatar` or `nature`.
    pub torso: TorsoKind,
    /// Sizes of the fully connected layers; null takes what is usual for the torso.
    pub hidden: Option<Vec<usize>>,
    /// What follows each fully connected layer: `relu` or `tanh`.
    pub activation: Activation,
    /// Size of an LSTM between the torso and the heads; 0 for none.
    pub lstm: usize,
    /// Orthogonal first weights; false takes PyTorch's default.
    pub orthogonal: bool,
    /// A torso of its own for the value (networks without an LSTM only).
    pub separate_critic: bool,
}

impl Default for NetConfig {
    fn default() -> Self {
        Self {
            torso: TorsoKind::Auto,
            hidden: None,
            activation: Activation::Relu,
            lstm: 0,
            orthogonal: true,
            separate_critic: false,
        }
    }
}

impl NetConfig {
    /// The first setting that is out of range: its name, its value, what is allowed.
    pub fn problem(&self) -> Option<(&'static str, String, &'static str)> {
        const MOST: usize = 1 << 16;
        let sizes = self.hidden.as_deref().unwrap_or_default();
        if let Some(size) = sizes.iter().find(|size| !(1..=MOST).contains(*size)) {
            return Some(("net.hidden", size.to_string(), "sizes between 1 and 65536"));
        }
        (self.lstm > MOST).then(|| ("net.lstm", self.lstm.to_string(), "at most 65536"))
    }

    fn torso(
        &self,
        layout: &mut Layout,
        name: &str,
        observations: &Space,
    ) -> Result<Torso, ShapeMismatch> {
        Torso::new(
            layout,
            name,
            observations,
            self.torso,
            self.hidden.as_deref(),
            self.activation,
            self.orthogonal,
        )
    }
}

/// A policy and the value of being in a state.
#[derive(Clone, Debug)]
pub struct ActorCritic {
    torso: Torso,
    critic: Option<Torso>,
    core: Option<Lstm>,
    policy: PolicyHead,
    value: Linear,
}

/// What an [`ActorCritic`] says about observations `[T, B]`, rows in time-major order.
#[derive(Debug)]
pub struct ActorCriticOutput {
    /// Distribution over actions, one row for each of the T·B observations.
    pub policy: Distribution,
    /// Values `[T·B]`.
    pub value: Tensor,
    /// Recurrent states after each step, `[T·B, ..]`, in the structure of
    /// [`ActorCritic::state_spec`].
    pub states: Tree<Tensor>,
}

impl ActorCritic {
    /// A network for the spaces of an environment; adds its parameters to `layout`.
    pub fn new(
        layout: &mut Layout,
        config: &NetConfig,
        observations: &Space,
        actions: &Space,
    ) -> Result<Self, ShapeMismatch> {
        let torso = config.torso(layout, "torso", observations)?;
        let mut features = torso.features;
        let core = (config.lstm > 0).then(|| {
            let init = layer_init(config.orthogonal, features, 1.0);
            Lstm::new(layout, "core", features, config.lstm, init)
        });
        if let Some(core) = &core {
            features = core.size;
        }
        let critic = match config.separate_critic && core.is_none() {
            true => Some(config.torso(layout, "critic", observations)?),
            false => None,
        };
        let init = layer_init(config.orthogonal, features, 0.01);
        let policy = PolicyHead::new(layout, "policy", features, actions, init)?;
        let init = layer_init(config.orthogonal, features, 1.0);
        let value = Linear::new(layout, "value", features, 1, init);
        Ok(Self {
            torso,
            critic,
            core,
            policy,
            value,
        })
    }

    /// The recurrent state of one environment; empty without an LSTM.
    pub fn state_spec(&self) -> Tree<Spec> {
        match &self.core {
            None => Tree::empty(),
            Some(core) => {
                let spec = || Tree::Leaf(Spec::new(DType::F32, &[core.size]));
                Tree::node([("hidden", spec()), ("cell", spec())])
            }
        }
    }

    /// Policy and value for observations `[T·B, ..]` of `steps` = T steps.
    ///
    /// `legal` `[T·B, A]` masks actions; `starts` `[T, B]` holds 1 where an episode begins and
    /// `state` is the recurrent state before the first step (both only looked at with an LSTM).
    pub fn forward(
        &self,
        params: &Params,
        obs: &Tree<Tensor>,
        legal: Option<&Tensor>,
        steps: usize,
        starts: &Tensor,
        state: &Tree<Tensor>,
    ) -> ActorCriticOutput {
        let mut features = self.torso.forward(params, obs);
        let mut states = Tree::empty();
        if let Some(core) = &self.core {
            let part = |name| match state.get(name) {
                Some(Tree::Leaf(tensor)) => tensor,
                _ => panic!("the recurrent state has no part called '{name}'"),
            };
            let sequence = features.reshape([steps as i64, -1, features.size()[1]]);
            let state = (part("hidden"), part("cell"));
            let (hidden, cell) = core.forward(params, &sequence, starts, state);
            features = hidden.flatten(0, 1);
            let (hidden, cell) = (features.shallow_clone(), cell.flatten(0, 1));
            states = Tree::node([("hidden", Tree::Leaf(hidden)), ("cell", Tree::Leaf(cell))]);
        }
        let value = match &self.critic {
            Some(critic) => self.value.forward(params, &critic.forward(params, obs)),
            None => self.value.forward(params, &features),
        };
        ActorCriticOutput {
            policy: self.policy.forward(params, &features, legal),
            value: value.squeeze_dim(-1),
            states,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use starling_envs::stream;
    use std::sync::Arc;
    use tch::{Device, Kind};

    #[test]
    fn a_recurrent_network_gives_the_same_step_by_step_and_at_once() {
        let config = NetConfig {
            lstm: 8,
            ..NetConfig::default()
        };
        let mut layout = Layout::default();
        let actions = Space::Discrete { n: 2 };
        let net = ActorCritic::new(&mut layout, &config, &Space::unbounded(&[3]), &actions);
        let net = net.unwrap();
        let params = Params::init(&Arc::new(layout), &mut stream(1, "init", 0), Device::Cpu);
        let cpu = (Kind::Float, Device::Cpu);
        let obs = Tensor::arange(4 * 2 * 3, cpu).reshape([4, 2, 3]) / 10.0;
        let starts = Tensor::from_slice(&[1f32, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0]).reshape([4, 2]);
        let zeros = net
            .state_spec()
            .map(|spec| Tensor::zeros([2, spec.shape[0] as i64], cpu));
        let whole = Tree::Leaf(obs.reshape([8, 3]));
        let at_once = net.forward(&params, &whole, None, 4, &starts, &zeros);
        let mut state = zeros;
        for t in 0..4 {
            let row = Tree::Leaf(obs.select(0, t));
            let starts = starts.narrow(0, t, 1);
            let step = net.forward(&params, &row, None, 1, &starts, &state);
            let same = at_once.value.narrow(0, 2 * t, 2) - step.value;
            assert!(same.abs().max().double_value(&[]) < 1e-6);
            state = step.states;
        }
    }
}
