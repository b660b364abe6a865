//! Several environments stepped by one thread, straight into the columns of a rollout.

mod pulse;
mod restart;
#[cfg(test)]
mod tests;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::{Deserialize, Serialize};
use starling_tree::{Array, DType, Tree};

pub use self::pulse::Pulse;
use self::restart::Remaker;
pub use self::restart::{Restart, RestartBudget};
use crate::registry::EnvSpec;
use crate::{Action, Env, EnvError, EnvOptions, ObsMut, Rng, Rollout, Space, Step, stream};

/// Environments of one kind, stepped in a loop by the thread that owns them.
///
/// Each environment has its own random stream, so that what it does depends on nothing but the
/// seed, the role, its index and the actions it is given: not on how many others there are, nor on
/// which thread steps them.
///
/// What would harm a learner is an error of the environment that gave it, and does not reach a
/// rollout: rewards, observations and scores that are NaN or infinite, and no legal action in an
/// episode that continues.
pub struct VecEnv {
    id: String,
    slots: Vec<Slot>,
    first_index: u64,
    observation_space: Space,
    action_space: Space,
    legal_actions: Option<usize>,
    finished: Vec<Episode>,
    /// The environment that is being stepped, to be named if it fails.
    at_work: usize,
    /// Whether it is starting an episode.
    resetting: bool,
    /// Frames in an observation, where it is a stack of them.
    frame_stack: Option<usize>,
    /// Replaces environments that fail, if asked for.
    remaker: Option<Remaker>,
    restarts: Vec<Restart>,
    /// A continuous action, clipped to its bounds.
    bounded: Vec<f32>,
    discount: f64,
    pulse: Arc<Pulse>,
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
    /// The points of the game that ended with it, where there are such; see [`Env::game_score`].
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

struct Slot {
    env: Box<dyn Env>,
    rng: Rng,
    tally: Tally,
}

impl VecEnv {
    /// `count` environments of one kind.
    ///
    /// Environment `i` draws from `stream(seed, role, first_index + i)`.
    ///
    /// # Errors
    /// When `count` is 0, the environments cannot be made with these options, or their spaces
    /// differ.
    pub fn new(
        spec: &EnvSpec,
        options: &EnvOptions,
        count: usize,
        seed: u64,
        role: &str,
        first_index: u64,
    ) -> Result<Self, EnvError> {
        let envs = (0..count).map(|_| spec.make(options));
        let envs = envs.collect::<Result<_, _>>()?;
        Self::build(spec.id, envs, seed, role, first_index)
    }

    /// Environments that the caller made, all with the same spaces. Errors call them `custom`
    /// unless they are [`named`](VecEnv::named).
    ///
    /// # Errors
    /// When there is none, or their spaces differ.
    pub fn from_envs(
        envs: Vec<Box<dyn Env>>,
        seed: u64,
        role: &str,
        first_index: u64,
    ) -> Result<Self, EnvError> {
        Self::build("custom", envs, seed, role, first_index)
    }

    fn build(
        id: &str,
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
            id: id.to_owned(),
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
    fn check_kind(&self, env: &dyn Env) -> Result<(), EnvError> {
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

    /// The discount per step (γ) of [`Episode::discounted_return`]; 1 unless set.
    pub fn set_discount(&mut self, gamma: f64) {
        self.discount = gamma;
    }

    /// Shows other threads which environment is at work; see [`Pulse`].
    pub fn pulse(&self) -> &Arc<Pulse> {
        &self.pulse
    }

    /// Reports to this pulse from now on.
    pub fn set_pulse(&mut self, pulse: Arc<Pulse>) {
        self.pulse = pulse;
    }

    /// The number of environments.
    #[expect(clippy::len_without_is_empty, reason = "there is at least one")]
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// What the environments show.
    pub fn observation_space(&self) -> &Space {
        &self.observation_space
    }

    /// What the environments accept.
    pub fn action_space(&self) -> &Space {
        &self.action_space
    }

    /// The number of actions, if the environments mask some of them at times.
    pub fn legal_actions(&self) -> Option<usize> {
        self.legal_actions
    }

    /// Starts an episode in every environment, into row 0 of the observations (and of the legal
    /// actions).
    ///
    /// # Errors
    /// When an environment fails or panics and is not replaced
    /// ([`restart_failed`](VecEnv::restart_failed)); the error says which.
    ///
    /// # Panics
    /// When the rollout has another number of environments.
    pub fn reset(&mut self, rollout: &mut Rollout) -> Result<(), EnvError> {
        self.check_width(rollout);
        self.one_by_one(None, 0, rollout, |vector, b, rollout| {
            vector.reset_one(0, b, rollout)
        })
    }

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
    pub fn step(&mut self, t: usize, rollout: &mut Rollout) -> Result<(), EnvError> {
        self.check_width(rollout);
        assert!(t < rollout.steps(), "the rollout has no row {t}");
        let width = self.len();
        self.one_by_one(Some(t), t + 1, rollout, |vector, b, rollout| {
            let slot = &mut vector.slots[b];
            let action = Action::at(&vector.action_space, &rollout.actions, &[t, b]);
            let action = within(action, &vector.action_space, &mut vector.bounded);
            let obs = ObsMut::at(&mut rollout.obs, &[t + 1, b]);
            let step = slot.env.step(action, &mut slot.rng, obs)?;
            check_reward(step)?;
            slot.tally.add(step.reward, vector.discount);
            let item = t * width + b;
            rollout.rewards.as_mut_slice::<f32>()[item] = step.reward;
            rollout.terminated.as_mut_slice::<u8>()[item] = u8::from(step.terminated);
            rollout.truncated.as_mut_slice::<u8>()[item] = u8::from(step.truncated);
            let legal = write_legal(&*slot.env, t + 1, b, rollout);
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

    /// The episodes that ended since the last call, in the order in which they ended.
    pub fn finished(&mut self) -> std::vec::Drain<'_, Episode> {
        self.finished.drain(..)
    }

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
    pub fn decorrelate(
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
                    write_legal(&*slot.env, 0, b, rollout)?;
                }
            }
            Ok(())
        })?;
        Ok(complete)
    }

    /// Everything from which [`restore`](VecEnv::restore) continues exactly: the environments
    /// that can be saved, the random streams, the sums of unfinished episodes.
    ///
    /// The current observations are not part of it: they are in the caller's rollout.
    pub fn snapshot(&self) -> VecSnapshot {
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

    /// Continues from a snapshot of the same number and kind of environments.
    ///
    /// Writes row 0 of the legal actions, and row 0 of the observations of those environments
    /// that could not be saved and start a new episode. The caller restores the observations of
    /// the others.
    ///
    /// # Errors
    /// When the snapshot is of another number or kind of environments.
    pub fn restore(
        &mut self,
        snapshot: &VecSnapshot,
        rollout: &mut Rollout,
    ) -> Result<(), EnvError> {
        self.check_width(rollout);
        if snapshot.slots.len() != self.len() {
            return Err(EnvError::Snapshot(format!(
                "it holds {} environments where there are {}",
                snapshot.slots.len(),
                self.len()
            )));
        }
        self.guarded(|vector| {
            for (b, saved) in snapshot.slots.iter().enumerate() {
                vector.at_work = b;
                let slot = &mut vector.slots[b];
                slot.rng = saved.rng.clone();
                slot.tally = saved.tally;
                match &saved.env {
                    Some(env) => {
                        slot.env.restore(env)?;
                        write_legal(&*slot.env, 0, b, rollout)?;
                    }
                    None => vector.reset_one(0, b, rollout)?,
                }
            }
            vector.finished.clone_from(&snapshot.finished);
            Ok(())
        })
    }

    /// Starts an episode of environment `b` into a row.
    fn reset_one(&mut self, row: usize, b: usize, rollout: &mut Rollout) -> Result<(), EnvError> {
        self.at_work = b;
        self.resetting = true;
        let slot = &mut self.slots[b];
        slot.tally = Tally::default();
        let obs = ObsMut::at(&mut rollout.obs, &[row, b]);
        slot.env.reset(&mut slot.rng, obs)?;
        check_observation(&rollout.obs, &[row, b])?;
        write_legal(&*slot.env, row, b, rollout)
    }

    /// Does `work` for one environment after the other. One that fails is replaced if that is
    /// allowed: see [`replace`](VecEnv::replace) for `t` and `row`.
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
    fn guarded(
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

impl std::fmt::Debug for VecEnv {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VecEnv")
            .field("id", &self.id)
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

/// A continuous action, clipped to the bounds of its space.
fn within<'a>(action: Action<'a>, space: &Space, bounded: &'a mut Vec<f32>) -> Action<'a> {
    let (Action::Continuous(values), Space::Box { bounds, .. }) = (action, space) else {
        return action;
    };
    bounded.clear();
    bounded.extend(values.iter().enumerate().map(|(i, value)| {
        let (low, high) = bounds.of(i);
        // A NaN stays one, for the environment to refuse.
        if value.is_nan() {
            *value
        } else {
            value.max(low).min(high)
        }
    }));
    Action::Continuous(bounded)
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

/// Writes the legal actions, where some are masked. It is an error if there is none.
fn write_legal(env: &dyn Env, row: usize, b: usize, rollout: &mut Rollout) -> Result<(), EnvError> {
    let Some(legal) = &mut rollout.legal else {
        return Ok(());
    };
    let mut legal = legal.at_mut(&[row, b]);
    let mask = legal.as_mut_slice::<u8>();
    env.legal_actions(mask);
    match mask.iter().any(|flag| *flag != 0) {
        true => Ok(()),
        false => Err(EnvError::Failed(
            "no action is legal although the episode continues".into(),
        )),
    }
}

fn check_reward(step: Step) -> Result<(), EnvError> {
    let reward = step.reward;
    match reward.is_finite() {
        true => Ok(()),
        false => Err(EnvError::Failed(format!("it gave the reward {reward}"))),
    }
}

fn check_score(score: Option<f64>) -> Result<(), EnvError> {
    match score {
        Some(score) if !score.is_finite() => {
            Err(EnvError::Failed(format!("it gave the game score {score}")))
        }
        _ => Ok(()),
    }
}

/// Refuses an observation with a NaN or an infinite number, which would spoil a network and what a
/// replay holds.
fn check_observation(obs: &Tree<Array>, index: &[usize]) -> Result<(), EnvError> {
    match is_finite(obs, index) {
        true => Ok(()),
        false => Err(not_finite(obs, index)),
    }
}

fn is_finite(obs: &Tree<Array>, index: &[usize]) -> bool {
    match obs {
        // Without early exit, so that the loops become vector instructions.
        Tree::Leaf(array) => match array.dtype() {
            DType::F32 => {
                let values = array.at(index).as_slice::<f32>().iter();
                values.fold(true, |all, value| all & value.is_finite())
            }
            DType::F64 => {
                let values = array.at(index).as_slice::<f64>().iter();
                values.fold(true, |all, value| all & value.is_finite())
            }
            DType::U8 | DType::I32 | DType::I64 => true,
        },
        Tree::Node(parts) => parts.iter().all(|(_, part)| is_finite(part, index)),
    }
}

/// Says where an observation is not finite.
#[cold]
fn not_finite(obs: &Tree<Array>, index: &[usize]) -> EnvError {
    for (path, array) in obs.leaves() {
        let view = array.at(index);
        let values: Vec<f64> = match view.dtype {
            DType::F32 => {
                let values = view.as_slice::<f32>().iter();
                values.map(|value| f64::from(*value)).collect()
            }
            DType::F64 => view.as_slice().to_vec(),
            DType::U8 | DType::I32 | DType::I64 => continue,
        };
        let bad = values
            .iter()
            .enumerate()
            .find(|(_, value)| !value.is_finite());
        if let Some((element, value)) = bad {
            let part = match path.is_empty() {
                true => String::new(),
                false => format!(" of '{path}'"),
            };
            return EnvError::Failed(format!(
                "its observation has {value} at element {element}{part}"
            ));
        }
    }
    EnvError::Failed("its observation is not finite".into())
}

/// What a panic said.
pub(crate) fn message_of(panic: &(dyn std::any::Any + Send)) -> String {
    if let Some(text) = panic.downcast_ref::<&str>() {
        (*text).to_owned()
    } else if let Some(text) = panic.downcast_ref::<String>() {
        text.clone()
    } else {
        "it gave no message".to_owned()
    }
}
