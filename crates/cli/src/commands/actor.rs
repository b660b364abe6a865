//! `starling actor`: collects for a learner in another process.

use std::num::NonZero;
use std::process::ExitCode;
use std::sync::atomic::Ordering;

use crate::cluster::{Fleet, Line, run_actors};

use super::Usage;
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
    let (lines, stop) = args.joining.open("actor")?;
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    let threads = args.threads.map_or(cores, |threads| threads as usize);
    if threads < lines.len() {
        let text = format!(
            "{threads} threads cannot serve {} learners: give --threads at least as many",
            lines.len()
        );
        return Err(Usage(text).into());
    }
    let serve = |line: &Line, threads: usize| {
        let fleet = match args.central {
            true => Fleet::Central,
            false => Fleet::Threads(threads),
        };
        let served = run_actors(line, fleet, &stop, |settings| {
            let central = args.central.then_some(threads);
            configure(settings, args.joining.device.as_deref(), central)
        });
        // A process that fails for one learner ends for all.
        served.inspect_err(|_| stop.store(true, Ordering::Relaxed))
    };
    let ended: Vec<_> = std::thread::scope(|scope| {
        let (each, more) = (threads / lines.len(), threads % lines.len());
        let serving = lines.iter().enumerate().map(|(at, line)| {
            let (serve, threads) = (&serve, each + usize::from(at < more));
            scope.spawn(move || serve(line, threads))
        });
        let serving: Vec<_> = serving.collect();
        let ended = serving.into_iter().map(|thread| match thread.join() {
            Ok(ended) => ended.map_err(anyhow::Error::from),
            Err(_) => Err(anyhow::anyhow!("a thread panicked")),
        });
        ended.collect()
    });
    ended.into_iter().collect::<anyhow::Result<()>>()?;
    let closed = lines.iter().all(Line::is_closed);
    Ok(match stop.load(Ordering::Relaxed) && !closed {
        true => 130.into(),
        false => ExitCode::SUCCESS,
    })
}
