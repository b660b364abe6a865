//! The folder of a queue: its plan, and what happened.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::search::Chosen;
use super::{Plan, QueueError, Trial};

/// A line of `state.jsonl`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// The run.
    #[serde(flatten)]
    pub trial: Trial,
    /// What happened to it.
    #[serde(flatten)]
    pub what: What,
    /// The seconds that it has run since it was started or continued.
    #[serde(default)]
    pub seconds: f64,
    /// Where it runs, if it was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<String>,
}

/// What happened to a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum What {
    /// A search chose its settings.
    Chosen {
        /// The values, by the names of their settings.
        values: Value,
    },
    /// It was started or continued.
    Started,
    /// It paused at a rung.
    Paused {
        /// Its score there.
        score: Option<f64>,
    },
    /// It ended.
    Finished {
        /// Its score; none if no episode ended.
        score: Option<f64>,
    },
    /// It was stopped because the queue was.
    Interrupted,
    /// It failed.
    Failed {
        /// Why.
        reason: String,
        /// Whether it is not tried again.
        last: bool,
    },
}

impl Event {
    pub(super) fn new(trial: Trial, what: What) -> Self {
        Self {
            trial,
            what,
            seconds: 0.0,
            slot: None,
        }
    }
}

/// The folder of a queue, locked.
#[derive(Debug)]
pub struct QueueFolder {
    path: PathBuf,
    state: File,
    _lock: File,
}

impl QueueFolder {
    /// Creates the folder with this plan, or opens it again; then the second value has what
    /// happened before.
    ///
    /// # Errors
    /// When the folder has another plan or another process works on it.
    pub fn open(path: &Path, plan: &Plan) -> Result<(Self, Vec<Event>), QueueError> {
        let shown = path.display();
        fs::create_dir_all(path).map_err(QueueError::io(format!("create {shown}")))?;
        let lock = path.join("queue.lock");
        let lock =
            File::create(&lock).map_err(QueueError::io(format!("open {}", lock.display())))?;
        match lock.try_lock() {
            Err(TryLockError::WouldBlock) => {
                return Err(QueueError::Plan(format!(
                    "{shown} is in use by another process"
                )));
            }
            // Some network file systems have no locks.
            Ok(()) | Err(TryLockError::Error(_)) => {}
        }
        let file = path.join("queue.json");
        // Compared as text: a number may be read back as another type.
        let text = serde_json::to_string_pretty(plan).unwrap_or_default();
        match fs::read_to_string(&file) {
            Ok(before) if before.trim() == text => {}
            Ok(_) => {
                return Err(QueueError::Plan(format!(
                    "{shown} has another plan; choose another folder with --out, or delete it"
                )));
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let written = write_durably(&file, &text);
                written.map_err(QueueError::io(format!("write {}", file.display())))?;
            }
            Err(error) => return Err(QueueError::io(format!("read {}", file.display()))(error)),
        }
        let file = path.join("state.jsonl");
        let failed = || QueueError::io(format!("open {}", file.display()));
        let text = match fs::read_to_string(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(failed()(error)),
        };
        let state = OpenOptions::new().create(true).append(true).open(&file);
        let mut state = state.map_err(failed())?;
        if !text.is_empty() && !text.ends_with('\n') {
            // A line that was being written when the queue was killed.
            writeln!(state).map_err(failed())?;
        }
        let events = text
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok());
        let folder = Self {
            path: path.to_owned(),
            state,
            _lock: lock,
        };
        Ok((folder, events.collect()))
    }

    /// The folder itself.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the runs are.
    pub fn runs(&self) -> PathBuf {
        self.path.join("runs")
    }

    /// What a run printed.
    pub fn log_of(&self, name: &str) -> PathBuf {
        self.path
            .join("logs")
            .join(format!("{}.txt", file_name(name)))
    }

    /// The settings of a variant, for `train --config`.
    pub(super) fn settings_of(&self, name: &str) -> PathBuf {
        self.path
            .join("settings")
            .join(format!("{}.yaml", file_name(name)))
    }

    /// Adds a line to `state.jsonl`, and waits until it is on the disk.
    pub(super) fn append(&mut self, event: &Event) -> Result<(), QueueError> {
        let line = serde_json::to_string(event).unwrap_or_default();
        let written = self.state.write_all(format!("{line}\n").as_bytes());
        let written = written.and_then(|()| self.state.sync_data());
        written.map_err(QueueError::io(format!(
            "write {}",
            self.path.join("state.jsonl").display()
        )))
    }
}

/// What searches chose earlier.
pub(super) fn chosen(events: &[Event]) -> Vec<(usize, Chosen)> {
    let chosen = events.iter().filter_map(|event| match &event.what {
        What::Chosen { values } => {
            let values = serde_json::from_value(values.clone()).ok()?;
            Some((event.trial.variant, values))
        }
        _ => None,
    });
    chosen.collect()
}

/// A variant's name as part of a path.
fn file_name(name: &str) -> String {
    let fit = |c: char| {
        if c.is_ascii_alphanumeric() || "._=,+-".contains(c) {
            c
        } else {
            '-'
        }
    };
    name.chars().map(fit).collect()
}

pub(super) fn write_durably(path: &Path, text: &str) -> std::io::Result<()> {
    let partial = path.with_extension("partial");
    let mut file = File::create(&partial)?;
    file.write_all(text.as_bytes())?;
    file.write_all(b"\n")?;
    file.sync_all()?;
    fs::rename(&partial, path)
}
