//! Remote actors: their speed compared with threads of the learner's process, and the cost of the
//! network between them.
//!
//! All processes run on this machine. With few cores, actors and learner compete for them, in both
//! ways of a comparison; the ratio shows what packing, encrypting and unpacking take.

mod net;
mod weights;
mod wire;

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub use self::wire::Side;
pub(super) use self::wire::side;
use super::BenchError;
use crate::record::{TIME_COLUMN, Table, find_runs};

/// Repetitions of each measurement, whose order changes from one to the next.
const ROUNDS: usize = 3;

/// Each run gets so long to warm up, then is measured.
const WARM_UP: Duration = Duration::from_secs(2);
const MEASURED: Duration = Duration::from_secs(6);

/// Longer than a run takes to begin on a busy machine.
const LONG: Duration = Duration::from_secs(120);

/// Environments of each actor.
const ENVS: usize = 8;

/// A run to measure.
struct Case {
    name: &'static str,
    env: &'static str,
    algo: &'static str,
    overrides: &'static [&'static str],
}

const CASES: [Case; 2] = [
    Case {
        name: "IMPALA, MinAtar/Breakout-v1",
        env: "MinAtar/Breakout-v1",
        algo: "impala",
        overrides: &[],
    },
    Case {
        name: "Ape-X DQN, PongNoFrameskip-v4",
        env: "PongNoFrameskip-v4",
        algo: "apex-dqn",
        // Few updates: without a GPU the learner would take all cores of a small machine.
        overrides: &[
            "algo.learning_starts_steps=2000",
            "algo.capacity_steps=50000",
            "algo.batch_size=32",
            "algo.replay_ratio=0.05",
        ],
    },
];

/// Where the actors are.
#[derive(Clone, Debug, PartialEq)]
enum Way {
    /// Threads of the learner's process.
    Local,
    /// Processes with one thread each, over gRPC with TLS.
    Grpc,
    /// The same over the Redis server at this port.
    Redis(u16),
}

impl Way {
    fn name(&self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Grpc => "gRPC",
            Self::Redis(_) => "Redis",
        }
    }
}

/// Processes that end with the measurement.
#[derive(Default)]
struct Processes(Vec<Child>);

impl Processes {
    fn start(&mut self, command: &mut Command) -> std::io::Result<&mut Child> {
        self.0.push(command.spawn()?);
        let started = self.0.last_mut();
        started.ok_or_else(|| std::io::Error::other("no process"))
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for process in &mut self.0 {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

fn failed(what: impl std::fmt::Display) -> BenchError {
    BenchError::Write(std::io::Error::other(what.to_string()))
}

/// Measures both; `program` is this one.
pub(super) fn run(program: &Path, out: &mut dyn Write) -> Result<(), BenchError> {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    let mut processes = Processes::default();
    let mut ways = vec![Way::Local, Way::Grpc];
    let redis = start_redis(&mut processes)?;
    match &redis {
        Some((_, port)) => ways.push(Way::Redis(*port)),
        None => writeln!(out, "no redis-server or valkey-server: not measured")?,
    }
    writeln!(
        out,
        "remote actors on this machine, {cores} cores, {ENVS} environments per actor; steps/s, median of \
         {ROUNDS} runs of {} s in alternating order",
        MEASURED.as_secs()
    )?;
    for case in &CASES {
        writeln!(out, "{}", case.name)?;
        for actors in [1, 2, 4] {
            let mut rates = vec![Vec::new(); ways.len()];
            for round in 0..ROUNDS {
                for turn in 0..ways.len() {
                    let at = (round + turn) % ways.len();
                    rates[at].push(measure(program, case, &ways[at], actors)?);
                }
            }
            let medians: Vec<f64> = rates.into_iter().map(median).collect();
            write!(out, "  {actors} actors:")?;
            for (way, rate) in ways.iter().zip(&medians) {
                write!(out, "  {} {rate:.0}", way.name())?;
                if *way != Way::Local {
                    write!(out, " ({:.0} %)", 100.0 * rate / medians[0])?;
                }
            }
            writeln!(out)?;
            out.flush()?;
        }
    }
    drop(processes);
    wire::run(program, out)
}

/// A Redis server of our own, with its folder; its port.
fn start_redis(processes: &mut Processes) -> Result<Option<(tempfile::TempDir, u16)>, BenchError> {
    let given = std::env::var_os("STARLING_REDIS_SERVER").map(PathBuf::from);
    let known = ["redis-server", "valkey-server"].map(PathBuf::from);
    for program in given.into_iter().chain(known) {
        let folder = tempfile::tempdir()?;
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let mut command = Command::new(program);
        command.args(["--bind", "127.0.0.1", "--port", &port.to_string()]);
        command.args(["--save", "", "--dir"]).arg(folder.path());
        quiet(&mut command);
        if processes.start(&mut command).is_err() {
            continue;
        }
        wait_for("the Redis server", || {
            Ok(TcpStream::connect(("127.0.0.1", port)).ok())
        })?;
        return Ok(Some((folder, port)));
    }
    Ok(None)
}

fn quiet(command: &mut Command) {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
}

/// Waits until something is there.
fn wait_for<T>(
    what: &str,
    mut look: impl FnMut() -> Result<Option<T>, BenchError>,
) -> Result<T, BenchError> {
    let began = Instant::now();
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        if began.elapsed() > LONG {
            let seconds = LONG.as_secs();
            return Err(failed(format!("waited {seconds} s for {what}")));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Steps per second of a run with so many actors.
fn measure(program: &Path, case: &Case, way: &Way, actors: usize) -> Result<f64, BenchError> {
    let folder = tempfile::tempdir()?;
    let mut processes = Processes::default();
    let mut learner = Command::new(program);
    learner.args(["train", case.env, "--algo", case.algo, "--quiet"]);
    learner.args(["mode=threads", "asynchronous=true", "device=cpu"]);
    learner.args(["torch_threads=1", "steps=1000000000", "log_every_steps=500"]);
    learner.args(["eval.every_steps=0", "checkpoint.every_steps=0"]);
    learner.args(case.overrides);
    learner.arg(format!("threads={actors}"));
    learner.arg(format!("envs={}", actors * ENVS));
    learner.arg("--runs").arg(folder.path().join("runs"));
    let join = folder.path().join("join.json");
    let address = match way {
        Way::Local => None,
        Way::Grpc => Some("127.0.0.1:0".to_owned()),
        Way::Redis(port) => Some(format!("redis://127.0.0.1:{port}")),
    };
    if let Some(address) = &address {
        learner
            .args(["--listen", address, "--join-file"])
            .arg(&join);
    }
    quiet(&mut learner);
    processes.start(&mut learner)?;
    if address.is_some() {
        wait_for("the learner to listen", || Ok(join.exists().then_some(())))?;
        for _ in 0..actors {
            let mut actor = Command::new(program);
            actor.args(["actor", "--threads", "1", "--join"]).arg(&join);
            quiet(&mut actor);
            processes.start(&mut actor)?;
        }
    }
    let runs = folder.path().join("runs");
    let warm = wait_for("the run to begin", || Ok(last_row(&runs)))?.0 + WARM_UP.as_secs_f64();
    let first = wait_for("the run to warm up", || {
        Ok(last_row(&runs).filter(|row| row.0 >= warm))
    })?;
    let last = wait_for("the run to be measured", || {
        let enough = |row: &(f64, f64)| row.0 >= first.0 + MEASURED.as_secs_f64();
        Ok(last_row(&runs).filter(enough))
    })?;
    Ok((last.1 - first.1) / (last.0 - first.0))
}

/// Seconds and steps of the last row of the only run.
fn last_row(runs: &Path) -> Option<(f64, f64)> {
    let run = find_runs(&[runs.to_owned()]).ok()?.into_iter().next()?;
    let table = Table::read(&run.join("progress.csv")).ok()?;
    let last = |name: &str| table.column(name)?.last().copied();
    Some((last(TIME_COLUMN)?, last("Diagnostics/CumSteps")?))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
