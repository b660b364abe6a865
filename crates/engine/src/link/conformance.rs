//! What every link has to do. An implementation anywhere can be checked with it:
//!
//! ```text
//! conformance::check(|terms| Rig { learner: …, join: … })?;
//! ```

use std::sync::Arc;
use std::time::{Duration, Instant};

use starling_envs::{Episode, Rollout, Space};
use starling_nets::Snapshot;
use starling_tree::{DType, Spec, Tree};

use super::wire::{ParcelFormat, PublicationFormat};
use super::{
    ActorLink, Control, Event, LearnerLink, Lease, LinkError, Loss, Parcel, Places, Publication,
    Start, Terms, Wanted, Weights,
};

/// A link to be checked.
pub struct Rig {
    /// The learner's side.
    pub learner: Box<dyn LearnerLink>,
    /// Connects one more actor, which leases a place; `None` if none is free.
    pub join: Box<dyn FnMut() -> Option<Joined>>,
}

/// An actor's lease and its side of the link.
pub type Joined = (Lease, Arc<dyn ActorLink>);

/// What a link does not do as it should.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{rule}: {what}")]
pub struct Breach {
    /// The rule.
    pub rule: &'static str,
    /// What was seen.
    pub what: String,
}

/// Checks a link, of which `make` makes a new one for each rule. Takes a few seconds.
///
/// # Errors
/// The first rule that it breaks.
pub fn check(make: impl Fn(Terms) -> Rig) -> Result<(), Breach> {
    let rules: [(&'static str, Rule); 9] = [
        ("actors are announced with their leases", joining),
        (
            "parcels arrive whole and in the order of their actor",
            order,
        ),
        ("what is not received is bounded, for each actor", bounds),
        ("weights are waited for by version", versions),
        ("control comes with the weights", control),
        ("actors are patient with a busy learner", patience),
        (
            "the learner hears of a lost actor after its parcels",
            losses,
        ),
        ("an ended lease is refused", ended_leases),
        ("closing ends all waits", closing),
    ];
    for (rule, check) in rules {
        let terms = terms();
        let places = Arc::clone(&terms.places);
        let mut rig = make(terms);
        let checked = check(&mut rig, &places);
        rig.learner.close();
        checked.map_err(|what| Breach { rule, what })?;
    }
    Ok(())
}

/// The terms of a small run with two places, for further tests of a link.
pub fn terms() -> Terms {
    let places = Arc::new(Places::new([0..1, 1..2], Start::default()));
    Terms {
        parcels: parcel_format(&places),
        publications: PublicationFormat { weights: VALUES },
        places,
        history: HISTORY,
        evaluations: None,
    }
}

type Rule = fn(&mut Rig, &Arc<Places>) -> Result<(), String>;

const SOON: Duration = Duration::from_millis(50);
const PATIENT: Duration = Duration::from_secs(20);
const HISTORY: usize = 2;
/// Parameters of the weights.
const VALUES: usize = 3;
/// What a link may hold for one actor, in its own queues and on the way.
const MOST_QUEUED: usize = 16;

fn joining(rig: &mut Rig, places: &Arc<Places>) -> Result<(), String> {
    let (first, _first_link) = join(rig)?;
    let (second, _second_link) = join(rig)?;
    ensure(first.id.place != second.id.place, || {
        "two actors have one place".into()
    })?;
    ensure(places.holds(first.id) && places.holds(second.id), || {
        "a lease was not granted by the places".into()
    })?;
    ensure((rig.join)().is_none(), || {
        "a third actor got one of two places".into()
    })
}

fn order(rig: &mut Rig, _: &Arc<Places>) -> Result<(), String> {
    let actors = [join(rig)?, join(rig)?];
    let threads = actors.each_ref().map(|(lease, link)| {
        let (lease, link) = (*lease, Arc::clone(link));
        std::thread::spawn(move || {
            (0..6).try_for_each(|number| {
                let reward = 10.0 * lease.id.place as f32 + number as f32;
                link.send(parcel(&lease, number, reward), PATIENT).map(drop)
            })
        })
    });
    let mut next = [0, 0];
    while next != [6, 6] {
        let received = receive_parcel(rig, PATIENT)?;
        let place = received.lease.place;
        let (number, lease) = (next[place], received.lease);
        let reward = 10.0 * place as f32 + number as f32;
        let expected = parcel_of(lease, place, number, reward);
        ensure(received == expected, || {
            format!("parcel {number} of place {place} arrived as {received:?}")
        })?;
        next[place] += 1;
        let rollouts = received.rollouts.into_iter().map(|(_, rollout)| rollout);
        rig.learner.recycle(place, rollouts.collect());
    }
    for thread in threads {
        finished(thread)?.map_err(|error| format!("sending failed: {error}"))?;
    }
    timed_out(rig.learner.receive(SOON), "the learner")
}

fn bounds(rig: &mut Rig, _: &Arc<Places>) -> Result<(), String> {
    let (lease, link) = join(rig)?;
    let mut sent = 0;
    while link.send(parcel(&lease, sent, 0.0), SOON).is_ok() {
        sent += 1;
        ensure(sent <= MOST_QUEUED as u64, || {
            format!("{sent} parcels were taken that nobody received")
        })?;
    }
    ensure(sent > 0, || "no parcel could be sent".into())?;
    let (other, other_link) = (rig.join)().ok_or("no place was leased")?;
    let others = other_link.send(parcel(&other, 0, 0.0), SOON).map(drop);
    ensure(others.is_ok(), || {
        format!("one actor filled the queue of all: another's parcel gave {others:?}")
    })?;
    let (mut next, mut of_other) = (0, 0);
    while (next, of_other) != (sent, 1) {
        let parcel = match receive(rig, PATIENT)? {
            Event::Parcel(parcel) => parcel,
            Event::Joined { .. } => continue,
            other => return Err(format!("instead of a parcel came {other:?}")),
        };
        let expected = match parcel.lease == other.id {
            true => &mut of_other,
            false => &mut next,
        };
        ensure(parcel.number == *expected, || {
            format!("{} arrived, not {expected}", parcel.number)
        })?;
        *expected += 1;
    }
    Ok(())
}

fn versions(rig: &mut Rig, _: &Arc<Places>) -> Result<(), String> {
    let (_, link) = join(rig)?;
    timed_out(link.weights(Wanted::Latest, SOON), "an actor")?;
    rig.learner.publish(publication(0, 0));
    let version = |wanted, patience| {
        let given = link.weights(wanted, patience);
        given.map(|given| {
            (
                given.weights.version,
                given.weights.values.values().to_vec(),
            )
        })
    };
    let of = |version: u64| (version, vec![version as f32; VALUES]);
    let given = version(Wanted::Latest, PATIENT);
    ensure(given == Ok(of(0)), || {
        format!("the first version is {given:?}")
    })?;
    timed_out(link.weights(Wanted::Exactly(1), SOON), "an actor")?;
    let reader = Arc::clone(&link);
    let thread = std::thread::spawn(move || reader.weights(Wanted::Exactly(1), PATIENT));
    std::thread::sleep(SOON);
    rig.learner.publish(publication(1, 0));
    let given = finished(thread)?.map(|given| given.weights.version);
    ensure(given == Ok(1), || {
        format!("waiting for version 1 gave {given:?}")
    })?;
    rig.learner.publish(publication(2, 0));
    let given = version(Wanted::Latest, PATIENT);
    ensure(given == Ok(of(2)), || {
        format!("the latest of three is {given:?}")
    })?;
    let given = version(Wanted::Exactly(1), PATIENT);
    ensure(given == Ok(of(1)), || {
        format!("the last but one is {given:?}")
    })?;
    timed_out(link.weights(Wanted::Exactly(0), SOON), "an actor")
}

fn control(rig: &mut Rig, _: &Arc<Places>) -> Result<(), String> {
    let (_, link) = join(rig)?;
    let steps = |wanted| {
        let given = link.weights(wanted, PATIENT);
        given.map(|given| (given.weights.version, given.control.env_steps))
    };
    for (version, env_steps) in [(0, 10), (0, 20), (1, 30), (1, 40)] {
        rig.learner.publish(publication(version, env_steps));
        let given = steps(Wanted::Latest);
        ensure(given == Ok((version, env_steps)), || {
            format!("version {version} at step {env_steps} was given as {given:?}")
        })?;
    }
    let given = steps(Wanted::Exactly(0));
    ensure(given == Ok((0, 20)), || {
        format!("version 0 has become {given:?}")
    })
}

fn patience(rig: &mut Rig, _: &Arc<Places>) -> Result<(), String> {
    let (_, link) = join(rig)?;
    rig.learner.set_busy(true);
    let thread = std::thread::spawn(move || link.weights(Wanted::Latest, SOON));
    std::thread::sleep(6 * SOON);
    ensure(!thread.is_finished(), || "an actor gave up".into())?;
    rig.learner.set_busy(false);
    timed_out(finished(thread)?, "an actor")
}

fn losses(rig: &mut Rig, _: &Arc<Places>) -> Result<(), String> {
    let (lease, link) = join(rig)?;
    let sent = link.send(parcel(&lease, 0, 0.0), PATIENT);
    sent.map_err(|error| error.to_string())?;
    let loss = Loss {
        leases: vec![lease.id],
        who: "actor 3".into(),
        reason: "no more coins".into(),
        stalled: true,
    };
    link.fail(loss.clone());
    receive_parcel(rig, PATIENT)?;
    let event = receive(rig, PATIENT)?;
    ensure(event == Event::Lost(loss), || {
        format!("the loss arrived as {event:?}")
    })
}

fn ended_leases(rig: &mut Rig, places: &Arc<Places>) -> Result<(), String> {
    let (lease, link) = join(rig)?;
    places.end(lease.id);
    // A link that does not wait for each answer may take a few before it knows.
    let sent = (0..MOST_QUEUED as u64)
        .map(|number| link.send(parcel(&lease, number, 0.0), PATIENT).map(drop));
    let sent = sent.take_while(|sent| *sent != Err(LinkError::LeaseEnded(lease.id)));
    let sent: Vec<_> = sent.collect();
    ensure(
        sent.len() < MOST_QUEUED && sent.iter().all(Result::is_ok),
        || format!("it gave {sent:?}"),
    )?;
    timed_out(rig.learner.receive(SOON), "the learner")?;
    let (next, link) = join(rig)?;
    ensure(
        next.id != lease.id && next.id.place == lease.id.place,
        || format!("the place was leased again as {next:?}"),
    )?;
    let sent = link.send(parcel(&next, 0, 0.0), PATIENT).map(drop);
    ensure(sent.is_ok(), || format!("the next holder got {sent:?}"))
}

fn closing(rig: &mut Rig, _: &Arc<Places>) -> Result<(), String> {
    let (_, link) = join(rig)?;
    ensure(!link.is_closed(), || {
        "it is closed from the beginning".into()
    })?;
    let waiting = Arc::clone(&link);
    let thread = std::thread::spawn(move || waiting.weights(Wanted::Latest, PATIENT));
    std::thread::sleep(SOON);
    rig.learner.close();
    let began = Instant::now();
    let given = finished(thread)?.map(drop);
    ensure(given == Err(LinkError::Closed), || {
        format!("an actor's wait ended with {given:?}")
    })?;
    ensure(began.elapsed() < PATIENT / 2, || "it took too long".into())?;
    ensure(link.is_closed(), || "an actor does not know of it".into())
}

fn join(rig: &mut Rig) -> Result<Joined, String> {
    let joined = (rig.join)().ok_or("no place was leased")?;
    let (lease, event) = (joined.0.id, receive(rig, PATIENT)?);
    match event {
        Event::Joined { lease: told, .. } if told == lease => Ok(joined),
        other => Err(format!(
            "an actor joined, and the learner heard of {other:?}"
        )),
    }
}

fn receive(rig: &Rig, patience: Duration) -> Result<Event, String> {
    let event = rig.learner.receive(patience);
    event.map_err(|error| format!("receiving failed: {error}"))
}

fn receive_parcel(rig: &Rig, patience: Duration) -> Result<Parcel, String> {
    match receive(rig, patience)? {
        Event::Parcel(parcel) => Ok(parcel),
        other => Err(format!("instead of a parcel came {other:?}")),
    }
}

fn timed_out<T>(result: Result<T, LinkError>, waiting: &str) -> Result<(), String> {
    match result {
        Err(LinkError::TimedOut { who, .. }) if who == waiting => Ok(()),
        Err(other) => Err(format!("a wait ended with: {other}")),
        Ok(_) => Err("a wait for nothing ended with something".into()),
    }
}

fn finished<T>(thread: std::thread::JoinHandle<T>) -> Result<T, String> {
    thread.join().map_err(|_| "a side panicked".to_owned())
}

fn ensure(good: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    match good {
        true => Ok(()),
        false => Err(what()),
    }
}

fn publication(version: u64, env_steps: u64) -> Publication {
    let values = Snapshot::from_values(vec![version as f32; VALUES]);
    Publication {
        weights: Arc::new(Weights { version, values }),
        control: Control { env_steps },
    }
}

fn parcel_format(places: &Places) -> ParcelFormat {
    ParcelFormat {
        steps: 2,
        observation: Space::unbounded(&[2]),
        action: Space::Discrete { n: 2 },
        legal_actions: None,
        records: Tree::node([("value", Tree::Leaf(Spec::scalar(DType::F32)))]),
        state: Tree::empty(),
        places: places.all(),
    }
}

/// A parcel of a lease of [`terms`].
pub fn parcel(lease: &Lease, number: u64, reward: f32) -> Parcel {
    parcel_of(lease.id, lease.place.first_env, number, reward)
}

fn parcel_of(lease: super::LeaseId, first_env: usize, number: u64, reward: f32) -> Parcel {
    let places = Places::new([0..1, 1..2], Start::default());
    let format = parcel_format(&places);
    let mut rollout: Rollout = format.rollout(1);
    rollout.rewards.as_mut_slice::<f32>().fill(reward);
    for (_, array) in rollout.obs.leaves_mut() {
        for (i, value) in array.as_mut_slice::<f32>().iter_mut().enumerate() {
            *value = reward + i as f32;
        }
    }
    rollout.truncated.as_mut_slice::<u8>()[0] = 1;
    rollout.keep_final(0, 0);
    rollout.version = number;
    let episode = Episode {
        env: 0,
        return_: f64::from(reward),
        discounted_return: 0.5,
        length: number + 1,
        nonzero_rewards: 1,
        game_score: None,
    };
    Parcel {
        lease,
        number,
        rollouts: vec![(first_env, rollout)],
        episodes: vec![episode],
    }
}
