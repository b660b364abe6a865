//! Action-value networks: torso, head with one or two streams, quantile embedding.

use std::f64::consts::PI;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use starling_envs::Space;
use starling_tree::Tree;
use tch::{Kind, Tensor};

use crate::export::{Graph, NotExported, Value as Exported};
use crate::torso::layer_init;
use crate::{
    Activation, Init, Layout, Linear, NetConfig, NoisyLinear, Padding, ParamId, Params,
    ShapeMismatch, Torso, TorsoName,
};

/// What a network of action values looks like.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct QNetConfig {
    /// The network that processes observations.
    pub torso: TorsoName,
    /// Settings of a torso of your own; null for its defaults.
    pub torso_options: Option<Map<String, Value>>,
    /// Your own network to process observations, instead of the torso: a TorchScript file written
    /// by `examples/torchscript/export.py`.
    pub torchscript: Option<String>,
    /// Factor on the number of filters of each convolution.
    #[schemars(range(min = 1, max = 64))]
    pub width: usize,
    /// Zeros around the image before each convolution: a list with one number per convolution, or
    /// `same` for TensorFlow's `SAME` padding; null uses the torso's default.
    pub padding: Option<Padding>,
    /// Sizes of the fully connected layers of the torso; null uses its default.
    #[schemars(inner(range(min = 1, max = 65_536)), extend("unit" = "units"))]
    pub hidden: Option<Vec<usize>>,
    /// What follows each fully connected layer.
    pub activation: Activation,
    /// Layer normalisation after each fully connected layer and each convolution of the torso,
    /// outside residual blocks.
    pub layer_norm: bool,
    /// Orthogonal initial weights; false uses PyTorch's default. Noisy layers have their own.
    pub orthogonal: bool,
    /// Separate streams for value and advantage.
    pub dueling: bool,
    /// Advantages of illegal actions count as 0 in the mean that is subtracted (RELA); false uses
    /// them as they are.
    pub dueling_legal: bool,
    /// Factor on the gradient that the two streams send into the torso; rlpyt has 1/√2.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub dueling_gradient: f64,
    /// The last layer of advantages has a bias for each action; rlpyt's has none.
    pub advantage_bias: bool,
    /// Size of a hidden layer in the head, in each of its streams; 0 for none.
    #[schemars(range(max = 65_536), extend("unit" = "units"))]
    pub head_hidden: usize,
    /// Noisy layers in the head, whose standard deviations start at this over √inputs (σ₀); null for plain
    /// layers.
    #[schemars(extend("exclusiveMinimum" = 0.0))]
    pub noisy_sigma: Option<f64>,
    /// Deviations of noisy biases start at σ₀ over √outputs, as in Rainbow-IQN Ape-X; false divides
    /// by √inputs, as in the paper.
    pub noisy_bias_by_outputs: bool,
    /// Compute the torso in bfloat16: about half the time where the hardware has it. Weights,
    /// heads and losses stay float32.
    pub bf16: bool,
    /// Store images with channels last, which is faster on GPUs.
    pub channels_last: bool,
}

impl Default for QNetConfig {
    fn default() -> Self {
        Self {
            torso: TorsoName::default(),
            torso_options: None,
            torchscript: None,
            width: 1,
            padding: None,
            hidden: None,
            activation: Activation::Relu,
            layer_norm: false,
            orthogonal: false,
            dueling: false,
            dueling_legal: false,
            dueling_gradient: 1.0,
            advantage_bias: true,
            head_hidden: 0,
            noisy_sigma: None,
            noisy_bias_by_outputs: false,
            bf16: false,
            channels_last: false,
        }
    }
}

impl QNetConfig {
    /// The first setting that contradicts another: its name, its value, what is allowed.
    pub fn problem(&self) -> Option<(&'static str, String, &'static str)> {
        let contradicts = !self.advantage_bias && self.noisy_sigma.is_some();
        let allowed = "true with noisy layers (net.noisy_sigma)";
        let bias = contradicts.then(|| ("net.advantage_bias", "false".into(), allowed));
        self.of_torso().problem().or(bias)
    }
}

/// Some numbers for every action: its value, or its distribution of returns.
#[derive(Clone, Debug)]
pub struct QNetwork {
    torso: Torso,
    head: QHead,
}

impl QNetwork {
    /// A network for the spaces of an environment with discrete actions, with `outputs` numbers
    /// per action.
    pub fn new(
        layout: &mut Layout,
        config: &QNetConfig,
        observations: &Space,
        actions: &Space,
        outputs: usize,
    ) -> Result<Self, ShapeMismatch> {
        let actions = number_of_actions(actions)?;
        let torso = config.build_torso(layout, "", observations)?;
        let head = QHead::new(layout, config, "", torso.features, actions, outputs);
        Ok(Self { torso, head })
    }

    /// Size of the features between torso and head.
    pub fn features(&self) -> usize {
        self.torso.features
    }

    /// The last part of the network.
    pub fn head(&self) -> &QHead {
        &self.head
    }

    /// Features `[N, F]` of observations `[N, ..]`.
    pub fn look(&self, params: &Params, obs: &Tree<Tensor>) -> Tensor {
        self.torso.forward(params, obs)
    }

    /// Numbers `[N, A, outputs]` for observations `[N, ..]`; `noise` `[N or 1, length]` as drawn
    /// by [`draw_noise`](crate::draw_noise), or none for the means of noisy layers; `legal` as in
    /// [`QHead::forward`].
    pub fn forward(
        &self,
        params: &Params,
        obs: &Tree<Tensor>,
        noise: Option<&Tensor>,
        legal: Option<&Tensor>,
    ) -> Tensor {
        let features = self.look(params, obs);
        self.head.forward(params, &features, noise, legal)
    }

    /// Features `[N, F]` in a graph.
    pub fn export_look(
        &self,
        graph: &mut Graph,
        params: &Params,
        obs: &Tree<Exported>,
    ) -> Result<Exported, NotExported> {
        self.torso.export(graph, params, obs)
    }

    /// Numbers `[N, A, outputs]` in a graph, without noise.
    pub fn export(
        &self,
        graph: &mut Graph,
        params: &Params,
        obs: &Tree<Exported>,
        legal: Option<&Exported>,
    ) -> Result<Exported, NotExported> {
        let features = self.export_look(graph, params, obs)?;
        Ok(self.head.export(graph, params, &features, legal))
    }
}

impl QNetConfig {
    /// The torso for observations of a space; `prefix` stands before the names of its parameters.
    pub fn build_torso(
        &self,
        layout: &mut Layout,
        prefix: &str,
        observations: &Space,
    ) -> Result<Torso, ShapeMismatch> {
        Torso::new(
            layout,
            &format!("{prefix}torso"),
            observations,
            &self.of_torso(),
        )
    }

    /// What the torso is to be like.
    fn of_torso(&self) -> NetConfig {
        NetConfig {
            torso: self.torso,
            torso_options: self.torso_options.clone(),
            torchscript: self.torchscript.clone(),
            width: self.width,
            padding: self.padding.clone(),
            hidden: self.hidden.clone(),
            activation: self.activation,
            layer_norm: self.layer_norm,
            orthogonal: self.orthogonal,
            bf16: self.bf16,
            channels_last: self.channels_last,
            ..NetConfig::default()
        }
    }
}

/// How many actions there are to choose from.
pub fn number_of_actions(actions: &Space) -> Result<usize, ShapeMismatch> {
    match actions {
        Space::Discrete { n } => Ok(*n),
        _ => Err(ShapeMismatch(
            "action values need discrete actions, and those of this environment are continuous"
                .into(),
        )),
    }
}

/// From features to some numbers per action, in one stream or two (Wang et al. 2016).
#[derive(Clone, Debug)]
pub struct QHead {
    advantage: Stream,
    value: Option<Stream>,
    /// Factor on the gradient that goes into the features of a dueling head.
    gradient: f64,
    /// Whether [`forward`](QHead::forward) uses the legal actions.
    pub legal: bool,
    /// Number of actions (A).
    pub actions: usize,
    /// Numbers per action.
    pub outputs: usize,
    /// Numbers of noise that one row needs; 0 without noisy layers.
    pub noise: usize,
}

impl QHead {
    /// Adds the head's parameters to a layout; `prefix` stands before their names.
    pub fn new(
        layout: &mut Layout,
        config: &QNetConfig,
        prefix: &str,
        features: usize,
        actions: usize,
        outputs: usize,
    ) -> Self {
        let mut noise = 0;
        let mut stream = |name: &str, outputs, bias| {
            let name = format!("{prefix}{name}");
            Stream::new(layout, &mut noise, config, &name, (features, outputs), bias)
        };
        let advantage = stream("advantage", actions * outputs, config.advantage_bias);
        let value = config.dueling.then(|| stream("value", outputs, true));
        Self {
            advantage,
            value,
            gradient: config.dueling_gradient,
            legal: config.dueling && config.dueling_legal,
            actions,
            outputs,
            noise,
        }
    }

    /// Numbers `[.., A, outputs]` for features `[.., F]`. `legal` `[.., A]` holds 1 for legal
    /// actions, and is only looked at if the head [wants it](QHead::legal): then the numbers of
    /// illegal actions mean nothing.
    pub fn forward(
        &self,
        params: &Params,
        features: &Tensor,
        noise: Option<&Tensor>,
        legal: Option<&Tensor>,
    ) -> Tensor {
        let scaled = (self.value.is_some() && self.gradient != 1.0).then(|| {
            let through = features * self.gradient;
            through + (features * (1.0 - self.gradient)).detach()
        });
        let features = scaled.as_ref().unwrap_or(features);
        let mut shape = features.size();
        shape.pop();
        shape.extend([self.actions as i64, self.outputs as i64]);
        let advantage = self.advantage.forward(params, features, noise);
        let advantage = advantage.reshape(&shape[..]);
        let advantage = match legal.filter(|_| self.legal) {
            Some(legal) => advantage * legal.ne(0).unsqueeze(-1),
            None => advantage,
        };
        match &self.value {
            None => advantage,
            Some(value) => {
                let mean = advantage.mean_dim([-2].as_slice(), true, Kind::Float);
                let value = value.forward(params, features, noise).unsqueeze(-2);
                advantage + (value - mean)
            }
        }
    }
}

impl QHead {
    /// Numbers `[.., A, outputs]` in a graph for features `[.., F]`, without noise; `legal` `[N, A]`.
    pub fn export(
        &self,
        graph: &mut Graph,
        params: &Params,
        features: &Exported,
        legal: Option<&Exported>,
    ) -> Exported {
        let mut shape = features.shape.clone();
        shape.pop();
        shape.extend([self.actions as i64, self.outputs as i64]);
        let actions = shape.len() - 2;
        let mut advantage = self.advantage.export(graph, params, features);
        advantage = graph.reshape(&advantage, &shape);
        if let Some(legal) = legal.filter(|_| self.legal) {
            // [N, A] to [N, 1, …, A, 1].
            let mut legal = graph.cast(legal, crate::export::Element::Bool);
            legal = graph.cast(&legal, crate::export::Element::F32);
            for _ in 1..actions {
                legal = graph.unsqueeze(&legal, 1);
            }
            legal = graph.unsqueeze(&legal, actions + 1);
            advantage = graph.mul(&advantage, &legal);
        }
        let Some(value) = &self.value else {
            return advantage;
        };
        let value = value.export(graph, params, features);
        let value = graph.unsqueeze(&value, actions);
        let mean = graph.mean(&advantage, actions, true);
        let level = graph.sub(&value, &mean);
        graph.add(&advantage, &level)
    }
}

/// The layers from features to one kind of output.
#[derive(Clone, Debug)]
struct Stream {
    layers: Vec<Layer>,
    activation: Activation,
}

#[derive(Clone, Debug)]
enum Layer {
    Plain(Linear),
    /// Weights without biases.
    Unbiased(ParamId),
    Noisy(NoisyLinear),
}

impl Stream {
    fn new(
        layout: &mut Layout,
        noise: &mut usize,
        config: &QNetConfig,
        name: &str,
        (features, outputs): (usize, usize),
        last_bias: bool,
    ) -> Self {
        let mut layer = |name: &str, inputs, outputs, gain, bias| match config.noisy_sigma {
            Some(sigma) => {
                let by_outputs = config.noisy_bias_by_outputs;
                let layer =
                    NoisyLinear::new(layout, noise, name, inputs, outputs, sigma, by_outputs);
                Layer::Noisy(layer)
            }
            None => {
                let init = layer_init(config.orthogonal, inputs, gain);
                match bias {
                    true => Layer::Plain(Linear::new(layout, name, inputs, outputs, init)),
                    false => {
                        let name = format!("{name}.weight");
                        Layer::Unbiased(layout.add(name, &[outputs, inputs], init))
                    }
                }
            }
        };
        let mut layers = Vec::new();
        let mut inputs = features;
        if config.head_hidden > 0 {
            let gain = std::f64::consts::SQRT_2;
            let hidden = format!("{name}.hidden");
            layers.push(layer(&hidden, inputs, config.head_hidden, gain, true));
            inputs = config.head_hidden;
        }
        layers.push(layer(name, inputs, outputs, 1.0, last_bias));
        Self {
            layers,
            activation: config.activation,
        }
    }

    fn forward(&self, params: &Params, x: &Tensor, noise: Option<&Tensor>) -> Tensor {
        let mut x = x.shallow_clone();
        for (i, layer) in self.layers.iter().enumerate() {
            if i > 0 {
                x = self.activation.apply(&x);
            }
            x = match layer {
                Layer::Plain(linear) => linear.forward(params, &x),
                Layer::Unbiased(weight) => x.linear(params.get(*weight), None::<Tensor>),
                Layer::Noisy(linear) => linear.forward(params, &x, noise),
            };
        }
        x
    }
}

impl Stream {
    fn export(&self, graph: &mut Graph, params: &Params, x: &Exported) -> Exported {
        let mut x = x.clone();
        for (i, layer) in self.layers.iter().enumerate() {
            if i > 0 {
                x = self.activation.export(graph, &x);
            }
            x = match layer {
                Layer::Plain(linear) => linear.export(graph, params, &x),
                Layer::Unbiased(weight) => {
                    let weight = graph.weight(params, *weight);
                    graph.linear(&x, &weight, None)
                }
                Layer::Noisy(linear) => linear.export(graph, params, &x),
            };
        }
        x
    }
}

/// Features that depend on a quantile fraction τ (Dabney et al. 2018, "IQN"):
/// features ⊙ relu(W cos(π i τ) + b) with i = 1, …, cosines.
#[derive(Clone, Debug)]
pub struct QuantileEmbedding {
    linear: Linear,
    cosines: i64,
}

impl QuantileEmbedding {
    /// Adds the embedding's parameters to a layout.
    pub fn new(layout: &mut Layout, features: usize, cosines: usize) -> Self {
        let init = Init::FanIn { fan_in: cosines };
        Self {
            linear: Linear::new(layout, "quantiles", cosines, features, init),
            cosines: cosines as i64,
        }
    }

    /// Features `[N, K, F]` from features `[N, F]` and fractions `[N or 1, K]`.
    pub fn forward(&self, params: &Params, features: &Tensor, fractions: &Tensor) -> Tensor {
        let steps = (Kind::Float, fractions.device());
        let steps = Tensor::arange_start(1, self.cosines + 1, steps) * PI;
        let waves = (fractions.unsqueeze(-1) * steps).cos();
        self.linear.forward(params, &waves).relu() * features.unsqueeze(1)
    }

    /// Features `[N, K, F]` in a graph, at fixed fractions `[1, K]`.
    pub fn export(
        &self,
        graph: &mut Graph,
        params: &Params,
        features: &Exported,
        fractions: &Tensor,
    ) -> Exported {
        let size = features.shape.last().copied().unwrap_or(1);
        let ones = Tensor::ones([1, size], (Kind::Float, fractions.device()));
        // The factors do not depend on the observation.
        let factors = tch::no_grad(|| self.forward(params, &ones, fractions));
        let factors = graph.constant(&factors);
        let features = graph.unsqueeze(features, 1);
        graph.mul(&features, &factors)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use starling_envs::stream;
    use std::sync::Arc;
    use tch::Device;

    fn network(config: &QNetConfig, outputs: usize) -> (QNetwork, Params) {
        let mut layout = Layout::default();
        let (obs, actions) = (Space::unbounded(&[2]), Space::Discrete { n: 3 });
        let net = QNetwork::new(&mut layout, config, &obs, &actions, outputs).unwrap();
        let params = Params::init(&Arc::new(layout), &mut stream(1, "init", 0), Device::Cpu);
        (net, params)
    }

    #[test]
    fn dueling_advantages_have_mean_zero() {
        for noisy_sigma in [None, Some(0.5)] {
            let config = QNetConfig {
                dueling: true,
                head_hidden: 5,
                noisy_sigma,
                ..QNetConfig::default()
            };
            let (net, params) = network(&config, 4);
            let x = Tensor::from_slice(&[0.3f32, -0.2]).reshape([1, 2]);
            let mut rngs = [stream(1, "policy", 0)];
            let noise = crate::draw_noise(net.head.noise, &mut rngs, Device::Cpu);
            let noise = noisy_sigma.map(|_| &noise);
            let q = net.forward(&params, &Tree::Leaf(x.shallow_clone()), noise, None);
            assert_eq!(q.size(), [1, 3, 4]);
            let value = net.head.value.as_ref().unwrap();
            let features = net.look(&params, &Tree::Leaf(x));
            let value = value.forward(&params, &features, noise);
            let mean = q.mean_dim([1].as_slice(), false, Kind::Float);
            assert!((mean - value).abs().max().double_value(&[]) < 1e-6);
        }
    }

    /// A head without hidden layers over one feature of 1: its advantages are the weights 1, 2 and
    /// 6 plus biases of 0, its value is 10. All count: the mean is 3. With the second illegal:
    /// (1 + 0 + 6) / 3.
    #[test]
    fn illegal_advantages_may_count_as_zero() {
        for (dueling_legal, mean) in [(false, 3.0), (true, 7.0 / 3.0)] {
            let config = QNetConfig {
                dueling: true,
                dueling_legal,
                ..QNetConfig::default()
            };
            let mut layout = Layout::default();
            let head = QHead::new(&mut layout, &config, "", 1, 3, 1);
            let params = Params::zeros(&Arc::new(layout), Device::Cpu);
            let weights = [1.0, 2.0, 6.0, 0.0, 0.0, 0.0, 10.0, 0.0];
            params.load_slice(&weights).unwrap();
            let one = Tensor::from_slice(&[1f32]).reshape([1, 1]);
            let legal = Tensor::from_slice(&[1u8, 0, 1]).reshape([1, 3]);
            let q = head.forward(&params, &one, None, Some(&legal));
            for (action, advantage) in [(0, 1.0), (2, 6.0)] {
                let expected = 10.0 + advantage - mean;
                assert!((q.double_value(&[0, action, 0]) - expected).abs() < 1e-5);
            }
        }
    }

    /// What comes out is the same but for rounding, what goes back into the torso is scaled, and
    /// the gradient of the head is not.
    #[test]
    fn dueling_heads_can_scale_the_gradient_of_the_torso() {
        let gradient_of = |factor: f64| {
            let config = QNetConfig {
                hidden: Some(vec![4]),
                dueling: true,
                dueling_gradient: factor,
                advantage_bias: false,
                ..QNetConfig::default()
            };
            let (net, params) = network(&config, 1);
            let params = params.trainable();
            let x = Tensor::from_slice(&[0.3f32, -0.2]).reshape([1, 2]);
            let q = net.forward(&params, &Tree::Leaf(x), None, None);
            let loss = q.select(1, 0).sum(Kind::Float);
            (params.gradient(&loss), loss.double_value(&[]))
        };
        let (whole, value) = gradient_of(1.0);
        let (scaled, same) = gradient_of(0.5);
        assert!((value - same).abs() < 1e-6);
        // The torso comes first: 2·4 weights and 4 biases. Then 4·3 weights of advantages, which
        // have no biases, and 4 weights and a bias of the value.
        assert_eq!(whole.size(), [12 + 12 + 5]);
        let torso = (whole.narrow(0, 0, 12) * 0.5 - scaled.narrow(0, 0, 12)).abs();
        assert!(torso.max().double_value(&[]) < 1e-6);
        assert!(whole.narrow(0, 0, 12).abs().max().double_value(&[]) > 1e-3);
        let head = (whole.narrow(0, 12, 17) - scaled.narrow(0, 12, 17)).abs();
        assert!(head.max().double_value(&[]) < 1e-6);
    }

    /// One cosine, weight 2, bias 0: at τ = 0.25 the factor is 2·cos(π/4), at τ = 0.75 it is
    /// negative and cut off.
    #[test]
    fn the_quantile_embedding_by_hand() {
        let mut layout = Layout::default();
        let embedding = QuantileEmbedding::new(&mut layout, 1, 1);
        let params = Params::zeros(&Arc::new(layout), Device::Cpu);
        params.load_slice(&[2.0, 0.0]).unwrap();
        let features = Tensor::from_slice(&[3f32]).reshape([1, 1]);
        let fractions = Tensor::from_slice(&[0.25f32, 0.75]).reshape([1, 2]);
        let out = embedding.forward(&params, &features, &fractions);
        assert_eq!(out.size(), [1, 2, 1]);
        let expected = 3.0 * 2.0 * (PI / 4.0).cos();
        assert!((out.double_value(&[0, 0, 0]) - expected).abs() < 1e-5);
        assert_eq!(out.double_value(&[0, 1, 0]), 0.0);
    }
}
