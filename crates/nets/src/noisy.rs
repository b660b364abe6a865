//! Noisy layers for exploration: weights with learned, factorised noise (Fortunato et al. 2018).
//!
//! A noisy layer's weights are μ + σ ⊙ (ε_out ε_inᵀ). Nothing is drawn here: noise is an input,
//! `[.., length]` for a network of that [`noise`](NoisyLinear::new) length, drawn by [`draw_noise`]
//! from Starling's generators. Because the noise is a product of two vectors, every row of a batch
//! can have its own: y = μx + b + ε_out ⊙ (σ (ε_in ⊙ x) + σ_b). If all rows share the same noise,
//! the noisy weights are computed explicitly, which takes one product instead of two.

use rand_distr::{Distribution as _, StandardNormal};
use starling_envs::Rng;
use tch::{Device, Tensor};

use crate::export::{Graph, Value};
use crate::{Init, Layout, Linear, ParamId, Params};

/// A fully connected layer whose weights are noisy.
#[derive(Clone, Debug)]
pub struct NoisyLinear {
    mean: Linear,
    weight_sigma: ParamId,
    bias_sigma: ParamId,
    /// Where its noise begins: `inputs` numbers, then `outputs`.
    at: i64,
    inputs: i64,
    outputs: i64,
}

impl NoisyLinear {
    /// Adds the layer's parameters to a layout and its noise to a network's `noise` length.
    ///
    /// As in the paper, means start uniform in ±1/√inputs and deviations at `sigma`/√inputs; with
    /// `bias_by_outputs` those of biases start at `sigma`/√outputs.
    pub fn new(
        layout: &mut Layout,
        noise: &mut usize,
        name: &str,
        inputs: usize,
        outputs: usize,
        sigma: f64,
        bias_by_outputs: bool,
    ) -> Self {
        let mean = Linear::new(
            layout,
            name,
            inputs,
            outputs,
            Init::FanIn { fan_in: inputs },
        );
        let start = |fan: usize| Init::Constant(sigma / (fan.max(1) as f64).sqrt());
        let of_bias = start(if bias_by_outputs { outputs } else { inputs });
        let at = *noise as i64;
        *noise += inputs + outputs;
        Self {
            mean,
            weight_sigma: layout.add(
                format!("{name}.weight_sigma"),
                &[outputs, inputs],
                start(inputs),
            ),
            bias_sigma: layout.add(format!("{name}.bias_sigma"), &[outputs], of_bias),
            at,
            inputs: inputs as i64,
            outputs: outputs as i64,
        }
    }

    /// The layer over the last dimension of `x`. `noise` has the leading dimensions of `x`, or 1
    /// where rows share it; without it the means alone are used.
    pub fn forward(&self, params: &Params, x: &Tensor, noise: Option<&Tensor>) -> Tensor {
        let Some(noise) = noise else {
            return self.mean.forward(params, x);
        };
        let from = noise.narrow(-1, self.at, self.inputs);
        let to = noise.narrow(-1, self.at + self.inputs, self.outputs);
        let (weight, bias) = (params.get(self.weight_sigma), params.get(self.bias_sigma));
        let inputs = self.inputs as usize;
        if from.numel() == inputs && x.numel() > inputs {
            let (mean, mean_bias) = self.mean.weights(params);
            let (from, to) = (from.reshape([1, -1]), to.reshape([-1]));
            let weight = mean + weight * to.unsqueeze(1) * from;
            return x.linear(&weight, Some(mean_bias + bias * to));
        }
        self.mean.forward(params, x) + (x * from).linear(weight, Some(bias)) * to
    }
}

impl NoisyLinear {
    /// The means in a graph: evaluations have no noise.
    pub(crate) fn export(&self, graph: &mut Graph, params: &Params, x: &Value) -> Value {
        self.mean.export(graph, params, x)
    }
}

/// Noise for a network, one row from each generator: `[rngs, length]` of f(z) = sign(z)·√|z|
/// with z standard normal.
pub fn draw_noise(length: usize, rngs: &mut [Rng], device: Device) -> Tensor {
    let mut noise = Vec::with_capacity(length * rngs.len());
    for rng in rngs.iter_mut() {
        noise.extend((0..length).map(|_| {
            let z: f32 = StandardNormal.sample(rng);
            z.signum() * z.abs().sqrt()
        }));
    }
    let shape = [rngs.len() as i64, length as i64];
    Tensor::from_slice(&noise).reshape(shape).to_device(device)
}

#[cfg(test)]
mod tests {
    use super::*;
    use starling_envs::stream;
    use std::sync::Arc;
    use tch::Kind;

    /// The factorised form against the matrix of noisy weights written out, with noise of its
    /// own for each of two rows.
    #[test]
    fn every_row_has_the_weights_of_its_own_noise() {
        let (mut layout, mut length) = (Layout::default(), 0);
        let layer = NoisyLinear::new(&mut layout, &mut length, "n", 3, 2, 0.5, false);
        assert_eq!(length, 5);
        let params = Params::init(&Arc::new(layout), &mut stream(1, "init", 0), Device::Cpu);
        let mut rngs = [stream(1, "policy", 0), stream(1, "policy", 1)];
        let noise = draw_noise(length, &mut rngs, Device::Cpu);
        let x = Tensor::from_slice(&[1f32, -2.0, 3.0, 0.5, 0.0, -1.0]).reshape([2, 3]);
        let y = layer.forward(&params, &x, Some(&noise));
        // The parameters in the order in which they were added.
        let flat = params.flat();
        let (mean, bias) = (flat.narrow(0, 0, 6).reshape([2, 3]), flat.narrow(0, 6, 2));
        let sigma = (0.5f64 / 3f64.sqrt()) as f32;
        for row in 0..2 {
            let (from, to) = (
                noise.get(row).narrow(0, 0, 3),
                noise.get(row).narrow(0, 3, 2),
            );
            let weight = &mean + to.outer(&from) * f64::from(sigma);
            let expected =
                weight.matmul(&x.get(row)) + &bias + to.shallow_clone() * f64::from(sigma);
            let difference = (y.get(row) - expected).abs().max().double_value(&[]);
            assert!(difference < 1e-6, "{difference}");
        }
        // Rows that share their noise have the weights of that noise.
        let one = noise.narrow(0, 1, 1);
        let shared = layer.forward(&params, &x, Some(&one));
        let repeated = layer.forward(&params, &x, Some(&one.repeat([2, 1])));
        assert!((shared - repeated).abs().max().double_value(&[]) < 1e-6);
        let quiet = layer.forward(&params, &x, None);
        let plain = x.linear(&mean, Some(&bias));
        assert!((quiet - plain).abs().max().double_value(&[]) < 1e-6);
    }

    /// σ₀ = 0.1, 4 inputs, 25 outputs: 0.1/√4 for weights, 0.1/√25 for biases.
    #[test]
    fn deviations_of_biases_may_go_by_the_outputs() {
        for (by_outputs, of_bias) in [(false, 0.05), (true, 0.02)] {
            let (mut layout, mut length) = (Layout::default(), 0);
            let layer = NoisyLinear::new(&mut layout, &mut length, "n", 4, 25, 0.1, by_outputs);
            let params = Params::init(&Arc::new(layout), &mut stream(1, "init", 0), Device::Cpu);
            let first = |id| params.get(id).view([-1]).double_value(&[0]);
            assert!((first(layer.weight_sigma) - 0.05).abs() < 1e-8);
            assert!((first(layer.bias_sigma) - of_bias).abs() < 1e-8);
        }
    }

    /// E[f(z)] = 0 and E[f(z)²] = E|z| = √(2/π).
    #[test]
    fn noise_has_the_moments_of_the_paper() {
        let noise = draw_noise(100_000, &mut [stream(3, "policy", 0)], Device::Cpu);
        let mean = noise.mean(Kind::Float).double_value(&[]);
        let square = noise.square().mean(Kind::Float).double_value(&[]);
        assert!(mean.abs() < 0.015, "{mean}");
        let expected = (2.0 / std::f64::consts::PI).sqrt();
        assert!((square - expected).abs() < 0.015, "{square}");
    }
}
