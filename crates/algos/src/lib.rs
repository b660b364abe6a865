//! Learning algorithms, one file each.
//!
//! An algorithm says what it wants to be fed ([`Algorithm::experience`]), how to act
//! ([`Algorithm::policy`]) and how to learn ([`Algorithm::learner`]). It knows nothing of
//! threads, files or sockets; the engine does the rest, and knows no algorithm by name.
//!
//! Read first: [`Algorithm`], [`Policy`] and [`Learner`]. The algorithms: [`a2c`], [`appo`],
//! [`dqn`], [`impala`], [`ppo`], [`pqn`]. The table of all is [`registry`].

pub mod a2c;
pub mod appo;
pub mod dqn;
pub mod impala;
pub mod ops;
pub mod ppo;
pub mod pqn;
pub mod registry;

mod acting;
mod actor_critic;
mod algorithm;
mod config;
mod memory;
mod trajectory;

pub use algorithm::{
    Acting, Algorithm, Batch, Experience, LearnError, Learner, Part, Policy, Progress, ReplayNeeds,
    Report, Saved, Spaces,
};
pub use config::{ConfigError, parse_config, require};
