//! An actor and its link to a learner: ask for weights, collect, send.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use starling_nets::{Device, set_threads, urgent_stream};

use super::local::Collector;
use super::{Actor, ActorKit, panic_message, rollout_steps};
use crate::link::patience::{SLICE, Watchdog};
use crate::link::{ActorLink, Lease, LinkError, Loss, Pace, Parcel, Sparse, Wanted, Weights};
use crate::measure::Profile;
use crate::{EngineError, RunConfig};

/// How long the end of a run waits for an actor in the middle of a rollout.
const FAREWELL: Duration = Duration::from_secs(5);

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
    let who = format!("the actor of place {}", lease.id.place);
    let make = |kit: &ActorKit| {
        let actor = kit.actor(lease.place, lease.seed)?;
        Ok(Collector::Actor(Box::new(actor)))
    };
    serve_with(config, std::slice::from_ref(lease), link, who, make)
}

/// Collects at several leased places until the run ends, as `mode=central` does: one thread chooses
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
    let places: Vec<String> = leases.iter().map(|all| all.id.place.to_string()).collect();
    let who = format!("the actor of places {}", places.join(", "));
    let make = |kit: &ActorKit| Ok(Collector::Central(Box::new(kit.central(leases)?)));
    serve_with(config, leases, link, who, make)
}

/// Collects on a thread of its own, while this one watches the environments: one that does not return
/// cannot be interrupted, but the learner can be told.
fn serve_with(
    config: &RunConfig,
    leases: &[Lease],
    link: Arc<dyn ActorLink>,
    who: String,
    make: impl FnOnce(&ActorKit) -> Result<Collector, EngineError>,
) -> Result<(), EngineError> {
    let mut working = None;
    // What fails before the actor is at work is a failure too.
    let started = guard(|| {
        let kit = ActorKit::new(config, config.restart_budget())?;
        let link = Sparse::over(Arc::clone(&link), &*kit.algorithm);
        let station = Station::new(config, &kit, link, Arc::default());
        let collector = make(&kit)?;
        let watchdog = Watchdog::new(collector.pulses());
        let (leases, patience) = (leases.to_vec(), station.patience);
        let (done, ended) = sync_channel(1);
        let work = move || {
            let worked = guard(|| collector.run(&station, &leases, false));
            // Nobody waits for it any more if an environment was stuck.
            let _ = done.send(worked);
        };
        let thread = std::thread::Builder::new().name("actor".into()).spawn(work);
        thread.map_err(|error| EngineError::Thread(format!("did not start: {error}")))?;
        working = Some((ended, watchdog, patience));
        Ok(())
    });
    let worked = match working {
        Some((ended, watchdog, patience)) => watch(&ended, watchdog, patience, &*link),
        None => started,
    };
    worked.map_err(|failure| {
        link.fail(failure.loss(leases, who));
        failure.error
    })
}

/// Waits for an actor at work. Fails if one of its environments is stuck for longer than `patience`.
fn watch(
    ended: &Receiver<Result<(), Failure>>,
    mut watchdog: Watchdog,
    patience: Duration,
    link: &dyn ActorLink,
) -> Result<(), Failure> {
    let mut closed: Option<Instant> = None;
    loop {
        match ended.recv_timeout(SLICE) {
            Ok(worked) => return worked,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                return guard(|| Err(EngineError::Thread("of an actor ended unexpectedly".into())));
            }
        }
        if let Some(still) = watchdog.look()
            && still.time > patience
        {
            return guard(|| Err(still.into()));
        }
        if link.is_closed() && closed.get_or_insert_with(Instant::now).elapsed() > FAREWELL {
            tracing::warn!("an actor does not end in time; it is left behind");
            return Ok(());
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
    /// in rounds exactly, asynchronously when those weights were the latest.
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
