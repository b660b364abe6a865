//! From observations to features.

use serde::{Deserialize, Serialize};
use starling_envs::Space;
use starling_tree::{DType, Tree};
use tch::{Kind, Tensor};

use crate::{Activation, Conv2d, Init, Layout, Linear, Params, ShapeMismatch};

/// Which network looks at observations.
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
}

/// A network from one observation to a vector of features.
///
/// Images pass convolutions, everything else goes straight on; the parts of an observation are
/// laid side by side and pass the fully connected layers together.
#[derive(Clone, Debug)]
pub struct Torso {
    inputs: Tree<Input>,
    hidden: Vec<Linear>,
    activation: Activation,
    /// Size of the features.
    pub features: usize,
}

/// How one array of an observation is prepared.
#[derive(Clone, Debug, Default)]
struct Input {
    convolutions: Vec<Conv2d>,
    /// Bytes are brought to the range from 0 to 1.
    scale: Option<f64>,
    /// Choices become vectors with one 1.
    choices: Option<Vec<usize>>,
}

impl Torso {
    /// A torso for observations of a space. `hidden` are the sizes of the fully connected
    /// layers; `None` takes what is usual for the kind: 64-64, 128, 512.
    pub fn new(
        layout: &mut Layout,
        name: &str,
        space: &Space,
        kind: TorsoKind,
        hidden: Option<&[usize]>,
        activation: Activation,
        orthogonal: bool,
    ) -> Result<Self, ShapeMismatch> {
        let init = |fan_in| layer_init(orthogonal, fan_in, std::f64::consts::SQRT_2);
        let mut flat = 0;
        let mut usual: &[usize] = &[64, 64];
        let mut path = vec![name.to_owned()];
        let inputs = build_inputs(layout, space, kind, &init, &mut path, &mut flat, &mut usual)?;
        let mut layers = Vec::new();
        for (i, &size) in hidden.unwrap_or(usual).iter().enumerate() {
            let layer = format!("{name}.hidden{i}");
            layers.push(Linear::new(layout, &layer, flat, size, init(flat)));
            flat = size;
        }
        Ok(Self {
            inputs,
            hidden: layers,
            activation,
            features: flat,
        })
    }

    /// Features `[N, features]` of observations with one leading dimension `[N, ..]`.
    pub fn forward(&self, params: &Params, obs: &Tree<Tensor>) -> Tensor {
        let mut parts = Vec::new();
        self.prepare(params, &self.inputs, obs, &mut parts);
        let mut x = match parts.len() {
            1 => parts.remove(0),
            _ => Tensor::cat(&parts, -1),
        };
        for layer in &self.hidden {
            x = self.activation.apply(&layer.forward(params, &x));
        }
        x
    }

    fn prepare(
        &self,
        params: &Params,
        inputs: &Tree<Input>,
        obs: &Tree<Tensor>,
        parts: &mut Vec<Tensor>,
    ) {
        match (inputs, obs) {
            (Tree::Leaf(input), Tree::Leaf(x)) => parts.push(input.forward(params, x)),
            (Tree::Node(inputs), Tree::Node(obs)) => {
                for ((_, input), (_, x)) in inputs.iter().zip(obs) {
                    self.prepare(params, input, x, parts);
                }
            }
            _ => panic!("the observation has another structure than the space of this network"),
        }
    }
}

impl Input {
    fn forward(&self, params: &Params, x: &Tensor) -> Tensor {
        if let Some(choices) = &self.choices {
            return one_hot(x, choices);
        }
        let mut x = x.to_kind(Kind::Float);
        if let Some(scale) = self.scale {
            x *= scale;
        }
        for convolution in &self.convolutions {
            x = convolution.forward(params, &x).relu();
        }
        x.reshape([x.size()[0], -1])
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

fn one_hot(x: &Tensor, choices: &[usize]) -> Tensor {
    let lead = x.size()[0];
    let x = x.reshape([lead, choices.len() as i64]);
    let parts = choices.iter().enumerate();
    let parts: Vec<Tensor> = parts
        .map(|(i, &n)| x.select(1, i as i64).one_hot(n as i64))
        .collect();
    Tensor::cat(&parts, -1).to_kind(Kind::Float)
}

fn build_inputs(
    layout: &mut Layout,
    space: &Space,
    kind: TorsoKind,
    init: &dyn Fn(usize) -> Init,
    path: &mut Vec<String>,
    flat: &mut usize,
    usual: &mut &[usize],
) -> Result<Tree<Input>, ShapeMismatch> {
    Ok(match space {
        Space::Dict(parts) => {
            let mut children = Vec::new();
            for (name, part) in parts {
                path.push(name.clone());
                let child = build_inputs(layout, part, kind, init, path, flat, usual)?;
                path.pop();
                children.push((name.clone(), child));
            }
            Tree::Node(children)
        }
        Space::Discrete { n } => {
            *flat += n;
            Tree::Leaf(Input {
                choices: Some(vec![*n]),
                ..Input::default()
            })
        }
        Space::MultiDiscrete { choices } => {
            *flat += choices.iter().sum::<usize>();
            Tree::Leaf(Input {
                choices: Some(choices.clone()),
                ..Input::default()
            })
        }
        Space::Box {
            dtype,
            shape,
            bounds,
        } => {
            let scale = match dtype {
                DType::U8 => Some(1.0 / f64::from(bounds.of(0).1.max(1.0))),
                _ => None,
            };
            let convolutions = match (filters(kind, shape), shape.as_slice()) {
                (Some(filters), &[channels, height, width]) => {
                    *usual = if filters.len() == 1 { &[128] } else { &[512] };
                    let name = path.join(".");
                    convolutions(
                        layout,
                        &name,
                        filters,
                        [channels, height, width],
                        init,
                        flat,
                    )?
                }
                (Some(_), _) => {
                    return Err(ShapeMismatch(format!(
                        "a convolution needs observations [channels, height, width], not {shape:?}"
                    )));
                }
                (None, _) => {
                    *flat += shape.iter().product::<usize>();
                    Vec::new()
                }
            };
            Tree::Leaf(Input {
                convolutions,
                scale,
                choices: None,
            })
        }
    })
}

type Filters = &'static [(usize, usize, usize)];

/// (filters, kernel, stride) of each convolution, or `None` for fully connected layers only.
fn filters(kind: TorsoKind, shape: &[usize]) -> Option<Filters> {
    const MINATAR: Filters = &[(16, 3, 1)];
    const NATURE: Filters = &[(32, 8, 4), (64, 4, 2), (64, 3, 1)];
    match kind {
        TorsoKind::Mlp => None,
        TorsoKind::MinAtar => Some(MINATAR),
        TorsoKind::Nature => Some(NATURE),
        TorsoKind::Auto => match *shape {
            [_, height, width] if height >= 64 && width >= 64 => Some(NATURE),
            [_, height, width] if height >= 3 && width >= 3 => Some(MINATAR),
            _ => None,
        },
    }
}

fn convolutions(
    layout: &mut Layout,
    name: &str,
    filters: Filters,
    shape: [usize; 3],
    init: &dyn Fn(usize) -> Init,
    flat: &mut usize,
) -> Result<Vec<Conv2d>, ShapeMismatch> {
    let [mut channels, mut height, mut width] = shape;
    let mut layers = Vec::new();
    for (i, &(count, kernel, stride)) in filters.iter().enumerate() {
        let init = init(channels * kernel * kernel);
        let name = format!("{name}.conv{i}");
        let layer = Conv2d::new(layout, &name, channels, count, kernel, stride, init);
        [channels, height, width] = layer.output(height, width).ok_or_else(|| {
            ShapeMismatch(format!(
                "an image of {}×{} is too small for this network",
                shape[1], shape[2]
            ))
        })?;
        layers.push(layer);
    }
    *flat += channels * height * width;
    Ok(layers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use starling_envs::stream;
    use std::sync::Arc;
    use tch::Device;

    #[test]
    fn the_nature_network_has_3136_features_before_its_512() {
        let mut layout = Layout::default();
        let space = Space::bytes(&[4, 84, 84], 255);
        let kind = TorsoKind::Auto;
        let torso = Torso::new(
            &mut layout,
            "t",
            &space,
            kind,
            Some(&[]),
            Activation::Relu,
            true,
        );
        assert_eq!(torso.unwrap().features, 3136);
        let torso = Torso::new(&mut layout, "t", &space, kind, None, Activation::Relu, true);
        assert_eq!(torso.unwrap().features, 512);
    }

    #[test]
    fn named_parts_and_choices_are_laid_side_by_side() {
        let space = Space::Dict(vec![
            ("speed".into(), Space::unbounded(&[2])),
            ("gear".into(), Space::Discrete { n: 3 }),
        ]);
        let mut layout = Layout::default();
        let kind = TorsoKind::Auto;
        let torso = Torso::new(
            &mut layout,
            "t",
            &space,
            kind,
            Some(&[]),
            Activation::Relu,
            true,
        );
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
