//! What each instruction does.

use super::super::decode::Op;
use super::super::layout::Layout;
use super::super::{DECIMAL, INTERRUPT};
use super::Fast;
use crate::tia::beam::collision_bits;

/// The opcode that stays on the bus while the processor pulls from where the stack is not in
/// memory.
const PLA: u8 = 0x68;

impl<'a, L: Layout<'a>> Fast<'_, L> {
    /// Runs one instruction, or two that were decoded as one. Returns whether the loop continues.
    #[rustfmt::skip]
    #[inline(always)]
    pub(super) fn step(&mut self) -> bool {
        let code = self.layout.code(self.pc);

        /// Jumps within the cartridge; ends the loop if it is late.
        macro_rules! jump {
            ($target:expr) => {{ self.pc = $target; if self.late() { return false; } }};
        }
        /// Jumps anywhere; ends the loop outside of the cartridge, or if it is late.
        macro_rules! jump_far {
            ($target:expr) => {{ self.pc = $target; if self.far() { return false; } }};
        }
        /// A branch that is taken if the condition holds, and how it was decoded.
        macro_rules! branch {
            ($taken:expr) => { branch!($taken, code.low, code.high) };
            ($taken:expr, $offset:expr, $cycles:expr) => {{
                if $taken {
                    self.time = self.time.after(u32::from($cycles), 1);
                    jump!(self.pc.wrapping_add(2).wrapping_add_signed(i16::from($offset as i8)))
                } else {
                    self.spend(2, 2);
                }
            }};
        }
        /// The operand's value; ends the loop if it needs the whole bus.
        macro_rules! value {
            (imm) => {{ self.spend(2, 2); code.low }};
            (ram) => {{ self.spend(3, 2); self.ram[usize::from(code.low & 0x7F)] }};
            (zpx) => {{
                let at = code.low.wrapping_add(self.x);
                let now = self.time.after(4, 1);
                let Some(value) = self.zero_page(at).or_else(|| self.pin(u16::from(at), code.low, now)) else { return false };
                self.spend(4, 2);
                value
            }};
            (collision) => {{
                let Some(collided) = self.collided.filter(|_| self.used == self.settled_at) else { return false };
                self.spend(3, 2);
                self.touched = self.time;
                collision_bits(collided, usize::from(code.low)) | code.low & 0x3F
            }};
            (pin) => {{
                let now = self.time.after(3, 1);
                let Some(value) = self.pin(u16::from(code.low), code.low, now) else { return false };
                self.spend(3, 2);
                value
            }};
            (zpy) => {{ let Some(value) = self.zero_page(code.low.wrapping_add(self.y)) else { return false }; self.spend(4, 2); value }};
            (abs) => {{
                let now = self.time.after(4, 1);
                let Some(value) = self.peek(code.word()).or_else(|| self.port(code.word(), now)) else { return false };
                self.spend(4, 3);
                value
            }};
            (abx) => { value!(@indexed code.word(), self.x, 4, 3) };
            (aby) => { value!(@indexed code.word(), self.y, 4, 3) };
            (ind) => {{ let base = self.pointer(code.low); value!(@indexed base, self.y, 5, 2) }};
            (@indexed $base:expr, $index:expr, $cycles:expr, $length:expr) => {{
                let base = $base;
                let address = base.wrapping_add(u16::from($index));
                let now = self.time.after($cycles + u32::from((base ^ address) & 0xFF00 != 0), 1);
                let Some(value) = self.peek(address).or_else(|| self.pin(address, (base >> 8) as u8, now)) else { return false };
                self.time = now;
                self.pc = self.pc.wrapping_add($length);
                value
            }};
        }
        /// Stores a value; ends the loop if that needs the whole bus.
        macro_rules! store {
            (ram, $value:expr) => {{ self.spend(3, 2); self.ram[usize::from(code.low & 0x7F)] = $value; }};
            (tia, $value:expr) => { store!(@done self.log(code.low, $value, self.time.after(3, 1)), 2) };
            (wait) => { store!(@done self.wait(self.time.after(3, 1)), 2) };
            (zpx, $value:expr) => { store!(@anywhere u16::from(code.low.wrapping_add(self.x)), $value, 4, 2) };
            (zpy, $value:expr) => { store!(@anywhere u16::from(code.low.wrapping_add(self.y)), $value, 4, 2) };
            (abs, $value:expr) => { store!(@anywhere code.word(), $value, 4, 3) };
            (abx, $value:expr) => { store!(@anywhere code.word().wrapping_add(u16::from(self.x)), $value, 5, 3) };
            (aby, $value:expr) => { store!(@anywhere code.word().wrapping_add(u16::from(self.y)), $value, 5, 3) };
            (ind, $value:expr) => { store!(@anywhere self.pointer(code.low).wrapping_add(u16::from(self.y)), $value, 6, 2) };
            (@anywhere $address:expr, $value:expr, $cycles:expr, $length:expr) => {{
                let address = $address;
                store!(@done self.poke(address, $value, self.time.after($cycles, 1)), $length)
            }};
            (@done $done:expr, $length:expr) => {{ if !$done { return false; } self.pc = self.pc.wrapping_add($length); }};
        }
        /// Changes a byte of memory in place.
        macro_rules! modify {
            (ram, $change:ident) => {{
                self.spend(5, 2);
                let at = usize::from(code.low & 0x7F);
                let new = self.$change(self.ram[at]);
                self.ram[at] = new;
                new
            }};
            (zpx, $change:ident) => {{
                let at = code.low.wrapping_add(self.x);
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
            () => { store!(@done self.log(code.second, self.a, self.time.after(3, 1)), 2) };
        }

        /// The second instruction of two: a branch.
        macro_rules! then_branch {
            ($taken:expr) => { branch!($taken, code.second, code.high) };
        }
        /// The second instruction of two: a store of A to memory.
        macro_rules! then_sta_ram {
            () => {{ self.spend(3, 2); self.ram[usize::from(code.second & 0x7F)] = self.a; }};
        }
        /// The second instruction of two: a store of Y to the TIA.
        macro_rules! then_sty {
            () => { store!(@done self.log(code.second, self.y, self.time.after(3, 1)), 2) };
        }
        /// All turns of a loop that only counts a register down, up to where it leaves the loop;
        /// if it is late, none.
        macro_rules! count_down {
            ($turns:expr) => {{
                if self.late() { return false; }
                let turns = $turns;
                let cycles = (turns - 1) * (2 + u32::from(code.high)) + 4;
                self.time = self.time.after(cycles, 2 * turns);
                self.pc = self.pc.wrapping_add(3);
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
            Op::DexBne => { self.spend(2, 1); self.load_x(self.x.wrapping_sub(1)); branch!(self.x != 0) }
            Op::DexBpl => { self.spend(2, 1); self.load_x(self.x.wrapping_sub(1)); branch!(self.x & 0x80 == 0) }
            Op::DeyBne => { self.spend(2, 1); self.load_y(self.y.wrapping_sub(1)); branch!(self.y != 0) }
            Op::DeyBpl => { self.spend(2, 1); self.load_y(self.y.wrapping_sub(1)); branch!(self.y & 0x80 == 0) }
            Op::AslAsl => { self.spend_two(4, 2); self.c = self.a >> 6 & 1; self.load_a(self.a << 2); }
            Op::LsrLsr => { self.spend_two(4, 2); self.c = self.a >> 1 & 1; self.load_a(self.a >> 2); }
            Op::NopNop => { self.spend_two(4, 2); }
            Op::SecSbcRam => {
                self.spend(2, 1);
                self.c = 1;
                if self.decimal() { return false; }
                let v = value!(ram);
                self.add(!v);
            }
            Op::LdyRamLdaInd => {
                self.spend(3, 2);
                self.load_y(self.ram[usize::from(code.low & 0x7F)]);
                let base = self.pointer(code.second);
                let v = value!(@indexed base, self.y, 5, 2);
                self.load_a(v);
            }
            Op::CmpImmBeq => { let v = value!(imm); self.compare(self.a, v); then_branch!(self.zero()) }
            Op::CmpImmBne => { let v = value!(imm); self.compare(self.a, v); then_branch!(!self.zero()) }
            Op::CmpImmBcc => { let v = value!(imm); self.compare(self.a, v); then_branch!(!self.carry()) }
            Op::CmpImmBcs => { let v = value!(imm); self.compare(self.a, v); then_branch!(self.carry()) }
            Op::CmpRamBeq => { let v = value!(ram); self.compare(self.a, v); then_branch!(self.zero()) }
            Op::CmpRamBcc => { let v = value!(ram); self.compare(self.a, v); then_branch!(!self.carry()) }
            Op::CmpRamBcs => { let v = value!(ram); self.compare(self.a, v); then_branch!(self.carry()) }
            Op::CpyRamBne => { let v = value!(ram); self.compare(self.y, v); then_branch!(!self.zero()) }
            Op::CpyRamBcc => { let v = value!(ram); self.compare(self.y, v); then_branch!(!self.carry()) }
            Op::CpyRamBcs => { let v = value!(ram); self.compare(self.y, v); then_branch!(self.carry()) }
            Op::CpyImmBne => { let v = value!(imm); self.compare(self.y, v); then_branch!(!self.zero()) }
            Op::CpyImmBcs => { let v = value!(imm); self.compare(self.y, v); then_branch!(self.carry()) }
            Op::CpxImmBne => { let v = value!(imm); self.compare(self.x, v); then_branch!(!self.zero()) }
            Op::CpxRamBeq => { let v = value!(ram); self.compare(self.x, v); then_branch!(self.zero()) }
            Op::AndImmBne => { let v = value!(imm); self.load_a(self.a & v); then_branch!(!self.zero()) }
            Op::AndImmBeq => { let v = value!(imm); self.load_a(self.a & v); then_branch!(self.zero()) }
            Op::AndRamBeq => { let v = value!(ram); self.load_a(self.a & v); then_branch!(self.zero()) }
            Op::BitRamBpl => { let v = value!(ram); self.bit(v); then_branch!(!self.negative()) }
            Op::BitRamBmi => { let v = value!(ram); self.bit(v); then_branch!(self.negative()) }
            Op::BitRamBvc => { let v = value!(ram); self.bit(v); then_branch!(!self.overflow()) }
            Op::LdaRamBeq => { let v = value!(ram); self.load_a(v); then_branch!(self.zero()) }
            Op::LdaRamBne => { let v = value!(ram); self.load_a(v); then_branch!(!self.zero()) }
            Op::LdaRamBmi => { let v = value!(ram); self.load_a(v); then_branch!(self.negative()) }
            Op::LdaRamBpl => { let v = value!(ram); self.load_a(v); then_branch!(!self.negative()) }
            Op::LdaZpxBmi => { let v = value!(zpx); self.load_a(v); then_branch!(self.negative()) }
            Op::DecRamBpl => { modify!(ram, decrement); then_branch!(!self.negative()) }
            Op::DecRamBne => { modify!(ram, decrement); then_branch!(!self.zero()) }
            Op::SbcImmBcs => { if self.decimal() { return false; } let v = value!(imm); self.add(!v); then_branch!(self.carry()) }
            Op::LsrABne => { self.spend(2, 1); self.a = self.shift_right(self.a); then_branch!(!self.zero()) }
            Op::InxBmi => { self.spend(2, 1); self.load_x(self.x.wrapping_add(1)); then_branch!(self.negative()) }
            Op::DeyBeq => { self.spend(2, 1); self.load_y(self.y.wrapping_sub(1)); then_branch!(self.zero()) }
            Op::LsrRamBcc => { modify!(ram, shift_right); then_branch!(!self.carry()) }
            Op::LdaImmStaRam => { let v = value!(imm); self.load_a(v); then_sta_ram!() }
            Op::LdaAbxStaRam => { let v = value!(abx); self.load_a(v); then_sta_ram!() }
            Op::LdaAbyStaRam => { let v = value!(aby); self.load_a(v); then_sta_ram!() }
            Op::LdaIndStaRam => { let v = value!(ind); self.load_a(v); then_sta_ram!() }
            Op::AndImmStaRam => { let v = value!(imm); self.load_a(self.a & v); then_sta_ram!() }
            Op::OraRamStaRam => { let v = value!(ram); self.load_a(self.a | v); then_sta_ram!() }
            Op::AdcZpxStaRam => { if self.decimal() { return false; } let v = value!(zpx); self.add(v); then_sta_ram!() }
            Op::LdyRamStyTia => { let v = value!(ram); self.load_y(v); then_sty!() }
            Op::LdyAbxStyTia => { let v = value!(abx); self.load_y(v); then_sty!() }
            Op::LdaRamAndImm => { let v = value!(ram); self.load_a(v); self.spend(2, 2); self.load_a(self.a & code.second); }
            Op::LdaZpxAndImm => { let v = value!(zpx); self.load_a(v); self.spend(2, 2); self.load_a(self.a & code.second); }
            Op::LdaIndTax => { let v = value!(ind); self.load_a(v); self.spend(2, 1); self.load_x(self.a); }
            Op::LdaAbyBmi => { let v = value!(aby); self.load_a(v); branch!(self.negative(), code.second, 3u8) }
            Op::ClcAdcRam => { self.spend(2, 1); self.c = 0; if self.decimal() { return false; } let v = value!(ram); self.add(v); }
            Op::ClcAdcImm => { self.spend(2, 1); self.c = 0; if self.decimal() { return false; } let v = value!(imm); self.add(v); }
            Op::SecSbcImm => { self.spend(2, 1); self.c = 1; if self.decimal() { return false; } let v = value!(imm); self.add(!v); }
            Op::DexBneSelf => { let turns = turns_to_zero(self.x); count_down!(turns); self.load_x(0); }
            Op::DeyBneSelf => { let turns = turns_to_zero(self.y); count_down!(turns); self.load_y(0); }
            Op::DexBplSelf => { let turns = turns_to_negative(self.x); count_down!(turns); self.load_x(self.x.wrapping_sub(turns as u8)); }
            Op::DeyBplSelf => { let turns = turns_to_negative(self.y); count_down!(turns); self.load_y(self.y.wrapping_sub(turns as u8)); }

            Op::LdaImm => { let v = value!(imm); self.load_a(v); }
            Op::LdaRam => { let v = value!(ram); self.load_a(v); }
            Op::LdaZpx => { let v = value!(zpx); self.load_a(v); }
            Op::LdaAbs => { let v = value!(abs); self.load_a(v); }
            Op::LdaAbx => { let v = value!(abx); self.load_a(v); }
            Op::LdaAby => { let v = value!(aby); self.load_a(v); }
            Op::LdaInd => { let v = value!(ind); self.load_a(v); }
            Op::LdaInx => {
                let at = code.low.wrapping_add(self.x);
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
            Op::LaxRam => { let v = value!(ram); self.time = self.time.after(1, 0); self.load_a(v); self.x = v; }
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
            Op::HmClr => store!(@done self.clear_motions(self.time.after(3, 1)), 2),
            Op::Strobe => store!(@done self.strobe(code.low, self.time.after(3, 1)), 2),
            Op::Sound => store!(@done self.make_sound(self.time.after(3, 1)), 2),

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

            Op::Pha => { store!(@anywhere u16::from(self.s), self.a, 3, 1); self.s = self.s.wrapping_sub(1); }
            Op::Php => { store!(@anywhere u16::from(self.s), self.status(), 3, 1); self.s = self.s.wrapping_sub(1); }
            Op::Pla => {
                let from = self.s.wrapping_add(1);
                let now = self.time.after(4, 1);
                let Some(value) = self.zero_page(from).or_else(|| self.pin(u16::from(from), PLA, now)) else { return false };
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

            Op::Bpl => branch!(!self.negative()),
            Op::Bmi => branch!(self.negative()),
            Op::Bvc => branch!(!self.overflow()),
            Op::Bvs => branch!(self.overflow()),
            Op::Bcc => branch!(!self.carry()),
            Op::Bcs => branch!(self.carry()),
            Op::Bne => branch!(!self.zero()),
            Op::Beq => branch!(self.zero()),
            Op::Jmp => { self.time = self.time.after(3, 1); jump!(code.word()) }
            Op::JmpInd => {
                // The chip does not carry into the page of the pointer's second byte.
                let at = code.word();
                let after = (at & 0xFF00) | (at.wrapping_add(1) & 0xFF);
                let (Some(low), Some(high)) = (self.peek(at), self.peek(after)) else { return false };
                self.time = self.time.after(5, 1);
                jump_far!(u16::from_le_bytes([low, high]))
            }
            Op::Jsr => {
                // Both bytes must go to memory.
                if self.s <= 0x80 { return false; }
                let back = self.pc.wrapping_add(2);
                self.ram[usize::from(self.s & 0x7F)] = (back >> 8) as u8;
                self.ram[usize::from((self.s - 1) & 0x7F)] = back as u8;
                self.s -= 2;
                self.time = self.time.after(6, 1);
                jump!(code.word())
            }
            Op::Rts => {
                let (Some(low), Some(high)) = (self.zero_page(self.s.wrapping_add(1)), self.zero_page(self.s.wrapping_add(2))) else { return false };
                self.s = self.s.wrapping_add(2);
                self.time = self.time.after(6, 1);
                jump_far!(u16::from_le_bytes([low, high]).wrapping_add(1))
            }
            Op::Brk => {
                // All three bytes must go to memory.
                if self.s <= 0x81 { return false; }
                let (Some(low), Some(high)) = (self.layout.byte(0xFFFE), self.layout.byte(0xFFFF)) else { return false };
                let back = self.pc.wrapping_add(2);
                self.ram[usize::from(self.s & 0x7F)] = (back >> 8) as u8;
                self.ram[usize::from((self.s - 1) & 0x7F)] = back as u8;
                self.ram[usize::from((self.s - 2) & 0x7F)] = self.status();
                self.s -= 3;
                self.di |= INTERRUPT;
                self.time = self.time.after(7, 1);
                jump_far!(u16::from_le_bytes([low, high]))
            }
            Op::Rti => {
                let pulled = |count: u8| self.zero_page(self.s.wrapping_add(count));
                let (Some(p), Some(low), Some(high)) = (pulled(1), pulled(2), pulled(3)) else { return false };
                self.s = self.s.wrapping_add(3);
                self.set_status(p);
                self.time = self.time.after(6, 1);
                jump_far!(u16::from_le_bytes([low, high]))
            }

            Op::Clc => { self.spend(2, 1); self.c = 0; }
            Op::Sec => { self.spend(2, 1); self.c = 1; }
            Op::Cld => { self.spend(2, 1); self.di &= !DECIMAL; }
            Op::Sed => { self.spend(2, 1); self.di |= DECIMAL; }
            Op::Clv => { self.spend(2, 1); self.v = 0; }
            Op::Cli => { self.spend(2, 1); self.di &= !INTERRUPT; }
            Op::Sei => { self.spend(2, 1); self.di |= INTERRUPT; }
            Op::Nop => self.spend(2, 1),
            Op::NopImm => self.spend(2, 2),
            Op::NopRam => self.spend(3, 2),

            Op::Slow => return false,
        }
        true
    }
}

/// How often a register is counted down until it is zero.
#[inline(always)]
fn turns_to_zero(register: u8) -> u32 {
    u32::from(register.wrapping_sub(1)) + 1
}

/// How often a register is counted down until its top bit is set.
#[inline(always)]
fn turns_to_negative(register: u8) -> u32 {
    let left = register.wrapping_sub(1);
    if left & 0x80 == 0 {
        u32::from(left) + 2
    } else {
        1
    }
}
