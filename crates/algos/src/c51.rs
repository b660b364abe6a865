//! Categorical DQN, "C51" (Bellemare et al. 2017): a distribution over fixed return values for
//! every action, instead of its mean.
//!
//! Loss and priority are the divergence KL(target ‖ prediction). Its gradient is that of the
//! paper's cross-entropy, but unlike the cross-entropy it is 0 where the prediction is exact.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use starling_nets::export::{Graph, NotExported, Value};
use starling_nets::{Device, Kind, Layout, Params, QNetwork, Tensor};
use starling_tree::Tree;

use crate::config::{ConfigError, require};
use crate::ops::{divergence, project, support};
use crate::value_based::{Errors, Method, ValueBased, ValueConfig, network};
use crate::{Algorithm, Spaces};

/// C51's settings beside the shared ones.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Number of atoms, the returns that the distribution is over.
    #[schemars(range(min = 2, max = 10_000))]
    pub atoms: usize,
    /// Return of the lowest atom.
    #[schemars(extend("unbounded" = true))]
    pub value_min: f64,
    /// Return of the highest atom.
    #[schemars(extend("unbounded" = true))]
    pub value_max: f64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            atoms: 51,
            value_min: -10.0,
            value_max: 10.0,
        }
    }
}

/// All settings with their defaults.
pub fn defaults() -> (ValueConfig, Config) {
    (ValueConfig::default(), Config::default())
}

/// C51 for the spaces of an environment.
pub fn build(
    shared: ValueConfig,
    config: Config,
    spaces: &Spaces,
) -> Result<Box<dyn Algorithm>, ConfigError> {
    if shared.munchausen.is_some() {
        let message = "algo.munchausen needs values or quantiles, not a categorical distribution";
        return Err(ConfigError::Misfit(message.into()));
    }
    let method = C51::new(&shared, config, spaces)?;
    Ok(Box::new(ValueBased::new(shared, method, spaces)?))
}

/// The logits of a categorical distribution per action.
struct C51 {
    config: Config,
    net: QNetwork,
    layout: Arc<Layout>,
}

impl C51 {
    fn new(shared: &ValueConfig, config: Config, spaces: &Spaces) -> Result<Self, ConfigError> {
        let atoms = config.atoms;
        let (low, high) = (config.value_min, config.value_max);
        require(low < high, "algo.value_max", high, "above algo.value_min")?;
        let (net, layout) = network("c51", shared, spaces, atoms)?;
        let layout = Arc::new(layout);
        Ok(Self {
            config,
            net,
            layout,
        })
    }

    fn support(&self, like: &Tensor) -> Tensor {
        let Config {
            atoms,
            value_min,
            value_max,
        } = self.config;
        support(value_min, value_max, atoms, like.device())
    }
}

impl Method for C51 {
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
        let chances = graph.softmax(&outputs);
        let support = self.support(&Tensor::zeros([1], (Kind::Float, Device::Cpu)));
        let support = graph.constant(&support.reshape([1, -1]));
        let values = graph.linear(&chances, &support, None);
        Ok(graph.squeeze(&values, 2))
    }

    fn values(&self, outputs: &Tensor) -> Tensor {
        outputs
            .softmax(-1, Kind::Float)
            .matmul(&self.support(outputs))
    }

    fn errors(
        &self,
        taken: &Tensor,
        _fractions: Option<&Tensor>,
        following: &Tensor,
        returns: &Tensor,
        discounts: &Tensor,
    ) -> Errors {
        let support = self.support(taken);
        let following = following.softmax(-1, Kind::Float);
        let target = project(&support, &following, returns, discounts);
        let losses = divergence(&target, &taken.log_softmax(-1, Kind::Float));
        // Rounding can leave a divergence of −1e-8.
        let priorities = losses.clamp_min(0.0);
        Errors { losses, priorities }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use starling_envs::Space;

    fn method() -> C51 {
        let spaces = Spaces {
            observation: Space::unbounded(&[1]),
            action: Space::Discrete { n: 2 },
            legal_actions: None,
            frame_stack: None,
        };
        let config = Config {
            atoms: 3,
            value_min: -1.0,
            value_max: 1.0,
        };
        C51::new(&ValueConfig::default(), config, &spaces).unwrap()
    }

    /// Probabilities (¼, ¼, ½) of −1, 0 and 1: mean ¼.
    #[test]
    fn values_are_means() {
        let logits = Tensor::from_slice(&[0f32, 0.0, 2f32.ln()]).reshape([1, 1, 3]);
        let value = method().values(&logits).double_value(&[0, 0]);
        assert!((value - 0.25).abs() < 1e-6);
    }

    /// A certain return of 0 follows with discount ½ and reward ½: half of the target lies on 0
    /// and half on 1, and against a uniform prediction KL = ln 3 − ln 2. An ended task (discount
    /// 0, reward −5) has all mass on −1: KL = ln 3.
    #[test]
    fn errors_by_hand() {
        let taken = Tensor::zeros([2, 3], (Kind::Float, starling_nets::Device::Cpu));
        let certain = Tensor::from_slice(&[-100f32, 0.0, -100.0]);
        let following = certain.repeat([2, 1]);
        let returns = Tensor::from_slice(&[0.5f32, -5.0]);
        let discounts = Tensor::from_slice(&[0.5f32, 0.0]);
        let errors = method().errors(&taken, None, &following, &returns, &discounts);
        let expected = [3f64.ln() - 2f64.ln(), 3f64.ln()];
        for (i, expected) in expected.iter().enumerate() {
            let (i, off) = (i as i64, 1e-6);
            assert!((errors.losses.double_value(&[i]) - expected).abs() < off);
            assert!((errors.priorities.double_value(&[i]) - expected).abs() < off);
        }
    }
}
