//! Batches of several samples, each from some of the streams.

use std::ops::Range;

use rand::{Rng, RngExt};

#[cfg(doc)]
use crate::MARK;
use crate::batch::{Entries, READ_TOGETHER};
use crate::{Replay, ReplayError, TransitionBatch};

/// How a batch is put together from several draws: some groups of streams are chosen at random,
/// with replacement, and from each of them the same draws are made.
///
/// A group can be the environments of one task, and its draws what is learned from and what the
/// task is recognised by: of the latter, only what the policy [marked](MARK). The rows of a batch are in the order of draws, and for each draw in the
/// order of the chosen groups: with draws of 256 and 64 rows from 2 groups, rows 0 to 255 are of
/// the first group, 256 to 511 of the second, 512 to 575 of the first and 576 to 639 of the second.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupedDraws {
    /// The streams of each group; if there are none, every stream is a group.
    pub groups: Vec<Range<usize>>,
    /// Groups that are chosen for a batch. Those from which nothing can be drawn yet are left out.
    pub chosen: usize,
    /// The draws from a chosen group.
    pub draws: Vec<GroupDraw>,
}

/// One draw from a group of streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupDraw {
    /// Rows of it.
    pub rows: usize,
    /// From how many of the newest [marked](MARK) steps of each stream they are drawn, uniformly;
    /// from all steps if absent, and where nothing is marked.
    pub newest_marked: Option<usize>,
}

impl GroupDraw {
    /// A draw from all steps.
    pub fn all(rows: usize) -> Self {
        Self {
            rows,
            newest_marked: None,
        }
    }

    /// A draw from that many of the newest marked steps.
    pub fn marked(rows: usize, newest: usize) -> Self {
        Self {
            rows,
            newest_marked: Some(newest),
        }
    }
}

impl GroupedDraws {
    /// Rows of a whole batch.
    pub fn batch_size(&self) -> usize {
        self.chosen * self.draws.iter().map(|draw| draw.rows).sum::<usize>()
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
        let mut add = |group: Range<usize>| {
            if self.can_draw_from(&group)? {
                known.push(group);
            }
            Ok::<(), ReplayError>(())
        };
        match draws.groups.is_empty() {
            true => (0..self.rings.len()).try_for_each(|stream| add(stream..stream + 1))?,
            false => draws.groups.iter().cloned().try_for_each(add)?,
        }
        if known.is_empty() {
            return Err(self.empty());
        }
        let chosen = (0..draws.chosen).map(|_| known[rng.random_range(0..known.len())].clone());
        let chosen: Vec<Range<usize>> = chosen.collect();
        let mut first = 0;
        for &GroupDraw {
            rows,
            newest_marked,
        } in &draws.draws
        {
            for group in &chosen {
                let to = first..first + rows;
                let drawn = match newest_marked {
                    Some(newest) => self.sample_marked(group, newest, to.clone(), batch, rng)?,
                    None => false,
                };
                if !drawn {
                    self.sample_from(group.clone(), to, batch, beta, rng)?;
                }
                first += rows;
            }
        }
        Ok(())
    }

    /// Draws uniformly from the newest marked steps of each of some streams, with weights of 1;
    /// false if there are none.
    fn sample_marked(
        &self,
        streams: &Range<usize>,
        newest: usize,
        rows: Range<usize>,
        batch: &mut TransitionBatch,
        rng: &mut impl Rng,
    ) -> Result<bool, ReplayError> {
        self.expect_transitions()?;
        batch.check(self.layout())?;
        let mut places = Vec::new();
        let marked = |stream: usize, places: &mut Vec<usize>| {
            places.clear();
            let ring = self.read(stream);
            ring.newest_marked(&self.plan, newest, places);
            ring
        };
        let counts = streams.clone().map(|stream| {
            drop(marked(stream, &mut places));
            places.len()
        });
        let counts: Vec<usize> = counts.collect();
        let total: usize = counts.iter().sum();
        if total == 0 {
            return Ok(false);
        }
        // How many of the rows are of each stream.
        let mut shares = vec![0; counts.len()];
        for _ in rows.clone() {
            let mut at = rng.random_range(0..total);
            let of = counts.iter().position(|&count| {
                let here = at < count;
                at = at.wrapping_sub(if here { 0 } else { count });
                here
            });
            shares[of.unwrap_or(0)] += 1;
        }
        let (mut parts, weights, _) = batch.parts();
        let weights = weights.as_mut_slice::<f32>().get_mut(rows.clone());
        weights
            .ok_or(ReplayError::Batch { column: "weights" })?
            .fill(1.0);
        let mut first = rows.start;
        for (stream, share) in streams.clone().zip(shares).filter(|(_, share)| *share > 0) {
            let ring = marked(stream, &mut places);
            if places.is_empty() {
                // Others have overwritten them since they were counted.
                return Ok(false);
            }
            let chosen = (0..share).map(|_| places[rng.random_range(0..places.len())]);
            let chosen: Vec<usize> = chosen.collect();
            for places in chosen.chunks(READ_TOGETHER) {
                let entries = Entries {
                    stream,
                    ring: &ring,
                    places,
                };
                parts.read(&self.plan, entries, first);
                first += places.len();
            }
        }
        Ok(true)
    }
}
