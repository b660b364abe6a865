//! The protocol: a service of five calls, and their messages. Over gRPC they are calls, over Redis a
//! [`Request`] and its [`Reply`].
//!
//! ```text
//! Join(Hello) → Welcome                 versions are compared, a place is leased
//! Feed(stream Upward) → stream Ack      parcels in order, acknowledged by number; goodbye
//! Weights(Ask) → stream Chunk           waits for weights, no longer than asked
//! Follow(Follow) → stream Chunk         an evaluator waits for weights, or sends a heartbeat
//! Report(Report) → Told                 the result of an evaluation
//! ```
//!
//! The structures are the definition: there is no `.proto` file, and nothing has to be generated to
//! build. Parcels and weights are frames of [`starling_engine::link::wire`], which are checked there.

use std::time::Duration;

use bytes::Bytes;
use starling_engine::link::{self, LeaseId, Loss, ledger};

pub(crate) const JOIN: &str = "/starling.v1.Starling/Join";
pub(crate) const FEED: &str = "/starling.v1.Starling/Feed";
pub(crate) const WEIGHTS: &str = "/starling.v1.Starling/Weights";
pub(crate) const FOLLOW: &str = "/starling.v1.Starling/Follow";
pub(crate) const REPORT: &str = "/starling.v1.Starling/Report";

/// Changes with every change of the messages.
pub(crate) const PROTOCOL: u32 = 3;

/// The version of this program, with the commit that it was built from where that is known.
pub(crate) const VERSION: &str = env!("STARLING_VERSION");

/// The metadata that holds the token.
pub(crate) const AUTHORIZATION: &str = "authorization";

/// Weights are sent in parts of this length.
pub(crate) const CHUNK_BYTES: usize = 1 << 18;

/// The longest message that is neither a parcel nor a part of the weights.
pub(crate) const MOST_CONTROL_BYTES: usize = 1 << 20;

/// The longest report of an evaluator: a million episodes.
pub(crate) const MOST_REPORT_BYTES: usize = 1 << 24;

/// Unacknowledged parcels of an actor.
pub(crate) const WINDOW: usize = 2;

/// Interval of the heartbeats of a connected learner.
pub(crate) const HEARTBEAT: Duration = Duration::from_millis(500);

/// The longest that the learner's side holds back an answer about weights.
pub(crate) const LONGEST_POLL: Duration = Duration::from_secs(1);

/// An actor asks for a place.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Hello {
    /// [`PROTOCOL`] of the actor.
    #[prost(uint32, tag = "1")]
    pub(crate) protocol: u32,
    /// The protocol of its frames.
    #[prost(uint32, tag = "2")]
    pub(crate) frames: u32,
    /// Version of its program.
    #[prost(string, tag = "3")]
    pub(crate) version: String,
    /// Names its process: random.
    #[prost(bytes = "bytes", tag = "4")]
    pub(crate) session: Bytes,
    /// Which of its threads.
    #[prost(uint64, tag = "5")]
    pub(crate) seat: u64,
    /// Grows with every lease that the thread asks for, so that the answer to a repeated question is
    /// the same lease.
    #[prost(uint64, tag = "6")]
    pub(crate) attempt: u64,
    /// For messages to people.
    #[prost(string, tag = "7")]
    pub(crate) name: String,
    /// What the process is to do.
    #[prost(enumeration = "Role", tag = "8")]
    pub(crate) role: i32,
}

/// What a process that joins is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub(crate) enum Role {
    /// It collects, at a place that it leases.
    Actor = 0,
    /// It evaluates, and has no place.
    Evaluator = 1,
}

/// The answer.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Welcome {
    /// The settings of the run, as JSON.
    #[prost(string, tag = "1")]
    pub(crate) settings: String,
    /// Number of parameters of the network.
    #[prost(uint64, tag = "2")]
    pub(crate) parameters: u64,
    /// The place, unless none is free.
    #[prost(message, optional, tag = "3")]
    pub(crate) lease: Option<Lease>,
    /// The run has ended.
    #[prost(bool, tag = "4")]
    pub(crate) closed: bool,
}

/// Names a lease.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(crate) struct LeaseName {
    #[prost(uint64, tag = "1")]
    pub(crate) place: u64,
    #[prost(uint64, tag = "2")]
    pub(crate) term: u64,
    #[prost(uint64, tag = "3")]
    pub(crate) epoch: u64,
}

/// A lease.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(crate) struct Lease {
    #[prost(message, required, tag = "1")]
    pub(crate) name: LeaseName,
    #[prost(uint64, tag = "2")]
    pub(crate) first_env: u64,
    #[prost(uint64, tag = "3")]
    pub(crate) envs: u64,
    #[prost(uint64, tag = "4")]
    pub(crate) total_envs: u64,
    #[prost(fixed64, tag = "5")]
    pub(crate) seed: u64,
    #[prost(uint64, tag = "6")]
    pub(crate) first_version: u64,
    #[prost(uint64, tag = "7")]
    pub(crate) first_round: u64,
}

/// What an actor sends. The first message opens the lease, the last one is a goodbye.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Upward {
    #[prost(oneof = "Said", tags = "1, 2, 3")]
    pub(crate) said: Option<Said>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(crate) enum Said {
    #[prost(message, tag = "1")]
    Open(LeaseName),
    #[prost(message, tag = "2")]
    Parcel(Parcel),
    #[prost(message, tag = "3")]
    Goodbye(Goodbye),
}

/// Experience.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Parcel {
    #[prost(uint64, tag = "1")]
    pub(crate) number: u64,
    /// See [`link::wire::write_parcel`].
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) frame: Bytes,
}

/// An actor gives its place back.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Goodbye {
    /// Because it failed, and how.
    #[prost(message, optional, tag = "1")]
    pub(crate) failure: Option<Failure>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Failure {
    #[prost(string, tag = "1")]
    pub(crate) who: String,
    #[prost(string, tag = "2")]
    pub(crate) reason: String,
    #[prost(bool, tag = "3")]
    pub(crate) stalled: bool,
}

/// What the learner's side says on a feed: after a parcel, and every [`HEARTBEAT`].
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(crate) struct Ack {
    /// Number of the next parcel: all before it have arrived.
    #[prost(uint64, tag = "1")]
    pub(crate) next: u64,
    #[prost(enumeration = "State", tag = "2")]
    pub(crate) state: i32,
}

/// How the learner is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub(crate) enum State {
    /// It takes parcels.
    Open = 0,
    /// It is busy with something long: actors are patient.
    Busy = 1,
    /// The lease has ended.
    Ended = 2,
    /// The run has ended.
    Closed = 3,
}

/// An actor asks for weights.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Ask {
    #[prost(message, required, tag = "1")]
    pub(crate) lease: LeaseName,
    /// The version; the latest if there is none.
    #[prost(uint64, optional, tag = "2")]
    pub(crate) exactly: Option<u64>,
    /// Versions that its process has.
    #[prost(uint64, repeated, tag = "3")]
    pub(crate) have: Vec<u64>,
    /// How long it waits.
    #[prost(uint64, tag = "4")]
    pub(crate) patience_ms: u64,
    /// How fast weights arrived lately; none if it takes no changes.
    #[prost(uint64, optional, tag = "5")]
    pub(crate) bytes_per_s: Option<u64>,
}

/// A part of the answer; the first one says what follows.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Chunk {
    #[prost(message, optional, tag = "1")]
    pub(crate) told: Option<Told>,
    /// A part of the frame.
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) part: Bytes,
}

/// An evaluator asks for weights, or says that it is still at those it has.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Follow {
    /// Names its process.
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) session: Bytes,
    /// For messages to people.
    #[prost(string, tag = "2")]
    pub(crate) name: String,
    /// The step of the weights that it evaluates.
    #[prost(uint64, optional, tag = "3")]
    pub(crate) holding: Option<u64>,
    /// How long it waits for others.
    #[prost(uint64, tag = "4")]
    pub(crate) patience_ms: u64,
    /// It leaves.
    #[prost(bool, tag = "5")]
    pub(crate) goodbye: bool,
}

/// What an evaluator found.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Report {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) session: Bytes,
    /// Which weights.
    #[prost(uint64, tag = "2")]
    pub(crate) env_steps: u64,
    #[prost(uint64, tag = "3")]
    pub(crate) version: u64,
    /// Of each episode.
    #[prost(double, repeated, tag = "4")]
    pub(crate) returns: Vec<f64>,
    #[prost(double, repeated, tag = "5")]
    pub(crate) lengths: Vec<f64>,
    #[prost(uint64, tag = "6")]
    pub(crate) cut_off: u64,
    /// Of trials, the returns of each of their episodes.
    #[prost(message, repeated, tag = "7")]
    pub(crate) by_trajectory: Vec<Trajectory>,
}

/// One episode of all trials.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Trajectory {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(double, repeated, tag = "2")]
    pub(crate) returns: Vec<f64>,
}

/// What a process asks through Redis.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Request {
    /// Names the process: where the answer goes.
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) session: Bytes,
    /// Counts the questions of the process.
    #[prost(uint64, tag = "2")]
    pub(crate) number: u64,
    /// The weights that the last answer named were not there.
    #[prost(bool, tag = "3")]
    pub(crate) again: bool,
    #[prost(oneof = "Asked", tags = "4, 5, 6, 7, 8")]
    pub(crate) asked: Option<Asked>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(crate) enum Asked {
    #[prost(message, tag = "4")]
    Hello(Hello),
    #[prost(message, tag = "5")]
    Weights(Ask),
    /// A new connection to a lease, whose messages use a separate stream.
    #[prost(message, tag = "6")]
    Open(LeaseName),
    #[prost(message, tag = "7")]
    Follow(Follow),
    #[prost(message, tag = "8")]
    Report(Report),
}

/// What the learner's side answers through Redis.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Reply {
    /// Number of the question.
    #[prost(uint64, tag = "1")]
    pub(crate) number: u64,
    #[prost(oneof = "Answer", tags = "2, 3, 4, 5")]
    pub(crate) answer: Option<Answer>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(crate) enum Answer {
    #[prost(message, tag = "2")]
    Welcome(Welcome),
    /// Why not.
    #[prost(string, tag = "3")]
    Refused(String),
    /// The frame, if there is one, is in a separate key.
    #[prost(message, tag = "4")]
    Told(Told),
    #[prost(message, tag = "5")]
    Received(Received),
}

/// An [`Ack`], and what has been read from the stream of the connection.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(crate) struct Received {
    #[prost(message, required, tag = "1")]
    pub(crate) ack: Ack,
    /// Number of the parcel that has not been read yet.
    #[prost(uint64, tag = "2")]
    pub(crate) received: u64,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(crate) struct Told {
    #[prost(enumeration = "State", tag = "1")]
    pub(crate) state: i32,
    /// Whether there are such weights.
    #[prost(bool, tag = "2")]
    pub(crate) found: bool,
    #[prost(uint64, tag = "3")]
    pub(crate) version: u64,
    #[prost(uint64, tag = "4")]
    pub(crate) env_steps: u64,
    /// Bytes of the frame that follows; 0 if the process has this version.
    #[prost(uint64, tag = "5")]
    pub(crate) bytes: u64,
}

impl From<LeaseId> for LeaseName {
    fn from(id: LeaseId) -> Self {
        Self {
            place: id.place as u64,
            term: id.term,
            epoch: id.epoch,
        }
    }
}

impl From<LeaseName> for LeaseId {
    fn from(name: LeaseName) -> Self {
        Self {
            place: name.place as usize,
            term: name.term,
            epoch: name.epoch,
        }
    }
}

impl From<link::Lease> for Lease {
    fn from(lease: link::Lease) -> Self {
        Self {
            name: lease.id.into(),
            first_env: lease.place.first_env as u64,
            envs: lease.place.envs as u64,
            total_envs: lease.place.total_envs as u64,
            seed: lease.seed,
            first_version: lease.first_version,
            first_round: lease.first_round,
        }
    }
}

impl From<Lease> for link::Lease {
    fn from(lease: Lease) -> Self {
        Self {
            id: lease.name.into(),
            place: link::Place {
                first_env: lease.first_env as usize,
                envs: lease.envs as usize,
                total_envs: lease.total_envs as usize,
            },
            seed: lease.seed,
            first_version: lease.first_version,
            first_round: lease.first_round,
        }
    }
}

impl Failure {
    pub(crate) fn of(loss: &Loss) -> Self {
        Self {
            who: loss.who.clone(),
            reason: loss.reason.clone(),
            stalled: loss.stalled,
        }
    }
}

impl From<Failure> for ledger::Failure {
    fn from(failure: Failure) -> Self {
        Self {
            who: failure.who,
            reason: failure.reason,
            stalled: failure.stalled,
        }
    }
}
