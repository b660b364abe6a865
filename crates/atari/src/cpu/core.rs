//! The registers, and what instructions do to them.

use super::{ALWAYS, CARRY, DECIMAL, INTERRUPT, NEGATIVE, OVERFLOW, Registers, ZERO};
use crate::bus::Bus;

/// The registers while running.
#[derive(Clone, Copy)]
pub(super) struct Core {
    pub(super) a: u8,
    pub(super) x: u8,
    pub(super) y: u8,
    pub(super) s: u8,
    pub(super) pc: u16,
    /// The byte whose top bit is the N flag.
    pub(super) n: u8,
    /// The byte that is zero when the Z flag is set.
    pub(super) z: u8,
    pub(super) c: bool,
    pub(super) v: bool,
    /// The D and I flags, where P holds them.
    pub(super) di: u8,
    /// The last byte on the data bus before an access: what floating bits read.
    pub(super) seen: u8,
    pub(super) cycle: i64,
    /// Whether the frame has ended.
    pub(super) stop: bool,
    pub(super) jammed: bool,
    /// How many instructions may still run.
    pub(super) left: u32,
}

impl Core {
    pub(super) fn new(registers: &Registers, cycle: i64, limit: u32) -> Self {
        let mut core = Self {
            a: registers.a,
            x: registers.x,
            y: registers.y,
            s: registers.s,
            pc: registers.pc,
            n: 0,
            z: 0,
            c: false,
            v: false,
            di: 0,
            seen: 0,
            cycle,
            stop: false,
            jammed: registers.jammed,
            left: limit,
        };
        core.set_status(registers.p);
        core
    }

    pub(super) fn registers(&self) -> Registers {
        Registers {
            a: self.a,
            x: self.x,
            y: self.y,
            s: self.s,
            p: self.status(),
            pc: self.pc,
            jammed: self.jammed,
        }
    }

    // Memory.

    #[inline]
    pub(super) fn fetch(&mut self, bus: &mut Bus<'_>) -> u8 {
        let byte = self.read(bus, self.pc);
        self.pc = self.pc.wrapping_add(1);
        byte
    }

    #[inline]
    pub(super) fn fetch_word(&mut self, bus: &mut Bus<'_>) -> u16 {
        let low = self.fetch(bus);
        let high = self.fetch(bus);
        u16::from_le_bytes([low, high])
    }

    #[inline]
    pub(super) fn read(&mut self, bus: &mut Bus<'_>, address: u16) -> u8 {
        let byte = bus.read(address, self.seen, self.cycle);
        self.seen = byte;
        byte
    }

    #[inline]
    pub(super) fn read_zero_page(&mut self, bus: &mut Bus<'_>, address: u8) -> u8 {
        let byte = bus.read_zero_page(address, self.seen, self.cycle);
        self.seen = byte;
        byte
    }

    #[inline]
    pub(super) fn write(&mut self, bus: &mut Bus<'_>, address: u16, value: u8) {
        if address & 0x1280 == 0x0080 {
            bus.machine.ram[usize::from(address & 0x7F)] = value;
        } else {
            self.write_device(bus, address, value);
        }
        self.seen = value;
    }

    #[inline]
    pub(super) fn write_zero_page(&mut self, bus: &mut Bus<'_>, address: u8, value: u8) {
        if address & 0x80 != 0 {
            bus.machine.ram[usize::from(address & 0x7F)] = value;
        } else {
            self.write_device(bus, u16::from(address), value);
        }
        self.seen = value;
    }

    #[inline]
    pub(super) fn write_device(&mut self, bus: &mut Bus<'_>, address: u16, value: u8) {
        let (cycle, stop) = bus.write_device(address, value, self.cycle);
        self.cycle = cycle;
        self.stop |= stop;
    }

    #[inline]
    pub(super) fn indexed(&mut self, base: u16, index: u8) -> u16 {
        let address = base.wrapping_add(u16::from(index));
        self.cycle += i64::from((base ^ address) & 0xFF00 != 0);
        address
    }

    #[inline]
    pub(super) fn pointer(&mut self, bus: &mut Bus<'_>, at: u8) -> u16 {
        let low = self.read_zero_page(bus, at);
        let high = self.read_zero_page(bus, at.wrapping_add(1));
        u16::from_le_bytes([low, high])
    }

    #[inline]
    pub(super) fn push(&mut self, bus: &mut Bus<'_>, value: u8) {
        self.write_zero_page(bus, self.s, value);
        self.s = self.s.wrapping_sub(1);
    }

    /// Before pulling, the chip reads where the stack pointer still is: the byte stays on the bus
    /// for whatever floats there.
    #[inline]
    pub(super) fn glance(&mut self, bus: &mut Bus<'_>) {
        if self.s & 0x80 != 0 {
            self.seen = bus.machine.ram[usize::from(self.s & 0x7F)];
        }
    }

    #[inline]
    pub(super) fn pull(&mut self, bus: &mut Bus<'_>) -> u8 {
        self.s = self.s.wrapping_add(1);
        self.read_zero_page(bus, self.s)
    }

    #[inline]
    pub(super) fn store_mixed(&mut self, bus: &mut Bus<'_>, base: u16, index: u8, value: u8) {
        let mixed = value & ((base >> 8) as u8).wrapping_add(1);
        self.write(bus, base.wrapping_add(u16::from(index)), mixed);
    }

    #[inline]
    pub(super) fn branch(&mut self, bus: &mut Bus<'_>, taken: bool) {
        self.cycle += 2;
        let offset = self.fetch(bus) as i8;
        if taken {
            let target = self.pc.wrapping_add_signed(i16::from(offset));
            self.cycle += if (target ^ self.pc) & 0xFF00 == 0 {
                1
            } else {
                2
            };
            self.pc = target;
        }
    }

    // Arithmetic.

    #[inline]
    pub(super) fn flags(&mut self, value: u8) {
        self.n = value;
        self.z = value;
    }

    #[inline]
    pub(super) fn load_both(&mut self, value: u8) {
        self.a = value;
        self.x = value;
        self.flags(value);
    }

    #[inline]
    pub(super) fn and(&mut self, value: u8) {
        self.a &= value;
        self.flags(self.a);
    }

    #[inline]
    pub(super) fn or(&mut self, value: u8) {
        self.a |= value;
        self.flags(self.a);
    }

    #[inline]
    pub(super) fn eor(&mut self, value: u8) {
        self.a ^= value;
        self.flags(self.a);
    }

    #[inline]
    pub(super) fn compare(&mut self, register: u8, value: u8) {
        self.c = register >= value;
        self.flags(register.wrapping_sub(value));
    }

    #[inline]
    pub(super) fn bit(&mut self, value: u8) {
        self.n = value;
        self.v = value & 0x40 != 0;
        self.z = self.a & value;
    }

    #[inline]
    pub(super) fn adc(&mut self, value: u8) {
        if self.di & DECIMAL == 0 {
            let sum = u16::from(self.a) + u16::from(value) + u16::from(self.c);
            self.v = !(self.a ^ value) & (self.a ^ sum as u8) & 0x80 != 0;
            self.c = sum > 0xFF;
            self.a = sum as u8;
        } else {
            let sum = from_decimal(self.a) + from_decimal(value) + u16::from(self.c);
            let result = to_decimal(sum & 0xFF);
            self.v = (self.a ^ result) & (result ^ value) & 0x80 != 0;
            self.c = sum > 99;
            self.a = result;
        }
        self.flags(self.a);
    }

    #[inline]
    pub(super) fn sbc(&mut self, value: u8) {
        if self.di & DECIMAL == 0 {
            let value = !value;
            let sum = u16::from(self.a) + u16::from(value) + u16::from(self.c);
            self.v = !(self.a ^ value) & (self.a ^ sum as u8) & 0x80 != 0;
            self.c = sum > 0xFF;
            self.a = sum as u8;
        } else {
            let borrow = u16::from(!self.c);
            let mut rest = from_decimal(self.a).wrapping_sub(from_decimal(value) + borrow);
            if rest & 0x8000 != 0 {
                rest = rest.wrapping_add(100);
            }
            // What is still negative comes of digits above nine; the reference then converts the
            // wrong way round.
            let result = if rest & 0x8000 != 0 {
                from_decimal(rest as u8) as u8
            } else {
                to_decimal(rest)
            };
            self.v = (self.a ^ result) & (result ^ value) & 0x80 != 0;
            self.c = u16::from(self.a) >= u16::from(value) + borrow;
            self.a = result;
        }
        self.flags(self.a);
    }

    /// `ARR`: and, then rotate right, with flags from inside the adder.
    #[inline]
    pub(super) fn and_rotate(&mut self, value: u8) {
        let both = self.a & value;
        self.a = (both >> 1) | (u8::from(self.c) << 7);
        self.flags(self.a);
        if self.di & DECIMAL == 0 {
            self.c = self.a & 0x40 != 0;
            self.v = (self.a ^ (self.a << 1)) & 0x40 != 0;
        } else {
            self.v = (both ^ self.a) & 0x40 != 0;
            if (both & 0x0F) + (both & 0x01) > 5 {
                self.a = (self.a & 0xF0) | (self.a.wrapping_add(6) & 0x0F);
            }
            self.c = u16::from(both) + u16::from(both & 0x10) > 0x5F;
            if self.c {
                self.a = self.a.wrapping_add(0x60);
            }
        }
    }

    #[inline]
    pub(super) fn increment(&mut self, value: u8) -> u8 {
        let result = value.wrapping_add(1);
        self.flags(result);
        result
    }

    #[inline]
    pub(super) fn decrement(&mut self, value: u8) -> u8 {
        let result = value.wrapping_sub(1);
        self.flags(result);
        result
    }

    #[inline]
    pub(super) fn shift_left(&mut self, value: u8) -> u8 {
        self.c = value & 0x80 != 0;
        let result = value << 1;
        self.flags(result);
        result
    }

    #[inline]
    pub(super) fn shift_right(&mut self, value: u8) -> u8 {
        self.c = value & 1 != 0;
        let result = value >> 1;
        self.flags(result);
        result
    }

    #[inline]
    pub(super) fn rotate_left(&mut self, value: u8) -> u8 {
        let result = (value << 1) | u8::from(self.c);
        self.c = value & 0x80 != 0;
        self.flags(result);
        result
    }

    #[inline]
    pub(super) fn rotate_right(&mut self, value: u8) -> u8 {
        let result = (value >> 1) | (u8::from(self.c) << 7);
        self.c = value & 1 != 0;
        self.flags(result);
        result
    }

    #[inline]
    pub(super) fn status(&self) -> u8 {
        let mut p = ALWAYS | self.di | (self.n & NEGATIVE);
        if self.c {
            p |= CARRY;
        }
        if self.z == 0 {
            p |= ZERO;
        }
        if self.v {
            p |= OVERFLOW;
        }
        p
    }

    #[inline]
    pub(super) fn set_status(&mut self, p: u8) {
        self.n = p;
        self.z = !p & ZERO;
        self.c = p & CARRY != 0;
        self.v = p & OVERFLOW != 0;
        self.di = p & (DECIMAL | INTERRUPT);
    }
}

/// Two decimal digits as a number; digits above nine count as they stand.
fn from_decimal(byte: u8) -> u16 {
    u16::from(byte >> 4) * 10 + u16::from(byte & 0x0F)
}

/// The last two decimal digits of a number.
fn to_decimal(number: u16) -> u8 {
    let number = number % 100;
    (((number / 10) << 4) | (number % 10)) as u8
}
