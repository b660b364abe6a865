//! Vectors of environments, as Python sees them.

use std::sync::{Mutex, PoisonError};

use numpy::{PyReadwriteArray1, PyReadwriteArray2};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use starling_envs::render::Picture;
use starling_envs::{EnvError, EnvOptions, EnvSpec, Rollout, registry};
use starling_tree::{DType, Spec};

use crate::columns::{ColumnMut, copied, described, to_numpy};
use crate::pool::{Autoreset, Kind, Pool, Results};
use crate::spaces::describe;

/// Environments that are stepped together. The arrays that results are written to are the caller's.
#[pyclass(frozen, module = "starling._native")]
pub(crate) struct Vector {
    pool: Mutex<Pool>,
    count: usize,
    /// Types and shapes of the arrays of an observation.
    leaves: Vec<Spec>,
    action: Spec,
}

/// The caller's arrays of one call.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Buffers<'py> {
    obs: Vec<Bound<'py, PyAny>>,
    rewards: PyReadwriteArray1<'py, f64>,
    terminated: PyReadwriteArray1<'py, bool>,
    truncated: PyReadwriteArray1<'py, bool>,
    scores: PyReadwriteArray1<'py, f64>,
    lives: Option<PyReadwriteArray1<'py, i64>>,
    legal: Option<PyReadwriteArray2<'py, u8>>,
}

/// The end of an episode: which environment, its last observation, its lives and legal actions.
type End<'py> = (
    usize,
    Bound<'py, PyList>,
    Option<u32>,
    Option<Bound<'py, PyAny>>,
);

#[pymethods]
impl Vector {
    /// `options` is a JSON object, `autoreset` the value of one of Gymnasium's autoreset modes.
    #[new]
    fn new(
        py: Python<'_>,
        id: &str,
        options: &str,
        num_envs: usize,
        num_threads: Option<usize>,
        autoreset: &str,
        entropy: u64,
    ) -> PyResult<Self> {
        let (spec, options) = parsed(id, options)?;
        let refused = PyValueError::new_err::<String>;
        let autoreset = match autoreset {
            "NextStep" => Autoreset::NextStep,
            "SameStep" => Autoreset::SameStep,
            "Disabled" => Autoreset::Disabled,
            other => return Err(refused(format!("there is no autoreset mode '{other}'"))),
        };
        let pool =
            py.detach(|| Pool::new(spec, options, num_envs, num_threads, autoreset, entropy));
        let pool = pool.map_err(not_made)?;
        Ok(Self {
            count: pool.len(),
            leaves: leaves(&pool.kind),
            action: Rollout::action_spec(&pool.kind.action_space),
            pool: Mutex::new(pool),
        })
    }

    /// What the environments show and accept, and what else is known about them.
    fn describe<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        describe_kind(py, &self.lock().kind)
    }

    /// Starts episodes in the chosen environments.
    fn reset(
        &self,
        py: Python<'_>,
        seeds: Vec<Option<u64>>,
        chosen: Vec<bool>,
        mut buffers: Buffers<'_>,
    ) -> PyResult<()> {
        if seeds.len() != self.count || chosen.len() != self.count {
            let text = format!("there are {} environments", self.count);
            return Err(PyValueError::new_err(text));
        }
        let mut columns = buffers.columns(self.count, &self.leaves)?;
        let results = buffers.results(&mut columns)?;
        let reset = py.detach(|| self.lock().reset(&seeds, &chosen, results));
        reset.map_err(failed)
    }

    /// Takes one action in each environment, or in the chosen ones: nothing is written for the others.
    /// Returns the ends of episodes after which the next one has started already.
    fn step<'py>(
        &self,
        py: Python<'py>,
        actions: &Bound<'py, PyAny>,
        chosen: Option<Vec<bool>>,
        mut buffers: Buffers<'py>,
    ) -> PyResult<Vec<End<'py>>> {
        let actions = copied(actions, &self.action, &[self.count])?;
        if chosen
            .as_ref()
            .is_some_and(|chosen| chosen.len() != self.count)
        {
            let text = format!("there are {} environments", self.count);
            return Err(PyValueError::new_err(text));
        }
        let mut columns = buffers.columns(self.count, &self.leaves)?;
        let results = buffers.results(&mut columns)?;
        let ends = py.detach(|| {
            let mut pool = self.lock();
            pool.step(&actions, chosen.as_deref(), results)?;
            Ok(pool.ends())
        });
        let end = |(b, last): (usize, crate::pool::Last)| {
            let arrays = PyList::empty(py);
            for (bytes, spec) in last.obs.iter().zip(&self.leaves) {
                arrays.append(to_numpy(py, bytes, spec.dtype, &spec.shape)?)?;
            }
            let legal = match last.legal.len() {
                0 => None,
                length => Some(to_numpy(py, &last.legal, DType::U8, &[length])?),
            };
            Ok((b, arrays, last.lives, legal))
        };
        ends.map_err(failed)?.into_iter().map(end).collect()
    }

    /// A picture of one environment: height, width and three colours.
    fn render<'py>(&self, py: Python<'py>, env: usize) -> PyResult<Bound<'py, PyAny>> {
        if env >= self.count {
            let text = format!("there are {} environments", self.count);
            return Err(PyValueError::new_err(text));
        }
        let picture = py.detach(|| self.lock().render(env)).map_err(failed)?;
        picture_array(py, &picture)
    }
}

impl Vector {
    fn lock(&self) -> std::sync::MutexGuard<'_, Pool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<'py> Buffers<'py> {
    /// The arrays of the observations of `count` environments.
    pub(crate) fn columns(&self, count: usize, leaves: &[Spec]) -> PyResult<Vec<ColumnMut<'py>>> {
        let rows = |length: usize| length == count;
        let fits = rows(self.rewards.as_array().len())
            && rows(self.terminated.as_array().len())
            && rows(self.truncated.as_array().len())
            && rows(self.scores.as_array().len())
            && self.obs.len() == leaves.len();
        if !fits {
            return Err(PyValueError::new_err("an array has another length"));
        }
        let arrays = self.obs.iter().zip(leaves);
        let column = |(array, spec): (&Bound<'py, PyAny>, &Spec)| {
            let shape: Vec<usize> = [count].iter().chain(&spec.shape).copied().collect();
            ColumnMut::new(array, spec.dtype, &shape)
        };
        arrays.map(column).collect()
    }

    /// All arrays, as environments write to them.
    pub(crate) fn results<'a>(
        &'a mut self,
        columns: &'a mut [ColumnMut<'_>],
    ) -> PyResult<Results<'a>> {
        let obs: PyResult<Vec<&mut [u8]>> = columns.iter_mut().map(ColumnMut::bytes_mut).collect();
        let lives = self.lives.as_mut().map(|array| array.as_slice_mut());
        let legal = self.legal.as_mut().map(|array| array.as_slice_mut());
        Ok(Results {
            obs: obs?,
            rewards: self.rewards.as_slice_mut()?,
            terminated: self.terminated.as_slice_mut()?,
            truncated: self.truncated.as_slice_mut()?,
            scores: self.scores.as_slice_mut()?,
            lives: lives.transpose()?,
            legal: legal.transpose()?,
        })
    }
}

/// An environment by its id, and its settings as a JSON object.
pub(crate) fn parsed(id: &str, options: &str) -> PyResult<(&'static EnvSpec, EnvOptions)> {
    let refused = PyValueError::new_err::<String>;
    let spec = registry::find(id).map_err(|error| refused(error.to_string()))?;
    let options = serde_json::from_str(options).map_err(|error| refused(error.to_string()))?;
    Ok((spec, options))
}

/// Types and shapes of the arrays of an observation, in order.
pub(crate) fn leaves(kind: &Kind) -> Vec<Spec> {
    let leaves = kind.spec.leaves().into_iter();
    leaves.map(|(_, spec)| spec.clone()).collect()
}

/// What environments show and accept, and what else is known about them.
pub(crate) fn describe_kind<'py>(py: Python<'py>, kind: &Kind) -> PyResult<Bound<'py, PyDict>> {
    let about = PyDict::new(py);
    about.set_item("observation", describe(py, &kind.observation_space)?)?;
    about.set_item("action", describe(py, &kind.action_space)?)?;
    about.set_item("arrays", described(&kind.spec))?;
    about.set_item("legal_actions", kind.legal_actions)?;
    about.set_item("lives", kind.counts_lives)?;
    about.set_item("render_fps", kind.render_fps)?;
    Ok(about)
}

/// A picture: height, width and three colours.
pub(crate) fn picture_array<'py>(
    py: Python<'py>,
    picture: &Picture,
) -> PyResult<Bound<'py, PyAny>> {
    let shape = [picture.height, picture.width, 3];
    to_numpy(py, &picture.rgb, DType::U8, &shape)
}

/// Why environments cannot be made: wrong settings are a `ValueError`.
pub(crate) fn not_made(error: EnvError) -> PyErr {
    match error {
        EnvError::Options(error) => PyValueError::new_err(error.to_string()),
        error => failed(error),
    }
}

/// An error of an environment, for Python: wrong actions are a `ValueError`.
pub(crate) fn failed(error: EnvError) -> PyErr {
    let wrong_action = match &error {
        EnvError::At { cause, .. } => matches!(**cause, EnvError::Action { .. }),
        EnvError::Action { .. } => true,
        _ => false,
    };
    match wrong_action {
        true => PyValueError::new_err(error.to_string()),
        false => PyRuntimeError::new_err(error.to_string()),
    }
}
