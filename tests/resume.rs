//! A run that is stopped and resumed is the same, bit for bit, as one that was not.

#![expect(clippy::unwrap_used, reason = "a test ends where something fails")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use starling::algos::Experience;
use starling::envs::Rollout;
use starling::nets::Device;
use starling::record::{Checkpoint, RunFolder, Table, checkpoint};
use starling::replay::{Layout, Replay, Snapshot};
use starling::settings::{Request, resolve};
use starling::tree::Tree;
use starling::{Reason, RunConfig, Training};

static NEVER: AtomicBool = AtomicBool::new(false);

/// Trains in one go and in two halves, and compares everything that was written. Returns of how
/// many parts the replay is in the last checkpoint of either.
fn same_in_one_go_and_in_two(env: &str, algo: &str, overrides: &[&str]) -> [usize; 2] {
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
    let outcome = Training::start(config.clone(), &halves).unwrap();
    let outcome = outcome.run(&NEVER, Some(10_000), &mut ()).unwrap();
    assert_eq!(outcome.reason, Reason::Paused);
    let resumed = starling::read_config(&halves, None).unwrap();
    let (training, notes) = Training::resume(resumed, &halves).unwrap();
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
    assert!(
        replay_of(&config, &whole) == replay_of(&config, &halves),
        "the replays differ"
    );
    for table in ["progress.csv", "eval.csv"] {
        let read = |folder: &RunFolder| {
            let table = Table::read(&folder.path().join(table)).unwrap();
            without_times(&table)
        };
        assert_eq!(read(&whole), read(&halves), "{table}");
    }
    [whole, halves].map(|folder| {
        let (last, _) = checkpoint::latest(&folder.checkpoints_path()).unwrap();
        parts_of(&last).len()
    })
}

fn folder(config: &RunConfig, root: &Path, name: &str) -> RunFolder {
    starling::create_folder(config, root, name).unwrap()
}

/// Every file of the last checkpoint but the times and the replay: into which parts that is cut
/// depends on when checkpoints were taken, see [`replay_of`].
fn final_checkpoint(folder: &RunFolder) -> BTreeMap<String, Vec<u8>> {
    let (last, damaged) = checkpoint::latest(&folder.checkpoints_path()).unwrap();
    assert!(damaged.is_empty(), "{damaged:?}");
    let names = last.files().filter(|name| !name.starts_with("replay-"));
    let files = names.map(|name| (name.to_owned(), last.read(name).unwrap()));
    let files: BTreeMap<_, _> = files.collect();
    for name in ["learner.safetensors", "actors.bin", "run.json"] {
        assert!(files.contains_key(name), "{:?}", files.keys());
    }
    files
}

/// The replay of the last checkpoint, put together from its parts and written as one.
fn replay_of(config: &RunConfig, folder: &RunFolder) -> Option<Vec<u8>> {
    let algorithm = config.algorithm().unwrap();
    let Experience::Transitions(needs) = algorithm.experience() else {
        return None;
    };
    let env = config.env_spec().unwrap().make(&config.env).unwrap();
    let (obs, action) = (env.observation_space(), env.action_space());
    let records = algorithm.policy(Device::Cpu).records();
    let rollout = Rollout::new(1, 1, &obs, &action, None, &records, &Tree::empty());
    let layout = Layout::of_rollout(&rollout, config.settings.envs);
    let (last, _) = checkpoint::latest(&folder.checkpoints_path()).unwrap();
    let part = |number: u64| last.reader(&format!("replay-{number}.bin")).unwrap();
    let newest = part(*parts_of(&last).last().unwrap());
    let (replay, parts) =
        Replay::load(newest, |number| Ok(part(number)), &needs.replay, &layout).unwrap();
    assert!(
        parts.parts().eq(parts_of(&last)),
        "a checkpoint has the parts that it needs and no others"
    );
    let mut bytes = Vec::new();
    let whole = Snapshot::begin(&replay, None).unwrap();
    whole.write(&mut bytes).unwrap();
    Some(bytes)
}

/// The numbers of the replay's parts, in their order.
fn parts_of(checkpoint: &Checkpoint) -> Vec<u64> {
    let numbers = checkpoint.files().filter_map(|name| {
        let number = name.strip_prefix("replay-")?.strip_suffix(".bin")?;
        Some(number.parse().unwrap())
    });
    let mut numbers: Vec<u64> = numbers.collect();
    numbers.sort_unstable();
    numbers
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

/// Simulations continue from MuJoCo's whole state, and from what tasks remember.
#[test]
fn ppo_on_mujoco() {
    if let Err(error) = starling::mujoco::place::find() {
        return starling_testing::skip("mujoco", "ppo_on_mujoco", &error.to_string());
    }
    for env in ["HalfCheetah-v5", "Ant-v5"] {
        same_in_one_go_and_in_two(env, "ppo", &["algo.epochs=1", "algo.minibatches=4"]);
    }
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

/// Distributions and noise: the learner draws fractions and noise, actors draw their own.
#[test]
fn c51() {
    same_in_one_go_and_in_two("CartPole-v1", "c51", &FEW_UPDATES);
}

#[test]
fn qr_dqn() {
    same_in_one_go_and_in_two("CartPole-v1", "qr-dqn", &FEW_UPDATES);
}

#[test]
fn iqn() {
    same_in_one_go_and_in_two("CartPole-v1", "iqn", &FEW_UPDATES);
}

#[test]
fn rainbow() {
    let overrides = [&FEW_UPDATES[..], &["algo.noise_every_steps=3"]].concat();
    same_in_one_go_and_in_two("CartPole-v1", "rainbow", &overrides);
}

/// The ladder moves with the steps of the run.
#[test]
fn apex_dqn() {
    let ladder = "algo.epsilon_ladder={base: 0.7, base_end: 0.1, move_steps: 15000, min: 0.02}";
    let overrides = [&FEW_UPDATES[..], &["asynchronous=false", ladder]].concat();
    same_in_one_go_and_in_two("CartPole-v1", "apex-dqn", &overrides);
}

#[test]
fn apex_rainbow() {
    let overrides = [&FEW_UPDATES[..], &["asynchronous=false"]].concat();
    same_in_one_go_and_in_two("CartPole-v1", "apex-rainbow", &overrides);
}

#[test]
fn apex_rainbow_iqn() {
    let overrides = [&FEW_UPDATES[..], &["asynchronous=false"]].concat();
    same_in_one_go_and_in_two("CartPole-v1", "apex-rainbow-iqn", &overrides);
}

/// Several networks and optimisers, and random numbers of the learner.
#[test]
fn sac() {
    let overrides = [
        &FEW_OF_CONTINUOUS[..],
        &["envs=2", "algo.actor_every_updates=3"],
    ]
    .concat();
    same_in_one_go_and_in_two("Pendulum-v1", "sac", &overrides);
}

/// Running statistics among the weights.
#[test]
fn crossq() {
    same_in_one_go_and_in_two("Pendulum-v1", "crossq", &FEW_OF_CONTINUOUS);
}

#[test]
fn sac_with_residual_layers() {
    let overrides = [&FEW_OF_CONTINUOUS[..], &["algo.net.layers=residual"]].concat();
    same_in_one_go_and_in_two("Pendulum-v1", "sac", &overrides);
}

#[test]
fn td3() {
    let overrides = [&FEW_OF_CONTINUOUS[..], &["algo.priority={alpha: 0.6}"]].concat();
    same_in_one_go_and_in_two("Pendulum-v1", "td3", &overrides);
}

#[test]
fn ddpg() {
    same_in_one_go_and_in_two("Pendulum-v1", "ddpg", &FEW_OF_CONTINUOUS);
}

/// Trials under way when the run stops, tasks of environments, and steps that the policy marked.
#[test]
fn pearl() {
    let overrides = [
        "envs=6",
        "env.train_tasks=6",
        "env.eval_tasks=3",
        "algo.meta_batch=3",
        "algo.batch_size=16",
        "algo.context_batch=16",
        "algo.hidden=[16]",
        "algo.encoder_hidden=[16]",
        "algo.rollout_steps=7",
        "algo.learning_starts_steps=2000",
        "algo.updates_per_step=0.05",
        "algo.capacity_steps=6000",
        "algo.prior_steps=60",
        "algo.posterior_steps=40",
        "algo.extra_steps=70",
        "algo.eval_trajectories=3",
        "algo.eval_prior_trajectories=1",
    ];
    same_in_one_go_and_in_two("SparsePointRobot-v0", "pearl", &overrides);
}

/// What is tested is that both runs are the same, not that they learn.
const FEW_UPDATES: [&str; 3] = [
    "algo.replay_ratio=1",
    "algo.batch_size=16",
    "algo.capacity_steps=6000",
];

const FEW_OF_CONTINUOUS: [&str; 3] = [
    "algo.updates_per_step=0.0625",
    "algo.batch_size=16",
    "algo.capacity_steps=6000",
];

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

/// The replay goes round several times, and each checkpoint writes only what is new in it.
#[test]
fn checkpoints_that_build_on_each_other() {
    let overrides = [
        "algo.priority={alpha: 0.6}",
        "algo.capacity_steps=3000",
        "checkpoint.every_steps=1000",
        "checkpoint.keep_last=2",
    ];
    let parts = same_in_one_go_and_in_two("CartPole-v1", "dqn", &overrides);
    // 3000 steps of which each part has at least 1000, and one at either end.
    assert!(
        parts.iter().all(|parts| (2..=5).contains(parts)),
        "{parts:?}"
    );
}

/// Trains DQN for 6000 steps in three pieces that each end with a checkpoint.
fn three_checkpoints(root: &Path) -> (RunConfig, RunFolder) {
    let mut request = Request::new("CartPole-v1");
    request.algo = Some("dqn".into());
    request.overrides = vec!["steps=6000".into(), "checkpoint.every_steps=0".into()];
    let config = resolve(&request).unwrap();
    let folder = folder(&config, root, "three");
    let training = Training::start(config.clone(), &folder).unwrap();
    training.run(&NEVER, Some(2000), &mut ()).unwrap();
    for stop_after in [4000, 6000] {
        let (training, _) = Training::resume(config.clone(), &folder).unwrap();
        training.run(&NEVER, Some(stop_after), &mut ()).unwrap();
    }
    (config, folder)
}

/// The folders of all checkpoints, oldest first.
fn checkpoints_of(folder: &RunFolder) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder.checkpoints_path()).unwrap();
    let mut folders: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    folders.retain(|path| path.is_dir());
    folders.sort();
    folders
}

/// A part that several checkpoints share is on disk once; an older checkpoint does not have it.
#[test]
fn a_damaged_part_rules_out_every_checkpoint_that_needs_it() {
    let root = tempfile::tempdir().unwrap();
    let (config, folder) = three_checkpoints(root.path());
    let folders = checkpoints_of(&folder);
    assert_eq!(folders.len(), 3);
    for (folder, parts) in folders.iter().zip([&[1][..], &[1, 2], &[1, 2, 3]]) {
        assert_eq!(parts_of(&Checkpoint::open(folder).unwrap()), parts);
    }
    let file = folders[2].join("replay-2.bin");
    let mut bytes = std::fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&file, bytes).unwrap();

    let (training, notes) = Training::resume(config.clone(), &folder).unwrap();
    for (note, folder) in notes.iter().zip([&folders[2], &folders[1]]) {
        let reason = "cannot be used: replay-2.bin has changed";
        let expected = format!("{} {reason}", folder.display());
        assert!(note.contains(&expected), "{notes:?}");
    }
    assert_eq!(notes.len(), 2, "{notes:?}");
    // From there the parts are counted on, and the damaged ones replaced.
    training.run(&NEVER, None, &mut ()).unwrap();
    let (last, damaged) = checkpoint::latest(&folder.checkpoints_path()).unwrap();
    assert!(damaged.is_empty(), "{damaged:?}");
    assert_eq!(last.path(), folders[2]);
    assert_eq!(parts_of(&last), [1, 2]);
    assert!(replay_of(&config, &folder).is_some());
}

/// Somebody made room on the disk: the next checkpoint holds everything itself.
#[test]
fn a_part_that_is_gone_is_written_again() {
    let root = tempfile::tempdir().unwrap();
    let (mut config, folder) = three_checkpoints(root.path());
    config.settings.steps = 8000;
    let (training, _) = Training::resume(config.clone(), &folder).unwrap();
    for checkpoint in checkpoints_of(&folder) {
        std::fs::remove_dir_all(checkpoint).unwrap();
    }
    training.run(&NEVER, None, &mut ()).unwrap();
    let (last, _) = checkpoint::latest(&folder.checkpoints_path()).unwrap();
    assert_eq!(parts_of(&last).len(), 1);
    assert!(replay_of(&config, &folder).is_some());
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
    let last = checkpoints_of(&folder).pop().unwrap();
    let file = last.join("learner.safetensors");
    let mut bytes = std::fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&file, bytes).unwrap();

    let (_, notes) = Training::resume(config, &folder).unwrap();
    let named = last.file_name().unwrap().to_str().unwrap();
    assert!(notes.iter().any(|note| note.contains(named)), "{notes:?}");
}
