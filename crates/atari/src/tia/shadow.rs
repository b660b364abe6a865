//! The values of the picture registers, so that writes without an effect are not logged: more than
//! half of all writes repeat the current value.

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
    /// Notes a write to a picture register. Gives back the bits of the value that count, and
    /// whether the write changes anything. The register that clears all motions has a function of
    /// its own.
    #[inline(always)]
    pub(crate) fn write(&mut self, register: u8, value: u8) -> (u8, bool) {
        let register = usize::from(register & 63);
        let effect = &EFFECTS[register];
        let value = value & effect.bits;
        let old = self.values[register];
        self.values[register] = u16::from(value) | effect.always;
        if effect.wakes != NONE {
            let changed = old & !COUNTS != u16::from(value);
            self.values[usize::from(effect.wakes & 63)] |= u16::from(changed) << 8;
        }
        (value, old != u16::from(value))
    }

    /// Notes that all motions are zero.
    #[inline(always)]
    pub(crate) fn clear_motions(&mut self) {
        self.values[HMP0..=HMBL].fill(0);
    }
}

const GRP0: usize = 0x1B;
const GRP1: usize = 0x1C;
const ENABL: usize = 0x1F;
const HMP0: usize = 0x20;
const HMBL: usize = 0x24;
/// No register.
const NONE: u8 = 0;

/// What writes to a register do here.
#[derive(Clone, Copy)]
#[repr(C, align(4))]
struct Effect {
    /// [`COUNTS`] where even a repeated write acts.
    always: u16,
    /// The bits that the chip looks at.
    bits: u8,
    /// The register whose next write counts after this one has changed: a player's graphics take
    /// effect for delayed players when the other's are written, and the ball when player 1's are.
    wakes: u8,
}

const EFFECTS: [Effect; 64] = {
    let mut effects = [Effect {
        always: 0,
        bits: 0,
        wakes: 0,
    }; 64];
    let mut register = 0;
    while register < 64 {
        effects[register] = Effect {
            always: ALWAYS[register],
            bits: BITS[register],
            wakes: match register {
                GRP0 | ENABL => GRP1 as u8,
                GRP1 => GRP0 as u8,
                _ => NONE,
            },
        };
        register += 1;
    }
    effects
};

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
            // Strobes.
            0x10..=0x14 | 0x2A..=0x2C => 0x00,
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
