//! Where output goes, or cannot go.

use std::process::{Command, Stdio};

use super::{only_run, starling, stderr};

/// Nobody reads the messages, or their disk is full: the run is not lost.
#[test]
fn a_run_does_not_need_its_standard_error() {
    let train = "train CartPole-v1 --steps 20000 stop_at_return=null log_every_steps=1024 \
                 checkpoint.every_steps=0";
    for redirected in ["2>&1 >/dev/null | head -n 1", "2>/dev/full"] {
        let folder = tempfile::tempdir().unwrap();
        let script = format!(
            "set -o pipefail; {} {train} {redirected}",
            env!("CARGO_BIN_EXE_starling")
        );
        let mut shell = Command::new("bash");
        let shell = shell.args(["-c", &script]).current_dir(folder.path());
        let output = shell.output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{redirected}");
        let checkpoint = only_run(folder.path()).join("checkpoints/000000020480");
        assert!(checkpoint.join("manifest.json").exists(), "{redirected}");
    }
}

/// A full disk is an error; a reader that left is not.
#[test]
fn output_that_cannot_be_written_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    for command in [
        "list envs",
        "config show CartPole-v1",
        "--help",
        "bench envs --env TMaze",
    ] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full");
        let mut starling = starling(folder.path());
        let starling = starling.args(command.split(' ')).stdout(full.unwrap());
        let output = starling.output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{command}");
        assert!(
            stderr(&output).contains("No space left on device"),
            "{command}"
        );

        let mut child = starling
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{command}");
        assert_eq!(stderr(&output), "", "{command}");
    }
}
