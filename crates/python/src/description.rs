//! Spaces and limits of an environment, which a separate worker reports once before the others start.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use serde::Deserialize;
use serde_json::{Value, json};
use starling_envs::{Bounds, EnvError, Space};
use starling_tree::DType;

use crate::interpreter::install_command;
use crate::options::Task;
use crate::worker::{Answer, Worker, wait_for};

/// What a worker says of an environment.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Description {
    observation: Vec<Leaf>,
    action: Plain,
    /// Steps after which Gymnasium would truncate an episode.
    pub(crate) limit: Option<u64>,
    /// Where the legal actions are: in the info or in the observation.
    pub(crate) masks: Option<String>,
    /// Pictures per second.
    pub(crate) fps: Option<f64>,
    python: String,
    gymnasium: String,
    numpy: String,
    /// The spaces as the worker wrote them.
    #[serde(skip)]
    pub(crate) spaces: Value,
}

/// One array of an observation.
#[derive(Clone, Debug, Deserialize)]
struct Leaf {
    path: Vec<String>,
    #[serde(flatten)]
    space: Plain,
}

/// A space without parts.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum Plain {
    Discrete {
        n: usize,
    },
    MultiDiscrete {
        choices: Vec<usize>,
    },
    Box {
        bytes: bool,
        shape: Vec<usize>,
        /// One for all, or one for each element. Null is infinite.
        low: Vec<Option<f64>>,
        high: Vec<Option<f64>>,
    },
}

impl Description {
    /// The observations, as nested parts.
    pub(crate) fn observation_space(&self) -> Space {
        let leaves = self.observation.iter();
        let leaves: Vec<(&[String], &Plain)> = leaves.map(|l| (&l.path[..], &l.space)).collect();
        nested(&leaves)
    }

    /// The actions.
    pub(crate) fn action_space(&self) -> Space {
        self.action.space()
    }
}

impl Plain {
    fn space(&self) -> Space {
        match self {
            Plain::Discrete { n } => Space::Discrete { n: *n },
            Plain::MultiDiscrete { choices } => Space::MultiDiscrete {
                choices: choices.clone(),
            },
            Plain::Box {
                bytes,
                shape,
                low,
                high,
            } => {
                let number = |value: &Option<f64>, open: f32| value.map_or(open, |x| x as f32);
                let low = low.iter().map(|x| number(x, f32::NEG_INFINITY));
                let high = high.iter().map(|x| number(x, f32::INFINITY));
                let (low, high): (Vec<f32>, Vec<f32>) = (low.collect(), high.collect());
                Space::Box {
                    dtype: match bytes {
                        true => DType::U8,
                        false => DType::F32,
                    },
                    shape: shape.clone(),
                    bounds: match (&low[..], &high[..]) {
                        ([low], [high]) => Bounds::Uniform {
                            low: *low,
                            high: *high,
                        },
                        _ => Bounds::PerElement { low, high },
                    },
                }
            }
        }
    }
}

/// Leaves with the same first name are parts of one part. They stand together: a worker lists them
/// depth first.
fn nested(leaves: &[(&[String], &Plain)]) -> Space {
    if let [([], space)] = leaves {
        return space.space();
    }
    let groups = leaves.chunk_by(|(one, _), (other, _)| one.first() == other.first());
    let parts = groups.map(|group| {
        let name = group[0].0.first().cloned().unwrap_or_default();
        let inside = group.iter();
        let inside = inside.map(|(path, space)| (path.get(1..).unwrap_or_default(), *space));
        (name, nested(&inside.collect::<Vec<_>>()))
    });
    Space::Dict(parts.collect())
}

/// What is known of an environment. Asks a worker the first time.
pub(crate) fn of(task: &Task) -> Result<Arc<Description>, EnvError> {
    static KNOWN: LazyLock<Mutex<HashMap<String, Arc<Description>>>> =
        LazyLock::new(Mutex::default);
    // Whether it can be rendered changes nothing that is known.
    let key = json!([
        task.python,
        task.id,
        task.kwargs,
        task.masks,
        task.leave_out
    ])
    .to_string();
    let known = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(description) = known().get(&key) {
        return Ok(Arc::clone(description));
    }
    let description = Arc::new(ask(task)?);
    known().insert(key, Arc::clone(&description));
    Ok(description)
}

fn ask(task: &Task) -> Result<Description, EnvError> {
    let mut worker = Worker::start(&task.python, None, |life, _| {
        let mut config = serde_json::to_value(task).unwrap_or_default();
        config["describe"] = true.into();
        config["render"] = false.into();
        config["life"] = life.into();
        config
    })
    .map_err(EnvError::Failed)?;
    wait_for(std::slice::from_mut(&mut worker), &[true], &mut |_| {});
    let table = match worker.answer() {
        Ok(Answer::Described(table)) => table,
        Ok(Answer::Failed(table)) => return Err(not_made(task, &table)),
        Ok(_) => return Err(EnvError::Failed("its worker gave a wrong answer".into())),
        Err(ended) => {
            return Err(EnvError::Failed(format!(
                "{} could not be made: its worker {ended}",
                task.id
            )));
        }
    };
    let mut description: Description = serde_json::from_value(table.clone())
        .map_err(|error| EnvError::Failed(format!("its worker gave a wrong answer: {error}")))?;
    description.spaces = json!({"observation": table["observation"], "action": table["action"]});
    tracing::info!(
        "{}: Python {}, gymnasium {}, numpy {} ({})",
        task.id,
        description.python,
        description.gymnasium,
        description.numpy,
        task.python.display()
    );
    Ok(description)
}

/// Why a worker could not make an environment.
pub(crate) fn not_made(task: &Task, table: &Value) -> EnvError {
    let text = |name: &str| table.get(name).and_then(Value::as_str);
    let id = &task.id;
    EnvError::Failed(match (text("refused"), text("raised"), text("missing")) {
        (Some(refused), ..) => format!("{id} cannot be used: {refused}"),
        (_, Some(traceback), _) => format!("{id} could not be made\n{traceback}"),
        (.., Some(name @ ("gymnasium" | "numpy"))) => {
            let python = text("python").map_or(task.python.as_path(), std::path::Path::new);
            format!(
                "{id} needs the Python package {name}, which {} does not have; install it: {} (or \
                 name another Python by env.python or STARLING_PYTHON)",
                python.display(),
                install_command(python)
            )
        }
        _ => format!(
            "{id} could not be made\n{}",
            text("text").unwrap_or("its worker gave no reason")
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaves_become_nested_spaces() {
        let table = json!({
            "observation": [
                {"path": ["eyes", "left"], "kind": "box", "bytes": true, "shape": [3, 4, 4],
                 "low": [0], "high": [255]},
                {"path": ["eyes", "right"], "kind": "discrete", "n": 3},
                {"path": ["touch"], "kind": "box", "bytes": false, "shape": [2],
                 "low": [-1.0, null], "high": [1.0, null]},
            ],
            "action": {"kind": "multi_discrete", "choices": [2, 3]},
            "limit": 7, "masks": null, "fps": null,
            "python": "3", "gymnasium": "1", "numpy": "2",
        });
        let description: Description = serde_json::from_value(table).unwrap();
        let eyes = Space::Dict(vec![
            ("left".into(), Space::bytes(&[3, 4, 4], 255)),
            ("right".into(), Space::Discrete { n: 3 }),
        ]);
        let touch = Space::vector(&[-1.0, f32::NEG_INFINITY], &[1.0, f32::INFINITY]);
        assert_eq!(
            description.observation_space(),
            Space::Dict(vec![("eyes".into(), eyes), ("touch".into(), touch)])
        );
        let choices = vec![2, 3];
        assert_eq!(description.action_space(), Space::MultiDiscrete { choices });
    }
}
