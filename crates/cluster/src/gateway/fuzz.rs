//! Fuzz tests: arbitrary messages with the token of the run get a reply or an error, never a panic.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use proptest::prelude::*;
use prost::Message as _;
use serde_json::json;
use starling_engine::link::{
    ActorLink as _, Evaluations, Event, LearnerLink as _, LeaseId, conformance,
};
use starling_testing::{RedisServer, wait_for};

use super::Gateway;
use super::desk::Desk;
use crate::protocol::{
    Ack, Answer, Ask, Asked, Chunk, Follow, Hello, LeaseName, Parcel, Received, Reply, Report,
    Request, Said, Told, Trajectory, Upward, Welcome,
};
use crate::{JoinFile, Joined, Line, Options};

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

/// Messages of every kind, as entries of streams.
fn entries() -> Vec<Vec<u8>> {
    let lease = LeaseName {
        place: 1,
        term: 0,
        epoch: 0,
    };
    let session = Bytes::from_static(b"0123456789abcdef");
    let ask = Ask {
        lease,
        exactly: Some(7),
        have: vec![1, 2],
        patience_ms: 10,
        bytes_per_s: None,
    };
    let follow = Follow {
        session: session.clone(),
        name: "cpu1:7".into(),
        holding: Some(3),
        patience_ms: 10,
        goodbye: false,
    };
    let report = Report {
        session: session.clone(),
        returns: vec![1.0, 2.0],
        lengths: vec![3.0, 4.0],
        ..Report::default()
    };
    let asked = [
        // Of another protocol, so that it never has a place.
        Asked::Hello(Hello {
            session: session.clone(),
            ..Hello::default()
        }),
        Asked::Weights(ask),
        Asked::Open(lease),
        Asked::Follow(follow),
        Asked::Report(report),
    ];
    let requests = asked.into_iter().map(|asked| {
        let request = Request {
            session: session.clone(),
            number: 5,
            again: true,
            asked: Some(asked),
        };
        request.encode_to_vec()
    });
    let parcel = Parcel {
        number: 1,
        frame: Bytes::from_static(&[7; 100]),
    };
    let said = [Said::Parcel(parcel)];
    let upward = said
        .into_iter()
        .map(|said| Upward { said: Some(said) }.encode_to_vec());
    let answers = [
        Answer::Welcome(Welcome::default()),
        Answer::Told(Told::default()),
        Answer::Received(Received::default()),
    ];
    let replies = answers.into_iter().map(|answer| {
        let reply = Reply {
            number: 1,
            answer: Some(answer),
        };
        reply.encode_to_vec()
    });
    requests.chain(upward).chain(replies).collect()
}

/// Panics of tasks, which nobody waits for.
static PANICS: AtomicUsize = AtomicUsize::new(0);

/// Entries of the run's streams that nobody of the run wrote: whole, damaged and random messages, and
/// entries of another form. The learner and its actors survive them, and others can join.
#[test]
fn no_entry_of_a_stream_stops_the_learner() {
    let folder = tempfile::tempdir().unwrap();
    let test = "no_entry_of_a_stream_stops_the_learner";
    let Some(server) = RedisServer::start(test, folder.path(), &[]) else {
        return;
    };
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let thread = std::thread::current();
        if matches!(thread.name(), Some("gateway" | "line")) {
            PANICS.fetch_add(1, Ordering::Relaxed);
        }
        before(panic);
    }));
    let address = format!("redis://127.0.0.1:{}", server.port());
    let join = JoinFile::over_redis(address, None, None, None).unwrap();
    let mut terms = conformance::terms();
    terms.evaluations = Some(Arc::<Evaluations>::default());
    let gateway = Gateway::over_redis(terms, &json!({}), &join, Options::default()).unwrap();
    let first = Line::new(&join, Options::default()).unwrap();
    let Joined::Seated(seated) = first.join(0, 0).unwrap() else {
        panic!("there are two places");
    };
    let asks = format!("starling:{}:asks", &join.token[..16]);
    let mut state = 77_u64;
    let mut below = |most: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % most as u64) as usize
    };
    let entries = entries();
    for round in 0..2_000 {
        let found = server.ask(&["KEYS", "starling:*"]);
        let keys = found.lines().filter(|line| line.starts_with("starling:"));
        let streams = keys.filter(|key| !key.contains(":closed") && !key.contains(":weights"));
        let streams: Vec<&str> = streams.chain([&*asks]).collect();
        let key = streams[below(streams.len())];
        let mut entry = match round % 3 {
            0 => (0..below(300)).map(|_| below(256) as u8).collect(),
            _ => entries[below(entries.len())].clone(),
        };
        if round % 3 == 2 && !entry.is_empty() {
            for _ in 0..=below(4) {
                let at = below(entry.len());
                entry[at] = below(256) as u8;
            }
            entry.truncate(entry.len() - below(2) * below(entry.len()));
        }
        let field: &[u8] = if below(20) == 0 { b"other" } else { b"m" };
        let words: [&[u8]; 5] = [b"XADD", key.as_bytes(), b"*", field, &entry];
        server.ask(&words);
    }
    wait_for("all of it to be read", || {
        server.ask(&["XLEN", &asks]) == ":0\r\n"
    });
    let second = Line::new(&join, Options::default()).unwrap();
    let Joined::Seated(other) = second.join(0, 0).unwrap() else {
        panic!("there are two places");
    };
    let parcel = conformance::parcel(&other.lease, 0, 1.0);
    other.link.send(parcel, Duration::from_secs(60)).unwrap();
    let began = Instant::now();
    loop {
        assert!(began.elapsed() < Duration::from_secs(60), "no parcel came");
        if let Ok(Event::Parcel(parcel)) = gateway.receive(Duration::from_secs(1)) {
            assert_eq!(parcel.lease, other.lease.id);
            break;
        }
    }
    assert_eq!(PANICS.load(Ordering::Relaxed), 0, "a task panicked");
    drop((seated, other));
}
