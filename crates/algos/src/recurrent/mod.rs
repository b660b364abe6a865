//! The shared part of algorithms that learn recurrent action values from sequences: acting
//! (`acting.rs`), the inputs of an update (`inputs.rs`) and the update (`learner.rs`).
//!
//! Each of them, R2D2 and NGU, is a [`SequenceMethod`], which computes the errors of its values.
//! Read [`SequenceMethod`], [`SequenceInputs`] and [`SequenceLearner`] first.

mod acting;
mod export;
mod inputs;
mod learner;
#[cfg(test)]
mod together;

pub(crate) use acting::{
    Compute, Decided, PassInputs, PassShape, Passed, Passes, begin, decide, keep, leaf,
    remember_reward,
};
pub(crate) use export::{exported_input, seen};
pub(crate) use inputs::SequenceInputs;
pub(crate) use learner::{Losses, SequenceLearner, SequenceMethod, mean_counted, unroll};
#[cfg(test)]
pub(crate) use together::acts_as_alone;

use starling_replay::SequenceConfig;

use crate::Experience;
use crate::value_based::ValueConfig;

/// A replay of sequences with the shared settings.
pub(crate) fn experience(
    shared: &ValueConfig,
    sequence: &SequenceConfig,
    frame_stack: Option<usize>,
) -> Experience {
    let mut needs = shared.replay.needs(frame_stack);
    needs.replay.sequence = Some(sequence.clone());
    needs.rate.tolerance_samples = 4.0 * needs.batch_steps() as f64;
    Experience::Transitions(Box::new(needs))
}
