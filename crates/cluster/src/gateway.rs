//! The learner's side: plays each actor towards a link within the process.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::Future;
use std::net::{SocketAddr, TcpListener};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde_json::Value;
use starling_engine::link::wire;
use starling_engine::link::{
    ActorLink as _, Event, InProcess, LearnerLink, Lease, LeaseId, LinkError, Loss, Publication,
    Terms, Wanted,
};
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};
use tokio::time::MissedTickBehavior;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::body::Body;
use tonic::server::Grpc;
use tonic::transport::Server;
use tonic::transport::server::ServerTlsConfig;
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;
use tower::{Service, service_fn};

use crate::protocol::{
    self, AUTHORIZATION, Ack, Ask, CHUNK_BYTES, Chunk, FEED, HEARTBEAT, Hello, JOIN, LONGEST_POLL,
    MOST_CONTROL_BYTES, PROTOCOL, Said, State, Told, Upward, VERSION, WEIGHTS, Welcome,
};
use crate::{ClusterError, Identity, Options};

/// A single wait for room in the queue.
const SLICE: Duration = Duration::from_millis(100);

/// How long the end of a run waits for actors to hear of it.
const FAREWELL: Duration = Duration::from_secs(3);

/// How long a message may take from a queue into the network.
const LAST_WORDS: Duration = Duration::from_millis(50);

/// A spare that has not asked for this long is gone.
const SPARE_ASKS: Duration = Duration::from_secs(5);

/// The learner's side of the link to actors elsewhere. Clones share it; it stops
/// listening when the last one is dropped.
#[derive(Clone)]
pub struct Gateway {
    shared: Arc<Shared>,
    server: Arc<Listening>,
}

/// What was counted since the start, for people and for tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GatewayCounts {
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
    /// Calls without the right token.
    pub refused: u64,
}

#[derive(Default)]
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

struct Shared {
    link: InProcess,
    terms: Terms,
    settings: String,
    identity: Identity,
    options: Options,
    book: Mutex<Book>,
    /// The frame of the latest version that was asked for: all actors share it.
    encoded: Mutex<Option<(u64, Bytes)>>,
    closed: watch::Sender<bool>,
    counters: Counters,
}

/// Who holds what.
#[derive(Default)]
struct Book {
    holders: HashMap<Who, Holder>,
    /// When those without a place asked last.
    spares: HashMap<Who, Instant>,
}

/// A thread of an actor process.
type Who = (Bytes, u64);

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
}

/// Keeps the server going.
struct Listening {
    runtime: Option<Runtime>,
    shared: Arc<Shared>,
    address: SocketAddr,
}

impl Gateway {
    /// Listens for the actors of a run with these settings.
    ///
    /// # Errors
    /// When the socket or the certificate cannot be used.
    pub fn listen(
        terms: Terms,
        settings: &Value,
        listener: TcpListener,
        identity: Identity,
        options: Options,
    ) -> Result<Self, ClusterError> {
        let failed = |reason: String| ClusterError::Listen {
            address: listener
                .local_addr()
                .map_or_else(|_| "?".into(), |at| at.to_string()),
            reason,
        };
        let address = listener
            .local_addr()
            .map_err(|error| failed(error.to_string()))?;
        let nonblocking = listener.set_nonblocking(true);
        nonblocking.map_err(|error| failed(error.to_string()))?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            // One for the parcel of each place, one for its wait for weights, and some to spare.
            .max_blocking_threads(2 * terms.places.len() + 16)
            .thread_name("gateway")
            .enable_all()
            .build()
            .map_err(|error| failed(error.to_string()))?;
        let mut server = Server::builder()
            .http2_keepalive_interval(Some(options.keep_alive))
            .http2_keepalive_timeout(Some(options.keep_alive));
        if let Some((certificate, key)) = &identity.tls {
            let pair = tonic::transport::Identity::from_pem(certificate, key);
            let tls = server.tls_config(ServerTlsConfig::new().identity(pair));
            server = tls.map_err(|error| ClusterError::Trust(error.to_string()))?;
        }
        let shared = Arc::new(Shared {
            link: InProcess::new(Arc::clone(&terms.places), terms.history),
            terms,
            settings: settings.to_string(),
            identity,
            options,
            book: Mutex::default(),
            encoded: Mutex::default(),
            closed: watch::Sender::new(false),
            counters: Counters::default(),
        });
        let listener = {
            let _inside = runtime.enter();
            tokio::net::TcpListener::from_std(listener)
        };
        let listener = listener.map_err(|error| ClusterError::Listen {
            address: address.to_string(),
            reason: error.to_string(),
        })?;
        let calls = Calls(Arc::clone(&shared));
        runtime.spawn(async move {
            let incoming = TcpListenerStream::new(listener);
            let incoming = tokio_stream::StreamExt::map(incoming, |stream| {
                stream.inspect(|stream| drop(stream.set_nodelay(true)))
            });
            if let Err(error) = server.serve_with_incoming(calls, incoming).await {
                tracing::error!("the learner does not listen any more: {error}");
            }
        });
        runtime.spawn(expire(Arc::clone(&shared)));
        Ok(Self {
            server: Arc::new(Listening {
                runtime: Some(runtime),
                shared: Arc::clone(&shared),
                address,
            }),
            shared,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.server.address
    }

    /// What was counted.
    pub fn counts(&self) -> GatewayCounts {
        self.shared.counts()
    }
}

impl LearnerLink for Gateway {
    fn publish(&self, publication: Publication) {
        self.shared.link.publish(publication);
    }

    fn receive(&self, patience: Duration) -> Result<Event, LinkError> {
        self.shared.link.receive(patience)
    }

    fn set_busy(&self, busy: bool) {
        self.shared.link.set_busy(busy);
    }

    fn close(&self) {
        self.shared.close();
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.shared.close();
        let began = Instant::now();
        while self.shared.anybody() && began.elapsed() < FAREWELL {
            std::thread::sleep(Duration::from_millis(5));
        }
        // The last words are on their way.
        std::thread::sleep(LAST_WORDS);
        let counts = self.shared.counts();
        tracing::info!("the learner stops listening: {counts:?}");
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(Duration::from_millis(200));
        }
    }
}

impl Shared {
    fn close(&self) {
        // In this order: whoever sees that the link is closed can say so to its actor.
        self.closed.send_replace(true);
        self.link.close();
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there are actors that do not know yet that the run has ended.
    fn anybody(&self) -> bool {
        let mut book = self.book();
        book.spares.retain(|_, asked| asked.elapsed() < SPARE_ASKS);
        !book.spares.is_empty() || book.holders.values().any(|holder| holder.away.is_none())
    }

    fn counts(&self) -> GatewayCounts {
        let all = &self.counters;
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        GatewayCounts {
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

    /// Leases a place, or says that none is free.
    fn join(&self, hello: Hello) -> Result<Welcome, Status> {
        let frames = u32::from(wire::PROTOCOL);
        if (hello.protocol, hello.frames, hello.version.as_str()) != (PROTOCOL, frames, VERSION) {
            return Err(Status::failed_precondition(format!(
                "the learner runs Starling {VERSION} (protocol {PROTOCOL}.{frames}), this actor \
                 Starling {} (protocol {}.{}): use the same version on both sides",
                hello.version, hello.protocol, hello.frames
            )));
        }
        let who = (hello.session, hello.seat);
        let mut book = self.book();
        let mut welcome = Welcome {
            settings: self.settings.clone(),
            parameters: self.terms.publications.weights as u64,
            lease: None,
            closed: *self.closed.borrow(),
        };
        if welcome.closed {
            book.spares.remove(&who);
            return Ok(welcome);
        }
        if let Some(holder) = book.holders.get(&who) {
            let same = holder.attempt == hello.attempt && self.terms.places.holds(holder.lease.id);
            if same {
                // The answer was lost on its way.
                welcome.lease = Some(holder.lease.into());
                return Ok(welcome);
            }
            // Whoever asks anew has given up what it had.
            if let Some(holder) = book.holders.remove(&who) {
                self.link.leave(holder.lease.id, holder.name);
                count(&self.counters.left, 1);
            }
        }
        let Some(lease) = self.terms.places.lease() else {
            book.spares.insert(who, Instant::now());
            return Ok(welcome);
        };
        book.spares.remove(&who);
        let name = format!("{} (place {})", hello.name, lease.id.place);
        self.link.join(lease.id, name.clone());
        count(&self.counters.joined, 1);
        let holder = Holder {
            lease,
            attempt: hello.attempt,
            name,
            connection: 0,
            away: Some(Instant::now()),
            next: 0,
        };
        book.holders.insert(who, holder);
        welcome.lease = Some(lease.into());
        Ok(welcome)
    }

    /// A new connection of an actor to its lease: the number of the connection. `None` if the lease
    /// has ended.
    fn open(&self, lease: LeaseId) -> Option<u64> {
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

    /// The connection has ended; the place is kept for a while.
    fn away(&self, lease: LeaseId, connection: u64) {
        let mut book = self.book();
        if let Some(holder) = book.current(lease, connection) {
            holder.away = Some(Instant::now());
        }
    }

    /// The actor gives its place back.
    fn goodbye(&self, lease: LeaseId, connection: u64, failure: Option<protocol::Failure>) {
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
                self.link.fail(failure.loss(lease));
            }
            None => {
                count(&self.counters.left, 1);
                self.link.leave(lease, holder.name);
            }
        }
    }

    /// Takes a place from its holder.
    fn dismiss(&self, lease: LeaseId, reason: String) {
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

    /// The state of a feed, and the number of the next parcel.
    fn ack(&self, lease: LeaseId, connection: u64) -> Ack {
        let next = {
            let mut book = self.book();
            book.current(lease, connection).map(|holder| holder.next)
        };
        let state = match next {
            _ if *self.closed.borrow() => State::Closed,
            Some(_) if !self.terms.places.holds(lease) => State::Ended,
            Some(_) if self.link.is_busy() => State::Busy,
            Some(_) => State::Open,
            None => State::Ended,
        };
        Ack {
            next: next.unwrap_or(0),
            state: state.into(),
        }
    }

    /// Passes a parcel on, once and in order; waits until there is room for it. What is wrong with an
    /// actor is said to the learner. Returns false when the feed has to end.
    fn take(&self, lease: LeaseId, connection: u64, number: u64, frame: &Bytes) -> bool {
        let next = {
            let mut book = self.book();
            book.current(lease, connection).map(|holder| holder.next)
        };
        match next {
            None => return false,
            Some(next) if number < next => {
                count(&self.counters.duplicates, 1);
                return true;
            }
            Some(next) if number > next => {
                self.dismiss(
                    lease,
                    format!("its parcel {number} came, but {next} is missing"),
                );
                return false;
            }
            Some(_) => {}
        }
        let parcel = match self.terms.parcels.read(frame) {
            Ok(parcel) if (parcel.lease, parcel.number) == (lease, number) => parcel,
            Ok(_) => {
                self.dismiss(lease, "it sent a parcel of another lease".into());
                return false;
            }
            Err(error) => {
                self.dismiss(
                    lease,
                    format!("it sent a parcel that cannot be read: {error}"),
                );
                return false;
            }
        };
        let sizes = parcel.rollouts.iter();
        let steps: usize = sizes.map(|(_, part)| part.steps() * part.envs()).sum();
        loop {
            match self.link.has_room(lease, SLICE) {
                Ok(true) => break,
                Ok(false) => {}
                Err(_) => return false,
            }
            if self.book().current(lease, connection).is_none() {
                return false;
            }
        }
        // Under the lock: a newer connection of the same actor may be at the same parcel.
        let mut book = self.book();
        let Some(holder) = book.current(lease, connection) else {
            return false;
        };
        if self.link.send(parcel, Duration::ZERO).is_err() {
            return false;
        }
        holder.next += 1;
        count(&self.counters.parcels, 1);
        count(&self.counters.steps, steps as u64);
        count(&self.counters.bytes, frame.len() as u64);
        true
    }

    /// The answer to a question for weights, and the frame that follows.
    fn weights(&self, ask: &Ask) -> (Told, Bytes) {
        let nothing = |state: State| {
            let told = Told {
                state: state.into(),
                ..Told::default()
            };
            (told, Bytes::new())
        };
        let wanted = ask.exactly.map_or(Wanted::Latest, Wanted::Exactly);
        let limit = Duration::from_millis(ask.patience_ms).min(LONGEST_POLL);
        let found = self.link.look_for(wanted, limit);
        if matches!(found, Err(LinkError::Closed)) {
            return nothing(State::Closed);
        }
        if !self.terms.places.holds(ask.lease.into()) {
            return nothing(State::Ended);
        }
        let state = match self.link.is_busy() {
            true => State::Busy,
            false => State::Open,
        };
        let Ok(Some(publication)) = found else {
            return nothing(state);
        };
        let version = publication.weights.version;
        let frame = match ask.have.contains(&version) {
            true => Bytes::new(),
            false => self.encoded(&publication),
        };
        let told = Told {
            state: state.into(),
            found: true,
            version,
            env_steps: publication.control.env_steps,
            bytes: frame.len() as u64,
        };
        (told, frame)
    }

    fn encoded(&self, publication: &Publication) -> Bytes {
        let version = publication.weights.version;
        let mut encoded = self.encoded.lock().unwrap_or_else(PoisonError::into_inner);
        match &*encoded {
            Some((held, frame)) if *held == version => frame.clone(),
            _ => {
                let mut frame = Vec::new();
                wire::write_publication(publication, &mut frame);
                let frame = Bytes::from(frame);
                *encoded = Some((version, frame.clone()));
                frame
            }
        }
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
}

fn count(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}

/// Takes places from actors that do not come back.
async fn expire(shared: Arc<Shared>) {
    let lease = shared.options.lease;
    let mut tick = tokio::time::interval((lease / 10).max(Duration::from_millis(10)));
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while !*shared.closed.borrow() {
        tick.tick().await;
        let gone: Vec<LeaseId> = {
            let book = shared.book();
            let away = |holder: &&Holder| holder.away.is_some_and(|since| since.elapsed() > lease);
            let gone = book.holders.values().filter(away);
            gone.map(|holder| holder.lease.id).collect()
        };
        for lost in gone {
            let seconds = lease.as_secs_f64();
            shared.dismiss(lost, format!("it has had no connection for {seconds} s"));
        }
    }
}

/// The calls of the service.
#[derive(Clone)]
struct Calls(Arc<Shared>);

type Answered = Pin<Box<dyn Future<Output = Result<http::Response<Body>, Infallible>> + Send>>;

impl Service<http::Request<Body>> for Calls {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Answered;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Answered {
        let shared = Arc::clone(&self.0);
        let token = request.headers().get(AUTHORIZATION);
        if !token.is_some_and(|token| shared.identity.accepts(token.as_bytes())) {
            count(&shared.counters.refused, 1);
            let refused = Status::unauthenticated("this is not the token of the run");
            return Box::pin(async move { Ok(refused.into_http()) });
        }
        Box::pin(async move { Ok(dispatch(shared, request).await) })
    }
}

async fn dispatch(shared: Arc<Shared>, request: http::Request<Body>) -> http::Response<Body> {
    match request.uri().path() {
        JOIN => {
            let join = service_fn(move |hello: Request<Hello>| {
                let welcome = shared.join(hello.into_inner());
                std::future::ready(welcome.map(Response::new))
            });
            let codec = ProstCodec::<Welcome, Hello>::default();
            let mut grpc = Grpc::new(codec).max_decoding_message_size(MOST_CONTROL_BYTES);
            grpc.unary(join, request).await
        }
        FEED => {
            let most = MOST_CONTROL_BYTES as u64
                + wire::HEADER_BYTES as u64
                + shared.terms.parcels.most_bytes();
            let most = usize::try_from(most).unwrap_or(usize::MAX);
            let feed = service_fn(move |upward: Request<Streaming<Upward>>| {
                let (acks, answers) = mpsc::channel(4);
                tokio::spawn(feed(Arc::clone(&shared), upward.into_inner(), acks));
                let answers = ReceiverStream::new(answers);
                std::future::ready(Ok::<_, Status>(Response::new(answers)))
            });
            let codec = ProstCodec::<Ack, Upward>::default();
            let mut grpc = Grpc::new(codec).max_decoding_message_size(most);
            grpc.streaming(feed, request).await
        }
        WEIGHTS => {
            let weights = service_fn(move |ask: Request<Ask>| {
                let shared = Arc::clone(&shared);
                async move {
                    let ask = ask.into_inner();
                    let found = tokio::task::spawn_blocking(move || shared.weights(&ask)).await;
                    let (told, frame) =
                        found.map_err(|error| Status::internal(error.to_string()))?;
                    Ok::<_, Status>(Response::new(tokio_stream::iter(chunks(told, frame))))
                }
            });
            let codec = ProstCodec::<Chunk, Ask>::default();
            let mut grpc = Grpc::new(codec).max_decoding_message_size(MOST_CONTROL_BYTES);
            grpc.server_streaming(weights, request).await
        }
        _ => Status::unimplemented("there is no such call").into_http(),
    }
}

/// The parts of an answer.
fn chunks(told: Told, mut frame: Bytes) -> impl Iterator<Item = Result<Chunk, Status>> {
    let first = Chunk {
        told: Some(told),
        part: frame.split_to(frame.len().min(CHUNK_BYTES)),
    };
    let rest = std::iter::from_fn(move || {
        (!frame.is_empty()).then(|| Chunk {
            told: None,
            part: frame.split_to(frame.len().min(CHUNK_BYTES)),
        })
    });
    std::iter::once(first).chain(rest).map(Ok)
}

/// Serves one connection of an actor to its lease.
async fn feed(
    shared: Arc<Shared>,
    mut upward: Streaming<Upward>,
    acks: mpsc::Sender<Result<Ack, Status>>,
) {
    let first = tokio::time::timeout(shared.options.keep_alive, upward.message()).await;
    let Ok(Ok(Some(Upward {
        said: Some(Said::Open(lease)),
    }))) = first
    else {
        let _ = acks
            .send(Err(Status::invalid_argument(
                "a feed begins with its lease",
            )))
            .await;
        return;
    };
    let lease = LeaseId::from(lease);
    let Some(connection) = shared.open(lease) else {
        let state = match *shared.closed.borrow() {
            true => State::Closed,
            false => State::Ended,
        };
        let ended = Ack {
            next: 0,
            state: state.into(),
        };
        let _ = acks.send(Ok(ended)).await;
        return;
    };
    converse(&shared, lease, connection, &mut upward, &acks).await;
    shared.away(lease, connection);
}

/// Until the connection, the lease or the run ends.
async fn converse(
    shared: &Arc<Shared>,
    lease: LeaseId,
    connection: u64,
    upward: &mut Streaming<Upward>,
    acks: &mpsc::Sender<Result<Ack, Status>>,
) {
    let mut closed = shared.closed.subscribe();
    let mut beat = tokio::time::interval(HEARTBEAT);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let ack = shared.ack(lease, connection);
        let over = matches!(ack.state(), State::Ended | State::Closed);
        if acks.send(Ok(ack)).await.is_err() || over {
            return;
        }
        let said = tokio::select! {
            said = upward.message() => said,
            _ = closed.wait_for(|closed| *closed) => continue,
            _ = beat.tick() => continue,
        };
        match said {
            Ok(Some(Upward {
                said: Some(Said::Parcel(parcel)),
            })) => {
                let taker = Arc::clone(shared);
                let mut taken = tokio::task::spawn_blocking(move || {
                    taker.take(lease, connection, parcel.number, &parcel.frame)
                });
                // It may wait for long for its room; the actor is to know that the learner is there.
                let taken = loop {
                    tokio::select! {
                        taken = &mut taken => break taken.unwrap_or(false),
                        _ = beat.tick() => {
                            if acks.send(Ok(shared.ack(lease, connection))).await.is_err() {
                                return;
                            }
                        }
                    }
                };
                if !taken {
                    // Nothing after it can be taken either. The actor hears why, or asks again.
                    let _ = acks.send(Ok(shared.ack(lease, connection))).await;
                    return;
                }
            }
            Ok(Some(Upward {
                said: Some(Said::Goodbye(goodbye)),
            })) => {
                shared.goodbye(lease, connection, goodbye.failure);
            }
            // The connection ended without a goodbye.
            Ok(_) | Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use starling_engine::link::conformance;

    use super::*;

    fn shared() -> Shared {
        let terms = conformance::terms();
        Shared {
            link: InProcess::new(Arc::clone(&terms.places), terms.history),
            terms,
            settings: "{}".into(),
            identity: Identity::new(false).unwrap(),
            options: Options::default(),
            book: Mutex::default(),
            encoded: Mutex::default(),
            closed: watch::Sender::new(false),
            counters: Counters::default(),
        }
    }

    fn hello() -> Hello {
        Hello {
            protocol: PROTOCOL,
            frames: wire::PROTOCOL.into(),
            version: VERSION.into(),
            ..Hello::default()
        }
    }

    fn seated(shared: &Shared) -> (Lease, u64) {
        let lease = shared.join(hello()).unwrap().lease.unwrap();
        let lease = Lease::from(lease);
        let connection = shared.open(lease.id).unwrap();
        let joined = shared.link.receive(Duration::ZERO).unwrap();
        assert!(matches!(joined, Event::Joined { .. }));
        (lease, connection)
    }

    fn frame(lease: &Lease, number: u64) -> Bytes {
        let mut frame = Vec::new();
        let parcel = conformance::parcel(lease, number, 1.0);
        wire::write_parcel(&parcel, &mut frame).unwrap();
        frame.into()
    }

    #[test]
    fn other_versions_are_refused_by_name() {
        let shared = shared();
        for other in [
            Hello {
                version: "9.9.9".into(),
                ..hello()
            },
            Hello {
                protocol: PROTOCOL + 7,
                ..hello()
            },
            Hello {
                frames: 77,
                ..hello()
            },
        ] {
            let named = format!(
                "{} (protocol {}.{})",
                other.version, other.protocol, other.frames
            );
            let refused = shared.join(other).unwrap_err();
            assert_eq!(refused.code(), tonic::Code::FailedPrecondition);
            let message = refused.message();
            assert!(
                message.contains(&named) && message.contains(VERSION),
                "{message}"
            );
        }
        assert_eq!(shared.terms.places.held(), 0);
    }

    /// A connection that was replaced cannot send any more, and what it sent is not taken again.
    #[test]
    fn only_the_last_connection_sends() {
        let shared = shared();
        let (lease, first) = seated(&shared);
        assert!(shared.take(lease.id, first, 0, &frame(&lease, 0)));
        let second = shared.open(lease.id).unwrap();
        assert!(!shared.take(lease.id, first, 1, &frame(&lease, 1)));
        assert_eq!(shared.ack(lease.id, second).next, 1);
        assert!(shared.take(lease.id, second, 0, &frame(&lease, 0)));
        assert!(shared.take(lease.id, second, 1, &frame(&lease, 1)));
        shared.away(lease.id, first);
        assert!(shared.book().holder(lease.id).unwrap().away.is_none());
        let counts = shared.counts();
        assert_eq!(
            (counts.parcels, counts.duplicates, counts.reconnects),
            (2, 1, 1)
        );
    }

    /// What an actor sends may be anything: it is taken, or the actor is dismissed with a reason.
    #[test]
    fn strange_parcels_cost_the_place() {
        type Strange = fn(&Lease) -> (u64, Bytes);
        let all: [(&str, Strange); 3] = [
            ("but 0 is missing", |lease| (1, frame(lease, 1))),
            ("of another lease", |lease| (0, frame(lease, 1))),
            ("cannot be read", |_| (0, Bytes::from_static(b"STLK"))),
        ];
        for (expected, strange) in all {
            let shared = shared();
            let (lease, connection) = seated(&shared);
            let (number, frame) = strange(&lease);
            assert!(!shared.take(lease.id, connection, number, &frame));
            let Ok(Event::Lost(loss)) = shared.link.receive(Duration::ZERO) else {
                panic!("the learner heard of nothing");
            };
            assert!(loss.reason.contains(expected), "{loss:?}");
            assert_eq!(shared.ack(lease.id, connection).state(), State::Ended);
        }
    }

    proptest! {
        /// Parcels in any order, over any connections, often or never: each is taken once and in
        /// order, as long as the place is held.
        #[test]
        fn each_parcel_is_taken_once(
            deliveries in prop::collection::vec((0u64..6, any::<bool>(), any::<bool>()), 0..60),
        ) {
            let shared = shared();
            let (lease, mut connection) = seated(&shared);
            let (mut next, mut old) = (0, connection);
            for (number, late, again) in deliveries {
                if again {
                    old = connection;
                    connection = shared.open(lease.id).unwrap();
                }
                let over = if late { old } else { connection };
                // Actors never skip a number.
                let number = number.min(next);
                let taken = shared.take(lease.id, over, number, &frame(&lease, number));
                prop_assert_eq!(taken, over == connection);
                if taken && number == next {
                    next += 1;
                    let Ok(Event::Parcel(parcel)) = shared.link.receive(Duration::ZERO) else {
                        panic!("a parcel was taken");
                    };
                    prop_assert_eq!(parcel.number, number);
                }
                prop_assert!(shared.link.receive(Duration::ZERO).is_err());
                prop_assert_eq!(shared.ack(lease.id, connection).next, next);
            }
        }
    }
}
