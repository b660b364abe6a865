//! Fuzz tests: arbitrary messages with the token of the run get a reply or an error, never a panic.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use proptest::prelude::*;
use prost::Message as _;
use serde_json::json;
use starling_engine::link::{Evaluations, LeaseId, conformance};

use super::desk::Desk;
use crate::protocol::{
    Ack, Ask, Chunk, Follow, Hello, LeaseName, Parcel, Reply, Report, Request, Told, Trajectory,
    Upward, Welcome,
};
use crate::{JoinFile, Options};

fn desk() -> Desk {
    let mut terms = conformance::terms();
    terms.evaluations = Some(Arc::<Evaluations>::default());
    Desk::new(terms, &json!({}), Options::default())
}

/// Bytes that are often nearly a message.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let hello = Hello {
        protocol: 2,
        version: "0.1.0".into(),
        session: Bytes::from_static(&[7; 16]),
        name: "cpu1:7".into(),
        ..Hello::default()
    };
    let message = hello.encode_to_vec();
    let damaged = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8);
    let damaged = damaged.prop_map(move |changes| {
        let mut message = message.clone();
        for (at, byte) in changes {
            let at = at.index(message.len());
            message[at] = byte;
        }
        message
    });
    prop_oneof![prop::collection::vec(any::<u8>(), 0..200), damaged]
}

fn lease() -> impl Strategy<Value = LeaseName> {
    let numbers = (any::<u64>(), 0..3u64, any::<u64>());
    let near = (0..3u64, 0..3u64, 0..2u64);
    prop_oneof![numbers, near].prop_map(|(place, term, epoch)| LeaseName { place, term, epoch })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn no_bytes_make_decoding_panic(bytes in bytes()) {
        let _ = Hello::decode(&*bytes);
        let _ = Upward::decode(&*bytes);
        let _ = Request::decode(&*bytes);
        let _ = Reply::decode(&*bytes);
        let _ = Follow::decode(&*bytes);
        let _ = Report::decode(&*bytes);
        let _ = Ask::decode(&*bytes);
        let _ = Ack::decode(&*bytes);
        let _ = Chunk::decode(&*bytes);
        let _ = Told::decode(&*bytes);
        let _ = Welcome::decode(&*bytes);
        let _ = JoinFile::find(&format!("{{{}", String::from_utf8_lossy(&bytes)));
    }

    /// Handshakes, whole or forged, are welcomed or refused.
    #[test]
    fn no_handshake_makes_the_learner_panic(
        bytes in bytes(),
        (seat, attempt, role) in any::<(u64, u64, i32)>(),
        same in any::<bool>(),
    ) {
        let desk = desk();
        let mut hello = Hello::decode(&*bytes).unwrap_or_default();
        (hello.seat, hello.attempt, hello.role) = (seat, attempt, role);
        if same {
            hello.protocol = crate::protocol::PROTOCOL;
            hello.frames = starling_engine::link::wire::PROTOCOL.into();
            hello.version = crate::protocol::VERSION.into();
        }
        match desk.hello(hello) {
            Ok(welcome) => prop_assert!(same && !welcome.closed),
            Err(reason) => prop_assert!(!reason.is_empty() && reason.len() < 2_000),
        }
    }

    /// Leases, parcels and requests that were never granted.
    #[test]
    fn no_claim_makes_the_learner_panic(
        lease in lease(),
        (number, connection) in any::<(u64, u64)>(),
        frame in bytes(),
        (exactly, have, bytes_per_s) in any::<(Option<u64>, u64, Option<u64>)>(),
    ) {
        let desk = desk();
        let id = LeaseId::from(lease);
        let _ = desk.open(id);
        let _ = desk.ack(id, connection);
        let parcel = Parcel { number, frame: frame.into() };
        prop_assert!(!desk.take(id, connection, &parcel));
        let ask = Ask { lease, exactly, have: vec![have], patience_ms: 0, bytes_per_s };
        let (told, frame) = desk.weights(&ask);
        prop_assert!(!told.found && frame.is_empty());
    }

    /// Unsolicited reports change nothing.
    #[test]
    fn no_report_makes_the_learner_panic(
        session in prop::collection::vec(any::<u8>(), 0..100),
        (env_steps, version, cut_off) in any::<(u64, u64, u64)>(),
        returns in prop::collection::vec(any::<f64>(), 0..5),
        lengths in prop::collection::vec(any::<f64>(), 0..5),
        trajectories in prop::collection::vec(prop::collection::vec(any::<f64>(), 0..5), 0..5),
        (holding, goodbye) in any::<(Option<u64>, bool)>(),
    ) {
        let desk = desk();
        let session = Bytes::from(session);
        let follow = Follow {
            session: session.clone(),
            name: "x".repeat(5_000),
            holding,
            patience_ms: 0,
            goodbye,
        };
        let (told, frame) = desk.follow(&follow);
        prop_assert!(!told.found && frame.is_empty());
        let named = |returns| Trajectory { name: "x".repeat(5_000), returns };
        let by_trajectory = trajectories.into_iter().map(named).collect();
        let report =
            Report { session, env_steps, version, returns, lengths, cut_off, by_trajectory };
        if let Ok(told) = desk.report(report) {
            prop_assert!(!told.found);
        }
        let evaluations = desk.ledger.terms().evaluations.clone();
        let evaluations = evaluations.ok_or_else(|| TestCaseError::fail("no evaluations"))?;
        prop_assert_eq!(evaluations.take(), []);
        let names = evaluations.evaluators();
        prop_assert!(names.iter().all(|one| one.name.chars().count() <= 100));
    }
}

/// An evaluator that asks for ever longer is not waited for.
#[test]
fn patience_is_bounded() {
    let desk = desk();
    let began = std::time::Instant::now();
    let ask = Follow {
        session: Bytes::from_static(b"one"),
        patience_ms: u64::MAX,
        ..Follow::default()
    };
    let _ = desk.follow(&ask);
    assert!(began.elapsed() < Duration::from_secs(10));
}
