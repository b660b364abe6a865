//! One block of experience: T steps of B environments, as columns.

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
    /// What the policy recorded with each action (log-probabilities, values), `[T, B, ..]`.
    pub policy: Tree<Array>,
    /// The policy's recurrent state before the first step, `[B, ..]`.
    pub state: Tree<Array>,
    /// Version of the weights that chose the actions of the first step.
    pub version: u64,
    final_spec: Tree<Spec>,
}

impl Rollout {
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
        let action = action.spec();
        let action = action.leaf().cloned().unwrap_or_else(|| {
            // Actions with named parts are laid side by side as one vector of floats.
            let parts = action.leaves().iter().map(|(_, s)| s.elements()).sum();
            Spec::new(DType::F32, &[parts])
        });
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
            policy: Tree::zeros(policy, &[steps, envs]),
            state: Tree::zeros(state, &[envs]),
            version: 0,
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

    /// Keeps row (`t` + 1, `b`) of the observations as the last one of an episode that ended
    /// with step `t`.
    pub fn keep_final(&mut self, t: usize, b: usize) {
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
        copy_row(&mut self.final_obs, &[used], &self.obs, &[t + 1, b]);
        self.final_at.push((t, b));
    }

    /// Makes the last row of observations the first one, so that the columns can be filled anew
    /// from there.
    pub fn carry_over(&mut self) {
        let last = self.steps();
        for (_, array) in self.obs.leaves_mut() {
            carry_row(array, last);
        }
        if let Some(legal) = &mut self.legal {
            carry_row(legal, last);
        }
        self.final_at.clear();
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
