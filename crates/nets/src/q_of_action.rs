//! Values of continuous actions, Q(s, a), by several critics at once.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use starling_envs::Space;
use starling_tree::Tree;
use tch::Tensor;

use crate::control_body::{Body, ControlLayers, StackedValue};
use crate::{
    Activation, Layout, NetConfig, Padding, Params, ShapeMismatch, Statistics, Torso, TorsoName,
};

/// What the networks of an actor and its critics look like.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ControlNetConfig {
    /// The network that processes observations: a built-in one, or one that your program adds.
    pub torso: TorsoName,
    /// Settings of a torso that your program adds; null for its defaults.
    pub torso_options: Option<Map<String, Value>>,
    /// Factor on the number of filters of each convolution.
    #[schemars(range(min = 1, max = 64))]
    pub width: usize,
    /// Zeros around the image before each convolution: a list with one number per convolution, or
    /// `same` for TensorFlow's `SAME` padding; null uses the torso's default.
    pub padding: Option<Padding>,
    /// Sizes of the fully connected layers.
    #[schemars(inner(range(min = 1, max = 65_536)), extend("unit" = "units"))]
    pub hidden: Vec<usize>,
    /// Sizes of the fully connected layers of the critics; null for the same.
    #[schemars(inner(range(min = 1, max = 65_536)), extend("unit" = "units"))]
    pub critic_hidden: Option<Vec<usize>>,
    /// What follows each fully connected layer.
    pub activation: Activation,
    /// How the layers of actor and critics are put together.
    pub layers: ControlLayers,
    /// Lay images out with the channels of a pixel together, which GPUs are faster with.
    pub channels_last: bool,
}

impl Default for ControlNetConfig {
    fn default() -> Self {
        Self {
            torso: TorsoName::default(),
            torso_options: None,
            width: 1,
            padding: None,
            hidden: vec![256, 256],
            critic_hidden: None,
            activation: Activation::Relu,
            layers: ControlLayers::Plain,
            channels_last: false,
        }
    }
}

impl ControlNetConfig {
    /// What the actor's torso is to be like.
    pub(crate) fn of_actor(&self) -> NetConfig {
        NetConfig {
            hidden: Some(self.hidden.clone()),
            ..self.of_observations()
        }
    }

    /// Whether layers can have these sizes.
    pub(crate) fn check(&self, hidden: &[usize]) -> Result<(), ShapeMismatch> {
        let same = hidden.windows(2).all(|pair| pair[0] == pair[1]) && !hidden.is_empty();
        match self.layers {
            ControlLayers::Residual if !same => Err(ShapeMismatch(
                "net.layers=residual needs one or more sizes in net.hidden (and \
                 net.critic_hidden), all of them the same"
                    .into(),
            )),
            _ => Ok(()),
        }
    }

    /// What looks at observations before the fully connected layers.
    pub(crate) fn of_observations(&self) -> NetConfig {
        NetConfig {
            torso: self.torso,
            torso_options: self.torso_options.clone(),
            width: self.width,
            padding: self.padding.clone(),
            hidden: Some(Vec::new()),
            activation: self.activation,
            orthogonal: false,
            channels_last: self.channels_last,
            ..NetConfig::default()
        }
    }
}

/// Several critics that value actions. They share nothing but convolutions, and are computed
/// together: each layer of all of them is one batched product.
#[derive(Clone, Debug)]
pub struct QofAction {
    torso: Torso,
    body: Body,
    value: StackedValue,
    critics: usize,
}

impl QofAction {
    /// Critics of actions of `actions` numbers; adds their parameters to `layout`.
    pub fn new(
        layout: &mut Layout,
        config: &ControlNetConfig,
        observations: &Space,
        actions: usize,
        critics: usize,
    ) -> Result<Self, ShapeMismatch> {
        let torso = Torso::new(layout, "torso", observations, &config.of_observations())?;
        let hidden = config.critic_hidden.as_ref().unwrap_or(&config.hidden);
        config.check(hidden)?;
        let (kind, inputs) = (config.layers, torso.features + actions);
        let (body, features) =
            Body::new(layout, "", kind, config.activation, critics, inputs, hidden);
        Ok(Self {
            torso,
            body,
            value: StackedValue::new(layout, "value", critics, features),
            critics,
        })
    }

    /// Values `[C, N]` by all critics of actions `[N, A]`, from −1 to 1, at observations `[N, ..]`.
    pub fn forward(&self, params: &Params, obs: &Tree<Tensor>, actions: &Tensor) -> Tensor {
        self.forward_first(self.critics, params, obs, actions)
    }

    /// The same with batch renormalisation by the batch, where the critics have it.
    pub fn forward_batch(&self, params: &Params, obs: &Tree<Tensor>, actions: &Tensor) -> Tensor {
        self.compute(self.critics, params, obs, actions, Statistics::Batch)
    }

    /// The same by the first `critics` of them.
    pub fn forward_first(
        &self,
        critics: usize,
        params: &Params,
        obs: &Tree<Tensor>,
        actions: &Tensor,
    ) -> Tensor {
        self.compute(critics, params, obs, actions, Statistics::Running)
    }

    fn compute(
        &self,
        critics: usize,
        params: &Params,
        obs: &Tree<Tensor>,
        actions: &Tensor,
        by: Statistics,
    ) -> Tensor {
        let features = self.torso.forward(params, obs);
        let x = Tensor::cat(&[&features, actions], -1).unsqueeze(0);
        let x = x.expand([critics as i64, -1, -1], false);
        let x = self.body.forward(params, x, by);
        self.value.forward(params, &x)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use starling_envs::stream;
    use tch::{Device, Kind};

    /// Together the critics compute what each of them would alone, written out with libtorch's own
    /// layers.
    #[test]
    fn stacked_critics_are_separate_networks() {
        let config = ControlNetConfig {
            hidden: vec![5, 4],
            ..ControlNetConfig::default()
        };
        let mut layout = Layout::default();
        let net = QofAction::new(&mut layout, &config, &Space::unbounded(&[3]), 2, 2).unwrap();
        let params = Params::init(&Arc::new(layout), &mut stream(1, "init", 0), Device::Cpu);
        let obs = Tensor::arange(12, (Kind::Float, Device::Cpu)).reshape([4, 3]) / 7.0;
        let actions = Tensor::arange(8, (Kind::Float, Device::Cpu)).reshape([4, 2]) / 8.0;
        let values = net.forward(&params, &Tree::Leaf(obs.copy()), &actions);
        assert_eq!(values.size(), [2, 4]);
        for critic in 0..2 {
            let mut x = Tensor::cat(&[&obs, &actions], 1);
            let Body::Plain(hidden, _) = &net.body else {
                panic!("plain layers are the default");
            };
            for layer in hidden {
                let weight = params.get(layer.weight).get(critic).tr();
                let bias = params.get(layer.bias).get(critic).get(0);
                x = x.linear(&weight, Some(&bias)).relu();
            }
            let weight = params.get(net.value.weight).get(critic);
            x = x.linear(&weight, Some(params.get(net.value.bias).get(critic)));
            let error = (x.squeeze_dim(1) - values.get(critic)).abs().max();
            assert!(error.double_value(&[]) < 1e-6);
        }
        let first = net.forward_first(1, &params, &Tree::Leaf(obs), &actions);
        let error = (first.get(0) - values.get(0)).abs().max();
        assert!(error.double_value(&[]) < 1e-6);
        assert_ne!(values.get(0), values.get(1));
    }
}
