//! The settings of Python environments.

use std::num::NonZero;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::interpreter;

/// Settings of Python environments.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PythonOptions {
    /// Arguments of the environment's constructor, by name, such as env.kwargs.continuous=true.
    pub kwargs: Option<Map<String, Value>>,
    /// The Python to use; null for that of STARLING_PYTHON, of the active virtual or conda
    /// environment, or else python3.
    pub python: Option<PathBuf>,
    /// Environments in each worker process; 0 divides those of an actor evenly among the cores.
    pub envs_per_worker: usize,
    /// Actions that `action_mask` in the info or in the observation excludes are never chosen.
    pub action_masks: bool,
    /// Parts of the observation that the agent does not see, such as `mission`.
    pub leave_out: Vec<String>,
    /// Makes environments that can be rendered (render_mode rgb_array). `play` and `--video` do it
    /// by themselves.
    pub render: bool,
}

impl Default for PythonOptions {
    fn default() -> Self {
        Self {
            kwargs: None,
            python: None,
            envs_per_worker: 0,
            action_masks: true,
            leave_out: Vec::new(),
            render: false,
        }
    }
}

impl PythonOptions {
    /// Which environment to make, and with which Python.
    pub(crate) fn task(&self, id: &str) -> Task {
        Task {
            id: id.to_owned(),
            kwargs: self.kwargs.clone().unwrap_or_default(),
            python: interpreter::find(self.python.as_deref()).path,
            masks: self.action_masks,
            leave_out: self.leave_out.clone(),
            render: self.render,
        }
    }

    /// Worker processes for this many environments.
    pub(crate) fn workers(&self, envs: usize) -> usize {
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        match self.envs_per_worker {
            0 => cores.min(envs),
            each => envs.div_ceil(each),
        }
    }
}

/// Which environment to make, and with which Python.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Task {
    pub(crate) id: String,
    pub(crate) kwargs: Map<String, Value>,
    #[serde(skip)]
    pub(crate) python: PathBuf,
    pub(crate) masks: bool,
    pub(crate) leave_out: Vec<String>,
    pub(crate) render: bool,
}
