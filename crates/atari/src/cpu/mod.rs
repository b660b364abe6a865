//! The processor: a 6507, with the undocumented opcodes that games use.
//!
//! Timing follows the Arcade Learning Environment: the whole base cost of an instruction is
//! counted right after its opcode is fetched, and all its accesses happen at that one moment.
//!
//! [`run`] emulates a frame. Nearly all instructions run in `fast`, on a cartridge decoded by
//! `decode`; the others run one at a time in `general`, which knows every opcode and reaches every
//! chip. `core` holds the registers and what instructions do to them, `idle` counts the iterations
//! of loops that only wait for the timer.

mod core;
pub(crate) mod decode;
mod fast;
mod general;
mod idle;
mod layout;

use serde::{Deserialize, Serialize};

use crate::bus::Bus;
use crate::cartridge::Mapper;
use core::Core;

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
pub(crate) fn run<'a>(bus: &mut Bus<'a>, limit: u32) -> bool {
    let mut core = Core::new(&bus.machine.cpu, bus.machine.cycle, limit);
    match bus.rom.mapper() {
        Mapper::K2 | Mapper::K4 => run_with::<layout::WholeBank<'a>>(&mut core, bus),
        Mapper::E0 => run_with::<layout::Slices<'a>>(&mut core, bus),
        Mapper::Fe => run_with::<layout::Line13<'a>>(&mut core, bus),
        _ => run_with::<layout::Bank<'a>>(&mut core, bus),
    }
    bus.machine.cycle = core.cycle;
    bus.machine.cpu = core.registers();
    core.stop
}

fn run_with<'a, L: layout::Layout<'a>>(core: &mut Core, bus: &mut Bus<'a>) {
    let mut pins = fast::Pins::new(bus.machine, 0);
    let mut charge = bus.machine.tia.charge();
    loop {
        fast::run::<L>(core, bus, &pins);
        idle::rest(core, bus);
        if core.left == 0 {
            return;
        }
        idle::skip(core, bus);
        core.left -= 1;
        core.step(bus);
        if charge != bus.machine.tia.charge() {
            charge = bus.machine.tia.charge();
            pins = fast::Pins::new(bus.machine, 0);
        }
        if core.stop {
            return;
        }
    }
}

const CARRY: u8 = 0x01;
const ZERO: u8 = 0x02;
const INTERRUPT: u8 = 0x04;
const DECIMAL: u8 = 0x08;
const BREAK: u8 = 0x10;
const ALWAYS: u8 = 0x20;
const OVERFLOW: u8 = 0x40;
const NEGATIVE: u8 = 0x80;
