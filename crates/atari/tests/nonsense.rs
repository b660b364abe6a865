//! Arbitrary programs, actions and saved states: refused, or played for a thousand frames.
#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use std::sync::Arc;

use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use starling_atari::cartridge::{Mapper, Rom};
use starling_atari::console::{Console, Machine};
use starling_atari::controllers::Action;

/// Images of all sizes, most of them of mappers with banks, and some that make their program's
/// first bytes an endless loop of stores to the TIA.
fn image() -> impl Strategy<Value = Vec<u8>> {
    let size = prop_oneof![
        Just(2048usize),
        Just(4096),
        Just(8192),
        Just(16384),
        10240usize..=10495
    ];
    (size, any::<u64>(), 0..4u8).prop_map(|(size, seed, kind)| {
        let mut noise = Noise(seed);
        let mut bytes: Vec<u8> = (0..size).map(|_| noise.byte()).collect();
        for bank in bytes.chunks_exact_mut(4096) {
            match kind {
                // Extra memory takes the place of banks that begin with one byte only.
                0 => bank[..256].fill(0xFF),
                // Cartridges in slices name many of the addresses that switch them.
                1 => bank[0x100..0x400].copy_from_slice(&[0xAD, 0xE5, 0xFF].repeat(256)),
                // Something that is not over after a few instructions.
                2 => bank[0x100..0x106].copy_from_slice(&[0x95, 0x00, 0xE8, 0x4C, 0x00, 0xF1]),
                _ => {}
            }
            if kind == 2 {
                bank[0xFFC..0xFFE].copy_from_slice(&[0x00, 0xF1]);
            }
        }
        bytes
    })
}

struct Noise(u64);

impl Noise {
    fn byte(&mut self) -> u8 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 56) as u8
    }
}

fn play(console: &mut Console, frames: usize, seed: u64) {
    let mut noise = Noise(seed);
    let mut pixels = vec![0; console.height() * 160];
    for frame in 0..frames {
        let mut action = || Action::new(noise.byte() % 18).unwrap();
        let (first, second) = (action(), action());
        console.inputs().act(first, second);
        console.run_frame();
        if frame % 97 == 0 {
            let byte = noise.byte();
            console.inputs().switches(byte & 1 != 0, byte & 2 != 0);
            console.inputs().set_difficulty(byte >> 6);
            console.screen(&mut pixels);
            console.shaded_screen(true, &[0; 256], &mut pixels);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn any_program_plays_a_thousand_frames(image in image(), seed: u64) {
        let mut console = Console::new(Arc::new(Rom::new(&image).unwrap()));
        play(&mut console, 1000, seed);
    }

    #[test]
    fn any_saved_state_is_refused_or_plays_a_thousand_frames(
        image in image(),
        seed: u64,
        frames in 0..20usize,
        damage in prop::collection::vec((any::<u16>(), any::<u8>()), 1..200),
    ) {
        let mut console = Console::new(Arc::new(Rom::new(&image).unwrap()));
        play(&mut console, frames, seed);
        let mut bytes = postcard::to_allocvec(&console.save()).unwrap();
        let length = bytes.len();
        for (at, value) in damage {
            // The registers come first: half of the damage is done to them.
            let at = usize::from(at);
            let at = if at % 2 == 0 { at / 2 % 256 } else { at % length };
            bytes[at % length] = value;
        }
        if let Ok(machine) = postcard::from_bytes::<Machine>(&bytes) {
            console.restore(&machine);
            play(&mut console, 1000, seed);
            console.reset();
            play(&mut console, 10, seed);
        }
    }
}

#[test]
fn a_saved_state_shows_the_picture_it_was_saved_with() {
    for seed in 0..8 {
        let mut noise = Noise(seed);
        let bytes: Vec<u8> = (0..4096).map(|_| noise.byte()).collect();
        let mut console = Console::new(Arc::new(Rom::new(&bytes).unwrap()));
        play(&mut console, 30, seed);
        let pictures = |console: &Console| {
            let mut pixels = vec![vec![0; console.height() * 160]; 2];
            console.screen(&mut pixels[0]);
            console.shaded_screen(
                true,
                &std::array::from_fn(|index| index as u8),
                &mut pixels[1],
            );
            pixels
        };
        let saved = console.save();
        let shown = pictures(&console);
        play(&mut console, 1, seed + 1);
        let next = pictures(&console);
        play(&mut console, 20, seed + 2);
        console.restore(&saved);
        assert!(console.save() == saved);
        assert!(pictures(&console) == shown, "seed {seed}");
        play(&mut console, 1, seed + 1);
        assert!(pictures(&console) == next, "seed {seed}");

        let bytes = postcard::to_allocvec(&saved).unwrap();
        let read: Machine = postcard::from_bytes(&bytes).unwrap();
        console.restore(&read);
        assert!(console.save() == saved);
        assert!(pictures(&console) == shown, "seed {seed}");
    }
}

#[test]
fn noise_makes_cartridges_of_all_kinds() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut mappers = Vec::new();
    for _ in 0..200 {
        let image = image().new_tree(&mut runner).unwrap().current();
        let mapper = Rom::new(&image).unwrap().mapper();
        if !mappers.contains(&mapper) {
            mappers.push(mapper);
        }
    }
    for mapper in [
        Mapper::K2,
        Mapper::K4,
        Mapper::F8,
        Mapper::F8Sc,
        Mapper::F6,
        Mapper::F6Sc,
        Mapper::E0,
        Mapper::Fe,
        Mapper::Dpc,
    ] {
        assert!(mappers.contains(&mapper), "{mapper:?}");
    }
}
