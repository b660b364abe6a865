//! Asterix: gather gold, avoid enemies, both of which cross the board from the sides.

use serde::{Deserialize, Serialize};

use super::{Board, Colour, Draws, Game, LAST, Move, ahead, behind, palette};

const PLAYER: usize = 0;
const ENEMY: usize = 1;
const TRAIL: usize = 2;
const GOLD: usize = 3;

const FIRST_SPAWN_INTERVAL: i32 = 10;
const FIRST_MOVE_INTERVAL: i32 = 5;
const RAMP_INTERVAL: i32 = 100;

/// The player walks in four directions; each of eight rows holds at most one thing that crosses
/// it. A reward of 1 per gold; over at the touch of an enemy. Over time things come more often
/// and move faster.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Asterix {
    column: i8,
    row: i8,
    /// What crosses each of rows 1 to 8.
    things: [Option<Thing>; 8],
    spawn_interval: i32,
    spawn_timer: i32,
    move_interval: i32,
    move_timer: i32,
    ramp_timer: i32,
    ramps: u32,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Thing {
    column: i8,
    to_right: bool,
    gold: bool,
}

impl Asterix {
    fn spawn(&mut self, draws: &mut impl Draws) {
        let to_right = draws.unit() < 0.5;
        let gold = draws.unit() < 1.0 / 3.0;
        let free = self.things.iter().filter(|thing| thing.is_none()).count();
        if free == 0 {
            return;
        }
        let chosen = draws.below(free as u8);
        let mut slots = self.things.iter_mut().filter(|thing| thing.is_none());
        if let Some(slot) = slots.nth(usize::from(chosen)) {
            *slot = Some(Thing {
                column: if to_right { 0 } else { LAST },
                to_right,
                gold,
            });
        }
    }

    /// What happens if the player touches the thing in a slot: the reward, and whether the game is
    /// over.
    fn touch(&mut self, slot: usize) -> (f32, bool) {
        match self.things[slot] {
            Some(thing) if thing.column == self.column && slot as i8 + 1 == self.row => {
                if thing.gold {
                    self.things[slot] = None;
                    (1.0, false)
                } else {
                    (0.0, true)
                }
            }
            _ => (0.0, false),
        }
    }

    fn ramp(&mut self) {
        if self.spawn_interval <= 1 && self.move_interval <= 1 {
            return;
        }
        if self.ramp_timer >= 0 {
            self.ramp_timer -= 1;
            return;
        }
        if self.move_interval > 1 && self.ramps % 2 == 1 {
            self.move_interval -= 1;
        }
        if self.spawn_interval > 1 {
            self.spawn_interval -= 1;
        }
        self.ramps += 1;
        self.ramp_timer = RAMP_INTERVAL;
    }
}

impl Game for Asterix {
    const CHANNELS: usize = 4;

    const COLOURS: &'static [Colour] = &[
        palette::PLAYER,
        palette::ENEMY,
        palette::TRAIL,
        palette::GOOD,
    ];
    const MOVES: &'static [Move] = &[Move::Stay, Move::Left, Move::Up, Move::Right, Move::Down];

    fn reset(&mut self, _draws: &mut impl Draws) {
        *self = Self {
            column: 5,
            row: 5,
            spawn_interval: FIRST_SPAWN_INTERVAL,
            spawn_timer: FIRST_SPAWN_INTERVAL,
            move_interval: FIRST_MOVE_INTERVAL,
            move_timer: FIRST_MOVE_INTERVAL,
            ramp_timer: RAMP_INTERVAL,
            ..Self::default()
        };
    }

    fn play(&mut self, choice: Move, ramping: bool, draws: &mut impl Draws) -> (f32, bool) {
        if self.spawn_timer == 0 {
            self.spawn(draws);
            self.spawn_timer = self.spawn_interval;
        }
        match choice {
            Move::Left => self.column = (self.column - 1).max(0),
            Move::Right => self.column = (self.column + 1).min(LAST),
            Move::Up => self.row = (self.row - 1).max(1),
            Move::Down => self.row = (self.row + 1).min(8),
            Move::Stay | Move::Fire => {}
        }
        let (mut reward, mut over) = (0.0, false);
        for slot in 0..self.things.len() {
            let (gain, caught) = self.touch(slot);
            reward += gain;
            over |= caught;
        }
        if self.move_timer == 0 {
            self.move_timer = self.move_interval;
            for slot in 0..self.things.len() {
                if let Some(thing) = &mut self.things[slot] {
                    thing.column = ahead(thing.column, thing.to_right);
                    if !(0..=LAST).contains(&thing.column) {
                        self.things[slot] = None;
                    }
                }
                let (gain, caught) = self.touch(slot);
                reward += gain;
                over |= caught;
            }
        }
        self.spawn_timer -= 1;
        self.move_timer -= 1;
        if ramping {
            self.ramp();
        }
        (reward, over)
    }

    fn show(&self, board: &mut Board<'_>) {
        board.set(PLAYER, self.row, self.column);
        for (thing, row) in self.things.iter().zip(1..) {
            if let Some(thing) = thing {
                let channel = if thing.gold { GOLD } else { ENEMY };
                board.set(channel, row, thing.column);
                board.set_if_inside(TRAIL, row, behind(thing.column, thing.to_right));
            }
        }
    }
}
