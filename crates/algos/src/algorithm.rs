//! The interface between algorithms and the engine.

use std::collections::BTreeMap;

use starling_envs::{Rng, Rollout, Space};
use starling_nets::export::NotExported;
use starling_nets::{Device, ReduceError, Schedule, ShapeMismatch, SharedReducer, Snapshot};
use starling_replay::{
    GroupedDraws, RateConfig, ReplayConfig, ReplayError, SequenceBatch, TransitionBatch,
};
use starling_tree::{Array, Spec, Tree};

use crate::Exported;

/// A learning algorithm with its settings, for the spaces of one environment.
///
/// Its methods work on batches, never on single steps, so that calling them through a trait
/// object costs nothing.
pub trait Algorithm: Send + Sync {
    /// The data that it consumes.
    fn experience(&self) -> Experience;

    /// How much less the next step counts (γ).
    fn discount(&self) -> f64;

    /// How evaluations are played, if it adapts to a task over several episodes: as trials.
    fn trial(&self) -> Option<Trial> {
        None
    }

    /// A policy on the given device, still without weights: the engine loads them.
    fn policy(&self, device: Device) -> Box<dyn Policy>;

    /// The policy with these weights for other programs. The spaces are those that the algorithm was made
    /// for.
    ///
    /// # Errors
    /// If the algorithm, or its network, has no export.
    fn export(&self, _spaces: &Spaces, _weights: &Snapshot) -> Result<Exported, NotExported> {
        Err(crate::export::not_implemented())
    }

    /// A learner with first weights drawn from the run's seed.
    fn learner(&self, seed: u64, device: Device) -> Box<dyn Learner>;
}

/// A trial of an evaluation: several episodes in a row on the same task, with what was learned in the
/// earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trial {
    /// Episodes; the last one is what an evaluation reports as its return.
    pub episodes: usize,
    /// The name of one more episode, without what was learned, to compare with.
    pub control: Option<&'static str>,
}

/// What an environment shows and accepts.
#[derive(Clone, Debug, PartialEq)]
pub struct Spaces {
    /// Observations.
    pub observation: Space,
    /// Actions.
    pub action: Space,
    /// Number of actions, if the environment says which ones are legal.
    pub legal_actions: Option<usize>,
    /// Frames in an observation, if it is a stack of the last ones.
    pub frame_stack: Option<usize>,
}

/// The data that an algorithm consumes.
#[derive(Clone, Debug, PartialEq)]
pub enum Experience {
    /// Whole rollouts, each used for one update and then dropped.
    Rollouts {
        /// Steps of each environment per rollout (T).
        steps: usize,
    },
    /// Batches of transitions from a replay, or of sequences if its settings say so.
    Transitions(Box<ReplayNeeds>),
}

/// A replay and how it is used.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplayNeeds {
    /// Steps of each environment between two rounds of learning (T).
    pub steps: usize,
    /// What is stored and how it is sampled.
    pub replay: ReplayConfig,
    /// How many samples are drawn per inserted step.
    pub rate: RateConfig,
    /// Transitions or sequences per update, over all its draws.
    pub batch_size: usize,
    /// How the transitions of an update are composed of several draws, each from some of the
    /// environments; one draw from all of them if absent. A stream of the replay is an environment.
    pub draws: Option<GroupedDraws>,
    /// Exponent of importance weights over the run; without effect on uniform draws.
    pub beta: Schedule,
}

impl ReplayNeeds {
    /// Steps that one batch trains: of sequences, all steps of their trained parts.
    pub fn batch_steps(&self) -> u64 {
        let sequence = self.replay.sequence.as_ref();
        let each = sequence.map_or(1, |sequence| sequence.length_steps);
        (self.batch_size * each) as u64
    }
}

/// The part of a policy's [state](Policy::state) that is kept when an episode ends: what it has
/// learned about a trial of several episodes. The policy itself begins a new trial.
pub const TRIAL: &str = "trial";

/// Whether a leaf of a policy's state, by its dotted path, is of the part called [`TRIAL`].
pub fn survives_episode(path: &str) -> bool {
    path.split('.').next() == Some(TRIAL)
}

/// One actor's side of an algorithm: chooses actions for a batch of environments.
pub trait Policy: Send {
    /// What it records with each action, for the learner. A record called `priority`, one `f32`
    /// per step, is the first priority of the step in a replay.
    fn records(&self) -> Tree<Spec>;

    /// What it keeps from step to step for each environment; empty if it is not recurrent. At the
    /// end of an episode, everything except the part called [`TRIAL`] is set to zero.
    fn state(&self) -> Tree<Spec>;

    /// Loads published weights.
    fn load(&mut self, weights: &Snapshot) -> Result<(), ShapeMismatch>;

    /// Chooses the actions of row `t` of a rollout, and writes them and its records there.
    fn act(&mut self, t: usize, rollout: &mut Rollout, acting: Acting<'_>);

    /// The same for several rollouts, which always form the same `group`; in one batch, if the
    /// policy supports it.
    fn act_together(&mut self, t: usize, _group: usize, parts: &mut [Part<'_>]) {
        for part in parts {
            self.act(t, part.rollout, part.acting.reborrow());
        }
    }

    /// Called when the rollouts of a group are full, before they go to the learner: completes
    /// records that depend on later steps, such as priorities, and attaches data on the device
    /// ([`Rollout::resident`]).
    fn finish(&mut self, _group: usize, _parts: &mut [Part<'_>]) {}
}

/// One of several rollouts whose actions are chosen together.
#[derive(Debug)]
pub struct Part<'a> {
    /// Where observations are read and actions are written.
    pub rollout: &'a mut Rollout,
    /// The circumstances of its environments.
    pub acting: Acting<'a>,
}

/// The circumstances of a choice.
#[derive(Debug)]
pub struct Acting<'a> {
    /// True in training; in evaluation the policy shows its best.
    pub explore: bool,
    /// Steps of all environments since the beginning of the run.
    pub env_steps: u64,
    /// Number of the first environment of this batch among all of the run.
    pub first_env: usize,
    /// Environments of the run.
    pub total_envs: usize,
    /// One random stream per environment of the batch.
    pub rngs: &'a mut [Rng],
    /// The policy's memory, `[B, ..]`; the policy updates it. Where an episode begins it is zero,
    /// but for the part called [`TRIAL`].
    pub state: &'a mut Tree<Array>,
}

impl Acting<'_> {
    /// The same for a shorter time.
    pub fn reborrow(&mut self) -> Acting<'_> {
        Acting {
            rngs: self.rngs,
            state: self.state,
            ..*self
        }
    }
}

/// The learner's side of an algorithm.
pub trait Learner: Send {
    /// Learns from one batch, of the kind that [`Algorithm::experience`] asked for.
    fn update(&mut self, batch: Batch<'_>, progress: Progress) -> Result<Report, LearnError>;

    /// The same without waiting for a device that computes by itself. Before it is called again, all
    /// but the last [`in_flight`](Learner::in_flight)` - 1` of what it started are to be finished.
    fn start(&mut self, batch: Batch<'_>, progress: Progress) -> Result<Started, LearnError> {
        let report = self.update(batch, progress)?;
        Ok(Started::new(move || Ok(report)))
    }

    /// Updates that may be started and not finished at the same time.
    fn in_flight(&self) -> usize {
        1
    }

    /// The weights that policies act with.
    fn weights(&self) -> Snapshot;

    /// From now on gradients and running statistics are averaged over a group of learners.
    fn join(&mut self, reducer: SharedReducer);

    /// Everything needed to continue exactly: weights, optimiser, random streams, counters.
    fn save(&self) -> Saved;

    /// Continues from what [`save`](Learner::save) gave.
    fn load(&mut self, saved: &Saved) -> Result<(), LearnError>;
}

/// Arrays by name: what a learner saves.
pub type Saved = BTreeMap<String, Array>;

/// One batch of experience.
#[derive(Clone, Copy, Debug)]
pub enum Batch<'a> {
    /// Rollouts of the same number of steps. In lockstep and with a fixed lag they are of all
    /// environments of the run, in their order; asynchronously of any of them.
    Rollouts(&'a [&'a Rollout]),
    /// Transitions drawn from a replay.
    Transitions(&'a TransitionBatch),
    /// Sequences drawn from a replay.
    Sequences(&'a SequenceBatch),
}

/// How far a run has come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    /// Steps of all environments so far.
    pub env_steps: u64,
    /// Steps at which the run ends.
    pub total_steps: u64,
}

impl Progress {
    /// From 0 at the beginning to 1 at the end.
    pub fn fraction(&self) -> f64 {
        (self.env_steps as f64 / self.total_steps.max(1) as f64).min(1.0)
    }
}

/// An update that a device may still be computing.
pub struct Started(Box<dyn FnOnce() -> Result<Report, LearnError> + Send>);

impl Started {
    /// An update whose report `finish` gives once the device is done.
    pub fn new(finish: impl FnOnce() -> Result<Report, LearnError> + Send + 'static) -> Self {
        Self(Box::new(finish))
    }

    /// Waits for the end of the update.
    pub fn finish(self) -> Result<Report, LearnError> {
        (self.0)()
    }
}

impl std::fmt::Debug for Started {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Started")
    }
}

/// What came of an update.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// Named numbers, such as `loss`; all finite.
    pub metrics: Vec<(&'static str, f64)>,
    /// New priorities of the transitions of the batch, in its order.
    pub priorities: Option<Vec<f32>>,
    /// Seconds that went into bringing the batch to the device, before anything was learned.
    pub assemble_s: f64,
}

impl Report {
    /// A report, unless one of its numbers is NaN or infinite.
    pub fn checked(
        metrics: Vec<(&'static str, f64)>,
        priorities: Option<Vec<f32>>,
    ) -> Result<Self, LearnError> {
        match metrics.iter().find(|(_, value)| !value.is_finite()) {
            Some(&(metric, value)) => Err(LearnError::NotFinite { metric, value }),
            None => Ok(Self {
                metrics,
                priorities,
                assemble_s: 0.0,
            }),
        }
    }
}

/// What goes wrong in learning.
#[derive(Debug, thiserror::Error)]
pub enum LearnError {
    /// The numbers blew up.
    #[error(
        "{metric} is {value}: training cannot continue; a smaller learning rate or gradient norm \
         (algo.learning_rate, algo.clip_norm) may help"
    )]
    NotFinite {
        /// Which number.
        metric: &'static str,
        /// NaN or an infinity.
        value: f64,
    },
    /// A saved state does not fit this algorithm and these settings.
    #[error("the saved learner cannot be used: {0}")]
    Saved(String),
    /// Rollouts of different steps or kinds.
    #[error("the rollouts of one batch do not match")]
    Mismatch,
    /// The engine gave another kind of batch than was asked for.
    #[error("this algorithm learns from {wanted}, but was given something else")]
    WrongBatch {
        /// What it asks for.
        wanted: &'static str,
    },
    /// The replay refused something.
    #[error(transparent)]
    Replay(#[from] ReplayError),
    /// The other learners of a group could not be reached.
    #[error(transparent)]
    Group(#[from] ReduceError),
}

impl From<ShapeMismatch> for LearnError {
    fn from(error: ShapeMismatch) -> Self {
        LearnError::Saved(error.0)
    }
}
