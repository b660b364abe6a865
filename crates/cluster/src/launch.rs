//! Starts the processes of a run on several machines over the system's ssh, and restarts those that
//! fail.
//!
//! ```text
//! cluster.yaml ─▶ Plan ─▶ roles ─┬─ learner ──ssh──▶ train --launched ─▶ join file, on its output
//!                                ├─ actor ────ssh──▶ actor --launched ◀─ join file, on its input
//!                                └─ …          a process stops when its input is closed
//! ```
//!
//! No secret is ever an argument. When the connection to a process ends, its standard input is closed,
//! and it stops as after SIGTERM.
//!
//! Read first: [`Plan`], [`Launch`].

mod hosts;
mod kubernetes;
mod plan;
mod program;
mod slurm;
mod supervise;
mod tend;

pub use hosts::Host;
pub use kubernetes::manifests;
pub use plan::{Kind, Plan, Role};
pub use program::quoted;
pub use slurm::script;
pub use supervise::{Ending, Launch, Standing, View};

/// Why processes cannot be started or kept running.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LaunchError {
    /// The plan is invalid.
    #[error("{0}")]
    Plan(String),
    /// The program cannot be copied to a host.
    #[error("{host} cannot be prepared: {reason}")]
    Prepare {
        /// The host.
        host: String,
        /// Why.
        reason: String,
    },
    /// A role failed too often, or with an error that a restart would not fix.
    #[error("{role} on {host} {how}; it said last:\n{said}")]
    Failed {
        /// Which.
        role: String,
        /// Where.
        host: String,
        /// How.
        how: String,
        /// Its last lines.
        said: String,
    },
    /// A problem on this machine.
    #[error("{0}")]
    Here(String),
}
