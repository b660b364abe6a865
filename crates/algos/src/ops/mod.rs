//! Arithmetic that several algorithms share.

mod advantage;
mod epsilon;
mod vtrace;

pub use advantage::{Advantages, generalized_advantages, lambda_returns};
pub use epsilon::{apex_ladder, linear_decay, log_spaced};
pub use vtrace::{RhoClips, Trajectories, Vtrace, vtrace};
