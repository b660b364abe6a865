//! Arithmetic that several algorithms share.

mod advantage;
mod categorical;
mod epsilon;
mod munchausen;
mod n_step;
mod quantile;
mod rescale;
mod vtrace;

pub use advantage::{Advantages, generalized_advantages, lambda_returns};
pub use categorical::{divergence, project, support};
pub use epsilon::{apex_ladder, linear_decay, log_spaced};
pub use munchausen::Munchausen;
pub use n_step::{Ahead, Next, n_steps_ahead};
pub use quantile::{huber, quantile_huber};
pub use rescale::{RESCALE_EPSILON, rescale, unscale};
pub use vtrace::{RhoClips, Trajectories, Vtrace, vtrace};
