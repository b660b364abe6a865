//! The loop that runs nearly all instructions: those that touch nothing but the cartridge's plain
//! stretches, the console's memory and registers of the TIA that are only logged.
//!
//! It works on a decoded cartridge and calls nothing, so that the processor's registers stay in
//! the host's. Before an instruction that needs more it stops, and [`super::general`] runs that
//! one with the whole bus.

use super::Core;
use super::decode::{LOGGED, Op, SILENT};
use super::layout::Layout;
use crate::bus::Bus;
use crate::console::Machine;
use crate::tia::beam::collision_bits;
use crate::tia::shadow::Shadow;
use crate::tia::{LINE_CYCLES, Write};

/// Runs up to the first instruction that needs the whole bus, or until `core.left` is used up.
pub(super) fn run<'a, L: Layout<'a>>(core: &mut Core, bus: &mut Bus<'a>, pins: &Pins) {
    let machine = &mut *bus.machine;
    // Cycles are counted in 32 bits here, in all but frames that never end from the frame's start.
    let origin = if core.cycle < 1 << 24 { 0 } else { core.cycle };
    let shifted;
    let pins = if origin == 0 {
        pins
    } else {
        shifted = Pins::new(machine, origin);
        &shifted
    };
    let collided = machine.tia.settled_collisions(machine.frames.log());
    let (log, used) = machine.frames.log_mut().room();
    let before = *used;
    let mut fast = Fast {
        a: core.a,
        x: core.x,
        y: core.y,
        s: core.s,
        nz: u16::from(core.z) | u16::from(core.n & 0x80) << 8,
        c: core.c,
        v: core.v,
        di: core.di,
        pc: core.pc,
        cycle: (core.cycle - origin) as u32,
        frame_end: if origin == 0 {
            machine.tia.frame_end()
        } else {
            0
        },
        touched: 0,
        left: core.left,
        ram: &mut machine.ram,
        log,
        used: *used,
        shadow: &mut machine.tia.shadow,
        collided,
        settled_at: before,
        pins,
        layout: L::new(bus.rom, &machine.cartridge),
    };
    fast.run();
    if fast.touched != 0 {
        machine.tia.touched = origin + i64::from(fast.touched);
    }
    if let Some(write) = fast.log[before..fast.used].last() {
        machine.tia.touched = machine.tia.touched.max(i64::from(write.cycle()));
    }
    *used = fast.used;
    core.a = fast.a;
    core.x = fast.x;
    core.y = fast.y;
    core.s = fast.s;
    core.n = if fast.nz & 0x8080 != 0 { 0x80 } else { 0 };
    core.z = fast.nz as u8;
    core.c = fast.c;
    core.v = fast.v;
    core.di = fast.di;
    core.pc = fast.pc;
    core.cycle = origin + i64::from(fast.cycle);
    core.left = fast.left;
}

/// How many instructions may follow each other without a jump: a bank full of them.
const LAST: u32 = 4096;

/// The register that halts the processor, and the opcode that stays on the bus while it pulls
/// from where the stack is not in memory.
const WSYNC: u8 = 2;
const PLA: u8 = 0x68;

/// The TIA's input pins: after which cycle each of the registers 8 to 15 reads as up.
#[derive(Clone, Debug)]
pub(super) struct Pins {
    up_after: [u32; 8],
}

impl Pins {
    /// The pins until the next write to VBLANK, for cycles counted from `origin`.
    pub(super) fn new(machine: &Machine, origin: i64) -> Self {
        let mut up_after = [u32::MAX; 8];
        for (register, cycle) in up_after.iter_mut().enumerate() {
            let after = machine.tia.pin_up_after(register + 8, &machine.inputs);
            *cycle = after.map_or(u32::MAX, |after| {
                after.saturating_sub(origin).clamp(0, 1 << 30) as u32
            });
        }
        Self { up_after }
    }
}

/// The registers and all that the loop touches.
struct Fast<'a, L> {
    a: u8,
    x: u8,
    y: u8,
    s: u8,
    /// The low byte is zero when Z is set; bit 7 or bit 15 is set when N is.
    nz: u16,
    c: bool,
    v: bool,
    di: u8,
    pc: u16,
    cycle: u32,
    /// From this cycle on a write to the TIA ends the frame.
    frame_end: u32,
    /// The cycle of the last access to the TIA that is not in the log; zero where there was none.
    touched: u32,
    left: u32,
    ram: &'a mut [u8; 128],
    log: &'a mut [Write],
    used: usize,
    shadow: &'a mut Shadow,
    /// All collisions, where the beam has seen the log up to `settled_at` and no new ones come
    /// without a write.
    collided: Option<u32>,
    settled_at: usize,
    pins: &'a Pins,
    layout: L,
}

impl<'a, L: Layout<'a>> Fast<'_, L> {
    #[rustfmt::skip]
    #[inline(always)]
    fn run(&mut self) {
        if self.far() {
            return;
        }
        while self.step() {}
    }

    /// Runs one instruction, or two that were decoded as one. Says whether the loop goes on.
    #[rustfmt::skip]
    #[inline(always)]
    fn step(&mut self) -> bool {
        let code = self.layout.code(self.pc);

        /// Ends the loop after a jump that leads out of the cartridge or comes late.
        macro_rules! jump {
            ($jump:expr) => {{ $jump; if self.far() { self.left -= 1; return false; } }};
        }
        /// The operand's value; ends the loop if it needs the whole bus.
        macro_rules! value {
            (imm) => {{ self.spend(2, 2); code.low() }};
            (ram) => {{ self.spend(3, 2); self.ram[usize::from(code.low() & 0x7F)] }};
            (zpx) => {{
                let at = code.low().wrapping_add(self.x);
                let Some(value) = self.zero_page(at).or_else(|| self.pin(u16::from(at), code.low(), 4)) else { return false };
                self.spend(4, 2);
                value
            }};
            (collision) => {{
                let Some(collided) = self.collided.filter(|_| self.used == self.settled_at) else { return false };
                self.spend(3, 2);
                self.touched = self.cycle;
                collision_bits(collided, usize::from(code.low())) | code.low() & 0x3F
            }};
            (pin) => {{ let Some(value) = self.pin(code.operand, code.low(), 3) else { return false }; self.spend(3, 2); value }};
            (zpy) => {{ let Some(value) = self.zero_page(code.low().wrapping_add(self.y)) else { return false }; self.spend(4, 2); value }};
            (abs) => {{ let Some(value) = self.peek(code.operand) else { return false }; self.spend(4, 3); value }};
            (abx) => { value!(@indexed code.operand, self.x, 4, 3) };
            (aby) => { value!(@indexed code.operand, self.y, 4, 3) };
            (ind) => {{ let base = self.pointer(code.low()); value!(@indexed base, self.y, 5, 2) }};
            (@indexed $base:expr, $index:expr, $cycles:expr, $length:expr) => {{
                let base = $base;
                let address = base.wrapping_add(u16::from($index));
                let cycles = $cycles + u32::from((base ^ address) & 0xFF00 != 0);
                let Some(value) = self.peek(address).or_else(|| self.pin(address, (base >> 8) as u8, cycles)) else { return false };
                self.spend(cycles, $length);
                value
            }};
        }
        /// Stores a value; ends the loop if that needs the whole bus.
        macro_rules! store {
            (ram, $value:expr) => {{ self.spend(3, 2); self.ram[usize::from(code.low() & 0x7F)] = $value; }};
            (tia, $value:expr) => {{
                self.cycle += 3;
                if !self.log(code.low(), $value) { self.cycle -= 3; return false; }
                self.pc = self.pc.wrapping_add(2);
            }};
            (wait) => {{
                self.cycle += 3;
                if !self.wait() { self.cycle -= 3; return false; }
                self.pc = self.pc.wrapping_add(2);
            }};
            (zpx, $value:expr) => { store!(@anywhere u16::from(code.low().wrapping_add(self.x)), $value, 4, 2) };
            (zpy, $value:expr) => { store!(@anywhere u16::from(code.low().wrapping_add(self.y)), $value, 4, 2) };
            (abs, $value:expr) => { store!(@anywhere code.operand, $value, 4, 3) };
            (abx, $value:expr) => { store!(@anywhere code.operand.wrapping_add(u16::from(self.x)), $value, 5, 3) };
            (aby, $value:expr) => { store!(@anywhere code.operand.wrapping_add(u16::from(self.y)), $value, 5, 3) };
            (ind, $value:expr) => { store!(@anywhere self.pointer(code.low()).wrapping_add(u16::from(self.y)), $value, 6, 2) };
            (@anywhere $address:expr, $value:expr, $cycles:expr, $length:expr) => {{
                let address = $address;
                self.cycle += $cycles;
                if !self.poke(address, $value) { self.cycle -= $cycles; return false; }
                self.pc = self.pc.wrapping_add($length);
            }};
        }
        /// Changes a byte of memory in place.
        macro_rules! modify {
            (ram, $change:ident) => {{
                self.spend(5, 2);
                let at = usize::from(code.low() & 0x7F);
                let new = self.$change(self.ram[at]);
                self.ram[at] = new;
                new
            }};
            (zpx, $change:ident) => {{
                let at = code.low().wrapping_add(self.x);
                if at & 0x80 == 0 { return false; }
                self.spend(6, 2);
                let at = usize::from(at & 0x7F);
                let new = self.$change(self.ram[at]);
                self.ram[at] = new;
                new
            }};
        }

        /// The second instruction of two that were decoded as one: a store of A to the TIA.
        macro_rules! then_sta {
            () => {{
                self.left -= 1;
                self.cycle += 3;
                if !self.log(code.second, self.a) { self.cycle -= 3; return false; }
                self.pc = self.pc.wrapping_add(2);
            }};
        }
        /// The second instruction of two: a branch.
        macro_rules! then_branch {
            ($taken:expr) => {{
                self.left -= 1;
                if $taken { jump!(self.take_branch(code.operand)) } else { self.spend(2, 2); }
            }};
        }

        match code.op {
            Op::LdaImmSta => { let v = value!(imm); self.load_a(v); then_sta!() }
            Op::LdaRamSta => { let v = value!(ram); self.load_a(v); then_sta!() }
            Op::LdaZpxSta => { let v = value!(zpx); self.load_a(v); then_sta!() }
            Op::LdaAbxSta => { let v = value!(abx); self.load_a(v); then_sta!() }
            Op::LdaAbySta => { let v = value!(aby); self.load_a(v); then_sta!() }
            Op::LdaIndSta => { let v = value!(ind); self.load_a(v); then_sta!() }
            Op::StaSta => { store!(tia, self.a); then_sta!() }
            Op::WaitSta => { store!(wait); then_sta!() }
            Op::DexBne => { self.spend(2, 1); self.load_x(self.x.wrapping_sub(1)); then_branch!(self.x != 0) }
            Op::DexBpl => { self.spend(2, 1); self.load_x(self.x.wrapping_sub(1)); then_branch!(self.x & 0x80 == 0) }
            Op::DeyBne => { self.spend(2, 1); self.load_y(self.y.wrapping_sub(1)); then_branch!(self.y != 0) }
            Op::DeyBpl => { self.spend(2, 1); self.load_y(self.y.wrapping_sub(1)); then_branch!(self.y & 0x80 == 0) }
            Op::AslAsl => { self.spend(4, 2); self.left -= 1; self.c = self.a & 0x40 != 0; self.load_a(self.a << 2); }
            Op::LsrLsr => { self.spend(4, 2); self.left -= 1; self.c = self.a & 0x02 != 0; self.load_a(self.a >> 2); }
            Op::NopNop => { self.spend(4, 2); self.left -= 1; }
            Op::SecSbcRam => {
                self.spend(2, 1);
                self.c = true;
                self.left -= 1;
                if self.decimal() { return false; }
                let v = value!(ram);
                self.add(!v);
            }
            Op::LdyRamLdaInd => {
                self.spend(3, 2);
                self.load_y(self.ram[usize::from(code.low() & 0x7F)]);
                self.left -= 1;
                let base = self.pointer(code.second);
                let v = value!(@indexed base, self.y, 5, 2);
                self.load_a(v);
            }

            Op::LdaImm => { let v = value!(imm); self.load_a(v); }
            Op::LdaRam => { let v = value!(ram); self.load_a(v); }
            Op::LdaZpx => { let v = value!(zpx); self.load_a(v); }
            Op::LdaAbs => { let v = value!(abs); self.load_a(v); }
            Op::LdaAbx => { let v = value!(abx); self.load_a(v); }
            Op::LdaAby => { let v = value!(aby); self.load_a(v); }
            Op::LdaInd => { let v = value!(ind); self.load_a(v); }
            Op::LdaInx => {
                let at = code.low().wrapping_add(self.x);
                if !(0x80..0xFF).contains(&at) { return false; }
                let Some(v) = self.peek(self.pointer(at)) else { return false };
                self.spend(6, 2);
                self.load_a(v);
            }
            Op::LdxImm => { let v = value!(imm); self.load_x(v); }
            Op::LdxRam => { let v = value!(ram); self.load_x(v); }
            Op::LdxZpy => { let v = value!(zpy); self.load_x(v); }
            Op::LdxAbs => { let v = value!(abs); self.load_x(v); }
            Op::LdxAby => { let v = value!(aby); self.load_x(v); }
            Op::LdyImm => { let v = value!(imm); self.load_y(v); }
            Op::LdyRam => { let v = value!(ram); self.load_y(v); }
            Op::LdyZpx => { let v = value!(zpx); self.load_y(v); }
            Op::LdyAbs => { let v = value!(abs); self.load_y(v); }
            Op::LdyAbx => { let v = value!(abx); self.load_y(v); }
            // The reference counts one cycle more here than the chip does.
            Op::LaxRam => { let v = value!(ram); self.cycle += 1; self.load_a(v); self.x = v; }
            Op::LaxInd => { let v = value!(ind); self.load_a(v); self.x = v; }

            Op::AdcImm => { if self.decimal() { return false; } let v = value!(imm); self.add(v); }
            Op::AdcRam => { if self.decimal() { return false; } let v = value!(ram); self.add(v); }
            Op::AdcZpx => { if self.decimal() { return false; } let v = value!(zpx); self.add(v); }
            Op::AdcAbs => { if self.decimal() { return false; } let v = value!(abs); self.add(v); }
            Op::AdcAbx => { if self.decimal() { return false; } let v = value!(abx); self.add(v); }
            Op::AdcAby => { if self.decimal() { return false; } let v = value!(aby); self.add(v); }
            Op::AdcInd => { if self.decimal() { return false; } let v = value!(ind); self.add(v); }
            Op::SbcImm => { if self.decimal() { return false; } let v = value!(imm); self.add(!v); }
            Op::SbcRam => { if self.decimal() { return false; } let v = value!(ram); self.add(!v); }
            Op::SbcZpx => { if self.decimal() { return false; } let v = value!(zpx); self.add(!v); }
            Op::SbcAbs => { if self.decimal() { return false; } let v = value!(abs); self.add(!v); }
            Op::SbcAbx => { if self.decimal() { return false; } let v = value!(abx); self.add(!v); }
            Op::SbcAby => { if self.decimal() { return false; } let v = value!(aby); self.add(!v); }
            Op::SbcInd => { if self.decimal() { return false; } let v = value!(ind); self.add(!v); }

            Op::AndImm => { let v = value!(imm); self.load_a(self.a & v); }
            Op::AndRam => { let v = value!(ram); self.load_a(self.a & v); }
            Op::AndZpx => { let v = value!(zpx); self.load_a(self.a & v); }
            Op::AndAbs => { let v = value!(abs); self.load_a(self.a & v); }
            Op::AndAbx => { let v = value!(abx); self.load_a(self.a & v); }
            Op::AndAby => { let v = value!(aby); self.load_a(self.a & v); }
            Op::AndInd => { let v = value!(ind); self.load_a(self.a & v); }
            Op::OraImm => { let v = value!(imm); self.load_a(self.a | v); }
            Op::OraRam => { let v = value!(ram); self.load_a(self.a | v); }
            Op::OraZpx => { let v = value!(zpx); self.load_a(self.a | v); }
            Op::OraAbs => { let v = value!(abs); self.load_a(self.a | v); }
            Op::OraAbx => { let v = value!(abx); self.load_a(self.a | v); }
            Op::OraAby => { let v = value!(aby); self.load_a(self.a | v); }
            Op::OraInd => { let v = value!(ind); self.load_a(self.a | v); }
            Op::EorImm => { let v = value!(imm); self.load_a(self.a ^ v); }
            Op::EorRam => { let v = value!(ram); self.load_a(self.a ^ v); }
            Op::EorZpx => { let v = value!(zpx); self.load_a(self.a ^ v); }
            Op::EorAbs => { let v = value!(abs); self.load_a(self.a ^ v); }
            Op::EorAbx => { let v = value!(abx); self.load_a(self.a ^ v); }
            Op::EorAby => { let v = value!(aby); self.load_a(self.a ^ v); }
            Op::EorInd => { let v = value!(ind); self.load_a(self.a ^ v); }

            Op::CmpImm => { let v = value!(imm); self.compare(self.a, v); }
            Op::CmpRam => { let v = value!(ram); self.compare(self.a, v); }
            Op::CmpZpx => { let v = value!(zpx); self.compare(self.a, v); }
            Op::CmpAbs => { let v = value!(abs); self.compare(self.a, v); }
            Op::CmpAbx => { let v = value!(abx); self.compare(self.a, v); }
            Op::CmpAby => { let v = value!(aby); self.compare(self.a, v); }
            Op::CmpInd => { let v = value!(ind); self.compare(self.a, v); }
            Op::CpxImm => { let v = value!(imm); self.compare(self.x, v); }
            Op::CpxRam => { let v = value!(ram); self.compare(self.x, v); }
            Op::CpxAbs => { let v = value!(abs); self.compare(self.x, v); }
            Op::CpyImm => { let v = value!(imm); self.compare(self.y, v); }
            Op::CpyRam => { let v = value!(ram); self.compare(self.y, v); }
            Op::CpyAbs => { let v = value!(abs); self.compare(self.y, v); }
            Op::LdaCx => { let v = value!(collision); self.load_a(v); }
            Op::BitCx => { let v = value!(collision); self.bit(v); }
            Op::LdaPin => { let v = value!(pin); self.load_a(v); }
            Op::BitPin => { let v = value!(pin); self.bit(v); }
            Op::BitRam => { let v = value!(ram); self.bit(v); }
            Op::BitAbs => { let v = value!(abs); self.bit(v); }

            Op::StaRam => store!(ram, self.a),
            Op::StaTia => store!(tia, self.a),
            Op::StaZpx => store!(zpx, self.a),
            Op::StaAbs => store!(abs, self.a),
            Op::StaAbx => store!(abx, self.a),
            Op::StaAby => store!(aby, self.a),
            Op::StaInd => store!(ind, self.a),
            Op::StxRam => store!(ram, self.x),
            Op::StxTia => store!(tia, self.x),
            Op::StxZpy => store!(zpy, self.x),
            Op::StxAbs => store!(abs, self.x),
            Op::StyRam => store!(ram, self.y),
            Op::StyTia => store!(tia, self.y),
            Op::StyZpx => store!(zpx, self.y),
            Op::StyAbs => store!(abs, self.y),
            Op::SaxRam => store!(ram, self.a & self.x),
            Op::Wait => store!(wait),

            Op::IncRam => { modify!(ram, increment); }
            Op::IncZpx => { modify!(zpx, increment); }
            Op::DecRam => { modify!(ram, decrement); }
            Op::DecZpx => { modify!(zpx, decrement); }
            Op::DcpRam => { let v = modify!(ram, decrement); self.compare(self.a, v); }
            Op::AslRam => { modify!(ram, shift_left); }
            Op::AslZpx => { modify!(zpx, shift_left); }
            Op::LsrRam => { modify!(ram, shift_right); }
            Op::LsrZpx => { modify!(zpx, shift_right); }
            Op::RolRam => { modify!(ram, rotate_left); }
            Op::RolZpx => { modify!(zpx, rotate_left); }
            Op::RorRam => { modify!(ram, rotate_right); }
            Op::RorZpx => { modify!(zpx, rotate_right); }
            Op::AslA => { self.spend(2, 1); self.a = self.shift_left(self.a); }
            Op::LsrA => { self.spend(2, 1); self.a = self.shift_right(self.a); }
            Op::RolA => { self.spend(2, 1); self.a = self.rotate_left(self.a); }
            Op::RorA => { self.spend(2, 1); self.a = self.rotate_right(self.a); }

            Op::Inx => { self.spend(2, 1); self.load_x(self.x.wrapping_add(1)); }
            Op::Iny => { self.spend(2, 1); self.load_y(self.y.wrapping_add(1)); }
            Op::Dex => { self.spend(2, 1); self.load_x(self.x.wrapping_sub(1)); }
            Op::Dey => { self.spend(2, 1); self.load_y(self.y.wrapping_sub(1)); }
            Op::Tax => { self.spend(2, 1); self.load_x(self.a); }
            Op::Tay => { self.spend(2, 1); self.load_y(self.a); }
            Op::Txa => { self.spend(2, 1); self.load_a(self.x); }
            Op::Tya => { self.spend(2, 1); self.load_a(self.y); }
            Op::Tsx => { self.spend(2, 1); self.load_x(self.s); }
            Op::Txs => { self.spend(2, 1); self.s = self.x; }

            Op::Pha => {
                self.cycle += 3;
                if !self.poke(u16::from(self.s), self.a) { self.cycle -= 3; return false; }
                self.s = self.s.wrapping_sub(1);
                self.pc = self.pc.wrapping_add(1);
            }
            Op::Php => {
                self.cycle += 3;
                if !self.poke(u16::from(self.s), self.status()) { self.cycle -= 3; return false; }
                self.s = self.s.wrapping_sub(1);
                self.pc = self.pc.wrapping_add(1);
            }
            Op::Pla => {
                let from = self.s.wrapping_add(1);
                let Some(value) = self.zero_page(from).or_else(|| self.pin(u16::from(from), PLA, 4)) else { return false };
                self.s = from;
                self.spend(4, 1);
                self.load_a(value);
            }
            Op::Plp => {
                let from = self.s.wrapping_add(1);
                let Some(value) = self.zero_page(from) else { return false };
                self.s = from;
                self.spend(4, 1);
                self.set_status(value);
            }

            Op::Bpl => if self.nz & 0x8080 == 0 { jump!(self.take_branch(code.operand)) } else { self.spend(2, 2); },
            Op::Bmi => if self.nz & 0x8080 != 0 { jump!(self.take_branch(code.operand)) } else { self.spend(2, 2); },
            Op::Bvc => if !self.v { jump!(self.take_branch(code.operand)) } else { self.spend(2, 2); },
            Op::Bvs => if self.v { jump!(self.take_branch(code.operand)) } else { self.spend(2, 2); },
            Op::Bcc => if !self.c { jump!(self.take_branch(code.operand)) } else { self.spend(2, 2); },
            Op::Bcs => if self.c { jump!(self.take_branch(code.operand)) } else { self.spend(2, 2); },
            Op::Bne => if self.nz & 0xFF != 0 { jump!(self.take_branch(code.operand)) } else { self.spend(2, 2); },
            Op::Beq => if self.nz & 0xFF == 0 { jump!(self.take_branch(code.operand)) } else { self.spend(2, 2); },
            Op::Jmp => { self.cycle += 3; jump!(self.pc = code.operand) }
            Op::JmpInd => {
                // The chip does not carry into the page of the pointer's second byte.
                let after = (code.operand & 0xFF00) | (code.operand.wrapping_add(1) & 0xFF);
                let (Some(low), Some(high)) = (self.peek(code.operand), self.peek(after)) else { return false };
                self.cycle += 5;
                jump!(self.pc = u16::from_le_bytes([low, high]))
            }
            Op::Jsr => {
                // Both bytes must go to memory.
                if self.s <= 0x80 { return false; }
                let back = self.pc.wrapping_add(2);
                self.ram[usize::from(self.s & 0x7F)] = (back >> 8) as u8;
                self.ram[usize::from((self.s - 1) & 0x7F)] = back as u8;
                self.s -= 2;
                self.cycle += 6;
                jump!(self.pc = code.operand)
            }
            Op::Rts => {
                let (Some(low), Some(high)) = (self.zero_page(self.s.wrapping_add(1)), self.zero_page(self.s.wrapping_add(2))) else { return false };
                self.s = self.s.wrapping_add(2);
                self.cycle += 6;
                jump!(self.pc = u16::from_le_bytes([low, high]).wrapping_add(1))
            }

            Op::Clc => { self.spend(2, 1); self.c = false; }
            Op::Sec => { self.spend(2, 1); self.c = true; }
            Op::Cld => { self.spend(2, 1); self.di &= !super::DECIMAL; }
            Op::Sed => { self.spend(2, 1); self.di |= super::DECIMAL; }
            Op::Clv => { self.spend(2, 1); self.v = false; }
            Op::Cli => { self.spend(2, 1); self.di &= !super::INTERRUPT; }
            Op::Sei => { self.spend(2, 1); self.di |= super::INTERRUPT; }
            Op::Nop => self.spend(2, 1),
            Op::NopImm => self.spend(2, 2),
            Op::NopRam => self.spend(3, 2),

            Op::Slow => return false,
        }
        self.left -= 1;
        true
    }

    #[inline(always)]
    fn spend(&mut self, cycles: u32, length: u16) {
        self.cycle += cycles;
        self.pc = self.pc.wrapping_add(length);
    }

    /// Reads where reading does nothing else.
    #[inline(always)]
    fn peek(&self, address: u16) -> Option<u8> {
        if address & 0x1000 != 0 {
            self.layout.byte(address)
        } else if address & 0x0280 == 0x0080 {
            Some(self.ram[usize::from(address & 0x7F)])
        } else {
            None
        }
    }

    #[inline(always)]
    fn zero_page(&self, address: u8) -> Option<u8> {
        (address & 0x80 != 0).then(|| self.ram[usize::from(address & 0x7F)])
    }

    /// The pointer at an address that is in memory, as is the next one.
    #[inline(always)]
    fn pointer(&self, at: u8) -> u16 {
        let byte = |at: u8| self.ram[usize::from(at & 0x7F)];
        u16::from_le_bytes([byte(at), byte(at.wrapping_add(1))])
    }

    /// Writes to memory or to the TIA. Says whether it could.
    #[inline(always)]
    fn poke(&mut self, address: u16, value: u8) -> bool {
        if address & 0x1280 == 0x0080 {
            self.ram[usize::from(address & 0x7F)] = value;
            return true;
        }
        if address & 0x1080 != 0 {
            return false;
        }
        let register = (address & 0x3F) as u8;
        if LOGGED >> register & 1 != 0 {
            self.log(register, value)
        } else if register == WSYNC {
            self.wait()
        } else if SILENT >> register & 1 != 0 && self.cycle < self.frame_end {
            self.touched = self.cycle;
            true
        } else {
            false
        }
    }

    /// Logs a write to a picture register.
    #[inline(always)]
    fn log(&mut self, register: u8, value: u8) -> bool {
        if self.cycle >= self.frame_end {
            return false;
        }
        let Some(slot) = self.log.get_mut(self.used) else {
            return false;
        };
        match self.shadow.write(register, value) {
            Some(value) => {
                *slot = Write::new(self.cycle as u16, register, value);
                self.used += 1;
            }
            None => self.touched = self.cycle,
        }
        true
    }

    /// Halts until the next line starts.
    #[inline(always)]
    fn wait(&mut self) -> bool {
        if self.cycle >= self.frame_end {
            return false;
        }
        self.touched = self.cycle;
        self.cycle = self.cycle.next_multiple_of(LINE_CYCLES as u32);
        true
    }

    /// Reads an input pin of the TIA, `cycles` from now; `seen` is what floats on the bus.
    #[inline(always)]
    fn pin(&mut self, address: u16, seen: u8, cycles: u32) -> Option<u8> {
        if address & 0x1088 != 0x0008 {
            return None;
        }
        let now = self.cycle + cycles;
        self.touched = now;
        let up = now > self.pins.up_after[usize::from(address & 7)];
        Some(u8::from(up) << 7 | seen & 0x3F)
    }

    /// Whether the program is outside of the cartridge, or the last instructions of an update
    /// are near: from one jump to the next there are always fewer than this.
    #[inline(always)]
    fn far(&self) -> bool {
        self.pc & 0x1000 == 0 || self.left < LAST
    }

    #[inline(always)]
    fn take_branch(&mut self, operand: u16) {
        let [offset, cycles] = operand.to_le_bytes();
        self.cycle += u32::from(cycles);
        self.pc = self
            .pc
            .wrapping_add(2)
            .wrapping_add_signed(i16::from(offset as i8));
    }

    #[inline(always)]
    fn decimal(&self) -> bool {
        self.di & super::DECIMAL != 0
    }

    #[inline(always)]
    fn load_a(&mut self, value: u8) {
        self.a = value;
        self.nz = u16::from(value);
    }

    #[inline(always)]
    fn load_x(&mut self, value: u8) {
        self.x = value;
        self.nz = u16::from(value);
    }

    #[inline(always)]
    fn load_y(&mut self, value: u8) {
        self.y = value;
        self.nz = u16::from(value);
    }

    /// Adds in binary; subtracting is adding the complement.
    #[inline(always)]
    fn add(&mut self, value: u8) {
        let sum = u16::from(self.a) + u16::from(value) + u16::from(self.c);
        let result = sum as u8;
        self.v = !(self.a ^ value) & (self.a ^ result) & 0x80 != 0;
        self.c = sum > 0xFF;
        self.load_a(result);
    }

    #[inline(always)]
    fn compare(&mut self, register: u8, value: u8) {
        self.c = register >= value;
        self.nz = u16::from(register.wrapping_sub(value));
    }

    #[inline(always)]
    fn bit(&mut self, value: u8) {
        self.nz = u16::from(self.a & value) | u16::from(value & 0x80) << 8;
        self.v = value & 0x40 != 0;
    }

    #[inline(always)]
    fn increment(&mut self, value: u8) -> u8 {
        let result = value.wrapping_add(1);
        self.nz = u16::from(result);
        result
    }

    #[inline(always)]
    fn decrement(&mut self, value: u8) -> u8 {
        let result = value.wrapping_sub(1);
        self.nz = u16::from(result);
        result
    }

    #[inline(always)]
    fn shift_left(&mut self, value: u8) -> u8 {
        self.c = value & 0x80 != 0;
        let result = value << 1;
        self.nz = u16::from(result);
        result
    }

    #[inline(always)]
    fn shift_right(&mut self, value: u8) -> u8 {
        self.c = value & 1 != 0;
        let result = value >> 1;
        self.nz = u16::from(result);
        result
    }

    #[inline(always)]
    fn rotate_left(&mut self, value: u8) -> u8 {
        let result = (value << 1) | u8::from(self.c);
        self.c = value & 0x80 != 0;
        self.nz = u16::from(result);
        result
    }

    #[inline(always)]
    fn rotate_right(&mut self, value: u8) -> u8 {
        let result = (value >> 1) | (u8::from(self.c) << 7);
        self.c = value & 1 != 0;
        self.nz = u16::from(result);
        result
    }

    /// The flags as `PHP` pushes them.
    #[inline(always)]
    fn status(&self) -> u8 {
        super::ALWAYS
            | super::BREAK
            | self.di
            | u8::from(self.nz & 0x8080 != 0) << 7
            | u8::from(self.v) << 6
            | u8::from(self.nz & 0xFF == 0) << 1
            | u8::from(self.c)
    }

    #[inline(always)]
    fn set_status(&mut self, p: u8) {
        self.nz = u16::from(p & 0x80) << 8 | u16::from(!p & super::ZERO);
        self.c = p & super::CARRY != 0;
        self.v = p & super::OVERFLOW != 0;
        self.di = p & (super::DECIMAL | super::INTERRUPT);
    }
}
