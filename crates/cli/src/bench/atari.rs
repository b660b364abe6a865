//! Agent steps per second of the Atari games, beside ale-py's own vector environment.
//!
//! Both step 64 environments by random actions: four frames each, the maximum of the last two in
//! grey, 84×84, stacks of four, no sticky actions. The speed of each is that of its median batch
//! of steps in two seconds. The peer runs in a Python that has `ale-py`, on as many threads.

use std::io::Write;
use std::process::Command;
use std::time::{Duration, Instant};

use rand::RngExt as _;
use starling_envs::{EnvOptions, Rollout, VecEnv, registry, stream};
use starling_tree::Tree;

use super::BenchError;

const GAMES: [&str; 8] = [
    "Pong",
    "Breakout",
    "Seaquest",
    "Qbert",
    "SpaceInvaders",
    "MsPacman",
    "BeamRider",
    "Enduro",
];
const ENVS: usize = 64;
const STEPS: usize = 8;
const RUN: Duration = Duration::from_secs(2);

/// Measures one thread and two, and the peer if `python`, or else `python3`, has it.
pub(super) fn run(python: Option<&str>, out: &mut dyn Write) -> Result<(), BenchError> {
    let python = python.unwrap_or("python3");
    let peer_version = peer(python, "import ale_py; print(ale_py.__version__)");
    match &peer_version {
        Some(version) => writeln!(out, "peer: AtariVectorEnv of ale-py {version}")?,
        None => writeln!(
            out,
            "{python} has no ale-py with numpy, so that there is nothing to compare with: pip \
             install ale-py numpy into a virtual environment and name its Python with --python"
        )?,
    }
    writeln!(
        out,
        "{:<14} {:>12} {:>9} {:>9} {:>12} {:>9} {:>9} {:>9}",
        "game", "1 thread", "us/step", "us/frame", "2 threads", "2 to 1", "peer 1", "peer 2"
    )?;
    let mut ratios = [Vec::new(), Vec::new()];
    for game in GAMES {
        let ours = [measure(game, 1)?, measure(game, 2)?];
        let mut beside = [String::new(), String::new()];
        if peer_version.is_some() {
            for threads in [1, 2] {
                let steps = peer(python, &peer_program(game, threads));
                if let Some(steps) = steps.and_then(|steps| steps.parse::<f64>().ok()) {
                    let ratio = ours[threads - 1] / steps;
                    ratios[threads - 1].push(ratio);
                    beside[threads - 1] = format!("{ratio:.2}x");
                }
            }
        }
        let micros = 1e6 / ours[0];
        writeln!(
            out,
            "{game:<14} {:>12.0} {micros:>9.1} {:>9.1} {:>12.0} {:>8.2}x {:>9} {:>9}",
            ours[0],
            micros / 4.0,
            ours[1],
            ours[1] / ours[0],
            beside[0],
            beside[1]
        )?;
    }
    for (threads, ratios) in ratios.iter_mut().enumerate() {
        if !ratios.is_empty() {
            let middle = median(ratios);
            writeln!(
                out,
                "median over {} games, threads {}: {middle:.2}x the peer",
                ratios.len(),
                threads + 1
            )?;
        }
    }
    Ok(())
}

/// Steps per second of all threads together.
fn measure(game: &str, threads: usize) -> Result<f64, BenchError> {
    let speeds: Vec<Result<f64, BenchError>> = std::thread::scope(|scope| {
        let work = |thread: usize| move || measure_thread(game, ENVS / threads, thread);
        let threads: Vec<_> = (0..threads)
            .map(|thread| scope.spawn(work(thread)))
            .collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().map(join).collect()
    });
    speeds.into_iter().sum()
}

fn measure_thread(game: &str, envs: usize, thread: usize) -> Result<f64, BenchError> {
    let id = format!("{game}NoFrameskip-v4");
    let spec = registry::find(&id)
        .map_err(crate::EngineError::from)
        .map_err(Box::new)?;
    let options = EnvOptions::default();
    let mut vector = VecEnv::new(spec, &options, envs, thread as u64, "env", 0)?;
    let mut rollout = Rollout::new(
        STEPS,
        envs,
        vector.observation_space(),
        vector.action_space(),
        vector.legal_actions(),
        &Tree::empty(),
        &Tree::empty(),
    );
    let starling_envs::Space::Discrete { n } = *vector.action_space() else {
        return Ok(0.0);
    };
    let mut rng = stream(0, "actions", thread as u64);
    vector.reset(&mut rollout)?;
    let start = Instant::now();
    let mut times = Vec::new();
    while start.elapsed() < RUN {
        let before = Instant::now();
        for t in 0..STEPS {
            for action in rollout.actions.at_mut(&[t]).as_mut_slice::<i64>() {
                *action = rng.random_range(0..n as i64);
            }
            vector.step(t, &mut rollout)?;
        }
        rollout.carry_over();
        vector.finished().for_each(drop);
        times.push(before.elapsed().as_secs_f64());
    }
    Ok((STEPS * envs) as f64 / median(&mut times))
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// What a Python program prints; `None` if it fails.
fn peer(python: &str, program: &str) -> Option<String> {
    let output = Command::new(python).args(["-c", program]).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let last = text.lines().last()?.to_owned();
    output.status.success().then_some(last)
}

/// Prints the steps per second of ale-py's vector environment, measured as ours are.
fn peer_program(game: &str, threads: usize) -> String {
    let name = starling_atari::games::all()
        .find(|known| known.id == game)
        .map_or("", |known| known.name);
    let seconds = RUN.as_secs();
    format!(
        "
import time
import numpy as np
from ale_py.vector_env import AtariVectorEnv

env = AtariVectorEnv(
    game='{name}', num_envs={ENVS}, num_threads={threads}, noop_max=30, frameskip=4,
    repeat_action_probability=0.0, use_fire_reset=False, reward_clipping=False,
)
rng = np.random.default_rng(0)
env.reset(seed=0)
count = env.single_action_space.n
times = []
start = time.perf_counter()
while time.perf_counter() - start < {seconds}:
    before = time.perf_counter()
    for _ in range({STEPS}):
        env.step(rng.integers(0, count, {ENVS}))
    times.append(time.perf_counter() - before)
print({STEPS} * {ENVS} / np.median(times))
"
    )
}
