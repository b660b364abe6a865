//! Freeway: a chicken crosses a road of eight lanes.

use serde::{Deserialize, Serialize};

use super::{Board, Colour, Draws, Game, LAST, Move, palette};

const CHICKEN: usize = 0;
const CAR: usize = 1;
/// The trail of a car is in the channel that its interval is after this one.
const TRAIL: usize = 1;

const CHICKEN_COLUMN: i8 = 4;
/// Steps between two moves of the chicken.
const CHICKEN_INTERVAL: i8 = 3;
const EPISODE_STEPS: i32 = 2500;

/// The chicken walks up and down, once in three steps; cars pass on rows 1 to 8, each at its own
/// speed, and throw it back to the bottom. A reward of 1 for reaching the top; it then starts again
/// at the bottom, and the cars get new speeds. Over after 2500 steps.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Freeway {
    row: i8,
    move_timer: i8,
    steps_left: i32,
    /// The cars of rows 1 to 8.
    cars: [Car; 8],
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Car {
    column: i8,
    timer: i8,
    /// Steps between two moves less one, from 1 to 5.
    interval: i8,
    to_right: bool,
}

impl Freeway {
    /// Gives every car a new speed and direction.
    fn draw_speeds(&mut self, draws: &mut impl Draws) {
        for car in &mut self.cars {
            car.interval = draws.below(5) as i8 + 1;
            car.timer = car.interval;
        }
        for car in &mut self.cars {
            car.to_right = draws.unit() >= 0.5;
        }
    }
}

impl Game for Freeway {
    const CHANNELS: usize = 7;

    const COLOURS: &'static [Colour] = &[
        palette::PLAYER,
        palette::ENEMY,
        palette::TRAIL,
        palette::TRAIL,
        palette::TRAIL,
        palette::TRAIL,
        palette::TRAIL,
    ];
    const MOVES: &'static [Move] = &[Move::Stay, Move::Up, Move::Down];

    fn reset(&mut self, draws: &mut impl Draws) {
        *self = Self {
            row: LAST,
            move_timer: CHICKEN_INTERVAL,
            steps_left: EPISODE_STEPS,
            ..Self::default()
        };
        self.draw_speeds(draws);
    }

    fn play(&mut self, choice: Move, _ramping: bool, draws: &mut impl Draws) -> (f32, bool) {
        if self.move_timer == 0 && matches!(choice, Move::Up | Move::Down) {
            self.move_timer = CHICKEN_INTERVAL;
            self.row = match choice {
                Move::Up => (self.row - 1).max(0),
                _ => (self.row + 1).min(LAST),
            };
        }
        let mut reward = 0.0;
        if self.row == 0 {
            reward = 1.0;
            self.draw_speeds(draws);
            self.row = LAST;
        }
        for (car, lane) in self.cars.iter_mut().zip(1..) {
            if car.column == CHICKEN_COLUMN && lane == self.row {
                self.row = LAST;
            }
            if car.timer == 0 {
                car.timer = car.interval;
                car.column = match (car.column, car.to_right) {
                    (LAST, true) => 0,
                    (0, false) => LAST,
                    (column, true) => column + 1,
                    (column, false) => column - 1,
                };
                if car.column == CHICKEN_COLUMN && lane == self.row {
                    self.row = LAST;
                }
            } else {
                car.timer -= 1;
            }
        }
        self.move_timer = (self.move_timer - 1).max(0);
        self.steps_left -= 1;
        (reward, self.steps_left < 0)
    }

    fn show(&self, board: &mut Board<'_>) {
        board.set(CHICKEN, self.row, CHICKEN_COLUMN);
        for (car, lane) in self.cars.iter().zip(1..) {
            board.set(CAR, lane, car.column);
            let back = match (car.column, car.to_right) {
                (0, true) => LAST,
                (LAST, false) => 0,
                (column, true) => column - 1,
                (column, false) => column + 1,
            };
            board.set(TRAIL + car.interval as usize, lane, back);
        }
    }
}
