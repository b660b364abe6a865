//! What links to other processes have in common: an actor asks, the learner's end answers.
//!
//! ```text
//! actor ─▶ Remote ── request ─▶ carrier … ─▶ Session ─▶ Ledger ─▶ Inbox
//!             ▲                                 │
//!             └───────── answer ◀───────────────┘
//! ```
//!
//! A message is `length u32 | JSON | frame`, where the frame is that of [`wire`] for
//! parcels and publications and empty otherwise. How messages travel is up to the link: it needs a
//! [`Carrier`] on the actor's side, and on the learner's side gives each request to the [`Session`] of
//! its actor. Over a stream of bytes, such as a socket, [`Stream`] and [`Gateway::attend`] do both.

use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use starling_envs::Rollout;

use super::ledger::{Claim, Claimed, Counts, Failure, Ledger, State, Taken};
use super::patience::Patience;
use super::wire::{self, HEADER_BYTES, PublicationFormat};
use super::{
    ActorLink, Event, LearnerLink, Lease, LeaseId, LinkError, Loss, Parcel, Publication,
    RemoteActor, Terms, Wanted,
};

/// What an actor says; a parcel follows `Send`, which has its number, as a frame.
#[derive(Debug, Serialize, Deserialize)]
enum Request {
    Join,
    Weights(Wanted, Duration),
    Send(u64, Duration),
    Fail(Loss),
}

/// What the learner's end answers; a publication follows `Weights` as a frame.
#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    Welcome(Option<Lease>, PublicationFormat, Value),
    Weights,
    Done,
    TimedOut(u64),
    LeaseEnded(LeaseId),
    Closed,
}

/// The longest part of a message that is not a frame.
const MOST_JSON: u64 = 1 << 20;

/// How often a gateway looks for new connections.
const ACCEPT_EVERY: Duration = Duration::from_millis(5);

/// Carries messages between one actor and the learner's end.
pub trait Carrier: Send {
    /// Brings a request to the actor's [`Session`], and its answer back. Waits for as long as that
    /// takes. An answer of more than `most` bytes is an error.
    fn exchange(&mut self, request: &[u8], most: u64) -> io::Result<Vec<u8>>;
}

/// Messages over a stream of bytes: `length u64 | message`.
#[derive(Debug)]
pub struct Stream<S>(pub S);

impl<S: Read + Write + Send> Carrier for Stream<S> {
    fn exchange(&mut self, request: &[u8], most: u64) -> io::Result<Vec<u8>> {
        self.write(request)?;
        self.read(most)
    }
}

impl<S: Read + Write> Stream<S> {
    fn write(&mut self, message: &[u8]) -> io::Result<()> {
        self.0.write_all(&(message.len() as u64).to_le_bytes())?;
        self.0.write_all(message)?;
        self.0.flush()
    }

    /// Takes memory only after the length was compared.
    fn read(&mut self, most: u64) -> io::Result<Vec<u8>> {
        let mut length = [0; 8];
        self.0.read_exact(&mut length)?;
        let length = u64::from_le_bytes(length);
        if length > most {
            let text =
                format!("a message of {length} bytes is announced, at most {most} are possible");
            return Err(io::Error::other(text));
        }
        let mut message = vec![0; length as usize];
        self.0.read_exact(&mut message)?;
        Ok(message)
    }
}

/// The learner's side: brings what actors say to the [`Ledger`]. Clones are the same.
#[derive(Clone, Debug)]
pub struct Gateway {
    ledger: Arc<Ledger>,
    /// The settings of the run, for actors that join.
    config: Arc<Value>,
    /// Counts connections.
    sessions: Arc<AtomicU64>,
}

impl Gateway {
    /// A gateway for a run with these settings.
    pub fn new(terms: Terms, config: Value) -> Self {
        Self {
            ledger: Arc::new(Ledger::new(terms)),
            config: Arc::new(config),
            sessions: Arc::default(),
        }
    }

    /// The learner's end of a new connection.
    pub fn session(&self) -> Session {
        Session {
            gateway: self.clone(),
            name: self.sessions.fetch_add(1, Ordering::Relaxed),
            attempts: 0,
            held: None,
        }
    }

    /// Serves the actor at the other end of a stream until the stream ends.
    pub fn attend(&self, stream: impl Read + Write) {
        let mut stream = Stream(stream);
        let mut session = self.session();
        let most = session.most_bytes();
        let ended = loop {
            let answered = stream.read(most);
            let answered = answered.and_then(|request| session.answer(&request));
            if let Err(error) = answered.and_then(|answer| stream.write(&answer)) {
                break error;
            }
        };
        session.lost(&ended.to_string());
    }

    /// Serves all actors that connect, each on a thread of its own, until the run ends. `accept` does
    /// not wait: where nobody connects it answers [`WouldBlock`](io::ErrorKind::WouldBlock).
    pub fn attend_all<S: Read + Write + Send + 'static>(
        &self,
        mut accept: impl FnMut() -> io::Result<S> + Send + 'static,
    ) {
        let gateway = self.clone();
        std::thread::spawn(move || {
            while !gateway.ledger.is_closed() {
                match accept() {
                    Ok(stream) => {
                        let gateway = gateway.clone();
                        std::thread::spawn(move || gateway.attend(stream));
                    }
                    Err(error) => {
                        if error.kind() != io::ErrorKind::WouldBlock {
                            tracing::warn!("an actor could not connect: {error}");
                        }
                        std::thread::sleep(ACCEPT_EVERY);
                    }
                }
            }
        });
    }
}

impl LearnerLink for Gateway {
    fn publish(&self, publication: Publication) {
        self.ledger.publish(publication);
    }

    fn receive(&self, patience: Duration) -> Result<Event, LinkError> {
        self.ledger.receive(patience)
    }

    fn recycle(&self, place: usize, rollouts: Vec<Rollout>) {
        self.ledger.recycle(place, rollouts);
    }

    fn set_busy(&self, busy: bool) {
        self.ledger.set_busy(busy);
    }

    fn close(&self) {
        self.ledger.close();
    }

    fn remote_actors(&self) -> Option<(Vec<RemoteActor>, Counts)> {
        self.ledger.remote_actors()
    }
}

/// The learner's end of one actor's connection.
#[derive(Debug)]
pub struct Session {
    gateway: Gateway,
    /// Its number among all sessions.
    name: u64,
    /// Times that it asked for a place.
    attempts: u64,
    /// What was leased over this connection and not given up, with the ledger's number of the
    /// connection.
    held: Option<(LeaseId, u64)>,
}

impl Session {
    /// The longest request.
    pub fn most_bytes(&self) -> u64 {
        let parcels = &self.gateway.ledger.terms().parcels;
        4 + MOST_JSON + HEADER_BYTES as u64 + parcels.most_bytes()
    }

    /// The answer to a request. Waits as the actor would: for weights, or for room in the queue.
    ///
    /// # Errors
    /// When the request is not one of an actor of this run. The connection should end then.
    pub fn answer(&mut self, request: &[u8]) -> io::Result<Vec<u8>> {
        let (request, frame) = read_message(request)?;
        let answer = match request {
            Request::Join => self.join()?,
            Request::Weights(wanted, patience) => match self.weights(wanted, patience)? {
                Ok(publication) => {
                    let mut message = message(&Answer::Weights)?;
                    wire::write_publication(&publication, &mut message);
                    return Ok(message);
                }
                Err(answer) => answer,
            },
            Request::Send(number, patience) => self.take(number, frame, patience)?,
            Request::Fail(loss) => {
                // Of its own lease alone: an actor says nothing of others.
                if let Some((lease, connection)) = self.held.take() {
                    let failure = Failure {
                        who: loss.who,
                        reason: loss.reason,
                        stalled: loss.stalled,
                    };
                    let ledger = &self.gateway.ledger;
                    ledger.goodbye(lease, connection, Some(failure));
                }
                Answer::Done
            }
        };
        message(&answer)
    }

    fn join(&mut self) -> io::Result<Answer> {
        let ledger = &self.gateway.ledger;
        self.attempts += 1;
        let claim = Claim {
            session: self.name.to_le_bytes().to_vec(),
            attempt: self.attempts,
            name: "the actor".into(),
            ..Claim::default()
        };
        let lease = match ledger.join(claim).map_err(io::Error::other)? {
            Claimed::Place(lease) => Some(lease),
            Claimed::Spare | Claimed::Closed => None,
        };
        self.held = lease.and_then(|lease| Some((lease.id, ledger.open(lease.id)?)));
        let config = Value::clone(&self.gateway.config);
        Ok(Answer::Welcome(lease, ledger.terms().publications, config))
    }

    /// What it holds, without which it may only join.
    fn held(&self) -> io::Result<(LeaseId, u64)> {
        let without = || io::Error::other("an actor without a place asked for something");
        self.held.ok_or_else(without)
    }

    fn weights(
        &self,
        wanted: Wanted,
        patience: Duration,
    ) -> io::Result<Result<Publication, Answer>> {
        let (lease, _) = self.held()?;
        let mut left = Patience::new(patience);
        loop {
            let began = Instant::now();
            let ledger = &self.gateway.ledger;
            match ledger.weights(lease, wanted, left.slice()) {
                (_, Some(publication)) => return Ok(Ok(publication)),
                (State::Closed, None) => return Ok(Err(Answer::Closed)),
                (State::Ended, None) => return Ok(Err(Answer::LeaseEnded(lease))),
                (State::Busy, None) => left = Patience::new(patience),
                (State::Open, None) if left.spend(began) => {}
                (State::Open, None) => return Ok(Err(Answer::TimedOut(patience.as_secs()))),
            }
        }
    }

    fn take(&self, number: u64, frame: &[u8], patience: Duration) -> io::Result<Answer> {
        let (lease, connection) = self.held()?;
        let mut left = Patience::new(patience);
        loop {
            let began = Instant::now();
            let ledger = &self.gateway.ledger;
            match ledger.take(lease, connection, number, frame, left.slice()) {
                Taken::Yes => return Ok(Answer::Done),
                Taken::No if ledger.is_closed() => return Ok(Answer::Closed),
                Taken::No => return Ok(Answer::LeaseEnded(lease)),
                Taken::Full if ledger.state(lease) == State::Busy => {
                    left = Patience::new(patience);
                }
                Taken::Full if left.spend(began) => {}
                Taken::Full => return Ok(Answer::TimedOut(patience.as_secs())),
            }
        }
    }

    /// The connection has ended, or the link has given it up. That is the loss of the actor, unless it
    /// said so itself.
    pub fn lost(self, reason: &str) {
        if let Some((lease, _)) = self.held {
            let ledger = &self.gateway.ledger;
            ledger.dismiss(lease, format!("the connection ended: {reason}"));
        }
    }
}

/// An actor's side.
pub struct Remote {
    carrier: Mutex<Box<dyn Carrier>>,
    publications: PublicationFormat,
    closed: AtomicBool,
}

/// What an actor gets that joins: all that [`serve`](crate::serve) needs.
pub struct Welcome {
    /// Its place.
    pub lease: Lease,
    /// The settings of the run, for [`RunConfig::from_value`](crate::RunConfig::from_value).
    pub config: Value,
    /// Its side of the link.
    pub link: Remote,
}

impl Remote {
    /// Joins a run; `None` if no place is free.
    ///
    /// # Errors
    /// When the other side does not answer as a learner does.
    pub fn join(mut carrier: impl Carrier + 'static) -> io::Result<Option<Welcome>> {
        let answer = carrier.exchange(&message(&Request::Join)?, 4 + MOST_JSON)?;
        let (Answer::Welcome(lease, publications, config), _) = read_message(&answer)? else {
            return Err(io::Error::other("the other side does not welcome actors"));
        };
        Ok(lease.map(|lease| Welcome {
            lease,
            config,
            link: Self {
                carrier: Mutex::new(Box::new(carrier)),
                publications,
                closed: AtomicBool::new(false),
            },
        }))
    }

    /// One request, with the frame that follows it, and what `read` makes of the answer and its frame.
    fn ask<T>(
        &self,
        request: &Request,
        frame: impl FnOnce(&mut Vec<u8>) -> Result<(), wire::WireError>,
        read: impl FnOnce(Answer, &[u8]) -> io::Result<Result<T, Answer>>,
    ) -> Result<T, LinkError> {
        let mut carrier = self.carrier.lock().unwrap_or_else(PoisonError::into_inner);
        let most = 4 + MOST_JSON + HEADER_BYTES as u64 + self.publications.most_bytes();
        let exchange = || {
            let mut message = message(request)?;
            frame(&mut message).map_err(io::Error::other)?;
            let answer = carrier.exchange(&message, most)?;
            let (answer, frame) = read_message(&answer)?;
            read(answer, frame)
        };
        let (who, what) = ("an actor", "the learner");
        match exchange() {
            Ok(Ok(result)) => Ok(result),
            Ok(Err(Answer::TimedOut(seconds))) => Err(LinkError::TimedOut { who, what, seconds }),
            Ok(Err(Answer::LeaseEnded(lease))) => Err(LinkError::LeaseEnded(lease)),
            Ok(Err(Answer::Closed)) => {
                self.closed.store(true, Ordering::Relaxed);
                Err(LinkError::Closed)
            }
            Ok(Err(other)) => Err(LinkError::Lost(format!("an unexpected answer: {other:?}"))),
            Err(error) => Err(LinkError::Lost(error.to_string())),
        }
    }
}

impl ActorLink for Remote {
    fn weights(&self, wanted: Wanted, patience: Duration) -> Result<Publication, LinkError> {
        let request = Request::Weights(wanted, patience);
        self.ask(
            &request,
            |_| Ok(()),
            |answer, frame| match answer {
                Answer::Weights => {
                    let read = self.publications.read(frame);
                    Ok(Ok(read.map_err(io::Error::other)?))
                }
                other => Ok(Err(other)),
            },
        )
    }

    fn send(&self, parcel: Parcel, patience: Duration) -> Result<Option<Vec<Rollout>>, LinkError> {
        let frame = |out: &mut Vec<u8>| wire::write_parcel(&parcel, out);
        let request = Request::Send(parcel.number, patience);
        self.ask(&request, frame, |answer, _| match answer {
            Answer::Done => Ok(Ok(())),
            other => Ok(Err(other)),
        })?;
        // Its bytes are copied: the buffers can be filled again.
        let rollouts = parcel.rollouts.into_iter().map(|(_, rollout)| rollout);
        Ok(Some(rollouts.collect()))
    }

    fn fail(&self, loss: Loss) {
        // Without a connection the learner hears of it by that.
        let _ = self.ask(&Request::Fail(loss), |_| Ok(()), |_, _| Ok(Ok(())));
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }
}

/// The beginning of a message, to which a frame may be added.
fn message(head: &impl Serialize) -> io::Result<Vec<u8>> {
    let head = serde_json::to_vec(head)?;
    let mut message = (head.len() as u32).to_le_bytes().to_vec();
    message.extend(head);
    Ok(message)
}

/// The head of a message, and its frame.
fn read_message<T: DeserializeOwned>(message: &[u8]) -> io::Result<(T, &[u8])> {
    let short = || io::Error::from(io::ErrorKind::UnexpectedEof);
    let (length, rest) = message.split_first_chunk().ok_or_else(short)?;
    let length = u32::from_le_bytes(*length);
    if u64::from(length) > MOST_JSON {
        return Err(io::Error::other("the head of a message is too long"));
    }
    let (head, frame) = rest.split_at_checked(length as usize).ok_or_else(short)?;
    Ok((serde_json::from_slice(head)?, frame))
}
