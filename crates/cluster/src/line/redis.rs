//! The actor's side over Redis: requests and parcels are written to streams, replies read from one.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use prost::Message as _;
use redis::aio::MultiplexedConnection;
use starling_engine::link::LeaseId;
use tokio::sync::mpsc;
use tokio::time::{Interval, MissedTickBehavior};

use super::way::{Trouble, timely};
use super::{Backoff, CALL};
use crate::protocol::{
    Ack, Answer, Ask, Asked, CHUNK_BYTES, Follow, HEARTBEAT, Hello, LONGEST_POLL, Reply, Report,
    Said, State, Told, Upward, Welcome,
};
use crate::store::{self, Store};
use crate::{ClusterError, JoinFile, Options, protocol};

/// Questions that the learner may have left unanswered, of all processes together.
const MOST_ASKS: usize = 10_000;

/// Messages of one connection to a lease that may be on the way: far more than its window.
const MOST_FEED: usize = 1_000;

/// The calls of an actor process.
pub(super) struct Calls {
    shared: Arc<Shared>,
    options: Options,
}

struct Shared {
    store: Store,
    session: Bytes,
    /// Whether the run has ended.
    closed: Arc<AtomicBool>,
    /// Counts questions.
    asked: AtomicU64,
    /// Who waits for the answers to which questions.
    waiting: Mutex<HashMap<u64, mpsc::Sender<Answer>>>,
    /// The connection for everything but waiting for answers.
    connection: tokio::sync::Mutex<Option<MultiplexedConnection>>,
}

/// One connection to a lease.
pub(super) struct Feed {
    question: Question,
    connection: MultiplexedConnection,
    key: String,
    beat: Interval,
    patience: Duration,
    /// Number of the next parcel to be sent.
    sent: u64,
    /// Since when the learner has not received what was sent.
    vanished: Option<Instant>,
}

/// A question, and where its answers arrive.
struct Question {
    shared: Arc<Shared>,
    number: u64,
    answers: mpsc::Receiver<Answer>,
}

impl Drop for Question {
    fn drop(&mut self) {
        self.shared.waiting().remove(&self.number);
    }
}

impl Question {
    async fn answer(&mut self) -> Result<Answer, Trouble> {
        self.answers.recv().await.ok_or_else(Trouble::ended)
    }
}

impl Calls {
    /// Connects with the first call, and sets `closed` when the run has ended. To be called within the
    /// runtime.
    pub(super) fn new(
        join: &JoinFile,
        session: Bytes,
        closed: Arc<AtomicBool>,
        options: Options,
    ) -> Result<Self, ClusterError> {
        let shared = Arc::new(Shared {
            store: Store::new(join)?,
            session,
            closed,
            asked: AtomicU64::new(0),
            waiting: Mutex::default(),
            connection: tokio::sync::Mutex::default(),
        });
        tokio::spawn(hear(Arc::clone(&shared)));
        Ok(Self { shared, options })
    }

    pub(super) async fn hello(&self, hello: Hello) -> Result<Welcome, Trouble> {
        let mut question = self.ask(Asked::Hello(hello), false).await?;
        match timely(CALL, question.answer()).await? {
            Answer::Welcome(welcome) => Ok(welcome),
            other => Err(strange(&other)),
        }
    }

    /// The reply, and the frame after it, of at most `most` bytes. The frame is fetched in parts, each
    /// with its own deadline, so that slow connections work.
    pub(super) async fn weights(&self, ask: Ask, most: u64) -> Result<(Told, Vec<u8>), Trouble> {
        let epoch = ask.lease.epoch;
        let mut again = false;
        loop {
            let mut question = self.ask(Asked::Weights(ask.clone()), again).await?;
            let told = match timely(LONGEST_POLL + CALL, question.answer()).await? {
                Answer::Told(told) => told,
                other => return Err(strange(&other)),
            };
            if told.bytes > most {
                return Err(too_long(told.bytes, most));
            }
            let key = self.shared.store.weights(epoch, told.version);
            let frame = self.fetch(&key, told.bytes as usize).await?;
            match frame {
                Some(frame) => return Ok((told, frame)),
                // The server has lost it: the learner sets it once more.
                None if !again => again = true,
                None => return Err(Trouble::Away("Redis does not keep the weights".into())),
            }
        }
    }

    pub(super) async fn follow(&self, ask: Follow, most: u64) -> Result<(Told, Vec<u8>), Trouble> {
        let mut question = self.ask(Asked::Follow(ask), false).await?;
        let told = match timely(LONGEST_POLL + CALL, question.answer()).await? {
            Answer::Told(told) => told,
            other => return Err(strange(&other)),
        };
        if told.bytes > most {
            return Err(too_long(told.bytes, most));
        }
        let key = self.shared.store.judged(&self.shared.session);
        let frame = self.fetch(&key, told.bytes as usize).await?;
        // What was claimed is given again.
        let frame = frame.ok_or_else(|| Trouble::Away("Redis does not keep the weights".into()))?;
        Ok((told, frame))
    }

    pub(super) async fn report(&self, report: Report) -> Result<Told, Trouble> {
        let mut question = self.ask(Asked::Report(report), false).await?;
        match timely(CALL, question.answer()).await? {
            Answer::Told(told) => Ok(told),
            other => Err(strange(&other)),
        }
    }

    async fn fetch(&self, key: &str, bytes: usize) -> Result<Option<Vec<u8>>, Trouble> {
        let mut frame = Vec::with_capacity(bytes);
        let mut connection = self.shared.connection().await?;
        while frame.len() < bytes {
            let last = (frame.len() + CHUNK_BYTES).min(bytes) - 1;
            let mut command = redis::cmd("GETRANGE");
            command.arg(key).arg(frame.len()).arg(last);
            let part: Vec<u8> = store::answer(&mut connection, &command, 0).await?;
            if part.is_empty() || frame.len() + part.len() > bytes {
                return Ok(None);
            }
            frame.extend(part);
        }
        Ok(Some(frame))
    }

    /// A new connection to a lease.
    pub(super) async fn open(&self, lease: LeaseId) -> Result<Feed, Trouble> {
        let question = self.ask(Asked::Open(lease.into()), false).await?;
        let mut beat = tokio::time::interval(2 * HEARTBEAT);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Ok(Feed {
            key: self
                .shared
                .store
                .feed(&self.shared.session, question.number),
            connection: self.shared.connection().await?,
            question,
            beat,
            patience: self.options.keep_alive,
            sent: 0,
            vanished: None,
        })
    }

    async fn ask(&self, asked: Asked, again: bool) -> Result<Question, Trouble> {
        let shared = &self.shared;
        if shared.closed.load(Ordering::Relaxed) {
            return Err(Trouble::ended());
        }
        let number = shared.asked.fetch_add(1, Ordering::Relaxed);
        let (answered, answers) = mpsc::channel(16);
        shared.waiting().insert(number, answered);
        let question = Question {
            shared: Arc::clone(shared),
            number,
            answers,
        };
        let request = protocol::Request {
            session: shared.session.clone(),
            number,
            again,
            asked: Some(asked),
        };
        let mut connection = shared.connection().await?;
        let key = shared.store.asks();
        let added = store::add(&mut connection, &key, MOST_ASKS, &request.encode_to_vec()).await;
        if added.is_err() {
            shared.connection.lock().await.take();
        }
        added.map(|()| question)
    }
}

impl Feed {
    pub(super) async fn say(&mut self, said: Said) -> Result<(), Trouble> {
        if let Said::Parcel(parcel) = &said {
            self.sent = parcel.number + 1;
        }
        self.add(Some(said)).await
    }

    async fn add(&mut self, said: Option<Said>) -> Result<(), Trouble> {
        let said = Upward { said }.encode_to_vec();
        store::add(&mut self.connection, &self.key, MOST_FEED, &said).await
    }

    /// What the learner's side says next. Meanwhile it hears that this side is here.
    pub(super) async fn ack(&mut self) -> Result<Ack, Trouble> {
        let received = loop {
            tokio::select! {
                answer = self.question.answer() => match answer? {
                    Answer::Received(received) => break received,
                    other => return Err(strange(&other)),
                },
                _ = self.beat.tick() => self.add(None).await?,
            }
        };
        let over = matches!(received.ack.state(), State::Ended | State::Closed);
        if over || received.received >= self.sent {
            self.vanished = None;
        } else if self.vanished.get_or_insert_with(Instant::now).elapsed() > self.patience {
            return Err(Trouble::Away("Redis has lost what was sent".into()));
        }
        Ok(received.ack)
    }
}

impl Shared {
    fn waiting(&self) -> MutexGuard<'_, HashMap<u64, mpsc::Sender<Answer>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn connection(&self) -> Result<MultiplexedConnection, Trouble> {
        let mut held = self.connection.lock().await;
        match &*held {
            Some(connection) => Ok(connection.clone()),
            None => Ok(held.insert(self.store.connect().await?).clone()),
        }
    }
}

/// Delivers replies to the waiting requests, and the news that the run has ended, until the line is
/// dropped.
async fn hear(shared: Arc<Shared>) {
    let mut pauses = Backoff::new();
    let mut since = String::from("0-0");
    let closed = shared.store.closed();
    let shared = Arc::downgrade(&shared);
    loop {
        let Some(held) = shared.upgrade() else { return };
        let (key, connected) = (held.store.to(&held.session), held.store.connect().await);
        drop(held);
        if let Ok(mut connection) = connected {
            loop {
                let heard = store::read(&mut connection, &[(&key, &since), (&closed, "0-0")]).await;
                let Some(shared) = shared.upgrade() else {
                    return;
                };
                let Ok(heard) = heard else { break };
                pauses = Backoff::new();
                if heard.iter().any(|stream| stream.key == closed) {
                    shared.closed.store(true, Ordering::Relaxed);
                    shared.waiting().clear();
                    return;
                }
                for (name, content) in heard.into_iter().flat_map(|stream| stream.entries) {
                    since = name;
                    let Ok(Reply {
                        number,
                        answer: Some(answer),
                    }) = Reply::decode(&*content)
                    else {
                        continue;
                    };
                    let waiting = shared.waiting().get(&number).cloned();
                    if let Some(waiting) = waiting {
                        // Those who do not listen will hear the next one.
                        let _ = waiting.try_send(answer);
                    }
                }
            }
        }
        let Some(held) = shared.upgrade() else { return };
        // Nobody waits for answers that may be lost, and the other connection is broken too.
        held.waiting().clear();
        held.connection.lock().await.take();
        drop(held);
        tokio::time::sleep(pauses.next()).await;
    }
}

fn too_long(bytes: u64, most: u64) -> Trouble {
    Trouble::Final(format!(
        "{bytes} bytes of weights, at most {most} are possible"
    ))
}

fn strange(answer: &Answer) -> Trouble {
    match answer {
        Answer::Refused(reason) => Trouble::Final(reason.clone()),
        _ => Trouble::Away("an answer to another question".into()),
    }
}
