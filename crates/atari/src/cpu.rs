//! The processor: a 6507, with the undocumented opcodes that games use.
//!
//! Timing follows the Arcade Learning Environment: the whole base cost of an instruction is
//! counted right after its opcode is fetched, and all its accesses happen at that one moment.

use serde::{Deserialize, Serialize};

use crate::bus::Bus;
use crate::cartridge::{IMAGE, Region};
use crate::riot::Poll;

/// The registers between two runs of the processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Registers {
    /// The accumulator.
    pub(crate) a: u8,
    /// Index X.
    pub(crate) x: u8,
    /// Index Y.
    pub(crate) y: u8,
    /// The stack pointer.
    pub(crate) s: u8,
    /// The status flags, as `PHP` would push them without its B bit.
    pub(crate) p: u8,
    /// The program counter: all 16 bits, though only 13 leave the chip.
    pub(crate) pc: u16,
    /// Whether an opcode that no program can leave has stopped the processor.
    pub(crate) jammed: bool,
}

impl Registers {
    /// The registers after a reset that starts at `pc`.
    pub(crate) fn new(pc: u16) -> Self {
        Self {
            a: 0,
            x: 0,
            y: 0,
            s: 0xFF,
            p: 0x20,
            pc,
            jammed: false,
        }
    }
}

/// Runs instructions until the frame ends or `limit` instructions are done. Returns whether the
/// frame ended.
pub(crate) fn run(bus: &mut Bus<'_>, limit: u32) -> bool {
    let mut core = Core::new(&bus.machine.cpu, bus.machine.cycle);
    core.left = limit;
    let image = bus.rom.image();
    while core.left > 0 && !core.stop {
        core.left -= 1;
        // Inside a plain stretch of the cartridge the longest instruction is fetched at once.
        let offset = core.pc.wrapping_sub(core.region.start);
        if u32::from(offset) + 2 < u32::from(core.region.length) {
            let at = core.region.image + usize::from(offset);
            let byte = |index: usize| image[(at + index) & (IMAGE - 1)];
            core.ahead = u16::from_le_bytes([byte(1), byte(2)]);
            core.pc = core.pc.wrapping_add(1);
            core.seen = byte(0);
            core.step::<true>(bus, byte(0));
        } else {
            core = core.step_slowly(bus);
        }
    }
    bus.machine.cycle = core.cycle;
    bus.machine.cpu = core.registers();
    core.stop
}

const CARRY: u8 = 0x01;
const ZERO: u8 = 0x02;
const INTERRUPT: u8 = 0x04;
const DECIMAL: u8 = 0x08;
const BREAK: u8 = 0x10;
const ALWAYS: u8 = 0x20;
const OVERFLOW: u8 = 0x40;
const NEGATIVE: u8 = 0x80;

/// The registers while running, laid out so that the compiler keeps them in the host's registers:
/// nothing that is called out of line ever borrows this.
#[derive(Clone, Copy)]
struct Core {
    a: u8,
    x: u8,
    y: u8,
    s: u8,
    pc: u16,
    /// The byte whose top bit is the N flag.
    n: u8,
    /// The byte that is zero when the Z flag is set.
    z: u8,
    c: bool,
    v: bool,
    /// The D and I flags, where P holds them.
    di: u8,
    /// The last byte on the data bus before an access: what floating bits read.
    seen: u8,
    cycle: i64,
    stop: bool,
    jammed: bool,
    /// The plain stretch of the cartridge that the program is in.
    region: Region,
    /// The bytes after the opcode, when fetched at once.
    ahead: u16,
    /// How many instructions may still run.
    left: u32,
    /// Whether the last branch went back over one three-byte instruction, as a wait for the timer
    /// does.
    polls: bool,
}

/// Reads an operand's address, and counts the cycle that crossing a page costs a read.
macro_rules! address {
    ($core:ident, $bus:ident, zp) => {
        u16::from($core.fetch::<AHEAD>($bus))
    };
    ($core:ident, $bus:ident, zpx) => {
        u16::from($core.fetch::<AHEAD>($bus).wrapping_add($core.x))
    };
    ($core:ident, $bus:ident, zpy) => {
        u16::from($core.fetch::<AHEAD>($bus).wrapping_add($core.y))
    };
    ($core:ident, $bus:ident, abs) => {
        $core.fetch_word::<AHEAD>($bus)
    };
    ($core:ident, $bus:ident, absx) => {{
        let base = $core.fetch_word::<AHEAD>($bus);
        $core.indexed(base, $core.x)
    }};
    ($core:ident, $bus:ident, absy) => {{
        let base = $core.fetch_word::<AHEAD>($bus);
        $core.indexed(base, $core.y)
    }};
    ($core:ident, $bus:ident, absxw) => {
        $core
            .fetch_word::<AHEAD>($bus)
            .wrapping_add(u16::from($core.x))
    };
    ($core:ident, $bus:ident, absyw) => {
        $core
            .fetch_word::<AHEAD>($bus)
            .wrapping_add(u16::from($core.y))
    };
    ($core:ident, $bus:ident, indx) => {{
        let pointer = $core.fetch::<AHEAD>($bus).wrapping_add($core.x);
        $core.pointer($bus, pointer)
    }};
    ($core:ident, $bus:ident, indy) => {{
        let pointer = $core.fetch::<AHEAD>($bus);
        let base = $core.pointer($bus, pointer);
        $core.indexed(base, $core.y)
    }};
    ($core:ident, $bus:ident, indyw) => {{
        let pointer = $core.fetch::<AHEAD>($bus);
        $core
            .pointer($bus, pointer)
            .wrapping_add(u16::from($core.y))
    }};
}

/// Reads an operand.
macro_rules! operand {
    ($core:ident, $bus:ident, imm) => {
        $core.fetch::<AHEAD>($bus)
    };
    ($core:ident, $bus:ident, zp) => {{
        let address = $core.fetch::<AHEAD>($bus);
        $core.read_zero_page($bus, address)
    }};
    ($core:ident, $bus:ident, zpx) => {{
        let address = $core.fetch::<AHEAD>($bus).wrapping_add($core.x);
        $core.read_zero_page($bus, address)
    }};
    ($core:ident, $bus:ident, zpy) => {{
        let address = $core.fetch::<AHEAD>($bus).wrapping_add($core.y);
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
    fn new(registers: &Registers, cycle: i64) -> Self {
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
            region: Region::NOWHERE,
            ahead: 0,
            left: 0,
            polls: false,
        };
        core.set_status(registers.p);
        core
    }

    #[inline(always)]
    fn registers(&self) -> Registers {
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

    /// One instruction byte by byte, for where touching the cartridge does more than read. By
    /// value, so that nothing borrows the registers.
    #[inline(never)]
    fn step_slowly(mut self, bus: &mut Bus<'_>) -> Self {
        let opcode = self.fetch::<false>(bus);
        self.step::<false>(bus, opcode);
        self.region = bus.machine.cartridge.region(self.pc);
        self
    }

    #[rustfmt::skip]
    #[inline(always)]
    fn step<const AHEAD: bool>(&mut self, bus: &mut Bus<'_>, opcode: u8) {
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
            0x10 => {
                self.branch::<AHEAD>(bus, self.n & 0x80 == 0);
                if AHEAD && self.polls {
                    self.skip_polls(bus, Poll::UntilNegative);
                }
            }
            0x30 => self.branch::<AHEAD>(bus, self.n & 0x80 != 0),
            0x50 => self.branch::<AHEAD>(bus, !self.v),
            0x70 => self.branch::<AHEAD>(bus, self.v),
            0x90 => self.branch::<AHEAD>(bus, !self.c),
            0xB0 => self.branch::<AHEAD>(bus, self.c),
            0xD0 => {
                self.branch::<AHEAD>(bus, self.z != 0);
                if AHEAD && self.polls {
                    self.skip_polls(bus, Poll::UntilZero);
                }
            }
            0xF0 => self.branch::<AHEAD>(bus, self.z == 0),
            0x4C => { self.cycle += 3; self.pc = self.fetch_word::<AHEAD>(bus); }
            0x6C => {
                self.cycle += 5;
                let at = self.fetch_word::<AHEAD>(bus);
                let low = self.read(bus, at);
                // The chip does not carry into the page of the pointer's second byte.
                let high = self.read(bus, (at & 0xFF00) | (at.wrapping_add(1) & 0xFF));
                self.pc = u16::from_le_bytes([low, high]);
            }
            0x20 => {
                self.cycle += 6;
                let low = self.fetch::<AHEAD>(bus);
                let back = self.pc;
                self.push(bus, (back >> 8) as u8);
                self.push(bus, back as u8);
                let high = self.fetch::<AHEAD>(bus);
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

            _ => self.undocumented::<AHEAD>(bus, opcode),
        }
    }

    /// The opcodes that no manual lists.
    #[rustfmt::skip]
    #[inline(always)]
    fn undocumented<const AHEAD: bool>(&mut self, bus: &mut Bus<'_>, opcode: u8) {
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
            0x9F => { self.cycle += 5; let base = self.fetch_word::<AHEAD>(bus); self.store_mixed(bus, base, self.y, self.a & self.x); }
            0x93 => {
                self.cycle += 6;
                let pointer = self.fetch::<AHEAD>(bus);
                let base = self.pointer(bus, pointer);
                self.store_mixed(bus, base, self.y, self.a & self.x);
            }
            0x9E => { self.cycle += 5; let base = self.fetch_word::<AHEAD>(bus); self.store_mixed(bus, base, self.y, self.x); }
            0x9C => { self.cycle += 5; let base = self.fetch_word::<AHEAD>(bus); self.store_mixed(bus, base, self.x, self.y); }
            0x9B => {
                self.cycle += 5;
                self.s = self.a & self.x;
                let base = self.fetch_word::<AHEAD>(bus);
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

    // Memory.

    #[inline(always)]
    fn fetch<const AHEAD: bool>(&mut self, bus: &mut Bus<'_>) -> u8 {
        let byte = if AHEAD {
            let byte = self.ahead as u8;
            self.ahead >>= 8;
            self.seen = byte;
            byte
        } else {
            self.read(bus, self.pc)
        };
        self.pc = self.pc.wrapping_add(1);
        byte
    }

    #[inline(always)]
    fn fetch_word<const AHEAD: bool>(&mut self, bus: &mut Bus<'_>) -> u16 {
        let low = self.fetch::<AHEAD>(bus);
        let high = self.fetch::<AHEAD>(bus);
        u16::from_le_bytes([low, high])
    }

    #[inline(always)]
    fn read(&mut self, bus: &mut Bus<'_>, address: u16) -> u8 {
        let offset = address.wrapping_sub(self.region.start);
        let byte = if offset < self.region.length {
            bus.rom.byte(self.region.image + usize::from(offset))
        } else if address & 0x1280 == 0x0080 {
            bus.machine.ram[usize::from(address & 0x7F)]
        } else {
            if address & 0x1000 != 0 {
                self.region = Region::NOWHERE;
            }
            bus.read(address, self.seen, self.cycle)
        };
        self.seen = byte;
        byte
    }

    #[inline(always)]
    fn read_zero_page(&mut self, bus: &mut Bus<'_>, address: u8) -> u8 {
        let byte = bus.read_zero_page(address, self.seen, self.cycle);
        self.seen = byte;
        byte
    }

    #[inline(always)]
    fn write(&mut self, bus: &mut Bus<'_>, address: u16, value: u8) {
        if address & 0x1280 == 0x0080 {
            bus.machine.ram[usize::from(address & 0x7F)] = value;
        } else {
            self.write_device(bus, address, value);
        }
        self.seen = value;
    }

    #[inline(always)]
    fn write_zero_page(&mut self, bus: &mut Bus<'_>, address: u8, value: u8) {
        if address & 0x80 != 0 {
            bus.machine.ram[usize::from(address & 0x7F)] = value;
        } else {
            self.write_device(bus, u16::from(address), value);
        }
        self.seen = value;
    }

    #[inline(always)]
    fn write_device(&mut self, bus: &mut Bus<'_>, address: u16, value: u8) {
        let (cycle, stop) = bus.write_device(address, value, self.cycle);
        if address & 0x1000 != 0 {
            self.region = Region::NOWHERE;
        }
        self.cycle = cycle;
        self.stop |= stop;
    }

    #[inline(always)]
    fn indexed(&mut self, base: u16, index: u8) -> u16 {
        let address = base.wrapping_add(u16::from(index));
        self.cycle += i64::from((base ^ address) & 0xFF00 != 0);
        address
    }

    #[inline(always)]
    fn pointer(&mut self, bus: &mut Bus<'_>, at: u8) -> u16 {
        let low = self.read_zero_page(bus, at);
        let high = self.read_zero_page(bus, at.wrapping_add(1));
        u16::from_le_bytes([low, high])
    }

    #[inline(always)]
    fn push(&mut self, bus: &mut Bus<'_>, value: u8) {
        self.write_zero_page(bus, self.s, value);
        self.s = self.s.wrapping_sub(1);
    }

    /// Before pulling, the chip reads where the stack pointer still is: the byte stays on the bus
    /// for whatever floats there.
    #[inline(always)]
    fn glance(&mut self, bus: &mut Bus<'_>) {
        if self.s & 0x80 != 0 {
            self.seen = bus.machine.ram[usize::from(self.s & 0x7F)];
        }
    }

    #[inline(always)]
    fn pull(&mut self, bus: &mut Bus<'_>) -> u8 {
        self.s = self.s.wrapping_add(1);
        self.read_zero_page(bus, self.s)
    }

    #[inline(always)]
    fn store_mixed(&mut self, bus: &mut Bus<'_>, base: u16, index: u8, value: u8) {
        let mixed = value & ((base >> 8) as u8).wrapping_add(1);
        self.write(bus, base.wrapping_add(u16::from(index)), mixed);
    }

    #[inline(always)]
    fn branch<const AHEAD: bool>(&mut self, bus: &mut Bus<'_>, taken: bool) {
        self.cycle += 2;
        let offset = self.fetch::<AHEAD>(bus) as i8;
        if taken {
            let target = self.pc.wrapping_add_signed(i16::from(offset));
            self.polls = AHEAD && offset == -5;
            self.cycle += if (target ^ self.pc) & 0xFF00 == 0 {
                1
            } else {
                2
            };
            self.pc = target;
        }
    }

    /// After a jump back over one instruction: where that loads the timer, the turns of the loop
    /// that cannot end it are counted instead of run. At least one turn is left to run, so that
    /// registers and flags come out right.
    #[inline(never)]
    fn skipped_polls(
        bus: &Bus<'_>,
        region: Region,
        pc: u16,
        cycle: i64,
        left: u32,
        poll: Poll,
    ) -> (i64, u32) {
        let offset = pc.wrapping_sub(region.start);
        if u32::from(offset) + 5 > u32::from(region.length) {
            return (0, 0);
        }
        let byte = |index: usize| bus.rom.byte(region.image + usize::from(offset) + index);
        let address = u16::from_le_bytes([byte(1), byte(2)]);
        if !matches!(byte(0), 0xAC..=0xAE) || address & 0x1285 != 0x0284 {
            return (0, 0);
        }
        let after = pc.wrapping_add(5);
        let turn = if (after ^ pc) & 0xFF00 == 0 { 7 } else { 8 };
        let until = bus.machine.riot.waits_until(poll);
        let first_read = cycle + 4;
        if until <= first_read {
            return (0, 0);
        }
        let turns = ((until - first_read + turn - 1) / turn)
            .min(i64::from(left / 2) - 1)
            .max(0);
        (turns * turn, 2 * turns as u32)
    }

    #[inline(always)]
    fn skip_polls(&mut self, bus: &Bus<'_>, poll: Poll) {
        self.polls = false;
        let (cycles, instructions) =
            Self::skipped_polls(bus, self.region, self.pc, self.cycle, self.left, poll);
        self.cycle += cycles;
        self.left -= instructions;
    }

    // Arithmetic.

    #[inline(always)]
    fn flags(&mut self, value: u8) {
        self.n = value;
        self.z = value;
    }

    #[inline(always)]
    fn load_both(&mut self, value: u8) {
        self.a = value;
        self.x = value;
        self.flags(value);
    }

    #[inline(always)]
    fn and(&mut self, value: u8) {
        self.a &= value;
        self.flags(self.a);
    }

    #[inline(always)]
    fn or(&mut self, value: u8) {
        self.a |= value;
        self.flags(self.a);
    }

    #[inline(always)]
    fn eor(&mut self, value: u8) {
        self.a ^= value;
        self.flags(self.a);
    }

    #[inline(always)]
    fn compare(&mut self, register: u8, value: u8) {
        self.c = register >= value;
        self.flags(register.wrapping_sub(value));
    }

    #[inline(always)]
    fn bit(&mut self, value: u8) {
        self.n = value;
        self.v = value & 0x40 != 0;
        self.z = self.a & value;
    }

    #[inline(always)]
    fn adc(&mut self, value: u8) {
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

    #[inline(always)]
    fn sbc(&mut self, value: u8) {
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
    #[inline(always)]
    fn and_rotate(&mut self, value: u8) {
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

    #[inline(always)]
    fn increment(&mut self, value: u8) -> u8 {
        let result = value.wrapping_add(1);
        self.flags(result);
        result
    }

    #[inline(always)]
    fn decrement(&mut self, value: u8) -> u8 {
        let result = value.wrapping_sub(1);
        self.flags(result);
        result
    }

    #[inline(always)]
    fn shift_left(&mut self, value: u8) -> u8 {
        self.c = value & 0x80 != 0;
        let result = value << 1;
        self.flags(result);
        result
    }

    #[inline(always)]
    fn shift_right(&mut self, value: u8) -> u8 {
        self.c = value & 1 != 0;
        let result = value >> 1;
        self.flags(result);
        result
    }

    #[inline(always)]
    fn rotate_left(&mut self, value: u8) -> u8 {
        let result = (value << 1) | u8::from(self.c);
        self.c = value & 0x80 != 0;
        self.flags(result);
        result
    }

    #[inline(always)]
    fn rotate_right(&mut self, value: u8) -> u8 {
        let result = (value >> 1) | (u8::from(self.c) << 7);
        self.c = value & 1 != 0;
        self.flags(result);
        result
    }

    #[inline(always)]
    fn status(&self) -> u8 {
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

    #[inline(always)]
    fn set_status(&mut self, p: u8) {
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
