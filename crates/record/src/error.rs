//! Errors of the run folder: each message says what happened, where, and what to do.

use std::io;
use std::path::{Path, PathBuf};

use crate::checkpoint::Damaged;

/// A failure in the run folder.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file system refused something.
    #[error("cannot {action} {}: {source}{}", path.display(), advice(source))]
    Io {
        /// What was being done, as a verb: "write", "create the folder".
        action: &'static str,
        /// The file or folder it was done to.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The path does not hold a run.
    #[error(
        "{} is not a run folder: it has no {missing}. Run folders look like \
         runs/<env>/<algo>/<name>-s<seed>-<utc>",
        path.display()
    )]
    NotARun {
        /// The path given.
        path: PathBuf,
        /// The file that would have to be there.
        missing: &'static str,
    },
    /// Nothing fits the name of a run.
    #[error(
        "there is no run '{text}' in {}; `starling runs` lists runs. A run is named by its folder, a \
         prefix of its folder's name, or last",
        folder.display()
    )]
    NoSuchRun {
        /// What was asked for.
        text: String,
        /// Where it was looked for.
        folder: PathBuf,
    },
    /// Several runs fit the name of a run.
    #[error("'{text}' matches {} runs: {}", runs.len(), list_runs(runs))]
    SeveralRuns {
        /// What was asked for.
        text: String,
        /// Those that fit.
        runs: Vec<PathBuf>,
    },
    /// Another process is writing to the run.
    #[error(
        "the run {} is in use by another process. Wait for it to end, or stop it",
        path.display()
    )]
    InUse {
        /// The run folder.
        path: PathBuf,
    },
    /// A folder that the run writes to disappeared.
    #[error(
        "the folder {} was deleted or moved while the run was writing to it; nothing more can be \
         saved",
        path.display()
    )]
    Gone {
        /// The run folder, or that of its checkpoints.
        path: PathBuf,
    },
    /// A name that cannot become part of a path, a column or a file of a checkpoint.
    #[error("the {what} {name:?} cannot be used: {reason}")]
    BadName {
        /// What the name is for: "run name", "metric", "checkpoint file".
        what: &'static str,
        /// The name.
        name: String,
        /// Why not, and what is allowed.
        reason: &'static str,
    },
    /// A CSV file ends before the point at which the checkpoint was taken.
    #[error(
        "{} holds {found} complete rows of {columns} columns, but the checkpoint was taken after \
         {expected} rows of {expected_columns} columns. Restore the original file, or move this \
         one away to start a new one",
        path.display()
    )]
    CsvShort {
        /// The file.
        path: PathBuf,
        /// Complete rows found.
        found: usize,
        /// Columns found.
        columns: usize,
        /// Rows written when the checkpoint was taken.
        expected: usize,
        /// Columns there were when the checkpoint was taken.
        expected_columns: usize,
    },
    /// A file of ours does not have the form it should have.
    #[error("{} cannot be read: {reason}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// There is no checkpoint that can be used.
    #[error(
        "no complete checkpoint in {}{}. Start the run again with starling train",
        path.display(),
        list_damaged(damaged)
    )]
    NoCheckpoint {
        /// The folder of checkpoints.
        path: PathBuf,
        /// Those found, and why none of them can be used.
        damaged: Vec<Damaged>,
    },
    /// The one checkpoint asked for cannot be used.
    #[error("{0}")]
    Damaged(Damaged),
    /// A checkpoint has no file of that name.
    #[error("the checkpoint {} has no file {name}; it has: {}", path.display(), present.join(", "))]
    NoSuchFile {
        /// The checkpoint's folder.
        path: PathBuf,
        /// The file asked for.
        name: String,
        /// The files it has.
        present: Vec<String>,
    },
    /// A checkpoint was committed while one of its files was still being written.
    #[error("the checkpoint file {name} was not finished, so the checkpoint was discarded")]
    Unfinished {
        /// The file.
        name: String,
    },
    /// None of the runs given has the column that was asked for, or one of the usual ones.
    #[error("there is no column {name}; available: {}", present.join(", "))]
    NoColumn {
        /// The column.
        name: String,
        /// The columns that the runs have.
        present: Vec<String>,
    },
    /// A video cannot be made.
    #[error("the video {} cannot be made: {reason}", path.display())]
    Video {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// None of the runs given has a setting to group by.
    #[error(
        "no run has a setting called '{name}'; allowed: dotted names such as algo.learning_rate, and \
         seed, name or run"
    )]
    NoSetting {
        /// The setting.
        name: String,
    },
    /// None of the runs given has anything to plot.
    #[error("nothing to plot: {reason}")]
    NothingToPlot {
        /// Why.
        reason: String,
    },
}

/// The result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Adds what was being done, and to what, to an error of the system.
pub(crate) trait Context<T> {
    fn doing(self, action: &'static str, path: &Path) -> Result<T>;
}

impl<T> Context<T> for io::Result<T> {
    fn doing(self, action: &'static str, path: &Path) -> Result<T> {
        self.map_err(|source| Error::Io {
            action,
            path: path.to_owned(),
            source,
        })
    }
}

fn advice(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::PermissionDenied => {
            ". Choose a folder that you have permission to use, or change its permissions"
        }
        io::ErrorKind::ReadOnlyFilesystem => ". Choose a folder on a writable disk",
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            ". Free some disk space, or choose a folder on another disk"
        }
        io::ErrorKind::NotADirectory => ". Part of this path is a file; choose another folder",
        io::ErrorKind::NotFound => ". Check the path",
        _ => "",
    }
}

/// The first few.
fn list_runs(runs: &[PathBuf]) -> String {
    const MOST: usize = 8;
    let shown = runs.iter().take(MOST);
    let mut shown: Vec<String> = shown.map(|run| run.display().to_string()).collect();
    if runs.len() > MOST {
        shown.push("…".to_owned());
    }
    shown.join(", ")
}

fn list_damaged(damaged: &[Damaged]) -> String {
    damaged.iter().map(|one| format!("; {one}")).collect()
}
