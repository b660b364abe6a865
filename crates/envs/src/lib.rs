//! Environments: what an agent acts in.
//!
//! Read first: [`Env`] (the trait that one environment implements), [`Space`] (its observations and
//! actions), [`VecEnv`] (several of them stepped into the `[T, B]` columns of a [`Rollout`]).
//! [`registry`] is the table of all environments.

pub mod atari;
pub mod check;
pub mod classic;
mod env;
pub mod exploration;
pub mod memory;
pub mod meta;
pub mod minatar;
pub mod options;
mod random;
pub mod registry;
pub mod render;
mod rollout;
mod space;
mod vector;
mod wrappers;

pub use env::{Action, Env, EnvError, ObsMut, Step};
pub use options::EnvOptions;
pub use random::{Rng, stream};
pub use registry::{EnvSpec, UnknownEnv};
pub use rollout::{Resident, Rollout};
pub use space::{Bounds, Space};
pub use starling_settings::{ConfigError, Schema};
pub use vector::{
    BatchOfOne, BatchVecEnv, EnvBatch, Episode, Pulse, Remake, Restart, RestartBudget, SyncVecEnv,
    VecEnv, VecSnapshot,
};
pub use wrappers::TimeLimit;
