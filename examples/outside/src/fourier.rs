//! Learned Fourier features (Li and Pathak 2021): a network of its own for every algorithm that has
//! `algo.net.torso`.
//!
//! Observations are multiplied by a matrix of learned frequencies; sine and cosine of the products are
//! the features. The fully connected layers of `algo.net.hidden` follow.

use serde::{Deserialize, Serialize};
use starling::JsonSchema;
use starling::envs::Space;
use starling::nets::torsos::{Built, TorsoSpec};
use starling::nets::{
    FeatureExtractor, Init, Inputs, Layout, Linear, Moments, NetConfig, Params, RunningNorm, Tensor,
};
use starling::tree::Tree;

/// The line for the table: `algo.net.torso=fourier`.
pub fn spec() -> TorsoSpec {
    TorsoSpec::new("fourier", "learned Fourier features", build)
}

/// Its settings: `algo.net.torso_options.frequencies=32` on the command line.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(crate = "starling::schemars")]
struct Options {
    /// Rows of the matrix: half as many as there are features.
    #[schemars(range(min = 1, max = 65_536))]
    frequencies: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { frequencies: 64 }
    }
}

/// A network is a description; it computes with any set of parameters.
#[derive(Debug)]
struct Fourier {
    inputs: Inputs,
    frequencies: Linear,
}

fn build(o: Options, layout: &mut Layout, name: &str, obs: &Space, net: &NetConfig) -> Built {
    let inputs = Inputs::new(layout, name, obs, net)?;
    let sizes = inputs
        .shapes()
        .into_iter()
        .map(|shape| shape.iter().product::<usize>());
    let fan_in = sizes.sum();
    let (name, init) = (format!("{name}.frequencies"), Init::FanIn { fan_in });
    let frequencies = Linear::new(layout, &name, fan_in, o.frequencies, init);
    Ok(Box::new(Fourier {
        inputs,
        frequencies,
    }))
}

impl FeatureExtractor for Fourier {
    fn features(&self) -> usize {
        2 * self.frequencies.outputs
    }

    fn usual_hidden(&self) -> &[usize] {
        &[64]
    }

    fn forward(&self, params: &Params, obs: &Tree<Tensor>) -> Tensor {
        let parts = self.inputs.prepare(params, obs);
        let parts: Vec<Tensor> = parts.iter().map(|part| part.flatten(1, -1)).collect();
        let products = self.frequencies.forward(params, &Tensor::cat(&parts, -1));
        Tensor::cat(&[products.sin(), products.cos()], -1)
    }

    /// For `algo.net.normalize_observations`.
    fn seen(&self, obs: &Tree<Tensor>) -> Vec<(RunningNorm, Moments)> {
        self.inputs.seen(obs)
    }
}
