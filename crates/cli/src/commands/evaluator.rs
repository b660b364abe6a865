//! `starling evaluator`: evaluates the newest weights of a learner in another process.

use std::process::ExitCode;
use std::sync::atomic::Ordering;

use crate::cluster::run_evaluator;

use super::Usage;
use super::joining::{Joining, configure};

#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    joining: Joining,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let (lines, stop) = args.joining.open("evaluator")?;
    // Learner 0 of a group has the evaluations.
    let [line] = &lines[..] else {
        return Err(Usage("an evaluator takes one join file".into()).into());
    };
    run_evaluator(line, &stop, |settings| {
        configure(settings, args.joining.device.as_deref(), None)
    })?;
    Ok(match stop.load(Ordering::Relaxed) && !line.is_closed() {
        true => 130.into(),
        false => ExitCode::SUCCESS,
    })
}
