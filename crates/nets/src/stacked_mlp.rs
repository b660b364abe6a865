//! Fully connected networks of the same shape, computed together.

use tch::Tensor;

use crate::control_body::{Stacked, StackedValue};
use crate::export::{Graph, Value};
use crate::{Activation, Init, Layout, Params};

/// Several fully connected networks with ReLU between their layers. Each layer of all of them is one
/// batched product.
///
/// First weights are those of rlkit, on which PEARL's reference is built: hidden weights uniform in
/// ±1/√outputs with biases of 0.1, and a last layer that is almost zero.
#[derive(Clone, Debug)]
pub struct StackedMlp {
    hidden: Vec<Stacked>,
    last: Last,
}

#[derive(Clone, Debug)]
enum Last {
    /// A single output is computed without a batched product.
    One(StackedValue),
    Many(Stacked),
}

impl StackedMlp {
    /// `networks` networks from `inputs` to `outputs` numbers; adds their parameters to `layout`,
    /// named after `name`. The last layer is uniform in ±`last`.
    pub fn new(
        layout: &mut Layout,
        name: &str,
        networks: usize,
        inputs: usize,
        hidden: &[usize],
        outputs: usize,
        last: f64,
    ) -> Self {
        let (mut layers, mut width) = (Vec::new(), inputs);
        for (i, &size) in hidden.iter().enumerate() {
            let (shape, name) = ([networks, width, size], format!("{name}.hidden{i}"));
            let spread = Init::FanIn { fan_in: size };
            layers.push(Stacked {
                weight: layout.add(format!("{name}.weight"), &shape, spread),
                bias: layout.add(
                    format!("{name}.bias"),
                    &[networks, 1, size],
                    Init::Constant(0.1),
                ),
            });
            width = size;
        }
        let init = Init::Uniform { bound: last };
        let [weight, bias] = ["weight", "bias"].map(|part| format!("{name}.last.{part}"));
        let last = match outputs {
            1 => Last::One(StackedValue {
                weight: layout.add(weight, &[networks, 1, width], init),
                bias: layout.add(bias, &[networks, 1], init),
            }),
            _ => Last::Many(Stacked {
                weight: layout.add(weight, &[networks, width, outputs], init),
                bias: layout.add(bias, &[networks, 1, outputs], init),
            }),
        };
        Self {
            hidden: layers,
            last,
        }
    }

    /// Outputs `[C, N, outputs]` of inputs `[C, N, inputs]`; `[C, N]` if there is one output.
    pub fn forward(&self, params: &Params, x: &Tensor) -> Tensor {
        let mut x = x.shallow_clone();
        for layer in &self.hidden {
            x = Activation::Relu.apply(&layer.forward(params, &x));
        }
        match &self.last {
            Last::One(layer) => layer.forward(params, &x),
            Last::Many(layer) => layer.forward(params, &x),
        }
    }

    /// Outputs `[N, outputs]` of the first network in a graph, of inputs `[N, inputs]`; `[N]` if there is
    /// one output.
    pub fn export(&self, graph: &mut Graph, params: &Params, x: &Value) -> Value {
        let mut x = x.clone();
        for layer in &self.hidden {
            let y = layer.export(graph, params, &x);
            x = graph.relu(&y);
        }
        match &self.last {
            Last::One(layer) => {
                let [weight, bias] =
                    [layer.weight, layer.bias].map(|id| graph.constant(&params.get(id).get(0)));
                let y = graph.linear(&x, &weight, Some(&bias));
                graph.squeeze(&y, 1)
            }
            Last::Many(layer) => layer.export(graph, params, &x),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use starling_envs::stream;
    use std::sync::Arc;
    use tch::{Device, Kind};

    /// Two networks of one layer each, with given weights: (1·2 + 0.1)₊·3 + 1 and (1·(−2) + 0.1)₊·3.
    #[test]
    fn networks_by_hand() {
        let mut layout = Layout::default();
        let net = StackedMlp::new(&mut layout, "q", 2, 1, &[1], 1, 0.0);
        let params = Params::zeros(&Arc::new(layout), Device::Cpu);
        params
            .load_slice(&[2.0, -2.0, 0.1, 0.1, 3.0, 3.0, 1.0, 0.0])
            .unwrap();
        let x = Tensor::ones([2, 1, 1], (Kind::Float, Device::Cpu));
        let y = Vec::<f32>::try_from(net.forward(&params, &x).reshape([-1])).unwrap();
        assert!((y[0] - 7.3).abs() < 1e-6 && y[1] == 0.0, "{y:?}");
    }

    #[test]
    fn first_weights_are_rlkits() {
        let mut layout = Layout::default();
        StackedMlp::new(&mut layout, "policy", 1, 3, &[100], 2, 1e-3);
        let params = Params::init(&Arc::new(layout), &mut stream(1, "init", 0), Device::Cpu);
        let named: Vec<_> = params.named();
        let largest = |name: &str| {
            let (_, array) = named.iter().find(|(known, _)| known == name).unwrap();
            let values = array.as_slice::<f32>().iter();
            values.fold(0f32, |most, value| most.max(value.abs()))
        };
        let hidden = largest("policy.hidden0.weight");
        assert!(hidden > 0.09 && hidden <= 0.1, "{hidden}");
        assert_eq!(largest("policy.hidden0.bias"), 0.1);
        let last = largest("policy.last.weight");
        assert!(last > 0.9e-3 && last <= 1e-3, "{last}");
    }
}
