//! Common to all processes that join a run: join file, logging, settings of the run.

use std::io::BufRead as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use serde_json::{Value, json};

use crate::cluster::{JoinFile, Line, Options};
use crate::envs::ConfigError;
use crate::{EngineError, RunConfig};

use super::train::devices;
use super::{Usage, signals};

/// Where the join file, or its content, is if not on the command line.
pub(super) const JOIN: &str = "STARLING_JOIN";

#[derive(clap::Args)]
pub(super) struct Joining {
    /// Join file that `train --listen` wrote into the folder of its run [env: STARLING_JOIN, which
    /// may also hold the content of the file]. An actor may serve several learners of a group: give
    /// this once for each of them
    #[arg(long, value_name = "FILE")]
    join: Vec<PathBuf>,
    /// Device of the policy: auto, cpu, cuda:0 [default: cpu if the run uses the CPU, otherwise auto]
    #[arg(long, value_parser = devices(), hide_possible_values = true)]
    pub(super) device: Option<String>,
    /// Seconds to keep trying to reach a learner that does not answer
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    reconnect_seconds: u64,
    /// Read the content of the join file from the first line of standard input, and stop when that
    /// ends or nothing was read from it for so long: `starling launch` starts processes so
    #[arg(long, value_name = "SECONDS", hide = true, value_parser = signals::heartbeat_timeout, conflicts_with = "join")]
    launched: Option<Duration>,
    /// Stop when this process, which started the program, ends
    #[arg(long, value_name = "PID", hide = true)]
    end_with: Option<u32>,
}

impl Joining {
    /// A line to each learner, and a flag that says that this process is to end.
    pub(super) fn open(&self, who: &str) -> anyhow::Result<(Vec<Line>, Arc<AtomicBool>)> {
        signals::end_with(self.end_with)?;
        let joins = self.read()?;
        tracing_subscriber::fmt()
            .with_writer(std::io::stderr)
            .with_ansi(false)
            .with_target(false)
            .log_internal_errors(false)
            .init();
        if joins
            .iter()
            .any(|join| !join.is_encrypted() && !join.is_near())
        {
            tracing::warn!("nothing between this {who} and its learner is encrypted");
        }
        let stop = signals::stop_flag(|_| note!("leaving the run"))?;
        if let Some(limit) = self.launched {
            signals::end_with_launcher(&stop, limit)?;
        }
        let options = Options {
            reconnect: Duration::from_secs(self.reconnect_seconds),
            ..Options::default()
        };
        let lines = joins.iter().map(|join| Line::new(join, options));
        Ok((lines.collect::<Result<_, _>>()?, stop))
    }

    fn read(&self) -> anyhow::Result<Vec<JoinFile>> {
        if self.launched.is_some() {
            return Ok(vec![from_launcher()?]);
        }
        // The content is a secret, and other users see the arguments of a process.
        match (&self.join[..], std::env::var(JOIN)) {
            ([], Ok(given)) => Ok(vec![JoinFile::find(&given)?]),
            ([], Err(_)) => {
                let text = format!("give the join file of a run with --join or {JOIN}");
                Err(Usage(text).into())
            }
            (paths, _) => {
                let read = paths.iter().map(|path| JoinFile::read(path));
                Ok(read.collect::<Result<_, _>>()?)
            }
        }
    }
}

/// The join file that `starling launch` writes to the standard input of a process.
pub(super) fn from_launcher() -> anyhow::Result<JoinFile> {
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line)?;
    Ok(JoinFile::find(&line)?)
}

/// Installs what the environment of these settings needs.
pub(super) fn ensure_installed(settings: &Value) -> Result<(), EngineError> {
    let env = settings["env"]["id"].as_str().unwrap_or_default();
    let installed = super::roms::ensure(env).and_then(|()| super::mujoco::ensure(env));
    Ok(installed.map_err(|error| ConfigError::Misfit(format!("{error:#}")))?)
}

/// The settings of the run, except for the device of this machine and, with `central`, the number of
/// threads that step.
pub(super) fn configure(
    settings: &Value,
    device: Option<&str>,
    central: Option<usize>,
) -> Result<RunConfig, EngineError> {
    let mut settings = settings.clone();
    ensure_installed(&settings)?;
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
