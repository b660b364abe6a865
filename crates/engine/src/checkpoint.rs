//! What a checkpoint of a run holds, and how it is written and read.
//!
//! | file | content |
//! |---|---|
//! | `learner.safetensors` | weights, optimiser, the learner's random stream |
//! | `actors.bin` | environments, random streams and observations (serial mode) |
//! | `replay.bin` | the whole replay, compressed |
//! | `run.json` | counters, statistics, how far the files of metrics had got |

use std::collections::BTreeMap;
use std::sync::Arc;

use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use serde::{Deserialize, Serialize};
use starling_algos::Saved;
use starling_envs::Rng;
use starling_record::{Checkpoint, CheckpointWriter, RecorderState, Window};
use starling_replay::{RateLimiter, Replay, Snapshot};
use starling_tree::{Array, DType};

use crate::collect::{ActorSnapshot, Crew};
use crate::error::Unusable;
use crate::learn::{Feed, Means, Pupil};

const LEARNER: &str = "learner.safetensors";
const ACTORS: &str = "actors.bin";
const REPLAY: &str = "replay.bin";
const RUN: &str = "run.json";

/// How far a run has come, and what its episodes were like.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Tally {
    /// Steps of all environments.
    pub(crate) env_steps: u64,
    /// Rounds of collecting and learning.
    pub(crate) iterations: u64,
    /// Episodes that ended.
    pub(crate) episodes: u64,
    /// Episodes that ended since the last row of metrics.
    pub(crate) new_episodes: u64,
    /// Returns of the last 100 episodes.
    pub(crate) returns: Window,
    /// Discounted returns of the last 100 episodes.
    pub(crate) discounted_returns: Window,
    /// Lengths of the last 100 episodes.
    pub(crate) lengths: Window,
    /// Steps with a reward, of the last 100 episodes.
    pub(crate) nonzero_rewards: Window,
    /// Points of the last 100 games, where environments count them.
    pub(crate) game_scores: Window,
    /// Step and mean return of the last evaluation.
    pub(crate) last_eval: Option<(u64, f64)>,
    /// Mean return of the best evaluation.
    pub(crate) best_eval: Option<f64>,
    /// Steps and episodes of evaluations since the last row of metrics.
    pub(crate) eval_steps: f64,
    /// See `eval_steps`.
    pub(crate) eval_episodes: f64,
    /// Samples drawn from the replay and steps inserted by the last row of metrics.
    pub(crate) replay_counts: (u64, u64),
}

#[derive(Debug, Serialize, Deserialize)]
struct RunState {
    tally: Tally,
    updates: u64,
    version: u64,
    means: Means,
    recorder: RecorderState,
    limiter: Option<RateLimiter>,
    replay_rng: Option<Rng>,
}

/// What [`read`] brings back beside the learner and the actors.
pub(crate) struct Restored {
    pub(crate) tally: Tally,
    pub(crate) version: u64,
    pub(crate) recorder: RecorderState,
    /// Whether the run continues bit for bit.
    pub(crate) exact: bool,
}

/// Fills a checkpoint that was begun.
pub(crate) fn write(
    writer: &mut CheckpointWriter<'_>,
    pupil: &Pupil,
    actor: Option<&Crew>,
    tally: &Tally,
    version: u64,
    recorder: RecorderState,
) -> Result<(), Unusable> {
    writer.file(LEARNER, &to_safetensors(&pupil.learner.save())?)?;
    if let Some(actor) = actor {
        writer.file(ACTORS, &postcard::to_allocvec(&actor.snapshot())?)?;
    }
    let (mut limiter, mut replay_rng) = (None, None);
    if let Feed::Replay(feed) = &pupil.feed {
        limiter = Some(feed.limiter.clone());
        replay_rng = Some(feed.rng.clone());
        let mut file = writer.create(REPLAY)?;
        Snapshot::begin(&*feed.replay, None)?.write(&mut file)?;
        file.finish()?;
    }
    let state = RunState {
        tally: tally.clone(),
        updates: pupil.updates,
        version,
        means: pupil.means.clone(),
        recorder,
        limiter,
        replay_rng,
    };
    writer.file(RUN, &serde_json::to_vec_pretty(&state)?)?;
    Ok(())
}

/// Brings a learner and, in serial mode, an actor to the state of a checkpoint.
pub(crate) fn read(
    checkpoint: &Checkpoint,
    pupil: &mut Pupil,
    actor: Option<&mut Crew>,
) -> Result<Restored, Unusable> {
    let state: RunState = serde_json::from_slice(&checkpoint.read(RUN)?)?;
    let saved = from_safetensors(&checkpoint.read(LEARNER)?)?;
    pupil.learner.load(&saved)?;
    pupil.updates = state.updates;
    pupil.means = state.means;
    let mut exact = false;
    if let (Some(actor), true) = (actor, checkpoint.files().any(|name| name == ACTORS)) {
        let snapshot: ActorSnapshot = postcard::from_bytes(&checkpoint.read(ACTORS)?)?;
        exact = actor.restore(&snapshot)?;
    }
    if let Feed::Replay(feed) = &mut pupil.feed {
        let missing = || Unusable("it is of an algorithm without a replay".into());
        feed.limiter = state.limiter.ok_or_else(missing)?;
        feed.rng = state.replay_rng.ok_or_else(missing)?;
        let file = checkpoint.reader(REPLAY)?;
        let one_part = |_| -> std::io::Result<&[u8]> { Err(std::io::ErrorKind::NotFound.into()) };
        let layout = feed.replay.layout();
        let (replay, _) = Replay::load(file, one_part, &feed.needs.replay, layout)?;
        feed.replay = Arc::new(replay);
    }
    Ok(Restored {
        tally: state.tally,
        version: state.version,
        recorder: state.recorder,
        exact,
    })
}

/// The weights alone, for evaluation: those that [`starling_algos::Learner::weights`] gives.
pub(crate) fn read_learner(checkpoint: &Checkpoint) -> Result<Saved, Unusable> {
    from_safetensors(&checkpoint.read(LEARNER)?)
}

fn to_safetensors(saved: &Saved) -> Result<Vec<u8>, Unusable> {
    let mut views = BTreeMap::new();
    for (name, array) in saved {
        let shape = array.shape().to_vec();
        let view = TensorView::new(dtype_of(array.dtype()), shape, array.bytes())?;
        views.insert(name.clone(), view);
    }
    Ok(safetensors::serialize(views, None)?)
}

fn from_safetensors(bytes: &[u8]) -> Result<Saved, Unusable> {
    let mut saved = Saved::new();
    for (name, view) in SafeTensors::deserialize(bytes)?.tensors() {
        let dtype = match view.dtype() {
            Dtype::U8 => DType::U8,
            Dtype::I32 => DType::I32,
            Dtype::I64 => DType::I64,
            Dtype::F32 => DType::F32,
            Dtype::F64 => DType::F64,
            other => return Err(Unusable(format!("'{name}' is of the type {other:?}"))),
        };
        let mut array = Array::zeros(dtype, view.shape());
        if array.bytes().len() != view.data().len() {
            return Err(Unusable(format!("'{name}' has a wrong size")));
        }
        array.bytes_mut().copy_from_slice(view.data());
        saved.insert(name, array);
    }
    Ok(saved)
}

fn dtype_of(dtype: DType) -> Dtype {
    match dtype {
        DType::U8 => Dtype::U8,
        DType::I32 => Dtype::I32,
        DType::I64 => Dtype::I64,
        DType::F32 => Dtype::F32,
        DType::F64 => Dtype::F64,
    }
}
