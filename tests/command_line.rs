//! The program as a user meets it: what it prints, what it writes, how it ends.

#![expect(clippy::unwrap_used, reason = "a test ends where something fails")]

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

#[test]
fn mistakes_get_an_explanation_and_exit_2_and_nothing_is_written() {
    let folder = tempfile::tempdir().unwrap();
    for (args, expected) in [
        (&["train", "CartPol-v1"][..], "did you mean 'CartPole-v1'"),
        (
            &["train", "CartPole-v1", "--algo", "pp0"],
            "did you mean 'ppo'? Available: a2c",
        ),
        (
            &["train", "CartPole-v1", "--algo", "PEARL"],
            "pearl is not implemented yet",
        ),
        (
            &["train", "CartPole-v1", "--preset", "classic/pp"],
            "classic/ppo",
        ),
        (
            &["train", "CartPole-v1", "algo.learning_rat=1"],
            "did you mean algo.learning_rate?",
        ),
        (&["train", "CartPole-v1", "sed=3"], "did you mean seed"),
        (&["atari", "verify", "ALE/Pon-v5"], "'ALE/Pong-v5'"),
        (
            &["train", "CartPole-v1", "env.sticky=1"],
            "CartPole-v1 has no setting called 'env.sticky'; it has: env.max_episode_steps",
        ),
        (
            &["train", "ALE/Pong-v5", "env.stik=1"],
            "did you mean env.stack or",
        ),
        (
            &["train", "ALE/Pong-v5", "env.stack=many"],
            "env.stack is \"many\"; allowed: a whole number, 0 or more",
        ),
        (
            &["train", "ALE/Pong-v5", "env.stack=100"],
            "env.stack is 100; allowed: between 1 and 64",
        ),
        (
            &["train", "CartPole-v1", "algo.epochs=many"],
            "algo.epochs is \"many\"",
        ),
        (
            &["train", "CartPole-v1", "algo.gamma=1.5"],
            "algo.gamma is 1.5; allowed: between 0 and 1",
        ),
        (
            &["train", "CartPole-v1", "mode=parallel"],
            "mode is \"parallel\"",
        ),
        (&["train", "CartPole-v1", "device=cuda:7"], "cuda:7"),
        (
            &[
                "train",
                "CartPole-v1",
                "--algo",
                "dqn",
                "algo.capacity_steps=1",
            ],
            "algo.capacity_steps is 1",
        ),
        (
            &["train", "CartPole-v1", "env.max_episode_steps=0"],
            "env.max_episode_steps is 0; allowed: at least 1, or null",
        ),
        (
            &["train", "CartPole-v1", "algo.learning_rate=fast"],
            "allowed: a number, or {start",
        ),
        (
            &["train", "CartPole-v1", "algo.net.hidden=[0]"],
            "algo.net.hidden[0] is 0",
        ),
        (
            &["train", "CartPole-v1", "algo.optimizer.beta2=2"],
            "algo.optimizer.beta2 is 2",
        ),
        (
            &["train", "CartPole-v1", "envs=1000000000"],
            "envs is 1000000000",
        ),
        (
            &["train", "CartPole-v1", "stall_timeout_s=1e30"],
            "stall_timeout_s",
        ),
        (
            &[
                "train",
                "CartPole-v1",
                "--algo",
                "dqn",
                "algo.capacity_steps=1000000000000",
            ],
            "what fits into memory",
        ),
        (
            &[
                "train",
                "CartPole-v1",
                "--algo",
                "a2c",
                "--preset",
                "classic/dqn",
            ],
            "is not for the algorithm 'a2c'",
        ),
        (
            &["train", "Pendulum-v1", "--algo", "dqn"],
            "are continuous; usable here: a2c, appo, ddpg, impala, ppo, sac, td3",
        ),
        (
            &["train", "CartPole-v1", "learning_rate=0.1"],
            "did you mean algo.learning_rate?",
        ),
        (
            &["train", "CartPole-v1", "--lr", "0.1"],
            "there is no option '--lr'; settings are given as KEY=VALUE, without dashes: \
             algo.learning_rate=…\n\n`starling train --help`",
        ),
        (
            &["train", "CartPole-v1", "--batch-size", "64"],
            "without dashes: algo.minibatches=…",
        ),
        (
            &[
                "train",
                "CartPole-v1",
                "--algo",
                "dqn",
                "--batch-size",
                "64",
            ],
            "without dashes: algo.batch_size=…",
        ),
        (
            &["train", "TMaze-v0", "--batch-size", "64"],
            "without dashes: algo.batch_size=…",
        ),
        (
            &["train", "CartPole-v1", "--algo=dqn", "--n-epochs", "4"],
            "dqn has no such setting; `starling config show CartPole-v1 --algo dqn` shows all",
        ),
        (
            &["train", "CartPole-v1", "--algo", "dqn", "envs=100000"],
            "at least 700000 (7 for each of 100000 environments), or fewer environments",
        ),
        (
            &[
                "train",
                "CartPole-v1",
                "envs=100000",
                "algo.rollout_steps=1e8",
            ],
            "algo.rollout_steps is 100000000; allowed: what fits into memory: it would take",
        ),
        (
            &[
                "train",
                "MinAtar/Breakout-v1",
                "envs=1e5",
                "algo.rollout_steps=9e4",
            ],
            "for rollouts of 90000 steps (algo.rollout_steps)",
        ),
        (
            &["train", "CartPole-v1", "--preset", "atari/ppo"],
            "the preset 'atari/ppo' does not fit CartPole-v1: ",
        ),
        (
            &["train", "CartPole-v1", "Algo.Learning_Rate=0.1"],
            "did you mean algo.learning_rate?",
        ),
        (
            &["train", "--env", "CartPole-v1"],
            "the environment is given without an option",
        ),
        (&["train", "CartPole-v1", "-n", "1000"], "--steps N"),
        (
            &["train", "CartPole-v1", "--total-timesteps=1000"],
            "--steps N",
        ),
        (
            &["train", "CartPole-v1", "--step", "5"],
            "did you mean --steps?",
        ),
        (
            &["train", "CartPole-v1", "--seed", "-1"],
            "invalid value '-1' for '--seed <SEED>': allowed: a whole number, 0 or more",
        ),
        (
            &["train", "CartPole-v1", "--steps", "-5"],
            "allowed: a whole number from 1",
        ),
        (
            &["train", "CartPole-v1", "--num-envs", "0"],
            "allowed: a number from 1, or auto",
        ),
        (
            &["train", "CartPole-v1", "algo.net.hidden=[-4]"],
            "algo.net.hidden[0] is -4; allowed: between 1 and 65536",
        ),
        (
            &["train", "CartPole-v1", "device=tpu"],
            "device is \"tpu\"; allowed: auto, cpu, cuda:0",
        ),
        (
            &["train", "CartPole-v1", "--device", "tpu"],
            "device is \"tpu\"; allowed: auto, cpu, cuda:0",
        ),
        (
            &["train", "CartPole-v1", "env.id=Acrobot-v1"],
            "both 'CartPole-v1' and env.id=Acrobot-v1 are given",
        ),
        (
            &["train", "CartPole-v1", "algo.minibatches=100000"],
            "algo.minibatches is 100000; allowed: at most the 1024 samples",
        ),
        (&["train", "CartPole-v1", "--name", ".."], "cannot be used"),
        (&["eval", "nowhere"], "is not a run folder"),
        (&["resume", "nowhere"], "is not a run folder"),
        (&["bench", "envs", "--env", "Nothing"], "'Nothing'"),
        (&["check-env", "CartPole-v1", "--steps", "0"], "from 1"),
        (&["play", "CartPol-v1"], "did you mean 'CartPole-v1'"),
        (
            &["play", "CartPole-v1", "env.stack=1"],
            "there is no setting called 'env.stack'; available: env.max_episode_steps",
        ),
        (
            &["check-env", "CartPole-v1", "seed=1"],
            "'seed' is not a setting of the environment",
        ),
        (
            &["selftest", "--device", "cpu", "--algo", "nothing"],
            "no algorithm's name contains 'nothing'",
        ),
        (
            &["train", "CartPole-v1", "--config", "nowhere.yaml"],
            "nowhere.yaml",
        ),
        (&["train"], "no environment was named"),
        (&["config", "show", "breakout"], "MinAtar/Breakout-v1"),
        (&["check-env", "Acrobat-v1"], "Acrobot-v1"),
        (
            &["check-env", "Acrobot-v1", "--steps", "0"],
            "a whole number from 1",
        ),
        (&["train", "LunarLander-v2"], "not included yet"),
    ] {
        let output = run(folder.path(), args);
        let message = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {message}");
        assert!(message.contains(expected), "{args:?}: {message}");
        assert!(
            !folder.path().join("runs").exists(),
            "{args:?} wrote something"
        );
    }
}

#[test]
fn a_run_leaves_what_it_promises_and_can_be_evaluated_and_plotted() {
    let folder = tempfile::tempdir().unwrap();
    let trained = run(
        folder.path(),
        &[
            "train",
            "CartPole-v1",
            "--steps",
            "12000",
            "--seed",
            "4",
            "eval.every_steps=5000",
        ],
    );
    assert!(trained.status.success(), "{}", stderr(&trained));
    // Piped: plain lines, no control characters.
    assert!(stderr(&trained).contains("steps/s"), "{}", stderr(&trained));
    assert!(!stderr(&trained).contains('\u{1b}'));
    let said = stdout(&trained);
    assert!(said.contains("finished: mean return"), "{said}");
    // The program as it was called.
    let next = format!(
        "  {} eval runs/CartPole-v1/ppo/run-s4-",
        env!("CARGO_BIN_EXE_starling")
    );
    assert!(said.contains(&next), "{said}");

    let path = only_run(folder.path());
    for file in [
        "config.yaml",
        "params.json",
        "version.json",
        "progress.csv",
        "eval.csv",
        "log.txt",
    ] {
        assert!(path.join(file).metadata().unwrap().len() > 0, "{file}");
    }
    let names = std::fs::read_dir(&path).unwrap();
    let names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
    let events = names
        .iter()
        .filter(|name| name.to_string_lossy().starts_with("events.out"));
    assert_eq!(events.count(), 1, "{names:?}");
    let progress = std::fs::read_to_string(path.join("progress.csv")).unwrap();
    let header = progress.lines().next().unwrap();
    for column in [
        "Diagnostics/CumSteps",
        "ReturnAverage",
        "charts/SPS",
        "losses/loss",
    ] {
        assert!(header.contains(column), "{header}");
    }

    let path = path.to_str().unwrap();
    let shown = run(
        folder.path(),
        &["play", path, "--steps", "5", "--gif", "agent.gif"],
    );
    assert!(
        stdout(&shown).contains("CartPole-v1: return 5 in 5 steps"),
        "{}",
        stderr(&shown)
    );
    assert!(folder.path().join("agent.gif").is_file());
    let evaluated = run(folder.path(), &["eval", path, "--episodes", "5", "--json"]);
    let report: serde_json::Value = serde_json::from_str(&stdout(&evaluated)).unwrap();
    assert_eq!(report["episodes"], 5);
    assert_eq!(report["returns"].as_array().unwrap().len(), 5);

    let plotted = run(folder.path(), &["plot", path, "--out", "curves"]);
    assert!(plotted.status.success(), "{}", stderr(&plotted));
    let html = std::fs::read_to_string(folder.path().join("curves/plot.html")).unwrap();
    assert!(!html.contains("http://") && !html.contains("<script src"));
    let png = std::fs::read(folder.path().join("curves/plot.png")).unwrap();
    assert!(png.starts_with(b"\x89PNG"));
    let nothing = run(folder.path(), &["plot", path, "--key", "nope"]);
    assert_eq!(nothing.status.code(), Some(2));
    assert!(stderr(&nothing).contains("there is no column nope; available: Diagnostics/"));
}

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

/// `rm -r` of a run that is going ends it at its next row, although the open files could still be
/// written to.
#[test]
fn a_deleted_run_folder_ends_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let child = starling(folder.path())
        .args([
            "train",
            "CartPole-v1",
            "--steps",
            "100000000",
            "--quiet",
            "stop_at_return=null",
            "log_every_steps=1000",
            "checkpoint.every_steps=0",
        ])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_for(|| has_progress(folder.path()));
    let path = only_run(folder.path());
    wait_for(|| std::fs::remove_dir_all(&path).is_ok());
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(1));
    let path = path.strip_prefix(folder.path()).unwrap().display();
    assert_eq!(
        stderr(&ended),
        format!(
            "error: the folder {path} was deleted or moved while the run was writing to it; \
             nothing more can be saved\n"
        )
    );
    assert!(!folder.path().join(path.to_string()).exists());
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

/// The self-test runs without a GPU too, and fails where the device is missing.
#[test]
fn the_selftest_compares_and_needs_the_device() {
    let folder = tempfile::tempdir().unwrap();
    let command = ["selftest", "--device", "cpu", "--algo", "pqn"];
    let same = run(folder.path(), &command);
    assert!(same.status.success(), "{}", stderr(&same));
    let said = stdout(&same);
    assert!(
        said.contains("1 of 1 agree after 10 updates each"),
        "{said}"
    );
    assert!(said.contains("learning, until"), "{said}");
    assert!(!said.contains("NOT LEARNED"), "{said}");
    let missing = run(folder.path(), &["selftest", "--device", "cuda:99"]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(stderr(&missing).contains("cuda:99 was requested"));
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

fn kill(child: &std::process::Child, signal: &str) {
    let mut command = Command::new("kill");
    command.args(["-s", signal, &child.id().to_string()]);
    assert!(command.status().unwrap().success());
}

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

#[test]
fn numbers_and_names_may_be_written_as_elsewhere() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("mine.yaml");
    std::fs::write(&config, "env: CartPole-v1\nalgo: ppo\n").unwrap();
    for args in [
        &["CartPole-v1", "--algo", "PPO"][..],
        &["CartPole-v1", "algo=ppo"],
        &["--config", "mine.yaml"],
    ] {
        let options = ["--steps", "1e5", "--seed", "1_0", "--num-envs", "1e1"];
        let mut starling = starling(folder.path());
        let starling = starling.args(["config", "show"]).args(args).args(options);
        let output = starling.output().unwrap();
        let shown = stdout(&output);
        for line in ["name: ppo", "steps: 100000", "seed: 10", "envs: 10"] {
            assert!(shown.contains(line), "{args:?}: {shown}{}", stderr(&output));
        }
    }
}

/// A finished run has nothing left to do, and says what to change; a nonsensical time in a file
/// without a checksum does not matter.
#[test]
fn resuming_a_finished_run_says_what_to_change() {
    let folder = tempfile::tempdir().unwrap();
    let train = ["train", "CartPole-v1", "--steps", "2e3", "-q"];
    let trained = run(folder.path(), &train);
    assert!(trained.status.success(), "{}", stderr(&trained));
    let path = stdout(&trained).trim().to_owned();
    let checkpoints = folder.path().join(&path).join("checkpoints");
    let checkpoint = std::fs::read_dir(checkpoints)
        .unwrap()
        .next()
        .unwrap()
        .unwrap();
    let times = checkpoint.path().join("times.json");
    assert!(times.exists());
    std::fs::write(times, "{\"elapsed_s\": 2e19}").unwrap();
    let resumed = run(folder.path(), &["resume", &path]);
    assert!(resumed.status.success(), "{}", stderr(&resumed));
    assert!(stderr(&resumed).contains("resuming from step 2,048"));
    let said = stdout(&resumed);
    assert!(
        said.contains(&format!("nothing to do: the run has made all its steps; to train longer, raise steps in {path}/config.yaml")),
        "{said}"
    );

    // A mistake in a run's own settings names the file.
    let config = folder.path().join(&path).join("config.yaml");
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, text.replace("gamma:", "gama:")).unwrap();
    let resumed = run(folder.path(), &["resume", &path]);
    assert_eq!(resumed.status.code(), Some(2));
    let message = stderr(&resumed);
    assert!(
        message.contains(&format!(
            "{path}/config.yaml: there is no setting called 'algo.gama'"
        )),
        "{message}"
    );
    let protocol = run(folder.path(), &["eval", &path, "--protocol", "training"]);
    assert_ne!(protocol.status.code(), Some(0));
}

/// Where a machine advertises AMX and cannot run it, oneDNN's kernels die of SIGILL. Here a
/// library that is loaded first does that to the program's probe: always, or unless oneDNN is told
/// to do without AMX.
#[test]
fn networks_in_bfloat16_train_on_any_processor() {
    const DIES: &str = r#"
#include <csignal>
#include <cstdlib>
#include <cstring>
__attribute__((constructor)) static void die(int argc, char **argv, char **) {
    const char *limit = getenv("ONEDNN_MAX_CPU_ISA");
    bool limited = limit && !strcmp(limit, "AVX512_CORE_BF16");
    if (argc == 2 && !strcmp(argv[1], "probe-bf16") && (ALWAYS || !limited)) raise(SIGILL);
}"#;
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("dies.cpp"), DIES).unwrap();
    let trained = |preload: Option<&str>| {
        let mut command = starling(folder.path());
        command.args(["train", "MinAtar/Breakout-v1", "--steps", "4000", "-q"]);
        command.arg("algo.net.bf16=true");
        if let Some(always) = preload {
            let library = folder.path().join(format!("dies-{always}.so"));
            let mut compiler = Command::new("c++");
            let compiler = compiler
                .args(["-shared", "-fPIC", "dies.cpp", "-o"])
                .arg(&library);
            let compiler = compiler.arg(format!("-DALWAYS={always}"));
            assert!(
                compiler
                    .current_dir(folder.path())
                    .status()
                    .unwrap()
                    .success()
            );
            command.env("LD_PRELOAD", library);
        }
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        let run = folder.path().join(stdout(&output).trim());
        let config = std::fs::read_to_string(run.join("config.yaml")).unwrap();
        (stderr(&output), config.contains("bf16: true"))
    };
    let (_, in_bfloat16) = trained(None);
    assert!(in_bfloat16);
    let (said, in_bfloat16) = trained(Some("false"));
    assert!(
        said.contains("starting again with ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16"),
        "{said}"
    );
    assert!(in_bfloat16);
    let (said, in_bfloat16) = trained(Some("true"));
    assert!(said.contains("the run uses float32"), "{said}");
    assert!(!in_bfloat16);
}

/// A wheel must not write outside its folder.
#[test]
fn wheels_with_files_outside_their_folder_are_refused() {
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts");
    let folder = tempfile::tempdir().unwrap();
    let program = "
import pathlib, sys, zipfile
sys.dont_write_bytecode = True
sys.path.insert(0, sys.argv[1])
import fetch_libtorch
wheel, aside = pathlib.Path('evil.whl'), pathlib.Path('aside')
with zipfile.ZipFile(wheel, 'w') as archive:
    archive.writestr('torch/include/../../../evil.h', '')
fetch_libtorch.unpack(wheel, aside)
";
    let mut python = Command::new("python3");
    let python = python.args(["-c", program]).arg(scripts);
    let output = python.current_dir(folder.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let message = stderr(&output);
    assert!(
        message.contains("has a file outside its folder"),
        "{message}"
    );
    assert!(!folder.path().join("evil.h").exists());
}

/// The script `./starling`, in a checkout with a program that prints how it was called, and with
/// only the given commands besides those of a bare system.
fn script(commands: &[(&str, &str)], is_built: bool) -> Output {
    use std::os::unix::fs::PermissionsExt as _;
    let checkout = tempfile::tempdir().unwrap();
    let checkout = checkout.path();
    let write = |path: &str, text: &str| {
        let path = checkout.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    };
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for file in ["starling", "Cargo.toml"] {
        write(file, &std::fs::read_to_string(root.join(file)).unwrap());
    }
    if is_built {
        write(
            "target/release/starling",
            "#!/bin/sh\necho \"called as $STARLING_ARGV0\"",
        );
    }
    for (name, text) in commands {
        write(&format!("bin/{name}"), &format!("#!/bin/sh\n{text}"));
    }
    let system = ["bash", "dirname", "sed", "cut", "sort", "head", "sh"];
    std::fs::create_dir_all(checkout.join("bin")).unwrap();
    for name in system {
        let mut places = ["/usr/bin", "/bin"].map(Path::new).into_iter();
        let found = places.find(|folder| folder.join(name).exists()).unwrap();
        let found = found.join(name);
        std::os::unix::fs::symlink(found, checkout.join("bin").join(name)).unwrap();
    }
    Command::new(checkout.join("bin/bash"))
        .args(["./starling", "list", "envs"])
        .current_dir(checkout)
        .env("PATH", checkout.join("bin"))
        .env_remove("CARGO_TARGET_DIR")
        .env_remove("STARLING_LIBTORCH")
        .output()
        .unwrap()
}

#[test]
fn the_script_asks_for_tools_only_where_something_has_to_be_built() {
    let built = script(&[], true);
    assert_eq!(
        stdout(&built),
        "called as ./starling\n",
        "{}",
        stderr(&built)
    );
    let bare = script(&[], false);
    assert_eq!(bare.status.code(), Some(1));
    assert!(stderr(&bare).contains("Rust is missing (cargo was not found)"));
    let old = script(
        &[("cargo", "echo 'cargo 1.75.0 (1d8b05cdd 2023-11-20)'")],
        false,
    );
    assert_eq!(old.status.code(), Some(1));
    assert!(
        stderr(&old).contains("Rust 1.75.0 is too old"),
        "{}",
        stderr(&old)
    );
    // New enough, so that the next thing is missing.
    let new = script(
        &[("cargo", "echo 'cargo 1.100.0-nightly (0123456 2027-01-01)'")],
        false,
    );
    assert!(
        stderr(&new).contains("Python 3 is missing"),
        "{}",
        stderr(&new)
    );
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

#[test]
fn a_run_that_somebody_else_writes_to_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = starling(folder.path())
        .args([
            "train",
            "CartPole-v1",
            "--steps",
            "100000000",
            "stop_at_return=null",
            "--quiet",
        ])
        .spawn()
        .unwrap();
    wait_for(|| has_progress(folder.path()));
    let path = only_run(folder.path());
    let output = run(folder.path(), &["resume", path.to_str().unwrap()]);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("another process"),
        "{}",
        stderr(&output)
    );
}

/// Numbers that blow up end the run with the step and the metric; checkpoints stay.
#[test]
fn infinite_numbers_end_the_run_and_keep_the_last_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let output = run(
        folder.path(),
        &[
            "train",
            "Pendulum-v1",
            "--steps",
            "400000",
            "checkpoint.every_steps=1024",
            // Grows from nothing to absurd.
            "algo.learning_rate={start: 0.0, end: 10.0}",
            "algo.clip_norm=1e30",
            "algo.optimizer={kind: rmsprop, eps: 1.0, alpha: 1.0}",
        ],
    );
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let message = stderr(&output);
    assert!(
        message.contains("learning stopped at environment step"),
        "{message}"
    );
    assert!(
        message.contains("is NaN") || message.contains("is inf"),
        "{message}"
    );
    let path = only_run(folder.path());
    let kept = std::fs::read_dir(path.join("checkpoints")).unwrap().count();
    assert!(kept >= 1);
    assert!(
        message.contains("can be continued from its last checkpoint"),
        "{message}"
    );
    // The log ends with the reason.
    let log = std::fs::read_to_string(path.join("log.txt")).unwrap();
    let last = log.lines().last().unwrap();
    assert!(
        last.contains("ERROR") && last.contains("learning stopped at environment step"),
        "{log}"
    );
}

#[test]
fn the_tables_are_listed_and_settings_are_shown() {
    let folder = tempfile::tempdir().unwrap();
    let envs = stdout(&run(folder.path(), &["list", "envs"]));
    assert!(envs.contains("CartPole-v1") && envs.contains("MinAtar/Seaquest-v1"));
    let algos = stdout(&run(folder.path(), &["list", "algos"]));
    assert_eq!(
        algos.lines().count(),
        starling::algos::registry::all().len()
    );
    for (set, games) in [("atari57", 57), ("saber", 61)] {
        let listed = stdout(&run(folder.path(), &["list", set]));
        assert_eq!(listed.lines().count(), games);
        assert!(listed.lines().all(|line| line.starts_with("ALE/")));
    }
    let presets = stdout(&run(folder.path(), &["list", "presets"]));
    assert!(presets.contains("classic/ppo"));
    let shown = stdout(&run(
        folder.path(),
        &["config", "show", "CartPole-v1", "seed=9"],
    ));
    assert!(
        shown.contains("seed: 9") && shown.contains("id: CartPole-v1"),
        "{shown}"
    );
    let explained = run(folder.path(), &["config", "explain", "lr", "CartPole-v1"]);
    let explained = stdout(&explained);
    assert!(
        explained.starts_with("algo.learning_rate\n") && explained.contains("classic/ppo"),
        "{explained}"
    );
    let schema = stdout(&run(folder.path(), &["config", "explain", "--json"]));
    let schema: serde_json::Value = serde_json::from_str(&schema).unwrap();
    assert_eq!(schema["run"][0]["key"], "seed");
    let unknown = run(folder.path(), &["config", "explain", "algo.gamm"]);
    assert_eq!(unknown.status.code(), Some(2));
    let completions = stdout(&run(folder.path(), &["completions", "bash"]));
    for name in ["CartPole-v1", "check-env", "classic/ppo", "cuda:0"] {
        assert!(completions.contains(name), "{name}");
    }
    assert!(!completions.contains("probe-bf16"));
}

/// What bash offers at the end of a line, and whether it puts a space behind it.
fn completed(folder: &Path, words: &[&str]) -> (Vec<String>, bool) {
    let script = folder.join("completions.bash");
    std::fs::write(&script, run(folder, &["completions", "bash"]).stdout).unwrap();
    let program = r#"
        source "$1"; shift
        # Outside of a completion there are no options to change.
        compopt() { echo "$*" >&2; }
        COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
        complete=$(complete -p starling)
        [[ $complete =~ -F\ ([a-z_]+) ]]
        "${BASH_REMATCH[1]}" "$1" "${@: -1}" "${@: -2:1}"
        printf '%s\n' "${COMPREPLY[@]}"
    "#;
    let mut bash = Command::new("bash");
    let bash = bash.args(["--norc", "-c", program, "bash"]);
    let output = bash.arg(&script).args(words).output().unwrap();
    let space = match stderr(&output).as_str() {
        "" => true,
        "-o nospace\n" => false,
        other => panic!("{other}"),
    };
    (stdout(&output).lines().map(str::to_owned).collect(), space)
}

#[test]
fn bash_completes_names_and_values_of_settings() {
    let folder = tempfile::tempdir().unwrap();
    let completed = |words: &[&str]| completed(folder.path(), words);
    let rates = (
        vec![
            "algo.learning_rate=".to_owned(),
            "algo.learning_starts_steps=".to_owned(),
        ],
        false,
    );
    assert_eq!(
        completed(&["starling", "train", "CartPole-v1", "algo.lea"]),
        rates
    );
    assert_eq!(
        completed(&[
            "starling",
            "config",
            "show",
            "CartPole-v1",
            "--seed",
            "3",
            "algo.lea"
        ]),
        rates
    );
    let (names, _) = completed(&["starling", "train", "CartPole-v1", "ch"]);
    let expected = [
        "every_minutes",
        "every_steps",
        "keep_last",
        "milestone_steps",
    ];
    assert_eq!(names, expected.map(|name| format!("checkpoint.{name}=")));
    assert_eq!(
        completed(&["starling", "train", "Pong", "env.noop"]),
        (vec!["env.noop_max=".to_owned()], false)
    );
    let (values, _) = completed(&["starling", "train", "CartPole-v1", "mod"]);
    assert_eq!(values, ["mode=central", "mode=serial", "mode=threads"]);
    // Bash splits at `=`, and replaces only what follows.
    let (values, _) = completed(&["starling", "train", "CartPole-v1", "mode", "="]);
    assert_eq!(values, ["central", "serial", "threads"]);
    assert_eq!(
        completed(&["starling", "train", "CartPole-v1", "mode", "=", "se"]),
        (vec!["serial".to_owned()], true)
    );
    let (values, _) = completed(&["starling", "train", "CartPole-v1", "device", "=", "cu"]);
    assert_eq!(values, ["cuda:0"]);
    let after = [
        "starling",
        "train",
        "CartPole-v1",
        "mode",
        "=",
        "serial",
        "tf",
    ];
    assert_eq!(completed(&after).0, ["tf32=false", "tf32=true"]);
    let (names, _) = completed(&["starling", "config", "explain", "checkpoint.k"]);
    assert_eq!(names, ["checkpoint.keep_last"]);
    // Other words are followed by a space, as before.
    assert_eq!(
        completed(&["starling", "train", "CartPole-v1", "--algo", "qr"]),
        (vec!["qr-dqn".to_owned()], true)
    );
    assert_eq!(
        completed(&["starling", "train", "CartPole-v"]),
        (vec!["CartPole-v1".to_owned()], true)
    );
}

#[test]
fn environments_of_the_table_pass_the_checker() {
    let folder = tempfile::tempdir().unwrap();
    let output = run(
        folder.path(),
        &["check-env", "MinAtar/Seaquest-v1", "--steps", "3000"],
    );
    assert!(output.status.success(), "{}", stdout(&output));
    assert!(stdout(&output).contains("nothing is wrong"));
}

/// What README tells people to run is what CI runs.
#[test]
fn ci_runs_the_test_command_of_the_readme() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let read = |name: &str| std::fs::read_to_string(root.join(name)).unwrap();
    let ci = read(".ci/run");
    let command = ci.lines().last().unwrap().trim_start_matches("exec ");
    assert_eq!(command, "./starling test");
    let readme = read("README.md");
    for command in [command, "./starling train CartPole-v1"] {
        assert!(
            readme.lines().any(|line| line.trim() == command),
            "{command}"
        );
    }
}

/// Without ROMs and without the means to fetch them, everything says which command helps.
#[test]
fn missing_roms_name_the_command() {
    let folder = tempfile::tempdir().unwrap();
    let without = |args: &[&str]| {
        let mut command = starling(folder.path());
        command.env("STARLING_ROMS", folder.path().join("none"));
        command.env("XDG_CACHE_HOME", folder.path()).env("PATH", "");
        command.args(args).output().unwrap()
    };
    let train = without(&["train", "Pong", "--steps", "64"]);
    assert_eq!(train.status.code(), Some(1));
    assert!(stderr(&train).contains("ALE/Pong-v5 needs the ROM of pong"));
    assert!(
        stderr(&train).contains("`starling roms --from DIR`"),
        "{}",
        stderr(&train)
    );
    assert!(!folder.path().join("runs").exists());

    let empty = folder.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    std::fs::write(empty.join("pong.bin"), [0; 2048]).unwrap();
    let roms = without(&["roms", "--from", empty.to_str().unwrap()]);
    assert_eq!(roms.status.code(), Some(1));
    assert!(
        stderr(&roms).contains("is the ROM of a known game"),
        "{}",
        stderr(&roms)
    );
    let listed = without(&["roms", "--list"]);
    assert_eq!(listed.status.code(), Some(1));
    assert!(stdout(&listed).contains("0 of 104 games can be played"));

    let shown = without(&["config", "show", "Pong"]);
    assert!(stdout(&shown).contains("id: ALE/Pong-v5"));
    assert!(stdout(&shown).contains("life_loss: continues"));
    let doctor = stdout(&without(&["doctor"]));
    assert!(doctor.contains("0 of 104 ROMs"), "{doctor}");
    assert!(doctor.contains("missing  cargo      not found"), "{doctor}");
    assert!(doctor.contains("ok       bfloat16"), "{doctor}");
}

/// Whether this process, and so its children, ignores the end of its terminal.
fn ignores_hangups() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    u64::from_str_radix(ignored.unwrap().trim(), 16).unwrap() & 1 != 0
}
