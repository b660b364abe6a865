//! What is written to the tables: rows of metrics, and the settings once.

use std::time::{Duration, Instant};

use starling_record::{Row, Summary};

use crate::Status;
use crate::learn::{Feed, Learning};
use crate::run::tally::Tally;

/// When things happened.
pub(crate) struct Clock {
    pub(crate) started: Instant,
    /// Time spent on evaluations.
    pub(crate) evaluating: Duration,
    /// Time that the learner waited for actors on threads.
    pub(crate) waiting: Duration,
    /// Both at the last row of metrics.
    pub(crate) last_idle: (Duration, Duration),
    /// Of earlier parts of the run.
    pub(crate) before: Duration,
    pub(crate) steps_before: u64,
    /// Of the last row of metrics: time, steps, updates.
    pub(crate) last: (Duration, u64, u64),
}

impl Clock {
    /// Of a run that begins, or continues after `elapsed`.
    pub(crate) fn start(elapsed: Duration, env_steps: u64, updates: u64) -> Self {
        Self {
            started: Instant::now(),
            evaluating: Duration::ZERO,
            waiting: Duration::ZERO,
            last_idle: (Duration::ZERO, Duration::ZERO),
            before: elapsed,
            steps_before: env_steps,
            last: (elapsed, env_steps, updates),
        }
    }
}

/// The row, under rlpyt's names and CleanRL's. What is counted from row to row starts again at 0.
pub(crate) fn row(
    status: &Status,
    clock: &mut Clock,
    tally: &mut Tally,
    learning: &mut Learning,
) -> Row {
    let (last_time, last_steps, last_updates) = clock.last;
    let seconds = (status.elapsed - last_time).as_secs_f64().max(1e-9);
    let (new_steps, new_updates) = (status.env_steps - last_steps, status.updates - last_updates);
    let mut row = Row::new();
    row.set("Diagnostics/Iteration", tally.iterations as f64);
    row.set("Diagnostics/CumTime (s)", status.elapsed.as_secs_f64());
    row.set("Diagnostics/SamplerIteration", tally.iterations as f64);
    row.set("Diagnostics/CumSteps", status.env_steps as f64);
    row.set("Diagnostics/CumCompletedTrajs", status.episodes as f64);
    row.set("Diagnostics/CumUpdates", status.updates as f64);
    row.set("Diagnostics/StepsPerSecond", new_steps as f64 / seconds);
    row.set("Diagnostics/UpdatesPerSecond", new_updates as f64 / seconds);
    let (evaluating, waiting) = (clock.evaluating, clock.waiting);
    let (last_evaluating, last_waiting) = clock.last_idle;
    let acting = seconds - (evaluating - last_evaluating).as_secs_f64();
    row.set(
        "Diagnostics/NonEvalSamplesPerSecond",
        new_steps as f64 / acting.max(1e-9),
    );
    row.set(
        "Diagnostics/OptThrottle",
        (waiting - last_waiting).as_secs_f64(),
    );
    clock.last_idle = (evaluating, waiting);
    if let Feed::Replay(feed) = &learning.feed {
        let (samples, inserted) = feed.counts();
        let (last_samples, last_inserted) = tally.replay_counts;
        let ratio = |samples: u64, steps: u64| samples as f64 / (steps as f64).max(1.0);
        let new = ratio(samples - last_samples, inserted - last_inserted);
        tally.replay_counts = (samples, inserted);
        row.set("Diagnostics/ReplayRatio", new);
        row.set("Diagnostics/CumReplayRatio", ratio(samples, inserted));
        row.set("Diagnostics/ReplaySize", feed.replay.len() as f64);
    }
    row.set("Diagnostics/EnvRestarts", tally.env_restarts as f64);
    row.set("Diagnostics/NewCompletedTrajs", tally.new_episodes as f64);
    row.set("Diagnostics/StepsInEval", tally.eval_steps);
    row.set("Diagnostics/TrajsInEval", tally.eval_episodes);
    row.set("Diagnostics/CumEvalTime", clock.evaluating.as_secs_f64());
    (tally.eval_steps, tally.eval_episodes) = (0.0, 0.0);
    let in_window = tally.lengths.values().sum();
    row.set("Diagnostics/StepsInTrajWindow", in_window);
    tally.new_episodes = 0;
    let returns = tally.returns.summary();
    let lengths = tally.lengths.summary();
    row.set_summary("Return", &returns);
    row.set_summary("DiscountedReturn", &tally.discounted_returns.summary());
    row.set_summary("Length", &lengths);
    let nonzero: Summary = tally.nonzero_rewards.summary();
    row.set_summary("NonzeroRewards", &nonzero);
    if !tally.game_scores.is_empty() {
        row.set_summary("GameScore", &tally.game_scores.summary());
    }
    // As CleanRL means it: the score of whole games.
    row.set("charts/episodic_return", tally.scores().summary().average);
    row.set("charts/episodic_length", lengths.average);
    row.set("charts/SPS", new_steps as f64 / seconds);
    for (name, mean) in learning.means.take() {
        match name.as_str() {
            "policy_lag" | "learning_rate" | "epsilon" => row.set(format!("charts/{name}"), mean),
            _ => row.set(format!("losses/{name}"), mean),
        }
    }
    clock.last = (status.elapsed, status.env_steps, status.updates);
    row
}

/// Every setting by its dotted name.
pub(crate) fn flatten(value: &serde_json::Value) -> Vec<(String, String)> {
    fn walk(path: &str, value: &serde_json::Value, out: &mut Vec<(String, String)>) {
        match value.as_object() {
            Some(section) => {
                for (key, value) in section {
                    let path = match path {
                        "" => key.clone(),
                        _ => format!("{path}.{key}"),
                    };
                    walk(&path, value, out);
                }
            }
            None => out.push((path.to_owned(), value.to_string())),
        }
    }
    let mut out = Vec::new();
    walk("", value, &mut out);
    out
}
