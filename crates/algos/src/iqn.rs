//! Implicit quantile networks, "IQN" (Dabney et al. 2018): any quantile of every action's return,
//! at fractions sampled for each prediction.
//!
//! As in Dopamine and Rainbow-IQN Ape-X, the cosines of the embedding are cos(π i τ) with i from 1
//! (the paper's i = 0 is a constant, like the bias). The loss is also the priority.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use starling_nets::export::{Graph, NotExported, Value};
use starling_nets::{Device, Kind, Layout, Params, QNetwork, QuantileEmbedding, Tensor};
use starling_tree::Tree;

use crate::config::ConfigError;
use crate::qr_dqn;
use crate::value_based::{Errors, Fractions, Method, ValueBased, ValueConfig, middles, network};
use crate::{Algorithm, Spaces};

/// IQN's settings beside the shared ones.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Quantiles that are predicted for each transition (N).
    #[schemars(range(min = 1, max = 10_000))]
    pub quantiles: usize,
    /// Quantiles of its target (N').
    #[schemars(range(min = 1, max = 10_000))]
    pub target_quantiles: usize,
    /// Quantiles whose mean chooses an action (K).
    #[schemars(range(min = 1, max = 10_000))]
    pub acting_quantiles: usize,
    /// Size of the embedding of a fraction.
    #[schemars(range(min = 1, max = 10_000))]
    pub cosines: usize,
    /// Error at which the loss changes from quadratic to linear (κ).
    #[schemars(extend("exclusiveMinimum" = 0.0))]
    pub kappa: f64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            quantiles: 64,
            target_quantiles: 64,
            acting_quantiles: 32,
            cosines: 64,
            kappa: 1.0,
        }
    }
}

/// All settings with their defaults.
pub fn defaults() -> (ValueConfig, Config) {
    (ValueConfig::default(), Config::default())
}

/// IQN for the spaces of an environment.
pub fn build(
    shared: ValueConfig,
    config: Config,
    spaces: &Spaces,
) -> Result<Box<dyn Algorithm>, ConfigError> {
    let (net, mut layout) = network("iqn", &shared, spaces, 1)?;
    let embedding = QuantileEmbedding::new(&mut layout, net.features(), config.cosines);
    let method = Iqn {
        config,
        net,
        embedding,
        layout: Arc::new(layout),
    };
    Ok(Box::new(ValueBased::new(shared, method, spaces)?))
}

/// Quantiles per action at given fractions.
struct Iqn {
    config: Config,
    net: QNetwork,
    embedding: QuantileEmbedding,
    layout: Arc<Layout>,
}

impl Method for Iqn {
    fn net(&self) -> (&QNetwork, &Arc<Layout>) {
        (&self.net, &self.layout)
    }

    fn fractions(&self) -> Fractions {
        Fractions {
            predicted: self.config.quantiles,
            following: self.config.target_quantiles,
            choosing: self.config.acting_quantiles,
        }
    }

    fn outputs(
        &self,
        params: &Params,
        obs: &Tree<Tensor>,
        noise: Option<&Tensor>,
        fractions: Option<&Tensor>,
        legal: Option<&Tensor>,
    ) -> Tensor {
        let features = self.net.look(params, obs);
        let features = match fractions {
            Some(fractions) => self.embedding.forward(params, &features, fractions),
            None => features.unsqueeze(1),
        };
        // One row of noise, and of legal actions, for all fractions of a row.
        let noise = noise.map(|noise| noise.unsqueeze(1));
        let legal = legal.map(|legal| legal.unsqueeze(1));
        let head = self.net.head();
        // [N, K, A, 1] to [N, A, K]
        let outputs = head.forward(params, &features, noise.as_ref(), legal.as_ref());
        outputs.squeeze_dim(-1).transpose(1, 2)
    }

    fn export(
        &self,
        graph: &mut Graph,
        params: &Params,
        obs: &Tree<Value>,
        legal: Option<&Value>,
    ) -> Result<Value, NotExported> {
        let features = self.net.export_look(graph, params, obs)?;
        let fractions = middles(self.config.acting_quantiles, Device::Cpu);
        let features = self.embedding.export(graph, params, &features, &fractions);
        // [N, K, A, 1]
        let outputs = self.net.head().export(graph, params, &features, legal);
        let values = graph.mean(&outputs, 1, false);
        Ok(graph.squeeze(&values, 2))
    }

    fn values(&self, outputs: &Tensor) -> Tensor {
        outputs.mean_dim([-1].as_slice(), false, Kind::Float)
    }

    fn errors(
        &self,
        taken: &Tensor,
        fractions: Option<&Tensor>,
        following: &Tensor,
        returns: &Tensor,
        discounts: &Tensor,
    ) -> Errors {
        let middle = Tensor::full([1, 1], 0.5, (Kind::Float, taken.device()));
        let fractions = fractions.unwrap_or(&middle);
        let kappa = self.config.kappa;
        let errors = qr_dqn::errors(taken, fractions, following, returns, discounts, kappa);
        // The loss is a sum over the predicted fractions: actors, who predict others than the
        // learner, have to bring their priorities to its scale.
        let scale = self.config.quantiles as f64 / taken.size()[1] as f64;
        Errors {
            losses: errors.losses,
            priorities: errors.priorities * scale,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use starling_envs::{Space, stream};
    use starling_nets::{Device, QNetConfig, draw_noise};

    fn method(noisy_sigma: Option<f64>) -> Iqn {
        let spaces = Spaces {
            observation: Space::unbounded(&[2]),
            action: Space::Discrete { n: 3 },
            legal_actions: None,
            frame_stack: None,
        };
        let (mut shared, config) = defaults();
        shared.net = QNetConfig {
            dueling: true,
            head_hidden: 8,
            noisy_sigma,
            ..QNetConfig::default()
        };
        let (net, mut layout) = network("iqn", &shared, &spaces, 1).unwrap();
        let embedding = QuantileEmbedding::new(&mut layout, net.features(), config.cosines);
        Iqn {
            config,
            net,
            embedding,
            layout: Arc::new(layout),
        }
    }

    /// Each quantile depends on its own fraction and its own row's noise alone.
    #[test]
    fn rows_and_fractions_do_not_mix() {
        let method = method(Some(0.5));
        let mut rng = stream(1, "init", 0);
        let params = Params::init(&method.layout, &mut rng, Device::Cpu);
        let mut rngs = [stream(1, "policy", 0), stream(1, "policy", 1)];
        let noise = draw_noise(method.net.head().noise, &mut rngs, Device::Cpu);
        let obs = Tensor::from_slice(&[0.3f32, -1.0, 0.8, 0.1]).reshape([2, 2]);
        let fractions = Tensor::from_slice(&[0.1f32, 0.5, 0.9, 0.2, 0.3, 0.4]).reshape([2, 3]);
        let tree = Tree::Leaf(obs.shallow_clone());
        let all = method.outputs(&params, &tree, Some(&noise), Some(&fractions), None);
        assert_eq!(all.size(), [2, 3, 3]);
        for row in 0..2 {
            for k in 0..3 {
                let one = method.outputs(
                    &params,
                    &Tree::Leaf(obs.narrow(0, row, 1)),
                    Some(&noise.narrow(0, row, 1)),
                    Some(&fractions.narrow(0, row, 1).narrow(1, k, 1)),
                    None,
                );
                let difference = one.reshape([-1]) - all.get(row).select(1, k);
                assert!(difference.abs().max().double_value(&[]) < 1e-6);
            }
        }
    }

    /// One predicted quantile stands for all 64 of the learner.
    #[test]
    fn priorities_of_actors_are_on_the_learners_scale() {
        let row = |values: &[f32]| Tensor::from_slice(values).reshape([1, -1]);
        let (returns, discounts) = (Tensor::from_slice(&[1f32]), Tensor::from_slice(&[0f32]));
        let of = |count: usize| {
            let (taken, fractions) = (row(&vec![0.0; count]), row(&vec![0.5; count]));
            let method = method(None);
            let errors =
                method.errors(&taken, Some(&fractions), &row(&[0.0]), &returns, &discounts);
            errors.priorities.double_value(&[0])
        };
        // ½ · Huber(1) · 64 = 16, whatever the number of fractions.
        assert!((of(64) - 16.0).abs() < 1e-4);
        assert!((of(32) - 16.0).abs() < 1e-4);
    }
}
