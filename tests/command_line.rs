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
            "did you mean ppo? There are a2c",
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
        (&["train", "CartPole-v1", "env.sticky=1"], "env.sticky"),
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
            "env: max_episode_steps",
        ),
        (
            &["train", "CartPole-v1", "algo.learning_rate=fast"],
            "allowed: a number, or {start",
        ),
        (
            &["train", "CartPole-v1", "algo.net.hidden=[0]"],
            "algo.net.hidden is 0",
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
        (&["train", "Pendulum-v1", "--algo", "dqn"], "discrete"),
        (
            &["train", "CartPole-v1", "--config", "nowhere.yaml"],
            "nowhere.yaml",
        ),
        (&["train"], "no environment was named"),
        (&["config", "show", "breakout"], "MinAtar/Breakout-v1"),
        (&["check-env", "Acrobat-v1"], "Acrobot-v1"),
        (
            &["check-env", "Acrobot-v1", "--steps", "0"],
            "0 is not in 1..",
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
    assert!(
        said.contains("./starling eval runs/CartPole-v1/ppo/run-s4-"),
        "{said}"
    );

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
}

/// Ctrl-C once: a checkpoint and exit 130; `resume` goes on from there.
#[test]
fn interrupting_checkpoints_and_resume_goes_on() {
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
    let id = child.id().to_string();
    assert!(
        Command::new("kill")
            .args(["-INT", &id])
            .status()
            .unwrap()
            .success()
    );
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let path = only_run(folder.path());
    let path = path.to_str().unwrap();
    let resumed = run(folder.path(), &["resume", path, "--stop-after", "1"]);
    assert!(resumed.status.success(), "{}", stderr(&resumed));
    assert!(stdout(&resumed).contains("paused"), "{}", stdout(&resumed));
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
    let checkpoints = only_run(folder.path()).join("checkpoints");
    let kept = std::fs::read_dir(checkpoints).unwrap().count();
    assert!(kept >= 1);
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
    let completions = stdout(&run(folder.path(), &["completions", "bash"]));
    assert!(completions.contains("CartPole-v1") && completions.contains("check-env"));
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
        stderr(&train).contains("./starling roms"),
        "{}",
        stderr(&train)
    );
    assert!(!folder.path().join("runs").exists());

    let empty = folder.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    std::fs::write(empty.join("pong.bin"), [0; 2048]).unwrap();
    let roms = without(&["roms", "--from", empty.to_str().unwrap()]);
    assert_eq!(roms.status.code(), Some(1));
    assert!(stdout(&roms).contains("0 of 104 games can be played"));

    let shown = without(&["config", "show", "Pong"]);
    assert!(stdout(&shown).contains("id: ALE/Pong-v5"));
    assert!(stdout(&shown).contains("life_loss: continues"));
    assert!(stdout(&without(&["doctor"])).contains("0 of 104 ROMs"));
}
