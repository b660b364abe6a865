use proptest::prelude::*;

use super::super::conformance;
use super::*;

fn ledger() -> Ledger {
    Ledger::new(conformance::terms())
}

fn claim(session: u8) -> Claim {
    Claim {
        session: vec![session],
        ..Claim::default()
    }
}

fn seated(ledger: &Ledger, session: u8) -> (Lease, u64) {
    let Ok(Claimed::Place(lease)) = ledger.join(claim(session)) else {
        panic!("there is a place");
    };
    let connection = ledger.open(lease.id).unwrap();
    let joined = ledger.receive(Duration::ZERO).unwrap();
    assert!(matches!(joined, Event::Joined { .. }));
    (lease, connection)
}

fn frame(lease: &Lease, number: u64) -> Vec<u8> {
    let mut frame = Vec::new();
    let parcel = conformance::parcel(lease, number, 1.0);
    wire::write_parcel(&parcel, &mut frame).unwrap();
    frame
}

fn take(ledger: &Ledger, lease: &Lease, connection: u64, number: u64) -> Taken {
    let frame = frame(lease, number);
    ledger.take(lease.id, connection, number, &frame, Duration::ZERO)
}

/// A connection that was replaced cannot send any more, and what it sent is not taken again.
#[test]
fn only_the_last_connection_sends() {
    let ledger = ledger();
    let (lease, first) = seated(&ledger, 0);
    assert_eq!(take(&ledger, &lease, first, 0), Taken::Yes);
    let second = ledger.open(lease.id).unwrap();
    assert!(ledger.is_superseded(lease.id, first) && !ledger.is_superseded(lease.id, second));
    assert_eq!(take(&ledger, &lease, first, 1), Taken::No);
    assert_eq!(ledger.standing(lease.id, second), (1, State::Open));
    assert_eq!(take(&ledger, &lease, second, 0), Taken::Yes);
    assert_eq!(take(&ledger, &lease, second, 1), Taken::Yes);
    ledger.away(lease.id, first);
    assert!(ledger.book().holder(lease.id).unwrap().away.is_none());
    let counts = ledger.counts();
    assert_eq!(
        (counts.parcels, counts.duplicates, counts.reconnects),
        (2, 1, 1)
    );
}

/// A queue that is full is said so, and the same parcel can be brought again.
#[test]
fn a_full_queue_is_waited_for() {
    let ledger = ledger();
    let (lease, connection) = seated(&ledger, 0);
    assert_eq!(take(&ledger, &lease, connection, 0), Taken::Yes);
    assert_eq!(take(&ledger, &lease, connection, 1), Taken::Yes);
    assert_eq!(take(&ledger, &lease, connection, 2), Taken::Full);
    ledger.receive(Duration::ZERO).unwrap();
    assert_eq!(take(&ledger, &lease, connection, 2), Taken::Yes);
}

/// What an actor sends may be anything: it is taken, or the actor is dismissed with a reason.
#[test]
fn strange_parcels_cost_the_place() {
    type Strange = fn(&Lease, &Lease) -> (u64, Vec<u8>);
    let all: [(&str, Strange); 4] = [
        ("but 0 is missing", |lease, _| (1, frame(lease, 1))),
        ("of another lease", |lease, _| (0, frame(lease, 1))),
        ("of another lease", |_, other| (0, frame(other, 0))),
        ("cannot be read", |_, _| (0, b"STLK".to_vec())),
    ];
    for (expected, strange) in all {
        let ledger = ledger();
        let (lease, connection) = seated(&ledger, 0);
        let (other, of_other) = seated(&ledger, 1);
        let (number, frame) = strange(&lease, &other);
        let taken = ledger.take(lease.id, connection, number, &frame, Duration::ZERO);
        assert_eq!(taken, Taken::No);
        let Ok(Event::Lost(loss)) = ledger.receive(Duration::ZERO) else {
            panic!("the learner heard of nothing");
        };
        assert_eq!(loss.leases, [lease.id]);
        assert!(loss.reason.contains(expected), "{loss:?}");
        assert_eq!(ledger.standing(lease.id, connection).1, State::Ended);
        assert_eq!(ledger.standing(other.id, of_other), (0, State::Open));
    }
}

/// Places of actors that are away are kept for a while, and no longer.
#[test]
fn those_who_are_away_lose_their_places_in_the_end() {
    let ledger = ledger();
    let (gone, connection) = seated(&ledger, 0);
    let (here, _) = seated(&ledger, 1);
    ledger.away(gone.id, connection);
    ledger.expire(Duration::from_secs(60));
    assert!(ledger.receive(Duration::ZERO).is_err());
    std::thread::sleep(Duration::from_millis(2));
    ledger.expire(Duration::from_millis(1));
    let Ok(Event::Lost(loss)) = ledger.receive(Duration::ZERO) else {
        panic!("the learner heard of nothing");
    };
    assert_eq!(loss.leases, [gone.id]);
    assert_eq!(ledger.open(gone.id), None);
    assert!(ledger.open(here.id).is_some());
}

/// A question that arrives late does not take the place that the next one got.
#[test]
fn late_questions_take_nothing() {
    let ledger = ledger();
    let attempt = |attempt| {
        let claim = Claim {
            attempt,
            ..claim(0)
        };
        ledger.join(claim).unwrap()
    };
    let first = attempt(3);
    assert_eq!(attempt(3), first);
    let second = attempt(4);
    assert_ne!(second, first);
    assert_eq!(attempt(3), Claimed::Spare);
    assert_eq!(attempt(4), second);
    assert_eq!(ledger.counts().joined, 2);
}

/// Nothing that an actor says of itself takes memory without a bound.
#[test]
fn names_and_spares_are_bounded() {
    let ledger = ledger();
    let strange = Claim {
        session: vec![0; MOST_SESSION_BYTES + 1],
        ..Claim::default()
    };
    assert!(ledger.join(strange).is_err());
    let long = Claim {
        name: "\u{1b}[2J".repeat(1_000),
        ..claim(7)
    };
    let Ok(Claimed::Place(lease)) = ledger.join(long) else {
        panic!("there is a place");
    };
    let Ok(Event::Joined { who, .. }) = ledger.receive(Duration::ZERO) else {
        panic!("the learner heard of nothing");
    };
    assert!(who.len() < 150 && !who.contains('\u{1b}'), "{who}");
    let connection = ledger.open(lease.id).unwrap();
    let failure = Failure {
        who: "x".repeat(1 << 20),
        reason: "y".repeat(1 << 20),
        stalled: false,
    };
    ledger.goodbye(lease.id, connection, Some(failure));
    let Ok(Event::Lost(loss)) = ledger.receive(Duration::ZERO) else {
        panic!("the learner heard of nothing");
    };
    assert!(loss.who.len() + loss.reason.len() < 10_000);
    // Spares that do not ask any more are forgotten.
    let _ = (
        seated(&ledger, 1),
        ledger.join(claim(2)),
        ledger.join(claim(3)),
    );
    let long_ago = Instant::now() - 2 * SPARE_ASKS;
    ledger.book().spares.insert((vec![9], 0), long_ago);
    ledger.expire(Duration::from_secs(60));
    assert!(!ledger.book().spares.contains_key(&(vec![9], 0)));
}

proptest! {
    /// Parcels in any order, over any connections, often or never: each is taken once and in
    /// order, as long as the place is held.
    #[test]
    fn each_parcel_is_taken_once(
        deliveries in prop::collection::vec((0u64..6, any::<bool>(), any::<bool>()), 0..60),
    ) {
        let ledger = ledger();
        let (lease, mut connection) = seated(&ledger, 0);
        let (mut next, mut old) = (0, connection);
        for (number, late, again) in deliveries {
            if again {
                old = connection;
                connection = ledger.open(lease.id).unwrap();
            }
            let over = if late { old } else { connection };
            // Actors never skip a number.
            let number = number.min(next);
            let taken = take(&ledger, &lease, over, number);
            let expected = if over == connection { Taken::Yes } else { Taken::No };
            prop_assert_eq!(taken, expected);
            if taken == Taken::Yes && number == next {
                next += 1;
                let Ok(Event::Parcel(parcel)) = ledger.receive(Duration::ZERO) else {
                    panic!("a parcel was taken");
                };
                prop_assert_eq!(parcel.number, number);
            }
            prop_assert!(ledger.receive(Duration::ZERO).is_err());
            prop_assert_eq!(ledger.standing(lease.id, connection).0, next);
        }
    }
}
