//! Arithmetic that several algorithms share.

mod advantage;
mod epsilon;

pub use advantage::{Advantages, generalized_advantages};
pub use epsilon::{apex_ladder, linear_decay, log_spaced};
