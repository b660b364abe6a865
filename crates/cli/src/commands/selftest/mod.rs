//! `starling selftest`: does a device compute the same results as the CPU, in every mode, and do
//! algorithms learn on it?

mod group;
mod learning;

use std::process::ExitCode;
use std::sync::Mutex;

use anyhow::{Context as _, bail};
use starling_nets::{Device, DeviceChoice};

use crate::engine::{CollectiveLibrary, RunConfig, compare_collected, compare_devices};
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

    /// Run only one part: `compare` results with the CPU, `collect` with the actors of every mode, `learn`
    /// a task, or add up numbers with a `group` of processes
    #[arg(long, value_name = "PART")]
    only: Option<Check>,

    /// The library of the group: gloo, nccl, or mpi after `mpirun -n 2` [default: nccl on a GPU, else
    /// gloo]
    #[arg(long, value_name = "LIBRARY", value_parser = library)]
    collective: Option<CollectiveLibrary>,

    #[command(flatten)]
    member: group::Member,
}

fn library(text: &str) -> Result<CollectiveLibrary, String> {
    let named = serde_json::Value::from(text);
    serde_json::from_value(named).map_err(|_| "allowed: gloo, nccl, mpi".to_owned())
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Check {
    Compare,
    Collect,
    Learn,
    Group,
}

/// Steps of every environment in which collecting is compared.
const ROWS: usize = 40;

/// Modes whose actors have threads of their own. Serial actors are part of the first comparison.
const MODES: [&str; 2] = ["threads", "central"];

/// One comparison: an algorithm, an environment, settings.
#[derive(Clone, Copy)]
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
    let library = args.collective.unwrap_or(match device {
        Device::Cpu => CollectiveLibrary::Gloo,
        _ => CollectiveLibrary::Nccl,
    });
    if let Some(member) = args.member.given() {
        group::take_part(library, device, member)?;
        return Ok(ExitCode::SUCCESS);
    }
    let only_group = args.only == Some(Check::Group);
    if device == Device::Cpu && !only_group {
        say!("comparing the CPU with itself: this tests the program, not a GPU");
    }
    let mut failed = Vec::new();
    let wanted = |check| args.only.is_none_or(|only| only == check);
    if wanted(Check::Compare) {
        let differ = compare_all(&part, device)?;
        failed.extend(differ.into_iter().map(|case| format!("{case} differs")));
    }
    if wanted(Check::Collect) {
        let differ = collect_all(&part, device)?;
        failed.extend(differ.into_iter().map(|case| format!("{case} differs")));
    }
    if wanted(Check::Learn) {
        let device = args.device.to_string();
        let missed = learning::check(&algos, &device)?;
        failed.extend(
            missed
                .into_iter()
                .map(|algo| format!("{algo} did not learn")),
        );
    }
    if wanted(Check::Group) {
        failed.extend(group::check(library, device, &args.device.to_string())?);
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
        let compared = config(case, &[]);
        let compared = compared.and_then(|config| Ok(compare_devices(&config, device, UPDATES)?));
        let compared = compared.with_context(|| format!("{} on {task}", case.algo))?;
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

/// Lets the actors of every mode with threads collect on the CPU and on the device. Returns the cases
/// that differ.
fn collect_all(part: &str, device: Device) -> anyhow::Result<Vec<String>> {
    say!(
        "\n{:<16} {:<35} {:<8} {:>8} {:>8} {:>8} {:>12} {:>8}",
        "algorithm",
        "task",
        "mode",
        "steps",
        "actions",
        "records",
        "observations",
        "resident"
    );
    let cases = cases().filter(|case| case.algo.contains(part));
    let cases = cases.flat_map(|case| MODES.map(|mode| (case, mode)));
    let cases: Vec<(Case, &str)> = cases.collect();
    let failed = Mutex::new(Vec::new());
    at_once(&cases, 2, |(case, mode)| {
        let task = task_name(case);
        let (name, setting) = (
            format!("{} on {task}, {mode}", case.algo),
            format!("mode={mode}"),
        );
        let found = config(
            case,
            &[&setting, "threads=2", "envs=8", "asynchronous=false"],
        );
        let found = found.and_then(|config| Ok(compare_collected(&config, device, ROWS)?));
        let found = found.with_context(|| name.clone())?;
        let verdict = if found.agrees() { "" } else { "  DIFFERS" };
        say!(
            "{:<16} {:<35} {:<8} {:>8} {:>8.5} {:>8.5} {:>12} {:>8}{verdict}",
            case.algo,
            task,
            mode,
            found.steps,
            found.actions,
            found.records,
            found.observations + found.resident_wrong,
            found.resident
        );
        if let (false, Ok(mut failed)) = (found.agrees(), failed.lock()) {
            failed.push(name);
        }
        Ok(())
    })?;
    let failed = failed.into_inner().unwrap_or_default();
    let (count, agree) = (cases.len(), cases.len() - failed.len());
    say!("{agree} of {count} collect the same");
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

/// Every algorithm on MinAtar, or on Pendulum if its actions are continuous, PEARL on point robots; policy gradients also
/// with a memory, with continuous actions and with normalised observations; some on Atari, whose
/// frames are stacked on the device.
fn cases() -> impl Iterator<Item = Case> {
    let plain = crate::algos::registry::all().into_iter().map(|spec| {
        let (env, settings): (_, &[&str]) = match spec.name {
            // Trials of four short episodes, so that posteriors are compared too.
            "pearl" => (
                "SparsePointRobot-v0",
                &[
                    "env.train_tasks=8",
                    "algo.meta_batch=4",
                    "algo.batch_size=64",
                    "algo.learning_starts_steps=0",
                    "algo.prior_steps=40",
                    "algo.extra_steps=40",
                    "algo.context_next_obs=true",
                ],
            ),
            name if learning::is_discrete(name) => ("MinAtar/Breakout-v1", &[]),
            _ => ("Pendulum-v1", &[]),
        };
        Case {
            algo: spec.name,
            env,
            settings,
        }
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
    let simba = Case {
        algo: "sac",
        env: "Pendulum-v1",
        settings: &["algo.net.layers=residual"],
    };
    plain.chain(more).chain(frames).chain([simba])
}

fn task_name(case: &Case) -> String {
    let names = case.settings.iter().filter_map(|pair| {
        let (key, value) = pair.split_once('=')?;
        match key {
            "algo.net.lstm" => Some(format!(", LSTM of {value}")),
            "algo.net.normalize_observations" => Some(", normalised".to_owned()),
            "algo.net.layers" => Some(format!(", {value} layers")),
            _ => None,
        }
    });
    std::iter::once(case.env.to_owned()).chain(names).collect()
}

/// The settings of a comparison, with some `more`.
fn config(case: &Case, more: &[&str]) -> anyhow::Result<RunConfig> {
    let mut request = Request::new(case.env);
    request.algo = Some(case.algo.to_owned());
    request.preset = Some("none".to_owned());
    super::roms::ensure(case.env)?;
    let common = ["envs=8", "device=cpu", "torch_threads=1"];
    let all = common.iter().chain(case.settings).chain(more);
    request.overrides = all.map(|pair| (*pair).to_owned()).collect();
    let defaults = crate::algos::registry::find(case.algo)?.defaults();
    if defaults.get("capacity_steps").is_some() {
        let small = "algo.capacity_steps=20000".to_owned();
        request.overrides.push(small);
    }
    // Random actions would be the same on every device.
    for random in ["epsilon_start", "epsilon_end", "random_steps"] {
        if defaults.get(random).is_some() {
            request.overrides.push(format!("algo.{random}=0"));
        }
    }
    Ok(resolve(&request)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows of the table that look the same would hide which one differs.
    #[test]
    fn every_case_has_its_own_name() {
        let mut seen = std::collections::HashSet::new();
        for case in cases() {
            let name = format!("{} {}", case.algo, task_name(&case));
            assert!(seen.insert(name.clone()), "{name}");
        }
    }
}
