//! The built-in torsos: convolutions for images, everything else goes straight on.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use starling_envs::Space;
use starling_tree::Tree;
use tch::Tensor;

use super::inputs::{Input, Inputs};
use super::{FeatureExtractor, HIDDEN_GAIN, layer_init, normed};
use crate::export::{Graph, NotExported, Value};
use crate::layers::pads_same;
use crate::{
    Conv2d, LayerNorm, Layout, Moments, NetConfig, Params, RunningNorm, ShapeMismatch,
    layers::pad_same,
};

/// Which convolutions images pass; the table of torsos describes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BuiltIn {
    Auto,
    Mlp,
    MinAtar,
    Nature,
    SimpleConv,
    Shallow,
    ResNet,
}

/// What is added around an image before a convolution.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PaddingRule {
    /// TensorFlow's `SAME`: ⌈side / stride⌉ outputs per side; where the padding is odd, the extra
    /// row and column come last.
    Same,
}

/// A built-in network: the parts of an observation pass their convolutions and are laid side by
/// side.
#[derive(Debug)]
pub(crate) struct Convolutions {
    inputs: Inputs,
    /// What each array passes.
    stages: Vec<Vec<Stage>>,
    /// Pixels of an image lie together in memory, not channels.
    channels_last: bool,
    features: usize,
    usual_hidden: &'static [usize],
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

impl Convolutions {
    pub(crate) fn new(
        kind: BuiltIn,
        layout: &mut Layout,
        name: &str,
        space: &Space,
        config: &NetConfig,
    ) -> Result<Self, ShapeMismatch> {
        let mut all = Vec::new();
        let mut features = 0;
        let mut usual_hidden: &[usize] = &[64, 64];
        let inputs = Inputs::with(layout, name, space, config, &mut |layout, name, input| {
            let kind = match input.choices {
                Some(_) => BuiltIn::Mlp,
                None => resolve(kind, &input.shape),
            };
            all.push(match (kind, input.shape.as_slice()) {
                (BuiltIn::Mlp, shape) => {
                    features += shape.iter().product::<usize>();
                    Vec::new()
                }
                (kind, &[channels, height, width]) => {
                    check_padding(kind, config)?;
                    let mut image = [channels, height, width];
                    let built = stages(layout, name, kind, &mut image, config);
                    features += image.iter().product::<usize>();
                    usual_hidden = usual(kind);
                    built.ok_or_else(|| {
                        ShapeMismatch(format!(
                            "an image of {height}×{width} is too small for this network"
                        ))
                    })?
                }
                (_, shape) => {
                    return Err(ShapeMismatch(format!(
                        "a convolution needs observations [channels, height, width], not {shape:?}"
                    )));
                }
            });
            Ok(())
        })?;
        let flat = all.iter().all(Vec::is_empty);
        if config.width != 1 && flat {
            return Err(ShapeMismatch(
                "net.width multiplies the filters of convolutions, and this network has none; \
                 use net.hidden"
                    .into(),
            ));
        }
        if config.padding.is_some() && flat {
            return Err(ShapeMismatch(
                "net.padding is for convolutions, and this network has none; set it to null".into(),
            ));
        }
        Ok(Self {
            inputs,
            stages: all,
            channels_last: config.channels_last,
            features,
            usual_hidden,
        })
    }

    /// Features of one array.
    fn look(&self, params: &Params, input: &Input, stages: &[Stage], x: &Tensor) -> Tensor {
        let (mut x, stages) = match stages.split_first() {
            Some((Stage::Plain(first, norm), others))
                if self.channels_last && input.norm.is_none() && first.has_blocks() =>
            {
                let scale = input.scale.unwrap_or(1.0);
                let x = first.forward_blocks(params, x, scale, input.kind);
                (normed(norm.as_ref(), params, x).relu(), others)
            }
            Some(_) if self.channels_last => {
                // First, while a pixel is a byte.
                let x = x.permute([0, 2, 3, 1]).contiguous();
                (input.prepare(params, &x.permute([0, 3, 1, 2])), stages)
            }
            _ => (input.prepare(params, x), stages),
        };
        for stage in stages {
            x = stage.forward(params, &x);
        }
        x.reshape([x.size()[0], -1])
    }
}

impl FeatureExtractor for Convolutions {
    fn features(&self) -> usize {
        self.features
    }

    fn usual_hidden(&self) -> &[usize] {
        self.usual_hidden
    }

    fn forward(&self, params: &Params, obs: &Tree<Tensor>) -> Tensor {
        let mut parts = Vec::new();
        self.inputs.visit(obs, &mut |input, x| {
            let stages = &self.stages[parts.len()];
            parts.push(self.look(params, input, stages, x));
        });
        match parts.len() {
            1 => parts.remove(0),
            _ => Tensor::cat(&parts, -1),
        }
    }

    fn export(
        &self,
        graph: &mut Graph,
        params: &Params,
        obs: &Tree<Value>,
    ) -> Result<Value, NotExported> {
        let mut parts = Vec::new();
        let prepared = self.inputs.export(graph, params, obs);
        for (mut x, stages) in prepared.into_iter().zip(&self.stages) {
            for stage in stages {
                x = stage.export(graph, params, &x);
            }
            let size = x.shape[1..].iter().product();
            parts.push(graph.reshape(&x, &[-1, size]));
        }
        Ok(graph.concat(&parts, 1))
    }

    fn seen(&self, obs: &Tree<Tensor>) -> Vec<(RunningNorm, Moments)> {
        self.inputs.seen(obs)
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

    fn export(&self, graph: &mut Graph, params: &Params, x: &Value) -> Value {
        match self {
            Stage::Plain(convolution, norm) => {
                let mut x = convolution.export(graph, params, x);
                if let Some(norm) = norm {
                    x = norm.export(graph, params, &x);
                }
                graph.relu(&x)
            }
            Stage::Residual {
                convolution,
                same,
                blocks,
            } => {
                let x = convolution.export(graph, params, x);
                let pads = match same {
                    false => [1; 4],
                    true => pads_same(&x.shape, 3, 2),
                };
                let mut x = graph.max_pool(&x, pads);
                for (first, second) in blocks {
                    let y = graph.relu(&x);
                    let y = first.export(graph, params, &y);
                    let y = graph.relu(&y);
                    let y = second.export(graph, params, &y);
                    x = graph.add(&y, &x);
                }
                x
            }
            Stage::Relu => graph.relu(x),
        }
    }
}

/// Refuses a list of paddings that does not have one number per convolution.
fn check_padding(kind: BuiltIn, config: &NetConfig) -> Result<(), ShapeMismatch> {
    let Some(Padding::Zeros(sizes)) = &config.padding else {
        return Ok(());
    };
    let refuse = |why: String| Err(ShapeMismatch(format!("net.padding is {sizes:?}; {why}")));
    if kind == BuiltIn::ResNet {
        return refuse("for the torso `resnet` it must be null or `same`".into());
    }
    let count = filters(kind).len();
    match sizes.len() == count && sizes.iter().all(|&size| size <= 64) {
        true => Ok(()),
        false => refuse(format!(
            "this torso has {count} convolutions: it must have {count} numbers of at most 64"
        )),
    }
}

/// The convolutional part for an image `[channels, height, width]`, which becomes the shape of
/// what it gives; `None` if the image is too small.
fn stages(
    layout: &mut Layout,
    name: &str,
    kind: BuiltIn,
    image: &mut [usize; 3],
    config: &NetConfig,
) -> Option<Vec<Stage>> {
    let mut stages = Vec::new();
    let same = config.padding == Some(Padding::Rule(PaddingRule::Same));
    let [mut channels, mut height, mut width] = *image;
    if kind == BuiltIn::ResNet {
        for (i, filters) in [16, 32, 32].into_iter().enumerate() {
            let filters = filters * config.width;
            let mut convolution = |layer: &str, inputs: usize| {
                let init = layer_init(config.orthogonal, inputs * 9, HIDDEN_GAIN);
                let name = format!("{name}.section{i}.{layer}");
                Conv2d::new(layout, &name, inputs, filters, 3, 1, init).padded(1)
            };
            let first = convolution("conv", channels);
            let mut block = |number: usize| {
                let mut half = |half| convolution(&format!("block{number}.conv{half}"), filters);
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
        for (i, &(filters, kernel, stride, padding)) in filters(kind).iter().enumerate() {
            let filters = filters * config.width;
            let fan_in = channels * kernel * kernel;
            let init = layer_init(config.orthogonal, fan_in, HIDDEN_GAIN);
            let name = format!("{name}.conv{i}");
            let layer = Conv2d::new(layout, &name, channels, filters, kernel, stride, init);
            let layer = match &config.padding {
                None => layer.padded(padding),
                Some(Padding::Rule(PaddingRule::Same)) => layer.padded_same(),
                Some(Padding::Zeros(sizes)) => layer.padded(sizes[i]),
            };
            let output = layer.output(height, width)?;
            let norm = config.layer_norm.then(|| {
                let name = format!("{name}_norm");
                LayerNorm::new(layout, &name, &output)
            });
            stages.push(Stage::Plain(layer, norm));
            [channels, height, width] = output;
        }
    }
    *image = [channels, height, width];
    Some(stages)
}

/// What `auto` means for an array of a shape.
fn resolve(kind: BuiltIn, shape: &[usize]) -> BuiltIn {
    match (kind, shape) {
        (BuiltIn::Auto, &[_, height, width]) if height >= 64 && width >= 64 => BuiltIn::Nature,
        (BuiltIn::Auto, &[_, height, width]) if height >= 3 && width >= 3 => BuiltIn::MinAtar,
        (BuiltIn::Auto, _) => BuiltIn::Mlp,
        (kind, _) => kind,
    }
}

/// (filters, kernel, stride, padding) of each convolution.
type Filters = &'static [(usize, usize, usize, usize)];

/// The convolutions of a kind without residual blocks.
fn filters(kind: BuiltIn) -> Filters {
    match kind {
        BuiltIn::MinAtar => &[(16, 3, 1, 0)],
        BuiltIn::SimpleConv => &[(32, 8, 4, 2), (64, 4, 2, 2), (64, 3, 1, 1)],
        BuiltIn::Shallow => &[(16, 8, 4, 0), (32, 4, 2, 0)],
        _ => &[(32, 8, 4, 0), (64, 4, 2, 0), (64, 3, 1, 0)],
    }
}

/// The usual fully connected layers after the convolutions of a kind.
fn usual(kind: BuiltIn) -> &'static [usize] {
    match kind {
        BuiltIn::MinAtar => &[128],
        BuiltIn::Shallow | BuiltIn::ResNet => &[256],
        _ => &[512],
    }
}
