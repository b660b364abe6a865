//! The engine: actors that collect, a learner that learns, and the run around them.
//!
//! It knows environments and algorithms only through their traits and tables, never by name.
//!
//! Read first: [`Actor`] (one batch of environments and a policy, filling rollouts),
//! [`Transport`] (how rollouts and weights pass between actors and the learner), [`Training`]
//! (the loop of a run: collect, learn, log, evaluate, checkpoint).

mod central;
mod checkpoint;
mod collect;
mod config;
mod error;
mod evaluate;
mod learn;
mod limits;
mod parts;
mod patience;
mod pool;
mod profile;
mod report;
mod run;
mod saver;
mod selftest;
mod serial;
mod tally;
mod transport;
mod watch;

pub use checkpoint::is_needed_to_act;
pub use collect::{Actor, CollectError, Place};
pub use config::{
    CheckpointConfig, EvalConfig, Mode, OnEnvError, RunConfig, Settings, merge as merge_settings,
};
pub use error::EngineError;
pub use evaluate::{Episodes, Evaluation, evaluate, evaluate_checkpoint, policy_of_checkpoint};
pub use limits::{Limits, limits};
pub use profile::{Profile, Spent};
pub use run::Training;
pub use selftest::{Comparison, compare_devices};
pub use transport::{InProcess, Parcel, Transport, TransportError, Wanted, Weights};
pub use watch::{Outcome, Reason, Status, Watcher};
