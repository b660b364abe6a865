//! `starling learner`: one of the other learners of a run with `learners=N`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use crate::cluster::{ClusterError, Follower, Invitation, JoinFile, Options};
use crate::engine::Seat;
use crate::engine::group::{Assembly as _, GroupError, Word};
use crate::record::{Error, RunFolder};
use crate::{EngineError, RunConfig, Training};

use super::joining::{self, JOIN, ensure_installed};
use super::listen::Listen;
use super::numbers::at_least_one;
use super::train::{devices, write_log};
use super::{Usage, group, signals};

#[derive(clap::Args)]
pub(super) struct Args {
    /// Join file that `train learners=N --learners-at` wrote into the folder of its run [env:
    /// STARLING_JOIN, which may also hold the content of the file]
    #[arg(long, value_name = "FILE")]
    join: Option<PathBuf>,
    /// Folder for the log, the metrics and the checkpoints of this learner [default: learner-N]
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
    /// Rank of this learner [default: the lowest that is free]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    rank: Option<u64>,
    /// Device: auto, cpu, cuda:0 [default: cpu if the run uses the CPU, otherwise the GPU of this number]
    #[arg(long, value_parser = devices(), hide_possible_values = true)]
    device: Option<String>,
    /// Seconds to keep trying to reach learner 0 if it does not answer
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    reconnect_seconds: u64,
    /// Learners that share the cores of this machine
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = at_least_one)]
    beside: u64,
    /// Stop when this process, which started the program, ends
    #[arg(long, value_name = "PID", hide = true)]
    end_with: Option<u32>,
    /// Actors of this learner
    #[command(flatten)]
    listen: Listen,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    signals::end_with(args.end_with)?;
    let join = match (&args.join, std::env::var(JOIN)) {
        (None, _) if args.listen.is_launched() => joining::from_launcher()?,
        (Some(path), _) => JoinFile::read(path)?,
        (None, Ok(given)) => JoinFile::find(&given)?,
        (None, Err(_)) => {
            let text = format!("give the join file of a run with --join or {JOIN}");
            return Err(Usage(text).into());
        }
    };
    let stop = signals::stop_flag(|_| note!("leaving the group"))?;
    args.listen.obey(&stop)?;
    let mut logs = false;
    loop {
        let ended = learn(&args, &join, &stop, &mut logs);
        match ended {
            // If it was told to stop, or its learner 0 ended.
            Err(
                Trouble::Engine(EngineError::Group(GroupError::Away(_)))
                | Trouble::Cluster(ClusterError::Unreachable { .. }),
            ) if stop.load(Ordering::Relaxed) => return Ok(130.into()),
            // Learner 0 may be resumed from its checkpoint, or this process was suspended for longer
            // than learner 0 waits for signs of life.
            Err(Trouble::Engine(EngineError::Group(GroupError::Away(reason)))) => {
                tracing::warn!("learner 0 is gone: {reason}");
                note!("learner 0 does not answer; trying to reach it again");
            }
            Err(trouble) => return Err(trouble.into()),
            Ok(true) => return Ok(ExitCode::SUCCESS),
            Ok(false) => return Ok(130.into()),
        }
    }
}

/// The same as a learner that `mpirun` started. Signals are for learner 0, which tells the others.
pub(super) fn follow(
    join: &JoinFile,
    rank: usize,
    folder: PathBuf,
    beside: usize,
) -> anyhow::Result<bool> {
    let args = Args {
        join: None,
        folder: Some(folder),
        rank: Some(rank as u64),
        device: None,
        reconnect_seconds: 60,
        beside: beside as u64,
        end_with: None,
        listen: Listen::none(),
    };
    let _signals = signals::stop_flag(|_| ())?;
    match learn(&args, join, &AtomicBool::new(false), &mut false) {
        Ok(ended) => Ok(ended),
        Err(trouble) => Err(trouble.into()),
    }
}

enum Trouble {
    Engine(EngineError),
    Cluster(ClusterError),
    Here(anyhow::Error),
}

impl Trouble {
    fn text(&self) -> String {
        match self {
            Trouble::Engine(error) => error.to_string(),
            Trouble::Cluster(error) => error.to_string(),
            Trouble::Here(error) => format!("{error:#}"),
        }
    }
}

impl From<Trouble> for anyhow::Error {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Engine(error) => error.into(),
            Trouble::Cluster(error) => error.into(),
            Trouble::Here(error) => error,
        }
    }
}

impl From<EngineError> for Trouble {
    fn from(error: EngineError) -> Self {
        Trouble::Engine(error)
    }
}

impl From<ClusterError> for Trouble {
    fn from(error: ClusterError) -> Self {
        Trouble::Cluster(error)
    }
}

impl From<crate::record::Error> for Trouble {
    fn from(error: crate::record::Error) -> Self {
        Trouble::Engine(error.into())
    }
}

/// Joins, and learns until the run ends or learner 0 is gone. Returns whether the run has ended.
fn learn(
    args: &Args,
    join: &JoinFile,
    stop: &AtomicBool,
    logs: &mut bool,
) -> Result<bool, Trouble> {
    let options = Options {
        reconnect: std::time::Duration::from_secs(args.reconnect_seconds),
        ..Options::default()
    };
    let wanted = args.rank.map(|rank| rank as usize);
    let (mut follower, invitation) = Follower::join(join, wanted, options, stop)?;
    let path = match &args.folder {
        Some(path) => path.clone(),
        None => PathBuf::from(format!("learner-{}", invitation.rank)),
    };
    let training = begin(args, &path, &invitation, logs).and_then(|(training, folder)| {
        let opened = args
            .listen
            .open(training, &folder, |line| tracing::info!("{line}"));
        let (training, gateway) = opened.map_err(Trouble::Here)?;
        Ok((training, gateway, folder))
    });
    // The folder is locked for as long as it is used.
    let (training, gateway, _folder) = training.inspect_err(|trouble| {
        // If learner 0 is gone, there is nobody to tell.
        let _ = follower.say(Word::Failed(trouble.text()));
    })?;
    // Only the end of the run ends its actors.
    let stays = |stays| gateway.iter().for_each(|gateway| gateway.set_stays(stays));
    stays(true);
    let ended = training
        .with_group(Box::new(follower))
        .and_then(|training| training.run_in_group(stop));
    let goes_on = matches!(
        ended,
        Ok(false) | Err(EngineError::Group(GroupError::Away(_)))
    );
    stays(goes_on);
    Ok(ended?)
}

/// A learner from the checkpoint at which the run continues, or a new one.
fn begin(
    args: &Args,
    path: &Path,
    invitation: &Invitation,
    logs: &mut bool,
) -> Result<(Training, RunFolder), Trouble> {
    let mut config = configure(args, &invitation.settings, invitation.rank)?;
    config.seat = Seat {
        rank: invitation.rank,
        beside: args.beside as usize,
    };
    // Learner 0 evaluates.
    config.settings.eval.every_steps = 0;
    let folder = RunFolder::part(path)?;
    if !std::mem::replace(logs, true) {
        // The log is optional.
        let _ = write_log(&folder);
    }
    let known = invitation.resumed_at;
    match known.filter(|step| group::has_checkpoint(path, *step)) {
        Some(step) => {
            let resumed = Training::resume_where(config.clone(), &folder, &|at| at == step);
            match resumed {
                Ok((training, notes)) => {
                    notes.iter().for_each(|note| tracing::warn!("{note}"));
                    Ok((training, folder))
                }
                // The others have the weights.
                Err(
                    error @ (EngineError::Checkpoint { .. }
                    | EngineError::Record(
                        Error::Damaged(_) | Error::NoCheckpoint { .. } | Error::CsvShort { .. },
                    )),
                ) => {
                    tracing::warn!("the replay is empty: {error}");
                    set_aside(&folder.checkpoints_path())?;
                    Ok((Training::start(config, &folder)?, folder))
                }
                Err(error) => Err(error.into()),
            }
        }
        None => {
            // Those of a learner that was lost, whose experience this one does not have; or of another
            // run in the same folder, if a person started this learner.
            match args.end_with {
                Some(_) => drop(std::fs::remove_dir_all(folder.checkpoints_path())),
                None => set_aside(&folder.checkpoints_path())?,
            }
            if let Some(step) = known {
                tracing::warn!("there is no checkpoint of step {step} here: the replay is empty");
            }
            Ok((Training::start(config, &folder)?, folder))
        }
    }
}

/// Renames a folder that is in the way to the first free of `NAME.1`, `NAME.2`, ….
fn set_aside(folder: &Path) -> Result<(), Trouble> {
    if !folder.exists() {
        return Ok(());
    }
    let name = |number: u32| folder.with_extension(number.to_string());
    let free = (1..).map(name).find(|name: &PathBuf| !name.exists());
    let free = free.unwrap_or_else(|| name(0));
    tracing::warn!("{} becomes {}", folder.display(), free.display());
    let renamed = std::fs::rename(folder, &free);
    renamed.map_err(|source| {
        Trouble::Engine(EngineError::Save {
            step: 0,
            reason: format!("{} cannot be renamed: {source}", folder.display()),
        })
    })
}

/// The settings of the run, on a device of this machine.
fn configure(args: &Args, settings: &Value, rank: usize) -> Result<RunConfig, EngineError> {
    let mut settings = settings.clone();
    ensure_installed(&settings)?;
    let device = match (&args.device, crate::nets::cuda_devices()) {
        (Some(device), _) => Some(device.clone()),
        (None, 0 | 1) => None,
        (None, _) if settings["device"] == "cpu" => None,
        (None, devices) => Some(format!("cuda:{}", rank % devices)),
    };
    if let Some(device) = device {
        crate::settings::merge(&mut settings, &json!({ "device": device }));
    }
    RunConfig::from_value(&settings)
}
