//! QR-DQN (Dabney et al. 2018): the quantiles of every action's return at fixed fractions.
//!
//! The loss is the quantile Huber loss, which is also the priority.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use starling_nets::export::{Graph, NotExported, Value};
use starling_nets::{Kind, Layout, Params, QNetwork, Tensor};
use starling_tree::Tree;

use crate::config::ConfigError;
use crate::ops::quantile_huber;
use crate::value_based::{Errors, Method, ValueBased, ValueConfig, middles, network};
use crate::{Algorithm, Spaces};

/// QR-DQN's settings beside the shared ones.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Number of quantiles (N).
    #[schemars(range(min = 1, max = 10_000))]
    pub quantiles: usize,
    /// Error at which the loss changes from quadratic to linear (κ).
    #[schemars(extend("exclusiveMinimum" = 0.0))]
    pub kappa: f64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            quantiles: 200,
            kappa: 1.0,
        }
    }
}

/// All settings with their defaults.
pub fn defaults() -> (ValueConfig, Config) {
    (ValueConfig::default(), Config::default())
}

/// QR-DQN for the spaces of an environment.
pub fn build(
    shared: ValueConfig,
    config: Config,
    spaces: &Spaces,
) -> Result<Box<dyn Algorithm>, ConfigError> {
    let count = config.quantiles;
    let (net, layout) = network("qr-dqn", &shared, spaces, count)?;
    let layout = Arc::new(layout);
    let method = QrDqn {
        config,
        net,
        layout,
    };
    Ok(Box::new(ValueBased::new(shared, method, spaces)?))
}

/// Quantiles per action.
struct QrDqn {
    config: Config,
    net: QNetwork,
    layout: Arc<Layout>,
}

impl Method for QrDqn {
    fn net(&self) -> (&QNetwork, &Arc<Layout>) {
        (&self.net, &self.layout)
    }

    fn outputs(
        &self,
        params: &Params,
        obs: &Tree<Tensor>,
        noise: Option<&Tensor>,
        _fractions: Option<&Tensor>,
        legal: Option<&Tensor>,
    ) -> Tensor {
        self.net.forward(params, obs, noise, legal)
    }

    fn export(
        &self,
        graph: &mut Graph,
        params: &Params,
        obs: &Tree<Value>,
        legal: Option<&Value>,
    ) -> Result<Value, NotExported> {
        let outputs = self.net.export(graph, params, obs, legal)?;
        Ok(graph.mean(&outputs, 2, false))
    }

    fn values(&self, outputs: &Tensor) -> Tensor {
        outputs.mean_dim([-1].as_slice(), false, Kind::Float)
    }

    fn errors(
        &self,
        taken: &Tensor,
        _fractions: Option<&Tensor>,
        following: &Tensor,
        returns: &Tensor,
        discounts: &Tensor,
    ) -> Errors {
        let fractions = middles(self.config.quantiles, taken.device());
        errors(
            taken,
            &fractions,
            following,
            returns,
            discounts,
            self.config.kappa,
        )
    }
}

/// Quantile Huber losses of predictions `[N, K]`, which are also the priorities.
pub(crate) fn errors(
    taken: &Tensor,
    fractions: &Tensor,
    following: &Tensor,
    returns: &Tensor,
    discounts: &Tensor,
    kappa: f64,
) -> Errors {
    let targets = returns.unsqueeze(-1) + discounts.unsqueeze(-1) * following;
    let losses = quantile_huber(taken, fractions, &targets, kappa);
    Errors {
        priorities: losses.shallow_clone(),
        losses,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two quantiles at ¼ and ¾, (1, 2), against 0.5 + 0.5·(2, 7) = (1.5, 4): the numbers of
    /// part of an independent script, .90625.
    #[test]
    fn errors_by_hand() {
        let row = |values: &[f32]| Tensor::from_slice(values).reshape([1, -1]);
        let fractions = middles(2, starling_nets::Device::Cpu);
        let (returns, discounts) = (Tensor::from_slice(&[0.5f32]), Tensor::from_slice(&[0.5f32]));
        let errors = errors(
            &row(&[1.0, 2.0]),
            &fractions,
            &row(&[2.0, 7.0]),
            &returns,
            &discounts,
            1.0,
        );
        assert!((errors.losses.double_value(&[0]) - 0.90625).abs() < 1e-6);
    }
}
