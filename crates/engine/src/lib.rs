//! The engine: actors that collect, a learner that learns, and the run around them.
//!
//! It accesses environments and algorithms only through their traits and tables, never by name.
//!
//! Read first: [`Actor`] (one batch of environments and a policy, filling rollouts), [`link`] (what
//! actors and the learner exchange), [`Training`] (the loop of a run: collect, learn, log,
//! evaluate, checkpoint).

mod agent;
mod collect;
mod error;
mod export;
mod filmed;
pub mod group;
mod learn;
pub mod link;
mod measure;
mod run;
mod save;

pub use agent::{Agent, Observation, WrongObservation};
pub use collect::{Actor, CollectError, Player, serve, serve_central};
pub use error::EngineError;
pub use export::{Agreement, ExportError, ExportedFile, Exporter, Samples, TOLERANCE};
pub use filmed::{Filmed, Played};
pub use link::{Place, Weights};
pub use measure::{
    Collected, Comparison, Limits, Profile, Spent, compare_collected, compare_devices, limits,
};
pub use run::Training;
pub use run::config::{
    CheckpointConfig, CollectiveLibrary, EvalBy, EvalConfig, Mode, OnActorLoss, OnEnvError,
    RunConfig, Seat, Settings, VideoConfig, VideoFormat,
};
pub use run::evaluate::{
    EpisodeStep, Episodes, Evaluation, evaluate, evaluate_checkpoint, evaluate_checkpoint_seen,
};
pub use run::evaluation_player::EvaluationPlayer;
pub use run::watch::{Outcome, Reason, Status, Watcher};
pub use save::moment::is_needed_to_act;
