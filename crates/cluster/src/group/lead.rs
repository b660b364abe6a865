//! Learner 0's side: the coordinator ([`Table`]), and the streams of the other learners.

use std::convert::Infallible;
use std::future::Future;
use std::net::{IpAddr, TcpListener};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, unbounded};
use serde_json::Value;
use starling_engine::group::{
    Answer, Assembly, GroupError, MeetingPoint, StoreAt, Table, Tell, Word,
};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::body::Body;
use tonic::server::Grpc;
use tonic::transport::Server;
use tonic::transport::server::ServerTlsConfig;
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;
use tower::{Service, service_fn};

use super::{Downward, MEET, MOST_BYTES, PROTOCOL, Said, Told, Upward, Welcome};
use crate::gateway::guests::{Known, accept};
use crate::gateway::is_same_version;
use crate::protocol::{AUTHORIZATION, VERSION};
use crate::{ClusterError, Identity, Options};

/// How long learner 0 waits for the others at the end of a run; they may have to write a large
/// checkpoint.
const FAREWELL: Duration = Duration::from_secs(300);

/// The same if they were not told to save.
const SHORT_FAREWELL: Duration = Duration::from_secs(3);

/// Connections that may be open at a time.
const CONNECTIONS: usize = 256;

/// Learner 0 of a group.
pub struct Lead {
    table: Arc<Table>,
    answers: Receiver<Answer>,
    store: Option<TcpListener>,
    address: IpAddr,
    /// Whether the others were told to save and end.
    ended: bool,
    runtime: Option<Runtime>,
}

/// What the others are told when they join.
struct Host {
    table: Arc<Table>,
    identity: Identity,
    settings: String,
    resumed_at: Option<u64>,
    store_port: u16,
    options: Options,
}

impl Lead {
    /// Listens for the other learners of a run with these settings. `address` is the address at which
    /// they reach this machine; `resumed_at` is the step from which a resumed run continues.
    ///
    /// # Errors
    /// When the socket or the certificate cannot be used.
    pub fn listen(
        listener: TcpListener,
        address: IpAddr,
        identity: Identity,
        settings: &Value,
        resumed_at: Option<u64>,
        options: Options,
    ) -> Result<Self, ClusterError> {
        let at = listener.local_addr();
        let shown = at.as_ref().map_or_else(|_| "?".into(), |at| at.to_string());
        let failed = |error: std::io::Error| ClusterError::Listen {
            address: shown.clone(),
            reason: error.to_string(),
        };
        let at = at.map_err(failed)?;
        let store = TcpListener::bind((at.ip(), 0)).map_err(failed)?;
        let store_port = store.local_addr().map_err(failed)?.port();
        listener.set_nonblocking(true).map_err(failed)?;
        let number = |key: &str| settings[key].as_u64().unwrap_or(1);
        let learners = number("learners") as usize;
        let table = Table::new(learners, number("max_learner_losses"));
        table.begin_at(resumed_at.unwrap_or(0));
        let table = Arc::new(table);
        let (tell, answers) = unbounded();
        // There is no receiver once the run has ended.
        let tell: Tell = Box::new(move |answer| tell.send(answer).unwrap_or(()));
        let seated = table.sit(Some(0), tell);
        debug_assert_eq!(seated, Some(0), "nobody else has a seat yet");
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("group")
            .enable_all()
            .build()
            .map_err(failed)?;
        let mut server = Server::builder()
            .http2_keepalive_interval(Some(options.keep_alive))
            .http2_keepalive_timeout(Some(options.keep_alive));
        if let Some((certificate, key)) = &identity.tls {
            let pair = tonic::transport::Identity::from_pem(certificate, key);
            let tls = server.tls_config(ServerTlsConfig::new().identity(pair));
            server = tls.map_err(|error| ClusterError::Trust(error.to_string()))?;
        }
        let listener = {
            let _inside = runtime.enter();
            tokio::net::TcpListener::from_std(listener).map_err(failed)?
        };
        let host = Host {
            table: Arc::clone(&table),
            identity,
            settings: settings.to_string(),
            resumed_at,
            store_port,
            options,
        };
        let calls = Calls(Arc::new(host));
        runtime.spawn(async move {
            let incoming = accept(listener, CONNECTIONS, options.keep_alive);
            if let Err(error) = server.serve_with_incoming(calls, incoming).await {
                tracing::error!("other learners cannot join any more: {error}");
            }
        });
        Ok(Self {
            table,
            answers,
            store: Some(store),
            address,
            ended: false,
            runtime: Some(runtime),
        })
    }

    /// The table, to tell it that a process of this machine has ended.
    pub fn table(&self) -> Arc<Table> {
        Arc::clone(&self.table)
    }
}

impl Assembly for Lead {
    fn rank(&self) -> usize {
        0
    }

    fn say(&mut self, word: Word) -> Result<(), GroupError> {
        self.ended |= matches!(&word, Word::Close(verdict) if verdict.end);
        self.table.say(0, word);
        Ok(())
    }

    fn hear(&mut self, wait: Duration) -> Result<Option<Answer>, GroupError> {
        match self.answers.recv_timeout(wait) {
            Ok(answer) => Ok(Some(answer)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(GroupError::Closed),
        }
    }

    fn meeting_point(&mut self) -> Result<MeetingPoint, GroupError> {
        let store = self.store.take().ok_or(GroupError::Closed)?;
        Ok(MeetingPoint {
            store: StoreAt::Here(store),
            address: self.address,
        })
    }
}

impl Drop for Lead {
    fn drop(&mut self) {
        self.table.close();
        let (began, most) = (
            Instant::now(),
            if self.ended { FAREWELL } else { SHORT_FAREWELL },
        );
        while self.table.present() > 1 && began.elapsed() < most {
            std::thread::sleep(Duration::from_millis(5));
        }
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(Duration::from_millis(200));
        }
    }
}

#[derive(Clone)]
struct Calls(Arc<Host>);

type Answered = Pin<Box<dyn Future<Output = Result<http::Response<Body>, Infallible>> + Send>>;

impl Service<http::Request<Body>> for Calls {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Answered;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Answered {
        let host = Arc::clone(&self.0);
        let token = request.headers().get(AUTHORIZATION);
        if !token.is_some_and(|token| host.identity.accepts(token.as_bytes())) {
            let refused = Status::unauthenticated("invalid token");
            return Box::pin(async move { Ok(refused.into_http()) });
        }
        Known::note(&request);
        if request.uri().path() != MEET {
            let unknown = Status::unimplemented("there is no such call");
            return Box::pin(async move { Ok(unknown.into_http()) });
        }
        let meet = service_fn(move |upward: Request<Streaming<Upward>>| {
            let (downward, answers) = mpsc::unbounded_channel();
            tokio::spawn(serve(Arc::clone(&host), upward.into_inner(), downward));
            let answers = UnboundedReceiverStream::new(answers);
            std::future::ready(Ok::<_, Status>(Response::new(answers)))
        });
        let codec = ProstCodec::<Downward, Upward>::default();
        let mut grpc = Grpc::new(codec).max_decoding_message_size(MOST_BYTES);
        Box::pin(async move { Ok(grpc.streaming(meet, request).await) })
    }
}

type Answers = mpsc::UnboundedSender<Result<Downward, Status>>;

/// Serves one learner from its first message to the last. The channel is unbounded, but every reply
/// follows a message.
async fn serve(host: Arc<Host>, mut upward: Streaming<Upward>, downward: Answers) {
    let first = tokio::time::timeout(host.options.keep_alive, upward.message()).await;
    let Ok(Ok(Some(Upward {
        said: Some(Said::Hello(hello)),
    }))) = first
    else {
        return;
    };
    let refuse = |status: Status| downward.send(Err(status)).unwrap_or(());
    if hello.protocol != PROTOCOL || !is_same_version(&hello.version, VERSION) {
        return refuse(Status::failed_precondition(format!(
            "learner 0 runs Starling {VERSION} (protocol {PROTOCOL}), this learner Starling {} \
             (protocol {}): use the same program on both sides",
            hello.version, hello.protocol
        )));
    }
    let told = |told| {
        downward
            .send(Ok(Downward { told: Some(told) }))
            .unwrap_or(())
    };
    let answers = downward.clone();
    let tell: Tell = Box::new(move |answer| {
        let told = Some(Told::Answer(answer.to_bytes().into()));
        // Without a receiver, the learner is gone.
        answers.send(Ok(Downward { told })).unwrap_or(());
    });
    let Some(rank) = host.table.sit(hello.wanted.map(|rank| rank as usize), tell) else {
        let text = match host.table.is_closed() {
            true => "the run has ended",
            false => "all learners of the run are there",
        };
        return refuse(Status::resource_exhausted(text));
    };
    tracing::info!(learner = rank, "a learner joined");
    told(Told::Welcome(Welcome {
        rank: rank as u64,
        settings: host.settings.clone(),
        resumed_at: host.resumed_at,
        store_port: host.store_port.into(),
    }));
    let reason = loop {
        match upward.message().await {
            Ok(Some(Upward {
                said: Some(Said::Word(bytes)),
            })) => match Word::from_bytes(&bytes) {
                Ok(Word::Close(_)) => break "it is not learner 0".to_owned(),
                Ok(word) => host.table.say(rank, word),
                Err(error) => break error.to_string(),
            },
            Ok(Some(_)) => break "it said something strange".to_owned(),
            Ok(None) => break "it left".to_owned(),
            Err(status) => break status.message().to_owned(),
        }
    };
    host.table.lost(rank, &reason);
}
