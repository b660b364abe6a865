//! What an actor process does: threads that join, serve, and join again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use starling_engine::link::LinkError;
use starling_engine::{EngineError, RunConfig, serve};

use crate::line::jittered;
use crate::{ClusterError, Joined, Line, Seated};

/// How often a spare asks for a place.
const SPARE_ASKS: Duration = Duration::from_millis(500);

/// A single wait without looking whether to stop.
const LOOK: Duration = Duration::from_millis(20);

/// Failures of one thread within [`FAILURES_WITHIN`] after which the process ends.
const MOST_FAILURES: usize = 5;
const FAILURES_WITHIN: Duration = Duration::from_secs(60);

/// The actors of a process.
#[derive(Clone, Copy, Debug)]
pub struct Fleet {
    /// How many: each holds one place.
    pub threads: usize,
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
    let done = std::thread::scope(|scope| {
        let actors: Vec<_> = (0..fleet.threads)
            .map(|thread| {
                let (line, configure) = (line.clone(), &configure);
                scope.spawn(move || work(&line, thread as u64, configure))
            })
            .collect();
        while actors.iter().any(|actor| !actor.is_finished()) {
            if stop.load(Ordering::Relaxed) {
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

/// One thread: one place at a time.
fn work(
    line: &Line,
    thread: u64,
    configure: &(impl Fn(&Value) -> Result<RunConfig, EngineError> + Sync),
) -> Result<(), ClusterError> {
    let mut failures: Vec<Instant> = Vec::new();
    let mut attempt = 0;
    let mut waiting = false;
    while !line.is_leaving() {
        let seated = match line.join(thread, attempt)? {
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
        attempt += 1;
        let Seated {
            lease,
            settings,
            link,
        } = seated;
        tracing::info!("thread {thread} has place {}", lease.id.place);
        let config =
            configure(&settings).map_err(|error| ClusterError::Actor(error.to_string()))?;
        let served = serve(&config, &lease, Arc::clone(&link) as Arc<_>);
        drop(link);
        let Err(error) = served else {
            continue;
        };
        if line.is_closed() {
            return Ok(());
        }
        tracing::warn!("thread {thread}, place {}: {error}", lease.id.place);
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

/// About this long, unless the process is to end.
fn pause(line: &Line, about: Duration) {
    let until = Instant::now() + jittered(about);
    while Instant::now() < until && !line.is_leaving() {
        std::thread::sleep(LOOK);
    }
}
