//! One leased place: parcels that are not acknowledged, and the feed that sends them.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use starling_engine::link::wire::{self, PublicationFormat};
use starling_engine::link::{
    ActorLink, LeaseId, LinkError, Loss, Parcel, Patience, Publication, Wanted,
};
use starling_envs::Rollout;
use tokio::sync::Notify;

use super::way::{Trouble, timely};
use super::{Backoff, Line, SLICE, Shared, timed_out};
use crate::protocol::{self, Ack, Failure, Goodbye, HEARTBEAT, Said, State, WINDOW};

/// How long an actor without a connection waits until it can say goodbye.
const FAREWELL: Duration = Duration::from_secs(3);

/// How long one with a connection waits until the learner has taken what it sent before its goodbye.
const LAST_PARCELS: Duration = Duration::from_secs(120);

/// An actor's side of the link, for one lease. The place is given back when it is dropped.
pub struct Seat {
    line: Line,
    lease: LeaseId,
    publications: PublicationFormat,
    outbox: Arc<Outbox>,
    /// Memory to pack parcels in.
    raw: Mutex<Vec<u8>>,
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
        let waited = self.changed.wait_timeout(content, limit);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

impl ActorLink for Seat {
    fn weights(&self, wanted: Wanted, patience: Duration) -> Result<Publication, LinkError> {
        let shared = &self.line.shared;
        let check = || self.check();
        let given = shared.weights(self.lease, self.publications, wanted, patience, check);
        match given {
            Err(LinkError::LeaseEnded(lease)) => self.outbox.end(LinkError::LeaseEnded(lease)),
            Err(LinkError::Closed) => shared.pulled.notify_all(),
            _ => {}
        }
        given
    }

    fn send(&self, parcel: Parcel, patience: Duration) -> Result<Option<Vec<Rollout>>, LinkError> {
        let packed = {
            let mut raw = self.raw.lock().unwrap_or_else(PoisonError::into_inner);
            wire::Packed::new(&parcel.rollouts, &parcel.episodes, &mut raw)
        };
        let packed = packed.map_err(|error| LinkError::Lost(error.to_string()))?;
        self.send_packed(&packed, parcel.number, patience)?;
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
        // For an actor that is to leave, it has.
        self.line.shared.is_over()
    }
}

impl Seat {
    /// A leased place, whose feed begins at once.
    pub(super) fn new(line: Line, lease: LeaseId, publications: PublicationFormat) -> Self {
        let outbox = Arc::new(Outbox::default());
        let task = feed(Arc::clone(&line.shared), Arc::clone(&outbox), lease);
        line.shared.runtime.spawn(task);
        Self {
            line,
            lease,
            publications,
            outbox,
            raw: Mutex::default(),
        }
    }

    /// Sends experience that was packed before, as [`ActorLink::send`] does.
    ///
    /// # Errors
    /// As [`ActorLink::send`].
    pub fn send_packed(
        &self,
        packed: &wire::Packed,
        number: u64,
        patience: Duration,
    ) -> Result<(), LinkError> {
        let mut frame = Vec::new();
        let written = packed.write(self.lease, number, &mut frame);
        written.map_err(|error| LinkError::Lost(error.to_string()))?;
        let mut left = Patience::new(patience);
        let mut content = self.outbox.lock();
        while content.parcels.len() >= WINDOW {
            self.check_with(&content)?;
            let began = Instant::now();
            content = self.outbox.wait(content, left.slice());
            if content.busy {
                left = Patience::new(patience);
            } else if content.connected && !left.spend(began) {
                // The feed waits for an unreachable learner.
                return Err(timed_out(patience));
            }
        }
        self.check_with(&content)?;
        content.parcels.push_back(protocol::Parcel {
            number,
            frame: frame.into(),
        });
        drop(content);
        self.line.shared.made.fetch_add(1, Ordering::Relaxed);
        self.outbox.wake.notify_one();
        Ok(())
    }

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
        let (began, mut heard) = (Instant::now(), Instant::now());
        while content.end.is_none()
            && !self.line.is_closed()
            && heard.elapsed() < FAREWELL
            && began.elapsed() < LAST_PARCELS
        {
            content = self.outbox.wait(content, SLICE);
            if content.connected {
                heard = Instant::now();
            }
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

/// Brings the parcels of one lease to the learner, over as many connections as it takes.
async fn feed(shared: Arc<Shared>, outbox: Arc<Outbox>, lease: LeaseId) {
    let mut pauses = Backoff::new();
    let mut connections = 0u64;
    loop {
        let trouble = match converse(&shared, &outbox, lease, &mut connections).await {
            Ok(()) => return,
            Err(trouble) => trouble,
        };
        {
            let mut content = outbox.lock();
            if content.connected {
                content.connected = false;
                pauses = Backoff::new();
            }
            if content.end.is_some() {
                return;
            }
        }
        if shared.closed.load(Ordering::Relaxed) {
            outbox.end(LinkError::Closed);
            return;
        }
        if matches!(trouble, Trouble::Final(_)) || shared.is_missing(trouble.reason()) {
            outbox.end(LinkError::Lost(trouble.reason().to_owned()));
            return;
        }
        let (place, reason) = (lease.place, trouble.reason());
        tracing::debug!("the feed of place {place} was cut: {reason}");
        tokio::time::sleep(pauses.next()).await;
    }
}

/// One connection: `Ok` when nothing more can be sent.
async fn converse(
    shared: &Shared,
    outbox: &Outbox,
    lease: LeaseId,
    connections: &mut u64,
) -> Result<(), Trouble> {
    let mut feed = shared.way.open(lease).await?;
    // Number of the next parcel that was not sent over this connection.
    let mut sent: Option<u64> = None;
    let mut gone = false;
    loop {
        let patience = shared.options.keep_alive * 2 + HEARTBEAT * 2;
        let ack = tokio::select! {
            ack = timely(patience, feed.ack()) => Some(ack?),
            () = outbox.wake.notified() => None,
        };
        if let Some(ack) = ack {
            shared.is_there();
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
            let parcels = content.parcels.iter();
            let due = parcels.filter(|parcel| parcel.number >= *from).cloned();
            (due.collect::<Vec<_>>(), content.goodbye.clone())
        };
        for parcel in due {
            *from = parcel.number + 1;
            feed.say(Said::Parcel(parcel)).await?;
        }
        if let Some(goodbye) = goodbye
            && !gone
        {
            gone = true;
            feed.say(Said::Goodbye(goodbye)).await?;
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
