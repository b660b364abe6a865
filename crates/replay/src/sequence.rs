//! Sequences for recurrent learners, in buffers that are reused.

use starling_tree::{Array, DType, Spec, Tree};

use crate::batch::{
    Entries, Scratch, bytes_of, check_array, check_column, check_legal, item, zeros,
};
use crate::column::KeyCache;
use crate::ring::{BOUNDARY, Plan, Ring, TERMINATED};
use crate::{Layout, ReplayConfig, ReplayError, SampleId};

/// B sequences, as columns with the leading dimensions `[S, B]`: S = burn-in + trained part + n
/// positions of time, B sequences.
///
/// ```text
/// position    0 ........ burn_in ............ burn_in + length ..... S − 1
///             burn-in    trained part (mask)  only looked ahead to
/// ```
///
/// A sequence is part of one episode. Positions before the episode's first step and after its end
/// are padding: `valid` is 0 there, all actions are legal, and observations, actions and rewards
/// are zero. **At the position where `resets` is 1 the recurrent state has to be set to zero before
/// the step**: the episode begins there, and the state must not depend on the padding. Everywhere
/// else the state continues, from `state` at position 0.
///
/// The target of the trained step t is `returns[t] + discounts[t] · V(bootstrap[t])`, where
/// `bootstrap` is a position: n steps later, or the last observation of an episode that was
/// truncated earlier. If the episode terminated, the discount is 0 and the position is that of its
/// last step.
#[derive(Clone, Debug, PartialEq)]
pub struct SequenceBatch {
    /// Observations, `[S, B, ..]`.
    pub obs: Tree<Array>,
    /// Legal actions, `[S, B, A]` of 0 and 1; only for environments that mask actions.
    pub legal: Option<Array>,
    /// Actions, `[S, B, ..]`; zero where there is no step and at the last position.
    pub actions: Array,
    /// Rewards, `[S, B]` of `f32`; zero where there is no step and at the last position.
    pub rewards: Array,
    /// What else the policy recorded with the actions, `[S, B, ..]`; zero as the rewards.
    pub records: Tree<Array>,
    /// Actions of the steps before, `[S, B, ..]`; zero where an episode begins.
    pub prev_actions: Array,
    /// Rewards of the steps before, `[S, B]` of `f32`; zero where an episode begins.
    pub prev_rewards: Array,
    /// 1 where `obs` was seen, `[S, B]` of `u8`; 0 for padding.
    pub valid: Array,
    /// 1 where an episode begins, `[S, B]` of `u8`.
    pub resets: Array,
    /// 1 for the steps of the trained part, 0 past the end of the episode, `[L, B]` of `f32`.
    pub mask: Array,
    /// Discounted sums of n rewards, fewer at the end of an episode, `[L, B]` of `f32`.
    pub returns: Array,
    /// What the value that follows is multiplied by, `[L, B]` of `f32`: 0 where the task ended.
    pub discounts: Array,
    /// Position of the observation that the target bootstraps from, `[L, B]` of `i64`.
    pub bootstrap: Array,
    /// The recurrent state before position 0, `[B, ..]`.
    pub state: Tree<Array>,
    /// Importance weights, `[B]` of `f32`, the largest of a batch being 1.
    pub weights: Array,
    /// What was drawn, to give priorities back.
    pub ids: Vec<SampleId>,
    /// Versions of the weights that chose the first trained actions.
    pub versions: Vec<u64>,
    pub(crate) scratch: Scratch,
}

impl SequenceBatch {
    /// Buffers for `size` sequences of a replay with these settings.
    ///
    /// # Errors
    /// When the settings are those of a replay of transitions.
    pub fn new(config: &ReplayConfig, layout: &Layout, size: usize) -> Result<Self, ReplayError> {
        let Some((total, length)) = shape(config) else {
            return Err(ReplayError::Kind {
                holds: "transitions",
                asked: "sequences",
            });
        };
        let number = |dtype, steps| Array::zeros(dtype, &[steps, size]);
        let legal = |n| Array::zeros(DType::U8, &[total, size, n]);
        Ok(Self {
            obs: Tree::zeros(&layout.observation, &[total, size]),
            legal: layout.legal_actions.map(legal),
            actions: zeros(&layout.action, &[total, size]),
            rewards: number(DType::F32, total),
            records: Tree::zeros(&layout.records, &[total, size]),
            prev_actions: zeros(&layout.action, &[total, size]),
            prev_rewards: number(DType::F32, total),
            valid: number(DType::U8, total),
            resets: number(DType::U8, total),
            mask: number(DType::F32, length),
            returns: number(DType::F32, length),
            discounts: number(DType::F32, length),
            bootstrap: number(DType::I64, length),
            state: Tree::zeros(&layout.state, &[size]),
            weights: Array::zeros(DType::F32, &[size]),
            ids: vec![SampleId::default(); size],
            versions: vec![0; size],
            scratch: Scratch::default(),
        })
    }

    /// B.
    pub fn size(&self) -> usize {
        self.ids.len()
    }

    /// Refuses buffers that sequences of such a replay would not fit into.
    pub(crate) fn check(&self, config: &ReplayConfig, layout: &Layout) -> Result<(), ReplayError> {
        let Some((total, length)) = shape(config) else {
            return Err(ReplayError::Kind {
                holds: "transitions",
                asked: "sequences",
            });
        };
        let size = self.size();
        check_column("obs", &self.obs, &layout.observation, &[total, size])?;
        check_column("records", &self.records, &layout.records, &[total, size])?;
        check_column("state", &self.state, &layout.state, &[size])?;
        check_legal("legal", &self.legal, layout, &[total, size])?;
        let action = Tree::Leaf(layout.action.clone());
        let number = |dtype| Tree::Leaf(Spec::scalar(dtype));
        let (f32, u8, i64) = (number(DType::F32), number(DType::U8), number(DType::I64));
        for (column, array, expected, steps) in [
            ("actions", &self.actions, &action, total),
            ("prev_actions", &self.prev_actions, &action, total),
            ("rewards", &self.rewards, &f32, total),
            ("prev_rewards", &self.prev_rewards, &f32, total),
            ("valid", &self.valid, &u8, total),
            ("resets", &self.resets, &u8, total),
            ("mask", &self.mask, &f32, length),
            ("returns", &self.returns, &f32, length),
            ("discounts", &self.discounts, &f32, length),
            ("bootstrap", &self.bootstrap, &i64, length),
        ] {
            check_array(column, array, expected, &[steps, size])?;
        }
        check_array("weights", &self.weights, &f32, &[size])?;
        match self.versions.len() == size {
            true => Ok(()),
            false => Err(ReplayError::Batch { column: "versions" }),
        }
    }

    /// The columns to be written, and beside them the weights and what they are worked out with.
    pub(crate) fn parts(&mut self) -> (SequenceParts<'_>, &mut Array, &mut Scratch) {
        let obs = bytes_of(&mut self.obs);
        let parts = SequenceParts {
            size: self.ids.len(),
            keys: obs.iter().map(|_| KeyCache::default()).collect(),
            obs,
            records: bytes_of(&mut self.records),
            state: bytes_of(&mut self.state),
            legal: self.legal.as_mut().map(Array::bytes_mut),
            actions: self.actions.bytes_mut(),
            prev_actions: self.prev_actions.bytes_mut(),
            rewards: self.rewards.as_mut_slice(),
            prev_rewards: self.prev_rewards.as_mut_slice(),
            valid: self.valid.bytes_mut(),
            resets: self.resets.bytes_mut(),
            mask: self.mask.as_mut_slice(),
            returns: self.returns.as_mut_slice(),
            discounts: self.discounts.as_mut_slice(),
            bootstrap: self.bootstrap.as_mut_slice(),
            ids: &mut self.ids,
            versions: &mut self.versions,
        };
        (parts, &mut self.weights, &mut self.scratch)
    }
}

/// S and L.
fn shape(config: &ReplayConfig) -> Option<(usize, usize)> {
    let sequence = config.sequence.as_ref()?;
    Some((sequence.total_steps(config.n_steps), sequence.length_steps))
}

/// The columns of a batch of sequences, to be written.
pub(crate) struct SequenceParts<'a> {
    size: usize,
    keys: Vec<KeyCache>,
    obs: Vec<&'a mut [u8]>,
    records: Vec<&'a mut [u8]>,
    state: Vec<&'a mut [u8]>,
    legal: Option<&'a mut [u8]>,
    actions: &'a mut [u8],
    prev_actions: &'a mut [u8],
    rewards: &'a mut [f32],
    prev_rewards: &'a mut [f32],
    valid: &'a mut [u8],
    resets: &'a mut [u8],
    mask: &'a mut [f32],
    returns: &'a mut [f32],
    discounts: &'a mut [f32],
    bootstrap: &'a mut [i64],
    ids: &'a mut [SampleId],
    versions: &'a mut [u64],
}

impl SequenceParts<'_> {
    /// Writes the entries at places of a ring as sequences from `first` on.
    pub(crate) fn read(&mut self, plan: &Plan, from: Entries<'_>, first: usize) {
        for (i, &place) in from.places.iter().enumerate() {
            self.read_one(plan, from.stream, from.ring, place, first + i);
        }
    }

    fn read_one(&mut self, plan: &Plan, stream: usize, ring: &Ring, place: usize, b: usize) {
        let (Some((total, length)), Some(config), Some(start)) = (
            shape(&plan.config),
            plan.config.sequence.as_ref(),
            ring.row_at(plan, place),
        ) else {
            return;
        };
        let burn_in = config.burn_in_steps;
        self.ids[b] = SampleId {
            slot: stream * plan.rows + place,
            generation: ring.generation(plan, place),
        };
        self.versions[b] = ring.versions[place];

        // Back to the beginning of the burn-in, or of the episode.
        let mut first = start;
        while start - first < burn_in as u64 && ring.follows(plan, first) {
            first -= 1;
        }
        let begins = !ring.follows(plan, first);
        let padding = burn_in - (start - first) as usize;
        self.read_state(ring, (!begins).then_some(first), b);
        for position in 0..padding {
            self.pad(plan, ring, position * self.size + b);
        }

        // Forward to the end of the episode, or of the sequence. The last observation of an
        // episode that was cut off lies in a row of its own.
        let (mut position, mut ended) = (padding, false);
        while position < total && !ended {
            let at = position * self.size + b;
            let row = first + (position - padding) as u64;
            let place = plan.place(row);
            let begins_here = begins && position == padding;
            self.read_observation(plan, ring, place, at);
            self.valid[at] = 1;
            self.resets[at] = u8::from(begins_here);
            let before = (!begins_here).then(|| plan.place(row - 1));
            self.read_previous(ring, before, at);
            let is_step = ring.flags[place] & BOUNDARY == 0 && position + 1 < total;
            self.read_step(ring, is_step.then_some(place), at);
            let flags = ring.flags[place];
            ended = flags & (TERMINATED | BOUNDARY) != 0;
            position += 1;
        }
        let last = position - 1;
        for position in position..total {
            self.pad(plan, ring, position * self.size + b);
        }
        for t in 0..length {
            self.read_target(plan, ring, burn_in + t, last, place, t, b);
        }
    }

    /// Position `position` of sequence `b` is its trained step `t`, `last` its last position that
    /// is not padding.
    #[expect(clippy::too_many_arguments, reason = "all are needed, once")]
    fn read_target(
        &mut self,
        plan: &Plan,
        ring: &Ring,
        position: usize,
        last: usize,
        start: usize,
        t: usize,
        b: usize,
    ) {
        let at = t * self.size + b;
        let place = plan.after(start, t);
        let trained = position <= last && ring.flags[place] & BOUNDARY == 0;
        self.mask[at] = f32::from(trained);
        if !trained {
            (self.returns[at], self.discounts[at]) = (0.0, 0.0);
            self.bootstrap[at] = last as i64;
            return;
        }
        let target = ring.n_step(plan, place);
        self.returns[at] = target.sum as f32;
        self.discounts[at] = target.discount as f32;
        self.bootstrap[at] = (position + target.steps).min(last) as i64;
    }

    /// The state stored before a row; zeros without one.
    fn read_state(&mut self, ring: &Ring, row: Option<u64>, b: usize) {
        let mut stored = row.and_then(|row| ring.state_of(row));
        let size = self.size;
        for to in &mut self.state {
            let bytes = to.len() / size;
            let to = item(to, b, bytes);
            match stored.and_then(|stored| stored.split_at_checked(bytes)) {
                Some((leaf, rest)) => {
                    to.copy_from_slice(leaf);
                    stored = Some(rest);
                }
                None => to.fill(0),
            }
        }
    }

    fn read_observation(&mut self, plan: &Plan, ring: &Ring, place: usize, at: usize) {
        for (leaf, frames) in plan.frames.iter().enumerate() {
            let to = item(self.obs[leaf], at, frames.bytes * frames.stack);
            ring.obs[leaf].read_back_with(place, to, &mut self.keys[leaf]);
        }
        if let (Some(to), Some(column)) = (&mut self.legal, &ring.legal) {
            column.read_back(place, item(to, at, column.item()));
        }
    }

    /// The action and reward of the row before; zeros where the episode begins.
    fn read_previous(&mut self, ring: &Ring, before: Option<usize>, at: usize) {
        let action = item(self.prev_actions, at, ring.actions.item());
        match before {
            Some(place) => ring.actions.read_back(place, action),
            None => action.fill(0),
        }
        self.prev_rewards[at] = before.map_or(0.0, |place| ring.rewards[place]);
    }

    /// What was done at a position; zeros where there is no step.
    fn read_step(&mut self, ring: &Ring, step: Option<usize>, at: usize) {
        self.rewards[at] = step.map_or(0.0, |place| ring.rewards[place]);
        let columns = ring.records.iter().zip(&mut self.records);
        let columns = columns.map(|(column, to)| (column, &mut **to));
        for (column, to) in columns.chain([(&ring.actions, &mut *self.actions)]) {
            let to = item(to, at, column.item());
            match step {
                Some(place) => column.read_back(place, to),
                None => to.fill(0),
            }
        }
    }

    fn pad(&mut self, plan: &Plan, ring: &Ring, at: usize) {
        for (to, frames) in self.obs.iter_mut().zip(&plan.frames) {
            item(to, at, frames.bytes * frames.stack).fill(0);
        }
        if let (Some(to), Some(column)) = (&mut self.legal, &ring.legal) {
            // A choice among no actions at all would have no value.
            item(to, at, column.item()).fill(1);
        }
        self.read_previous(ring, None, at);
        self.read_step(ring, None, at);
        (self.valid[at], self.resets[at]) = (0, 0);
    }
}
