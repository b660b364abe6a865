//! The replay against a model of it: a plain list of episodes per stream, searched anew for
//! every question.
//!
//! Environments, writers, learners and snapshots act in random order. After each insert, what can
//! be drawn has to be exactly what the model says, with the same contents and weights: a step
//! without its successors, a boundary row or an overwritten row must not be among it.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::HashMap;

use proptest::prelude::*;
use rand::RngExt;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng;
use starling_envs::{Rollout, Space};
use starling_replay::{
    Draws, Layout, PriorityConfig, ReplayConfig, SampleId, TransitionBatch, TransitionReplay,
};
use starling_tree::{Array, Tree};

const GAMMA: f64 = 0.75;
const ALPHA: f64 = 0.6;

/// A number that stands for an observation; its parts and its legal actions follow from it.
type Obs = u32;

#[derive(Clone, Copy, PartialEq)]
enum End {
    Terminated,
    /// With the last observation.
    Truncated(Obs),
}

struct Step {
    obs: Obs,
    action: i64,
    reward: f32,
    version: u64,
    given: Option<f32>,
}

#[derive(Default)]
struct Episode {
    steps: Vec<Step>,
    end: Option<End>,
}

#[derive(Default)]
struct Stream {
    episodes: Vec<Episode>,
    /// The newest observation, without an action yet.
    newest: Option<Obs>,
    /// Raw priorities of entries by row.
    priorities: HashMap<u64, f64>,
}

struct Model {
    streams: Vec<Stream>,
    rows: u64,
    n: usize,
    max_priority: f64,
}

/// A transition as the model works it out.
#[derive(Debug)]
struct Entry {
    stream: usize,
    row: u64,
    obs: Obs,
    action: i64,
    version: u64,
    sum: f64,
    discount: f64,
    /// None where the task ended.
    next: Option<Obs>,
}

impl Stream {
    /// All transitions that are complete, whether still held or not.
    fn complete(&self, stream: usize, n: usize) -> Vec<Entry> {
        let mut entries = Vec::new();
        let mut row = 0;
        for episode in &self.episodes {
            let length = episode.steps.len();
            for (i, step) in episode.steps.iter().enumerate() {
                let m = n.min(length - i);
                let at_end = i + m == length;
                let (discount, next) = match episode.end {
                    Some(End::Terminated) if at_end => (0.0, None),
                    Some(End::Truncated(last)) if at_end => (GAMMA.powi(m as i32), Some(last)),
                    _ if i + n > length => continue,
                    _ => {
                        let next = episode.steps.get(i + n).map(|s| s.obs).or(self.newest);
                        (GAMMA.powi(m as i32), next)
                    }
                };
                let rewards = episode.steps[i..i + m].iter().enumerate();
                let sum = rewards
                    .map(|(k, s)| GAMMA.powi(k as i32) * f64::from(s.reward))
                    .sum();
                entries.push(Entry {
                    stream,
                    row: row + i as u64,
                    obs: step.obs,
                    action: step.action,
                    version: step.version,
                    sum,
                    discount,
                    next,
                });
            }
            row += length as u64 + u64::from(matches!(episode.end, Some(End::Truncated(_))));
        }
        entries
    }

    fn row_count(&self) -> u64 {
        let rows = self.episodes.iter().map(|episode| {
            let boundary = matches!(episode.end, Some(End::Truncated(_)));
            episode.steps.len() as u64 + u64::from(boundary)
        });
        rows.sum()
    }

    fn given(&self, obs: Obs) -> Option<f32> {
        let mut steps = self.episodes.iter().flat_map(|e| &e.steps);
        steps.find(|step| step.obs == obs)?.given
    }
}

impl Model {
    /// Gives entries that have just become complete their first priority.
    fn settle(&mut self, stream: usize) {
        let entries = self.streams[stream].complete(stream, self.n);
        for entry in entries {
            let stream = &mut self.streams[stream];
            if !stream.priorities.contains_key(&entry.row) {
                let given = stream.given(entry.obs).map(f64::from);
                let first = given.unwrap_or(self.max_priority);
                stream.priorities.insert(entry.row, first);
            }
        }
    }

    fn start_rollout(&mut self, stream: usize, first: Obs) {
        let newest = self.streams[stream].newest;
        if let (Some(newest), Some(open)) = (newest, self.streams[stream].episodes.last_mut())
            && newest != first
            && open.end.is_none()
        {
            open.end = Some(End::Truncated(newest));
            self.settle(stream);
        }
    }

    fn step(&mut self, stream: usize, step: Step, end: Option<End>) {
        self.max_priority = step.given.map_or(self.max_priority, |given| {
            self.max_priority.max(f64::from(given))
        });
        let episodes = &mut self.streams[stream].episodes;
        if episodes.last().is_none_or(|open| open.end.is_some()) {
            episodes.push(Episode::default());
        }
        let open = episodes.last_mut().unwrap();
        open.steps.push(step);
        open.end = end;
        self.settle(stream);
    }

    /// What can be drawn: complete, and not overwritten by the newest rows.
    fn entries(&self) -> Vec<Entry> {
        let mut held = Vec::new();
        for (index, stream) in self.streams.iter().enumerate() {
            let rows = stream.row_count() + u64::from(stream.newest.is_some());
            let oldest = rows.saturating_sub(self.rows);
            let complete = stream.complete(index, self.n).into_iter();
            held.extend(complete.filter(|entry| entry.row >= oldest));
        }
        held
    }

    fn id(&self, entry: &Entry) -> SampleId {
        SampleId {
            slot: entry.stream * self.rows as usize + (entry.row % self.rows) as usize,
            generation: entry.row / self.rows,
        }
    }
}

fn observation() -> Space {
    let parts = [
        ("number", Space::unbounded(&[1])),
        ("bytes", Space::bytes(&[3], 255)),
    ];
    Space::Dict(parts.map(|(name, space)| (name.to_owned(), space)).to_vec())
}

fn mask(obs: Obs) -> [u8; 2] {
    [1, u8::from(obs.is_multiple_of(3))]
}

fn write_obs(obs: Obs, to: &mut Tree<Array>, at: &[usize]) {
    for (path, array) in to.leaves_mut() {
        match path.as_str() {
            "number" => array.at_mut(at).write(&[obs as f32]),
            _ => array.at_mut(at).write(&[obs as u8, (obs >> 8) as u8, 7]),
        }
    }
}

fn check_obs(obs: Obs, columns: &Tree<Array>, i: usize) {
    let number = columns.get("number").unwrap().leaf().unwrap();
    assert_eq!(number.at(&[i]).as_slice::<f32>(), [obs as f32]);
    let bytes = columns.get("bytes").unwrap().leaf().unwrap();
    assert_eq!(
        bytes.at(&[i]).as_slice::<u8>(),
        [obs as u8, (obs >> 8) as u8, 7]
    );
}

/// Compares one row of a batch with the model.
fn check_entry(batch: &TransitionBatch, i: usize, entry: &Entry) {
    check_obs(entry.obs, &batch.obs, i);
    assert_eq!(
        batch.legal.as_ref().unwrap().at(&[i]).as_slice::<u8>(),
        mask(entry.obs)
    );
    assert_eq!(batch.actions.as_slice::<i64>()[i], entry.action);
    assert_eq!(batch.versions[i], entry.version);
    let sum = f64::from(batch.returns.as_slice::<f32>()[i]);
    assert!((sum - entry.sum).abs() < 1e-5, "{sum} for {entry:?}");
    let discount = batch.discounts.as_slice::<f32>()[i];
    assert_eq!(discount, entry.discount as f32, "{entry:?}");
    if let Some(next) = entry.next {
        check_obs(next, &batch.next_obs, i);
        let next_legal = batch.next_legal.as_ref().unwrap();
        assert_eq!(next_legal.at(&[i]).as_slice::<u8>(), mask(next));
    }
}

struct World {
    rng: Xoshiro256PlusPlus,
    next_obs: Obs,
    inserts: u64,
}

impl World {
    fn chance(&mut self, p: f64) -> bool {
        self.rng.random::<f64>() < p
    }

    fn fresh(&mut self) -> Obs {
        self.next_obs += 1;
        self.next_obs
    }

    /// Some steps of some environments, for the replay and the model at once.
    fn insert(&mut self, replay: &mut TransitionReplay, model: &mut Model) {
        let streams = model.streams.len();
        let base = self.rng.random_range(0..streams);
        let envs = self.rng.random_range(1..=streams - base);
        let steps = self.rng.random_range(1..14);
        let (none, actions) = (Tree::empty(), Space::Discrete { n: 2 });
        let space = observation();
        let mut rollout = Rollout::new(steps, envs, &space, &actions, Some(2), &none, &none);
        self.inserts += 1;
        rollout.version = self.inserts;
        let given: Option<Vec<f32>> = self.chance(0.5).then(|| {
            (0..steps * envs)
                .map(|_| self.rng.random::<f32>() * 3.0)
                .collect()
        });
        for b in 0..envs {
            let stream = base + b;
            let newest = model.streams[stream].newest;
            let mut obs = match newest {
                Some(newest) if !self.chance(0.15) => newest,
                _ => self.fresh(),
            };
            model.start_rollout(stream, obs);
            for t in 0..steps {
                write_obs(obs, &mut rollout.obs, &[t, b]);
                rollout
                    .legal
                    .as_mut()
                    .unwrap()
                    .at_mut(&[t, b])
                    .write(&mask(obs));
                let action = self.rng.random_range(0..2i64);
                let reward = self.rng.random::<f32>() - 0.5;
                rollout.actions.at_mut(&[t, b]).write(&[action]);
                rollout.rewards.at_mut(&[t, b]).write(&[reward]);
                let (terminated, truncated) = (self.chance(0.1), self.chance(0.1));
                rollout
                    .terminated
                    .at_mut(&[t, b])
                    .write(&[u8::from(terminated)]);
                rollout
                    .truncated
                    .at_mut(&[t, b])
                    .write(&[u8::from(truncated)]);
                let mut next = self.fresh();
                let mut end = None;
                if terminated || truncated {
                    write_obs(next, &mut rollout.obs, &[t + 1, b]);
                    let legal = rollout.legal.as_mut().unwrap();
                    legal.at_mut(&[t + 1, b]).write(&mask(next));
                    rollout.keep_final(t, b);
                    end = Some(match terminated {
                        true => End::Terminated,
                        false => End::Truncated(next),
                    });
                    next = self.fresh();
                }
                let step = Step {
                    obs,
                    action,
                    reward,
                    version: rollout.version,
                    given: given.as_ref().map(|given| given[t * envs + b]),
                };
                model.step(stream, step, end);
                obs = next;
            }
            write_obs(obs, &mut rollout.obs, &[steps, b]);
            rollout
                .legal
                .as_mut()
                .unwrap()
                .at_mut(&[steps, b])
                .write(&mask(obs));
            model.streams[stream].newest = Some(obs);
        }
        let inserted = replay.insert(&rollout, base, given.as_deref());
        assert_eq!(inserted, Ok(steps * envs));
    }

    /// Draws, checks what was drawn and gives priorities back, some of them far too late.
    fn learn(&mut self, replay: &mut TransitionReplay, model: &mut Model, old: &mut Vec<SampleId>) {
        let entries = model.entries();
        let held: HashMap<SampleId, &Entry> = entries.iter().map(|e| (model.id(e), e)).collect();
        let batch = match replay.sample(8, 0.5, &mut self.rng) {
            Ok(batch) => batch,
            Err(error) => {
                assert!(entries.is_empty(), "{error}");
                return;
            }
        };
        for (i, id) in batch.ids.iter().enumerate() {
            check_entry(&batch, i, held[id]);
        }
        let mut ids = batch.ids.clone();
        ids.extend(old.iter().rev().take(4));
        let new: Vec<f32> = ids.iter().map(|_| self.rng.random::<f32>() * 5.0).collect();
        let late = replay.update_priorities(&ids, &new).unwrap();
        if replay.config().priority.is_some() {
            let gone = ids.iter().filter(|id| !held.contains_key(id)).count();
            assert_eq!(late, gone);
            for (id, &new) in ids.iter().zip(&new) {
                if let Some(entry) = held.get(id) {
                    let priorities = &mut model.streams[entry.stream].priorities;
                    priorities.insert(entry.row, f64::from(new));
                    model.max_priority = model.max_priority.max(f64::from(new));
                }
            }
        }
        old.extend(batch.ids);
    }
}

fn check_all(replay: &TransitionReplay, model: &Model) {
    let mut expected = model.entries();
    expected.sort_by_key(|entry| model.id(entry).slot);
    let ids: Vec<SampleId> = replay.entries().collect();
    let expected_ids: Vec<SampleId> = expected.iter().map(|e| model.id(e)).collect();
    assert_eq!(ids, expected_ids);
    assert_eq!(replay.len(), ids.len());
    let mut batch = TransitionBatch::new(replay.layout(), ids.len());
    assert_eq!(replay.read_into(&ids, &mut batch), Ok(0));
    for (i, entry) in expected.iter().enumerate() {
        check_entry(&batch, i, entry);
        if let Some(weight) = replay.weight(ids[i]) {
            let priority = model.streams[entry.stream].priorities[&entry.row];
            assert_eq!(weight, priority.max(1e-6).powf(ALPHA), "{entry:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn the_replay_is_a_list_of_episodes(
        seed in any::<u64>(),
        n in 1usize..5,
        spare_rows in 0usize..30,
        streams in 1usize..4,
        draws in prop::option::of(prop::bool::ANY),
    ) {
        let rows = n + 3 + spare_rows;
        let config = ReplayConfig {
            capacity_steps: rows * streams,
            n_steps: n,
            gamma: GAMMA,
            priority: draws.map(|stratified| PriorityConfig {
                alpha: ALPHA,
                draws: if stratified { Draws::Stratified } else { Draws::Independent },
                ..PriorityConfig::default()
            }),
        };
        let (none, actions) = (Tree::empty(), Space::Discrete { n: 2 });
        let like = Rollout::new(1, 1, &observation(), &actions, Some(2), &none, &none);
        let layout = Layout::of_rollout(&like, streams);
        let mut replay = TransitionReplay::new(config.clone(), layout.clone()).unwrap();
        let mut model = Model {
            streams: (0..streams).map(|_| Stream::default()).collect(),
            rows: rows as u64,
            n,
            max_priority: 1.0,
        };
        let rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let mut world = World { rng, next_obs: 0, inserts: 0 };
        let mut old = Vec::new();
        for _ in 0..25 {
            world.insert(&mut replay, &mut model);
            check_all(&replay, &model);
            if world.chance(0.2) {
                // Go on from a snapshot, which has to be all there is.
                let mut saved = Vec::new();
                replay.save(&mut saved).unwrap();
                replay = TransitionReplay::load(&saved[..], &config, &layout).unwrap();
                let mut again = Vec::new();
                replay.save(&mut again).unwrap();
                prop_assert!(saved == again);
            }
            if world.chance(0.7) {
                world.learn(&mut replay, &mut model, &mut old);
                check_all(&replay, &model);
            }
        }
    }
}
