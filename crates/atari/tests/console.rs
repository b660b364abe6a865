//! The console against recordings of the Arcade Learning Environment, and against nonsense.
//!
//! The recordings (`fixtures/*.trace`, made by `record_fixtures.py`) hold hashes only. The ROMs come
//! from the folder that `STARLING_ROMS` names, or from `starling/roms` in the user's cache folder;
//! without them the comparison is skipped.
#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use std::path::PathBuf;
use std::sync::Arc;

use starling_atari::cartridge::Rom;
use starling_atari::console::Console;
use starling_atari::controllers::Action;
use starling_atari::verify::replay;

/// The folder with the ROMs; `None` if there is none, and the test is skipped.
fn rom_folder(test: &str) -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let folder = set("STARLING_ROMS").or_else(|| {
        let cache = set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")));
        Some(cache?.join("starling").join("roms"))
    });
    let folder = folder.filter(|folder| folder.is_dir());
    if folder.is_none() {
        let why = "no ROMs; set STARLING_ROMS to a folder that has them";
        starling_testing::skip("roms", test, why);
    }
    folder
}

#[test]
fn recorded_games_come_out_equal_frame_by_frame() {
    let Some(roms) = rom_folder("recorded_games_come_out_equal_frame_by_frame") else {
        return;
    };
    let fixtures = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let mut different = Vec::new();
    for (name, runs) in [("default", 104), ("modes", 48), ("sticky", 20)] {
        let bytes = std::fs::read(fixtures.join(format!("{name}.trace"))).unwrap();
        let mut rest = &bytes[..];
        let mut compared = 0;
        while let Some((header, report)) = replay(&mut rest, |header| {
            let bytes = std::fs::read(roms.join(format!("{}.bin", header.game)))?;
            Ok(Arc::new(Rom::new(&bytes).unwrap()))
        })
        .unwrap()
        {
            compared += 1;
            if !report.equal() {
                different.push(format!("{header:?}: {report:?}"));
            }
        }
        assert_eq!(compared, runs, "{name}");
    }
    assert!(different.is_empty(), "{different:#?}");
}

/// A stream of bytes that is different for every seed.
struct Noise(u64);

impl Noise {
    fn byte(&mut self) -> u8 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 56) as u8
    }

    fn action(&mut self) -> Action {
        Action::new(self.byte() % 18).unwrap()
    }
}

fn noise_rom(size: usize, seed: u64) -> Arc<Rom> {
    let mut noise = Noise(seed);
    let mut bytes: Vec<u8> = (0..size).map(|_| noise.byte()).collect();
    if seed.is_multiple_of(3) {
        // Cartridges with memory have nothing in their first 256 bytes.
        for bank in bytes.chunks_exact_mut(4096) {
            bank[..256].fill(0xFF);
        }
    }
    Arc::new(Rom::new(&bytes).unwrap())
}

#[test]
fn noise_as_a_program_runs_a_thousand_frames() {
    for (seed, size) in [2048, 4096, 8192, 16384, 10240, 10495]
        .into_iter()
        .cycle()
        .take(24)
        .enumerate()
    {
        let mut console = Console::new(noise_rom(size, seed as u64));
        let mut noise = Noise(seed as u64 + 100);
        let mut pixels = vec![0; console.height() * 160];
        for frame in 0..1000 {
            let (first, second) = (noise.action(), noise.action());
            console.inputs().act(first, second);
            if frame % 100 == 99 {
                let switches = noise.byte();
                console
                    .inputs()
                    .switches(switches & 1 != 0, switches & 2 != 0);
                console.inputs().set_difficulty(switches >> 6);
                if switches & 4 != 0 {
                    console.reset();
                }
            }
            console.run_frame();
            if frame % 7 == 0 {
                console.screen(&mut pixels);
            }
        }
    }
}

#[test]
fn a_restored_state_goes_on_as_the_first_time() {
    for seed in 0..12 {
        let mut console = Console::new(noise_rom(4096, seed + 1000));
        let mut noise = Noise(seed);
        for _ in 0..50 {
            let action = noise.action();
            console.inputs().act(action, Action::NOOP);
            console.run_frame();
        }
        let saved = console.save();
        let play = |console: &mut Console| {
            let mut noise = Noise(seed + 7);
            let mut memories = Vec::new();
            for _ in 0..50 {
                let action = noise.action();
                console.inputs().act(action, Action::NOOP);
                console.run_frame();
                memories.push(*console.ram());
            }
            (memories, console.save())
        };
        let first = play(&mut console);
        console.restore(&saved);
        let second = play(&mut console);
        assert!(first == second, "seed {seed}");
    }
}

/// Two frames drawn together are the same two frames.
#[test]
fn frames_are_drawn_together_as_they_are_alone() {
    let Some(roms) = rom_folder("frames_are_drawn_together_as_they_are_alone") else {
        return;
    };
    let shades = std::array::from_fn(|index| index as u8);
    let mut entries: Vec<PathBuf> = std::fs::read_dir(roms)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "bin"))
        .collect();
    entries.sort();
    assert!(!entries.is_empty(), "there are ROMs");
    for path in entries {
        let mut console = Console::new(Arc::new(Rom::new(&std::fs::read(&path).unwrap()).unwrap()));
        let mut noise = Noise(5);
        let mut pixels = vec![vec![0; console.height() * 160]; 4];
        for frame in 0..240 {
            let action = noise.action();
            console.inputs().act(action, Action::NOOP);
            console.inputs().switches((80..84).contains(&frame), false);
            console.run_frame();
            if frame % 6 != 5 {
                continue;
            }
            let [last, before, alone, alone_before] = pixels.as_mut_slice() else {
                panic!("there are four pictures");
            };
            console.shaded_screens(&shades, last, before);
            console.shaded_screen(false, &shades, alone);
            console.shaded_screen(true, &shades, alone_before);
            assert!(last == alone, "frame {frame} of {path:?}");
            assert!(before == alone_before, "frame before {frame} of {path:?}");
        }
    }
}

/// Plays some frames on two consoles, of which one draws each as it runs: the pictures are those
/// that the other draws afterwards, and nothing else differs. Gives back how many were drawn.
fn drawn_while_running(rom: &Arc<Rom>, frames: u32, name: &str) -> u32 {
    let shades = std::array::from_fn(|index| index as u8 ^ 0x55);
    let mut console = Console::new(Arc::clone(rom));
    let mut drawing = Console::new(Arc::clone(rom));
    let mut noise = Noise(9);
    let mut pixels = vec![0; console.height() * 160];
    let mut afterwards = pixels.clone();
    let mut drawn = 0;
    for frame in 0..frames {
        let action = noise.action();
        for console in [&mut console, &mut drawing] {
            console.inputs().act(action, Action::NOOP);
            console.inputs().switches((80..84).contains(&frame), false);
        }
        console.run_frame();
        let whole = drawing.run_and_draw_frame(&shades, &mut pixels);
        assert!(console.ram() == drawing.ram(), "frame {frame} of {name}");
        console.shaded_screen(false, &shades, &mut afterwards);
        if whole {
            drawn += 1;
            assert!(pixels == afterwards, "picture of frame {frame} of {name}");
        }
        drawing.shaded_screen(false, &shades, &mut pixels);
        assert!(pixels == afterwards, "frame {frame} of {name}, drawn again");
    }
    drawn
}

#[test]
fn frames_are_drawn_while_they_run_as_they_are_afterwards() {
    for seed in 0..12 {
        let size = [2048, 4096, 8192, 16384][seed as usize % 4];
        drawn_while_running(&noise_rom(size, seed + 50), 100, &format!("noise {seed}"));
    }
    let Some(roms) = rom_folder("frames_are_drawn_while_they_run_as_they_are_afterwards") else {
        return;
    };
    for game in ["seaquest", "star_gunner", "qbert", "pitfall2", "robotank"] {
        let bytes = std::fs::read(roms.join(format!("{game}.bin"))).unwrap();
        let drawn = drawn_while_running(&Arc::new(Rom::new(&bytes).unwrap()), 240, game);
        assert!(drawn > 200, "{drawn} of 240 frames of {game}");
    }
}

#[test]
fn images_of_other_sizes_are_refused() {
    for size in [0, 1, 2047, 2049, 4095, 10239, 10496, 32768] {
        assert!(Rom::new(&vec![0; size]).is_err(), "{size}");
    }
}
