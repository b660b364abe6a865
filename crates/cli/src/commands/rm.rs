//! `starling rm`: deletes runs.

use std::io::{BufRead as _, IsTerminal as _};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;

use super::Usage;
use crate::record::RunFolder;

#[derive(clap::Args)]
pub(super) struct Args {
    /// Runs: their folders, prefixes of their names, or last
    #[arg(required = true, value_name = "RUN")]
    runs: Vec<PathBuf>,
    /// Do not ask for confirmation
    #[arg(long, short)]
    yes: bool,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    // All of them are looked for before the first is deleted.
    let mut runs = Vec::new();
    for run in &args.runs {
        let run = super::find_run(run)?;
        if !runs.contains(&run) {
            runs.push(run);
        }
    }
    if !args.yes {
        if !std::io::stdin().is_terminal() {
            let text =
                "refusing to delete without confirmation: stdin is not a terminal; pass --yes";
            return Err(Usage(text.into()).into());
        }
        for run in &runs {
            note!("{}", run.display());
        }
        let what = match runs.len() {
            1 => "this run".to_owned(),
            count => format!("these {count} runs"),
        };
        note!("Delete {what} with all checkpoints? [y/N]");
        let mut answer = String::new();
        std::io::stdin().lock().read_line(&mut answer)?;
        if !["y", "yes"].contains(&answer.trim().to_lowercase().as_str()) {
            note!("nothing was deleted");
            return Ok(ExitCode::FAILURE);
        }
    }
    // Locked: a run that is being written to is refused, and none is deleted.
    let folders: Result<Vec<_>, _> = runs
        .iter()
        .map(|run| RunFolder::open_to_write(run))
        .collect();
    for folder in folders? {
        let path = folder.path();
        std::fs::remove_dir_all(path)
            .with_context(|| format!("{} could not be deleted", path.display()))?;
        // The folders of its algorithm and environment, if it was the last one there.
        for parent in path.ancestors().skip(1).take(2) {
            if std::fs::remove_dir(parent).is_err() {
                break;
            }
        }
        say!("deleted {}", path.display());
    }
    Ok(ExitCode::SUCCESS)
}
