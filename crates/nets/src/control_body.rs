//! The layers of actors and critics after the features of an observation, for several networks of
//! the same shape at once: each layer of all of them is one batched product.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tch::{Kind, Tensor};

use crate::batch_renorm::BatchRenorm;
use crate::export::{Graph, Value};
use crate::{Activation, Init, Layout, ParamId, Params, Statistics};

/// How the layers of an actor or a critic are put together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ControlLayers {
    /// Fully connected layers, each followed by the activation.
    #[default]
    Plain,
    /// The same with batch renormalisation of the input and after each activation (CrossQ).
    BatchRenorm,
    /// A linear layer of the first size of `hidden`, one residual block for each size (layer
    /// normalisation, a layer of four times the size, ReLU, and back), and layer normalisation
    /// (SimBa). All sizes are the same.
    Residual,
}

/// Layers from inputs `[C, N, inputs]` to features `[C, N, features]`.
#[derive(Clone, Debug)]
pub(crate) enum Body {
    Plain(Vec<Stacked>, Activation),
    BatchRenorm {
        input: BatchRenorm,
        layers: Vec<(Stacked, BatchRenorm)>,
        activation: Activation,
    },
    Residual {
        first: Stacked,
        blocks: Vec<(StackedNorm, Stacked, Stacked)>,
        last: StackedNorm,
    },
}

impl Body {
    /// Adds the parameters of `networks` networks to a layout, named `hidden0` and so on after
    /// `prefix`. Returns also the number of features.
    pub(crate) fn new(
        layout: &mut Layout,
        prefix: &str,
        kind: ControlLayers,
        activation: Activation,
        networks: usize,
        inputs: usize,
        hidden: &[usize],
    ) -> (Self, usize) {
        let features = hidden.last().copied().unwrap_or(inputs);
        let body = match kind {
            ControlLayers::Plain | ControlLayers::BatchRenorm => {
                let renorm = kind == ControlLayers::BatchRenorm;
                let norm = |layout: &mut Layout, name: String, size| {
                    renorm.then(|| BatchRenorm::new(layout, &name, networks, size))
                };
                let first = norm(layout, format!("{prefix}input_norm"), inputs);
                let (mut plain, mut renormed, mut inputs) = (Vec::new(), Vec::new(), inputs);
                for (i, &outputs) in hidden.iter().enumerate() {
                    let name = format!("{prefix}hidden{i}");
                    let layer = Stacked::new(layout, &name, networks, inputs, outputs);
                    match norm(layout, format!("{name}_norm"), outputs) {
                        Some(norm) => renormed.push((layer, norm)),
                        None => plain.push(layer),
                    }
                    inputs = outputs;
                }
                match first {
                    Some(input) => Self::BatchRenorm {
                        input,
                        layers: renormed,
                        activation,
                    },
                    None => Self::Plain(plain, activation),
                }
            }
            ControlLayers::Residual => {
                let name = format!("{prefix}embedding");
                let first = Stacked::new(layout, &name, networks, inputs, features);
                let block = |i: usize| {
                    let name = format!("{prefix}block{i}");
                    let norm =
                        StackedNorm::new(layout, &format!("{name}_norm"), networks, features);
                    let (wide, name) = (4 * features, format!("{name}_"));
                    let up = format!("{name}up");
                    let up = Stacked::new(layout, &up, networks, features, wide);
                    let down = format!("{name}down");
                    (
                        norm,
                        up,
                        Stacked::new(layout, &down, networks, wide, features),
                    )
                };
                let blocks = (0..hidden.len()).map(block).collect();
                let name = format!("{prefix}last_norm");
                Self::Residual {
                    first,
                    blocks,
                    last: StackedNorm::new(layout, &name, networks, features),
                }
            }
        };
        (body, features)
    }

    /// Features `[C, N, features]` of inputs `[C, N, inputs]`, for the first C networks.
    pub(crate) fn forward(&self, params: &Params, x: Tensor, by: Statistics) -> Tensor {
        let mut x = x;
        match self {
            Self::Plain(layers, activation) => {
                for layer in layers {
                    x = activation.apply(&layer.forward(params, &x));
                }
                x
            }
            Self::BatchRenorm {
                input,
                layers,
                activation,
            } => {
                x = input.forward(params, &x, by);
                for (layer, norm) in layers {
                    x = activation.apply(&layer.forward(params, &x));
                    x = norm.forward(params, &x, by);
                }
                x
            }
            Self::Residual {
                first,
                blocks,
                last,
            } => {
                x = first.forward(params, &x);
                for (norm, up, down) in blocks {
                    let wide = up.forward(params, &norm.forward(params, &x)).relu();
                    // A new tensor: the old one is needed for the gradient.
                    x = &x + down.forward(params, &wide);
                }
                last.forward(params, &x)
            }
        }
    }
}

impl Body {
    /// A single network in a graph: features `[N, features]` of inputs `[N, inputs]`.
    pub(crate) fn export(&self, graph: &mut Graph, params: &Params, x: &Value) -> Value {
        let mut x = x.clone();
        match self {
            Self::Plain(layers, activation) => {
                for layer in layers {
                    let y = layer.export(graph, params, &x);
                    x = activation.export(graph, &y);
                }
                x
            }
            Self::BatchRenorm {
                input,
                layers,
                activation,
            } => {
                x = input.export(graph, params, &x);
                for (layer, norm) in layers {
                    let y = layer.export(graph, params, &x);
                    let y = activation.export(graph, &y);
                    x = norm.export(graph, params, &y);
                }
                x
            }
            Self::Residual {
                first,
                blocks,
                last,
            } => {
                x = first.export(graph, params, &x);
                for (norm, up, down) in blocks {
                    let y = norm.export(graph, params, &x);
                    let y = up.export(graph, params, &y);
                    let y = graph.relu(&y);
                    let y = down.export(graph, params, &y);
                    x = graph.add(&x, &y);
                }
                last.export(graph, params, &x)
            }
        }
    }
}

/// Fully connected layers of several networks of the same shape.
#[derive(Clone, Debug)]
pub(crate) struct Stacked {
    /// `[C, inputs, outputs]`.
    pub(crate) weight: ParamId,
    /// `[C, 1, outputs]`.
    pub(crate) bias: ParamId,
}

impl Stacked {
    pub(crate) fn new(
        layout: &mut Layout,
        name: &str,
        count: usize,
        inputs: usize,
        outputs: usize,
    ) -> Self {
        let init = Init::FanIn { fan_in: inputs };
        Self {
            weight: layout.add(format!("{name}.weight"), &[count, inputs, outputs], init),
            bias: layout.add(format!("{name}.bias"), &[count, 1, outputs], init),
        }
    }

    /// `x · W + b` of inputs `[C, N, inputs]`, for the first C networks.
    pub(crate) fn forward(&self, params: &Params, x: &Tensor) -> Tensor {
        let networks = x.size()[0];
        let weight = first(params, self.weight, networks);
        let bias = first(params, self.bias, networks);
        bias.baddbmm(x, &weight, 1.0, 1.0)
    }

    /// That of the first network in a graph.
    pub(crate) fn export(&self, graph: &mut Graph, params: &Params, x: &Value) -> Value {
        let weight = graph.constant(&params.get(self.weight).get(0).tr());
        let bias = graph.constant(&params.get(self.bias).get(0).reshape([-1]));
        graph.linear(x, &weight, Some(&bias))
    }
}

/// Layer normalisation of the features of several networks.
#[derive(Clone, Debug)]
pub(crate) struct StackedNorm {
    /// `[C, 1, features]`.
    scale: ParamId,
    bias: ParamId,
}

impl StackedNorm {
    fn new(layout: &mut Layout, name: &str, networks: usize, features: usize) -> Self {
        let shape = [networks, 1, features];
        Self {
            scale: layout.add(format!("{name}.scale"), &shape, Init::Constant(1.0)),
            bias: layout.add(format!("{name}.bias"), &shape, Init::Constant(0.0)),
        }
    }

    fn forward(&self, params: &Params, x: &Tensor) -> Tensor {
        let (networks, features) = (x.size()[0], x.size()[2]);
        let none = None::<Tensor>;
        let x = x.layer_norm(
            [features].as_slice(),
            none.as_ref(),
            none.as_ref(),
            1e-5,
            false,
        );
        x * first(params, self.scale, networks) + first(params, self.bias, networks)
    }

    /// That of the first network in a graph.
    fn export(&self, graph: &mut Graph, params: &Params, x: &Value) -> Value {
        let [scale, bias] =
            [self.scale, self.bias].map(|id| graph.constant(&params.get(id).get(0).reshape([-1])));
        graph.layer_norm(x, [&scale, &bias], 1e-5)
    }
}

/// The part of a parameter that belongs to the first networks. A view costs its gradient a copy.
pub(crate) fn first(params: &Params, id: ParamId, networks: i64) -> Tensor {
    let whole = params.get(id);
    match whole.size()[0] == networks {
        true => whole.shallow_clone(),
        false => whole.narrow(0, 0, networks),
    }
}

/// Fully connected layers with one output, of several networks.
#[derive(Clone, Debug)]
pub(crate) struct StackedValue {
    /// `[C, 1, inputs]`.
    pub(crate) weight: ParamId,
    /// `[C, 1]`.
    pub(crate) bias: ParamId,
}

impl StackedValue {
    pub(crate) fn new(layout: &mut Layout, name: &str, count: usize, inputs: usize) -> Self {
        let init = Init::FanIn { fan_in: inputs };
        Self {
            weight: layout.add(format!("{name}.weight"), &[count, 1, inputs], init),
            bias: layout.add(format!("{name}.bias"), &[count, 1], init),
        }
    }

    /// `x · w + b` `[C, N]` of inputs `[C, N, inputs]`, for the first C networks.
    pub(crate) fn forward(&self, params: &Params, x: &Tensor) -> Tensor {
        let networks = x.size()[0];
        // A batched product with a single column is several times slower on the CPU.
        let products = x * first(params, self.weight, networks);
        let sums = products.sum_dim_intlist([-1].as_slice(), false, Kind::Float);
        sums + first(params, self.bias, networks)
    }
}
