//! Control messages of a learner group: one gRPC stream per learner, with the token and the
//! certificate of a join file.
//!
//! Gradients and weights are not sent here: they use the collective of [`starling_engine::group`],
//! which is not encrypted.

mod follower;
mod lead;

pub use follower::{Follower, Invitation};
pub use lead::Lead;

use bytes::Bytes;

/// The only call.
const MEET: &str = "/starling.v1.Group/Meet";

/// Changes with every change of the messages, those of [`starling_engine::group`] included.
const PROTOCOL: u32 = 2;

/// The longest message: an offer with the episodes of a round.
const MOST_BYTES: usize = 1 << 24;

/// What a learner sends: a hello, then its messages.
#[derive(Clone, PartialEq, prost::Message)]
struct Upward {
    #[prost(oneof = "Said", tags = "1, 2")]
    said: Option<Said>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum Said {
    #[prost(message, tag = "1")]
    Hello(Hello),
    /// A [`starling_engine::group::Word`].
    #[prost(bytes = "bytes", tag = "2")]
    Word(Bytes),
}

#[derive(Clone, PartialEq, prost::Message)]
struct Hello {
    #[prost(uint32, tag = "1")]
    protocol: u32,
    #[prost(string, tag = "2")]
    version: String,
    /// The rank that it requests.
    #[prost(uint64, optional, tag = "3")]
    wanted: Option<u64>,
}

/// What learner 0 sends: a welcome, then its replies.
#[derive(Clone, PartialEq, prost::Message)]
struct Downward {
    #[prost(oneof = "Told", tags = "1, 2")]
    told: Option<Told>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum Told {
    #[prost(message, tag = "1")]
    Welcome(Welcome),
    /// A [`starling_engine::group::Answer`].
    #[prost(bytes = "bytes", tag = "2")]
    Answer(Bytes),
}

#[derive(Clone, PartialEq, prost::Message)]
struct Welcome {
    /// Its rank.
    #[prost(uint64, tag = "1")]
    rank: u64,
    /// The settings of the run, as JSON.
    #[prost(string, tag = "2")]
    settings: String,
    /// The step of the checkpoint that the run was resumed from.
    #[prost(uint64, optional, tag = "3")]
    resumed_at: Option<u64>,
    /// Where learner 0 serves the rendezvous store.
    #[prost(uint32, tag = "4")]
    store_port: u32,
}
