//! Ctrl-C, Ctrl-Z and other signals.

use std::process::Stdio;

use super::{has_progress, kill, only_run, run, starling, stderr, stdout, wait_for};

/// Ctrl-C, SIGTERM, a closed terminal or a scheduler's warning: an answer at once, a checkpoint and
/// exit 130; `resume` continues from there.
#[test]
fn signals_end_a_run_with_a_checkpoint_and_resume_continues() {
    for signals in [
        &["INT"][..],
        &["TERM"],
        &["HUP"],
        &["HUP", "HUP"],
        &["USR1"],
        &["USR2", "TERM"],
    ] {
        // Under nohup, runs ignore it as they should.
        if signals.contains(&"HUP") && ignores_hangups() {
            continue;
        }
        let folder = tempfile::tempdir().unwrap();
        let child = starling(folder.path())
            .args([
                "train",
                "CartPole-v1",
                "--steps",
                "100000000",
                "stop_at_return=null",
                "--quiet",
            ])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        wait_for(|| has_progress(folder.path()));
        for signal in signals {
            kill(&child, signal);
        }
        let ended = child.wait_with_output().unwrap();
        assert_eq!(ended.status.code(), Some(130), "{signals:?}");
        assert_eq!(
            stderr(&ended),
            "stopping after this round (Ctrl-C again: quit now, without a checkpoint)\n"
        );
        // With --quiet the folder is all that is printed.
        let path = only_run(folder.path());
        let path = path.strip_prefix(folder.path()).unwrap().to_str().unwrap();
        assert_eq!(stdout(&ended), format!("{path}\n"));
        let resumed = run(folder.path(), &["resume", path, "--stop-after", "1"]);
        assert!(resumed.status.success(), "{}", stderr(&resumed));
        assert!(stderr(&resumed).contains("resuming from step "));
        assert!(stdout(&resumed).contains("paused"), "{}", stdout(&resumed));
    }
}

/// Under `nohup` a run outlives its terminal.
#[test]
fn an_ignored_hangup_stays_ignored() {
    let folder = tempfile::tempdir().unwrap();
    let mut nohup = std::process::Command::new("nohup");
    let mut child = nohup
        .arg(env!("CARGO_BIN_EXE_starling"))
        .args([
            "train",
            "CartPole-v1",
            "--steps",
            "1e9",
            "--quiet",
            "stop_at_return=null",
        ])
        .current_dir(folder.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_for(|| has_progress(folder.path()));
    kill(&child, "HUP");
    let before = cpu_seconds(&child);
    wait_for(|| cpu_seconds(&child) > before + 1.0);
    assert!(child.try_wait().unwrap().is_none(), "it ended");
    kill(&child, "INT");
    assert_eq!(child.wait().unwrap().code(), Some(130));
}

/// Ctrl-Z, a suspended laptop, a scheduler that takes the cores away: the run continues afterwards.
#[test]
fn a_pause_is_not_a_stall() {
    for mode in [
        &["mode=threads", "threads=2"][..],
        &["mode=central", "threads=2"],
    ] {
        let folder = tempfile::tempdir().unwrap();
        let child = starling(folder.path())
            .args(["train", "CartPole-v1", "--steps", "1e9", "--quiet"])
            .args([
                "stop_at_return=null",
                "stall_timeout_s=2",
                "asynchronous=true",
            ])
            .args(mode)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        wait_for(|| has_progress(folder.path()));
        kill(&child, "STOP");
        std::thread::sleep(std::time::Duration::from_secs(4));
        kill(&child, "CONT");
        let before = cpu_seconds(&child);
        wait_for(|| cpu_seconds(&child) > before + 1.0);
        kill(&child, "INT");
        let ended = child.wait_with_output().unwrap();
        assert_eq!(ended.status.code(), Some(130), "{}", stderr(&ended));
    }
}

/// A round can take long: the first Ctrl-C is answered while it runs, the second one ends it.
#[test]
fn a_second_interrupt_ends_a_long_round() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("stderr");
    let mut child = starling(folder.path())
        .args([
            "train",
            "CartPole-v1",
            "--steps",
            "1e9",
            "stop_at_return=null",
        ])
        .args(["algo.rollout_steps=300000", "algo.minibatches=100000"])
        .stdout(Stdio::null())
        .stderr(std::fs::File::create(&log).unwrap())
        .spawn()
        .unwrap();
    let said = |text: &str| std::fs::read_to_string(&log).unwrap().contains(text);
    // Far more than the start takes, far less than the round.
    wait_for(|| cpu_seconds(&child) > 4.0);
    kill(&child, "INT");
    wait_for(|| said("stopping after this round"));
    assert!(
        child.try_wait().unwrap().is_none(),
        "the round was too short"
    );
    kill(&child, "INT");
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let checkpoints = only_run(folder.path()).join("checkpoints");
    assert_eq!(std::fs::read_dir(checkpoints).unwrap().count(), 0);
}

/// Processor time that a process has used, at 100 ticks a second.
fn cpu_seconds(child: &std::process::Child) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
    let (_, after_name) = stat.rsplit_once(')').unwrap();
    let ticks: f64 = after_name
        .split_whitespace()
        .nth(11)
        .unwrap()
        .parse()
        .unwrap();
    ticks / 100.0
}

/// Whether this process, and so its children, ignores the end of its terminal.
fn ignores_hangups() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    u64::from_str_radix(ignored.unwrap().trim(), 16).unwrap() & 1 != 0
}
