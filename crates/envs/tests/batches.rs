//! A batch of environments behind the same vector interface as single ones.
//!
//! The walk is written twice: as an environment, and as a batch that keeps its state in columns and
//! resets itself when an episode ends, as the vector environments of other libraries do.

#![expect(clippy::unwrap_used, reason = "a test ends where something fails")]

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rand::RngExt as _;
use starling_envs::check::check_batch;
use starling_envs::{
    Action, BatchVecEnv, Env, EnvBatch, EnvError, EnvOptions, EnvSpec, ObsMut, RestartBudget, Rng,
    Rollout, Space, Step, SyncVecEnv, VecEnv, stream,
};
use starling_tree::{Tree, View};

/// A walk on a line: an action of 0 or 1 moves by a random length, and the walk ends beyond 3. Right
/// is illegal to the right of 2.
#[derive(Clone, Copy, Default)]
struct Walk {
    at: f32,
}

impl Walk {
    fn begin(rng: &mut Rng) -> Self {
        Self {
            at: rng.random_range(-1.0..1.0),
        }
    }

    fn walk(&mut self, action: i64, rng: &mut Rng) -> Step {
        let length: f32 = rng.random();
        self.at += if action == 1 { length } else { -length };
        Step {
            reward: length,
            terminated: self.at.abs() > 3.0,
            truncated: false,
        }
    }

    fn legal(&self, mask: &mut [u8]) {
        mask.copy_from_slice(&[1, u8::from(self.at <= 2.0)]);
    }
}

impl Env for Walk {
    fn observation_space(&self) -> Space {
        Space::unbounded(&[1])
    }

    fn action_space(&self) -> Space {
        Space::Discrete { n: 2 }
    }

    fn reset(&mut self, rng: &mut Rng, mut obs: ObsMut<'_>) -> Result<(), EnvError> {
        *self = Self::begin(rng);
        obs.write(&[self.at]);
        Ok(())
    }

    fn step(
        &mut self,
        action: Action<'_>,
        rng: &mut Rng,
        mut obs: ObsMut<'_>,
    ) -> Result<Step, EnvError> {
        let step = self.walk(action.discrete(2)? as i64, rng);
        obs.write(&[self.at]);
        Ok(step)
    }

    fn masks_actions(&self) -> bool {
        true
    }

    fn legal_actions(&self, mask: &mut [u8]) {
        self.legal(mask);
    }
}

/// What a batch may do wrong.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    None,
    /// Draws from the first generator for all.
    OneStream,
    /// Writes all rows whichever is reset.
    AllRows,
    /// Is larger than asked for.
    Size,
    /// Restores the first environment whichever is asked for.
    FirstSnapshot,
    /// A reward of NaN in environment 1.
    Nan,
    /// Environment 1 panics.
    Panic,
}

struct Walks {
    walks: Vec<Walk>,
    /// The new episodes of environments that reset themselves.
    fresh: Vec<Option<Walk>>,
    fault: Fault,
}

impl Walks {
    fn new(count: usize, fault: Fault) -> Self {
        let count = count + usize::from(fault == Fault::Size && count > 1);
        Self {
            walks: vec![Walk::default(); count],
            fresh: vec![None; count],
            fault,
        }
    }

    fn rng<'a>(&self, b: usize, rngs: &'a mut [Rng]) -> &'a mut Rng {
        &mut rngs[if self.fault == Fault::OneStream { 0 } else { b }]
    }
}

impl EnvBatch for Walks {
    fn len(&self) -> usize {
        self.walks.len()
    }

    fn observation_space(&self) -> Space {
        Walk::default().observation_space()
    }

    fn action_space(&self) -> Space {
        Walk::default().action_space()
    }

    fn reset(
        &mut self,
        which: &[bool],
        rngs: &mut [Rng],
        mut obs: ObsMut<'_>,
    ) -> Result<(), EnvError> {
        let rows = obs.as_mut_slice::<f32>();
        for b in 0..self.walks.len() {
            if which[b] {
                let begun = self.fresh[b].take();
                self.walks[b] = begun.unwrap_or_else(|| Walk::begin(self.rng(b, rngs)));
            }
            if which[b] || self.fault == Fault::AllRows {
                rows[b] = self.walks[b].at;
            }
        }
        Ok(())
    }

    fn step(
        &mut self,
        actions: View<'_>,
        rngs: &mut [Rng],
        mut obs: ObsMut<'_>,
        steps: &mut [Step],
    ) -> Result<(), EnvError> {
        let rows = obs.as_mut_slice::<f32>();
        for (b, action) in actions.as_slice::<i64>().iter().enumerate() {
            assert!(b != 1 || self.fault != Fault::Panic, "the wheel came off");
            let rng = &mut rngs[if self.fault == Fault::OneStream { 0 } else { b }];
            steps[b] = self.walks[b].walk(*action, rng);
            rows[b] = self.walks[b].at;
            if steps[b].done() {
                self.fresh[b] = Some(Walk::begin(rng));
            }
            if b == 1 && self.fault == Fault::Nan {
                steps[b].reward = f32::NAN;
            }
        }
        Ok(())
    }

    fn masks_actions(&self) -> bool {
        true
    }

    fn legal_actions(&self, env: usize, mask: &mut [u8]) {
        self.walks[env].legal(mask);
    }

    fn snapshot(&self, env: usize) -> Option<Vec<u8>> {
        Some(self.walks[env].at.to_le_bytes().to_vec())
    }

    fn restore(&mut self, env: usize, snapshot: &[u8]) -> Result<(), EnvError> {
        let env = if self.fault == Fault::FirstSnapshot {
            0
        } else {
            env
        };
        let bytes = snapshot
            .try_into()
            .map_err(|_| EnvError::Snapshot("it has four bytes".into()))?;
        self.walks[env].at = f32::from_le_bytes(bytes);
        self.fresh[env] = None;
        Ok(())
    }
}

fn single() -> EnvSpec {
    EnvSpec {
        max_episode_steps: Some(40),
        ..EnvSpec::new("Walk-v0", "test", "walk", |_, _| {
            Ok(Box::new(Walk::default()))
        })
    }
}

fn batched() -> EnvSpec {
    EnvSpec {
        max_episode_steps: Some(40),
        ..EnvSpec::batched("Walks-v0", "test", "walk", |_, _, count| {
            Ok(Box::new(Walks::new(count, Fault::None)))
        })
    }
}

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

/// Fills the rollout with random legal actions of generators that belong to the environments.
fn play(vector: &mut dyn VecEnv, first: u64, rollout: &mut Rollout) -> Result<(), EnvError> {
    let indices = first..first + vector.len() as u64;
    let mut rngs: Vec<Rng> = indices.map(|i| stream(3, "actions", i)).collect();
    for t in 0..rollout.steps() {
        for (b, rng) in rngs.iter_mut().enumerate() {
            let legal = rollout.legal.as_ref().unwrap().at(&[t, b]);
            let legal = Some(legal.as_slice::<u8>());
            let action = rollout.actions.at_mut(&[t, b]);
            vector.action_space().sample(rng, legal, action);
        }
        vector.step(t, rollout)?;
    }
    Ok(())
}

/// The column of one environment: observations, legal actions, rewards and flags.
fn column(rollout: &Rollout, b: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for t in 0..=rollout.steps() {
        bytes.extend(rollout.obs.leaf().unwrap().at(&[t, b]).bytes);
        bytes.extend(rollout.legal.as_ref().unwrap().at(&[t, b]).bytes);
    }
    for t in 0..rollout.steps() {
        for array in [&rollout.rewards, &rollout.terminated, &rollout.truncated] {
            bytes.extend(array.at(&[t, b]).bytes);
        }
    }
    bytes
}

/// Resets, last observations, limits, legal actions and finished episodes of a batch are those of
/// the same environments one by one.
#[test]
fn a_batch_fills_a_rollout_as_single_environments_do() {
    let rollouts = [single(), batched()].map(|spec| {
        let options = EnvOptions::default();
        let mut vector = spec.make_vec(&options, 5, 1, "env", 0).unwrap();
        vector.set_discount(0.9);
        let mut rollout = columns(&*vector, 300);
        vector.reset(&mut rollout).unwrap();
        play(&mut *vector, 0, &mut rollout).unwrap();
        let episodes: Vec<_> = vector.finished().collect();
        (rollout, episodes)
    });
    let [(one_by_one, episodes), (together, same_episodes)] = &rollouts;
    assert!(episodes.len() > 30, "{}", episodes.len());
    assert_eq!(episodes, same_episodes);
    let truncated = one_by_one.truncated.as_slice::<u8>().iter();
    assert!(truncated.filter(|flag| **flag == 1).count() > 3);
    for b in 0..5 {
        assert_eq!(column(one_by_one, b), column(together, b), "{b}");
    }
    assert_eq!(one_by_one.final_at, together.final_at);
    assert_eq!(one_by_one.final_legal, together.final_legal);
    for i in 0..one_by_one.final_at.len() {
        let row = |rollout: &Rollout| rollout.final_obs.leaf().unwrap().at(&[i]).bytes.to_vec();
        assert_eq!(row(one_by_one), row(together), "{i}");
    }
}

#[test]
fn what_a_batch_does_before_a_run_does_not_depend_on_its_size() {
    static NEVER: AtomicBool = AtomicBool::new(false);
    let decorrelated = |count, first| {
        let options = EnvOptions::default();
        let mut vector = batched()
            .make_vec(&options, count, 1, "env", first)
            .unwrap();
        let mut rollout = columns(&*vector, 20);
        assert!(vector.decorrelate(30, &NEVER, &mut rollout).unwrap());
        assert_eq!(vector.finished().count(), 0);
        play(&mut *vector, first, &mut rollout).unwrap();
        rollout
    };
    let all = decorrelated(4, 0);
    let first: Vec<Vec<u8>> = (0..4).map(|b| column(&all, b)).collect();
    assert!(first.windows(2).all(|pair| pair[0] != pair[1]));
    for (b, expected) in first.iter().enumerate() {
        assert_eq!(column(&decorrelated(1, b as u64), 0), *expected, "{b}");
    }
    static NOW: AtomicBool = AtomicBool::new(true);
    let mut vector = batched()
        .make_vec(&EnvOptions::default(), 2, 1, "env", 0)
        .unwrap();
    let mut rollout = columns(&*vector, 1);
    assert!(!vector.decorrelate(30, &NOW, &mut rollout).unwrap());
}

#[test]
fn failures_name_the_environment_or_the_batch() {
    for (fault, words) in [
        (
            Fault::Nan,
            "environment 8 (Walks-v0): it gave the reward NaN",
        ),
        (
            Fault::Panic,
            "environments 7 to 9 (Walks-v0): it panicked: the wheel came off",
        ),
    ] {
        let batch = Box::new(Walks::new(3, fault));
        let mut vector = BatchVecEnv::new("Walks-v0", batch, None, 1, "env", 7).unwrap();
        let mut rollout = columns(&vector, 1);
        vector.reset(&mut rollout).unwrap();
        let error = vector.step(0, &mut rollout).unwrap_err();
        assert_eq!(error.to_string(), words);
        assert_eq!(vector.pulse().at_work(), None);
    }
    let batch = Box::new(Walks::new(2, Fault::None));
    let mut vector = BatchVecEnv::new("Walks-v0", batch, None, 1, "env", 7).unwrap();
    let mut rollout = columns(&vector, 1);
    vector.reset(&mut rollout).unwrap();
    rollout.actions.as_mut_slice::<i64>()[1] = -1;
    let error = vector.step(0, &mut rollout).unwrap_err().to_string();
    assert!(error.starts_with("environment 8 (Walks-v0): "), "{error}");
    let remake = Box::new(|_: usize| Ok(Box::new(Walk::default()) as Box<dyn Env>));
    let refused = vector.restart_failed(remake, Arc::new(RestartBudget::new(1)));
    assert!(
        refused
            .unwrap_err()
            .to_string()
            .contains("on_env_error=stop")
    );
    assert!(SyncVecEnv::from_envs(Vec::new(), 1, "env", 0).is_err());
}

#[test]
fn the_checker_accepts_a_good_batch_and_finds_each_fault() {
    let found = |fault| {
        let report = check_batch(&mut |count| Ok(Box::new(Walks::new(count, fault))), 1, 500);
        let findings = report.findings.into_iter();
        findings.map(|finding| finding.problem).collect::<String>()
    };
    assert_eq!(found(Fault::None), "");
    for (fault, words) in [
        (
            Fault::OneStream,
            "behaves differently in a batch than alone",
        ),
        (Fault::AllRows, "writes the rows of others"),
        (Fault::Size, "a batch of 3 environments has 4"),
        (Fault::FirstSnapshot, "restored into a new batch"),
        (Fault::Nan, "it gave the reward NaN"),
        (Fault::Panic, "the wheel came off"),
    ] {
        assert!(found(fault).contains(words), "{words}: {}", found(fault));
    }
}
