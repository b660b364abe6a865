//! The link over gRPC does what every link has to do, and survives connections that do not.

use std::io::Read as _;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use starling_cluster::{
    ClusterError, Fleet, Gateway, Identity, JoinFile, Joined, Line, Options, Seated, run_actors,
};
use starling_engine::link::conformance::{self, Rig};
use starling_engine::link::{
    ActorLink, Event, LearnerLink as _, LinkError, Parcel, Publication, Terms, Verdict, Wanted,
    Weights,
};
use starling_engine::{EngineError, RunConfig};
use starling_testing::wait_for;

use super::relay::Relay;

const PATIENT: Duration = Duration::from_secs(60);

/// Fast enough for a test, and slow enough for a busy machine.
const OPTIONS: Options = Options {
    lease: Duration::from_secs(20),
    keep_alive: Duration::from_secs(5),
    reconnect: Duration::from_secs(20),
};

fn gateway(terms: Terms, settings: &Value, tls: bool, options: Options) -> (Gateway, JoinFile) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let identity = Identity::new(tls).unwrap();
    let join = identity.join_file(listener.local_addr().unwrap().to_string());
    let gateway = Gateway::listen(terms, settings, listener, identity, options).unwrap();
    (gateway, join)
}

/// Where a gateway listens.
fn address(join: &JoinFile) -> SocketAddr {
    join.address.parse().unwrap()
}

fn line(join: &JoinFile) -> Line {
    Line::new(join, OPTIONS).unwrap()
}

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
                        false => Line::new(&join, OPTIONS).unwrap(),
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
        let relay = Relay::cutting(address(&join));
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
        lease: Duration::from_secs(2),
        ..OPTIONS
    };
    let terms = terms();
    let places = Arc::clone(&terms.places);
    let (gateway, join) = gateway(terms, &Value::Null, true, options);
    // Not one that cuts: a lease of two seconds would be a race with the next connection.
    let relay = Relay::lasting(address(&join));
    let mut cut = join.clone();
    cut.address = relay.address.to_string();
    let (first, second) = (line(&cut), line(&join));
    let (one, _two) = (seated(&first, 0).unwrap(), seated(&second, 0).unwrap());
    one.link.send(parcel(&one, 0), PATIENT).unwrap();
    let spare = line(&join);
    assert!(matches!(spare.join(0, 0), Ok(Joined::Spare)));
    wait_for("the parcel", || first.counts().acknowledged == 1);
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
    assert!(lost.reason.contains("no connection for 2 s"), "{lost:?}");
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
fn unauthenticated_clients_are_refused() {
    let (gateway, join) = gateway(terms(), &Value::Null, true, OPTIONS);
    let other = Identity::new(true).unwrap().join_file(join.address.clone());
    let mut wrong = join.clone();
    wrong.token = other.token.clone();
    let refused = line(&wrong).join(0, 0).err().unwrap();
    assert_eq!(refused, ClusterError::Refused("invalid token".into()));
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
    let (_gateway, join) = gateway(terms(), &Value::Null, false, OPTIONS);
    let soon = Options {
        reconnect: Duration::from_secs(5),
        ..OPTIONS
    };
    let relay = Relay::cutting(address(&join));
    let mut join = join;
    join.address = relay.address.to_string();
    let line = Line::new(&join, soon).unwrap();
    let seat = seated(&line, 0).unwrap();
    drop(relay);
    std::thread::sleep(Duration::from_millis(500));
    let given = seat.link.weights(Wanted::Latest, PATIENT).map(drop);
    assert!(matches!(given, Err(LinkError::Lost(_))), "{given:?}");
    // It gave up reconnecting: another attempt ends at once.
    let began = Instant::now();
    let joined = line.join(0, 1).err();
    assert!(
        matches!(joined, Some(ClusterError::Unreachable { .. })),
        "{joined:?}"
    );
    assert!(began.elapsed() < soon.reconnect / 2);
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
        lease: Duration::from_secs(2),
        keep_alive: Duration::from_secs(2),
        ..OPTIONS
    };
    let terms = terms();
    let places = Arc::clone(&terms.places);
    let (gateway, mut join) = gateway(terms, &Value::Null, true, options);
    let relay = Relay::lasting(address(&join));
    join.address = relay.address.to_string();
    let line = Line::new(&join, options).unwrap();
    let seat = seated(&line, 0).unwrap();
    seat.link.send(parcel(&seat, 0), PATIENT).unwrap();
    wait_for("the parcel", || line.counts().acknowledged == 1);
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

/// Threads that wait for the same weights are as patient with a busy learner as the one that asks.
#[test]
fn all_threads_are_patient_with_a_busy_learner() {
    let terms = terms();
    let parameters = terms.publications.weights;
    let (gateway, join) = gateway(terms, &Value::Null, false, OPTIONS);
    let line = line(&join);
    let seats = [seated(&line, 0).unwrap(), seated(&line, 1).unwrap()];
    gateway.set_busy(true);
    let patience = Duration::from_millis(300);
    let waiting = seats.each_ref().map(|seated| {
        let link = Arc::clone(&seated.link);
        std::thread::spawn(move || link.weights(Wanted::Exactly(1), patience))
    });
    std::thread::sleep(Duration::from_secs(4));
    for thread in &waiting {
        assert!(!thread.is_finished(), "a thread gave up");
    }
    gateway.publish(publication(1, parameters));
    gateway.set_busy(false);
    for thread in waiting {
        assert_eq!(thread.join().unwrap().unwrap().weights.version, 1);
    }
}

/// Weights may take long, as long as some arrive.
#[test]
fn slow_lines_work() {
    let mut terms = terms();
    let parameters = 1_000_000;
    terms.publications.weights = parameters;
    let (gateway, mut join) = gateway(terms, &Value::Null, true, OPTIONS);
    let relay = Relay::slow(address(&join), 250_000);
    join.address = relay.address.to_string();
    let line = line(&join);
    let seated = seated(&line, 0).unwrap();
    gateway.publish(publication(1, parameters));
    let began = Instant::now();
    let given = seated.link.weights(Wanted::Latest, PATIENT).unwrap();
    assert_eq!(given.weights.version, 1);
    // Longer than any single wait.
    assert!(began.elapsed() > Duration::from_secs(12));
    assert_eq!((line.counts().pulls, line.counts().reconnects), (1, 0));
}

/// An actor that leaves while the learner takes nothing waits with its goodbye, and loses nothing.
#[test]
fn a_goodbye_waits_for_the_parcels_before_it() {
    let (gateway, join) = gateway(terms(), &Value::Null, false, OPTIONS);
    let line = line(&join);
    let seat = seated(&line, 0).unwrap();
    for number in 0..4 {
        seat.link.send(parcel(&seat, number), PATIENT).unwrap();
    }
    let leaving = std::thread::spawn(move || drop(seat));
    std::thread::sleep(Duration::from_secs(5));
    assert!(!leaving.is_finished());
    let mut next = 0;
    loop {
        match gateway.receive(PATIENT).unwrap() {
            Event::Joined { .. } => {}
            Event::Parcel(parcel) => {
                assert_eq!(parcel.number, next);
                next += 1;
            }
            Event::Left { .. } => break,
            Event::Lost(loss) => panic!("{loss:?}"),
        }
    }
    assert_eq!(next, 4);
    leaving.join().unwrap();
}

/// Connections without the token end, whether they say nothing or never agree on TLS, and those who
/// have it are not kept out by them for longer than that.
#[test]
fn connections_without_the_token_end() {
    for tls in [false, true] {
        let options = Options {
            keep_alive: Duration::from_secs(1),
            ..OPTIONS
        };
        let (gateway, join) = gateway(terms(), &Value::Null, tls, options);
        // More than may be open at a time.
        let clients: Vec<TcpStream> = (0..400)
            .map(|_| TcpStream::connect(address(&join)).unwrap())
            .collect();
        let (first, second) = (line(&join), line(&join));
        assert!(seated(&first, 0).is_some() && seated(&second, 0).is_some());
        for mut client in clients {
            let limit = Some(Duration::from_secs(20));
            client.set_read_timeout(limit).unwrap();
            let mut said = Vec::new();
            // A server without TLS begins with its settings.
            match client.read_to_end(&mut said) {
                Ok(_) => assert!(said.len() < 100),
                Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
            }
        }
        assert_eq!(gateway.counts().lost, 0);
    }
}

/// What fails before an actor collects is told to the learner, and a thread that fails again and again
/// ends its process with an error, whatever the others do.
#[test]
fn a_thread_that_fails_ends_its_process() {
    let terms = terms();
    let places = Arc::clone(&terms.places);
    let (gateway, join) = gateway(terms, &json!({}), false, OPTIONS);
    // The learner, which frees the places of those who are lost.
    let hearing = gateway.clone();
    let learner = std::thread::spawn(move || {
        let mut reasons = Vec::new();
        loop {
            match hearing.receive(PATIENT) {
                Ok(Event::Lost(loss)) => {
                    assert!(places.end(loss.leases[0]));
                    reasons.push(loss.reason);
                }
                Ok(Event::Left { lease, .. }) => assert!(places.end(lease)),
                Ok(_) => {}
                Err(_) => return reasons,
            }
        }
    });
    let line = line(&join);
    let unlucky: OnceLock<ThreadId> = OnceLock::new();
    let ended = run_actors(&line, Fleet::Threads(2), &AtomicBool::new(false), |_| {
        let this = std::thread::current().id();
        if *unlucky.get_or_init(|| this) == this {
            return Err(EngineError::Thread("has no more coins".into()));
        }
        // The other one is content, and waits for weights.
        RunConfig::from_value(&json!({
            "env": {"id": "CartPole-v1"},
            "algo": {"name": "ppo"},
            "device": "cpu",
            "stall_timeout_s": 60,
        }))
    });
    let error = ended.unwrap_err().to_string();
    assert!(error.contains("has no more coins"), "{error}");
    gateway.close();
    let reasons = learner.join().unwrap();
    assert_eq!(reasons.len(), 5, "{reasons:?}");
    for reason in reasons {
        assert!(reason.contains("has no more coins"), "{reason}");
    }
}
