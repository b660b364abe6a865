//! `starling selftest`: does a device compute the same results as the CPU, and do algorithms learn
//! on it?

mod learning;

use std::process::ExitCode;
use std::sync::Mutex;

use anyhow::{Context as _, bail};
use starling_nets::{Device, DeviceChoice};

use crate::engine::{Comparison, RunConfig, compare_devices};
use crate::settings::{Request, resolve};

use super::Usage;

/// Updates of each comparison: on a GPU the first ones are computed directly, later ones replay
/// what was recorded.
const UPDATES: usize = 10;

#[derive(clap::Args)]
pub(super) struct Args {
    /// The device to test, such as cuda:0; with cpu, only the program itself is tested
    #[arg(long, value_name = "DEVICE", default_value = "cuda:0")]
    device: DeviceChoice,

    /// Test only algorithms whose names contain this text
    #[arg(long, value_name = "NAME")]
    algo: Option<String>,

    /// Run only one part: `compare` results with the CPU, or `learn` a task
    #[arg(long, value_name = "PART")]
    only: Option<Half>,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Half {
    Compare,
    Learn,
}

/// One comparison: an algorithm, an environment, settings.
struct Case {
    algo: &'static str,
    env: &'static str,
    settings: &'static [&'static str],
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let part = args.algo.unwrap_or_default();
    let algos = crate::algos::registry::all().into_iter();
    let algos: Vec<&str> = algos
        .map(|spec| spec.name)
        .filter(|name| name.contains(&part))
        .collect();
    if algos.is_empty() {
        return Err(Usage(format!("no algorithm's name contains '{part}'")).into());
    }
    let device = args.device.resolve()?;
    if device == Device::Cpu {
        say!("comparing the CPU with itself: this tests the program, not a GPU");
    }
    let mut failed = Vec::new();
    if args.only != Some(Half::Learn) {
        let differ = compare_all(&part, device)?;
        failed.extend(differ.into_iter().map(|case| format!("{case} differs")));
    }
    if args.only != Some(Half::Compare) {
        let device = args.device.to_string();
        let missed = learning::check(&algos, &device)?;
        failed.extend(
            missed
                .into_iter()
                .map(|algo| format!("{algo} did not learn")),
        );
    }
    if !failed.is_empty() {
        bail!("{}", failed.join(", "));
    }
    Ok(ExitCode::SUCCESS)
}

/// Compares every case with the CPU. Returns those that differ.
fn compare_all(part: &str, device: Device) -> anyhow::Result<Vec<String>> {
    say!(
        "{:<16} {:<35} {:>8} {:>8} {:>8} {:>8} {:>8}",
        "algorithm",
        "task",
        "weights",
        "rounding",
        "loss",
        "actions",
        "records"
    );
    let cases: Vec<Case> = cases().filter(|case| case.algo.contains(part)).collect();
    let failed = Mutex::new(Vec::new());
    if !starling_nets::staging_works(device) {
        bail!("{device:?} does not see what is written into its staging memory");
    }
    at_once(&cases, 2, |case| {
        let task = task_name(case);
        let compared = compare(case, device).with_context(|| format!("{} on {task}", case.algo))?;
        let verdict = if compared.agrees() { "" } else { "  DIFFERS" };
        say!(
            "{:<16} {:<35} {:>8.5} {:>8.5} {:>8.5} {:>8.5} {:>8.5}{verdict}",
            case.algo,
            task,
            compared.weights,
            compared.rounding.0,
            compared.loss,
            compared.actions,
            compared.records
        );
        if let (false, Ok(mut failed)) = (compared.agrees(), failed.lock()) {
            failed.push(format!("{} on {task}", case.algo));
        }
        Ok(())
    })?;
    let failed = failed.into_inner().unwrap_or_default();
    let (count, agree) = (cases.len(), cases.len() - failed.len());
    say!("{agree} of {count} agree after {UPDATES} updates each");
    Ok(failed)
}

/// Does some work for each of the items, with a thread for every `cores` cores.
fn at_once<T: Sync>(
    items: &[T],
    cores: usize,
    work: impl Fn(&T) -> anyhow::Result<()> + Sync,
) -> anyhow::Result<()> {
    let all = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    let todo = Mutex::new(items.iter());
    let next = || todo.lock().ok().and_then(|mut todo| todo.next());
    let work = || -> anyhow::Result<()> {
        while let Some(item) = next() {
            let done = work(item);
            if let (Err(_), Ok(mut todo)) = (&done, todo.lock()) {
                // The others end with what they are at.
                *todo = [].iter();
            }
            done?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads = (0..(all / cores).max(1)).map(|_| scope.spawn(work));
        let threads: Vec<_> = threads.collect();
        for thread in threads {
            let done = thread.join();
            done.map_err(|_| anyhow::anyhow!("a thread of the test panicked"))??;
        }
        Ok(())
    })
}

/// Every algorithm on MinAtar, or on Pendulum if its actions are continuous; policy gradients also
/// with a memory, with continuous actions and with normalised observations; some on Atari, whose
/// frames are stacked on the device.
fn cases() -> impl Iterator<Item = Case> {
    let plain = crate::algos::registry::all().into_iter().map(|spec| Case {
        algo: spec.name,
        env: match learning::is_discrete(spec.name) {
            true => "MinAtar/Breakout-v1",
            false => "Pendulum-v1",
        },
        settings: &[],
    });
    let policies = ["a2c", "ppo", "appo", "impala"];
    let variants: [(&str, &[&str]); 2] = [
        ("MinAtar/Breakout-v1", &["algo.net.lstm=32"]),
        ("Pendulum-v1", &["algo.net.normalize_observations=true"]),
    ];
    let more = policies.into_iter().flat_map(move |algo| {
        variants.into_iter().map(move |(env, settings)| Case {
            algo,
            env,
            settings,
        })
    });
    let frames: [(&str, &[&str]); 3] = [
        ("ppo", &["envs=2", "algo.rollout_steps=16"]),
        ("dqn", &["envs=2", "algo.batch_size=16"]),
        ("r2d2", &["envs=2", "algo.batch_size=2"]),
    ];
    let frames = frames.map(|(algo, settings)| Case {
        algo,
        env: "ALE/Pong-v5",
        settings,
    });
    plain.chain(more).chain(frames)
}

fn task_name(case: &Case) -> String {
    let names = case.settings.iter().filter_map(|pair| {
        let (key, value) = pair.split_once('=')?;
        match key {
            "algo.net.lstm" => Some(format!(", LSTM of {value}")),
            "algo.net.normalize_observations" => Some(", normalised".to_owned()),
            _ => None,
        }
    });
    std::iter::once(case.env.to_owned()).chain(names).collect()
}

fn compare(case: &Case, device: Device) -> anyhow::Result<Comparison> {
    let mut request = Request::new(case.env);
    request.algo = Some(case.algo.to_owned());
    request.preset = Some("none".to_owned());
    super::roms::ensure(case.env)?;
    let common = ["envs=8", "device=cpu", "torch_threads=1"];
    let all = common.iter().chain(case.settings);
    request.overrides = all.map(|pair| (*pair).to_owned()).collect();
    let defaults = crate::algos::registry::find(case.algo)?.defaults();
    if defaults.get("capacity_steps").is_some() {
        let small = "algo.capacity_steps=20000".to_owned();
        request.overrides.push(small);
    }
    // Random actions would be the same on every device.
    for epsilon in ["epsilon_start", "epsilon_end"] {
        if defaults.get(epsilon).is_some() {
            request.overrides.push(format!("algo.{epsilon}=0"));
        }
    }
    let config: RunConfig = resolve(&request)?;
    Ok(compare_devices(&config, device, UPDATES)?)
}
