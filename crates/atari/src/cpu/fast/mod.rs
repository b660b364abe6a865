//! The loop that runs nearly all instructions: those that access only the cartridge's ordinary
//! memory, the console's memory and ports, and registers of the TIA that are only logged.
//!
//! It works on a decoded cartridge and calls no functions, so that the emulated registers stay in
//! the host's registers. It stops before an instruction that needs more, and [`super::general`]
//! runs that one with the whole bus.
//!
//! [`Fast`] is what the loop works on, `step` what each instruction does, `access` how it reaches
//! memory and chips, `arithmetic` the effects on registers and flags.

mod access;
mod arithmetic;
mod step;

use super::Core;
use super::layout::Layout;
use crate::bus::Bus;
use crate::console::Machine;
use crate::riot::Riot;
use crate::tia::Write;
use crate::tia::shadow::Shadow;

/// Runs up to the first instruction that needs the whole bus, or until `core.left` is nearly used
/// up.
pub(super) fn run<'a, L: Layout<'a>>(core: &mut Core, bus: &mut Bus<'a>, pins: &Pins) {
    if core.pc & 0x1000 == 0 || core.left < LAST {
        return;
    }
    let machine = &mut *bus.machine;
    // Cycles are counted from the frame's start, in all but frames that never end.
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
    let frame_end = if origin == 0 {
        machine.tia.frame_end()
    } else {
        0
    };
    // Copies, for what is on the stack is reached without a pointer.
    let mut ram = machine.ram;
    let mut shadow = machine.tia.shadow.clone();
    let mut fast = Fast {
        a: core.a,
        x: core.x,
        y: core.y,
        s: core.s,
        nz: u16::from(core.z) | u16::from(core.n & 0x80) << 8,
        c: u8::from(core.c),
        v: u8::from(core.v) << 7,
        di: core.di,
        pc: core.pc,
        time: Time::new((core.cycle - origin) as u32),
        frame_end: Time::new(frame_end),
        touched: Time::new(0),
        most: (core.left - LAST).min(u32::from(u16::MAX) - LAST) as u16,
        ram: &mut ram,
        log,
        used: *used,
        shadow: &mut shadow,
        collided,
        settled_at: *used,
        pins,
        riot: &machine.riot,
        riot_origin: origin,
        layout: L::new(bus.rom, &machine.cartridge),
    };
    fast.run();
    *used = fast.used;
    core.a = fast.a;
    core.x = fast.x;
    core.y = fast.y;
    core.s = fast.s;
    core.n = if fast.nz & 0x8080 != 0 { 0x80 } else { 0 };
    core.z = fast.nz as u8;
    core.c = fast.c != 0;
    core.v = fast.v & 0x80 != 0;
    core.di = fast.di;
    core.pc = fast.pc;
    core.cycle = origin + i64::from(fast.time.cycle());
    core.left -= u32::from(fast.time.instructions());
    if fast.touched.cycle() != 0 {
        machine.tia.touched = origin + i64::from(fast.touched.cycle());
    }
    machine.ram = ram;
    machine.tia.shadow = shadow;
}

/// How many instructions may follow each other without a look at how many are left: a bank full
/// of them, and the turns of a loop that only counts.
const LAST: u32 = 4096 + 2 * 256;

/// Cycles that have passed, and instructions that have run, in one number: both grow at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Time(u64);

impl Time {
    #[inline(always)]
    fn new(cycle: u32) -> Self {
        Self(u64::from(cycle) << 16)
    }

    /// After some more instructions.
    #[inline(always)]
    fn after(self, cycles: u32, instructions: u32) -> Self {
        Self(self.0 + u64::from(cycles << 16 | instructions))
    }

    /// At a later cycle.
    #[inline(always)]
    fn until(self, cycle: u32) -> Self {
        Self(u64::from(cycle) << 16 | self.0 & 0xFFFF)
    }

    #[inline(always)]
    fn cycle(self) -> u32 {
        (self.0 >> 16) as u32
    }

    /// What is logged of a time: the low bits of the cycle, above 16 zeros.
    #[inline(always)]
    fn stamp(self) -> u32 {
        self.0 as u32 & 0xFFFF_0000
    }

    #[inline(always)]
    fn instructions(self) -> u16 {
        self.0 as u16
    }
}

/// What the input pins and ports read as until the next write to VBLANK.
#[derive(Clone, Debug)]
pub(super) struct Pins {
    /// After which cycle each of the TIA's registers 8 to 15 reads as up.
    up_after: [u32; 8],
    /// The RIOT's two ports.
    ports: [u8; 2],
}

impl Pins {
    /// The pins, for cycles counted from `origin`.
    pub(super) fn new(machine: &Machine, origin: i64) -> Self {
        let mut up_after = [u32::MAX; 8];
        for (register, cycle) in up_after.iter_mut().enumerate() {
            let after = machine.tia.pin_up_after(register + 8, &machine.inputs);
            *cycle = after.map_or(u32::MAX, |after| {
                after.saturating_sub(origin).clamp(0, 1 << 30) as u32
            });
        }
        let ports = [machine.inputs.port_a(), machine.inputs.port_b()];
        Self { up_after, ports }
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
    /// One when C is set.
    c: u8,
    /// Bit 7 is set when V is.
    v: u8,
    di: u8,
    pc: u16,
    time: Time,
    /// From this cycle on a write to the TIA ends the frame.
    frame_end: Time,
    /// The last access to the TIA; zero where there was none.
    touched: Time,
    /// After this many instructions no further jump is taken.
    most: u16,
    ram: &'a mut [u8; 128],
    log: &'a mut [Write],
    used: usize,
    shadow: &'a mut Shadow,
    /// All collisions, where the beam has seen the log up to `settled_at` and no new ones come
    /// without a write.
    collided: Option<u32>,
    settled_at: usize,
    pins: &'a Pins,
    riot: &'a Riot,
    riot_origin: i64,
    layout: L,
}

impl<'a, L: Layout<'a>> Fast<'_, L> {
    #[inline(always)]
    fn run(&mut self) {
        while self.step() {}
    }

    #[inline(always)]
    fn spend(&mut self, cycles: u32, length: u16) {
        self.time = self.time.after(cycles, 1);
        self.pc = self.pc.wrapping_add(length);
    }

    /// The same for two instructions.
    #[inline(always)]
    fn spend_two(&mut self, cycles: u32, length: u16) {
        self.time = self.time.after(cycles, 2);
        self.pc = self.pc.wrapping_add(length);
    }

    /// Whether the last instructions of an update are near: from one jump to the next there are
    /// always fewer than those that are left then.
    #[inline(always)]
    fn late(&self) -> bool {
        self.time.instructions() > self.most
    }

    /// Whether the loop ends after a jump to an address that was not known before.
    #[inline(always)]
    fn far(&self) -> bool {
        self.pc & 0x1000 == 0 || self.late()
    }
}
