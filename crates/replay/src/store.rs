//! Rows of experience as columns of bytes.

use serde::{Deserialize, Serialize};
use starling_envs::Rollout;
use starling_tree::{Array, DType, Spec, Tree};

use crate::ReplayError;

/// What one row of a replay holds, and how many streams of rows there are.
///
/// A stream is the experience of one environment in its order of time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Layout {
    /// Observations.
    pub observation: Tree<Spec>,
    /// Actions.
    pub action: Spec,
    /// Number of actions of environments that mask them, else `None`.
    pub legal_actions: Option<usize>,
    /// Number of environments that are recorded.
    pub streams: usize,
}

impl Layout {
    /// The layout for rollouts like this one, from `streams` environments in all.
    pub fn of_rollout(rollout: &Rollout, streams: usize) -> Self {
        Self {
            observation: rollout.obs.map(|array| item_spec(array, 2)),
            action: item_spec(&rollout.actions, 2),
            legal_actions: rollout.legal.as_ref().map(|legal| legal.shape()[2]),
            streams,
        }
    }

    /// Bytes of one row over all columns.
    pub fn row_bytes(&self) -> usize {
        let flags_and_version = 1 + 8;
        self.observation.item_bytes()
            + self.action.bytes()
            + self.legal_actions.unwrap_or(0)
            + DType::F32.size()
            + flags_and_version
    }

    /// Refuses a rollout whose columns are not those of this layout.
    pub(crate) fn check(&self, rollout: &Rollout) -> Result<(), ReplayError> {
        let found = Layout::of_rollout(rollout, self.streams);
        if found == *self && rollout.final_obs.map(|a| item_spec(a, 1)) == self.observation {
            return Ok(());
        }
        let expected = columns(self);
        let found = columns(&found);
        for index in 0..expected.len().max(found.len()) {
            let (expected, found) = (expected.get(index), found.get(index));
            if expected == found {
                continue;
            }
            let (field, _) = expected.or(found).cloned().unwrap_or_default();
            let text = |column: Option<&(String, String)>| match column {
                Some((name, spec)) if *name == field => spec.clone(),
                Some((name, _)) => format!("'{name}' in its place"),
                None => "nothing".to_owned(),
            };
            return Err(ReplayError::Columns {
                expected: text(expected),
                found: text(found),
                field,
            });
        }
        Err(ReplayError::Columns {
            field: "final_obs".into(),
            expected: "the columns of 'obs'".into(),
            found: "different".into(),
        })
    }
}

/// Names and types of all columns, in order.
fn columns(layout: &Layout) -> Vec<(String, String)> {
    let describe = |spec: &Spec| format!("{:?} {:?}", spec.dtype, spec.shape);
    let mut columns: Vec<(String, String)> = Vec::new();
    for (path, spec) in layout.observation.leaves() {
        let dot = if path.is_empty() { "" } else { "." };
        columns.push((format!("obs{dot}{path}"), describe(spec)));
    }
    columns.push(("actions".into(), describe(&layout.action)));
    if let Some(actions) = layout.legal_actions {
        columns.push(("legal".into(), describe(&Spec::new(DType::U8, &[actions]))));
    }
    columns
}

/// Element type and shape under `leading` dimensions.
fn item_spec(array: &Array, leading: usize) -> Spec {
    Spec::new(array.dtype(), &array.shape()[leading..])
}

/// The task ended with this step.
pub(crate) const TERMINATED: u8 = 1;
/// The episode was cut off with this step.
pub(crate) const TRUNCATED: u8 = 2;
/// No step, but the last observation of an episode that was cut off.
pub(crate) const BOUNDARY: u8 = 4;

/// The rows of all streams, `[slots, ..]` per column.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    pub(crate) obs: Tree<Array>,
    pub(crate) legal: Option<Array>,
    pub(crate) actions: Array,
    pub(crate) rewards: Vec<f32>,
    pub(crate) flags: Vec<u8>,
    /// Version of the weights that chose the action.
    pub(crate) versions: Vec<u64>,
}

/// Where the observation of a row comes from when a rollout is stored.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source {
    /// Row (t, b) of the rollout's observations.
    Row(usize, usize),
    /// This place among the final observations.
    Final(usize),
}

impl Store {
    pub(crate) fn new(layout: &Layout, slots: usize) -> Self {
        let legal = |actions| Array::zeros(DType::U8, &[slots, actions]);
        let action: Vec<usize> = [slots]
            .iter()
            .chain(&layout.action.shape)
            .copied()
            .collect();
        Self {
            obs: Tree::zeros(&layout.observation, &[slots]),
            legal: layout.legal_actions.map(legal),
            actions: Array::zeros(layout.action.dtype, &action),
            rewards: vec![0.0; slots],
            flags: vec![0; slots],
            versions: vec![0; slots],
        }
    }

    /// Copies observations and legal actions of a rollout that fits the layout into slots, in
    /// the given order.
    pub(crate) fn write_observations(&mut self, rollout: &Rollout, rows: &[(Source, usize)]) {
        let columns = self.obs.leaves_mut().into_iter();
        let sources = rollout.obs.leaves().into_iter();
        let finals = rollout.final_obs.leaves();
        for (((_, column), (_, from)), (_, finals)) in columns.zip(sources).zip(finals) {
            for &(source, slot) in rows {
                let item = match source {
                    Source::Row(t, b) => from.at(&[t, b]),
                    Source::Final(row) => finals.at(&[row]),
                };
                copy_item(column, slot, item.bytes);
            }
        }
        if let (Some(column), Some(from)) = (&mut self.legal, &rollout.legal) {
            let actions = column.shape()[1];
            for &(source, slot) in rows {
                let item = match source {
                    Source::Row(t, b) => from.at(&[t, b]).bytes,
                    Source::Final(row) => &rollout.final_legal[row * actions..][..actions],
                };
                copy_item(column, slot, item);
            }
        }
    }

    /// Whether a slot holds the observation (0, b) of a rollout.
    pub(crate) fn continues(&self, slot: usize, rollout: &Rollout, b: usize) -> bool {
        let stored = self.obs.leaves();
        let first = rollout.obs.leaves();
        let mut pairs = stored.iter().zip(&first);
        pairs.all(|((_, stored), (_, first))| stored.at(&[slot]).bytes == first.at(&[0, b]).bytes)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.obs.byte_len()
            + self.legal.as_ref().map_or(0, |legal| legal.bytes().len())
            + self.actions.bytes().len()
            + self.rewards.len() * size_of::<f32>()
            + self.flags.len()
            + self.versions.len() * size_of::<u64>()
    }
}

/// Overwrites the item at a leading index.
pub(crate) fn copy_item(column: &mut Array, index: usize, item: &[u8]) {
    let bytes = item.len();
    column.bytes_mut()[index * bytes..(index + 1) * bytes].copy_from_slice(item);
}

/// Copies the items at `slots` of one column to the first places of another.
pub(crate) fn gather(to: &mut Array, from: &Array, slots: &[usize]) {
    let items = from.shape()[0].max(1);
    let bytes = from.bytes().len() / items;
    let from = from.bytes();
    let targets = to.bytes_mut().chunks_exact_mut(bytes.max(1));
    for (target, &slot) in targets.zip(slots) {
        target.copy_from_slice(&from[slot * bytes..(slot + 1) * bytes]);
    }
}

/// [`gather`] for all columns of trees of the same structure.
pub(crate) fn gather_all(to: &mut Tree<Array>, from: &Tree<Array>, slots: &[usize]) {
    let same = to.zip_mut(from, |to, from| gather(to, from, slots));
    debug_assert!(same.is_ok(), "the batch was checked against the layout");
}
