//! Environments: what an agent acts in.
//!
//! Read first: [`Env`] (the trait that one environment implements), [`Space`] (what it shows and
//! what it accepts), [`Rollout`] (the `[T, B]` columns that stepping fills).

mod env;
mod random;
mod rollout;
mod space;

pub use env::{Action, Env, EnvError, ObsMut, Step};
pub use random::{Rng, stream};
pub use rollout::Rollout;
pub use space::{Bounds, Space};
