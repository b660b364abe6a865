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

#[test]
fn a_program_outside_the_checkout_has_an_environment_and_an_algorithm_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    copy(folder);
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = in_folder(cargo, folder)
        .args(["build", "--release", "--offline", "--target-dir"])
        .arg(target())
        .output();
    successful(built.unwrap());
    let program = target().join("release/outside");
    let run = |args: &[&str]| in_folder(&program, folder).args(args).output().unwrap();

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
    let runs = folder.join("runs/Ice-v0/ppo");
    let run_folder = std::fs::read_dir(runs)
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
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
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    // Random actions need about 60 steps to cross 4 cells, which leaves 0.4.
    assert!(report["return_mean"].as_f64().unwrap() > 0.8, "{report}");
    assert!(
        std::fs::read(folder.join("ice.gif"))
            .unwrap()
            .starts_with(b"GIF89a")
    );

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
    let runs = folder.join("runs/CartPole-v1/reinforce");
    let trained = std::fs::read_dir(runs).unwrap().next().unwrap().unwrap();
    let trained = trained.path();
    let report = successful(run(&["eval", trained.to_str().unwrap(), "--json"]));
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    // Random actions last for 22 steps.
    assert!(report["return_mean"].as_f64().unwrap() > 100.0, "{report}");

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
