//! Every instruction, with every access through the whole bus.

use super::core::Core;
use super::{BREAK, DECIMAL, INTERRUPT};
use crate::bus::Bus;

/// Reads an operand's address, and counts the cycle that crossing a page costs a read.
macro_rules! address {
    ($core:ident, $bus:ident, zp) => {
        u16::from($core.fetch($bus))
    };
    ($core:ident, $bus:ident, zpx) => {
        u16::from($core.fetch($bus).wrapping_add($core.x))
    };
    ($core:ident, $bus:ident, zpy) => {
        u16::from($core.fetch($bus).wrapping_add($core.y))
    };
    ($core:ident, $bus:ident, abs) => {
        $core.fetch_word($bus)
    };
    ($core:ident, $bus:ident, absx) => {{
        let base = $core.fetch_word($bus);
        $core.indexed(base, $core.x)
    }};
    ($core:ident, $bus:ident, absy) => {{
        let base = $core.fetch_word($bus);
        $core.indexed(base, $core.y)
    }};
    ($core:ident, $bus:ident, absxw) => {
        $core.fetch_word($bus).wrapping_add(u16::from($core.x))
    };
    ($core:ident, $bus:ident, absyw) => {
        $core.fetch_word($bus).wrapping_add(u16::from($core.y))
    };
    ($core:ident, $bus:ident, indx) => {{
        let pointer = $core.fetch($bus).wrapping_add($core.x);
        $core.pointer($bus, pointer)
    }};
    ($core:ident, $bus:ident, indy) => {{
        let pointer = $core.fetch($bus);
        let base = $core.pointer($bus, pointer);
        $core.indexed(base, $core.y)
    }};
    ($core:ident, $bus:ident, indyw) => {{
        let pointer = $core.fetch($bus);
        $core
            .pointer($bus, pointer)
            .wrapping_add(u16::from($core.y))
    }};
}

/// Reads an operand.
macro_rules! operand {
    ($core:ident, $bus:ident, imm) => {
        $core.fetch($bus)
    };
    ($core:ident, $bus:ident, zp) => {{
        let address = $core.fetch($bus);
        $core.read_zero_page($bus, address)
    }};
    ($core:ident, $bus:ident, zpx) => {{
        let address = $core.fetch($bus).wrapping_add($core.x);
        $core.read_zero_page($bus, address)
    }};
    ($core:ident, $bus:ident, zpy) => {{
        let address = $core.fetch($bus).wrapping_add($core.y);
        $core.read_zero_page($bus, address)
    }};
    ($core:ident, $bus:ident, $mode:ident) => {{
        let address = address!($core, $bus, $mode);
        $core.read($bus, address)
    }};
}

/// Reads, changes and writes back.
macro_rules! modify {
    ($core:ident, $bus:ident, $mode:ident, $change:ident) => {{
        let address = address!($core, $bus, $mode);
        let old = $core.read($bus, address);
        let new = $core.$change(old);
        $core.write($bus, address, new);
        new
    }};
}

impl Core {
    /// Runs one instruction.
    #[rustfmt::skip]
    pub(super) fn step(&mut self, bus: &mut Bus<'_>) {
        let opcode = self.fetch(bus);
        match opcode {
            // Loads.
            0xA9 => { self.cycle += 2; self.a = operand!(self, bus, imm); self.flags(self.a); }
            0xA5 => { self.cycle += 3; self.a = operand!(self, bus, zp); self.flags(self.a); }
            0xB5 => { self.cycle += 4; self.a = operand!(self, bus, zpx); self.flags(self.a); }
            0xAD => { self.cycle += 4; self.a = operand!(self, bus, abs); self.flags(self.a); }
            0xBD => { self.cycle += 4; self.a = operand!(self, bus, absx); self.flags(self.a); }
            0xB9 => { self.cycle += 4; self.a = operand!(self, bus, absy); self.flags(self.a); }
            0xA1 => { self.cycle += 6; self.a = operand!(self, bus, indx); self.flags(self.a); }
            0xB1 => { self.cycle += 5; self.a = operand!(self, bus, indy); self.flags(self.a); }
            0xA2 => { self.cycle += 2; self.x = operand!(self, bus, imm); self.flags(self.x); }
            0xA6 => { self.cycle += 3; self.x = operand!(self, bus, zp); self.flags(self.x); }
            0xB6 => { self.cycle += 4; self.x = operand!(self, bus, zpy); self.flags(self.x); }
            0xAE => { self.cycle += 4; self.x = operand!(self, bus, abs); self.flags(self.x); }
            0xBE => { self.cycle += 4; self.x = operand!(self, bus, absy); self.flags(self.x); }
            0xA0 => { self.cycle += 2; self.y = operand!(self, bus, imm); self.flags(self.y); }
            0xA4 => { self.cycle += 3; self.y = operand!(self, bus, zp); self.flags(self.y); }
            0xB4 => { self.cycle += 4; self.y = operand!(self, bus, zpx); self.flags(self.y); }
            0xAC => { self.cycle += 4; self.y = operand!(self, bus, abs); self.flags(self.y); }
            0xBC => { self.cycle += 4; self.y = operand!(self, bus, absx); self.flags(self.y); }

            // Stores.
            0x85 => { self.cycle += 3; let to = address!(self, bus, zp); self.write_zero_page(bus, to as u8, self.a); }
            0x95 => { self.cycle += 4; let to = address!(self, bus, zpx); self.write_zero_page(bus, to as u8, self.a); }
            0x8D => { self.cycle += 4; let to = address!(self, bus, abs); self.write(bus, to, self.a); }
            0x9D => { self.cycle += 5; let to = address!(self, bus, absxw); self.write(bus, to, self.a); }
            0x99 => { self.cycle += 5; let to = address!(self, bus, absyw); self.write(bus, to, self.a); }
            0x81 => { self.cycle += 6; let to = address!(self, bus, indx); self.write(bus, to, self.a); }
            0x91 => { self.cycle += 6; let to = address!(self, bus, indyw); self.write(bus, to, self.a); }
            0x86 => { self.cycle += 3; let to = address!(self, bus, zp); self.write_zero_page(bus, to as u8, self.x); }
            0x96 => { self.cycle += 4; let to = address!(self, bus, zpy); self.write_zero_page(bus, to as u8, self.x); }
            0x8E => { self.cycle += 4; let to = address!(self, bus, abs); self.write(bus, to, self.x); }
            0x84 => { self.cycle += 3; let to = address!(self, bus, zp); self.write_zero_page(bus, to as u8, self.y); }
            0x94 => { self.cycle += 4; let to = address!(self, bus, zpx); self.write_zero_page(bus, to as u8, self.y); }
            0x8C => { self.cycle += 4; let to = address!(self, bus, abs); self.write(bus, to, self.y); }

            // Transfers.
            0xAA => { self.cycle += 2; self.x = self.a; self.flags(self.x); }
            0xA8 => { self.cycle += 2; self.y = self.a; self.flags(self.y); }
            0x8A => { self.cycle += 2; self.a = self.x; self.flags(self.a); }
            0x98 => { self.cycle += 2; self.a = self.y; self.flags(self.a); }
            0xBA => { self.cycle += 2; self.x = self.s; self.flags(self.x); }
            0x9A => { self.cycle += 2; self.s = self.x; }

            // The stack.
            0x48 => { self.cycle += 3; self.push(bus, self.a); }
            0x08 => { self.cycle += 3; let p = self.status() | BREAK; self.push(bus, p); }
            0x68 => { self.cycle += 4; self.glance(bus); self.a = self.pull(bus); self.flags(self.a); }
            0x28 => { self.cycle += 4; self.glance(bus); let p = self.pull(bus); self.set_status(p); }

            // Logic and arithmetic.
            0x29 => { self.cycle += 2; let v = operand!(self, bus, imm); self.and(v); }
            0x25 => { self.cycle += 3; let v = operand!(self, bus, zp); self.and(v); }
            0x35 => { self.cycle += 4; let v = operand!(self, bus, zpx); self.and(v); }
            0x2D => { self.cycle += 4; let v = operand!(self, bus, abs); self.and(v); }
            0x3D => { self.cycle += 4; let v = operand!(self, bus, absx); self.and(v); }
            0x39 => { self.cycle += 4; let v = operand!(self, bus, absy); self.and(v); }
            0x21 => { self.cycle += 6; let v = operand!(self, bus, indx); self.and(v); }
            0x31 => { self.cycle += 5; let v = operand!(self, bus, indy); self.and(v); }
            0x09 => { self.cycle += 2; let v = operand!(self, bus, imm); self.or(v); }
            0x05 => { self.cycle += 3; let v = operand!(self, bus, zp); self.or(v); }
            0x15 => { self.cycle += 4; let v = operand!(self, bus, zpx); self.or(v); }
            0x0D => { self.cycle += 4; let v = operand!(self, bus, abs); self.or(v); }
            0x1D => { self.cycle += 4; let v = operand!(self, bus, absx); self.or(v); }
            0x19 => { self.cycle += 4; let v = operand!(self, bus, absy); self.or(v); }
            0x01 => { self.cycle += 6; let v = operand!(self, bus, indx); self.or(v); }
            0x11 => { self.cycle += 5; let v = operand!(self, bus, indy); self.or(v); }
            0x49 => { self.cycle += 2; let v = operand!(self, bus, imm); self.eor(v); }
            0x45 => { self.cycle += 3; let v = operand!(self, bus, zp); self.eor(v); }
            0x55 => { self.cycle += 4; let v = operand!(self, bus, zpx); self.eor(v); }
            0x4D => { self.cycle += 4; let v = operand!(self, bus, abs); self.eor(v); }
            0x5D => { self.cycle += 4; let v = operand!(self, bus, absx); self.eor(v); }
            0x59 => { self.cycle += 4; let v = operand!(self, bus, absy); self.eor(v); }
            0x41 => { self.cycle += 6; let v = operand!(self, bus, indx); self.eor(v); }
            0x51 => { self.cycle += 5; let v = operand!(self, bus, indy); self.eor(v); }
            0x69 => { self.cycle += 2; let v = operand!(self, bus, imm); self.adc(v); }
            0x65 => { self.cycle += 3; let v = operand!(self, bus, zp); self.adc(v); }
            0x75 => { self.cycle += 4; let v = operand!(self, bus, zpx); self.adc(v); }
            0x6D => { self.cycle += 4; let v = operand!(self, bus, abs); self.adc(v); }
            0x7D => { self.cycle += 4; let v = operand!(self, bus, absx); self.adc(v); }
            0x79 => { self.cycle += 4; let v = operand!(self, bus, absy); self.adc(v); }
            0x61 => { self.cycle += 6; let v = operand!(self, bus, indx); self.adc(v); }
            0x71 => { self.cycle += 5; let v = operand!(self, bus, indy); self.adc(v); }
            0xE9 | 0xEB => { self.cycle += 2; let v = operand!(self, bus, imm); self.sbc(v); }
            0xE5 => { self.cycle += 3; let v = operand!(self, bus, zp); self.sbc(v); }
            0xF5 => { self.cycle += 4; let v = operand!(self, bus, zpx); self.sbc(v); }
            0xED => { self.cycle += 4; let v = operand!(self, bus, abs); self.sbc(v); }
            0xFD => { self.cycle += 4; let v = operand!(self, bus, absx); self.sbc(v); }
            0xF9 => { self.cycle += 4; let v = operand!(self, bus, absy); self.sbc(v); }
            0xE1 => { self.cycle += 6; let v = operand!(self, bus, indx); self.sbc(v); }
            0xF1 => { self.cycle += 5; let v = operand!(self, bus, indy); self.sbc(v); }
            0xC9 => { self.cycle += 2; let v = operand!(self, bus, imm); self.compare(self.a, v); }
            0xC5 => { self.cycle += 3; let v = operand!(self, bus, zp); self.compare(self.a, v); }
            0xD5 => { self.cycle += 4; let v = operand!(self, bus, zpx); self.compare(self.a, v); }
            0xCD => { self.cycle += 4; let v = operand!(self, bus, abs); self.compare(self.a, v); }
            0xDD => { self.cycle += 4; let v = operand!(self, bus, absx); self.compare(self.a, v); }
            0xD9 => { self.cycle += 4; let v = operand!(self, bus, absy); self.compare(self.a, v); }
            0xC1 => { self.cycle += 6; let v = operand!(self, bus, indx); self.compare(self.a, v); }
            0xD1 => { self.cycle += 5; let v = operand!(self, bus, indy); self.compare(self.a, v); }
            0xE0 => { self.cycle += 2; let v = operand!(self, bus, imm); self.compare(self.x, v); }
            0xE4 => { self.cycle += 3; let v = operand!(self, bus, zp); self.compare(self.x, v); }
            0xEC => { self.cycle += 4; let v = operand!(self, bus, abs); self.compare(self.x, v); }
            0xC0 => { self.cycle += 2; let v = operand!(self, bus, imm); self.compare(self.y, v); }
            0xC4 => { self.cycle += 3; let v = operand!(self, bus, zp); self.compare(self.y, v); }
            0xCC => { self.cycle += 4; let v = operand!(self, bus, abs); self.compare(self.y, v); }
            0x24 => { self.cycle += 3; let v = operand!(self, bus, zp); self.bit(v); }
            0x2C => { self.cycle += 4; let v = operand!(self, bus, abs); self.bit(v); }

            // Counting.
            0xE8 => { self.cycle += 2; self.x = self.x.wrapping_add(1); self.flags(self.x); }
            0xC8 => { self.cycle += 2; self.y = self.y.wrapping_add(1); self.flags(self.y); }
            0xCA => { self.cycle += 2; self.x = self.x.wrapping_sub(1); self.flags(self.x); }
            0x88 => { self.cycle += 2; self.y = self.y.wrapping_sub(1); self.flags(self.y); }
            0xE6 => { self.cycle += 5; modify!(self, bus, zp, increment); }
            0xF6 => { self.cycle += 6; modify!(self, bus, zpx, increment); }
            0xEE => { self.cycle += 6; modify!(self, bus, abs, increment); }
            0xFE => { self.cycle += 7; modify!(self, bus, absxw, increment); }
            0xC6 => { self.cycle += 5; modify!(self, bus, zp, decrement); }
            0xD6 => { self.cycle += 6; modify!(self, bus, zpx, decrement); }
            0xCE => { self.cycle += 6; modify!(self, bus, abs, decrement); }
            0xDE => { self.cycle += 7; modify!(self, bus, absxw, decrement); }

            // Shifts.
            0x0A => { self.cycle += 2; self.a = self.shift_left(self.a); }
            0x06 => { self.cycle += 5; modify!(self, bus, zp, shift_left); }
            0x16 => { self.cycle += 6; modify!(self, bus, zpx, shift_left); }
            0x0E => { self.cycle += 6; modify!(self, bus, abs, shift_left); }
            0x1E => { self.cycle += 7; modify!(self, bus, absxw, shift_left); }
            0x4A => { self.cycle += 2; self.a = self.shift_right(self.a); }
            0x46 => { self.cycle += 5; modify!(self, bus, zp, shift_right); }
            0x56 => { self.cycle += 6; modify!(self, bus, zpx, shift_right); }
            0x4E => { self.cycle += 6; modify!(self, bus, abs, shift_right); }
            0x5E => { self.cycle += 7; modify!(self, bus, absxw, shift_right); }
            0x2A => { self.cycle += 2; self.a = self.rotate_left(self.a); }
            0x26 => { self.cycle += 5; modify!(self, bus, zp, rotate_left); }
            0x36 => { self.cycle += 6; modify!(self, bus, zpx, rotate_left); }
            0x2E => { self.cycle += 6; modify!(self, bus, abs, rotate_left); }
            0x3E => { self.cycle += 7; modify!(self, bus, absxw, rotate_left); }
            0x6A => { self.cycle += 2; self.a = self.rotate_right(self.a); }
            0x66 => { self.cycle += 5; modify!(self, bus, zp, rotate_right); }
            0x76 => { self.cycle += 6; modify!(self, bus, zpx, rotate_right); }
            0x6E => { self.cycle += 6; modify!(self, bus, abs, rotate_right); }
            0x7E => { self.cycle += 7; modify!(self, bus, absxw, rotate_right); }

            // Branches, jumps and calls.
            0x10 => self.branch(bus, self.n & 0x80 == 0),
            0x30 => self.branch(bus, self.n & 0x80 != 0),
            0x50 => self.branch(bus, !self.v),
            0x70 => self.branch(bus, self.v),
            0x90 => self.branch(bus, !self.c),
            0xB0 => self.branch(bus, self.c),
            0xD0 => self.branch(bus, self.z != 0),
            0xF0 => self.branch(bus, self.z == 0),
            0x4C => { self.cycle += 3; self.pc = self.fetch_word(bus); }
            0x6C => {
                self.cycle += 5;
                let at = self.fetch_word(bus);
                let low = self.read(bus, at);
                // The chip does not carry into the page of the pointer's second byte.
                let high = self.read(bus, (at & 0xFF00) | (at.wrapping_add(1) & 0xFF));
                self.pc = u16::from_le_bytes([low, high]);
            }
            0x20 => {
                self.cycle += 6;
                let low = self.fetch(bus);
                let back = self.pc;
                self.push(bus, (back >> 8) as u8);
                self.push(bus, back as u8);
                let high = self.fetch(bus);
                self.pc = u16::from_le_bytes([low, high]);
            }
            0x60 => {
                self.cycle += 6;
                self.glance(bus);
                let low = self.pull(bus);
                let high = self.pull(bus);
                self.pc = u16::from_le_bytes([low, high]).wrapping_add(1);
            }
            0x40 => {
                self.cycle += 6;
                self.glance(bus);
                let p = self.pull(bus);
                self.set_status(p);
                let low = self.pull(bus);
                let high = self.pull(bus);
                self.pc = u16::from_le_bytes([low, high]);
            }
            0x00 => {
                self.cycle += 7;
                let back = self.pc.wrapping_add(1);
                self.push(bus, (back >> 8) as u8);
                self.push(bus, back as u8);
                let p = self.status() | BREAK;
                self.push(bus, p);
                self.di |= INTERRUPT;
                let low = self.read(bus, 0xFFFE);
                let high = self.read(bus, 0xFFFF);
                self.pc = u16::from_le_bytes([low, high]);
            }

            // Flags.
            0x18 => { self.cycle += 2; self.c = false; }
            0x38 => { self.cycle += 2; self.c = true; }
            0x58 => { self.cycle += 2; self.di &= !INTERRUPT; }
            0x78 => { self.cycle += 2; self.di |= INTERRUPT; }
            0xB8 => { self.cycle += 2; self.v = false; }
            0xD8 => { self.cycle += 2; self.di &= !DECIMAL; }
            0xF8 => { self.cycle += 2; self.di |= DECIMAL; }
            0xEA => self.cycle += 2,

            _ => self.undocumented(bus, opcode),
        }
    }

    /// The opcodes that no manual lists.
    #[rustfmt::skip]
    fn undocumented(&mut self, bus: &mut Bus<'_>, opcode: u8) {
        match opcode {
            // Loads and stores of A and X together.
            // The reference counts one cycle more here than the chip does.
            0xA7 => { self.cycle += 4; let v = operand!(self, bus, zp); self.load_both(v); }
            0xB7 => { self.cycle += 4; let v = operand!(self, bus, zpy); self.load_both(v); }
            0xAF => { self.cycle += 4; let v = operand!(self, bus, abs); self.load_both(v); }
            0xBF => { self.cycle += 4; let v = operand!(self, bus, absy); self.load_both(v); }
            0xA3 => { self.cycle += 6; let v = operand!(self, bus, indx); self.load_both(v); }
            0xB3 => { self.cycle += 5; let v = operand!(self, bus, indy); self.load_both(v); }
            0x87 => { self.cycle += 3; let to = address!(self, bus, zp); self.write(bus, to, self.a & self.x); }
            0x97 => { self.cycle += 4; let to = address!(self, bus, zpy); self.write(bus, to, self.a & self.x); }
            0x8F => { self.cycle += 4; let to = address!(self, bus, abs); self.write(bus, to, self.a & self.x); }
            0x83 => { self.cycle += 6; let to = address!(self, bus, indx); self.write(bus, to, self.a & self.x); }

            // Two instructions in one: decrement and compare, increment and subtract, shift and
            // combine.
            0xC7 => { self.cycle += 5; let v = modify!(self, bus, zp, decrement); self.compare(self.a, v); }
            0xD7 => { self.cycle += 6; let v = modify!(self, bus, zpx, decrement); self.compare(self.a, v); }
            0xCF => { self.cycle += 6; let v = modify!(self, bus, abs, decrement); self.compare(self.a, v); }
            0xDF => { self.cycle += 7; let v = modify!(self, bus, absxw, decrement); self.compare(self.a, v); }
            0xDB => { self.cycle += 7; let v = modify!(self, bus, absyw, decrement); self.compare(self.a, v); }
            0xC3 => { self.cycle += 8; let v = modify!(self, bus, indx, decrement); self.compare(self.a, v); }
            0xD3 => { self.cycle += 8; let v = modify!(self, bus, indyw, decrement); self.compare(self.a, v); }
            0xE7 => { self.cycle += 5; let v = modify!(self, bus, zp, increment); self.sbc(v); }
            0xF7 => { self.cycle += 6; let v = modify!(self, bus, zpx, increment); self.sbc(v); }
            0xEF => { self.cycle += 6; let v = modify!(self, bus, abs, increment); self.sbc(v); }
            0xFF => { self.cycle += 7; let v = modify!(self, bus, absxw, increment); self.sbc(v); }
            0xFB => { self.cycle += 7; let v = modify!(self, bus, absyw, increment); self.sbc(v); }
            0xE3 => { self.cycle += 8; let v = modify!(self, bus, indx, increment); self.sbc(v); }
            0xF3 => { self.cycle += 8; let v = modify!(self, bus, indyw, increment); self.sbc(v); }
            0x07 => { self.cycle += 5; let v = modify!(self, bus, zp, shift_left); self.or(v); }
            0x17 => { self.cycle += 6; let v = modify!(self, bus, zpx, shift_left); self.or(v); }
            0x0F => { self.cycle += 6; let v = modify!(self, bus, abs, shift_left); self.or(v); }
            0x1F => { self.cycle += 7; let v = modify!(self, bus, absxw, shift_left); self.or(v); }
            0x1B => { self.cycle += 7; let v = modify!(self, bus, absyw, shift_left); self.or(v); }
            0x03 => { self.cycle += 8; let v = modify!(self, bus, indx, shift_left); self.or(v); }
            0x13 => { self.cycle += 8; let v = modify!(self, bus, indyw, shift_left); self.or(v); }
            0x27 => { self.cycle += 5; let v = modify!(self, bus, zp, rotate_left); self.and(v); }
            0x37 => { self.cycle += 6; let v = modify!(self, bus, zpx, rotate_left); self.and(v); }
            0x2F => { self.cycle += 6; let v = modify!(self, bus, abs, rotate_left); self.and(v); }
            0x3F => { self.cycle += 7; let v = modify!(self, bus, absxw, rotate_left); self.and(v); }
            0x3B => { self.cycle += 7; let v = modify!(self, bus, absyw, rotate_left); self.and(v); }
            0x23 => { self.cycle += 8; let v = modify!(self, bus, indx, rotate_left); self.and(v); }
            0x33 => { self.cycle += 8; let v = modify!(self, bus, indyw, rotate_left); self.and(v); }
            0x47 => { self.cycle += 5; let v = modify!(self, bus, zp, shift_right); self.eor(v); }
            0x57 => { self.cycle += 6; let v = modify!(self, bus, zpx, shift_right); self.eor(v); }
            0x4F => { self.cycle += 6; let v = modify!(self, bus, abs, shift_right); self.eor(v); }
            0x5F => { self.cycle += 7; let v = modify!(self, bus, absxw, shift_right); self.eor(v); }
            0x5B => { self.cycle += 7; let v = modify!(self, bus, absyw, shift_right); self.eor(v); }
            0x43 => { self.cycle += 8; let v = modify!(self, bus, indx, shift_right); self.eor(v); }
            0x53 => { self.cycle += 8; let v = modify!(self, bus, indyw, shift_right); self.eor(v); }
            0x67 => { self.cycle += 5; let v = modify!(self, bus, zp, rotate_right); self.adc(v); }
            0x77 => { self.cycle += 6; let v = modify!(self, bus, zpx, rotate_right); self.adc(v); }
            0x6F => { self.cycle += 6; let v = modify!(self, bus, abs, rotate_right); self.adc(v); }
            0x7F => { self.cycle += 7; let v = modify!(self, bus, absxw, rotate_right); self.adc(v); }
            0x7B => { self.cycle += 7; let v = modify!(self, bus, absyw, rotate_right); self.adc(v); }
            0x63 => { self.cycle += 8; let v = modify!(self, bus, indx, rotate_right); self.adc(v); }
            0x73 => { self.cycle += 8; let v = modify!(self, bus, indyw, rotate_right); self.adc(v); }

            // Immediate oddities.
            0x0B | 0x2B => {
                self.cycle += 2;
                let v = operand!(self, bus, imm);
                self.and(v);
                self.c = self.a & 0x80 != 0;
            }
            0x4B => {
                self.cycle += 2;
                let v = operand!(self, bus, imm);
                self.a = self.shift_right(self.a & v);
            }
            0x6B => { self.cycle += 2; let v = operand!(self, bus, imm); self.and_rotate(v); }
            0x8B => {
                self.cycle += 2;
                let v = operand!(self, bus, imm);
                self.a = (self.a | 0xEE) & self.x & v;
                self.flags(self.a);
            }
            0xAB => {
                self.cycle += 2;
                let v = operand!(self, bus, imm);
                self.load_both((self.a | 0xEE) & v);
            }
            0xCB => {
                self.cycle += 2;
                let v = operand!(self, bus, imm);
                let both = self.a & self.x;
                self.c = both >= v;
                self.x = both.wrapping_sub(v);
                self.flags(self.x);
            }

            // Stores that mix the address's high byte in.
            0x9F => { self.cycle += 5; let base = self.fetch_word(bus); self.store_mixed(bus, base, self.y, self.a & self.x); }
            0x93 => {
                self.cycle += 6;
                let pointer = self.fetch(bus);
                let base = self.pointer(bus, pointer);
                self.store_mixed(bus, base, self.y, self.a & self.x);
            }
            0x9E => { self.cycle += 5; let base = self.fetch_word(bus); self.store_mixed(bus, base, self.y, self.x); }
            0x9C => { self.cycle += 5; let base = self.fetch_word(bus); self.store_mixed(bus, base, self.x, self.y); }
            0x9B => {
                self.cycle += 5;
                self.s = self.a & self.x;
                let base = self.fetch_word(bus);
                self.store_mixed(bus, base, self.y, self.s);
            }
            0xBB => {
                self.cycle += 4;
                let v = operand!(self, bus, absy);
                self.s &= v;
                self.load_both(self.s);
            }

            // Instructions that do nothing, some of them reading on the way.
            0x1A | 0x3A | 0x5A | 0x7A | 0xDA | 0xFA => self.cycle += 2,
            0x80 | 0x82 | 0x89 | 0xC2 | 0xE2 => { self.cycle += 2; operand!(self, bus, imm); }
            0x04 | 0x44 | 0x64 => { self.cycle += 3; operand!(self, bus, zp); }
            0x14 | 0x34 | 0x54 | 0x74 | 0xD4 | 0xF4 => { self.cycle += 4; operand!(self, bus, zpx); }
            0x0C => { self.cycle += 4; operand!(self, bus, abs); }
            0x1C | 0x3C | 0x5C | 0x7C | 0xDC | 0xFC => { self.cycle += 4; operand!(self, bus, absx); }

            // The rest stop the processor for good.
            _ => {
                self.cycle += 2;
                self.pc = self.pc.wrapping_sub(1);
                self.jammed = true;
            }
        }
    }
}
