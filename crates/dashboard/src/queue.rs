//! Queues: folders with a plan and a list of what happened.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::process::Locks;

/// A queue, as the page shows it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Queue {
    pub(crate) id: String,
    name: String,
    /// Whether a process is working on it.
    running: bool,
    pub(crate) trials: Vec<Trial>,
}

/// One of its runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Trial {
    pub(crate) variant: String,
    pub(crate) seed: u64,
    stage: Stage,
    slot: Option<String>,
    score: Option<f64>,
    seconds: f64,
    reason: Option<String>,
    /// The id of the run, once it was started.
    pub(crate) run: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Stage {
    Waiting,
    Running,
    Paused,
    Interrupted,
    Failed,
    Finished,
}

/// What is needed of `queue.json`.
#[derive(Deserialize)]
struct Plan {
    variants: Vec<Variant>,
    seeds: Vec<u64>,
}

#[derive(Deserialize)]
struct Variant {
    name: String,
}

/// What is needed of a line of `state.jsonl`.
#[derive(Deserialize)]
struct Event {
    variant: usize,
    seed: u64,
    event: String,
    #[serde(default)]
    seconds: f64,
    #[serde(default)]
    slot: Option<String>,
    #[serde(default)]
    score: Option<f64>,
    #[serde(default)]
    reason: Option<String>,
}

const PLAN: &str = "queue.json";

impl Queue {
    /// Reads a queue; none while its files are not whole.
    pub(crate) fn read(
        path: &Path,
        id: String,
        name: String,
        locks: Option<&Locks>,
    ) -> Option<Self> {
        let plan: Plan = serde_json::from_slice(&fs::read(path.join(PLAN)).ok()?).ok()?;
        let state = fs::read_to_string(path.join("state.jsonl")).unwrap_or_default();
        let lock = path.join("queue.lock");
        let running = locks.is_none_or(|locks| locks.holder_of(&lock).is_some());
        let trials = trials(&plan, &state, running);
        Some(Self {
            id,
            name,
            running,
            trials,
        })
    }
}

fn trials(plan: &Plan, state: &str, running: bool) -> Vec<Trial> {
    let mut trials: BTreeMap<(usize, u64), Trial> = BTreeMap::new();
    for (i, variant) in plan.variants.iter().enumerate() {
        for &seed in &plan.seeds {
            let trial = Trial {
                variant: variant.name.clone(),
                seed,
                stage: Stage::Waiting,
                slot: None,
                score: None,
                seconds: 0.0,
                reason: None,
                run: None,
            };
            trials.insert((i, seed), trial);
        }
    }
    let lines = state.lines();
    for event in lines.filter_map(|line| serde_json::from_str::<Event>(line).ok()) {
        let Some(trial) = trials.get_mut(&(event.variant, event.seed)) else {
            continue;
        };
        trial.stage = match event.event.as_str() {
            "started" => Stage::Running,
            "paused" => Stage::Paused,
            "finished" => Stage::Finished,
            "interrupted" => Stage::Interrupted,
            "failed" => Stage::Failed,
            _ => continue,
        };
        trial.seconds += event.seconds;
        trial.slot = event.slot;
        trial.reason = event.reason;
        trial.score = event.score.or(trial.score);
    }
    for trial in trials.values_mut() {
        if trial.stage == Stage::Running && !running {
            // The queue was killed.
            trial.stage = Stage::Interrupted;
            trial.slot = None;
        }
    }
    trials.into_values().collect()
}

/// The folders of queues at or below a path.
pub(crate) fn find(path: &Path, deepest: usize, found: &mut Vec<PathBuf>) {
    if path.join(PLAN).is_file() {
        found.push(path.to_owned());
        return;
    }
    if deepest == 0 || path.join("config.yaml").is_file() {
        return;
    }
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        let hidden = entry.file_name().to_string_lossy().starts_with('.');
        if !hidden && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            find(&entry.path(), deepest - 1, found);
        }
    }
}

/// For comparing what was sent before.
pub(crate) fn as_json(queues: &[Queue]) -> Value {
    serde_json::to_value(queues).unwrap_or(Value::Null)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_event_of_a_run_counts() {
        let plan = serde_json::from_str(
            r#"{"variants": [{"name": "a", "settings": {}}, {"name": "b"}], "seeds": [1, 2]}"#,
        );
        let state = r#"{"variant":0,"seed":1,"event":"started","slot":"slot 1: core 0","seconds":0.0}
{"variant":0,"seed":2,"event":"started","seconds":0.0}
{"variant":0,"seed":1,"event":"finished","score":9.5,"seconds":3.5}
{"variant":1,"seed":1,"event":"started","slot":"slot 2: core 1"}
{"variant":1,"se"#;
        let plan = plan.unwrap();
        let stages = |running| {
            let trials = trials(&plan, state, running);
            trials.iter().map(|trial| trial.stage).collect::<Vec<_>>()
        };
        use Stage::{Finished, Interrupted, Running, Waiting};
        assert_eq!(stages(true), [Finished, Running, Running, Waiting]);
        assert_eq!(stages(false), [Finished, Interrupted, Interrupted, Waiting]);
        let trials = trials(&plan, state, true);
        assert_eq!((trials[0].score, trials[0].seconds), (Some(9.5), 3.5));
        assert_eq!(trials[2].slot.as_deref(), Some("slot 2: core 1"));
    }
}
