//! The engine: actors that collect, a learner that learns, and the run around them.
//!
//! It knows environments and algorithms only through their traits and tables, never by name.
//!
//! Read first: [`Actor`] (one batch of environments and a policy, filling rollouts),
//! [`Transport`] (how rollouts and weights pass between actors and the learner), [`Training`]
//! (the loop of a run: collect, learn, log, evaluate, checkpoint).

mod collect;
mod error;
mod learn;
mod link;
mod measure;
mod run;
mod save;

pub use collect::actor::Actor;
pub use collect::crew::{CollectError, Place};
pub use error::EngineError;
pub use link::{InProcess, Parcel, Transport, TransportError, Wanted, Weights};
pub use measure::limits::{Limits, limits};
pub use measure::profile::{Profile, Spent};
pub use measure::selftest::{Comparison, compare_devices};
pub use run::Training;
pub use run::config::{
    CheckpointConfig, EvalConfig, Mode, OnEnvError, RunConfig, Settings, merge as merge_settings,
};
pub use run::evaluate::{
    Episodes, Evaluation, evaluate, evaluate_checkpoint, policy_of_checkpoint,
};
pub use run::watch::{Outcome, Reason, Status, Watcher};
pub use save::moment::is_needed_to_act;
