//! SAC and TD3 on HalfCheetah-v5, learning included: one update of 256 per step, networks of 256-256.
//!
//! Without a GPU, Stable-Baselines3 and CleanRL's algorithms in plain PyTorch (`benches`) take turns
//! with ours, each with one thread per operation and with two. On a busy machine two threads are slower
//! than one, so the better number of each is used.

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use starling_nets::{Device, cuda_devices, product_speed, set_threads};

use super::BenchError;
use super::train::{Span, ask_with, measure};
use crate::RunConfig;
use crate::settings::{Request, resolve};

const TASK: &str = "HalfCheetah-v5";
const ROUNDS: usize = 2;
const SPAN: Span = Span {
    warm_up: Duration::from_secs(4),
    measured: Duration::from_secs(8),
};
const PEERS: [(&str, &str); 2] = [
    ("Stable-Baselines3", "peer_sb3_control.py"),
    ("CleanRL's in PyTorch", "peer_torch_control.py"),
];

/// Measures both algorithms, and the peers if there is a Python that has them.
pub(super) fn run(python: Option<&Path>, out: &mut dyn Write) -> Result<(), BenchError> {
    let on_gpu = cuda_devices() > 0;
    let threads: &[usize] = if on_gpu { &[1] } else { &[1, 2] };
    writeln!(
        out,
        "{TASK}, one update of 256 per step, steps/s (best of {ROUNDS} rounds)"
    )?;
    for algo in ["sac", "td3"] {
        let mut ours = vec![0f64; threads.len()];
        let mut theirs = [[0f64; 2]; PEERS.len()];
        for _ in 0..ROUNDS {
            for (best, &threads) in ours.iter_mut().zip(threads) {
                *best = best.max(measure(config_of(algo, threads)?, SPAN)?);
            }
            for ((_, program), best) in PEERS.iter().zip(&mut theirs) {
                for (threads, best) in [1, 2].into_iter().zip(best) {
                    if let Some(python) = python.filter(|_| !on_gpu) {
                        let seconds = SPAN.measured.as_secs().to_string();
                        let rate = ask_with(python, program, &[algo, &seconds], threads);
                        *best = best.max(rate.unwrap_or(0.0));
                    }
                }
            }
        }
        let most = |rates: &[f64]| rates.iter().copied().fold(0.0, f64::max);
        let rate = most(&ours);
        let each: Vec<String> = ours.iter().map(|rate| format!("{rate:.0}")).collect();
        writeln!(
            out,
            "{algo}: ours {} (threads {threads:?})",
            each.join(", ")
        )?;
        if !on_gpu {
            let best = ours.iter().position(|&ours| ours == rate).unwrap_or(0);
            set_threads(threads[best]);
            let share = rate * operations(algo) / product_speed(Device::Cpu);
            writeln!(
                out,
                "  {:.0} % of the speed of 256×256 products on {} threads",
                100.0 * share,
                threads[best]
            )?;
        }
        for ((name, _), rates) in PEERS.iter().zip(&theirs) {
            let peer = most(rates);
            if peer > 0.0 {
                let [one, two] = rates;
                writeln!(
                    out,
                    "  {name}: {one:.0}, {two:.0} (threads [1, 2]); ours {:.2}x",
                    rate / peer
                )?;
            }
        }
        out.flush()?;
    }
    Ok(())
}

fn config_of(algo: &str, threads: usize) -> Result<RunConfig, BenchError> {
    let mut request = Request::new(TASK);
    request.algo = Some(algo.to_owned());
    let overrides = [
        "steps=1000000000".to_owned(),
        "algo.learning_starts_steps=300".to_owned(),
        "eval.every_steps=0".to_owned(),
        format!("torch_threads={threads}"),
    ];
    request.overrides = overrides.to_vec();
    Ok(resolve(&request).map_err(Box::new)?)
}

/// Floating-point operations of the matrix products that one update needs.
fn operations(algo: &str) -> f64 {
    const OBS: f64 = 17.0;
    const ACTIONS: f64 = 6.0;
    const HIDDEN: f64 = 256.0;
    const ROWS: f64 = 256.0;
    let weights = |inputs: f64, outputs: f64| inputs * HIDDEN + HIDDEN * HIDDEN + HIDDEN * outputs;
    let critic = weights(OBS + ACTIONS, 1.0);
    // The gradient of a network's inputs is not needed where it is that of observations.
    let (critic_back, first) = (HIDDEN * HIDDEN + HIDDEN, (OBS + ACTIONS) * HIDDEN);
    let multiply_adds = match algo {
        "sac" => {
            let actor = weights(OBS, 2.0 * ACTIONS);
            let actor_back = HIDDEN * HIDDEN + HIDDEN * 2.0 * ACTIONS;
            let critics = actor + 2.0 * critic + 2.0 * (2.0 * critic + critic_back);
            critics + 2.0 * actor + actor_back + 2.0 * (critic + critic_back + first)
        }
        _ => {
            let actor = weights(OBS, ACTIONS);
            let actor_back = HIDDEN * HIDDEN + HIDDEN * ACTIONS;
            let critics = actor + 2.0 * critic + 2.0 * (2.0 * critic + critic_back);
            critics + 0.5 * (2.0 * actor + actor_back + critic + critic_back + first)
        }
    };
    2.0 * ROWS * multiply_adds
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SAC's update is 0.58 GFLOP, TD3's 0.41 on average.
    #[test]
    fn operations_of_an_update() {
        for (algo, expected) in [("sac", 0.58e9), ("td3", 0.41e9)] {
            let error = (operations(algo) / expected - 1.0).abs();
            assert!(error < 0.03, "{algo}: {}", operations(algo));
        }
    }
}
