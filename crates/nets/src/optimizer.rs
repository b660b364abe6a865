//! Optimisers over one flat vector of parameters, with a state that can be saved.

use std::cell::Cell;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use starling_tree::Array;
use tch::{Kind, Tensor};

use crate::ShapeMismatch;
use crate::native::{Adam, fused_adam};

/// Which rule turns gradients into steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OptimizerKind {
    /// Adam (Kingma and Ba 2015) as PyTorch computes it.
    #[default]
    Adam,
    /// RMSProp as PyTorch computes it: `eps` is added to the root, averages start at 0.
    Rmsprop,
    /// RMSProp as TensorFlow computes it: `eps` is added under the root, averages start at 1.
    RmspropTf,
}

/// An optimiser's settings; the learning rate comes with each step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct OptimizerConfig {
    /// The rule that turns gradients into steps.
    pub kind: OptimizerKind,
    /// Keeps the denominator away from zero.
    #[schemars(range(min = 0.0))]
    pub eps: f64,
    /// Adam: decay of the mean of gradients.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub beta1: f64,
    /// Adam: decay of the mean of squared gradients.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub beta2: f64,
    /// RMSProp: decay of the mean of squared gradients.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub alpha: f64,
}

impl Default for OptimizerConfig {
    fn default() -> Self {
        Self {
            kind: OptimizerKind::Adam,
            eps: 1e-8,
            beta1: 0.9,
            beta2: 0.999,
            alpha: 0.99,
        }
    }
}

/// An optimiser and what it remembers, all on the device of the parameters: a step asks nothing
/// of the host, so that it can be [`Recorded`](crate::Recorded). Its tensors stay where they are.
#[derive(Debug)]
pub struct Optimizer {
    config: OptimizerConfig,
    /// Steps done, a scalar.
    steps: Tensor,
    rate: Tensor,
    /// What was last written into it.
    rate_set: Cell<f64>,
    mean: Tensor,
    square: Tensor,
}

impl Optimizer {
    /// An optimiser for a vector of parameters.
    pub fn new(config: OptimizerConfig, params: &Tensor) -> Self {
        let scalar = || Tensor::zeros([], (Kind::Float, params.device()));
        let mean = match config.kind {
            OptimizerKind::Adam => params.detach().zeros_like(),
            OptimizerKind::Rmsprop | OptimizerKind::RmspropTf => {
                Tensor::zeros([0], (Kind::Float, params.device()))
            }
        };
        let square = match config.kind {
            OptimizerKind::RmspropTf => params.detach().ones_like(),
            OptimizerKind::Adam | OptimizerKind::Rmsprop => params.detach().zeros_like(),
        };
        Self {
            config,
            steps: scalar(),
            rate: scalar(),
            rate_set: Cell::new(0.0),
            mean,
            square,
        }
    }

    /// Sets the size of the steps from now on.
    pub fn set_learning_rate(&self, learning_rate: f64) {
        if self.rate_set.replace(learning_rate) != learning_rate {
            let _ = tch::no_grad(|| self.rate.shallow_clone().fill_(learning_rate));
        }
    }

    /// The same optimiser, not a copy, to be used inside a recorded computation.
    pub(crate) fn share(&self) -> Self {
        Self {
            config: self.config,
            steps: self.steps.shallow_clone(),
            rate: self.rate.shallow_clone(),
            rate_set: self.rate_set.clone(),
            mean: self.mean.shallow_clone(),
            square: self.square.shallow_clone(),
        }
    }

    /// Moves the parameters against the gradient, at the learning rate that was set.
    pub fn apply(&self, params: &Tensor, gradient: &Tensor) {
        tch::no_grad(|| self.apply_without_graph(params, gradient));
    }

    fn apply_without_graph(&self, params: &Tensor, gradient: &Tensor) {
        let config = self.config;
        let (mut steps, mut square) = (self.steps.shallow_clone(), self.square.shallow_clone());
        steps += 1.0;
        let mut params = params.shallow_clone();
        match config.kind {
            OptimizerKind::Adam => {
                let adam = Adam {
                    params: &params,
                    gradient,
                    mean: &self.mean,
                    square: &self.square,
                    steps: &self.steps,
                    rate: &self.rate,
                };
                fused_adam(&adam, config.beta1, config.beta2, config.eps);
            }
            OptimizerKind::Rmsprop => {
                let _ = square.lerp_(&gradient.square(), 1.0 - config.alpha);
                params -= gradient / (square.sqrt() + config.eps) * &self.rate;
            }
            OptimizerKind::RmspropTf => {
                let _ = square.lerp_(&gradient.square(), 1.0 - config.alpha);
                params -= gradient / (&square + config.eps).sqrt() * &self.rate;
            }
        }
    }

    /// Everything it remembers, by name.
    pub fn state(&self) -> Vec<(String, Array)> {
        vec![
            ("steps".into(), crate::array_of(&self.steps)),
            ("mean".into(), crate::array_of(&self.mean)),
            ("square".into(), crate::array_of(&self.square)),
        ]
    }

    /// Takes over a saved [`state`](Optimizer::state).
    pub fn load(&self, get: impl Fn(&str) -> Option<Array>) -> Result<(), ShapeMismatch> {
        let array = |name: &str| {
            get(name).ok_or_else(|| ShapeMismatch(format!("the optimiser's '{name}' is missing")))
        };
        let vector = |name: &str, like: &Tensor| {
            let tensor = crate::tensor_of(&array(name)?, like.device());
            if tensor.size() == like.size() {
                Ok(tensor)
            } else {
                Err(ShapeMismatch(format!(
                    "the optimiser's '{name}' has {:?} numbers, {:?} are needed",
                    tensor.size(),
                    like.size()
                )))
            }
        };
        // Values are copied in rather than replaced: recorded computations work on these tensors.
        let parts = [
            ("steps", &self.steps),
            ("mean", &self.mean),
            ("square", &self.square),
        ];
        for (name, part) in parts {
            let saved = vector(name, part)?;
            tch::no_grad(|| part.shallow_clone().copy_(&saved));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Optimizer {
        pub(crate) fn step(&self, params: &Tensor, gradient: &Tensor, learning_rate: f64) {
            self.set_learning_rate(learning_rate);
            self.apply(params, gradient);
        }
    }

    fn run(config: OptimizerConfig, steps: usize) -> Vec<f32> {
        let params = Tensor::from_slice(&[1f32, -2.0]);
        let optimizer = Optimizer::new(config, &params);
        for _ in 0..steps {
            let gradient = &params * 2.0 + 1.0;
            optimizer.step(&params, &gradient, 0.1);
        }
        Vec::try_from(params).unwrap()
    }

    #[test]
    fn first_step_of_each_rule_by_hand() {
        let with = |kind| OptimizerConfig {
            kind,
            ..OptimizerConfig::default()
        };
        // Adam's first step is the learning rate in the gradient's direction.
        let adam = run(with(OptimizerKind::Adam), 1);
        assert!((adam[0] - 0.9).abs() < 1e-6 && (adam[1] + 1.9).abs() < 1e-6);
        // square = 0.01·g², so the step is lr·g/(0.1·|g|) = 1.
        let rmsprop = run(with(OptimizerKind::Rmsprop), 1);
        assert!((rmsprop[0] - 0.0).abs() < 1e-5 && (rmsprop[1] + 1.0).abs() < 1e-5);
        // g = (3, −3): square = 0.99 + 0.01·9 = 1.08; with eps 0.1: 0.1·3/√1.18.
        let config = OptimizerConfig {
            eps: 0.1,
            ..with(OptimizerKind::RmspropTf)
        };
        let tf = run(config, 1);
        let step = 0.3 / 1.18f32.sqrt();
        assert!((tf[0] - (1.0 - step)).abs() < 1e-6 && (tf[1] - (-2.0 + step)).abs() < 1e-6);
    }

    /// Four steps with the gradients 1, −3, ½ and 4 from 1, computed in double precision by a
    /// script of its own from the rules as PyTorch's and TensorFlow's documentation state them.
    #[test]
    fn four_steps_of_each_rule_by_numbers() {
        let adam = OptimizerConfig {
            kind: OptimizerKind::Adam,
            eps: 0.01,
            beta1: 0.8,
            beta2: 0.95,
            alpha: 0.9,
        };
        let rmsprop = OptimizerConfig {
            kind: OptimizerKind::Rmsprop,
            ..adam
        };
        let rmsprop_tf = OptimizerConfig {
            kind: OptimizerKind::RmspropTf,
            eps: 0.1,
            ..adam
        };
        for (config, expected) in [
            (adam, [0.9009901, 0.9548589, 0.9827075, 0.9439807]),
            (rmsprop, [0.6934657, 0.9919769, 0.9402748, 0.6850179]),
            (rmsprop_tf, [0.9046537, 1.1222966, 1.0844461, 0.8601548]),
        ] {
            let params = Tensor::from_slice(&[1f32]);
            let optimizer = Optimizer::new(config, &params);
            for (gradient, expected) in [1f32, -3.0, 0.5, 4.0].into_iter().zip(expected) {
                optimizer.step(&params, &Tensor::from_slice(&[gradient]), 0.1);
                let ours = params.double_value(&[0]);
                assert!((ours - expected).abs() < 1e-6, "{config:?}: {ours}");
            }
        }
    }

    #[test]
    fn a_saved_state_continues_exactly() {
        let params = Tensor::from_slice(&[1f32, -2.0]);
        let first = Optimizer::new(OptimizerConfig::default(), &params);
        first.step(&params, &params, 0.1);
        let copy = params.copy();
        let second = Optimizer::new(OptimizerConfig::default(), &copy);
        let state = first.state();
        second
            .load(|name| {
                state
                    .iter()
                    .find(|(n, _)| n == name)
                    .map(|(_, a)| a.clone())
            })
            .unwrap();
        first.step(&params, &params, 0.1);
        second.step(&copy, &copy, 0.1);
        assert_eq!(
            Vec::<f32>::try_from(params).unwrap(),
            Vec::<f32>::try_from(copy).unwrap()
        );
    }
}
