//! Rows of bytes, plain or compressed.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{codec, streaming};

/// One column of a ring: as many items of the same size as the ring has rows.
#[derive(Debug)]
pub(crate) struct Column {
    /// Bytes of one item.
    item: usize,
    cells: Cells,
}

#[derive(Debug)]
enum Cells {
    /// One item after the other.
    Plain(Memory),
    Packed(Packed),
}

/// Items that are compressed, most of them beside an earlier one, their key.
#[derive(Debug)]
struct Packed {
    items: Vec<Item>,
    /// Bytes of a line of the picture: what is above a byte lies so far before it.
    line: usize,
    /// Bytes of all items.
    bytes: usize,
    key: Key,
}

#[derive(Clone, Debug)]
struct Item {
    /// The key, compressed by itself. It lives for as long as an item needs it, though the row
    /// that it was written with may be gone.
    key: Arc<[u8]>,
    /// What differs from the key; empty if nothing does.
    rest: Box<[u8]>,
    /// Bytes that count for this item.
    bytes: u32,
}

/// What the next items are compressed beside.
#[derive(Clone, Debug)]
struct Key {
    packed: Arc<[u8]>,
    plain: Vec<u8>,
    /// Items that it may still serve.
    left: usize,
}

/// The key that was read last: neighbours have it in common.
#[derive(Debug, Default)]
pub(crate) struct KeyCache {
    packed: Option<Arc<[u8]>>,
    plain: Vec<u8>,
}

/// Items that share one key at most. More would take a little less memory in games whose
/// background rests, and more in those whose picture moves.
const SHARE_KEY: usize = 8;

/// Bytes that every compressed item takes in memory beside its own.
pub(crate) const PACKED_OVERHEAD: usize = size_of::<Item>();

/// What a snapshot keeps of how items are compressed, so that the same rows count as many bytes
/// after it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Packing {
    bytes: Vec<u32>,
    key: Vec<u8>,
    left: usize,
}

impl Column {
    /// Zeros, whose memory is taken as they are overwritten.
    pub(crate) fn plain(rows: usize, item: usize) -> Self {
        let cells = Cells::Plain(Memory::zeros(rows * item));
        Self { item, cells }
    }

    /// Nothing yet; `line` is the number of bytes of a line of the picture.
    pub(crate) fn packed(rows: usize, item: usize, line: usize) -> Self {
        let nothing: Arc<[u8]> = Arc::default();
        let cells = Cells::Packed(Packed {
            items: vec![
                Item {
                    key: Arc::clone(&nothing),
                    rest: Box::default(),
                    bytes: 0,
                };
                rows
            ],
            line,
            bytes: 0,
            key: Key {
                packed: nothing,
                plain: Vec::new(),
                left: 0,
            },
        });
        Self { item, cells }
    }

    /// Bytes of one item.
    pub(crate) fn item(&self) -> usize {
        self.item
    }

    /// Whether items are compressed.
    pub(crate) fn is_packed(&self) -> bool {
        matches!(self.cells, Cells::Packed(_))
    }

    /// Bytes of the items in memory.
    pub(crate) fn bytes(&self) -> usize {
        match &self.cells {
            Cells::Plain(cells) => cells.bytes().len(),
            Cells::Packed(packed) => packed.bytes + packed.items.len() * PACKED_OVERHEAD,
        }
    }

    /// Bytes that compressed items take, which depends on what they show.
    pub(crate) fn packed_bytes(&self) -> usize {
        match &self.cells {
            Cells::Plain(_) => 0,
            Cells::Packed(packed) => packed.bytes,
        }
    }

    pub(crate) fn write(&mut self, place: usize, from: &[u8]) {
        let item = self.item;
        match &mut self.cells {
            Cells::Plain(cells) => {
                cells.bytes_mut()[place * item..(place + 1) * item].copy_from_slice(from);
            }
            Cells::Packed(packed) => packed.write(place, from),
        }
    }

    /// Gives the memory of a compressed item back.
    pub(crate) fn clear(&mut self, place: usize) {
        if let Cells::Packed(packed) = &mut self.cells {
            packed.put(place, Arc::clone(&packed.key.packed), Box::default(), 0);
        }
    }

    /// Reads the items that end with the one at `place`, in their order in the ring, as many as
    /// `to` has room for.
    pub(crate) fn read_back(&self, place: usize, to: &mut [u8]) {
        self.read_back_with(place, to, &mut KeyCache::default());
    }

    /// [`read_back`](Self::read_back) for many places of one column, near each other.
    pub(crate) fn read_back_with(&self, place: usize, to: &mut [u8], keys: &mut KeyCache) {
        match &self.cells {
            Cells::Plain(cells) => {
                let cells = cells.bytes();
                let end = (place + 1) * self.item;
                match end.checked_sub(to.len()) {
                    Some(start) => streaming::copy(to, &cells[start..end]),
                    None => {
                        let (before, after) = to.split_at_mut(to.len() - end);
                        streaming::copy(before, &cells[cells.len() - before.len()..]);
                        streaming::copy(after, &cells[..end]);
                    }
                }
            }
            Cells::Packed(packed) => packed.read_back(place, self.item, to, keys),
        }
    }

    /// How the first `used` items are compressed; `None` if they are not.
    pub(crate) fn packing(&self, used: usize) -> Option<Packing> {
        let Cells::Packed(packed) = &self.cells else {
            return None;
        };
        Some(Packing {
            bytes: packed.items[..used].iter().map(|item| item.bytes).collect(),
            key: packed.key.plain.clone(),
            left: packed.key.left,
        })
    }

    /// Continues with the saved key, and counts items as they were counted.
    pub(crate) fn restore_packing(&mut self, packing: &Packing) {
        let Cells::Packed(packed) = &mut self.cells else {
            return;
        };
        packed.key = Key {
            packed: codec::pack(&packing.key, packed.line, &[]).into(),
            plain: packing.key.clone(),
            left: packing.left,
        };
        for (item, &bytes) in packed.items.iter_mut().zip(&packing.bytes) {
            item.bytes = bytes;
        }
        packed.bytes = packed.items.iter().map(|item| item.bytes as usize).sum();
    }
}

/// Bytes that are zero at first and taken from the system as they are overwritten.
#[derive(Debug)]
enum Memory {
    Heap(Vec<u8>),
    /// In large pages where the system has them: rows are read from random places, and with
    /// small pages finding out where these lie takes a good part of the time.
    Mapped(memmap2::MmapMut),
}

impl Memory {
    fn zeros(bytes: usize) -> Self {
        // A few large pages at least, so that little is wasted.
        if bytes >= 1 << 24
            && let Ok(map) = memmap2::MmapMut::map_anon(bytes)
        {
            // Works as well without, only slower.
            #[cfg(target_os = "linux")]
            let _ = map.advise(memmap2::Advice::HugePage);
            return Self::Mapped(map);
        }
        Self::Heap(vec![0; bytes])
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Self::Heap(bytes) => bytes,
            Self::Mapped(bytes) => bytes,
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Heap(bytes) => bytes,
            Self::Mapped(bytes) => bytes,
        }
    }
}

impl Packed {
    fn write(&mut self, place: usize, from: &[u8]) {
        if self.key.left > 0 {
            let rest = codec::pack(from, self.line, &self.key.plain);
            // What has little in common with the key becomes the next key.
            if rest.len() <= self.key.packed.len() {
                self.key.left -= 1;
                let bytes = rest.len();
                return self.put(place, Arc::clone(&self.key.packed), rest, bytes);
            }
        }
        self.key.plain.clear();
        self.key.plain.extend_from_slice(from);
        self.key.packed = codec::pack(from, self.line, &[]).into();
        self.key.left = SHARE_KEY - 1;
        let bytes = self.key.packed.len();
        self.put(place, Arc::clone(&self.key.packed), Box::default(), bytes);
    }

    fn put(&mut self, place: usize, key: Arc<[u8]>, rest: Box<[u8]>, bytes: usize) {
        let item = &mut self.items[place];
        self.bytes += bytes;
        self.bytes -= item.bytes as usize;
        // No item is as long as that: it would be stored as it is, with a head every 64 KiB.
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        *item = Item { key, rest, bytes };
    }

    fn read_back(&self, place: usize, item: usize, to: &mut [u8], keys: &mut KeyCache) {
        let (rows, item) = (self.items.len(), item.max(1));
        let count = to.len() / item;
        let KeyCache { packed, plain } = keys;
        for (i, to) in to.chunks_exact_mut(item).enumerate() {
            let item = &self.items[(place + rows + 1 + i - count) % rows];
            let known = packed.as_ref();
            if !known.is_some_and(|known| Arc::ptr_eq(known, &item.key)) {
                plain.resize(to.len(), 0);
                codec::unpack(&item.key, self.line, &[], plain);
                *packed = Some(Arc::clone(&item.key));
            }
            match item.rest.is_empty() {
                true => to.copy_from_slice(plain),
                false => codec::unpack(&item.rest, self.line, plain, to),
            }
        }
    }
}
