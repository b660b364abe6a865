//! Measurements of the hot paths on this machine, each compared with a named baseline.

use std::io::Write;
use std::time::{Duration, Instant};

use starling_envs::EnvError;
use starling_nets::ShapeMismatch;
use starling_replay::ReplayError;

mod atari;
mod cluster;
mod collect;
mod continuous;
mod envs;
mod group;
mod mujoco;
mod overlap;
mod python;
mod replay;
mod train;
mod wheel;

pub use atari::Peers;
pub use cluster::Side;
pub use mujoco::MujocoPeers;

/// What ends a measurement.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// No environment has a name like this.
    #[error("no environment to measure has '{0}' in its id; `starling list envs` shows all")]
    NoEnv(String),
    /// The results could not be written.
    #[error(transparent)]
    Write(#[from] std::io::Error),
    /// An environment failed.
    #[error(transparent)]
    Env(#[from] EnvError),
    /// The replay refused something.
    #[error(transparent)]
    Replay(#[from] ReplayError),
    /// The replay could not be saved.
    #[error(transparent)]
    Snapshot(#[from] starling_replay::SnapshotError),
    /// Weights do not fit.
    #[error(transparent)]
    Weights(#[from] ShapeMismatch),
    /// A run could not be set up.
    #[error(transparent)]
    Settings(#[from] Box<crate::settings::SettingsError>),
    /// Collecting failed.
    #[error(transparent)]
    Engine(#[from] Box<crate::EngineError>),
}

/// Stepping environments through the vector, one core; those whose id contains `wanted`.
pub fn envs(wanted: &str, out: &mut dyn Write) -> Result<(), BenchError> {
    envs::run(wanted, out)
}

/// The Atari games, next to the peers that are installed.
pub fn atari(peers: &Peers, out: &mut dyn Write) -> Result<(), BenchError> {
    atari::run(peers, out)
}

/// MuJoCo's tasks whose id contains `wanted`, next to the peers that are installed.
pub fn mujoco(wanted: &str, peers: &MujocoPeers, out: &mut dyn Write) -> Result<(), BenchError> {
    mujoco::run(wanted, peers, out)
}

/// Python environments, next to the vector environments that `python` has.
pub fn python(python: &std::path::Path, out: &mut dyn Write) -> Result<(), BenchError> {
    python::run(python, out)
}

/// SAC and TD3 on a MuJoCo task with learning, next to other libraries where `python` has them.
pub fn continuous(python: Option<&std::path::Path>, out: &mut dyn Write) -> Result<(), BenchError> {
    continuous::run(python, out)
}

/// Groups of learners, started by `program`, which is this one.
pub fn group(program: &std::path::Path, out: &mut dyn Write) -> Result<(), BenchError> {
    group::run(program, out)
}

/// Remote actors compared with local ones, and what crosses the network; `program` is this one.
pub fn cluster(program: &std::path::Path, out: &mut dyn Write) -> Result<(), BenchError> {
    cluster::run(program, out)
}

/// One of the processes that [`cluster`] starts.
pub fn cluster_side(side: Side, out: &mut dyn Write) -> Result<(), BenchError> {
    cluster::side(side, out)
}

/// The sum tree, and prioritized transitions of images, next to other replays where `python` (or
/// `python3`) has them; of a million frames if `full`.
pub fn replay(python: Option<&str>, full: bool, out: &mut dyn Write) -> Result<(), BenchError> {
    replay::run(python, full, out)
}

/// What collecting costs besides the environment and the network.
pub fn collect(out: &mut dyn Write) -> Result<(), BenchError> {
    collect::run(out)
}

/// Whole runs with learning, next to other libraries where `python` (or `python3`) has them.
pub fn train(python: Option<&str>, out: &mut dyn Write) -> Result<(), BenchError> {
    train::run(python, out)
}

/// 64 Atari environments from Python, with the package `starling-rl` that `python` has, next to Rust.
pub fn wheel(python: &std::path::Path, out: &mut dyn Write) -> Result<(), BenchError> {
    wheel::run(python, out)
}

/// Calls per second: the best of five parts of 0.4 s after one to warm up, so that other work
/// on the machine hardly disturbs it.
fn rate<E>(mut f: impl FnMut() -> Result<(), E>) -> Result<f64, E> {
    let mut part = || {
        let (start, mut calls) = (Instant::now(), 0u32);
        while start.elapsed() < Duration::from_millis(400) {
            f()?;
            calls += 1;
        }
        Ok(f64::from(calls) / start.elapsed().as_secs_f64())
    };
    part()?;
    let mut best: f64 = 0.0;
    for _ in 0..5 {
        best = best.max(part()?);
    }
    Ok(best)
}
