//! Many runs on one machine: plan, cores and GPUs, results.
//!
//! A queue is a folder. `queue.json` is its plan, written once. `state.jsonl` gets a line whenever
//! a run starts or ends. The runs themselves are ordinary run folders below `runs/`. A queue that
//! was killed is continued by the same command: finished runs stay as they are, the others are
//! resumed from their checkpoints.
//!
//! ```text
//! sweep.yaml ─▶ plan (variants × seeds) ─▶ schedule ─▶ slots ─▶ `starling train` / `resume`
//!                                             ▲                         │
//!                                             └──── scores, state ◀─────┘──▶ report
//! ```
//!
//! Read first: [`Sweep`] (what a user writes), [`Plan`], [`Queue`].

mod asha;
mod folder;
mod plan;
mod report;
mod run;
mod schedule;
mod search;
mod slots;

pub use asha::Asha;
pub use folder::{Event, QueueFolder, What};
pub use plan::{Level, Plan, Seeds, Sweep, Trial, Variant};
pub use report::{Report, ReportRow};
pub use run::{Finished, Queue, Said};
pub use search::{By, Dimension, Search};
pub use slots::{Gpus, Slot, slots};

use crate::settings::SettingsError;

/// A queue that cannot be made or continued.
#[derive(Debug, thiserror::Error)]
pub enum QueueError {
    /// The file of a sweep is wrong.
    #[error("{0}")]
    Plan(String),
    /// The settings of a run are wrong.
    #[error("variant '{variant}': {source}")]
    Settings {
        /// The variant's name.
        variant: String,
        /// What is wrong.
        source: Box<SettingsError>,
    },
    /// A file or a process.
    #[error("cannot {doing}: {source}")]
    Io {
        /// What was tried.
        doing: String,
        /// Why it failed.
        source: std::io::Error,
    },
    /// A run's folder.
    #[error(transparent)]
    Record(#[from] starling_record::Error),
}

impl QueueError {
    fn io(doing: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let doing = doing.into();
        move |source| Self::Io { doing, source }
    }

    /// Whether the user's input is wrong, and not the machine.
    pub fn is_mistake(&self) -> bool {
        matches!(self, Self::Plan(_) | Self::Settings { .. })
    }
}
