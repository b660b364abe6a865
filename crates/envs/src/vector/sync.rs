//! Environments of the same type, stepped one after the other.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use starling_tree::Array;

use super::checks::{
    check_observation, check_reward, check_score, is_finite, message_of, write_legal,
};
use super::restart::Remaker;
use super::{
    Episode, Pulse, Remake, Restart, RestartBudget, SlotSnapshot, Tally, VecEnv, VecSnapshot,
};
use crate::{Action, Env, EnvError, ObsMut, Rng, Rollout, Space, stream};

/// Environments of one kind, stepped one after the other by the thread that owns them.
pub struct SyncVecEnv {
    id: String,
    pub(super) slots: Vec<Slot>,
    first_index: u64,
    observation_space: Space,
    action_space: Space,
    legal_actions: Option<usize>,
    finished: Vec<Episode>,
    /// The environment that is being stepped, to be named if it fails.
    pub(super) at_work: usize,
    /// Whether it is starting an episode.
    pub(super) resetting: bool,
    /// Frames in an observation, where it is a stack of them.
    pub(super) frame_stack: Option<usize>,
    /// Replaces environments that fail, if asked for.
    pub(super) remaker: Option<Remaker>,
    pub(super) restarts: Vec<Restart>,
    /// A continuous action, clipped to its bounds.
    bounded: Vec<f32>,
    discount: f64,
    pulse: Arc<Pulse>,
}

pub(super) struct Slot {
    pub(super) env: Box<dyn Env>,
    rng: Rng,
    tally: Tally,
}

impl SyncVecEnv {
    /// Environments that the caller made, all with the same spaces. Environment `i` draws from
    /// `stream(seed, role, first_index + i)`. Errors call them `custom` unless they are
    /// [`named`](SyncVecEnv::named).
    ///
    /// # Errors
    /// When there is none, or their spaces differ.
    pub fn from_envs(
        envs: Vec<Box<dyn Env>>,
        seed: u64,
        role: &str,
        first_index: u64,
    ) -> Result<Self, EnvError> {
        let Some(first) = envs.first() else {
            return Err(EnvError::Failed(
                "a vector needs at least one environment".into(),
            ));
        };
        let action_space = first.action_space();
        let legal_actions = match &action_space {
            Space::Discrete { n } if first.masks_actions() => Some(*n),
            _ => None,
        };
        let mut vector = Self {
            id: "custom".to_owned(),
            slots: Vec::with_capacity(envs.len()),
            first_index,
            observation_space: first.observation_space(),
            action_space,
            legal_actions,
            finished: Vec::new(),
            at_work: 0,
            resetting: false,
            frame_stack: first.frame_stack(),
            remaker: None,
            restarts: Vec::new(),
            bounded: Vec::new(),
            discount: 1.0,
            pulse: Arc::default(),
        };
        for (env, index) in envs.into_iter().zip(first_index..) {
            vector.at_work = vector.len();
            vector.guarded(|vector| vector.check_kind(&*env))?;
            vector.slots.push(Slot {
                env,
                rng: stream(seed, role, index),
                tally: Tally::default(),
            });
        }
        Ok(vector)
    }

    /// Refuses an environment that does not have the spaces of the others.
    pub(super) fn check_kind(&self, env: &dyn Env) -> Result<(), EnvError> {
        let differs = |what: &str, is: &dyn std::fmt::Debug, others: &dyn std::fmt::Debug| {
            Err(EnvError::Failed(format!(
                "its {what} is {is:?}, but that of the other environments is {others:?}; all \
                 environments of a run must have the same"
            )))
        };
        let (observation, action) = (env.observation_space(), env.action_space());
        if observation != self.observation_space {
            return differs("observation space", &observation, &self.observation_space);
        }
        if action != self.action_space {
            return differs("action space", &action, &self.action_space);
        }
        let stack = env.frame_stack();
        if stack != self.frame_stack {
            return differs("frame_stack()", &stack, &self.frame_stack);
        }
        let (masks, others) = (env.masks_actions(), self.legal_actions.is_some());
        // Only discrete actions can be masked, whatever an environment says.
        if masks != others && matches!(action, Space::Discrete { .. }) {
            return differs("masks_actions()", &masks, &others);
        }
        Ok(())
    }

    /// The name by which errors call these environments.
    pub fn named(mut self, id: impl Into<String>) -> Self {
        self.id = id.into();
        self
    }

    /// Looks at all observations that followed step `t`. One look at the whole row costs next to
    /// nothing, where one per environment would take a tenth of a fast environment's time.
    fn check_row(&mut self, t: usize, rollout: &mut Rollout) -> Result<(), EnvError> {
        if is_finite(&rollout.obs, &[t + 1]) {
            return Ok(());
        }
        self.one_by_one(Some(t), t + 1, rollout, |_, b, rollout| {
            check_observation(&rollout.obs, &[t + 1, b])
        })
    }

    /// Starts an episode of environment `b` into a row.
    pub(super) fn reset_one(
        &mut self,
        row: usize,
        b: usize,
        rollout: &mut Rollout,
    ) -> Result<(), EnvError> {
        self.at_work = b;
        self.resetting = true;
        let slot = &mut self.slots[b];
        slot.tally = Tally::default();
        let obs = ObsMut::at(&mut rollout.obs, &[row, b]);
        slot.env.reset(&mut slot.rng, obs)?;
        check_observation(&rollout.obs, &[row, b])?;
        write_legal(row, b, rollout, |mask| slot.env.legal_actions(mask))
    }

    /// Does `work` for one environment after the other. One that fails is replaced if that is
    /// allowed: see [`replace`](SyncVecEnv::replace) for `t` and `row`.
    fn one_by_one(
        &mut self,
        t: Option<usize>,
        row: usize,
        rollout: &mut Rollout,
        mut work: impl FnMut(&mut Self, usize, &mut Rollout) -> Result<(), EnvError>,
    ) -> Result<(), EnvError> {
        let mut first = 0;
        while first < self.len() {
            let done = self.guarded(|vector| {
                for b in first..vector.len() {
                    vector.at_work = b;
                    vector.resetting = false;
                    vector.pulse.beat(vector.first_index + b as u64);
                    work(vector, b, rollout)?;
                }
                Ok(())
            });
            let Err(error) = done else {
                break;
            };
            if let Err(error) = self.replace(error, t, row, rollout) {
                self.pulse.rest();
                return Err(error);
            }
            first = self.at_work + 1;
        }
        self.pulse.rest();
        Ok(())
    }

    /// Runs `work`; if it fails or panics, the error names the environment that was at work.
    ///
    /// One guard around the whole loop instead of one per step keeps it out of the optimiser's
    /// way.
    pub(super) fn guarded(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<(), EnvError>,
    ) -> Result<(), EnvError> {
        let outcome = catch_unwind(AssertUnwindSafe(|| work(self)));
        let error = match outcome {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => error,
            Err(panic) => EnvError::Panicked(message_of(&*panic)),
        };
        Err(EnvError::At {
            index: self.first_index + self.at_work as u64,
            id: self.id.clone(),
            cause: Box::new(error),
        })
    }

    fn check_width(&self, rollout: &Rollout) {
        assert_eq!(
            rollout.envs(),
            self.len(),
            "the rollout's columns are for another number of environments"
        );
    }
}

impl VecEnv for SyncVecEnv {
    fn len(&self) -> usize {
        self.slots.len()
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
        self.one_by_one(None, 0, rollout, |vector, b, rollout| {
            vector.reset_one(0, b, rollout)
        })
    }

    fn step(&mut self, t: usize, rollout: &mut Rollout) -> Result<(), EnvError> {
        self.check_width(rollout);
        assert!(t < rollout.steps(), "the rollout has no row {t}");
        let width = self.len();
        self.one_by_one(Some(t), t + 1, rollout, |vector, b, rollout| {
            let slot = &mut vector.slots[b];
            let action = Action::at(&vector.action_space, &rollout.actions, &[t, b]);
            let action = action.within(&vector.action_space, &mut vector.bounded);
            let obs = ObsMut::at(&mut rollout.obs, &[t + 1, b]);
            let step = slot.env.step(action, &mut slot.rng, obs)?;
            check_reward(step)?;
            slot.tally.add(step.reward, vector.discount);
            let item = t * width + b;
            rollout.rewards.as_mut_slice::<f32>()[item] = step.reward;
            rollout.terminated.as_mut_slice::<u8>()[item] = u8::from(step.terminated);
            rollout.truncated.as_mut_slice::<u8>()[item] = u8::from(step.truncated);
            let legal = write_legal(t + 1, b, rollout, |mask| slot.env.legal_actions(mask));
            if !step.done() {
                // In a game that is over, there may be nothing left to do.
                legal?;
            } else {
                check_observation(&rollout.obs, &[t + 1, b])?;
                let score = slot.env.game_score();
                check_score(score)?;
                vector.finished.push(slot.tally.episode(b, score));
                rollout.keep_final(t, b);
                vector.reset_one(t + 1, b, rollout)?;
            }
            Ok(())
        })?;
        self.check_row(t, rollout)
    }

    fn finished(&mut self) -> std::vec::Drain<'_, Episode> {
        self.finished.drain(..)
    }

    fn decorrelate(
        &mut self,
        max_steps: u64,
        stop: &AtomicBool,
        rollout: &mut Rollout,
    ) -> Result<bool, EnvError> {
        use rand::RngExt as _;

        self.check_width(rollout);
        let mut action = Array::zeros(
            rollout.actions.dtype(),
            &[&[1], &rollout.actions.shape()[2..]].concat(),
        );
        let mut complete = true;
        self.one_by_one(None, 0, rollout, |vector, b, rollout| {
            vector.reset_one(0, b, rollout)?;
            let steps = vector.slots[b].rng.random_range(0..=max_steps);
            for _ in 0..steps {
                vector.pulse.beat(vector.first_index + b as u64);
                if stop.load(Ordering::Relaxed) {
                    complete = false;
                    break;
                }
                let slot = &mut vector.slots[b];
                let legal = rollout.legal.as_ref().map(|legal| legal.at(&[0, b]));
                let legal = legal.map(|legal| legal.as_slice::<u8>());
                vector
                    .action_space
                    .sample(&mut slot.rng, legal, action.at_mut(&[0]));
                let obs = ObsMut::at(&mut rollout.obs, &[0, b]);
                let action = Action::at(&vector.action_space, &action, &[0]);
                let step = slot.env.step(action, &mut slot.rng, obs)?;
                check_reward(step)?;
                check_observation(&rollout.obs, &[0, b])?;
                slot.tally.add(step.reward, vector.discount);
                if step.done() {
                    vector.reset_one(0, b, rollout)?;
                } else {
                    write_legal(0, b, rollout, |mask| slot.env.legal_actions(mask))?;
                }
            }
            Ok(())
        })?;
        Ok(complete)
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

    fn restart_failed(&mut self, make: Remake, budget: Arc<RestartBudget>) -> Result<(), EnvError> {
        self.remaker = Some(Remaker { make, budget });
        Ok(())
    }

    fn restarts(&mut self) -> std::vec::Drain<'_, Restart> {
        self.restarts.drain(..)
    }

    fn snapshot(&self) -> VecSnapshot {
        let slots = self.slots.iter().map(|slot| SlotSnapshot {
            env: slot.env.snapshot(),
            rng: slot.rng.clone(),
            tally: slot.tally,
        });
        VecSnapshot {
            slots: slots.collect(),
            finished: self.finished.clone(),
        }
    }

    fn restore(&mut self, snapshot: &VecSnapshot, rollout: &mut Rollout) -> Result<(), EnvError> {
        self.check_width(rollout);
        snapshot.check_width(self.len())?;
        self.guarded(|vector| {
            for (b, saved) in snapshot.slots.iter().enumerate() {
                vector.at_work = b;
                let slot = &mut vector.slots[b];
                slot.rng = saved.rng.clone();
                slot.tally = saved.tally;
                match &saved.env {
                    Some(env) => {
                        slot.env.restore(env)?;
                        write_legal(0, b, rollout, |mask| slot.env.legal_actions(mask))?;
                    }
                    None => vector.reset_one(0, b, rollout)?,
                }
            }
            vector.finished.clone_from(&snapshot.finished);
            Ok(())
        })
    }
}

impl std::fmt::Debug for SyncVecEnv {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SyncVecEnv")
            .field("id", &self.id)
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}
