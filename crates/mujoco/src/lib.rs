//! Gymnasium's MuJoCo tasks, equal to Gymnasium 1.4 with MuJoCo 3.17.0 bit by bit.
//!
//! MuJoCo is not linked: its shared library is opened when the first of these environments is made,
//! so a program that has them starts without it. [`add`] puts them into the table of environments.
//!
//! Read first: [`Simulation`] (MuJoCo, safely), `Robot` in `robot.rs` (the environment that all tasks
//! share), `tasks/half_cheetah.rs` (one task).

mod drawing;
mod elf;
mod error;
mod layout;
mod library;
mod numpy;
pub mod place;
mod range;
mod robot;
pub mod tasks;

#[cfg(test)]
mod against_gymnasium;
#[cfg(test)]
mod tests;

pub use error::MujocoError;
pub use library::{Library, Model, Simulation};
pub use range::Range;
pub use tasks::{add, needs_mujoco, specs};

/// The version of MuJoCo that is needed. Others compute other numbers.
pub const VERSION: &str = "3.17.0";

/// The family of Gymnasium's tasks in the table, which presets are for. Families of tasks for
/// meta-learning are of another, `meta`.
pub const FAMILY: &str = "mujoco";
