//! What `plot` and `eval` say about runs, as a user meets it.

#![expect(clippy::unwrap_used, reason = "a test ends where something fails")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn run(folder: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_starling"));
    command.current_dir(folder).stdin(Stdio::null());
    command.args(args).output().unwrap()
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", stderr(output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn train(folder: &Path, args: &[&str]) {
    let usual = ["train", "CartPole-v1", "--quiet", "stop_at_return=null"];
    stdout(&run(folder, &[&usual[..], args].concat()));
}

fn runs_of(folder: &Path, algo: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder.join("runs/CartPole-v1").join(algo)).unwrap();
    let mut runs: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    runs.sort();
    runs
}

#[test]
fn runs_are_compared_by_their_settings() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let few = ["--steps", "1024", "log_every_steps=512"];
    // Two of them in the same second, as a sweep does it.
    let same = [&few[..], &["--seed", "1"]].concat();
    std::thread::scope(|scope| {
        scope.spawn(|| train(folder, &same));
        scope.spawn(|| train(folder, &same));
    });
    assert_eq!(runs_of(folder, "ppo").len(), 2);
    train(
        folder,
        &[&few[..], &["--seed", "2", "checkpoint.keep_last=2"]].concat(),
    );
    let other = ["--seed", "1", "algo.gamma=0.5"];
    train(folder, &[&few[..], &other].concat());

    let plotted = run(folder, &["plot", "runs", "--out", "curves"]);
    let said = stdout(&plotted);
    let two = "ppo gamma=0.9";
    assert!(said.contains(two), "{said}");
    assert!(said.contains("(1 game, 2 runs)"), "{said}");
    assert!(
        said.contains("ppo gamma=0.5, CartPole-v1: return: "),
        "{said}"
    );
    assert!(said.contains("(1 game, 1 run)"), "{said}");
    let warned = stderr(&plotted);
    assert!(
        warned.contains("has the same settings and seed"),
        "{warned}"
    );
    let page = std::fs::read_to_string(folder.join("curves/plot.html")).unwrap();
    assert!(page.contains("ppo gamma=0.9") && page.contains(" (2 runs)"));

    // A folder below, and a run given twice.
    let runs = runs_of(folder, "ppo");
    let last = runs[3].to_str().unwrap();
    let said = stdout(&run(folder, &["plot", last, last, "--out", "curves"]));
    assert!(said.contains("(1 game, 1 run)"), "{said}");
    let said = stdout(&run(
        folder,
        &["plot", "runs/CartPole-v1/ppo", "--out", "curves"],
    ));
    assert!(said.contains("(1 game, 2 runs)"), "{said}");
    let nothing = run(folder, &["plot", "curves"]);
    assert!(stderr(&nothing).contains("is not a run folder"));
    assert_eq!(nothing.status.code(), Some(2));
}

#[test]
fn an_evaluation_says_what_was_evaluated() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let settings = [
        "--algo",
        "dqn",
        "--steps",
        "1024",
        "checkpoint.every_steps=256",
    ];
    train(folder, &settings);
    let path = runs_of(folder, "dqn").remove(0);
    let path = path.to_str().unwrap();
    let checkpoints = Path::new(path).join("checkpoints");
    let few = ["eval", path, "--episodes", "3"];

    let evaluated = run(folder, &[&few[..], &["--seed", "7", "--json"]].concat());
    let report: serde_json::Value = serde_json::from_str(&stdout(&evaluated)).unwrap();
    assert_eq!(report["run"], path);
    assert_eq!(report["seed"], 7);
    let chosen = report["checkpoint"].as_str().unwrap();
    assert!(chosen.ends_with("checkpoints/000000001024"), "{chosen}");
    let returns = report["returns"].as_array().unwrap().iter();
    let mut returns: Vec<f64> = returns.map(|value| value.as_f64().unwrap()).collect();
    returns.sort_by(f64::total_cmp);
    assert_eq!(report["return_median"], returns[1]);
    let said = stdout(&run(folder, &few));
    assert!(said.contains("3 episodes, seed 1000000\n"), "{said}");
    assert!(said.contains("checkpoints/000000001024\n"), "{said}");

    let _ = std::fs::remove_file(checkpoints.join("best"));
    let best = run(folder, &[&few[..], &["--best"]].concat());
    assert!(stdout(&best).contains("at step 1024"));
    assert!(stderr(&best).contains("no checkpoint is marked as the best"));

    // The parts of the replay are shared by all checkpoints, and not needed here.
    for checkpoint in std::fs::read_dir(&checkpoints).unwrap() {
        let part = checkpoint.unwrap().path().join("replay-1.bin");
        if let Ok(mut bytes) = std::fs::read(&part) {
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            std::fs::write(&part, bytes).unwrap();
            break;
        }
    }
    let damaged = run(folder, &few);
    assert!(stdout(&damaged).contains("at step 1024"));
    assert_eq!(stderr(&damaged), "");

    let wrong = run(folder, &[&few[..], &["--protocol", "training"]].concat());
    assert!(!wrong.status.success());
    assert!(
        stderr(&wrong).contains("for Atari games"),
        "{}",
        stderr(&wrong)
    );
}
