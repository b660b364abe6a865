//! An environment that fails ends the run with the reason or is restarted, as the settings say.

#![expect(clippy::unwrap_used, reason = "a test ends where something fails")]

use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once};
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};
use starling_engine::link::remote::{Gateway, Remote, Stream};
use starling_engine::{Reason, RunConfig, Training, serve, serve_central};
use starling_envs::{Action, Env, EnvError, EnvSpec, ObsMut, Rng, Space, Step, registry};
use starling_record::{RunFolder, Table, checkpoint};
use starling_settings::merge;

static NEVER: AtomicBool = AtomicBool::new(false);

/// Goes wrong at every step number `LIFE` of its life, one way or the other.
struct Mortal {
    steps_left: usize,
    panics: bool,
}

const LIFE: usize = 300;

impl Env for Mortal {
    fn observation_space(&self) -> Space {
        Space::unbounded(&[3])
    }

    fn action_space(&self) -> Space {
        Space::Discrete { n: 2 }
    }

    fn reset(&mut self, _: &mut Rng, mut obs: ObsMut<'_>) -> Result<(), EnvError> {
        obs.write(&[0f32; 3]);
        Ok(())
    }

    fn step(&mut self, _: Action<'_>, _: &mut Rng, mut obs: ObsMut<'_>) -> Result<Step, EnvError> {
        if self.steps_left == 0 {
            assert!(!self.panics, "the wheel came off");
            return Err(EnvError::Failed("out of fuel".into()));
        }
        self.steps_left -= 1;
        obs.write(&[self.steps_left as f32; 3]);
        Ok(Step {
            reward: 1.0,
            terminated: self.steps_left.is_multiple_of(50),
            truncated: false,
        })
    }
}

/// Never returns from its 100th step.
struct Stuck {
    steps: usize,
}

impl Env for Stuck {
    fn observation_space(&self) -> Space {
        Space::unbounded(&[1])
    }

    fn action_space(&self) -> Space {
        Space::Discrete { n: 2 }
    }

    fn reset(&mut self, _: &mut Rng, mut obs: ObsMut<'_>) -> Result<(), EnvError> {
        obs.write(&[0f32]);
        Ok(())
    }

    fn step(&mut self, _: Action<'_>, _: &mut Rng, mut obs: ObsMut<'_>) -> Result<Step, EnvError> {
        self.steps += 1;
        if self.steps == 100 {
            loop {
                std::thread::sleep(Duration::from_secs(1));
            }
        }
        obs.write(&[1f32]);
        Ok(Step::default())
    }
}

fn add_environments() {
    static ADDED: Once = Once::new();
    fn mortal(panics: bool) -> Box<dyn Env> {
        let steps_left = LIFE;
        Box::new(Mortal { steps_left, panics })
    }
    let spec = |id, build| EnvSpec::new(id, "test", "goes wrong after 300 steps", build);
    ADDED.call_once(|| {
        registry::add(spec("Fails-v0", |_, _| Ok(mortal(false)))).unwrap();
        registry::add(spec("Panics-v0", |_, _| Ok(mortal(true)))).unwrap();
        registry::add(spec("Stuck-v0", |_, _| Ok(Box::new(Stuck { steps: 0 })))).unwrap();
    });
}

/// Runs 8 environments for 6000 steps, 750 each; returns the restarts that it counted.
fn train(id: &str, settings: &Value) -> Result<f64, String> {
    let table = table_of(id, settings)?;
    let restarts = table.column("Diagnostics/EnvRestarts").unwrap();
    Ok(*restarts.last().unwrap())
}

/// The same; returns the rows of metrics.
fn table_of(id: &str, settings: &Value) -> Result<Table, String> {
    add_environments();
    let mut tree = json!({
        "env": {"id": id},
        "algo": {"name": "ppo"},
        "steps": 6000,
        "envs": 8,
        "log_every_steps": 1000,
        "stall_timeout_s": 60,
    });
    merge(&mut tree, settings);
    let config = RunConfig::from_value(&tree).unwrap();
    let root = tempfile::tempdir().unwrap();
    let folder = RunFolder::create(root.path(), id, "a", "run", 1, SystemTime::now()).unwrap();
    let training = Training::start(config, &folder).unwrap();
    let outcome = training.run(&NEVER, None, &mut ());
    outcome.map_err(|error| error.to_string())?;
    Ok(Table::read(&folder.progress_path()).unwrap())
}

/// Every way of collecting, with rollouts and with a replay.
fn modes() -> Vec<Value> {
    let dqn = json!({"name": "dqn", "capacity_steps": 4000, "learning_starts_steps": 1000});
    vec![
        json!({"mode": "serial"}),
        json!({"mode": "serial", "algo": dqn}),
        json!({"mode": "threads", "threads": 2}),
        json!({"mode": "threads", "threads": 2, "asynchronous": true, "algo": dqn}),
        json!({"mode": "central", "threads": 2}),
        json!({"mode": "central", "threads": 2, "asynchronous": true}),
    ]
}

#[test]
fn a_failure_ends_the_run_with_the_reason() {
    for mode in modes() {
        let error = train("Fails-v0", &mode).unwrap_err();
        assert!(error.contains("(Fails-v0): out of fuel"), "{mode}: {error}");
    }
}

#[test]
fn a_failed_environment_is_restarted_if_so_set() {
    for mut mode in modes() {
        merge(&mut mode, &json!({"on_env_error": "restart"}));
        // 750 steps of each are two failures of each; on threads some are ahead of others.
        let restarts = train("Fails-v0", &mode).unwrap();
        assert!((8.0..=40.0).contains(&restarts), "{mode}: {restarts}");
        if mode["mode"] == "serial" {
            assert_eq!(restarts, 16.0, "{mode}");
        }
    }
}

#[test]
fn restarts_have_an_end() {
    for mut mode in modes() {
        let restart = json!({"on_env_error": "restart", "max_env_restarts": 5});
        merge(&mut mode, &restart);
        let error = train("Fails-v0", &mode).unwrap_err();
        let expected = "out of fuel (and 5 environments were already restarted)";
        assert!(error.contains(expected), "{mode}: {error}");
    }
}

/// A panic ends the run at once, whatever is set.
#[test]
fn a_panic_ends_the_run_with_the_reason() {
    for mut mode in modes() {
        merge(&mut mode, &json!({"on_env_error": "restart"}));
        let began = Instant::now();
        let error = train("Panics-v0", &mode).unwrap_err();
        let expected = "(Panics-v0): it panicked: the wheel came off";
        assert!(error.contains(expected), "{mode}: {error}");
        assert!(began.elapsed().as_secs() < 30, "{mode}");
    }
}

/// A lost actor's place is taken by another one, with new environments, as often as is set.
#[test]
fn a_lost_actor_is_replaced_if_so_set() {
    for mut mode in modes().split_off(2) {
        merge(&mut mode, &json!({"on_actor_loss": "continue"}));
        let table = table_of("Panics-v0", &mode).unwrap();
        let last = |column: &str| *table.column(column).unwrap().last().unwrap();
        // 750 steps of each environment are at least two lives of each actor. There are two actors,
        // or one for both groups of environments.
        let losses = last("Diagnostics/ActorLosses");
        let expected = match mode["mode"] == "central" {
            true => 2.0..=3.0,
            false => 4.0..=60.0,
        };
        assert!(expected.contains(&losses), "{mode}: {losses}");
        assert!(last("Diagnostics/Actors") <= 2.0, "{mode}");

        merge(&mut mode, &json!({"max_actor_losses": 1}));
        let error = table_of("Panics-v0", &mode).unwrap_err();
        let expected = "(Panics-v0): it panicked: the wheel came off";
        assert!(error.contains(expected), "{mode}: {error}");
    }
}

/// The environment of an evaluation is restarted too: the episode that it broke off is played
/// again.
#[test]
fn evaluations_go_on_as_well() {
    let settings = json!({"eval": {"every_steps": 3000, "episodes": 20}});
    let error = train("Fails-v0", &settings).unwrap_err();
    assert!(error.contains("out of fuel"), "{error}");
    let mut restarting = settings;
    merge(&mut restarting, &json!({"on_env_error": "restart"}));
    train("Fails-v0", &restarting).unwrap();
}

/// An environment that does not return is named, however it is stepped, and what was learned
/// before is saved.
#[test]
fn a_stuck_environment_is_named_in_every_mode() {
    add_environments();
    for mode in modes() {
        let mut tree = json!({
            "env": {"id": "Stuck-v0"},
            "algo": {"name": "ppo", "rollout_steps": 8},
            "steps": 6000,
            "envs": 8,
            "stall_timeout_s": 1,
            "checkpoint": {"every_steps": 0},
        });
        merge(&mut tree, &mode);
        let config = RunConfig::from_value(&tree).unwrap();
        let root = tempfile::tempdir().unwrap();
        let folder = RunFolder::create(root.path(), "S", "a", "run", 1, SystemTime::now()).unwrap();
        let training = Training::start(config, &folder).unwrap();
        let error = training.run(&NEVER, None, &mut ()).unwrap_err().to_string();
        assert!(error.starts_with("environment "), "{mode}: {error}");
        assert!(error.contains("has not returned"), "{mode}: {error}");
        let (latest, _) = checkpoint::latest(&folder.checkpoints_path()).unwrap();
        assert!(latest.step() > 0, "{mode}");
    }
}

/// A first signal ends a run though an environment is stuck, in every mode.
#[test]
fn a_stuck_environment_does_not_keep_a_run_from_stopping() {
    add_environments();
    for mode in [
        json!({"mode": "serial"}),
        json!({"mode": "threads", "threads": 2}),
    ] {
        let mut tree = json!({
            "env": {"id": "Stuck-v0"},
            "algo": {"name": "ppo"},
            "steps": 6000,
            "envs": 8,
            "stall_timeout_s": 3600,
        });
        merge(&mut tree, &mode);
        let config = RunConfig::from_value(&tree).unwrap();
        let root = tempfile::tempdir().unwrap();
        let folder = RunFolder::create(root.path(), "S", "a", "run", 1, SystemTime::now()).unwrap();
        let training = Training::start(config, &folder).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let signal = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_secs(1));
            signal.store(true, Ordering::Relaxed);
        });
        let outcome = training.run(&stop, None, &mut ()).unwrap();
        thread.join().unwrap();
        assert_eq!(outcome.reason, Reason::Interrupted, "{mode}");
        assert!(
            checkpoint::latest(&folder.checkpoints_path()).is_ok(),
            "{mode}"
        );
    }
}

/// An environment that does not return in an actor elsewhere is named to the learner.
#[test]
fn a_stuck_environment_elsewhere_is_named() {
    add_environments();
    for central in [false, true] {
        let mut tree = json!({
            "env": {"id": "Stuck-v0"},
            "algo": {"name": "ppo"},
            "steps": 6000,
            "envs": 2,
            "mode": "threads",
            "threads": 1,
            "device": "cpu",
            "stall_timeout_s": 60,
        });
        let config = RunConfig::from_value(&tree).unwrap();
        let root = tempfile::tempdir().unwrap();
        let folder = RunFolder::create(root.path(), "S", "a", "run", 1, SystemTime::now()).unwrap();
        let training = Training::start(config, &folder).unwrap();
        let gateway = Gateway::new(training.terms().unwrap(), tree.clone());
        let (near, far) = UnixStream::pair().unwrap();
        let served = gateway.clone();
        std::thread::spawn(move || served.attend(far));
        let training = training.with_link(Box::new(gateway)).unwrap();
        merge(&mut tree, &json!({"stall_timeout_s": 1}));
        let config = RunConfig::from_value(&tree).unwrap();
        let actor = std::thread::spawn(move || {
            let welcome = Remote::join(Stream(near)).unwrap().unwrap();
            let (lease, link) = (welcome.lease, Arc::new(welcome.link));
            match central {
                true => serve_central(&config, &[lease], link),
                false => serve(&config, &lease, link),
            }
        });
        let began = Instant::now();
        let error = training.run(&NEVER, None, &mut ()).unwrap_err().to_string();
        assert!(
            error.contains("the actor of place") && error.contains("has not returned"),
            "{error}"
        );
        assert!(began.elapsed() < Duration::from_secs(30));
        assert!(actor.join().unwrap().is_err());
    }
}

/// A run that is resumed has its restarts behind it.
#[test]
fn restarts_are_counted_over_the_whole_run() {
    add_environments();
    let root = tempfile::tempdir().unwrap();
    let tree = json!({
        "env": {"id": "Fails-v0"},
        "algo": {"name": "ppo"},
        "steps": 8000,
        "on_env_error": "restart",
        "max_env_restarts": 12,
    });
    let config = RunConfig::from_value(&tree).unwrap();
    let folder = RunFolder::create(root.path(), "F", "a", "run", 1, SystemTime::now()).unwrap();
    let training = Training::start(config.clone(), &folder).unwrap();
    // Every environment has failed once.
    training.run(&NEVER, Some(4000), &mut ()).unwrap();
    let (training, _) = Training::resume(config, &folder).unwrap();
    let error = training.run(&NEVER, None, &mut ()).unwrap_err().to_string();
    assert!(
        error.contains("12 environments were already restarted"),
        "{error}"
    );
}
