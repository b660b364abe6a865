//! The native module of the Python package `starling-rl`: environments and the replay, without
//! libtorch.
//!
//! Read first: [`Pool`](pool::Pool) (environments stepped by several threads), [`Vector`] (the same,
//! for Python), [`AsyncPool`](async_pool::AsyncPool) (results in the order of arrival). `python/starling-rl` has what users import.

mod async_pool;
mod async_vector;
mod batch;
mod columns;
mod pool;
mod replay;
mod spaces;
mod vector;

use std::path::PathBuf;

use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use starling_envs::registry;

use async_vector::AsyncVector;
use batch::PyBatch;
use replay::PyReplay;
use vector::Vector;

/// Id, family, one line, limit on steps and reward threshold of an environment.
type Entry = (
    &'static str,
    &'static str,
    &'static str,
    Option<u64>,
    Option<f64>,
);

/// All environments.
#[pyfunction]
fn environments() -> Vec<Entry> {
    let spec = |spec: &'static registry::EnvSpec| {
        let limits = (spec.max_episode_steps, spec.reward_threshold);
        (spec.id, spec.family, spec.summary, limits.0, limits.1)
    };
    registry::all().into_iter().map(spec).collect()
}

/// The id and the family of an environment, also of the bare name of an Atari game.
#[pyfunction]
fn find(id: &str) -> PyResult<(&'static str, &'static str)> {
    let found = registry::find(id).map_err(|error| PyValueError::new_err(error.to_string()))?;
    Ok((found.id, found.family))
}

/// Copies every known ROM in a folder to where Starling looks for them; returns the games and that
/// place.
#[pyfunction]
fn install_roms(from: PathBuf) -> PyResult<(Vec<&'static str>, PathBuf)> {
    let installed = starling_envs::atari::roms::install(&from);
    let (games, folder) = installed.map_err(|error| PyOSError::new_err(error.to_string()))?;
    Ok((games.into_iter().map(|game| game.name).collect(), folder))
}

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    starling_mujoco::add();
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("MUJOCO_VERSION", starling_mujoco::VERSION)?;
    module.add_function(wrap_pyfunction!(environments, module)?)?;
    module.add_function(wrap_pyfunction!(find, module)?)?;
    module.add_function(wrap_pyfunction!(install_roms, module)?)?;
    module.add_class::<AsyncVector>()?;
    module.add_class::<PyBatch>()?;
    module.add_class::<PyReplay>()?;
    module.add_class::<Vector>()
}
