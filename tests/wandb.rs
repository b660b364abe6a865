//! `scripts/to_wandb.py`: what it writes for Weights & Biases, read back with the package's own messages.

use std::path::Path;
use std::process::Command;

use serde_json::Value;
use starling::record::{RunFolder, Table};
use starling::settings::{self, Request};

#[test]
fn a_run_becomes_offline_files() {
    let python = std::env::var("STARLING_TEST_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let has_package = Command::new(&python)
        .args(["-c", "import wandb"])
        .output()
        .is_ok_and(|output| output.status.success());
    if !has_package {
        let why = format!("{python} cannot import wandb (pip install wandb)");
        return starling_testing::skip("wandb", "a_run_becomes_offline_files", &why);
    }
    let folder = tempfile::tempdir().unwrap();
    let settings = [
        "steps=20000",
        "stop_at_return=null",
        "log_every_steps=3000",
        "eval.every_steps=6000",
        "eval.episodes=2",
    ];
    let request = Request {
        overrides: settings.map(str::to_owned).to_vec(),
        ..Request::new("CartPole-v1")
    };
    let config = settings::resolve(&request).unwrap();
    starling::train(config, folder.path(), "bridge", &mut ()).unwrap();
    let run = starling::record::find_runs(&[folder.path().to_owned()]).unwrap();
    let run = RunFolder::open(&run[0]).unwrap();

    let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let call = |script: &str, arguments: &[&Path]| {
        let mut command = Command::new(&python);
        command.arg(checkout.join(script)).args(arguments);
        // Nothing of the user's is read or written.
        command
            .env("HOME", folder.path())
            .env("WANDB_SILENT", "true");
        let output = command.current_dir(folder.path()).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{errors}");
        String::from_utf8(output.stdout).unwrap()
    };
    let said = call("scripts/to_wandb.py", &[folder.path()]);
    let offline = Path::new(said.trim().split_once("rows; ").unwrap().1);
    let files = std::fs::read_dir(offline).unwrap();
    let mut files = files.map(|file| file.unwrap().path());
    let file = files.find(|path| path.extension().is_some_and(|end| end == "wandb"));
    let read: Value =
        serde_json::from_str(&call("tests/wandb/read.py", &[&file.unwrap()])).unwrap();

    assert_eq!(read["config"]["algo"]["name"], "ppo");
    assert_eq!(read["config"]["seed"], 1);
    let group = read["group"].as_str().unwrap();
    assert!(group.starts_with("CartPole-v1-ppo-bridge-"), "{group}");
    // Every finite number of both tables is there, at its step, and nothing else.
    let history = read["history"].as_array().unwrap();
    let steps: Vec<u64> = history
        .iter()
        .map(|row| row["env_steps"].as_u64().unwrap())
        .collect();
    assert!(steps.is_sorted_by(|a, b| a < b), "{steps:?}");
    let mut count = 0;
    for (path, prefix) in [(run.progress_path(), ""), (run.eval_path(), "eval/")] {
        let table = Table::parse(&std::fs::read_to_string(path).unwrap());
        assert!(table.rows.len() >= 3);
        for row in &table.rows {
            let at = history.iter().find(|line| line["env_steps"] == row[0]);
            let at = at.unwrap();
            for (name, value) in table.columns.iter().zip(row).skip(1) {
                if value.is_finite() {
                    assert_eq!(at[format!("{prefix}{name}")], *value, "{prefix}{name}");
                    count += 1;
                }
            }
        }
    }
    let own = |key: &str| key != "env_steps" && !key.starts_with('_');
    let lines = history.iter().map(|row| row.as_object().unwrap());
    let sent: usize = lines
        .map(|row| row.keys().filter(|key| own(key)).count())
        .sum();
    assert_eq!(sent, count);
}
