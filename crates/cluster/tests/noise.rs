//! Unauthenticated clients that send noise to the learner's port: it serves its actors as before, and
//! takes no memory for them. A binary of its own, because the memory of the whole process is measured.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;
use starling_cluster::{Gateway, Identity, Joined, Line, Options};
use starling_engine::link::{ActorLink as _, Event, LearnerLink as _, conformance};

const OPTIONS: Options = Options {
    lease: Duration::from_secs(20),
    keep_alive: Duration::from_secs(2),
    reconnect: Duration::from_secs(30),
};

/// The start of every HTTP/2 connection.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A number that looks random and is the same every time.
fn noise(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Memory of this process, in bytes.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok());
    kilobytes.unwrap_or(0) * 1024
}

#[test]
fn noise_is_survived() {
    for tls in [false, true] {
        let terms = conformance::terms();
        let places = Arc::clone(&terms.places);
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let identity = Identity::new(tls).unwrap();
        let join = identity.join_file(address.to_string());
        let gateway = Gateway::listen(terms, &json!({}), listener, identity, OPTIONS).unwrap();
        let (before, mut state) = (resident(), 99);
        for round in 0..300 {
            let Ok(mut stream) = TcpStream::connect(address) else {
                continue;
            };
            let limit = Some(Duration::from_millis(200));
            stream.set_write_timeout(limit).unwrap();
            stream.set_read_timeout(limit).unwrap();
            let mut bytes = match round % 3 {
                0 => Vec::new(),
                // A frame of HTTP/2 that announces the most that its header can.
                1 => [PREFACE, &[0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1]].concat(),
                _ => [PREFACE, &[0, 0, 0, 4, 0, 0, 0, 0, 0]].concat(),
            };
            let length = noise(&mut state) % 5_000;
            bytes.extend((0..length).map(|_| noise(&mut state) as u8));
            let _ = stream.write_all(&bytes);
            if round % 50 == 0 {
                let _ = stream.read(&mut [0; 64]);
            }
        }
        let grown = resident().saturating_sub(before);
        assert!(grown < 64 << 20, "{grown} bytes were taken");
        // An actor joins and sends as if nothing had happened.
        let line = Line::new(&join, OPTIONS).unwrap();
        let Joined::Seated(seated) = line.join(0, 0).unwrap() else {
            panic!("no place is free");
        };
        let parcel = conformance::parcel(&seated.lease, 0, 1.0);
        seated.link.send(parcel, Duration::from_secs(20)).unwrap();
        let began = Instant::now();
        loop {
            assert!(began.elapsed() < Duration::from_secs(30), "no parcel came");
            if let Ok(Event::Parcel(parcel)) = gateway.receive(Duration::from_secs(1)) {
                assert_eq!(parcel.number, 0);
                break;
            }
        }
        assert_eq!(places.held(), 1);
    }
}
