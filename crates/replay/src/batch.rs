//! Batches of transitions, in buffers that are reused.

use serde::{Deserialize, Serialize};
use starling_tree::{Array, DType, Spec, Tree};

use crate::column::KeyCache;
use crate::ring::{Plan, Ring};
use crate::{Layout, ReplayError, streaming};

/// Names one entry of a replay, also after its place was given to another one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SampleId {
    /// Its place.
    pub slot: usize,
    /// How often the place had been used before.
    pub generation: u64,
}

/// N transitions, as columns with the leading dimension `[N]`.
///
/// The target of a transition is `returns + discounts · V(next_obs)`.
///
/// The memory of the columns stays where it is for as long as the batch lives, so that it can be
/// registered with a device once and filled again and again.
#[derive(Clone, Debug, PartialEq)]
pub struct TransitionBatch {
    /// Observations, `[N, ..]`.
    pub obs: Tree<Array>,
    /// Legal actions at `obs`, `[N, A]` of 0 and 1; only for environments that mask actions.
    pub legal: Option<Array>,
    /// Actions, `[N, ..]`.
    pub actions: Array,
    /// What else the policy recorded with the actions, `[N, ..]`.
    pub records: Tree<Array>,
    /// Discounted sums of the rewards up to `next_obs`, `[N]` of `f32`.
    pub returns: Array,
    /// What the value of `next_obs` is multiplied by, `[N]` of `f32`: γ^m after m steps, 0 where
    /// the task ended.
    pub discounts: Array,
    /// Observations n steps later, or the last ones of episodes that were cut off before,
    /// `[N, ..]`. Where the discount is 0 it is of no meaning, unless the replay keeps the last
    /// observations of episodes that terminated.
    pub next_obs: Tree<Array>,
    /// Legal actions at `next_obs`, `[N, A]`.
    pub next_legal: Option<Array>,
    /// Importance weights, `[N]` of `f32`, the largest of a batch being 1; all 1 if drawn
    /// uniformly.
    pub weights: Array,
    /// What was drawn, to give priorities back.
    pub ids: Vec<SampleId>,
    /// Versions of the weights that chose the actions.
    pub versions: Vec<u64>,
    pub(crate) scratch: Scratch,
}

/// Memory of the way to a batch.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scratch {
    /// The weights of the streams.
    pub(crate) totals: Vec<f64>,
    /// Where each stream ends in the sum of all.
    pub(crate) ends: Vec<f64>,
    /// Where the entries lie in it.
    pub(crate) masses: Vec<f64>,
    /// The weights of what was drawn.
    pub(crate) drawn: Vec<f64>,
}

impl Scratch {
    pub(crate) fn set_totals(&mut self, totals: impl Iterator<Item = f64>) {
        self.totals.clear();
        self.totals.extend(totals);
        self.ends.clear();
        let mut sum = 0.0;
        self.ends.extend(self.totals.iter().map(|total| {
            sum += total;
            sum
        }));
    }

    pub(crate) fn total(&self) -> f64 {
        self.ends.last().copied().unwrap_or(0.0)
    }

    /// The stream that a mass lies in; never one without weight.
    pub(crate) fn stream_at(&self, mass: f64) -> usize {
        let stream = self.ends.partition_point(|&end| end <= mass);
        if stream < self.ends.len() {
            return stream;
        }
        // Rounding: the end belongs to the last stream that has weight.
        let last = self.totals.iter().rposition(|&total| total > 0.0);
        last.unwrap_or(0)
    }

    /// Where a stream starts in the sum of all.
    pub(crate) fn start_of(&self, stream: usize) -> f64 {
        stream
            .checked_sub(1)
            .map_or(0.0, |before| self.ends[before])
    }
}

impl PartialEq for Scratch {
    /// What a batch was made with is no part of it.
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl TransitionBatch {
    /// Buffers for `size` transitions.
    pub fn new(layout: &Layout, size: usize) -> Self {
        let legal = || {
            let actions = layout.legal_actions?;
            Some(Array::zeros(DType::U8, &[size, actions]))
        };
        Self {
            obs: Tree::zeros(&layout.observation, &[size]),
            legal: legal(),
            actions: zeros(&layout.action, &[size]),
            records: Tree::zeros(&layout.records, &[size]),
            returns: Array::zeros(DType::F32, &[size]),
            discounts: Array::zeros(DType::F32, &[size]),
            next_obs: Tree::zeros(&layout.observation, &[size]),
            next_legal: legal(),
            weights: Array::zeros(DType::F32, &[size]),
            ids: vec![SampleId::default(); size],
            versions: vec![0; size],
            scratch: Scratch::default(),
        }
    }

    /// N.
    pub fn size(&self) -> usize {
        self.ids.len()
    }

    /// Refuses buffers that transitions of the layout would not fit into.
    pub(crate) fn check(&self, layout: &Layout) -> Result<(), ReplayError> {
        let size = self.size();
        let number = Tree::Leaf(Spec::scalar(DType::F32));
        let fits = |column, found: &Tree<Array>, expected: &Tree<Spec>| {
            check_column(column, found, expected, &[size])
        };
        fits("obs", &self.obs, &layout.observation)?;
        fits("next_obs", &self.next_obs, &layout.observation)?;
        fits("records", &self.records, &layout.records)?;
        check_legal("legal", &self.legal, layout, &[size])?;
        check_legal("next_legal", &self.next_legal, layout, &[size])?;
        let action = Tree::Leaf(layout.action.clone());
        for (column, array, expected) in [
            ("actions", &self.actions, &action),
            ("returns", &self.returns, &number),
            ("discounts", &self.discounts, &number),
            ("weights", &self.weights, &number),
        ] {
            check_array(column, array, expected, &[size])?;
        }
        match self.versions.len() == size {
            true => Ok(()),
            false => Err(ReplayError::Batch { column: "versions" }),
        }
    }

    /// The columns to be written, and beside them the weights and what they are worked out with.
    pub(crate) fn parts(&mut self) -> (TransitionParts<'_>, &mut Array, &mut Scratch) {
        let obs = bytes_of(&mut self.obs);
        let parts = TransitionParts {
            keys: obs.iter().map(|_| KeyCache::default()).collect(),
            unpacked: Vec::new(),
            obs,
            next_obs: bytes_of(&mut self.next_obs),
            records: bytes_of(&mut self.records),
            legal: self.legal.as_mut().map(Array::bytes_mut),
            next_legal: self.next_legal.as_mut().map(Array::bytes_mut),
            actions: self.actions.bytes_mut(),
            returns: self.returns.as_mut_slice(),
            discounts: self.discounts.as_mut_slice(),
            ids: &mut self.ids,
            versions: &mut self.versions,
        };
        (parts, &mut self.weights, &mut self.scratch)
    }
}

/// The columns of a batch of transitions, to be written.
pub(crate) struct TransitionParts<'a> {
    keys: Vec<KeyCache>,
    /// Frames of one transition.
    unpacked: Vec<u8>,
    obs: Vec<&'a mut [u8]>,
    next_obs: Vec<&'a mut [u8]>,
    records: Vec<&'a mut [u8]>,
    legal: Option<&'a mut [u8]>,
    next_legal: Option<&'a mut [u8]>,
    actions: &'a mut [u8],
    returns: &'a mut [f32],
    discounts: &'a mut [f32],
    ids: &'a mut [SampleId],
    versions: &'a mut [u64],
}

impl TransitionParts<'_> {
    /// Writes the entries at places of a ring as transitions from `first` on.
    pub(crate) fn read(&mut self, plan: &Plan, from: Entries<'_>, first: usize) {
        // Small things of all first: their reads overlap in the processor.
        let mut steps = [0; READ_TOGETHER];
        for (i, (&place, steps)) in from.places.iter().zip(&mut steps).enumerate() {
            *steps = self.read_step(plan, &from, place, first + i);
        }
        for (i, (&place, &steps)) in from.places.iter().zip(&steps).enumerate() {
            self.read_observations(plan, from.ring, place, steps, first + i);
        }
    }

    /// Writes everything but observations; returns how many steps the next one is away.
    fn read_step(&mut self, plan: &Plan, from: &Entries<'_>, place: usize, i: usize) -> usize {
        let ring = from.ring;
        let target = ring.n_step(plan, place);
        let next = plan.after(place, target.steps);
        self.returns[i] = target.sum as f32;
        self.discounts[i] = target.discount as f32;
        self.versions[i] = ring.versions[place];
        self.ids[i] = SampleId {
            slot: from.stream * plan.rows + place,
            generation: ring.generation(plan, place),
        };
        for (column, to) in ring.records.iter().zip(&mut self.records) {
            column.read_back(place, item(to, i, column.item()));
        }
        ring.actions
            .read_back(place, item(self.actions, i, ring.actions.item()));
        for (to, place) in [(&mut self.legal, place), (&mut self.next_legal, next)] {
            if let (Some(to), Some(column)) = (to, &ring.legal) {
                column.read_back(place, item(to, i, column.item()));
            }
        }
        target.steps
    }

    fn read_observations(
        &mut self,
        plan: &Plan,
        ring: &Ring,
        place: usize,
        steps: usize,
        i: usize,
    ) {
        let next = plan.after(place, steps);
        for (leaf, frames) in plan.frames.iter().enumerate() {
            let column = &ring.obs[leaf];
            let size = frames.bytes * frames.stack;
            let obs = item(self.obs[leaf], i, size);
            let next_obs = item(self.next_obs[leaf], i, size);
            let keys = &mut self.keys[leaf];
            if column.is_packed() && steps <= frames.stack {
                // Frames that both show are unpacked once, and where they stay in the caches.
                let both = &mut self.unpacked;
                both.resize(size + steps * frames.bytes, 0);
                column.read_back_with(next, both, keys);
                streaming::copy(obs, &both[..size]);
                streaming::copy(next_obs, &both[both.len() - size..]);
            } else {
                column.read_back_with(place, obs, keys);
                column.read_back_with(next, next_obs, keys);
            }
        }
    }
}

/// Entries that are read under one lock at most: a writer waits for no more.
pub(crate) const READ_TOGETHER: usize = 16;

/// Some entries of one ring, at most [`READ_TOGETHER`].
#[derive(Clone, Copy)]
pub(crate) struct Entries<'a> {
    pub(crate) stream: usize,
    pub(crate) ring: &'a Ring,
    pub(crate) places: &'a [usize],
}

/// The bytes of one item of a column.
pub(crate) fn item(column: &mut [u8], index: usize, bytes: usize) -> &mut [u8] {
    &mut column[index * bytes..(index + 1) * bytes]
}

/// The bytes of every leaf, in order.
pub(crate) fn bytes_of(tree: &mut Tree<Array>) -> Vec<&mut [u8]> {
    let leaves = tree.leaves_mut().into_iter();
    leaves.map(|(_, array)| array.bytes_mut()).collect()
}

/// Zeros for items under leading dimensions.
pub(crate) fn zeros(spec: &Spec, leading: &[usize]) -> Array {
    let shape: Vec<usize> = leading.iter().chain(&spec.shape).copied().collect();
    Array::zeros(spec.dtype, &shape)
}

/// Refuses a column that does not hold such items under the leading dimensions.
pub(crate) fn check_column(
    column: &'static str,
    found: &Tree<Array>,
    expected: &Tree<Spec>,
    leading: &[usize],
) -> Result<(), ReplayError> {
    let spec = |array: &Array| {
        let (front, item) = array.shape().split_at_checked(leading.len())?;
        (front == leading).then(|| Spec::new(array.dtype(), item))
    };
    match found.map(spec) == expected.map(|spec| Some(spec.clone())) {
        true => Ok(()),
        false => Err(ReplayError::Batch { column }),
    }
}

/// [`check_column`] for a single array.
pub(crate) fn check_array(
    column: &'static str,
    found: &Array,
    expected: &Tree<Spec>,
    leading: &[usize],
) -> Result<(), ReplayError> {
    let fits = expected.leaf().is_some_and(|spec| {
        let shape: Vec<usize> = leading.iter().chain(&spec.shape).copied().collect();
        found.shape() == shape && found.dtype() == spec.dtype
    });
    match fits {
        true => Ok(()),
        false => Err(ReplayError::Batch { column }),
    }
}

/// [`check_column`] for masks of legal actions.
pub(crate) fn check_legal(
    column: &'static str,
    found: &Option<Array>,
    layout: &Layout,
    leading: &[usize],
) -> Result<(), ReplayError> {
    let expected = layout.legal_actions.map(|n| Spec::new(DType::U8, &[n]));
    match (found, expected) {
        (None, None) => Ok(()),
        (Some(found), Some(spec)) => check_array(column, found, &Tree::Leaf(spec), leading),
        _ => Err(ReplayError::Batch { column }),
    }
}
