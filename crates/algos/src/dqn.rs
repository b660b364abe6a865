//! Deep Q-learning (Mnih et al. 2015), with options: double (van Hasselt et al. 2016), dueling
//! (Wang et al. 2016), n-step returns, prioritized replay (Schaul et al. 2016), noisy networks
//! (Fortunato et al. 2018) and Munchausen targets (Vieillard et al. 2020).
//!
//! Defaults are rlpyt's: Huber loss, Adam, a replay ratio of 8 (each step is used eight times on
//! average), hard target updates. Where we differ from the papers: a truncated episode
//! is bootstrapped from its final observation; priorities are plain |TD error|; noise is drawn
//! for every environment and step, not for a whole batch.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use starling_nets::export::{Graph, NotExported, Value};
use starling_nets::{Layout, Params, QNetwork, Tensor};
use starling_tree::Tree;

use crate::config::ConfigError;
use crate::ops::huber;
use crate::value_based::{Errors, Method, ValueBased, ValueConfig, network};
use crate::{Algorithm, Spaces};

/// DQN's settings beside the shared ones.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Error at which the loss changes from quadratic to linear; null for the squared error.
    #[schemars(extend("exclusiveMinimum" = 0.0))]
    pub huber_delta: Option<f64>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            huber_delta: Some(1.0),
        }
    }
}

/// All settings with their defaults.
pub fn defaults() -> (ValueConfig, Config) {
    (ValueConfig::default(), Config::default())
}

/// DQN for the spaces of an environment.
pub fn build(
    shared: ValueConfig,
    config: Config,
    spaces: &Spaces,
) -> Result<Box<dyn Algorithm>, ConfigError> {
    let method = Dqn::new("dqn", &shared, config, spaces)?;
    Ok(Box::new(ValueBased::new(shared, method, spaces)?))
}

/// One value per action.
pub(crate) struct Dqn {
    config: Config,
    net: QNetwork,
    layout: Arc<Layout>,
}

impl Dqn {
    /// `name` is that of the algorithm which uses it.
    pub(crate) fn new(
        name: &str,
        shared: &ValueConfig,
        config: Config,
        spaces: &Spaces,
    ) -> Result<Self, ConfigError> {
        let (net, layout) = network(name, shared, spaces, 1)?;
        let layout = Arc::new(layout);
        Ok(Self {
            config,
            net,
            layout,
        })
    }
}

impl Method for Dqn {
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
        Ok(graph.squeeze(&outputs, 2))
    }

    fn values(&self, outputs: &Tensor) -> Tensor {
        outputs.squeeze_dim(-1)
    }

    fn errors(
        &self,
        taken: &Tensor,
        _fractions: Option<&Tensor>,
        following: &Tensor,
        returns: &Tensor,
        discounts: &Tensor,
    ) -> Errors {
        let targets = returns + discounts * following.squeeze_dim(-1);
        errors(&taken.squeeze_dim(-1), &targets, self.config.huber_delta)
    }
}

/// Losses (Huber with the given δ, or half squares) and absolute errors of values `[N]`.
pub(crate) fn errors(values: &Tensor, targets: &Tensor, huber_delta: Option<f64>) -> Errors {
    let errors = targets - values;
    let losses = match huber_delta {
        None => errors.square() * 0.5,
        Some(delta) => huber(&errors, delta),
    };
    Errors {
        losses,
        priorities: errors.abs(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::Munchausen;
    use crate::value_based::ValueLearner;
    use starling_envs::Space;
    use starling_nets::{Device, QNetConfig, Schedule};
    use starling_replay::{Layout as Rows, TransitionBatch};
    use starling_tree::{Array, DType, Spec};

    /// Errors 0.5 and −3 with δ = 1: 0.125 and 2.5; half squares: 0.125 and 4.5.
    #[test]
    fn losses_by_hand() {
        let values = Tensor::from_slice(&[1f32, 1.0]);
        let targets = Tensor::from_slice(&[1.5f32, -2.0]);
        let numbers = |tensor: &Tensor| Vec::<f32>::try_from(tensor).unwrap();
        let with_huber = errors(&values, &targets, Some(1.0));
        assert_eq!(numbers(&with_huber.priorities), [0.5, 3.0]);
        assert_eq!(numbers(&with_huber.losses), [0.125, 2.5]);
        let squares = errors(&values, &targets, None);
        assert_eq!(numbers(&squares.losses), [0.125, 4.5]);
    }

    fn spaces() -> Spaces {
        Spaces {
            observation: Space::unbounded(&[1]),
            action: Space::Discrete { n: 2 },
            legal_actions: Some(2),
            frame_stack: None,
        }
    }

    /// One transition with r = 1, γ = 0.5 and s' = 1, by action 1 from s = 1.
    fn batch(next_legal: [u8; 2]) -> TransitionBatch {
        let rows = Rows {
            observation: spaces().observation.spec(),
            action: Spec::scalar(DType::I64),
            legal_actions: Some(2),
            records: Tree::empty(),
            state: Tree::empty(),
            streams: 1,
        };
        let mut batch = TransitionBatch::new(&rows, 1);
        for obs in [&mut batch.obs, &mut batch.next_obs] {
            let Tree::Leaf(obs) = obs else {
                panic!("an observation is one array here");
            };
            obs.as_mut_slice::<f32>()[0] = 1.0;
        }
        batch.actions.as_mut_slice::<i64>()[0] = 1;
        batch.returns.as_mut_slice::<f32>()[0] = 1.0;
        batch.discounts.as_mut_slice::<f32>()[0] = 0.5;
        batch.legal = Some(Array::from_slice(&[1u8, 1], &[1, 2]));
        batch.next_legal = Some(Array::from_slice(&next_legal, &[1, 2]));
        batch
    }

    /// A network without hidden layers whose weights are set by hand: Q(s, a) = w_a · s.
    fn learner(change: impl Fn(&mut ValueConfig)) -> ValueLearner<Dqn> {
        let (mut shared, config) = defaults();
        shared.net = QNetConfig {
            hidden: Some(vec![]),
            ..QNetConfig::default()
        };
        shared.learning_rate = Schedule::Constant(0.0);
        change(&mut shared);
        let dqn = Dqn::new("dqn", &shared, config, &spaces()).unwrap();
        let learner = ValueLearner::new(shared, Arc::new(dqn), 1, Device::Cpu);
        // Weights, then biases, of the two actions.
        learner
            .nets
            .online
            .params()
            .load_slice(&[0.0, 1.0, 0.0, 0.0])
            .unwrap();
        learner
            .nets
            .target
            .load_slice(&[5.0, 3.0, 0.0, 0.0])
            .unwrap();
        learner
    }

    fn error(learner: &mut ValueLearner<Dqn>, batch: &TransitionBatch) -> f64 {
        learner.priorities_of(batch).double_value(&[0])
    }

    /// The online network prefers action 1 at s', which the target network values at 3; its own
    /// best is action 0 with 5. With r = 1 and γ = 0.5, DQN's target is 3.5, Double DQN's 2.5;
    /// the online value of what was done is 1.
    #[test]
    fn double_values_the_online_choice_with_the_target_network() {
        for (double, mask, target) in [
            (false, [1, 1], 3.5),
            (true, [1, 1], 2.5),
            (false, [0, 1], 2.5),
            (true, [1, 0], 3.5),
        ] {
            let mut learner = learner(|config| config.double = double);
            assert_eq!(error(&mut learner, &batch(mask)), target - 1.0);
        }
    }

    /// With τ = 1 the target network's policy is (1, e⁻²)/(1 + e⁻²) at s and s'. The bonus is
    /// .9·max(−1, −2 − ln(1 + e⁻²)) = −.9, the soft value 5 + ln(1 + e⁻²).
    #[test]
    fn munchausen_targets_by_hand() {
        let mut learner = learner(|config| {
            config.munchausen = Some(Munchausen {
                temperature: 1.0,
                ..Munchausen::default()
            });
        });
        let target = 1.0 - 0.9 + 0.5 * (5.0 + (1.0 + (-2f64).exp()).ln());
        assert!((error(&mut learner, &batch([1, 1])) - (target - 1.0)).abs() < 1e-5);
        // With one legal action left, its policy is certain.
        let target = 1.0 - 0.9 + 0.5 * 3.0;
        assert!((error(&mut learner, &batch([0, 1])) - (target - 1.0)).abs() < 1e-5);
    }

    #[test]
    fn what_does_not_go_together_is_refused() {
        let refused = |change: fn(&mut ValueConfig)| {
            let (mut shared, config) = defaults();
            change(&mut shared);
            build(shared, config, &spaces())
                .err()
                .map(|e| e.to_string())
        };
        let message = refused(|config| config.actor_priorities = true).unwrap();
        assert!(message.contains("algo.priority"), "{message}");
        let message = refused(|config| {
            config.munchausen = Some(Munchausen::default());
            config.replay.n_steps = 3;
        });
        assert!(message.unwrap().contains("1 with Munchausen"));
    }
}
