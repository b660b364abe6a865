//! A whole replay on disk, bit for bit.
//!
//! A snapshot is a mark and a format number, then blocks of at most 1 MiB with a checksum each,
//! then an empty block that says that the end was reached. What the blocks hold is one stream of
//! zstd: the settings, the layout and the cursors, then column by column the rows that were ever
//! written. Equal replays give equal bytes, and a loaded replay goes on exactly as the saved one
//! would have.

use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_64;

use crate::transitions::State;
use crate::{Layout, ReplayConfig, ReplayError, TransitionReplay};

/// What goes wrong when a replay is saved or loaded.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The file is something else.
    #[error("this is not a replay snapshot")]
    NotASnapshot,
    /// The file was written by another version, or on a machine with another order of bytes.
    #[error("the replay snapshot has format {found}; this program reads format {FORMAT}")]
    Format {
        /// The file's format.
        found: u32,
    },
    /// The file stops before its end.
    #[error("the replay snapshot is truncated: it stops in block {block}")]
    Truncated {
        /// The first block that is not complete.
        block: u64,
    },
    /// The file's bytes are not those that were written.
    #[error("the replay snapshot is damaged: block {block} does not match its checksum")]
    Damaged {
        /// The first block that differs.
        block: u64,
    },
    /// The blocks are sound but what they hold makes no sense.
    #[error("the replay snapshot cannot be read: {0}")]
    Content(String),
    /// The snapshot is of a replay with other settings or columns.
    #[error("the replay snapshot has {what} {saved}, but this run has {expected}")]
    Different {
        /// What differs.
        what: &'static str,
        /// As saved.
        saved: String,
        /// As asked for.
        expected: String,
    },
    /// The saved settings are out of range.
    #[error(transparent)]
    Replay(#[from] ReplayError),
    /// Reading or writing failed.
    #[error("the replay snapshot could not be read or written: {0}")]
    Io(io::Error),
}

impl TransitionReplay {
    /// Writes everything that is needed to go on exactly.
    ///
    /// # Errors
    /// When writing fails.
    pub fn save(&self, mut to: impl Write) -> Result<(), SnapshotError> {
        to.write_all(MARK)?;
        to.write_all(&FORMAT.to_ne_bytes())?;
        let blocks = BlockWriter::new(to);
        let mut out = zstd::stream::write::Encoder::new(blocks, COMPRESSION)?;
        let header = (&self.config, &self.layout, &self.state);
        let header = postcard::to_allocvec(&header).map_err(content)?;
        out.write_all(&(header.len() as u64).to_ne_bytes())?;
        out.write_all(&header)?;
        for column in self.columns() {
            for (first, rows) in self.written_rows() {
                out.write_all(part(column, self.slots(), first, rows))?;
            }
        }
        if let Some(tree) = &self.tree {
            for (first, rows) in self.written_rows() {
                for slot in first..first + rows {
                    out.write_all(&tree.get(slot).to_ne_bytes())?;
                }
            }
        }
        let mut to = out.finish()?.finish()?;
        to.flush()?;
        Ok(())
    }

    /// Reads a replay that [`save`](Self::save) wrote, for the same settings and columns.
    ///
    /// # Errors
    /// When the file is damaged, truncated, something else, or of a replay with other settings
    /// or columns.
    pub fn load(
        mut from: impl Read,
        config: &ReplayConfig,
        layout: &Layout,
    ) -> Result<Self, SnapshotError> {
        read_mark(&mut from)?;
        let blocks = io::BufReader::with_capacity(BLOCK, BlockReader::new(from));
        let mut blocks = zstd::stream::read::Decoder::with_buffer(blocks)?.single_frame();
        let replay = Self::read(&mut blocks, config, layout)?;
        // The checksums of all blocks hold only once the last one was seen.
        let rest = io::copy(&mut blocks.finish(), &mut io::sink())?;
        if rest > 0 {
            return Err(SnapshotError::Content(format!(
                "{rest} bytes are left over"
            )));
        }
        Ok(replay)
    }

    fn read(
        from: &mut impl Read,
        config: &ReplayConfig,
        layout: &Layout,
    ) -> Result<Self, SnapshotError> {
        let mut length = [0; 8];
        from.read_exact(&mut length)?;
        let mut header = Vec::new();
        from.take(u64::from_ne_bytes(length))
            .read_to_end(&mut header)?;
        let header: Header = postcard::from_bytes(&header).map_err(content)?;
        compare(&header, config, layout)?;
        let mut replay = TransitionReplay::new(header.config, header.layout)?;
        replay.state = header.state;
        let parts: Vec<_> = replay.written_rows().collect();
        let slots = replay.slots();
        for column in replay.columns_mut() {
            for &(first, rows) in &parts {
                from.read_exact(part_mut(column, slots, first, rows))?;
            }
        }
        if let Some(tree) = &mut replay.tree {
            let mut weights = Vec::new();
            let mut weight = [0; 8];
            for (first, rows) in parts {
                for slot in first..first + rows {
                    from.read_exact(&mut weight)?;
                    weights.push((slot, f64::from_ne_bytes(weight)));
                }
            }
            tree.set_many(weights);
        }
        replay.count_drawable();
        Ok(replay)
    }

    /// The rows that were ever written, as (first slot, number) of each stream.
    fn written_rows(&self) -> impl Iterator<Item = (usize, usize)> {
        let streams = &self.state.streams;
        streams.cursors.iter().enumerate().map(|(stream, cursor)| {
            let rows = cursor.claimed.min(streams.rows as u64) as usize;
            (stream * streams.rows, rows)
        })
    }

    fn slots(&self) -> usize {
        self.state.streams.slots()
    }

    /// The bytes of every column, in the order in which they are saved.
    fn columns(&self) -> Vec<&[u8]> {
        let store = &self.store;
        let mut columns: Vec<&[u8]> = Vec::new();
        columns.extend(store.obs.leaves().into_iter().map(|(_, a)| a.bytes()));
        columns.extend(store.legal.as_ref().map(|legal| legal.bytes()));
        columns.push(store.actions.bytes());
        columns.push(bytemuck::cast_slice(&store.rewards));
        columns.push(&store.flags);
        columns.push(bytemuck::cast_slice(&store.versions));
        columns
    }

    fn columns_mut(&mut self) -> Vec<&mut [u8]> {
        let store = &mut self.store;
        let mut columns: Vec<&mut [u8]> = Vec::new();
        let observations = store.obs.leaves_mut().into_iter();
        columns.extend(observations.map(|(_, a)| a.bytes_mut()));
        columns.extend(store.legal.as_mut().map(|legal| legal.bytes_mut()));
        columns.push(store.actions.bytes_mut());
        columns.push(bytemuck::cast_slice_mut(&mut store.rewards));
        columns.push(&mut store.flags);
        columns.push(bytemuck::cast_slice_mut(&mut store.versions));
        columns
    }
}

const MARK: &[u8; 8] = b"STARRPLY";
/// Written in the machine's own order of bytes, as the columns are: another order reads as a
/// format that does not exist.
const FORMAT: u32 = 1;
/// zstd's fastest regular level; higher ones do not make frames of games smaller.
const COMPRESSION: i32 = 1;
/// Bytes of a full block.
const BLOCK: usize = 1 << 20;

/// What comes before the rows.
#[derive(Serialize, Deserialize)]
struct Header {
    config: ReplayConfig,
    layout: Layout,
    state: State,
}

fn compare(header: &Header, config: &ReplayConfig, layout: &Layout) -> Result<(), SnapshotError> {
    fn same<T: PartialEq + std::fmt::Debug>(
        what: &'static str,
        saved: &T,
        expected: &T,
    ) -> Result<(), SnapshotError> {
        if saved == expected {
            return Ok(());
        }
        Err(SnapshotError::Different {
            what,
            saved: format!("{saved:?}"),
            expected: format!("{expected:?}"),
        })
    }
    let (saved, columns) = (&header.config, &header.layout);
    same("observations", &columns.observation, &layout.observation)?;
    same("actions", &columns.action, &layout.action)?;
    same(
        "legal_actions",
        &columns.legal_actions,
        &layout.legal_actions,
    )?;
    same("streams", &columns.streams, &layout.streams)?;
    same(
        "capacity_steps",
        &saved.capacity_steps,
        &config.capacity_steps,
    )?;
    same("n_steps", &saved.n_steps, &config.n_steps)?;
    same("gamma", &saved.gamma, &config.gamma)?;
    same("priority", &saved.priority, &config.priority)
}

/// The bytes of some rows of a column of `slots` rows.
fn part(column: &[u8], slots: usize, first: usize, rows: usize) -> &[u8] {
    let item = column.len() / slots;
    &column[first * item..(first + rows) * item]
}

fn part_mut(column: &mut [u8], slots: usize, first: usize, rows: usize) -> &mut [u8] {
    let item = column.len() / slots;
    &mut column[first * item..(first + rows) * item]
}

fn read_mark(from: &mut impl Read) -> Result<(), SnapshotError> {
    let mut start = [0; MARK.len() + 4];
    from.read_exact(&mut start)
        .map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => SnapshotError::Truncated { block: 0 },
            _ => SnapshotError::Io(error),
        })?;
    let (mark, format) = start.split_at(MARK.len());
    if mark != MARK {
        return Err(SnapshotError::NotASnapshot);
    }
    let found = format
        .iter()
        .rev()
        .fold(0, |n, &byte| n << 8 | u32::from(byte));
    if format != FORMAT.to_ne_bytes() {
        return Err(SnapshotError::Format { found });
    }
    Ok(())
}

/// Cuts what is written into blocks: length, checksum, bytes.
struct BlockWriter<W> {
    to: W,
    block: Vec<u8>,
    written: u64,
}

impl<W: Write> BlockWriter<W> {
    fn new(to: W) -> Self {
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

    fn finish(mut self) -> io::Result<W> {
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
struct BlockReader<R> {
    from: R,
    block: Vec<u8>,
    used: usize,
    read: u64,
    ended: bool,
}

impl<R: Read> BlockReader<R> {
    fn new(from: R) -> Self {
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

impl From<io::Error> for SnapshotError {
    fn from(error: io::Error) -> Self {
        match error.downcast::<SnapshotError>() {
            Ok(error) => error,
            Err(error) => SnapshotError::Io(error),
        }
    }
}

fn content(error: postcard::Error) -> SnapshotError {
    SnapshotError::Content(error.to_string())
}
