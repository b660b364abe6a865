//! Observations as numbers that layers can take.

use starling_envs::Space;
use starling_tree::{DType, Tree};
use tch::{Kind, Tensor};

use crate::export::{Element, Graph, Value};
use crate::{Layout, Moments, NetConfig, Params, RunningNorm, ShapeMismatch};

/// The arrays of an observation, prepared for the first layers of a network: bytes are scaled to
/// the range from 0 to 1, choices become vectors with one 1, floats are normalised by running
/// statistics if `algo.net.normalize_observations` says so, and all are in the precision that
/// `algo.net.bf16` says.
#[derive(Clone, Debug)]
pub struct Inputs(Tree<Input>);

/// How one array of an observation is prepared.
#[derive(Clone, Debug)]
pub(super) struct Input {
    /// Shape of one item when it is prepared.
    pub(super) shape: Vec<usize>,
    /// Numbers without a range of their own are brought to mean 0 and deviation 1.
    pub(super) norm: Option<RunningNorm>,
    /// Bytes are brought to the range from 0 to 1.
    pub(super) scale: Option<f64>,
    /// Choices become vectors with one 1.
    pub(super) choices: Option<Vec<usize>>,
    /// What is computed with.
    pub(super) kind: Kind,
}

impl Inputs {
    /// Inputs for observations of a space. Running statistics are added to `layout`, under `name`.
    ///
    /// # Errors
    /// When observations are to be normalised that have no array of floats.
    pub fn new(
        layout: &mut Layout,
        name: &str,
        space: &Space,
        config: &NetConfig,
    ) -> Result<Self, ShapeMismatch> {
        Self::with(layout, name, space, config, &mut |_, _, _| Ok(()))
    }

    /// The same; `each` adds what follows an array right after it. It is given the array's name
    /// in the layout.
    pub(super) fn with(
        layout: &mut Layout,
        name: &str,
        space: &Space,
        config: &NetConfig,
        each: &mut Each<'_>,
    ) -> Result<Self, ShapeMismatch> {
        let inputs = Self(inputs(layout, name, space, config, each)?);
        let all = inputs.arrays();
        if config.normalize_observations && all.iter().all(|input| input.norm.is_none()) {
            return Err(ShapeMismatch(
                "net.normalize_observations is for arrays of floats, and these observations have \
                 none: bytes and choices have a range of their own"
                    .into(),
            ));
        }
        Ok(inputs)
    }

    /// Shapes of the prepared arrays, each without the leading dimension.
    pub fn shapes(&self) -> Vec<&[usize]> {
        let arrays = self.arrays().into_iter();
        arrays.map(|input| &input.shape[..]).collect()
    }

    /// The prepared arrays `[N, ..]` of observations `[N, ..]`, in the order of the space.
    pub fn prepare(&self, params: &Params, obs: &Tree<Tensor>) -> Vec<Tensor> {
        let mut prepared = Vec::new();
        self.visit(obs, &mut |input, x| {
            prepared.push(input.prepare(params, x));
        });
        prepared
    }

    /// What observations `[N, ..]` bring to the running statistics, if there are any.
    pub fn seen(&self, obs: &Tree<Tensor>) -> Vec<(RunningNorm, Moments)> {
        let mut seen = Vec::new();
        self.visit(obs, &mut |input, x| {
            let norm = input.norm.as_ref();
            seen.extend(norm.map(|norm| (norm.clone(), norm.moments(x))));
        });
        seen
    }

    /// The same as [`prepare`](Inputs::prepare) in a graph, in float32.
    pub fn export(&self, graph: &mut Graph, params: &Params, obs: &Tree<Value>) -> Vec<Value> {
        let inputs = self.arrays().into_iter();
        let leaves = obs.leaves().into_iter();
        inputs
            .zip(leaves)
            .map(|(input, (_, x))| input.export(graph, params, x))
            .collect()
    }

    pub(super) fn arrays(&self) -> Vec<&Input> {
        let leaves = self.0.leaves().into_iter();
        leaves.map(|(_, input)| input).collect()
    }

    pub(super) fn visit(&self, obs: &Tree<Tensor>, see: &mut dyn FnMut(&Input, &Tensor)) {
        visit(&self.0, obs, see);
    }
}

impl Input {
    /// Numbers in the range and kind of the first layer.
    pub(super) fn prepare(&self, params: &Params, x: &Tensor) -> Tensor {
        if let Some(choices) = &self.choices {
            return one_hot(x, choices).to_kind(self.kind);
        }
        let x = match &self.norm {
            Some(norm) => norm.forward(params, &x.to_kind(Kind::Float)),
            None => x.shallow_clone(),
        };
        // Every byte has its own bfloat16.
        match self.scale {
            Some(scale) => x.to_kind(self.kind) * scale,
            None => x.to_kind(self.kind),
        }
    }
}

impl Input {
    fn export(&self, graph: &mut Graph, params: &Params, x: &Value) -> Value {
        if let Some(choices) = &self.choices {
            let parts: Vec<Value> = match x.shape.len() {
                1 => vec![graph.one_hot(x, choices[0])],
                _ => {
                    let x = graph.reshape(x, &[-1, choices.len() as i64]);
                    let parts = choices.iter().enumerate();
                    let parts = parts.map(|(i, &n)| {
                        let part = graph.slice(&x, 1, i as i64, i as i64 + 1);
                        let part = graph.squeeze(&part, 1);
                        graph.one_hot(&part, n)
                    });
                    parts.collect()
                }
            };
            return graph.concat(&parts, 1);
        }
        let mut x = graph.cast(x, Element::F32);
        if let Some(norm) = &self.norm {
            x = norm.export(graph, params, &x);
        }
        match self.scale {
            Some(scale) => {
                let scale = graph.scalar(scale);
                graph.mul(&x, &scale)
            }
            None => x,
        }
    }
}

/// Adds what follows an array of this name.
pub(super) type Each<'a> = dyn FnMut(&mut Layout, &str, &Input) -> Result<(), ShapeMismatch> + 'a;

fn inputs(
    layout: &mut Layout,
    name: &str,
    space: &Space,
    config: &NetConfig,
    each: &mut Each<'_>,
) -> Result<Tree<Input>, ShapeMismatch> {
    let mut input = Input {
        shape: Vec::new(),
        norm: None,
        scale: None,
        choices: None,
        kind: match config.bf16 {
            true => Kind::BFloat16,
            false => Kind::Float,
        },
    };
    match space {
        Space::Dict(parts) => {
            let mut children = Vec::new();
            for (part, space) in parts {
                let child = inputs(layout, &format!("{name}.{part}"), space, config, each)?;
                children.push((part.clone(), child));
            }
            return Ok(Tree::Node(children));
        }
        Space::Discrete { n } => input.choices = Some(vec![*n]),
        Space::MultiDiscrete { choices } => input.choices = Some(choices.clone()),
        Space::Box {
            dtype,
            shape,
            bounds,
        } => {
            input.shape.clone_from(shape);
            match dtype {
                DType::U8 => input.scale = Some(1.0 / f64::from(bounds.of(0).1.max(1.0))),
                _ if config.normalize_observations => {
                    input.norm = Some(RunningNorm::new(layout, &format!("{name}.seen"), shape));
                }
                _ => {}
            }
        }
    }
    if let Some(choices) = &input.choices {
        input.shape = vec![choices.iter().sum()];
    }
    each(layout, name, &input)?;
    Ok(Tree::Leaf(input))
}

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
