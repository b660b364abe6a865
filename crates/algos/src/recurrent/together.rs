//! A test for both policies: the other environments of a batch do not change an environment's
//! actions.

use starling_envs::{Rng, Rollout, Space, stream};
use starling_nets::Device;
use starling_tree::{Array, Tree};

use crate::{Acting, Algorithm, Part};

const STEPS: usize = 8;
/// The episode of the first environment ends with this step.
const END: usize = 3;

/// Two environments and one, of observations of one number and two actions.
struct Crew {
    rollouts: [Rollout; 2],
    rngs: [Vec<Rng>; 2],
    states: [Tree<Array>; 2],
}

impl Crew {
    fn new(algorithm: &dyn Algorithm) -> Self {
        let policy = algorithm.policy(Device::Cpu);
        let (obs, action) = (Space::unbounded(&[1]), Space::Discrete { n: 2 });
        let rollout = |first: f32, envs: usize| {
            let (records, state) = (policy.records(), policy.state());
            let mut rollout = Rollout::new(STEPS, envs, &obs, &action, None, &records, &state);
            let seen = (0..(STEPS + 1) * envs).map(|i| first + i as f32 / 5.0);
            let seen: Vec<f32> = seen.collect();
            rollout.obs = Tree::Leaf(Array::from_slice(&seen, &[STEPS + 1, envs, 1]));
            let rewards: Vec<f32> = (0..STEPS * envs).map(|i| (i % 3) as f32).collect();
            rollout.rewards = Array::from_slice(&rewards, &[STEPS, envs]);
            rollout
        };
        let mut rollouts = [rollout(-1.0, 2), rollout(1.0, 1)];
        rollouts[0].terminated.as_mut_slice::<u8>()[END * 2] = 1;
        rollouts[0].keep_final(END, 0);
        Self {
            rollouts,
            rngs: [0..2, 2..3].map(|envs| envs.map(|i| stream(1, "policy", i)).collect()),
            states: [2, 1].map(|envs| Tree::zeros(&policy.state(), &[envs])),
        }
    }

    fn parts(&mut self) -> Vec<Part<'_>> {
        let parts = self.rollouts.iter_mut().zip(&mut self.rngs);
        let parts = parts.zip(&mut self.states).zip([0, 2]);
        parts
            .map(|(((rollout, rngs), state), first_env)| Part {
                rollout,
                acting: Acting {
                    explore: true,
                    env_steps: 0,
                    first_env,
                    total_envs: 3,
                    rngs,
                    state,
                },
            })
            .collect()
    }

    fn run(mut self, algorithm: &dyn Algorithm, together: bool) -> [Rollout; 2] {
        let mut policy = algorithm.policy(Device::Cpu);
        let weights = algorithm.learner(1, Device::Cpu).weights();
        policy.load(&weights).unwrap();
        for t in 0..STEPS {
            if together {
                policy.act_together(t, 0, &mut self.parts());
            } else {
                for (group, part) in self.parts().into_iter().enumerate() {
                    policy.act_together(t, group, &mut [part]);
                }
            }
            if t == END {
                // As the engine does it.
                for (_, array) in self.states[0].leaves_mut() {
                    let row = array.at_mut(&[0]);
                    row.bytes.fill(0);
                }
            }
        }
        if together {
            policy.finish(0, &mut self.parts());
        } else {
            for (group, part) in self.parts().into_iter().enumerate() {
                policy.finish(group, &mut [part]);
            }
        }
        self.rollouts
    }
}

/// Actions are the same, and what is recorded with them is nearly so.
pub(crate) fn acts_as_alone(algorithm: &dyn Algorithm) {
    let [alone, together] =
        [false, true].map(|together| Crew::new(algorithm).run(algorithm, together));
    for (alone, together) in alone.iter().zip(&together) {
        assert_eq!(alone.actions, together.actions);
        let records = alone.policy.leaves().into_iter();
        for ((name, a), (_, b)) in records.zip(together.policy.leaves()) {
            if name == "arm" {
                assert_eq!(a, b);
                continue;
            }
            let pairs = a.as_slice::<f32>().iter().zip(b.as_slice::<f32>());
            for (a, b) in pairs {
                assert!((a - b).abs() < 1e-3 * (1.0 + a.abs()), "{name}: {a}, {b}");
            }
        }
    }
}
