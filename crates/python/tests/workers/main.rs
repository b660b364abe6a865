//! Environments in worker processes, with a real Gymnasium.

#![expect(clippy::unwrap_used, reason = "a test ends where something fails")]

mod against_gymnasium;
mod failures;
mod spaces;

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use serde_json::{Value, json};
use starling_envs::{EnvError, EnvOptions, Rollout, VecEnv, registry};
use starling_python::interpreter;
use starling_settings::merge;
use starling_tree::{Array, Tree};

/// A Python that has gymnasium. `STARLING_TEST_PYTHON` names it; without it, `python3`. If it lacks
/// gymnasium, the test is skipped.
fn python(test: &str) -> Option<PathBuf> {
    static FOUND: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let found = FOUND.get_or_init(|| {
        let python = std::env::var_os("STARLING_TEST_PYTHON").unwrap_or_else(|| "python3".into());
        let about = interpreter::about(Path::new(&python))?;
        match about.gymnasium {
            Some(_) => Ok(python.into()),
            None => Err("this Python has no gymnasium".into()),
        }
    });
    match found {
        Ok(python) => Some(python.clone()),
        Err(problem) => {
            starling_testing::skip("gymnasium", test, problem);
            None
        }
    }
}

/// An environment of `envs.py`.
fn own(name: &str) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/workers/envs.py");
    format!("python:{}:{name}", file.display())
}

fn options(python: &Path, more: &Value) -> EnvOptions {
    let mut table = json!({"python": python});
    merge(&mut table, more);
    EnvOptions::from_table(&table).unwrap()
}

/// A vector of environments, the first of which is number 10 of a run.
fn vector(
    python: &Path,
    id: &str,
    count: usize,
    more: &Value,
) -> Result<Box<dyn VecEnv>, EnvError> {
    starling_python::add();
    let spec = registry::find(id).unwrap();
    spec.make_vec(&options(python, more), count, 1, "env", 10)
}

fn rollout(vector: &dyn VecEnv, steps: usize) -> Rollout {
    let nothing = Tree::empty();
    Rollout::new(
        steps,
        vector.len(),
        vector.observation_space(),
        vector.action_space(),
        vector.legal_actions(),
        &nothing,
        &nothing,
    )
}

/// All numbers of one row of the observations of one environment.
fn numbers(obs: &Tree<Array>, index: &[usize]) -> Vec<f64> {
    let mut all = Vec::new();
    for (_, array) in obs.leaves() {
        let view = array.at(index);
        match view.dtype {
            starling_tree::DType::U8 => all.extend(view.bytes.iter().map(|x| f64::from(*x))),
            starling_tree::DType::I64 => {
                all.extend(view.as_slice::<i64>().iter().map(|x| *x as f64));
            }
            _ => all.extend(view.as_slice::<f32>().iter().map(|x| f64::from(*x))),
        }
    }
    all
}
