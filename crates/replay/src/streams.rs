//! Where each stream stands in its ring.

use serde::{Deserialize, Serialize};

/// The cursors of all streams. A row is named by its number in its stream, counted from the
/// first one ever written; it lies in the slot `stream · rows + number mod rows`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Streams {
    /// Rows of one ring.
    pub(crate) rows: usize,
    pub(crate) cursors: Vec<Cursor>,
}

/// Where one stream stands.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Cursor {
    /// Rows complete: steps, and the ends of cut-off episodes.
    pub(crate) complete: u64,
    /// Rows that have taken their slot. One more than `complete` between inserts: the newest
    /// observation waits there for its action.
    pub(crate) claimed: u64,
    /// The first row that does not have all its successors yet. Steps before it can be drawn.
    pub(crate) waiting: u64,
}

impl Streams {
    pub(crate) fn new(streams: usize, rows: usize) -> Self {
        let cursors = vec![Cursor::default(); streams];
        Self { rows, cursors }
    }

    pub(crate) fn slots(&self) -> usize {
        self.rows * self.cursors.len()
    }

    pub(crate) fn slot(&self, stream: usize, row: u64) -> usize {
        stream * self.rows + self.place(row)
    }

    /// How often the ring had gone round when the row was written.
    pub(crate) fn generation(&self, row: u64) -> u64 {
        row / self.rows as u64
    }

    /// The stream of a slot, and the row that lies in it now.
    pub(crate) fn row_in(&self, slot: usize) -> Option<(usize, u64)> {
        let stream = slot / self.rows;
        let claimed = self.cursors.get(stream)?.claimed;
        let round = self.generation(claimed.checked_sub(1)?);
        let row = round * self.rows as u64 + (slot % self.rows) as u64;
        if row < claimed {
            return Some((stream, row));
        }
        Some((stream, row.checked_sub(self.rows as u64)?))
    }

    /// The slot `steps` rows after the one in `slot`, within the same ring.
    pub(crate) fn after(&self, slot: usize, steps: usize) -> usize {
        let place = slot % self.rows;
        let moved = place + steps;
        slot - place
            + if moved < self.rows {
                moved
            } else {
                moved - self.rows
            }
    }

    /// The rows of a stream that have all their successors: steps among them can be drawn.
    pub(crate) fn drawable(&self, stream: usize) -> std::ops::Range<u64> {
        let cursor = &self.cursors[stream];
        let oldest = cursor.claimed.saturating_sub(self.rows as u64);
        oldest..cursor.waiting.max(oldest)
    }

    fn place(&self, row: u64) -> usize {
        // Smaller than `rows`, which is a `usize`.
        (row % self.rows as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_names_the_newest_row_that_took_it() {
        let mut streams = Streams::new(2, 5);
        assert_eq!(streams.row_in(7), None);
        streams.cursors[1].claimed = 8;
        let rows: Vec<_> = (5..10).map(|slot| streams.row_in(slot)).collect();
        assert_eq!(rows, [5, 6, 7, 3, 4].map(|row| Some((1, row))));
        assert_eq!(streams.row_in(0), None);
        assert_eq!(streams.row_in(10), None);
        for row in 3..8 {
            assert_eq!(streams.row_in(streams.slot(1, row)), Some((1, row)));
        }
        assert_eq!((streams.generation(4), streams.generation(5)), (0, 1));
        assert_eq!(streams.after(8, 1), 9);
        assert_eq!(streams.after(8, 3), 6);
    }
}
