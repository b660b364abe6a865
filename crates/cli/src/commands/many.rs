//! Many runs: what `starling sweep`, `starling queue` and `starling train --seeds` share.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::queue::{Finished, Gpus, Plan, Queue, Said, Slot, Sweep, What, slots};

use super::numbers::at_least_one;
use super::{caller, signals};

/// Where runs are made.
#[derive(clap::Args)]
pub(super) struct Places {
    /// Runs at the same time; each gets its share of the cores [default: one per GPU, or one per
    /// two cores]
    #[arg(long, value_name = "N", value_parser = at_least_one, allow_negative_numbers = true)]
    slots: Option<u64>,
    /// GPUs to use, such as 0,1 (as CUDA_VISIBLE_DEVICES names them) [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    gpus: Vec<String>,
    /// Runs that share a GPU
    #[arg(
        long,
        value_name = "N",
        default_value = "1",
        value_parser = at_least_one,
        allow_negative_numbers = true
    )]
    per_gpu: u64,
    /// How often a failed run is resumed before it counts as failed
    #[arg(long, value_name = "N", default_value_t = 1)]
    retries: u32,
    /// Show the runs and slots without starting anything
    #[arg(long)]
    dry_run: bool,
}

impl Places {
    /// This many slots, or the usual number.
    pub(super) fn of(slots: Option<u64>) -> Self {
        Self {
            slots,
            gpus: Vec::new(),
            per_gpu: 1,
            retries: 1,
            dry_run: false,
        }
    }

    fn gpus(&self) -> Gpus {
        let visible = || match std::env::var("CUDA_VISIBLE_DEVICES") {
            Ok(list) => list.split(',').map(|gpu| gpu.trim().to_owned()).collect(),
            Err(_) => (0..starling_nets::cuda_devices())
                .map(|gpu| gpu.to_string())
                .collect(),
        };
        let names: Vec<String> = match self.gpus.is_empty() {
            false => self.gpus.clone(),
            true if starling_nets::cuda_devices() == 0 => Vec::new(),
            true => visible(),
        };
        Gpus {
            names,
            per_gpu: self.per_gpu as usize,
        }
    }

    /// The slots for at most this many runs at a time.
    pub(super) fn slots(&self, most: usize) -> Vec<Slot> {
        let gpus = self.gpus();
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let usual = match gpus.names.len() {
            0 => (cores / 2).max(1),
            known => known * gpus.per_gpu,
        };
        let count = self.slots.map_or(usual, |slots| slots as usize);
        slots(count.min(most).max(1), &gpus)
    }
}

/// Carries out a sweep in a folder and prints what it reached.
pub(super) fn run(sweep: &Sweep, folder: &Path, places: &Places) -> anyhow::Result<ExitCode> {
    fetch(sweep)?;
    let plan = Plan::of(sweep)?;
    let trials = plan.trials();
    let slots = places.slots(trials.len());
    note!("{} in {}", count(trials.len(), "run"), folder.display());
    for (number, slot) in slots.iter().enumerate() {
        note!("slot {}: {slot}", number + 1);
    }
    if places.dry_run {
        for trial in trials {
            say!("{}", plan.name_of(trial));
        }
        return Ok(ExitCode::SUCCESS);
    }
    let stop = signals::stop_flag_with("stopping: all runs save a checkpoint", |line| {
        note!("{line}");
    })?;
    let program = std::env::current_exe()?;
    let queue = Queue::open(folder, plan, slots, program, places.retries, &stop)?;
    let finished = queue.run(&|said| tell(&said))?;
    let report = queue.report()?;
    let paths = report.write(folder)?;
    say!("{}", report.table());
    for (setting, correlation) in &report.importance {
        say!("{setting}: rank correlation with the score {correlation:+.2}");
    }
    if let Some(best) = report.best() {
        say!("best: {}", best.variant.name);
    }
    for path in paths {
        say!("{}", path.display());
    }
    Ok(match finished {
        Finished::All => ExitCode::SUCCESS,
        Finished::SomeFailed => ExitCode::FAILURE,
        Finished::Interrupted => {
            note!(
                "interrupted; the same command continues: {}",
                caller::command()
            );
            ExitCode::from(130)
        }
    })
}

/// Fetches what the environments need before any settings are checked.
fn fetch(sweep: &Sweep) -> anyhow::Result<()> {
    for env in sweep.envs() {
        super::roms::ensure(&env)?;
        super::mujoco::ensure(&env)?;
    }
    Ok(())
}

fn tell(said: &Said<'_>) {
    match said {
        Said::Started {
            name,
            slot,
            continued,
        } => {
            let how = if *continued { "continues" } else { "starts" };
            note!("{name} {how} in slot {slot}");
        }
        Said::Ended {
            name,
            event,
            done,
            of,
        } => {
            let score = |score: &Option<f64>| {
                score.map_or("no episode ended".to_owned(), |score| {
                    format!("score {score:.1}")
                })
            };
            let how = match &event.what {
                What::Finished { score: reached } => format!("finished: {}", score(reached)),
                What::Paused { score: reached } => format!("paused: {}", score(reached)),
                What::Failed { reason, last: true } => format!("failed: {reason}"),
                What::Failed { reason, .. } => format!("failed, will be retried: {reason}"),
                _ => "interrupted".to_owned(),
            };
            note!("[{done}/{of}] {name} {how}, {:.0} s", event.seconds);
        }
    }
}

/// The folder of a queue: the one that was asked for, or one by its name.
pub(super) fn folder_of(out: Option<PathBuf>, name: &str) -> PathBuf {
    out.unwrap_or_else(|| Path::new("runs").join("queues").join(name))
}

fn count(number: usize, what: &str) -> String {
    match number {
        1 => format!("1 {what}"),
        _ => format!("{number} {what}s"),
    }
}
