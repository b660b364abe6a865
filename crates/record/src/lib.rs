//! The run folder: everything that a run writes, and how it is read.
//!
//! ```text
//! runs/<env>/<algo>/<name>-s<seed>-<utc>/
//!   config.yaml     the resolved configuration
//!   params.json     the same for rllab's viskit
//!   version.json    program, sources, machine, command line
//!   progress.csv    metrics of training, one row per report
//!   eval.csv        evaluations, one row each
//!   events.out.*    both for TensorBoard
//!   log.txt         the log
//!   videos/         episodes of training as MP4 or GIF, by step
//!   live.json       live state of the process
//!   checkpoints/    <step>/ with manifest.json; the file best names the best one
//!   best/           the same for weights that evaluators in other processes found best
//! ```
//!
//! Read first: [`RunFolder`] (names, fixed files, the lock), [`Recorder`] (metrics, and how they
//! continue after a resume), [`Checkpoints`] (complete or absent), [`Comparison`] (what several
//! runs reached).
//!
//! This crate does not know what is trained or how. All files are either appended to row by row, or
//! written under a temporary name and renamed, so that a crash or a full disk loses at most the
//! last row.

pub mod checkpoint;
mod comparison;
pub mod csv;
mod durable;
mod error;
mod folder;
mod live;
mod metrics;
pub mod plot;
mod runs;
mod scores;
mod statistics;
pub mod tensorboard;
mod utc;
mod video;

pub use checkpoint::{
    Checkpoint, CheckpointWriter, Checkpoints, Committed, Damage, Damaged, Retention,
};
pub use comparison::{Comparison, FinalScore, Group, Kind, Measure, NOT_COMPARED, differences};
pub use csv::Table;
pub use error::{Error, Result};
pub use folder::{GitState, RunFolder, RunInfo, Version, host_name};
pub use live::{Activity, Component, Joining, Live, Role};
pub use metrics::{OpenTables, Recorder, RecorderState, Row, STEP_COLUMN, Summary, Window};
pub use plot::{Band, PlotOptions, Reference, XAxis, plot};
pub use runs::{
    Ending, RETURN_COLUMNS, Run, SCORE_COLUMN, Source, TIME_COLUMN, find_run, find_runs,
};
pub use scores::{GameScores, scores_of};
pub use statistics::{Aggregate, Estimate, FEWEST_RUNS, aggregate, interquartile_mean};
pub use video::{VIDEO_FORMATS, Video};
