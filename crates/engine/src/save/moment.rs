//! The contents of a checkpoint, and how they are written and read.
//!
//! | file | content |
//! |---|---|
//! | `learner.safetensors` | weights, optimiser, the learner's random stream |
//! | `actors.bin` | environments, random streams and observations (serial mode) |
//! | `replay-N.bin` | the replay in parts, compressed: those of earlier checkpoints, which are not written again, and the one with what came since |
//! | `run.json` | counters, statistics, how far the files of metrics had got |
//!
//! [`Moment::take`] captures everything at one point in time; [`Moment::write`] writes it while
//! training continues.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use starling_algos::Saved;
use starling_envs::Rng;
use starling_record::{Checkpoint, CheckpointWriter, RecorderState};
use starling_replay::{RateLimiter, Replay, Saved as SavedReplay, Snapshot};
use starling_tree::{Array, DType};

use crate::collect::{ActorSnapshot, Crew};
use crate::error::Unusable;
use crate::learn::{Feed, Learning, Means};
use crate::run::tally::Tally;

pub(super) const LEARNER: &str = "learner.safetensors";
const ACTORS: &str = "actors.bin";
const RUN: &str = "run.json";

#[derive(Debug, Serialize, Deserialize)]
struct RunState {
    tally: Tally,
    updates: u64,
    version: u64,
    means: Means,
    recorder: RecorderState,
    limiter: Option<RateLimiter>,
    replay_rng: Option<Rng>,
    /// Which start of the learner this was; none in serial mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    epoch: Option<u64>,
    /// All settings of the run.
    #[serde(default)]
    settings: Value,
}

/// What [`read`] brings back beside the learner and the actors.
pub(crate) struct Restored {
    pub(crate) tally: Tally,
    pub(crate) version: u64,
    pub(crate) epoch: Option<u64>,
    pub(crate) recorder: RecorderState,
    /// Whether the run continues bit for bit.
    pub(crate) exact: bool,
    /// What the next checkpoint need not write again.
    pub(crate) on_disk: Option<OnDisk>,
    /// What of the replay could not be restored.
    pub(crate) lost: Lost,
    /// The settings with which the checkpoint was written.
    pub(crate) settings: Value,
}

/// What of a replay could not be restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lost {
    Nothing,
    /// The oldest rows.
    OldRows,
    Everything,
}

/// Where the parts of the replay are that need not be written again.
#[derive(Clone, Debug)]
pub(crate) struct OnDisk {
    /// Folder of the checkpoint that has them all.
    pub(crate) folder: PathBuf,
    /// Which they are.
    pub(crate) parts: SavedReplay,
}

/// A run as it was at one moment.
pub(crate) struct Moment {
    learner: Saved,
    actors: Option<ActorSnapshot>,
    replay: Option<(Snapshot<Arc<Replay>>, Option<OnDisk>)>,
    state: RunState,
}

impl Moment {
    /// Fixes the moment: the learner's arrays are copied, the replay is only marked. Rows of the
    /// replay that are on disk are not written again.
    pub(crate) fn take(
        learning: &Learning,
        actor: Option<&Crew>,
        tally: &Tally,
        (version, epoch): (u64, Option<u64>),
        recorder: RecorderState,
        settings: Value,
        on_disk: Option<&OnDisk>,
    ) -> Result<Self, Unusable> {
        let (mut replay, mut limiter, mut replay_rng) = (None, None, None);
        if let Feed::Replay(feed) = &learning.feed {
            limiter = Some(feed.limiter.clone());
            replay_rng = Some(feed.rng.clone());
            let since = on_disk.map(|on_disk| &on_disk.parts);
            let snapshot = Snapshot::begin(Arc::clone(&feed.replay), since)?;
            replay = Some((snapshot, on_disk.cloned()));
        }
        Ok(Self {
            learner: learning.learner.save(),
            actors: actor.map(Crew::snapshot),
            replay,
            state: RunState {
                tally: tally.clone(),
                updates: learning.updates,
                version,
                epoch,
                means: learning.means.clone(),
                recorder,
                limiter,
                replay_rng,
                settings,
            },
        })
    }

    /// Takes over the parts of the replay that an earlier checkpoint has.
    ///
    /// # Errors
    /// [`starling_record::Error::Damaged`] when one of them is no longer as it was written. The
    /// rows that it had may be overwritten by now, so only a later moment can be saved.
    pub(crate) fn link(&self, writer: &mut CheckpointWriter<'_>) -> starling_record::Result<()> {
        if let Some((snapshot, Some(on_disk))) = &self.replay {
            let parts = snapshot.saved().parts();
            for number in parts.filter(|number| *number != snapshot.number()) {
                writer.link(&on_disk.folder, &part_name(number))?;
            }
        }
        Ok(())
    }

    /// Fills a checkpoint that was begun. Returns the parts of the replay that it has then.
    pub(crate) fn write(
        self,
        writer: &mut CheckpointWriter<'_>,
    ) -> Result<Option<SavedReplay>, Unusable> {
        writer.file(LEARNER, &to_safetensors(&self.learner)?)?;
        if let Some(actors) = &self.actors {
            writer.file(ACTORS, &postcard::to_allocvec(actors)?)?;
        }
        writer.file(RUN, &serde_json::to_vec_pretty(&self.state)?)?;
        let Some((snapshot, _)) = self.replay else {
            return Ok(None);
        };
        let mut file = writer.create(&part_name(snapshot.number()))?;
        let parts = snapshot.write(&mut file)?;
        file.finish()?;
        Ok(Some(parts))
    }
}

/// Restores a learner and, in serial mode, an actor from a checkpoint. Parts of the replay that are
/// damaged are left out.
pub(crate) fn read(
    checkpoint: &mut Checkpoint,
    learning: &mut Learning,
    actor: Option<&mut Crew>,
) -> Result<Restored, Unusable> {
    let state: RunState = serde_json::from_slice(&checkpoint.read(RUN)?)?;
    let saved = from_safetensors(&checkpoint.read(LEARNER)?)?;
    learning.learner.load(&saved)?;
    learning.updates = state.updates;
    learning.means = state.means;
    let mut restored = Restored {
        tally: state.tally,
        version: state.version,
        epoch: state.epoch,
        recorder: state.recorder,
        exact: false,
        on_disk: None,
        lost: Lost::Nothing,
        settings: state.settings,
    };
    if let (Some(actor), true) = (actor, checkpoint.files().any(|name| name == ACTORS)) {
        let snapshot: ActorSnapshot = postcard::from_bytes(&checkpoint.read(ACTORS)?)?;
        restored.exact = actor.restore(&snapshot)?;
    }
    if let Feed::Replay(feed) = &mut learning.feed {
        let missing = || Unusable("it was written by an algorithm without a replay".into());
        feed.rng = state.replay_rng.ok_or_else(missing)?;
        let newest = checkpoint.files().filter_map(part_number).max();
        let newest = part_name(newest.ok_or_else(missing)?);
        let damaged = checkpoint.damaged_files(is_replay);
        let is_damaged = |name: &str| damaged.iter().any(|(file, _)| file == name);
        if is_damaged(&newest) {
            // Its counters start again with it.
            restored.tally.replay_counts = (0, 0);
            restored.lost = Lost::Everything;
        } else {
            feed.limiter = state.limiter.ok_or_else(missing)?;
            let earlier = |number| {
                let name = part_name(number);
                let file = (!is_damaged(&name)).then(|| checkpoint.reader(&name));
                file.transpose().map_err(io::Error::other)
            };
            let (layout, needs) = (feed.replay.layout(), &feed.needs.replay);
            let newest = checkpoint.reader(&newest)?;
            let (replay, parts) = Replay::load_newest_rows(newest, earlier, needs, layout)?;
            feed.replay = Arc::new(replay);
            restored.on_disk = Some(OnDisk {
                folder: checkpoint.path().to_owned(),
                parts,
            });
            if !damaged.is_empty() {
                restored.lost = Lost::OldRows;
            }
        }
        restored.exact &= damaged.is_empty();
    }
    Ok(restored)
}

/// Whether a file of a checkpoint is a part of its replay.
pub(crate) fn is_replay(name: &str) -> bool {
    part_number(name).is_some()
}

fn part_name(number: u64) -> String {
    format!("replay-{number}.bin")
}

fn part_number(name: &str) -> Option<u64> {
    let number = name.strip_prefix("replay-")?.strip_suffix(".bin")?;
    number.parse().ok()
}

/// Whether a file of a checkpoint is needed to act with its weights. Damage to the others does not
/// matter for that; see [`starling_record::checkpoint::latest_with`].
pub fn is_needed_to_act(name: &str) -> bool {
    name == LEARNER
}

/// The weights alone, for evaluation: those that [`starling_algos::Learner::weights`] gives.
pub(crate) fn read_learner(checkpoint: &Checkpoint) -> Result<Saved, Unusable> {
    from_safetensors(&checkpoint.read(LEARNER)?)
}

pub(super) fn to_safetensors(saved: &Saved) -> Result<Vec<u8>, Unusable> {
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
            other => {
                return Err(Unusable(format!(
                    "'{name}' has the type {other:?}, which is not supported"
                )));
            }
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
