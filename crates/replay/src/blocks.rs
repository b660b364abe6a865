//! Byte streams as blocks with checksums.

use std::io::{self, Read, Write};

use twox_hash::XxHash3_64;

use crate::SnapshotError;

/// Bytes of a full block.
pub(crate) const BLOCK: usize = 1 << 20;

/// Cuts what is written into blocks: length, checksum, bytes.
pub(crate) struct BlockWriter<W> {
    to: W,
    block: Vec<u8>,
    written: u64,
}

impl<W: Write> BlockWriter<W> {
    pub(crate) fn new(to: W) -> Self {
        let block = Vec::with_capacity(BLOCK);
        Self {
            to,
            block,
            written: 0,
        }
    }

    fn end_block(&mut self) -> io::Result<()> {
        let length = self.block.len() as u32;
        self.to.write_all(&length.to_ne_bytes())?;
        self.to
            .write_all(&checksum(self.written, &self.block).to_ne_bytes())?;
        self.to.write_all(&self.block)?;
        self.block.clear();
        self.written += 1;
        Ok(())
    }

    pub(crate) fn finish(mut self) -> io::Result<W> {
        if !self.block.is_empty() {
            self.end_block()?;
        }
        self.end_block()?;
        Ok(self.to)
    }
}

impl<W: Write> Write for BlockWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = BLOCK - self.block.len();
        let taken = bytes.len().min(room);
        self.block.extend_from_slice(&bytes[..taken]);
        if self.block.len() == BLOCK {
            self.end_block()?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Reads blocks back and refuses the first one that is not what was written.
pub(crate) struct BlockReader<R> {
    from: R,
    block: Vec<u8>,
    used: usize,
    read: u64,
    ended: bool,
}

impl<R: Read> BlockReader<R> {
    pub(crate) fn new(from: R) -> Self {
        Self {
            from,
            block: Vec::new(),
            used: 0,
            read: 0,
            ended: false,
        }
    }

    fn next_block(&mut self) -> io::Result<()> {
        let (mut length, mut sum) = ([0; 4], [0; 8]);
        self.fill(&mut length)?;
        self.fill(&mut sum)?;
        let length = u32::from_ne_bytes(length) as usize;
        if length > BLOCK {
            return Err(self.damaged());
        }
        let mut block = std::mem::take(&mut self.block);
        block.resize(length, 0);
        self.fill(&mut block)?;
        if checksum(self.read, &block) != u64::from_ne_bytes(sum) {
            return Err(self.damaged());
        }
        self.ended = length == 0;
        (self.block, self.used) = (block, 0);
        self.read += 1;
        Ok(())
    }

    fn fill(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        let block = self.read;
        self.from
            .read_exact(bytes)
            .map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof => {
                    io::Error::other(SnapshotError::Truncated { block })
                }
                _ => error,
            })
    }

    fn damaged(&self) -> io::Error {
        io::Error::other(SnapshotError::Damaged { block: self.read })
    }
}

impl<R: Read> Read for BlockReader<R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        if self.used == self.block.len() && !self.ended {
            self.next_block()?;
        }
        let left = &self.block[self.used..];
        let taken = bytes.len().min(left.len());
        bytes[..taken].copy_from_slice(&left[..taken]);
        self.used += taken;
        Ok(taken)
    }
}

/// A block in another place, or an empty one that should not be, does not match either.
fn checksum(number: u64, block: &[u8]) -> u64 {
    XxHash3_64::oneshot_with_seed(number, block)
}
