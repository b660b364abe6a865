//! The learner's bookkeeping of actors in other processes: who holds which place, over which
//! connection, and which parcel comes next.
//!
//! ```text
//! join ─▶ open ─▶ take, take, … ─▶ goodbye
//!           ▲                ╲
//!           └── open ◀── away ─ no connection for too long ─▶ expire
//! ```
//!
//! It is independent of the transport, which passes messages in and replies out. A parcel is passed on
//! once and in the order of its lease, whatever a transport loses, repeats or delays, and only for the
//! newest connection of the actor that holds the lease.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use starling_envs::Rollout;

use super::{
    ActorLink as _, Event, InProcess, LearnerLink, Lease, LeaseId, LinkError, Loss, Parcel,
    Publication, RemoteActor, Terms, Wanted, wire,
};

/// A spare that has not asked for this long is gone.
const SPARE_ASKS: Duration = Duration::from_secs(5);

/// The longest name of a process.
const MOST_SESSION_BYTES: usize = 64;

/// The longest name for people, and the longest reason of a failure, in characters.
const MOST_NAME: usize = 100;
const MOST_REASON: usize = 4_000;

/// Spares that are remembered.
const MOST_SPARES: usize = 10_000;

/// Used buffers that are kept for parcels to come. More are of use only where more parcels are read at
/// the same time.
const MOST_BUFFERS: usize = 8;

/// Who asks for a place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    /// Names the actor's process: random bytes.
    pub session: Vec<u8>,
    /// Which of its threads.
    pub seat: u64,
    /// Grows with every lease that the thread asks for, so that the answer to a repeated question is
    /// the same lease.
    pub attempt: u64,
    /// For messages to the user.
    pub name: String,
}

/// The answer to a [`Claim`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claimed {
    /// A place.
    Place(Lease),
    /// No place is free: ask again.
    Spare,
    /// The run has ended.
    Closed,
}

/// How the learner is, for the holder of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It takes parcels.
    Open,
    /// It is busy with something long: actors are patient.
    Busy,
    /// The lease has ended.
    Ended,
    /// The run has ended.
    Closed,
}

/// What became of a parcel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// It is here, now or since earlier.
    Yes,
    /// There was no room for it in time: bring it again.
    Full,
    /// This connection cannot send any more: [`Ledger::standing`] says why.
    No,
}

/// What an actor says that cannot continue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Its name.
    pub who: String,
    /// What happened.
    pub reason: String,
    /// It waited for the learner until its patience was used up.
    pub stalled: bool,
}

/// Counters since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Leases that were granted.
    pub joined: u64,
    /// Leases that were given back.
    pub left: u64,
    /// Leases whose actors failed or did not come back.
    pub lost: u64,
    /// Times that an actor connected again under its lease.
    pub reconnects: u64,
    /// Parcels that arrived and were new.
    pub parcels: u64,
    /// Parcels that had arrived before.
    pub duplicates: u64,
    /// Steps of those that were new.
    pub steps: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Messages that a transport did not accept.
    pub refused: u64,
}

#[derive(Debug, Default)]
struct Counters {
    joined: AtomicU64,
    left: AtomicU64,
    lost: AtomicU64,
    reconnects: AtomicU64,
    parcels: AtomicU64,
    duplicates: AtomicU64,
    steps: AtomicU64,
    bytes: AtomicU64,
    refused: AtomicU64,
}

/// The account. It is the learner's side of a link; transports share it.
#[derive(Debug)]
pub struct Ledger {
    link: InProcess,
    terms: Terms,
    book: Mutex<Book>,
    /// Frames of weights that were asked for: all actors share them.
    frames: Mutex<Frames>,
    counters: Counters,
    /// The newest version of the weights.
    version: AtomicU64,
    /// Buffers of parcels that were used, of whichever place, and of columns before they were compressed.
    buffers: Mutex<(Vec<Rollout>, Vec<Vec<u8>>)>,
}

/// Frames of weights, oldest first.
#[derive(Debug, Default)]
struct Frames {
    /// By version.
    whole: VecDeque<(u64, Frame)>,
    /// Changes from one version to another; `None` where they are not much smaller.
    changes: VecDeque<((u64, u64), Option<Frame>)>,
}

/// The bytes of a frame.
pub type Frame = Arc<[u8]>;

/// Frames of weights that are kept. Actor processes keep no more versions.
const KEPT_FRAMES: usize = 4;

/// Who holds what.
#[derive(Debug, Default)]
struct Book {
    holders: HashMap<Who, Holder>,
    /// When those without a place asked last.
    spares: HashMap<Who, Instant>,
}

/// A thread of an actor process.
type Who = (Vec<u8>, u64);

#[derive(Debug)]
struct Holder {
    lease: Lease,
    attempt: u64,
    name: String,
    /// Counts its connections: only the last one may send.
    connection: u64,
    /// Since when it has no connection.
    away: Option<Instant>,
    /// Number of the next parcel.
    next: u64,
    since: Instant,
    steps: u64,
    /// Version of the weights of its last parcel.
    version: Option<u64>,
    /// When something was last heard of it.
    heard: Instant,
}

impl Ledger {
    /// An account of the actors of a run.
    pub fn new(terms: Terms) -> Self {
        Self {
            link: InProcess::new(Arc::clone(&terms.places), terms.history),
            terms,
            book: Mutex::default(),
            frames: Mutex::default(),
            counters: Counters::default(),
            version: AtomicU64::new(0),
            buffers: Mutex::default(),
        }
    }

    /// What the link of the run is made for.
    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    /// Leases a place, or says that none is free.
    ///
    /// # Errors
    /// When the claim is not one.
    pub fn join(&self, claim: Claim) -> Result<Claimed, &'static str> {
        if claim.session.len() > MOST_SESSION_BYTES {
            return Err("the name of the session is too long");
        }
        let who = (claim.session, claim.seat);
        let mut book = self.book();
        book.forget_spares();
        if self.link.is_closed() {
            book.spares.remove(&who);
            return Ok(Claimed::Closed);
        }
        if let Some(holder) = book.holders.get(&who) {
            let same = holder.attempt == claim.attempt && self.terms.places.holds(holder.lease.id);
            if same {
                // The answer was lost on its way.
                return Ok(Claimed::Place(holder.lease));
            }
            if claim.attempt < holder.attempt {
                // A question that was delayed; nobody waits for its answer.
                return Ok(Claimed::Spare);
            }
            // A new attempt has given up the previous lease.
            if let Some(holder) = book.holders.remove(&who) {
                self.link.leave(holder.lease.id, holder.name);
                count(&self.counters.left, 1);
            }
        }
        let Some(lease) = self.terms.places.lease() else {
            if book.spares.len() < MOST_SPARES {
                book.spares.insert(who, Instant::now());
            }
            return Ok(Claimed::Spare);
        };
        book.spares.remove(&who);
        let name = format!(
            "{} (place {})",
            printable(&claim.name, MOST_NAME),
            lease.id.place
        );
        self.link.join(lease.id, name.clone());
        count(&self.counters.joined, 1);
        let holder = Holder {
            lease,
            attempt: claim.attempt,
            name,
            connection: 0,
            away: Some(Instant::now()),
            next: 0,
            since: Instant::now(),
            steps: 0,
            version: None,
            heard: Instant::now(),
        };
        book.holders.insert(who, holder);
        Ok(Claimed::Place(lease))
    }

    /// A new connection of an actor to its lease: the number of the connection, which ends the one
    /// before. `None` if the lease has ended.
    pub fn open(&self, lease: LeaseId) -> Option<u64> {
        if !self.terms.places.holds(lease) {
            return None;
        }
        let mut book = self.book();
        let holder = book.holder(lease)?;
        holder.connection += 1;
        holder.away = None;
        if holder.connection > 1 {
            count(&self.counters.reconnects, 1);
        }
        Some(holder.connection)
    }

    /// The connection has ended; the place is kept until [`Ledger::expire`] finds it.
    pub fn away(&self, lease: LeaseId, connection: u64) {
        let mut book = self.book();
        if let Some(holder) = book.current(lease, connection) {
            holder.away = Some(Instant::now());
        }
    }

    /// Takes the places of actors that have had no connection for this long. A transport whose actors
    /// may connect again calls it often.
    pub fn expire(&self, kept: Duration) {
        let gone: Vec<LeaseId> = {
            let mut book = self.book();
            book.forget_spares();
            let away = |holder: &&Holder| holder.away.is_some_and(|since| since.elapsed() > kept);
            let gone = book.holders.values().filter(away);
            gone.map(|holder| holder.lease.id).collect()
        };
        for lease in gone {
            let seconds = kept.as_secs_f64();
            self.dismiss(lease, format!("it has had no connection for {seconds} s"));
        }
    }

    /// Restarts the timeout of disconnected actors: it was the learner that could not be reached.
    pub fn renew(&self) {
        for holder in self.book().holders.values_mut() {
            holder.away = holder.away.map(|_| Instant::now());
        }
    }

    /// The actor gives its place back, because it failed or for another reason.
    pub fn goodbye(&self, lease: LeaseId, connection: u64, failure: Option<Failure>) {
        let mut book = self.book();
        if book.current(lease, connection).is_none() {
            return;
        }
        let Some(holder) = book.remove(lease) else {
            return;
        };
        match failure {
            Some(failure) => {
                count(&self.counters.lost, 1);
                self.link.fail(Loss {
                    leases: vec![lease],
                    who: printable(&failure.who, MOST_NAME),
                    reason: printable(&failure.reason, MOST_REASON),
                    stalled: failure.stalled,
                });
            }
            None => {
                count(&self.counters.left, 1);
                self.link.leave(lease, holder.name);
            }
        }
    }

    /// Takes a place from its holder.
    pub fn dismiss(&self, lease: LeaseId, reason: String) {
        let removed = self.book().remove(lease);
        if let Some(holder) = removed {
            count(&self.counters.lost, 1);
            self.link.fail(Loss {
                leases: vec![lease],
                who: holder.name,
                reason,
                stalled: false,
            });
        }
    }

    /// Whether the actor has opened another connection since this one.
    pub fn is_superseded(&self, lease: LeaseId, connection: u64) -> bool {
        let mut book = self.book();
        let holder = book.holder(lease);
        holder.is_some_and(|holder| holder.connection != connection)
    }

    /// The number of the next parcel, and how the learner is.
    pub fn standing(&self, lease: LeaseId, connection: u64) -> (u64, State) {
        let next = {
            let mut book = self.book();
            book.current(lease, connection).map(|holder| holder.next)
        };
        let state = match next {
            _ if self.link.is_closed() => State::Closed,
            Some(_) => self.state(lease),
            None => State::Ended,
        };
        (next.unwrap_or(0), state)
    }

    /// How the learner is for the holder of a lease, over whichever connection.
    pub fn state(&self, lease: LeaseId) -> State {
        match () {
            () if self.link.is_closed() => State::Closed,
            () if !self.terms.places.holds(lease) => State::Ended,
            () if self.link.is_busy() => State::Busy,
            () => State::Open,
        }
    }

    /// Passes a parcel on, once and in order, as soon as there is room for it. An actor that sends what
    /// is not its next parcel loses its place, and the learner hears why.
    pub fn take(
        &self,
        lease: LeaseId,
        connection: u64,
        number: u64,
        frame: &[u8],
        limit: Duration,
    ) -> Taken {
        let next = {
            let mut book = self.book();
            book.current(lease, connection).map(|holder| holder.next)
        };
        match next {
            None => return Taken::No,
            Some(next) if number < next => {
                count(&self.counters.duplicates, 1);
                return Taken::Yes;
            }
            Some(next) if number > next => {
                self.dismiss(
                    lease,
                    format!("its parcel {number} came, but {next} is missing"),
                );
                return Taken::No;
            }
            Some(_) => {}
        }
        match self.link.has_room(lease, limit) {
            Ok(true) => {}
            Ok(false) => return Taken::Full,
            Err(_) => return Taken::No,
        }
        let parcel = match self.read(frame) {
            Ok(parcel) if (parcel.lease, parcel.number) == (lease, number) => parcel,
            Ok(_) => {
                self.dismiss(lease, "it sent a parcel of another lease".into());
                return Taken::No;
            }
            Err(error) => {
                let reason = format!("it sent a parcel that cannot be read: {error}");
                self.dismiss(lease, reason);
                return Taken::No;
            }
        };
        let sizes = parcel.rollouts.iter();
        let steps: usize = sizes.map(|(_, part)| part.steps() * part.envs()).sum();
        let version = parcel.rollouts.iter().map(|(_, part)| part.version).min();
        // Under the lock: a newer connection of the same actor may be at the same parcel.
        let mut book = self.book();
        let Some(holder) = book.current(lease, connection) else {
            return Taken::No;
        };
        match self.link.send(parcel, Duration::ZERO) {
            Ok(_) => {}
            Err(LinkError::TimedOut { .. }) => return Taken::Full,
            Err(_) => return Taken::No,
        }
        holder.next += 1;
        holder.steps += steps as u64;
        holder.version = version;
        holder.heard = Instant::now();
        count(&self.counters.parcels, 1);
        count(&self.counters.steps, steps as u64);
        count(&self.counters.bytes, frame.len() as u64);
        Taken::Yes
    }

    /// Reads a parcel into buffers that were used before, if there are some.
    fn read(&self, frame: &[u8]) -> Result<Parcel, wire::WireError> {
        let mut spares = {
            let (rollouts, raw) = &mut *self.buffers();
            wire::Spares {
                raw: raw.pop().unwrap_or_default(),
                rollouts: rollouts.pop().into_iter().collect(),
            }
        };
        let read = self.terms.parcels.read_into(frame, &mut spares);
        let (rollouts, raw) = &mut *self.buffers();
        keep(rollouts, spares.rollouts);
        keep(raw, [spares.raw]);
        read
    }

    fn buffers(&self) -> MutexGuard<'_, (Vec<Rollout>, Vec<Vec<u8>>)> {
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How the learner is, and the weights if they are there within `limit`.
    pub fn weights(
        &self,
        lease: LeaseId,
        wanted: Wanted,
        limit: Duration,
    ) -> (State, Option<Publication>) {
        if self.state(lease) == State::Ended {
            return (State::Ended, None);
        }
        let found = self.link.look_for(wanted, limit);
        let state = self.state(lease);
        match (state, found) {
            (State::Open | State::Busy, Ok(found)) => (state, found),
            _ => (state, None),
        }
    }

    /// The frame of a publication, which is made once for each version.
    pub fn encoded(&self, publication: &Publication) -> Frame {
        self.frames().whole(publication)
    }

    /// The frame of the changes since the newest of the versions that an actor has; `None` where there
    /// is none that is much smaller than the weights themselves.
    pub fn changes(&self, publication: &Publication, have: &[u64]) -> Option<Frame> {
        self.frames().changes(publication, have)
    }

    /// Whether the run has ended.
    pub fn is_closed(&self) -> bool {
        self.link.is_closed()
    }

    /// Whether there are actors that do not know yet that the run has ended.
    pub fn anybody(&self) -> bool {
        let mut book = self.book();
        book.forget_spares();
        !book.spares.is_empty() || book.holders.values().any(|holder| holder.away.is_none())
    }

    /// Counts a message that the transport did not accept.
    pub fn refuse(&self) {
        count(&self.counters.refused, 1);
    }

    /// What was counted.
    pub fn counts(&self) -> Counts {
        let all = &self.counters;
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            joined: count(&all.joined),
            left: count(&all.left),
            lost: count(&all.lost),
            reconnects: count(&all.reconnects),
            parcels: count(&all.parcels),
            duplicates: count(&all.duplicates),
            steps: count(&all.steps),
            bytes: count(&all.bytes),
            refused: count(&all.refused),
        }
    }

    fn frames(&self) -> MutexGuard<'_, Frames> {
        self.frames.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LearnerLink for Ledger {
    fn publish(&self, publication: Publication) {
        let version = publication.weights.version;
        self.version.store(version, Ordering::Relaxed);
        self.link.publish(publication);
    }

    fn receive(&self, patience: Duration) -> Result<Event, LinkError> {
        self.link.receive(patience)
    }

    fn recycle(&self, _place: usize, rollouts: Vec<Rollout>) {
        keep(&mut self.buffers().0, rollouts);
    }

    fn set_busy(&self, busy: bool) {
        self.link.set_busy(busy);
    }

    fn close(&self) {
        self.link.close();
    }

    fn remote_actors(&self) -> Option<(Vec<RemoteActor>, Counts)> {
        let newest = self.version.load(Ordering::Relaxed);
        let mut book = self.book();
        book.forget_spares();
        let mut holders: Vec<&Holder> = book.holders.values().collect();
        holders.sort_by_key(|holder| holder.lease.id.place);
        let seated = holders.into_iter().map(|holder| RemoteActor {
            name: holder.name.clone(),
            place: Some((holder.lease.id.place, holder.lease.place.envs)),
            held: holder.since.elapsed(),
            away: holder.away.map(|since| since.elapsed()),
            reconnects: holder.connection.saturating_sub(1),
            parcels: holder.next,
            steps: holder.steps,
            lag: holder.version.map(|version| newest.saturating_sub(version)),
            silent: holder.heard.elapsed(),
        });
        let spares = book.spares.values().map(|asked| RemoteActor {
            name: String::new(),
            place: None,
            held: Duration::ZERO,
            away: None,
            reconnects: 0,
            parcels: 0,
            steps: 0,
            lag: None,
            silent: asked.elapsed(),
        });
        let actors = seated.chain(spares).collect();
        Some((actors, self.counts()))
    }
}

impl Frames {
    fn whole(&mut self, publication: &Publication) -> Frame {
        let version = publication.weights.version;
        if let Some((_, frame)) = self.whole.iter().find(|(held, _)| *held == version) {
            return Arc::clone(frame);
        }
        let mut frame = Vec::new();
        wire::write_publication(publication, &mut frame);
        let frame: Frame = frame.into();
        push(&mut self.whole, (version, Arc::clone(&frame)));
        frame
    }

    fn changes(&mut self, publication: &Publication, have: &[u64]) -> Option<Frame> {
        let frame = self.whole(publication);
        let version = publication.weights.version;
        let known = self.whole.iter();
        let known = known.filter(|(held, _)| *held != version && have.contains(held));
        let (base, base_frame) = known.max_by_key(|(held, _)| *held)?;
        let way = (*base, version);
        if let Some((_, made)) = self.changes.iter().find(|(held, _)| *held == way) {
            return made.clone();
        }
        let made = wire::changes_between(base_frame, &frame).map(Arc::from);
        push(&mut self.changes, (way, made.clone()));
        made
    }
}

/// Adds a frame, and drops the oldest if there are too many.
fn push<T>(frames: &mut VecDeque<T>, frame: T) {
    frames.push_back(frame);
    if frames.len() > KEPT_FRAMES {
        frames.pop_front();
    }
}

impl Book {
    fn holder(&mut self, lease: LeaseId) -> Option<&mut Holder> {
        let mut holders = self.holders.values_mut();
        holders.find(|holder| holder.lease.id == lease)
    }

    /// The holder, if this is its last connection.
    fn current(&mut self, lease: LeaseId, connection: u64) -> Option<&mut Holder> {
        let holder = self.holder(lease)?;
        (holder.connection == connection).then_some(holder)
    }

    fn remove(&mut self, lease: LeaseId) -> Option<Holder> {
        let mut holders = self.holders.iter();
        let (who, _) = holders.find(|(_, holder)| holder.lease.id == lease)?;
        let who = who.clone();
        self.holders.remove(&who)
    }

    fn forget_spares(&mut self) {
        self.spares.retain(|_, asked| asked.elapsed() < SPARE_ASKS);
    }
}

/// Keeps buffers for later, but not too many.
fn keep<T>(kept: &mut Vec<T>, more: impl IntoIterator<Item = T>) {
    kept.extend(more);
    kept.truncate(MOST_BUFFERS);
}

fn count(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}

/// What an actor says of itself, of bounded length and without control characters.
fn printable(text: &str, most: usize) -> String {
    let plain = |c: char| if c.is_control() && c != '\n' { ' ' } else { c };
    text.chars().take(most).map(plain).collect()
}

#[cfg(test)]
mod tests;
