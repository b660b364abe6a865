//! The replay against a model of it: a plain list of rows per stream, searched again for every
//! question.
//!
//! Environments, writers, learners and snapshots act in random order, with every combination of
//! settings. After each insert, what can be drawn has to be exactly what the model says, with
//! the same contents and weights: a step without its successors, a boundary row or an
//! overwritten row must not be among it.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::HashMap;

use proptest::prelude::*;
use rand::RngExt;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng;
use starling_envs::{Rollout, Space};
use starling_replay::{
    Draws, Layout, PriorityConfig, Replay, ReplayConfig, SampleId, Saved, SequenceBatch,
    SequenceConfig, Snapshot, TransitionBatch, mixed_priority,
};
use starling_tree::{Array, DType, Spec, Tree};

const GAMMA: f64 = 0.75;
const ALPHA: f64 = 0.6;

/// The numbers of the frames that an observation shows, the newest last.
type Obs = Vec<u32>;

#[derive(Clone, Debug)]
struct Step {
    action: i64,
    reward: f32,
    record: f32,
    state: [f32; 2],
    version: u64,
    given: Option<f32>,
    terminated: bool,
    truncated: bool,
}

#[derive(Clone, Debug)]
enum Row {
    Step(Obs, Step),
    /// The last observation of a cut-off episode, or one that nothing followed.
    Boundary(Obs),
    /// An older frame of an episode's first observation.
    History(u32),
}

#[derive(Default)]
struct Stream {
    rows: Vec<Row>,
    /// The newest observation, without an action yet.
    newest: Option<Obs>,
    /// The first step of the open episode.
    episode: usize,
    /// Raw priorities of entries by row.
    priorities: HashMap<usize, f64>,
}

struct Model {
    streams: Vec<Stream>,
    config: ReplayConfig,
    rows: usize,
    max_priority: f64,
}

impl Stream {
    fn obs(&self, row: usize) -> Option<&Obs> {
        match self.rows.get(row) {
            Some(Row::Step(obs, _) | Row::Boundary(obs)) => Some(obs),
            Some(Row::History(_)) => None,
            None if row == self.rows.len() => self.newest.as_ref(),
            None => None,
        }
    }

    fn step(&self, row: usize) -> Option<&Step> {
        match self.rows.get(row) {
            Some(Row::Step(_, step)) => Some(step),
            _ => None,
        }
    }

    /// The first and the last step of the episode that a step belongs to, and whether it ended.
    fn episode_of(&self, row: usize) -> (usize, usize, bool) {
        let ends = |row: usize| {
            let step = self.step(row);
            step.is_none_or(|step| step.terminated || step.truncated)
        };
        let mut first = row;
        while first > 0 && !ends(first - 1) {
            first -= 1;
        }
        let mut last = row;
        while !ends(last) && self.step(last + 1).is_some() {
            last += 1;
        }
        (first, last, ends(last))
    }

    /// n-step return, discount and the row that it bootstraps from; none if not complete yet.
    fn target(&self, row: usize, n: usize) -> Option<(f64, f64, usize)> {
        let mut sum = 0.0;
        for m in 0..n {
            let step = self.step(row + m)?;
            sum += GAMMA.powi(m as i32) * f64::from(step.reward);
            if step.terminated {
                return Some((sum, 0.0, row + m + 1));
            }
            if step.truncated {
                return Some((sum, GAMMA.powi(m as i32 + 1), row + m + 1));
            }
        }
        self.obs(row + n)?;
        Some((sum, GAMMA.powi(n as i32), row + n))
    }

    /// All entries, whether still held or not.
    fn complete(&self, config: &ReplayConfig) -> Vec<usize> {
        let n = config.n_steps;
        let steps = (0..self.rows.len()).filter(|&row| self.step(row).is_some());
        let Some(sequence) = &config.sequence else {
            return steps.filter(|&row| self.target(row, n).is_some()).collect();
        };
        let (length, overlap) = (sequence.length_steps, sequence.overlap_steps);
        let is_start = |&row: &usize| {
            let (first, last, ended) = self.episode_of(row);
            let left = last + 1 - row;
            let whole = left >= length && self.target(row + length - 1, n).is_some();
            let rest = ended && (row == first || left > overlap);
            (row - first).is_multiple_of(length - overlap) && (whole || rest)
        };
        steps.filter(is_start).collect()
    }
}

impl Model {
    fn new(config: &ReplayConfig, streams: usize) -> Self {
        Self {
            streams: (0..streams).map(|_| Stream::default()).collect(),
            config: config.clone(),
            rows: config.rows_per_stream(streams),
            max_priority: 1.0,
        }
    }

    fn stack(&self) -> usize {
        self.config.frame_stack.unwrap_or(1)
    }

    /// Gives entries that have just become complete their first priority.
    fn settle(&mut self, index: usize) {
        let stream = &mut self.streams[index];
        for row in stream.complete(&self.config) {
            if stream.priorities.contains_key(&row) {
                continue;
            }
            let first = match &self.config.sequence {
                None => stream.step(row).unwrap().given.map(f64::from),
                Some(sequence) => {
                    let (_, last, _) = stream.episode_of(row);
                    let end = (row + sequence.length_steps).min(last + 1);
                    let given = (row..end).map(|row| stream.step(row).unwrap().given);
                    let given: Option<Vec<f32>> = given.collect();
                    given.map(|given| mixed_priority(given, sequence.priority_eta))
                }
            };
            let first = first.unwrap_or(self.max_priority);
            stream.priorities.insert(row, first);
        }
    }

    fn start_rollout(&mut self, index: usize, first: &Obs) {
        let stream = &mut self.streams[index];
        match stream.newest.take() {
            None => self.begin(index, first.clone()),
            Some(newest) if newest == *first => stream.newest = Some(newest),
            Some(newest) => {
                if stream.rows.len() > stream.episode
                    && let Some(Row::Step(_, last)) = stream.rows.last_mut()
                {
                    last.truncated = true;
                }
                stream.rows.push(Row::Boundary(newest));
                self.settle(index);
                self.begin(index, first.clone());
            }
        }
    }

    /// An episode begins: the frames that the ring does not end with come first.
    fn begin(&mut self, index: usize, obs: Obs) {
        let stack = self.stack();
        let stream = &mut self.streams[index];
        let (older, _) = obs.split_at(stack - 1);
        let newest = stream
            .rows
            .iter()
            .rev()
            .take(stack - 1)
            .map(|row| match row {
                Row::Step(obs, _) | Row::Boundary(obs) => *obs.last().unwrap(),
                Row::History(frame) => *frame,
            });
        let mut newest: Vec<u32> = newest.collect();
        newest.reverse();
        if newest != older {
            let older = older.iter().map(|&frame| Row::History(frame));
            stream.rows.extend(older);
        }
        stream.episode = stream.rows.len();
        stream.newest = Some(obs);
    }

    fn step(&mut self, index: usize, step: Step, last: Option<Obs>, next: Obs) {
        if let Some(given) = step.given {
            self.max_priority = self.max_priority.max(f64::from(given));
        }
        let stream = &mut self.streams[index];
        let obs = stream.newest.take().unwrap();
        let (terminated, truncated) = (step.terminated, step.truncated);
        stream.rows.push(Row::Step(obs, step));
        if !terminated && !truncated {
            stream.newest = Some(next);
            self.settle(index);
            return;
        }
        if !terminated {
            stream.rows.push(Row::Boundary(last.unwrap()));
        }
        self.settle(index);
        self.begin(index, next);
    }

    /// What can be drawn: complete, and nothing that it needs is overwritten.
    fn entries(&self) -> Vec<(usize, usize)> {
        let burn_in = self.config.sequence.as_ref().map(|s| s.burn_in_steps + 1);
        let lookback = burn_in.unwrap_or(0) + self.stack() - 1;
        let mut held = Vec::new();
        for (index, stream) in self.streams.iter().enumerate() {
            let claimed = stream.rows.len() + usize::from(stream.newest.is_some());
            let oldest = claimed.saturating_sub(self.rows);
            let rows = stream.complete(&self.config).into_iter();
            let rows = rows.filter(|row| oldest == 0 || *row >= oldest + lookback);
            held.extend(rows.map(|row| (index, row)));
        }
        held.sort_by_key(|&entry| self.id(entry).slot);
        held
    }

    fn id(&self, (stream, row): (usize, usize)) -> SampleId {
        SampleId {
            slot: stream * self.rows + row % self.rows,
            generation: (row / self.rows) as u64,
        }
    }
}

fn observation(stack: usize) -> Space {
    let parts = [
        ("number", Space::unbounded(&[1])),
        ("frames", Space::bytes(&[stack, 2, 2], 255)),
    ];
    Space::Dict(parts.map(|(name, space)| (name.to_owned(), space)).to_vec())
}

fn records() -> Tree<Spec> {
    Tree::node([
        ("novelty", Tree::Leaf(Spec::scalar(DType::F32))),
        ("state", Tree::Leaf(Spec::new(DType::F32, &[2]))),
    ])
}

fn mask(obs: &Obs) -> [u8; 2] {
    [1, u8::from(obs.last().unwrap().is_multiple_of(3))]
}

fn frame_bytes(obs: &Obs) -> Vec<u8> {
    let bytes = |&f: &u32| [f as u8, (f >> 8) as u8, 7, 7];
    obs.iter().flat_map(bytes).collect()
}

fn write_obs(obs: &Obs, rollout: &mut Rollout, at: &[usize]) {
    for (path, array) in rollout.obs.leaves_mut() {
        match path.as_str() {
            "number" => array.at_mut(at).write(&[*obs.last().unwrap() as f32]),
            _ => array.at_mut(at).write(&frame_bytes(obs)),
        }
    }
    let legal = rollout.legal.as_mut().unwrap();
    legal.at_mut(at).write(&mask(obs));
}

fn check_obs(obs: &Obs, columns: &Tree<Array>, legal: &Option<Array>, at: &[usize]) {
    let column = |path: &str| columns.get(path).unwrap().leaf().unwrap().at(at);
    let newest = *obs.last().unwrap() as f32;
    assert_eq!(column("number").as_slice::<f32>(), [newest]);
    assert_eq!(column("frames").as_slice::<u8>(), frame_bytes(obs));
    let legal = legal.as_ref().unwrap().at(at);
    assert_eq!(legal.as_slice::<u8>(), mask(obs));
}

fn number(array: &Array, at: &[usize]) -> f32 {
    array.at(at).as_slice::<f32>()[0]
}

fn close(found: f32, expected: f64) {
    assert!(
        (f64::from(found) - expected).abs() < 1e-5,
        "{found} is not {expected}"
    );
}

fn check_transition(model: &Model, batch: &TransitionBatch, i: usize, (s, row): (usize, usize)) {
    let stream = &model.streams[s];
    let step = stream.step(row).unwrap();
    check_obs(stream.obs(row).unwrap(), &batch.obs, &batch.legal, &[i]);
    assert_eq!(batch.actions.as_slice::<i64>()[i], step.action);
    let record = batch.records.get("novelty").unwrap().leaf().unwrap();
    assert_eq!(number(record, &[i]), step.record);
    assert_eq!(batch.versions[i], step.version);
    let (sum, discount, next) = stream.target(row, model.config.n_steps).unwrap();
    close(number(&batch.returns, &[i]), sum);
    assert_eq!(number(&batch.discounts, &[i]), discount as f32);
    if discount > 0.0 {
        let next = stream.obs(next).unwrap();
        check_obs(next, &batch.next_obs, &batch.next_legal, &[i]);
    }
}

fn check_sequence(model: &Model, batch: &SequenceBatch, b: usize, (s, start): (usize, usize)) {
    let (stream, n) = (&model.streams[s], model.config.n_steps);
    let config = model.config.sequence.as_ref().unwrap();
    let (burn_in, length) = (config.burn_in_steps, config.length_steps);
    let (first, last, _) = stream.episode_of(start);
    let terminated = stream.step(last).unwrap().terminated;
    let last_seen = if terminated { last } else { last + 1 };
    let total = burn_in + length + n;
    let flag = |array: &Array, position: usize| array.at(&[position, b]).bytes[0] == 1;
    let mut last_position = 0;
    for position in 0..total {
        let at = [position, b];
        let row = (start + position).checked_sub(burn_in);
        let row = row.filter(|row| (first..=last_seen).contains(row));
        assert_eq!(flag(&batch.valid, position), row.is_some());
        assert_eq!(flag(&batch.resets, position), row == Some(first));
        let obs = row.map(|row| stream.obs(row).unwrap());
        match obs {
            Some(obs) => check_obs(obs, &batch.obs, &batch.legal, &at),
            None => {
                let frames = batch.obs.get("frames").unwrap().leaf().unwrap();
                assert!(frames.at(&at).bytes.iter().all(|&byte| byte == 0));
                assert_eq!(batch.legal.as_ref().unwrap().at(&at).bytes, [1, 1]);
            }
        }
        last_position = if row.is_some() {
            position
        } else {
            last_position
        };
        let step = row.filter(|&row| row <= last && position + 1 < total);
        let step = step.map(|row| stream.step(row).unwrap());
        let before = row.filter(|&row| row > first);
        let before = before.map(|row| stream.step(row - 1).unwrap());
        let action = |array: &Array| array.at(&at).as_slice::<i64>()[0];
        assert_eq!(action(&batch.actions), step.map_or(0, |s| s.action));
        assert_eq!(action(&batch.prev_actions), before.map_or(0, |s| s.action));
        assert_eq!(number(&batch.rewards, &at), step.map_or(0.0, |s| s.reward));
        assert_eq!(
            number(&batch.prev_rewards, &at),
            before.map_or(0.0, |s| s.reward)
        );
        let record = batch.records.get("novelty").unwrap().leaf().unwrap();
        assert_eq!(number(record, &at), step.map_or(0.0, |s| s.record));
    }
    for t in 0..length {
        let at = [t, b];
        let trained = start + t <= last;
        assert_eq!(number(&batch.mask, &at), f32::from(u8::from(trained)));
        let (sum, discount, next) = match trained {
            true => stream.target(start + t, n).unwrap(),
            false => (0.0, 0.0, usize::MAX),
        };
        close(number(&batch.returns, &at), sum);
        assert_eq!(number(&batch.discounts, &at), discount as f32);
        let bootstrap = batch.bootstrap.at(&at).as_slice::<i64>()[0];
        if discount > 0.0 {
            assert_eq!(bootstrap as usize, burn_in + next - start);
        } else {
            assert_eq!(bootstrap as usize, last_position);
        }
    }
    // A sequence that begins with its episode begins with zeros.
    let stored = start.checked_sub(burn_in).filter(|&row| row > first);
    let stored = stored.filter(|_| config.state_interval_steps > 0);
    let state = stored.map_or([0.0; 2], |row| stream.step(row).unwrap().state);
    assert_eq!(
        batch.state.leaf().unwrap().at(&[b]).as_slice::<f32>(),
        state
    );
    assert_eq!(batch.versions[b], stream.step(start).unwrap().version);
}

struct World {
    rng: Xoshiro256PlusPlus,
    frames: u32,
    inserts: u64,
}

impl World {
    fn chance(&mut self, p: f64) -> bool {
        self.rng.random::<f64>() < p
    }

    fn frame(&mut self) -> u32 {
        self.frames += 1;
        self.frames
    }

    /// The first observation of an episode: filled with its first frame, with nothing, with
    /// other frames, or going on with those of the last episode.
    fn first_obs(&mut self, stack: usize, before: Option<&Obs>) -> Obs {
        let newest = self.frame();
        let mut obs = match (self.rng.random_range(0..4), before) {
            (0, _) => vec![newest; stack],
            (1, _) => vec![0; stack],
            (2, Some(before)) => before[1..].iter().copied().chain([newest]).collect(),
            _ => (0..stack).map(|_| self.frame()).collect(),
        };
        obs[stack - 1] = newest;
        obs
    }

    /// Some steps of some environments, for the replay and the model at once.
    fn insert(&mut self, replay: &Replay, model: &mut Model) {
        let (streams, stack) = (model.streams.len(), model.stack());
        let base = self.rng.random_range(0..streams);
        let envs = self.rng.random_range(1..=streams - base);
        let steps = self.rng.random_range(1..14);
        let (none, actions) = (Tree::empty(), Space::Discrete { n: 2 });
        let space = observation(stack);
        let mut rollout = Rollout::new(steps, envs, &space, &actions, Some(2), &records(), &none);
        self.inserts += 1;
        rollout.version = self.inserts;
        let given: Option<Vec<f32>> = self.chance(0.5).then(|| {
            (0..steps * envs)
                .map(|_| self.rng.random::<f32>() * 3.0)
                .collect()
        });
        for b in 0..envs {
            let stream = base + b;
            let newest = model.streams[stream].newest.clone();
            let mut obs = match newest {
                Some(newest) if !self.chance(0.15) => newest,
                other => self.first_obs(stack, other.as_ref()),
            };
            model.start_rollout(stream, &obs);
            for t in 0..steps {
                write_obs(&obs, &mut rollout, &[t, b]);
                let step = Step {
                    action: self.rng.random_range(0..2i64),
                    reward: self.rng.random::<f32>() - 0.5,
                    record: self.rng.random(),
                    state: [self.rng.random(), self.rng.random()],
                    version: rollout.version,
                    given: given.as_ref().map(|given| given[t * envs + b]),
                    terminated: self.chance(0.07),
                    truncated: self.chance(0.07),
                };
                rollout.actions.at_mut(&[t, b]).write(&[step.action]);
                rollout.rewards.at_mut(&[t, b]).write(&[step.reward]);
                for (path, array) in rollout.policy.leaves_mut() {
                    match path.as_str() {
                        "state" => array.at_mut(&[t, b]).write(&step.state),
                        _ => array.at_mut(&[t, b]).write(&[step.record]),
                    }
                }
                let flags = [step.terminated, step.truncated].map(u8::from);
                rollout.terminated.at_mut(&[t, b]).write(&flags[..1]);
                rollout.truncated.at_mut(&[t, b]).write(&flags[1..]);
                let mut next: Obs = obs[1..].iter().copied().chain([self.frame()]).collect();
                let mut last = None;
                if step.terminated || step.truncated {
                    write_obs(&next, &mut rollout, &[t + 1, b]);
                    rollout.keep_final(t, b);
                    let after = self.first_obs(stack, Some(&next));
                    last = Some(std::mem::replace(&mut next, after));
                }
                model.step(stream, step, last, next.clone());
                obs = next;
            }
            write_obs(&obs, &mut rollout, &[steps, b]);
        }
        let inserted = replay.insert(&rollout, base, given.as_deref());
        assert_eq!(inserted, Ok(steps * envs));
    }

    /// Draws, checks what was drawn and gives priorities back, some of them far too late.
    fn learn(&mut self, replay: &Replay, model: &mut Model, old: &mut Vec<SampleId>) {
        let entries = model.entries();
        let held: HashMap<SampleId, (usize, usize)> =
            entries.iter().map(|&e| (model.id(e), e)).collect();
        let drawn = if model.config.sequence.is_some() {
            let batch = replay.sample_sequences(8, 0.5, &mut self.rng);
            batch.map(|batch| {
                for (b, id) in batch.ids.iter().enumerate() {
                    check_sequence(model, &batch, b, held[id]);
                }
                batch.ids
            })
        } else {
            let batch = replay.sample(8, 0.5, &mut self.rng);
            batch.map(|batch| {
                for (i, id) in batch.ids.iter().enumerate() {
                    check_transition(model, &batch, i, held[id]);
                }
                batch.ids
            })
        };
        let drawn = match drawn {
            Ok(drawn) => drawn,
            Err(error) => return assert!(entries.is_empty(), "{error}"),
        };
        let mut ids = drawn.clone();
        ids.extend(old.iter().rev().take(4));
        let new: Vec<f32> = ids.iter().map(|_| self.rng.random::<f32>() * 5.0).collect();
        let late = replay.update_priorities(&ids, &new).unwrap();
        if replay.config().priority.is_some() {
            let gone = ids.iter().filter(|id| !held.contains_key(id)).count();
            assert_eq!(late, gone);
            for (id, &new) in ids.iter().zip(&new) {
                if let Some(&(stream, row)) = held.get(id) {
                    let priorities = &mut model.streams[stream].priorities;
                    priorities.insert(row, f64::from(new));
                    model.max_priority = model.max_priority.max(f64::from(new));
                }
            }
        }
        old.extend(drawn);
    }
}

fn check_all(replay: &Replay, model: &Model) {
    let expected = model.entries();
    let ids = replay.entries();
    let expected_ids: Vec<SampleId> = expected.iter().map(|&e| model.id(e)).collect();
    assert_eq!(ids, expected_ids);
    assert_eq!(replay.len(), ids.len());
    for (&id, &(stream, row)) in ids.iter().zip(&expected) {
        let priority = model.streams[stream].priorities[&row];
        let weight = match replay.config().priority {
            Some(_) => priority.max(1e-6).powf(ALPHA),
            None => 1.0,
        };
        assert_eq!(replay.weight(id), Some(weight));
    }
    if model.config.sequence.is_some() {
        let mut batch = SequenceBatch::new(&model.config, replay.layout(), ids.len()).unwrap();
        assert_eq!(replay.read_sequences_into(&ids, &mut batch), Ok(0));
        for (b, &entry) in expected.iter().enumerate() {
            check_sequence(model, &batch, b, entry);
        }
    } else {
        let mut batch = TransitionBatch::new(replay.layout(), ids.len());
        assert_eq!(replay.read_into(&ids, &mut batch), Ok(0));
        for (i, &entry) in expected.iter().enumerate() {
            check_transition(model, &batch, i, entry);
        }
    }
}

/// The parts on disk, by number.
#[derive(Default)]
struct Disk {
    parts: HashMap<u64, Vec<u8>>,
    saved: Option<Saved>,
}

impl Disk {
    /// Goes on from a snapshot, which has to be all there is.
    fn save_and_load(&mut self, replay: Replay) -> Replay {
        let mut part = Vec::new();
        let snapshot = Snapshot::begin(&replay, self.saved.as_ref()).unwrap();
        let number = snapshot.number();
        let saved = snapshot.write(&mut part).unwrap();
        assert_eq!(saved.parts().next_back(), Some(number));
        self.parts.insert(number, part);
        self.parts
            .retain(|number, _| saved.parts().any(|n| n == *number));
        let open = |number| Ok(&self.parts[&number][..]);
        let newest = &self.parts[&number][..];
        let (loaded, again) = Replay::load(newest, open, replay.config(), replay.layout()).unwrap();
        assert_eq!(again, saved);
        assert!(whole(&replay) == whole(&loaded));
        self.saved = Some(saved);
        loaded
    }
}

/// All of a replay as one part.
fn whole(replay: &Replay) -> Vec<u8> {
    let mut part = Vec::new();
    let snapshot = Snapshot::begin(replay, None).unwrap();
    snapshot.write(&mut part).unwrap();
    part
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn the_replay_is_a_list_of_rows(
        seed in any::<u64>(),
        n in 1usize..5,
        spare_rows in 0usize..30,
        streams in 1usize..4,
        draws in prop::option::of(prop::bool::ANY),
        stack in prop::option::of(2usize..5),
        compress in any::<bool>(),
        sequence in prop::option::of((0usize..4, 1usize..8, 0usize..7, 0usize..3)),
    ) {
        let sequence = sequence.map(|(burn_in, length, overlap, interval)| {
            let stride = length - overlap.min(length - 1);
            // Interval 2 stands for the largest one that is allowed.
            let burn_in = burn_in * stride;
            SequenceConfig {
                burn_in_steps: burn_in,
                length_steps: length,
                overlap_steps: length - stride,
                state_interval_steps: if interval == 2 { stride } else { interval },
                priority_eta: 0.9,
            }
        });
        let mut config = ReplayConfig {
            n_steps: n,
            gamma: GAMMA,
            priority: draws.map(|stratified| PriorityConfig {
                alpha: ALPHA,
                draws: if stratified { Draws::Stratified } else { Draws::Independent },
                ..PriorityConfig::default()
            }),
            sequence,
            frame_stack: stack,
            compress,
            ..ReplayConfig::default()
        };
        let (none, actions) = (Tree::empty(), Space::Discrete { n: 2 });
        let space = observation(stack.unwrap_or(1));
        let like = Rollout::new(1, 1, &space, &actions, Some(2), &records(), &none);
        let layout = Layout::of_rollout(&like, streams);
        // The smallest ring that is allowed, and some rows more.
        let rows = (1..).find(|rows| {
            config.capacity_steps = rows * streams;
            config.validate(&layout).is_ok()
        });
        config.capacity_steps = (rows.unwrap() + spare_rows) * streams;
        let mut replay = Replay::new(config.clone(), layout).unwrap();
        let mut model = Model::new(&config, streams);
        let rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let mut world = World { rng, frames: 0, inserts: 0 };
        let (mut old, mut disk) = (Vec::new(), Disk::default());
        for _ in 0..25 {
            world.insert(&replay, &mut model);
            check_all(&replay, &model);
            if world.chance(0.2) {
                replay = disk.save_and_load(replay);
            }
            if world.chance(0.7) {
                world.learn(&replay, &mut model, &mut old);
                check_all(&replay, &model);
            }
        }
    }
}
