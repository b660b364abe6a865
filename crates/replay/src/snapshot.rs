//! Saves a replay to disk in parts, bit for bit, while it is in use.
//!
//! A snapshot is one file, a *part*: everything that changes (cursors, flags, priorities), and the
//! rows that earlier parts do not have. Rows never change once they are complete, so each row is
//! written once; the newest part names the earlier ones that it needs.
//!
//! [`Snapshot::begin`] captures one point in time: it locks all streams while it copies flags and
//! priorities, 9 bytes per row. [`Snapshot::write`] then writes the rows in small pieces while
//! others insert and sample. A row that is about to be overwritten before it was written is set
//! aside by the thread that overwrites it.
//!
//! A part is a magic number and a format number, then blocks of at most 1 MiB with a checksum each,
//! then an empty block that marks the end. The content of the blocks is one zstd stream. Equal
//! replays give equal bytes, and a loaded replay continues exactly as the saved one would have.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::ops::Deref;
use std::sync::atomic::Ordering;

use serde::{Deserialize, Serialize};

use crate::blocks::{BLOCK, BlockReader, BlockWriter};
use crate::column::{Column, Packing};
use crate::ring::{Cursor, Pin, Plan, Ring};
use crate::{Layout, Replay, ReplayConfig, ReplayError};

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
    /// Another snapshot is being written.
    #[error("the last snapshot of the replay is still being written")]
    Busy,
    /// The saved settings are out of range.
    #[error(transparent)]
    Replay(#[from] ReplayError),
    /// Reading or writing failed.
    #[error("the replay snapshot could not be read or written: {0}")]
    Io(io::Error),
}

/// Which parts a replay has on disk: the next snapshot need not write their rows again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    /// Oldest first.
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Part {
    number: u64,
    /// For every stream, the row behind the last one in this part.
    ends: Vec<u64>,
}

impl Saved {
    /// The numbers of all parts that are needed to load the replay, the newest one last.
    pub fn parts(&self) -> impl DoubleEndedIterator<Item = u64> + '_ {
        self.parts.iter().map(|part| part.number)
    }
}

/// More parts than this are written again as one.
const MOST_PARTS: usize = 64;

/// A replay as it was at one moment, to be written while it is in use.
#[derive(Debug)]
pub struct Snapshot<R: Deref<Target = Replay>> {
    replay: R,
    header: Header,
}

impl<R: Deref<Target = Replay>> Snapshot<R> {
    /// Fixes the moment. `since` is what the last snapshot returned: rows that are in its parts
    /// are not written again. Without it, the part holds everything.
    ///
    /// # Errors
    /// When another snapshot is under way.
    pub fn begin(replay: R, since: Option<&Saved>) -> Result<Self, SnapshotError> {
        if replay.pinned.swap(true, Ordering::Acquire) {
            return Err(SnapshotError::Busy);
        }
        let header = Header::take(&replay, since);
        Ok(Self { replay, header })
    }

    /// The number of the part that will be written; the first one is 1.
    pub fn number(&self) -> u64 {
        self.header.saved.parts().next_back().unwrap_or(0)
    }

    /// The parts that the written one will need, itself among them, as the last.
    pub fn saved(&self) -> &Saved {
        &self.header.saved
    }

    /// Writes the part, and returns what the next snapshot can start from.
    ///
    /// # Errors
    /// When writing fails.
    pub fn write(self, mut to: impl Write) -> Result<Saved, SnapshotError> {
        to.write_all(MARK)?;
        to.write_all(&FORMAT.to_ne_bytes())?;
        let mut out = zstd::stream::write::Encoder::new(BlockWriter::new(to), COMPRESSION)?;
        let header = postcard::to_allocvec(&self.header).map_err(content)?;
        out.write_all(&(header.len() as u64).to_ne_bytes())?;
        out.write_all(&header)?;
        drop(header);
        let plan = &self.replay.plan;
        let rows = (PIECE / row_bytes(plan).max(1)).clamp(1, 256);
        let mut piece = Vec::new();
        // Round by round over the streams, oldest rows first: so that writers, who overwrite
        // the oldest ones, hardly ever come first.
        let mut open: Vec<usize> = (0..self.replay.rings.len()).collect();
        while !open.is_empty() {
            open.retain(|&stream| {
                let mut ring = self.replay.write(stream);
                ring.next_piece(plan, stream, rows, &mut piece)
            });
            out.write_all(&piece)?;
            piece.clear();
        }
        out.write_all(&END.to_ne_bytes())?;
        out.finish()?.finish()?.flush()?;
        Ok(self.header.saved.clone())
    }
}

impl<R: Deref<Target = Replay>> Drop for Snapshot<R> {
    fn drop(&mut self) {
        for stream in 0..self.replay.rings.len() {
            self.replay.write(stream).pin = None;
        }
        self.replay.pinned.store(false, Ordering::Release);
    }
}

impl Replay {
    /// Continues from a snapshot: its newest part, and the earlier ones by their numbers.
    ///
    /// # Errors
    /// When a part is damaged, truncated, something else, of another snapshot, or of a replay
    /// with other settings or columns.
    pub fn load<P: Read>(
        newest: impl Read,
        mut earlier: impl FnMut(u64) -> io::Result<P>,
        config: &ReplayConfig,
        layout: &Layout,
    ) -> Result<(Self, Saved), SnapshotError> {
        Self::load_newest_rows(newest, |part| earlier(part).map(Some), config, layout)
    }

    /// As [`load`](Replay::load), where some earlier parts may be lost, for which `earlier` gives
    /// `None`. The rows of a lost part, and all older ones, are left out.
    ///
    /// # Errors
    /// As [`load`](Replay::load), for the parts that are there.
    pub fn load_newest_rows<P: Read>(
        newest: impl Read,
        mut earlier: impl FnMut(u64) -> io::Result<Option<P>>,
        config: &ReplayConfig,
        layout: &Layout,
    ) -> Result<(Self, Saved), SnapshotError> {
        let mut header = None;
        let mut replay = None;
        read_part(newest, |from| {
            let found: Header = read_header(from)?;
            compare(&found, config, layout)?;
            let empty = Replay::new(config.clone(), found.layout.clone())?;
            found.restore(&empty)?;
            read_rows(from, &empty)?;
            header = Some(found);
            replay = Some(empty);
            Ok(())
        })?;
        let (Some(mut header), Some(replay)) = (header, replay) else {
            return Err(SnapshotError::NotASnapshot);
        };
        let (_, before) = header.saved.parts.split_last().unwrap_or((&NO_PART, &[]));
        let mut lost = 0;
        for (index, part) in before.iter().enumerate() {
            let Some(file) = earlier(part.number)? else {
                replay.leave_out(part);
                lost = index + 1;
                continue;
            };
            read_part(file, |from| {
                let found: Header = read_header(from)?;
                compare(&found, config, layout)?;
                if found.saved.parts.last() != Some(part) {
                    let number = part.number;
                    let message = format!("part {number} is of another snapshot");
                    return Err(SnapshotError::Content(message));
                }
                read_rows(from, &replay)
            })?;
        }
        for (stream, state) in header.rings.iter().enumerate() {
            let mut ring = replay.write(stream);
            let packing = ring.obs.iter_mut().zip(&state.packing);
            for (column, packing) in packing {
                if let Some(packing) = packing {
                    column.restore_packing(packing);
                }
            }
        }
        header.saved.parts.drain(..lost);
        Ok((replay, header.saved))
    }

    /// Gives up all rows up to the end of a part.
    fn leave_out(&self, part: &Part) {
        for (stream, end) in part.ends.iter().enumerate().take(self.rings.len()) {
            let mut ring = self.write(stream);
            let before = ring.entries;
            ring.evict_before(&self.plan, *end);
            self.publish(stream, &ring, before);
        }
    }
}

const NO_PART: Part = Part {
    number: 0,
    ends: Vec::new(),
};
const MARK: &[u8; 8] = b"STARRPLY";
/// Written in the machine's own order of bytes, as the columns are: another order reads as a
/// format that does not exist.
const FORMAT: u32 = 3;
/// zstd's fastest regular level; higher ones do not make frames of games smaller.
const COMPRESSION: i32 = 1;
/// Bytes that are copied under a lock at once, about: a writer waits for no more.
const PIECE: usize = 1 << 19;
/// In the place of a stream: no more rows follow.
const END: u64 = u64::MAX;

/// What comes before the rows.
#[derive(Debug, Serialize, Deserialize)]
struct Header {
    config: ReplayConfig,
    layout: Layout,
    saved: Saved,
    inserted_steps: u64,
    breaks: u64,
    largest: f64,
    rings: Vec<RingState>,
}

/// What changes in the rows of a stream, and where it stands.
#[derive(Debug, Serialize, Deserialize)]
struct RingState {
    cursor: Cursor,
    flags: Vec<u8>,
    weights: Vec<f64>,
    /// The observation that waits for its action.
    waiting: Vec<u8>,
    /// How observations are compressed, if they are.
    packing: Vec<Option<Packing>>,
}

impl Header {
    /// Holds all streams to see them at one moment, and pins the rows to be written.
    fn take(replay: &Replay, since: Option<&Saved>) -> Self {
        let plan = &replay.plan;
        let mut rings: Vec<_> = (0..replay.rings.len()).map(|s| replay.write(s)).collect();
        let ends: Vec<u64> = rings.iter().map(|ring| ring.cursor.complete).collect();
        let mut parts = since.map_or(Vec::new(), |since| since.parts.clone());
        let number = parts.last().map_or(0, |part| part.number) + 1;
        let fits = |part: &Part| {
            let pairs = part.ends.iter().zip(&ends);
            part.ends.len() == ends.len() && pairs.clone().all(|(saved, now)| saved <= now)
        };
        if parts.len() >= MOST_PARTS || !parts.iter().all(fits) {
            parts.clear();
        }
        let saved_up_to = parts.last().map(|part| part.ends.clone());
        // Parts whose rows have all been overwritten are needed no longer.
        parts.retain(|part| {
            let mut pairs = part.ends.iter().zip(&rings);
            pairs.any(|(end, ring)| *end > ring.cursor.oldest)
        });
        let mut states = Vec::with_capacity(rings.len());
        for (stream, ring) in rings.iter_mut().enumerate() {
            let saved = saved_up_to.as_ref().map_or(0, |ends| ends[stream]);
            ring.pin = Some(Pin {
                next: saved.max(ring.cursor.oldest),
                end: ring.cursor.complete,
                rescued: VecDeque::new(),
            });
            states.push(ring.state(plan));
        }
        parts.push(Part { number, ends });
        Self {
            config: plan.config.clone(),
            layout: plan.layout.clone(),
            saved: Saved { parts },
            inserted_steps: replay.inserted_steps.load(Ordering::Relaxed),
            breaks: replay.breaks.load(Ordering::Relaxed),
            largest: f64::from_bits(replay.largest.load(Ordering::Relaxed)),
            rings: states,
        }
    }

    fn restore(&self, replay: &Replay) -> Result<(), SnapshotError> {
        let wrong = || SnapshotError::Content("its streams are inconsistent".into());
        if self.rings.len() != replay.rings.len() {
            return Err(wrong());
        }
        for (stream, state) in self.rings.iter().enumerate() {
            let mut ring = replay.write(stream);
            ring.restore(&replay.plan, state).ok_or_else(wrong)?;
            replay.publish(stream, &ring, 0);
        }
        let Header {
            inserted_steps,
            breaks,
            largest,
            ..
        } = self;
        replay
            .inserted_steps
            .store(*inserted_steps, Ordering::Relaxed);
        replay.breaks.store(*breaks, Ordering::Relaxed);
        replay.largest.store(largest.to_bits(), Ordering::Relaxed);
        Ok(())
    }
}

impl Ring {
    fn state(&self, plan: &Plan) -> RingState {
        let used = self.cursor.claimed.min(plan.rows as u64) as usize;
        let mut waiting = Vec::new();
        if self.cursor.claimed > 0 {
            let place = plan.place(self.cursor.complete);
            let observation = self.obs.iter().chain(&self.legal);
            observation.for_each(|column| append(column, place, &mut waiting));
        }
        RingState {
            cursor: self.cursor.clone(),
            flags: self.flags[..used].to_vec(),
            weights: (0..used).map(|place| self.tree.get(place)).collect(),
            waiting,
            packing: self.obs.iter().map(|column| column.packing(used)).collect(),
        }
    }

    fn restore(&mut self, plan: &Plan, state: &RingState) -> Option<()> {
        let Cursor {
            oldest,
            complete,
            claimed,
            ..
        } = state.cursor;
        let used = claimed.min(plan.rows as u64) as usize;
        let sound = oldest <= complete
            && complete <= claimed
            && claimed - oldest <= plan.rows as u64
            && state.flags.len() == used
            && state.weights.len() == used
            && state.weights.iter().all(|w| *w >= 0.0 && w.is_finite());
        if !sound {
            return None;
        }
        self.cursor = state.cursor.clone();
        self.flags[..used].copy_from_slice(&state.flags);
        self.tree
            .set_many(state.weights.iter().copied().enumerate());
        self.entries = (0..used).filter(|&place| self.is_entry(place)).count();
        if claimed > 0 {
            let place = plan.place(complete);
            let mut rest = state.waiting.as_slice();
            for column in self.obs.iter_mut().chain(&mut self.legal) {
                take(column, place, &mut rest)?;
            }
        }
        Some(())
    }

    /// Appends the next rows for the snapshot to `piece`; says whether more will follow.
    fn next_piece(&mut self, plan: &Plan, stream: usize, rows: usize, piece: &mut Vec<u8>) -> bool {
        let Some(mut pin) = self.pin.take() else {
            return false;
        };
        let count = (pin.end - pin.next).min(rows as u64);
        if count == 0 {
            return false;
        }
        for number in [stream as u64, pin.next, count] {
            piece.extend_from_slice(&number.to_ne_bytes());
        }
        for row in pin.next..pin.next + count {
            match pin.rescued.pop_front() {
                Some(bytes) => piece.extend_from_slice(&bytes),
                None => self.copy_row(plan, plan.place(row), row, piece),
            }
        }
        pin.next += count;
        let more = pin.next < pin.end;
        self.pin = more.then_some(pin);
        more
    }

    /// Appends all bytes of a row that do not change any more.
    pub(crate) fn copy_row(&self, plan: &Plan, place: usize, row: u64, to: &mut Vec<u8>) {
        let columns = self.obs.iter().chain(&self.legal).chain([&self.actions]);
        for column in columns.chain(&self.records) {
            append(column, place, to);
        }
        to.extend_from_slice(&self.rewards[place].to_ne_bytes());
        to.extend_from_slice(&self.versions[place].to_ne_bytes());
        if let Some(given) = self.given.get(place) {
            to.extend_from_slice(&given.to_ne_bytes());
        }
        let state = self.state_of(row);
        to.push(u8::from(state.is_some()));
        to.extend_from_slice(state.unwrap_or_default());
        debug_assert!(plan.place(row) == place);
    }
}

/// Bytes of a row in a part, with its state.
fn row_bytes(plan: &Plan) -> usize {
    let frames = plan.frames.iter().map(|frames| frames.bytes);
    let step = plan.layout.step_bytes(plan.config.priority.is_some());
    frames.sum::<usize>() + step + plan.layout.state.item_bytes()
}

fn append(column: &Column, place: usize, to: &mut Vec<u8>) {
    let start = to.len();
    to.resize(start + column.item(), 0);
    column.read_back(place, &mut to[start..]);
}

/// Takes an item off the front of `from`.
fn take(column: &mut Column, place: usize, from: &mut &[u8]) -> Option<()> {
    column.write(place, take_bytes(from, column.item())?);
    Some(())
}

fn take_bytes<'a>(from: &mut &'a [u8], bytes: usize) -> Option<&'a [u8]> {
    let (item, rest) = from.split_at_checked(bytes)?;
    *from = rest;
    Some(item)
}

/// Reads rows and puts those into their places that the replay still holds.
fn read_rows(from: &mut dyn Read, replay: &Replay) -> Result<(), SnapshotError> {
    let plan = &replay.plan;
    let state_bytes = plan.layout.state.item_bytes();
    let fixed = row_bytes(plan) - state_bytes;
    let mut row_buffer = vec![0; fixed];
    loop {
        let stream = read_number(from)?;
        if stream == END {
            return Ok(());
        }
        let (first, count) = (read_number(from)?, read_number(from)?);
        let known = usize::try_from(stream)
            .ok()
            .filter(|&s| s < replay.rings.len());
        let Some(stream) = known else {
            return Err(SnapshotError::Content("a row of an unknown stream".into()));
        };
        let mut ring = replay.write(stream);
        for row in first..first.saturating_add(count) {
            from.read_exact(&mut row_buffer)?;
            // The flags are not part of a row, but whether a state follows is.
            let has_state = row_buffer[fixed - 1] != 0;
            let mut state = vec![0; if has_state { state_bytes } else { 0 }];
            from.read_exact(&mut state)?;
            let held = ring.cursor.oldest..ring.cursor.complete;
            if held.contains(&row) {
                let put = ring.put_row(plan, row, &row_buffer);
                put.ok_or_else(|| SnapshotError::Content("a row is too short".into()))?;
                if has_state {
                    let at = ring.states.partition_point(|(other, _)| *other < row);
                    ring.states.insert(at, (row, state.into_boxed_slice()));
                }
            }
        }
    }
}

impl Ring {
    /// The opposite of [`copy_row`](Self::copy_row), but for the state.
    fn put_row(&mut self, plan: &Plan, row: u64, mut from: &[u8]) -> Option<()> {
        let place = plan.place(row);
        let from = &mut from;
        let columns = self.obs.iter_mut().chain(&mut self.legal);
        for column in columns.chain([&mut self.actions]).chain(&mut self.records) {
            take(column, place, from)?;
        }
        self.rewards[place] = bytemuck::pod_read_unaligned(take_bytes(from, 4)?);
        self.versions[place] = bytemuck::pod_read_unaligned(take_bytes(from, 8)?);
        if let Some(given) = self.given.get_mut(place) {
            *given = bytemuck::pod_read_unaligned(take_bytes(from, 4)?);
        }
        Some(())
    }
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
    let (found, saved) = (&header.layout, &header.config);
    same("observations", &found.observation, &layout.observation)?;
    same("actions", &found.action, &layout.action)?;
    same("legal_actions", &found.legal_actions, &layout.legal_actions)?;
    same("records", &found.records, &layout.records)?;
    same("states", &found.state, &layout.state)?;
    same("streams", &found.streams, &layout.streams)?;
    same(
        "capacity_steps",
        &saved.capacity_steps,
        &config.capacity_steps,
    )?;
    same("n_steps", &saved.n_steps, &config.n_steps)?;
    same("gamma", &saved.gamma, &config.gamma)?;
    same("priority", &saved.priority, &config.priority)?;
    same("sequence", &saved.sequence, &config.sequence)?;
    same("frame_stack", &saved.frame_stack, &config.frame_stack)?;
    same("compress", &saved.compress, &config.compress)?;
    same(
        "memory_limit_bytes",
        &saved.memory_limit_bytes,
        &config.memory_limit_bytes,
    )
}

/// Calls `read` with what a part holds, and checks that nothing is left and every block whole.
fn read_part<P: Read>(
    mut part: P,
    read: impl FnOnce(&mut dyn Read) -> Result<(), SnapshotError>,
) -> Result<(), SnapshotError> {
    read_mark(&mut part)?;
    let blocks = io::BufReader::with_capacity(BLOCK, BlockReader::new(part));
    let mut blocks = zstd::stream::read::Decoder::with_buffer(blocks)?.single_frame();
    read(&mut blocks)?;
    let mut rest = io::copy(&mut blocks, &mut io::sink())?;
    // The checksums of all blocks hold only once the last one was seen.
    rest += io::copy(&mut blocks.finish(), &mut io::sink())?;
    if rest > 0 {
        let message = format!("{rest} bytes are left over");
        return Err(SnapshotError::Content(message));
    }
    Ok(())
}

fn read_header(from: &mut dyn Read) -> Result<Header, SnapshotError> {
    let mut header = Vec::new();
    let length = read_number(from)?;
    from.take(length).read_to_end(&mut header)?;
    postcard::from_bytes(&header).map_err(content)
}

fn read_number(from: &mut (impl Read + ?Sized)) -> Result<u64, SnapshotError> {
    let mut number = [0; 8];
    from.read_exact(&mut number)?;
    Ok(u64::from_ne_bytes(number))
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
