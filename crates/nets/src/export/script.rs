//! A [`Graph`] as a TorchScript file.

use std::fmt::Write as _;
use std::path::Path;

use tch::{CModule, IValue, Tensor};

use super::graph::{Node, Op};
use super::{Element, Graph, NotExported, Value};

impl Graph {
    /// Writes the graph as a TorchScript module. Its `forward` takes the inputs in their order and returns
    /// a dictionary of the outputs; `about` is the content of its extra file `starling.json`.
    pub fn write_torchscript(&self, path: &Path, about: &str) -> Result<(), NotExported> {
        let text = path.to_str();
        let text = text.ok_or_else(|| NotExported::file(path, "the path is not UTF-8"))?;
        let names: Vec<String> = self
            .constants
            .iter()
            .map(|(value, _)| self.variable(value))
            .collect();
        let tensors: Vec<&Tensor> = self.constants.iter().map(|(_, tensor)| tensor).collect();
        crate::native::write_script(&self.source(), &names, &tensors, about, text)
            .map_err(|error| NotExported::file(path, error))
    }

    /// What a TorchScript file that [`write_torchscript`](Graph::write_torchscript) wrote computes: the
    /// outputs by name, from inputs by name.
    pub fn run_torchscript(
        &self,
        path: &Path,
        inputs: &[(String, Tensor)],
    ) -> Result<Vec<(String, Tensor)>, NotExported> {
        let failed = |error: tch::TchError| NotExported::file(path, error);
        let module = CModule::load(path).map_err(failed)?;
        let named = |name: &str| inputs.iter().find(|(other, _)| other == name);
        let mut given = Vec::new();
        for (name, _) in self.inputs() {
            let Some((_, tensor)) = named(name) else {
                return Err(NotExported(format!("the input {name} is missing")));
            };
            given.push(IValue::Tensor(tensor.shallow_clone()));
        }
        let output = tch::no_grad(|| module.forward_is(&given)).map_err(failed)?;
        let IValue::GenericDict(pairs) = output else {
            return Err(NotExported::file(path, "it does not return a dictionary"));
        };
        let pairs = pairs.into_iter().filter_map(|pair| match pair {
            (IValue::String(name), IValue::Tensor(tensor)) => Some((name, tensor)),
            _ => None,
        });
        Ok(pairs.collect())
    }

    /// The module's method, in TorchScript's language.
    fn source(&self) -> String {
        let inputs = self.inputs.iter().map(|value| self.variable(value));
        let inputs: Vec<String> = inputs.map(|name| format!("{name}: Tensor")).collect();
        let mut text = format!(
            "def forward(self, {}) -> Dict[str, Tensor]:\n",
            inputs.join(", ")
        );
        for node in &self.nodes {
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "  {} = {}",
                self.variable(&node.output),
                self.call(node)
            );
        }
        let outputs = self.outputs().into_iter();
        let outputs: Vec<String> = outputs
            .map(|(name, value)| format!("\"{name}\": {}", self.variable(value)))
            .collect();
        let _ = writeln!(text, "  return {{{}}}", outputs.join(", "));
        text
    }

    /// A name that the language allows, different for every value.
    fn variable(&self, value: &Value) -> String {
        let name = &self.names[value.id];
        let plain: String = name
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() { c } else { '_' })
            .collect();
        match self.inputs.contains(value) {
            true => format!("input_{plain}"),
            false => format!("v{}_{plain}", value.id),
        }
    }

    /// An input of an operation: a variable, or a constant of the module.
    fn operand(&self, value: &Value) -> String {
        let constant = self.constants.iter().any(|(other, _)| other.id == value.id);
        match constant {
            true => format!("self.{}", self.variable(value)),
            false => self.variable(value),
        }
    }

    fn call(&self, node: &Node) -> String {
        let inputs: Vec<String> = node
            .inputs
            .iter()
            .map(|value| self.operand(value))
            .collect();
        let x = &inputs[0];
        let all = inputs.join(", ");
        match &node.op {
            Op::Cast => format!("torch.to({x}, {})", code(node.output.element)),
            Op::Linear => format!("torch.linear({all})"),
            Op::Conv { stride, pads } => {
                let x = padded(x, pads, "0.");
                let [_, weight, bias] = &inputs[..] else {
                    return String::new();
                };
                format!(
                    "torch.conv2d({x}, {weight}, {bias}, [{stride}, {stride}], [0, 0], [1, 1], 1)"
                )
            }
            Op::MaxPool { pads } => {
                // Smaller than every pixel.
                let x = padded(x, pads, "-3.4028234663852886e+38");
                format!("torch.max_pool2d({x}, [3, 3], [2, 2], [0, 0], [1, 1], False)")
            }
            Op::Relu => format!("torch.relu({x})"),
            Op::Tanh => format!("torch.tanh({x})"),
            Op::Sigmoid => format!("torch.sigmoid({x})"),
            Op::Sqrt => format!("torch.sqrt({x})"),
            Op::Exp => format!("torch.exp({x})"),
            Op::Log => format!("torch.log({x})"),
            Op::Abs => format!("torch.abs({x})"),
            Op::Sign => format!("torch.sign({x})"),
            Op::Add => format!("torch.add({all})"),
            Op::Sub => format!("torch.sub({all})"),
            Op::Mul => format!("torch.mul({all})"),
            Op::Div => format!("torch.div({all})"),
            Op::Max => format!("torch.maximum({all})"),
            Op::Min => format!("torch.minimum({all})"),
            Op::LayerNorm { leading, eps } => {
                let shape = &node.inputs[0].shape[*leading as usize..];
                let (scale, bias) = (&inputs[1], &inputs[2]);
                format!("torch.layer_norm({x}, {shape:?}, {scale}, {bias}, {eps:e}, False)")
            }
            Op::Reshape => format!("torch.reshape({x}, {:?})", node.output.shape),
            Op::Unsqueeze(axis) => format!("torch.unsqueeze({x}, {axis})"),
            Op::Squeeze(axis) => format!("torch.squeeze({x}, {axis})"),
            Op::Transpose(order) => format!("torch.permute({x}, {order:?})"),
            Op::Concat(axis) => format!("torch.cat([{all}], {axis})"),
            Op::Slice { axis, start, end } => {
                format!("torch.slice({x}, {axis}, {start}, {end}, 1)")
            }
            Op::Mean { axis, keep } => {
                let keep = if *keep { "True" } else { "False" };
                format!("torch.mean({x}, [{axis}], {keep})")
            }
            Op::Softmax => format!("torch.softmax({x}, -1)"),
            Op::ArgMax => format!("torch.argmax({x}, -1, False)"),
            Op::Equal => format!("torch.eq({all})"),
            Op::Where => format!("torch.where({all})"),
            Op::Identity => format!("torch.clone({x})"),
        }
    }
}

fn padded(x: &str, [top, left, bottom, right]: &[i64; 4], value: &str) -> String {
    match [top, left, bottom, right].iter().all(|&&pad| pad == 0) {
        true => x.to_owned(),
        false => format!("torch.constant_pad_nd({x}, [{left}, {right}, {top}, {bottom}], {value})"),
    }
}

/// The number of a type in libtorch.
fn code(element: Element) -> i64 {
    match element {
        Element::U8 => 0,
        Element::I32 => 3,
        Element::I64 => 4,
        Element::F32 => 6,
        Element::F64 => 7,
        Element::Bool => 11,
    }
}
