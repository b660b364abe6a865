//! Tests of what stepping writes, and of failures.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::{Action, Env, EnvOptions, ObsMut, Step, registry};
use starling_tree::Tree;

/// Nobody asks to stop.
static NEVER: AtomicBool = AtomicBool::new(false);

fn columns(vector: &dyn VecEnv, steps: usize) -> Rollout {
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

fn cart_poles(count: usize, first_index: u64) -> SyncVecEnv {
    let spec = registry::find("CartPole-v1").unwrap();
    let make = |_| spec.make(&EnvOptions::default()).unwrap();
    let envs = (0..count).map(make).collect();
    SyncVecEnv::from_envs(envs, 7, "env", first_index).unwrap()
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
    let envs = vec![Counter::boxed(0), Counter::boxed(1)];
    let mut vector = SyncVecEnv::from_envs(envs, 1, "env", 0).unwrap();
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
        let vector = SyncVecEnv::from_envs(vec![Counter::boxed(0), bad], 1, "env", 10);
        let mut vector = vector.unwrap().named("Counter-v0");
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
        // What a failing environment has already written must not be seen.
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
fn fragile(budget: &Arc<RestartBudget>) -> (SyncVecEnv, Rollout) {
    let make = |number, fails_at_step, fails_at_reset| -> Box<dyn Env> {
        Box::new(Fragile {
            number,
            fails_at_step,
            fails_at_reset,
        })
    };
    let envs = vec![make(10, None, false), make(10, Some(2), false)];
    let vector = SyncVecEnv::from_envs(envs, 1, "env", 4).unwrap();
    let mut vector = vector.named("Fragile-v0");
    let mut made = 10;
    let remake = move |_: usize| {
        made += 10;
        Ok(make(made, None, made == 20))
    };
    let restarts = vector.restart_failed(Box::new(remake), Arc::clone(budget));
    restarts.unwrap();
    let rollout = columns(&vector, 3);
    (vector, rollout)
}

#[test]
fn a_failed_environment_is_replaced_and_its_episode_cut_off() {
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
    // The last observation repeats the newest frame.
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
        "environment 5 (Fragile-v0): it does not start (and 5 environments were already restarted)"
    );
}

/// A panic is a bug: a new environment would have it too.
#[test]
fn an_environment_that_panics_is_not_replaced() {
    let bad = Box::new(Counter {
        tag: 1,
        count: 0,
        fail_at: None,
        panic_at: Some(0),
    });
    let mut vector = SyncVecEnv::from_envs(vec![bad], 1, "env", 0).unwrap();
    let budget = Arc::new(RestartBudget::new(5));
    let remake = Box::new(|_: usize| Ok(Counter::boxed(1)));
    vector.restart_failed(remake, Arc::clone(&budget)).unwrap();
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
        vector.decorrelate(20, &NEVER, &mut rollout).unwrap();
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
    let mut vector = SyncVecEnv::from_envs(envs, 3, "env", 0).unwrap();
    let mut rollout = columns(&vector, 1);
    assert!(vector.decorrelate(50, &NEVER, &mut rollout).unwrap());
    assert_eq!(vector.finished().count(), 0);
    let shown = rollout.obs.leaf().unwrap().at(&[0]);
    let counts: Vec<u8> = shown.as_slice::<u8>().chunks(2).map(|o| o[1]).collect();
    assert!(counts.iter().any(|count| *count > 0), "{counts:?}");
}

#[test]
fn a_vector_that_cannot_be_saved_says_so_and_starts_new_episodes() {
    let mut vector = SyncVecEnv::from_envs(vec![Counter::boxed(4)], 3, "env", 0).unwrap();
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

/// Gives numbers that no learner can use, once, at its third step or its second reset; its episodes
/// last four steps.
#[derive(Clone, Copy, PartialEq)]
enum Bad {
    Nothing,
    Observation(f32),
    Sensor(f64),
    ObservationOfReset(f32),
    LastObservation(f32),
    Reward(f32),
    Score(f64),
    NothingLegal,
}

struct Spoilt {
    bad: Bad,
    steps: u32,
    resets: u32,
    /// What it shows where nothing is wrong.
    shows: f32,
}

impl Spoilt {
    fn boxed(bad: Bad, shows: f32) -> Box<dyn Env> {
        Box::new(Self {
            bad,
            steps: 0,
            resets: 0,
            shows,
        })
    }

    fn write(&self, mut obs: ObsMut<'_>, value: f32, sensor: f64) {
        obs.part::<f32>("speed")
            .copy_from_slice(&[self.shows, value]);
        obs.part::<f64>("sensors.depth")[0] = sensor;
        obs.part::<u8>("lamp")[0] = 255;
    }
}

impl Env for Spoilt {
    fn observation_space(&self) -> Space {
        let depth = Space::Box {
            dtype: starling_tree::DType::F64,
            shape: vec![1],
            bounds: crate::Bounds::Uniform {
                low: f32::NEG_INFINITY,
                high: f32::INFINITY,
            },
        };
        Space::Dict(vec![
            ("speed".into(), Space::unbounded(&[2])),
            ("sensors".into(), Space::Dict(vec![("depth".into(), depth)])),
            ("lamp".into(), Space::bytes(&[1], 255)),
        ])
    }

    fn action_space(&self) -> Space {
        Space::Discrete { n: 2 }
    }

    fn reset(&mut self, _: &mut Rng, obs: ObsMut<'_>) -> Result<(), EnvError> {
        (self.steps, self.resets) = (0, self.resets + 1);
        let value = match self.bad {
            Bad::ObservationOfReset(value) if self.resets == 2 => value,
            _ => 0.0,
        };
        self.write(obs, value, 0.0);
        Ok(())
    }

    fn step(&mut self, _: Action<'_>, _: &mut Rng, obs: ObsMut<'_>) -> Result<Step, EnvError> {
        self.steps += 1;
        let third = self.resets == 1 && self.steps == 3;
        let last = self.resets == 1 && self.steps == 4;
        let value = match self.bad {
            Bad::Observation(value) if third => value,
            Bad::LastObservation(value) if last => value,
            _ => 0.0,
        };
        let sensor = match self.bad {
            Bad::Sensor(value) if third => value,
            _ => 0.0,
        };
        self.write(obs, value, sensor);
        let reward = match self.bad {
            Bad::Reward(value) if third => value,
            _ => 1.0,
        };
        Ok(Step {
            reward,
            terminated: self.steps == 4,
            truncated: false,
        })
    }

    fn masks_actions(&self) -> bool {
        true
    }

    fn legal_actions(&self, mask: &mut [u8]) {
        // In a game that is over nothing is legal, which is no fault.
        let nothing = self.bad == Bad::NothingLegal && self.steps == 3;
        mask.fill(u8::from(!nothing && self.steps < 4));
    }

    fn game_score(&self) -> Option<f64> {
        match self.bad {
            Bad::Score(score) => Some(score),
            _ => Some(4.0),
        }
    }
}

const NAN: f32 = f32::NAN;

fn spoilt(bad: Bad) -> (SyncVecEnv, Rollout) {
    let envs = vec![Spoilt::boxed(Bad::Nothing, 1.0), Spoilt::boxed(bad, 2.0)];
    let vector = SyncVecEnv::from_envs(envs, 1, "env", 6).unwrap();
    let vector = vector.named("Spoilt-v0");
    let rollout = columns(&vector, 8);
    (vector, rollout)
}

/// Every fault with what is said of it.
fn faults() -> [(Bad, &'static str); 10] {
    let depth = "its observation has inf at element 0 of 'sensors.depth'";
    let nan = "its observation has NaN at element 1 of 'speed'";
    let inf = "its observation has -inf at element 1 of 'speed'";
    [
        (Bad::Observation(NAN), nan),
        (Bad::Observation(f32::NEG_INFINITY), inf),
        (Bad::Sensor(f64::INFINITY), depth),
        (Bad::ObservationOfReset(NAN), nan),
        (Bad::LastObservation(NAN), nan),
        (Bad::Reward(NAN), "it gave the reward NaN"),
        (Bad::Reward(f32::INFINITY), "it gave the reward inf"),
        (Bad::Score(f64::NAN), "it gave the game score NaN"),
        (Bad::Score(f64::INFINITY), "it gave the game score inf"),
        (
            Bad::NothingLegal,
            "no action is legal although the episode continues",
        ),
    ]
}

#[test]
fn numbers_that_no_learner_can_use_are_refused_with_the_environment_s_name() {
    for (bad, says) in faults() {
        let (mut vector, mut rollout) = spoilt(bad);
        vector.reset(&mut rollout).unwrap();
        let mut steps = (0..8).map(|t| vector.step(t, &mut rollout));
        let error = steps.find_map(Result::err).expect(says).to_string();
        assert_eq!(error, format!("environment 7 (Spoilt-v0): {says}"));
    }
    let (mut vector, mut rollout) = spoilt(Bad::Nothing);
    vector.reset(&mut rollout).unwrap();
    for t in 0..8 {
        vector.step(t, &mut rollout).unwrap();
    }
    assert_eq!(vector.finished().count(), 4);
}

#[test]
fn decorrelation_refuses_them_too() {
    for (bad, says) in faults() {
        // No episode is reported while environments are decorrelated.
        if matches!(bad, Bad::Score(_)) {
            continue;
        }
        let (mut vector, mut rollout) = spoilt(bad);
        let error = vector.decorrelate(100, &NEVER, &mut rollout).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("environment 7 (Spoilt-v0): {says}")
        );
    }
}

#[test]
fn an_environment_that_gives_such_numbers_is_replaced() {
    for (bad, says) in faults() {
        let (mut vector, mut rollout) = spoilt(bad);
        let budget = Arc::new(RestartBudget::new(1));
        let remake = Box::new(|_: usize| Ok(Spoilt::boxed(Bad::Nothing, 3.0)));
        vector.restart_failed(remake, Arc::clone(&budget)).unwrap();
        vector.reset(&mut rollout).unwrap();
        for t in 0..8 {
            vector.step(t, &mut rollout).unwrap();
        }
        assert_eq!(budget.used(), 1, "{says}");
        let restarts: Vec<_> = vector.restarts().collect();
        assert!(
            restarts[0].cause.to_string().ends_with(says),
            "{restarts:?}"
        );
        assert!(
            vector
                .finished()
                .all(|episode| episode.game_score == Some(4.0))
        );
        for tree in [&rollout.obs, &rollout.final_obs] {
            let Some(Tree::Leaf(speeds)) = tree.get("speed") else {
                panic!("there is a speed");
            };
            let speeds = speeds.as_slice::<f32>();
            assert!(speeds.iter().all(|speed| speed.is_finite()), "{speeds:?}");
            let Some(Tree::Leaf(depths)) = tree.get("sensors.depth") else {
                panic!("there is a depth");
            };
            assert!(depths.as_slice::<f64>().iter().all(|depth| *depth == 0.0));
        }
        assert!(
            rollout
                .rewards
                .as_slice::<f32>()
                .iter()
                .all(|r| r.is_finite())
        );
        // From then on it is the new one.
        let last = rollout
            .obs
            .get("speed")
            .unwrap()
            .leaf()
            .unwrap()
            .at(&[8, 1]);
        assert_eq!(last.as_slice::<f32>()[0], 3.0, "{says}");
    }
}

#[test]
fn environments_with_other_spaces_are_refused() {
    let error = |envs| {
        SyncVecEnv::from_envs(envs, 1, "env", 3)
            .unwrap_err()
            .to_string()
    };
    let says = error(vec![Counter::boxed(0), Spoilt::boxed(Bad::Nothing, 1.0)]);
    assert!(
        says.starts_with("environment 4 (custom): its observation space is Dict("),
        "{says}"
    );
    assert!(
        says.contains("but that of the other environments is Box"),
        "{says}"
    );
    assert!(error(vec![]).contains("at least one environment"));

    // Also one that replaces another.
    let (mut vector, mut rollout) = spoilt(Bad::Reward(NAN));
    let remake = Box::new(|_: usize| Ok(Counter::boxed(0)));
    let restarts = vector.restart_failed(remake, Arc::new(RestartBudget::new(1)));
    restarts.unwrap();
    vector.reset(&mut rollout).unwrap();
    let mut steps = (0..8).map(|t| vector.step(t, &mut rollout));
    let says = steps.find_map(Result::err).unwrap().to_string();
    assert!(
        says.starts_with("environment 7 (Spoilt-v0): its observation space"),
        "{says}"
    );
}

/// Asks to stop with the third step that is taken.
struct Stopping {
    steps: u32,
    stop: Arc<AtomicBool>,
}

impl Env for Stopping {
    fn observation_space(&self) -> Space {
        Space::unbounded(&[1])
    }

    fn action_space(&self) -> Space {
        Space::Discrete { n: 2 }
    }

    fn reset(&mut self, _: &mut Rng, mut obs: ObsMut<'_>) -> Result<(), EnvError> {
        obs.write(&[0f32]);
        Ok(())
    }

    fn step(&mut self, _: Action<'_>, _: &mut Rng, mut obs: ObsMut<'_>) -> Result<Step, EnvError> {
        self.steps += 1;
        self.stop.store(self.steps == 3, Ordering::Relaxed);
        obs.write(&[self.steps as f32]);
        Ok(Step::default())
    }
}

#[test]
fn decorrelation_stops_when_it_is_asked_to() {
    let stop = Arc::new(AtomicBool::new(false));
    let env = || -> Box<dyn Env> {
        let (steps, stop) = (0, Arc::clone(&stop));
        Box::new(Stopping { steps, stop })
    };
    let mut vector = SyncVecEnv::from_envs(vec![env(), env()], 1, "env", 0).unwrap();
    let mut rollout = columns(&vector, 1);
    assert!(!vector.decorrelate(u64::MAX, &stop, &mut rollout).unwrap());
    // The first took three steps; the second only started, and can be stepped.
    assert_eq!(
        rollout.obs.leaf().unwrap().at(&[0]).as_slice::<f32>(),
        [3.0, 0.0]
    );
    vector.step(0, &mut rollout).unwrap();
}
