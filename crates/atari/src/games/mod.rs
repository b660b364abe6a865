//! The table of games: name, minimal actions and modes of each, and how reward, lives and the end
//! of an episode are read from its memory.
//!
//! Read [`Game`] first, then [`Rules`]. [`ModeSelector`] selects a mode of a game. The table itself
//! is in four files, from `a_to_d.rs` to `s_to_z.rs`.

mod a_to_d;
mod e_to_j;
mod k_to_r;
mod modes;
mod odd;
mod rules;
mod s_to_z;

pub use modes::{ModeSelector, Press};
pub use rules::{Memory, Outcome, Rules};

use modes::Select;
use rules::Rule;

/// What is known about one game.
#[derive(Clone, Copy, Debug)]
pub struct Game {
    /// ALE's name, `"space_invaders"`.
    pub name: &'static str,
    /// The name in environment ids, `"SpaceInvaders"`.
    pub id: &'static str,
    /// The md5 of the cartridge, in lower-case hexadecimal.
    pub md5: &'static str,
    /// The actions that do something in this game, as ALE's codes 0 to 17.
    pub minimal_actions: &'static [u8],
    /// The modes ALE offers; the first is the default.
    pub modes: &'static [u16],
    /// The difficulties ALE offers; the first is the default.
    pub difficulties: &'static [u8],
    /// The lives reported right after a reset.
    pub start_lives: u8,
    /// What is pressed after a reset to get the game going: actions and for how many frames each.
    /// [`RESET`] stands for the console's RESET switch.
    pub starting_actions: &'static [(u8, u16)],
    /// The greatest resistance of a paddle, for the games that are played with one.
    pub paddle_limit: i32,
    select: Select,
    rule: Rule,
}

impl Game {
    /// Whether a reset plays as an agent would, so that sticky actions stick in it too.
    #[must_use]
    pub fn sticks_in_menu(&self) -> bool {
        self.name == "double_dunk"
    }
}

/// ALE's code for the console's RESET switch, in [`Game::starting_actions`].
pub const RESET: u8 = 40;

/// All games, in alphabetical order of their names.
pub fn all() -> impl ExactSizeIterator<Item = &'static Game> {
    GAMES.iter()
}

/// The game with this md5.
#[must_use]
pub fn by_md5(md5: &str) -> Option<&'static Game> {
    GAMES.iter().find(|game| game.md5 == md5)
}

/// The game with this name.
#[must_use]
pub fn by_name(name: &str) -> Option<&'static Game> {
    GAMES.iter().find(|game| game.name == name)
}

/// Every action there is.
const ALL: &[u8] = &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17];

static GAMES: [Game; 104] = {
    let parts: [&[Game]; 4] = [
        &a_to_d::GAMES,
        &e_to_j::GAMES,
        &k_to_r::GAMES,
        &s_to_z::GAMES,
    ];
    let mut games = [a_to_d::GAMES[0]; 104];
    let (mut part, mut start, mut index) = (0, 0, 0);
    while index < games.len() {
        if index == start + parts[part].len() {
            start = index;
            part += 1;
        }
        games[index] = parts[part][index - start];
        index += 1;
    }
    games
};
