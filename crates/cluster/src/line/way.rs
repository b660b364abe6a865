//! The transport between an actor process and the learner: the interface that all of them implement.

use std::time::Duration;

use starling_engine::link::LeaseId;

use super::{grpc, redis};
use crate::protocol::{Ack, Ask, Follow, Hello, Report, Said, Told, Welcome};

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// Another attempt would not change it.
    Final(String),
    /// The learner or the network is down: a retry may help.
    Away(String),
}

impl Trouble {
    pub(crate) fn ended() -> Self {
        Self::Away("the connection ended".into())
    }

    pub(crate) fn reason(&self) -> &str {
        let (Self::Final(reason) | Self::Away(reason)) = self;
        reason
    }
}

/// Waits no longer than this.
pub(crate) async fn timely<T>(
    limit: Duration,
    work: impl Future<Output = Result<T, Trouble>>,
) -> Result<T, Trouble> {
    match tokio::time::timeout(limit, work).await {
        Ok(done) => done,
        Err(_) => Err(Trouble::Away("it does not answer".into())),
    }
}

/// A transport.
pub(super) enum Way {
    Grpc(grpc::Calls),
    Redis(redis::Calls),
}

/// One connection of an actor to its lease.
pub(super) enum Feed {
    Grpc(grpc::Feed),
    Redis(redis::Feed),
}

impl Way {
    /// Asks for a place.
    pub(super) async fn hello(&self, hello: Hello) -> Result<Welcome, Trouble> {
        match self {
            Self::Grpc(calls) => calls.hello(hello).await,
            Self::Redis(calls) => calls.hello(hello).await,
        }
    }

    /// Asks for weights once: the answer, and a frame of at most `most` bytes.
    pub(super) async fn weights(&self, ask: Ask, most: u64) -> Result<(Told, Vec<u8>), Trouble> {
        match self {
            Self::Grpc(calls) => calls.weights(ask, most).await,
            Self::Redis(calls) => calls.weights(ask, most).await,
        }
    }

    /// Requests weights to evaluate, or sends a heartbeat.
    pub(super) async fn follow(&self, ask: Follow, most: u64) -> Result<(Told, Vec<u8>), Trouble> {
        match self {
            Self::Grpc(calls) => calls.follow(ask, most).await,
            Self::Redis(calls) => calls.follow(ask, most).await,
        }
    }

    /// Sends the result of an evaluation.
    pub(super) async fn report(&self, report: Report) -> Result<Told, Trouble> {
        match self {
            Self::Grpc(calls) => calls.report(report).await,
            Self::Redis(calls) => calls.report(report).await,
        }
    }

    /// Opens a connection to a lease.
    pub(super) async fn open(&self, lease: LeaseId) -> Result<Feed, Trouble> {
        match self {
            Self::Grpc(calls) => calls.open(lease).await.map(Feed::Grpc),
            Self::Redis(calls) => calls.open(lease).await.map(Feed::Redis),
        }
    }
}

impl Feed {
    /// Sends a parcel or a goodbye, after what was sent before.
    pub(super) async fn say(&mut self, said: Said) -> Result<(), Trouble> {
        match self {
            Self::Grpc(feed) => feed.say(said).await,
            Self::Redis(feed) => feed.say(said).await,
        }
    }

    /// What the learner's side says next. Nothing is lost when it is not waited for.
    pub(super) async fn ack(&mut self) -> Result<Ack, Trouble> {
        match self {
            Self::Grpc(feed) => feed.ack().await,
            Self::Redis(feed) => feed.ack().await,
        }
    }
}
