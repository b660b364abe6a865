//! Supervises one role: starts, watches, restarts and ends its process.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::program::{has_checkpoint, start};
use super::supervise::{Phase, Shared, Standing};
use super::{Kind, LaunchError, Role};

/// Lines of a role's output that are kept.
const KEPT_LINES: usize = 20;

/// The longest line that is kept, in bytes.
const MOST_LINE: u64 = 4_000;

/// Shortest and longest delay before a restart.
const PAUSES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));

/// How long a role that was told to stop may take. A learner writes a checkpoint.
const STOPPING: Duration = Duration::from_secs(10);
const LEARNER_STOPPING: Duration = Duration::from_secs(180);

/// A single wait.
const LOOK: Duration = Duration::from_millis(100);

/// Heartbeats that a process gets in the time after which it would stop without one.
const HEARTBEATS: f64 = 6.0;

/// How long the last lines of a process that has ended are waited for.
const LAST_LINES: Duration = Duration::from_secs(2);

/// Exit codes of the program: wrong settings, and interrupted.
const USAGE: i32 = 2;
const INTERRUPTED: i32 = 130;

/// What a learner prints on its standard output when actors or other learners can join.
#[derive(Serialize, Deserialize)]
pub(super) struct Listening {
    pub(super) run: String,
    #[serde(default)]
    pub(super) join: Option<serde_json::Value>,
    #[serde(default)]
    pub(super) learners: Option<serde_json::Value>,
}

/// The last lines of a role.
type Lines = Arc<Mutex<VecDeque<String>>>;

/// Runs a role, with restarts, until the launch ends.
pub(super) fn tend(shared: &Arc<Shared>, at: usize, role: &Role) {
    let lines = Lines::default();
    let ended = work(shared, at, role, &lines);
    match ended {
        Ok(()) => shared.stand(at, Standing::Ended),
        Err(error) => {
            shared.stand(at, Standing::Failed);
            shared.fail(error);
        }
    }
    if role.leads() {
        shared.enter(Phase::Over);
    }
}

fn work(shared: &Arc<Shared>, at: usize, role: &Role, lines: &Lines) -> Result<(), LaunchError> {
    let mut failures: Vec<Instant> = Vec::new();
    let mut pause = PAUSES.0;
    // The start of the learner that an actor has served to its end.
    let mut served = 0;
    while shared.phase() == Phase::Going {
        if !role.leads() {
            let joined = shared.joined(role).filter(|joined| joined.start > served);
            if joined.is_none() {
                shared.stand(at, Standing::Waiting);
                shared.pause(LOOK);
                continue;
            }
        }
        let began = Instant::now();
        let mut start = 0;
        let status = once(shared, at, role, lines, &mut start);
        let how = match status {
            Ok(Some(0)) if role.leads() => return Ok(()),
            // The run has ended, or the learner that it served.
            Ok(Some(0)) => {
                served = start;
                continue;
            }
            Ok(code)
                if role.leads()
                    && shared.phase() == Phase::Interrupted
                    && code != Some(INTERRUPTED) =>
            {
                return Err(failed(role, "did not end with a checkpoint", lines));
            }
            Ok(_) if shared.phase() != Phase::Going => return Ok(()),
            Ok(Some(USAGE)) => return Err(failed(role, "does not accept its arguments", lines)),
            Ok(Some(INTERRUPTED)) if role.leads() => {
                return Err(failed(role, "was interrupted on its host", lines));
            }
            Ok(Some(code)) => format!("ended with code {code}"),
            Ok(None) => "was killed".to_owned(),
            Err(error) => {
                note(shared, at, lines, &error.to_string());
                error.to_string()
            }
        };
        tracing::warn!("{} {} {how}", role.kind.name(), role.number);
        let budget = shared.plan.restarts;
        failures.retain(|failed| failed.elapsed().as_secs_f64() < budget.within_s);
        failures.push(Instant::now());
        if failures.len() >= budget.most.max(1) {
            let (times, how) = (
                failures.len(),
                format!("failed {} times: it {how}", failures.len()),
            );
            tracing::error!("{} {} failed {times} times", role.kind.name(), role.number);
            return Err(failed(role, &how, lines));
        }
        if began.elapsed() > PAUSES.1 * 2 {
            pause = PAUSES.0;
        }
        shared.stand(at, Standing::Pausing);
        let until = Instant::now() + pause;
        pause = (2 * pause).min(PAUSES.1);
        while Instant::now() < until && shared.phase() == Phase::Going {
            shared.pause(LOOK);
        }
        shared.note(at, |view| view.restarts += 1);
    }
    Ok(())
}

fn failed(role: &Role, how: &str, lines: &Lines) -> LaunchError {
    let lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
    let said: Vec<String> = lines.iter().map(|line| format!("  {line}")).collect();
    LaunchError::Failed {
        role: format!("{} {}", role.kind.name(), role.number),
        host: role.host.to_string(),
        how: how.to_owned(),
        said: said.join("\n"),
    }
}

/// Starts the role once and waits for its end: its exit code, if it was not killed.
fn once(
    shared: &Arc<Shared>,
    at: usize,
    role: &Role,
    lines: &Lines,
    start_of_learner: &mut u64,
) -> Result<Option<i32>, LaunchError> {
    shared.stand(at, Standing::Preparing);
    let installed = shared.installed(at, &role.host)?;
    let joined = shared.joined(role).filter(|_| !role.leads());
    let mut arguments = role.arguments.clone();
    if role.leads() {
        if let Some(run) = shared.run()
            && has_checkpoint(&shared.plan, &role.host, &run)?
        {
            arguments = vec!["resume".into(), run];
        }
        arguments.extend(shared.plan.listen_arguments()?);
        arguments.push("--quiet".into());
    } else if role.kind == Kind::Learner {
        arguments.extend(shared.plan.listen_arguments_of(role)?);
    }
    arguments.push(format!("--launched={}", shared.plan.heartbeat_timeout_s));
    let mut command = start(&shared.plan, &role.host, &installed, &arguments);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // Ctrl-C goes only to the launcher, which shuts down all roles in order.
        .process_group(0);
    let mut process = command.spawn().map_err(|error| LaunchError::Prepare {
        host: role.host.to_string(),
        reason: error.to_string(),
    })?;
    let log = open_log(shared, role);
    let mut input = process.stdin.take();
    if let Some(joined) = &joined {
        *start_of_learner = joined.start;
        if let Some(input) = &mut input {
            // An immediate exit is detected below.
            let _ = writeln!(input, "{}", joined.join);
        }
    }
    let (learner, mut log) = ((role.kind == Kind::Learner).then_some(role.number), log);
    let (theirs, kept) = (Arc::clone(shared), Arc::clone(lines));
    let printed = move |line: String| match (serde_json::from_str(&line), learner) {
        (Ok(told), Some(learner)) => theirs.set_joined(learner, told),
        _ => note(&theirs, at, &kept, &line),
    };
    let (theirs, kept) = (Arc::clone(shared), Arc::clone(lines));
    let logged = move |line: String| {
        if let Some(log) = &mut log {
            let _ = writeln!(log, "{line}");
        }
        note(&theirs, at, &kept, &line);
    };
    let readers = Readers::start(&mut process, printed, logged);
    shared.stand(at, Standing::Running);
    let ended = attend(shared, at, role, &mut process, input);
    readers.finish();
    Ok(ended)
}

/// The threads that read what a process prints. Its pipes may stay open after its end, in the hands of a
/// process that it started, so the threads are not joined.
struct Readers(mpsc::Receiver<()>);

impl Readers {
    /// `printed` gets the lines of its standard output, `logged` those of standard error.
    fn start(
        process: &mut Child,
        printed: impl FnMut(String) + Send + 'static,
        logged: impl FnMut(String) + Send + 'static,
    ) -> Self {
        let (reading, ended) = mpsc::channel();
        let also_reading = reading.clone();
        let (output, errors) = (process.stdout.take(), process.stderr.take());
        std::thread::spawn(move || {
            if let Some(output) = output {
                hear(output, printed);
            }
            drop(reading);
        });
        std::thread::spawn(move || {
            if let Some(errors) = errors {
                hear(errors, logged);
            }
            drop(also_reading);
        });
        Self(ended)
    }

    /// Waits until they have read everything, but not for long.
    fn finish(self) {
        let _ = self.0.recv_timeout(LAST_LINES);
    }
}

/// Waits for a process to end, and writes heartbeats to its standard input meanwhile: without them it
/// stops by itself. To stop it, its standard input is closed.
fn attend(
    shared: &Shared,
    at: usize,
    role: &Role,
    process: &mut Child,
    mut input: Option<ChildStdin>,
) -> Option<i32> {
    let mut told: Option<Instant> = None;
    let every = Duration::from_secs_f64(shared.plan.heartbeat_timeout_s / HEARTBEATS);
    let mut beat = Instant::now();
    let patience = match role.kind {
        Kind::Learner => LEARNER_STOPPING,
        _ => STOPPING,
    };
    loop {
        match process.try_wait() {
            Ok(Some(status)) => return status.code(),
            Ok(None) => {}
            Err(error) => tracing::warn!("a process cannot be waited for: {error}"),
        }
        let stop = match shared.phase() {
            Phase::Going | Phase::Over => false,
            // It tells the others.
            Phase::Interrupted => role.leads(),
            Phase::Stopping => true,
        };
        if stop && told.is_none() {
            told = Some(Instant::now());
            input.take();
            shared.stand(at, Standing::Stopping);
        }
        if let Some(input) = &mut input
            && beat.elapsed() >= every
        {
            beat = Instant::now();
            // A process that does not read any more is about to end.
            let _ = input.write_all(b"\n");
        }
        if told.is_some_and(|told| told.elapsed() > patience) {
            let _ = process.kill();
        }
        shared.pause(LOOK);
    }
}

/// Every line of a stream, of bounded length.
fn hear(stream: impl Read, mut line: impl FnMut(String)) {
    let mut stream = BufReader::new(stream);
    let mut bytes = Vec::new();
    loop {
        bytes.clear();
        // A join file is one line, and longer than what people read.
        let most = MOST_LINE * 16;
        match (&mut stream).take(most).read_until(b'\n', &mut bytes) {
            Ok(0) | Err(_) => return,
            Ok(_) => {
                let text = String::from_utf8_lossy(&bytes);
                line(text.trim_end().to_owned());
            }
        }
    }
}

/// Keeps a line of a role's output.
fn note(shared: &Shared, at: usize, lines: &Lines, line: &str) {
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    let line: String = line.chars().take(MOST_LINE as usize).map(plain).collect();
    if line.is_empty() {
        return;
    }
    let mut kept = lines.lock().unwrap_or_else(PoisonError::into_inner);
    kept.push_back(line.clone());
    if kept.len() > KEPT_LINES {
        kept.pop_front();
    }
    drop(kept);
    // Without the timestamp and level of a log line.
    let mut words = [" INFO ", " WARN ", " ERROR "].iter();
    let said = words.find_map(|word| line.split_once(word).map(|(_, said)| said.to_owned()));
    shared.note(at, |view| view.said = said.unwrap_or(line));
}

fn open_log(shared: &Shared, role: &Role) -> Option<File> {
    let folder = shared.logs.as_ref()?;
    let name = format!("{}-{}.txt", role.kind.name(), role.number);
    let file = OpenOptions::new()
        .create(true)
        .append(true)
        .open(folder.join(name));
    file.inspect_err(|error| tracing::warn!("cannot write to {}: {error}", folder.display()))
        .ok()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// A process that is left behind with the pipes of one that has ended is not waited for.
    #[test]
    fn pipes_that_stay_open_are_not_waited_for() {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 60 & echo $!; echo gone >&2"]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let (told, lines) = mpsc::channel();
        let also_told = told.clone();
        let readers = Readers::start(
            &mut process,
            move |line| told.send(line).unwrap(),
            move |line| also_told.send(line).unwrap(),
        );
        assert!(process.wait().unwrap().success());
        let began = Instant::now();
        readers.finish();
        assert!(began.elapsed() < Duration::from_secs(30));
        let mut lines: Vec<String> = lines.try_iter().collect();
        lines.sort();
        let [left, gone] = lines.as_slice() else {
            panic!("{lines:?}");
        };
        assert_eq!(gone, "gone");
        let killed = Command::new("kill").arg(left).status().unwrap();
        assert!(killed.success(), "it is still there");
    }
}
