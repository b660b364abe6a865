//! `starling actor`: collects for a learner in another process.

use std::num::NonZero;
use std::process::ExitCode;
use std::sync::atomic::Ordering;

use crate::cluster::{Fleet, run_actors};

use super::joining::{Joining, configure};
use super::numbers::at_least_one;

#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    joining: Joining,
    /// Places to take, each with its own thread; with --central, threads that step environments
    /// [default: one per core]
    #[arg(long, value_parser = at_least_one, allow_negative_numbers = true)]
    threads: Option<u64>,
    /// Take two places, choose the actions of both on one thread and step on the others: for a GPU
    #[arg(long)]
    central: bool,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let (line, stop) = args.joining.open("actor")?;
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    let threads = args.threads.map_or(cores, |threads| threads as usize);
    let central = args.central.then_some(threads);
    let fleet = match args.central {
        true => Fleet::Central,
        false => Fleet::Threads(threads),
    };
    run_actors(&line, fleet, &stop, |settings| {
        configure(settings, args.joining.device.as_deref(), central)
    })?;
    Ok(match stop.load(Ordering::Relaxed) && !line.is_closed() {
        true => 130.into(),
        false => ExitCode::SUCCESS,
    })
}
