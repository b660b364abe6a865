//! Processes of the program under test.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Longer than anything takes on a busy machine.
const LONG: Duration = Duration::from_secs(300);

/// A process that does not outlive its test.
#[derive(Debug)]
pub struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Process {
    /// Starts a command in a folder. What it says on standard error goes to the file `log` there.
    ///
    /// # Panics
    /// When it does not start.
    pub fn start(command: Command, folder: &Path, log: &str) -> Self {
        Self::spawn(command, folder, Stdio::null(), create(folder, log))
    }

    /// The same with what it prints on standard output in the same file.
    ///
    /// # Panics
    /// When it does not start.
    pub fn start_printing(command: Command, folder: &Path, log: &str) -> Self {
        let log = create(folder, log);
        let also = log.try_clone();
        let also = also.unwrap_or_else(|error| panic!("no second log: {error}"));
        Self::spawn(command, folder, also.into(), log)
    }

    fn spawn(mut command: Command, folder: &Path, output: Stdio, log: File) -> Self {
        command.current_dir(folder).stdin(Stdio::null());
        command.stdout(output).stderr(log);
        let started = command.spawn();
        Self(started.unwrap_or_else(|error| panic!("{command:?} does not start: {error}")))
    }

    /// Starts a program with arguments, as [`Process::start`] does.
    ///
    /// # Panics
    /// When it does not start.
    pub fn run(program: &str, folder: &Path, log: &str, args: &[&str]) -> Self {
        let mut command = Command::new(program);
        command.args(args);
        Self::start(command, folder, log)
    }

    /// Its exit code, when it has ended.
    ///
    /// # Panics
    /// When it does not end, or was killed.
    pub fn end(mut self) -> i32 {
        wait_for("a process to end", || !self.is_running());
        match self.0.wait().map(|status| status.code()) {
            Ok(Some(code)) => code,
            other => panic!("a process ended without a code: {other:?}"),
        }
    }

    /// Whether it has not ended.
    pub fn is_running(&mut self) -> bool {
        !matches!(self.0.try_wait(), Ok(Some(_)))
    }

    /// As `kill -9` does.
    pub fn kill(mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }

    /// Sends a signal by name, such as `TERM`.
    ///
    /// # Panics
    /// When that fails.
    pub fn signal(&self, name: &str) {
        signal(self.0.id(), name);
    }

    /// Its number.
    pub fn id(&self) -> u32 {
        self.0.id()
    }
}

fn create(folder: &Path, log: &str) -> File {
    let log = File::create(folder.join(log));
    log.unwrap_or_else(|error| panic!("no log in {}: {error}", folder.display()))
}

/// Sends a signal by name to a process.
///
/// # Panics
/// When that fails.
pub fn signal(process: u32, name: &str) {
    let mut command = Command::new("kill");
    let sent = command.args(["-s", name, &process.to_string()]).status();
    assert!(
        sent.is_ok_and(|status| status.success()),
        "no {name} to {process}"
    );
}

/// Waits until something is so.
///
/// # Panics
/// When it takes too long.
pub fn wait_for(what: &str, mut ready: impl FnMut() -> bool) {
    let start = Instant::now();
    while !ready() {
        assert!(start.elapsed() < LONG, "waited too long for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Processes that run in a folder, with the arguments of their command lines.
pub fn processes_in(folder: &Path) -> Vec<(u32, Vec<String>)> {
    let Ok(folder) = folder.canonicalize() else {
        return Vec::new();
    };
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut found = Vec::new();
    for entry in all {
        let Some(id) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        let there = std::fs::read_link(entry.path().join("cwd"));
        let words = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        if !there.is_ok_and(|there: PathBuf| there == folder) || words.is_empty() {
            continue;
        }
        let words = String::from_utf8_lossy(&words).into_owned();
        found.push((id, words.split('\0').map(str::to_owned).collect()));
    }
    found
}

/// The processes that a process started, by the kernel's list.
pub fn children(pid: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
    let tasks = tasks.into_iter().flatten().flatten();
    let listed = tasks.map(|task| crate::text(task.path().join("children")));
    let listed: Vec<String> = listed.collect();
    let numbers = listed.iter().flat_map(|line| line.split_whitespace());
    numbers.filter_map(|number| number.parse().ok()).collect()
}
