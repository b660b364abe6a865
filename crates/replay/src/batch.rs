//! What is drawn: a batch of transitions in buffers that are used again.

use serde::{Deserialize, Serialize};
use starling_tree::{Array, DType, Spec, Tree};

use crate::{Layout, ReplayError};

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
#[derive(Clone, Debug, PartialEq)]
pub struct TransitionBatch {
    /// Observations, `[N, ..]`.
    pub obs: Tree<Array>,
    /// Legal actions at `obs`, `[N, A]` of 0 and 1; only for environments that mask actions.
    pub legal: Option<Array>,
    /// Actions, `[N, ..]`.
    pub actions: Array,
    /// Discounted sums of the rewards up to `next_obs`, `[N]` of `f32`.
    pub returns: Array,
    /// What the value of `next_obs` is multiplied by, `[N]` of `f32`: γ^m after m steps, 0 where
    /// the task ended.
    pub discounts: Array,
    /// Observations n steps later, or the last ones of episodes that were cut off before,
    /// `[N, ..]`. Where the discount is 0 it is the first one of the next episode.
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
    pub(crate) masses: Vec<f64>,
    pub(crate) slots: Vec<usize>,
    pub(crate) next_slots: Vec<usize>,
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
        let action: Vec<usize> = [size].iter().chain(&layout.action.shape).copied().collect();
        Self {
            obs: Tree::zeros(&layout.observation, &[size]),
            legal: legal(),
            actions: Array::zeros(layout.action.dtype, &action),
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
        let spec = |array: &Array| {
            let (&items, shape) = array.shape().split_first()?;
            (items == size).then(|| Spec::new(array.dtype(), shape))
        };
        let observations = layout.observation.map(|spec| Some(spec.clone()));
        let number = Some(Spec::scalar(DType::F32));
        let legal = layout
            .legal_actions
            .map(|n| Some(Spec::new(DType::U8, &[n])));
        let fits = [
            ("obs", self.obs.map(spec) == observations),
            ("next_obs", self.next_obs.map(spec) == observations),
            ("legal", self.legal.as_ref().map(spec) == legal),
            ("next_legal", self.next_legal.as_ref().map(spec) == legal),
            (
                "actions",
                spec(&self.actions).as_ref() == Some(&layout.action),
            ),
            ("returns", spec(&self.returns) == number),
            ("discounts", spec(&self.discounts) == number),
            ("weights", spec(&self.weights) == number),
            ("versions", self.versions.len() == size),
        ];
        match fits.iter().find(|(_, fits)| !fits) {
            None => Ok(()),
            Some(&(column, _)) => Err(ReplayError::Batch { column }),
        }
    }
}
