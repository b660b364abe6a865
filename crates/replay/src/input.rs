//! One column of a rollout, as it is inserted into a ring.

use starling_envs::Rollout;
use starling_tree::Array;

use crate::ReplayError;
use crate::layout::records_and_state;
use crate::ring::{Plan, TERMINATED, TRUNCATED};

/// Where an observation lies in a rollout.
#[derive(Clone, Copy, Debug)]
pub(crate) enum At {
    /// This row.
    Row(usize),
    /// This place among the final observations.
    Final(usize),
}

/// A rollout that was checked, seen as bytes.
pub(crate) struct Checked<'a> {
    rollout: &'a Rollout,
    obs: Vec<&'a Array>,
    finals: Vec<&'a Array>,
    records: Vec<&'a Array>,
    states: Vec<&'a Array>,
    finals_at: Finals,
    priorities: Option<&'a [f32]>,
}

/// One column of it.
pub(crate) struct Input<'a> {
    all: &'a Checked<'a>,
    b: usize,
    envs: usize,
    pub(crate) steps: usize,
    pub(crate) version: u64,
}

impl<'a> Checked<'a> {
    /// Refuses a rollout that the rings could not store.
    pub(crate) fn new(
        plan: &Plan,
        rollout: &'a Rollout,
        priorities: Option<&'a [f32]>,
    ) -> Result<Self, ReplayError> {
        plan.layout.check(rollout)?;
        let (records, state) = records_and_state(&rollout.policy);
        let checked = Self {
            rollout,
            obs: arrays(&rollout.obs),
            finals: arrays(&rollout.final_obs),
            records: records.leaves().into_iter().map(|(_, a)| *a).collect(),
            states: state.leaves().into_iter().map(|(_, a)| *a).collect(),
            finals_at: Finals::of(plan, rollout)?,
            priorities,
        };
        for b in 0..rollout.envs() {
            checked.column(b).check_stacks(plan)?;
        }
        Ok(checked)
    }

    pub(crate) fn column(&'a self, b: usize) -> Input<'a> {
        Input {
            all: self,
            b,
            envs: self.rollout.envs(),
            steps: self.rollout.steps(),
            version: self.rollout.version,
        }
    }
}

impl<'a> Input<'a> {
    /// The bytes of one leaf of an observation.
    pub(crate) fn observation(&self, leaf: usize, at: At) -> &'a [u8] {
        match at {
            At::Row(t) => self.item(self.all.obs[leaf], t),
            At::Final(row) => self.all.finals[leaf].at(&[row]).bytes,
        }
    }

    pub(crate) fn legal(&self, at: At) -> &'a [u8] {
        let Some(legal) = &self.all.rollout.legal else {
            return &[];
        };
        let actions = legal.shape()[2];
        match at {
            At::Row(t) => self.item(legal, t),
            At::Final(row) => &self.all.rollout.final_legal[row * actions..][..actions],
        }
    }

    pub(crate) fn action(&self, t: usize) -> &'a [u8] {
        self.item(&self.all.rollout.actions, t)
    }

    pub(crate) fn record(&self, leaf: usize, t: usize) -> &'a [u8] {
        self.item(self.all.records[leaf], t)
    }

    /// The recurrent state before step `t`, one leaf after the other.
    pub(crate) fn state(&self, t: usize) -> Box<[u8]> {
        let leaves = self.all.states.iter().map(|array| self.item(array, t));
        leaves.collect::<Vec<_>>().concat().into_boxed_slice()
    }

    pub(crate) fn reward(&self, t: usize) -> f32 {
        self.all.rollout.rewards.as_slice::<f32>()[t * self.envs + self.b]
    }

    pub(crate) fn flags(&self, t: usize) -> u8 {
        let at = t * self.envs + self.b;
        let rollout = self.all.rollout;
        flags_of(
            rollout.terminated.as_slice::<u8>()[at],
            rollout.truncated.as_slice::<u8>()[at],
        )
    }

    /// The priority that the actor gave step `t`.
    pub(crate) fn given(&self, t: usize) -> Option<f32> {
        Some(self.all.priorities?[t * self.envs + self.b])
    }

    /// Where the last observation of the episode lies that ended with step `t`.
    pub(crate) fn final_of(&self, t: usize) -> At {
        // `Finals::of` has looked up every one that is asked for.
        At::Final(self.all.finals_at.find(t, self.b).unwrap_or_default())
    }

    fn item(&self, array: &'a Array, t: usize) -> &'a [u8] {
        array.at(&[t, self.b]).bytes
    }

    /// Refuses observations that do not go on with the frames of the one before.
    fn check_stacks(&self, plan: &Plan) -> Result<(), ReplayError> {
        let stacks = plan.frames.iter().enumerate().filter(|(_, f)| f.stack > 1);
        for (leaf, frames) in stacks {
            for t in 0..self.steps {
                let next = match self.flags(t) {
                    0 => At::Row(t + 1),
                    ended if plan.keeps_final(ended) => self.final_of(t),
                    _ => continue,
                };
                let kept = &self.observation(leaf, At::Row(t))[frames.bytes..];
                if !begins_with(self.observation(leaf, next), kept, t) {
                    return Err(ReplayError::NotAStack { t, b: self.b });
                }
            }
        }
        Ok(())
    }
}

/// Whether an observation begins with the frames kept from the one before, which row `t` has.
///
/// Comparing all of every row would cost more than storing it. So every row is compared in
/// pieces, the pieces of the next row lying behind those of this one: what is not a stack is
/// found in a few rows.
fn begins_with(observation: &[u8], kept: &[u8], t: usize) -> bool {
    const PIECE: usize = 64;
    const EVERY: usize = 16;
    let Some(observation) = observation.get(..kept.len()) else {
        return false;
    };
    if t == 0 || kept.len() < 2 * PIECE * EVERY {
        return observation == kept;
    }
    let pieces = observation.chunks(PIECE).zip(kept.chunks(PIECE));
    pieces
        .skip(t % EVERY)
        .step_by(EVERY)
        .all(|(piece, kept)| piece == kept)
}

fn flags_of(terminated: u8, truncated: u8) -> u8 {
    (u8::from(terminated != 0) * TERMINATED) | (u8::from(truncated != 0) * TRUNCATED)
}

fn arrays(tree: &starling_tree::Tree<Array>) -> Vec<&Array> {
    tree.leaves().into_iter().map(|(_, array)| array).collect()
}

/// The final observations of episodes, by step and column.
struct Finals(Vec<((usize, usize), usize)>);

impl Finals {
    /// Refuses a rollout that lacks one that is to be kept.
    fn of(plan: &Plan, rollout: &Rollout) -> Result<Self, ReplayError> {
        let places = rollout.final_at.iter().enumerate();
        let mut finals: Vec<_> = places.map(|(row, &at)| (at, row)).collect();
        finals.sort_unstable();
        let finals = Self(finals);
        let envs = rollout.envs();
        let terminated = rollout.terminated.as_slice::<u8>();
        let truncated = rollout.truncated.as_slice::<u8>();
        for (at, (terminated, truncated)) in terminated.iter().zip(truncated).enumerate() {
            let (t, b) = (at / envs, at % envs);
            let kept = plan.keeps_final(flags_of(*terminated, *truncated));
            if kept && finals.find(t, b).is_none() {
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
}
