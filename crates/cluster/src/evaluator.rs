//! The main loop of an evaluator process: follow the newest weights, play, report.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use starling_engine::link::Publication;
use starling_engine::link::wire::PublicationFormat;
use starling_engine::{EngineError, Evaluation, EvaluationPlayer, RunConfig};

use crate::{ClusterError, Line};

/// Interval of an evaluator's heartbeats.
const SAYS_EVERY: Duration = Duration::from_secs(1);

/// A single wait without looking whether to stop.
const LOOK: Duration = Duration::from_millis(20);

/// Consecutive failed evaluations before the process ends.
const MOST_FAILURES: u64 = 5;

/// What an evaluator has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EvaluatorCounts {
    /// Evaluations that the learner accepted.
    pub evaluated: u64,
    /// Evaluations that it rejected as outdated.
    pub unwanted: u64,
    /// Evaluations that failed.
    pub failed: u64,
}

/// Evaluates the newest weights of a run until it ends, or until `stop` is set. `configure` makes the
/// settings of this process from those of the run.
///
/// # Errors
/// When the learner refuses or cannot be reached, or when evaluations fail repeatedly.
pub fn run_evaluator(
    line: &Line,
    stop: &AtomicBool,
    configure: impl Fn(&Value) -> Result<RunConfig, EngineError>,
) -> Result<EvaluatorCounts, ClusterError> {
    let mut counts = EvaluatorCounts::default();
    let done = AtomicBool::new(false);
    let worked = std::thread::scope(|scope| {
        // Waiting for an unreachable learner ends as soon as this process has to stop.
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                if stop.load(Ordering::Relaxed) {
                    line.leave();
                }
                std::thread::sleep(LOOK);
            }
        });
        let worked = work(line, &configure, &mut counts);
        done.store(true, Ordering::Relaxed);
        worked
    });
    if !line.is_closed() {
        line.take_leave();
    }
    tracing::info!("the evaluator ended: {counts:?}");
    worked.map(|()| counts)
}

fn work(
    line: &Line,
    configure: &impl Fn(&Value) -> Result<RunConfig, EngineError>,
    counts: &mut EvaluatorCounts,
) -> Result<(), ClusterError> {
    let failed = |error: EngineError| ClusterError::Actor(error.to_string());
    let Some((settings, format)) = line.join_as_evaluator()? else {
        return Ok(());
    };
    let config = configure(&settings).map_err(failed)?;
    let player = EvaluationPlayer::new(&config).map_err(failed)?;
    tracing::info!("waiting for weights to evaluate");
    let mut failures = 0;
    while let Some(publication) = next(line, format)? {
        let step = publication.control.env_steps;
        match play(line, &player, &publication) {
            Ok(Some(evaluation)) => {
                failures = 0;
                let mean = evaluation.mean();
                match line.report(&publication, &evaluation)? {
                    true => {
                        counts.evaluated += 1;
                        tracing::info!("step {step}: mean return {mean}");
                    }
                    false => {
                        counts.unwanted += 1;
                        tracing::info!("step {step}: mean return {mean}, no longer wanted");
                    }
                }
            }
            Ok(None) => counts.unwanted += 1,
            Err(error) => {
                counts.failed += 1;
                failures += 1;
                tracing::warn!("the evaluation of step {step} failed: {error}");
                // Another evaluator may succeed.
                line.take_leave();
                if failures >= MOST_FAILURES {
                    return Err(ClusterError::Actor(format!(
                        "evaluations fail again and again: {error}"
                    )));
                }
                std::thread::sleep(SAYS_EVERY);
            }
        }
    }
    Ok(())
}

/// The next weights; `None` when the run has ended or this process has to stop.
fn next(line: &Line, format: PublicationFormat) -> Result<Option<Publication>, ClusterError> {
    while !line.is_closed() && !line.is_leaving() {
        if let Some(publication) = line.follow(format)? {
            return Ok(Some(publication));
        }
    }
    Ok(None)
}

/// Plays while it sends heartbeats. `None` if the claim is no longer valid.
fn play(
    line: &Line,
    player: &EvaluationPlayer,
    publication: &Publication,
) -> Result<Option<Evaluation>, EngineError> {
    let step = publication.control.env_steps;
    let cancel = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let weights = Arc::clone(&publication.weights);
        let playing = scope.spawn(|| player.play(weights, step, &cancel));
        let mut said = Instant::now();
        while !playing.is_finished() {
            std::thread::sleep(LOOK);
            if line.is_leaving() || line.is_closed() {
                cancel.store(true, Ordering::Relaxed);
            } else if said.elapsed() > SAYS_EVERY {
                // An unreachable learner is retried when there is a result to report.
                if let Ok(false) = line.is_at(step)
                    && !line.is_closed()
                {
                    cancel.store(true, Ordering::Relaxed);
                }
                said = Instant::now();
            }
        }
        let panicked = |_| Err(EngineError::Thread("of the evaluation panicked".into()));
        playing.join().unwrap_or_else(panicked)
    })
}
