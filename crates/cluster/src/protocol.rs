//! What travels: a gRPC service of three calls, and the messages of each.
//!
//! ```text
//! Join(Hello) → Welcome                 versions are compared, a place is leased
//! Feed(stream Upward) → stream Ack      parcels in order, acknowledged by number; goodbye
//! Weights(Ask) → stream Chunk           waits for weights, no longer than asked
//! ```
//!
//! The structures are the definition: there is no `.proto` file, and nothing has to be generated to
//! build. Parcels and weights are frames of [`starling_engine::link::wire`], which are checked there.

use std::time::Duration;

use bytes::Bytes;
use starling_engine::link::{self, LeaseId, Loss};

pub(crate) const JOIN: &str = "/starling.v1.Starling/Join";
pub(crate) const FEED: &str = "/starling.v1.Starling/Feed";
pub(crate) const WEIGHTS: &str = "/starling.v1.Starling/Weights";

/// Changes with every change of the messages.
pub(crate) const PROTOCOL: u32 = 1;

/// The version of this program.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The metadata that holds the token.
pub(crate) const AUTHORIZATION: &str = "authorization";

/// Weights travel in parts of this length.
pub(crate) const CHUNK_BYTES: usize = 1 << 20;

/// The longest message that is neither a parcel nor a part of the weights.
pub(crate) const MOST_CONTROL_BYTES: usize = 1 << 20;

/// Parcels of an actor that may be on the way.
pub(crate) const WINDOW: usize = 2;

/// A connected learner says at least this often that it is there.
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

    pub(crate) fn loss(self, lease: LeaseId) -> Loss {
        Loss {
            leases: vec![lease],
            who: self.who,
            reason: self.reason,
            stalled: self.stalled,
        }
    }
}
