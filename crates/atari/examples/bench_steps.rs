//! Where an agent's step goes: four frames, the maximum of the last two, 84 by 84 in grey.
//!
//! usage: bench_steps ROM_FOLDER [GAME...]
use std::path::Path;
use std::sync::Arc;

use starling_atari::ale::Ale;
use starling_atari::cartridge::Rom;
use starling_atari::controllers::Action;
use starling_atari::picture::{Resizer, SIDE};

const GAMES: [&str; 8] = [
    "pong",
    "breakout",
    "seaquest",
    "qbert",
    "space_invaders",
    "ms_pacman",
    "montezuma_revenge",
    "riverraid",
];
const STEPS: u32 = 3000;

/// Microseconds this process has been on a processor: fair on a busy machine.
fn on_cpu() -> f64 {
    let text = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    let nanoseconds: f64 = text
        .split(' ')
        .next()
        .and_then(|n| n.parse().ok())
        .unwrap_or(0.0);
    nanoseconds / 1e3
}

#[expect(clippy::print_stdout, reason = "this is a command")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments
        .next()
        .ok_or("usage: bench_steps ROM_FOLDER [GAME...]")?;
    let mut games: Vec<String> = arguments.collect();
    if games.is_empty() {
        games = GAMES.map(str::to_owned).to_vec();
    }
    for game in games {
        let bytes = std::fs::read(Path::new(&folder).join(format!("{game}.bin")))?;
        let mut ale = Ale::new(Arc::new(Rom::new(&bytes)?), 0)?;
        let mut resizer = Resizer::new(ale.console());
        let mut square = [0; SIDE * SIDE];
        let actions = ale.game().minimal_actions;
        let mut random = 1u32;
        let mut run = |looks: bool| {
            let start = on_cpu();
            for _ in 0..STEPS {
                random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let code = actions[(random >> 16) as usize % actions.len()];
                for _ in 0..4 {
                    ale.act(Action::new(code).unwrap_or(Action::NOOP));
                }
                if ale.outcome().terminal {
                    ale.reset();
                }
                if looks {
                    resizer.observe(ale.console(), true, &mut square);
                }
            }
            (on_cpu() - start) / f64::from(STEPS)
        };
        run(true);
        let (blind, seeing) = (run(false), run(true));
        println!(
            "{game:20} {seeing:7.1} us per step ({:6.0} steps/s), {:6.1} us of it looking, {:6.2} us \
             per frame",
            1e6 / seeing,
            seeing - blind,
            blind / 4.0
        );
        let start = on_cpu();
        for _ in 0..100 * STEPS {
            let saved = ale.save();
            ale.restore(&saved);
        }
        println!(
            "{:20} {:7.2} us to save and restore a state of {} bytes",
            "",
            (on_cpu() - start) / f64::from(100 * STEPS),
            size_of::<starling_atari::ale::SavedGame>()
        );
    }
    Ok(())
}
