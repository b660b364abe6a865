//! One block of experience: T steps of B environments, as columns.

use std::any::Any;

use starling_tree::{Array, DType, Spec, Tree};

use crate::Space;

/// T steps of B environments, as columns with leading dimensions `[T, B]`.
///
/// Row `t` holds the observation, the action chosen there and what followed. Observations have
/// one row more: row `T` is what the next rollout starts from. Where an episode ends at `t`, row
/// `t + 1` shows the first observation of the next episode, and the last one of the old episode
/// is kept in [`final_obs`](Rollout::final_obs).
#[derive(Clone, Debug, PartialEq)]
pub struct Rollout {
    /// Observations, `[T + 1, B, ..]`.
    pub obs: Tree<Array>,
    /// Legal actions, `[T + 1, B, A]` of 0 and 1; only for environments that mask actions.
    pub legal: Option<Array>,
    /// Actions, `[T, B, ..]`.
    pub actions: Array,
    /// Rewards, `[T, B]` of `f32`.
    pub rewards: Array,
    /// 1 where the task ended with this step, `[T, B]` of `u8`.
    pub terminated: Array,
    /// 1 where the episode was cut off with this step, `[T, B]` of `u8`.
    pub truncated: Array,
    /// The (t, b) at which an episode ended, in the order of [`final_obs`](Rollout::final_obs).
    pub final_at: Vec<(usize, usize)>,
    /// The last observations of the episodes that ended, `[capacity, ..]`: the first
    /// `final_at.len()` rows are in use.
    pub final_obs: Tree<Array>,
    /// Legal actions at those observations, one row of bytes after the other; empty for
    /// environments that do not mask actions.
    pub final_legal: Vec<u8>,
    /// What the policy recorded with each action (log-probabilities, values), `[T, B, ..]`.
    pub policy: Tree<Array>,
    /// The policy's recurrent state before the first step, `[B, ..]`.
    pub state: Tree<Array>,
    /// Version of the weights that chose the actions of the first step.
    pub version: u64,
    /// What the policy left on its device for a learner there.
    pub resident: Resident,
    final_spec: Tree<Spec>,
}

/// A copy of observations that a policy left on its device, so that a learner on the same device
/// need not send them again. Only these two know its type. The rollout is complete without it, so
/// copies and comparisons ignore it.
#[derive(Default)]
pub struct Resident(Option<Box<dyn Any + Send + Sync>>);

impl Resident {
    /// Leaves something.
    pub fn new(what: impl Any + Send + Sync) -> Self {
        Self(Some(Box::new(what)))
    }

    /// What was left, if it is of this type.
    pub fn get<T: Any>(&self) -> Option<&T> {
        self.0.as_ref()?.downcast_ref()
    }
}

impl Clone for Resident {
    fn clone(&self) -> Self {
        Self(None)
    }
}

impl PartialEq for Resident {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl std::fmt::Debug for Resident {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_some() { "Resident" } else { "None" })
    }
}

impl Rollout {
    /// What one item of the column of actions holds. Actions with named parts are laid side by side
    /// as one vector of floats.
    pub fn action_spec(space: &Space) -> Spec {
        let spec = space.spec();
        spec.leaf().cloned().unwrap_or_else(|| {
            let parts = spec.leaves().iter().map(|(_, s)| s.elements()).sum();
            Spec::new(DType::F32, &[parts])
        })
    }

    /// Empty columns.
    ///
    /// `policy` and `state` are what the policy records per step and carries between steps;
    /// `legal_actions` is the number of actions of environments that mask them, else `None`.
    pub fn new(
        steps: usize,
        envs: usize,
        observation: &Space,
        action: &Space,
        legal_actions: Option<usize>,
        policy: &Tree<Spec>,
        state: &Tree<Spec>,
    ) -> Self {
        let action = Self::action_spec(action);
        let action_shape: Vec<usize> = [steps, envs].into_iter().chain(action.shape).collect();
        Self {
            obs: Tree::zeros(&observation.spec(), &[steps + 1, envs]),
            legal: legal_actions.map(|n| Array::zeros(DType::U8, &[steps + 1, envs, n])),
            actions: Array::zeros(action.dtype, &action_shape),
            rewards: Array::zeros(DType::F32, &[steps, envs]),
            terminated: Array::zeros(DType::U8, &[steps, envs]),
            truncated: Array::zeros(DType::U8, &[steps, envs]),
            final_at: Vec::new(),
            final_obs: Tree::zeros(&observation.spec(), &[0]),
            final_legal: Vec::new(),
            policy: Tree::zeros(policy, &[steps, envs]),
            state: Tree::zeros(state, &[envs]),
            version: 0,
            resident: Resident::default(),
            final_spec: observation.spec(),
        }
    }

    /// T.
    pub fn steps(&self) -> usize {
        self.rewards.shape()[0]
    }

    /// B.
    pub fn envs(&self) -> usize {
        self.rewards.shape()[1]
    }

    /// Rollouts of the same steps and kinds of columns, laid side by side: the environments of
    /// the first, then those of the second, and so on.
    ///
    /// The version is the oldest of all; `None` if there are no parts or they do not match.
    pub fn side_by_side(parts: &[&Rollout]) -> Option<Rollout> {
        let first = *parts.first()?;
        let columns = |pick: fn(&Rollout) -> &Array| {
            let arrays: Vec<&Array> = parts.iter().map(|part| pick(part)).collect();
            Array::side_by_side(&arrays, 1)
        };
        let trees = |pick: fn(&Rollout) -> &Tree<Array>, dimension: usize| {
            let mut joined = pick(first).map(Array::clone);
            for (path, array) in joined.leaves_mut() {
                let arrays = parts.iter().map(|part| pick(part).get(&path)?.leaf());
                *array = Array::side_by_side(&arrays.collect::<Option<Vec<_>>>()?, dimension)?;
            }
            Some(joined)
        };
        let mut whole = Rollout {
            obs: trees(|part| &part.obs, 1)?,
            legal: match &first.legal {
                None => None,
                Some(_) => {
                    let arrays = parts.iter().map(|part| part.legal.as_ref());
                    Some(Array::side_by_side(
                        &arrays.collect::<Option<Vec<_>>>()?,
                        1,
                    )?)
                }
            },
            actions: columns(|part| &part.actions)?,
            rewards: columns(|part| &part.rewards)?,
            terminated: columns(|part| &part.terminated)?,
            truncated: columns(|part| &part.truncated)?,
            final_at: Vec::new(),
            final_obs: Tree::zeros(&first.final_spec, &[0]),
            final_legal: Vec::new(),
            policy: trees(|part| &part.policy, 1)?,
            state: trees(|part| &part.state, 0)?,
            version: parts.iter().map(|part| part.version).min()?,
            resident: Resident::default(),
            final_spec: first.final_spec.clone(),
        };
        let mut first_env = 0;
        for part in parts {
            for (row, &(t, b)) in part.final_at.iter().enumerate() {
                whole.push_final(&part.final_obs, &[row], (t, first_env + b));
            }
            whole.final_legal.extend(&part.final_legal);
            first_env += part.envs();
        }
        Some(whole)
    }

    /// Keeps row (`t` + 1, `b`) of the observations and legal actions as the last one of an
    /// episode that ended with step `t`.
    pub fn keep_final(&mut self, t: usize, b: usize) {
        let obs = std::mem::replace(&mut self.obs, Tree::empty());
        self.push_final(&obs, &[t + 1, b], (t, b));
        self.obs = obs;
        if let Some(legal) = &self.legal {
            self.final_legal.extend(legal.at(&[t + 1, b]).bytes);
        }
    }

    /// Makes the last row of observations the first one, to fill the columns again from there.
    pub fn carry_over(&mut self) {
        let last = self.steps();
        for (_, array) in self.obs.leaves_mut() {
            carry_row(array, last);
        }
        if let Some(legal) = &mut self.legal {
            carry_row(legal, last);
        }
        self.final_at.clear();
        self.final_legal.clear();
        self.resident = Resident::default();
    }

    fn push_final(&mut self, from: &Tree<Array>, index: &[usize], at: (usize, usize)) {
        let used = self.final_at.len();
        let capacity = match self.final_obs.leaves().first() {
            Some((_, array)) => array.shape()[0],
            None => 0,
        };
        if used == capacity {
            let mut larger = Tree::zeros(&self.final_spec, &[(2 * capacity).max(4)]);
            for row in 0..used {
                copy_row(&mut larger, &[row], &self.final_obs, &[row]);
            }
            self.final_obs = larger;
        }
        copy_row(&mut self.final_obs, &[used], from, index);
        self.final_at.push(at);
    }
}

fn carry_row(array: &mut Array, last: usize) {
    let row = array.at(&[0]).bytes.len();
    array
        .bytes_mut()
        .copy_within(last * row..(last + 1) * row, 0);
}

fn copy_row(to: &mut Tree<Array>, at: &[usize], from: &Tree<Array>, index: &[usize]) {
    let same = to.copy_at(at, from, index);
    debug_assert!(same.is_ok(), "both are columns of the same observations");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rollout(envs: usize, first: f32) -> Rollout {
        let nothing = Tree::empty();
        let (obs, action) = (Space::unbounded(&[1]), Space::Discrete { n: 2 });
        let mut rollout = Rollout::new(2, envs, &obs, &action, None, &nothing, &nothing);
        let Tree::Leaf(obs) = &mut rollout.obs else {
            panic!("an observation is one array here");
        };
        for (i, value) in obs.as_mut_slice::<f32>().iter_mut().enumerate() {
            *value = first + i as f32;
        }
        rollout.version = first as u64;
        rollout
    }

    fn floats(tree: &Tree<Array>) -> &[f32] {
        tree.leaf().unwrap().as_slice()
    }

    #[test]
    fn parts_side_by_side_keep_their_rows_and_finals() {
        let (mut a, mut b) = (rollout(1, 10.0), rollout(2, 20.0));
        a.keep_final(0, 0);
        b.keep_final(1, 1);
        let whole = Rollout::side_by_side(&[&a, &b]).unwrap();
        assert_eq!((whole.steps(), whole.envs(), whole.version), (2, 3, 10));
        let expected = [10.0, 20.0, 21.0, 11.0, 22.0, 23.0, 12.0, 24.0, 25.0];
        assert_eq!(floats(&whole.obs), expected);
        assert_eq!(whole.final_at, [(0, 0), (1, 2)]);
        assert_eq!(floats(&whole.final_obs)[..2], [11.0, 25.0]);
    }

    #[test]
    fn what_does_not_match_is_not_joined() {
        let nothing = Tree::empty();
        let (obs, action) = (Space::unbounded(&[1]), Space::Discrete { n: 2 });
        let longer = Rollout::new(3, 1, &obs, &action, None, &nothing, &nothing);
        assert!(Rollout::side_by_side(&[&rollout(1, 0.0), &longer]).is_none());
        assert!(Rollout::side_by_side(&[]).is_none());
    }

    #[test]
    fn carrying_over_starts_where_the_last_row_was() {
        let mut rollout = rollout(2, 0.0);
        rollout.keep_final(0, 1);
        rollout.carry_over();
        assert_eq!(floats(&rollout.obs)[..2], [4.0, 5.0]);
        assert!(rollout.final_at.is_empty());
    }
}
