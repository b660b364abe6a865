//! Does every algorithm learn a game on the device?

use std::ffi::OsStr;
use std::process::Command;
use std::sync::Mutex;
use std::time::Instant;

use anyhow::Context as _;
use starling_record::{Ending, Run, RunFolder, Source, find_runs};

/// A random policy brings 0.4 points a game.
const GAME: &str = "MinAtar/Breakout-v1";
const GOAL: f64 = 2.0;

/// Steps in which the goal has to be reached.
const STEPS: &str = "400000";

/// Trains each algorithm with its preset until the mean return of 100 games reaches the goal, some
/// of them at once. Returns those that did not get there.
pub(super) fn check(algos: &[&'static str], device: &str) -> anyhow::Result<Vec<String>> {
    let program = std::env::current_exe().context("this program's own path")?;
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    let at_once = (cores / 4).max(1);
    say!("\n{GAME}: mean return of 100 games, wanted {GOAL} within {STEPS} steps");
    say!(
        "{:<16} {:>8} {:>9} {:>9}",
        "algorithm",
        "return",
        "steps",
        "seconds"
    );
    let todo = Mutex::new(algos.iter());
    let failed = Mutex::new(Vec::new());
    let work = || -> anyhow::Result<()> {
        while let Some(algo) = todo.lock().ok().and_then(|mut todo| todo.next()) {
            let learned = train(program.as_os_str(), algo, device)?;
            let verdict = if learned.reached { "" } else { "  NOT LEARNED" };
            say!(
                "{algo:<16} {:>8.2} {:>9} {:>9.0}{verdict}",
                learned.mean_return,
                learned.steps,
                learned.seconds
            );
            if let (false, Ok(mut failed)) = (learned.reached, failed.lock()) {
                failed.push((*algo).to_owned());
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..at_once).map(|_| scope.spawn(work)).collect();
        for thread in threads {
            thread
                .join()
                .map_err(|_| anyhow::anyhow!("a thread of the test panicked"))??;
        }
        Ok::<(), anyhow::Error>(())
    })?;
    Ok(failed.into_inner().unwrap_or_default())
}

struct Learned {
    reached: bool,
    mean_return: f64,
    steps: u64,
    seconds: f64,
}

/// Trains in a process of its own: a device that fails takes only that one with it.
fn train(program: &OsStr, algo: &str, device: &str) -> anyhow::Result<Learned> {
    let folder = tempfile::tempdir().context("a folder for the run")?;
    let began = Instant::now();
    let output = Command::new(program)
        .args(["train", GAME, "--algo", algo, "--device", device])
        .args(["--steps", STEPS, "--quiet", "--runs"])
        .arg(folder.path())
        .args([format!("stop_at_return={GOAL}"), "seed=1".to_owned()])
        .args(["log_every_steps=10000", "checkpoint.every_steps=0"])
        .output()
        .context("this program could not be started")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        anyhow::bail!("{algo} on {device}: {}", said.trim());
    }
    let runs = find_runs(&[folder.path().to_owned()])?;
    let run = RunFolder::open(runs.first().context("the run left no folder")?)?;
    let run = Run::read(&run, Source::Training)?;
    let last = |column: &str| run.last(column).unwrap_or(f64::NAN);
    let mean_return = last("ReturnAverage");
    Ok(Learned {
        reached: matches!(run.ending, Ending::Stopped(_)) || mean_return >= GOAL,
        mean_return,
        steps: last(starling_record::STEP_COLUMN) as u64,
        seconds: began.elapsed().as_secs_f64(),
    })
}
