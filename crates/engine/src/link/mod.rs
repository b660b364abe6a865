//! The link between actors and the learner: what each side needs of the other.
//!
//! ```text
//! actor ── send(Parcel) ─────────▶ link ── receive() → Event ──▶ Inbox ──▶ learner
//!   ▲                                                                         │
//!   └───── weights(Wanted) ◀────── link ◀──── publish(Publication) ◀──────────┘
//! ```
//!
//! An actor holds a [`Lease`] of a [`Place`]: a range of the run's environments. The learner knows
//! actors by their leases alone, so that they can come and go. A link may deliver a parcel twice
//! or after its lease has ended; [`Places`] counts, and the learner uses each parcel once and in
//! order.
//!
//! Read first: [`ActorLink`] and [`LearnerLink`] (the two sides), [`Places`] (who may send what).
//! [`InProcess`] is the link within one process. For a link to other processes [`remote`] has everything
//! except the transport. A link with its own messages uses the [`ledger`] on the learner's side, and
//! [`wire`] to serialize. Every link passes [`conformance::check`].
//!
//! What a link cannot carry is acting itself: `mode=central` over a network would send
//! observations and actions, not parcels and weights.

pub mod conformance;
pub mod evaluations;
mod in_process;
mod inbox;
pub mod ledger;
pub(crate) mod patience;
mod places;
pub mod remote;
mod sparse;
pub mod wire;

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use starling_envs::{Episode, Rollout};
use starling_nets::Snapshot;

pub use self::evaluations::Evaluations;
pub use self::in_process::InProcess;
#[cfg(test)]
pub(crate) use self::in_process::QUEUED_PER_PLACE;
pub(crate) use self::inbox::{Inbox, Losses, Pace};
pub use self::patience::Patience;
pub use self::places::{Lease, LeaseId, Place, Places, Start, Verdict};
pub(crate) use self::sparse::Sparse;

/// What a link of a run is made for: see [`Training::terms`](crate::Training::terms).
#[derive(Clone, Debug)]
pub struct Terms {
    /// The places of the run.
    pub places: Arc<Places>,
    /// What parcels look like.
    pub parcels: wire::ParcelFormat,
    /// What publications look like.
    pub publications: wire::PublicationFormat,
    /// Versions of the weights that can be had.
    pub history: usize,
    /// Evaluations that other processes make, if they do.
    pub evaluations: Option<Arc<Evaluations>>,
}

/// One version of the weights that actors act with.
#[derive(Clone, Debug, PartialEq)]
pub struct Weights {
    /// Counts the learner's publications from 0.
    pub version: u64,
    /// All parameters in the order of the network's layout.
    pub values: Snapshot,
}

/// What the learner tells actors together with weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Control {
    /// Steps of all environments since the beginning of the run. Schedules of actors follow it.
    pub env_steps: u64,
}

/// Weights and what is told with them.
#[derive(Clone, Debug, PartialEq)]
pub struct Publication {
    /// The weights.
    pub weights: Arc<Weights>,
    /// What held when they were published.
    pub control: Control,
}

/// What an actor sends at once: one rollout of every environment of its place.
#[derive(Clone, Debug, PartialEq)]
pub struct Parcel {
    /// The lease under which it was collected.
    pub lease: LeaseId,
    /// Counts the parcels of the lease from 0.
    pub number: u64,
    /// What was collected, in the order of environments, each with the number of its first
    /// environment among all of the run.
    pub rollouts: Vec<(usize, Rollout)>,
    /// Episodes that ended meanwhile.
    pub episodes: Vec<Episode>,
}

/// Which weights an actor asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Wanted {
    /// The latest there are.
    Latest,
    /// One version and no other, so that a run does not depend on who was faster.
    Exactly(u64),
}

/// An actor cannot continue, or has not been heard from for too long.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loss {
    /// The leases that it held: one, or those of all groups with `mode=central`.
    pub leases: Vec<LeaseId>,
    /// Its name, such as that of its thread.
    pub who: String,
    /// What happened.
    pub reason: String,
    /// It waited for the learner until its patience was used up.
    pub stalled: bool,
}

/// What the learner hears of.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Experience.
    Parcel(Parcel),
    /// An actor took a place.
    Joined {
        /// Its lease.
        lease: LeaseId,
        /// Its name.
        who: String,
    },
    /// An actor was lost.
    Lost(Loss),
    /// An actor gave its place back, because it was told to end. That is no loss.
    Left {
        /// Its lease.
        lease: LeaseId,
        /// Its name.
        who: String,
    },
}

/// The actor's side. Several actors may share one.
///
/// Every wait has a deadline, and ends with [`LinkError::Closed`] when the run ends.
pub trait ActorLink: Send + Sync {
    /// The weights it asks for, waiting for them if necessary. Versions older than the last few
    /// are gone. A busy learner ([`LearnerLink::set_busy`]) is waited for as long as it is busy.
    fn weights(&self, wanted: Wanted, patience: Duration) -> Result<Publication, LinkError>;

    /// Sends experience, waiting while the learner has not taken enough of the last. Returns used
    /// buffers to fill again, as many as were sent, if the link has some.
    ///
    /// # Errors
    /// [`LinkError::LeaseEnded`] when the parcel's lease has ended: the actor has lost its place. A
    /// link that does not wait for answers may notice it with one of the next parcels.
    fn send(&self, parcel: Parcel, patience: Duration) -> Result<Option<Vec<Rollout>>, LinkError>;

    /// Says that it cannot continue, and why.
    fn fail(&self, loss: Loss);

    /// Whether the run has ended.
    fn is_closed(&self) -> bool;
}

/// The learner's side.
///
/// Parcels of one lease arrive in the order in which they were sent, and what is not taken is
/// bounded. A loss arrives after the parcels that were sent before it.
pub trait LearnerLink: Send + Sync {
    /// Makes weights available; never waits for a reader. To publish the latest version again
    /// changes its control alone.
    fn publish(&self, publication: Publication);

    /// The next event, waiting for it no longer than `patience`.
    fn receive(&self, patience: Duration) -> Result<Event, LinkError>;

    /// Gives back the buffers of a parcel that was used, for the actor of the same place. A link
    /// that has no use for them drops them.
    fn recycle(&self, _place: usize, _rollouts: Vec<Rollout>) {}

    /// Says that the learner is busy with something long (an evaluation, a checkpoint), or no
    /// longer. Actors are patient meanwhile.
    fn set_busy(&self, busy: bool);

    /// Ends all waits, now and later.
    fn close(&self);

    /// The actors of other processes, and what was counted of them, for people. A link within a process
    /// has none.
    fn remote_actors(&self) -> Option<(Vec<RemoteActor>, ledger::Counts)> {
        None
    }
}

/// An actor of another process, as the learner knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteActor {
    /// Machine, process and place.
    pub name: String,
    /// Number of its place and its environments; none while it waits for one.
    pub place: Option<(usize, usize)>,
    /// How long it has held the place, or waited for one.
    pub held: Duration,
    /// How long it has had no connection.
    pub away: Option<Duration>,
    /// Times that it connected again.
    pub reconnects: u64,
    /// Parcels that it has sent under its lease.
    pub parcels: u64,
    /// Their steps.
    pub steps: u64,
    /// Versions of the weights between those of its last parcel and the newest.
    pub lag: Option<u64>,
    /// Since the last parcel, or since it joined.
    pub silent: Duration,
}

/// Why there is no answer from the other side.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// The other side did not come in time.
    #[error(
        "{who} waited {seconds} s for {what}; the run may be overloaded or stuck (stall_timeout_s)"
    )]
    TimedOut {
        /// Who waited.
        who: &'static str,
        /// For what.
        what: &'static str,
        /// How long.
        seconds: u64,
    },
    /// An actor cannot continue.
    #[error("{who} failed: {reason}")]
    ActorLost {
        /// Its name.
        who: String,
        /// What it said.
        reason: String,
    },
    /// The place was taken from the actor, or the learner that granted it is gone.
    #[error("the lease of place {place} has ended", place = .0.place)]
    LeaseEnded(LeaseId),
    /// The connection to the other side is lost.
    #[error("the connection is lost: {0}")]
    Lost(String),
    /// The run is ending.
    #[error("the run is ending")]
    Closed,
}
