//! `eval.by=process`: starts and supervises an evaluator process for a run.

use std::fs::OpenOptions;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use crate::Training;
use crate::cluster::{Gateway, Identity, Options};
use crate::engine::EvalBy;
use crate::record::RunFolder;

use super::joining::JOIN;

/// Log of the process, in the run's folder.
const LOG: &str = "evaluator.txt";

/// Failures within [`FAILURES_WITHIN`] after which it is not started again.
const MOST_FAILURES: usize = 5;
const FAILURES_WITHIN: Duration = Duration::from_secs(60);

/// How long it may take to end by itself when the run has ended.
const FAREWELL: Duration = Duration::from_secs(3);

/// A single wait.
const LOOK: Duration = Duration::from_millis(50);

/// The evaluator process of a run. It is restarted if it fails.
pub(super) struct OwnEvaluator {
    gateway: Option<Gateway>,
    ending: Arc<AtomicBool>,
    supervisor: Option<JoinHandle<()>>,
}

impl OwnEvaluator {
    /// Starts it, if the settings say so.
    pub(super) fn start(training: &Training, folder: &RunFolder) -> anyhow::Result<Option<Self>> {
        let eval = &training.config().settings.eval;
        if eval.by != EvalBy::Process || eval.every_steps == 0 {
            return Ok(None);
        }
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?.to_string();
        let identity = Identity::new(true)?;
        let join = serde_json::to_string(&identity.join_file(address))?;
        let (terms, settings) = (
            training.terms_of_evaluators()?,
            training.config().to_value(),
        );
        let gateway = Gateway::listen(terms, &settings, listener, identity, Options::default())?;
        let ending = Arc::new(AtomicBool::new(false));
        let (theirs, log) = (Arc::clone(&ending), folder.path().join(LOG));
        let first = launch(&join, &log)?;
        let supervise = move || supervise(first, &join, &log, &theirs);
        let thread = std::thread::Builder::new().name("evaluator".into());
        Ok(Some(Self {
            gateway: Some(gateway),
            ending,
            supervisor: Some(thread.spawn(supervise)?),
        }))
    }
}

impl Drop for OwnEvaluator {
    fn drop(&mut self) {
        self.ending.store(true, Ordering::Relaxed);
        // It is told that the run has ended.
        self.gateway.take();
        if let Some(supervisor) = self.supervisor.take()
            && supervisor.join().is_err()
        {
            tracing::error!("the thread that watches the evaluator panicked");
        }
    }
}

fn launch(join: &str, log: &Path) -> anyhow::Result<Child> {
    let file = OpenOptions::new().create(true).append(true).open(log);
    let file = file.with_context(|| format!("cannot write {}", log.display()))?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["evaluator", "--end-with", &std::process::id().to_string()]);
    // Not an argument, which others could see.
    command.env(JOIN, join);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command.stderr(file);
    command.spawn().context("the evaluator cannot be started")
}

fn supervise(first: Child, join: &str, log: &Path, ending: &AtomicBool) {
    let mut process = Some(first);
    let mut failures: Vec<Instant> = Vec::new();
    loop {
        let ended = match &mut process {
            Some(process) => process.try_wait(),
            None => return,
        };
        if ending.load(Ordering::Relaxed) {
            break;
        }
        match ended {
            Ok(None) => {}
            Ok(Some(status)) if status.success() => return,
            ended => {
                let how = match ended {
                    Ok(Some(status)) => status.to_string(),
                    Ok(None) => String::new(),
                    Err(error) => error.to_string(),
                };
                failures.retain(|failed| failed.elapsed() < FAILURES_WITHIN);
                failures.push(Instant::now());
                if failures.len() >= MOST_FAILURES {
                    let file = log.display();
                    tracing::error!("the evaluator failed again and again ({how}); see {file}");
                    return;
                }
                tracing::warn!("the evaluator ended ({how}) and is started again");
                std::thread::sleep(Duration::from_secs(failures.len() as u64));
                match launch(join, log) {
                    Ok(started) => process = Some(started),
                    Err(error) => {
                        tracing::error!("{error:#}");
                        return;
                    }
                }
            }
        }
        std::thread::sleep(LOOK);
    }
    let Some(mut process) = process else { return };
    let began = Instant::now();
    while began.elapsed() < FAREWELL {
        if let Ok(Some(_)) = process.try_wait() {
            return;
        }
        std::thread::sleep(LOOK);
    }
    let _ = process.kill();
    let _ = process.wait();
}
