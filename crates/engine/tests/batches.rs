//! Runs whose environments are a batch.

#![expect(clippy::unwrap_used, reason = "a test ends where something fails")]

use std::sync::Once;
use std::sync::atomic::AtomicBool;
use std::time::SystemTime;

use serde_json::{Value, json};
use starling_engine::{RunConfig, Training};
use starling_envs::classic::CartPole;
use starling_envs::{Action, Env, EnvBatch, EnvError, EnvSpec, ObsMut, Rng, Space, Step, registry};
use starling_record::{RunFolder, checkpoint};
use starling_settings::merge;
use starling_tree::{Array, DType, Tree, View};

static NEVER: AtomicBool = AtomicBool::new(false);

/// Poles on carts, as a batch.
struct CartPoles(Vec<CartPole>);

/// Lets an environment write a row of a batch of four floats each.
fn row<T>(obs: &mut ObsMut<'_>, b: usize, write: impl FnOnce(ObsMut<'_>) -> T) -> T {
    let mut own = Tree::Leaf(Array::zeros(DType::F32, &[4]));
    let written = write(ObsMut::at(&mut own, &[]));
    let values = own.leaf().unwrap().as_slice::<f32>();
    obs.as_mut_slice::<f32>()[4 * b..4 * b + 4].copy_from_slice(values);
    written
}

impl EnvBatch for CartPoles {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn observation_space(&self) -> Space {
        self.0[0].observation_space()
    }

    fn action_space(&self) -> Space {
        self.0[0].action_space()
    }

    fn reset(
        &mut self,
        which: &[bool],
        rngs: &mut [Rng],
        mut obs: ObsMut<'_>,
    ) -> Result<(), EnvError> {
        for b in (0..which.len()).filter(|b| which[*b]) {
            row(&mut obs, b, |obs| self.0[b].reset(&mut rngs[b], obs))?;
        }
        Ok(())
    }

    fn step(
        &mut self,
        actions: View<'_>,
        rngs: &mut [Rng],
        mut obs: ObsMut<'_>,
        steps: &mut [Step],
    ) -> Result<(), EnvError> {
        for (b, action) in actions.as_slice::<i64>().iter().enumerate() {
            let action = Action::Discrete(*action as usize);
            let step = |obs: ObsMut<'_>| self.0[b].step(action, &mut rngs[b], obs);
            steps[b] = row(&mut obs, b, step)?;
        }
        Ok(())
    }

    fn snapshot(&self, env: usize) -> Option<Vec<u8>> {
        self.0[env].snapshot()
    }

    fn restore(&mut self, env: usize, snapshot: &[u8]) -> Result<(), EnvError> {
        self.0[env].restore(snapshot)
    }
}

fn config(id: &str, settings: &Value) -> RunConfig {
    static ADDED: Once = Once::new();
    ADDED.call_once(|| {
        registry::add(EnvSpec {
            max_episode_steps: Some(500),
            ..EnvSpec::batched("CartPoles-v1", "test", "a batch", |_, _, count| {
                let poles = (0..count).map(|_| CartPole::new());
                Ok(Box::new(CartPoles(poles.collect())))
            })
        })
        .unwrap();
    });
    let mut tree = json!({
        "env": {"id": id},
        "algo": {"name": "ppo"},
        "steps": 6000,
        "envs": 8,
        "decorrelate_steps": 0,
        "eval": {"every_steps": 3000, "episodes": 3},
    });
    merge(&mut tree, settings);
    RunConfig::from_value(&tree).unwrap()
}

/// Trains to the end, with a stop and a resume on the way if asked for; returns the weights.
fn train(id: &str, settings: &Value, pause: bool) -> Vec<u8> {
    let root = tempfile::tempdir().unwrap();
    let folder = RunFolder::create(root.path(), id, "a", "run", 1, SystemTime::now()).unwrap();
    let config = config(id, settings);
    let training = Training::start(config.clone(), &folder).unwrap();
    match pause {
        false => training.run(&NEVER, None, &mut ()).unwrap(),
        true => {
            training.run(&NEVER, Some(3000), &mut ()).unwrap();
            let (training, notes) = Training::resume(config, &folder).unwrap();
            assert_eq!(notes, [""; 0]);
            training.run(&NEVER, None, &mut ()).unwrap()
        }
    };
    let (latest, _) = checkpoint::latest(&folder.checkpoints_path()).unwrap();
    latest.read("learner.safetensors").unwrap()
}

/// The same task learns the same, bit for bit, however its environments are stepped, and a run can
/// be resumed.
#[test]
fn a_batch_learns_what_single_environments_learn() {
    let serial = json!({"mode": "serial"});
    let expected = train("CartPole-v1", &serial, false);
    assert_eq!(train("CartPoles-v1", &serial, false), expected);
    assert_eq!(train("CartPoles-v1", &serial, true), expected);
    for mode in ["threads", "central"] {
        let settings = json!({"mode": mode, "threads": 2, "torch_threads": 1});
        let one_by_one = train("CartPole-v1", &settings, false);
        assert_eq!(
            train("CartPoles-v1", &settings, false),
            one_by_one,
            "{mode}"
        );
    }
}

#[test]
fn environments_of_a_batch_are_not_restarted() {
    let root = tempfile::tempdir().unwrap();
    let folder = RunFolder::create(root.path(), "a", "b", "run", 1, SystemTime::now()).unwrap();
    let config = config("CartPoles-v1", &json!({"on_env_error": "restart"}));
    let refused = Training::start(config, &folder).err().unwrap().to_string();
    assert!(refused.contains("use on_env_error=stop"), "{refused}");
}
