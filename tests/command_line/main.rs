//! The program as a user meets it: what it prints, what it writes, how it ends.

#![expect(clippy::unwrap_used, reason = "a test ends where something fails")]

mod completions;
mod export;
mod list;
mod mistakes;
mod output;
mod resume;
mod runs;
mod script;
mod selftest;
mod signals;
mod train;

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

fn starling(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_starling"));
    command.current_dir(folder).stdin(Stdio::null());
    command
}

fn run(folder: &Path, args: &[&str]) -> Output {
    starling(folder).args(args).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The folder of the only run there is.
fn only_run(folder: &Path) -> std::path::PathBuf {
    let mut path = folder.join("runs");
    for _ in 0..3 {
        let mut entries = std::fs::read_dir(&path).unwrap();
        path = entries.next().unwrap().unwrap().path();
        assert!(entries.next().is_none(), "more than one in {path:?}");
    }
    path
}

fn has_progress(folder: &Path) -> bool {
    let mut path = folder.join("runs");
    for _ in 0..3 {
        let entry = std::fs::read_dir(&path)
            .ok()
            .and_then(|mut entries| entries.next());
        let Some(Ok(entry)) = entry else {
            return false;
        };
        path = entry.path();
    }
    path.join("progress.csv").exists()
}

fn wait_for(mut ready: impl FnMut() -> bool) {
    let start = Instant::now();
    while !ready() {
        assert!(start.elapsed() < Duration::from_secs(60), "waited too long");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn kill(child: &std::process::Child, signal: &str) {
    let mut command = Command::new("kill");
    command.args(["-s", signal, &child.id().to_string()]);
    assert!(command.status().unwrap().success());
}
