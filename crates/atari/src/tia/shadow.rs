//! What the picture registers hold, so that writes that change nothing need not be logged: more
//! than half of all writes repeat what is there.

use serde::{Deserialize, Serialize};

/// The last value of each register, as far as it is known.
///
/// It decides which writes are logged, but nothing of what they do, so that all are equal.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Shadow {
    #[serde(with = "crate::wide")]
    values: [u16; 64],
}

/// On a value: the next write counts, whatever it writes.
const COUNTS: u16 = 0x100;
/// On a value: it is not known.
const UNKNOWN: u16 = 0x200;

impl Default for Shadow {
    fn default() -> Self {
        Self {
            values: [COUNTS | UNKNOWN; 64],
        }
    }
}

impl PartialEq for Shadow {
    fn eq(&self, _other: &Self) -> bool {
        true
    }
}

impl Shadow {
    /// Notes a write. Gives back the bits of the value that count, or nothing if the write changes
    /// nothing.
    #[inline(always)]
    pub(crate) fn write(&mut self, register: u8, value: u8) -> Option<u8> {
        let register = usize::from(register & 63);
        let value = value & BITS[register];
        let old = self.values[register];
        if old == u16::from(value) {
            return None;
        }
        self.values[register] = u16::from(value) | ALWAYS[register];
        if ACTS_ON_OTHERS >> register & 1 != 0 {
            self.act(register, old & !COUNTS != u16::from(value));
        }
        Some(value)
    }

    /// What a write does to other registers.
    #[inline(always)]
    fn act(&mut self, register: usize, changed: bool) {
        match register {
            // A player's graphics take effect for delayed players when the other's are written.
            GRP0 if changed => self.values[GRP1] |= COUNTS,
            GRP1 if changed => self.values[GRP0] |= COUNTS,
            // So does the ball, when player 1's are.
            ENABL if changed => self.values[GRP1] |= COUNTS,
            HMCLR => self.values[HMP0..=HMBL].fill(0),
            _ => {}
        }
    }
}

const GRP0: usize = 0x1B;
const GRP1: usize = 0x1C;
const ENABL: usize = 0x1F;
const HMP0: usize = 0x20;
const HMBL: usize = 0x24;
const HMCLR: usize = 0x2B;

const ACTS_ON_OTHERS: u64 = 1 << GRP0 | 1 << GRP1 | 1 << ENABL | 1 << HMCLR;

/// The bits of each register that the chip looks at.
const BITS: [u8; 64] = {
    let mut bits = [0xFF; 64];
    let mut register = 0;
    while register < 64 {
        bits[register] = match register {
            0x06..=0x09 => 0xFE,
            0x0B | 0x0C => 0x08,
            0x0D | HMP0..=HMBL => 0xF0,
            0x1D..=ENABL | 0x28 | 0x29 => 0x02,
            0x25..=0x27 => 0x01,
            _ => 0xFF,
        };
        register += 1;
    }
    bits
};

/// [`COUNTS`] for the registers where even a repeated write acts: strobes, and those whose writes
/// depend on where in the line they come.
const ALWAYS: [u16; 64] = {
    let mut always = [COUNTS; 64];
    let mut register = 0;
    while register < 64 {
        if matches!(
            register,
            0x06..=0x09 | 0x0B..=0x0F | GRP0..=HMBL | 0x25..=0x29
        ) {
            always[register] = 0;
        }
        register += 1;
    }
    always
};
