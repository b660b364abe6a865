//! Writes checkpoints while training continues.
//!
//! The learner's thread captures the state of a checkpoint. A separate thread then writes the
//! files, commits the checkpoint and removes those that need not be kept, while the run continues.
//! One checkpoint is written at a time.

use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::json;
use starling_record::{Checkpoints, Committed, Damaged, OpenTables, Retention, RunFolder};

use crate::collect::panic_message;
use crate::error::Unusable;
use crate::save::moment::{Moment, OnDisk};
use crate::{EngineError, RunConfig, Status};

/// Writes one checkpoint at a time.
pub(crate) struct Saver {
    work: Work,
    /// What the last checkpoint has of the replay.
    on_disk: Option<OnDisk>,
    /// The last checkpoint was given up, because parts that it shares with an earlier one are
    /// damaged. The next one writes everything.
    given_up: bool,
}

enum Work {
    None(Checkpoints),
    Writing(Writing),
    /// A checkpoint could not be written; the run ends.
    Failed,
}

struct Writing {
    status: Status,
    thread: JoinHandle<Result<Done, Unusable>>,
}

/// What the thread gives back.
struct Done {
    checkpoints: Checkpoints,
    /// The new checkpoint, or why parts of the replay could not be taken over.
    written: Result<Committed, Damaged>,
    on_disk: Option<OnDisk>,
    took: Duration,
}

/// What a checkpoint is made of.
pub(crate) struct Order {
    /// How far the run was.
    pub(crate) status: Status,
    /// How good it was; higher is better.
    pub(crate) score: Option<f64>,
    pub(crate) moment: Moment,
    /// Rows of metrics that have to be on disk before the checkpoint says that they are.
    pub(crate) tables: OpenTables,
}

/// A checkpoint that is complete.
pub(crate) struct Written {
    pub(crate) status: Status,
    pub(crate) folder: PathBuf,
    /// How long it took beside training.
    pub(crate) took: Duration,
}

impl Saver {
    /// `on_disk` is the part of the replay in the checkpoint that the run continues from.
    pub(crate) fn new(checkpoints: Checkpoints, on_disk: Option<OnDisk>) -> Self {
        Self {
            work: Work::None(checkpoints),
            on_disk,
            given_up: false,
        }
    }

    /// Steps of the checkpoint that is being written.
    pub(crate) fn writing(&self) -> Option<u64> {
        match &self.work {
            Work::Writing(writing) => Some(writing.status.env_steps),
            _ => None,
        }
    }

    /// What the next checkpoint need not write again.
    pub(crate) fn on_disk(&self) -> Option<&OnDisk> {
        self.on_disk.as_ref()
    }

    /// Whether the last checkpoint was given up, and another one has to be begun at once.
    pub(crate) fn gave_up(&self) -> bool {
        self.given_up
    }

    /// Begins to write. The caller makes sure that nothing else is being written.
    pub(crate) fn begin(&mut self, order: Order) -> Result<(), EngineError> {
        let (step, status) = (order.status.env_steps, order.status.clone());
        let checkpoints = match std::mem::replace(&mut self.work, Work::Failed) {
            Work::None(checkpoints) => checkpoints,
            others => {
                self.work = others;
                let reason = "another one is being written";
                return Err(save_error(step, reason.into()));
            }
        };
        let thread = std::thread::Builder::new().name("checkpoint".into());
        let thread = thread.spawn(move || write(checkpoints, order));
        let thread = thread.map_err(|error| {
            save_error(step, format!("its thread could not be started: {error}"))
        })?;
        self.work = Work::Writing(Writing { status, thread });
        self.given_up = false;
        Ok(())
    }

    /// The checkpoint that has become complete since the last call.
    pub(crate) fn written(&mut self) -> Result<Option<Written>, EngineError> {
        match &self.work {
            Work::Writing(writing) if writing.thread.is_finished() => self.wait(),
            _ => Ok(None),
        }
    }

    /// Waits for the checkpoint that is being written, if there is one.
    pub(crate) fn wait(&mut self) -> Result<Option<Written>, EngineError> {
        let Writing { status, thread } = match std::mem::replace(&mut self.work, Work::Failed) {
            Work::Writing(writing) => writing,
            others => {
                self.work = others;
                return Ok(None);
            }
        };
        let done = match thread.join() {
            Ok(Ok(done)) => done,
            Ok(Err(Unusable(reason))) => return Err(save_error(status.env_steps, reason)),
            Err(panic) => {
                let reason = format!("its thread panicked: {}", panic_message(&*panic));
                return Err(save_error(status.env_steps, reason));
            }
        };
        self.work = Work::None(done.checkpoints);
        self.on_disk = done.on_disk;
        let committed = match done.written {
            Ok(committed) => committed,
            Err(damaged) => {
                tracing::warn!("{damaged}; the whole replay is written again");
                self.given_up = true;
                return Ok(None);
            }
        };
        for warning in &committed.warnings {
            tracing::warn!("{warning}");
        }
        Ok(Some(Written {
            status,
            folder: committed.path,
            took: done.took,
        }))
    }
}

impl Drop for Saver {
    /// A run that ends with an error does not take the checkpoint with it that is almost there.
    fn drop(&mut self) {
        if let Err(error) = self.wait() {
            tracing::error!("{error}");
        }
    }
}

/// The checkpoints of a run's folder, of which are kept those that the settings say.
pub(crate) fn open_checkpoints(
    config: &RunConfig,
    folder: &RunFolder,
) -> Result<Checkpoints, EngineError> {
    let settings = &config.settings.checkpoint;
    let retention = Retention {
        keep_last: settings.keep_last,
        milestone_steps: settings.milestone_steps,
    };
    Ok(Checkpoints::open(&folder.checkpoints_path(), retention)?)
}

/// What the thread does.
fn write(mut checkpoints: Checkpoints, order: Order) -> Result<Done, Unusable> {
    let began = Instant::now();
    order.tables.sync()?;
    let mut writer = checkpoints.begin(order.status.env_steps)?;
    match order.moment.link(&mut writer) {
        Err(starling_record::Error::Damaged(damaged)) => {
            drop(writer);
            return Ok(Done {
                checkpoints,
                written: Err(damaged),
                on_disk: None,
                took: began.elapsed(),
            });
        }
        linked => linked?,
    }
    let parts = order.moment.write(&mut writer)?;
    writer.times(&json!({"elapsed_s": order.status.elapsed.as_secs_f64()}))?;
    let committed = writer.commit(order.score)?;
    Ok(Done {
        checkpoints,
        on_disk: parts.map(|parts| OnDisk {
            folder: committed.path.clone(),
            parts,
        }),
        written: Ok(committed),
        took: began.elapsed(),
    })
}

fn save_error(step: u64, reason: String) -> EngineError {
    EngineError::Save { step, reason }
}
