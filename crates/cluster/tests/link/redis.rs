//! The link over a real Redis server does what every link has to do, and survives a server that is
//! killed, emptied or full.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use starling_cluster::{
    ClusterError, Gateway, JoinFile, Joined, Line, LineCounts, Options, Seated,
};
use starling_engine::link::conformance::{self, Rig};
use starling_engine::link::ledger::Counts;
use starling_engine::link::{
    ActorLink, Event, LearnerLink as _, LinkError, Parcel, Publication, Terms, Verdict, Wanted,
    Weights,
};
use starling_testing::{RedisServer, wait_for};

use super::relay::Relay;

const PATIENT: Duration = Duration::from_secs(40);

const OPTIONS: Options = Options {
    lease: Duration::from_secs(20),
    keep_alive: Duration::from_secs(2),
    reconnect: Duration::from_secs(40),
};

fn join_file(server: &RedisServer, password: Option<&str>) -> JoinFile {
    let address = format!("redis://127.0.0.1:{}/1", server.port());
    JoinFile::over_redis(address, password.map(str::to_owned), None, None).unwrap()
}

fn gateway(terms: Terms, join: &JoinFile, options: Options) -> Gateway {
    Gateway::over_redis(terms, &json!({}), join, options).unwrap()
}

fn seated(line: &Line, thread: u64) -> Option<Seated> {
    match line.join(thread, 0).unwrap() {
        Joined::Seated(seated) => Some(*seated),
        Joined::Spare | Joined::Closed => None,
    }
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

/// Actors of one process, and actors of a process each; with and without a password.
#[test]
fn it_conforms() {
    let folder = tempfile::tempdir().unwrap();
    for password in [None, Some("secret")] {
        let args = password.map_or(vec![], |password| vec!["--requirepass", password]);
        let Some(server) = RedisServer::start("it_conforms", folder.path(), &args) else {
            return;
        };
        for together in [true, false] {
            let checked = conformance::check(|terms| {
                let join = join_file(&server, password);
                let learner = gateway(terms, &join, OPTIONS);
                let shared = Line::new(&join, OPTIONS).unwrap();
                let mut threads = 0;
                Rig {
                    learner: Box::new(learner),
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
}

/// Sends parcels of two actors and asks for weights, while `disturb` does something to the server, and
/// checks that each parcel is used once and in order, that weights never go back, and that the server
/// keeps nothing in the end.
fn survive(
    test: &str,
    args: &[&str],
    disturb: impl FnMut(&mut RedisServer, u64),
) -> Option<(Counts, LineCounts)> {
    let folder = tempfile::tempdir().unwrap();
    let server = RedisServer::start(test, folder.path(), args)?;
    let join = join_file(&server, None);
    Some(exchange(server, &join, 200, disturb))
}

fn exchange(
    mut server: RedisServer,
    join: &JoinFile,
    parcels: u64,
    mut disturb: impl FnMut(&mut RedisServer, u64),
) -> (Counts, LineCounts) {
    let terms = conformance::terms();
    let (places, parameters) = (Arc::clone(&terms.places), terms.publications.weights);
    let gateway = gateway(terms, join, OPTIONS);
    let line = Line::new(join, OPTIONS).unwrap();
    gateway.publish(publication(0, parameters));
    let sent = Arc::new(AtomicU64::new(0));
    let actors: Vec<_> = (0..2)
        .map(|thread| {
            let (line, sent) = (line.clone(), Arc::clone(&sent));
            std::thread::spawn(move || {
                let seated = seated(&line, thread).unwrap();
                let mut seen = 0;
                for number in 0..parcels {
                    let given = seated.link.weights(Wanted::Latest, PATIENT).unwrap();
                    assert!(given.weights.version >= seen, "weights went back");
                    seen = given.weights.version;
                    assert_eq!(given.weights.values.values()[0], seen as f32);
                    seated.link.send(parcel(&seated, number), PATIENT).unwrap();
                    sent.fetch_add(1, Ordering::Relaxed);
                    std::thread::sleep(Duration::from_millis(10));
                }
            })
        })
        .collect();
    let mut used = [0; 2];
    let learner = std::thread::spawn(move || {
        let mut left = 0;
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
        assert_eq!(used, [parcels; 2]);
        gateway.counts()
    });
    while !learner.is_finished() {
        disturb(&mut server, sent.load(Ordering::Relaxed));
        std::thread::sleep(Duration::from_millis(20));
    }
    for actor in actors {
        actor.join().unwrap();
    }
    let counts = learner.join().unwrap();
    assert_eq!((counts.parcels, counts.lost), (2 * parcels, 0));
    (counts, line.counts())
}

/// With and without its files: actors send again what was not acknowledged.
#[test]
fn a_server_that_is_killed_costs_nothing() {
    for args in [vec![], vec!["--appendonly", "yes"]] {
        let mut kills = 0;
        let test = "a_server_that_is_killed_costs_nothing";
        let survived = survive(test, &args, |server, sent| {
            if sent > 60 * (kills + 1) && kills < 4 {
                kills += 1;
                server.kill();
                std::thread::sleep(Duration::from_millis(300));
                server.start_again();
            }
        });
        let Some((counts, _)) = survived else { return };
        assert_eq!(kills, 4);
        assert!(counts.reconnects >= 4, "{counts:?}");
    }
}

/// Every connection, of actors and of the learner, is cut after 50 to 400 ms.
#[test]
fn connections_that_are_cut_cost_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let test = "connections_that_are_cut_cost_nothing";
    let Some(server) = RedisServer::start(test, folder.path(), &[]) else {
        return;
    };
    let relay = Relay::cutting(([127, 0, 0, 1], server.port()).into());
    let join = JoinFile {
        address: format!("redis://{}/1", relay.address),
        ..join_file(&server, None)
    };
    let (counts, _) = exchange(server, &join, 40, |_, _| {});
    assert!(counts.reconnects >= 5, "{counts:?}");
    assert!(relay.connections.load(Ordering::Relaxed) >= 20);
}

/// Somebody empties the server: what was on its way is noticed and sent again.
#[test]
fn a_server_that_is_emptied_costs_nothing() {
    let mut times = 0;
    let test = "a_server_that_is_emptied_costs_nothing";
    let survived = survive(test, &[], |server, sent| {
        if sent > 60 * (times + 1) && times < 4 {
            times += 1;
            assert_eq!(server.ask(&["FLUSHALL"]), "+OK\r\n");
        }
    });
    assert!(survived.is_none() || times == 4);
}

/// A server without memory takes nothing. Actors wait until it has some again.
#[test]
fn a_full_server_is_waited_for() {
    let (mut filled, mut freed) = (None, false);
    let test = "a_full_server_is_waited_for";
    let limit = |server: &RedisServer, bytes: &str| {
        let answer = server.ask(&["CONFIG", "SET", "maxmemory", bytes]);
        assert_eq!(answer, "+OK\r\n");
    };
    let survived = survive(test, &[], |server, sent| match filled {
        None if sent > 60 => {
            // Less than an empty server needs.
            limit(server, "100kb");
            assert!(server.ask(&["SET", "a", "b"]).starts_with("-OOM"));
            filled = Some((Instant::now(), sent));
        }
        Some((when, before)) if !freed && when.elapsed() > Duration::from_secs(3) => {
            // What was in the windows of both actors, and what they collected meanwhile.
            assert!(sent <= before + 8, "{before} parcels, then {sent}");
            freed = true;
            limit(server, "0");
        }
        _ => {}
    });
    assert!(survived.is_none() || freed);
}

/// Weights are in the server once, however many processes ask, and go when they are old.
#[test]
fn weights_are_set_once_per_version() {
    let folder = tempfile::tempdir().unwrap();
    let test = "weights_are_set_once_per_version";
    let Some(server) = RedisServer::start(test, folder.path(), &[]) else {
        return;
    };
    let join = join_file(&server, None);
    let mut terms = conformance::terms();
    let parameters = 300_000;
    terms.publications.weights = parameters;
    let gateway = gateway(terms, &join, OPTIONS);
    let lines = [(); 2].map(|()| Line::new(&join, OPTIONS).unwrap());
    let seats = lines.each_ref().map(|line| seated(line, 0).unwrap());
    for version in 0..3 {
        gateway.publish(publication(version, parameters));
        for seated in &seats {
            let given = seated.link.weights(Wanted::Exactly(version), PATIENT);
            let given = given.unwrap().weights;
            assert_eq!(given.values.values(), vec![version as f32; parameters]);
        }
    }
    assert_eq!(lines.each_ref().map(|line| line.counts().pulls), [3, 3]);
    let stats = server.ask(&["INFO", "commandstats"]);
    assert!(stats.contains("cmdstat_set:calls=3,"), "{stats}");
}

/// An actor that is not heard from loses its place to the next one.
#[test]
fn a_silent_actor_loses_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let test = "a_silent_actor_loses_its_place";
    let Some(server) = RedisServer::start(test, folder.path(), &[]) else {
        return;
    };
    let options = Options {
        lease: Duration::from_secs(2),
        keep_alive: Duration::from_secs(2),
        ..OPTIONS
    };
    let join = join_file(&server, None);
    let terms = conformance::terms();
    let places = Arc::clone(&terms.places);
    let gateway = gateway(terms, &join, options);
    let relay = Relay::lasting(([127, 0, 0, 1], server.port()).into());
    let cut = JoinFile {
        address: format!("redis://{}/1", relay.address),
        ..join.clone()
    };
    let line = Line::new(&cut, options).unwrap();
    let seat = seated(&line, 0).unwrap();
    seat.link.send(parcel(&seat, 0), PATIENT).unwrap();
    wait_for("the parcel", || line.counts().acknowledged == 1);
    relay.silent.store(true, Ordering::Relaxed);
    let lease = seat.lease;
    let lost = loop {
        match gateway.receive(PATIENT).unwrap() {
            Event::Lost(loss) => break loss,
            Event::Parcel(_) | Event::Joined { .. } => {}
            Event::Left { .. } => panic!("it did not say goodbye"),
        }
    };
    assert_eq!(lost.leases, [lease.id]);
    assert!(lost.reason.contains("no connection for 2 s"), "{lost:?}");
    places.end(lease.id);
    let next = Line::new(&join, options).unwrap();
    let next = seated(&next, 0).unwrap();
    assert_eq!(
        (next.lease.id.place, next.lease.id.term),
        (lease.id.place, 1)
    );
    // When it comes back it is told.
    relay.silent.store(false, Ordering::Relaxed);
    let given = seat.link.weights(Wanted::Latest, PATIENT).map(drop);
    assert_eq!(given, Err(LinkError::LeaseEnded(lease.id)));
}

/// With TLS, and a certificate that the join file brings.
#[test]
fn it_is_encrypted() {
    let folder = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let write = |name: &str, text: String| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let certificate = write("certificate.pem", made.cert.pem());
    let key = write("key.pem", made.signing_key.serialize_pem());
    let free = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = free.local_addr().unwrap().port().to_string();
    drop(free);
    let args = [
        ("--tls-port", port.as_str()),
        ("--tls-cert-file", &certificate),
        ("--tls-key-file", &key),
        ("--tls-ca-cert-file", &certificate),
        ("--tls-auth-clients", "no"),
    ];
    let args: Vec<&str> = args
        .iter()
        .flat_map(|(name, value)| [*name, value])
        .collect();
    let Some(_server) = RedisServer::start("it_is_encrypted", folder.path(), &args) else {
        return;
    };
    let address = format!("rediss://127.0.0.1:{port}");
    let join = |certificate: String| {
        JoinFile::over_redis(address.clone(), None, Some(certificate), None).unwrap()
    };
    let right = join(made.cert.pem());
    assert!(right.is_encrypted());
    let terms = conformance::terms();
    let parameters = terms.publications.weights;
    let gateway = gateway(terms, &right, OPTIONS);
    let line = Line::new(&right, OPTIONS).unwrap();
    let seat = seated(&line, 0).unwrap();
    gateway.publish(publication(1, parameters));
    let given = seat.link.weights(Wanted::Latest, PATIENT).unwrap();
    assert_eq!(given.weights.version, 1);
    seat.link.send(parcel(&seat, 0), PATIENT).unwrap();
    assert!(matches!(gateway.receive(PATIENT), Ok(Event::Joined { .. })));
    assert!(matches!(gateway.receive(PATIENT), Ok(Event::Parcel(_))));
    let other = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let wrong = join(other.cert.pem());
    let refused = Gateway::over_redis(conformance::terms(), &Value::Null, &wrong, OPTIONS);
    assert!(refused.is_err(), "any certificate will do");
}

/// What is wrong with a server is said at once.
#[test]
fn a_server_that_refuses_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let test = "a_server_that_refuses_is_named";
    let args = ["--requirepass", "secret"];
    let Some(server) = RedisServer::start(test, folder.path(), &args) else {
        return;
    };
    for password in [None, Some("wrong")] {
        let join = join_file(&server, password);
        let refused = Gateway::over_redis(conformance::terms(), &Value::Null, &join, OPTIONS);
        let refused = refused.err().unwrap().to_string();
        assert!(refused.contains("Redis refused"), "{refused}");
        let refused = Line::new(&join, OPTIONS).unwrap().join(0, 0).err().unwrap();
        assert!(
            matches!(&refused, ClusterError::Refused(reason) if reason.contains("Redis refused")),
            "{refused}"
        );
    }
    let join = join_file(&server, Some("secret"));
    assert!(!format!("{join:?}").contains("secret"));
    let port = server.port();
    drop(server);
    let away = Gateway::over_redis(conformance::terms(), &Value::Null, &join, OPTIONS);
    let away = away.err().unwrap().to_string();
    assert!(away.contains(&format!("127.0.0.1:{port}")), "{away}");
    let soon = Options {
        reconnect: Duration::from_millis(300),
        ..OPTIONS
    };
    let away = Line::new(&join, soon).unwrap().join(0, 0).err().unwrap();
    assert!(matches!(away, ClusterError::Unreachable { .. }), "{away}");
}

/// Those who come after the end of the run hear of it, until the run continues.
#[test]
fn late_actors_hear_of_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let Some(server) = RedisServer::start("late_actors_hear_of_the_end", folder.path(), &[]) else {
        return;
    };
    let join = join_file(&server, None);
    let begin = || gateway(conformance::terms(), &join, OPTIONS);
    drop(begin());
    let began = Instant::now();
    let late = Line::new(&join, OPTIONS).unwrap();
    assert!(matches!(late.join(0, 0).unwrap(), Joined::Closed));
    assert!(late.is_closed());
    assert!(began.elapsed() < OPTIONS.reconnect / 2, "only by waiting");
    let _again = begin();
    let line = Line::new(&join, OPTIONS).unwrap();
    assert!(matches!(line.join(0, 0).unwrap(), Joined::Seated(_)));
}
