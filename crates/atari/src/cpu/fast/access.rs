//! How instructions reach memory and chips.

use super::super::decode::{LOGGED, SILENT};
use super::super::layout::Layout;
use super::{Fast, Time};
use crate::tia::{LINE_CYCLES, Write};

/// The register that halts the processor until the next line, and the one that clears all motions.
const WSYNC: u8 = 0x02;
const HMCLR: u8 = 0x2B;

impl<'a, L: Layout<'a>> Fast<'_, L> {
    /// Reads where reading does nothing else.
    #[inline(always)]
    pub(super) fn peek(&self, address: u16) -> Option<u8> {
        if address & 0x1000 != 0 {
            self.layout.byte(address)
        } else if address & 0x0280 == 0x0080 {
            Some(self.ram[usize::from(address & 0x7F)])
        } else {
            None
        }
    }

    #[inline(always)]
    pub(super) fn zero_page(&self, address: u8) -> Option<u8> {
        (address & 0x80 != 0).then(|| self.ram[usize::from(address & 0x7F)])
    }

    /// The pointer at an address that is in memory, as is the next one.
    #[inline(always)]
    pub(super) fn pointer(&self, at: u8) -> u16 {
        let byte = |at: u8| self.ram[usize::from(at & 0x7F)];
        u16::from_le_bytes([byte(at), byte(at.wrapping_add(1))])
    }

    /// Writes to memory or to the TIA. Says whether it could.
    #[inline(always)]
    pub(super) fn poke(&mut self, address: u16, value: u8, now: Time) -> bool {
        if address & 0x1280 == 0x0080 {
            self.ram[usize::from(address & 0x7F)] = value;
            self.time = now;
            return true;
        }
        if address & 0x1080 != 0 {
            return false;
        }
        let register = (address & 0x3F) as u8;
        if LOGGED >> register & 1 != 0 {
            if register == HMCLR {
                return self.clear_motions(now);
            }
            self.log(register, value, now)
        } else if register == WSYNC {
            self.wait(now)
        } else if SILENT >> register & 1 != 0 {
            self.make_sound(now)
        } else {
            false
        }
    }

    /// Logs a write to a picture register, any but the one that clears all motions. Says whether
    /// it could; only then is it `now`.
    ///
    /// Whether the register holds the value already is hard to foresee: so the write is put where
    /// the next one goes in any case, and only counted if it changes something.
    #[inline(always)]
    pub(super) fn log(&mut self, register: u8, value: u8, now: Time) -> bool {
        if now >= self.frame_end {
            return false;
        }
        let Some(slot) = self.log.get_mut(self.used) else {
            return false;
        };
        let (value, counts) = self.shadow.write(register, value);
        *slot = Write::at(now.stamp(), register, value);
        self.used += usize::from(counts);
        self.time = now;
        self.touched = now;
        true
    }

    /// Logs a write to the register that clears all motions.
    #[inline(always)]
    pub(super) fn clear_motions(&mut self, now: Time) -> bool {
        self.shadow.clear_motions();
        self.strobe(HMCLR, now)
    }

    /// Logs a write to a picture register where any value does the same.
    #[inline(always)]
    pub(super) fn strobe(&mut self, register: u8, now: Time) -> bool {
        if now >= self.frame_end {
            return false;
        }
        let Some(slot) = self.log.get_mut(self.used) else {
            return false;
        };
        *slot = Write::at(now.stamp(), register, 0);
        self.used += 1;
        self.time = now;
        self.touched = now;
        true
    }

    /// Writes a register that only makes sound, or is not there.
    #[inline(always)]
    pub(super) fn make_sound(&mut self, now: Time) -> bool {
        if now >= self.frame_end {
            return false;
        }
        self.time = now;
        self.touched = now;
        true
    }

    /// Halts until the next line starts.
    #[inline(always)]
    pub(super) fn wait(&mut self, now: Time) -> bool {
        if now >= self.frame_end {
            return false;
        }
        self.touched = now;
        self.time = now.until(now.cycle().next_multiple_of(LINE_CYCLES as u32));
        true
    }

    /// Reads an input pin of the TIA; `seen` is what floats on the bus.
    #[inline(always)]
    pub(super) fn pin(&mut self, address: u16, seen: u8, now: Time) -> Option<u8> {
        if address & 0x1088 != 0x0008 {
            return None;
        }
        self.touched = now;
        let up = now.cycle() > self.pins.up_after[usize::from(address & 7)];
        Some(u8::from(up) << 7 | seen & 0x3F)
    }

    /// Reads a port or the running timer of the RIOT.
    #[inline(always)]
    pub(super) fn port(&self, address: u16, now: Time) -> Option<u8> {
        if address & 0x1280 != 0x0280 {
            return None;
        }
        match address & 7 {
            0 => Some(self.pins.ports[0]),
            2 => Some(self.pins.ports[1]),
            4 | 6 => self
                .riot
                .running_timer(self.riot_origin + i64::from(now.cycle())),
            _ => None,
        }
    }
}
