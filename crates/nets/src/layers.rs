//! The layers of networks: shapes and parameters, applied to any set of weights.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tch::{Kind, Tensor};

use crate::export::{Graph, Value};
use crate::{Init, Layout, ParamId, Params};

/// What follows a layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Activation {
    /// max(0, x).
    #[default]
    Relu,
    /// tanh x.
    Tanh,
}

impl Activation {
    /// Applies it element by element.
    pub fn apply(self, x: &Tensor) -> Tensor {
        match self {
            Activation::Relu => x.relu(),
            Activation::Tanh => x.tanh(),
        }
    }

    /// The same in a graph.
    pub(crate) fn export(self, graph: &mut Graph, x: &Value) -> Value {
        match self {
            Activation::Relu => graph.relu(x),
            Activation::Tanh => graph.tanh(x),
        }
    }
}

/// A fully connected layer.
#[derive(Clone, Debug)]
pub struct Linear {
    weight: ParamId,
    bias: ParamId,
    /// Size of the output.
    pub outputs: usize,
}

impl Linear {
    /// Adds the layer's parameters to a layout. Biases start at 0 under an orthogonal
    /// initialisation, else like the weights.
    pub fn new(layout: &mut Layout, name: &str, inputs: usize, outputs: usize, init: Init) -> Self {
        let weight = layout.add(format!("{name}.weight"), &[outputs, inputs], init);
        let bias = layout.add(format!("{name}.bias"), &[outputs], bias_init(init));
        Self {
            weight,
            bias,
            outputs,
        }
    }

    /// `x · Wᵀ + b` over the last dimension, in the precision of `x`.
    pub fn forward(&self, params: &Params, x: &Tensor) -> Tensor {
        let (weight, bias) = (params.get(self.weight), params.get(self.bias));
        x.linear(&weight.to_kind(x.kind()), Some(bias.to_kind(x.kind())))
    }

    /// The same in a graph.
    pub fn export(&self, graph: &mut Graph, params: &Params, x: &Value) -> Value {
        let (weight, bias) = (
            graph.weight(params, self.weight),
            graph.weight(params, self.bias),
        );
        graph.linear(x, &weight, Some(&bias))
    }

    /// Weights and bias.
    pub(crate) fn weights<'a>(&self, params: &'a Params) -> (&'a Tensor, &'a Tensor) {
        (params.get(self.weight), params.get(self.bias))
    }
}

/// A convolution over `[N, C, H, W]`.
#[derive(Clone, Debug)]
pub struct Conv2d {
    weight: ParamId,
    bias: ParamId,
    stride: i64,
    edge: Edge,
    kernel: usize,
    channels: usize,
}

/// What is added around an image before a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Edge {
    /// This many zeros on each side.
    Zeros(usize),
    /// TensorFlow's `SAME`.
    Same,
}

impl Conv2d {
    /// Adds the layer's parameters to a layout.
    pub fn new(
        layout: &mut Layout,
        name: &str,
        inputs: usize,
        channels: usize,
        kernel: usize,
        stride: usize,
        init: Init,
    ) -> Self {
        let shape = [channels, inputs, kernel, kernel];
        let weight = layout.add(format!("{name}.weight"), &shape, init);
        let bias = layout.add(format!("{name}.bias"), &[channels], bias_init(init));
        Self {
            weight,
            bias,
            stride: stride as i64,
            edge: Edge::Zeros(0),
            kernel,
            channels,
        }
    }

    /// The same convolution with `padding` zeros on each side of the image.
    pub fn padded(self, padding: usize) -> Self {
        let edge = Edge::Zeros(padding);
        Self { edge, ..self }
    }

    /// The same convolution with TensorFlow's `SAME` padding: see `pad_same`.
    pub fn padded_same(self) -> Self {
        let edge = Edge::Same;
        Self { edge, ..self }
    }

    /// The convolution, in the precision and memory order of `x`.
    pub fn forward(&self, params: &Params, x: &Tensor) -> Tensor {
        let weight = params.get(self.weight).to_kind(x.kind());
        let bias = params.get(self.bias).to_kind(x.kind());
        let stride = [self.stride; 2];
        match self.edge {
            Edge::Zeros(padding) => {
                let padding = [padding as i64; 2];
                x.conv2d(&weight, Some(bias), stride, padding, [1; 2], 1)
            }
            Edge::Same => {
                let x = pad_same(x, self.kernel as i64, self.stride, 0.0);
                x.conv2d(&weight, Some(bias), stride, [0; 2], [1; 2], 1)
            }
        }
    }

    /// The same in a graph.
    pub fn export(&self, graph: &mut Graph, params: &Params, x: &Value) -> Value {
        let weights = [self.weight, self.bias].map(|id| graph.weight(params, id));
        let pads = match self.edge {
            Edge::Zeros(padding) => [padding as i64; 4],
            Edge::Same => pads_same(&x.shape, self.kernel as i64, self.stride),
        };
        graph.conv(x, [&weights[0], &weights[1]], self.stride, pads)
    }

    /// Whether [`forward_blocks`](Conv2d::forward_blocks) can take its place.
    pub fn has_blocks(&self) -> bool {
        self.stride > 1 && self.edge == Edge::Zeros(0) && (self.kernel as i64) % self.stride == 0
    }

    /// The convolution of `x` times `scale`, computed in `kind`, with the channels of a pixel
    /// together. Blocks of stride × stride pixels are laid out as the channels of one pixel, over
    /// which the same convolution has a stride of 1: a GPU's units for products of matrices want
    /// dozens of channels, and pictures have few. The factor goes to the weights, which are fewer
    /// than the pixels, and bytes stay whole numbers, which every kind holds exactly.
    ///
    /// # Panics
    /// When [`has_blocks`](Conv2d::has_blocks) is false.
    pub fn forward_blocks(&self, params: &Params, x: &Tensor, scale: f64, kind: Kind) -> Tensor {
        assert!(self.has_blocks());
        let stride = self.stride;
        // [N, C, H, W] to [N, H / stride, W / stride, C × stride × stride], seen as an image.
        let blocks = |x: &Tensor| {
            let [n, channels, height, width] = x.size()[..] else {
                panic!("an image has four dimensions");
            };
            let (rows, columns) = (height / stride, width / stride);
            let arranged = |x: &Tensor, beside: i64| {
                x.reshape([n, channels, rows, stride, columns, beside])
                    .permute([0, 2, 4, 1, 3, 5])
                    .contiguous()
            };
            // Four bytes that stay side by side move as one word.
            let words = x.kind() == Kind::Uint8 && stride == 4 && x.is_contiguous();
            let blocks = match words {
                true => arranged(&x.view_dtype(Kind::Int), 1).view_dtype(Kind::Uint8),
                false => arranged(x, stride),
            };
            blocks
                .reshape([n, rows, columns, channels * stride * stride])
                .permute([0, 3, 1, 2])
        };
        // What lies beyond the last place of the kernel is never looked at.
        let seen = |size: i64| size - size % stride;
        let size = x.size();
        let x = x.narrow(2, 0, seen(size[2])).narrow(3, 0, seen(size[3]));
        let weight = blocks(&(params.get(self.weight) * scale)).to_kind(kind);
        let bias = params.get(self.bias).to_kind(kind);
        blocks(&x)
            .to_kind(kind)
            .conv2d(&weight, Some(bias), [1; 2], [0; 2], [1; 2], 1)
    }

    /// `[channels, height, width]` of the output; `None` if the input is smaller than the
    /// kernel.
    pub fn output(&self, height: usize, width: usize) -> Option<[usize; 3]> {
        let stride = self.stride as usize;
        let side = |n: usize| match self.edge {
            Edge::Zeros(padding) => {
                let room = (n + 2 * padding).checked_sub(self.kernel)?;
                Some(room / stride + 1)
            }
            Edge::Same => Some(n.div_ceil(stride)),
        };
        Some([self.channels, side(height)?, side(width)?])
    }
}

/// Pads images `[N, C, H, W]` as TensorFlow's `SAME` does: a kernel with this stride then gives
/// ⌈side / stride⌉ outputs per side, and where the padding is odd, the extra row and column come
/// last.
pub(crate) fn pad_same(x: &Tensor, kernel: i64, stride: i64, value: f64) -> Tensor {
    let [top, left, bottom, right] = pads_same(&x.size(), kernel, stride);
    x.pad([left, right, top, bottom], "constant", value)
}

/// What `pad_same` adds at the top, left, bottom and right.
pub(crate) fn pads_same(size: &[i64], kernel: i64, stride: i64) -> [i64; 4] {
    let missing = |side: i64| {
        let outputs = (side + stride - 1) / stride;
        let all = ((outputs - 1) * stride + kernel - side).max(0);
        (all / 2, all - all / 2)
    };
    let ((top, bottom), (left, right)) = (missing(size[2]), missing(size[3]));
    [top, left, bottom, right]
}

/// Scales each item to mean 0 and deviation 1, then by learnt factors (Ba et al. 2016).
#[derive(Clone, Debug)]
pub struct LayerNorm {
    weight: ParamId,
    bias: ParamId,
    shape: Vec<i64>,
}

impl LayerNorm {
    /// Adds the layer's parameters to a layout; `shape` is that of one item.
    pub fn new(layout: &mut Layout, name: &str, shape: &[usize]) -> Self {
        Self {
            weight: layout.add(format!("{name}.weight"), shape, Init::Constant(1.0)),
            bias: layout.add(format!("{name}.bias"), shape, Init::Constant(0.0)),
            shape: shape.iter().map(|&n| n as i64).collect(),
        }
    }

    /// The normalised items `[N, ..]`.
    pub fn forward(&self, params: &Params, x: &Tensor) -> Tensor {
        let weight = params.get(self.weight).to_kind(x.kind());
        let bias = params.get(self.bias).to_kind(x.kind());
        x.layer_norm(self.shape.as_slice(), Some(weight), Some(bias), 1e-5, false)
    }

    /// The same in a graph.
    pub fn export(&self, graph: &mut Graph, params: &Params, x: &Value) -> Value {
        let weights = [self.weight, self.bias].map(|id| graph.weight(params, id));
        graph.layer_norm(x, [&weights[0], &weights[1]], 1e-5)
    }
}

/// A long short-term memory layer whose state restarts where an episode does.
#[derive(Clone, Debug)]
pub struct Lstm {
    input: ParamId,
    recurrent: ParamId,
    bias: ParamId,
    forget_bias: f64,
    /// Size of the hidden state, and of the cell state.
    pub size: usize,
}

impl Lstm {
    /// Adds the layer's parameters to a layout. The gates lie in PyTorch's order: input, forget,
    /// cell, output.
    pub fn new(layout: &mut Layout, name: &str, inputs: usize, size: usize, init: Init) -> Self {
        let init_of = |fan_in| match init {
            Init::FanIn { .. } => Init::FanIn { fan_in },
            other => other,
        };
        Self {
            input: layout.add(format!("{name}.input"), &[4 * size, inputs], init_of(size)),
            recurrent: layout.add(
                format!("{name}.recurrent"),
                &[4 * size, size],
                init_of(size),
            ),
            bias: layout.add(
                format!("{name}.bias"),
                &[4 * size],
                bias_init(init_of(size)),
            ),
            forget_bias: 0.0,
            size,
        }
    }

    /// The same layer with a constant added to the input of the forget gate: above 0 it remembers
    /// from the start.
    pub fn with_forget_bias(self, forget_bias: f64) -> Self {
        Self {
            forget_bias,
            ..self
        }
    }

    /// Runs over `x` `[T, B, F]` from the state (hidden, cell), each `[B, size]`.
    ///
    /// `starts` `[T, B]` holds 1 where a step is the first of an episode: the state is zero
    /// before it. Returns hidden and cell states after every step, `[T, B, size]` each.
    pub fn forward(
        &self,
        params: &Params,
        x: &Tensor,
        starts: &Tensor,
        state: (&Tensor, &Tensor),
    ) -> (Tensor, Tensor) {
        let (mut hidden, mut cell) = (state.0.shallow_clone(), state.1.shallow_clone());
        let recurrent = params.get(self.recurrent).tr();
        // The input's part of all gates does not depend on the state: one product for all steps.
        let inputs = x.linear(params.get(self.input), Some(params.get(self.bias)));
        let keep = (starts.ones_like() - starts)
            .to_kind(x.kind())
            .unsqueeze(-1);
        let (mut hiddens, mut cells) = (Vec::new(), Vec::new());
        // Unbound, not selected: the gradients of all steps are then joined once.
        for (inputs, keep) in inputs.unbind(0).iter().zip(keep.unbind(0)) {
            hidden = &hidden * &keep;
            cell = &cell * &keep;
            let gates = inputs.addmm(&hidden, &recurrent);
            let mut gates = gates.chunk(4, -1);
            if self.forget_bias != 0.0 {
                gates[1] = &gates[1] + self.forget_bias;
            }
            cell = gates[1].sigmoid() * &cell + gates[0].sigmoid() * gates[2].tanh();
            hidden = gates[3].sigmoid() * cell.tanh();
            hiddens.push(hidden.shallow_clone());
            cells.push(cell.shallow_clone());
        }
        (Tensor::stack(&hiddens, 0), Tensor::stack(&cells, 0))
    }

    /// One step in a graph, from `x` `[N, F]` and the state (hidden, cell), to the state after it.
    pub fn export(
        &self,
        graph: &mut Graph,
        params: &Params,
        x: &Value,
        (hidden, cell): (&Value, &Value),
    ) -> (Value, Value) {
        let [input, recurrent, bias] =
            [self.input, self.recurrent, self.bias].map(|id| graph.weight(params, id));
        let from_input = graph.linear(x, &input, Some(&bias));
        let from_state = graph.linear(hidden, &recurrent, None);
        let gates = graph.add(&from_input, &from_state);
        let size = self.size as i64;
        let [i, mut f, g, o] =
            [0, 1, 2, 3].map(|k| graph.slice(&gates, 1, k * size, (k + 1) * size));
        if self.forget_bias != 0.0 {
            let forget = graph.scalar(self.forget_bias);
            f = graph.add(&f, &forget);
        }
        let [i, f, o] = [i, f, o].map(|gate| graph.sigmoid(&gate));
        let g = graph.tanh(&g);
        let (kept, new) = (graph.mul(&f, cell), graph.mul(&i, &g));
        let cell = graph.add(&kept, &new);
        let shown = graph.tanh(&cell);
        (graph.mul(&o, &shown), cell)
    }
}

fn bias_init(weights: Init) -> Init {
    match weights {
        Init::FanIn { .. } | Init::Uniform { .. } => weights,
        Init::Orthogonal { .. } | Init::Constant(_) => Init::Constant(0.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use starling_envs::stream;
    use std::sync::Arc;
    use tch::{Device, Kind};

    const CPU: (Kind, Device) = (Kind::Float, Device::Cpu);

    /// libtorch's own LSTM cell is the reference for ours.
    #[test]
    fn lstm_equals_libtorch_and_restarts_at_episodes() {
        let mut layout = Layout::default();
        let lstm = Lstm::new(&mut layout, "lstm", 3, 4, Init::FanIn { fan_in: 4 });
        let params = Params::init(&Arc::new(layout), &mut stream(1, "init", 0), Device::Cpu);
        let x = Tensor::arange(2 * 2 * 3, CPU).reshape([2, 2, 3]) / 10.0;
        let starts = Tensor::from_slice(&[0f32, 0.0, 0.0, 1.0]).reshape([2, 2]);
        let (h, c) = (Tensor::ones([2, 4], CPU), Tensor::ones([2, 4], CPU) * 0.5);
        let (hiddens, cells) = lstm.forward(&params, &x, &starts, (&h, &c));
        let (h_end, c_end) = (hiddens.select(0, 1), cells.select(0, 1));

        let no_bias = Tensor::zeros([16], CPU);
        let cell = |x: Tensor, h: Tensor, c: Tensor| {
            x.lstm_cell(
                &[h, c],
                params.get(lstm.input),
                params.get(lstm.recurrent),
                Some(params.get(lstm.bias).shallow_clone()),
                Some(no_bias.shallow_clone()),
            )
        };
        let (h1, c1) = cell(x.select(0, 0), h, c);
        let keep = Tensor::from_slice(&[1f32, 0.0]).reshape([2, 1]);
        let (h2, c2) = cell(x.select(0, 1), &h1 * &keep, &c1 * &keep);
        for (ours, theirs) in [(&hiddens.select(0, 0), &h1), (&h_end, &h2), (&c_end, &c2)] {
            assert!((ours - theirs).abs().max().double_value(&[]) < 1e-6);
        }
    }

    /// With all parameters 0 the input, cell and output gates add nothing: the cell state is only
    /// multiplied by sigmoid(forget bias).
    #[test]
    fn a_forget_bias_keeps_the_cell_state() {
        let mut layout = Layout::default();
        let lstm = Lstm::new(&mut layout, "lstm", 1, 1, Init::Constant(0.0));
        let params = Params::zeros(&Arc::new(layout), Device::Cpu);
        let (x, zero) = (Tensor::zeros([1, 1, 1], CPU), Tensor::zeros([1, 1], CPU));
        let start = Tensor::ones([1, 1], CPU);
        for (bias, kept) in [(0.0, 0.5), (1.0, 0.731_058_6)] {
            let lstm = lstm.clone().with_forget_bias(bias);
            let (_, cells) = lstm.forward(&params, &x, &zero, (&zero, &start));
            assert!((cells.double_value(&[0, 0, 0]) - kept).abs() < 1e-6);
        }
    }

    /// Kernel 4, stride 2 over 5 pixels: 3 outputs, so (3 − 1)·2 + 4 − 5 = 3 pixels are missing,
    /// of which 1 comes first and 2 come last. Ones as weights give the sums of the windows
    /// (0 1 2 3), (2 3 4 5) and (4 5 0 0).
    #[test]
    fn same_padding_is_tensorflows() {
        let mut layout = Layout::default();
        let conv = Conv2d::new(&mut layout, "conv", 1, 1, 4, 2, Init::Constant(1.0));
        let conv = conv.padded_same();
        assert_eq!(conv.output(5, 5), Some([1, 3, 3]));
        let params = Params::init(&Arc::new(layout), &mut stream(1, "init", 0), Device::Cpu);
        let row = Tensor::from_slice(&[1f32, 2.0, 3.0, 4.0, 5.0]);
        // Only the third row is not zero, and every output row sees it.
        let mut image = Tensor::zeros([1, 1, 5, 5], CPU);
        image.select(2, 2).copy_(&row);
        let sums = conv.forward(&params, &image);
        let middle = Vec::<f32>::try_from(sums.select(2, 1).reshape([-1])).unwrap();
        assert_eq!(middle, [6.0, 14.0, 9.0]);
        image = image.transpose(2, 3);
        let sums = conv.forward(&params, &image);
        let middle = Vec::<f32>::try_from(sums.select(3, 1).reshape([-1])).unwrap();
        assert_eq!(middle, [6.0, 14.0, 9.0]);
    }

    /// (1, 3) has mean 2 and deviation 1.
    #[test]
    fn layer_normalisation_by_hand() {
        let mut layout = Layout::default();
        let norm = LayerNorm::new(&mut layout, "norm", &[2]);
        let params = Params::init(&Arc::new(layout), &mut stream(1, "init", 0), Device::Cpu);
        let x = Tensor::from_slice(&[1f32, 3.0]).reshape([1, 2]);
        let y = Vec::<f32>::try_from(norm.forward(&params, &x).reshape([-1])).unwrap();
        assert!(
            (y[0] + 1.0).abs() < 1e-4 && (y[1] - 1.0).abs() < 1e-4,
            "{y:?}"
        );
    }

    #[test]
    fn convolution_sizes_are_those_of_the_nature_network() {
        let mut layout = Layout::default();
        let init = Init::Constant(0.0);
        let conv = Conv2d::new(&mut layout, "conv", 4, 32, 8, 4, init);
        assert_eq!(conv.output(84, 84), Some([32, 20, 20]));
        assert_eq!(conv.output(7, 84), None);
        assert_eq!(conv.padded(2).output(84, 84), Some([32, 21, 21]));
    }
}
