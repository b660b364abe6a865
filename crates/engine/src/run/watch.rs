//! What a run reports to its observers: its progress, and how it ended.

use std::path::Path;
use std::time::Duration;

use starling_record::Row;

use crate::Evaluation;

/// Why a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// All steps are done.
    Finished,
    /// The requested return is reached (`stop_at_return`).
    Solved,
    /// The steps of `--stop-after` are done; `resume` continues.
    Paused,
    /// A signal asked to stop; `resume` continues.
    Interrupted,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Why.
    pub reason: Reason,
    /// How far it came.
    pub status: Status,
}

/// How far a run has come.
#[derive(Clone, Debug, PartialEq)]
pub struct Status {
    /// Steps of all environments.
    pub env_steps: u64,
    /// Steps at which the run ends.
    pub total_steps: u64,
    /// Episodes that ended.
    pub episodes: u64,
    /// Updates of the learner.
    pub updates: u64,
    /// Mean score of the last 100 games where the environment counts games (Atari), else mean
    /// return of the last 100 episodes.
    pub mean_return: Option<f64>,
    /// Whether that is a score of whole games.
    pub counts_games: bool,
    /// Mean loss since the last row of metrics.
    pub loss: Option<f64>,
    /// Steps per second since the run (or the resumed part of it) began.
    pub steps_per_second: f64,
    /// Time spent, earlier parts of the run included.
    pub elapsed: Duration,
}

/// An observer of a run, such as a progress bar. The engine itself never prints.
pub trait Watcher {
    /// Called after every round of collecting and learning.
    fn round(&mut self, _status: &Status) {}

    /// Called with every row of metrics.
    fn row(&mut self, _status: &Status, _row: &Row) {}

    /// Called with every evaluation.
    fn evaluated(&mut self, _status: &Status, _evaluation: &Evaluation) {}

    /// Called when a checkpoint was written.
    fn checkpointed(&mut self, _status: &Status, _folder: &Path) {}
}

/// No observer.
impl Watcher for () {}
