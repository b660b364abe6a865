//! A program outside the checkout builds against it and has every command.

#![expect(clippy::unwrap_used, reason = "a test ends where something fails")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.canonicalize().unwrap()
}

/// The folder in which this test was built: dependencies are there already.
fn target() -> PathBuf {
    let temporary = Path::new(env!("CARGO_TARGET_TMPDIR"));
    temporary.parent().unwrap().to_owned()
}

fn libtorch() -> PathBuf {
    match std::env::var_os("LIBTORCH") {
        Some(folder) => folder.into(),
        None => root().join(".libtorch"),
    }
}

fn in_folder(program: impl AsRef<std::ffi::OsStr>, folder: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .current_dir(folder)
        .env("LIBTORCH", libtorch())
        .env("LD_LIBRARY_PATH", libtorch().join("lib"));
    command
}

fn successful(output: Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, errors) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{out}{errors}");
    out
}

/// Copies `examples/outside` out of the checkout, as the book tells users to.
fn copy(folder: &Path) {
    let example = root().join("examples/outside");
    std::fs::create_dir_all(folder.join("src")).unwrap();
    for file in std::fs::read_dir(example.join("src")).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), folder.join("src").join(file.file_name())).unwrap();
    }
    let manifest = std::fs::read_to_string(example.join("Cargo.toml")).unwrap();
    let library = root().join("crates/cli");
    let manifest = manifest.replace("../../crates/cli", library.to_str().unwrap());
    std::fs::write(folder.join("Cargo.toml"), manifest).unwrap();
    std::fs::copy(root().join("Cargo.lock"), folder.join("Cargo.lock")).unwrap();
    // The same flags as here, so that dependencies need not be built again.
    std::fs::create_dir_all(folder.join(".cargo")).unwrap();
    let config = Path::new(".cargo/config.toml");
    std::fs::copy(root().join(config), folder.join(config)).unwrap();
}

/// Builds the program with its tests, runs those, and returns it.
fn build(folder: &Path) -> PathBuf {
    copy(folder);
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    for command in ["build", "test"] {
        let built = in_folder(&cargo, folder)
            .args([command, "--release", "--offline", "--target-dir"])
            .arg(target())
            .output();
        successful(built.unwrap());
    }
    target().join("release/outside")
}

/// The folder of the only run of an environment and an algorithm.
fn only_run(folder: &Path, env: &str, algo: &str) -> PathBuf {
    let runs = folder.join("runs").join(env.replace('/', "-")).join(algo);
    let mut runs = std::fs::read_dir(runs).unwrap();
    let run = runs.next().unwrap().unwrap().path();
    assert!(runs.next().is_none());
    run
}

fn return_of(report: &str) -> f64 {
    let report: serde_json::Value = serde_json::from_str(report).unwrap();
    report["return_mean"].as_f64().unwrap()
}

/// The weights and the optimiser at the end of a run.
fn learner(run: &Path) -> Vec<u8> {
    let checkpoints = std::fs::read_dir(run.join("checkpoints")).unwrap();
    let folders = checkpoints.map(|entry| entry.unwrap().path());
    let last = folders.filter(|path| path.is_dir()).max().unwrap();
    std::fs::read(last.join("learner.safetensors")).unwrap()
}

#[test]
fn a_program_outside_the_checkout_has_parts_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let program = build(folder.path());
    environment(folder.path(), &program);
    family(folder.path(), &program);
    algorithm(folder.path(), &program);
    network(folder.path(), &program);
    link(folder.path(), &program);
}

/// A family of tasks: environment i has task i, evaluations have others, and PEARL learns on it.
fn family(folder: &Path, program: &Path) {
    let run = |args: &[&str]| in_folder(program, folder).args(args).output().unwrap();
    let checked = successful(run(&["check-env", "CorridorFamily-v0", "--steps", "500"]));
    assert!(checked.contains("nothing is wrong"), "{checked}");
    let small = [
        "train",
        "CorridorFamily-v0",
        "--quiet",
        "steps=1200",
        "envs=4",
        "env.train_tasks=4",
        "env.eval_tasks=2",
        "eval.every_steps=1200",
        "eval.episodes=2",
        "algo.learning_starts_steps=800",
        "algo.meta_batch=2",
        "algo.batch_size=16",
        "algo.context_batch=16",
        "algo.hidden=[16]",
        "algo.encoder_hidden=[16]",
        "algo.updates_per_step=0.1",
    ];
    successful(run(&small));
    let run = only_run(folder, "CorridorFamily-v0", "pearl");
    let evaluations = std::fs::read_to_string(run.join("eval.csv")).unwrap();
    assert!(
        evaluations.contains("Trajectory3ReturnAverage"),
        "{evaluations}"
    );
}

fn environment(folder: &Path, program: &Path) {
    let run = |args: &[&str]| in_folder(program, folder).args(args).output().unwrap();

    let listed = successful(run(&["list", "envs", "ice-"]));
    assert_eq!(listed.trim(), "Ice-v0  cross a square of slippery ice");
    let checked = successful(run(&[
        "check-env",
        "Ice-v0",
        "env.slip=1",
        "--steps",
        "2000",
    ]));
    assert!(checked.contains("nothing is wrong"), "{checked}");

    let train = [
        "train",
        "Ice-v0",
        "--steps",
        "8000",
        "--name",
        "test",
        "env.side=4",
    ];
    successful(run(&train));
    let run_folder = only_run(folder, "Ice-v0", "ppo");
    let config = std::fs::read_to_string(run_folder.join("config.yaml")).unwrap();
    assert!(
        config.contains("side: 4") && config.contains("slip: 0.2"),
        "{config}"
    );
    let path = run_folder.to_str().unwrap();
    let video = [
        "eval",
        path,
        "--episodes",
        "20",
        "--json",
        "--video",
        "ice.gif",
    ];
    let report = successful(run(&video));
    // Random actions need about 60 steps to cross 4 cells, which leaves 0.4.
    assert!(return_of(&report) > 0.8, "{report}");
    assert!(
        std::fs::read(folder.join("ice.gif"))
            .unwrap()
            .starts_with(b"GIF89a")
    );

    let explained = successful(run(&["config", "explain", "side", "Ice-v0"]));
    let expected = "\
env.side
  Cells along each side.

  type       integer
  unit       cells
  range      between 2 and 50
  default    5
  value      5 for Ice-v0 with preset default/ppo
";
    assert_eq!(explained, expected);
    let message = |output: Output| {
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let outside = message(run(&["train", "Ice-v0", "env.side=300"]));
    let expected = "env.side is 300; allowed: between 2 and 50";
    assert!(outside.contains(expected), "{outside}");
    let outside = message(run(&[
        "train",
        "CartPole-v1",
        "--algo",
        "reinforce",
        "algo.hidden=0",
    ]));
    let expected = "algo.hidden is 0; allowed: between 1 and 65536";
    assert!(outside.contains(expected), "{outside}");
    let unknown = run(&["train", "Ice-v0", "env.sides=4"]);
    assert_eq!(unknown.status.code(), Some(2));
    let message = String::from_utf8_lossy(&unknown.stderr).into_owned();
    let expected = "did you mean env.side? Available: env.max_episode_steps, env.side, env.slip";
    assert!(message.contains(expected), "{message}");
}

fn algorithm(folder: &Path, program: &Path) {
    let run = |args: &[&str]| in_folder(program, folder).args(args).output().unwrap();
    let cart_pole = [
        "train",
        "CartPole-v1",
        "--algo",
        "reinforce",
        "--steps",
        "60000",
        "--name",
        "learns",
        "envs=8",
        "seed=1",
    ];
    successful(run(&cart_pole));
    let trained = only_run(folder, "CartPole-v1", "reinforce");
    let report = successful(run(&["eval", trained.to_str().unwrap(), "--json"]));
    // Random actions last for 22 steps.
    assert!(return_of(&report) > 100.0, "{report}");
}

/// Every family of algorithms uses it, and what was trained can be resumed and evaluated.
fn network(folder: &Path, program: &Path) {
    let run = |args: &[&str]| in_folder(program, folder).args(args).output().unwrap();
    let own = [
        "algo.net.torso=fourier",
        "algo.net.torso_options.frequencies=32",
    ];
    for (algo, env) in [
        ("impala", "MinAtar/Breakout-v1"),
        ("dqn", "CartPole-v1"),
        ("r2d2", "CartPole-v1"),
        ("sac", "Pendulum-v1"),
    ] {
        let mut train = vec![
            "train", env, "--algo", algo, "--steps", "1500", "--name", "own",
        ];
        train.extend(own);
        if algo != "impala" {
            train.push("algo.learning_starts_steps=500");
        }
        successful(run(&train));
        let trained = only_run(folder, env, algo);
        let weights = learner(&trained);
        let name = b"torso.frequencies.weight";
        let saved = weights.windows(name.len()).any(|bytes| bytes == name);
        assert!(saved, "{algo}");
        let config = trained.join("config.yaml");
        let settings = std::fs::read_to_string(&config).unwrap();
        let longer = settings.replace("\nsteps: 1500", "\nsteps: 3000");
        assert_ne!(settings, longer);
        std::fs::write(config, longer).unwrap();
        let trained = trained.to_str().unwrap();
        successful(run(&["resume", trained]));
        successful(run(&["eval", trained, "--episodes", "2"]));
    }

    let unknown = run(&["train", "CartPole-v1", "algo.net.torso=furrier"]);
    assert_eq!(unknown.status.code(), Some(2));
    let message = String::from_utf8_lossy(&unknown.stderr).into_owned();
    assert!(message.contains("`resnet`, `fourier`"), "{message}");
    let wrong = "algo.net.torso_options.frequency=32";
    let unknown = run(&["train", "CartPole-v1", own[0], wrong]);
    assert_eq!(unknown.status.code(), Some(2));
    let message = String::from_utf8_lossy(&unknown.stderr).into_owned();
    let expected = "did you mean algo.net.torso_options.frequencies?";
    assert!(message.contains(expected), "{message}");
}

/// With actors in processes of their own the run is the same, bit for bit.
fn link(folder: &Path, program: &Path) {
    let run = |args: &[&str]| in_folder(program, folder).args(args).output().unwrap();
    let settings = [
        "mode=threads",
        "threads=2",
        "envs=4",
        "steps=4000",
        "torch_threads=1",
        "asynchronous=false",
        "seed=7",
    ];
    let env = "CartPoleMasked-v1";
    let told = successful(run(&[&["socket-train", env], &settings[..]].concat()));
    assert!(told.contains("by 2 actors"), "{told}");
    let with_processes = learner(&only_run(folder, env, "r2d2"));
    std::fs::remove_dir_all(folder.join("runs").join(env)).unwrap();
    successful(run(&[&["train", env], &settings[..]].concat()));
    let with_threads = learner(&only_run(folder, env, "r2d2"));
    assert!(with_processes == with_threads);
}
