//! Space Invaders: a cannon against waves of aliens.

use serde::{Deserialize, Serialize};

use super::{Board, Colour, Draws, Game, LAST, Map, Move, SIZE, palette};

const CANNON: usize = 0;
const ALIEN: usize = 1;
const ALIEN_LEFT: usize = 2;
const ALIEN_RIGHT: usize = 3;
const FRIENDLY_BULLET: usize = 4;
const ENEMY_BULLET: usize = 5;

const SHOT_INTERVAL: i32 = 5;
const ENEMY_SHOT_INTERVAL: i32 = 10;
const FIRST_MOVE_INTERVAL: i32 = 12;
const FASTEST_MOVE_INTERVAL: i32 = 6;
const LAST_ROW: usize = SIZE - 1;

/// The cannon moves along the bottom row and shoots up; aliens go sideways, turn and come down
/// at the edges, faster the fewer they are, and the one nearest to the cannon's column shoots
/// back. A reward of 1 per alien; each new wave is faster; over when an alien or a bullet hits
/// the cannon or an alien passes the bottom.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SpaceInvaders {
    cannon: i8,
    bullets: Map,
    enemy_bullets: Map,
    aliens: Map,
    aliens_to_right: bool,
    move_interval: i32,
    move_timer: i32,
    enemy_shot_timer: i32,
    shot_timer: i32,
}

impl SpaceInvaders {
    fn send_wave(&mut self) {
        self.aliens.0[0..4].fill(0b00_1111_1100);
    }

    fn alien_at_cannon(&self) -> bool {
        self.aliens.get(LAST, self.cannon)
    }

    /// Moves all aliens by a cell; returns whether one passed the bottom.
    fn move_aliens(&mut self) -> bool {
        let edge = if self.aliens_to_right { LAST } else { 0 };
        if self.aliens.columns() >> edge & 1 == 1 {
            self.aliens_to_right = !self.aliens_to_right;
            let passed = self.aliens.0[LAST_ROW] != 0;
            self.aliens.0.rotate_right(1);
            passed
        } else {
            for row in &mut self.aliens.0 {
                *row = if self.aliens_to_right {
                    *row << 1
                } else {
                    *row >> 1
                };
            }
            false
        }
    }

    /// The lowest alien of the column nearest to the cannon, on the left if two are as near.
    fn nearest_alien(&self) -> Option<(i8, i8)> {
        let columns = self.aliens.columns();
        let column = (0..=LAST)
            .filter(|column| columns >> column & 1 == 1)
            .min_by_key(|column| (column - self.cannon).abs())?;
        let row = (0..=LAST).rev().find(|row| self.aliens.get(*row, column))?;
        Some((row, column))
    }
}

impl Game for SpaceInvaders {
    const CHANNELS: usize = 6;

    const COLOURS: &'static [Colour] = &[
        palette::PLAYER,
        palette::ENEMY,
        palette::ENEMY,
        palette::ENEMY,
        palette::OWN,
        palette::SHOT,
    ];
    const MOVES: &'static [Move] = &[Move::Stay, Move::Left, Move::Right, Move::Fire];

    fn reset(&mut self, _draws: &mut impl Draws) {
        *self = Self {
            cannon: 5,
            move_interval: FIRST_MOVE_INTERVAL,
            move_timer: FIRST_MOVE_INTERVAL,
            enemy_shot_timer: ENEMY_SHOT_INTERVAL,
            ..Self::default()
        };
        self.send_wave();
    }

    fn play(&mut self, choice: Move, ramping: bool, _draws: &mut impl Draws) -> (f32, bool) {
        match choice {
            Move::Fire if self.shot_timer == 0 => {
                self.bullets.set(LAST, self.cannon);
                self.shot_timer = SHOT_INTERVAL;
            }
            Move::Left => self.cannon = (self.cannon - 1).max(0),
            Move::Right => self.cannon = (self.cannon + 1).min(LAST),
            _ => {}
        }
        self.bullets.0.rotate_left(1);
        self.bullets.0[LAST_ROW] = 0;
        self.enemy_bullets.0.rotate_right(1);
        self.enemy_bullets.0[0] = 0;

        let mut over = self.enemy_bullets.get(LAST, self.cannon) || self.alien_at_cannon();
        if self.move_timer == 0 {
            self.move_timer = self.move_interval.min(self.aliens.count() as i32);
            over |= self.move_aliens();
            over |= self.alien_at_cannon();
        }
        if self.enemy_shot_timer == 0 {
            self.enemy_shot_timer = ENEMY_SHOT_INTERVAL;
            if let Some((row, column)) = self.nearest_alien() {
                self.enemy_bullets.set(row, column);
            }
        }

        let mut killed = 0;
        for (aliens, bullets) in self.aliens.0.iter_mut().zip(&mut self.bullets.0) {
            let hits = *aliens & *bullets;
            killed += hits.count_ones();
            *aliens &= !hits;
            *bullets &= !hits;
        }

        self.shot_timer = (self.shot_timer - 1).max(0);
        self.move_timer -= 1;
        self.enemy_shot_timer -= 1;
        if self.aliens.count() == 0 {
            if ramping && self.move_interval > FASTEST_MOVE_INTERVAL {
                self.move_interval -= 1;
            }
            self.send_wave();
        }
        (killed as f32, over)
    }

    fn show(&self, board: &mut Board<'_>) {
        board.set(CANNON, LAST, self.cannon);
        board.set_map(ALIEN, &self.aliens);
        let direction = if self.aliens_to_right {
            ALIEN_RIGHT
        } else {
            ALIEN_LEFT
        };
        board.set_map(direction, &self.aliens);
        board.set_map(FRIENDLY_BULLET, &self.bullets);
        board.set_map(ENEMY_BULLET, &self.enemy_bullets);
    }
}
