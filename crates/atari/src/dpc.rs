//! The display processor chip in the Pitfall II cartridge.
//!
//! Eight data fetchers walk backwards through 2 KiB of graphics, each with a window (a flag that
//! turns on at `top` and off at `bottom`); three of them can be clocked as square-wave voices. A
//! shift register generates random numbers.

use serde::{Deserialize, Serialize};

use crate::tia::MOST_CYCLES;

/// The chip's registers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Dpc {
    tops: [u8; 8],
    bottoms: [u8; 8],
    counters: [u16; 8],
    flags: [u8; 8],
    /// Whether fetchers 5, 6 and 7 are voices.
    music: [bool; 3],
    random: u8,
    /// When the voices were last brought up to date.
    voices_at: i64,
    /// Cycles that have not yet made a whole tick of the voices' oscillator, in units of
    /// 1/59,659,583 of a tick.
    remainder: u64,
}

/// The voices tick at 20 kHz, the processor at 1,193,191.66 Hz: both in units of 1/3 Hz, times 20.
const TICK: u64 = 3_579_575;
const PER_CYCLE: u64 = 60_000;

impl Dpc {
    /// A chip at power-up.
    pub(crate) fn new() -> Self {
        Self {
            tops: [0; 8],
            bottoms: [0; 8],
            counters: [0; 8],
            flags: [0; 8],
            music: [false; 3],
            random: 1,
            voices_at: 0,
            remainder: 0,
        }
    }

    /// Makes a state that came from elsewhere one that the chip can be in.
    pub(crate) fn fit(&mut self) {
        self.voices_at = self.voices_at.clamp(-MOST_CYCLES, MOST_CYCLES);
        self.remainder %= TICK;
        for counter in &mut self.counters {
            *counter &= 0x7FF;
        }
    }

    /// Moves the origin of the cycle count forward by `cycles`.
    pub(crate) fn rebase(&mut self, cycles: i64) {
        self.voices_at = self.voices_at.saturating_sub(cycles);
    }

    /// Reads one of the 64 read addresses.
    pub(crate) fn read(&mut self, low: u16, graphics: &[u8; 2048], now: i64) -> u8 {
        let index = usize::from(low & 7);
        let function = (low >> 3) & 7;
        self.update_flag(index);
        let result = match function {
            0 if index < 4 => self.random,
            0 => self.voices(now),
            1 => self.graphic(index, graphics),
            2 => self.graphic(index, graphics) & self.flags[index],
            7 => self.flags[index],
            _ => 0,
        };
        if index < 5 || !self.music[index - 5] {
            self.counters[index] = self.counters[index].wrapping_sub(1) & 0x7FF;
        }
        result
    }

    /// Writes one of the 64 write addresses.
    pub(crate) fn write(&mut self, low: u16, value: u8, now: i64) {
        let index = usize::from(low & 7);
        match (low >> 3) & 7 {
            0 => {
                self.tops[index] = value;
                self.flags[index] = 0;
            }
            1 => self.bottoms[index] = value,
            2 => {
                // A voice starts its period from its top.
                let start = if index >= 5 && self.music[index - 5] {
                    self.tops[index]
                } else {
                    value
                };
                self.counters[index] = (self.counters[index] & 0x700) | u16::from(start);
            }
            3 => {
                self.counters[index] = (self.counters[index] & 0xFF) | (u16::from(value & 7) << 8);
                if index >= 5 {
                    self.voices(now);
                    self.music[index - 5] = value & 0x10 != 0;
                }
            }
            6 => self.random = 1,
            _ => {}
        }
    }

    fn graphic(&self, index: usize, graphics: &[u8; 2048]) -> u8 {
        graphics[2047 - usize::from(self.counters[index] & 0x7FF)]
    }

    fn update_flag(&mut self, index: usize) {
        let low = self.counters[index] as u8;
        if low == self.tops[index] {
            self.flags[index] = 0xFF;
        } else if low == self.bottoms[index] {
            self.flags[index] = 0;
        }
    }

    /// Steps the random number, as every access to the chip does: the exclusive-nor of four of
    /// the shift register's bits comes in.
    pub(crate) fn step_random(&mut self) {
        let taps = self.random & 0b1011_1000;
        let bit = u8::from(taps.count_ones().is_multiple_of(2));
        self.random = (self.random << 1) | bit;
    }

    /// Brings the voices to `now` and mixes the three of them.
    fn voices(&mut self, now: i64) -> u8 {
        let elapsed = u64::try_from(now - self.voices_at).unwrap_or(0);
        self.voices_at = now;
        self.remainder = self.remainder.wrapping_add(elapsed.wrapping_mul(PER_CYCLE));
        let ticks = self.remainder / TICK;
        self.remainder %= TICK;
        for index in 5..8 {
            if !self.music[index - 5] {
                continue;
            }
            let top = u64::from(self.tops[index]) + 1;
            let low = u64::from(self.counters[index] & 0xFF);
            let moved = if self.tops[index] == 0 {
                0
            } else {
                (low + top - ticks % top) % top
            };
            self.counters[index] = (self.counters[index] & 0x700) | (moved & 0xFF) as u16;
            if moved <= u64::from(self.bottoms[index]) {
                self.flags[index] = 0;
            } else if moved <= u64::from(self.tops[index]) {
                self.flags[index] = 0xFF;
            }
        }
        let volumes = [0u8, 4, 5, 9, 6, 10, 11, 15];
        let bit = |index: usize| usize::from(self.music[index - 5] && self.flags[index] != 0);
        volumes[bit(5) | bit(6) << 1 | bit(7) << 2]
    }
}

impl Default for Dpc {
    fn default() -> Self {
        Self::new()
    }
}
