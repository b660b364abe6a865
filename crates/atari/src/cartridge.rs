//! Cartridges: the program memory and the chips that switch its banks.
//!
//! [`Rom`] is the immutable image, shared by all consoles that play it. [`Cartridge`] is the state
//! of a cartridge: which bank is mapped where, its extra memory, its DPC chip.

use serde::{Deserialize, Serialize};

use crate::cpu::decode::{self, Program};
use crate::dpc::Dpc;
use crate::md5;
use crate::random::Mt19937;

/// Why an image is not a cartridge that this console can play.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RomError {
    /// No cartridge that this console knows has this size.
    #[error(
        "a file of {0} bytes is not a ROM that this console can play (2048, 4096, 8192, 16384, or \
         10240 to 10495 bytes for DPC)"
    )]
    Size(u64),
}

/// How a cartridge maps its image into the 4 KiB the processor can see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mapper {
    /// 2 KiB, shown twice.
    K2,
    /// 4 KiB, no switching.
    K4,
    /// Two banks of 4 KiB.
    F8,
    /// Two banks of 4 KiB and 128 bytes of memory.
    F8Sc,
    /// Four banks of 4 KiB.
    F6,
    /// Four banks of 4 KiB and 128 bytes of memory.
    F6Sc,
    /// Eight slices of 1 KiB, three of them chosen freely, the last one fixed.
    E0,
    /// Two banks of 4 KiB, told apart by address line 13.
    Fe,
    /// Two banks of 4 KiB and the display processor chip of Pitfall II.
    Dpc,
}

impl Mapper {
    /// One bit per 64 visible bytes: whether touching them does more than read the image.
    fn watched(self) -> u64 {
        match self {
            Self::K2 | Self::K4 => 0,
            Self::F8 | Self::F6 | Self::E0 => 1 << 63,
            Self::F8Sc | Self::F6Sc => 1 << 63 | 0b1111,
            Self::Fe => !0,
            Self::Dpc => 1 << 63 | 0b11,
        }
    }

    /// Whether touching an address, of which the low 12 bits count, may do more than read the
    /// image.
    pub(crate) fn switches_at(self, low: u16) -> bool {
        match self {
            Self::K2 | Self::K4 | Self::Fe => false,
            Self::F8 => matches!(low, 0xFF8..=0xFF9),
            Self::F6 => matches!(low, 0xFF6..=0xFF9),
            Self::F8Sc | Self::F6Sc => matches!(low, 0..=0xFF | 0xFF6..=0xFF9),
            Self::E0 => matches!(low, 0xFE0..=0xFF7),
            Self::Dpc => matches!(low, 0..=0x7F | 0xFC0..),
        }
    }
}

/// The size of the image after padding: every masked index is then in bounds.
pub(crate) const IMAGE: usize = 16 * 1024;

/// A cartridge's image.
#[derive(Clone, Debug)]
pub struct Rom {
    image: Box<[u8; IMAGE]>,
    /// The image, decoded.
    program: Box<Program>,
    /// The DPC chip's own 2 KiB of graphics.
    graphics: Option<Box<[u8; 2048]>>,
    mapper: Mapper,
    md5: String,
}

impl Rom {
    /// The size of the largest image.
    pub const MAX_BYTES: usize = IMAGE;

    /// Takes an image, and finds its mapper by its size and content.
    pub fn new(bytes: &[u8]) -> Result<Self, RomError> {
        let mapper = match bytes.len() {
            2048 => Mapper::K2,
            4096 => Mapper::K4,
            8192 => mapper_of_8k(bytes),
            16384 if has_memory_window(bytes) => Mapper::F6Sc,
            16384 => Mapper::F6,
            10240..=10495 => Mapper::Dpc,
            other => return Err(RomError::Size(other as u64)),
        };
        let program = if mapper == Mapper::Dpc {
            &bytes[..8192]
        } else {
            bytes
        };
        let mut image = Box::new([0; IMAGE]);
        for chunk in image.chunks_exact_mut(program.len()) {
            chunk.copy_from_slice(program);
        }
        let graphics = (mapper == Mapper::Dpc).then(|| {
            let mut graphics = Box::new([0; 2048]);
            graphics.copy_from_slice(&bytes[8192..10240]);
            graphics
        });
        Ok(Self {
            program: decode::decode(&image, mapper),
            image,
            graphics,
            mapper,
            md5: md5::hex(bytes),
        })
    }

    /// How this cartridge switches its banks.
    pub fn mapper(&self) -> Mapper {
        self.mapper
    }

    /// The md5 of the image, in lower-case hexadecimal: what games are known by.
    pub fn md5(&self) -> &str {
        &self.md5
    }

    /// The whole image, padded.
    #[inline(always)]
    pub(crate) fn image(&self) -> &[u8; IMAGE] {
        &self.image
    }

    /// The instructions that start at each byte of the image.
    #[inline(always)]
    pub(crate) fn program(&self) -> &Program {
        &self.program
    }

    /// One byte of the image.
    #[inline(always)]
    pub(crate) fn byte(&self, index: usize) -> u8 {
        self.image[index & (IMAGE - 1)]
    }
}

/// A cartridge's state: plain data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cartridge {
    /// Where in the image each visible KiB starts.
    slices: [u16; 4],
    /// One bit per 64 visible bytes: whether touching them does more than read the image.
    watched: u64,
    mapper: Mapper,
    #[serde(with = "crate::wide")]
    memory: [u8; 128],
    dpc: Dpc,
}

impl Cartridge {
    /// A cartridge just plugged in; it wants a reset before it plays.
    pub fn new(rom: &Rom) -> Self {
        Self {
            slices: [0; 4],
            watched: rom.mapper.watched(),
            mapper: rom.mapper,
            memory: [0; 128],
            dpc: Dpc::new(),
        }
    }

    /// Makes a state that came from elsewhere one that this cartridge can be in.
    pub(crate) fn fit(&mut self, rom: &Rom) {
        self.mapper = rom.mapper;
        self.watched = rom.mapper.watched();
        for slice in &mut self.slices {
            *slice = *slice % IMAGE as u16 / 1024 * 1024;
        }
        self.dpc.fit();
    }

    /// What the console's reset does to the cartridge: back to the starting bank, and noise from
    /// the console's stream in extra memory.
    pub fn reset(&mut self, random: &mut Mt19937) {
        if matches!(self.mapper, Mapper::F8Sc | Mapper::F6Sc) {
            self.memory.fill_with(|| random.next_u32() as u8);
        }
        match self.mapper {
            Mapper::K2 => self.slices = [0, 1024, 0, 1024],
            Mapper::K4 | Mapper::F6 | Mapper::F6Sc | Mapper::Fe => self.show_bank(0),
            Mapper::F8 | Mapper::F8Sc | Mapper::Dpc => self.show_bank(1),
            Mapper::E0 => self.slices = [4 * 1024, 5 * 1024, 6 * 1024, 7 * 1024],
        }
    }

    /// Moves the origin of the cycle count forward by `cycles`.
    pub fn rebase(&mut self, cycles: i64) {
        self.dpc.rebase(cycles);
    }

    /// The extra memory; empty where the cartridge has none.
    pub(crate) fn memory(&self) -> &[u8] {
        match self.mapper {
            Mapper::F8Sc | Mapper::F6Sc => &self.memory,
            _ => &[],
        }
    }

    /// Where in the image each visible KiB starts.
    pub(crate) fn slices(&self) -> [u16; 4] {
        self.slices
    }

    /// One bit per 64 visible bytes: whether touching them does more than read the image.
    pub(crate) fn watched(&self) -> u64 {
        self.watched
    }

    /// The image's index of an address, where touching it only reads.
    #[inline(always)]
    pub(crate) fn plain_index(&self, address: u16) -> Option<usize> {
        if self.watched >> ((address >> 6) & 63) & 1 != 0 {
            None
        } else {
            Some(self.index(address))
        }
    }

    #[inline(always)]
    fn index(&self, address: u16) -> usize {
        usize::from(self.slices[usize::from(address >> 10) & 3]) + usize::from(address & 0x3FF)
    }

    /// Reads an address with all that the cartridge's chips make of it.
    #[inline(never)]
    pub(crate) fn read(&mut self, rom: &Rom, address: u16, now: i64) -> u8 {
        let low = address & 0xFFF;
        self.dpc.step_random();
        match self.mapper {
            Mapper::Fe => {
                let bank = if address & 0x2000 == 0 { 4096 } else { 0 };
                return rom.byte(bank + usize::from(low));
            }
            Mapper::F8Sc | Mapper::F6Sc if (0x80..0x100).contains(&low) => {
                return self.memory[usize::from(low & 0x7F)];
            }
            Mapper::Dpc if low < 0x40 => {
                if let Some(graphics) = &rom.graphics {
                    return self.dpc.read(low, graphics, now);
                }
            }
            _ => {}
        }
        self.touch(low);
        rom.byte(self.index(address))
    }

    /// Writes an address: extra memory, chips and bank switches; the image itself never changes.
    #[inline(never)]
    pub(crate) fn write(&mut self, address: u16, value: u8, now: i64) {
        let low = address & 0xFFF;
        if self.plain_index(address).is_none() {
            self.dpc.step_random();
        }
        match self.mapper {
            Mapper::F8Sc | Mapper::F6Sc if low < 0x80 => self.memory[usize::from(low)] = value,
            Mapper::Dpc if (0x40..0x80).contains(&low) => self.dpc.write(low, value, now),
            _ => self.touch(low),
        }
    }

    /// Switches banks where the address is one that does.
    fn touch(&mut self, low: u16) {
        match (self.mapper, low) {
            (Mapper::F8 | Mapper::F8Sc | Mapper::Dpc, 0xFF8..=0xFF9) => self.show_bank(low - 0xFF8),
            (Mapper::F6 | Mapper::F6Sc, 0xFF6..=0xFF9) => self.show_bank(low - 0xFF6),
            (Mapper::E0, 0xFE0..=0xFF7) => {
                self.slices[usize::from((low >> 3) & 3)] = (low & 7) * 1024;
            }
            _ => {}
        }
    }

    fn show_bank(&mut self, bank: u16) {
        let start = bank * 4096;
        self.slices = [start, start + 1024, start + 2048, start + 3072];
    }
}

/// Tells the three kinds of 8 KiB cartridges apart from F8 with memory.
fn mapper_of_8k(bytes: &[u8]) -> Mapper {
    if has_memory_window(bytes) {
        return Mapper::F8Sc;
    }
    // Absolute loads, stores and no-ops name the addresses that a program uses to switch banks.
    let touches = |low: std::ops::RangeInclusive<u16>| {
        bytes
            .windows(3)
            .filter(|code| matches!(code[0], 0x0C | 0x2C | 0x8D | 0xAD | 0xCD))
            .map(|code| u16::from_le_bytes([code[1], code[2]]))
            .filter(|address| address & 0x1000 != 0 && low.contains(&(address & 0xFFF)))
            .count()
    };
    let f8 = touches(0xFF8..=0xFF9);
    if touches(0xFE0..=0xFF7) > f8 {
        return Mapper::E0;
    }
    // An FE program never names a switch: its jumps and calls reach into the other bank, for the
    // first bank has address line 13 set and the second has it clear, in their vectors too.
    if f8 == 0 && bytes[0xFFD] & 0x20 != 0 && bytes[0x1FFD] & 0x20 == 0 {
        return Mapper::Fe;
    }
    Mapper::F8
}

/// Whether every bank leaves its first 256 bytes to extra memory: there is nothing but one filling
/// byte in the image then.
fn has_memory_window(bytes: &[u8]) -> bool {
    bytes
        .chunks_exact(4096)
        .all(|bank| bank[..256].iter().all(|byte| *byte == bank[0]))
}
