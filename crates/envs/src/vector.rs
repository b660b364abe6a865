//! Environments stepped as a vector, directly into the columns of a rollout.
//!
//! Read first: [`VecEnv`] (what the engine steps), [`SyncVecEnv`] (a loop over [`Env`]s),
//! [`EnvBatch`] (environments that are stepped in one call, wrapped by a [`BatchVecEnv`]).
//!
//! [`Env`]: crate::Env

mod batch;
mod batched;
mod checks;
mod pulse;
mod restart;
mod sync;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use serde::{Deserialize, Serialize};

pub use self::batch::{BatchOfOne, EnvBatch};
pub use self::batched::BatchVecEnv;
pub(crate) use self::checks::message_of;
pub use self::pulse::Pulse;
pub use self::restart::{Remake, Restart, RestartBudget};
pub use self::sync::SyncVecEnv;
use crate::{EnvError, Rng, Rollout, Space};

/// Environments of the same type that are stepped together, by the thread that owns them: the
/// interface between the engine and environments.
///
/// There are two implementations: [`SyncVecEnv`] for environments that implement
/// [`Env`](crate::Env), and [`BatchVecEnv`] for batches that implement [`EnvBatch`]. To add other
/// environments, implement one of those two traits.
///
/// What an implementation does:
///
/// - **Streams.** Environment `i` draws from `stream(seed, role, first_index + i)` and from nothing
///   else, so that its behaviour depends only on the seed, the role, its index and its actions, not
///   on the number of other environments or on the thread that steps them.
/// - **Resets.** An episode that ends in a step is followed by the first observation of the next one
///   in the same row; the last observation of the old one is kept by [`Rollout::keep_final`].
/// - **Episodes.** Each episode that ended is reported once by [`finished`](VecEnv::finished).
/// - **Numbers.** Invalid outputs are errors of the environment and do not reach a rollout:
///   rewards, observations and scores that are NaN or infinite, and no legal action in an episode
///   that continues.
/// - **Panics.** A panic of an environment is an error that names it.
/// - **The pulse** names the environment that is being stepped, or the first of a batch, and is
///   idle between calls.
#[expect(clippy::len_without_is_empty, reason = "there is at least one")]
pub trait VecEnv: Send {
    /// The number of environments, at least 1.
    fn len(&self) -> usize;

    /// What the environments show.
    fn observation_space(&self) -> &Space;

    /// What the environments accept.
    fn action_space(&self) -> &Space;

    /// The number of actions, if the environments mask some of them at times.
    fn legal_actions(&self) -> Option<usize>;

    /// Starts an episode in every environment, into row 0 of the observations (and of the legal
    /// actions).
    ///
    /// # Errors
    /// When an environment fails or panics and is not replaced
    /// ([`restart_failed`](VecEnv::restart_failed)); the error says which.
    ///
    /// # Panics
    /// When the rollout has another number of environments.
    fn reset(&mut self, rollout: &mut Rollout) -> Result<(), EnvError>;

    /// Takes the actions of row `t`: writes what followed into row `t` and the next observations
    /// (and legal actions) into row `t + 1`. The environments get continuous actions clipped to
    /// the bounds of their space; the rollout keeps what the policy chose.
    ///
    /// Where an episode ends, its last observation is kept by [`Rollout::keep_final`], a new
    /// episode starts in row `t + 1`, and [`finished`](VecEnv::finished) has one more.
    ///
    /// # Errors
    /// When an environment fails or panics and is not replaced
    /// ([`restart_failed`](VecEnv::restart_failed)); the error says which.
    ///
    /// # Panics
    /// When the rollout has another number of environments or no row `t`.
    fn step(&mut self, t: usize, rollout: &mut Rollout) -> Result<(), EnvError>;

    /// The episodes that ended since the last call, in the order in which they ended.
    fn finished(&mut self) -> std::vec::Drain<'_, Episode>;

    /// Starts an episode in every environment and takes random (legal) actions, each environment
    /// for its own random number of steps from 0 to `max_steps`, so that collection does not start
    /// with all of them in the same state. Leaves what they show in row 0.
    ///
    /// Episodes that end meanwhile are not counted as [`finished`](VecEnv::finished); those that
    /// have not ended by then count with all their steps.
    ///
    /// Once `stop` is true no further steps are taken: environments that have not had theirs only
    /// start an episode. Returns whether all steps were taken.
    ///
    /// # Errors
    /// When an environment fails or panics and is not replaced
    /// ([`restart_failed`](VecEnv::restart_failed)); the error says which.
    ///
    /// # Panics
    /// When the rollout has another number of environments.
    fn decorrelate(
        &mut self,
        max_steps: u64,
        stop: &AtomicBool,
        rollout: &mut Rollout,
    ) -> Result<bool, EnvError>;

    /// The discount per step (γ) of [`Episode::discounted_return`]; 1 unless set.
    fn set_discount(&mut self, gamma: f64);

    /// Shows other threads which environment is at work; see [`Pulse`].
    fn pulse(&self) -> &Arc<Pulse>;

    /// Reports to this pulse from now on.
    fn set_pulse(&mut self, pulse: Arc<Pulse>);

    /// From now on an environment that reports an error is replaced by a new one from `make`, as
    /// long as the budget lasts. A panic is still an error of the vector: it is a bug in the
    /// environment's code, which a new one would have too.
    ///
    /// The step that failed counts as one that changed nothing and gave no reward, and its episode
    /// is truncated there. That episode is not among the [`finished`](VecEnv::finished) ones.
    ///
    /// # Errors
    /// When single environments of this vector cannot be replaced.
    fn restart_failed(&mut self, make: Remake, budget: Arc<RestartBudget>) -> Result<(), EnvError>;

    /// The environments that were replaced since the last call, in the order in which they failed.
    fn restarts(&mut self) -> std::vec::Drain<'_, Restart>;

    /// Everything from which [`restore`](VecEnv::restore) continues exactly: the environments
    /// that can be saved, the random streams, the sums of unfinished episodes.
    ///
    /// The current observations are not part of it: they are in the caller's rollout.
    fn snapshot(&self) -> VecSnapshot;

    /// Continues from a snapshot of the same number and kind of environments.
    ///
    /// Writes row 0 of the legal actions, and row 0 of the observations of those environments
    /// that could not be saved and start a new episode. The caller restores the observations of
    /// the others.
    ///
    /// # Errors
    /// When the snapshot is of another number or kind of environments.
    fn restore(&mut self, snapshot: &VecSnapshot, rollout: &mut Rollout) -> Result<(), EnvError>;
}

/// An episode that ended.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Episode {
    /// Which environment of the vector played it.
    pub env: usize,
    /// The sum of its rewards.
    pub return_: f64,
    /// The same with each step's reward discounted; see [`VecEnv::set_discount`].
    pub discounted_return: f64,
    /// Its number of steps.
    pub length: u64,
    /// Its number of steps with a reward other than 0.
    pub nonzero_rewards: u64,
    /// The points of the game that ended with it, where there are such; see
    /// [`Env::game_score`](crate::Env::game_score).
    pub game_score: Option<f64>,
}

/// The state of a [`VecEnv`], from which it continues exactly.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VecSnapshot {
    slots: Vec<SlotSnapshot>,
    finished: Vec<Episode>,
}

impl VecSnapshot {
    /// Whether every environment could be saved. Those that could not start a new episode when
    /// the snapshot is restored.
    pub fn is_complete(&self) -> bool {
        self.restarted().next().is_none()
    }

    fn check_width(&self, envs: usize) -> Result<(), EnvError> {
        match self.slots.len() {
            saved if saved == envs => Ok(()),
            saved => Err(EnvError::Snapshot(format!(
                "it holds {saved} environments where there are {envs}"
            ))),
        }
    }

    /// The environments that could not be saved: they start a new episode.
    pub fn restarted(&self) -> impl Iterator<Item = usize> {
        let slots = self.slots.iter().enumerate();
        slots.filter_map(|(b, slot)| slot.env.is_none().then_some(b))
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct SlotSnapshot {
    env: Option<Vec<u8>>,
    rng: Rng,
    tally: Tally,
}

/// The sums of an unfinished episode.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Tally {
    return_: f64,
    discounted_return: f64,
    /// Discount of the next reward.
    discount: f64,
    length: u64,
    nonzero_rewards: u64,
}

impl Default for Tally {
    fn default() -> Self {
        Self {
            return_: 0.0,
            discounted_return: 0.0,
            discount: 1.0,
            length: 0,
            nonzero_rewards: 0,
        }
    }
}

impl Tally {
    fn add(&mut self, reward: f32, gamma: f64) {
        self.return_ += f64::from(reward);
        self.discounted_return += self.discount * f64::from(reward);
        self.discount *= gamma;
        self.length += 1;
        self.nonzero_rewards += u64::from(reward != 0.0);
    }

    fn episode(self, env: usize, game_score: Option<f64>) -> Episode {
        Episode {
            env,
            return_: self.return_,
            discounted_return: self.discounted_return,
            length: self.length,
            nonzero_rewards: self.nonzero_rewards,
            game_score,
        }
    }
}
