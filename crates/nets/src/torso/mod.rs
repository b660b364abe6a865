//! From observations to features.

mod built_in;
mod inputs;
mod script;

use std::fmt::Debug;
use std::path::Path;
use std::sync::Arc;

use starling_envs::Space;
use starling_tree::Tree;
use tch::{Kind, Tensor};

pub(crate) use self::built_in::{BuiltIn, Convolutions};
pub use self::built_in::{Padding, PaddingRule};
pub use self::inputs::Inputs;
use self::script::Script;
use crate::export::{Graph, NotExported, Value};
use crate::{
    Activation, Init, LayerNorm, Layout, Linear, Moments, NetConfig, Params, RunningNorm,
    ShapeMismatch,
};

/// The part of a [`Torso`] that looks at observations, before its fully connected layers: a
/// description without weights, which computes with any [`Params`] of its layout.
///
/// Built-in ones and [your own](crate::torsos::add) are made when the settings are read. `forward` runs in
/// actors and in the learner, on any device. On a GPU it is recorded once and repeated: it must not
/// look at the numbers in a tensor.
pub trait FeatureExtractor: Debug + Send + Sync {
    /// Size of the features.
    fn features(&self) -> usize;

    /// Sizes of the fully connected layers that follow where `algo.net.hidden` does not say.
    fn usual_hidden(&self) -> &[usize] {
        &[]
    }

    /// Features `[N, features]` of observations `[N, ..]` as the environment gives them: bytes are
    /// not yet scaled, choices are integers. [`Inputs`] prepares them.
    fn forward(&self, params: &Params, obs: &Tree<Tensor>) -> Tensor;

    /// The same as [`forward`](FeatureExtractor::forward) in a graph, for ONNX and TorchScript files.
    ///
    /// # Errors
    /// Unless it is implemented.
    fn export(
        &self,
        _graph: &mut Graph,
        _params: &Params,
        _obs: &Tree<Value>,
    ) -> Result<Value, NotExported> {
        Err(NotExported(format!(
            "its torso ({self:?}) does not implement FeatureExtractor::export"
        )))
    }

    /// What observations `[N, ..]` bring to its running statistics: [`Inputs::seen`]. Nothing, if it
    /// keeps none.
    fn seen(&self, _obs: &Tree<Tensor>) -> Vec<(RunningNorm, Moments)> {
        Vec::new()
    }
}

/// A network from one observation to a vector of features: a [`FeatureExtractor`] and fully
/// connected layers.
#[derive(Clone, Debug)]
pub struct Torso {
    extractor: Arc<dyn FeatureExtractor>,
    hidden: Vec<(Linear, Option<LayerNorm>)>,
    activation: Activation,
    /// Size of the features.
    pub features: usize,
}

impl Torso {
    /// A torso for observations of a space; adds its parameters to `layout`, under `name`.
    pub fn new(
        layout: &mut Layout,
        name: &str,
        space: &Space,
        config: &NetConfig,
    ) -> Result<Self, ShapeMismatch> {
        let extractor: Box<dyn FeatureExtractor> = match &config.torchscript {
            Some(path) => Box::new(Script::load(layout, name, Path::new(path), space)?),
            None => config.torso.build(layout, name, space, config)?,
        };
        let mut features = extractor.features();
        let mut hidden = Vec::new();
        let sizes = config.hidden.as_deref();
        for (i, &size) in sizes.unwrap_or(extractor.usual_hidden()).iter().enumerate() {
            let init = layer_init(config.orthogonal, features, HIDDEN_GAIN);
            let linear = Linear::new(layout, &format!("{name}.hidden{i}"), features, size, init);
            let norm = config.layer_norm.then(|| {
                let name = format!("{name}.hidden{i}_norm");
                LayerNorm::new(layout, &name, &[size])
            });
            hidden.push((linear, norm));
            features = size;
        }
        Ok(Self {
            extractor: extractor.into(),
            hidden,
            activation: config.activation,
            features,
        })
    }

    /// Features `[N, features]` of observations with one leading dimension `[N, ..]`.
    pub fn forward(&self, params: &Params, obs: &Tree<Tensor>) -> Tensor {
        let mut x = self.extractor.forward(params, obs);
        for (linear, norm) in &self.hidden {
            x = normed(norm.as_ref(), params, linear.forward(params, &x));
            x = self.activation.apply(&x);
        }
        x.to_kind(Kind::Float)
    }

    /// The same as [`forward`](Torso::forward) in a graph, in float32.
    pub fn export(
        &self,
        graph: &mut Graph,
        params: &Params,
        obs: &Tree<Value>,
    ) -> Result<Value, NotExported> {
        let mut x = self.extractor.export(graph, params, obs)?;
        for (linear, norm) in &self.hidden {
            x = linear.export(graph, params, &x);
            if let Some(norm) = norm {
                x = norm.export(graph, params, &x);
            }
            x = self.activation.export(graph, &x);
        }
        Ok(x)
    }

    /// What observations `[N, ..]` bring to its running statistics, if it keeps any.
    pub fn seen(&self, obs: &Tree<Tensor>) -> Vec<(RunningNorm, Moments)> {
        self.extractor.seen(obs)
    }
}

/// √2, for layers with a rectifier after them.
const HIDDEN_GAIN: f64 = std::f64::consts::SQRT_2;

fn normed(norm: Option<&LayerNorm>, params: &Params, x: Tensor) -> Tensor {
    match norm {
        Some(norm) => norm.forward(params, &x),
        None => x,
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

#[cfg(test)]
mod tests;
