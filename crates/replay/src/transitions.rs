//! Replay of n-step transitions.

use rand::{Rng, RngExt};
use serde::{Deserialize, Serialize};
use starling_envs::Rollout;

use crate::batch::Scratch;
use crate::priority::{check_priorities, draw_masses, importance_weights};
use crate::store::{BOUNDARY, Source, Store, TERMINATED, TRUNCATED, copy_item, gather, gather_all};
use crate::streams::Streams;
use crate::{Layout, ReplayConfig, ReplayError, SampleId, SumTree, TransitionBatch};

/// Keeps the newest steps of every stream and draws n-step transitions from them, uniformly or
/// by priority.
///
/// Every step is stored once, in the ring of its stream. The observation that a transition leads
/// to is read from a later row. Where an episode was cut off, its last observation lies in a
/// *boundary row* of its own behind the last step, so that targets bootstrap from what was
/// really seen last. The observation behind the newest step waits in the next row until the
/// following rollout brings the action for it.
///
/// A step can be drawn once its episode has ended or n more rows are there, until its row is
/// overwritten. Reading goes forward only, so that what a step that can be drawn needs is never
/// older than itself.
#[derive(Clone, Debug)]
pub struct TransitionReplay {
    pub(crate) config: ReplayConfig,
    pub(crate) layout: Layout,
    pub(crate) store: Store,
    pub(crate) state: State,
    /// Only if drawn by priority.
    pub(crate) tree: Option<SumTree>,
    /// For uniform draws: how many rows the streams up to each one have to draw from.
    pub(crate) drawable_up_to: Vec<u64>,
    /// γ^0 to γ^n.
    powers: Vec<f64>,
}

/// What a snapshot keeps beside the rows and the priorities.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct State {
    pub(crate) streams: Streams,
    /// Steps that can be drawn.
    pub(crate) entries: usize,
    /// Steps inserted so far.
    pub(crate) inserted_steps: u64,
    /// Streams that did not go on where they had stopped.
    pub(crate) breaks: u64,
    /// The largest priority seen so far.
    pub(crate) max_priority: f64,
    /// Given priorities of the steps that cannot be drawn yet, n per stream.
    pub(crate) given: Vec<Option<f32>>,
}

impl TransitionReplay {
    /// An empty replay. The memory of all rows is reserved now and taken as they are filled.
    ///
    /// # Errors
    /// When a setting is out of range.
    pub fn new(config: ReplayConfig, layout: Layout) -> Result<Self, ReplayError> {
        config.validate(layout.streams)?;
        let streams = Streams::new(layout.streams, config.rows_per_stream(layout.streams));
        let slots = streams.slots();
        let powers = (0..=config.n_steps).scan(1.0, |power, _| {
            let now = *power;
            *power *= config.gamma;
            Some(now)
        });
        Ok(Self {
            powers: powers.collect(),
            store: Store::new(&layout, slots),
            state: State {
                streams,
                entries: 0,
                inserted_steps: 0,
                breaks: 0,
                max_priority: 1.0,
                given: vec![None; layout.streams * config.n_steps],
            },
            tree: config.priority.as_ref().map(|_| SumTree::new(slots)),
            drawable_up_to: vec![0; layout.streams],
            config,
            layout,
        })
    }

    /// Its settings.
    pub fn config(&self) -> &ReplayConfig {
        &self.config
    }

    /// What its rows hold.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Transitions that can be drawn now.
    pub fn len(&self) -> usize {
        self.state.entries
    }

    /// Whether nothing can be drawn yet.
    pub fn is_empty(&self) -> bool {
        self.state.entries == 0
    }

    /// Steps inserted since the beginning.
    pub fn inserted_steps(&self) -> u64 {
        self.state.inserted_steps
    }

    /// How often a rollout did not begin with the observation that its stream had ended with:
    /// the open episode was treated as cut off there.
    pub fn breaks(&self) -> u64 {
        self.state.breaks
    }

    /// Memory of a full replay.
    pub fn bytes(&self) -> usize {
        self.store.bytes() + self.tree.as_ref().map_or(0, SumTree::bytes)
    }

    /// Stores a rollout whose first column is stream `stream_base`, and returns how many steps
    /// that were.
    ///
    /// `priorities` has one for each step, `[T, B]` in row-major order; without it, new entries
    /// get the largest priority seen so far. A stream's rollouts have to come in their order of
    /// time. If one does not begin with the observation that the last one ended with (an
    /// environment was started anew), the open episode counts as cut off there.
    ///
    /// # Errors
    /// When the columns are not those of the layout, a stream does not exist, a truncated
    /// episode lacks its final observation, or a priority is not a finite number of at least 0.
    /// Nothing is stored then.
    pub fn insert(
        &mut self,
        rollout: &Rollout,
        stream_base: usize,
        priorities: Option<&[f32]>,
    ) -> Result<usize, ReplayError> {
        self.layout.check(rollout)?;
        let (steps, envs) = (rollout.steps(), rollout.envs());
        if steps == 0 || envs == 0 {
            return Ok(0);
        }
        let streams = self.layout.streams;
        if stream_base + envs > streams {
            return Err(ReplayError::Stream {
                first: stream_base,
                last: stream_base + envs - 1,
                streams,
            });
        }
        let finals = Finals::of(rollout)?;
        if let Some(priorities) = priorities {
            check_priorities(priorities, steps * envs)?;
        }

        let mut changes = Changes::default();
        for b in 0..envs {
            let given = |t: usize| Some(priorities?[t * envs + b]);
            self.insert_stream(rollout, b, stream_base + b, &finals, given, &mut changes);
        }
        self.store
            .write_observations(rollout, &changes.observations);
        if let Some(tree) = &mut self.tree {
            tree.set_many(changes.weights);
        }
        self.state.inserted_steps += (steps * envs) as u64;
        self.count_drawable();
        Ok(steps * envs)
    }

    /// Draws transitions into `batch`, as many as it has room for.
    ///
    /// `beta` is the exponent of importance weights, (N·P(i))^(−β) divided by the batch's
    /// largest; it has no effect on uniform draws. A transition may be drawn more than once.
    ///
    /// # Errors
    /// When nothing can be drawn yet, or the batch was made for another layout.
    pub fn sample_into(
        &self,
        batch: &mut TransitionBatch,
        beta: f64,
        rng: &mut impl Rng,
    ) -> Result<(), ReplayError> {
        if self.is_empty() {
            let steps = self.inserted_steps();
            return Err(ReplayError::Empty { steps });
        }
        batch.check(&self.layout)?;
        let size = batch.size();
        let Scratch { masses, slots, .. } = &mut batch.scratch;
        let weights = batch.weights.as_mut_slice::<f32>();
        match (&self.config.priority, &self.tree) {
            (Some(priority), Some(tree)) => {
                draw_masses(priority.draws, tree.total(), size, masses, rng);
                tree.find_many(masses, slots);
                importance_weights(tree, slots, beta, weights);
            }
            _ => {
                slots.clear();
                slots.extend((0..size).map(|_| self.draw_uniform(rng)));
                weights.fill(1.0);
            }
        }
        self.read_slots(batch);
        Ok(())
    }

    /// Draws `size` transitions into a new batch; see [`sample_into`](Self::sample_into).
    ///
    /// # Errors
    /// When nothing can be drawn yet.
    pub fn sample(
        &self,
        size: usize,
        beta: f64,
        rng: &mut impl Rng,
    ) -> Result<TransitionBatch, ReplayError> {
        let mut batch = TransitionBatch::new(&self.layout, size);
        self.sample_into(&mut batch, beta, rng)?;
        Ok(batch)
    }

    /// All entries that can be drawn now, from the first slot to the last.
    pub fn entries(&self) -> impl Iterator<Item = SampleId> {
        let streams = &self.state.streams;
        let slots = (0..streams.slots()).filter(|&slot| self.can_be_drawn(slot));
        slots.map(|slot| self.id_of(slot))
    }

    /// The weight by which an entry is drawn, its priority to the power α; `None` if it was
    /// overwritten or the draws are uniform.
    pub fn weight(&self, id: SampleId) -> Option<f64> {
        let tree = self.tree.as_ref()?;
        self.is_current(id).then(|| tree.get(id.slot))
    }

    /// Reads given entries into a batch of that size, with weights of 1.
    ///
    /// Returns the number of entries that have been overwritten since; the batch is left as it
    /// was unless that is 0.
    ///
    /// # Errors
    /// When the batch was made for another layout.
    pub fn read_into(
        &self,
        ids: &[SampleId],
        batch: &mut TransitionBatch,
    ) -> Result<usize, ReplayError> {
        let gone = ids.iter().filter(|&&id| !self.is_current(id)).count();
        if gone > 0 {
            return Ok(gone);
        }
        if batch.size() != ids.len() {
            *batch = TransitionBatch::new(&self.layout, ids.len());
        }
        let slots = &mut batch.scratch.slots;
        slots.clear();
        slots.extend(ids.iter().map(|id| id.slot));
        batch.weights.as_mut_slice::<f32>().fill(1.0);
        batch.check(&self.layout)?;
        self.read_slots(batch);
        Ok(0)
    }

    /// Gives entries new priorities, and returns how many came too late: those whose entries
    /// have been overwritten since are dropped. Where an entry is named twice, the last one
    /// stays. Without effect on a uniform replay.
    ///
    /// # Errors
    /// When the numbers differ or a priority is not a finite number of at least 0. Nothing is
    /// changed then.
    pub fn update_priorities(
        &mut self,
        ids: &[SampleId],
        priorities: &[f32],
    ) -> Result<usize, ReplayError> {
        check_priorities(priorities, ids.len())?;
        let Some(priority) = &self.config.priority else {
            return Ok(0);
        };
        let mut weights = Vec::with_capacity(ids.len());
        for (&id, &value) in ids.iter().zip(priorities) {
            if self.is_current(id) {
                weights.push((id.slot, priority.weight(f64::from(value))));
                self.state.max_priority = self.state.max_priority.max(f64::from(value));
            }
        }
        let late = ids.len() - weights.len();
        if let Some(tree) = &mut self.tree {
            tree.set_many(weights);
        }
        Ok(late)
    }
}

/// What inserting a rollout changes beside single numbers of rows; done at the end, in bulk.
#[derive(Default)]
struct Changes {
    observations: Vec<(Source, usize)>,
    weights: Vec<(usize, f64)>,
}

impl TransitionReplay {
    /// Appends column `b` of a rollout to a stream.
    fn insert_stream(
        &mut self,
        rollout: &Rollout,
        b: usize,
        stream: usize,
        finals: &Finals,
        given: impl Fn(usize) -> Option<f32>,
        changes: &mut Changes,
    ) {
        let (steps, envs) = (rollout.steps(), rollout.envs());
        let rewards = rollout.rewards.as_slice::<f32>();
        let terminated = rollout.terminated.as_slice::<u8>();
        let truncated = rollout.truncated.as_slice::<u8>();
        self.join(rollout, b, stream, changes);
        for t in 0..steps {
            let row = self.state.streams.cursors[stream].complete;
            let slot = self.claim(stream, row, changes);
            changes.observations.push((Source::Row(t, b), slot));
            let at = t * envs + b;
            let flags = if terminated[at] != 0 { TERMINATED } else { 0 }
                | if truncated[at] != 0 { TRUNCATED } else { 0 };
            self.store.rewards[slot] = rewards[at];
            self.store.flags[slot] = flags;
            self.store.versions[slot] = rollout.version;
            let action = rollout.actions.at(&[t, b]).bytes;
            copy_item(&mut self.store.actions, slot, action);
            self.remember_given(stream, row, given(t));
            self.state.streams.cursors[stream].complete = row + 1;
            if flags == TRUNCATED {
                let boundary = self.claim(stream, row + 1, changes);
                let from = Source::Final(finals.row(t, b));
                changes.observations.push((from, boundary));
                self.end_with_boundary(stream, boundary, changes);
            } else if flags != 0 {
                self.release(stream, row + 1, changes);
            } else {
                let n = self.config.n_steps as u64;
                self.release(stream, (row + 2).saturating_sub(n), changes);
            }
        }
        // What the next rollout begins with: it waits there for its action.
        let row = self.state.streams.cursors[stream].complete;
        let slot = self.claim(stream, row, changes);
        changes.observations.push((Source::Row(steps, b), slot));
    }

    /// Cuts the open episode of a stream off if the rollout does not go on with it.
    fn join(&mut self, rollout: &Rollout, b: usize, stream: usize, changes: &mut Changes) {
        let cursor = &self.state.streams.cursors[stream];
        let (complete, claimed) = (cursor.complete, cursor.claimed);
        if claimed == 0 {
            return;
        }
        let newest = self.state.streams.slot(stream, complete);
        if self.store.continues(newest, rollout, b) {
            return;
        }
        self.state.breaks += 1;
        let last = self.state.streams.slot(stream, complete - 1);
        if self.store.flags[last] == 0 {
            self.store.flags[last] = TRUNCATED;
            self.end_with_boundary(stream, newest, changes);
        }
    }

    /// Completes a boundary row behind the last step of an episode.
    fn end_with_boundary(&mut self, stream: usize, slot: usize, changes: &mut Changes) {
        let row = self.state.streams.cursors[stream].complete;
        self.store.flags[slot] = BOUNDARY;
        self.release(stream, row, changes);
        let cursor = &mut self.state.streams.cursors[stream];
        cursor.complete = row + 1;
        cursor.waiting = row + 1;
    }

    /// Takes the slot of a row from the oldest row of the stream, unless it has been taken.
    fn claim(&mut self, stream: usize, row: u64, changes: &mut Changes) -> usize {
        let slot = self.state.streams.slot(stream, row);
        if row < self.state.streams.cursors[stream].claimed {
            return slot;
        }
        if self.can_be_drawn(slot) {
            self.state.entries -= 1;
            if self.tree.is_some() {
                changes.weights.push((slot, 0.0));
            }
        }
        self.state.streams.cursors[stream].claimed = row + 1;
        self.store.flags[slot] = 0;
        slot
    }

    /// Lets the waiting steps of a stream be drawn, up to row `end`.
    fn release(&mut self, stream: usize, end: u64, changes: &mut Changes) {
        let waiting = self.state.streams.cursors[stream].waiting;
        for row in waiting..end {
            self.state.entries += 1;
            if let Some(priority) = &self.config.priority {
                let given = self.state.given[self.place_of_given(stream, row)];
                let value = given.map_or(self.state.max_priority, f64::from);
                let slot = self.state.streams.slot(stream, row);
                changes.weights.push((slot, priority.weight(value)));
            }
        }
        self.state.streams.cursors[stream].waiting = waiting.max(end);
    }

    fn remember_given(&mut self, stream: usize, row: u64, given: Option<f32>) {
        if self.tree.is_none() {
            return;
        }
        let place = self.place_of_given(stream, row);
        self.state.given[place] = given;
        if let Some(given) = given {
            self.state.max_priority = self.state.max_priority.max(f64::from(given));
        }
    }

    fn place_of_given(&self, stream: usize, row: u64) -> usize {
        let n = self.config.n_steps;
        stream * n + (row % n as u64) as usize
    }

    /// Counts what uniform draws choose from.
    pub(crate) fn count_drawable(&mut self) {
        let mut sum = 0;
        for (stream, up_to) in self.drawable_up_to.iter_mut().enumerate() {
            let rows = self.state.streams.drawable(stream);
            sum += rows.end - rows.start;
            *up_to = sum;
        }
    }

    /// A row of all that can be drawn, each with the same probability.
    fn draw_uniform(&self, rng: &mut impl Rng) -> usize {
        let rows = self.drawable_up_to.last().copied().unwrap_or(0);
        loop {
            let place = rng.random_range(0..rows);
            let stream = self.drawable_up_to.partition_point(|&up_to| up_to <= place);
            let before = stream.checked_sub(1).map_or(0, |s| self.drawable_up_to[s]);
            let row = self.state.streams.drawable(stream).start + (place - before);
            let slot = self.state.streams.slot(stream, row);
            // Boundary rows lie among the others. There is never more than one per step, so
            // that this ends after two rounds on average at worst.
            if self.store.flags[slot] & BOUNDARY == 0 {
                return slot;
            }
        }
    }

    /// Fills a batch from the slots in its scratch memory.
    fn read_slots(&self, batch: &mut TransitionBatch) {
        let TransitionBatch { ids, versions, .. } = batch;
        let Scratch {
            slots, next_slots, ..
        } = &mut batch.scratch;
        let returns = batch.returns.as_mut_slice::<f32>();
        let discounts = batch.discounts.as_mut_slice::<f32>();
        next_slots.clear();
        for (i, &slot) in slots.iter().enumerate() {
            let (sum, discount, next) = self.n_step(slot);
            returns[i] = sum as f32;
            discounts[i] = discount as f32;
            next_slots.push(next);
            ids[i] = self.id_of(slot);
            versions[i] = self.store.versions[slot];
        }
        let (now, next) = (&*slots, &*next_slots);
        gather(&mut batch.actions, &self.store.actions, now);
        gather_all(&mut batch.obs, &self.store.obs, now);
        gather_all(&mut batch.next_obs, &self.store.obs, next);
        for (to, slots) in [(&mut batch.legal, now), (&mut batch.next_legal, next)] {
            if let (Some(to), Some(from)) = (to, &self.store.legal) {
                gather(to, from, slots);
            }
        }
    }

    /// The n-step return from a slot, what the value that follows is multiplied by, and the
    /// slot of the observation that it is the value of.
    fn n_step(&self, slot: usize) -> (f64, f64, usize) {
        let mut sum = 0.0;
        let mut at = slot;
        for power in &self.powers[..self.config.n_steps] {
            sum += power * f64::from(self.store.rewards[at]);
            let flags = self.store.flags[at];
            at = self.state.streams.after(at, 1);
            if flags & TERMINATED != 0 {
                return (sum, 0.0, at);
            }
            if flags & TRUNCATED != 0 {
                return (sum, power * self.config.gamma, at);
            }
        }
        (sum, self.powers[self.config.n_steps], at)
    }

    /// Whether the row in a slot is a step that has all its successors.
    fn can_be_drawn(&self, slot: usize) -> bool {
        let Some((stream, row)) = self.state.streams.row_in(slot) else {
            return false;
        };
        row < self.state.streams.cursors[stream].waiting && self.store.flags[slot] & BOUNDARY == 0
    }

    /// Whether an entry is still in its place and can be drawn.
    fn is_current(&self, id: SampleId) -> bool {
        self.can_be_drawn(id.slot) && self.id_of(id.slot) == id
    }

    fn id_of(&self, slot: usize) -> SampleId {
        let row = self.state.streams.row_in(slot);
        let generation = row.map_or(0, |(_, row)| self.state.streams.generation(row));
        SampleId { slot, generation }
    }
}

/// The final observations of episodes that were cut off, by step and column.
struct Finals(Vec<((usize, usize), usize)>);

impl Finals {
    /// Refuses a rollout that lacks one.
    fn of(rollout: &Rollout) -> Result<Self, ReplayError> {
        let places = rollout.final_at.iter().enumerate();
        let mut finals: Vec<_> = places.map(|(row, &at)| (at, row)).collect();
        finals.sort_unstable();
        let finals = Self(finals);
        let envs = rollout.envs();
        let terminated = rollout.terminated.as_slice::<u8>();
        let truncated = rollout.truncated.as_slice::<u8>();
        for (at, _) in truncated.iter().enumerate().filter(|(_, flag)| **flag != 0) {
            let (t, b) = (at / envs, at % envs);
            if terminated[at] == 0 && finals.find(t, b).is_none() {
                return Err(ReplayError::FinalMissing { t, b });
            }
        }
        let actions = rollout.legal.as_ref().map_or(0, |legal| legal.shape()[2]);
        if let (Some(&(t, b)), true) = (
            rollout.final_at.last(),
            rollout.final_legal.len() != rollout.final_at.len() * actions,
        ) {
            return Err(ReplayError::FinalMissing { t, b });
        }
        Ok(finals)
    }

    fn find(&self, t: usize, b: usize) -> Option<usize> {
        let place = self.0.binary_search_by_key(&(t, b), |&(at, _)| at).ok()?;
        Some(self.0[place].1)
    }

    #[expect(
        clippy::expect_used,
        reason = "`of` has looked up every one that is asked for"
    )]
    fn row(&self, t: usize, b: usize) -> usize {
        self.find(t, b)
            .expect("a truncated step has its final observation")
    }
}
