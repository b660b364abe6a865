//! The five MinAtar games: Atari games reduced to a board of 10 × 10 cells.
//!
//! They follow K. Young and T. Tian, *MinAtar: An Atari-inspired testbed for thorough and
//! reproducible reinforcement learning experiments* (2019), and are equal step by step to their
//! package `minatar` 1.0.15, sticky actions and difficulty ramping included, when given the same
//! random draws.
//!
//! Observations are flags (`u8`, 0 or 1) of shape `[channels, 10, 10]`: channels first, as
//! convolutions expect them (the package has them last), then row (from the top) and column.
//!
//! `MinAtar/Breakout-v1` has only the actions that matter in that game; `-v0` has all six.
//!
//! One game is one file that implements [`Game`]; [`MinAtar`] makes an environment of it.

mod asterix;
mod breakout;
mod freeway;
mod seaquest;
mod space_invaders;

#[cfg(test)]
mod against_package;

pub use asterix::Asterix;
pub use breakout::Breakout;
pub use freeway::Freeway;
pub use seaquest::Seaquest;
pub use space_invaders::SpaceInvaders;

use rand::RngExt as _;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::render::{Colour, Picture, cells};
use crate::wrappers::{load, save};
use crate::{Action, Env, EnvError, ObsMut, Rng, Space, Step};

/// Cells along each side of the board.
const SIZE: usize = 10;

/// The largest row and column.
const LAST: i8 = 9;

/// The options of the games.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct MinAtarOptions {
    /// The probability that the last action is repeated instead of the chosen one.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub sticky_action_prob: f64,
    /// Whether games get harder during an episode.
    pub difficulty_ramping: bool,
}

impl Default for MinAtarOptions {
    fn default() -> Self {
        Self {
            sticky_action_prob: 0.1,
            difficulty_ramping: true,
        }
    }
}

/// The rules of one game.
pub trait Game: Default + Send + Serialize + DeserializeOwned {
    /// Number of channels of its observations.
    const CHANNELS: usize;

    /// The colour of each channel in pictures. Where several show something, the first is seen.
    const COLOURS: &'static [Colour];

    /// The moves that have an effect.
    const MOVES: &'static [Move];

    /// Starts an episode.
    fn reset(&mut self, draws: &mut impl Draws);

    /// Plays one move; returns the reward and whether the game is over. If `ramping`, the game gets
    /// harder over time.
    fn play(&mut self, choice: Move, ramping: bool, draws: &mut impl Draws) -> (f32, bool);

    /// Shows the board on cleared cells.
    fn show(&self, board: &mut Board<'_>);
}

/// What a player can do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Move {
    /// Nothing.
    #[default]
    Stay,
    /// To the left.
    Left,
    /// Up.
    Up,
    /// To the right.
    Right,
    /// Down.
    Down,
    /// Shoot.
    Fire,
}

/// Colours of the channels: the player, what helps it and what harms it look alike in all games.
mod palette {
    use super::Colour;

    pub(super) const PLAYER: Colour = [245, 245, 240];
    pub(super) const OWN: Colour = [120, 200, 255];
    pub(super) const GOOD: Colour = [245, 200, 66];
    pub(super) const ENEMY: Colour = [226, 78, 70];
    pub(super) const SHOT: Colour = [255, 150, 90];
    pub(super) const TRAIL: Colour = [104, 84, 92];
    pub(super) const AIR: Colour = [70, 130, 220];
    pub(super) const BRICK: Colour = [180, 110, 200];
}

/// All moves, in the order of their numbers.
const ALL_MOVES: &[Move] = &[
    Move::Stay,
    Move::Left,
    Move::Up,
    Move::Right,
    Move::Down,
    Move::Fire,
];

/// Where a game gets its random numbers: from a generator, or in tests from a recording.
pub trait Draws {
    /// A number from 0 to below 1.
    fn unit(&mut self) -> f64;

    /// An integer from 0 to below `n`.
    fn below(&mut self, n: u8) -> u8;
}

impl Draws for Rng {
    fn unit(&mut self) -> f64 {
        self.random()
    }

    fn below(&mut self, n: u8) -> u8 {
        self.random_range(0..n)
    }
}

/// The cells of an observation, `[channels, 10, 10]`.
#[derive(Debug)]
pub struct Board<'a>(&'a mut [u8]);

impl Board<'_> {
    /// Sets a cell.
    fn set(&mut self, channel: usize, row: i8, column: i8) {
        self.0[(channel * SIZE + row as usize) * SIZE + column as usize] = 1;
    }

    /// Sets a cell if it is on the board.
    fn set_if_inside(&mut self, channel: usize, row: i8, column: i8) {
        if (0..=LAST).contains(&column) {
            self.set(channel, row, column);
        }
    }

    /// Sets all cells of a map.
    fn set_map(&mut self, channel: usize, map: &Map) {
        let cells = &mut self.0[channel * SIZE * SIZE..(channel + 1) * SIZE * SIZE];
        for (cells, row) in cells.chunks_exact_mut(SIZE).zip(map.0) {
            for (column, cell) in cells.iter_mut().enumerate() {
                *cell = (row >> column & 1) as u8;
            }
        }
    }
}

/// A flag per cell: one word per row, one bit per column.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Map([u16; SIZE]);

impl Map {
    fn get(&self, row: i8, column: i8) -> bool {
        self.0[row as usize] >> column & 1 == 1
    }

    fn set(&mut self, row: i8, column: i8) {
        self.0[row as usize] |= 1 << column;
    }

    fn clear(&mut self, row: i8, column: i8) {
        self.0[row as usize] &= !(1 << column);
    }

    fn count(&self) -> u32 {
        self.0.iter().map(|row| row.count_ones()).sum()
    }

    /// All rows in one: a bit for each column that has any.
    fn columns(&self) -> u16 {
        self.0.iter().fold(0, |all, row| all | row)
    }
}

/// A game as an environment.
#[derive(Debug)]
pub struct MinAtar<G> {
    game: G,
    last: Move,
    moves: &'static [Move],
    options: MinAtarOptions,
}

impl<G: Game> MinAtar<G> {
    /// A game with the moves that matter in it, or with all six.
    pub fn new(all_moves: bool, options: MinAtarOptions) -> Self {
        Self {
            game: G::default(),
            last: Move::default(),
            moves: if all_moves { ALL_MOVES } else { G::MOVES },
            options,
        }
    }

    /// Plays a move, or with some probability repeats the last one.
    fn play(&mut self, choice: Move, draws: &mut impl Draws) -> (f32, bool) {
        if draws.unit() >= self.options.sticky_action_prob {
            self.last = choice;
        }
        self.game
            .play(self.last, self.options.difficulty_ramping, draws)
    }

    fn show(&self, mut obs: ObsMut<'_>) {
        let cells = obs.as_mut_slice::<u8>();
        cells.fill(0);
        self.game.show(&mut Board(cells));
    }
}

impl<G: Game> Env for MinAtar<G> {
    fn observation_space(&self) -> Space {
        Space::bytes(&[G::CHANNELS, SIZE, SIZE], 1)
    }

    fn action_space(&self) -> Space {
        Space::Discrete {
            n: self.moves.len(),
        }
    }

    fn reset(&mut self, rng: &mut Rng, obs: ObsMut<'_>) -> Result<(), EnvError> {
        self.game.reset(rng);
        self.show(obs);
        Ok(())
    }

    fn step(
        &mut self,
        action: Action<'_>,
        rng: &mut Rng,
        obs: ObsMut<'_>,
    ) -> Result<Step, EnvError> {
        let choice = self.moves[action.discrete(self.moves.len())?];
        let (reward, terminated) = self.play(choice, rng);
        self.show(obs);
        Ok(Step {
            reward,
            terminated,
            truncated: false,
        })
    }

    fn render(&self) -> Result<Picture, EnvError> {
        let mut board = vec![0; G::CHANNELS * SIZE * SIZE];
        self.game.show(&mut Board(&mut board));
        let colour = |row, column| {
            let channels = board.chunks_exact(SIZE * SIZE);
            let mut shown = channels
                .zip(G::COLOURS)
                .filter(|(flags, _)| flags[row * SIZE + column] != 0);
            shown.next().map(|(_, colour)| *colour)
        };
        Ok(cells(SIZE, SIZE, 40, colour))
    }

    fn render_fps(&self) -> f64 {
        10.0
    }

    fn snapshot(&self) -> Option<Vec<u8>> {
        save(&(&self.game, self.last))
    }

    fn restore(&mut self, snapshot: &[u8]) -> Result<(), EnvError> {
        (self.game, self.last) = load(snapshot)?;
        Ok(())
    }
}

/// One cell on: to the right, or to the left.
fn ahead(column: i8, to_right: bool) -> i8 {
    if to_right { column + 1 } else { column - 1 }
}

/// One cell back: where something that moves was before.
fn behind(column: i8, to_right: bool) -> i8 {
    ahead(column, !to_right)
}
