//! Environments whose results come in the order of arrival, as Python sees them.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use starling_envs::Rollout;
use starling_tree::Spec;

use crate::async_pool::{AsyncPool, NotReceived};
use crate::columns::copied;
use crate::vector::{Buffers, describe_kind, failed, leaves, not_made, parsed, picture_array};

/// How long a wait takes before it is looked whether the user pressed Ctrl-C.
const GLANCE: Duration = Duration::from_millis(100);

/// Environments of which some are stepped while the caller works on the results of others. The arrays
/// that results are written to are the caller's.
#[pyclass(frozen, module = "starling._native")]
pub(crate) struct AsyncVector {
    pool: Mutex<AsyncPool>,
    count: usize,
    batch: usize,
    leaves: Vec<Spec>,
    action: Spec,
}

#[pymethods]
impl AsyncVector {
    /// `options` is a JSON object.
    #[new]
    fn new(
        py: Python<'_>,
        id: &str,
        options: &str,
        num_envs: usize,
        batch_size: usize,
        num_threads: Option<usize>,
        entropy: u64,
    ) -> PyResult<Self> {
        let (spec, options) = parsed(id, options)?;
        let pool =
            py.detach(|| AsyncPool::new(spec, options, num_envs, batch_size, num_threads, entropy));
        let pool = pool.map_err(not_made)?;
        Ok(Self {
            count: pool.len(),
            batch: batch_size,
            leaves: leaves(&pool.kind),
            action: Rollout::action_spec(&pool.kind.action_space),
            pool: Mutex::new(pool),
        })
    }

    /// What the environments show and accept, and what else is known about them.
    fn describe<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        describe_kind(py, &self.lock().kind)
    }

    /// Lets threads start episodes in these environments, with seeds where there are some.
    fn reset(&self, py: Python<'_>, envs: Vec<usize>, seeds: Vec<Option<u64>>) -> PyResult<()> {
        if seeds.len() != envs.len() {
            return Err(PyValueError::new_err(
                "there must be one seed per environment",
            ));
        }
        py.detach(|| self.lock().reset(&envs, &seeds))
            .map_err(failed)
    }

    /// Lets threads take one action in each of these environments.
    fn send(&self, py: Python<'_>, envs: Vec<usize>, actions: &Bound<'_, PyAny>) -> PyResult<()> {
        let actions = copied(actions, &self.action, &[envs.len()])?;
        py.detach(|| self.lock().send(&envs, &actions))
            .map_err(failed)
    }

    /// Waits for a batch of results, and returns the environments that they are of.
    fn receive(&self, py: Python<'_>, mut buffers: Buffers<'_>) -> PyResult<Vec<usize>> {
        let mut columns = buffers.columns(self.batch, &self.leaves)?;
        let mut results = buffers.results(&mut columns)?;
        loop {
            match py.detach(|| self.lock().receive(GLANCE, &mut results)) {
                Ok(envs) => return Ok(envs),
                Err(NotReceived::Yet) => py.check_signals()?,
                Err(NotReceived::Failed(error)) => return Err(failed(error)),
                Err(NotReceived::Never(sent)) => {
                    let text = format!(
                        "recv needs {} environments with actions (batch_size), and {sent} have one; \
                         send more, or begin with async_reset",
                        self.batch
                    );
                    return Err(PyRuntimeError::new_err(text));
                }
            }
        }
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

impl AsyncVector {
    fn lock(&self) -> MutexGuard<'_, AsyncPool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
