//! Learning algorithms, one file each.
//!
//! An algorithm defines which data it consumes ([`Algorithm::experience`]), how it acts
//! ([`Algorithm::policy`]) and how it learns ([`Algorithm::learner`]). Threads, files and sockets
//! are the engine's; the engine knows no algorithm by name.
//!
//! Read first: [`Algorithm`], [`Policy`] and [`Learner`]. The table of all algorithms is
//! [`registry`]; those with a policy network share `policy_gradient`, those that learn action
//! values from a replay `value_based`, those with an LSTM and a replay `recurrent`, and those with
//! continuous actions and a replay [`continuous`].

pub mod a2c;
pub mod apex;
pub mod appo;
pub mod c51;
pub mod continuous;
pub mod dqn;
pub mod impala;
pub mod iqn;
pub mod ngu;
pub mod ops;
pub mod pearl;
pub mod ppo;
pub mod pqn;
pub mod qr_dqn;
pub mod r2d2;
pub mod rainbow;
pub mod registry;

mod algorithm;
mod config;
mod export;
mod minibatches;
mod off_policy;
mod policy_gradient;
#[cfg(test)]
mod recorded_updates;
mod recurrent;
mod rollout_columns;
mod shown;
mod staged;
mod trained;
mod value_based;

pub use algorithm::{
    Acting, Algorithm, Batch, Experience, LearnError, Learner, Part, Policy, Progress, ReplayNeeds,
    Report, Saved, Spaces, Started, TRIAL, Trial, carried_state, survives_episode,
};
pub use config::{ConfigError, parse_config, require};
pub use continuous::ContinuousConfig;
pub use export::{
    ACTION, Computation, Exported, Inputs, LAST_ACTION, LAST_REWARD, LEGAL, NEXT, OBSERVATION,
    REWARD, Reference, TERMINATED, Z, Z_MEAN, Z_STD, observation_names,
};
pub use off_policy::{ReplaySettings, TargetSettings};
pub use policy_gradient::{PolicyGradientConfig, Terms};
pub use registry::AlgoSpec;
pub use rollout_columns::resident_observations;
pub use value_based::{EpsilonGreedy, Ladder, Spread, ValueConfig};
