//! A line over gRPC: one connection for parcels, one for weights.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use http::uri::PathAndQuery;
use starling_engine::link::LeaseId;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::client::Grpc;
use tonic::metadata::AsciiMetadataValue;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use tonic::{Code, Request, Status, Streaming};
use tonic_prost::ProstCodec;

use super::CALL;
use super::way::{Trouble, timely};
use crate::protocol::{
    AUTHORIZATION, Ack, Ask, CHUNK_BYTES, Chunk, FEED, FOLLOW, Follow, Hello, JOIN, LONGEST_POLL,
    MOST_CONTROL_BYTES, REPORT, Report, Said, Told, Upward, WEIGHTS, WINDOW, Welcome,
};
use crate::trust::{SERVER_NAME, bearer};
use crate::{ClusterError, JoinFile, Options};

/// Window of the connection for weights, in bytes. A smaller one would be slow with a high latency.
/// With a larger one, keep-alive replies on a slow connection would be late, because they queue behind
/// the weights.
const WEIGHTS_IN_FLIGHT: u32 = 1 << 19;

/// Fewer bytes than these say little about the rate of a connection: they fit in its buffers.
const MEASURABLE_BYTES: usize = 1 << 21;

/// The calls of an actor process.
pub(super) struct Calls {
    parcels: Channel,
    weights: Channel,
    token: AsciiMetadataValue,
    /// Bytes per second at which weights arrived lately; 0 if that is not known.
    rate: AtomicU64,
}

/// One connection to a lease.
pub(super) struct Feed {
    upward: mpsc::Sender<Upward>,
    acks: Streaming<Ack>,
}

impl Calls {
    /// Connects with the first call. To be called within the runtime.
    pub(super) fn new(join: &JoinFile, options: Options) -> Result<Self, ClusterError> {
        let (endpoint, token) = (connect(join, options)?, token(join)?);
        let weights = endpoint
            .clone()
            .initial_stream_window_size(WEIGHTS_IN_FLIGHT)
            .initial_connection_window_size(WEIGHTS_IN_FLIGHT);
        Ok(Self {
            parcels: endpoint.connect_lazy(),
            weights: weights.connect_lazy(),
            token,
            rate: AtomicU64::new(0),
        })
    }

    pub(super) async fn hello(&self, hello: Hello) -> Result<Welcome, Trouble> {
        let mut grpc =
            Grpc::new(self.parcels.clone()).max_decoding_message_size(MOST_CONTROL_BYTES);
        let welcome = timely(CALL, async {
            ready(&mut grpc).await?;
            let codec = ProstCodec::<Hello, Welcome>::default();
            let path = PathAndQuery::from_static(JOIN);
            let welcome = grpc.unary(self.request(hello), path, codec).await;
            welcome.map_err(trouble)
        });
        Ok(welcome.await?.into_inner())
    }

    /// The reply, and the frame after it, of at most `most` bytes. Every part of the frame has its own
    /// deadline, so that slow connections work.
    pub(super) async fn weights(
        &self,
        mut ask: Ask,
        most: u64,
    ) -> Result<(Told, Vec<u8>), Trouble> {
        let rate = self.rate.load(Ordering::Relaxed);
        ask.bytes_per_s = (rate > 0).then_some(rate);
        self.frame(WEIGHTS, ask, most).await
    }

    pub(super) async fn follow(&self, ask: Follow, most: u64) -> Result<(Told, Vec<u8>), Trouble> {
        self.frame(FOLLOW, ask, most).await
    }

    pub(super) async fn report(&self, report: Report) -> Result<Told, Trouble> {
        let mut grpc = Grpc::new(self.parcels.clone())
            .max_decoding_message_size(MOST_CONTROL_BYTES)
            .max_encoding_message_size(usize::MAX);
        let told = timely(CALL, async {
            ready(&mut grpc).await?;
            let codec = ProstCodec::<Report, Told>::default();
            let path = PathAndQuery::from_static(REPORT);
            let told = grpc.unary(self.request(report), path, codec).await;
            told.map_err(trouble)
        });
        Ok(told.await?.into_inner())
    }

    async fn frame<Q: prost::Message + Default + 'static>(
        &self,
        path: &'static str,
        ask: Q,
        most: u64,
    ) -> Result<(Told, Vec<u8>), Trouble> {
        let most_part = CHUNK_BYTES + MOST_CONTROL_BYTES;
        let mut grpc = Grpc::new(self.weights.clone()).max_decoding_message_size(most_part);
        let mut chunks = timely(LONGEST_POLL + CALL, async {
            ready(&mut grpc).await?;
            let codec = ProstCodec::<Q, Chunk>::default();
            let path = PathAndQuery::from_static(path);
            let answer = grpc.server_streaming(self.request(ask), path, codec).await;
            Ok(answer.map_err(trouble)?.into_inner())
        })
        .await?;
        let next = async |chunks: &mut Streaming<Chunk>| {
            timely(CALL, async { chunks.message().await.map_err(trouble) }).await
        };
        let first = next(&mut chunks).await?.unwrap_or_default();
        let told = first.told.unwrap_or_default();
        if told.bytes > most {
            let what = format!(
                "{} bytes of weights, at most {most} are possible",
                told.bytes
            );
            return Err(Trouble::Final(what));
        }
        let mut frame = Vec::with_capacity(told.bytes as usize);
        let mut part = first.part;
        let (began, at_first) = (Instant::now(), part.len());
        loop {
            if frame.len() + part.len() > told.bytes as usize {
                return Err(Trouble::Final("more weights than were announced".into()));
            }
            frame.extend_from_slice(&part);
            match next(&mut chunks).await? {
                Some(chunk) => part = chunk.part,
                None => break,
            }
        }
        self.note_rate(frame.len() - at_first, began.elapsed());
        Ok((told, frame))
    }

    /// Notes how long it took to receive the parts after the first one.
    fn note_rate(&self, bytes: usize, took: Duration) {
        if bytes >= MEASURABLE_BYTES {
            let rate = bytes as f64 / took.as_secs_f64().max(1e-6);
            self.rate.store(rate.max(1.0) as u64, Ordering::Relaxed);
        } else {
            // Too few to tell. The connection may have become faster: after some of these the learner
            // sends all weights again, and the rate is measured.
            let rate = self.rate.load(Ordering::Relaxed);
            self.rate.store(rate + rate / 20, Ordering::Relaxed);
        }
    }

    /// A new connection to a lease.
    pub(super) async fn open(&self, lease: LeaseId) -> Result<Feed, Trouble> {
        let (upward, messages) = mpsc::channel(WINDOW + 2);
        let mut grpc = Grpc::new(self.parcels.clone())
            .max_decoding_message_size(MOST_CONTROL_BYTES)
            .max_encoding_message_size(usize::MAX);
        let said = Upward {
            said: Some(Said::Open(lease.into())),
        };
        upward.send(said).await.map_err(|_| Trouble::ended())?;
        let acks = timely(CALL, async {
            ready(&mut grpc).await?;
            let codec = ProstCodec::<Upward, Ack>::default();
            let path = PathAndQuery::from_static(FEED);
            let messages = self.request(ReceiverStream::new(messages));
            let answer = grpc.streaming(messages, path, codec).await;
            Ok(answer.map_err(trouble)?.into_inner())
        });
        let acks = acks.await?;
        Ok(Feed { upward, acks })
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        let token = self.token.clone();
        request.metadata_mut().insert(AUTHORIZATION, token);
        request
    }
}

impl Feed {
    pub(super) async fn say(&self, said: Said) -> Result<(), Trouble> {
        let said = Upward { said: Some(said) };
        self.upward.send(said).await.map_err(|_| Trouble::ended())
    }

    /// What the learner's side says next. Nothing is lost when it is not waited for.
    pub(super) async fn ack(&mut self) -> Result<Ack, Trouble> {
        let ack = self.acks.message().await.map_err(trouble)?;
        ack.ok_or_else(Trouble::ended)
    }
}

/// How the learner of a join file is reached.
pub(crate) fn connect(join: &JoinFile, options: Options) -> Result<Endpoint, ClusterError> {
    let scheme = match join.certificate {
        Some(_) => "https",
        None => "http",
    };
    let endpoint = Endpoint::from_shared(format!("{scheme}://{}", join.address));
    let endpoint = endpoint
        .map_err(|error| strange(&error))?
        .connect_timeout(options.keep_alive)
        .http2_keep_alive_interval(options.keep_alive)
        .keep_alive_timeout(options.keep_alive)
        .keep_alive_while_idle(true)
        .tcp_nodelay(true);
    let Some(certificate) = &join.certificate else {
        return Ok(endpoint);
    };
    let tls = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(certificate))
        .domain_name(SERVER_NAME);
    endpoint.tls_config(tls).map_err(|error| strange(&error))
}

/// The token of a join file, as it is sent with every call.
pub(crate) fn token(join: &JoinFile) -> Result<AsciiMetadataValue, ClusterError> {
    let token = AsciiMetadataValue::try_from(bearer(&join.token));
    let mut token = token.map_err(|error| strange(&error))?;
    token.set_sensitive(true);
    Ok(token)
}

fn strange(error: &dyn std::fmt::Display) -> ClusterError {
    ClusterError::Trust(format!("the join file cannot be used: {error}"))
}

async fn ready(grpc: &mut Grpc<Channel>) -> Result<(), Trouble> {
    let ready = grpc.ready().await;
    ready.map_err(|error| Trouble::Away(error.to_string()))
}

pub(crate) fn trouble(status: Status) -> Trouble {
    let what = match status.message() {
        "" => status.code().to_string(),
        message => message.to_owned(),
    };
    match status.code() {
        Code::Unauthenticated
        | Code::FailedPrecondition
        | Code::InvalidArgument
        | Code::OutOfRange
        | Code::Unimplemented => Trouble::Final(what),
        _ => Trouble::Away(what),
    }
}
