//! The side of learners other than learner 0: one stream to learner 0.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use http::uri::PathAndQuery;
use serde_json::Value;
use starling_engine::group::{Answer, Assembly, GroupError, MeetingPoint, StoreAt, Word};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::client::Grpc;
use tonic::{Request, Streaming};
use tonic_prost::ProstCodec;

use super::{Downward, Hello, MEET, MOST_BYTES, PROTOCOL, Said, Told, Upward, Welcome};
use crate::line::{Backoff, Trouble, connect, timely, token, trouble};
use crate::protocol::{AUTHORIZATION, VERSION};
use crate::{ClusterError, JoinFile, Options};

/// Timeout of the reply to the first message.
const CALL: Duration = Duration::from_secs(10);

/// How long a queued message may take until it is sent.
const LAST_WORDS: Duration = Duration::from_millis(50);

/// One of the other learners of a group.
pub struct Follower {
    rank: usize,
    words: mpsc::UnboundedSender<Upward>,
    answers: Receiver<Result<Answer, String>>,
    store: SocketAddr,
    address: IpAddr,
    /// Runs the stream until it is dropped.
    runtime: Option<Runtime>,
}

/// What a learner is told when it joins.
#[derive(Clone, Debug, PartialEq)]
pub struct Invitation {
    /// Its rank.
    pub rank: usize,
    /// The settings of the run.
    pub settings: Value,
    /// The step of the checkpoint that the run was resumed from.
    pub resumed_at: Option<u64>,
}

impl Follower {
    /// Joins a run, with this rank or any free one. If learner 0 does not answer, it retries for
    /// `options.reconnect`, or until `stop` is set.
    ///
    /// # Errors
    /// When learner 0 refuses, or does not answer in time.
    pub fn join(
        join: &JoinFile,
        wanted: Option<usize>,
        options: Options,
        stop: &AtomicBool,
    ) -> Result<(Self, Invitation), ClusterError> {
        let strange = |reason: String| ClusterError::Trust(format!("the join file: {reason}"));
        let mut found = join.address.to_socket_addrs();
        let found = found.as_mut().map_err(|error| strange(error.to_string()))?;
        let at = found.next();
        let at = at.ok_or_else(|| strange(format!("{} is no address", join.address)))?;
        let address = local_address(at).map_err(|error| strange(error.to_string()))?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("group")
            .enable_all()
            .build()
            .map_err(|error| ClusterError::Actor(error.to_string()))?;
        let (began, mut pauses) = (Instant::now(), Backoff::new());
        let (words, welcome, downward) = loop {
            match runtime.block_on(meet(join, wanted, options)) {
                Ok(met) => break met,
                Err(Trouble::Final(reason)) => return Err(ClusterError::Refused(reason)),
                Err(Trouble::Away(reason))
                    if began.elapsed() > options.reconnect || stop.load(Ordering::Relaxed) =>
                {
                    return Err(ClusterError::Unreachable {
                        address: join.address.clone(),
                        seconds: options.reconnect.as_secs(),
                        reason,
                    });
                }
                Err(Trouble::Away(_)) => std::thread::sleep(pauses.next()),
            }
        };
        let (heard, answers) = unbounded();
        runtime.spawn(listen(downward, heard));
        let settings = serde_json::from_str(&welcome.settings);
        let settings = settings.map_err(|error| ClusterError::Refused(error.to_string()))?;
        let rank = welcome.rank as usize;
        let follower = Self {
            rank,
            words,
            answers,
            store: SocketAddr::new(at.ip(), welcome.store_port as u16),
            address,
            runtime: Some(runtime),
        };
        let invitation = Invitation {
            rank,
            settings,
            resumed_at: welcome.resumed_at,
        };
        Ok((follower, invitation))
    }
}

impl Assembly for Follower {
    fn rank(&self) -> usize {
        self.rank
    }

    fn say(&mut self, word: Word) -> Result<(), GroupError> {
        let said = Some(Said::Word(word.to_bytes().into()));
        let sent = self.words.send(Upward { said });
        sent.map_err(|_| GroupError::Away("the connection ended".into()))
    }

    fn hear(&mut self, wait: Duration) -> Result<Option<Answer>, GroupError> {
        match self.answers.recv_timeout(wait) {
            Ok(Ok(answer)) => Ok(Some(answer)),
            Ok(Err(reason)) => Err(GroupError::Away(reason)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => {
                Err(GroupError::Away("the connection ended".into()))
            }
        }
    }

    fn meeting_point(&mut self) -> Result<MeetingPoint, GroupError> {
        Ok(MeetingPoint {
            store: StoreAt::There(self.store),
            address: self.address,
        })
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        // The last messages are being sent.
        std::thread::sleep(LAST_WORDS);
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(LAST_WORDS);
        }
    }
}

type Met = (mpsc::UnboundedSender<Upward>, Welcome, Streaming<Downward>);

/// Connects, and sends the hello.
async fn meet(join: &JoinFile, wanted: Option<usize>, options: Options) -> Result<Met, Trouble> {
    let last = |error: ClusterError| Trouble::Final(error.to_string());
    let channel = connect(join, options).map_err(last)?.connect_lazy();
    let token = token(join).map_err(last)?;
    let (words, messages) = mpsc::unbounded_channel();
    let hello = Hello {
        protocol: PROTOCOL,
        version: VERSION.to_owned(),
        wanted: wanted.map(|rank| rank as u64),
    };
    let said = Some(Said::Hello(hello));
    words.send(Upward { said }).map_err(|_| Trouble::ended())?;
    let mut grpc = Grpc::new(channel).max_decoding_message_size(MOST_BYTES);
    timely(CALL, async {
        let ready = grpc.ready().await;
        ready.map_err(|error| Trouble::Away(error.to_string()))?;
        let mut request = Request::new(UnboundedReceiverStream::new(messages));
        request.metadata_mut().insert(AUTHORIZATION, token);
        let codec = ProstCodec::<Upward, Downward>::default();
        let answer = grpc
            .streaming(request, PathAndQuery::from_static(MEET), codec)
            .await;
        let mut downward = answer.map_err(trouble)?.into_inner();
        let first = downward.message().await.map_err(trouble)?;
        match first.and_then(|first| first.told) {
            Some(Told::Welcome(welcome)) => Ok((words, welcome, downward)),
            Some(Told::Answer(_)) => Err(Trouble::Final("the run has ended".into())),
            None => Err(Trouble::ended()),
        }
    })
    .await
}

/// Forwards the replies of learner 0.
async fn listen(mut downward: Streaming<Downward>, heard: Sender<Result<Answer, String>>) {
    loop {
        let answer = match downward.message().await {
            Ok(Some(Downward {
                told: Some(Told::Answer(bytes)),
            })) => Answer::from_bytes(&bytes).map_err(|error| error.to_string()),
            Ok(Some(_)) => Err("learner 0 said something strange".to_owned()),
            Ok(None) => Err("the connection ended".to_owned()),
            Err(status) => Err(status.message().to_owned()),
        };
        let over = answer.is_err();
        if heard.send(answer).is_err() || over {
            return;
        }
    }
}

/// The local address of a route to that machine. Nothing is sent to find it.
fn local_address(at: SocketAddr) -> std::io::Result<IpAddr> {
    let any: SocketAddr = match at {
        SocketAddr::V4(_) => (std::net::Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (std::net::Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any)?;
    socket.connect(at)?;
    Ok(socket.local_addr()?.ip())
}
