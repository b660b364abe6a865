//! Errors that end a run.

use std::path::PathBuf;

use starling_algos::{ConfigError, LearnError};
use starling_envs::EnvError;
use starling_nets::{DeviceError, ShapeMismatch};
use starling_replay::{ReplayError, SnapshotError};

use crate::group::GroupError;
use crate::link::LinkError;
use crate::link::patience::Still;

/// What ends a run before its time.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// Settings that cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// No such environment.
    #[error(transparent)]
    UnknownEnv(#[from] starling_envs::UnknownEnv),
    /// No such algorithm.
    #[error(transparent)]
    UnknownAlgo(#[from] starling_algos::registry::UnknownAlgo),
    /// No such device.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// An environment failed.
    #[error("an environment failed: {0}")]
    Env(#[from] EnvError),
    /// Learning failed.
    #[error("learning stopped at environment step {step}: {source}")]
    Learn {
        /// Steps of all environments when it happened.
        step: u64,
        /// What happened.
        source: LearnError,
    },
    /// The replay refused something.
    #[error(transparent)]
    Replay(#[from] ReplayError),
    /// The threads that prefetch batches failed.
    #[error("prefetching batches failed (prefetch_threads): {0}")]
    Prefetch(String),
    /// An environment does not return.
    #[error(
        "environment {env}{place} has not returned from step() or reset() for {seconds} s \
         (stall_timeout_s)"
    )]
    Stuck {
        /// Its number in the run.
        env: u64,
        /// How long.
        seconds: u64,
        /// Empty, or ` of the evaluation`.
        place: &'static str,
    },
    /// A thread of the run ended unexpectedly.
    #[error("the thread {0}")]
    Thread(String),
    /// The weights do not fit the policy.
    #[error("the policy cannot use these weights: {0}")]
    Weights(String),
    /// The learners of a group cannot continue together.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// Actors and learner lost each other.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// Files of the run could not be written or read.
    #[error(transparent)]
    Record(#[from] starling_record::Error),
    /// A checkpoint could not be written.
    #[error("the checkpoint of step {step} could not be written: {reason}")]
    Save {
        /// Steps of all environments.
        step: u64,
        /// Why.
        reason: String,
    },
    /// A checkpoint is whole, but does not fit.
    #[error("the checkpoint {path} cannot be used: {reason}", path = path.display())]
    Checkpoint {
        /// Its folder.
        path: PathBuf,
        /// Why.
        reason: String,
    },
}

impl From<ShapeMismatch> for EngineError {
    fn from(error: ShapeMismatch) -> Self {
        EngineError::Weights(error.0)
    }
}

impl From<Still> for EngineError {
    fn from(still: Still) -> Self {
        EngineError::Stuck {
            env: still.env,
            seconds: still.time.as_secs(),
            place: "",
        }
    }
}

/// Why a checkpoint cannot be written or used.
#[derive(Debug)]
pub(crate) struct Unusable(pub(crate) String);

impl From<SnapshotError> for Unusable {
    fn from(error: SnapshotError) -> Self {
        Unusable(error.to_string())
    }
}

impl From<LearnError> for Unusable {
    fn from(error: LearnError) -> Self {
        Unusable(error.to_string())
    }
}

impl From<EnvError> for Unusable {
    fn from(error: EnvError) -> Self {
        Unusable(error.to_string())
    }
}

impl From<starling_record::Error> for Unusable {
    fn from(error: starling_record::Error) -> Self {
        Unusable(error.to_string())
    }
}

impl From<postcard::Error> for Unusable {
    fn from(error: postcard::Error) -> Self {
        Unusable(error.to_string())
    }
}

impl From<serde_json::Error> for Unusable {
    fn from(error: serde_json::Error) -> Self {
        Unusable(error.to_string())
    }
}

impl From<safetensors::SafeTensorError> for Unusable {
    fn from(error: safetensors::SafeTensorError) -> Self {
        Unusable(error.to_string())
    }
}
