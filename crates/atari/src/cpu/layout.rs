//! The cartridge's memory layout for the fast loop: one type per kind of bank switching, so that
//! each has a specialised loop.

use super::decode::{Code, Program};
use crate::cartridge::{Cartridge, IMAGE, Rom};

const BANK: usize = 4096;
const SLICE: usize = 1024;

/// How a cartridge's addresses lie in its image.
pub(super) trait Layout<'a> {
    /// Looks at a cartridge as it is mapped now.
    fn new(rom: &'a Rom, cartridge: &Cartridge) -> Self;
    /// The instruction at an address of the cartridge.
    fn code(&self, address: u16) -> &'a Code;
    /// The byte at an address of the cartridge, where touching it does nothing else.
    fn byte(&self, address: u16) -> Option<u8>;
}

/// One bank of 4 KiB at a time, with addresses in it that do more than read.
pub(super) struct Bank<'a> {
    whole: WholeBank<'a>,
    watched: u64,
}

impl<'a> Layout<'a> for Bank<'a> {
    fn new(rom: &'a Rom, cartridge: &Cartridge) -> Self {
        Self {
            whole: WholeBank::new(rom, cartridge),
            watched: cartridge.watched(),
        }
    }

    #[inline(always)]
    fn code(&self, address: u16) -> &'a Code {
        self.whole.code(address)
    }

    #[inline(always)]
    fn byte(&self, address: u16) -> Option<u8> {
        if self.watched >> ((address >> 6) & 63) & 1 != 0 {
            return None;
        }
        self.whole.byte(address)
    }
}

/// One bank of 4 KiB that only reads.
pub(super) struct WholeBank<'a> {
    codes: &'a [Code; BANK],
    bytes: &'a [u8; BANK],
}

impl<'a> Layout<'a> for WholeBank<'a> {
    fn new(rom: &'a Rom, cartridge: &Cartridge) -> Self {
        let bank = usize::from(cartridge.slices()[0]) / BANK % (IMAGE / BANK);
        Self {
            codes: &rom.program().as_chunks().0[bank],
            bytes: &rom.image().as_chunks().0[bank],
        }
    }

    #[inline(always)]
    fn code(&self, address: u16) -> &'a Code {
        &self.codes[usize::from(address) & (BANK - 1)]
    }

    #[inline(always)]
    fn byte(&self, address: u16) -> Option<u8> {
        Some(self.bytes[usize::from(address) & (BANK - 1)])
    }
}

/// Four slices of 1 KiB.
pub(super) struct Slices<'a> {
    codes: [&'a [Code; SLICE]; 4],
    bytes: [&'a [u8; SLICE]; 4],
    watched: u64,
}

impl<'a> Layout<'a> for Slices<'a> {
    fn new(rom: &'a Rom, cartridge: &Cartridge) -> Self {
        let slices = cartridge
            .slices()
            .map(|start| usize::from(start) / SLICE % (IMAGE / SLICE));
        Self {
            codes: slices.map(|slice| &rom.program().as_chunks().0[slice]),
            bytes: slices.map(|slice| &rom.image().as_chunks().0[slice]),
            watched: cartridge.watched(),
        }
    }

    #[inline(always)]
    fn code(&self, address: u16) -> &'a Code {
        let slice = self.codes[usize::from(address >> 10) & 3];
        &slice[usize::from(address) & (SLICE - 1)]
    }

    #[inline(always)]
    fn byte(&self, address: u16) -> Option<u8> {
        if self.watched >> ((address >> 6) & 63) & 1 != 0 {
            return None;
        }
        let slice = self.bytes[usize::from(address >> 10) & 3];
        Some(slice[usize::from(address) & (SLICE - 1)])
    }
}

/// Two banks of 4 KiB, told apart by address line 13.
pub(super) struct Line13<'a> {
    program: &'a Program,
    image: &'a [u8; IMAGE],
}

/// The index of an address in the image of a cartridge with two banks told apart by line 13.
#[inline(always)]
fn by_line_13(address: u16) -> usize {
    usize::from(!address & 0x2000) / 2 + usize::from(address & 0xFFF)
}

impl<'a> Layout<'a> for Line13<'a> {
    fn new(rom: &'a Rom, _cartridge: &Cartridge) -> Self {
        Self {
            program: rom.program(),
            image: rom.image(),
        }
    }

    #[inline(always)]
    fn code(&self, address: u16) -> &'a Code {
        &self.program[by_line_13(address)]
    }

    #[inline(always)]
    fn byte(&self, address: u16) -> Option<u8> {
        Some(self.image[by_line_13(address)])
    }
}
