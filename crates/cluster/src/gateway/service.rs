//! The calls of actors, as gRPC brings them.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use starling_engine::link::wire;
use tokio::sync::mpsc;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use tonic::body::Body;
use tonic::server::Grpc;
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;
use tower::{Service, service_fn};

use super::desk::Desk;
use super::feed;
use super::guests::Known;
use crate::Identity;
use crate::protocol::{
    AUTHORIZATION, Ack, Ask, CHUNK_BYTES, Chunk, FEED, FOLLOW, Follow, Hello, JOIN,
    MOST_CONTROL_BYTES, MOST_REPORT_BYTES, REPORT, Report, Said, Told, Upward, WEIGHTS, Welcome,
};

/// The calls of the service.
#[derive(Clone)]
pub(super) struct Calls {
    desk: Arc<Desk>,
    identity: Arc<Identity>,
}

impl Calls {
    pub(super) fn new(desk: Arc<Desk>, identity: Identity) -> Self {
        let identity = Arc::new(identity);
        Self { desk, identity }
    }
}

type Answered = Pin<Box<dyn Future<Output = Result<http::Response<Body>, Infallible>> + Send>>;

impl Service<http::Request<Body>> for Calls {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Answered;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Answered {
        let desk = Arc::clone(&self.desk);
        let token = request.headers().get(AUTHORIZATION);
        if !token.is_some_and(|token| self.identity.accepts(token.as_bytes())) {
            desk.ledger.refuse();
            let refused = Status::unauthenticated("invalid token");
            return Box::pin(async move { Ok(refused.into_http()) });
        }
        Known::note(&request);
        Box::pin(async move { Ok(dispatch(desk, request).await) })
    }
}

async fn dispatch(desk: Arc<Desk>, request: http::Request<Body>) -> http::Response<Body> {
    match request.uri().path() {
        JOIN => {
            let join = service_fn(move |hello: Request<Hello>| {
                let welcome = desk.hello(hello.into_inner());
                let welcome = welcome.map_err(Status::failed_precondition);
                std::future::ready(welcome.map(Response::new))
            });
            let codec = ProstCodec::<Welcome, Hello>::default();
            let mut grpc = Grpc::new(codec).max_decoding_message_size(MOST_CONTROL_BYTES);
            grpc.unary(join, request).await
        }
        FEED => {
            let most = MOST_CONTROL_BYTES as u64
                + wire::HEADER_BYTES as u64
                + desk.ledger.terms().parcels.most_bytes();
            let most = usize::try_from(most).unwrap_or(usize::MAX);
            let fed = service_fn(move |upward: Request<Streaming<Upward>>| {
                let (acks, answers) = mpsc::channel(4);
                tokio::spawn(listen(Arc::clone(&desk), upward.into_inner(), acks));
                let answers = ReceiverStream::new(answers).map(Ok);
                std::future::ready(Ok::<_, Status>(Response::new(answers)))
            });
            let codec = ProstCodec::<Ack, Upward>::default();
            let mut grpc = Grpc::new(codec).max_decoding_message_size(most);
            grpc.streaming(fed, request).await
        }
        WEIGHTS => {
            let weights = service_fn(move |ask: Request<Ask>| {
                let desk = Arc::clone(&desk);
                async move {
                    let ask = ask.into_inner();
                    let found = tokio::task::spawn_blocking(move || desk.weights(&ask)).await;
                    let (told, frame) =
                        found.map_err(|error| Status::internal(error.to_string()))?;
                    Ok::<_, Status>(Response::new(tokio_stream::iter(chunks(told, frame))))
                }
            });
            let codec = ProstCodec::<Chunk, Ask>::default();
            let mut grpc = Grpc::new(codec).max_decoding_message_size(MOST_CONTROL_BYTES);
            grpc.server_streaming(weights, request).await
        }
        FOLLOW => {
            let follow = service_fn(move |ask: Request<Follow>| {
                let desk = Arc::clone(&desk);
                async move {
                    let ask = ask.into_inner();
                    let found = tokio::task::spawn_blocking(move || desk.follow(&ask)).await;
                    let (told, frame) =
                        found.map_err(|error| Status::internal(error.to_string()))?;
                    Ok::<_, Status>(Response::new(tokio_stream::iter(chunks(told, frame))))
                }
            });
            let codec = ProstCodec::<Chunk, Follow>::default();
            let mut grpc = Grpc::new(codec).max_decoding_message_size(MOST_CONTROL_BYTES);
            grpc.server_streaming(follow, request).await
        }
        REPORT => {
            let report = service_fn(move |report: Request<Report>| {
                let told = desk.report(report.into_inner());
                let told = told.map_err(Status::failed_precondition);
                std::future::ready(told.map(Response::new))
            });
            let codec = ProstCodec::<Told, Report>::default();
            let mut grpc = Grpc::new(codec).max_decoding_message_size(MOST_REPORT_BYTES);
            grpc.unary(report, request).await
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

/// Serves one connection of an actor, which begins with its lease.
async fn listen(desk: Arc<Desk>, mut upward: Streaming<Upward>, acks: mpsc::Sender<Ack>) {
    let first = tokio::time::timeout(desk.options.keep_alive, upward.message()).await;
    if let Ok(Ok(Some(first))) = first
        && let Some(Said::Open(lease)) = first.said
    {
        let upward = upward.map_while(Result::ok);
        feed::serve(&desk, lease.into(), upward, &acks).await;
    }
}
