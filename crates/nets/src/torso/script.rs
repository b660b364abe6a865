//! A user's own network, defined in Python and read from a TorchScript file.
//!
//! The file holds a module whose `forward` takes its parameters as arguments: first every parameter
//! in the order of `named_parameters()`, then the arrays of an observation. So it is a description
//! without weights like every other network here: it computes with any [`Params`], and gradients
//! flow into them. `examples/torchscript/export.py` writes such a file from any module. The values
//! in the file are the initial weights.

use std::path::Path;

use starling_envs::Space;
use starling_tree::Tree;
use tch::{CModule, Device, Kind, Tensor};

use crate::convert::kind_of;
use crate::export::{Graph, NotExported, Value};
use crate::{FeatureExtractor, Layout, ParamId, Params, ShapeMismatch};

/// A network from a file: observations in, features out.
#[derive(Debug)]
pub(super) struct Script {
    module: CModule,
    params: Vec<ParamId>,
    features: usize,
}

impl Script {
    /// Reads the file and asks for its parameters.
    pub(super) fn load(
        layout: &mut Layout,
        name: &str,
        path: &Path,
        space: &Space,
    ) -> Result<Self, ShapeMismatch> {
        let problem = |what: String| ShapeMismatch(format!("{}: {what}", path.display()));
        // The optimiser of TorchScript compiles again for shapes and gradients it has not seen, in
        // the middle of a run; the operations themselves are the same without it.
        tch::jit::set_graph_executor_optimize(false);
        let mut module = CModule::load(path)
            .map_err(|error| problem(format!("not a TorchScript file: {}", reason(&error))))?;
        module.set_eval();
        let named = module
            .named_parameters()
            .map_err(|error| problem(reason(&error)))?;
        let mut params = Vec::new();
        let mut first = Vec::new();
        for (parameter, value) in named {
            let value = value.detach().to_kind(Kind::Float);
            let shape: Vec<usize> = value.size().iter().map(|&n| n as usize).collect();
            let array = crate::array_of(&value);
            let values = array.as_slice::<f32>().to_vec();
            params.push(layout.add_given(format!("{name}.{parameter}"), &shape, values));
            first.push(value);
        }
        // Two zero observations show what comes out.
        let mut inputs = first;
        for (_, spec) in space.spec().leaves() {
            let shape = [2].into_iter().chain(spec.shape.iter().map(|&n| n as i64));
            let kind = kind_of(spec.dtype);
            let shape: Vec<i64> = shape.collect();
            inputs.push(Tensor::zeros(shape.as_slice(), (kind, Device::Cpu)));
        }
        let output = tch::no_grad(|| module.forward_ts(&inputs));
        let output = output.map_err(|error| {
            problem(format!(
                "it cannot be applied to these observations ({}); it takes its parameters and \
                 then the observation, see examples/torchscript",
                reason(&error)
            ))
        })?;
        let features = match *output.size().as_slice() {
            [2, features] if output.kind() == Kind::Float => features as usize,
            _ => {
                return Err(problem(format!(
                    "two observations give {:?} {:?}, but [2, features] of floats is needed",
                    output.kind(),
                    output.size()
                )));
            }
        };
        Ok(Self {
            module,
            params,
            features,
        })
    }
}

impl FeatureExtractor for Script {
    fn features(&self) -> usize {
        self.features
    }

    fn forward(&self, params: &Params, obs: &Tree<Tensor>) -> Tensor {
        let weights = self.params.iter().map(|&id| params.get(id));
        let leaves = obs.leaves();
        let arrays = leaves.iter().map(|(_, tensor)| *tensor);
        let inputs: Vec<&Tensor> = weights.chain(arrays).collect();
        match self.module.forward_ts(&inputs) {
            Ok(features) => features,
            // It was applied to observations of this space when it was read.
            Err(error) => panic!("the user's network failed: {error}"),
        }
    }

    fn export(&self, _: &mut Graph, _: &Params, _: &Tree<Value>) -> Result<Value, NotExported> {
        let reason = "its network is a TorchScript file (algo.net.torchscript), whose operations are not \
                      known; export it with torch.onnx, and set its parameters to those named torso.… in \
                      the checkpoint";
        Err(NotExported(reason.into()))
    }
}

/// What libtorch says went wrong, without the traces around it.
fn reason(error: &tch::TchError) -> String {
    let message = error.to_string();
    let mut lines = message.lines().map(str::trim);
    let named = lines
        .clone()
        .rfind(|line| line.starts_with("RuntimeError: "));
    let line = named.or_else(|| lines.find(|line| !line.is_empty()));
    line.unwrap_or_default().to_owned()
}
