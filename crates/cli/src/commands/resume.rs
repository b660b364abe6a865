//! `starling resume`: continues a run.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::record::RunFolder;
use crate::{Reason, RunConfig};

use super::group::{self, Others};
use super::listen::Listen;
use super::numbers::whole;
use super::own_evaluator::OwnEvaluator;
use super::progress::Progress;
use super::train::{devices, finish, setting_names, suggest_resume, write_log};
use super::{bf16, caller, dashboard, mpi, signals};

#[derive(clap::Args)]
pub(super) struct Args {
    /// Run: its folder, a prefix of its name, or last
    run: PathBuf,
    /// Settings to change from here on, such as steps=2e6: they are written to the run's config.yaml
    #[arg(
        value_name = "KEY=VALUE",
        value_parser = setting_names(),
        hide_possible_values = true
    )]
    changes: Vec<String>,
    /// Device to use instead of the run's: auto, cpu, cuda:0
    #[arg(long, value_parser = devices(), hide_possible_values = true)]
    device: Option<String>,
    /// Stop with a checkpoint when the whole run has made this many steps
    #[arg(long, value_name = "STEPS", value_parser = whole, allow_negative_numbers = true)]
    stop_after: Option<u64>,
    /// Print only the folder of the run: no progress bar and no summary
    #[arg(long, short)]
    quiet: bool,
    /// Show this run in a browser while it trains [default port: any free one]
    #[arg(long, value_name = "PORT", num_args = 0..=1, require_equals = true, default_missing_value = "0")]
    dashboard: Option<u16>,
    /// Stop when this process, which started the program, ends
    #[arg(long, value_name = "PID", hide = true)]
    end_with: Option<u32>,
    #[command(flatten)]
    listen: Listen,
    #[command(flatten)]
    others: Others,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    signals::end_with(args.end_with)?;
    let run = super::find_run(&args.run)?;
    let world = mpi::World::of_run(&run, &args.changes)?;
    if let Some(follower) = world.filter(mpi::World::follows) {
        return follower.follow();
    }
    let folder = RunFolder::open_to_write(&run)?;
    let mut config = super::read_config(&folder, args.device.as_deref())?;
    let changed = match args.changes.as_slice() {
        [] => None,
        changes => Some(crate::read_changed_config(&folder, changes)?),
    };
    if let Some(changed) = &changed {
        config = changed.clone();
        if let Some(device) = args.device.as_deref() {
            config = with_device(config, device)?;
        }
    }
    args.listen.adapt(&mut config, &folder);
    bf16::ensure(&mut config)?;
    args.others.adapt(&mut config, &args.listen)?;
    let mut progress = Progress::new(args.quiet);
    let stop = signals::stop_flag(progress.speaker())?;
    args.listen.obey(&stop)?;
    let asked = signals::checkpoint_flag()?;
    write_log(&folder)?;
    progress.begin(&config, folder.path());
    if let Some(port) = args.dashboard {
        let run = folder.path();
        dashboard::beside(run, port, Some(run), |line| note!("{line}"))?;
    }
    let (training, notes) = group::resume(config, &folder)?;
    // Only now: settings that the run cannot continue with leave it as it was.
    if let Some(changed) = changed {
        let settings = changed.to_value();
        folder.write_config(&crate::settings::to_yaml(&settings))?;
        folder.write_params(&settings)?;
    }
    let before = training.status().env_steps;
    progress.resumed(before);
    progress.replay(training.replay_memory());
    for note in notes {
        tracing::warn!("{note}");
        progress.warn(&note);
    }
    let (training, gateway) = args
        .listen
        .open(training, &folder, |line| progress.say(line))?;
    let training = training.with_checkpoints_on_request(asked);
    let evaluator = OwnEvaluator::start(&training, &folder)?;
    let (training, learners) =
        args.others
            .gather(training, &folder, Some(before), &args.listen, |line| {
                progress.say(line)
            })?;
    let outcome = training.run(&stop, args.stop_after, &mut progress);
    // Actors, evaluators and other learners are told that the run has ended.
    drop((gateway, evaluator, learners));
    progress.end(&outcome);
    let outcome = outcome.inspect_err(|_| suggest_resume(&folder))?;
    world.map_or(Ok(()), mpi::World::end)?;
    if outcome.status.env_steps == before && !args.quiet {
        let again = format!("{} resume {}", caller::name(), caller::path(folder.path()));
        match outcome.reason {
            Reason::Finished => say!(
                "nothing to do: the run has made all its steps; to train longer, give more: {again} \
                 steps={}",
                2 * outcome.status.total_steps
            ),
            Reason::Solved => say!(
                "nothing to do: the run has reached stop_at_return; to train longer: {again} \
                 stop_at_return=null"
            ),
            Reason::Paused => {
                say!("nothing to do: the run has already made the steps of --stop-after")
            }
            Reason::Interrupted => {}
        }
    }
    Ok(finish(&outcome, folder.path(), args.quiet))
}

fn with_device(config: RunConfig, device: &str) -> anyhow::Result<RunConfig> {
    let mut settings = config.to_value();
    crate::settings::merge(&mut settings, &serde_json::json!({ "device": device }));
    Ok(RunConfig::from_value(&settings)?)
}
