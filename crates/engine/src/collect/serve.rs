//! An actor and its link to a learner: ask for weights, collect, send.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use starling_nets::{Device, set_threads, urgent_stream};

use super::{Actor, ActorKit, panic_message, rollout_steps};
use crate::link::{ActorLink, Lease, LinkError, Loss, Pace, Parcel, Sparse, Wanted, Weights};
use crate::measure::Profile;
use crate::{EngineError, RunConfig};

/// Collects at a leased place until the run ends, with new environments and a new policy. All that
/// an actor in another process needs is the run's settings, a lease, and its side of a link.
///
/// # Errors
/// What went wrong; it was also reported to the learner through the link. After
/// [`LinkError::LeaseEnded`] or [`LinkError::Lost`] the actor may ask for another lease and serve
/// again.
pub fn serve(
    config: &RunConfig,
    lease: &Lease,
    link: Arc<dyn ActorLink>,
) -> Result<(), EngineError> {
    let kit = ActorKit::new(config, config.restart_budget())?;
    let link = Sparse::over(link, &*kit.algorithm);
    let station = Station::new(config, &kit, Arc::clone(&link), Arc::default());
    let who = format!("the actor of place {}", lease.id.place);
    match guard(|| act(&station, lease, kit.actor(lease.place, lease.seed)?)) {
        Ok(()) => Ok(()),
        Err(failure) => {
            link.fail(failure.loss(std::slice::from_ref(lease), who));
            Err(failure.error)
        }
    }
}

/// Collects at several leased places until the run ends, as `mode=central` does: this thread chooses
/// the actions of all, and `threads` others step the environments. `link` takes the parcels of every
/// lease.
///
/// # Errors
/// As [`serve`]. The places are lost together.
pub fn serve_central(
    config: &RunConfig,
    leases: &[Lease],
    link: Arc<dyn ActorLink>,
) -> Result<(), EngineError> {
    let kit = ActorKit::new(config, config.restart_budget())?;
    let link = Sparse::over(link, &*kit.algorithm);
    let station = Station::new(config, &kit, Arc::clone(&link), Arc::default());
    match guard(|| kit.central(leases)?.run(&station, leases, false)) {
        Ok(()) => Ok(()),
        Err(failure) => {
            let places: Vec<String> = leases.iter().map(|all| all.id.place.to_string()).collect();
            let who = format!("the actor of places {}", places.join(", "));
            link.fail(failure.loss(leases, who));
            Err(failure.error)
        }
    }
}

/// What an actor needs of the run around it.
#[derive(Clone)]
pub(crate) struct Station {
    pub(crate) link: Arc<dyn ActorLink>,
    pub(crate) pace: Pace,
    pub(crate) patience: Duration,
    /// Where the policy computes.
    pub(crate) device: Device,
    /// Steps of all environments in one round.
    pub(crate) round_steps: u64,
    pub(crate) profile: Arc<Profile>,
}

impl Station {
    pub(crate) fn new(
        config: &RunConfig,
        kit: &ActorKit,
        link: Arc<dyn ActorLink>,
        profile: Arc<Profile>,
    ) -> Self {
        let steps = rollout_steps(&*kit.algorithm) * config.settings.envs;
        Self {
            link,
            pace: config.pace(),
            patience: Duration::from_secs_f64(config.settings.stall_timeout_s),
            device: kit.device,
            round_steps: steps as u64,
            profile,
        }
    }

    /// The weights for a round of the learner, and how many steps the run has at its beginning:
    /// in rounds exactly, at a free pace when those weights were the latest.
    pub(crate) fn weights(
        &self,
        lease: &Lease,
        round: u64,
    ) -> Result<(Arc<Weights>, u64), LinkError> {
        let (wanted, ahead) = match self.pace {
            Pace::Free => (Wanted::Latest, 0),
            Pace::Lag(lag) => {
                let behind = round.saturating_sub(lag);
                (
                    Wanted::Exactly(lease.first_version + behind),
                    round - behind,
                )
            }
        };
        let given = self.link.weights(wanted, self.patience)?;
        let env_steps = given.control.env_steps + ahead * self.round_steps;
        Ok((given.weights, env_steps))
    }
}

/// Collects with one actor until the run ends.
pub(super) fn act(station: &Station, lease: &Lease, mut actor: Actor) -> Result<(), EngineError> {
    set_threads(1);
    urgent_stream(station.device);
    let profile = &station.profile;
    let mut spare = None;
    for number in 0.. {
        let began = Instant::now();
        let (weights, env_steps) = station.weights(lease, lease.first_round + number)?;
        profile.add("actor", "wait", began.elapsed());
        actor.collect(&weights, env_steps, profile)?;
        let episodes = actor.episodes();
        let crew = actor.crew_mut();
        let parcel = Parcel {
            lease: lease.id,
            number,
            rollouts: vec![(crew.place().first_env, crew.take_rollout(spare.take()))],
            episodes,
        };
        let began = Instant::now();
        let spares = station.link.send(parcel, station.patience)?;
        profile.add("actor", "wait", began.elapsed());
        spare = spares.and_then(|mut spares| spares.pop());
    }
    Ok(())
}

/// How an actor failed.
pub(super) struct Failure {
    pub(super) error: EngineError,
    reason: String,
}

impl Failure {
    pub(super) fn loss(&self, leases: &[Lease], who: String) -> Loss {
        Loss {
            leases: leases.iter().map(|lease| lease.id).collect(),
            who,
            reason: self.reason.clone(),
            stalled: matches!(self.error, EngineError::Link(LinkError::TimedOut { .. })),
        }
    }
}

/// Does an actor's work. That the run ends is not a failure.
pub(super) fn guard(work: impl FnOnce() -> Result<(), EngineError>) -> Result<(), Failure> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(()) | Err(EngineError::Link(LinkError::Closed))) => Ok(()),
        Ok(Err(error)) => {
            let reason = error.to_string();
            Err(Failure { error, reason })
        }
        Err(panic) => {
            let reason = format!("it panicked: {}", panic_message(&*panic));
            let error = EngineError::Thread(format!("of an actor failed: {reason}"));
            Err(Failure { error, reason })
        }
    }
}
