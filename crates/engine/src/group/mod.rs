//! Groups of learners: several processes that learn one set of weights.
//!
//! Each learner has its own actors, its own environments and its own replay. Gradients and running
//! statistics are averaged over the group, so all learners have the same weights after every update.
//!
//! ```text
//!            collect ─▶ Offer ─┐                       ┌─▶ updates, gradients averaged ─▶ collect …
//! learner 0 ───────────────────┼─▶ Table ── Agreement ─┤
//! learner 1 ─ collect ─▶ Offer ┘      │                └─▶ updates, gradients averaged ─▶ collect …
//!                                     └── Formation: the members, and which of them broadcasts its state
//! ```
//!
//! Learner 0 (rank 0) coordinates, evaluates and records. Its [`Table`] is the coordinator with which
//! all learners synchronise once per round: it sets the number of updates and detects missing members.
//! When members change, a new group is formed ([`Formation`]), and the most advanced member broadcasts
//! its state. No member makes an update before the table has compared the checksums of all of them.
//! Start, loss, join and resume use the same path.
//!
//! The transport is separate: an [`Assembly`] sends messages to the table and receives its replies.
//!
//! Read first: [`Word`] and [`Answer`] (the messages), [`Table`] (the coordinator), [`Assembly`].

mod member;
mod table;
#[cfg(test)]
mod tests;

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use starling_envs::Episode;

pub(crate) use member::Membership;
pub use table::{Table, Tell};

/// Progress of a learner. The most advanced member of a group has the greatest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Standing {
    /// Updates of the run.
    pub updates: u64,
    /// Gradient steps of the next update that it has applied.
    pub steps: u64,
}

/// A message from a learner to the table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Word {
    /// It waits to join a group.
    Ready(Standing),
    /// It has collected and is ready to learn.
    Offer(Offer),
    /// Its all-reduce failed.
    Broken {
        /// How far it is.
        standing: Standing,
        /// What happened.
        reason: String,
    },
    /// It waits for the [`Verdict`] on the round.
    Done(Standing),
    /// It cannot continue, and the run ends.
    Failed(String),
    /// Learner 0 only: the verdict on the round.
    Close(Verdict),
    /// It is in the group that was formed, and has its state.
    Entered {
        /// How far it is.
        standing: Standing,
        /// A checksum of its state.
        checksum: u32,
    },
}

/// What a learner contributes to a round.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Offer {
    /// Steps that it collected.
    pub steps: u64,
    /// Updates that it could make.
    pub updates: u64,
    /// Episodes that ended.
    pub episodes: Vec<Episode>,
    /// How far it is.
    pub standing: Standing,
    /// A checksum of its state, if requested.
    pub checksum: Option<u32>,
    /// Learner 0 only: when a [`Verdict`] follows the round.
    pub pauses: Pauses,
}

/// When a [`Verdict`] follows a round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pauses {
    /// After this round, in any case.
    pub now: bool,
    /// Once the run has this many steps.
    pub at: u64,
    /// Once the run has this many steps, learners compare checksums.
    pub check_at: u64,
}

/// A reply of the table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Answer {
    /// A new group.
    Form(Formation),
    /// What all do in this round.
    Agree(Agreement),
    /// What follows the round.
    Verdict(Verdict),
    /// Learner 0 only: a learner failed, and the run ends.
    Failed(GroupError),
    /// The run has ended.
    Closed,
    /// All members of the new group have the same state, and continue.
    Equal,
}

/// A group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Formation {
    /// Grows with every group of a run.
    pub generation: u64,
    /// The learners in it, in order.
    pub members: Vec<usize>,
    /// The member that broadcasts its state: the most advanced one.
    pub most_advanced: usize,
    /// Steps of the run so far.
    pub env_steps: u64,
}

impl Formation {
    /// A learner's place among the members.
    fn position(&self, rank: usize) -> Option<usize> {
        self.members.iter().position(|member| *member == rank)
    }
}

/// What all do in a round.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Agreement {
    /// Steps of the run with those of this round.
    pub env_steps: u64,
    /// Updates.
    pub updates: u64,
    /// Whether a [`Verdict`] follows the round.
    pub pause: bool,
    /// Whether the next offer has a checksum.
    pub check: bool,
    /// For learner 0: the episodes of all, and how many learners there are.
    #[serde(skip)]
    pub all: Option<(Vec<Episode>, usize)>,
}

/// What follows a round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// A checkpoint with this score.
    pub checkpoint: Option<Option<f64>>,
    /// The run ends, or is interrupted.
    pub end: bool,
}

/// A learner's connection to the table.
pub trait Assembly: Send {
    /// Rank of this learner; 0 for the learner of the run.
    fn rank(&self) -> usize;

    /// Sends a message.
    fn say(&mut self, word: Word) -> Result<(), GroupError>;

    /// Waits for a reply, at most this long.
    fn hear(&mut self, wait: Duration) -> Result<Option<Answer>, GroupError>;

    /// The rendezvous for forming groups. Called once.
    fn meeting_point(&mut self) -> Result<MeetingPoint, GroupError>;
}

/// The rendezvous of the learners.
#[derive(Debug)]
pub struct MeetingPoint {
    /// The store of their addresses.
    pub store: StoreAt,
    /// This machine, as the others reach it.
    pub address: IpAddr,
}

/// A store of addresses.
#[derive(Debug)]
pub enum StoreAt {
    /// Learner 0 serves it here.
    Here(TcpListener),
    /// The others find it there.
    There(SocketAddr),
}

impl Word {
    /// As it travels.
    pub fn to_bytes(&self) -> Vec<u8> {
        // Numbers and texts can always be written.
        postcard::to_allocvec(self).unwrap_or_default()
    }

    /// As it arrives.
    ///
    /// # Errors
    /// When it is not one.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, GroupError> {
        postcard::from_bytes(bytes).map_err(|error| GroupError::Unreadable(error.to_string()))
    }
}

impl Answer {
    /// As it travels.
    pub fn to_bytes(&self) -> Vec<u8> {
        // As above.
        postcard::to_allocvec(self).unwrap_or_default()
    }

    /// As it arrives.
    ///
    /// # Errors
    /// When it is not one.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, GroupError> {
        postcard::from_bytes(bytes).map_err(|error| GroupError::Unreadable(error.to_string()))
    }
}

/// Why a group of learners cannot continue.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum GroupError {
    /// A learner gave up.
    #[error("learner {rank} failed: {reason}")]
    Failed {
        /// Its number.
        rank: usize,
        /// What it said.
        reason: String,
    },
    /// Too many were lost.
    #[error("learner {rank} was lost ({reason}), and no more may be (max_learner_losses)")]
    Lost {
        /// Its number.
        rank: usize,
        /// How it was noticed.
        reason: String,
    },
    /// Some did not come.
    #[error("not all learners joined within {seconds} s; start them, then resume the run")]
    Missing {
        /// How long they were waited for.
        seconds: u64,
    },
    /// Their weights differ.
    #[error("the learners have different weights (checksums {0:?}): this is a bug in Starling")]
    Diverged(Vec<u32>),
    /// Learner 0 is away.
    #[error("learner 0 is gone: {0}")]
    Away(String),
    /// Groups broke repeatedly after they were formed.
    #[error("the learners cannot reach each other: {0}")]
    Unreachable(String),
    /// The library that averages gradients cannot be used here.
    #[error("{0}")]
    Unusable(String),
    /// MPI needs all its processes.
    #[error(
        "a learner was lost ({0}), and MPI cannot continue without it; resume the run with mpirun \
         from its last checkpoint"
    )]
    Dissolved(String),
    /// A malformed message.
    #[error("a message of the group is damaged: {0}")]
    Unreadable(String),
    /// The run ended while a learner waited.
    #[error("the run has ended")]
    Closed,
    /// A learner that is no part of this run.
    #[error(
        "the state of learner {most_advanced} does not fit learner {rank}: their settings differ"
    )]
    Misfit {
        /// This one.
        rank: usize,
        /// The one whose state it was.
        most_advanced: usize,
    },
}
