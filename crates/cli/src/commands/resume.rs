//! `starling resume`: continues a run.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::record::RunFolder;
use crate::{Reason, Training};

use super::listen::Listen;
use super::numbers::whole;
use super::progress::Progress;
use super::train::{devices, finish, suggest_resume, write_log};
use super::{bf16, signals};

#[derive(clap::Args)]
pub(super) struct Args {
    /// Folder of the run
    run: PathBuf,
    /// Device to use instead of the run's: auto, cpu, cuda:0
    #[arg(long, value_parser = devices(), hide_possible_values = true)]
    device: Option<String>,
    /// Stop with a checkpoint when the whole run has made this many steps
    #[arg(long, value_name = "STEPS", value_parser = whole, allow_negative_numbers = true)]
    stop_after: Option<u64>,
    /// Print only the folder of the run: no progress bar and no summary
    #[arg(long, short)]
    quiet: bool,
    #[command(flatten)]
    listen: Listen,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let folder = RunFolder::open_to_write(&args.run)?;
    let mut config = super::read_config(&folder, args.device.as_deref())?;
    args.listen.adapt(&mut config, &folder);
    bf16::ensure(&mut config)?;
    let mut progress = Progress::new(args.quiet);
    let stop = signals::stop_flag(progress.speaker())?;
    write_log(&folder)?;
    progress.begin(&config, folder.path());
    let (training, notes) = Training::resume(config, &folder)?;
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
    let outcome = training.run(&stop, args.stop_after, &mut progress);
    // Actors are told that the run has ended.
    drop(gateway);
    progress.end(&outcome);
    let outcome = outcome.inspect_err(|_| suggest_resume(&folder))?;
    if outcome.status.env_steps == before && !args.quiet {
        let config = folder.config_path();
        let config = config.display();
        match outcome.reason {
            Reason::Finished => say!(
                "nothing to do: the run has made all its steps; to train longer, raise steps in \
                 {config}"
            ),
            Reason::Solved => say!(
                "nothing to do: the run has reached stop_at_return; to train longer, raise it or \
                 set it to null in {config}"
            ),
            Reason::Paused => {
                say!("nothing to do: the run has already made the steps of --stop-after")
            }
            Reason::Interrupted => {}
        }
    }
    Ok(finish(&outcome, folder.path(), args.quiet))
}
