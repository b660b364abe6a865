//! A run that is stopped and resumed is the same, bit for bit, as one that was not.

#![expect(clippy::unwrap_used, reason = "a test ends where something fails")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use starling::record::{RunFolder, Table};
use starling::settings::{Request, resolve};
use starling::{Reason, RunConfig, Training};

static NEVER: AtomicBool = AtomicBool::new(false);

/// Trains in one go and in two halves, and compares everything that was written.
fn same_in_one_go_and_in_two(env: &str, algo: &str, overrides: &[&str]) {
    let mut request = Request::new(env);
    request.algo = Some(algo.to_owned());
    request.overrides = vec![
        "mode=serial".into(),
        "steps=20000".into(),
        "stop_at_return=null".into(),
        "log_every_steps=2000".into(),
        "eval.every_steps=5000".into(),
        "eval.episodes=3".into(),
        "checkpoint.every_steps=8000".into(),
        "torch_threads=1".into(),
    ];
    request
        .overrides
        .extend(overrides.iter().map(|pair| pair.to_string()));
    let config = resolve(&request).unwrap();
    let root = tempfile::tempdir().unwrap();

    let whole = folder(&config, root.path(), "whole");
    let outcome = Training::start(config.clone(), &whole).unwrap();
    let outcome = outcome.run(&NEVER, None, &mut ()).unwrap();
    assert_eq!(outcome.reason, Reason::Finished);

    let halves = folder(&config, root.path(), "halves");
    let outcome = Training::start(config, &halves).unwrap();
    let outcome = outcome.run(&NEVER, Some(10_000), &mut ()).unwrap();
    assert_eq!(outcome.reason, Reason::Paused);
    let config = starling::read_config(&halves, None).unwrap();
    let (training, notes) = Training::resume(config, &halves).unwrap();
    assert!(notes.is_empty(), "{notes:?}");
    let outcome = training.run(&NEVER, None, &mut ()).unwrap();
    assert_eq!(outcome.reason, Reason::Finished);

    let (one, two) = (final_checkpoint(&whole), final_checkpoint(&halves));
    assert!(
        one.keys().eq(two.keys()),
        "{:?}, {:?}",
        one.keys(),
        two.keys()
    );
    for (name, bytes) in &one {
        assert!(*bytes == two[name], "{name} differs");
    }
    for table in ["progress.csv", "eval.csv"] {
        let read = |folder: &RunFolder| {
            let table = Table::read(&folder.path().join(table)).unwrap();
            without_times(&table)
        };
        assert_eq!(read(&whole), read(&halves), "{table}");
    }
}

fn folder(config: &RunConfig, root: &Path, name: &str) -> RunFolder {
    starling::create_folder(config, root, name).unwrap()
}

/// Every file of the last checkpoint but the times.
fn final_checkpoint(folder: &RunFolder) -> BTreeMap<String, Vec<u8>> {
    let checkpoints = std::fs::read_dir(folder.checkpoints_path()).unwrap();
    let folders = checkpoints.map(|entry| entry.unwrap().path());
    let last = folders.filter(|path| path.is_dir()).max().unwrap();
    let files = std::fs::read_dir(last).unwrap().map(|entry| {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        (name, std::fs::read(path).unwrap())
    });
    let mut files: BTreeMap<_, _> = files.collect();
    assert!(files.remove("times.json").is_some());
    assert!(
        files.contains_key("learner.safetensors"),
        "{:?}",
        files.keys()
    );
    files
}

/// The bits of every column that does not measure time.
fn without_times(table: &Table) -> Vec<(String, Vec<u64>)> {
    let timed = |name: &&String| {
        ["Time", "PerSecond", "SPS", "OptThrottle"]
            .iter()
            .any(|word| name.contains(word))
    };
    let columns = table.columns.iter().filter(|name| !timed(name));
    columns
        .map(|name| {
            let values = table.column(name).unwrap();
            // Not-a-number compares as its bits.
            (
                name.clone(),
                values.iter().map(|value| value.to_bits()).collect(),
            )
        })
        .collect()
}

#[test]
fn ppo() {
    same_in_one_go_and_in_two("CartPole-v1", "ppo", &[]);
}

#[test]
fn ppo_with_memory_and_decorrelated_starts() {
    let overrides = ["algo.net.lstm=16", "decorrelate_steps=30"];
    same_in_one_go_and_in_two("CartPole-v1", "ppo", &overrides);
}

#[test]
fn ppo_on_continuous_actions() {
    same_in_one_go_and_in_two("Pendulum-v1", "ppo", &[]);
}

#[test]
fn a2c() {
    same_in_one_go_and_in_two("CartPole-v1", "a2c", &[]);
}

#[test]
fn impala() {
    let overrides = ["asynchronous=false", "algo.batch_envs=4"];
    same_in_one_go_and_in_two("CartPole-v1", "impala", &overrides);
}

#[test]
fn impala_with_all_that_is_remembered() {
    let overrides = [
        "asynchronous=false",
        "algo.net.lstm=16",
        "algo.net.last_action_reward=true",
        "algo.net.normalize_observations=true",
    ];
    same_in_one_go_and_in_two("CartPole-v1", "impala", &overrides);
}

#[test]
fn appo() {
    same_in_one_go_and_in_two("CartPole-v1", "appo", &["asynchronous=false"]);
}

#[test]
fn pqn() {
    same_in_one_go_and_in_two("CartPole-v1", "pqn", &[]);
}

#[test]
fn dqn() {
    same_in_one_go_and_in_two("CartPole-v1", "dqn", &[]);
}

#[test]
fn dqn_with_every_switch() {
    let overrides = [
        "algo.priority={alpha: 0.6}",
        "algo.n_steps=3",
        "algo.net.dueling=true",
        "algo.capacity_steps=4000",
    ];
    same_in_one_go_and_in_two("MinAtar/Breakout-v1", "dqn", &overrides);
}

#[test]
fn rainbow_iqn() {
    let overrides = ["algo.capacity_steps=6000", "algo.replay_ratio=4"];
    same_in_one_go_and_in_two("CartPole-v1", "rainbow-iqn", &overrides);
}

#[test]
fn r2d2() {
    let overrides = ["algo.capacity_steps=6000", "algo.replay_ratio=8"];
    same_in_one_go_and_in_two("CartPoleMasked-v1", "r2d2", &overrides);
}

#[test]
fn ngu() {
    let small = [
        "algo.net.torso=mlp",
        "algo.net.hidden=[16]",
        "algo.lstm=16",
        "algo.replay_ratio=1",
    ];
    same_in_one_go_and_in_two("KeyDoor-v0", "ngu", &small);
}

/// A damaged latest checkpoint is named, and the one before it is used.
#[test]
fn a_damaged_checkpoint_is_passed_over() {
    let mut request = Request::new("CartPole-v1");
    request.overrides = vec!["steps=20000".into(), "checkpoint.every_steps=5000".into()];
    let config = resolve(&request).unwrap();
    let root = tempfile::tempdir().unwrap();
    let folder = folder(&config, root.path(), "damaged");
    let training = Training::start(config.clone(), &folder).unwrap();
    training.run(&NEVER, Some(12_000), &mut ()).unwrap();
    let checkpoints = std::fs::read_dir(folder.checkpoints_path()).unwrap();
    let mut folders: Vec<_> = checkpoints.map(|entry| entry.unwrap().path()).collect();
    folders.retain(|path| path.is_dir());
    folders.sort();
    let last = folders.pop().unwrap();
    let file = last.join("learner.safetensors");
    let mut bytes = std::fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&file, bytes).unwrap();

    let (_, notes) = Training::resume(config, &folder).unwrap();
    let named = last.file_name().unwrap().to_str().unwrap();
    assert!(notes.iter().any(|note| note.contains(named)), "{notes:?}");
}
