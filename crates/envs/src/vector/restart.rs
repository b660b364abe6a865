//! What happens when an environment fails: its vector fails too, or a new environment replaces it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use starling_tree::{Array, Tree};

use super::SyncVecEnv;
use crate::{Env, EnvError, Rollout};

/// How many environments may be replaced, over all vectors that share it.
#[derive(Debug)]
pub struct RestartBudget {
    allowed: u64,
    used: AtomicU64,
}

impl RestartBudget {
    /// A budget of `allowed` replacements.
    pub fn new(allowed: u64) -> Self {
        Self {
            allowed,
            used: AtomicU64::new(0),
        }
    }

    /// How many were replaced.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Sets how many were replaced before, in a run that is resumed.
    pub fn set_used(&self, used: u64) {
        self.used.store(used, Ordering::Relaxed);
    }

    pub(super) fn allowed(&self) -> u64 {
        self.allowed
    }

    pub(super) fn take(&self) -> bool {
        let one_more = |used| (used < self.allowed).then_some(used + 1);
        let (set, get) = (Ordering::Relaxed, Ordering::Relaxed);
        self.used.fetch_update(set, get, one_more).is_ok()
    }
}

/// An environment that failed and was replaced.
#[derive(Debug)]
pub struct Restart {
    /// Which one of the vector.
    pub env: usize,
    /// What went wrong, with the environment's number in the whole run.
    pub cause: EnvError,
}

/// Makes the environment that replaces one that failed, from its place in the vector.
pub type Remake = Box<dyn FnMut(usize) -> Result<Box<dyn Env>, EnvError> + Send>;

/// What replaces failed environments.
pub(super) struct Remaker {
    pub(super) make: Remake,
    pub(super) budget: Arc<RestartBudget>,
}

impl SyncVecEnv {
    /// Replaces the environment that was at work when `error` came. The new one starts its episode
    /// into `row`. If the error came with step `t`, the old episode is cut off there.
    pub(super) fn replace(
        &mut self,
        mut error: EnvError,
        t: Option<usize>,
        row: usize,
        rollout: &mut Rollout,
    ) -> Result<(), EnvError> {
        let env = self.at_work;
        let Some(mut remaker) = self.remaker.take() else {
            return Err(error);
        };
        // If the episode had ended and the next one could not start, step `t` is already written.
        let mut cut = t.filter(|_| !self.resetting);
        let replaced = loop {
            if has_panicked(&error) {
                break Err(error);
            }
            if !remaker.budget.take() {
                break Err(used_up(error, remaker.budget.allowed));
            }
            self.restarts.push(Restart { env, cause: error });
            if let Some(t) = cut.take() {
                cut_off(t, env, self.frame_stack, rollout);
            }
            let begun = self.guarded(|vector| {
                let new = (remaker.make)(env)?;
                vector.check_kind(&*new)?;
                vector.slots[env].env = new;
                vector.reset_one(row, env, rollout)
            });
            match begun {
                Ok(()) => break Ok(()),
                Err(again) => error = again,
            }
        };
        self.remaker = Some(remaker);
        replaced
    }
}

fn has_panicked(error: &EnvError) -> bool {
    match error {
        EnvError::At { cause, .. } => has_panicked(cause),
        other => matches!(other, EnvError::Panicked(_)),
    }
}

pub(super) fn used_up(error: EnvError, allowed: u64) -> EnvError {
    let said = |cause: &EnvError| {
        let message = format!("{cause} (and {allowed} environments were already restarted)");
        EnvError::Failed(message)
    };
    match error {
        EnvError::At { index, id, cause } => EnvError::At {
            index,
            id,
            cause: Box::new(said(&cause)),
        },
        other => said(&other),
    }
}

/// Ends an episode with a step that changed nothing.
pub(super) fn cut_off(t: usize, b: usize, frame_stack: Option<usize>, rollout: &mut Rollout) {
    let item = t * rollout.envs() + b;
    rollout.rewards.as_mut_slice::<f32>()[item] = 0.0;
    rollout.terminated.as_mut_slice::<u8>()[item] = 0;
    rollout.truncated.as_mut_slice::<u8>()[item] = 1;
    repeat_row(&mut rollout.obs, t, b, frame_stack);
    if let Some(legal) = &mut rollout.legal {
        copy_down(legal, t, b);
    }
    rollout.keep_final(t, b);
}

/// Repeats row `t` in row `t + 1`. A stack of frames moves on by one frame, as with every step: the
/// newest is repeated.
fn repeat_row(obs: &mut Tree<Array>, t: usize, b: usize, frame_stack: Option<usize>) {
    for (_, array) in obs.leaves_mut() {
        copy_down(array, t, b);
        let frames = array.shape().get(2).copied();
        if let Some(frames) = frames.filter(|frames| Some(*frames) == frame_stack) {
            let next = array.at_mut(&[t + 1, b]).bytes;
            next.copy_within(next.len() / frames.., 0);
        }
    }
}

fn copy_down(array: &mut Array, t: usize, b: usize) {
    let row = array.at(&[t, b]).bytes.to_vec();
    array.at_mut(&[t + 1, b]).bytes.copy_from_slice(&row);
}
