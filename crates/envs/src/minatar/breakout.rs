//! Breakout: a paddle keeps a ball in play that breaks bricks.

use serde::{Deserialize, Serialize};

use super::{Board, Colour, Draws, Game, LAST, Map, Move, palette};

const PADDLE: usize = 0;
const BALL: usize = 1;
const TRAIL: usize = 2;
const BRICK: usize = 3;

/// The paddle moves along the bottom row; the ball flies along diagonals and bounces off walls,
/// bricks and the paddle. A reward of 1 per brick; three new rows when all are gone; over when
/// the ball passes the paddle.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Breakout {
    paddle: i8,
    /// Column and row of the ball, now and before.
    ball: (i8, i8),
    last_ball: (i8, i8),
    /// Where the ball is going.
    to_right: bool,
    down: bool,
    bricks: Map,
    /// The ball broke a brick in the last step; it breaks no second one right after.
    struck: bool,
}

impl Breakout {
    fn lay_bricks(&mut self) {
        self.bricks.0[1..4].fill(0b11_1111_1111);
    }
}

impl Game for Breakout {
    const CHANNELS: usize = 4;

    const COLOURS: &'static [Colour] = &[
        palette::PLAYER,
        palette::GOOD,
        palette::TRAIL,
        palette::BRICK,
    ];
    const MOVES: &'static [Move] = &[Move::Stay, Move::Left, Move::Right];

    fn reset(&mut self, draws: &mut impl Draws) {
        let from_left = draws.below(2) == 0;
        let ball = (if from_left { 0 } else { LAST }, 3);
        *self = Self {
            paddle: 4,
            ball,
            last_ball: ball,
            to_right: from_left,
            down: true,
            ..Self::default()
        };
        self.lay_bricks();
    }

    fn play(&mut self, choice: Move, _ramping: bool, _draws: &mut impl Draws) -> (f32, bool) {
        match choice {
            Move::Left => self.paddle = (self.paddle - 1).max(0),
            Move::Right => self.paddle = (self.paddle + 1).min(LAST),
            _ => {}
        }
        self.last_ball = self.ball;
        let (from, height) = self.ball;
        let mut column = from + if self.to_right { 1 } else { -1 };
        let mut row = height + if self.down { 1 } else { -1 };
        if !(0..=LAST).contains(&column) {
            column = column.clamp(0, LAST);
            self.to_right = !self.to_right;
        }
        let (mut reward, mut over) = (0.0, false);
        let mut at_brick = false;
        if row < 0 {
            row = 0;
            self.down = !self.down;
        } else if self.bricks.get(row, column) {
            at_brick = true;
            if !self.struck {
                reward = 1.0;
                self.bricks.clear(row, column);
                row = height;
                self.down = !self.down;
            }
        } else if row == LAST {
            if self.bricks.count() == 0 {
                self.lay_bricks();
            }
            if from == self.paddle {
                self.down = !self.down;
                row = height;
            } else if column == self.paddle {
                // The paddle moved under the ball: it goes back where it came from.
                self.down = !self.down;
                self.to_right = !self.to_right;
                row = height;
            } else {
                over = true;
            }
        }
        self.struck = at_brick;
        self.ball = (column, row);
        (reward, over)
    }

    fn show(&self, board: &mut Board<'_>) {
        board.set(PADDLE, LAST, self.paddle);
        board.set(BALL, self.ball.1, self.ball.0);
        board.set(TRAIL, self.last_ball.1, self.last_ball.0);
        board.set_map(BRICK, &self.bricks);
    }
}
