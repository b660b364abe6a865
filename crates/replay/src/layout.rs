//! The columns of a replay.

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
    /// What else the policy records with each step, such as intrinsic rewards.
    pub records: Tree<Spec>,
    /// The policy's recurrent state before a step; empty if it has none.
    pub state: Tree<Spec>,
    /// Number of environments that are recorded.
    pub streams: usize,
}

/// The record of a policy that is kept as its recurrent state.
pub const STATE: &str = "state";

/// The record of a policy that is the first priority of a step. It goes into the sum tree, not
/// into the rows.
pub const PRIORITY: &str = "priority";

/// The record of a policy, one `u8` per step, that is 1 for the steps that draws of marked steps are
/// from.
pub const MARK: &str = "mark";

impl Layout {
    /// The layout for rollouts like this one, from `streams` environments in all.
    ///
    /// What the policy records under the name `state` is its recurrent state before each step;
    /// what it records as [`PRIORITY`] is not stored.
    pub fn of_rollout(rollout: &Rollout, streams: usize) -> Self {
        let (records, state) = records_and_state(&rollout.policy);
        Self {
            observation: rollout.obs.map(|array| item_spec(array, 2)),
            action: item_spec(&rollout.actions, 2),
            legal_actions: rollout.legal.as_ref().map(|legal| legal.shape()[2]),
            records: records.map(|array| item_spec(array, 2)),
            state: state.map(|array| item_spec(array, 2)),
            streams,
        }
    }

    /// Bytes of one step beside its observation and state.
    pub(crate) fn step_bytes(&self, prioritized: bool) -> usize {
        let (reward, flags, version) = (size_of::<f32>(), 1, size_of::<u64>());
        let given = if prioritized { size_of::<f32>() } else { 0 };
        self.action.bytes()
            + self.legal_actions.unwrap_or(0)
            + self.records.item_bytes()
            + reward
            + flags
            + version
            + given
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

/// What a policy recorded, apart from its recurrent state and priorities, and that state.
pub(crate) fn records_and_state(policy: &Tree<Array>) -> (Tree<&Array>, Tree<&Array>) {
    let Tree::Node(children) = policy else {
        return (policy.map(|array| array), Tree::empty());
    };
    let mut records = Vec::new();
    let mut state = Tree::empty();
    for (name, child) in children {
        match name.as_str() {
            STATE => state = child.map(|array| array),
            PRIORITY => {}
            _ => records.push((name.clone(), child.map(|array| array))),
        }
    }
    (Tree::Node(records), state)
}

/// Names and types of all columns, in order.
fn columns(layout: &Layout) -> Vec<(String, String)> {
    let describe = |spec: &Spec| format!("{:?} {:?}", spec.dtype, spec.shape);
    let mut columns: Vec<(String, String)> = Vec::new();
    let mut add = |name: &str, tree: &Tree<Spec>| {
        for (path, spec) in tree.leaves() {
            let dot = if path.is_empty() { "" } else { "." };
            columns.push((format!("{name}{dot}{path}"), describe(spec)));
        }
    };
    add("obs", &layout.observation);
    add("actions", &Tree::Leaf(layout.action.clone()));
    if let Some(actions) = layout.legal_actions {
        add("legal", &Tree::Leaf(Spec::new(DType::U8, &[actions])));
    }
    add("policy", &layout.records);
    add("policy.state", &layout.state);
    columns
}

/// Element type and shape under `leading` dimensions.
fn item_spec(array: &Array, leading: usize) -> Spec {
    Spec::new(array.dtype(), &array.shape()[leading..])
}
