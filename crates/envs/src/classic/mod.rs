//! The classic control tasks, equal to Gymnasium 1.4 step by step.
//!
//! States are `f64` and observations `f32`, as there. The order of every sum and product is
//! Gymnasium's, so that observations are equal to the last bit on a platform whose sine and
//! cosine are.

mod cart_pole;

pub use cart_pole::CartPole;

use rand::RngExt as _;

use crate::Rng;

/// A number uniformly between two bounds.
fn uniform(rng: &mut Rng, low: f64, high: f64) -> f64 {
    low + (high - low) * rng.random::<f64>()
}
