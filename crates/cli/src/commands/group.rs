//! `learners=N`: a run whose learner is one of several.

use std::fs::OpenOptions;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use crate::cluster::{Identity, JoinFile, Lead, Options};
use crate::engine::group::{Table, Word};
use crate::engine::{CollectiveLibrary, Seat};
use crate::record::{Error, RunFolder};
use crate::{EngineError, RunConfig, Training};

use super::listen::{self, Listen, bind, reachable, with_port};
use super::{Usage, caller, mpi};

/// What `starling learner` reads, in the run's folder.
const JOIN_FILE: &str = "learners.json";
/// The certificate's key.
const KEY_FILE: &str = "learners.key";

/// A port of this machine.
const HERE: &str = "127.0.0.1:0";

/// Delay before a lost learner is restarted.
const PAUSE: Duration = Duration::from_millis(500);

/// Polling interval of the processes.
const LOOK: Duration = Duration::from_millis(20);

/// How long processes may take to end with the run.
const FAREWELL: Duration = Duration::from_secs(10);

#[derive(clap::Args)]
#[command(next_help_heading = "Learners in other processes")]
pub(super) struct Others {
    /// With learners=N: listen at this address for the other learners, which join with `starling
    /// learner`, instead of starting them on this machine: 0.0.0.0:7788
    #[arg(long, value_name = "ADDRESS")]
    learners_at: Option<String>,
    /// Also write a copy of the join file of the learners to this path
    #[arg(long, value_name = "FILE", requires = "learners_at")]
    learners_file: Option<PathBuf>,
}

impl Others {
    /// Checks and adapts the settings before the learner is created.
    pub(super) fn adapt(&self, config: &mut RunConfig, listen: &Listen) -> anyhow::Result<()> {
        let learners = config.settings.learners;
        if learners == 1 {
            return match self.learners_at {
                None => Ok(()),
                Some(_) => {
                    Err(Usage("--learners-at needs several learners: learners=2".into()).into())
                }
            };
        }
        if listen.is_given() && config.settings.collective == CollectiveLibrary::Mpi {
            let text = "--listen needs collective=gloo or nccl: with MPI, the actors of a learner are in \
                        its process";
            return Err(Usage(text.into()).into());
        }
        let beside = match (config.settings.collective, &self.learners_at) {
            (CollectiveLibrary::Mpi, _) => mpi::beside(),
            (_, None) => learners,
            (_, Some(_)) => 1,
        };
        config.seat = Seat { rank: 0, beside };
        Ok(())
    }

    /// Lets the other learners join a run, and starts those on this machine. Drop the result when the
    /// run has ended.
    pub(super) fn gather(
        &self,
        training: Training,
        folder: &RunFolder,
        resumed_at: Option<u64>,
        listen: &Listen,
        say: impl Fn(&str),
    ) -> anyhow::Result<(Training, Option<Processes>)> {
        let settings = training.config().settings.clone();
        if settings.learners == 1 {
            return Ok((training, None));
        }
        let (join, key) = (folder.path().join(JOIN_FILE), folder.path().join(KEY_FILE));
        let identity = match (listen.identity()?, Identity::read(&join, &key)?) {
            (Some(identity), _) | (None, Some(identity)) => identity,
            (None, None) => Identity::new(true)?,
        };
        let listener = bind(self.learners_at.as_deref().unwrap_or(HERE), &join)?;
        let at = listener.local_addr()?;
        let host = reachable(at);
        let address: IpAddr = host.parse().unwrap_or(at.ip());
        let value = training.config().to_value();
        let options = Options::default();
        let lead = Lead::listen(
            listener,
            address,
            identity.clone(),
            &value,
            resumed_at,
            options,
        )?;
        identity.write(with_port(&host, at.port()), &join, &key)?;
        if let Some(copy) = &self.learners_file {
            JoinFile::read(&join)?.write(copy)?;
        }
        if listen.is_launched() {
            let run = folder.path().display().to_string();
            let file = JoinFile::read(&join)?;
            say!("{}", serde_json::json!({"run": run, "learners": file}));
        }
        let table = lead.table();
        let by_mpi = settings.collective == CollectiveLibrary::Mpi;
        let processes = match self.learners_at {
            _ if by_mpi => {
                mpi::invite(&join, folder.path())?;
                None
            }
            None => {
                let ranks = 1..settings.learners;
                let start = Start {
                    program: std::env::current_exe()
                        .context("cannot find the path of the running program")?,
                    folder: folder.path().to_owned(),
                    join,
                    learners: settings.learners,
                    listen: ranks
                        .clone()
                        .map(|rank| listen.arguments_of(rank))
                        .collect(),
                };
                for rank in ranks.filter(|_| listen.is_given()) {
                    let join = learner_folder(folder.path(), rank).join(listen::JOIN_FILE);
                    say(&format!(
                        "  {} actor --join {}",
                        caller::name(),
                        caller::path(&join)
                    ));
                }
                let losses = settings.max_learner_losses;
                Some(Processes::start(start, table, losses)?)
            }
            Some(_) => {
                tracing::info!("learners join at {}", SocketAddr::new(address, at.port()));
                let others = match settings.learners - 1 {
                    1 => "1 learner".to_owned(),
                    others => format!("{others} learners"),
                };
                say(&format!(
                    "waiting for {others} at {host}:{}; start with:",
                    at.port()
                ));
                say(&format!(
                    "  {} learner --join {}",
                    caller::name(),
                    caller::path(&join)
                ));
                say("warning: gradients and weights travel between learners without protection");
                None
            }
        };
        Ok((training.with_group(Box::new(lead))?, processes))
    }
}

/// Resumes a run from the latest checkpoint that all its learners have, otherwise from the latest of
/// learner 0: all learners have the same weights.
pub(super) fn resume(
    config: RunConfig,
    folder: &RunFolder,
) -> Result<(Training, Vec<String>), EngineError> {
    let complete = |step| all_have(folder, &config, step);
    let resumed = Training::resume_where(config.clone(), folder, &complete);
    match resumed {
        Err(EngineError::Record(Error::NoCheckpoint { .. })) if config.settings.learners > 1 => {
            Training::resume(config, folder)
        }
        resumed => resumed,
    }
}

/// Whether all learners of this machine have a checkpoint of a step. Those of other machines know it
/// themselves.
fn all_have(folder: &RunFolder, config: &RunConfig, step: u64) -> bool {
    let folders = (1..config.settings.learners).map(|rank| learner_folder(folder.path(), rank));
    let mut here = folders.filter(|folder| folder.exists());
    here.all(|folder| has_checkpoint(&folder, step))
}

/// Whether there is a complete checkpoint of a step.
pub(super) fn has_checkpoint(folder: &Path, step: u64) -> bool {
    let checkpoint = folder.join("checkpoints").join(format!("{step:012}"));
    checkpoint.join("manifest.json").is_file()
}

pub(super) fn learner_folder(run: &Path, rank: usize) -> PathBuf {
    run.join("learners").join(rank.to_string())
}

/// The other learners of a run on this machine. They end with it.
pub(super) struct Processes {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// How they are started.
struct Start {
    program: PathBuf,
    folder: PathBuf,
    join: PathBuf,
    learners: usize,
    /// How each of them listens for its actors.
    listen: Vec<Vec<String>>,
}

impl Start {
    fn spawn(&self, rank: usize) -> std::io::Result<Child> {
        let folder = learner_folder(&self.folder, rank);
        std::fs::create_dir_all(&folder)?;
        let mut log = OpenOptions::new();
        let log = log.create(true).append(true).open(self.errors(rank))?;
        Command::new(&self.program)
            .arg("learner")
            .args(["--rank", &rank.to_string()])
            .args(["--beside", &self.learners.to_string()])
            .args(["--end-with", &std::process::id().to_string()])
            .arg("--join")
            .arg(&self.join)
            .arg("--folder")
            .arg(folder)
            .args(self.listen.get(rank - 1).into_iter().flatten())
            // Ctrl-C goes only to learner 0, which tells the others.
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
    }

    /// The standard error of a learner.
    fn errors(&self, rank: usize) -> PathBuf {
        learner_folder(&self.folder, rank).join("errors.txt")
    }

    /// Its last line.
    fn last_words(&self, rank: usize) -> String {
        let text = std::fs::read_to_string(self.errors(rank)).unwrap_or_default();
        text.lines().last().unwrap_or_default().to_owned()
    }
}

impl Processes {
    fn start(start: Start, table: Arc<Table>, losses: u64) -> anyhow::Result<Self> {
        let mut children = Vec::new();
        for rank in 1..start.learners {
            let child = start.spawn(rank);
            children.push((rank, Some(child.context("a learner could not be started")?)));
        }
        let over = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&over);
        let watch = move || watch(&start, &table, children, losses, &told);
        let thread = std::thread::Builder::new().name("learners".into());
        Ok(Self {
            over,
            thread: Some(thread.spawn(watch)?),
        })
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It returns nothing.
            let _ = thread.join();
        }
    }
}

/// Restarts learners that were killed. A learner that exited with an error would fail again, so that
/// ends the run.
fn watch(
    start: &Start,
    table: &Table,
    mut children: Vec<(usize, Option<Child>)>,
    losses: u64,
    over: &AtomicBool,
) {
    let mut restarts = 0;
    while !over.load(Ordering::Relaxed) && !table.is_closed() {
        for (rank, child) in &mut children {
            let Some(status) = child.as_mut().and_then(|child| child.try_wait().ok()?) else {
                continue;
            };
            *child = None;
            // One that was asked to stop by a signal is lost, too.
            if status.signal().is_none() && status.code() != Some(130) {
                table.say(*rank, Word::Failed(how(status, &start.last_words(*rank))));
                continue;
            }
            table.lost(*rank, &how(status, ""));
            if restarts == losses {
                continue;
            }
            restarts += 1;
            std::thread::sleep(PAUSE);
            match start.spawn(*rank) {
                Ok(started) => {
                    tracing::info!(learner = *rank, "started again");
                    *child = Some(started);
                }
                Err(error) => tracing::error!("learner {rank} could not be started: {error}"),
            }
        }
        std::thread::sleep(LOOK);
    }
    let began = Instant::now();
    for child in children.iter_mut().filter_map(|(_, child)| child.as_mut()) {
        // While learner 0 writes its last checkpoint, they write theirs.
        let patience = || !over.load(Ordering::Relaxed) || began.elapsed() < FAREWELL;
        while matches!(child.try_wait(), Ok(None)) && patience() {
            std::thread::sleep(LOOK);
        }
        // It may have ended by itself.
        let _ = child.kill();
        let _ = child.wait();
    }
}

fn how(status: ExitStatus, said: &str) -> String {
    match said {
        "" => status.to_string(),
        said => format!("{said} ({status})"),
    }
}
