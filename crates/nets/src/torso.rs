//! From observations to features.

use std::path::Path;

use serde::{Deserialize, Serialize};
use starling_envs::Space;
use starling_tree::{DType, Tree};
use tch::{Kind, Tensor};

use crate::script::Script;
use crate::{
    Activation, Conv2d, Init, LayerNorm, Layout, Linear, Moments, NetConfig, Params, RunningNorm,
    ShapeMismatch, layers::pad_same,
};

/// The network that processes observations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TorsoKind {
    /// `nature` for images of 64×64 and more, `minatar` for smaller ones, `mlp` for vectors.
    #[default]
    Auto,
    /// Fully connected layers over everything, laid flat.
    Mlp,
    /// One convolution of 16 filters, 3×3: for grids of about 10×10 (Young and Tian 2019).
    MinAtar,
    /// Three convolutions, of 32 filters 8×8, 64 4×4 and 64 3×3 (Mnih et al. 2015).
    Nature,
    /// The same three with padding: 7744 features of 84×84 (the multi-learner IMPALA's
    /// SimpleConv).
    SimpleConv,
    /// Two convolutions, of 16 filters 8×8 and 32 4×4, and 256 hidden units: IMPALA's shallow
    /// network (Espeholt et al. 2018).
    Shallow,
    /// IMPALA's deep network: three sections of 16, 32 and 32 filters, each a convolution, a
    /// pool and two residual blocks, and 256 hidden units.
    ResNet,
}

/// What is added around an image before a convolution.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "expected `same`, or a list with the padding of each convolution"
)]
pub enum Padding {
    /// A rule for all convolutions and pools.
    Rule(PaddingRule),
    /// Zeros on each side, one number per convolution.
    Zeros(Vec<usize>),
}

/// A rule that gives every convolution and pool its padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PaddingRule {
    /// TensorFlow's `SAME`: ⌈side / stride⌉ outputs per side; where the padding is odd, the extra
    /// row and column come last.
    Same,
}

/// A network from one observation to a vector of features.
///
/// Images pass convolutions, everything else goes straight on; the parts of an observation are
/// laid side by side and pass the fully connected layers together.
#[derive(Clone, Debug)]
pub struct Torso {
    inputs: Tree<Input>,
    hidden: Vec<(Linear, Option<LayerNorm>)>,
    activation: Activation,
    /// A user's own network instead of all this.
    script: Option<Script>,
    /// Size of the features.
    pub features: usize,
}

/// How one array of an observation is prepared.
#[derive(Clone, Debug, Default)]
struct Input {
    stages: Vec<Stage>,
    /// Numbers without a fixed range are normalised to mean 0 and standard deviation 1.
    norm: Option<RunningNorm>,
    /// Bytes are scaled to the range from 0 to 1.
    scale: Option<f64>,
    /// Choices become one-hot vectors.
    choices: Option<Vec<usize>>,
    /// Compute in bfloat16.
    half: bool,
    /// Pixels of an image lie together in memory, not channels.
    channels_last: bool,
}

/// A part of a convolutional network, and the nonlinearity after it.
#[derive(Clone, Debug)]
enum Stage {
    Plain(Conv2d, Option<LayerNorm>),
    /// A convolution, a pool of half the size, and two residual blocks; the nonlinearity comes
    /// at the beginning of what follows.
    Residual {
        convolution: Conv2d,
        /// The pool pads as TensorFlow's `SAME` does.
        same: bool,
        blocks: [(Conv2d, Conv2d); 2],
    },
    Relu,
}

impl Torso {
    /// A torso for observations of a space. Where the sizes of the fully connected layers are
    /// not given, it takes the usual ones of the kind: 64-64, 128, 256, 512.
    pub fn new(
        layout: &mut Layout,
        name: &str,
        space: &Space,
        config: &NetConfig,
    ) -> Result<Self, ShapeMismatch> {
        if let Some(path) = &config.torchscript {
            let script = Script::load(layout, name, Path::new(path), space)?;
            return Ok(Self {
                inputs: Tree::empty(),
                hidden: Vec::new(),
                activation: config.activation,
                features: script.features,
                script: Some(script),
            });
        }
        let mut builder = Builder {
            layout,
            config,
            path: vec![name.to_owned()],
            flat: 0,
            usual: &[64, 64],
        };
        let inputs = builder.inputs(space)?;
        let Builder {
            mut flat, usual, ..
        } = builder;
        let leaves = inputs.leaves();
        if config.width != 1 && leaves.iter().all(|(_, input)| input.stages.is_empty()) {
            return Err(ShapeMismatch(
                "net.width multiplies the filters of convolutions, and this network has none; \
                 use net.hidden"
                    .into(),
            ));
        }
        if config.padding.is_some() && leaves.iter().all(|(_, input)| input.stages.is_empty()) {
            return Err(ShapeMismatch(
                "net.padding is for convolutions, and this network has none; set it to null".into(),
            ));
        }
        if config.normalize_observations && leaves.iter().all(|(_, input)| input.norm.is_none()) {
            return Err(ShapeMismatch(
                "net.normalize_observations is for arrays of floats, and these observations have \
                 none: bytes and choices have a fixed range"
                    .into(),
            ));
        }
        let mut hidden = Vec::new();
        for (i, &size) in config.hidden.as_deref().unwrap_or(usual).iter().enumerate() {
            let init = layer_init(config.orthogonal, flat, HIDDEN_GAIN);
            let linear = Linear::new(layout, &format!("{name}.hidden{i}"), flat, size, init);
            let norm = config.layer_norm.then(|| {
                let name = format!("{name}.hidden{i}_norm");
                LayerNorm::new(layout, &name, &[size])
            });
            hidden.push((linear, norm));
            flat = size;
        }
        Ok(Self {
            inputs,
            hidden,
            activation: config.activation,
            script: None,
            features: flat,
        })
    }

    /// Features `[N, features]` of observations with one leading dimension `[N, ..]`.
    pub fn forward(&self, params: &Params, obs: &Tree<Tensor>) -> Tensor {
        if let Some(script) = &self.script {
            return script.forward(params, obs);
        }
        let mut parts = Vec::new();
        visit(&self.inputs, obs, &mut |input, x| {
            parts.push(input.forward(params, x));
        });
        let mut x = match parts.len() {
            1 => parts.remove(0),
            _ => Tensor::cat(&parts, -1),
        };
        for (linear, norm) in &self.hidden {
            x = normed(norm.as_ref(), params, linear.forward(params, &x));
            x = self.activation.apply(&x);
        }
        x.to_kind(Kind::Float)
    }

    /// What observations `[N, ..]` bring to its running statistics, if it keeps any.
    pub fn seen(&self, obs: &Tree<Tensor>) -> Vec<(RunningNorm, Moments)> {
        let mut seen = Vec::new();
        if self.script.is_none() {
            visit(&self.inputs, obs, &mut |input, x| {
                let norm = input.norm.as_ref();
                seen.extend(norm.map(|norm| (norm.clone(), norm.moments(x))));
            });
        }
        seen
    }
}

/// √2, for layers with a rectifier after them.
const HIDDEN_GAIN: f64 = std::f64::consts::SQRT_2;

fn visit(inputs: &Tree<Input>, obs: &Tree<Tensor>, see: &mut dyn FnMut(&Input, &Tensor)) {
    match (inputs, obs) {
        (Tree::Leaf(input), Tree::Leaf(x)) => see(input, x),
        (Tree::Node(inputs), Tree::Node(obs)) => {
            for ((_, input), (_, x)) in inputs.iter().zip(obs) {
                visit(input, x, see);
            }
        }
        _ => panic!("the observation has another structure than the space of this network"),
    }
}

fn normed(norm: Option<&LayerNorm>, params: &Params, x: Tensor) -> Tensor {
    match norm {
        Some(norm) => norm.forward(params, &x),
        None => x,
    }
}

impl Input {
    fn forward(&self, params: &Params, x: &Tensor) -> Tensor {
        let kind = if self.half {
            Kind::BFloat16
        } else {
            Kind::Float
        };
        if let Some(choices) = &self.choices {
            return one_hot(x, choices).to_kind(kind);
        }
        let (mut x, stages) = match self.stages.split_first() {
            Some((Stage::Plain(first, norm), others))
                if self.channels_last && self.norm.is_none() && first.has_blocks() =>
            {
                let scale = self.scale.unwrap_or(1.0);
                let x = first.forward_blocks(params, x, scale, kind);
                (normed(norm.as_ref(), params, x).relu(), others)
            }
            _ => (self.prepare(params, x, kind), &self.stages[..]),
        };
        for stage in stages {
            x = stage.forward(params, &x);
        }
        x.reshape([x.size()[0], -1])
    }

    /// Numbers in the range, kind and memory order of the first stage.
    fn prepare(&self, params: &Params, x: &Tensor, kind: Kind) -> Tensor {
        let mut x = x.to_kind(Kind::Float);
        if let Some(norm) = &self.norm {
            x = norm.forward(params, &x);
        }
        if let Some(scale) = self.scale {
            x *= scale;
        }
        x = x.to_kind(kind);
        if self.channels_last && !self.stages.is_empty() {
            x = x.permute([0, 2, 3, 1]).contiguous().permute([0, 3, 1, 2]);
        }
        x
    }
}

impl Stage {
    fn forward(&self, params: &Params, x: &Tensor) -> Tensor {
        match self {
            Stage::Plain(convolution, norm) => {
                normed(norm.as_ref(), params, convolution.forward(params, x)).relu()
            }
            Stage::Residual {
                convolution,
                same,
                blocks,
            } => {
                let x = convolution.forward(params, x);
                let mut x = match same {
                    false => x.max_pool2d([3; 2], [2; 2], [1; 2], [1; 2], false),
                    true => {
                        let x = pad_same(&x, 3, 2, f64::NEG_INFINITY);
                        x.max_pool2d([3; 2], [2; 2], [0; 2], [1; 2], false)
                    }
                };
                for (first, second) in blocks {
                    let y = first.forward(params, &x.relu());
                    x = second.forward(params, &y.relu()) + x;
                }
                x
            }
            Stage::Relu => x.relu(),
        }
    }
}

/// `gain` under orthogonal initialisation, PyTorch's default otherwise.
pub(crate) fn layer_init(orthogonal: bool, fan_in: usize, gain: f64) -> Init {
    if orthogonal {
        Init::Orthogonal { gain }
    } else {
        Init::FanIn { fan_in }
    }
}

/// Choices `[N, ..]` as vectors with one 1 each, laid side by side: `[N, Σ choices]`.
fn one_hot(x: &Tensor, choices: &[usize]) -> Tensor {
    let lead = x.size()[0];
    let x = x.reshape([lead, choices.len() as i64]);
    let parts = choices.iter().enumerate();
    // Comparing, unlike libtorch's own one_hot, never looks at the numbers on the host.
    let parts: Vec<Tensor> = parts
        .map(|(i, &n)| {
            let numbers = Tensor::arange(n as i64, (Kind::Int64, x.device()));
            x.narrow(1, i as i64, 1).eq_tensor(&numbers)
        })
        .collect();
    Tensor::cat(&parts, -1).to_kind(Kind::Float)
}

/// Adds the parameters of all inputs to a layout.
struct Builder<'a> {
    layout: &'a mut Layout,
    config: &'a NetConfig,
    path: Vec<String>,
    /// Features of the inputs so far.
    flat: usize,
    /// Usual sizes of the fully connected layers.
    usual: &'static [usize],
}

impl Builder<'_> {
    fn inputs(&mut self, space: &Space) -> Result<Tree<Input>, ShapeMismatch> {
        let choices = match space {
            Space::Dict(parts) => {
                let mut children = Vec::new();
                for (name, part) in parts {
                    self.path.push(name.clone());
                    let child = self.inputs(part)?;
                    self.path.pop();
                    children.push((name.clone(), child));
                }
                return Ok(Tree::Node(children));
            }
            Space::Discrete { n } => vec![*n],
            Space::MultiDiscrete { choices } => choices.clone(),
            Space::Box {
                dtype,
                shape,
                bounds,
            } => {
                let name = self.path.join(".");
                let mut input = self.input();
                match dtype {
                    DType::U8 => input.scale = Some(1.0 / f64::from(bounds.of(0).1.max(1.0))),
                    _ if self.config.normalize_observations => {
                        let name = format!("{name}.seen");
                        input.norm = Some(RunningNorm::new(self.layout, &name, shape));
                    }
                    _ => {}
                }
                match (resolve(self.config.torso, shape), shape.as_slice()) {
                    (TorsoKind::Mlp, _) => self.flat += shape.iter().product::<usize>(),
                    (kind, &[channels, height, width]) => {
                        let image = [channels, height, width];
                        self.check_padding(kind)?;
                        input.stages = self.stages(&name, kind, image).ok_or_else(|| {
                            ShapeMismatch(format!(
                                "an image of {height}×{width} is too small for this network"
                            ))
                        })?;
                    }
                    _ => {
                        return Err(ShapeMismatch(format!(
                            "a convolution needs observations [channels, height, width], not \
                             {shape:?}"
                        )));
                    }
                }
                return Ok(Tree::Leaf(input));
            }
        };
        self.flat += choices.iter().sum::<usize>();
        Ok(Tree::Leaf(Input {
            choices: Some(choices),
            ..self.input()
        }))
    }

    fn input(&self) -> Input {
        Input {
            half: self.config.bf16,
            channels_last: self.config.channels_last,
            ..Input::default()
        }
    }

    /// Refuses a list of paddings that does not have one number per convolution.
    fn check_padding(&self, kind: TorsoKind) -> Result<(), ShapeMismatch> {
        let Some(Padding::Zeros(sizes)) = &self.config.padding else {
            return Ok(());
        };
        let refuse = |why: String| Err(ShapeMismatch(format!("net.padding is {sizes:?}; {why}")));
        if kind == TorsoKind::ResNet {
            return refuse("for the torso `resnet` it must be null or `same`".into());
        }
        let count = plain_stages(kind).0.len();
        match sizes.len() == count && sizes.iter().all(|&size| size <= 64) {
            true => Ok(()),
            false => refuse(format!(
                "this torso has {count} convolutions: it must have {count} numbers of at most 64"
            )),
        }
    }

    /// The convolutional part; `None` if the image is too small.
    fn stages(&mut self, name: &str, kind: TorsoKind, image: [usize; 3]) -> Option<Vec<Stage>> {
        let mut stages = Vec::new();
        let same = self.config.padding == Some(Padding::Rule(PaddingRule::Same));
        let [mut channels, mut height, mut width] = image;
        if kind == TorsoKind::ResNet {
            self.usual = &[256];
            for (i, filters) in [16, 32, 32].into_iter().enumerate() {
                let filters = filters * self.config.width;
                let mut convolution = |layer: &str, inputs: usize| {
                    let init = layer_init(self.config.orthogonal, inputs * 9, HIDDEN_GAIN);
                    let name = format!("{name}.section{i}.{layer}");
                    Conv2d::new(self.layout, &name, inputs, filters, 3, 1, init).padded(1)
                };
                let first = convolution("conv", channels);
                let mut block = |number: usize| {
                    let mut half =
                        |half| convolution(&format!("block{number}.conv{half}"), filters);
                    (half(0), half(1))
                };
                let blocks = [block(0), block(1)];
                stages.push(Stage::Residual {
                    convolution: first,
                    same,
                    blocks,
                });
                (channels, height, width) = (filters, height.div_ceil(2), width.div_ceil(2));
            }
            stages.push(Stage::Relu);
        } else {
            let (filters, usual) = plain_stages(kind);
            self.usual = usual;
            for (i, &(filters, kernel, stride, padding)) in filters.iter().enumerate() {
                let filters = filters * self.config.width;
                let fan_in = channels * kernel * kernel;
                let init = layer_init(self.config.orthogonal, fan_in, HIDDEN_GAIN);
                let name = format!("{name}.conv{i}");
                let layout = &mut *self.layout;
                let layer = Conv2d::new(layout, &name, channels, filters, kernel, stride, init);
                let layer = match &self.config.padding {
                    None => layer.padded(padding),
                    Some(Padding::Rule(PaddingRule::Same)) => layer.padded_same(),
                    Some(Padding::Zeros(sizes)) => layer.padded(sizes[i]),
                };
                let output = layer.output(height, width)?;
                let norm = self.config.layer_norm.then(|| {
                    let name = format!("{name}_norm");
                    LayerNorm::new(self.layout, &name, &output)
                });
                stages.push(Stage::Plain(layer, norm));
                [channels, height, width] = output;
            }
        }
        self.flat += channels * height * width;
        Some(stages)
    }
}

/// What `auto` means for an array of a shape.
fn resolve(kind: TorsoKind, shape: &[usize]) -> TorsoKind {
    match (kind, shape) {
        (TorsoKind::Auto, &[_, height, width]) if height >= 64 && width >= 64 => TorsoKind::Nature,
        (TorsoKind::Auto, &[_, height, width]) if height >= 3 && width >= 3 => TorsoKind::MinAtar,
        (TorsoKind::Auto, _) => TorsoKind::Mlp,
        (kind, _) => kind,
    }
}

/// (filters, kernel, stride, padding) of each convolution.
type Filters = &'static [(usize, usize, usize, usize)];

/// The convolutions of a kind without residual blocks, and the usual fully connected layers.
fn plain_stages(kind: TorsoKind) -> (Filters, &'static [usize]) {
    match kind {
        TorsoKind::MinAtar => (&[(16, 3, 1, 0)], &[128]),
        TorsoKind::SimpleConv => (&[(32, 8, 4, 2), (64, 4, 2, 2), (64, 3, 1, 1)], &[512]),
        TorsoKind::Shallow => (&[(16, 8, 4, 0), (32, 4, 2, 0)], &[256]),
        _ => (&[(32, 8, 4, 0), (64, 4, 2, 0), (64, 3, 1, 0)], &[512]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use starling_envs::stream;
    use std::sync::Arc;
    use tch::Device;

    fn features(config: &NetConfig) -> usize {
        let space = Space::bytes(&[4, 84, 84], 255);
        let torso = Torso::new(&mut Layout::default(), "t", &space, config);
        torso.unwrap().features
    }

    /// Before and after their fully connected layers.
    #[test]
    fn networks_for_pictures_have_the_published_sizes() {
        for (torso, flat, usual) in [
            (TorsoKind::Auto, 3136, 512),
            (TorsoKind::Nature, 3136, 512),
            (TorsoKind::SimpleConv, 7744, 512),
            (TorsoKind::Shallow, 2592, 256),
            (TorsoKind::ResNet, 3872, 256),
        ] {
            let mut config = NetConfig {
                torso,
                ..NetConfig::default()
            };
            assert_eq!(features(&config), usual, "{torso:?}");
            config.hidden = Some(vec![]);
            assert_eq!(features(&config), flat, "{torso:?}");
            config.width = 2;
            assert_eq!(features(&config), 2 * flat, "{torso:?}");
        }
    }

    /// The networks of rlpyt on its pictures of 104×80, and those of IMPALA with TensorFlow's
    /// padding, whose sizes are the same.
    #[test]
    fn padding_gives_the_published_sizes() {
        let rlpyt = Space::bytes(&[4, 104, 80], 255);
        let usual = Space::bytes(&[4, 84, 84], 255);
        let zeros = |sizes: &[usize]| Some(Padding::Zeros(sizes.to_vec()));
        let same = Some(Padding::Rule(PaddingRule::Same));
        for (torso, padding, space, flat) in [
            (TorsoKind::Nature, zeros(&[0, 1, 1]), &rlpyt, 6912),
            (TorsoKind::Shallow, zeros(&[0, 1]), &rlpyt, 3456),
            (TorsoKind::Nature, zeros(&[1, 0, 0]), &usual, 3136),
            (TorsoKind::SimpleConv, same.clone(), &usual, 7744),
            (TorsoKind::ResNet, same.clone(), &usual, 3872),
        ] {
            let config = NetConfig {
                torso,
                padding: padding.clone(),
                hidden: Some(vec![]),
                ..NetConfig::default()
            };
            let mut layout = Layout::default();
            let torso = Torso::new(&mut layout, "t", space, &config).unwrap();
            assert_eq!(torso.features, flat, "{padding:?}");
            let params = Params::init(&Arc::new(layout), &mut stream(1, "init", 0), Device::Cpu);
            let shape = [&[2], space.spec().leaf().unwrap().shape.as_slice()].concat();
            let shape: Vec<i64> = shape.iter().map(|&n| n as i64).collect();
            let image = Tensor::ones(&shape, (Kind::Uint8, Device::Cpu));
            let features = torso.forward(&params, &Tree::Leaf(image));
            assert_eq!(features.size(), [2, flat as i64], "{padding:?}");
        }
        let refused = |torso, padding| {
            let config = NetConfig {
                torso,
                padding,
                ..NetConfig::default()
            };
            let torso = Torso::new(&mut Layout::default(), "t", &usual, &config);
            torso.unwrap_err().0
        };
        let message = refused(TorsoKind::Nature, zeros(&[0, 1]));
        assert!(message.contains("must have 3 numbers"), "{message}");
        let message = refused(TorsoKind::ResNet, zeros(&[1, 1, 1]));
        assert!(message.contains("`same`"), "{message}");
        let message = refused(TorsoKind::Mlp, same);
        assert!(message.contains("has none"), "{message}");
    }

    #[test]
    fn padding_is_a_word_or_a_list() {
        let read = |text: &str| serde_json::from_str::<Padding>(text);
        assert_eq!(read("\"same\"").unwrap(), Padding::Rule(PaddingRule::Same));
        assert_eq!(read("[0, 1]").unwrap(), Padding::Zeros(vec![0, 1]));
        assert!(
            read("\"valid\"")
                .unwrap_err()
                .to_string()
                .contains("`same`")
        );
    }

    /// Every kind gives as many features as it says, with layer normalisation too.
    #[test]
    fn pictures_pass_every_network() {
        for torso in [TorsoKind::SimpleConv, TorsoKind::Shallow, TorsoKind::ResNet] {
            let config = NetConfig {
                torso,
                layer_norm: true,
                ..NetConfig::default()
            };
            let mut layout = Layout::default();
            let space = Space::bytes(&[1, 40, 36], 255);
            let torso = Torso::new(&mut layout, "t", &space, &config).unwrap();
            let params = Params::init(&Arc::new(layout), &mut stream(1, "init", 0), Device::Cpu);
            let obs = Tensor::zeros([3, 1, 40, 36], (Kind::Uint8, Device::Cpu));
            let out = torso.forward(&params, &Tree::Leaf(obs));
            assert_eq!(out.size(), [3, torso.features as i64]);
        }
    }

    /// However an image lies in memory, features and gradients are the same. Sizes are
    /// multiples of the stride or not.
    #[test]
    fn the_order_in_memory_changes_nothing() {
        for (torso, width) in [
            (TorsoKind::Nature, 43),
            (TorsoKind::Nature, 44),
            (TorsoKind::Shallow, 42),
            (TorsoKind::ResNet, 43),
        ] {
            let space = Space::bytes(&[3, 52, width], 255);
            let outcome = |channels_last: bool| {
                let config = NetConfig {
                    torso,
                    channels_last,
                    ..NetConfig::default()
                };
                let mut layout = Layout::default();
                let torso = Torso::new(&mut layout, "t", &space, &config).unwrap();
                let rng = &mut stream(1, "init", 0);
                let params = Params::init(&Arc::new(layout), rng, Device::Cpu).trainable();
                let size = [2, 3, 52, width as i64];
                let pixels =
                    Tensor::arange(size.iter().product::<i64>(), (Kind::Int64, Device::Cpu));
                let pixels = (pixels * 7919).remainder(256).to_kind(Kind::Uint8);
                let obs = Tree::Leaf(pixels.reshape(size));
                let features = torso.forward(&params, &obs);
                let gradient = params.gradient(&features.square().sum(Kind::Float));
                (features.detach(), gradient)
            };
            let ((features, gradient), (others, its)) = (outcome(false), outcome(true));
            // Sums in another order differ in their last digits.
            let difference = |a: &Tensor, b: &Tensor| ((a - b).norm() / a.norm()).double_value(&[]);
            assert!(features.max().double_value(&[]) > 0.01, "{torso:?}");
            let (of_features, of_gradient) =
                (difference(&features, &others), difference(&gradient, &its));
            assert!(of_features < 1e-5, "{torso:?}: {of_features}");
            assert!(of_gradient < 1e-4, "{torso:?}: {of_gradient}");
        }
    }

    #[test]
    fn settings_without_effect_are_refused() {
        let refused = |config: NetConfig, space: &Space| {
            let torso = Torso::new(&mut Layout::default(), "t", space, &config);
            torso.unwrap_err().to_string()
        };
        let config = NetConfig {
            width: 2,
            ..NetConfig::default()
        };
        assert!(refused(config, &Space::unbounded(&[3])).contains("net.width"));
        let config = NetConfig {
            normalize_observations: true,
            ..NetConfig::default()
        };
        let message = refused(config, &Space::bytes(&[4, 84, 84], 255));
        assert!(message.contains("net.normalize_observations"), "{message}");
    }

    /// Observations with mean 5 and deviation 2 reach the layers with mean 0 and deviation 1.
    #[test]
    fn observations_are_normalised_by_what_was_seen() {
        let config = NetConfig {
            normalize_observations: true,
            hidden: Some(vec![]),
            ..NetConfig::default()
        };
        let mut layout = Layout::default();
        let torso = Torso::new(&mut layout, "t", &Space::unbounded(&[1]), &config).unwrap();
        let params = Params::init(&Arc::new(layout), &mut stream(1, "init", 0), Device::Cpu);
        let obs = Tree::Leaf(Tensor::from_slice(&[3f32, 7.0]).reshape([2, 1]));
        for (norm, moments) in torso.seen(&obs) {
            norm.merge(&params, &moments);
        }
        let out = torso.forward(&params, &obs).reshape([-1]);
        let out = Vec::<f32>::try_from(out).unwrap();
        assert!(
            (out[0] + 1.0).abs() < 1e-2 && (out[1] - 1.0).abs() < 1e-2,
            "{out:?}"
        );
    }

    #[test]
    fn named_parts_and_choices_are_laid_side_by_side() {
        let space = Space::Dict(vec![
            ("speed".into(), Space::unbounded(&[2])),
            ("gear".into(), Space::Discrete { n: 3 }),
        ]);
        let config = NetConfig {
            hidden: Some(vec![]),
            ..NetConfig::default()
        };
        let mut layout = Layout::default();
        let torso = Torso::new(&mut layout, "t", &space, &config);
        let params = Params::init(&Arc::new(layout), &mut stream(1, "init", 0), Device::Cpu);
        let obs = Tree::node([
            (
                "speed",
                Tree::Leaf(Tensor::from_slice(&[0.5f32, -2.0]).reshape([1, 2])),
            ),
            ("gear", Tree::Leaf(Tensor::from_slice(&[1i64]))),
        ]);
        let features = torso.unwrap().forward(&params, &obs).reshape([-1]);
        let features = Vec::<f32>::try_from(features).unwrap();
        assert_eq!(features, [0.5, -2.0, 0.0, 1.0, 0.0]);
    }
}
