//! Rows of bytes, plain or compressed.

use crate::codec;

/// One column of a ring: as many items of the same size as the ring has rows.
#[derive(Clone, Debug)]
pub(crate) struct Column {
    /// Bytes of one item.
    item: usize,
    cells: Cells,
}

#[derive(Clone, Debug)]
enum Cells {
    /// One item after the other.
    Plain(Vec<u8>),
    /// Each item compressed by itself.
    Packed {
        items: Vec<Box<[u8]>>,
        /// Bytes of a line of the picture: what is above a byte lies so far before it.
        line: usize,
        /// Bytes of all items.
        bytes: usize,
    },
}

impl Column {
    /// Zeros, whose memory is taken as they are overwritten.
    pub(crate) fn plain(rows: usize, item: usize) -> Self {
        let cells = Cells::Plain(vec![0; rows * item]);
        Self { item, cells }
    }

    /// Nothing yet; `line` is the number of bytes of a line of the picture.
    pub(crate) fn packed(rows: usize, item: usize, line: usize) -> Self {
        let cells = Cells::Packed {
            items: vec![Box::default(); rows],
            line,
            bytes: 0,
        };
        Self { item, cells }
    }

    /// Bytes of one item.
    pub(crate) fn item(&self) -> usize {
        self.item
    }

    /// Bytes of the items in memory.
    pub(crate) fn bytes(&self) -> usize {
        match &self.cells {
            Cells::Plain(cells) => cells.len(),
            Cells::Packed { bytes, items, .. } => bytes + items.len() * size_of::<Box<[u8]>>(),
        }
    }

    /// Bytes that compressed items take, which depends on what they show.
    pub(crate) fn packed_bytes(&self) -> usize {
        match &self.cells {
            Cells::Plain(_) => 0,
            Cells::Packed { bytes, .. } => *bytes,
        }
    }

    pub(crate) fn write(&mut self, place: usize, from: &[u8]) {
        let item = self.item;
        match &mut self.cells {
            Cells::Plain(cells) => {
                cells[place * item..(place + 1) * item].copy_from_slice(from);
            }
            Cells::Packed { items, line, bytes } => {
                let packed = codec::pack(from, *line);
                *bytes += packed.len();
                *bytes -= items[place].len();
                items[place] = packed;
            }
        }
    }

    /// Gives the memory of a compressed item back.
    pub(crate) fn clear(&mut self, place: usize) {
        if let Cells::Packed { items, bytes, .. } = &mut self.cells {
            *bytes -= items[place].len();
            items[place] = Box::default();
        }
    }

    /// Reads the items that end with the one at `place`, in their order in the ring, as many as
    /// `to` has room for.
    pub(crate) fn read_back(&self, place: usize, to: &mut [u8]) {
        let item = self.item;
        match &self.cells {
            Cells::Plain(cells) => {
                let end = (place + 1) * item;
                match end.checked_sub(to.len()) {
                    Some(start) => to.copy_from_slice(&cells[start..end]),
                    None => {
                        let (before, after) = to.split_at_mut(to.len() - end);
                        before.copy_from_slice(&cells[cells.len() - before.len()..]);
                        after.copy_from_slice(&cells[..end]);
                    }
                }
            }
            Cells::Packed { items, line, .. } => {
                let count = to.len() / item.max(1);
                let rows = items.len();
                for (i, to) in to.chunks_exact_mut(item.max(1)).enumerate() {
                    let place = (place + rows + 1 + i - count) % rows;
                    codec::unpack(&items[place], *line, to);
                }
            }
        }
    }
}
