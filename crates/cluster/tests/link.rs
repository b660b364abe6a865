//! The link over gRPC does what every link has to do, and survives connections that do not.

#![expect(clippy::unwrap_used, reason = "a test ends where something fails")]

mod common;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use starling_cluster::{ClusterError, Identity, Joined, Line, Options, Seated};
use starling_engine::link::conformance::{self, Rig};
use starling_engine::link::{
    ActorLink, Event, LearnerLink as _, LinkError, Parcel, Publication, Terms, Verdict, Wanted,
    Weights,
};

use common::{OPTIONS, Relay, gateway, line};

const PATIENT: Duration = Duration::from_secs(20);

fn seated(line: &Line, thread: u64) -> Option<Seated> {
    match line.join(thread, 0).unwrap() {
        Joined::Seated(seated) => Some(*seated),
        Joined::Spare | Joined::Closed => None,
    }
}

/// Actors of one process, and actors of a process each.
#[test]
fn it_conforms_with_and_without_encryption() {
    for (tls, together) in [(false, true), (true, true), (true, false)] {
        let checked = conformance::check(|terms| {
            let (gateway, join) = gateway(terms, &json!({}), tls, OPTIONS);
            let (shared, mut threads) = (line(&join), 0);
            Rig {
                learner: Box::new(gateway),
                join: Box::new(move || {
                    let line = match together {
                        true => shared.clone(),
                        false => common::line(&join),
                    };
                    threads += 1;
                    let seated = seated(&line, threads)?;
                    Some((seated.lease, seated.link as Arc<dyn ActorLink>))
                }),
            }
        });
        checked.unwrap();
    }
}

/// The terms of a run of two places, and a parcel of it.
fn terms() -> Terms {
    conformance::terms()
}

fn parcel(seated: &Seated, number: u64) -> Parcel {
    conformance::parcel(&seated.lease, number, number as f32)
}

fn publication(version: u64, parameters: usize) -> Publication {
    let values = vec![version as f32; parameters];
    Publication {
        weights: Arc::new(Weights {
            version,
            values: starling_nets::Snapshot::from_values(values),
        }),
        control: Default::default(),
    }
}

/// Every connection is cut after 50 to 400 ms: each parcel is used once and in order, and weights
/// arrive whole.
#[test]
fn each_parcel_is_used_once_over_connections_that_are_cut() {
    for tls in [false, true] {
        let terms = terms();
        let (places, parameters) = (Arc::clone(&terms.places), terms.publications.weights);
        let (gateway, mut join) = gateway(terms, &Value::Null, tls, OPTIONS);
        let relay = Relay::cutting(gateway.address());
        join.address = relay.address.to_string();
        let line = line(&join);
        gateway.publish(publication(0, parameters));
        const PARCELS: u64 = 150;
        let actors: Vec<_> = (0..2)
            .map(|thread| {
                let line = line.clone();
                std::thread::spawn(move || {
                    let seated = seated(&line, thread).unwrap();
                    let mut seen = 0;
                    for number in 0..PARCELS {
                        let given = seated.link.weights(Wanted::Latest, PATIENT).unwrap();
                        assert!(given.weights.version >= seen, "weights went back");
                        seen = given.weights.version;
                        assert_eq!(given.weights.values.values()[0], seen as f32);
                        seated.link.send(parcel(&seated, number), PATIENT).unwrap();
                        std::thread::sleep(Duration::from_millis(10));
                    }
                })
            })
            .collect();
        let (mut used, mut left) = ([0; 2], 0);
        while left < 2 {
            match gateway.receive(PATIENT).unwrap() {
                Event::Parcel(parcel) => {
                    let verdict = places.judge(parcel.lease, parcel.number);
                    assert_eq!(verdict, Verdict::Use, "parcel {}", parcel.number);
                    assert_eq!(parcel.number, used[parcel.lease.place]);
                    used[parcel.lease.place] += 1;
                    gateway.publish(publication(used[0] + used[1], parameters));
                }
                Event::Joined { .. } => {}
                Event::Left { .. } => left += 1,
                Event::Lost(loss) => panic!("{loss:?}"),
            }
        }
        for actor in actors {
            actor.join().unwrap();
        }
        let (counts, made) = (gateway.counts(), line.counts());
        assert_eq!(used, [PARCELS; 2]);
        assert_eq!(
            (counts.parcels, counts.left, counts.lost),
            (2 * PARCELS, 2, 0)
        );
        // The answer to a goodbye may be lost, and with it that to the parcels just before.
        assert_eq!(made.made, 2 * PARCELS);
        assert!(made.acknowledged >= 2 * PARCELS - 4, "{made:?}");
        assert!(counts.reconnects >= 5, "{counts:?}");
        assert!(relay.connections.load(Ordering::Relaxed) >= 5);
    }
}

/// An actor that is away keeps its place for a while; then the next one has it.
#[test]
fn a_lease_expires_and_a_spare_takes_the_place() {
    let options = Options {
        lease: Duration::from_millis(500),
        ..OPTIONS
    };
    let terms = terms();
    let places = Arc::clone(&terms.places);
    let (gateway, join) = gateway(terms, &Value::Null, true, options);
    let relay = Relay::cutting(gateway.address());
    let mut cut = join.clone();
    cut.address = relay.address.to_string();
    let (first, second) = (line(&cut), line(&join));
    let (one, _two) = (seated(&first, 0).unwrap(), seated(&second, 0).unwrap());
    one.link.send(parcel(&one, 0), PATIENT).unwrap();
    let spare = line(&join);
    assert!(matches!(spare.join(0, 0), Ok(Joined::Spare)));
    while first.counts().acknowledged < 1 {
        std::thread::sleep(Duration::from_millis(1));
    }
    // It is cut off for good, and cannot say goodbye.
    drop(relay);
    let lease = one.lease;
    let began = Instant::now();
    let lost = loop {
        match gateway.receive(PATIENT) {
            Ok(Event::Lost(loss)) => break loss,
            Ok(Event::Parcel(parcel)) => {
                assert_eq!(places.judge(parcel.lease, parcel.number), Verdict::Use);
            }
            Ok(_) => {}
            Err(error) => panic!("{error} after {:?}", began.elapsed()),
        }
    };
    assert_eq!(lost.leases, [lease.id]);
    assert!(lost.reason.contains("no connection for 0.5 s"), "{lost:?}");
    places.end(lease.id);
    let next = seated(&spare, 0).unwrap();
    assert_eq!(next.lease.id.place, lease.id.place);
    assert_eq!((next.lease.id.term, next.lease.first_round), (1, 1));
}

/// A question that is asked again has the same answer.
#[test]
fn joining_twice_takes_one_place() {
    let (gateway, join) = gateway(terms(), &Value::Null, false, OPTIONS);
    let line = line(&join);
    let first = seated(&line, 0).unwrap();
    let again = seated(&line, 0).unwrap();
    assert_eq!(first.lease, again.lease);
    assert_eq!(gateway.counts().joined, 1);
    // A thread that asks for another lease has given up the first one.
    let Ok(Joined::Seated(other)) = line.join(0, 1) else {
        panic!("there are two places");
    };
    assert_ne!(other.lease.id.place, first.lease.id.place);
    assert_eq!(gateway.counts().left, 1);
}

#[test]
fn strangers_are_refused() {
    let (gateway, join) = gateway(terms(), &Value::Null, true, OPTIONS);
    let other = Identity::new(true).unwrap().join_file(join.address.clone());
    let mut wrong = join.clone();
    wrong.token = other.token.clone();
    let refused = line(&wrong).join(0, 0).err().unwrap();
    assert_eq!(
        refused,
        ClusterError::Refused("this is not the token of the run".into())
    );
    // Another certificate, and none at all, never get as far as that.
    let soon = Options {
        reconnect: Duration::from_millis(300),
        ..OPTIONS
    };
    let mut mistaken = join.clone();
    mistaken.certificate = other.certificate;
    let mut plain = join.clone();
    plain.certificate = None;
    for join in [mistaken, plain] {
        let refused = Line::new(&join, soon).unwrap().join(0, 0).err().unwrap();
        assert!(
            matches!(refused, ClusterError::Unreachable { .. }),
            "{refused}"
        );
    }
    let counts = gateway.counts();
    assert_eq!((counts.refused, counts.joined), (1, 0));
}

/// All threads of a process share what one of them pulled.
#[test]
fn weights_travel_once_per_process() {
    let terms = terms();
    let parameters = terms.publications.weights;
    let (gateway, join) = gateway(terms, &Value::Null, false, OPTIONS);
    let line = line(&join);
    let seats = [seated(&line, 0).unwrap(), seated(&line, 1).unwrap()];
    for version in 0..5 {
        gateway.publish(publication(version, parameters));
        for seated in &seats {
            let given = seated.link.weights(Wanted::Exactly(version), PATIENT);
            assert_eq!(given.unwrap().weights.version, version);
        }
    }
    assert_eq!(line.counts().pulls, 5);
}

/// An actor that waits for a learner that is gone says so in the end.
#[test]
fn waits_have_an_end() {
    let (gateway, join) = gateway(terms(), &Value::Null, false, OPTIONS);
    let soon = Options {
        reconnect: Duration::from_millis(500),
        ..OPTIONS
    };
    let relay = Relay::cutting(gateway.address());
    let mut join = join;
    join.address = relay.address.to_string();
    let line = Line::new(&join, soon).unwrap();
    let seat = seated(&line, 0).unwrap();
    drop(relay);
    std::thread::sleep(Duration::from_millis(500));
    let given = seat.link.weights(Wanted::Latest, PATIENT).map(drop);
    assert!(matches!(given, Err(LinkError::Lost(_))), "{given:?}");
    let sent = (0..4).map(|number| seat.link.send(parcel(&seat, number), PATIENT).map(drop));
    let sent: Vec<_> = sent.collect();
    assert!(
        sent.iter()
            .any(|sent| matches!(sent, Err(LinkError::Lost(_)))),
        "{sent:?}"
    );
}

/// A network that swallows everything without a word is noticed by both sides. The actor that comes
/// back is told that its place is gone.
#[test]
fn silence_is_noticed() {
    let options = Options {
        lease: Duration::from_millis(500),
        keep_alive: Duration::from_millis(500),
        ..OPTIONS
    };
    let terms = terms();
    let places = Arc::clone(&terms.places);
    let (gateway, mut join) = gateway(terms, &Value::Null, true, options);
    let relay = Relay::lasting(gateway.address());
    join.address = relay.address.to_string();
    let line = Line::new(&join, options).unwrap();
    let seat = seated(&line, 0).unwrap();
    seat.link.send(parcel(&seat, 0), PATIENT).unwrap();
    while line.counts().acknowledged < 1 {
        std::thread::sleep(Duration::from_millis(1));
    }
    relay.silent.store(true, Ordering::Relaxed);
    let began = Instant::now();
    let lost = loop {
        match gateway.receive(PATIENT).unwrap() {
            Event::Lost(loss) => break loss,
            Event::Parcel(_) | Event::Joined { .. } => {}
            Event::Left { .. } => panic!("it did not say goodbye"),
        }
    };
    assert!(began.elapsed() < PATIENT / 2);
    assert!(places.end(lost.leases[0]));
    relay.silent.store(false, Ordering::Relaxed);
    let given = seat.link.weights(Wanted::Latest, PATIENT).map(drop);
    assert_eq!(given, Err(LinkError::LeaseEnded(seat.lease.id)));
    let sent = seat.link.send(parcel(&seat, 1), PATIENT).map(drop);
    assert_eq!(sent, Err(LinkError::LeaseEnded(seat.lease.id)));
}
