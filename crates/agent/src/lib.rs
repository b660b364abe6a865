//! The native module of the Python package `starling-rl-train`: a trained agent.
//!
//! It uses the libtorch of the `torch` package that is installed beside it.

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use numpy::{IntoPyArray as _, PyReadonlyArrayDyn, PyUntypedArray, PyUntypedArrayMethods as _};
use pyo3::exceptions::{PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::MutexExt as _;
use starling_engine::{Agent, Observation};
use starling_envs::{Action, stream};
use starling_tree::{Array, DType, Tree};

/// A trained policy with its memory.
#[pyclass(frozen, name = "Agent", module = "starling_train._agent")]
struct PyAgent(Mutex<Option<Agent>>);

#[pymethods]
impl PyAgent {
    /// The agent of a run's folder: of its best checkpoint, or of the latest.
    #[new]
    fn new(py: Python<'_>, run: PathBuf, best: bool) -> PyResult<Self> {
        // For the run's environment, which says what is shown and accepted.
        starling_mujoco::add();
        starling_python::add();
        let loaded = py.detach(|| match best {
            true => Agent::load_best(&run),
            false => Agent::load(&run),
        });
        let agent = loaded.map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
        Ok(Self(Mutex::new(Some(agent))))
    }

    /// The action for an observation: the paths and arrays of its parts, of which one that is a
    /// single array has an empty path. `legal` has a byte for each action.
    fn act<'py>(
        &self,
        py: Python<'py>,
        observation: Vec<(String, Bound<'py, PyAny>)>,
        legal: Option<Vec<u8>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let parts: PyResult<Vec<Part>> = observation
            .into_iter()
            .map(|(path, part)| Ok((path, Tree::Leaf(array(&part)?))))
            .collect();
        let observation = nested(parts?);
        let mut guard = self.lock(py);
        let agent = guard.as_mut().ok_or_else(failed_before)?;
        let acted = py.detach(|| {
            let observation = match observation.leaf() {
                Some(array) if array.dtype() == DType::F32 => Observation::Floats(array.as_slice()),
                Some(array) if array.dtype() == DType::U8 => Observation::Bytes(array.as_slice()),
                _ => Observation::Tree(&observation),
            };
            let action = agent.act_legally(observation, legal.as_deref())?;
            Ok(match action {
                Action::Discrete(choice) => Chosen::One(choice),
                Action::MultiDiscrete(choices) => Chosen::Several(choices.to_vec()),
                Action::Continuous(values) => Chosen::Numbers(values.to_vec()),
            })
        });
        let wrong =
            |error: starling_engine::WrongObservation| PyValueError::new_err(error.to_string());
        match acted.map_err(wrong)? {
            Chosen::One(choice) => Ok(choice.into_pyobject(py)?.into_any()),
            Chosen::Several(choices) => Ok(choices.into_pyarray(py).into_any()),
            Chosen::Numbers(values) => Ok(values.into_pyarray(py).into_any()),
        }
    }

    /// The reward that followed the last action.
    fn rewarded(&self, py: Python<'_>, reward: f32) -> PyResult<()> {
        let mut guard = self.lock(py);
        guard.as_mut().ok_or_else(failed_before)?.rewarded(reward);
        Ok(())
    }

    /// The next observation is the first of an episode. A seed starts another random stream.
    fn reset(&self, py: Python<'_>, seed: Option<u64>) -> PyResult<()> {
        let mut guard = self.lock(py);
        let mut agent = guard.take().ok_or_else(failed_before)?;
        if let Some(seed) = seed {
            agent = agent.with_rng(stream(seed, "agent", 0));
        }
        agent.reset();
        *guard = Some(agent);
        Ok(())
    }
}

impl PyAgent {
    /// Who waits for it lets go of the interpreter: its holder needs that to finish.
    fn lock(&self, py: Python<'_>) -> MutexGuard<'_, Option<Agent>> {
        self.0
            .lock_py_attached(py)
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// An action that no longer borrows from its agent.
enum Chosen {
    One(usize),
    Several(Vec<i64>),
    Numbers(Vec<f32>),
}

/// A part of an observation, by its dotted path.
type Part = (String, Tree<Array>);

fn failed_before() -> PyErr {
    PyRuntimeError::new_err("the agent failed before; load it again")
}

/// A copy of a NumPy array.
fn array(given: &Bound<'_, PyAny>) -> PyResult<Array> {
    let shape = given.cast::<PyUntypedArray>()?.shape().to_vec();
    if let Ok(values) = given.extract::<PyReadonlyArrayDyn<'_, f32>>() {
        return Ok(Array::from_slice(values.as_slice()?, &shape));
    }
    if let Ok(values) = given.extract::<PyReadonlyArrayDyn<'_, u8>>() {
        return Ok(Array::from_slice(values.as_slice()?, &shape));
    }
    if let Ok(values) = given.extract::<PyReadonlyArrayDyn<'_, i64>>() {
        return Ok(Array::from_slice(values.as_slice()?, &shape));
    }
    let text = "an observation must be of float32, uint8 or int64";
    Err(PyTypeError::new_err(text))
}

/// Parts by their dotted paths as a tree.
fn nested(parts: Vec<Part>) -> Tree<Array> {
    let mut parts = parts;
    if let [(path, _)] = &parts[..]
        && path.is_empty()
    {
        return parts.swap_remove(0).1;
    }
    let mut children: Vec<(String, Vec<Part>)> = Vec::new();
    for (path, part) in parts {
        let (name, rest) = path.split_once('.').unwrap_or((&path, ""));
        match children.iter_mut().find(|(known, _)| known == name) {
            Some((_, parts)) => parts.push((rest.to_owned(), part)),
            None => children.push((name.to_owned(), vec![(rest.to_owned(), part)])),
        }
    }
    Tree::Node(
        children
            .into_iter()
            .map(|(name, parts)| (name, nested(parts)))
            .collect(),
    )
}

#[pymodule]
fn _agent(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PyAgent>()
}
