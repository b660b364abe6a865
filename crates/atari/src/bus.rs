//! The bus: which chip answers at which address.
//!
//! Thirteen address lines: line 12 selects the cartridge, else line 7 selects the RIOT over the
//! TIA, and line 9 its registers over its memory.

use crate::cartridge::Rom;
use crate::console::Machine;
use crate::tia::paint::Pixels;

/// The machine as its processor sees it for the length of a run.
pub(crate) struct Bus<'a> {
    pub(crate) machine: &'a mut Machine,
    pub(crate) rom: &'a Rom,
    /// Where the frame is drawn as it runs, if it is.
    pub(crate) screen: Option<Pixels<'a, true>>,
}

impl Bus<'_> {
    /// Reads an address; `seen` is the last byte that was on the data bus.
    #[inline(never)]
    pub(crate) fn read(&mut self, address: u16, seen: u8, cycle: i64) -> u8 {
        if address & 0x1000 != 0 {
            match self.machine.cartridge.plain_index(address) {
                Some(index) => self.rom.byte(index),
                None => self.machine.cartridge.read(self.rom, address, cycle),
            }
        } else if address & 0x0280 == 0x0080 {
            self.machine.ram[usize::from(address & 0x7F)]
        } else {
            self.read_device(address, seen, cycle)
        }
    }

    /// Reads one of the first 256 addresses, which is where the stack is too.
    #[inline(always)]
    pub(crate) fn read_zero_page(&mut self, address: u8, seen: u8, cycle: i64) -> u8 {
        if address & 0x80 != 0 {
            self.machine.ram[usize::from(address & 0x7F)]
        } else {
            self.read_device(u16::from(address), seen, cycle)
        }
    }

    #[inline(never)]
    fn read_device(&mut self, address: u16, seen: u8, cycle: i64) -> u8 {
        let machine = &mut *self.machine;
        if address & 0x80 == 0 {
            let (inputs, log) = (&machine.inputs, machine.frames.log().writes());
            let screen = self.screen.as_mut();
            machine.tia.read(address, seen, cycle, inputs, log, screen)
        } else {
            let port_a = machine.inputs.port_a();
            let port_b = machine.inputs.port_b();
            machine.riot.read(address, cycle, port_a, port_b)
        }
    }

    /// Writes anywhere but the RIOT's memory. Returns the cycle after the write, which is later
    /// than `cycle` where the TIA halts the processor, and whether the frame has ended.
    #[inline(never)]
    pub(crate) fn write_device(&mut self, address: u16, value: u8, cycle: i64) -> (i64, bool) {
        let machine = &mut *self.machine;
        if address & 0x1000 != 0 {
            machine.cartridge.write(address, value, cycle);
        } else if address & 0x80 == 0 {
            return machine
                .tia
                .write(address, value, cycle, machine.frames.log_mut());
        } else if address & 0x200 != 0 {
            machine.riot.write(address, value, cycle);
        }
        (cycle, false)
    }
}
