//! Environments that code of their own steps together: a simulator that computes a batch at a time,
//! the vector environment of another library.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rand::RngExt as _;
use starling_tree::{Array, DType, View};

use super::checks::{
    check_observation, check_reward, check_score, is_finite, message_of, write_legal,
};
use super::{
    Episode, Pulse, Remake, Restart, RestartBudget, SlotSnapshot, Tally, VecEnv, VecSnapshot,
};
use crate::render::Picture;
use crate::{Action, Env, EnvError, ObsMut, Rng, Rollout, Space, Step, stream};

/// Environments of one kind that are reset and stepped together.
///
/// It is [`Env`] for several environments at once, with the same semantics. A [`BatchVecEnv`] does
/// the rest: it keeps last observations, adds up returns, limits the steps of an episode, clips and
/// checks actions, and checks what comes back.
///
/// What an implementation must do:
///
/// - **Seeding.** Environment `b` draws from `rngs[b]` and from nothing else. A batch with
///   generators of its own seeds that of environment `b` with a number from `rngs[b]` at each
///   [`reset`](EnvBatch::reset), so that what it does depends neither on the size of the batch nor
///   on the other environments.
/// - **Resets.** The caller asks for them. A batch that resets itself when an episode ends writes the
///   *last* observation of the old episode in [`step`](EnvBatch::step), keeps the first one of the
///   new episode, and hands it out when [`reset`](EnvBatch::reset) asks for that environment.
///   A batch that resets itself with the next step, ignoring its action (EnvPool, Gymnasium's
///   `NEXT_STEP`), must be told not to.
/// - **Rows.** Arrays have one row per environment. Write every element of the rows that are asked
///   for, and leave the others alone.
/// - **Time.** A call cannot be interrupted. One that takes longer than `stall_timeout_s` ends the
///   run.
///
/// [`check_batch`](crate::check::check_batch) checks all of this except the last.
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

/// A batch as a vector.
///
/// Its environments cannot be replaced one by one: with `on_env_error: restart` such a run is
/// refused.
pub struct BatchVecEnv {
    id: String,
    batch: Box<dyn EnvBatch>,
    first_index: u64,
    max_episode_steps: u64,
    observation_space: Space,
    action_space: Space,
    legal_actions: Option<usize>,
    rngs: Vec<Rng>,
    tallies: Vec<Tally>,
    finished: Vec<Episode>,
    /// Nothing is ever replaced.
    restarts: Vec<Restart>,
    /// What followed the last step.
    steps: Vec<Step>,
    /// The environments whose episodes ended with it.
    ended: Vec<bool>,
    /// Continuous actions, clipped to their bounds.
    bounded: Array,
    discount: f64,
    pulse: Arc<Pulse>,
}

impl BatchVecEnv {
    /// A vector of the environments of a batch. Environment `i` draws from
    /// `stream(seed, role, first_index + i)`, and its episodes are truncated after
    /// `max_episode_steps`. Errors call it `id`.
    ///
    /// # Errors
    /// When the batch is empty.
    pub fn new(
        id: &str,
        batch: Box<dyn EnvBatch>,
        max_episode_steps: Option<u64>,
        seed: u64,
        role: &str,
        first_index: u64,
    ) -> Result<Self, EnvError> {
        let count = batch.len();
        if count == 0 {
            return Err(EnvError::Failed(
                "a batch needs at least one environment".into(),
            ));
        }
        let action_space = batch.action_space();
        let indices = first_index..first_index + count as u64;
        Ok(Self {
            id: id.to_owned(),
            first_index,
            max_episode_steps: max_episode_steps.unwrap_or(u64::MAX),
            observation_space: batch.observation_space(),
            legal_actions: match &action_space {
                Space::Discrete { n } if batch.masks_actions() => Some(*n),
                _ => None,
            },
            rngs: indices.map(|index| stream(seed, role, index)).collect(),
            tallies: vec![Tally::default(); count],
            finished: Vec::new(),
            restarts: Vec::new(),
            steps: vec![Step::default(); count],
            ended: vec![false; count],
            bounded: rows_of(&action_space, count),
            discount: 1.0,
            pulse: Arc::default(),
            action_space,
            batch,
        })
    }

    /// Lets the batch work. If it fails or panics, the error names its environments.
    fn guarded(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<(), EnvError>,
    ) -> Result<(), EnvError> {
        self.pulse.beat(self.first_index);
        let outcome = catch_unwind(AssertUnwindSafe(|| work(self)));
        self.pulse.rest();
        let cause = match outcome {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error @ EnvError::At { .. })) => return Err(error),
            Ok(Err(error)) => error,
            Err(panic) => EnvError::Panicked(message_of(&*panic)),
        };
        Err(EnvError::Among {
            first: self.first_index,
            last: self.first_index + self.rngs.len() as u64 - 1,
            id: self.id.clone(),
            cause: Box::new(cause),
        })
    }

    /// An error of one environment.
    fn of(&self, b: usize, cause: EnvError) -> EnvError {
        EnvError::At {
            index: self.first_index + b as u64,
            id: self.id.clone(),
            cause: Box::new(cause),
        }
    }

    /// Starts the episodes of some environments into a row.
    fn reset_some(
        &mut self,
        which: &[bool],
        row: usize,
        rollout: &mut Rollout,
    ) -> Result<(), EnvError> {
        let obs = ObsMut::at(&mut rollout.obs, &[row]);
        self.batch.reset(which, &mut self.rngs, obs)?;
        for b in (0..which.len()).filter(|b| which[*b]) {
            self.tallies[b] = Tally::default();
            check_observation(&rollout.obs, &[row, b]).map_err(|error| self.of(b, error))?;
            self.write_legal(row, b, rollout)
                .map_err(|error| self.of(b, error))?;
        }
        Ok(())
    }

    fn write_legal(&self, row: usize, b: usize, rollout: &mut Rollout) -> Result<(), EnvError> {
        write_legal(row, b, rollout, |mask| self.batch.legal_actions(b, mask))
    }

    /// Takes a row of actions and writes what they lead to into a row. Leaves in `steps` what
    /// followed, and in `ended` where an episode is over.
    fn act(
        &mut self,
        actions: View<'_>,
        row: usize,
        rollout: &mut Rollout,
    ) -> Result<(), EnvError> {
        let each = actions.bytes.len() / self.rngs.len();
        for (b, action) in actions.bytes.chunks_exact(each).enumerate() {
            let action = View {
                dtype: actions.dtype,
                shape: &actions.shape[1..],
                bytes: action,
            };
            check_action(&self.action_space, action).map_err(|error| self.of(b, error))?;
        }
        let clips = matches!(self.action_space, Space::Box { .. });
        if clips {
            clip(&self.action_space, actions, &mut self.bounded);
        }
        let given = match clips {
            true => self.bounded.at(&[]),
            false => actions,
        };
        let obs = ObsMut::at(&mut rollout.obs, &[row]);
        self.batch
            .step(given, &mut self.rngs, obs, &mut self.steps)?;
        for b in 0..self.steps.len() {
            check_reward(self.steps[b]).map_err(|error| self.of(b, error))?;
            self.tallies[b].add(self.steps[b].reward, self.discount);
            if self.tallies[b].length >= self.max_episode_steps {
                self.steps[b].truncated = true;
                self.batch.cut_off(b);
            }
            self.ended[b] = self.steps[b].done();
            let legal = self.write_legal(row, b, rollout);
            if !self.ended[b] {
                legal.map_err(|error| self.of(b, error))?;
            }
        }
        if !is_finite(&rollout.obs, &[row]) {
            for b in 0..self.steps.len() {
                check_observation(&rollout.obs, &[row, b]).map_err(|error| self.of(b, error))?;
            }
        }
        Ok(())
    }

    /// Starts the next episodes where one ended.
    fn reset_ended(&mut self, row: usize, rollout: &mut Rollout) -> Result<(), EnvError> {
        if !self.ended.contains(&true) {
            return Ok(());
        }
        let ended = std::mem::take(&mut self.ended);
        let outcome = self.reset_some(&ended, row, rollout);
        self.ended = ended;
        outcome
    }

    fn check_width(&self, rollout: &Rollout) {
        assert_eq!(
            rollout.envs(),
            self.rngs.len(),
            "the rollout's columns are for another number of environments"
        );
    }
}

impl VecEnv for BatchVecEnv {
    fn len(&self) -> usize {
        self.rngs.len()
    }

    fn observation_space(&self) -> &Space {
        &self.observation_space
    }

    fn action_space(&self) -> &Space {
        &self.action_space
    }

    fn legal_actions(&self) -> Option<usize> {
        self.legal_actions
    }

    fn reset(&mut self, rollout: &mut Rollout) -> Result<(), EnvError> {
        self.check_width(rollout);
        self.guarded(|vector| {
            let all = vec![true; vector.rngs.len()];
            vector.reset_some(&all, 0, rollout)
        })
    }

    fn step(&mut self, t: usize, rollout: &mut Rollout) -> Result<(), EnvError> {
        self.check_width(rollout);
        assert!(t < rollout.steps(), "the rollout has no row {t}");
        self.guarded(|vector| {
            let actions = std::mem::replace(&mut rollout.actions, Array::zeros(DType::U8, &[0]));
            let acted = vector.act(actions.at(&[t]), t + 1, rollout);
            rollout.actions = actions;
            acted?;
            let row = t * vector.rngs.len();
            for b in 0..vector.rngs.len() {
                let step = vector.steps[b];
                rollout.rewards.as_mut_slice::<f32>()[row + b] = step.reward;
                rollout.terminated.as_mut_slice::<u8>()[row + b] = u8::from(step.terminated);
                rollout.truncated.as_mut_slice::<u8>()[row + b] = u8::from(step.truncated);
                if vector.ended[b] {
                    let score = vector.batch.game_score(b);
                    check_score(score).map_err(|error| vector.of(b, error))?;
                    let episode = vector.tallies[b].episode(b, score);
                    vector.finished.push(episode);
                    rollout.keep_final(t, b);
                }
            }
            vector.reset_ended(t + 1, rollout)
        })
    }

    fn finished(&mut self) -> std::vec::Drain<'_, Episode> {
        self.finished.drain(..)
    }

    /// All environments are stepped until the last one has taken its steps. Each one starts the
    /// episode from which its own steps count as many steps before the end as it is to take, on
    /// a fresh copy of its stream, so that what it does does not depend on the others.
    fn decorrelate(
        &mut self,
        max_steps: u64,
        stop: &AtomicBool,
        rollout: &mut Rollout,
    ) -> Result<bool, EnvError> {
        self.check_width(rollout);
        let count = self.rngs.len();
        let draw = |rng: &mut Rng| rng.random_range(0..=max_steps);
        let own: Vec<u64> = self.rngs.iter_mut().map(draw).collect();
        let streams = self.rngs.clone();
        let total = own.iter().copied().max().unwrap_or(0);
        let mut actions = rows_of(&self.action_space, count);
        let mut stopped = false;
        self.reset(rollout)?;
        for left in (0..=total).rev() {
            stopped |= stop.load(Ordering::Relaxed);
            let begins = |own: &u64| match stopped {
                true => *own <= left,
                false => *own == left,
            };
            let begin: Vec<bool> = own.iter().map(begins).collect();
            if left < total && begin.contains(&true) {
                for b in (0..count).filter(|b| begin[*b]) {
                    self.rngs[b] = streams[b].clone();
                }
                self.guarded(|vector| vector.reset_some(&begin, 0, rollout))?;
            }
            if left == 0 || stopped {
                break;
            }
            for b in 0..count {
                let legal = rollout.legal.as_ref().map(|legal| legal.at(&[0, b]));
                let legal = legal.map(|legal| legal.as_slice::<u8>());
                let action = actions.at_mut(&[b]);
                self.action_space.sample(&mut self.rngs[b], legal, action);
            }
            self.guarded(|vector| {
                vector.act(actions.at(&[]), 0, rollout)?;
                vector.reset_ended(0, rollout)
            })?;
        }
        Ok(!stopped)
    }

    fn set_discount(&mut self, gamma: f64) {
        self.discount = gamma;
    }

    fn pulse(&self) -> &Arc<Pulse> {
        &self.pulse
    }

    fn set_pulse(&mut self, pulse: Arc<Pulse>) {
        self.pulse = pulse;
    }

    fn restart_failed(&mut self, _: Remake, _: Arc<RestartBudget>) -> Result<(), EnvError> {
        Err(EnvError::Failed(format!(
            "environments of {} are stepped as one batch and cannot be restarted one by one; use \
             on_env_error=stop",
            self.id
        )))
    }

    fn restarts(&mut self) -> std::vec::Drain<'_, Restart> {
        self.restarts.drain(..)
    }

    fn snapshot(&self) -> VecSnapshot {
        let slots = self.rngs.iter().zip(&self.tallies).enumerate();
        VecSnapshot {
            slots: slots
                .map(|(b, (rng, tally))| SlotSnapshot {
                    env: self.batch.snapshot(b),
                    rng: rng.clone(),
                    tally: *tally,
                })
                .collect(),
            finished: self.finished.clone(),
        }
    }

    fn restore(&mut self, snapshot: &VecSnapshot, rollout: &mut Rollout) -> Result<(), EnvError> {
        self.check_width(rollout);
        snapshot.check_width(self.len())?;
        self.guarded(|vector| {
            let mut anew = vec![false; vector.rngs.len()];
            for (b, saved) in snapshot.slots.iter().enumerate() {
                vector.rngs[b] = saved.rng.clone();
                vector.tallies[b] = saved.tally;
                match &saved.env {
                    Some(env) => {
                        let restored = vector.batch.restore(b, env);
                        restored
                            .and_then(|()| vector.write_legal(0, b, rollout))
                            .map_err(|error| vector.of(b, error))?;
                    }
                    None => anew[b] = true,
                }
            }
            vector.finished.clone_from(&snapshot.finished);
            match anew.contains(&true) {
                true => vector.reset_some(&anew, 0, rollout),
                false => Ok(()),
            }
        })
    }
}

impl std::fmt::Debug for BatchVecEnv {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BatchVecEnv")
            .field("id", &self.id)
            .field("len", &self.rngs.len())
            .finish_non_exhaustive()
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
                "a batch of one environment was asked for; it has {count}"
            )));
        }
        let action = rows_of(&batch.action_space(), 1);
        Ok(Self { batch, action })
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
        self.batch.reset(&[true], std::slice::from_mut(rng), obs)
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
fn rows_of(space: &Space, count: usize) -> Array {
    let item = Rollout::action_spec(space);
    Array::zeros(item.dtype, &[&[count], &item.shape[..]].concat())
}

/// Refuses an action that is not in its space; bounds are left to clipping.
fn check_action(space: &Space, action: View<'_>) -> Result<(), EnvError> {
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

/// Clips rows of continuous actions to the bounds of their space.
fn clip(space: &Space, actions: View<'_>, clipped: &mut Array) {
    let Space::Box { bounds, .. } = space else {
        return;
    };
    let each = actions.shape[1..].iter().product::<usize>().max(1);
    let values = actions.as_slice::<f32>().iter().enumerate();
    for (slot, (i, value)) in clipped.as_mut_slice::<f32>().iter_mut().zip(values) {
        let (low, high) = bounds.of(i % each);
        *slot = value.max(low).min(high);
    }
}
