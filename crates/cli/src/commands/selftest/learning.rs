//! Checks that every algorithm learns a task on the device.

use std::ffi::OsStr;
use std::process::Command;
use std::sync::Mutex;
use std::time::Instant;

use anyhow::Context as _;
use starling_record::{Ending, Run, RunFolder, Source, find_runs};

use crate::settings::{Request, resolve};

/// A task, the mean return of 100 episodes that is wanted, and the steps in which it has to be
/// reached. A random policy brings 0.4 and −1200.
struct Task {
    env: &'static str,
    goal: f64,
    steps: u64,
}

const DISCRETE: Task = Task {
    env: "MinAtar/Breakout-v1",
    goal: 2.0,
    steps: 400_000,
};

const CONTINUOUS: Task = Task {
    env: "Pendulum-v1",
    goal: -500.0,
    steps: 100_000,
};

/// Over the prior and the posterior of 80 tasks: a random policy brings −21, one that goes to the
/// middle −17.
const META: Task = Task {
    env: "PointRobot-v0",
    goal: -15.0,
    steps: 400_000,
};

/// Whether an algorithm's actions are choices, not numbers.
pub(super) fn is_discrete(algo: &str) -> bool {
    let mut request = Request::new(DISCRETE.env);
    request.algo = Some(algo.to_owned());
    request.preset = Some("none".to_owned());
    resolve(&request).is_ok()
}

/// Trains each algorithm with its preset until it reaches the goal, some of them at once. Returns
/// those that did not get there.
pub(super) fn check(algos: &[&'static str], device: &str) -> anyhow::Result<Vec<String>> {
    let program = std::env::current_exe().context("this program's own path")?;
    say!("\nlearning, until the mean return of 100 episodes reaches the goal");
    say!(
        "{:<16} {:<20} {:>8} {:>8} {:>9} {:>8}",
        "algorithm",
        "task",
        "goal",
        "return",
        "steps",
        "seconds"
    );
    let failed = Mutex::new(Vec::new());
    super::at_once(algos, 2, |algo| {
        let task = match *algo {
            "pearl" => &META,
            algo if is_discrete(algo) => &DISCRETE,
            _ => &CONTINUOUS,
        };
        let learned = train(program.as_os_str(), algo, task, device)?;
        let verdict = if learned.reached { "" } else { "  NOT LEARNED" };
        say!(
            "{algo:<16} {:<20} {:>8} {:>8.2} {:>9} {:>8.0}{verdict}",
            task.env,
            task.goal,
            learned.mean_return,
            learned.steps,
            learned.seconds
        );
        if let (false, Ok(mut failed)) = (learned.reached, failed.lock()) {
            failed.push((*algo).to_owned());
        }
        Ok(())
    })?;
    Ok(failed.into_inner().unwrap_or_default())
}

struct Learned {
    reached: bool,
    mean_return: f64,
    steps: u64,
    seconds: f64,
}

/// Trains in a separate process, so that a failing device ends only that process.
fn train(program: &OsStr, algo: &str, task: &Task, device: &str) -> anyhow::Result<Learned> {
    let folder = tempfile::tempdir().context("a folder for the run")?;
    let began = Instant::now();
    let output = Command::new(program)
        .args(["train", task.env, "--algo", algo, "--device", device])
        .args(["--steps", &task.steps.to_string(), "--quiet", "--runs"])
        .arg(folder.path())
        .args([format!("stop_at_return={}", task.goal), "seed=1".to_owned()])
        .args(["log_every_steps=10000", "checkpoint.every_steps=0"])
        .output()
        .context("this program could not be started")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        anyhow::bail!("{algo} on {device} ({}): {}", output.status, said.trim());
    }
    let runs = find_runs(&[folder.path().to_owned()])?;
    let run = RunFolder::open(runs.first().context("the run left no folder")?)?;
    let run = Run::read(&run, Source::Training)?;
    let last = |column: &str| run.last(column).unwrap_or(f64::NAN);
    let mean_return = last("ReturnAverage");
    Ok(Learned {
        reached: matches!(run.ending, Ending::Stopped(_)) || mean_return >= task.goal,
        mean_return,
        steps: last(starling_record::STEP_COLUMN) as u64,
        seconds: began.elapsed().as_secs_f64(),
    })
}
