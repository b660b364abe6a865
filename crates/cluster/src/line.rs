//! The actor's side: one connection for all actors of a process.

mod grpc;
mod redis;
mod seat;
mod way;
mod weights;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde_json::Value;
use starling_engine::Evaluation;
use starling_engine::link::wire::{self, PublicationFormat};
use starling_engine::link::{Lease, LinkError, Publication};
use tokio::runtime::{Handle, Runtime};

pub(crate) use self::grpc::{connect, token, trouble};
pub use self::seat::Seat;
use self::way::Way;
pub(crate) use self::way::{Trouble, timely};
use self::weights::Cache;
use crate::protocol::{
    Follow, HEARTBEAT, Hello, LONGEST_POLL, PROTOCOL, Report, Role, State, Told, Trajectory,
    VERSION, Welcome,
};
use crate::store::Store;
use crate::{ClusterError, JoinFile, Options};

/// The pause after the first failure, and the longest one.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// How long a single call may take beyond what it waits for.
pub(crate) const CALL: Duration = Duration::from_secs(10);

/// A learner that has not answered for this long is logged.
const TELL_AFTER: Duration = Duration::from_secs(1);

/// A single wait of a thread without looking up.
const SLICE: Duration = Duration::from_millis(100);

/// The connection of an actor process to a learner. Clones are the same.
#[derive(Clone)]
pub struct Line {
    shared: Arc<Shared>,
    _runtime: Arc<Owned>,
}

/// What was counted since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LineCounts {
    /// Parcels that were made.
    pub made: u64,
    /// Parcels that were acknowledged.
    pub acknowledged: u64,
    /// Times that a feed was opened again.
    pub reconnects: u64,
    /// Number of weight downloads.
    pub pulls: u64,
    /// Times that the latest weights were older than those before.
    pub went_back: u64,
}

/// What became of the wish to join.
pub enum Joined {
    /// There is a place.
    Seated(Box<Seated>),
    /// No place is free: ask again.
    Spare,
    /// The run has ended.
    Closed,
}

/// What an actor gets that joins: all that [`serve`](starling_engine::serve) needs.
pub struct Seated {
    /// Its place.
    pub lease: Lease,
    /// The settings of the run.
    pub settings: Value,
    /// Its side of the link.
    pub link: Arc<Seat>,
}

struct Shared {
    way: Way,
    runtime: Handle,
    address: String,
    session: Bytes,
    name: String,
    options: Options,
    closed: Arc<AtomicBool>,
    leaving: AtomicBool,
    /// Since when the learner does not answer.
    missing: Mutex<Option<Missing>>,
    weights: Mutex<Cache>,
    pulled: Condvar,
    made: AtomicU64,
    acknowledged: AtomicU64,
    reconnects: AtomicU64,
    pulls: AtomicU64,
    went_back: AtomicU64,
}

/// A learner that does not answer.
#[derive(Clone, Copy)]
struct Missing {
    since: Instant,
    /// Whether this was logged.
    told: bool,
}

/// Ends the runtime without waiting for its tasks.
struct Owned(Option<Runtime>);

impl Drop for Owned {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

impl Line {
    /// A line to the learner of a join file. It connects with the first call.
    ///
    /// # Errors
    /// When the file does not make sense.
    pub fn new(join: &JoinFile, options: Options) -> Result<Self, ClusterError> {
        let strange = |error: &dyn std::fmt::Display| ClusterError::Trust(error.to_string());
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("line")
            .enable_all()
            .build()
            .map_err(|error| strange(&error))?;
        let mut session = [0; 16];
        getrandom::fill(&mut session).map_err(|error| strange(&error))?;
        let session = Bytes::copy_from_slice(&session);
        let closed = Arc::new(AtomicBool::new(false));
        let way = {
            let _inside = runtime.enter();
            match Store::is_meant(&join.address) {
                true => {
                    let (session, closed) = (session.clone(), Arc::clone(&closed));
                    Way::Redis(redis::Calls::new(join, session, closed, options)?)
                }
                false => Way::Grpc(grpc::Calls::new(join, options)?),
            }
        };
        Ok(Self {
            shared: Arc::new(Shared {
                way,
                runtime: runtime.handle().clone(),
                address: join.address.clone(),
                session,
                name: name(),
                options,
                closed,
                leaving: AtomicBool::new(false),
                missing: Mutex::default(),
                weights: Mutex::default(),
                pulled: Condvar::new(),
                made: AtomicU64::new(0),
                acknowledged: AtomicU64::new(0),
                reconnects: AtomicU64::new(0),
                pulls: AtomicU64::new(0),
                went_back: AtomicU64::new(0),
            }),
            _runtime: Arc::new(Owned(Some(runtime))),
        })
    }

    /// Asks for a place for one thread. `attempt` grows with every lease that the thread asks for: the
    /// same question gets the same lease. Waits for a learner that is away.
    ///
    /// # Errors
    /// When the learner does not answer for too long, or refuses.
    pub fn join(&self, thread: u64, attempt: u64) -> Result<Joined, ClusterError> {
        let shared = &self.shared;
        let hello = Hello {
            protocol: PROTOCOL,
            frames: wire::PROTOCOL.into(),
            version: VERSION.into(),
            session: shared.session.clone(),
            seat: thread,
            attempt,
            name: shared.name.clone(),
            role: Role::Actor.into(),
        };
        let welcome = shared.persist(async || shared.way.hello(hello.clone()).await)?;
        let Some(Welcome {
            settings,
            parameters,
            lease,
            closed,
        }) = welcome
        else {
            return Ok(Joined::Closed);
        };
        if closed {
            shared.closed.store(true, Ordering::Relaxed);
            return Ok(Joined::Closed);
        }
        let Some(lease) = lease else {
            return Ok(Joined::Spare);
        };
        let lease = Lease::from(lease);
        let strange =
            |what: String| ClusterError::Refused(format!("its answer is strange: {what}"));
        let settings =
            serde_json::from_str(&settings).map_err(|error| strange(error.to_string()))?;
        let publications = PublicationFormat {
            weights: usize::try_from(parameters).map_err(|error| strange(error.to_string()))?,
        };
        let link = Seat::new(self.clone(), lease.id, publications);
        Ok(Joined::Seated(Box::new(Seated {
            lease,
            settings,
            link: Arc::new(link),
        })))
    }

    /// Joins as an evaluator: the settings of the run, and what its weights look like. `None` if the run
    /// has ended, or this process is to end. Waits for a learner that is away.
    ///
    /// # Errors
    /// When the learner does not answer for too long, or refuses.
    pub(crate) fn join_as_evaluator(
        &self,
    ) -> Result<Option<(Value, PublicationFormat)>, ClusterError> {
        let shared = &self.shared;
        let hello = Hello {
            protocol: PROTOCOL,
            frames: wire::PROTOCOL.into(),
            version: VERSION.into(),
            session: shared.session.clone(),
            seat: 0,
            attempt: 0,
            name: shared.name.clone(),
            role: Role::Evaluator.into(),
        };
        let welcome = shared.persist(async || shared.way.hello(hello.clone()).await)?;
        let Some(welcome) = welcome else {
            return Ok(None);
        };
        if welcome.closed {
            shared.closed.store(true, Ordering::Relaxed);
            return Ok(None);
        }
        let strange =
            |what: String| ClusterError::Refused(format!("its answer is strange: {what}"));
        let settings =
            serde_json::from_str(&welcome.settings).map_err(|error| strange(error.to_string()))?;
        let weights = usize::try_from(welcome.parameters);
        let weights = weights.map_err(|error| strange(error.to_string()))?;
        Ok(Some((settings, PublicationFormat { weights })))
    }

    /// Weights to evaluate, if there are some soon.
    pub(crate) fn follow(
        &self,
        format: PublicationFormat,
    ) -> Result<Option<Publication>, ClusterError> {
        let most = wire::HEADER_BYTES as u64 + format.most_bytes();
        let answer = self.say_follow(None, LONGEST_POLL, most)?;
        let Some((told, frame)) = answer else {
            return Ok(None);
        };
        if !told.found {
            return Ok(None);
        }
        let read = format.read(&frame);
        let read = read.map_err(|error| ClusterError::Refused(error.to_string()))?;
        self.shared.pulls.fetch_add(1, Ordering::Relaxed);
        Ok(Some(read))
    }

    /// Says that this process is still at the weights of a step. Returns whether that is of use.
    pub(crate) fn is_at(&self, env_steps: u64) -> Result<bool, ClusterError> {
        let answer = self.say_follow(Some(env_steps), Duration::ZERO, 0)?;
        Ok(answer.is_some_and(|(told, _)| told.found))
    }

    fn say_follow(
        &self,
        holding: Option<u64>,
        patience: Duration,
        most: u64,
    ) -> Result<Option<(Told, Vec<u8>)>, ClusterError> {
        let shared = &self.shared;
        let ask = Follow {
            session: shared.session.clone(),
            name: shared.name.clone(),
            holding,
            patience_ms: patience.as_millis() as u64,
            goodbye: false,
        };
        let answer = shared.persist(async || shared.way.follow(ask.clone(), most).await)?;
        self.note_state(answer.as_ref().map(|(told, _)| told.state()))?;
        Ok(answer)
    }

    fn note_state(&self, state: Option<State>) -> Result<(), ClusterError> {
        match state {
            Some(State::Closed) => self.shared.closed.store(true, Ordering::Relaxed),
            Some(State::Ended) => {
                let text = "the run evaluates in its own process";
                return Err(ClusterError::Refused(text.into()));
            }
            _ => {}
        }
        Ok(())
    }

    /// Brings the result of an evaluation. Returns whether it was wanted.
    pub(crate) fn report(
        &self,
        publication: &Publication,
        evaluation: &Evaluation,
    ) -> Result<bool, ClusterError> {
        let shared = &self.shared;
        let report = Report {
            session: shared.session.clone(),
            env_steps: publication.control.env_steps,
            version: publication.weights.version,
            returns: evaluation.returns.clone(),
            lengths: evaluation.lengths.clone(),
            cut_off: evaluation.cut_off as u64,
            by_trajectory: {
                let all = evaluation.by_trajectory.iter().cloned();
                all.map(|(name, returns)| Trajectory { name, returns })
                    .collect()
            },
        };
        let told = shared.persist(async || shared.way.report(report.clone()).await)?;
        self.note_state(told.map(|told| told.state()))?;
        Ok(told.is_some_and(|told| told.found))
    }

    /// Says that this evaluator leaves, once.
    pub(crate) fn take_leave(&self) {
        let shared = &self.shared;
        let ask = Follow {
            session: shared.session.clone(),
            goodbye: true,
            ..Follow::default()
        };
        let said = timely(HEARTBEAT, shared.way.follow(ask, 0));
        // Else the learner notices that nothing is heard.
        let _ = shared.runtime.block_on(said);
    }

    /// Ends the waits of all actors of this process, so that they give their places back.
    pub fn leave(&self) {
        self.shared.leaving.store(true, Ordering::Relaxed);
        self.shared.pulled.notify_all();
    }

    /// Whether the actors of this process are to end.
    pub fn is_leaving(&self) -> bool {
        self.shared.leaving.load(Ordering::Relaxed)
    }

    /// Whether the run has ended.
    pub fn is_closed(&self) -> bool {
        self.shared.closed.load(Ordering::Relaxed)
    }

    /// What was counted.
    pub fn counts(&self) -> LineCounts {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        LineCounts {
            made: count(&self.shared.made),
            acknowledged: count(&self.shared.acknowledged),
            reconnects: count(&self.shared.reconnects),
            pulls: count(&self.shared.pulls),
            went_back: count(&self.shared.went_back),
        }
    }
}

/// How this process is called in messages.
fn name() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = match host.trim() {
        "" => "an actor",
        host => host,
    };
    format!("{host}:{}", std::process::id())
}

/// Pauses between attempts: longer and longer, and never the same for all.
pub(crate) struct Backoff(Duration);

impl Backoff {
    pub(crate) fn new() -> Self {
        Self(PAUSES.0)
    }

    pub(crate) fn next(&mut self) -> Duration {
        let pause = jittered(self.0);
        self.0 = (2 * self.0).min(PAUSES.1);
        pause
    }
}

/// Between half and one and a half of a time, so that not all come at once.
pub(crate) fn jittered(about: Duration) -> Duration {
    let random = getrandom::u32().unwrap_or(u32::MAX / 2);
    about.mul_f64(0.5 + f64::from(random) / f64::from(u32::MAX))
}

fn timed_out(patience: Duration) -> LinkError {
    LinkError::TimedOut {
        who: "an actor",
        what: "the learner",
        seconds: patience.as_secs(),
    }
}

impl Shared {
    /// Whether waiting has no use any more.
    fn is_over(&self) -> bool {
        self.closed.load(Ordering::Relaxed) || self.leaving.load(Ordering::Relaxed)
    }

    /// The answer to a question, when the learner is there; `None` if this process is to end.
    fn persist<T>(
        &self,
        ask: impl AsyncFn() -> Result<T, Trouble>,
    ) -> Result<Option<T>, ClusterError> {
        let mut pauses = Backoff::new();
        while !self.is_over() {
            match self.runtime.block_on(ask()) {
                Ok(answer) => {
                    self.is_there();
                    return Ok(Some(answer));
                }
                Err(Trouble::Final(reason)) => return Err(ClusterError::Refused(reason)),
                Err(Trouble::Away(reason)) if self.is_missing(&reason) => {
                    return Err(ClusterError::Unreachable {
                        address: self.address.clone(),
                        seconds: self.options.reconnect.as_secs(),
                        reason,
                    });
                }
                Err(Trouble::Away(_)) => std::thread::sleep(pauses.next()),
            }
        }
        Ok(None)
    }

    /// Notes that the learner does not answer. Returns whether that has been so for too long. All
    /// threads try to reconnect together, so that the time counts once.
    fn is_missing(&self, reason: &str) -> bool {
        let mut missing = self.missing.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Missing {
            since: Instant::now(),
            told: false,
        };
        let missing = missing.get_or_insert(now);
        let (since, limit) = (missing.since.elapsed(), self.options.reconnect);
        if !missing.told && since > TELL_AFTER {
            missing.told = true;
            let (address, seconds) = (&self.address, limit.as_secs());
            tracing::warn!(
                "no learner answers at {address} ({reason}): trying to reconnect for {seconds} s"
            );
        }
        since > limit
    }

    /// Notes that the learner answers.
    fn is_there(&self) {
        let missing = {
            let mut missing = self.missing.lock().unwrap_or_else(PoisonError::into_inner);
            missing.take()
        };
        if let Some(Missing { since, told: true }) = missing {
            let seconds = since.elapsed().as_secs();
            let address = &self.address;
            tracing::info!("the learner at {address} answers again, after {seconds} s");
        }
    }

    fn cache(&self) -> MutexGuard<'_, Cache> {
        self.weights.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
