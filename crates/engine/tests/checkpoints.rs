//! Checkpoints are written while training continues.

#![expect(clippy::unwrap_used, reason = "a test ends where something fails")]

use std::path::Path;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use rand::RngExt as _;
use serde_json::{Value, json};
use starling_engine::{Profile, Reason, RunConfig, Status, Training, Watcher};
use starling_envs::{Action, Env, EnvError, EnvSpec, ObsMut, Rng, Space, Step, registry};
use starling_record::{RunFolder, checkpoint};
use starling_settings::merge;

static NEVER: AtomicBool = AtomicBool::new(false);

/// Shows many random numbers, which no compression makes smaller.
struct Noise;

impl Env for Noise {
    fn observation_space(&self) -> Space {
        Space::unbounded(&[2000])
    }

    fn action_space(&self) -> Space {
        Space::Discrete { n: 2 }
    }

    fn reset(&mut self, rng: &mut Rng, mut obs: ObsMut<'_>) -> Result<(), EnvError> {
        let numbers = obs.as_mut_slice::<f32>();
        numbers.fill_with(|| rng.random());
        Ok(())
    }

    fn step(&mut self, _: Action<'_>, rng: &mut Rng, obs: ObsMut<'_>) -> Result<Step, EnvError> {
        self.reset(rng, obs)?;
        Ok(Step::default())
    }
}

/// A run that fills a replay with 20,000 steps of noise, 8 kB each, and ends before it learns.
fn config(settings: Value) -> RunConfig {
    static ADDED: Once = Once::new();
    ADDED.call_once(|| {
        registry::add(EnvSpec::new(
            "Noise-v0",
            "test",
            "random numbers",
            |_, _| Ok(Box::new(Noise)),
        ))
        .unwrap();
    });
    let mut tree = json!({
        "env": {"id": "Noise-v0"},
        "algo": {"name": "dqn", "capacity_steps": 20_000, "learning_starts_steps": 20_000},
        "steps": 20_000,
        "envs": 4,
    });
    merge(&mut tree, &settings);
    RunConfig::from_value(&tree).unwrap()
}

fn folder(root: &Path) -> RunFolder {
    RunFolder::create(root, "Noise-v0", "dqn", "test", 1, SystemTime::now()).unwrap()
}

/// How many steps were done between the moment of a checkpoint and the news that it is written.
#[derive(Default)]
struct Meanwhile {
    now: u64,
    steps: Vec<u64>,
}

impl Watcher for Meanwhile {
    fn round(&mut self, status: &Status) {
        self.now = status.env_steps;
    }

    fn checkpointed(&mut self, status: &Status, folder: &Path) {
        assert!(folder.join("manifest.json").is_file());
        self.steps.push(self.now - status.env_steps);
    }
}

fn spent(profile: &Profile, component: &str, activity: &str) -> (Duration, u64) {
    let components = profile.components().into_iter();
    let mut activities = components.filter(|(name, _)| *name == component);
    let (_, activities) = activities.next().unwrap();
    let mut spent = activities.iter().filter(|(name, _)| *name == activity);
    let (_, spent) = spent.next().unwrap();
    (spent.time, spent.times)
}

/// 120 MB take their time on the disk. The learner waits for a small part of it: while rows are
/// marked in the replay and its own arrays are copied.
#[test]
fn training_goes_on_while_a_checkpoint_is_written() {
    let root = tempfile::tempdir().unwrap();
    let folder = folder(root.path());
    let config = config(json!({"checkpoint": {"every_steps": 15_000}}));
    let training = Training::start(config, &folder).unwrap();
    let profile = training.profile();
    let mut meanwhile = Meanwhile::default();
    training.run(&NEVER, None, &mut meanwhile).unwrap();

    let (paused, begun) = spent(&profile, "learner", "checkpoint");
    let (wrote, written) = spent(&profile, "checkpoints", "write");
    assert_eq!((begun, written), (2, 2));
    assert!(paused * 5 < wrote, "{paused:?} of {wrote:?}");
    // The first one is written beside training; the run ends with the last.
    assert_eq!(meanwhile.steps.len(), 2);
    assert!(meanwhile.steps[0] > 0, "{:?}", meanwhile.steps);
    assert_eq!(meanwhile.steps[1], 0);
}

/// What goes wrong beside training ends the run with the reason; the checkpoint before it stays.
#[test]
fn a_checkpoint_that_cannot_be_written_ends_the_run() {
    let root = tempfile::tempdir().unwrap();
    let folder = folder(root.path());
    let config = config(json!({"checkpoint": {"every_steps": 0}}));
    let training = Training::start(config.clone(), &folder).unwrap();
    training.run(&NEVER, Some(8_000), &mut ()).unwrap();
    let mut often = config.clone();
    often.settings.checkpoint.every_steps = 2_000;
    let (training, _) = Training::resume(often, &folder).unwrap();
    let blocked = folder.checkpoints_path().join(".writing-000000010000");
    std::fs::write(&blocked, "in the way").unwrap();
    let error = training.run(&NEVER, None, &mut ()).unwrap_err().to_string();
    let expected = "the checkpoint of step 10000 could not be written: cannot remove";
    assert!(error.contains(expected), "{error}");
    let (latest, damaged) = checkpoint::latest(&folder.checkpoints_path()).unwrap();
    assert_eq!((latest.step(), damaged.len()), (8_000, 0));

    std::fs::remove_file(&blocked).unwrap();
    let (training, _) = Training::resume(config, &folder).unwrap();
    training.run(&NEVER, None, &mut ()).unwrap();
    let (latest, _) = checkpoint::latest(&folder.checkpoints_path()).unwrap();
    assert_eq!(latest.step(), 20_000);
}

/// Checkpoints come by time as well as by steps: slow runs have something to resume from too.
#[test]
fn checkpoints_come_by_time() {
    struct Third<'a> {
        written: usize,
        stop: &'a AtomicBool,
    }
    impl Watcher for Third<'_> {
        fn checkpointed(&mut self, _: &Status, _: &Path) {
            self.written += 1;
            self.stop.store(self.written >= 3, Ordering::Relaxed);
        }
    }
    let root = tempfile::tempdir().unwrap();
    let settings = json!({"every_steps": 0, "every_minutes": 1e-4});
    let learning = json!({"capacity_steps": 1_000, "learning_starts_steps": 100_000_000});
    let config = config(json!({
        "steps": 100_000_000,
        "algo": learning,
        "checkpoint": settings,
    }));
    let training = Training::start(config, &folder(root.path())).unwrap();
    let stop = AtomicBool::new(false);
    let mut third = Third {
        written: 0,
        stop: &stop,
    };
    let outcome = training.run(&stop, None, &mut third).unwrap();
    assert_eq!(outcome.reason, Reason::Interrupted);
}

/// Damages the replay of the first checkpoint while the run continues.
struct Harm {
    damage: fn(&Path),
    done: bool,
}

impl Watcher for Harm {
    fn checkpointed(&mut self, _: &Status, folder: &Path) {
        if !std::mem::replace(&mut self.done, true) {
            (self.damage)(folder);
        }
    }
}

/// Everything is still in memory: whatever happened to the parts that are on disk, the run continues
/// and its later checkpoints are whole.
#[test]
fn parts_that_were_damaged_meanwhile_are_written_again() {
    let damages: [fn(&Path); 4] = [
        |folder| flip(&folder.join("replay-1.bin")),
        |folder| flip(&folder.join("manifest.json")),
        |folder| std::fs::write(folder.join("replay-1.bin"), "short").unwrap(),
        |folder| std::fs::remove_file(folder.join("replay-1.bin")).unwrap(),
    ];
    for damage in damages {
        let root = tempfile::tempdir().unwrap();
        let folder = folder(root.path());
        let config = config(json!({"steps": 1_000, "checkpoint": {"every_steps": 300}}));
        let training = Training::start(config.clone(), &folder).unwrap();
        let mut harm = Harm {
            damage,
            done: false,
        };
        training.run(&NEVER, None, &mut harm).unwrap();
        let (latest, damaged) = checkpoint::latest(&folder.checkpoints_path()).unwrap();
        assert!(latest.step() >= 1_000 && damaged.is_empty(), "{damaged:?}");
        Training::resume(config, &folder).unwrap();
    }
}

/// Actors insert, threads draw ahead and priorities change while parts are written; the replay
/// that comes back continues.
#[test]
fn a_run_on_threads_resumes_with_its_replay() {
    let root = tempfile::tempdir().unwrap();
    let folder = folder(root.path());
    let tree = json!({
        "env": {"id": "CartPole-v1"},
        "algo": {
            "name": "dqn",
            "capacity_steps": 4_000,
            "learning_starts_steps": 500,
            "batch_size": 16,
            "priority": {"alpha": 0.6},
        },
        "steps": 16_000,
        "mode": "threads",
        "threads": 2,
        "asynchronous": true,
        "prefetch_threads": 1,
        "checkpoint": {"every_steps": 500},
    });
    let config = RunConfig::from_value(&tree).unwrap();
    let training = Training::start(config.clone(), &folder).unwrap();
    training.run(&NEVER, Some(8_000), &mut ()).unwrap();
    let (latest, _) = checkpoint::latest(&folder.checkpoints_path()).unwrap();
    let parts = latest.files().filter(|name| name.starts_with("replay-"));
    assert!(parts.count() > 1);
    let (training, notes) = Training::resume(config, &folder).unwrap();
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert!(notes[0].contains("start new episodes"), "{notes:?}");
    training.run(&NEVER, None, &mut ()).unwrap();
    let (latest, damaged) = checkpoint::latest(&folder.checkpoints_path()).unwrap();
    assert!(latest.step() >= 16_000 && damaged.is_empty());
}

fn flip(path: &Path) {
    let mut bytes = std::fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(path, bytes).unwrap();
}

/// A run of three checkpoints that share the parts of its replay.
fn run_with_a_replay(root: &Path) -> (RunConfig, RunFolder) {
    let folder = folder(root);
    let config = config(json!({
        "steps": 900,
        "checkpoint": {"every_steps": 300},
        "algo": {"learning_starts_steps": 100, "batch_size": 8, "net": {"hidden": [4]}},
        "torch_threads": 1,
    }));
    let training = Training::start(config.clone(), &folder).unwrap();
    training.run(&NEVER, None, &mut ()).unwrap();
    let mut longer = config;
    longer.settings.steps = 1_500;
    (longer, folder)
}

fn files_of_replay(folder: &RunFolder, step: &str) -> Vec<std::path::PathBuf> {
    let path = folder.checkpoints_path().join(step);
    let entries = std::fs::read_dir(path).unwrap();
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.to_string_lossy().contains("replay-"));
    files.sort();
    files
}

/// An old part that all checkpoints share is damaged: the newest one is used all the same, with
/// what is younger.
#[test]
fn a_damaged_old_part_costs_only_old_steps() {
    let root = tempfile::tempdir().unwrap();
    let (config, folder) = run_with_a_replay(root.path());
    let newest = checkpoint::latest(&folder.checkpoints_path()).unwrap().0;
    let name = newest
        .path()
        .file_name()
        .unwrap()
        .to_string_lossy()
        .into_owned();
    let parts = files_of_replay(&folder, &name);
    assert!(parts.len() > 1, "{parts:?}");
    flip(&parts[0]);
    let (training, notes) = Training::resume(config.clone(), &folder).unwrap();
    assert_eq!(training.status().env_steps, newest.step());
    let told = |what: &str| notes.iter().any(|note| note.contains(what));
    assert!(told("a part of the replay is damaged"), "{notes:?}");
    assert!(told("steps (was 900)"), "{notes:?}");
    let outcome = training.run(&NEVER, None, &mut ()).unwrap();
    assert!(outcome.status.env_steps >= 1_500);
    // What was written since is whole.
    let (latest, damaged) = checkpoint::latest(&folder.checkpoints_path()).unwrap();
    assert!(latest.step() >= 1_500 && damaged.is_empty());
}

/// The replay is lost altogether: the weights and counters are not.
#[test]
fn a_lost_replay_fills_again() {
    let root = tempfile::tempdir().unwrap();
    let (config, folder) = run_with_a_replay(root.path());
    let entries = std::fs::read_dir(folder.checkpoints_path()).unwrap();
    for entry in entries.map(|entry| entry.unwrap()) {
        if entry.path().is_dir() {
            let name = entry.file_name().to_string_lossy().into_owned();
            flip(files_of_replay(&folder, &name).last().unwrap());
        }
    }
    let (training, notes) = Training::resume(config, &folder).unwrap();
    let updates = training.status().updates;
    assert!(training.status().env_steps >= 900 && updates > 0);
    assert!(
        notes.iter().any(|note| note.contains("empty one")),
        "{notes:?}"
    );
    let outcome = training.run(&NEVER, None, &mut ()).unwrap();
    assert!(outcome.status.updates > updates);
}

/// A checkpoint whose bytes are right but whose content is not is passed over for the one before.
#[test]
fn content_that_cannot_be_used_is_passed_over() {
    let root = tempfile::tempdir().unwrap();
    let (config, folder) = run_with_a_replay(root.path());
    let (newest, _) = checkpoint::latest(&folder.checkpoints_path()).unwrap();
    // The same files with other counters, checksums and all.
    let retention = starling_record::Retention {
        keep_last: 9,
        milestone_steps: None,
    };
    let path = folder.checkpoints_path();
    let mut checkpoints = starling_record::Checkpoints::open(&path, retention).unwrap();
    let files: Vec<String> = newest.files().map(str::to_owned).collect();
    let mut writer = checkpoints.begin(newest.step() + 1).unwrap();
    for name in &files {
        match name.as_str() {
            "run.json" => writer.file(name, b"{}").unwrap(),
            _ => writer.file(name, &newest.read(name).unwrap()).unwrap(),
        }
    }
    writer.commit(None).unwrap();
    drop(checkpoints);
    let (training, notes) = Training::resume(config, &folder).unwrap();
    assert_eq!(training.status().env_steps, newest.step());
    assert!(
        notes.iter().any(|note| note.contains("cannot be used")),
        "{notes:?}"
    );
    // It does not count among the last ones: the one before it stays.
    training.run(&NEVER, None, &mut ()).unwrap();
    assert!(newest.path().exists());
}
