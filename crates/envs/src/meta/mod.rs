//! Families of tasks for meta-learning: the same environment with another goal or another body.
//!
//! Every task of a family is a value of its settings. With `train_tasks`, environment `i` of a run
//! has task `i`, and evaluations have tasks that training does not see. [`TaskSettings`] are the
//! settings of all families; [`Family`] is what an entry of the table needs besides.

mod numpy_legacy;
mod point_robot;

pub use numpy_legacy::NumpyLegacy;
pub(crate) use point_robot::{POINT_ROBOT, SPARSE_POINT_ROBOT};
pub use point_robot::{PointRobot, PointRobotOptions, SparsePointRobotOptions};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{EnvError, EnvOptions};

/// The family of these environments in the table, which presets are for.
pub const FAMILY: &str = "meta";

/// The settings that all families of tasks have.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TaskSettings {
    /// Tasks of training: environment i of the run has task i, counted from the first again after
    /// the last. 0 for one task only, that of the family's own settings.
    #[schemars(range(max = 100_000))]
    pub train_tasks: usize,
    /// Tasks of evaluations, which follow those of training.
    #[schemars(range(min = 1, max = 100_000))]
    pub eval_tasks: usize,
    /// Seed of the tasks. Families whose tasks PEARL's reference draws from numpy's generator have
    /// the same tasks with 1337.
    pub task_seed: u32,
    /// Whether environments have the tasks of evaluations; evaluations set it.
    pub held_out: bool,
    /// Whether the task is part of the observation, for an oracle.
    pub show_task: bool,
}

impl Default for TaskSettings {
    fn default() -> Self {
        Self {
            train_tasks: 0,
            eval_tasks: 1,
            task_seed: 1337,
            held_out: false,
            show_task: false,
        }
    }
}

impl TaskSettings {
    /// All tasks.
    pub fn total(&self) -> usize {
        self.train_tasks + self.eval_tasks
    }

    /// Tasks that environments have; 0 for the one task of the family's own settings.
    pub fn count(&self) -> usize {
        match (self.train_tasks, self.held_out) {
            (0, _) => 0,
            (train, false) => train,
            (_, true) => self.eval_tasks,
        }
    }

    /// The number of environment `number`'s task among all.
    pub fn index(&self, number: usize) -> usize {
        let first = if self.held_out { self.train_tasks } else { 0 };
        first + number % self.count().max(1)
    }

    /// numpy's generator with the seed of the tasks.
    pub fn generator(&self) -> NumpyLegacy {
        NumpyLegacy::new(self.task_seed)
    }
}

/// What a family of tasks adds to an entry of the table.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    /// Settings about tasks, among the options.
    pub settings: fn(&EnvOptions) -> Result<TaskSettings, EnvError>,
    /// The options that make a task, by its number among all tasks, those of training first.
    pub task: fn(&EnvOptions, usize) -> Result<Value, EnvError>,
}

impl Family {
    /// Tasks that environments with these options have; 0 if the options name one task themselves.
    ///
    /// # Errors
    /// When an option is wrong.
    pub fn count(&self, options: &EnvOptions) -> Result<usize, EnvError> {
        Ok((self.settings)(options)?.count())
    }

    /// The options of environment `number`: those of its task.
    ///
    /// # Errors
    /// When an option is wrong.
    pub fn of(&self, options: &EnvOptions, number: usize) -> Result<EnvOptions, EnvError> {
        let settings = (self.settings)(options)?;
        if settings.count() == 0 {
            return Ok(options.clone());
        }
        let task = (self.task)(options, settings.index(number))?;
        Ok(options.with(&task).with(&json!({"train_tasks": 0})))
    }
}

/// The options of the same family in evaluations.
pub fn held_out(options: &EnvOptions) -> EnvOptions {
    options.with(&json!({"held_out": true}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn environments_have_tasks_in_turn_and_evaluations_have_others() {
        let mut settings = TaskSettings {
            train_tasks: 3,
            eval_tasks: 2,
            ..TaskSettings::default()
        };
        let tasks = |settings: &TaskSettings| (0..5).map(|i| settings.index(i)).collect::<Vec<_>>();
        assert_eq!(tasks(&settings), [0, 1, 2, 0, 1]);
        settings.held_out = true;
        assert_eq!(tasks(&settings), [3, 4, 3, 4, 3]);
        settings.train_tasks = 0;
        assert_eq!(settings.count(), 0);
    }
}
