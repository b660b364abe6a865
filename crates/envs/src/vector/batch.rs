//! Environments that are stepped in one call: a simulator that computes a batch at a time, or the
//! vector environment of another library.

use std::sync::Arc;

use starling_tree::{Array, View};

use super::Pulse;

use crate::render::Picture;
use crate::{Action, Env, EnvError, ObsMut, Rng, Rollout, Space, Step};

/// Environments of the same type that are reset and stepped together.
///
/// It is [`Env`] for several environments at once, with the same semantics. A [`BatchVecEnv`](crate::BatchVecEnv) does
/// the rest: it keeps last observations, adds up returns, limits the steps of an episode, clips and
/// checks actions, and checks what comes back.
///
/// What an implementation must do:
///
/// - **Seeding.** Environment `b` draws from `rngs[b]` and from nothing else. A batch with internal
///   generators seeds that of environment `b` with a number from `rngs[b]` at each
///   [`reset`](EnvBatch::reset), so that its behaviour depends neither on the size of the batch nor
///   on the other environments.
/// - **Resets.** The caller requests them. A batch that resets itself when an episode ends writes
///   the *last* observation of the old episode in [`step`](EnvBatch::step), keeps the first one of
///   the new episode, and hands it out when [`reset`](EnvBatch::reset) asks for that environment. A
///   batch that resets itself with the next step, ignoring its action (EnvPool, Gymnasium's
///   `NEXT_STEP`), must be configured not to.
/// - **Rows.** Arrays have one row per environment. Write every element of the requested rows, and
///   do not change the others.
/// - **Failures.** A call that returns an error failed as a whole. A batch that knows which of its
///   environments failed returns `Ok` and reports them by [`failed`](EnvBatch::failed).
/// - **Time.** A call cannot be interrupted. One that takes longer than `stall_timeout_s` ends the
///   run.
///
/// [`check_batch`](crate::check::check_batch) checks all of this except the last two.
#[expect(clippy::len_without_is_empty, reason = "there is at least one")]
pub trait EnvBatch: Send {
    /// The number of environments; constant.
    fn len(&self) -> usize;

    /// What one environment shows.
    fn observation_space(&self) -> Space;

    /// What one environment accepts.
    fn action_space(&self) -> Space;

    /// Starts an episode in each environment `b` with `which[b]`, and writes its first observation
    /// into row `b`.
    ///
    /// # Errors
    /// When one of them cannot be reset.
    fn reset(&mut self, which: &[bool], rngs: &mut [Rng], obs: ObsMut<'_>) -> Result<(), EnvError>;

    /// Takes one action in each environment: `i64` for discrete spaces, `f32` for others, within
    /// the action space. Writes the observations that follow, also where an episode ends, and
    /// `steps`.
    ///
    /// # Errors
    /// When one of them fails.
    fn step(
        &mut self,
        actions: View<'_>,
        rngs: &mut [Rng],
        obs: ObsMut<'_>,
        steps: &mut [Step],
    ) -> Result<(), EnvError>;

    /// The environments that failed in the last call of [`reset`](EnvBatch::reset) or
    /// [`step`](EnvBatch::step), each once, and why. Their rows and steps hold nothing.
    fn failed(&mut self) -> Vec<(usize, EnvError)> {
        Vec::new()
    }

    /// Whether the next [`reset`](EnvBatch::reset) of an environment that [failed](EnvBatch::failed)
    /// or was [discarded](EnvBatch::discard) puts a new one in its place.
    fn replaces_failed(&self) -> bool {
        false
    }

    /// What one environment gave cannot be used: its next [`reset`](EnvBatch::reset) is to put a new
    /// one in its place.
    fn discard(&mut self, _env: usize) {}

    /// Called before the first reset: a batch that knows which of its environments it waits
    /// for may [say so](Pulse::point). Environment `b` has the number `first_index + b`.
    fn watch(&mut self, _pulse: &Arc<Pulse>, _first_index: u64) {}

    /// See [`Env::frame_stack`].
    fn frame_stack(&self) -> Option<usize> {
        None
    }

    /// See [`Env::masks_actions`].
    fn masks_actions(&self) -> bool {
        false
    }

    /// The legal actions of one environment; see [`Env::legal_actions`].
    fn legal_actions(&self, _env: usize, mask: &mut [u8]) {
        mask.fill(1);
    }

    /// The score of the game of one environment; see [`Env::game_score`].
    fn game_score(&self, _env: usize) -> Option<f64> {
        None
    }

    /// See [`Env::counts_games`].
    fn counts_games(&self) -> bool {
        false
    }

    /// The episode of one environment was cut off from outside; see [`Env::cut_off`].
    fn cut_off(&mut self, _env: usize) {}

    /// A picture of one environment; see [`Env::render`].
    ///
    /// # Errors
    /// When it cannot be shown.
    fn render(&self, _env: usize) -> Result<Picture, EnvError> {
        Err(EnvError::NoPicture)
    }

    /// See [`Env::render_fps`].
    fn render_fps(&self) -> f64 {
        15.0
    }

    /// The whole state of one environment; see [`Env::snapshot`].
    fn snapshot(&self, _env: usize) -> Option<Vec<u8>> {
        None
    }

    /// Continues one environment from a snapshot; see [`Env::restore`].
    ///
    /// # Errors
    /// When it is not a snapshot of such an environment.
    fn restore(&mut self, _env: usize, _snapshot: &[u8]) -> Result<(), EnvError> {
        Err(EnvError::Snapshot("it cannot be saved".into()))
    }
}

/// A batch of one environment as an [`Env`].
pub struct BatchOfOne {
    batch: Box<dyn EnvBatch>,
    action: Array,
}

impl BatchOfOne {
    /// The only environment of a batch.
    ///
    /// # Errors
    /// When it has another number of them.
    pub fn new(batch: Box<dyn EnvBatch>) -> Result<Self, EnvError> {
        let count = batch.len();
        if count != 1 {
            return Err(EnvError::Failed(format!(
                "a batch of one environment was requested; it has {count}"
            )));
        }
        let action = rows_of(&batch.action_space(), 1);
        Ok(Self { batch, action })
    }

    fn first_failure(&mut self) -> Result<(), EnvError> {
        match self.batch.failed().pop() {
            Some((_, cause)) => Err(cause),
            None => Ok(()),
        }
    }
}

impl Env for BatchOfOne {
    fn observation_space(&self) -> Space {
        self.batch.observation_space()
    }

    fn action_space(&self) -> Space {
        self.batch.action_space()
    }

    fn reset(&mut self, rng: &mut Rng, obs: ObsMut<'_>) -> Result<(), EnvError> {
        self.batch.reset(&[true], std::slice::from_mut(rng), obs)?;
        self.first_failure()
    }

    fn step(
        &mut self,
        action: Action<'_>,
        rng: &mut Rng,
        obs: ObsMut<'_>,
    ) -> Result<Step, EnvError> {
        let mut row = self.action.at_mut(&[0]);
        match action {
            Action::Discrete(choice) => row.write(&[choice as i64]),
            Action::MultiDiscrete(choices) => row.write(choices),
            Action::Continuous(values) => row.write(values),
        }
        check_action(&self.batch.action_space(), self.action.at(&[0]))?;
        let mut steps = [Step::default()];
        let rngs = std::slice::from_mut(rng);
        self.batch
            .step(self.action.at(&[]), rngs, obs, &mut steps)?;
        self.first_failure()?;
        Ok(steps[0])
    }

    fn frame_stack(&self) -> Option<usize> {
        self.batch.frame_stack()
    }

    fn masks_actions(&self) -> bool {
        self.batch.masks_actions()
    }

    fn legal_actions(&self, mask: &mut [u8]) {
        self.batch.legal_actions(0, mask);
    }

    fn game_score(&self) -> Option<f64> {
        self.batch.game_score(0)
    }

    fn counts_games(&self) -> bool {
        self.batch.counts_games()
    }

    fn cut_off(&mut self) {
        self.batch.cut_off(0);
    }

    fn render(&self) -> Result<Picture, EnvError> {
        self.batch.render(0)
    }

    fn render_fps(&self) -> f64 {
        self.batch.render_fps()
    }

    fn snapshot(&self) -> Option<Vec<u8>> {
        self.batch.snapshot(0)
    }

    fn restore(&mut self, snapshot: &[u8]) -> Result<(), EnvError> {
        self.batch.restore(0, snapshot)
    }
}

/// One row of actions for each environment.
pub(super) fn rows_of(space: &Space, count: usize) -> Array {
    let item = Rollout::action_spec(space);
    Array::zeros(item.dtype, &[&[count], &item.shape[..]].concat())
}

/// Refuses an action that is not in its space; bounds are left to clipping.
pub(super) fn check_action(space: &Space, action: View<'_>) -> Result<(), EnvError> {
    match space {
        Space::Discrete { n } => {
            // A negative number wraps to a huge one.
            let choice = action.as_slice::<i64>()[0] as usize;
            Action::Discrete(choice).discrete(*n).map(drop)
        }
        Space::MultiDiscrete { choices } => {
            let chosen = action.as_slice::<i64>();
            let good = |(choice, n): (&i64, &usize)| (0..*n as i64).contains(choice);
            match chosen.iter().zip(choices).all(good) {
                true => Ok(()),
                false => Err(EnvError::Action {
                    action: format!("{chosen:?}"),
                    allowed: format!("below {choices:?}"),
                }),
            }
        }
        Space::Box { .. } | Space::Dict(_) => {
            let values = action.as_slice::<f32>();
            Action::Continuous(values)
                .continuous(values.len())
                .map(drop)
        }
    }
}
