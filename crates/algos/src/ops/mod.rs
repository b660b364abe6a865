//! Arithmetic that several algorithms share.

mod advantage;
mod bandit;
mod categorical;
mod episodic;
mod epsilon;
mod munchausen;
mod n_step;
mod quantile;
mod rescale;
mod vtrace;

pub use advantage::{Advantages, generalized_advantages, lambda_returns};
pub use bandit::{choose_arm, discount_ladder, intrinsic_weight};
pub use categorical::{divergence, project, support};
pub use episodic::EpisodicNovelty;
pub use epsilon::{apex_ladder, linear_decay, log_spaced};
pub use munchausen::Munchausen;
pub use n_step::{Ahead, Next, n_steps_ahead};
pub use quantile::{huber, quantile_huber};
pub use rescale::{RESCALE_EPSILON, rescale, unscale};
pub use vtrace::{RhoClips, Trajectories, Vtrace, vtrace};
