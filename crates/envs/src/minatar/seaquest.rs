//! Seaquest: a submarine rescues divers, shoots fish and submarines, and needs air.

use serde::{Deserialize, Serialize};

use super::{Board, Colour, Draws, Game, LAST, Move, ahead, behind, palette};

const SUB_FRONT: usize = 0;
const SUB_BACK: usize = 1;
const FRIENDLY_BULLET: usize = 2;
const TRAIL: usize = 3;
const ENEMY_BULLET: usize = 4;
const FISH: usize = 5;
const ENEMY_SUB: usize = 6;
const OXYGEN_GAUGE: usize = 7;
const DIVER_GAUGE: usize = 8;
const DIVER: usize = 9;

const MAX_OXYGEN: i32 = 200;
const MAX_DIVERS: i32 = 6;
const SHOT_INTERVAL: i32 = 5;
const ENEMY_SHOT_INTERVAL: i32 = 10;
const DIVER_SPAWN_INTERVAL: i32 = 30;
const DIVER_MOVE_INTERVAL: i32 = 5;
const FIRST_SPAWN_INTERVAL: i32 = 20;
const FIRST_MOVE_INTERVAL: i32 = 5;
const FASTEST_MOVE_INTERVAL: i32 = 2;
/// The lowest row of the water; the gauges are below.
const SEABED: i8 = 8;

/// The submarine moves in four directions and shoots where it looks. Fish and submarines that
/// shoot cross the water, as do divers, up to six of whom can be aboard. A reward of 1 per fish
/// or submarine shot, and for surfacing with six divers one of up to 10 by the air that is left;
/// surfacing costs a diver, fills up the air and makes the game harder. Over when anything hits
/// the submarine, when it runs out of air, or surfaces without a diver.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Seaquest {
    column: i8,
    row: i8,
    faces_right: bool,
    oxygen: i32,
    /// Divers aboard. As in the package, a full rescue takes all six and one more, so that the
    /// number can be negative; then surfacing takes one more each time and does not end the game.
    aboard: i32,
    at_surface: bool,
    bullets: Vec<Swimmer>,
    enemy_bullets: Vec<Swimmer>,
    fish: Vec<Swimmer>,
    enemy_subs: Vec<Swimmer>,
    divers: Vec<Swimmer>,
    spawn_interval: i32,
    spawn_timer: i32,
    diver_spawn_timer: i32,
    move_interval: i32,
    shot_timer: i32,
    ramps: u32,
}

/// Anything in the water that has a direction.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Swimmer {
    column: i8,
    row: i8,
    to_right: bool,
    /// Steps until it moves; bullets always do.
    move_timer: i32,
    /// Steps until it shoots, of submarines.
    shot_timer: i32,
}

impl Swimmer {
    /// Moves by a cell; returns whether it is still in the water.
    fn swim(&mut self) -> bool {
        self.column = ahead(self.column, self.to_right);
        (0..=LAST).contains(&self.column)
    }

    fn is_at(&self, place: (i8, i8)) -> bool {
        (self.column, self.row) == place
    }
}

impl Seaquest {
    fn spawn_enemy(&mut self, draws: &mut impl Draws) {
        let to_right = draws.unit() < 0.5;
        let is_sub = draws.unit() < 1.0 / 3.0;
        let row = draws.below(8) as i8 + 1;
        let mut enemies = self.fish.iter().chain(&self.enemy_subs);
        // Two in one row that come from both sides could not be dodged.
        if enemies.any(|enemy| enemy.row == row && enemy.to_right != to_right) {
            return;
        }
        let enemy = Swimmer {
            column: if to_right { 0 } else { LAST },
            row,
            to_right,
            move_timer: self.move_interval,
            shot_timer: ENEMY_SHOT_INTERVAL,
        };
        if is_sub {
            self.enemy_subs.push(enemy);
        } else {
            self.fish.push(enemy);
        }
    }

    fn spawn_diver(&mut self, draws: &mut impl Draws) {
        let to_right = draws.unit() < 0.5;
        let row = draws.below(8) as i8 + 1;
        self.divers.push(Swimmer {
            column: if to_right { 0 } else { LAST },
            row,
            to_right,
            move_timer: DIVER_MOVE_INTERVAL,
            shot_timer: 0,
        });
    }

    fn obey(&mut self, choice: Move) {
        match choice {
            Move::Left => {
                self.column = (self.column - 1).max(0);
                self.faces_right = false;
            }
            Move::Right => {
                self.column = (self.column + 1).min(LAST);
                self.faces_right = true;
            }
            Move::Up => self.row = (self.row - 1).max(0),
            Move::Down => self.row = (self.row + 1).min(SEABED),
            Move::Fire if self.shot_timer == 0 => {
                self.shot_timer = SHOT_INTERVAL;
                self.bullets.push(Swimmer {
                    column: self.column,
                    row: self.row,
                    to_right: self.faces_right,
                    ..Swimmer::default()
                });
            }
            Move::Fire | Move::Stay => {}
        }
    }

    /// Moves our bullets; returns the number of enemies they hit.
    fn move_bullets(&mut self) -> u32 {
        let mut hits = 0;
        let (fish, subs) = (&mut self.fish, &mut self.enemy_subs);
        retain_from_last(&mut self.bullets, |bullet| {
            if !bullet.swim() {
                return false;
            }
            let place = (bullet.column, bullet.row);
            let hit = remove_at(fish, place) || remove_at(subs, place);
            hits += u32::from(hit);
            !hit
        });
        hits
    }

    fn move_divers(&mut self) {
        let sub = (self.column, self.row);
        let aboard = &mut self.aboard;
        let mut boards = |diver: &Swimmer| {
            let boards = diver.is_at(sub) && *aboard < MAX_DIVERS;
            *aboard += i32::from(boards);
            boards
        };
        retain_from_last(&mut self.divers, |diver| {
            if boards(diver) {
                return false;
            }
            if diver.move_timer > 0 {
                diver.move_timer -= 1;
                return true;
            }
            diver.move_timer = DIVER_MOVE_INTERVAL;
            diver.swim() && !boards(diver)
        });
    }

    /// Moves submarines, which shoot, or fish; returns how many swam into our bullets, and
    /// whether one hit us.
    fn move_enemies(&mut self, subs: bool) -> (u32, bool) {
        let sub = (self.column, self.row);
        let enemies = if subs {
            &mut self.enemy_subs
        } else {
            &mut self.fish
        };
        let (mut hits, mut over) = (0, false);
        retain_from_last(enemies, |enemy| {
            let mut stays = true;
            over |= enemy.is_at(sub);
            if enemy.move_timer > 0 {
                enemy.move_timer -= 1;
            } else {
                enemy.move_timer = self.move_interval;
                if !enemy.swim() {
                    return false;
                }
                if enemy.is_at(sub) {
                    over = true;
                } else if remove_at(&mut self.bullets, (enemy.column, enemy.row)) {
                    hits += 1;
                    stays = false;
                }
            }
            // A submarine may shoot even as it is hit.
            if subs {
                if enemy.shot_timer > 0 {
                    enemy.shot_timer -= 1;
                } else {
                    enemy.shot_timer = ENEMY_SHOT_INTERVAL;
                    self.enemy_bullets.push(*enemy);
                }
            }
            stays
        });
        (hits, over)
    }

    /// Moves the enemy's bullets; returns whether one hit us.
    fn move_enemy_bullets(&mut self) -> bool {
        let sub = (self.column, self.row);
        let mut over = false;
        retain_from_last(&mut self.enemy_bullets, |bullet| {
            over |= bullet.is_at(sub);
            let inside = bullet.swim();
            over |= bullet.is_at(sub);
            inside
        });
        over
    }

    /// Uses air below the surface and takes in some at it; returns the reward for rescued
    /// divers, and whether we suffocate or surfaced without a diver.
    fn breathe(&mut self, ramping: bool) -> (f32, bool) {
        let suffocates = self.oxygen <= 0;
        if self.row > 0 {
            self.oxygen -= 1;
            self.at_surface = false;
            return (0.0, suffocates);
        }
        if self.at_surface {
            return (0.0, suffocates);
        }
        if self.aboard == 0 {
            return (0.0, true);
        }
        self.at_surface = true;
        let mut reward = 0.0;
        if self.aboard == MAX_DIVERS {
            self.aboard = 0;
            reward = gauge(self.oxygen) as f32;
        }
        self.oxygen = MAX_OXYGEN;
        self.aboard -= 1;
        if ramping {
            self.ramp();
        }
        (reward, suffocates)
    }

    fn ramp(&mut self) {
        if self.spawn_interval <= 1 && self.move_interval <= FASTEST_MOVE_INTERVAL {
            return;
        }
        if self.move_interval > FASTEST_MOVE_INTERVAL && self.ramps % 2 == 1 {
            self.move_interval -= 1;
        }
        if self.spawn_interval > 1 {
            self.spawn_interval -= 1;
        }
        self.ramps += 1;
    }
}

impl Game for Seaquest {
    const CHANNELS: usize = 10;

    const COLOURS: &'static [Colour] = &[
        palette::PLAYER,
        palette::OWN,
        palette::OWN,
        palette::TRAIL,
        palette::SHOT,
        palette::ENEMY,
        palette::BRICK,
        palette::AIR,
        palette::GOOD,
        palette::GOOD,
    ];
    const MOVES: &'static [Move] = super::ALL_MOVES;

    fn reset(&mut self, _draws: &mut impl Draws) {
        *self = Self {
            column: 5,
            oxygen: MAX_OXYGEN,
            at_surface: true,
            spawn_interval: FIRST_SPAWN_INTERVAL,
            spawn_timer: FIRST_SPAWN_INTERVAL,
            diver_spawn_timer: DIVER_SPAWN_INTERVAL,
            move_interval: FIRST_MOVE_INTERVAL,
            ..Self::default()
        };
    }

    fn play(&mut self, choice: Move, ramping: bool, draws: &mut impl Draws) -> (f32, bool) {
        if self.spawn_timer == 0 {
            self.spawn_enemy(draws);
            self.spawn_timer = self.spawn_interval;
        }
        if self.diver_spawn_timer == 0 {
            self.spawn_diver(draws);
            self.diver_spawn_timer = DIVER_SPAWN_INTERVAL;
        }
        self.obey(choice);
        let shot = self.move_bullets();
        self.move_divers();
        let (rammed_subs, sub_hit) = self.move_enemies(true);
        let bullet_hit = self.move_enemy_bullets();
        let (rammed_fish, fish_hit) = self.move_enemies(false);
        self.spawn_timer -= i32::from(self.spawn_timer > 0);
        self.diver_spawn_timer -= i32::from(self.diver_spawn_timer > 0);
        self.shot_timer -= i32::from(self.shot_timer > 0);
        let (rescue, drowned) = self.breathe(ramping);
        let reward = (shot + rammed_subs + rammed_fish) as f32 + rescue;
        (reward, sub_hit || bullet_hit || fish_hit || drowned)
    }

    fn show(&self, board: &mut Board<'_>) {
        board.set(SUB_FRONT, self.row, self.column);
        let back = behind(self.column, self.faces_right);
        board.set_if_inside(SUB_BACK, self.row, back);
        for column in 0..gauge(self.oxygen) as i8 {
            board.set(OXYGEN_GAUGE, LAST, column);
        }
        for column in LAST - self.aboard.max(0) as i8..LAST {
            board.set(DIVER_GAUGE, LAST, column);
        }
        for bullet in &self.bullets {
            board.set(FRIENDLY_BULLET, bullet.row, bullet.column);
        }
        for bullet in &self.enemy_bullets {
            board.set(ENEMY_BULLET, bullet.row, bullet.column);
        }
        for (channel, swimmers) in [
            (FISH, &self.fish),
            (ENEMY_SUB, &self.enemy_subs),
            (DIVER, &self.divers),
        ] {
            for swimmer in swimmers {
                board.set(channel, swimmer.row, swimmer.column);
                let back = behind(swimmer.column, swimmer.to_right);
                board.set_if_inside(TRAIL, swimmer.row, back);
            }
        }
    }
}

/// Keeps those that `stays` is true of. The last one moves first, which decides who is hit where
/// several meet.
fn retain_from_last(swimmers: &mut Vec<Swimmer>, mut stays: impl FnMut(&mut Swimmer) -> bool) {
    for i in (0..swimmers.len()).rev() {
        if !stays(&mut swimmers[i]) {
            swimmers.remove(i);
        }
    }
}

/// Removes the first one at a place; returns whether there was one.
fn remove_at(swimmers: &mut Vec<Swimmer>, place: (i8, i8)) -> bool {
    let found = swimmers.iter().position(|swimmer| swimmer.is_at(place));
    found.map(|i| swimmers.remove(i)).is_some()
}

/// The part of the air that is left, in tenths.
fn gauge(oxygen: i32) -> i32 {
    (oxygen * 10).div_euclid(MAX_OXYGEN)
}

/// What the package does where several things meet in a cell, which recorded games hardly show.
#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream;

    fn swimmer(column: i8, row: i8, to_right: bool, move_timer: i32, shot_timer: i32) -> Swimmer {
        Swimmer {
            column,
            row,
            to_right,
            move_timer,
            shot_timer,
        }
    }

    /// The submarine in deep water, with nothing about to appear.
    fn dive() -> Seaquest {
        let mut game = Seaquest::default();
        game.reset(&mut stream(0, "unused", 0));
        game.row = 5;
        game.at_surface = false;
        game
    }

    fn stay(game: &mut Seaquest) -> (f32, bool) {
        game.play(Move::Stay, true, &mut stream(0, "unused", 0))
    }

    #[test]
    fn a_submarine_shoots_even_as_it_is_hit() {
        let mut game = dive();
        game.bullets.push(swimmer(2, 3, true, 0, 0));
        game.enemy_subs.push(swimmer(4, 3, false, 0, 0));
        assert_eq!(stay(&mut game), (1.0, false));
        assert!(game.enemy_subs.is_empty() && game.bullets.is_empty());
        assert_eq!(game.enemy_bullets.len(), 1);
        assert!(game.enemy_bullets[0].is_at((2, 3)));
    }

    #[test]
    fn of_two_bullets_the_later_one_hits_the_earlier_fish() {
        let mut game = dive();
        game.bullets = vec![swimmer(2, 3, true, 0, 0), swimmer(4, 3, false, 0, 0)];
        game.fish.push(swimmer(3, 3, true, 4, 0));
        assert_eq!(stay(&mut game), (1.0, false));
        assert!(game.fish.is_empty());
        assert!(game.bullets.len() == 1 && game.bullets[0].to_right);

        let mut game = dive();
        game.bullets = vec![swimmer(3, 5, true, 0, 0)];
        game.fish = vec![swimmer(4, 5, true, 3, 0), swimmer(4, 5, true, 2, 0)];
        assert_eq!(stay(&mut game), (1.0, false));
        assert!(game.fish.len() == 1 && game.fish[0].move_timer == 1);
    }

    #[test]
    fn the_last_diver_takes_the_last_seat() {
        let mut game = dive();
        game.aboard = 5;
        game.divers = vec![
            swimmer(5, 5, true, 3, 0),
            swimmer(5, 5, true, 2, 0),
            swimmer(4, 5, true, 0, 0),
            swimmer(4, 5, true, 0, 0),
        ];
        stay(&mut game);
        assert_eq!(game.aboard, 6);
        let timers: Vec<i32> = game.divers.iter().map(|d| d.move_timer).collect();
        assert_eq!(timers, [2, 1, 5]);
    }

    #[test]
    fn air_runs_out_at_zero_even_while_surfacing() {
        for (oxygen, over) in [(1, false), (0, true)] {
            let mut game = dive();
            (game.row, game.aboard, game.oxygen) = (0, 2, oxygen);
            assert_eq!(stay(&mut game), (0.0, over));
            assert_eq!((game.aboard, game.oxygen), (1, MAX_OXYGEN));
        }
    }

    #[test]
    fn a_full_rescue_pays_by_the_air_and_takes_a_seventh_diver() {
        let mut game = dive();
        (game.row, game.aboard, game.oxygen) = (0, 6, 150);
        assert_eq!(stay(&mut game), (7.0, false));
        assert_eq!(game.aboard, -1);
        assert_eq!((game.spawn_interval, game.move_interval), (19, 5));
    }
}
