//! Values of continuous actions, Q(s, a), by several critics at once.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use starling_envs::Space;
use starling_tree::Tree;
use tch::{Kind, Tensor};

use crate::{
    Activation, Init, Layout, NetConfig, Padding, ParamId, Params, ShapeMismatch, Torso, TorsoName,
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

    /// What looks at observations before the fully connected layers.
    fn of_observations(&self) -> NetConfig {
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
    hidden: Vec<Stacked>,
    value: StackedValue,
    activation: Activation,
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
        let mut inputs = torso.features + actions;
        let mut layers = Vec::new();
        for (i, &outputs) in hidden.iter().enumerate() {
            let name = format!("hidden{i}");
            layers.push(Stacked::new(layout, &name, critics, inputs, outputs));
            inputs = outputs;
        }
        Ok(Self {
            torso,
            hidden: layers,
            value: StackedValue::new(layout, "value", critics, inputs),
            activation: config.activation,
            critics,
        })
    }

    /// Values `[C, N]` by all critics of actions `[N, A]`, from −1 to 1, at observations `[N, ..]`.
    pub fn forward(&self, params: &Params, obs: &Tree<Tensor>, actions: &Tensor) -> Tensor {
        self.forward_first(self.critics, params, obs, actions)
    }

    /// The same by the first `critics` of them.
    pub fn forward_first(
        &self,
        critics: usize,
        params: &Params,
        obs: &Tree<Tensor>,
        actions: &Tensor,
    ) -> Tensor {
        let features = self.torso.forward(params, obs);
        let x = Tensor::cat(&[&features, actions], -1).unsqueeze(0);
        let mut x = x.expand([critics as i64, -1, -1], false);
        for layer in &self.hidden {
            x = self.activation.apply(&layer.forward(params, &x));
        }
        self.value.forward(params, &x)
    }
}

/// Fully connected layers of several networks of the same shape.
#[derive(Clone, Debug)]
struct Stacked {
    /// `[C, inputs, outputs]`.
    weight: ParamId,
    /// `[C, 1, outputs]`.
    bias: ParamId,
}

impl Stacked {
    fn new(layout: &mut Layout, name: &str, count: usize, inputs: usize, outputs: usize) -> Self {
        let init = Init::FanIn { fan_in: inputs };
        Self {
            weight: layout.add(format!("{name}.weight"), &[count, inputs, outputs], init),
            bias: layout.add(format!("{name}.bias"), &[count, 1, outputs], init),
        }
    }

    /// `x · W + b` of inputs `[C, N, inputs]`, for the first C networks.
    fn forward(&self, params: &Params, x: &Tensor) -> Tensor {
        let first = |id| params.get(id).narrow(0, 0, x.size()[0]);
        first(self.bias).baddbmm(x, &first(self.weight), 1.0, 1.0)
    }
}

/// Fully connected layers with one output, of several networks.
#[derive(Clone, Debug)]
struct StackedValue {
    /// `[C, 1, inputs]`.
    weight: ParamId,
    /// `[C, 1]`.
    bias: ParamId,
}

impl StackedValue {
    fn new(layout: &mut Layout, name: &str, count: usize, inputs: usize) -> Self {
        let init = Init::FanIn { fan_in: inputs };
        Self {
            weight: layout.add(format!("{name}.weight"), &[count, 1, inputs], init),
            bias: layout.add(format!("{name}.bias"), &[count, 1], init),
        }
    }

    /// `x · w + b` `[C, N]` of inputs `[C, N, inputs]`, for the first C networks.
    fn forward(&self, params: &Params, x: &Tensor) -> Tensor {
        let first = |id| params.get(id).narrow(0, 0, x.size()[0]);
        // A batched product with a single column is several times slower on the CPU.
        let products = x * first(self.weight);
        products.sum_dim_intlist([-1].as_slice(), false, Kind::Float) + first(self.bias)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use starling_envs::stream;
    use tch::Device;

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
            for layer in &net.hidden {
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
