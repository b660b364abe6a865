//! The table of games: what each is called, which actions matter, which modes it has, and how its
//! memory becomes reward, lives and the end of an episode.
//!
//! Read [`Game`] first, then [`Rules`]. The table itself is in `a_to_h.rs` and `i_to_z.rs`.

mod a_to_h;
mod i_to_z;
mod modes;
mod odd;
mod rules;

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
    pub starting_actions: &'static [(u8, u16)],
    select: Select,
    rule: Rule,
}

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
    let mut games = [a_to_h::GAMES[0]; 104];
    let (first, second) = (a_to_h::GAMES, i_to_z::GAMES);
    let mut index = 0;
    while index < games.len() {
        games[index] =
            if index < first.len() { first[index] } else { second[index - first.len()] };
        index += 1;
    }
    games
};
