//! A vector of environments from one batch.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rand::RngExt as _;
use starling_tree::{Array, DType, View};

use super::batch::{EnvBatch, check_action, rows_of};
use super::checks::{
    check_observation, check_reward, check_score, is_finite, message_of, write_legal,
};
use super::restart::{cut_off, used_up};
use super::{
    Episode, Pulse, Remake, Restart, RestartBudget, SlotSnapshot, Tally, VecEnv, VecSnapshot,
};
use crate::{EnvError, ObsMut, Rng, Rollout, Space, Step, stream};

/// A batch as a vector.
///
/// Single environments are replaced by the batch itself, if it
/// [can](EnvBatch::replaces_failed). If it cannot, a run with `on_env_error: restart` is refused.
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
    /// How many environments may be replaced, if they may be at all.
    budget: Option<Arc<RestartBudget>>,
    restarts: Vec<Restart>,
    /// The environments that failed in the last step.
    lost: Vec<bool>,
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
        mut batch: Box<dyn EnvBatch>,
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
        let pulse = Arc::default();
        batch.watch(&pulse, first_index);
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
            budget: None,
            restarts: Vec::new(),
            lost: vec![false; count],
            steps: vec![Step::default(); count],
            ended: vec![false; count],
            bounded: rows_of(&action_space, count),
            discount: 1.0,
            pulse,
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

    /// Environment `b` failed: a new one replaces it with its next reset, or the vector fails.
    fn lose(&mut self, b: usize, cause: EnvError) -> Result<(), EnvError> {
        let error = self.of(b, cause);
        let Some(budget) = &self.budget else {
            return Err(error);
        };
        if !budget.take() {
            return Err(used_up(error, budget.allowed()));
        }
        self.lost[b] = true;
        self.restarts.push(Restart {
            env: b,
            cause: error,
        });
        Ok(())
    }

    /// The same for one whose output cannot be used.
    fn reject(&mut self, b: usize, cause: EnvError) -> Result<(), EnvError> {
        self.lose(b, cause)?;
        self.batch.discard(b);
        Ok(())
    }

    /// Starts the episodes of some environments into a row.
    fn reset_some(
        &mut self,
        which: &[bool],
        row: usize,
        rollout: &mut Rollout,
    ) -> Result<(), EnvError> {
        let mut again = self.try_to_reset(which, row, rollout)?;
        while again.contains(&true) {
            again = self.try_to_reset(&again, row, rollout)?;
        }
        Ok(())
    }

    /// Returns those that failed and may be replaced; nothing if there are none.
    fn try_to_reset(
        &mut self,
        which: &[bool],
        row: usize,
        rollout: &mut Rollout,
    ) -> Result<Vec<bool>, EnvError> {
        let obs = ObsMut::at(&mut rollout.obs, &[row]);
        self.batch.reset(which, &mut self.rngs, obs)?;
        let mut again = Vec::new();
        for (b, cause) in self.batch.failed() {
            self.lose(b, cause)?;
            again.resize(which.len(), false);
            again[b] = true;
        }
        for b in (0..which.len()).filter(|b| which[*b]) {
            if again.get(b) == Some(&true) {
                continue;
            }
            self.tallies[b] = Tally::default();
            let checked = check_observation(&rollout.obs, &[row, b])
                .and_then(|()| self.write_legal(row, b, rollout));
            if let Err(error) = checked {
                self.reject(b, error)?;
                again.resize(which.len(), false);
                again[b] = true;
            }
        }
        Ok(again)
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
        self.lost.fill(false);
        for (b, cause) in self.batch.failed() {
            self.lose(b, cause)?;
        }
        let finite = is_finite(&rollout.obs, &[row]);
        for b in 0..self.steps.len() {
            if !self.lost[b]
                && let Err(error) = self.look_at(b, finite, row, rollout)
            {
                self.reject(b, error)?;
            }
            self.ended[b] = self.lost[b] || self.steps[b].done();
        }
        Ok(())
    }

    /// Counts the step of one environment, and refuses what no learner can use. `finite` says that
    /// there is no NaN in any of the observations.
    fn look_at(
        &mut self,
        b: usize,
        finite: bool,
        row: usize,
        rollout: &mut Rollout,
    ) -> Result<(), EnvError> {
        check_reward(self.steps[b])?;
        self.tallies[b].add(self.steps[b].reward, self.discount);
        if self.tallies[b].length >= self.max_episode_steps {
            self.steps[b].truncated = true;
            self.batch.cut_off(b);
        }
        let legal = self.write_legal(row, b, rollout);
        if !self.steps[b].done() {
            legal?;
        }
        match finite {
            true => Ok(()),
            false => check_observation(&rollout.obs, &[row, b]),
        }
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
                let score = match vector.ended[b] && !vector.lost[b] {
                    true => vector.batch.game_score(b),
                    false => None,
                };
                if let Err(error) = check_score(score) {
                    vector.reject(b, error)?;
                }
                if vector.lost[b] {
                    cut_off(t, b, vector.batch.frame_stack(), rollout);
                    continue;
                }
                let step = vector.steps[b];
                rollout.rewards.as_mut_slice::<f32>()[row + b] = step.reward;
                rollout.terminated.as_mut_slice::<u8>()[row + b] = u8::from(step.terminated);
                rollout.truncated.as_mut_slice::<u8>()[row + b] = u8::from(step.truncated);
                if vector.ended[b] {
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
        self.batch.watch(&pulse, self.first_index);
        self.pulse = pulse;
    }

    /// The batch makes the new environments itself.
    fn restart_failed(&mut self, _: Remake, budget: Arc<RestartBudget>) -> Result<(), EnvError> {
        if self.batch.replaces_failed() {
            self.budget = Some(budget);
            return Ok(());
        }
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
            let mut to_reset = vec![false; vector.rngs.len()];
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
                    None => to_reset[b] = true,
                }
            }
            vector.finished.clone_from(&snapshot.finished);
            match to_reset.contains(&true) {
                true => vector.reset_some(&to_reset, 0, rollout),
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
