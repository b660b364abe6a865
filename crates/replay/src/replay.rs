//! The replay: rings of rows, with concurrent inserts, samples and priority updates.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use rand::{Rng, RngExt};
use starling_envs::Rollout;

use crate::batch::{Entries, READ_TOGETHER, Scratch};
use crate::input::Checked;
use crate::priority::{check_priorities, draw_masses, importance_weights};
use crate::ring::{Plan, Ring, raise};
use crate::{
    Draws, Layout, MemoryPlan, ReplayConfig, ReplayError, SampleId, SequenceBatch, TransitionBatch,
};

/// Stores the newest steps of every stream and samples n-step transitions or sequences from them,
/// uniformly or by priority.
///
/// Every step is stored once, in the ring of its stream. The next observation of a transition is
/// read from a later row. If an episode was truncated, its last observation is in a separate
/// *boundary row* after the last step, so that targets bootstrap from it. The observation after the
/// newest step is in the next row, whose action comes with the following rollout. If only unique
/// frames are stored, an episode begins with *history rows* for the older frames of its first
/// stack.
///
/// A transition can be sampled once its episode has ended or n more rows exist; a sequence once its
/// episode has ended or its trained part and n more rows exist. Both can be sampled until the first
/// row that they need is overwritten.
///
/// **All methods take `&self` and may be called from many threads.** Each stream has a separate
/// lock and sum tree: writers of different streams never block each other, and a sampler locks a
/// stream only while it copies a few entries from it. With a single thread every result is a
/// function of the calls alone.
#[derive(Debug)]
pub struct Replay {
    pub(crate) plan: Plan,
    pub(crate) rings: Vec<RwLock<Ring>>,
    /// The total weight of each ring, as the bits of an `f64`, to draw the ring without its lock.
    totals: Vec<AtomicU64>,
    entries: AtomicUsize,
    pub(crate) inserted_steps: AtomicU64,
    pub(crate) breaks: AtomicU64,
    /// The largest priority seen so far, as the bits of an `f64`.
    pub(crate) largest: AtomicU64,
    /// Whether a snapshot is under way.
    pub(crate) pinned: AtomicBool,
}

/// How often a draw is repeated whose stream was emptied by others meanwhile.
const MOST_REDRAWS: usize = 100;

impl Replay {
    /// An empty replay. The memory of all rows is reserved now and taken as they are filled.
    ///
    /// # Errors
    /// When a setting is out of range.
    pub fn new(config: ReplayConfig, layout: Layout) -> Result<Self, ReplayError> {
        config.validate(&layout)?;
        let plan = Plan::new(config, layout);
        let streams = 0..plan.layout.streams;
        Ok(Self {
            rings: streams
                .clone()
                .map(|_| RwLock::new(Ring::new(&plan)))
                .collect(),
            totals: streams.map(|_| AtomicU64::new(0)).collect(),
            entries: AtomicUsize::new(0),
            inserted_steps: AtomicU64::new(0),
            breaks: AtomicU64::new(0),
            largest: AtomicU64::new(1f64.to_bits()),
            pinned: AtomicBool::new(false),
            plan,
        })
    }

    /// Its settings.
    pub fn config(&self) -> &ReplayConfig {
        &self.plan.config
    }

    /// What its rows hold.
    pub fn layout(&self) -> &Layout {
        &self.plan.layout
    }

    /// Transitions or sequences that can be drawn now.
    pub fn len(&self) -> usize {
        self.entries.load(Ordering::Relaxed)
    }

    /// Whether nothing can be drawn yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Steps inserted since the beginning.
    pub fn inserted_steps(&self) -> u64 {
        self.inserted_steps.load(Ordering::Relaxed)
    }

    /// How often a rollout did not begin with the observation that its stream had ended with:
    /// the open episode was treated as cut off there.
    pub fn breaks(&self) -> u64 {
        self.breaks.load(Ordering::Relaxed)
    }

    /// Memory of the replay: of a plain one when full, of a compressed one now.
    pub fn bytes(&self) -> usize {
        (0..self.rings.len()).map(|s| self.read(s).bytes()).sum()
    }

    /// The memory it takes when full.
    pub fn memory(&self) -> MemoryPlan {
        self.config().memory(self.layout())
    }

    /// Stores a rollout whose first column is stream `stream_base`, and returns how many steps
    /// that were.
    ///
    /// `priorities` has one for each step, `[T, B]` in row-major order; without it, new entries
    /// get the largest priority seen so far. The priority of a sequence is mixed from those of
    /// its trained steps. A stream's rollouts have to come in their order of time. If one does
    /// not begin with the observation that the last one ended with (an environment was
    /// restarted), the open episode counts as cut off there.
    ///
    /// # Errors
    /// When the columns are not those of the layout, a stream does not exist, a truncated
    /// episode lacks its final observation, an observation is not the stack of frames it should
    /// be, or a priority is not a finite number of at least 0. Nothing is stored then.
    pub fn insert(
        &self,
        rollout: &Rollout,
        stream_base: usize,
        priorities: Option<&[f32]>,
    ) -> Result<usize, ReplayError> {
        let (steps, envs) = (rollout.steps(), rollout.envs());
        let input = Checked::new(&self.plan, rollout, priorities)?;
        if steps == 0 || envs == 0 {
            return Ok(0);
        }
        self.expect_streams(&(stream_base..stream_base + envs))?;
        if let Some(priorities) = priorities {
            check_priorities(priorities, steps * envs)?;
        }
        let store = |b: usize, ring: &mut Ring| {
            let before = ring.entries;
            if !ring.insert(&self.plan, &input.column(b), &self.largest) {
                self.breaks.fetch_add(1, Ordering::Relaxed);
            }
            self.publish(stream_base + b, ring, before);
        };
        // Streams that are being read are left for the end; see `update_priorities`.
        let mut busy = Vec::new();
        for b in 0..envs {
            match self.rings[stream_base + b].try_write() {
                Ok(mut ring) => store(b, &mut ring),
                Err(_) => busy.push(b),
            }
        }
        for b in busy {
            store(b, &mut self.write(stream_base + b));
        }
        let inserted = (steps * envs) as u64;
        self.inserted_steps.fetch_add(inserted, Ordering::Relaxed);
        Ok(steps * envs)
    }

    /// Draws transitions into `batch`, as many as it has room for.
    ///
    /// `beta` is the exponent of importance weights, (N·P(i))^(−β) divided by the batch's
    /// largest; it has no effect on uniform draws. A transition may be drawn more than once.
    ///
    /// # Errors
    /// When nothing can be drawn yet, the batch was made for another layout, or this is a replay
    /// of sequences.
    pub fn sample_into(
        &self,
        batch: &mut TransitionBatch,
        beta: f64,
        rng: &mut impl Rng,
    ) -> Result<(), ReplayError> {
        let (streams, rows) = (0..self.rings.len(), 0..batch.size());
        self.sample_from(streams, rows, batch, beta, rng)
    }

    /// Draws transitions of some of the streams into some of the rows of `batch`; otherwise as
    /// [`sample_into`](Self::sample_into). Weights are relative to the largest of these rows.
    ///
    /// # Errors
    /// When nothing can be drawn from these streams yet, one does not exist, the batch has fewer
    /// rows or was made for another layout, or this is a replay of sequences.
    pub fn sample_from(
        &self,
        streams: Range<usize>,
        rows: Range<usize>,
        batch: &mut TransitionBatch,
        beta: f64,
        rng: &mut impl Rng,
    ) -> Result<(), ReplayError> {
        self.expect_transitions()?;
        self.expect_streams(&streams)?;
        batch.check(self.layout())?;
        let (mut parts, weights, scratch) = batch.parts();
        let weights = weights.as_mut_slice::<f32>().get_mut(rows.clone());
        let weights = weights.ok_or(ReplayError::Batch { column: "weights" })?;
        self.draw(streams, scratch, weights, beta, rng, |entries, first| {
            parts.read(&self.plan, entries, rows.start + first);
        })
    }

    /// Draws `size` transitions into a new batch; see [`sample_into`](Self::sample_into).
    ///
    /// # Errors
    /// When nothing can be drawn yet, or this is a replay of sequences.
    pub fn sample(
        &self,
        size: usize,
        beta: f64,
        rng: &mut impl Rng,
    ) -> Result<TransitionBatch, ReplayError> {
        let mut batch = TransitionBatch::new(self.layout(), size);
        self.sample_into(&mut batch, beta, rng)?;
        Ok(batch)
    }

    /// Draws sequences into `batch`, as many as it has room for; otherwise as
    /// [`sample_into`](Self::sample_into).
    ///
    /// # Errors
    /// When nothing can be drawn yet, the batch was made for another layout, or this is a replay
    /// of transitions.
    pub fn sample_sequences_into(
        &self,
        batch: &mut SequenceBatch,
        beta: f64,
        rng: &mut impl Rng,
    ) -> Result<(), ReplayError> {
        batch.check(self.config(), self.layout())?;
        let (mut parts, weights, scratch) = batch.parts();
        let weights = weights.as_mut_slice();
        let streams = 0..self.rings.len();
        self.draw(streams, scratch, weights, beta, rng, |entries, first| {
            parts.read(&self.plan, entries, first);
        })
    }

    /// Draws `size` sequences into a new batch; see
    /// [`sample_sequences_into`](Self::sample_sequences_into).
    ///
    /// # Errors
    /// When nothing can be drawn yet, or this is a replay of transitions.
    pub fn sample_sequences(
        &self,
        size: usize,
        beta: f64,
        rng: &mut impl Rng,
    ) -> Result<SequenceBatch, ReplayError> {
        let mut batch = SequenceBatch::new(self.config(), self.layout(), size)?;
        self.sample_sequences_into(&mut batch, beta, rng)?;
        Ok(batch)
    }

    /// Gives entries new priorities, and returns how many came too late: those whose entries
    /// have been overwritten since are dropped. Where an entry is named twice, the last one
    /// stays. Without effect on a uniform replay.
    ///
    /// # Errors
    /// When the numbers differ or a priority is not a finite number of at least 0. Nothing is
    /// changed then.
    pub fn update_priorities(
        &self,
        ids: &[SampleId],
        priorities: &[f32],
    ) -> Result<usize, ReplayError> {
        check_priorities(priorities, ids.len())?;
        let Some(config) = &self.config().priority else {
            return Ok(0);
        };
        let stream_of = |at: usize| ids[at].slot / self.plan.rows;
        let mut late = 0;
        let mut weights = Vec::with_capacity(ids.len().min(64));
        let mut change = |ring: &mut Ring, stream: usize, range: Range<usize>| {
            weights.clear();
            for (&id, &value) in ids[range.clone()].iter().zip(&priorities[range]) {
                if self.is_current(ring, id) {
                    let priority = f64::from(value);
                    weights.push((id.slot % self.plan.rows, config.weight(priority)));
                    raise(&self.largest, priority);
                } else {
                    late += 1;
                }
            }
            ring.tree.set_many(weights.drain(..));
            let entries = ring.entries;
            self.publish(stream, ring, entries);
        };
        // Whoever draws a batch goes through the streams in the same order. Waiting for a stream
        // that is being read would mean to wait again at each that follows: those are left for
        // the end.
        let (mut busy, mut first, mut unknown) = (Vec::new(), 0, 0);
        while first < ids.len() {
            let stream = stream_of(first);
            let same = (first..ids.len()).take_while(|&at| stream_of(at) == stream);
            let range = first..first + same.count();
            first = range.end;
            if stream >= self.rings.len() {
                unknown += range.len();
            } else if busy.iter().all(|(other, _)| *other != stream)
                && let Ok(mut ring) = self.rings[stream].try_write()
            {
                change(&mut ring, stream, range);
            } else {
                busy.push((stream, range));
            }
        }
        for (stream, range) in busy {
            change(&mut self.write(stream), stream, range);
        }
        Ok(late + unknown)
    }

    /// All entries that can be drawn now, from the first slot to the last.
    pub fn entries(&self) -> Vec<SampleId> {
        let mut ids = Vec::with_capacity(self.len());
        for stream in 0..self.rings.len() {
            let ring = self.read(stream);
            let places = (0..self.plan.rows).filter(|&place| ring.is_entry(place));
            ids.extend(places.map(|place| SampleId {
                slot: stream * self.plan.rows + place,
                generation: ring.generation(&self.plan, place),
            }));
        }
        ids
    }

    /// The weight by which an entry is drawn: its priority to the power α, or 1 if the draws are
    /// uniform; `None` if it was overwritten.
    pub fn weight(&self, id: SampleId) -> Option<f64> {
        let stream = id.slot / self.plan.rows;
        let ring = self.rings.get(stream).map(|_| self.read(stream))?;
        let place = id.slot % self.plan.rows;
        self.is_current(&ring, id).then(|| ring.tree.get(place))
    }

    /// Reads given transitions into a batch of that size, with weights of 1.
    ///
    /// Returns the number of entries that have been overwritten since; the batch is of no
    /// meaning unless that is 0.
    ///
    /// # Errors
    /// When the batch was made for another layout, or this is a replay of sequences.
    pub fn read_into(
        &self,
        ids: &[SampleId],
        batch: &mut TransitionBatch,
    ) -> Result<usize, ReplayError> {
        self.expect_transitions()?;
        if batch.size() != ids.len() {
            *batch = TransitionBatch::new(self.layout(), ids.len());
        }
        batch.check(self.layout())?;
        let (mut parts, weights, _) = batch.parts();
        weights.as_mut_slice::<f32>().fill(1.0);
        Ok(self.read_entries(ids, |entries, first| {
            parts.read(&self.plan, entries, first);
        }))
    }

    /// [`read_into`](Self::read_into) for sequences.
    ///
    /// # Errors
    /// When the batch was made for another layout, or this is a replay of transitions.
    pub fn read_sequences_into(
        &self,
        ids: &[SampleId],
        batch: &mut SequenceBatch,
    ) -> Result<usize, ReplayError> {
        if batch.size() != ids.len() {
            *batch = SequenceBatch::new(self.config(), self.layout(), ids.len())?;
        }
        batch.check(self.config(), self.layout())?;
        let (mut parts, weights, _) = batch.parts();
        weights.as_mut_slice::<f32>().fill(1.0);
        Ok(self.read_entries(ids, |entries, first| {
            parts.read(&self.plan, entries, first);
        }))
    }
}

impl Replay {
    pub(crate) fn read(&self, stream: usize) -> RwLockReadGuard<'_, Ring> {
        // A panic of another thread has ended the run; nothing is made worse by reading on.
        self.rings[stream]
            .read()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn write(&self, stream: usize) -> RwLockWriteGuard<'_, Ring> {
        self.rings[stream]
            .write()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets others see what has changed in a ring.
    pub(crate) fn publish(&self, stream: usize, ring: &Ring, entries_before: usize) {
        let total = ring.tree.total();
        self.totals[stream].store(total.to_bits(), Ordering::Relaxed);
        // Wraps where there are fewer now, so that the sum is right.
        let more = ring.entries.wrapping_sub(entries_before);
        self.entries.fetch_add(more, Ordering::Relaxed);
    }

    pub(crate) fn expect_transitions(&self) -> Result<(), ReplayError> {
        match self.config().sequence {
            None => Ok(()),
            Some(_) => Err(ReplayError::Kind {
                holds: "sequences",
                asked: "transitions",
            }),
        }
    }

    fn expect_streams(&self, asked: &Range<usize>) -> Result<(), ReplayError> {
        let streams = self.rings.len();
        match asked.end <= streams {
            true => Ok(()),
            false => Err(ReplayError::Stream {
                first: asked.start,
                last: asked.end - 1,
                streams,
            }),
        }
    }

    /// Whether something can be drawn from some of the streams now.
    pub(crate) fn can_draw_from(&self, streams: &Range<usize>) -> Result<bool, ReplayError> {
        self.expect_streams(streams)?;
        let mut totals = self.totals.get(streams.clone()).into_iter().flatten();
        Ok(totals.any(|total| f64::from_bits(total.load(Ordering::Relaxed)) > 0.0))
    }

    /// Whether an entry is still in its place and can be drawn.
    fn is_current(&self, ring: &Ring, id: SampleId) -> bool {
        let place = id.slot % self.plan.rows;
        ring.is_entry(place) && ring.generation(&self.plan, place) == id.generation
    }

    /// Calls `read` with every entry that is still there and its number, and counts the others.
    fn read_entries(&self, ids: &[SampleId], mut read: impl FnMut(Entries<'_>, usize)) -> usize {
        let mut gone = 0;
        for (i, &id) in ids.iter().enumerate() {
            let stream = id.slot / self.plan.rows;
            if stream < self.rings.len() {
                let ring = self.read(stream);
                if self.is_current(&ring, id) {
                    let entry = Entries {
                        stream,
                        ring: &ring,
                        places: &[id.slot % self.plan.rows],
                    };
                    read(entry, i);
                    continue;
                }
            }
            gone += 1;
        }
        gone
    }

    /// Draws one entry of some streams for each weight, calls `read` with some at a time and the number of the
    /// first, and works out the weights.
    ///
    /// The ring of a draw is chosen by the totals at the beginning, the entry by the ring's tree
    /// as it is when it is read. So what is read is always whole and present, and with others at
    /// work the probabilities are at most as old as this call.
    fn draw(
        &self,
        streams: Range<usize>,
        scratch: &mut Scratch,
        weights: &mut [f32],
        beta: f64,
        rng: &mut impl Rng,
        mut read: impl FnMut(Entries<'_>, usize),
    ) -> Result<(), ReplayError> {
        let draws = match &self.config().priority {
            Some(priority) => priority.draws,
            None => Draws::Independent,
        };
        let size = weights.len();
        self.look_at_totals(&streams, scratch)?;
        draw_masses(draws, scratch.total(), size, &mut scratch.masses, rng);
        scratch.drawn.clear();
        let mut places = Vec::with_capacity(READ_TOGETHER);
        let mut redraws = 0;
        while scratch.drawn.len() < size {
            let first = scratch.drawn.len();
            let stream = scratch.stream_at(scratch.masses[first]);
            let ring = self.read(stream);
            let now = ring.tree.total();
            if now <= 0.0 {
                drop(ring);
                redraws += 1;
                self.look_at_totals(&streams, scratch)?;
                if redraws > MOST_REDRAWS {
                    return Err(self.empty());
                }
                scratch.masses[first] = rng.random::<f64>() * scratch.total();
                continue;
            }
            let (start, end) = (scratch.start_of(stream), scratch.ends[stream]);
            // 1 unless somebody has changed the ring since.
            let scale = now / scratch.totals[stream];
            let group = &mut scratch.masses[first..];
            let same = group
                .iter()
                .take_while(|&&mass| (start..end).contains(&mass))
                .count();
            let group = &mut group[..same.clamp(1, READ_TOGETHER)];
            for mass in group.iter_mut() {
                *mass = (*mass - start) * scale;
            }
            ring.tree.find_many(group, &mut places);
            let weights = places.iter().map(|&place| ring.tree.get(place));
            scratch.drawn.extend(weights);
            let entries = Entries {
                stream,
                ring: &ring,
                places: &places,
            };
            read(entries, first);
        }
        importance_weights(&scratch.drawn, beta, weights);
        Ok(())
    }

    /// Takes the totals of some rings to draw by; the others count for nothing.
    fn look_at_totals(
        &self,
        streams: &Range<usize>,
        scratch: &mut Scratch,
    ) -> Result<(), ReplayError> {
        let totals = self.totals.iter().enumerate();
        let totals = totals.map(|(stream, total)| match streams.contains(&stream) {
            true => f64::from_bits(total.load(Ordering::Relaxed)),
            false => 0.0,
        });
        scratch.set_totals(totals);
        match scratch.total() > 0.0 {
            true => Ok(()),
            false => Err(self.empty()),
        }
    }

    pub(crate) fn empty(&self) -> ReplayError {
        let steps = self.inserted_steps();
        ReplayError::Empty { steps }
    }
}
