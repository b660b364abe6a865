//! The TIA as the processor sees it: registers to write, collisions and input pins to read.
//!
//! Writes that only change the picture have no immediate effect: they are logged, and the
//! [`Beam`](beam::Beam) replays them when the program reads a collision or the picture is
//! requested.

pub(crate) mod beam;
pub(crate) mod lines;
mod motion;
mod objects;
pub(crate) mod paint;
pub(crate) mod shadow;

use serde::{Deserialize, Serialize};

use crate::controllers::Inputs;
use beam::{Beam, NoScreen, Screen};
use paint::Pixels;
use shadow::Shadow;

/// One write to a picture register: the processor cycle, counted from the start of the frame's
/// first line, the register and the value, in one word.
///
/// Ordered by cycle first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Write(u32);

impl Write {
    #[inline(always)]
    pub(crate) fn new(cycle: u16, register: u8, value: u8) -> Self {
        Self::at(u32::from(cycle) << 16, register, value)
    }

    /// The same, with the cycle in the upper half of a word.
    #[inline(always)]
    pub(crate) fn at(stamp: u32, register: u8, value: u8) -> Self {
        Self(stamp | u32::from(register) << 8 | u32::from(value))
    }

    #[inline(always)]
    pub(crate) fn cycle(self) -> u16 {
        (self.0 >> 16) as u16
    }

    /// The beam's clock at that cycle.
    #[inline(always)]
    pub(crate) fn clock(self) -> u32 {
        u32::from(self.cycle()) * 3
    }

    #[inline(always)]
    pub(crate) fn register(self) -> u8 {
        (self.0 >> 8) as u8
    }

    #[inline(always)]
    pub(crate) fn value(self) -> u8 {
        self.0 as u8
    }
}

/// The writes of a frame, in a buffer that is there before they come.
#[derive(Debug, Serialize, Deserialize)]
#[serde(from = "Vec<Write>", into = "Vec<Write>")]
pub(crate) struct Log {
    buffer: Vec<Write>,
    used: usize,
}

/// A copy has no room for more than it holds: most copies are only kept.
impl Clone for Log {
    fn clone(&self) -> Self {
        Self::from(self.writes().to_vec())
    }

    fn clone_from(&mut self, other: &Self) {
        let writes = other.writes();
        if self.buffer.len() < writes.len() {
            let more = writes.len() - self.buffer.len();
            self.buffer.reserve_exact(more);
            self.buffer.resize(writes.len(), Write(0));
        }
        self.buffer[..writes.len()].copy_from_slice(writes);
        self.used = writes.len();
    }
}

impl PartialEq for Log {
    fn eq(&self, other: &Self) -> bool {
        self.writes() == other.writes()
    }
}

impl From<Vec<Write>> for Log {
    fn from(buffer: Vec<Write>) -> Self {
        let used = buffer.len();
        Self { buffer, used }
    }
}

impl From<Log> for Vec<Write> {
    fn from(mut log: Log) -> Self {
        log.buffer.truncate(log.used);
        log.buffer
    }
}

/// By so much a log grows.
const MORE: usize = 256;

impl Log {
    /// An empty log.
    pub(crate) fn new() -> Self {
        Self {
            buffer: vec![Write(0); MORE],
            used: 0,
        }
    }

    /// What was written.
    pub(crate) fn writes(&self) -> &[Write] {
        &self.buffer[..self.used.min(self.buffer.len())]
    }

    /// Forgets all writes.
    pub(crate) fn clear(&mut self) {
        self.used = 0;
    }

    /// Adds a write.
    pub(crate) fn push(&mut self, write: Write) {
        if self.used >= self.buffer.len() {
            self.buffer.reserve_exact(MORE);
            self.buffer.resize(self.used + MORE, write);
        }
        self.buffer[self.used] = write;
        self.used += 1;
    }

    /// The whole buffer, and how much of it is used, for whoever fills it in place.
    pub(crate) fn room(&mut self) -> (&mut [Write], &mut usize) {
        (&mut self.buffer, &mut self.used)
    }
}

/// Clocks of the beam in a line; the processor runs at a third of it.
pub(crate) const LINE_CLOCKS: u32 = 228;
/// Processor cycles in a line.
pub(crate) const LINE_CYCLES: i64 = 76;

/// The register that clears all motions.
const HMCLR: u8 = 0x2B;

/// No frame has more cycles: states that say so are not of this console.
pub(crate) const MOST_CYCLES: i64 = 1 << 40;

/// The part of the TIA that acts at once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Tia {
    /// The beam, as far as the log has been replayed.
    pub(crate) beam: Beam,
    /// How many writes of the log have been replayed.
    pub(crate) replayed: usize,
    /// From which cycle on clearing VSYNC ends the frame.
    vsync_ripe: i64,
    /// A write after this line ends the frame.
    last_line: i64,
    /// Whether the paddles' capacitors are held empty.
    dumping: bool,
    /// When the capacitors last began to charge.
    charging_since: i64,
    /// The cycle of the last access: how far the beam is drawn.
    pub(crate) touched: i64,
    pub(crate) shadow: Shadow,
}

impl Tia {
    pub(crate) fn new(last_line: i64, window: (u32, u32), combs: bool) -> Self {
        Self {
            beam: Beam::new(window, combs),
            replayed: 0,
            vsync_ripe: i64::MAX,
            last_line,
            dumping: false,
            charging_since: 0,
            touched: 0,
            shadow: Shadow::default(),
        }
    }

    /// The chip after a reset.
    pub(crate) fn fresh(&self) -> Self {
        Self::new(self.last_line, self.beam.window(), self.beam.combs())
    }

    /// Makes a state that came from elsewhere one that this chip can be in; `like` is a chip of
    /// the same console.
    pub(crate) fn fit(&mut self, like: &Self, log: &Log) {
        self.beam.fit(&like.beam);
        self.last_line = like.last_line;
        self.replayed = self.replayed.min(log.used);
        for cycle in [&mut self.charging_since, &mut self.touched] {
            *cycle = (*cycle).clamp(-MOST_CYCLES, MOST_CYCLES);
        }
        if self.vsync_ripe != i64::MAX {
            self.vsync_ripe = self.vsync_ripe.clamp(-MOST_CYCLES, MOST_CYCLES);
        }
    }

    /// The cycle from which on a write ends the frame.
    pub(crate) fn frame_end(&self) -> u32 {
        ((self.last_line + 1) * LINE_CYCLES).clamp(0, 60_000) as u32
    }

    pub(crate) fn rebase(&mut self, cycles: i64) {
        self.touched = self.touched.saturating_sub(cycles);
        self.charging_since = self.charging_since.saturating_sub(cycles);
        if self.vsync_ripe != i64::MAX {
            self.vsync_ripe = self.vsync_ripe.saturating_sub(cycles);
        }
    }

    /// Replays what the log holds and the beam has not seen, up to the last access: for its
    /// collisions, and for its pixels if they are wanted.
    pub(crate) fn catch_up(&mut self, writes: &[Write], screen: Option<&mut Pixels<'_, true>>) {
        match screen {
            Some(screen) => self.catch_up_on(writes, screen),
            None => self.catch_up_on(writes, &mut NoScreen),
        }
    }

    fn catch_up_on<S: Screen>(&mut self, writes: &[Write], screen: &mut S) {
        for write in &writes[self.replayed.min(writes.len())..] {
            self.beam.write(*write, screen);
        }
        self.replayed = writes.len();
        self.beam.settle(clock_of(self.touched), screen);
    }

    /// All collisions, if the beam has seen the whole log and there are no new ones until the next
    /// write.
    pub(crate) fn settled_collisions(&self, log: &Log) -> Option<u32> {
        self.beam
            .settled_collisions()
            .filter(|_| self.replayed == log.used)
    }

    /// After which cycle an input pin (registers 8 to 15) reads as up; never where there is none.
    pub(crate) fn pin_up_after(&self, register: usize, inputs: &Inputs) -> Option<i64> {
        match register {
            8..=11 if !self.dumping => match inputs.charge_cycles(register - 8)? {
                0 => Some(i64::MIN),
                // The reference reckons without signs: what was full before the frame began
                // counts as empty until the next dump.
                needed => Some(self.charging_since + needed).filter(|full| *full >= 0),
            },
            12 | 13 if inputs.button_up(register - 12) => Some(i64::MIN),
            _ => None,
        }
    }

    /// The state of the paddles' capacitors: whether they are held empty, and when they last began
    /// to charge.
    pub(crate) fn charge(&self) -> (bool, i64) {
        (self.dumping, self.charging_since)
    }

    pub(crate) fn read(
        &mut self,
        address: u16,
        seen: u8,
        cycle: i64,
        inputs: &Inputs,
        writes: &[Write],
        screen: Option<&mut Pixels<'_, true>>,
    ) -> u8 {
        self.touched = cycle;
        let floating = seen & 0x3F;
        let register = usize::from(address & 0x0F);
        match register {
            0..=7 => {
                self.catch_up(writes, screen);
                self.beam.collisions(register) | floating
            }
            _ => {
                let up = self.pin_up_after(register, inputs);
                u8::from(up.is_some_and(|after| cycle > after)) << 7 | floating
            }
        }
    }

    /// Returns the cycle at which the processor continues, and whether the frame has ended.
    pub(crate) fn write(
        &mut self,
        address: u16,
        value: u8,
        cycle: i64,
        log: &mut Log,
    ) -> (i64, bool) {
        let register = (address & 0x3F) as u8;
        self.touched = cycle;
        let mut resume = cycle;
        let mut stop = cycle >= (self.last_line + 1) * LINE_CYCLES;
        match register {
            0x00 => {
                if value & 0x02 != 0 {
                    self.vsync_ripe = cycle + LINE_CYCLES;
                } else if cycle >= self.vsync_ripe {
                    self.vsync_ripe = i64::MAX;
                    stop = true;
                }
            }
            0x02 => {
                let rest = cycle % LINE_CYCLES;
                if rest > 0 {
                    resume += LINE_CYCLES - rest;
                }
            }
            0x01 | 0x04..=0x14 | 0x1B..=0x2C => {
                if register == 0x01 {
                    let dump = value & 0x80 != 0;
                    if self.dumping && !dump {
                        self.charging_since = cycle;
                    }
                    self.dumping = dump;
                }
                if register == HMCLR {
                    self.shadow.clear_motions();
                }
                let (value, counts) = self.shadow.write(register, value);
                if counts {
                    log.push(Write::new(short_cycle(cycle), register, value));
                }
            }
            _ => {}
        }
        (resume, stop)
    }
}

/// The clock of a cycle, without running over: beyond all windows only the place in the line
/// counts.
pub(crate) fn clock_of(cycle: i64) -> u32 {
    u32::from(short_cycle(cycle)) * 3
}

fn short_cycle(cycle: i64) -> u16 {
    const FAR: i64 = 800 * LINE_CYCLES;
    if cycle < FAR {
        cycle.max(0) as u16
    } else {
        (FAR + cycle % LINE_CYCLES) as u16
    }
}
