//! The classic control tasks, equal to Gymnasium 1.4 step by step.
//!
//! States are `f64` and observations `f32`, as there. The order of every sum and product is
//! Gymnasium's, so that observations are equal to the last bit where sine and cosine are.

mod acrobot;
mod cart_pole;
mod drawing;
mod mountain_car;
mod mountain_car_continuous;
mod pendulum;

#[cfg(test)]
mod against_gymnasium;

pub use acrobot::Acrobot;
pub use cart_pole::CartPole;
pub use mountain_car::MountainCar;
pub use mountain_car_continuous::MountainCarContinuous;
pub use pendulum::Pendulum;

use rand::RngExt as _;

use crate::Rng;

/// A number uniformly between two bounds.
fn uniform(rng: &mut Rng, low: f64, high: f64) -> f64 {
    low + (high - low) * rng.random::<f64>()
}
