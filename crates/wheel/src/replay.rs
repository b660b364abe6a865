//! The replay, as Python sees it.

use std::sync::{Mutex, MutexGuard, PoisonError};

use numpy::{PyReadonlyArray1, PyReadonlyArray2, PyUntypedArrayMethods as _};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::sync::MutexExt as _;
use starling_envs::{Bounds, Rng, Rollout, Space, stream};
use starling_replay::{Layout, Replay, ReplayConfig, ReplayError, SampleId, TransitionBatch};
use starling_tree::{Array, DType, Spec, Tree};

use crate::batch::PyBatch;
use crate::columns::copied;

/// Steps of several environments, of which batches of transitions are drawn.
#[pyclass(frozen, name = "Replay", module = "starling._native")]
pub(crate) struct PyReplay {
    replay: Replay,
    inner: Mutex<Inner>,
    obs: Vec<Spec>,
    action: Spec,
}

struct Inner {
    /// One step of all environments, to be inserted.
    step: Rollout,
    rng: Rng,
}

/// A type and a shape, by NumPy's name of the type.
type Described = (String, Vec<usize>);

/// The end of an episode: which environment, and the arrays of its last observation.
type End<'py> = (usize, Vec<Bound<'py, PyAny>>);

#[pymethods]
impl PyReplay {
    /// `config` is a JSON object, `obs` has the path, the type and the shape of every array of an
    /// observation.
    #[new]
    fn new(
        config: &str,
        obs: Vec<(String, String, Vec<usize>)>,
        action: Described,
        num_envs: usize,
        seed: u64,
    ) -> PyResult<Self> {
        let config: ReplayConfig =
            serde_json::from_str(config).map_err(|error| refused(error.to_string()))?;
        let parts: PyResult<Vec<(String, Space)>> = obs
            .into_iter()
            .map(|(path, dtype, shape)| Ok((path, space_of(&dtype, shape)?)))
            .collect();
        let observation = match &parts?[..] {
            [(path, space)] if path.is_empty() => space.clone(),
            parts => Space::Dict(parts.to_vec()),
        };
        let action = space_of(&action.0, action.1)?;
        let nothing = Tree::empty();
        let step = Rollout::new(1, num_envs, &observation, &action, None, &nothing, &nothing);
        let layout = Layout::of_rollout(&step, num_envs);
        let leaves = layout.observation.leaves().into_iter();
        Ok(Self {
            obs: leaves.map(|(_, spec)| spec.clone()).collect(),
            action: layout.action.clone(),
            replay: Replay::new(config, layout).map_err(failed)?,
            inner: Mutex::new(Inner {
                step,
                rng: stream(seed, "replay", 0),
            }),
        })
    }

    /// Inserts one step of every environment.
    #[expect(clippy::too_many_arguments, reason = "they are the parts of a step")]
    fn add<'py>(
        &self,
        py: Python<'py>,
        obs: Vec<Bound<'py, PyAny>>,
        actions: &Bound<'py, PyAny>,
        rewards: PyReadonlyArray1<'py, f32>,
        terminated: PyReadonlyArray1<'py, u8>,
        truncated: PyReadonlyArray1<'py, u8>,
        next_obs: Vec<Bound<'py, PyAny>>,
        ends: Vec<End<'py>>,
        priorities: Option<PyReadonlyArray1<'py, f32>>,
    ) -> PyResult<()> {
        // Who waits for it must let go of the interpreter: its holder needs that to finish.
        let inner = self.inner.lock_py_attached(py);
        let mut inner = inner.unwrap_or_else(PoisonError::into_inner);
        let step = &mut inner.step;
        let envs = step.envs();
        step.carry_over();
        self.write(&mut step.obs, &obs, |array| array.bytes().len() / 2, 0)?;
        let actions = copied(actions, &self.action, &[1, envs])?;
        step.actions.bytes_mut().copy_from_slice(actions.bytes());
        let lengths = [rewards.len(), terminated.len(), truncated.len()];
        if lengths.iter().any(|length| *length != envs) {
            return Err(refused(format!("there are {envs} environments")));
        }
        step.rewards
            .as_mut_slice::<f32>()
            .copy_from_slice(rewards.as_slice()?);
        for (column, given) in [
            (&mut step.terminated, terminated),
            (&mut step.truncated, truncated),
        ] {
            column
                .as_mut_slice::<u8>()
                .copy_from_slice(given.as_slice()?);
        }
        for (env, arrays) in ends {
            if env >= envs {
                return Err(refused(format!("there are {envs} environments")));
            }
            let row = |array: &Array| array.bytes().len() / 2 / envs;
            self.write(&mut step.obs, &arrays, row, envs + env)?;
            step.keep_final(0, env);
        }
        self.write(&mut step.obs, &next_obs, |array| array.bytes().len() / 2, 1)?;
        let priorities = priorities
            .as_ref()
            .map(|given| given.as_slice())
            .transpose()?;
        let inserted = py.detach(|| self.replay.insert(step, 0, priorities));
        inserted.map(drop).map_err(failed)
    }

    /// A batch for `size` transitions, to be filled by `sample_into`.
    fn batch(&self, size: usize) -> PyBatch {
        PyBatch::new(TransitionBatch::new(self.replay.layout(), size))
    }

    /// Draws as many transitions as the batch has room for.
    fn sample_into(&self, py: Python<'_>, batch: &PyBatch, beta: f64) -> PyResult<()> {
        let drawn = py.detach(|| {
            let mut inner = self.lock();
            self.replay
                .sample_into(&mut batch.lock(), beta, &mut inner.rng)
        });
        drawn.map_err(failed)
    }

    /// Gives entries new priorities; returns how many had been overwritten.
    fn update_priorities(
        &self,
        ids: PyReadonlyArray2<'_, u64>,
        priorities: PyReadonlyArray1<'_, f32>,
    ) -> PyResult<usize> {
        let ids = ids.as_slice()?.chunks_exact(2);
        let ids: Vec<SampleId> = ids
            .map(|id| SampleId {
                slot: usize::try_from(id[0]).unwrap_or(usize::MAX),
                generation: id[1],
            })
            .collect();
        let updated = self.replay.update_priorities(&ids, priorities.as_slice()?);
        updated.map_err(failed)
    }

    /// Transitions that can be drawn now.
    fn __len__(&self) -> usize {
        self.replay.len()
    }

    /// Bytes of memory.
    #[getter]
    fn nbytes(&self) -> usize {
        self.replay.bytes()
    }

    /// Steps that were inserted.
    #[getter]
    fn inserted_steps(&self) -> u64 {
        self.replay.inserted_steps()
    }
}

impl PyReplay {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Copies given arrays to a place of the columns, counted in parts of `length` bytes.
    fn write(
        &self,
        columns: &mut Tree<Array>,
        given: &[Bound<'_, PyAny>],
        length: impl Fn(&Array) -> usize,
        place: usize,
    ) -> PyResult<()> {
        let columns = columns.leaves_mut();
        if columns.len() != given.len() {
            let (found, wanted) = (given.len(), columns.len());
            let text = format!("an observation has {found} arrays, {wanted} are needed");
            return Err(refused(text));
        }
        for (((_, column), given), spec) in columns.into_iter().zip(given).zip(&self.obs) {
            let length = length(column);
            let rows = length / spec.bytes().max(1);
            let given = copied(given, spec, &[rows])?;
            let start = place * length;
            column.bytes_mut()[start..start + length].copy_from_slice(given.bytes());
        }
        Ok(())
    }
}

fn space_of(dtype: &str, shape: Vec<usize>) -> PyResult<Space> {
    let dtype = match dtype {
        "uint8" => DType::U8,
        "int32" => DType::I32,
        "int64" => DType::I64,
        "float32" => DType::F32,
        "float64" => DType::F64,
        other => {
            return Err(refused(format!(
                "arrays of {other} cannot be stored; allowed: uint8, int32, int64, float32, float64"
            )));
        }
    };
    Ok(Space::Box {
        dtype,
        shape,
        bounds: Bounds::Uniform {
            low: f32::NEG_INFINITY,
            high: f32::INFINITY,
        },
    })
}

fn refused(text: String) -> PyErr {
    PyValueError::new_err(text)
}

fn failed(error: ReplayError) -> PyErr {
    refused(error.to_string())
}
