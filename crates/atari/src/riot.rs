//! The RIOT (6532): the interval timer, the two ports and 128 bytes of memory.

use serde::{Deserialize, Serialize};

use crate::tia::MOST_CYCLES;

/// The timer and ports of the 6532. Its memory lives beside it in the machine, where the processor
/// reaches it directly.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Riot {
    /// What was last written to a timer register.
    timer: u8,
    /// The timer counts down once every `1 << shift` cycles.
    shift: u8,
    /// The cycle, in the frame's count, at which the timer was written.
    set_at: i64,
    /// The cycle of the first read after the timer ran out, if there was one.
    read_after_expiry: Option<i64>,
    /// The data direction register of port A.
    direction_a: u8,
}

/// What a loop waits for that reads nothing but the timer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Poll {
    /// The timer at zero.
    UntilZero,
    /// The timer's top bit set.
    UntilNegative,
}

/// The timer's four speeds.
const SHIFTS: [u8; 4] = [0, 3, 6, 10];

impl Riot {
    /// A chip whose timer was set by a reset: `timer` units of 64 cycles.
    pub(crate) fn new(timer: u8) -> Self {
        Self {
            timer,
            shift: 6,
            set_at: 0,
            read_after_expiry: None,
            direction_a: 0,
        }
    }

    /// Makes a state that came from elsewhere one that the chip can be in.
    pub(crate) fn fit(&mut self) {
        if !SHIFTS.contains(&self.shift) {
            self.shift = 6;
        }
        self.set_at = self.set_at.clamp(-MOST_CYCLES, MOST_CYCLES);
        if let Some(at) = &mut self.read_after_expiry {
            *at = (*at).clamp(-MOST_CYCLES, MOST_CYCLES);
        }
    }

    /// Moves the origin of the cycle count forward by `cycles`.
    pub(crate) fn rebase(&mut self, cycles: i64) {
        self.set_at = self.set_at.saturating_sub(cycles);
        if let Some(at) = &mut self.read_after_expiry {
            *at = at.saturating_sub(cycles);
        }
    }

    /// Reads a register at `now`; the ports' pins come from the controllers and switches.
    pub(crate) fn read(&mut self, address: u16, now: i64, port_a: u8, port_b: u8) -> u8 {
        match address & 7 {
            0 => port_a,
            1 => self.direction_a,
            2 => port_b,
            3 => 0,
            4 | 6 => self.read_timer(now),
            _ => {
                if self.units_left(now) >= 0 || self.read_after_expiry.is_some() {
                    0
                } else {
                    0x80
                }
            }
        }
    }

    /// Writes a register at `now`.
    pub(crate) fn write(&mut self, address: u16, value: u8, now: i64) {
        if address & 0x14 == 0x14 {
            self.timer = value;
            self.shift = SHIFTS[usize::from(address & 3)];
            self.set_at = now;
            self.read_after_expiry = None;
        } else if address & 7 == 1 {
            self.direction_a = value;
        }
    }

    /// What the timer reads as at `now`, if it has not run out: reading then does nothing else.
    #[inline(always)]
    pub(crate) fn running_timer(&self, now: i64) -> Option<u8> {
        u8::try_from(self.units_left(now)).ok()
    }

    /// Up to which cycle, exclusive, a loop's reads of the timer are sure not to end it.
    pub(crate) fn waits_until(&self, poll: Poll) -> i64 {
        let units = match poll {
            Poll::UntilZero => i64::from(self.timer) - 1,
            Poll::UntilNegative if self.timer <= 128 => i64::from(self.timer),
            Poll::UntilNegative => 0,
        };
        self.set_at + 1 + (units.max(0) << self.shift)
    }

    /// The timer's count of whole intervals, negative once it has run out.
    #[inline(always)]
    fn units_left(&self, now: i64) -> i64 {
        let elapsed = now - 1 - self.set_at;
        i64::from(self.timer) - (elapsed >> self.shift) - 1
    }

    fn read_timer(&mut self, now: i64) -> u8 {
        let units = self.units_left(now);
        if units >= 0 {
            return units as u8;
        }
        // After it has run out the timer counts single cycles, until the first read: from then on
        // it counts intervals again, shifted by how late that read came.
        let expiry = self.set_at + (i64::from(self.timer) << self.shift);
        let cycles = expiry - now;
        if cycles <= -2 && self.read_after_expiry.is_none() {
            self.read_after_expiry = Some(now);
        }
        match self.read_after_expiry {
            Some(at) => (units + 1 - (at - expiry)) as u8,
            None => cycles as u8,
        }
    }
}
