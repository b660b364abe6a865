//! Steps per second of MuJoCo's tasks on one core, next to Gymnasium and EnvPool.
//!
//! All take random actions and reset what has ended. Ours and EnvPool's step 16 environments on one
//! thread, Gymnasium's one. They take turns for three rounds of two seconds each, and the speed of each
//! is that of its median round, so that other work on the machine disturbs all of them alike.
//! Gymnasium has the MuJoCo that we have; EnvPool comes with its own.

use std::io::Write;
use std::path::{Path, PathBuf};

use starling_envs::registry;

use super::{BenchError, envs};
use crate::peers;

/// The Pythons that have something to compare with.
#[derive(Clone, Debug, Default)]
pub struct MujocoPeers {
    /// One with Gymnasium and MuJoCo.
    pub gymnasium: Option<PathBuf>,
    /// One with EnvPool.
    pub envpool: Option<PathBuf>,
}

const ENVS: usize = 16;
const STEPS: usize = 16;
const ROUNDS: usize = 3;

/// Measures the v5 tasks whose id contains `wanted`.
pub(super) fn run(
    wanted: &str,
    peers: &MujocoPeers,
    out: &mut dyn Write,
) -> Result<(), BenchError> {
    let all = registry::all().into_iter();
    let family = starling_mujoco::FAMILY;
    let tasks = all.filter(|spec| spec.family == family && spec.id.ends_with("-v5"));
    let mut tasks = tasks.filter(|spec| spec.id.contains(wanted)).peekable();
    if tasks.peek().is_none() {
        return Err(BenchError::NoEnv(wanted.to_owned()));
    }
    writeln!(
        out,
        "{:<26} {:>9} {:>12} {:>9}",
        "steps/s on one core", "ours", "Gymnasium", "EnvPool"
    )?;
    for spec in tasks {
        let mut speeds = [const { Vec::new() }; 3];
        for _ in 0..ROUNDS {
            speeds[0].push(envs::measure(spec, ENVS, STEPS)?);
            speeds[1].extend(speed(peers.gymnasium.as_deref(), &gymnasium(spec.id)));
            speeds[2].extend(speed(peers.envpool.as_deref(), &envpool(spec.id)));
        }
        let [ours, gymnasium, envpool] = speeds.map(|mut speeds| {
            speeds.sort_by(f64::total_cmp);
            speeds.get(speeds.len() / 2).copied()
        });
        let ours = ours.unwrap_or(f64::NAN);
        let ratio = |peer: Option<f64>| match peer {
            Some(peer) => format!("{:.2}x", ours / peer),
            None => "–".into(),
        };
        let (gymnasium, envpool) = (ratio(gymnasium), ratio(envpool));
        writeln!(
            out,
            "{:<26} {ours:>9.0} {gymnasium:>12} {envpool:>9}",
            spec.id
        )?;
        out.flush()?;
    }
    Ok(())
}

/// What a peer's program prints; `None` if it fails.
fn speed(python: Option<&Path>, program: &str) -> Option<f64> {
    peers::says(python?, program).ok()?.parse().ok()
}

fn gymnasium(id: &str) -> String {
    let seconds = envs::RUN.as_secs();
    format!(
        "
import os, tempfile, time, warnings
warnings.simplefilter('ignore')
# MuJoCo appends its warnings to a file in the current folder.
os.chdir(tempfile.gettempdir())
import gymnasium
import numpy as np
env = gymnasium.make('{id}')
env.reset(seed=0)
rng = np.random.default_rng(0)
low, high = env.action_space.low, env.action_space.high
times = []
start = time.perf_counter()
while time.perf_counter() - start < {seconds}:
    actions = rng.uniform(low, high, (256, len(low))).astype(np.float32)
    before = time.perf_counter()
    for action in actions:
        _, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            env.reset()
    times.append(time.perf_counter() - before)
print(256 / np.median(times))
"
    )
}

fn envpool(id: &str) -> String {
    let seconds = envs::RUN.as_secs();
    format!(
        "
import time
import envpool
import numpy as np
env = envpool.make('{id}', env_type='gymnasium', num_envs={ENVS}, num_threads=1, seed=0)
env.reset()
rng = np.random.default_rng(0)
low, high = env.action_space.low, env.action_space.high
times = []
start = time.perf_counter()
while time.perf_counter() - start < {seconds}:
    actions = rng.uniform(low, high, ({STEPS}, {ENVS}, len(low)))
    before = time.perf_counter()
    for action in actions:
        env.step(action)
    times.append(time.perf_counter() - before)
print({STEPS} * {ENVS} / np.median(times))
"
    )
}
