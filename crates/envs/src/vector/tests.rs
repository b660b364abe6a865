//! What stepping writes, and what failures say.

use std::sync::Arc;

use super::*;
use crate::{Step, registry};
use starling_tree::Tree;

fn columns(vector: &VecEnv, steps: usize) -> Rollout {
    Rollout::new(
        steps,
        vector.len(),
        vector.observation_space(),
        vector.action_space(),
        vector.legal_actions(),
        &Tree::empty(),
        &Tree::empty(),
    )
}

fn cart_poles(count: usize, first_index: u64) -> VecEnv {
    let spec = registry::find("CartPole-v1").unwrap();
    VecEnv::new(spec, &EnvOptions::default(), count, 7, "env", first_index).unwrap()
}

/// Counts its steps; episode `k` of environment `tag` lasts `tag + 2` steps; may fail.
struct Counter {
    tag: u8,
    count: u8,
    fail_at: Option<u8>,
    panic_at: Option<u8>,
}

impl Counter {
    fn boxed(tag: u8) -> Box<dyn Env> {
        Box::new(Self {
            tag,
            count: 0,
            fail_at: None,
            panic_at: None,
        })
    }
}

impl Env for Counter {
    fn observation_space(&self) -> Space {
        Space::bytes(&[2], 255)
    }

    fn action_space(&self) -> Space {
        Space::Discrete { n: 3 }
    }

    fn reset(&mut self, _: &mut Rng, mut obs: ObsMut<'_>) -> Result<(), EnvError> {
        self.count = 0;
        obs.write(&[self.tag, 0]);
        Ok(())
    }

    fn step(
        &mut self,
        action: Action<'_>,
        _: &mut Rng,
        mut obs: ObsMut<'_>,
    ) -> Result<Step, EnvError> {
        assert!(self.panic_at != Some(self.count), "the wheel came off");
        if self.fail_at == Some(self.count) {
            return Err(EnvError::Failed("out of paper".into()));
        }
        let action = action.discrete(3)?;
        let mut mask = [0; 3];
        self.legal_actions(&mut mask);
        assert_eq!(mask[action], 1, "an illegal action");
        self.count += 1;
        obs.write(&[self.tag, self.count]);
        Ok(Step {
            reward: f32::from(self.count - 1),
            terminated: self.count == self.tag + 2,
            truncated: false,
        })
    }

    fn masks_actions(&self) -> bool {
        true
    }

    fn legal_actions(&self, mask: &mut [u8]) {
        for (i, flag) in mask.iter_mut().enumerate() {
            *flag = u8::from(i != usize::from(self.count % 3));
        }
    }
}

#[test]
fn columns_hold_what_each_environment_did() {
    let mut vector = VecEnv::from_envs(vec![Counter::boxed(0), Counter::boxed(1)], 1, "env", 0);
    let mut rollout = columns(&vector, 4);
    vector.set_discount(0.5);
    vector.reset(&mut rollout).unwrap();
    for t in 0..4 {
        let rows = rollout.legal.as_ref().unwrap().at(&[t]);
        let legal = rows.as_slice::<u8>();
        let choices = [0, 3].map(|at| legal[at..at + 3].iter().position(|l| *l == 1));
        let choices = choices.map(|choice| choice.unwrap() as i64);
        rollout.actions.at_mut(&[t]).write(&choices);
        vector.step(t, &mut rollout).unwrap();
    }
    let obs = rollout.obs.leaf().unwrap().as_slice::<u8>();
    // Row t: (tag, count) of both; lengths 2 and 3.
    assert_eq!(
        obs,
        [
            [0, 0, 1, 0],
            [0, 1, 1, 1],
            [0, 0, 1, 2],
            [0, 1, 1, 0],
            [0, 0, 1, 1]
        ]
        .concat()
    );
    assert_eq!(
        rollout.rewards.as_slice::<f32>(),
        [0., 0., 1., 1., 0., 2., 1., 0.]
    );
    assert_eq!(
        rollout.terminated.as_slice::<u8>(),
        [0, 0, 1, 0, 0, 1, 1, 0]
    );
    assert_eq!(rollout.final_at, [(1, 0), (2, 1), (3, 0)]);
    let finals = rollout.final_obs.leaf().unwrap().as_slice::<u8>();
    assert_eq!(finals[..6], [0, 2, 1, 3, 0, 2]);
    let legal = rollout.legal.as_ref().unwrap().as_slice::<u8>();
    assert_eq!(legal[6..12], [1, 0, 1, 1, 0, 1]);
    assert_eq!(legal[12..18], [0, 1, 1, 1, 1, 0]);
    let ended: Vec<_> = vector.finished().collect();
    assert_eq!(ended.len(), 3);
    assert_eq!(
        ended[1],
        Episode {
            env: 1,
            return_: 3.0,
            // Rewards 0, 1, 2 with γ = ½.
            discounted_return: 1.0,
            length: 3,
            nonzero_rewards: 2,
            game_score: None
        }
    );
    assert_eq!(vector.finished().count(), 0);
}

#[test]
fn failures_and_panics_name_the_environment() {
    for (fail_at, panic_at, says) in [
        (Some(0), None, "out of paper"),
        (None, Some(0), "the wheel came off"),
    ] {
        let bad = Box::new(Counter {
            tag: 1,
            count: 0,
            fail_at,
            panic_at,
        });
        let mut vector = VecEnv::from_envs(vec![Counter::boxed(0), bad], 1, "env", 10);
        vector = vector.named("Counter-v0");
        let mut rollout = columns(&vector, 1);
        vector.reset(&mut rollout).unwrap();
        rollout.actions.at_mut(&[0]).write(&[1i64, 1]);
        let error = vector.step(0, &mut rollout).unwrap_err().to_string();
        assert!(
            error.starts_with("environment 11 (Counter-v0): ") && error.contains(says),
            "{error}"
        );
    }
}

/// Shows the last two of its numbers, 10 + its maker's count and on; fails where it is told to.
struct Fragile {
    number: u8,
    fails_at_step: Option<u8>,
    fails_at_reset: bool,
}

impl Env for Fragile {
    fn observation_space(&self) -> Space {
        Space::bytes(&[2, 1], 255)
    }

    fn action_space(&self) -> Space {
        Space::Discrete { n: 3 }
    }

    fn frame_stack(&self) -> Option<usize> {
        Some(2)
    }

    fn reset(&mut self, _: &mut Rng, mut obs: ObsMut<'_>) -> Result<(), EnvError> {
        if self.fails_at_reset {
            return Err(EnvError::Failed("it does not start".into()));
        }
        obs.write(&[0, self.number]);
        Ok(())
    }

    fn step(&mut self, _: Action<'_>, _: &mut Rng, mut obs: ObsMut<'_>) -> Result<Step, EnvError> {
        // Also what a failing environment has written meanwhile must not be seen.
        obs.write(&[99u8, 99]);
        self.number += 1;
        if self.fails_at_step == Some(self.number % 10) {
            return Err(EnvError::Failed("out of paper".into()));
        }
        obs.write(&[self.number - 1, self.number]);
        Ok(Step {
            reward: 1.0,
            ..Step::default()
        })
    }
}

/// Two environments, of which the second fails at its second step; those that take its place
/// show 20, 30 and so on, and the first of them does not start.
fn fragile(budget: &Arc<RestartBudget>) -> (VecEnv, Rollout) {
    let make = |number, fails_at_step, fails_at_reset| -> Box<dyn Env> {
        Box::new(Fragile {
            number,
            fails_at_step,
            fails_at_reset,
        })
    };
    let envs = vec![make(10, None, false), make(10, Some(2), false)];
    let mut vector = VecEnv::from_envs(envs, 1, "env", 4).named("Fragile-v0");
    let mut made = 10;
    let remake = move || {
        made += 10;
        Ok(make(made, None, made == 20))
    };
    vector.restart_failed(remake, Arc::clone(budget));
    let rollout = columns(&vector, 3);
    (vector, rollout)
}

#[test]
fn a_failed_environment_is_made_anew_and_its_episode_cut_off() {
    let budget = Arc::new(RestartBudget::new(5));
    let (mut vector, mut rollout) = fragile(&budget);
    vector.reset(&mut rollout).unwrap();
    for t in 0..3 {
        vector.step(t, &mut rollout).unwrap();
    }
    let obs: &[u8] = rollout.obs.leaf().unwrap().as_slice();
    // Stacks of two frames of both environments, row by row.
    let expected = [
        [0, 10, 0, 10],
        [10, 11, 10, 11],
        [11, 12, 0, 30],
        [12, 13, 30, 31],
    ];
    assert_eq!(obs, expected.concat());
    assert_eq!(rollout.rewards.as_slice::<f32>(), [1., 1., 1., 0., 1., 1.]);
    assert_eq!(rollout.truncated.as_slice::<u8>(), [0, 0, 0, 1, 0, 0]);
    assert_eq!(rollout.terminated.as_slice::<u8>(), [0; 6]);
    // The last observation goes on by the newest frame.
    assert_eq!(rollout.final_at, [(1, 1)]);
    let last: &[u8] = rollout.final_obs.leaf().unwrap().as_slice();
    assert_eq!(last[..2], [11, 11]);
    assert_eq!(vector.finished().count(), 0);
    let restarts: Vec<_> = vector.restarts().collect();
    assert!(restarts.iter().all(|restart| restart.env == 1));
    let causes = restarts.iter().map(|restart| restart.cause.to_string());
    assert_eq!(
        causes.collect::<Vec<_>>(),
        [
            "environment 5 (Fragile-v0): out of paper",
            "environment 5 (Fragile-v0): it does not start",
        ]
    );
    assert_eq!((budget.used(), vector.restarts().count()), (2, 0));
}

#[test]
fn when_the_budget_is_used_up_the_vector_fails() {
    let budget = Arc::new(RestartBudget::new(5));
    budget.set_used(4);
    let (mut vector, mut rollout) = fragile(&budget);
    vector.reset(&mut rollout).unwrap();
    vector.step(0, &mut rollout).unwrap();
    let error = vector.step(1, &mut rollout).unwrap_err().to_string();
    assert_eq!(
        error,
        "environment 5 (Fragile-v0): it does not start (and 5 environments were made anew already)"
    );
}

/// A panic is a fault in the program: a new environment would have it too.
#[test]
fn a_panic_is_no_reason_to_go_on() {
    let bad = Box::new(Counter {
        tag: 1,
        count: 0,
        fail_at: None,
        panic_at: Some(0),
    });
    let mut vector = VecEnv::from_envs(vec![bad], 1, "env", 0);
    let budget = Arc::new(RestartBudget::new(5));
    vector.restart_failed(|| Ok(Counter::boxed(1)), Arc::clone(&budget));
    let mut rollout = columns(&vector, 1);
    vector.reset(&mut rollout).unwrap();
    let error = vector.step(0, &mut rollout).unwrap_err().to_string();
    assert!(error.contains("the wheel came off"), "{error}");
    assert_eq!(budget.used(), 0);
}

#[test]
fn an_action_outside_the_space_is_refused() {
    let mut vector = cart_poles(1, 0);
    let mut rollout = columns(&vector, 1);
    vector.reset(&mut rollout).unwrap();
    for action in [2i64, -1] {
        rollout.actions.at_mut(&[0]).write(&[action]);
        let error = vector.step(0, &mut rollout).unwrap_err().to_string();
        assert!(error.contains("allowed: 0 to 1"), "{error}");
    }
}

#[test]
fn an_environment_does_the_same_in_any_vector() {
    let run = |count, first_index, b| {
        let mut vector = cart_poles(count, first_index);
        let mut rollout = columns(&vector, 64);
        vector.decorrelate(20, &mut rollout).unwrap();
        rollout.actions.as_mut_slice::<i64>().fill(1);
        for t in 0..64 {
            vector.step(t, &mut rollout).unwrap();
        }
        let obs = rollout.obs.leaf().unwrap();
        let rows = (0..=64).map(|t| obs.at(&[t, b]).bytes.to_vec());
        rows.collect::<Vec<_>>()
    };
    assert_eq!(run(5, 0, 3), run(2, 2, 1));
    assert_ne!(run(5, 0, 3), run(5, 0, 2));
}

#[test]
fn decorrelation_only_does_what_is_legal_and_reports_nothing() {
    let envs = (0..4).map(Counter::boxed).collect();
    let mut vector = VecEnv::from_envs(envs, 3, "env", 0);
    let mut rollout = columns(&vector, 1);
    vector.decorrelate(50, &mut rollout).unwrap();
    assert_eq!(vector.finished().count(), 0);
    let shown = rollout.obs.leaf().unwrap().at(&[0]);
    let counts: Vec<u8> = shown.as_slice::<u8>().chunks(2).map(|o| o[1]).collect();
    assert!(counts.iter().any(|count| *count > 0), "{counts:?}");
}

#[test]
fn a_vector_that_cannot_be_saved_says_so_and_starts_anew() {
    let mut vector = VecEnv::from_envs(vec![Counter::boxed(4)], 3, "env", 0);
    let mut rollout = columns(&vector, 1);
    vector.reset(&mut rollout).unwrap();
    rollout.actions.at_mut(&[0]).write(&[1i64]);
    vector.step(0, &mut rollout).unwrap();
    rollout.carry_over();
    let snapshot = vector.snapshot();
    assert!(!snapshot.is_complete());
    vector.restore(&snapshot, &mut rollout).unwrap();
    let shown = rollout.obs.leaf().unwrap().at(&[0]);
    assert_eq!(shown.as_slice::<u8>(), [4, 0]);
}

#[test]
fn a_snapshot_of_another_width_is_refused() {
    let snapshot = cart_poles(3, 0).snapshot();
    assert!(snapshot.is_complete());
    let mut vector = cart_poles(2, 0);
    let mut rollout = columns(&vector, 1);
    let error = vector.restore(&snapshot, &mut rollout).unwrap_err();
    assert!(error.to_string().contains("3 environments"), "{error}");
}
