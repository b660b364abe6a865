//! Computations as data: operations on named values.

use std::collections::BTreeMap;

use starling_tree::DType;
use tch::{Kind, Tensor};

use crate::{ParamId, Params};

/// The type of a value's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// 32-bit floats.
    F32,
    /// 64-bit floats.
    F64,
    /// Bytes.
    U8,
    /// 32-bit integers.
    I32,
    /// 64-bit integers.
    I64,
    /// True or false.
    Bool,
}

impl From<DType> for Element {
    fn from(dtype: DType) -> Self {
        match dtype {
            DType::U8 => Self::U8,
            DType::I32 => Self::I32,
            DType::I64 => Self::I64,
            DType::F32 => Self::F32,
            DType::F64 => Self::F64,
        }
    }
}

impl Element {
    pub(super) fn kind(self) -> Kind {
        match self {
            Self::F32 => Kind::Float,
            Self::F64 => Kind::Double,
            Self::U8 => Kind::Uint8,
            Self::I32 => Kind::Int,
            Self::I64 => Kind::Int64,
            Self::Bool => Kind::Bool,
        }
    }
}

/// The result of an operation, an input, or a constant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    pub(super) id: usize,
    /// The type of its elements.
    pub element: Element,
    /// Its shape; −1 stands for the number of observations.
    pub shape: Vec<i64>,
}

/// What an operation computes from its inputs.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Op {
    Cast,
    /// x · Wᵀ (+ b), over the last dimension.
    Linear,
    /// Over `[N, C, H, W]`; zeros are added at the top, left, bottom and right.
    Conv {
        stride: i64,
        pads: [i64; 4],
    },
    /// The largest of 3 × 3 pixels, every second.
    MaxPool {
        pads: [i64; 4],
    },
    Relu,
    Tanh,
    Sigmoid,
    Sqrt,
    Exp,
    Log,
    Abs,
    Sign,
    Add,
    Sub,
    Mul,
    Div,
    Max,
    Min,
    /// Over all dimensions but the first `leading`.
    LayerNorm {
        leading: i64,
        eps: f64,
    },
    Reshape,
    Unsqueeze(i64),
    Squeeze(i64),
    Transpose(Vec<i64>),
    Concat(i64),
    Slice {
        axis: i64,
        start: i64,
        end: i64,
    },
    Mean {
        axis: i64,
        keep: bool,
    },
    /// Over the last dimension.
    Softmax,
    /// Over the last dimension, which goes.
    ArgMax,
    Equal,
    Where,
    Identity,
}

#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) op: Op,
    pub(super) inputs: Vec<Value>,
    pub(super) output: Value,
}

/// A computation for any number N of observations: inputs, constants, operations in order, outputs.
#[derive(Debug, Default)]
pub struct Graph {
    /// By the number of a value.
    pub(super) names: Vec<String>,
    pub(super) inputs: Vec<Value>,
    pub(super) constants: Vec<(Value, Tensor)>,
    pub(super) nodes: Vec<Node>,
    pub(super) outputs: Vec<Value>,
    weights: BTreeMap<String, Value>,
}

impl Graph {
    /// Adds an input `[N, ..]` with items of a shape.
    pub fn input(&mut self, name: &str, element: Element, item: &[usize]) -> Value {
        let shape = std::iter::once(-1).chain(item.iter().map(|&n| n as i64));
        let value = self.value(name.to_owned(), element, shape.collect());
        self.inputs.push(value.clone());
        value
    }

    /// Makes a value an output of this name.
    pub fn output(&mut self, name: &str, value: &Value) {
        let computed = self.nodes.iter().any(|node| node.output.id == value.id);
        let value = match computed && !self.outputs.iter().any(|other| other.id == value.id) {
            true => value.clone(),
            false => self.node(Op::Identity, &[value], value.element, value.shape.clone()),
        };
        name.clone_into(&mut self.names[value.id]);
        self.outputs.push(value);
    }

    /// Inputs by name.
    pub fn inputs(&self) -> Vec<(&str, &Value)> {
        self.named(&self.inputs)
    }

    /// Outputs by name.
    pub fn outputs(&self) -> Vec<(&str, &Value)> {
        self.named(&self.outputs)
    }

    /// A parameter of a network, as it is now.
    pub fn weight(&mut self, params: &Params, id: ParamId) -> Value {
        let name = params.name(id);
        if let Some(known) = self.weights.get(name) {
            return known.clone();
        }
        let value = self.add_constant(name.to_owned(), params.get(id));
        self.weights.insert(name.to_owned(), value.clone());
        value
    }

    /// A constant.
    pub fn constant(&mut self, tensor: &Tensor) -> Value {
        let name = format!("constant_{}", self.names.len());
        self.add_constant(name, tensor)
    }

    /// A number that is added to or multiplied with others.
    pub fn scalar(&mut self, number: f64) -> Value {
        self.constant(&Tensor::from(number as f32))
    }

    fn add_constant(&mut self, name: String, tensor: &Tensor) -> Value {
        let tensor = tensor.detach().to_device(tch::Device::Cpu).contiguous();
        let element = match tensor.kind() {
            Kind::Double => Element::F64,
            Kind::Int64 => Element::I64,
            Kind::Uint8 => Element::U8,
            _ => Element::F32,
        };
        let value = self.value(name, element, tensor.size());
        // A copy, because training continues to change this memory.
        self.constants
            .push((value.clone(), tensor.to_kind(element.kind()).copy()));
        value
    }

    fn value(&mut self, name: String, element: Element, shape: Vec<i64>) -> Value {
        self.names.push(name);
        Value {
            id: self.names.len() - 1,
            element,
            shape,
        }
    }

    fn named<'a>(&'a self, values: &'a [Value]) -> Vec<(&'a str, &'a Value)> {
        let named = values.iter().map(|value| (&*self.names[value.id], value));
        named.collect()
    }

    fn node(&mut self, op: Op, inputs: &[&Value], element: Element, shape: Vec<i64>) -> Value {
        let kind = format!("{op:?}").to_lowercase();
        let kind = kind.split([' ', '(', '{']).next().unwrap_or_default();
        let name = format!("{kind}_{}", self.names.len());
        let output = self.value(name, element, shape);
        self.nodes.push(Node {
            op,
            inputs: inputs.iter().map(|&value| value.clone()).collect(),
            output: output.clone(),
        });
        output
    }

    fn alike(&mut self, op: Op, x: &Value) -> Value {
        self.node(op, &[x], x.element, x.shape.clone())
    }

    fn binary(&mut self, op: Op, a: &Value, b: &Value) -> Value {
        let shape = broadcast(&a.shape, &b.shape);
        self.node(op, &[a, b], a.element, shape)
    }
}

/// The operations.
impl Graph {
    /// The same numbers of another type.
    pub fn cast(&mut self, x: &Value, element: Element) -> Value {
        match x.element == element {
            true => x.clone(),
            false => self.node(Op::Cast, &[x], element, x.shape.clone()),
        }
    }

    /// `x · Wᵀ + b` over the last dimension, with W `[outputs, inputs]`.
    pub fn linear(&mut self, x: &Value, weight: &Value, bias: Option<&Value>) -> Value {
        let mut shape = x.shape.clone();
        if let Some(last) = shape.last_mut() {
            *last = weight.shape[0];
        }
        let inputs: Vec<&Value> = [x, weight].into_iter().chain(bias).collect();
        self.node(Op::Linear, &inputs, x.element, shape)
    }

    /// A convolution with zeros added at the top, left, bottom and right.
    pub(crate) fn conv(
        &mut self,
        x: &Value,
        [weight, bias]: [&Value; 2],
        stride: i64,
        pads: [i64; 4],
    ) -> Value {
        let (channels, kernel) = (weight.shape[0], weight.shape[2]);
        let shape = pooled(&x.shape, channels, kernel, stride, pads);
        self.node(
            Op::Conv { stride, pads },
            &[x, weight, bias],
            x.element,
            shape,
        )
    }

    /// The largest of 3 × 3 pixels, every second.
    pub(crate) fn max_pool(&mut self, x: &Value, pads: [i64; 4]) -> Value {
        let shape = pooled(&x.shape, x.shape[1], 3, 2, pads);
        self.node(Op::MaxPool { pads }, &[x], x.element, shape)
    }

    /// max(0, x).
    pub fn relu(&mut self, x: &Value) -> Value {
        self.alike(Op::Relu, x)
    }

    /// tanh x.
    pub fn tanh(&mut self, x: &Value) -> Value {
        self.alike(Op::Tanh, x)
    }

    /// 1 / (1 + exp(−x)).
    pub fn sigmoid(&mut self, x: &Value) -> Value {
        self.alike(Op::Sigmoid, x)
    }

    /// √x.
    pub fn sqrt(&mut self, x: &Value) -> Value {
        self.alike(Op::Sqrt, x)
    }

    /// eˣ.
    pub fn exp(&mut self, x: &Value) -> Value {
        self.alike(Op::Exp, x)
    }

    /// The natural logarithm of x.
    pub fn log(&mut self, x: &Value) -> Value {
        self.alike(Op::Log, x)
    }

    /// |x|.
    pub fn abs(&mut self, x: &Value) -> Value {
        self.alike(Op::Abs, x)
    }

    /// −1, 0 or 1.
    pub fn sign(&mut self, x: &Value) -> Value {
        self.alike(Op::Sign, x)
    }

    /// a + b.
    pub fn add(&mut self, a: &Value, b: &Value) -> Value {
        self.binary(Op::Add, a, b)
    }

    /// a − b.
    pub fn sub(&mut self, a: &Value, b: &Value) -> Value {
        self.binary(Op::Sub, a, b)
    }

    /// a · b.
    pub fn mul(&mut self, a: &Value, b: &Value) -> Value {
        self.binary(Op::Mul, a, b)
    }

    /// a / b.
    pub fn div(&mut self, a: &Value, b: &Value) -> Value {
        self.binary(Op::Div, a, b)
    }

    /// The larger of a and b.
    pub fn max(&mut self, a: &Value, b: &Value) -> Value {
        self.binary(Op::Max, a, b)
    }

    /// x between two numbers, or between the elements of two constants.
    pub fn clamp(&mut self, x: &Value, low: &Value, high: &Value) -> Value {
        let x = self.max(x, low);
        self.binary(Op::Min, &x, high)
    }

    /// Layer normalisation of items, whose scale and bias have the shape of an item.
    pub fn layer_norm(&mut self, x: &Value, [scale, bias]: [&Value; 2], eps: f64) -> Value {
        let leading = (x.shape.len() - scale.shape.len()) as i64;
        let op = Op::LayerNorm { leading, eps };
        self.node(op, &[x, scale, bias], x.element, x.shape.clone())
    }

    /// The same elements in another shape, in which −1 may stand once.
    pub fn reshape(&mut self, x: &Value, shape: &[i64]) -> Value {
        self.node(Op::Reshape, &[x], x.element, shape.to_vec())
    }

    /// A dimension of size 1 added.
    pub fn unsqueeze(&mut self, x: &Value, axis: usize) -> Value {
        let mut shape = x.shape.clone();
        shape.insert(axis, 1);
        self.node(Op::Unsqueeze(axis as i64), &[x], x.element, shape)
    }

    /// A dimension of size 1 removed.
    pub fn squeeze(&mut self, x: &Value, axis: usize) -> Value {
        let mut shape = x.shape.clone();
        shape.remove(axis);
        self.node(Op::Squeeze(axis as i64), &[x], x.element, shape)
    }

    /// Dimensions in another order.
    pub fn transpose(&mut self, x: &Value, order: &[usize]) -> Value {
        let shape = order.iter().map(|&axis| x.shape[axis]).collect();
        let order = order.iter().map(|&axis| axis as i64).collect();
        self.node(Op::Transpose(order), &[x], x.element, shape)
    }

    /// Values side by side.
    pub fn concat(&mut self, parts: &[Value], axis: usize) -> Value {
        if let [single] = parts {
            return single.clone();
        }
        let mut shape = parts[0].shape.clone();
        shape[axis] = parts.iter().map(|part| part.shape[axis]).sum();
        let inputs: Vec<&Value> = parts.iter().collect();
        self.node(Op::Concat(axis as i64), &inputs, parts[0].element, shape)
    }

    /// The elements from `start` up to `end` of a dimension.
    pub fn slice(&mut self, x: &Value, axis: usize, start: i64, end: i64) -> Value {
        let mut shape = x.shape.clone();
        shape[axis] = end - start;
        let axis = axis as i64;
        self.node(Op::Slice { axis, start, end }, &[x], x.element, shape)
    }

    /// The mean over a dimension.
    pub fn mean(&mut self, x: &Value, axis: usize, keep: bool) -> Value {
        let mut shape = x.shape.clone();
        match keep {
            true => shape[axis] = 1,
            false => drop(shape.remove(axis)),
        }
        let axis = axis as i64;
        self.node(Op::Mean { axis, keep }, &[x], x.element, shape)
    }

    /// Probabilities over the last dimension.
    pub fn softmax(&mut self, x: &Value) -> Value {
        self.alike(Op::Softmax, x)
    }

    /// The place of the largest element of the last dimension.
    pub fn argmax(&mut self, x: &Value) -> Value {
        let mut shape = x.shape.clone();
        shape.pop();
        self.node(Op::ArgMax, &[x], Element::I64, shape)
    }

    /// Where elements are equal.
    pub fn equal(&mut self, a: &Value, b: &Value) -> Value {
        let shape = broadcast(&a.shape, &b.shape);
        self.node(Op::Equal, &[a, b], Element::Bool, shape)
    }

    /// `a` where the condition is true, else `b`.
    pub fn choose(&mut self, condition: &Value, a: &Value, b: &Value) -> Value {
        let shape = broadcast(&condition.shape, &broadcast(&a.shape, &b.shape));
        self.node(Op::Where, &[condition, a, b], a.element, shape)
    }

    /// Integers `[N]` as vectors with one 1, `[N, count]`; those outside of the range as zeros.
    pub fn one_hot(&mut self, x: &Value, count: usize) -> Value {
        let numbers = Tensor::arange(count as i64, (Kind::Int64, tch::Device::Cpu));
        let numbers = self.constant(&numbers);
        let x = self.cast(x, Element::I64);
        let column = self.unsqueeze(&x, 1);
        let equal = self.equal(&column, &numbers);
        self.cast(&equal, Element::F32)
    }

    /// Numbers where actions are legal, and a very low one elsewhere. `legal` holds 0 for illegal ones.
    pub fn masked(&mut self, x: &Value, legal: Option<&Value>) -> Value {
        let Some(legal) = legal else {
            return x.clone();
        };
        let zero = self.constant(&Tensor::from_slice(&[0u8]));
        let illegal = self.equal(legal, &zero);
        let low = self.scalar(-1e8);
        self.choose(&illegal, &low, x)
    }
}

/// The shape of two values that are combined element by element.
fn broadcast(a: &[i64], b: &[i64]) -> Vec<i64> {
    let (long, short) = if a.len() >= b.len() { (a, b) } else { (b, a) };
    let mut shape = long.to_vec();
    let offset = long.len() - short.len();
    for (size, &other) in shape[offset..].iter_mut().zip(short) {
        if *size == 1 {
            *size = other;
        }
    }
    shape
}

fn pooled(shape: &[i64], channels: i64, kernel: i64, stride: i64, pads: [i64; 4]) -> Vec<i64> {
    let [top, left, bottom, right] = pads;
    let side = |size: i64, pads: i64| (size + pads - kernel) / stride + 1;
    vec![
        shape[0],
        channels,
        side(shape[2], top + bottom),
        side(shape[3], left + right),
    ]
}
