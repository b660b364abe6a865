//! The arithmetic of prioritized sampling.

use rand::{Rng, RngExt};

use crate::{Draws, PriorityConfig, ReplayError};

/// The priority of a sequence from the errors of its steps: η·max + (1 − η)·mean (R2D2).
///
/// Only steps that are trained count: leave out those whose `mask` is 0. Without any step it
/// is 0.
pub fn mixed_priority(errors: impl IntoIterator<Item = f32>, eta: f64) -> f64 {
    let (mut largest, mut sum, mut count) = (0.0f64, 0.0, 0u32);
    for error in errors {
        largest = largest.max(f64::from(error));
        sum += f64::from(error);
        count += 1;
    }
    eta * largest + (1.0 - eta) * sum / f64::from(count.max(1))
}

impl PriorityConfig {
    /// What an entry of this priority is drawn by.
    pub(crate) fn weight(&self, priority: f64) -> f64 {
        let most = self.max_priority.unwrap_or(f64::INFINITY);
        priority.max(self.min_priority).min(most).powf(self.alpha)
    }
}

/// Points in `0..total` at which a batch is drawn.
pub(crate) fn draw_masses(
    draws: Draws,
    total: f64,
    size: usize,
    masses: &mut Vec<f64>,
    rng: &mut impl Rng,
) {
    masses.clear();
    let part = total / size as f64;
    masses.extend((0..size).map(|i| {
        let uniform: f64 = rng.random();
        match draws {
            Draws::Stratified => (i as f64 + uniform) * part,
            Draws::Independent => uniform * total,
        }
    }));
}

/// (N·P(i))^(−β), divided by the largest of the batch.
///
/// The largest belongs to the smallest weight drawn, so that N and the total cancel out:
/// (w_min / w_i)^β.
pub(crate) fn importance_weights(drawn: &[f64], beta: f64, weights: &mut [f32]) {
    let smallest = drawn.iter().copied().fold(f64::INFINITY, f64::min);
    for (weight, drawn) in weights.iter_mut().zip(drawn) {
        *weight = (smallest / drawn).powf(beta) as f32;
    }
}

/// Refuses priorities that are not one finite number of at least 0 for each entry.
pub(crate) fn check_priorities(priorities: &[f32], entries: usize) -> Result<(), ReplayError> {
    let count = priorities.len();
    if count != entries {
        let priorities = count;
        return Err(ReplayError::PriorityCount {
            priorities,
            entries,
        });
    }
    let wrong = |value: &f32| !(value.is_finite() && *value >= 0.0);
    match priorities.iter().position(wrong) {
        None => Ok(()),
        Some(index) => Err(ReplayError::Priority {
            index,
            count,
            value: priorities[index],
        }),
    }
}
