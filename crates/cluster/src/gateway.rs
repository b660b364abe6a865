//! The learner's side: plays each actor towards a link within the process.

mod desk;
mod feed;
#[cfg(test)]
mod fuzz;
pub(crate) mod guests;
mod redis;
mod service;

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde_json::Value;
use starling_engine::link::ledger::Counts;
use starling_engine::link::{Event, LearnerLink, LinkError, Publication, RemoteActor, Terms};
use starling_envs::Rollout;
use tokio::runtime::Runtime;
use tonic::transport::Server;
use tonic::transport::server::ServerTlsConfig;

pub(crate) use self::desk::is_same_version;
use self::desk::{Desk, expire};
use self::service::Calls;
use crate::line::{Backoff, Trouble, timely};
use crate::store::Store;
use crate::{ClusterError, Identity, JoinFile, Options};

/// How long the end of a run waits until actors have been told.
const FAREWELL: Duration = Duration::from_secs(3);

/// Connections that may be open at a time: an actor process has two, whether it has places or waits.
const CONNECTIONS: usize = 256;
const CONNECTIONS_PER_PLACE: usize = 2;

/// How long a queued message may take until it is sent.
const LAST_WORDS: Duration = Duration::from_millis(50);

/// The learner's side of the link to remote actors. Clones share it; it stops
/// listening when the last one is dropped.
#[derive(Clone)]
pub struct Gateway {
    desk: Arc<Desk>,
    #[expect(dead_code, reason = "listens until it is dropped")]
    server: Arc<Listening>,
}

/// Threads for the actors of a run.
fn runtime(terms: &Terms) -> std::io::Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        // One for the parcel of each place, one for its wait for weights, and some to spare.
        .max_blocking_threads(2 * terms.places.len() + 16)
        .thread_name("gateway")
        .enable_all()
        .build()
}

/// Keeps the server going.
struct Listening {
    runtime: Option<Runtime>,
    desk: Arc<Desk>,
    /// The Redis server, where there is one.
    store: Option<Store>,
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
        let runtime = runtime(&terms).map_err(|error| failed(error.to_string()))?;
        let mut server = Server::builder()
            .http2_keepalive_interval(Some(options.keep_alive))
            .http2_keepalive_timeout(Some(options.keep_alive));
        if let Some((certificate, key)) = &identity.tls {
            let pair = tonic::transport::Identity::from_pem(certificate, key);
            let tls = server.tls_config(ServerTlsConfig::new().identity(pair));
            server = tls.map_err(|error| ClusterError::Trust(error.to_string()))?;
        }
        let desk = Arc::new(Desk::new(terms, settings, options));
        let listener = {
            let _inside = runtime.enter();
            tokio::net::TcpListener::from_std(listener)
        };
        let listener = listener.map_err(|error| ClusterError::Listen {
            address: address.to_string(),
            reason: error.to_string(),
        })?;
        let calls = Calls::new(Arc::clone(&desk), identity);
        let most = CONNECTIONS + CONNECTIONS_PER_PLACE * desk.ledger.terms().places.len();
        runtime.spawn(async move {
            let incoming = guests::accept(listener, most, options.keep_alive);
            if let Err(error) = server.serve_with_incoming(calls, incoming).await {
                tracing::error!("the learner does not listen any more: {error}");
            }
        });
        Ok(Self::new(desk, runtime, None))
    }

    /// Meets the actors of a run with these settings at the Redis server of a join file.
    ///
    /// # Errors
    /// When the server cannot be reached, or refuses.
    pub fn over_redis(
        terms: Terms,
        settings: &Value,
        join: &JoinFile,
        options: Options,
    ) -> Result<Self, ClusterError> {
        let failed = |reason: String| ClusterError::Listen {
            address: join.address.clone(),
            reason,
        };
        let store = Store::new(join)?;
        let runtime = runtime(&terms).map_err(|error| failed(error.to_string()))?;
        // With a command, because a server may accept connections and refuse everything else.
        let connected = runtime.block_on(async {
            let (began, mut pauses) = (Instant::now(), Backoff::new());
            loop {
                match store.set_open().await {
                    // It may be about to start.
                    Err(Trouble::Away(_)) if began.elapsed() < options.keep_alive => {
                        tokio::time::sleep(pauses.next()).await;
                    }
                    tried => return tried,
                }
            }
        });
        connected.map_err(|trouble| failed(trouble.reason().to_owned()))?;
        let desk = Arc::new(Desk::new(terms, settings, options));
        runtime.spawn(redis::serve(Arc::clone(&desk), store.clone()));
        Ok(Self::new(desk, runtime, Some(store)))
    }

    fn new(desk: Arc<Desk>, runtime: Runtime, store: Option<Store>) -> Self {
        runtime.spawn(expire(Arc::clone(&desk)));
        Self {
            server: Arc::new(Listening {
                runtime: Some(runtime),
                desk: Arc::clone(&desk),
                store,
            }),
            desk,
        }
    }

    /// Says whether the run goes on when this link ends: then actors are not told that it has ended, and
    /// try to reconnect to the learner that takes its place.
    pub fn set_stays(&self, stays: bool) {
        self.desk.stays.store(stays, Ordering::Relaxed);
    }

    /// What was counted.
    pub fn counts(&self) -> Counts {
        self.desk.ledger.counts()
    }
}

impl LearnerLink for Gateway {
    fn publish(&self, publication: Publication) {
        self.desk.ledger.publish(publication);
    }

    fn receive(&self, patience: Duration) -> Result<Event, LinkError> {
        self.desk.ledger.receive(patience)
    }

    fn recycle(&self, place: usize, rollouts: Vec<Rollout>) {
        self.desk.ledger.recycle(place, rollouts);
    }

    fn set_busy(&self, busy: bool) {
        self.desk.ledger.set_busy(busy);
    }

    fn close(&self) {
        self.desk.close();
    }

    fn remote_actors(&self) -> Option<(Vec<RemoteActor>, Counts)> {
        self.desk.ledger.remote_actors()
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.desk.close();
        let stays = self.desk.stays.load(Ordering::Relaxed);
        if let (Some(runtime), Some(store), false) = (&self.runtime, &self.store, stays) {
            let told = runtime.block_on(timely(FAREWELL, store.set_closed()));
            if let Err(trouble) = told {
                let reason = trouble.reason();
                tracing::warn!("Redis does not know that the run has ended: {reason}");
            }
        }
        let began = Instant::now();
        while !stays && self.desk.anybody() && began.elapsed() < FAREWELL {
            std::thread::sleep(Duration::from_millis(5));
        }
        // The last words are on their way.
        std::thread::sleep(LAST_WORDS);
        let ledger = &self.desk.ledger;
        if !ledger.terms().places.is_empty() {
            tracing::info!("the learner stops listening: {:?}", ledger.counts());
        }
        if let Some(evaluations) = &ledger.terms().evaluations {
            tracing::info!("evaluations elsewhere: {:?}", evaluations.counts());
        }
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(Duration::from_millis(200));
        }
    }
}
