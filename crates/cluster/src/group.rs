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
const PROTOCOL: u32 = 3;

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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use prost::Message as _;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1_000))]

        /// Random bytes, and messages of which some bytes were changed.
        #[test]
        fn no_bytes_make_decoding_panic(
            random in prop::collection::vec(any::<u8>(), 0..200),
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
            kind in 0..4_usize,
        ) {
            let hello = Hello { protocol: PROTOCOL, version: "0.1.0".into(), wanted: Some(1) };
            let welcome = Welcome {
                rank: 1,
                settings: "{\"learners\": 2}".into(),
                resumed_at: Some(7),
                store_port: 7,
            };
            let word = Bytes::from_static(&[5; 20]);
            let mut bytes = match kind {
                0 => Upward { said: Some(Said::Hello(hello)) }.encode_to_vec(),
                1 => Upward { said: Some(Said::Word(word)) }.encode_to_vec(),
                2 => Downward { told: Some(Told::Welcome(welcome)) }.encode_to_vec(),
                _ => random,
            };
            let changes = if bytes.is_empty() { Vec::new() } else { changes };
            for (at, byte) in changes {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            let _ = Upward::decode(&*bytes);
            let _ = Downward::decode(&*bytes);
        }
    }
}
