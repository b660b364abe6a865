//! Steps per second of 64 Atari environments from Python, with the package `starling-rl`, next to the
//! same in Rust.
//!
//! Both step as `bench atari` does. They alternate, so that other load affects both alike; the ratio of a
//! game is the median over the rounds.

use std::io::Write;
use std::path::Path;

use super::BenchError;
use super::atari::{ENVS, measure, median, speed, timed};

const GAMES: [&str; 4] = ["Pong", "Breakout", "Seaquest", "MsPacman"];
const ROUNDS: usize = 5;

/// Measures one thread and two, with a Python that has `starling-rl`.
pub(super) fn run(python: &Path, out: &mut dyn Write) -> Result<(), BenchError> {
    let title = format!("steps/s of {ENVS} environments");
    writeln!(
        out,
        "{title:<28} {:>8} {:>12} {:>12} {:>8}",
        "threads", "Rust", "Python", "ratio"
    )?;
    let mut all = Vec::new();
    for threads in [1, 2] {
        for id in GAMES {
            let (mut ours, mut theirs, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
            for _ in 0..ROUNDS {
                let rust = measure(id, threads)?;
                let from_python = speed(python, &program(id, threads)).unwrap_or(f64::NAN);
                ours.push(rust);
                theirs.push(from_python);
                ratios.push(from_python / rust);
            }
            let ratio = median(&mut ratios);
            writeln!(
                out,
                "{id:<28} {threads:>8} {:>12.0} {:>12.0} {ratio:>8.2}",
                median(&mut ours),
                median(&mut theirs)
            )?;
            all.push(ratio);
        }
    }
    writeln!(out, "median ratio: {:.2}", median(&mut all))?;
    Ok(())
}

fn program(id: &str, threads: usize) -> String {
    timed(&format!(
        "import starling
env = starling.make_vec('{id}NoFrameskip-v4', {ENVS}, num_threads={threads}, autoreset_mode='SameStep')
env.reset(seed=0)
count = env.single_action_space.n"
    ))
}
