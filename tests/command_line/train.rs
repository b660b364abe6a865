//! `starling train`, and what becomes of a run.

use std::process::{Command, Stdio};

use super::{has_progress, only_run, run, starling, stderr, stdout, wait_for};

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
