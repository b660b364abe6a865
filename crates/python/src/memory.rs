//! Memory that this process shares with workers.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicI64, Ordering};

use memmap2::MmapMut;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

/// Bytes that are not in any file and are gone when the last process that has them ends.
///
/// A worker writes to them only between a command and its answer. This process reads and writes its
/// part only outside of that time, except for [`number`](Memory::number).
pub(crate) struct Memory {
    map: MmapMut,
    file: File,
}

impl Memory {
    /// That many bytes, all 0.
    pub(crate) fn new(bytes: usize) -> io::Result<Self> {
        let file = File::from(memfd_create("starling-envs", MemfdFlags::CLOEXEC)?);
        ftruncate(&file, bytes as u64)?;
        // SAFETY: the file is anonymous and never becomes shorter. Other processes that have it are
        // workers, which write to the part of an environment only while this process waits for
        // their answer and does not read that part.
        #[expect(unsafe_code, reason = "memory that is shared with another process")]
        let map = unsafe { MmapMut::map_mut(&file)? };
        Ok(Self { map, file })
    }

    /// To be passed on to a worker.
    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// How many bytes there are.
    pub(crate) fn len(&self) -> usize {
        self.map.len()
    }

    pub(crate) fn bytes(&self, range: Range<usize>) -> &[u8] {
        &self.map[range]
    }

    pub(crate) fn bytes_mut(&mut self, range: Range<usize>) -> &mut [u8] {
        &mut self.map[range]
    }

    /// The whole number at a place, which a worker may be writing at the same time.
    ///
    /// # Panics
    /// When the place is outside, or not a multiple of 8.
    pub(crate) fn number(&self, place: usize) -> i64 {
        assert!(place.is_multiple_of(8) && place + 8 <= self.map.len());
        let pointer = self.map.as_ptr().wrapping_add(place).cast_mut();
        // SAFETY: the eight bytes are within the map and aligned, since maps begin at a page. This
        // process does not write them in any other way, and reads them only here.
        #[expect(unsafe_code, reason = "a number that another process writes")]
        let number = unsafe { AtomicI64::from_ptr(pointer.cast()) };
        number.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_numbers_are_the_same_memory() {
        let mut memory = Memory::new(4096).unwrap();
        memory
            .bytes_mut(8..16)
            .copy_from_slice(&(-7i64).to_le_bytes());
        assert_eq!((memory.number(8), memory.number(0)), (-7, 0));
        assert_eq!((memory.len(), memory.bytes(16..17)), (4096, &[0][..]));
    }
}
