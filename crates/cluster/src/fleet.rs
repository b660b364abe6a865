//! The main loop of an actor process: threads that join, serve, and join again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use starling_engine::link::{ActorLink, Lease, LinkError, Loss, Parcel, Publication, Wanted};
use starling_engine::{EngineError, RunConfig, serve, serve_central};
use starling_envs::Rollout;

use crate::line::jittered;
use crate::{ClusterError, Joined, Line, Seat, Seated};

/// How often a spare asks for a place.
const SPARE_ASKS: Duration = Duration::from_millis(500);

/// A single wait without looking whether to stop.
const LOOK: Duration = Duration::from_millis(20);

/// Failures of one thread within [`FAILURES_WITHIN`] after which the process ends.
const MOST_FAILURES: usize = 5;
const FAILURES_WITHIN: Duration = Duration::from_secs(60);

/// Places of an actor that acts for all its environments at once: while those of one place are
/// stepped, the actions of the other's are chosen.
const CENTRAL_PLACES: u64 = 2;

/// The actors of a process.
#[derive(Clone, Copy, Debug)]
pub enum Fleet {
    /// So many, each with one place and a thread of its own.
    Threads(usize),
    /// One that chooses the actions of up to two places, while other threads step.
    Central,
}

/// Serves a run with actors of this process until it ends, or until `stop` is set. `configure` makes
/// the settings of this process from those of the run.
///
/// # Errors
/// When the learner refuses or stays away, or when an actor fails again and again.
pub fn run_actors(
    line: &Line,
    fleet: Fleet,
    stop: &AtomicBool,
    configure: impl Fn(&Value) -> Result<RunConfig, EngineError> + Sync,
) -> Result<(), ClusterError> {
    let failed = AtomicBool::new(false);
    let done = std::thread::scope(|scope| {
        let (threads, places) = match fleet {
            Fleet::Threads(threads) => (threads as u64, 1),
            Fleet::Central => (1, CENTRAL_PLACES),
        };
        let actors: Vec<_> = (0..threads)
            .map(|thread| {
                let (line, configure, failed) = (line.clone(), &configure, &failed);
                scope.spawn(move || {
                    let watch = Watch(failed);
                    let done = work(&line, thread, places, configure);
                    watch.end(done.is_ok());
                    done
                })
            })
            .collect();
        while actors.iter().any(|actor| !actor.is_finished()) {
            // If one cannot continue, all end, so that the failure is visible.
            if stop.load(Ordering::Relaxed) || failed.load(Ordering::Relaxed) {
                line.leave();
            }
            std::thread::sleep(LOOK);
        }
        let ended = actors.into_iter().map(|actor| {
            let panicked = |_| Err(ClusterError::Actor("an actor's thread panicked".into()));
            actor.join().unwrap_or_else(panicked)
        });
        ended.collect::<Vec<_>>()
    });
    tracing::info!("the actors ended: {:?}", line.counts());
    done.into_iter().collect()
}

/// Notes that a thread failed, also if it panics.
struct Watch<'a>(&'a AtomicBool);

impl Watch<'_> {
    fn end(self, well: bool) {
        self.0.fetch_or(!well, Ordering::Relaxed);
        std::mem::forget(self);
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// One thread: as many places at a time, of which one is waited for.
fn work(
    line: &Line,
    thread: u64,
    places: u64,
    configure: &(impl Fn(&Value) -> Result<RunConfig, EngineError> + Sync),
) -> Result<(), ClusterError> {
    let mut failures: Vec<Instant> = Vec::new();
    let mut attempt = 0;
    let mut waiting = false;
    while !line.is_leaving() {
        let seated = match line.join(thread * places, attempt)? {
            Joined::Closed => return Ok(()),
            Joined::Spare => {
                if !waiting {
                    tracing::info!("no place is free: thread {thread} waits as a spare");
                    waiting = true;
                }
                pause(line, SPARE_ASKS);
                continue;
            }
            Joined::Seated(seated) => *seated,
        };
        waiting = false;
        let mut seats = vec![seated];
        for more in 1..places {
            if let Joined::Seated(seated) = line.join(thread * places + more, attempt)? {
                seats.push(*seated);
            }
        }
        attempt += 1;
        for seated in &seats {
            tracing::info!("thread {thread} has place {}", seated.lease.id.place);
        }
        let served = serve_at(&seats, places > 1, configure);
        drop(seats);
        let Err(error) = served else {
            continue;
        };
        if line.is_closed() {
            return Ok(());
        }
        tracing::warn!("thread {thread}: {error}");
        if matches!(error, EngineError::Link(LinkError::LeaseEnded(_))) {
            continue;
        }
        failures.retain(|failed| failed.elapsed() < FAILURES_WITHIN);
        failures.push(Instant::now());
        if failures.len() >= MOST_FAILURES {
            return Err(ClusterError::Actor(format!(
                "thread {thread} fails again and again: {error}"
            )));
        }
        pause(line, SPARE_ASKS);
    }
    Ok(())
}

/// Collects at these places until the run or a lease ends.
fn serve_at(
    seats: &[Seated],
    central: bool,
    configure: &(impl Fn(&Value) -> Result<RunConfig, EngineError> + Sync),
) -> Result<(), EngineError> {
    let Some(first) = seats.first() else {
        return Ok(());
    };
    let config = configure(&first.settings).inspect_err(|error| {
        // Else the learner would take it for an actor that left.
        first.link.fail(Loss {
            leases: seats.iter().map(|seated| seated.lease.id).collect(),
            who: format!("the actor of place {}", first.lease.id.place),
            reason: error.to_string(),
            stalled: false,
        });
    })?;
    if !central {
        return serve(&config, &first.lease, Arc::clone(&first.link) as Arc<_>);
    }
    let leases: Vec<Lease> = seats.iter().map(|seated| seated.lease).collect();
    let links = seats.iter().map(|seated| Arc::clone(&seated.link));
    serve_central(&config, &leases, Arc::new(Several(links.collect())))
}

/// The links of several places as one. The first one is never missing.
struct Several(Vec<Arc<Seat>>);

impl ActorLink for Several {
    fn weights(&self, wanted: Wanted, patience: Duration) -> Result<Publication, LinkError> {
        self.0[0].weights(wanted, patience)
    }

    fn send(&self, parcel: Parcel, patience: Duration) -> Result<Option<Vec<Rollout>>, LinkError> {
        let lease = parcel.lease;
        let seat = self.0.iter().find(|seat| seat.lease() == lease);
        seat.ok_or(LinkError::LeaseEnded(lease))?
            .send(parcel, patience)
    }

    /// One actor is one loss, however many places it held: the others are given back.
    fn fail(&self, loss: Loss) {
        self.0[0].fail(loss);
    }

    fn is_closed(&self) -> bool {
        self.0[0].is_closed()
    }
}

/// About this long, unless the process is to end.
fn pause(line: &Line, about: Duration) {
    let until = Instant::now() + jittered(about);
    while Instant::now() < until && !line.is_leaving() {
        std::thread::sleep(LOOK);
    }
}
