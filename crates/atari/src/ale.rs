//! The environment level: resets, actions, sticky actions, as the Arcade Learning Environment
//! orders them.

use std::sync::Arc;

use crate::cartridge::Rom;
use crate::console::Console;
use crate::controllers::Action;
use crate::games::{self, Game};
use crate::random::Mt19937;

/// A game that is played one frame at a time.
#[derive(Clone)]
pub struct Ale {
    console: Console,
    game: Option<&'static Game>,
    sticky: f32,
    random: Mt19937,
    last: [Action; 2],
    difficulty: u8,
    frame: u64,
    episode_frame: u64,
}

impl Ale {
    /// Loads a cartridge and resets the environment once, as `loadROM` does.
    pub fn new(rom: Arc<Rom>, seed: u32) -> Self {
        let game = games::by_md5(rom.md5());
        let mut ale = Self {
            console: Console::new(rom),
            game,
            sticky: 0.0,
            random: Mt19937::new(seed),
            last: [Action::NOOP; 2],
            difficulty: 0,
            frame: 0,
            episode_frame: 0,
        };
        ale.reset();
        ale
    }

    /// The console.
    pub fn console(&self) -> &Console {
        &self.console
    }

    /// Starts a new episode.
    pub fn reset(&mut self) {
        self.episode_frame = 0;
        self.last = [Action::NOOP; 2];
        self.console.reset();
        self.console.inputs().center_paddles();
        for part in std::env::var("SEQ").unwrap_or("N60,R4,R4".into()).split(',') {
            let n: u16 = part[1..].parse().unwrap();
            if part.starts_with('N') { self.emulate(Action::NOOP, n); } else { self.press_reset(n); }
        }
        if let Some(game) = self.game {
            for (code, frames) in game.starting_actions {
                self.emulate(Action::new(*code).unwrap_or(Action::NOOP), *frames);
            }
        }
    }

    /// Plays one frame.
    pub fn act(&mut self, action: Action) {
        for (last, new) in self.last.iter_mut().zip([action, Action::NOOP]) {
            let draw = self.random.next_u32() as f32 / 4_294_967_296.0;
            if draw >= self.sticky {
                *last = new;
            }
        }
        self.console.inputs().set_difficulty(self.difficulty);
        let [first, second] = self.last;
        self.console.inputs().act(first, second);
        self.console.run_frame();
        self.frame += 1;
        self.episode_frame += 1;
    }

    fn emulate(&mut self, action: Action, frames: u16) {
        for _ in 0..frames {
            self.console.inputs().set_difficulty(self.difficulty);
            self.console.inputs().act(action, Action::NOOP);
            self.console.run_frame();
        }
    }

    fn press_reset(&mut self, frames: u16) {
        self.console.inputs().switches(true, false);
        self.emulate(Action::NOOP, frames);
        self.console.inputs().switches(false, false);
    }
}
