//! Batches of several samples, each from some of the streams.

use std::ops::Range;

use rand::{Rng, RngExt};

use crate::{Replay, ReplayError, TransitionBatch};

/// How a batch is put together from several draws: some groups of streams are chosen at random,
/// with replacement, and from each of them the same draws are made.
///
/// A group can be the environments of one task, and its draws what is learned from and what the
/// task is recognised by. The rows of a batch are in the order of draws, and for each draw in the
/// order of the chosen groups: with draws of 256 and 64 rows from 2 groups, rows 0 to 255 are of
/// the first group, 256 to 511 of the second, 512 to 575 of the first and 576 to 639 of the second.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupedDraws {
    /// The streams of each group.
    pub groups: Vec<Range<usize>>,
    /// Groups that are chosen for a batch. Those from which nothing can be drawn yet are left out.
    pub chosen: usize,
    /// Rows of each draw from a chosen group.
    pub rows: Vec<usize>,
}

impl GroupedDraws {
    /// Rows of a whole batch.
    pub fn batch_size(&self) -> usize {
        self.chosen * self.rows.iter().sum::<usize>()
    }
}

impl Replay {
    /// Draws a batch of [`batch_size`](GroupedDraws::batch_size) transitions. Importance weights
    /// are relative to the largest of their own draw; otherwise as
    /// [`sample_into`](Replay::sample_into).
    ///
    /// # Errors
    /// When nothing can be drawn from any group yet, a stream does not exist, or the batch has
    /// another size or was made for another layout, or this is a replay of sequences.
    pub fn sample_groups_into(
        &self,
        batch: &mut TransitionBatch,
        draws: &GroupedDraws,
        beta: f64,
        rng: &mut impl Rng,
    ) -> Result<(), ReplayError> {
        if batch.size() != draws.batch_size() {
            return Err(ReplayError::Batch { column: "ids" });
        }
        let mut known = Vec::new();
        for group in &draws.groups {
            if self.can_draw_from(group)? {
                known.push(group.clone());
            }
        }
        if known.is_empty() {
            return Err(self.empty());
        }
        let chosen = (0..draws.chosen).map(|_| known[rng.random_range(0..known.len())].clone());
        let chosen: Vec<Range<usize>> = chosen.collect();
        let mut first = 0;
        for &rows in &draws.rows {
            for group in &chosen {
                self.sample_from(group.clone(), first..first + rows, batch, beta, rng)?;
                first += rows;
            }
        }
        Ok(())
    }
}
