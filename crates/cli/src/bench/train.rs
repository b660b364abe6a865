//! Steps per second of whole runs, learning included, compared with the environments alone, the
//! learner alone, and other libraries if they are installed.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use starling_engine::limits;
use starling_nets::cuda_devices;

use super::BenchError;
use crate::settings::{Request, resolve};
use crate::{RunConfig, Status, Training, Watcher};

const GAME: &str = "PongNoFrameskip-v4";

/// Each run gets so long to warm up (memory, graphs, first episodes), then is measured.
const SPAN: Span = Span {
    warm_up: Duration::from_secs(8),
    measured: Duration::from_secs(20),
};

/// How long a run is measured.
#[derive(Clone, Copy)]
pub(super) struct Span {
    pub(super) warm_up: Duration,
    pub(super) measured: Duration,
}

/// Seconds for each limit.
const LIMIT_S: f64 = 3.0;

/// A run to measure: what it is called, its algorithm and its settings.
struct Case {
    name: &'static str,
    algo: &'static str,
    overrides: &'static [&'static str],
}

/// With a GPU: the game of the published figures, on all cores.
const ON_GPU: &[Case] = &[
    Case {
        name: "IMPALA, Nature CNN",
        algo: "impala",
        overrides: &[],
    },
    Case {
        name: "IMPALA, ResNet with LSTM",
        algo: "impala",
        overrides: &[
            "algo.net.torso=resnet",
            "algo.net.lstm=256",
            "algo.net.last_action_reward=true",
        ],
    },
    Case {
        name: "PPO, 4 epochs",
        algo: "ppo",
        overrides: &[],
    },
    Case {
        name: "PPO, 4 epochs, in lockstep",
        algo: "ppo",
        overrides: &["asynchronous=false", "fixed_lag=null"],
    },
];

/// Without: 8 environments, as the peers are measured.
const ON_CPU: &[Case] = &[
    Case {
        name: "PPO",
        algo: "ppo",
        overrides: &["device=cpu"],
    },
    Case {
        name: "PPO, bfloat16",
        algo: "ppo",
        overrides: &["device=cpu", "algo.net.bf16=true"],
    },
];

/// Measures every run, and the peers if `python` has them.
pub(super) fn run(python: Option<&str>, out: &mut dyn Write) -> Result<(), BenchError> {
    let cases = if cuda_devices() > 0 { ON_GPU } else { ON_CPU };
    writeln!(
        out,
        "{GAME}, learning included, {} s after {} s of warm-up",
        SPAN.measured.as_secs(),
        SPAN.warm_up.as_secs()
    )?;
    writeln!(
        out,
        "{:<26} {:>10} {:>12} {:>12} {:>12}",
        "run", "steps/s", "frames/s", "envs only", "learner only"
    )?;
    let mut rates = Vec::new();
    for case in cases {
        let config = config_of(case)?;
        let rate = measure(config.clone(), SPAN)?;
        let limits = limits(&config, LIMIT_S).map_err(Box::new)?;
        writeln!(
            out,
            "{:<26} {rate:>10.0} {:>12.0} {:>12.0} {:>12.0}",
            case.name,
            4.0 * rate,
            limits.env_steps_per_second,
            limits.learner_steps_per_second
        )?;
        out.flush()?;
        rates.push((case.name, rate));
    }
    if cuda_devices() == 0 {
        beside_peers(python.unwrap_or("python3"), &rates, out)?;
    }
    Ok(())
}

fn config_of(case: &Case) -> Result<RunConfig, BenchError> {
    let mut request = Request::new(GAME);
    request.algo = Some(case.algo.to_owned());
    let overrides = case.overrides.iter().chain(&["steps=1000000000"]);
    request.overrides = overrides.map(|&pair| pair.to_owned()).collect();
    Ok(resolve(&request).map_err(Box::new)?)
}

/// Steps per second after the warm-up.
pub(super) fn measure(config: RunConfig, span: Span) -> Result<f64, BenchError> {
    let root = tempfile::tempdir()?;
    let folder = crate::create_folder(&config, root.path(), "bench").map_err(Box::new)?;
    let training = Training::start(config, &folder).map_err(Box::new)?;
    let stop = AtomicBool::new(false);
    let mut watch = Watch {
        stop: &stop,
        span,
        began: Instant::now(),
        warm: None,
        last: None,
    };
    training.run(&stop, None, &mut watch).map_err(Box::new)?;
    let (Some(warm), Some(last)) = (watch.warm, watch.last) else {
        return Ok(f64::NAN);
    };
    let steps = (last.1 - warm.1) as f64;
    Ok(steps / (last.0 - warm.0).as_secs_f64())
}

/// Notes when which step was reached, and ends the run in time.
struct Watch<'a> {
    stop: &'a AtomicBool,
    span: Span,
    began: Instant,
    warm: Option<(Instant, u64)>,
    last: Option<(Instant, u64)>,
}

impl Watcher for Watch<'_> {
    fn round(&mut self, status: &Status) {
        let now = Instant::now();
        match self.warm {
            None if now - self.began < self.span.warm_up => {}
            None => self.warm = Some((now, status.env_steps)),
            Some((since, _)) => {
                self.last = Some((now, status.env_steps));
                if now - since >= self.span.measured {
                    self.stop.store(true, Ordering::Relaxed);
                }
            }
        }
    }
}

/// The same training in other libraries, each with a program in `benches`.
fn beside_peers(
    python: &str,
    rates: &[(&str, f64)],
    out: &mut dyn Write,
) -> Result<(), BenchError> {
    for (peer, program) in [
        ("Stable-Baselines3", "peer_sb3_ppo.py"),
        ("PyTorch, EnvPool", "peer_torch_ppo.py"),
    ] {
        match ask(python, program) {
            None => not_measured(peer, python, program, out)?,
            Some(rate) => {
                write!(out, "{peer:<26} {rate:>10.0}")?;
                for (name, ours) in rates {
                    write!(out, "   {name}: {:.2}x", ours / rate)?;
                }
                writeln!(out)?;
            }
        }
    }
    let mut request = Request::new("CartPole-v1");
    request.overrides = vec!["stop_at_return=475".to_owned(), "steps=500000".to_owned()];
    let config = resolve(&request).map_err(Box::new)?;
    let root = tempfile::tempdir()?;
    let outcome = crate::train(config, root.path(), "bench", &mut ()).map_err(Box::new)?;
    let ours = outcome.status.elapsed.as_secs_f64();
    writeln!(
        out,
        "CartPole-v1 to 475, PPO: {ours:.1} s ({:?})",
        outcome.reason
    )?;
    let program = "peer_sb3_cartpole.py";
    match ask(python, program) {
        None => not_measured("Stable-Baselines3", python, program, out)?,
        Some(theirs) => writeln!(
            out,
            "Stable-Baselines3: {theirs:.1} s, {:.1}x as long",
            theirs / ours
        )?,
    }
    Ok(())
}

/// The number that a peer's program prints last; `None` if it cannot run here.
fn ask(python: &str, program: &str) -> Option<f64> {
    said(Command::new(python).arg(script(program)))
}

/// The same with arguments, and with this many threads per operation.
pub(super) fn ask_with(python: &Path, program: &str, args: &[&str], threads: usize) -> Option<f64> {
    let mut command = Command::new(python);
    // Ours is another libtorch.
    command.env_remove("LD_LIBRARY_PATH");
    command.env("OMP_NUM_THREADS", threads.to_string());
    said(command.arg(script(program)).args(args))
}

fn script(program: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../benches");
    folder.join(program)
}

fn said(command: &mut Command) -> Option<f64> {
    let output = command.output();
    let output = output.ok().filter(|output| output.status.success())?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().last()?.trim().parse().ok()
}

fn not_measured(
    peer: &str,
    python: &str,
    program: &str,
    out: &mut dyn Write,
) -> Result<(), BenchError> {
    writeln!(
        out,
        "{peer}: not measured; {python} lacks what benches/{program} names in its first lines \
         (choose another Python with --python)"
    )?;
    Ok(())
}
