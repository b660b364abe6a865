//! Frames per second of the bare console, without and with drawing.
use starling_atari::ale::Ale;
use starling_atari::cartridge::Rom;
use starling_atari::controllers::Action;
use std::sync::Arc;

/// Nanoseconds this process has been on a processor: fair on a busy machine.
fn on_cpu() -> f64 {
    let text = std::fs::read_to_string("/proc/self/schedstat").unwrap();
    text.split(' ').next().unwrap().parse().unwrap()
}

fn main() {
    let folder = std::env::args().nth(1).unwrap_or_default();
    for game in ["pong", "breakout", "seaquest", "qbert", "space_invaders", "ms_pacman", "montezuma_revenge", "riverraid"] {
        let bytes = std::fs::read(format!("{folder}/{game}.bin")).unwrap();
        let mut ale = Ale::new(Arc::new(Rom::new(&bytes).unwrap()), 0).unwrap();
        let mut pixels = vec![0; 160 * ale.console().height()];
        let mut random = 1u32;
        let mut run = |draw: bool, n: u32| {
            let start = on_cpu();
            for _ in 0..n {
                random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                ale.act(Action::new((random >> 24) as u8 % 18).unwrap_or(Action::NOOP));
                if draw {
                    ale.console().screen(&mut pixels);
                }
            }
            (on_cpu() - start) / 1e3 / f64::from(n)
        };
        run(false, 500);
        println!("{game:20} {:6.2} us/frame, {:6.2} with drawing", run(false, 4000), run(true, 2000));
    }
}
