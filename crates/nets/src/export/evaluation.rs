//! Evaluates an ONNX file with libtorch, to compare it with the network that it was exported from.

use std::collections::HashMap;

use prost::Message as _;
use tch::{Device, Kind, Tensor};

use super::NotExported;
use super::messages::{GraphProto, Model, NodeProto, TensorProto};

/// An ONNX file that was read back. It knows the operations that [`Graph`](super::Graph) writes.
#[derive(Debug)]
pub struct Evaluation {
    graph: GraphProto,
}

impl Evaluation {
    /// Reads the bytes of a file.
    pub fn read(bytes: &[u8]) -> Result<Self, NotExported> {
        let model = Model::decode(bytes);
        let model = model.map_err(|error| NotExported(format!("not an ONNX file: {error}")))?;
        let graph = model.graph.unwrap_or_default();
        Ok(Self { graph })
    }

    /// The outputs by name, from inputs by name.
    pub fn run(&self, inputs: &[(String, Tensor)]) -> Result<Vec<(String, Tensor)>, NotExported> {
        let mut values: HashMap<&str, Tensor> = HashMap::new();
        for tensor in &self.graph.initializer {
            values.insert(&tensor.name, constant(tensor)?);
        }
        for (name, tensor) in inputs {
            values.insert(name, tensor.shallow_clone());
        }
        for node in &self.graph.node {
            let taken = node.input.iter().map(|name| values.get(&**name));
            let taken: Option<Vec<&Tensor>> = taken.collect();
            let output = taken.and_then(|taken| tch::no_grad(|| compute(node, &taken)));
            let Some(output) = output else {
                let text = format!(
                    "the operation {} of {} is not known",
                    node.op_type, node.name
                );
                return Err(NotExported(text));
            };
            values.insert(&node.output[0], output);
        }
        let outputs = self.graph.output.iter().map(|output| {
            let value = values.get(&*output.name).map(Tensor::shallow_clone);
            let value = value.map(|value| (output.name.clone(), value));
            value.ok_or_else(|| NotExported(format!("the output {} is missing", output.name)))
        });
        outputs.collect()
    }
}

fn constant(tensor: &TensorProto) -> Result<Tensor, NotExported> {
    let kind = kind(tensor.data_type.into())
        .ok_or_else(|| NotExported(format!("the type of {} is not known", tensor.name)))?;
    Ok(Tensor::from_data_size(&tensor.raw_data, &tensor.dims, kind))
}

fn kind(code: i64) -> Option<Kind> {
    Some(match code {
        1 => Kind::Float,
        2 => Kind::Uint8,
        6 => Kind::Int,
        7 => Kind::Int64,
        9 => Kind::Bool,
        11 => Kind::Double,
        _ => return None,
    })
}

fn compute(node: &NodeProto, x: &[&Tensor]) -> Option<Tensor> {
    let attribute = |name: &str| node.attribute.iter().find(|one| one.name == name);
    let int = |name: &str| attribute(name).map(|one| one.i);
    let ints = |name: &str| Some(attribute(name)?.ints.clone());
    let numbers = |place: usize| Vec::<i64>::try_from(x.get(place)?.to_device(Device::Cpu)).ok();
    let padded = |value: f64| {
        let pads = ints("pads")?;
        Some(x[0].pad([pads[1], pads[3], pads[0], pads[2]], "constant", value))
    };
    Some(match node.op_type.as_str() {
        "Cast" => x[0].to_kind(kind(int("to")?)?),
        "Gemm" => x[0].linear(x[1], x.get(2).copied()),
        "MatMul" => x[0].matmul(x[1]),
        "Conv" => {
            let strides = ints("strides")?;
            padded(0.0)?.conv2d(x[1], x.get(2).copied(), strides, [0; 2], [1; 2], 1)
        }
        "MaxPool" => {
            let (kernel, strides) = (ints("kernel_shape")?, ints("strides")?);
            padded(f64::NEG_INFINITY)?.max_pool2d(kernel, strides, [0; 2], [1; 2], false)
        }
        "Relu" => x[0].relu(),
        "Tanh" => x[0].tanh(),
        "Sigmoid" => x[0].sigmoid(),
        "Sqrt" => x[0].sqrt(),
        "Exp" => x[0].exp(),
        "Log" => x[0].log(),
        "Abs" => x[0].abs(),
        "Sign" => x[0].sign(),
        "Add" => x[0] + x[1],
        "Sub" => x[0] - x[1],
        "Mul" => x[0] * x[1],
        "Div" => x[0] / x[1],
        "Max" => x[0].maximum(x[1]),
        "Min" => x[0].minimum(x[1]),
        "LayerNormalization" => {
            let leading = usize::try_from(int("axis")?).ok()?;
            let eps = f64::from(attribute("epsilon")?.f);
            let shape = x[0].size().split_off(leading);
            x[0].layer_norm(shape, Some(x[1]), x.get(2).copied(), eps, false)
        }
        "Reshape" => x[0].reshape(numbers(1)?),
        "Unsqueeze" => x[0].unsqueeze(*numbers(1)?.first()?),
        "Squeeze" => x[0].squeeze_dim(*numbers(1)?.first()?),
        "Transpose" => x[0].permute(ints("perm")?),
        "Concat" => Tensor::cat(x, int("axis")?),
        "Slice" => {
            let part = |place: usize| numbers(place)?.first().copied();
            let (start, end) = (part(1)?, part(2)?);
            x[0].narrow(part(3)?, start, end - start)
        }
        "ReduceMean" => {
            let axes = numbers(1)?;
            x[0].mean_dim(axes.as_slice(), int("keepdims")? != 0, x[0].kind())
        }
        "Softmax" => x[0].softmax(int("axis")?, x[0].kind()),
        "ArgMax" => x[0].argmax(int("axis")?, int("keepdims")? != 0),
        "Equal" => x[0].eq_tensor(x[1]),
        "Where" => x[1].where_self(x[0], x[2]),
        "Identity" => x[0].shallow_clone(),
        _ => return None,
    })
}
