//! `starling resume`: go on with a run.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::Training;
use crate::record::RunFolder;

use super::progress::Progress;
use super::train::{finish, stop_flag, write_log};

#[derive(clap::Args)]
pub(super) struct Args {
    /// Folder of the run
    run: PathBuf,
    /// Device instead of the run's own: auto, cpu, cuda:0
    #[arg(long)]
    device: Option<String>,
    /// Stop with a checkpoint after so many steps of the whole run
    #[arg(long, value_name = "STEPS")]
    stop_after: Option<u64>,
    /// No progress bar and no summary
    #[arg(long, short)]
    quiet: bool,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let folder = RunFolder::open_to_write(&args.run)?;
    let config = crate::read_config(&folder, args.device.as_deref())?;
    let stop = stop_flag()?;
    write_log(&folder)?;
    let mut progress = Progress::new(args.quiet);
    progress.begin(&config, folder.path());
    let (training, notes) = Training::resume(config, &folder)?;
    progress.replay(training.replay_memory());
    for note in notes {
        tracing::warn!("{note}");
        progress.warn(&note);
    }
    let outcome = training.run(&stop, args.stop_after, &mut progress)?;
    progress.end();
    Ok(finish(&outcome, folder.path(), args.quiet))
}
