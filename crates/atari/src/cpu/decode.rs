//! A cartridge's image, decoded once: the instruction that would start at each byte.
//!
//! Only instructions that [`super::fast`] runs are decoded; all others are [`Op::Slow`].

use crate::cartridge::{IMAGE, Mapper};

/// A decoded instruction: what to do, and with what.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(4))]
pub(crate) struct Code {
    pub(crate) op: Op,
    /// The byte after the opcode.
    pub(crate) low: u8,
    /// The byte after that. For a branch: the cycles that it takes when it jumps.
    pub(crate) high: u8,
    /// Of two instructions in one: what the second one's operand is.
    pub(crate) second: u8,
}

impl Code {
    const SLOW: Self = Self {
        op: Op::Slow,
        low: 0,
        high: 0,
        second: 0,
    };

    /// Both bytes after the opcode.
    #[inline(always)]
    pub(crate) fn word(&self) -> u16 {
        u16::from_le_bytes([self.low, self.high])
    }
}

/// The decoded image: one entry per byte.
pub(crate) type Program = [Code; IMAGE];

/// Decodes an image.
pub(crate) fn decode(image: &[u8; IMAGE], mapper: Mapper) -> Box<Program> {
    let mut program = Box::new([Code::SLOW; IMAGE]);
    // What comes behind the end of a bank depends on what is mapped there.
    let bank = if mapper == Mapper::E0 { 0x400 } else { 0x1000 };
    for (index, code) in program.iter_mut().enumerate() {
        let byte = |offset: usize| image[(index + offset) & (IMAGE - 1)];
        let decoded = instruction([byte(0), byte(1), byte(2)], index);
        // An instruction that reaches the end of its bank is left to whoever fetches byte by byte.
        let length = decoded.op.length();
        let inside = index % bank + length < bank
            && (index..index + length).all(|at| !mapper.switches_at((at & 0xFFF) as u16));
        let waits = waits_for_timer([byte(0), byte(1), byte(2), byte(3), byte(4)]);
        if inside && stays(decoded, index % bank, bank) && !waits {
            *code = decoded;
        }
    }
    // Afterwards, for a pair's second instruction must be plain itself.
    for index in 0..IMAGE {
        let first = program[index];
        let second = program[(index + first.op.length()) & (IMAGE - 1)];
        program[index] = pair(first, second).unwrap_or(first);
    }
    program
}

/// Whether a jump at a place in its bank stays in the cartridge, if it is known where it goes.
fn stays(code: Code, place: usize, bank: usize) -> bool {
    match code.op {
        Op::Jmp | Op::Jsr => code.word() & 0x1000 != 0,
        Op::Bpl | Op::Bmi | Op::Bvc | Op::Bvs | Op::Bcc | Op::Bcs | Op::Bne | Op::Beq => {
            let target = place as i32 + 2 + i32::from(code.low as i8);
            (0..bank as i32).contains(&target)
        }
        _ => true,
    }
}

/// Whether this is a loop that only waits for the timer: its turns are counted, not run.
fn waits_for_timer(bytes: [u8; 5]) -> bool {
    let [load, low, high, branch, offset] = bytes;
    matches!(load, 0xAC..=0xAE)
        && u16::from_le_bytes([low, high]) & 0x1285 == 0x0284
        && matches!((branch, offset), (0xD0 | 0x10, 0xFB))
}

/// Two instructions that often follow each other, as one.
fn pair(first: Code, second: Code) -> Option<Code> {
    /// The branch back to the single byte before it, and the cycles that takes within a page.
    const BACK_ONE: u8 = 0xFD;
    const SAME_PAGE: u8 = 3;
    // The first one's operand, and one byte of the second's.
    let then = |op: Op| Code {
        op,
        second: second.low,
        ..first
    };
    // The first one's byte, and the branch's offset and cycles.
    let then_branch = |op: Op| Code {
        op,
        low: first.low,
        high: second.high,
        second: second.low,
    };
    // The first one has no operand.
    let only = |op: Op| Code { op, ..second };
    let itself = second.low == BACK_ONE;
    let code = match (first.op, second.op) {
        (Op::LdaImm, Op::StaTia) => then(Op::LdaImmSta),
        (Op::LdaRam, Op::StaTia) => then(Op::LdaRamSta),
        (Op::LdaZpx, Op::StaTia) => then(Op::LdaZpxSta),
        (Op::LdaAbx, Op::StaTia) => then(Op::LdaAbxSta),
        (Op::LdaAby, Op::StaTia) => then(Op::LdaAbySta),
        (Op::LdaInd, Op::StaTia) => then(Op::LdaIndSta),
        (Op::StaTia, Op::StaTia) => then(Op::StaSta),
        (Op::Wait, Op::StaTia) => then(Op::WaitSta),
        (Op::LdyRam, Op::StyTia) => then(Op::LdyRamStyTia),
        (Op::LdyAbx, Op::StyTia) => then(Op::LdyAbxStyTia),
        (Op::LdyRam, Op::LdaInd) => then(Op::LdyRamLdaInd),
        (Op::LdaRam, Op::AndImm) => then(Op::LdaRamAndImm),
        (Op::LdaZpx, Op::AndImm) => then(Op::LdaZpxAndImm),
        (Op::LdaInd, Op::Tax) => then(Op::LdaIndTax),
        (Op::Dex, Op::Bne) if itself => only(Op::DexBneSelf),
        (Op::Dex, Op::Bpl) if itself => only(Op::DexBplSelf),
        (Op::Dey, Op::Bne) if itself => only(Op::DeyBneSelf),
        (Op::Dey, Op::Bpl) if itself => only(Op::DeyBplSelf),
        (Op::Dex, Op::Bne) => only(Op::DexBne),
        (Op::Dex, Op::Bpl) => only(Op::DexBpl),
        (Op::Dey, Op::Bne) => only(Op::DeyBne),
        (Op::Dey, Op::Bpl) => only(Op::DeyBpl),
        (Op::AslA, Op::AslA) => only(Op::AslAsl),
        (Op::LsrA, Op::LsrA) => only(Op::LsrLsr),
        (Op::Nop, Op::Nop) => only(Op::NopNop),
        (Op::Sec, Op::SbcRam) => only(Op::SecSbcRam),
        (Op::Sec, Op::SbcImm) => only(Op::SecSbcImm),
        (Op::Clc, Op::AdcRam) => only(Op::ClcAdcRam),
        (Op::Clc, Op::AdcImm) => only(Op::ClcAdcImm),
        // No room is left for the cycles.
        (Op::LdaAby, Op::Bmi) if second.high == SAME_PAGE => then(Op::LdaAbyBmi),
        (Op::CmpImm, Op::Beq) => then_branch(Op::CmpImmBeq),
        (Op::CmpImm, Op::Bne) => then_branch(Op::CmpImmBne),
        (Op::CmpImm, Op::Bcc) => then_branch(Op::CmpImmBcc),
        (Op::CmpImm, Op::Bcs) => then_branch(Op::CmpImmBcs),
        (Op::CmpRam, Op::Beq) => then_branch(Op::CmpRamBeq),
        (Op::CmpRam, Op::Bcc) => then_branch(Op::CmpRamBcc),
        (Op::CmpRam, Op::Bcs) => then_branch(Op::CmpRamBcs),
        (Op::CpyRam, Op::Bne) => then_branch(Op::CpyRamBne),
        (Op::CpyRam, Op::Bcc) => then_branch(Op::CpyRamBcc),
        (Op::CpyRam, Op::Bcs) => then_branch(Op::CpyRamBcs),
        (Op::CpyImm, Op::Bne) => then_branch(Op::CpyImmBne),
        (Op::CpyImm, Op::Bcs) => then_branch(Op::CpyImmBcs),
        (Op::CpxImm, Op::Bne) => then_branch(Op::CpxImmBne),
        (Op::CpxRam, Op::Beq) => then_branch(Op::CpxRamBeq),
        (Op::AndImm, Op::Bne) => then_branch(Op::AndImmBne),
        (Op::AndImm, Op::Beq) => then_branch(Op::AndImmBeq),
        (Op::AndRam, Op::Beq) => then_branch(Op::AndRamBeq),
        (Op::BitRam, Op::Bpl) => then_branch(Op::BitRamBpl),
        (Op::BitRam, Op::Bmi) => then_branch(Op::BitRamBmi),
        (Op::BitRam, Op::Bvc) => then_branch(Op::BitRamBvc),
        (Op::LdaRam, Op::Beq) => then_branch(Op::LdaRamBeq),
        (Op::LdaRam, Op::Bne) => then_branch(Op::LdaRamBne),
        (Op::LdaRam, Op::Bmi) => then_branch(Op::LdaRamBmi),
        (Op::LdaRam, Op::Bpl) => then_branch(Op::LdaRamBpl),
        (Op::LdaZpx, Op::Bmi) => then_branch(Op::LdaZpxBmi),
        (Op::DecRam, Op::Bpl) => then_branch(Op::DecRamBpl),
        (Op::DecRam, Op::Bne) => then_branch(Op::DecRamBne),
        (Op::SbcImm, Op::Bcs) => then_branch(Op::SbcImmBcs),
        (Op::LsrA, Op::Bne) => then_branch(Op::LsrABne),
        (Op::Inx, Op::Bmi) => then_branch(Op::InxBmi),
        (Op::Dey, Op::Beq) => then_branch(Op::DeyBeq),
        (Op::LsrRam, Op::Bcc) => then_branch(Op::LsrRamBcc),
        (Op::LdaImm, Op::StaRam) => then(Op::LdaImmStaRam),
        (Op::LdaAbx, Op::StaRam) => then(Op::LdaAbxStaRam),
        (Op::LdaAby, Op::StaRam) => then(Op::LdaAbyStaRam),
        (Op::LdaInd, Op::StaRam) => then(Op::LdaIndStaRam),
        (Op::AndImm, Op::StaRam) => then(Op::AndImmStaRam),
        (Op::OraRam, Op::StaRam) => then(Op::OraRamStaRam),
        (Op::AdcZpx, Op::StaRam) => then(Op::AdcZpxStaRam),
        _ => return None,
    };
    Some(code)
}

/// What the fast loop can run: the instruction and the kind of its operand's place. `Ram` is the
/// console's memory in page zero, `Tia` a picture register that is only logged, `Zpx` and `Zpy`
/// page zero indexed, `Abs`, `Abx` and `Aby` a whole address, plain or indexed, `Ind` what a
/// pointer in memory names, indexed by Y.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[rustfmt::skip]
pub(crate) enum Op {
    // Two instructions in one; `Self` where the second jumps back to the first.
    LdaImmSta, LdaRamSta, LdaZpxSta, LdaAbxSta, LdaAbySta, LdaIndSta, StaSta, WaitSta,
    DexBne, DexBpl, DeyBne, DeyBpl, AslAsl, LsrLsr, NopNop, SecSbcRam, LdyRamLdaInd,
    CmpImmBeq, CmpImmBne, CmpImmBcc, CmpImmBcs, CmpRamBeq, CmpRamBcc, CmpRamBcs, CpyRamBne,
    CpyRamBcc, CpyRamBcs, CpyImmBne, CpyImmBcs, CpxImmBne, CpxRamBeq, AndImmBne, AndImmBeq,
    AndRamBeq, BitRamBpl, BitRamBmi, BitRamBvc, LdaRamBeq, LdaRamBne, LdaRamBmi, LdaRamBpl,
    LdaZpxBmi, DecRamBpl, DecRamBne, SbcImmBcs, LsrABne, InxBmi, DeyBeq, LsrRamBcc,
    LdaImmStaRam, LdaAbxStaRam, LdaAbyStaRam, LdaIndStaRam, AndImmStaRam, OraRamStaRam,
    AdcZpxStaRam, LdyRamStyTia, LdyAbxStyTia, LdaRamAndImm, LdaZpxAndImm, LdaIndTax, ClcAdcRam,
    ClcAdcImm, SecSbcImm, LdaAbyBmi, DexBneSelf, DexBplSelf, DeyBneSelf, DeyBplSelf,
    // One.
    LdaImm, LdaRam, LdaZpx, LdaAbs, LdaAbx, LdaAby, LdaInd, LdaInx,
    LdxImm, LdxRam, LdxZpy, LdxAbs, LdxAby,
    LdyImm, LdyRam, LdyZpx, LdyAbs, LdyAbx,
    LaxRam, LaxInd,
    AdcImm, AdcRam, AdcZpx, AdcAbs, AdcAbx, AdcAby, AdcInd,
    SbcImm, SbcRam, SbcZpx, SbcAbs, SbcAbx, SbcAby, SbcInd,
    AndImm, AndRam, AndZpx, AndAbs, AndAbx, AndAby, AndInd,
    OraImm, OraRam, OraZpx, OraAbs, OraAbx, OraAby, OraInd,
    EorImm, EorRam, EorZpx, EorAbs, EorAbx, EorAby, EorInd,
    CmpImm, CmpRam, CmpZpx, CmpAbs, CmpAbx, CmpAby, CmpInd,
    CpxImm, CpxRam, CpxAbs,
    CpyImm, CpyRam, CpyAbs,
    BitRam, BitAbs,
    /// Reads of an input pin.
    LdaPin, BitPin,
    /// Reads of a collision register.
    LdaCx, BitCx,
    StaRam, StaTia, StaZpx, StaAbs, StaAbx, StaAby, StaInd,
    StxRam, StxTia, StxZpy, StxAbs,
    StyRam, StyTia, StyZpx, StyAbs,
    SaxRam,
    /// A store to the register that halts the processor until the next line.
    Wait,
    /// A store to a picture register where any value does the same.
    Strobe,
    /// A store to the register that clears all motions.
    HmClr,
    /// A store to a register that only makes sound, or is not there.
    Sound,
    IncRam, IncZpx, DecRam, DecZpx, DcpRam,
    AslRam, AslZpx, LsrRam, LsrZpx, RolRam, RolZpx, RorRam, RorZpx,
    AslA, LsrA, RolA, RorA,
    Inx, Iny, Dex, Dey,
    Tax, Tay, Txa, Tya, Tsx, Txs,
    Pha, Php, Pla, Plp,
    Bpl, Bmi, Bvc, Bvs, Bcc, Bcs, Bne, Beq,
    Jmp, JmpInd, Jsr, Rts, Brk, Rti,
    Clc, Sec, Cld, Sed, Clv, Cli, Sei,
    Nop, NopImm, NopRam,
    /// Everything else.
    Slow,
}

impl Op {
    /// The bytes of the instruction; three for what is fetched byte by byte anyway.
    #[rustfmt::skip]
    fn length(self) -> usize {
        match self {
            Op::AslA | Op::LsrA | Op::RolA | Op::RorA
            | Op::Inx | Op::Iny | Op::Dex | Op::Dey
            | Op::Tax | Op::Tay | Op::Txa | Op::Tya | Op::Tsx | Op::Txs
            | Op::Pha | Op::Php | Op::Pla | Op::Plp | Op::Rts | Op::Brk | Op::Rti
            | Op::Clc | Op::Sec | Op::Cld | Op::Sed | Op::Clv | Op::Cli | Op::Sei
            | Op::Nop => 1,
            Op::LdaAbs | Op::LdaAbx | Op::LdaAby | Op::LdxAbs | Op::LdxAby | Op::LdyAbs | Op::LdyAbx
            | Op::AdcAbs | Op::AdcAbx | Op::AdcAby | Op::SbcAbs | Op::SbcAbx | Op::SbcAby
            | Op::AndAbs | Op::AndAbx | Op::AndAby | Op::OraAbs | Op::OraAbx | Op::OraAby
            | Op::EorAbs | Op::EorAbx | Op::EorAby | Op::CmpAbs | Op::CmpAbx | Op::CmpAby
            | Op::CpxAbs | Op::CpyAbs | Op::BitAbs
            | Op::StaAbs | Op::StaAbx | Op::StaAby | Op::StxAbs | Op::StyAbs
            | Op::Jmp | Op::JmpInd | Op::Jsr | Op::Slow => 3,
            _ => 2,
        }
    }
}

/// The registers that the TIA does nothing with but draw.
const fn is_logged(register: u8) -> bool {
    matches!(register, 0x04..=0x14 | 0x1B..=0x2C)
}

/// One bit per TIA register: whether a write to it is only logged.
pub(crate) const LOGGED: u64 = {
    let mut bits = 0;
    let mut register = 0;
    while register < 64 {
        if is_logged(register) {
            bits |= 1 << register;
        }
        register += 1;
    }
    bits
};

/// One bit per TIA register: whether a write to it does nothing here, because it only makes sound or
/// is not there.
pub(crate) const SILENT: u64 = !(LOGGED | 0b111);

fn instruction(bytes: [u8; 3], index: usize) -> Code {
    let [opcode, low, high] = bytes;
    let op = operation(opcode, low);
    let (low, high) = match op {
        Op::Bpl | Op::Bmi | Op::Bvc | Op::Bvs | Op::Bcc | Op::Bcs | Op::Bne | Op::Beq => {
            let after = (index as u8).wrapping_add(2);
            let same_page = (i16::from(after) + i16::from(low as i8)) & 0xFF00u16 as i16 == 0;
            (low, if same_page { 3 } else { 4 })
        }
        Op::StaTia | Op::StxTia | Op::StyTia | Op::Strobe => (low & 0x3F, 0),
        _ => (low, high),
    };
    Code {
        op,
        low,
        high,
        second: 0,
    }
}

/// `ram` where the operand is in the console's memory, else the other.
fn in_ram(low: u8, ram: Op, other: Op) -> Op {
    if low & 0x80 != 0 { ram } else { other }
}

/// A store to page zero.
fn store(low: u8, ram: Op, tia: Op) -> Op {
    let register = low & 0x3F;
    if low & 0x80 != 0 {
        ram
    } else if register == 0x02 {
        Op::Wait
    } else if register == 0x2B {
        Op::HmClr
    } else if matches!(register, 0x10..=0x14 | 0x2A | 0x2C) {
        Op::Strobe
    } else if SILENT >> register & 1 != 0 {
        Op::Sound
    } else if is_logged(register) {
        tia
    } else {
        Op::Slow
    }
}

#[rustfmt::skip]
fn operation(opcode: u8, low: u8) -> Op {
    use Op::*;
    let ram = |op: Op| in_ram(low, op, Slow);
    let tia = |pin: Op, collision: Op| if low & 8 != 0 { pin } else { collision };
    // A pointer at the end of page zero wraps to its start, in the TIA.
    let pointer = |op: Op| if low == 0xFF { Slow } else { in_ram(low, op, Slow) };
    match opcode {
        0xA9 => LdaImm, 0xA5 => in_ram(low, LdaRam, tia(LdaPin, LdaCx)), 0xB5 => LdaZpx, 0xAD => LdaAbs, 0xBD => LdaAbx, 0xB9 => LdaAby, 0xB1 => pointer(LdaInd), 0xA1 => LdaInx,
        0xA2 => LdxImm, 0xA6 => ram(LdxRam), 0xB6 => LdxZpy, 0xAE => LdxAbs, 0xBE => LdxAby,
        0xA0 => LdyImm, 0xA4 => ram(LdyRam), 0xB4 => LdyZpx, 0xAC => LdyAbs, 0xBC => LdyAbx,
        0xA7 => ram(LaxRam), 0xB3 => pointer(LaxInd),
        0x69 => AdcImm, 0x65 => ram(AdcRam), 0x75 => AdcZpx, 0x6D => AdcAbs, 0x7D => AdcAbx, 0x79 => AdcAby, 0x71 => pointer(AdcInd),
        0xE9 => SbcImm, 0xE5 => ram(SbcRam), 0xF5 => SbcZpx, 0xED => SbcAbs, 0xFD => SbcAbx, 0xF9 => SbcAby, 0xF1 => pointer(SbcInd),
        0x29 => AndImm, 0x25 => ram(AndRam), 0x35 => AndZpx, 0x2D => AndAbs, 0x3D => AndAbx, 0x39 => AndAby, 0x31 => pointer(AndInd),
        0x09 => OraImm, 0x05 => ram(OraRam), 0x15 => OraZpx, 0x0D => OraAbs, 0x1D => OraAbx, 0x19 => OraAby, 0x11 => pointer(OraInd),
        0x49 => EorImm, 0x45 => ram(EorRam), 0x55 => EorZpx, 0x4D => EorAbs, 0x5D => EorAbx, 0x59 => EorAby, 0x51 => pointer(EorInd),
        0xC9 => CmpImm, 0xC5 => ram(CmpRam), 0xD5 => CmpZpx, 0xCD => CmpAbs, 0xDD => CmpAbx, 0xD9 => CmpAby, 0xD1 => pointer(CmpInd),
        0xE0 => CpxImm, 0xE4 => ram(CpxRam), 0xEC => CpxAbs,
        0xC0 => CpyImm, 0xC4 => ram(CpyRam), 0xCC => CpyAbs,
        0x24 => in_ram(low, BitRam, tia(BitPin, BitCx)), 0x2C => BitAbs,
        0x85 => store(low, StaRam, StaTia), 0x95 => StaZpx, 0x8D => StaAbs, 0x9D => StaAbx, 0x99 => StaAby, 0x91 => pointer(StaInd),
        0x86 => store(low, StxRam, StxTia), 0x96 => StxZpy, 0x8E => StxAbs,
        0x84 => store(low, StyRam, StyTia), 0x94 => StyZpx, 0x8C => StyAbs,
        0x87 => ram(SaxRam),
        0xE6 => ram(IncRam), 0xF6 => IncZpx, 0xC6 => ram(DecRam), 0xD6 => DecZpx, 0xC7 => ram(DcpRam),
        0x06 => ram(AslRam), 0x16 => AslZpx, 0x46 => ram(LsrRam), 0x56 => LsrZpx,
        0x26 => ram(RolRam), 0x36 => RolZpx, 0x66 => ram(RorRam), 0x76 => RorZpx,
        0x0A => AslA, 0x4A => LsrA, 0x2A => RolA, 0x6A => RorA,
        0xE8 => Inx, 0xC8 => Iny, 0xCA => Dex, 0x88 => Dey,
        0xAA => Tax, 0xA8 => Tay, 0x8A => Txa, 0x98 => Tya, 0xBA => Tsx, 0x9A => Txs,
        0x48 => Pha, 0x08 => Php, 0x68 => Pla, 0x28 => Plp,
        0x10 => Bpl, 0x30 => Bmi, 0x50 => Bvc, 0x70 => Bvs, 0x90 => Bcc, 0xB0 => Bcs, 0xD0 => Bne, 0xF0 => Beq,
        0x4C => Jmp, 0x6C => JmpInd, 0x20 => Jsr, 0x60 => Rts, 0x00 => Brk, 0x40 => Rti,
        0x18 => Clc, 0x38 => Sec, 0xD8 => Cld, 0xF8 => Sed, 0xB8 => Clv, 0x58 => Cli, 0x78 => Sei,
        0xEA => Nop, 0x04 => ram(NopRam), 0x80 | 0x82 | 0x89 | 0xC2 | 0xE2 => NopImm,
        _ => Slow,
    }
}
