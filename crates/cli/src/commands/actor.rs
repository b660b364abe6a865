//! `starling actor`: collects for a learner in another process.

use std::num::NonZero;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::Ordering;

use serde_json::{Value, json};

use crate::cluster::{Fleet, JoinFile, Line, Options, run_actors};
use crate::envs::ConfigError;
use crate::{EngineError, RunConfig};

use super::numbers::at_least_one;
use super::train::devices;
use super::{Usage, signals};

/// Where the join file, or its content, is if not on the command line.
const JOIN: &str = "STARLING_JOIN";

#[derive(clap::Args)]
pub(super) struct Args {
    /// Join file that `train --listen` wrote into the folder of its run [env: STARLING_JOIN, which
    /// may also hold the content of the file]
    #[arg(long, value_name = "FILE")]
    join: Option<PathBuf>,
    /// Places to take, each with its own thread; with --central threads that step [default: one per
    /// core]
    #[arg(long, value_parser = at_least_one, allow_negative_numbers = true)]
    threads: Option<u64>,
    /// Take two places, choose the actions of both on one thread and step on the others: for a GPU
    #[arg(long)]
    central: bool,
    /// Device of the policy: auto, cpu, cuda:0 [default: cpu if the run's is, else auto]
    #[arg(long, value_parser = devices(), hide_possible_values = true)]
    device: Option<String>,
    /// Seconds to look for a learner that does not answer
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    reconnect_seconds: u64,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    // The content is a secret, and other users see the arguments of a process.
    let join = match (args.join, std::env::var(JOIN)) {
        (Some(path), _) => JoinFile::read(&path)?,
        (None, Ok(given)) => JoinFile::find(&given)?,
        (None, Err(_)) => {
            let text = format!("give the join file of a run with --join or {JOIN}");
            return Err(Usage(text).into());
        }
    };
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_target(false)
        .log_internal_errors(false)
        .init();
    if join.certificate.is_none() {
        tracing::warn!("nothing between this actor and its learner is encrypted");
    }
    let stop = signals::stop_flag(|_| note!("giving the places back"))?;
    let options = Options {
        reconnect: std::time::Duration::from_secs(args.reconnect_seconds),
        ..Options::default()
    };
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    let threads = args.threads.map_or(cores, |threads| threads as usize);
    let line = Line::new(&join, options)?;
    let central = args.central.then_some(threads);
    let fleet = match args.central {
        true => Fleet::Central,
        false => Fleet::Threads(threads),
    };
    run_actors(&line, fleet, &stop, |settings| {
        configure(settings, args.device.as_deref(), central)
    })?;
    Ok(match stop.load(Ordering::Relaxed) && !line.is_closed() {
        true => 130.into(),
        false => ExitCode::SUCCESS,
    })
}

/// The settings of the run, but for the device, because this machine may have another one, and with
/// `--central` how many threads step.
fn configure(
    settings: &Value,
    device: Option<&str>,
    central: Option<usize>,
) -> Result<RunConfig, EngineError> {
    let mut settings = settings.clone();
    let env = settings["env"]["id"].as_str().unwrap_or_default();
    let installed = super::roms::ensure(env).and_then(|()| super::mujoco::ensure(env));
    installed.map_err(|error| ConfigError::Misfit(format!("{error:#}")))?;
    let device = match device {
        Some(device) => device,
        None if settings["device"] == "cpu" => "cpu",
        None => "auto",
    };
    crate::settings::merge(&mut settings, &json!({ "device": device }));
    if let Some(threads) = central {
        let most = settings["envs"].as_u64().unwrap_or(2) / 2;
        let threads = (threads as u64).min(most.max(1));
        crate::settings::merge(
            &mut settings,
            &json!({"mode": "central", "threads": threads}),
        );
    }
    RunConfig::from_value(&settings)
}
