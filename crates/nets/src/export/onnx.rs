//! A [`Graph`] as an ONNX file.

use std::path::Path;

use prost::Message as _;
use tch::Tensor;

use super::graph::{Node, Op};
use super::messages::{
    Attribute, Dimension, Entry, GraphProto, Model, NodeProto, OperatorSet, ShapeProto, Size,
    TensorProto, TensorType, TypeProto, ValueInfo,
};
use super::{Element, Graph, NotExported, Value};

/// Read by ONNX Runtime 1.18 and newer.
const IR_VERSION: i64 = 10;
const OPERATORS: i64 = 21;

/// The number of observations, as the shapes of inputs and outputs name it.
const BATCH: &str = "batch";

impl Graph {
    /// The graph as an ONNX file, with texts by name in its metadata.
    pub fn to_onnx(&self, metadata: &[(String, String)]) -> Vec<u8> {
        let mut written = Written {
            graph: self,
            proto: GraphProto {
                name: "policy".to_owned(),
                ..GraphProto::default()
            },
        };
        for (value, tensor) in &self.constants {
            let constant = written.tensor(&self.names[value.id], value.element, tensor);
            written.proto.initializer.push(constant);
        }
        for node in &self.nodes {
            written.add(node);
        }
        written.proto.input = self.inputs.iter().map(|value| info(self, value)).collect();
        written.proto.output = self.outputs.iter().map(|value| info(self, value)).collect();
        let entry = |(key, value): &(String, String)| Entry {
            key: key.clone(),
            value: value.clone(),
        };
        let model = Model {
            ir_version: IR_VERSION,
            producer_name: "starling".to_owned(),
            producer_version: env!("CARGO_PKG_VERSION").to_owned(),
            graph: Some(written.proto),
            opset_import: vec![OperatorSet {
                domain: String::new(),
                version: OPERATORS,
            }],
            metadata_props: metadata.iter().map(entry).collect(),
        };
        model.encode_to_vec()
    }

    /// Writes the graph as an ONNX file.
    pub fn write_onnx(
        &self,
        path: &Path,
        metadata: &[(String, String)],
    ) -> Result<(), NotExported> {
        let written = std::fs::write(path, self.to_onnx(metadata));
        written.map_err(|error| NotExported::file(path, error))
    }
}

/// A graph that is being written.
struct Written<'a> {
    graph: &'a Graph,
    proto: GraphProto,
}

impl Written<'_> {
    /// Adds an operation.
    fn add(&mut self, node: &Node) {
        let name = |value: &Value| self.graph.names[value.id].clone();
        let inputs: Vec<String> = node.inputs.iter().map(name).collect();
        let output = name(&node.output);
        let x = &node.inputs[0];
        let (kind, inputs, attributes) = match &node.op {
            Op::Cast => (
                "Cast",
                inputs,
                vec![int("to", code(node.output.element).into())],
            ),
            Op::Linear if x.shape.len() == 2 => ("Gemm", inputs, vec![int("transB", 1)]),
            Op::Linear => return self.product(&inputs, &output),
            Op::Conv { stride, pads } => {
                let kernel = node.inputs[1].shape[2];
                ("Conv", inputs, window(kernel, *stride, pads))
            }
            Op::MaxPool { pads } => ("MaxPool", inputs, window(3, 2, pads)),
            Op::Relu => ("Relu", inputs, vec![]),
            Op::Tanh => ("Tanh", inputs, vec![]),
            Op::Sigmoid => ("Sigmoid", inputs, vec![]),
            Op::Sqrt => ("Sqrt", inputs, vec![]),
            Op::Exp => ("Exp", inputs, vec![]),
            Op::Log => ("Log", inputs, vec![]),
            Op::Abs => ("Abs", inputs, vec![]),
            Op::Sign => ("Sign", inputs, vec![]),
            Op::Add => ("Add", inputs, vec![]),
            Op::Sub => ("Sub", inputs, vec![]),
            Op::Mul => ("Mul", inputs, vec![]),
            Op::Div => ("Div", inputs, vec![]),
            Op::Max => ("Max", inputs, vec![]),
            Op::Min => ("Min", inputs, vec![]),
            Op::LayerNorm { leading, eps } => {
                let eps = Attribute {
                    name: "epsilon".to_owned(),
                    f: *eps as f32,
                    kind: 1,
                    ..Attribute::default()
                };
                (
                    "LayerNormalization",
                    inputs,
                    vec![int("axis", *leading), eps],
                )
            }
            Op::Reshape => {
                let shape = self.numbers(&output, "shape", &node.output.shape);
                ("Reshape", [inputs, vec![shape]].concat(), vec![])
            }
            Op::Unsqueeze(axis) => {
                let axes = self.numbers(&output, "axes", &[*axis]);
                ("Unsqueeze", [inputs, vec![axes]].concat(), vec![])
            }
            Op::Squeeze(axis) => {
                let axes = self.numbers(&output, "axes", &[*axis]);
                ("Squeeze", [inputs, vec![axes]].concat(), vec![])
            }
            Op::Transpose(order) => ("Transpose", inputs, vec![ints("perm", order)]),
            Op::Concat(axis) => ("Concat", inputs, vec![int("axis", *axis)]),
            Op::Slice { axis, start, end } => {
                let parts = [("starts", start), ("ends", end), ("axes", axis)];
                let parts = parts.map(|(part, number)| self.numbers(&output, part, &[*number]));
                ("Slice", [inputs, parts.to_vec()].concat(), vec![])
            }
            Op::Mean { axis, keep } => {
                let axes = self.numbers(&output, "axes", &[*axis]);
                let keep = int("keepdims", i64::from(*keep));
                ("ReduceMean", [inputs, vec![axes]].concat(), vec![keep])
            }
            Op::Softmax => ("Softmax", inputs, vec![int("axis", -1)]),
            Op::ArgMax => ("ArgMax", inputs, vec![int("axis", -1), int("keepdims", 0)]),
            Op::Equal => ("Equal", inputs, vec![]),
            Op::Where => ("Where", inputs, vec![]),
            Op::Identity => ("Identity", inputs, vec![]),
        };
        self.push(kind, inputs, output, attributes);
    }

    /// A product with more than two dimensions, for which there is no single operation.
    fn product(&mut self, inputs: &[String], output: &str) {
        let turned = format!("{output}_weight");
        let perm = vec![ints("perm", &[1, 0])];
        self.push("Transpose", vec![inputs[1].clone()], turned.clone(), perm);
        let both = vec![inputs[0].clone(), turned];
        let Some(bias) = inputs.get(2) else {
            return self.push("MatMul", both, output.to_owned(), vec![]);
        };
        let product = format!("{output}_product");
        self.push("MatMul", both, product.clone(), vec![]);
        self.push(
            "Add",
            vec![product, bias.clone()],
            output.to_owned(),
            vec![],
        );
    }

    fn push(&mut self, kind: &str, input: Vec<String>, output: String, attribute: Vec<Attribute>) {
        self.proto.node.push(NodeProto {
            input,
            name: output.clone(),
            output: vec![output],
            op_type: kind.to_owned(),
            attribute,
        });
    }

    /// A constant vector of integers that an operation takes, and its name.
    fn numbers(&mut self, output: &str, part: &str, numbers: &[i64]) -> String {
        let name = format!("{output}_{part}");
        let tensor = self.tensor(&name, Element::I64, &Tensor::from_slice(numbers));
        self.proto.initializer.push(tensor);
        name
    }

    fn tensor(&self, name: &str, element: Element, tensor: &Tensor) -> TensorProto {
        TensorProto {
            dims: tensor.size(),
            data_type: code(element),
            name: name.to_owned(),
            // Little-endian, as on every machine that libtorch is built for.
            raw_data: crate::array_of(tensor).bytes().to_vec(),
        }
    }
}

fn info(graph: &Graph, value: &Value) -> ValueInfo {
    let dimension = |&size: &i64| Dimension {
        size: Some(match size {
            -1 => Size::Name(BATCH.to_owned()),
            size => Size::Number(size),
        }),
    };
    let shape = ShapeProto {
        dim: value.shape.iter().map(dimension).collect(),
    };
    ValueInfo {
        name: graph.names[value.id].clone(),
        kind: Some(TypeProto {
            tensor_type: Some(TensorType {
                elem_type: code(value.element),
                shape: Some(shape),
            }),
        }),
    }
}

/// The number of a type in ONNX.
fn code(element: Element) -> i32 {
    match element {
        Element::F32 => 1,
        Element::U8 => 2,
        Element::I32 => 6,
        Element::I64 => 7,
        Element::Bool => 9,
        Element::F64 => 11,
    }
}

fn int(name: &str, i: i64) -> Attribute {
    Attribute {
        name: name.to_owned(),
        i,
        kind: 2,
        ..Attribute::default()
    }
}

fn ints(name: &str, ints: &[i64]) -> Attribute {
    Attribute {
        name: name.to_owned(),
        ints: ints.to_vec(),
        kind: 7,
        ..Attribute::default()
    }
}

fn window(kernel: i64, stride: i64, pads: &[i64; 4]) -> Vec<Attribute> {
    vec![
        ints("kernel_shape", &[kernel; 2]),
        ints("strides", &[stride; 2]),
        ints("pads", pads),
    ]
}
