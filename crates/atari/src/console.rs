//! The whole machine: power-up, reset, and one frame after the other.
//!
//! [`Machine`] is the whole state, a few KiB of plain data. It includes the logs of the last
//! frames, from which the picture is drawn on request, so a clone saves the game. [`Console`] adds
//! the shared cartridge image.

use serde::{Deserialize, Serialize};

use std::sync::Arc;

use crate::bus::Bus;
use crate::cartridge::{Cartridge, Rom};
use crate::controllers::Inputs;
use crate::cpu::{self, Registers};
use crate::frames::{Frames, PLAIN};
use crate::properties::{Format, Properties};
use crate::random::Mt19937;
use crate::riot::Riot;
use crate::tia::paint::Pixels;
use crate::tia::{LINE_CLOCKS, LINE_CYCLES, MOST_CYCLES, Tia};

/// The console's own random stream always starts here.
const SEED: u32 = 4_753_849;
/// A frame that takes more instructions than this continues in the next update.
const INSTRUCTIONS_PER_UPDATE: u32 = 25_000;

/// The state of the machine between two frames.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    pub(crate) cpu: Registers,
    #[serde(with = "crate::wide")]
    pub(crate) ram: [u8; 128],
    pub(crate) riot: Riot,
    pub(crate) tia: Tia,
    pub(crate) cartridge: Cartridge,
    /// What is pressed.
    pub inputs: Inputs,
    /// Processor cycles since the start of the frame's first line.
    pub(crate) cycle: i64,
    /// Whether the last update ended before its frame did.
    pub(crate) partial: bool,
    random: Mt19937,
    /// The running frame and the one before it, as what made them.
    pub(crate) frames: Frames,
}

/// An Atari 2600 with a cartridge in it.
#[derive(Clone)]
pub struct Console {
    rom: Arc<Rom>,
    properties: Properties,
    machine: Machine,
}

impl Console {
    /// Plugs a cartridge in and switches on: finds out the television format by watching the
    /// program for a second, then resets.
    pub fn new(rom: Arc<Rom>) -> Self {
        let properties = Properties::of(rom.md5());
        let mut random = Mt19937::new(SEED);
        let mut ram = [0; 128];
        ram.fill_with(|| random.next_u32() as u8);
        let cartridge = Cartridge::new(&rom);
        let format = properties.format;
        let tia = make_tia(&properties, Format::Ntsc);
        let frames = Frames::new(&tia.beam);
        let machine = Machine {
            cpu: Registers::new(0),
            ram,
            riot: Riot::new(0),
            tia,
            cartridge,
            inputs: Inputs::new(&properties),
            cycle: 0,
            partial: false,
            random,
            frames,
        };
        let mut console = Self {
            rom,
            properties,
            machine,
        };
        // Power-up draws a timer of its own, before the reset that begins the watching.
        console.machine.random.next_u32();
        let format = format.unwrap_or_else(|| console.detect_format());
        console.properties.format = Some(format);
        console.machine.tia = make_tia(&console.properties, format);
        console.reset();
        console
    }

    /// The state, to keep or to compare. Restoring it gives the same picture, and the same game
    /// from here on.
    pub fn save(&self) -> Machine {
        self.machine.clone()
    }

    /// Puts a kept state back. What no console with this cartridge can be in, for the state was
    /// kept elsewhere, is made to fit.
    pub fn restore(&mut self, machine: &Machine) {
        let own = &mut self.machine;
        let Machine {
            cpu,
            ram,
            riot,
            tia,
            cartridge,
            inputs,
            cycle,
            partial,
            random,
            frames,
        } = machine;
        own.cpu = *cpu;
        own.ram = *ram;
        own.riot.clone_from(riot);
        own.cartridge.clone_from(cartridge);
        own.inputs.clone_from(inputs);
        own.cycle = (*cycle).clamp(0, MOST_CYCLES);
        own.partial = *partial;
        own.random.clone_from(random);
        own.frames.clone_from(frames);
        let like = std::mem::replace(&mut own.tia, tia.clone());
        own.riot.fit();
        own.cartridge.fit(&self.rom);
        own.inputs.fit();
        own.frames.fit(&like.beam);
        own.tia.fit(&like, own.frames.log());
    }

    /// The cartridge.
    pub fn rom(&self) -> &Arc<Rom> {
        &self.rom
    }

    /// The television format the console found.
    pub fn format(&self) -> Format {
        self.properties.format.unwrap_or(Format::Ntsc)
    }

    /// Rows of the picture.
    pub fn height(&self) -> usize {
        self.properties.height(self.format()) as usize
    }

    /// The controllers and switches.
    pub fn inputs(&mut self) -> &mut Inputs {
        &mut self.machine.inputs
    }

    /// The 128 bytes of memory.
    pub fn ram(&self) -> &[u8; 128] {
        &self.machine.ram
    }

    /// Presses the power switch off and on, without the memory fading.
    pub fn reset(&mut self) {
        let machine = &mut self.machine;
        machine.cycle = 0;
        machine.partial = false;
        machine.riot = Riot::new(25 + (machine.random.next_u32() % 75) as u8);
        machine.tia = machine.tia.fresh();
        machine.cartridge.reset(&mut machine.random);
        let mut bus = Bus {
            machine,
            rom: &self.rom,
            screen: None,
        };
        let low = bus.read(0xFFFC, 0, 0);
        let high = bus.read(0xFFFD, 0, 0);
        machine.cpu = Registers::new(u16::from_le_bytes([low, high]));
        machine.frames.reset(&machine.tia.beam);
    }

    /// Runs to the end of the frame, or as far towards it as one update goes.
    pub fn run_frame(&mut self) {
        self.run(None);
    }

    /// The same, and draws the picture on the way, each palette index as `shades` says: less work
    /// than drawing it afterwards. Says whether `pixels` is the whole picture, as it is but for
    /// frames that do not end where they should.
    pub fn run_and_draw_frame(&mut self, shades: &[u8; 256], pixels: &mut [u8]) -> bool {
        let whole = !self.machine.partial;
        self.run(whole.then(|| Pixels::new(shades, pixels)));
        whole && !self.machine.partial && self.machine.frames.fills()
    }

    fn run(&mut self, screen: Option<Pixels<'_, true>>) {
        if !self.machine.partial {
            self.start_frame();
        }
        let mut bus = Bus {
            machine: &mut self.machine,
            rom: &self.rom,
            screen,
        };
        let ended = cpu::run(&mut bus, INSTRUCTIONS_PER_UPDATE);
        let Bus {
            machine, screen, ..
        } = bus;
        machine.partial = !ended;
        machine.frames.end_update(&machine.tia);
        if let Some(mut screen) = screen {
            let writes = machine.frames.log().writes();
            machine.tia.catch_up(writes, Some(&mut screen));
        }
    }

    /// Draws the picture as palette indices into `pixels`, row by row.
    pub fn screen(&self, pixels: &mut [u8]) {
        self.machine.frames.screen(false, &PLAIN, pixels);
    }

    /// Draws the picture, or the one of the frame before, each palette index as `shades` says.
    pub fn shaded_screen(&self, before: bool, shades: &[u8; 256], pixels: &mut [u8]) {
        self.machine.frames.screen(before, shades, pixels);
    }

    /// Draws the picture and the one of the frame before, each palette index as `shades` says: less
    /// work than one after the other.
    pub fn shaded_screens(&self, shades: &[u8; 256], last: &mut [u8], before: &mut [u8]) {
        self.machine.frames.screens(shades, last, before);
    }

    /// The cartridge's own memory; empty where it has none.
    pub fn cartridge_memory(&self) -> &[u8] {
        self.machine.cartridge.memory()
    }

    fn start_frame(&mut self) {
        let machine = &mut self.machine;
        let lines = machine.cycle / LINE_CYCLES;
        let passed = lines * LINE_CYCLES;
        let faded = self.properties.format == Some(Format::Pal) && lines % 2 == 1;
        machine.tia.catch_up(machine.frames.log().writes(), None);
        machine.cycle -= passed;
        machine.riot.rebase(passed);
        machine.tia.rebase(passed);
        machine.cartridge.rebase(passed);
        machine.tia.beam.start_frame(faded);
        machine.tia.replayed = 0;
        machine.frames.start(&machine.tia.beam);
    }

    fn detect_format(&mut self) -> Format {
        self.reset();
        let mut long_frames = 0;
        for frame in 0..60 {
            self.run_frame();
            if frame >= 30 && self.machine.cycle / LINE_CYCLES > 285 {
                long_frames += 1;
            }
        }
        if long_frames >= 15 {
            Format::Pal
        } else {
            Format::Ntsc
        }
    }
}

/// A TIA that shows the part of a frame where the cartridge's picture is.
fn make_tia(properties: &Properties, format: Format) -> Tia {
    let top = properties.top;
    let bottom = top + properties.height(format);
    let window = (top * LINE_CLOCKS, bottom * LINE_CLOCKS);
    Tia::new(format.last_line(), window, properties.combs)
}
