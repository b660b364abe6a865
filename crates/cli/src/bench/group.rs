//! Groups of 1, 2 and 4 learners on this machine, and the computed cost of an all-reduce between
//! machines.
//!
//! Runs are measured with one process per learner and one thread per operation. With fewer cores than
//! learners, the speedup says nothing about a larger machine. Nothing is measured across machines: the
//! transfer time is computed from the bytes that a ring all-reduce sends.

use std::io::Write;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use starling_nets::{Collective as _, Device, Gloo, GlooStore, Kind, ReduceError, Tensor};

use super::BenchError;
use crate::record::{Table, find_runs};

/// Weights of the Nature CNN with 6 actions.
pub(super) const WEIGHTS: i64 = 1_687_206;

/// Averages that are timed.
const AVERAGES: usize = 20;

/// Bytes per second of 10 Gbit Ethernet without headers.
const TEN_GIGABIT: f64 = 1.18e9;

const TIME_OUT: Duration = Duration::from_secs(60);

pub(super) fn run(program: &Path, out: &mut dyn Write) -> Result<(), BenchError> {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    writeln!(
        out,
        "IMPALA on MinAtar/Breakout-v1, 32 environments per learner, {cores} cores"
    )?;
    let mut alone = 0.0;
    for learners in [1, 2, 4] {
        let Measured {
            steps,
            updates,
            averaging,
            waiting,
        } = whole_run(program, learners)?;
        if learners == 1 {
            alone = steps;
        }
        write!(
            out,
            "{learners} learners: {steps:.0} steps/s ({:.2}x), {updates:.1} updates/s",
            steps / alone
        )?;
        match learners {
            1 => writeln!(out)?,
            _ => writeln!(
                out,
                ", {averaging:.2} ms per average, {waiting:.2} ms waited"
            )?,
        }
        out.flush()?;
    }
    writeln!(
        out,
        "averages of {WEIGHTS} numbers over 127.0.0.1, in one process (median of {AVERAGES})"
    )?;
    for size in [2, 4] {
        for kind in [Kind::Float, Kind::BFloat16] {
            let median = averages(size, kind)?;
            writeln!(out, "{size} learners, {kind:?}: {median:.2} ms")?;
        }
    }
    super::overlap::run(out)
}

struct Measured {
    /// Steps of all learners per second.
    steps: f64,
    updates: f64,
    /// Milliseconds per gradient.
    averaging: f64,
    /// The part of it for which the learner waited.
    waiting: f64,
}

/// Makes a run in separate processes; returns the means of its rows except the first.
fn whole_run(program: &Path, learners: usize) -> Result<Measured, BenchError> {
    let folder = tempfile::tempdir()?;
    let steps = 60_000 * learners;
    let status = Command::new(program)
        .args([
            "train",
            "MinAtar/Breakout-v1",
            "--algo",
            "impala",
            "--quiet",
        ])
        .args([
            "mode=serial",
            "asynchronous=false",
            "envs=32",
            "torch_threads=1",
        ])
        .args(["eval.every_steps=0", "checkpoint.every_steps=0"])
        .arg(format!("learners={learners}"))
        .arg(format!("steps={steps}"))
        .arg(format!("log_every_steps={}", steps / 6))
        .arg("--runs")
        .arg(folder.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()?;
    let failed = |what: String| BenchError::Write(std::io::Error::other(what));
    if !status.success() {
        return Err(failed(format!(
            "a run of {learners} learners failed: {status}"
        )));
    }
    let run = find_runs(&[folder.path().to_owned()]);
    let run = run.map_err(|error| failed(error.to_string()))?;
    let table = run
        .first()
        .map(|run| Table::read(&run.join("progress.csv")));
    let table = table
        .transpose()
        .map_err(|error| failed(error.to_string()))?;
    let mean = |name: &str| {
        let column = table.as_ref().and_then(|table| table.column(name));
        let rows = column.unwrap_or_default().into_iter().skip(1);
        let rows: Vec<f64> = rows.filter(|value| value.is_finite()).collect();
        rows.iter().sum::<f64>() / rows.len().max(1) as f64
    };
    Ok(Measured {
        steps: mean("Diagnostics/StepsPerSecond"),
        updates: mean("Diagnostics/UpdatesPerSecond"),
        averaging: mean("Diagnostics/AveragingMs"),
        waiting: mean("Diagnostics/AveragingWaitMs"),
    })
}

/// The median time of an all-reduce between `size` threads, in milliseconds.
fn averages(size: usize, kind: Kind) -> Result<f64, BenchError> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let at = listener.local_addr()?;
    let _store = GlooStore::serve(listener, TIME_OUT).map_err(group_error)?;
    let member = |rank: usize| {
        let store = GlooStore::connect(at, TIME_OUT)?;
        let mut group = Gloo::join(&store, "bench", "127.0.0.1", rank, size, TIME_OUT)?;
        let gradient = Tensor::ones([WEIGHTS], (kind, Device::Cpu));
        let mut times = Vec::new();
        for _ in 0..AVERAGES {
            let began = Instant::now();
            group.sum(&gradient)?;
            times.push(began.elapsed().as_secs_f64() * 1e3);
        }
        Ok(median(times))
    };
    let times = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..size)
            .map(|rank| scope.spawn(move || member(rank)))
            .collect();
        let ended = threads.into_iter().map(|thread| {
            let panicked = |_| Err(ReduceError("a thread panicked".into()));
            thread.join().unwrap_or_else(panicked)
        });
        ended.collect::<Result<Vec<f64>, ReduceError>>()
    });
    Ok(times.map_err(group_error)?.into_iter().fold(0.0, f64::max))
}

pub(super) fn group_error(error: ReduceError) -> BenchError {
    BenchError::Write(std::io::Error::other(error))
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(f64::NAN)
}

/// A ring sends 2(n − 1)/n of the bytes from each member.
pub(super) fn on_the_wire_ms(size: usize, bytes: f64) -> f64 {
    let size = size as f64;
    2.0 * (size - 1.0) / size * bytes / TEN_GIGABIT * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 6.75 MB: two learners send all of it, four one and a half times as much.
    #[test]
    fn a_ring_sends_up_to_twice_the_gradient() {
        let bytes = WEIGHTS as f64 * 4.0;
        assert!((on_the_wire_ms(2, bytes) - 5.72).abs() < 0.01);
        assert!((on_the_wire_ms(4, bytes) - 8.58).abs() < 0.01);
    }
}
