//! The actor's side: one connection for all actors of a process.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::uri::PathAndQuery;
use serde_json::Value;
use starling_engine::link::wire::{self, PublicationFormat};
use starling_engine::link::{
    ActorLink, Control, Lease, LeaseId, LinkError, Loss, Parcel, Publication, Wanted,
};
use starling_envs::Rollout;
use tokio::runtime::Runtime;
use tokio::sync::{Notify, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::client::Grpc;
use tonic::metadata::AsciiMetadataValue;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

use crate::protocol::{
    self, AUTHORIZATION, Ack, Ask, CHUNK_BYTES, Chunk, FEED, Failure, Goodbye, HEARTBEAT, Hello,
    JOIN, LONGEST_POLL, MOST_CONTROL_BYTES, PROTOCOL, Said, State, Upward, VERSION, WEIGHTS,
    WINDOW, Welcome,
};
use crate::trust::{SERVER_NAME, bearer};
use crate::{ClusterError, JoinFile, Options};

/// The pause after the first failure, and the longest one.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// How long a single call may take beyond what it waits for.
const CALL: Duration = Duration::from_secs(10);

/// A single wait without looking up.
const SLICE: Duration = Duration::from_millis(100);

/// How long an actor waits for its goodbye to arrive.
const FAREWELL: Duration = Duration::from_secs(3);

/// Versions of the weights that a process keeps.
const KEPT: usize = 4;

/// The connection of an actor process to a learner. Clones are the same.
#[derive(Clone)]
pub struct Line {
    shared: Arc<Shared>,
    runtime: Arc<Owned>,
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
    /// Times that weights were brought over.
    pub pulls: u64,
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
    channel: Channel,
    address: String,
    token: AsciiMetadataValue,
    session: Bytes,
    name: String,
    options: Options,
    closed: AtomicBool,
    leaving: AtomicBool,
    weights: Mutex<Cache>,
    pulled: Condvar,
    made: AtomicU64,
    acknowledged: AtomicU64,
    reconnects: AtomicU64,
    pulls: AtomicU64,
}

/// Weights that the process has, and those on their way.
#[derive(Default)]
struct Cache {
    /// The start of the learner that published them.
    epoch: u64,
    /// Oldest first.
    held: VecDeque<Publication>,
    /// What is asked for at the moment, with a number that grows.
    pulls: Vec<(Wanted, u64)>,
    /// Counts them.
    begun: u64,
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
        let strange = |error: &dyn std::fmt::Display| {
            ClusterError::Trust(format!("the join file cannot be used: {error}"))
        };
        let scheme = match join.certificate {
            Some(_) => "https",
            None => "http",
        };
        let endpoint = Endpoint::from_shared(format!("{scheme}://{}", join.address));
        let mut endpoint = endpoint
            .map_err(|error| strange(&error))?
            .connect_timeout(options.keep_alive)
            .http2_keep_alive_interval(options.keep_alive)
            .keep_alive_timeout(options.keep_alive)
            .keep_alive_while_idle(true)
            .tcp_nodelay(true);
        if let Some(certificate) = &join.certificate {
            let tls = ClientTlsConfig::new()
                .ca_certificate(Certificate::from_pem(certificate))
                .domain_name(SERVER_NAME);
            endpoint = endpoint.tls_config(tls).map_err(|error| strange(&error))?;
        }
        let token = AsciiMetadataValue::try_from(bearer(&join.token));
        let mut token = token.map_err(|error| strange(&error))?;
        token.set_sensitive(true);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("line")
            .enable_all()
            .build()
            .map_err(|error| strange(&error))?;
        let channel = {
            let _inside = runtime.enter();
            endpoint.connect_lazy()
        };
        let mut session = [0; 16];
        getrandom::fill(&mut session).map_err(|error| strange(&error))?;
        Ok(Self {
            shared: Arc::new(Shared {
                channel,
                address: join.address.clone(),
                token,
                session: Bytes::copy_from_slice(&session),
                name: name(),
                options,
                closed: AtomicBool::new(false),
                leaving: AtomicBool::new(false),
                weights: Mutex::default(),
                pulled: Condvar::new(),
                made: AtomicU64::new(0),
                acknowledged: AtomicU64::new(0),
                reconnects: AtomicU64::new(0),
                pulls: AtomicU64::new(0),
            }),
            runtime: Arc::new(Owned(Some(runtime))),
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
        };
        let welcome = self.handle().block_on(shared.hello(hello))?;
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
        let outbox = Arc::new(Outbox::default());
        let task = feed(Arc::clone(shared), Arc::clone(&outbox), lease.id);
        self.handle().spawn(task);
        let link = Seat {
            line: self.clone(),
            lease: lease.id,
            publications,
            outbox,
        };
        Ok(Joined::Seated(Box::new(Seated {
            lease,
            settings,
            link: Arc::new(link),
        })))
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
        }
    }

    fn handle(&self) -> &tokio::runtime::Handle {
        // It is taken when the last clone goes.
        match &self.runtime.0 {
            Some(runtime) => runtime.handle(),
            None => unreachable!("a line is in use"),
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
struct Backoff(Duration);

impl Backoff {
    fn new() -> Self {
        Self(PAUSES.0)
    }

    fn next(&mut self) -> Duration {
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

/// What another attempt would not change.
fn is_final(status: &Status) -> bool {
    matches!(
        status.code(),
        Code::Unauthenticated
            | Code::FailedPrecondition
            | Code::InvalidArgument
            | Code::OutOfRange
            | Code::Unimplemented
    )
}

impl Shared {
    /// Whether waiting has no use any more.
    fn is_over(&self) -> bool {
        self.closed.load(Ordering::Relaxed) || self.leaving.load(Ordering::Relaxed)
    }

    fn grpc(&self, most: usize) -> Grpc<Channel> {
        Grpc::new(self.channel.clone())
            .max_decoding_message_size(most)
            .max_encoding_message_size(usize::MAX)
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request
            .metadata_mut()
            .insert(AUTHORIZATION, self.token.clone());
        request
    }

    /// The learner's welcome, when it is there; `None` if this process is to end.
    async fn hello(&self, hello: Hello) -> Result<Option<Welcome>, ClusterError> {
        let (began, mut pauses) = (Instant::now(), Backoff::new());
        loop {
            if self.is_over() {
                return Ok(None);
            }
            let call = async {
                let mut grpc = self.grpc(MOST_CONTROL_BYTES);
                ready(&mut grpc).await?;
                let codec = ProstCodec::<Hello, Welcome>::default();
                let path = PathAndQuery::from_static(JOIN);
                grpc.unary(self.request(hello.clone()), path, codec).await
            };
            let status = match tokio::time::timeout(CALL, call).await {
                Ok(Ok(welcome)) => return Ok(Some(welcome.into_inner())),
                Ok(Err(status)) => status,
                Err(_) => Status::deadline_exceeded("it does not answer"),
            };
            if is_final(&status) {
                return Err(ClusterError::Refused(status.message().to_owned()));
            }
            if began.elapsed() > self.options.reconnect {
                return Err(ClusterError::Unreachable {
                    address: self.address.clone(),
                    seconds: self.options.reconnect.as_secs(),
                    reason: explain(&status),
                });
            }
            tokio::time::sleep(pauses.next()).await;
        }
    }

    /// Asks the learner for weights once.
    async fn pull(&self, ask: Ask, format: PublicationFormat) -> Result<Pulled, Status> {
        let limit = Duration::from_millis(ask.patience_ms).min(LONGEST_POLL);
        let mut grpc = self.grpc(CHUNK_BYTES + MOST_CONTROL_BYTES);
        let call = async {
            ready(&mut grpc).await?;
            let codec = ProstCodec::<Ask, Chunk>::default();
            let path = PathAndQuery::from_static(WEIGHTS);
            let answer = grpc
                .server_streaming(self.request(ask), path, codec)
                .await?;
            let mut chunks = answer.into_inner();
            let first = chunks.message().await?.unwrap_or_default();
            let told = first.told.unwrap_or_default();
            let expected = wire::HEADER_BYTES as u64 + format.most_bytes();
            if told.bytes != 0 && told.bytes != expected {
                let what = format!("{} bytes of weights, not {expected}", told.bytes);
                return Err(Status::invalid_argument(what));
            }
            let mut frame = Vec::with_capacity(told.bytes as usize);
            let mut part = first.part;
            loop {
                if frame.len() + part.len() > told.bytes as usize {
                    return Err(Status::invalid_argument("more weights than were announced"));
                }
                frame.extend_from_slice(&part);
                match chunks.message().await? {
                    Some(chunk) => part = chunk.part,
                    None => break,
                }
            }
            Ok((told, frame))
        };
        let Ok(called) = tokio::time::timeout(limit + CALL, call).await else {
            return Err(Status::deadline_exceeded("it does not answer"));
        };
        let (told, frame) = called?;
        let control = Control {
            env_steps: told.env_steps,
        };
        let weights = match frame.is_empty() {
            true => None,
            false => {
                let read = format.read(&frame);
                Some(
                    read.map_err(|error| Status::data_loss(error.to_string()))?
                        .weights,
                )
            }
        };
        Ok(Pulled {
            state: told.state(),
            found: told.found.then_some((told.version, control, weights)),
        })
    }

    fn cache(&self) -> MutexGuard<'_, Cache> {
        self.weights.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The learner's answer about weights.
struct Pulled {
    state: State,
    /// Version, control, and the weights unless the process has them.
    found: Option<(u64, Control, Option<Arc<starling_engine::Weights>>)>,
}

async fn ready(grpc: &mut Grpc<Channel>) -> Result<(), Status> {
    let ready = grpc.ready().await;
    ready.map_err(|error| Status::unavailable(error.to_string()))
}

fn explain(status: &Status) -> String {
    match status.message() {
        "" => status.code().to_string(),
        message => message.to_owned(),
    }
}

impl Cache {
    fn get(&self, wanted: Wanted) -> Option<&Publication> {
        match wanted {
            Wanted::Latest => self.held.back(),
            Wanted::Exactly(version) => {
                let mut held = self.held.iter();
                held.find(|held| held.weights.version == version)
            }
        }
    }

    /// Notes what the learner of this epoch told. Returns `None` if the weights are missing, which
    /// were dropped meanwhile.
    fn note(
        &mut self,
        epoch: u64,
        version: u64,
        control: Control,
        weights: Option<Arc<starling_engine::Weights>>,
    ) -> Option<Publication> {
        if epoch > self.epoch {
            self.held.clear();
            self.epoch = epoch;
        }
        let at = self
            .held
            .iter()
            .position(|held| held.weights.version == version);
        let weights = match (weights, at) {
            (Some(weights), _) => weights,
            (None, at) => Arc::clone(&self.held.get(at?)?.weights),
        };
        let publication = Publication { weights, control };
        match at {
            Some(at) => self.held[at] = publication.clone(),
            None => {
                let after = self
                    .held
                    .partition_point(|held| held.weights.version < version);
                self.held.insert(after, publication.clone());
                if self.held.len() > KEPT {
                    self.held.pop_front();
                }
            }
        }
        Some(publication)
    }
}

/// An actor's side of the link, for one lease. The place is given back when it is dropped.
pub struct Seat {
    line: Line,
    lease: LeaseId,
    publications: PublicationFormat,
    outbox: Arc<Outbox>,
}

/// Parcels of a lease that are not acknowledged, and how the lease is.
#[derive(Default)]
struct Outbox {
    content: Mutex<Content>,
    /// The content changed, for threads.
    changed: Condvar,
    /// There is something to send.
    wake: Notify,
}

#[derive(Default)]
struct Content {
    /// In the order of their numbers.
    parcels: VecDeque<protocol::Parcel>,
    goodbye: Option<Goodbye>,
    /// Why nothing can be sent any more.
    end: Option<LinkError>,
    connected: bool,
    busy: bool,
}

impl Outbox {
    fn lock(&self) -> MutexGuard<'_, Content> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self, why: LinkError) {
        let mut content = self.lock();
        content.connected = false;
        content.end.get_or_insert(why);
        self.changed.notify_all();
    }

    /// Waits a little for a change.
    fn wait<'a>(
        &self,
        content: MutexGuard<'a, Content>,
        limit: Duration,
    ) -> MutexGuard<'a, Content> {
        let waited = self.changed.wait_timeout(content, limit.min(SLICE));
        waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

impl ActorLink for Seat {
    fn weights(&self, wanted: Wanted, patience: Duration) -> Result<Publication, LinkError> {
        let shared = &self.line.shared;
        let asked_after = shared.cache().begun;
        let (mut left, mut pauses) = (patience, Backoff::new());
        let mut away: Option<Instant> = None;
        loop {
            self.check()?;
            let began = Instant::now();
            let mut cache = shared.cache();
            if cache.pulls.iter().any(|(pulled, _)| *pulled == wanted) {
                // Another thread asks for the same. Its answer is good for this one too, unless it
                // asked for the latest before this one did.
                let pull = cache.pulls.iter().find(|(pulled, _)| *pulled == wanted);
                let number = pull.map_or(0, |(_, number)| *number);
                while cache.pulls.iter().any(|(_, pull)| *pull == number) {
                    let waited = shared.pulled.wait_timeout(cache, SLICE);
                    cache = waited.unwrap_or_else(PoisonError::into_inner).0;
                    if shared.is_over() {
                        return Err(LinkError::Closed);
                    }
                }
                let fresh = wanted != Wanted::Latest || number > asked_after;
                let found = cache
                    .get(wanted)
                    .filter(|_| fresh && cache.epoch == self.lease.epoch);
                if let Some(found) = found {
                    return Ok(found.clone());
                }
                drop(cache);
                left = left.saturating_sub(began.elapsed());
                if fresh && left.is_zero() {
                    return Err(timed_out(patience));
                }
                continue;
            }
            cache.begun += 1;
            let number = cache.begun;
            cache.pulls.push((wanted, number));
            let have = match cache.epoch == self.lease.epoch {
                true => cache.held.iter().map(|held| held.weights.version).collect(),
                false => Vec::new(),
            };
            drop(cache);
            let ask = Ask {
                lease: self.lease.into(),
                exactly: match wanted {
                    Wanted::Latest => None,
                    Wanted::Exactly(version) => Some(version),
                },
                have,
                patience_ms: left.as_millis() as u64,
            };
            let pulled = shared.pull(ask, self.publications);
            let pulled = self.line.handle().block_on(pulled);
            let mut cache = shared.cache();
            cache.pulls.retain(|(_, pull)| *pull != number);
            let noted = match &pulled {
                Ok(Pulled {
                    found: Some((version, control, weights)),
                    ..
                }) => {
                    if weights.is_some() {
                        shared.pulls.fetch_add(1, Ordering::Relaxed);
                    }
                    cache.note(self.lease.epoch, *version, *control, weights.clone())
                }
                _ => None,
            };
            drop(cache);
            shared.pulled.notify_all();
            if let Some(publication) = noted {
                return Ok(publication);
            }
            match pulled {
                Ok(Pulled {
                    state: State::Closed,
                    ..
                }) => {
                    shared.closed.store(true, Ordering::Relaxed);
                    return Err(LinkError::Closed);
                }
                Ok(Pulled {
                    state: State::Ended,
                    ..
                }) => {
                    self.outbox.end(LinkError::LeaseEnded(self.lease));
                    return Err(LinkError::LeaseEnded(self.lease));
                }
                Ok(Pulled {
                    state: State::Busy, ..
                }) => {
                    (left, away) = (patience, None);
                }
                Ok(_) => {
                    away = None;
                    left = left.saturating_sub(began.elapsed());
                    if left.is_zero() {
                        return Err(timed_out(patience));
                    }
                }
                Err(status) if is_final(&status) => return Err(LinkError::Lost(explain(&status))),
                Err(status) => {
                    // The learner is away, which is not the same as slow.
                    let since = *away.get_or_insert(began);
                    if since.elapsed() > shared.options.reconnect {
                        return Err(LinkError::Lost(explain(&status)));
                    }
                    std::thread::sleep(pauses.next());
                }
            }
        }
    }

    fn send(&self, parcel: Parcel, patience: Duration) -> Result<Option<Vec<Rollout>>, LinkError> {
        let mut frame = Vec::new();
        let written = wire::write_parcel(&parcel, &mut frame);
        written.map_err(|error| LinkError::Lost(error.to_string()))?;
        let mut left = patience;
        let mut content = self.outbox.lock();
        while content.parcels.len() >= WINDOW {
            self.check_with(&content)?;
            if left.is_zero() {
                return Err(timed_out(patience));
            }
            let began = Instant::now();
            content = self.outbox.wait(content, left);
            if content.busy {
                left = patience;
            } else if content.connected {
                // A learner that is away is waited for by the feed.
                left = left.saturating_sub(began.elapsed());
            }
        }
        self.check_with(&content)?;
        content.parcels.push_back(protocol::Parcel {
            number: parcel.number,
            frame: frame.into(),
        });
        drop(content);
        self.line.shared.made.fetch_add(1, Ordering::Relaxed);
        self.outbox.wake.notify_one();
        // Its bytes are copied: the buffers can be filled again.
        let rollouts = parcel.rollouts.into_iter().map(|(_, rollout)| rollout);
        Ok(Some(rollouts.collect()))
    }

    fn fail(&self, loss: Loss) {
        self.say_goodbye(Goodbye {
            failure: Some(Failure::of(&loss)),
        });
    }

    fn is_closed(&self) -> bool {
        self.line.is_closed()
    }
}

impl Seat {
    /// The lease that it is for.
    pub fn lease(&self) -> LeaseId {
        self.lease
    }

    fn check(&self) -> Result<(), LinkError> {
        self.check_with(&self.outbox.lock())
    }

    fn check_with(&self, content: &Content) -> Result<(), LinkError> {
        match &content.end {
            _ if self.line.shared.is_over() => Err(LinkError::Closed),
            Some(end) => Err(end.clone()),
            None => Ok(()),
        }
    }

    /// Gives the place back after what was sent before, and waits for a while until that is known.
    fn say_goodbye(&self, goodbye: Goodbye) {
        let mut content = self.outbox.lock();
        content.goodbye.get_or_insert(goodbye);
        self.outbox.wake.notify_one();
        let began = Instant::now();
        while content.end.is_none() && !self.line.is_closed() && began.elapsed() < FAREWELL {
            content = self.outbox.wait(content, FAREWELL);
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.say_goodbye(Goodbye::default());
        self.outbox.end(LinkError::Closed);
        self.outbox.wake.notify_one();
    }
}

fn timed_out(patience: Duration) -> LinkError {
    LinkError::TimedOut {
        who: "an actor",
        what: "the learner",
        seconds: patience.as_secs(),
    }
}

/// Brings the parcels of one lease to the learner, over as many connections as it takes.
async fn feed(shared: Arc<Shared>, outbox: Arc<Outbox>, lease: LeaseId) {
    let (mut away, mut pauses) = (Instant::now(), Backoff::new());
    let mut connections = 0u64;
    loop {
        let status = match converse(&shared, &outbox, lease, &mut connections).await {
            Ok(()) => return,
            Err(status) => status,
        };
        {
            let mut content = outbox.lock();
            if content.connected {
                content.connected = false;
                (away, pauses) = (Instant::now(), Backoff::new());
            }
            if content.end.is_some() {
                return;
            }
        }
        if is_final(&status) || away.elapsed() > shared.options.reconnect {
            outbox.end(LinkError::Lost(explain(&status)));
            return;
        }
        tracing::debug!(
            "the feed of place {} was cut: {}",
            lease.place,
            explain(&status)
        );
        tokio::time::sleep(pauses.next()).await;
    }
}

/// One connection: `Ok` when nothing more can be sent.
async fn converse(
    shared: &Shared,
    outbox: &Outbox,
    lease: LeaseId,
    connections: &mut u64,
) -> Result<(), Status> {
    let (upward, messages) = mpsc::channel(WINDOW + 2);
    let say = |said: Said| Upward { said: Some(said) };
    let broken = |_| Status::unavailable("the connection ended");
    upward
        .send(say(Said::Open(lease.into())))
        .await
        .map_err(broken)?;
    let mut grpc = shared.grpc(MOST_CONTROL_BYTES);
    let open = async {
        ready(&mut grpc).await?;
        let codec = ProstCodec::<Upward, Ack>::default();
        let path = PathAndQuery::from_static(FEED);
        let messages = shared.request(ReceiverStream::new(messages));
        let answer = grpc.streaming(messages, path, codec).await?;
        Ok::<_, Status>(answer.into_inner())
    };
    let silent = |_| Status::deadline_exceeded("it does not answer");
    let opened = tokio::time::timeout(CALL, open).await.map_err(silent)?;
    let mut acks = opened?;
    // Number of the next parcel that was not sent over this connection.
    let mut sent: Option<u64> = None;
    let mut gone = false;
    loop {
        let patience = shared.options.keep_alive * 2 + HEARTBEAT * 2;
        let ack = tokio::select! {
            ack = tokio::time::timeout(patience, acks.message()) => Some(ack.map_err(silent)??),
            () = outbox.wake.notified() => None,
        };
        if let Some(ack) = ack {
            let ack = ack.ok_or_else(|| Status::unavailable("the connection ended"))?;
            if note(shared, outbox, lease, ack) {
                return Ok(());
            }
            if sent.is_none() {
                *connections += 1;
                if *connections > 1 {
                    shared.reconnects.fetch_add(1, Ordering::Relaxed);
                }
                sent = Some(ack.next);
            }
        }
        // Nothing is sent before the learner has said what it has.
        let Some(from) = &mut sent else {
            continue;
        };
        let (due, goodbye) = {
            let content = outbox.lock();
            if content.end.is_some() {
                return Ok(());
            }
            let parcels = content
                .parcels
                .iter()
                .filter(|parcel| parcel.number >= *from);
            let due: Vec<protocol::Parcel> = parcels.cloned().collect();
            (due, content.goodbye.clone())
        };
        for parcel in due {
            *from = parcel.number + 1;
            upward
                .send(say(Said::Parcel(parcel)))
                .await
                .map_err(broken)?;
        }
        if let Some(goodbye) = goodbye
            && !gone
        {
            gone = true;
            upward
                .send(say(Said::Goodbye(goodbye)))
                .await
                .map_err(broken)?;
        }
    }
}

/// Notes what the learner's side says. Returns whether nothing more can be sent.
fn note(shared: &Shared, outbox: &Outbox, lease: LeaseId, ack: Ack) -> bool {
    match ack.state() {
        State::Ended => {
            outbox.end(LinkError::LeaseEnded(lease));
            return true;
        }
        State::Closed => {
            shared.closed.store(true, Ordering::Relaxed);
            outbox.end(LinkError::Closed);
            shared.pulled.notify_all();
            return true;
        }
        State::Open | State::Busy => {}
    }
    let mut content = outbox.lock();
    content.connected = true;
    content.busy = ack.state() == State::Busy;
    let before = content.parcels.len();
    content.parcels.retain(|parcel| parcel.number >= ack.next);
    let acknowledged = (before - content.parcels.len()) as u64;
    shared
        .acknowledged
        .fetch_add(acknowledged, Ordering::Relaxed);
    outbox.changed.notify_all();
    false
}
