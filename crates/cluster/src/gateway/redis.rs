//! The learner's side over Redis: requests and parcels of actors.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use prost::Message as _;
use redis::aio::MultiplexedConnection;
use starling_engine::link::LeaseId;
use tokio::sync::{Mutex, mpsc};
use tokio_stream::wrappers::ReceiverStream;

use super::desk::Desk;
use super::feed;
use crate::line::{Backoff, CALL, Trouble};
use crate::protocol::{
    Ack, Answer, Ask, Asked, Follow, HEARTBEAT, Received, Reply, Request, Said, Upward, WINDOW,
};
use crate::store::{self, BLOCK, Store, UNUSED};

/// Answers to one process that may be on the way.
const MOST_ANSWERS: usize = 1_000;

/// The longest name of a process.
const MOST_SESSION_BYTES: usize = 64;

/// Limit on the bytes of weights in the server, and the number of versions that are always kept.
const MOST_WEIGHTS: usize = 1 << 29;
const LEAST_VERSIONS: usize = 4;

/// How often an unreachable server is logged.
const SAY_EVERY: Duration = Duration::from_secs(10);

/// Answers requests of actors until the process ends; reconnects if the server fails.
pub(super) async fn serve(desk: Arc<Desk>, store: Store) {
    let mut pauses = Backoff::new();
    let mut said: Option<Instant> = None;
    loop {
        let (Trouble::Final(reason) | Trouble::Away(reason)) = match listen(&desk, &store).await {
            Ok(never) => match never {},
            Err(trouble) => trouble,
        };
        if desk.is_reachable() {
            pauses = Backoff::new();
        }
        // While the learner itself has no connection, actors are not counted as lost.
        desk.set_reachable(false);
        if said.is_none_or(|said| said.elapsed() > SAY_EVERY) {
            said = Some(Instant::now());
            tracing::warn!("the learner cannot reach its actors: {reason}");
        }
        tokio::time::sleep(pauses.next()).await;
    }
}

/// What all tasks of one connection to the server share.
struct Office {
    desk: Arc<Desk>,
    store: Store,
    writing: MultiplexedConnection,
    /// Which versions of the weights were set, and when; oldest first.
    set: Mutex<VecDeque<(u64, Instant)>>,
}

/// A connection of an actor to its lease.
struct Incoming {
    /// The last entry that was read.
    since: String,
    said: mpsc::Sender<Upward>,
    /// Last message of the actor.
    heard: Instant,
    /// Number of the parcel that has not been received yet.
    received: Arc<AtomicU64>,
}

/// Reads questions and parcels until the connection to the server ends.
async fn listen(desk: &Arc<Desk>, store: &Store) -> Result<std::convert::Infallible, Trouble> {
    let mut reading = store.connect().await?;
    let mut clock = store::Clock::read(&mut reading).await?;
    let office = Arc::new(Office {
        desk: Arc::clone(desk),
        store: store.clone(),
        writing: store.connect().await?,
        set: Mutex::default(),
    });
    let (asks, mut since) = (store.asks(), String::from("0-0"));
    let mut feeds: HashMap<String, Incoming> = HashMap::new();
    let silence = desk.options.keep_alive + 4 * HEARTBEAT + BLOCK;
    let mut reached = false;
    loop {
        let mut streams = vec![(asks.as_str(), since.as_str())];
        let known = feeds.iter();
        streams.extend(known.map(|(key, feed)| (key.as_str(), feed.since.as_str())));
        let found = store::read(&mut reading, &streams).await?;
        if !reached {
            reached = true;
            desk.set_reachable(true);
        }
        let mut opened = Vec::new();
        for stream in found {
            office.forget(&stream).await?;
            if stream.key == asks {
                for (name, content) in stream.entries {
                    since = name;
                    if clock.age(&since) > CALL {
                        // The sender has given up by now, unless the clock was set.
                        clock = store::Clock::read(&mut office.writing.clone()).await?;
                        if clock.age(&since) > CALL {
                            continue;
                        }
                    }
                    match Request::decode(&*content) {
                        Ok(request) => opened.extend(office.hear(request)),
                        Err(_) => desk.ledger.refuse(),
                    }
                }
            } else if let Some(feed) = feeds.get_mut(&stream.key) {
                feed.heard = Instant::now();
                for (name, content) in stream.entries {
                    feed.since = name;
                    match Upward::decode(Bytes::from(content)) {
                        Ok(Upward { said: None }) => {}
                        Ok(upward) => feed.take(upward),
                        Err(_) => desk.ledger.refuse(),
                    }
                }
            }
        }
        feeds.extend(opened);
        // After a read, so that all messages so far have been handled.
        let done =
            feeds.extract_if(|_, feed| feed.said.is_closed() || feed.heard.elapsed() > silence);
        let done: Vec<String> = done.map(|(key, _)| key).collect();
        office.remove(&done).await?;
    }
}

impl Incoming {
    fn take(&mut self, upward: Upward) {
        if let Some(Said::Parcel(parcel)) = &upward.said {
            let next = parcel.number.saturating_add(1);
            self.received.store(next, Ordering::Relaxed);
        }
        if self.said.try_send(upward).is_err() {
            // More than its window, or no receiver: the connection ends.
            self.said = mpsc::channel(1).0;
        }
    }
}

impl Office {
    /// Answers a question. Returns the connection that it opens.
    fn hear(self: &Arc<Self>, request: Request) -> Option<(String, Incoming)> {
        let Request {
            session,
            number,
            again,
            asked,
        } = request;
        if session.len() > MOST_SESSION_BYTES {
            self.desk.ledger.refuse();
            return None;
        }
        match asked? {
            Asked::Hello(hello) => {
                let answer = match self.desk.hello(hello) {
                    Ok(welcome) => Answer::Welcome(welcome),
                    Err(refused) => Answer::Refused(refused),
                };
                let office = Arc::clone(self);
                tokio::spawn(async move { office.answer(&session, number, answer).await });
                None
            }
            Asked::Weights(ask) => {
                let office = Arc::clone(self);
                tokio::spawn(async move { office.weights(session, number, ask, again).await });
                None
            }
            Asked::Open(lease) => Some(self.open(session, number, lease.into())),
            Asked::Follow(mut ask) => {
                ask.session = session;
                let office = Arc::clone(self);
                tokio::spawn(async move { office.follow(number, ask).await });
                None
            }
            Asked::Report(mut report) => {
                report.session = session.clone();
                let answer = match self.desk.report(report) {
                    Ok(told) => Answer::Told(told),
                    Err(refused) => Answer::Refused(refused),
                };
                let office = Arc::clone(self);
                tokio::spawn(async move { office.answer(&session, number, answer).await });
                None
            }
        }
    }

    fn open(self: &Arc<Self>, session: Bytes, number: u64, lease: LeaseId) -> (String, Incoming) {
        let (said, upward) = mpsc::channel(2 * WINDOW + 4);
        let key = self.store.feed(&session, number);
        let received = Arc::new(AtomicU64::new(0));
        let incoming = Incoming {
            since: "0-0".into(),
            said,
            heard: Instant::now(),
            received: Arc::clone(&received),
        };
        let (acks, mut told) = mpsc::channel::<Ack>(4);
        let office = Arc::clone(self);
        tokio::spawn(async move {
            while let Some(ack) = told.recv().await {
                let received = received.load(Ordering::Relaxed).max(ack.next);
                let answer = Answer::Received(Received { ack, received });
                office.answer(&session, number, answer).await;
            }
        });
        let desk = Arc::clone(&self.desk);
        tokio::spawn(async move {
            feed::serve(&desk, lease, ReceiverStream::new(upward), &acks).await;
        });
        (key, incoming)
    }

    async fn weights(&self, session: Bytes, number: u64, mut ask: Ask, again: bool) {
        // All processes read the same key, whatever weights they have.
        ask.bytes_per_s = None;
        let (desk, epoch) = (Arc::clone(&self.desk), ask.lease.epoch);
        let found = tokio::task::spawn_blocking(move || desk.weights(&ask)).await;
        let Ok((told, frame)) = found else { return };
        if !frame.is_empty()
            && let Err(trouble) = self.set(epoch, told.version, &frame, again).await
        {
            let reason = trouble.reason();
            tracing::warn!("weights {} could not be set: {reason}", told.version);
            return;
        }
        self.answer(&session, number, Answer::Told(told)).await;
    }

    /// Weights for an evaluator, in a separate key.
    async fn follow(&self, number: u64, ask: Follow) {
        let (desk, session) = (Arc::clone(&self.desk), ask.session.clone());
        let found = tokio::task::spawn_blocking(move || desk.follow(&ask)).await;
        let Ok((told, frame)) = found else { return };
        if !frame.is_empty() {
            let mut command = redis::cmd("SET");
            command.arg(self.store.judged(&session)).arg(&frame[..]);
            command.arg("PX").arg(UNUSED.as_millis() as u64);
            let mut writing = self.writing.clone();
            let set = store::answer::<()>(&mut writing, &command, frame.len()).await;
            if let Err(trouble) = set {
                // The evaluator asks again.
                let reason = trouble.reason();
                tracing::warn!("weights for an evaluator could not be set: {reason}");
                return;
            }
        }
        self.answer(&session, number, Answer::Told(told)).await;
    }

    /// Sets weights for all who ask, once per version.
    async fn set(
        &self,
        epoch: u64,
        version: u64,
        frame: &[u8],
        again: bool,
    ) -> Result<(), Trouble> {
        let mut set = self.set.lock().await;
        let recently = set.iter().find(|(held, _)| *held == version);
        // Several may miss the same weights at once.
        if recently.is_some_and(|(_, when)| !again || when.elapsed() < HEARTBEAT) {
            return Ok(());
        }
        let mut command = redis::cmd("SET");
        command.arg(self.store.weights(epoch, version)).arg(frame);
        command.arg("PX").arg(UNUSED.as_millis() as u64);
        let mut writing = self.writing.clone();
        let () = store::answer(&mut writing, &command, frame.len()).await?;
        set.retain(|(held, _)| *held != version);
        set.push_back((version, Instant::now()));
        let most = (MOST_WEIGHTS / frame.len()).max(LEAST_VERSIONS);
        let mut old = Vec::new();
        while let Some((version, when)) = set.front()
            && (set.len() > most || when.elapsed() > UNUSED / 2)
        {
            old.push(self.store.weights(epoch, *version));
            set.pop_front();
        }
        self.remove(&old).await
    }

    async fn answer(&self, session: &[u8], number: u64, answer: Answer) {
        let reply = Reply {
            number,
            answer: Some(answer),
        };
        let (key, mut writing) = (self.store.to(session), self.writing.clone());
        let added = store::add(&mut writing, &key, MOST_ANSWERS, &reply.encode_to_vec()).await;
        if let Err(trouble) = added {
            // The actor asks again.
            tracing::debug!("an answer could not be sent: {}", trouble.reason());
        }
    }

    /// Deletes entries that were read: what the server holds is on its way.
    async fn forget(&self, stream: &store::Entries) -> Result<(), Trouble> {
        let mut command = redis::cmd("XDEL");
        command.arg(&stream.key);
        for (name, _) in &stream.entries {
            command.arg(name);
        }
        store::answer(&mut self.writing.clone(), &command, 0).await
    }

    async fn remove(&self, keys: &[String]) -> Result<(), Trouble> {
        if keys.is_empty() {
            return Ok(());
        }
        let mut command = redis::cmd("UNLINK");
        command.arg(keys);
        store::answer(&mut self.writing.clone(), &command, 0).await
    }
}
