//! The rows of one stream: a ring of columns, its position, and what can be sampled from it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};
use starling_tree::{DType, Spec};

use crate::column::Column;
use crate::input::{At, Input};
use crate::priority::mixed_priority;
use crate::{Layout, MARK, ReplayConfig, SequenceConfig, SumTree};

/// The task ended with this step.
pub(crate) const TERMINATED: u8 = 1;
/// The episode was cut off with this step.
pub(crate) const TRUNCATED: u8 = 2;
/// No step, but the last observation of an episode that was cut off, or of any if they are kept.
pub(crate) const BOUNDARY: u8 = 4;
/// Not a step, but an older frame of the first observation of an episode.
pub(crate) const HISTORY: u8 = 8;
/// Can be drawn: a step with all its successors, or the first trained step of a sequence.
pub(crate) const ENTRY: u8 = 16;
/// An episode never continues after a row with one of these.
const ENDS: u8 = TERMINATED | TRUNCATED | BOUNDARY | HISTORY;

/// What all rings of a replay have in common.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) config: ReplayConfig,
    pub(crate) layout: Layout,
    /// Rows of one ring.
    pub(crate) rows: usize,
    /// Rows before an entry that it needs.
    lookback: u64,
    /// γ^0 to γ^n.
    powers: Vec<f64>,
    /// The leaves of observations.
    pub(crate) frames: Vec<Frames>,
    /// Bytes that the compressed observations of one ring may take.
    packed_limit: usize,
    /// Which of the records marks steps.
    mark: Option<usize>,
}

/// How a leaf of observations is stored.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frames {
    /// Bytes of one row.
    pub(crate) bytes: usize,
    /// Rows that one observation shows.
    pub(crate) stack: usize,
    /// Bytes of a line of the picture.
    line: usize,
}

impl Plan {
    pub(crate) fn new(config: ReplayConfig, layout: Layout) -> Self {
        let powers = (0..=config.n_steps).scan(1.0, |power, _| {
            let now = *power;
            *power *= config.gamma;
            Some(now)
        });
        let frames = |leaf: &Spec| Frames {
            bytes: config.frame_bytes(leaf),
            stack: config.stack_of(leaf),
            line: leaf.shape.last().copied().unwrap_or(1) * leaf.dtype.size(),
        };
        let leaves = layout.observation.leaves().into_iter();
        let packed_limit = match config.memory_limit_bytes {
            Some(limit) if config.compress => {
                let left = limit.saturating_sub(config.memory(&layout).other_bytes);
                usize::try_from(left).unwrap_or(usize::MAX) / layout.streams
            }
            _ => usize::MAX,
        };
        Self {
            rows: config.rows_per_stream(layout.streams),
            lookback: config.lookback() as u64,
            powers: powers.collect(),
            frames: leaves.map(|(_, leaf)| frames(leaf)).collect(),
            packed_limit,
            mark: marks(&layout),
            config,
            layout,
        }
    }

    /// Whether the last observation of an episode that ended with these flags takes a row.
    pub(crate) fn keeps_final(&self, flags: u8) -> bool {
        flags == TRUNCATED || (flags != 0 && self.config.keep_terminal_obs)
    }

    /// The place of a row in its ring.
    pub(crate) fn place(&self, row: u64) -> usize {
        // Smaller than `rows`, which is a `usize`.
        (row % self.rows as u64) as usize
    }

    /// The place `steps` rows later.
    pub(crate) fn after(&self, place: usize, steps: usize) -> usize {
        (place + steps) % self.rows
    }
}

/// Where one stream stands. Rows are counted from the first one ever written.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Cursor {
    /// The first row that is still held.
    pub(crate) oldest: u64,
    /// Rows complete: steps, boundaries and history.
    pub(crate) complete: u64,
    /// Rows that have taken their place. One more than `complete` between inserts: the newest
    /// observation waits there for its action.
    pub(crate) claimed: u64,
    /// The next row that may become an entry.
    waiting: u64,
    /// The first step of the open episode.
    episode: u64,
}

/// The rows of one stream.
#[derive(Debug)]
pub(crate) struct Ring {
    pub(crate) cursor: Cursor,
    pub(crate) obs: Vec<Column>,
    pub(crate) legal: Option<Column>,
    pub(crate) actions: Column,
    pub(crate) records: Vec<Column>,
    pub(crate) rewards: Vec<f32>,
    pub(crate) flags: Vec<u8>,
    /// Versions of the weights that chose the actions.
    pub(crate) versions: Vec<u64>,
    /// Priorities given by actors, NaN where there was none; only if drawn by priority.
    pub(crate) given: Vec<f32>,
    /// Recurrent states with their rows, oldest first.
    pub(crate) states: VecDeque<(u64, Box<[u8]>)>,
    /// What entries are drawn by; other rows weigh nothing.
    pub(crate) tree: SumTree,
    pub(crate) entries: usize,
    /// Rows that a snapshot still has to write.
    pub(crate) pin: Option<Pin>,
    /// Weights that change with the insert under way.
    changes: Vec<(usize, f64)>,
}

/// Rows that a snapshot has to write, whatever happens to them.
#[derive(Debug)]
pub(crate) struct Pin {
    /// The first row that is not written yet.
    pub(crate) next: u64,
    pub(crate) end: u64,
    /// Rows that were overwritten before they could be written.
    pub(crate) rescued: VecDeque<Vec<u8>>,
}

impl Ring {
    pub(crate) fn new(plan: &Plan) -> Self {
        let (rows, layout) = (plan.rows, &plan.layout);
        let observation = |frames: &Frames| match plan.config.compress {
            true => Column::packed(rows, frames.bytes, frames.line),
            false => Column::plain(rows, frames.bytes),
        };
        let records = layout.records.leaves().into_iter();
        let prioritized = plan.config.priority.is_some();
        Self {
            cursor: Cursor::default(),
            obs: plan.frames.iter().map(observation).collect(),
            legal: layout.legal_actions.map(|n| Column::plain(rows, n)),
            actions: Column::plain(rows, layout.action.bytes()),
            records: records
                .map(|(_, spec)| Column::plain(rows, spec.bytes()))
                .collect(),
            rewards: vec![0.0; rows],
            flags: vec![0; rows],
            versions: vec![0; rows],
            given: vec![0.0; if prioritized { rows } else { 0 }],
            states: VecDeque::new(),
            tree: SumTree::new(rows),
            entries: 0,
            pin: None,
            changes: Vec::new(),
        }
    }

    /// Appends a column of a rollout; says whether the stream went on where it had stopped.
    pub(crate) fn insert(&mut self, plan: &Plan, input: &Input<'_>, largest: &AtomicU64) -> bool {
        let went_on = self.join(plan, input, largest);
        for t in 0..input.steps {
            let row = self.cursor.complete;
            let flags = self.write_step(plan, input, t, largest);
            if plan.keeps_final(flags) {
                let place = self.claim(plan);
                self.write_observation(plan, input, input.final_of(t), place);
                self.end_with_boundary(plan, largest);
                self.begin(plan, input, At::Row(t + 1));
            } else if flags != 0 {
                self.release(plan, row + 1, true, largest);
                self.begin(plan, input, At::Row(t + 1));
            } else {
                let n = plan.config.n_steps as u64;
                self.release(plan, (row + 2).saturating_sub(n), false, largest);
                let place = self.claim(plan);
                self.write_observation(plan, input, At::Row(t + 1), place);
            }
        }
        self.tree.set_many(self.changes.drain(..));
        went_on
    }

    /// The row that lies at a place now.
    pub(crate) fn row_at(&self, plan: &Plan, place: usize) -> Option<u64> {
        let last = self.cursor.claimed.checked_sub(1)?;
        let behind = (plan.place(last) + plan.rows - place) % plan.rows;
        let row = last.checked_sub(behind as u64)?;
        (row >= self.cursor.oldest).then_some(row)
    }

    /// How often the ring had gone round when the row at a place was written.
    pub(crate) fn generation(&self, plan: &Plan, place: usize) -> u64 {
        let row = self.row_at(plan, place).unwrap_or(0);
        row / plan.rows as u64
    }

    /// Whether the row at a place can be drawn.
    pub(crate) fn is_entry(&self, place: usize) -> bool {
        self.flags[place] & ENTRY != 0
    }

    /// Collects the places of up to `most` of the newest marked entries.
    pub(crate) fn newest_marked(&self, plan: &Plan, most: usize, places: &mut Vec<usize>) {
        let Some(column) = plan.mark.map(|leaf| &self.records[leaf]) else {
            return;
        };
        let mut mark = [0];
        for row in (self.cursor.oldest..self.cursor.complete).rev() {
            if places.len() == most {
                break;
            }
            let place = plan.place(row);
            if self.is_entry(place) {
                column.read_back(place, &mut mark);
                if mark[0] == 1 {
                    places.push(place);
                }
            }
        }
    }

    /// The n-step return from a place, and where it bootstraps.
    pub(crate) fn n_step(&self, plan: &Plan, place: usize) -> Target {
        let mut sum = 0.0;
        let n = plan.config.n_steps;
        for (step, power) in plan.powers[..n].iter().enumerate() {
            let at = plan.after(place, step);
            sum += power * f64::from(self.rewards[at]);
            let discount = match self.flags[at] & (TERMINATED | TRUNCATED) {
                0 => continue,
                TRUNCATED => plan.powers[step + 1],
                _ => 0.0,
            };
            let steps = step + 1;
            return Target {
                sum,
                discount,
                steps,
            };
        }
        Target {
            sum,
            discount: plan.powers[n],
            steps: n,
        }
    }

    /// Whether the step at a place belongs to the same episode as the row before it.
    pub(crate) fn follows(&self, plan: &Plan, row: u64) -> bool {
        row > self.cursor.oldest && self.flags[plan.place(row - 1)] & ENDS == 0
    }

    /// The recurrent state before a row.
    pub(crate) fn state_of(&self, row: u64) -> Option<&[u8]> {
        let found = self.states.binary_search_by_key(&row, |(row, _)| *row);
        Some(&self.states[found.ok()?].1)
    }

    /// Memory in use.
    pub(crate) fn bytes(&self) -> usize {
        let columns = self.obs.iter().chain(&self.records).chain(&self.legal);
        let states = self
            .states
            .iter()
            .map(|(_, s)| s.len() + size_of::<(u64, Box<[u8]>)>());
        columns.map(Column::bytes).sum::<usize>()
            + self.actions.bytes()
            + self.rewards.len() * size_of::<f32>()
            + self.given.len() * size_of::<f32>()
            + self.flags.len()
            + self.versions.len() * size_of::<u64>()
            + states.sum::<usize>()
            + self.tree.bytes()
    }
}

/// What the value of a step is learned from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    /// Discounted sum of rewards.
    pub(crate) sum: f64,
    /// What the value that follows is multiplied by; 0 where the task ended.
    pub(crate) discount: f64,
    /// How many rows later the observation lies that it is the value of.
    pub(crate) steps: usize,
}

impl Ring {
    /// Writes everything of step `t` but its observation, which waits there already.
    fn write_step(&mut self, plan: &Plan, input: &Input<'_>, t: usize, largest: &AtomicU64) -> u8 {
        let row = self.cursor.complete;
        let place = plan.place(row);
        let flags = input.flags(t);
        self.actions.write(place, input.action(t));
        for (leaf, column) in self.records.iter_mut().enumerate() {
            column.write(place, input.record(leaf, t));
        }
        self.rewards[place] = input.reward(t);
        self.flags[place] = flags;
        self.versions[place] = input.version;
        if let Some(given) = self.given.get_mut(place) {
            *given = input.given(t).unwrap_or(f32::NAN);
            if let Some(value) = input.given(t) {
                raise(largest, f64::from(value));
            }
        }
        if let Some(interval @ 1..) = sequence(plan).map(|s| s.state_interval_steps)
            && (row - self.cursor.episode).is_multiple_of(interval as u64)
        {
            self.states.push_back((row, input.state(t)));
        }
        self.cursor.complete = row + 1;
        flags
    }

    /// Makes the row that waits show the first observation of a rollout.
    fn join(&mut self, plan: &Plan, input: &Input<'_>, largest: &AtomicU64) -> bool {
        if self.cursor.claimed == 0 {
            self.begin(plan, input, At::Row(0));
            return true;
        }
        if self.continues(plan, input) {
            return true;
        }
        // The open episode counts as cut off where it stopped.
        if self.cursor.complete > self.cursor.episode {
            let last = plan.place(self.cursor.complete - 1);
            self.flags[last] |= TRUNCATED;
        }
        self.end_with_boundary(plan, largest);
        self.begin(plan, input, At::Row(0));
        false
    }

    /// Whether the row that waits shows the first observation of a rollout.
    fn continues(&self, plan: &Plan, input: &Input<'_>) -> bool {
        let newest = plan.place(self.cursor.complete);
        let mut buffer = Vec::new();
        plan.frames.iter().enumerate().all(|(leaf, frames)| {
            buffer.resize(frames.bytes * frames.stack, 0);
            self.obs[leaf].read_back(newest, &mut buffer);
            buffer == input.observation(leaf, At::Row(0))
        })
    }

    /// Begins an episode with an observation, which waits for its action then.
    fn begin(&mut self, plan: &Plan, input: &Input<'_>, at: At) {
        let stack = plan.config.frame_stack.unwrap_or(1);
        if stack > 1 && !self.shows_on(plan, input, at) {
            for frame in 0..stack - 1 {
                let place = self.claim(plan);
                for (leaf, frames) in plan.frames.iter().enumerate() {
                    // What is not a stack has nothing to show here.
                    if frames.stack > 1 {
                        let observation = input.observation(leaf, at);
                        let from = frame * frames.bytes;
                        self.obs[leaf].write(place, &observation[from..from + frames.bytes]);
                    }
                }
                self.flags[place] = HISTORY;
                self.cursor.complete += 1;
            }
        }
        self.cursor.episode = self.cursor.complete;
        self.cursor.waiting = self.cursor.complete;
        let place = self.claim(plan);
        self.write_observation(plan, input, at, place);
    }

    /// Whether the older frames of an observation are the newest ones of the ring, as after the
    /// loss of a life that ends an episode but not the game.
    fn shows_on(&self, plan: &Plan, input: &Input<'_>, at: At) -> bool {
        let stack = plan.config.frame_stack.unwrap_or(1) as u64;
        if self.cursor.claimed < self.cursor.oldest + stack - 1 {
            return false;
        }
        let newest = plan.place(self.cursor.claimed - 1);
        let mut buffer = Vec::new();
        let stacks = plan.frames.iter().enumerate().filter(|(_, f)| f.stack > 1);
        let mut all = stacks.map(|(leaf, frames)| {
            buffer.resize(frames.bytes * (frames.stack - 1), 0);
            self.obs[leaf].read_back(newest, &mut buffer);
            input.observation(leaf, at)[..buffer.len()] == buffer
        });
        all.all(|same| same)
    }

    /// Writes the newest frame of an observation.
    fn write_observation(&mut self, plan: &Plan, input: &Input<'_>, at: At, place: usize) {
        for (leaf, frames) in plan.frames.iter().enumerate() {
            let observation = input.observation(leaf, at);
            let newest = &observation[observation.len() - frames.bytes..];
            self.obs[leaf].write(place, newest);
        }
        if let Some(column) = &mut self.legal {
            column.write(place, input.legal(at));
        }
    }

    /// Makes the row that waits the end of an episode.
    fn end_with_boundary(&mut self, plan: &Plan, largest: &AtomicU64) {
        let row = self.cursor.complete;
        self.flags[plan.place(row)] = BOUNDARY;
        self.release(plan, row, true, largest);
        self.cursor.complete = row + 1;
    }

    /// Takes the place of the next row, from the oldest row if the ring is full.
    fn claim(&mut self, plan: &Plan) -> usize {
        let held = self.cursor.claimed - self.cursor.oldest;
        if held == plan.rows as u64 {
            self.evict(plan);
        }
        let needed = plan.config.smallest_ring() as u64;
        while self.packed_bytes() > plan.packed_limit
            && self.cursor.claimed - self.cursor.oldest > needed
        {
            self.evict(plan);
        }
        let place = plan.place(self.cursor.claimed);
        self.cursor.claimed += 1;
        self.flags[place] = 0;
        place
    }

    fn packed_bytes(&self) -> usize {
        self.obs.iter().map(Column::packed_bytes).sum()
    }

    /// Gives up the oldest row, and the entries that need it.
    fn evict(&mut self, plan: &Plan) {
        let gone = self.cursor.oldest;
        self.rescue(plan, gone);
        // Before the first row there was nothing that entries could have needed.
        let first = if gone == 0 { 0 } else { gone + plan.lookback };
        for row in first..=gone + plan.lookback {
            let place = plan.place(row);
            if row < self.cursor.claimed && self.is_entry(place) {
                self.flags[place] &= !ENTRY;
                self.entries -= 1;
                self.changes.push((place, 0.0));
            }
        }
        for column in &mut self.obs {
            column.clear(plan.place(gone));
        }
        self.cursor.oldest = gone + 1;
        while self.states.front().is_some_and(|(row, _)| *row <= gone) {
            self.states.pop_front();
        }
    }

    /// Gives up all rows before this one, and the entries that need them.
    pub(crate) fn evict_before(&mut self, plan: &Plan, row: u64) {
        while self.cursor.oldest < row.min(self.cursor.complete) {
            self.evict(plan);
        }
        self.tree.set_many(self.changes.drain(..));
        // Rows that wait to become entries may need older rows too.
        let first = match self.cursor.oldest {
            0 => 0,
            oldest => oldest + plan.lookback,
        };
        let stride = sequence(plan).map_or(1, |config| config.stride_steps() as u64);
        let behind = first.saturating_sub(self.cursor.waiting);
        self.cursor.waiting += behind.div_ceil(stride) * stride;
    }

    /// Keeps a row for a snapshot that has not come to it yet.
    fn rescue(&mut self, plan: &Plan, row: u64) {
        let place = plan.place(row);
        if let Some(pin) = &self.pin
            && (pin.next..pin.end).contains(&row)
        {
            let mut bytes = Vec::new();
            self.copy_row(plan, place, row, &mut bytes);
            if let Some(pin) = &mut self.pin {
                pin.rescued.push_back(bytes);
            }
        }
    }

    /// Lets waiting rows be drawn: transitions up to row `end`, or the sequences whose trained
    /// part lies before it, or all that is left if the episode ended there.
    fn release(&mut self, plan: &Plan, end: u64, ended: bool, largest: &AtomicU64) {
        let Some(config) = sequence(plan) else {
            while self.cursor.waiting < end {
                self.make_entry(plan, self.cursor.waiting, 1, largest);
                self.cursor.waiting += 1;
            }
            return;
        };
        let (length, overlap) = (config.length_steps as u64, config.overlap_steps as u64);
        while self.cursor.waiting < end {
            let start = self.cursor.waiting;
            let whole = start + length <= end;
            // The rest of an episode is a sequence of its own unless the last one has it all.
            let rest = ended && (start == self.cursor.episode || end - start > overlap);
            if !whole && !rest {
                break;
            }
            self.make_entry(plan, start, length.min(end - start), largest);
            self.cursor.waiting = start + config.stride_steps() as u64;
        }
    }

    fn make_entry(&mut self, plan: &Plan, row: u64, steps: u64, largest: &AtomicU64) {
        let place = plan.place(row);
        let mut weight = 1.0;
        if let Some(config) = &plan.config.priority {
            let given = self.given_priority(plan, row, steps);
            let priority = given.or(config.initial_priority);
            let priority =
                priority.unwrap_or_else(|| f64::from_bits(largest.load(Ordering::Relaxed)));
            weight = config.weight(priority);
        }
        self.flags[place] |= ENTRY;
        self.entries += 1;
        self.changes.push((place, weight));
    }

    fn given_priority(&self, plan: &Plan, row: u64, steps: u64) -> Option<f64> {
        let mut given = (row..row + steps).map(|row| self.given[plan.place(row)]);
        if given.clone().any(f32::is_nan) {
            return None;
        }
        match sequence(plan) {
            None => given.next().map(f64::from),
            Some(config) => Some(mixed_priority(given, config.priority_eta)),
        }
    }
}

fn marks(layout: &Layout) -> Option<usize> {
    let records = layout.records.leaves();
    let byte = Spec::scalar(DType::U8);
    records
        .iter()
        .position(|(path, spec)| path == MARK && **spec == byte)
}

fn sequence(plan: &Plan) -> Option<&SequenceConfig> {
    plan.config.sequence.as_ref()
}

/// Raises a shared number to at least `value`.
pub(crate) fn raise(largest: &AtomicU64, value: f64) {
    // Numbers of at least 0 have the order of their bits.
    largest.fetch_max(value.to_bits(), Ordering::Relaxed);
}
