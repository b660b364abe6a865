//! Ape-X (Horgan et al. 2018) with DQN, Rainbow and Rainbow-IQN.
//!
//! Ape-X consists of shared settings: a different ε for each environment (a ladder) or noisy
//! layers, initial priorities computed by the actors, and many environments on asynchronous threads
//! with one learner. The defaults here are RELA's: RMSProp, n = 3, γ = 0.997, batches of 512. They
//! are meant for `mode=threads` and `asynchronous=true`, which the presets set.
//!
//! Where we differ: actors have no target network, so their errors bootstrap from the greedy value
//! of their network, and the last n steps of a rollout use fewer than n steps.

use starling_nets::{OptimizerConfig, OptimizerKind, QNetConfig, Schedule};
use starling_replay::PriorityConfig;

use crate::off_policy::{ReplaySettings, TargetSettings};
use crate::value_based::{EpsilonGreedy, Ladder, ValueConfig};
use crate::{c51, dqn, iqn, rainbow};

/// Ape-X DQN: ladder, double and dueling, over DQN.
pub fn apex_dqn() -> (ValueConfig, dqn::Config) {
    let shared = ValueConfig {
        exploration: EpsilonGreedy {
            epsilon_ladder: Some(Ladder::default()),
            ..EpsilonGreedy::default()
        },
        learning_rate: Schedule::Constant(6.25e-5),
        optimizer: OptimizerConfig {
            kind: OptimizerKind::Rmsprop,
            eps: 1.5e-7,
            ..OptimizerConfig::default()
        },
        net: QNetConfig {
            dueling: true,
            ..QNetConfig::default()
        },
        ..ValueConfig::default()
    };
    (distributed(shared), dqn::Config::default())
}

/// Ape-X Rainbow: noise instead of a ladder, over C51.
pub fn apex_rainbow() -> (ValueConfig, c51::Config) {
    let (shared, config) = rainbow::rainbow();
    (distributed(shared), config)
}

/// Rainbow-IQN Ape-X: noise instead of a ladder, over IQN.
pub fn apex_rainbow_iqn() -> (ValueConfig, iqn::Config) {
    let (shared, config) = rainbow::rainbow_iqn();
    (distributed(shared), config)
}

fn distributed(shared: ValueConfig) -> ValueConfig {
    ValueConfig {
        replay: ReplaySettings {
            rollout_steps: 20,
            batch_size: 512,
            learning_starts_steps: 80_000,
            replay_ratio: None,
            n_steps: 3,
            gamma: 0.997,
            priority: Some(shared.replay.priority.unwrap_or(PriorityConfig {
                alpha: 0.6,
                ..PriorityConfig::default()
            })),
            priority_beta: Schedule::Constant(0.4),
            ..shared.replay
        },
        clip_norm: Some(40.0),
        double: true,
        target: TargetSettings {
            target_every_updates: 2500,
            ..shared.target
        },
        actor_priorities: true,
        exploration: EpsilonGreedy {
            epsilon_eval: 0.0,
            ..shared.exploration
        },
        ..shared
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Acting, Part, Policy, Spaces};
    use starling_envs::{Rollout, Space, stream};
    use starling_nets::{Device, Snapshot};
    use starling_tree::{Array, Tree};

    fn spaces() -> Spaces {
        Spaces {
            observation: Space::unbounded(&[1]),
            action: Space::Discrete { n: 2 },
            legal_actions: None,
            frame_stack: None,
        }
    }

    fn policy() -> Box<dyn Policy> {
        let (mut shared, config) = apex_dqn();
        shared.net = QNetConfig {
            hidden: Some(vec![]),
            ..QNetConfig::default()
        };
        shared.replay.n_steps = 2;
        shared.replay.gamma = 0.5;
        shared.exploration.epsilon_ladder = Some(Ladder {
            base: 0.0,
            alpha: 0.0,
            ..Ladder::default()
        });
        let algorithm = dqn::build(shared, config, &spaces()).unwrap();
        assert!((algorithm.discount() - 0.5).abs() < 1e-12);
        let mut policy = algorithm.policy(Device::Cpu);
        // Q(s, ·) = (s, 2s): the second action is the best of a positive s.
        let weights = Snapshot::from_values(vec![1.0, 2.0, 0.0, 0.0]);
        policy.load(&weights).unwrap();
        policy
    }

    /// Observations 1, 2, 3, 4 and rewards 1: greedy values 2, 4, 6, 8 and the actions taken
    /// have them. n = 2, γ = ½: the first error is 1 + ½ + ¼·6 − 2 = 1, the second
    /// 1 + ½ + ¼·8 − 4 = −½, the last, with one step left, 1 + ½·8 − 6 = −1.
    #[test]
    fn actors_see_the_errors_of_n_steps() {
        let (obs, action) = (Space::unbounded(&[1]), Space::Discrete { n: 2 });
        let records = policy().records();
        let mut rollout = Rollout::new(3, 1, &obs, &action, None, &records, &Tree::empty());
        rollout.obs = Tree::Leaf(Array::from_slice(&[1f32, 2.0, 3.0, 4.0], &[4, 1, 1]));
        rollout.rewards = Array::from_slice(&[1f32; 3], &[3, 1]);
        let priorities = |rollout: &mut Rollout| {
            let mut policy = policy();
            for t in 0..3 {
                let acting = Acting {
                    explore: true,
                    env_steps: 0,
                    first_env: 0,
                    total_envs: 1,
                    rngs: &mut [stream(1, "policy", 0)],
                    state: &mut Tree::empty(),
                };
                policy.act(t, rollout, acting);
            }
            let acting = Acting {
                explore: true,
                env_steps: 0,
                first_env: 0,
                total_envs: 1,
                rngs: &mut [stream(1, "policy", 0)],
                state: &mut Tree::empty(),
            };
            policy.finish(0, &mut [Part { rollout, acting }]);
            let Some(Tree::Leaf(column)) = rollout.policy.get("priority") else {
                panic!("there is a column of priorities");
            };
            column.as_slice::<f32>().to_vec()
        };
        assert_eq!(priorities(&mut rollout), [1.0, 0.5, 1.0]);

        // The episode is cut off with the second step, at the observation 10, worth 20: the
        // errors are 1 + ½ + ¼·20 − 2 = 4.5 and 1 + ½·20 − 4 = 7.
        rollout.truncated = Array::from_slice(&[0u8, 1, 0], &[3, 1]);
        rollout.final_at = vec![(1, 0)];
        rollout.final_obs = Tree::Leaf(Array::from_slice(&[10f32, 0.0], &[2, 1]));
        assert_eq!(priorities(&mut rollout), [4.5, 7.0, 1.0]);

        // The task ends there: 1 + ½ − 2 and 1 − 4.
        rollout.terminated = Array::from_slice(&[0u8, 1, 0], &[3, 1]);
        assert_eq!(priorities(&mut rollout), [0.5, 3.0, 1.0]);
    }

    /// Noise, fractions and random actions are each environment's own: what else is in the batch
    /// does not change what it does.
    #[test]
    fn together_they_act_as_each_alone() {
        let (mut shared, config) = apex_rainbow_iqn();
        shared.net.hidden = Some(vec![6]);
        shared.net.head_hidden = 6;
        let exploration = &mut shared.exploration;
        (exploration.epsilon_start, exploration.epsilon_end) = (0.3, 0.3);
        let algorithm = iqn::build(shared, config, &spaces()).unwrap();
        let weights = algorithm.learner(1, Device::Cpu).weights();
        let mut policy = algorithm.policy(Device::Cpu);
        policy.load(&weights).unwrap();
        const STEPS: usize = 6;
        let (obs, action) = (Space::unbounded(&[1]), Space::Discrete { n: 2 });
        let records = policy.records();
        let rollout = |first: f32, envs: usize| {
            let nothing = Tree::empty();
            let mut rollout = Rollout::new(STEPS, envs, &obs, &action, None, &records, &nothing);
            let seen: Vec<f32> = (0..(STEPS + 1) * envs).map(|i| first + i as f32).collect();
            rollout.obs = Tree::Leaf(Array::from_slice(&seen, &[STEPS + 1, envs, 1]));
            rollout
        };
        let run = |policy: &mut dyn Policy, together: bool| {
            let mut rollouts = [rollout(-3.0, 2), rollout(5.0, 1)];
            let mut rngs: Vec<Vec<_>> = [0..2, 2..3]
                .map(|envs| envs.map(|i| stream(1, "policy", i)).collect())
                .into();
            let mut states = [Tree::empty(), Tree::empty()];
            let parts = rollouts.iter_mut().zip(&mut rngs).zip(&mut states);
            let mut all: Vec<_> = parts.zip([0, 2]).collect();
            // Together: all in one batch; else one after the other.
            for group in all.chunks_mut(if together { 2 } else { 1 }) {
                for t in 0..=STEPS {
                    let parts = group
                        .iter_mut()
                        .map(|(((rollout, rngs), state), first)| Part {
                            rollout,
                            acting: Acting {
                                explore: true,
                                env_steps: 0,
                                first_env: *first,
                                total_envs: 3,
                                rngs,
                                state,
                            },
                        });
                    let mut parts: Vec<Part<'_>> = parts.collect();
                    match t {
                        STEPS => policy.finish(0, &mut parts),
                        _ => policy.act_together(t, 0, &mut parts),
                    }
                }
            }
            rollouts.map(|rollout| {
                let Some(Tree::Leaf(priorities)) = rollout.policy.get("priority") else {
                    panic!("there is a column of priorities");
                };
                (
                    rollout.actions.clone(),
                    priorities.as_slice::<f32>().to_vec(),
                )
            })
        };
        let (alone, together) = (run(&mut *policy, false), run(&mut *policy, true));
        for ((actions, alone), (same, together)) in alone.iter().zip(&together) {
            assert_eq!(actions, same);
            for (a, b) in alone.iter().zip(together) {
                assert!((a - b).abs() < 1e-4, "{a} is not {b}");
            }
        }
    }
}
