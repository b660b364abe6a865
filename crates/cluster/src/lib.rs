//! Actors in other processes and on other machines, over gRPC or Redis.
//!
//! ```text
//! actor process                                     learner process
//! serve ─▶ Seat ─▶ window ══ Feed, numbered ═════▶ Gateway ─▶ Ledger ─▶ Inbox ─▶ learner
//!   ▲                 ▲ ◀═══ acknowledged ═══════      │
//!   └─ Weights of the process ◀══ by version ══════════┘
//! ```
//!
//! The learner listens ([`Gateway`]) and writes a [`JoinFile`]. An actor process needs nothing else:
//! the handshake returns the settings of the run. Each of its threads holds one lease. Parcels carry
//! numbers and are kept until they are acknowledged, so that a connection that breaks costs nothing:
//! the actor connects again and sends what is missing. A place whose actor does not come back in time
//! is leased to the next one.
//!
//! Read first: [`Gateway`] (the learner's side), [`Line`] (the actor's side), [`run_actors`] (what an
//! actor process does).
//!
//! The learners of a group exchange control messages over gRPC too: [`Lead`] is learner 0's side,
//! [`Follower`] that of the others.
//!
//! The asynchronous runtime runs on separate threads.

mod evaluator;
mod fleet;
mod gateway;
mod group;
pub mod launch;
mod line;
mod protocol;
mod store;
mod trust;

use std::time::Duration;

pub use evaluator::{EvaluatorCounts, run_evaluator};
pub use fleet::{Fleet, run_actors};
pub use gateway::Gateway;
pub use group::{Follower, Invitation, Lead};
pub use line::{Joined, Line, LineCounts, Seat, Seated};
pub use trust::{Identity, JoinFile};

/// Timeouts of both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// How long a place is kept for an actor without a connection.
    pub lease: Duration,
    /// How often a silent connection is tried; one that does not answer for as long again has ended.
    pub keep_alive: Duration,
    /// How long an actor looks for a learner that is away.
    pub reconnect: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(15),
            keep_alive: Duration::from_secs(5),
            reconnect: Duration::from_secs(600),
        }
    }
}

/// Why actors and learner do not come together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClusterError {
    /// No address to listen at.
    #[error("cannot listen at {address}: {reason}")]
    Listen {
        /// The address.
        address: String,
        /// Why.
        reason: String,
    },
    /// The learner is not there.
    #[error("gave up reconnecting after {seconds} s: no learner answers at {address} ({reason})")]
    Unreachable {
        /// Its address.
        address: String,
        /// How long it was tried.
        seconds: u64,
        /// The last error.
        reason: String,
    },
    /// The learner does not want this actor.
    #[error("the learner refused: {0}")]
    Refused(String),
    /// Keys, tokens, certificates and their files.
    #[error("{0}")]
    Trust(String),
    /// An actor of this process cannot continue.
    #[error("{0}")]
    Actor(String),
}
