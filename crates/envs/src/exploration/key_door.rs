//! `KeyDoor-v0`: fetch a key, open a door and reach the goal; only the goal is rewarded.

use serde::{Deserialize, Serialize};

use crate::render::colours::{self, AGENT, GROUND};
use crate::render::{Colour, Picture, cells};
use crate::wrappers::{load, save};
use crate::{Action, Env, EnvError, ObsMut, Rng, Space, Step};

/// Rows and columns of the board.
const SIDE: usize = 11;
/// The column of the wall between the two rooms.
const WALL: usize = SIDE / 2;
const START: (usize, usize) = (SIDE - 1, 0);
const KEY: (usize, usize) = (0, 0);
const DOOR: (usize, usize) = (SIDE - 1, WALL);
const YELLOW: Colour = [240, 200, 70];
const BROWN: Colour = [150, 98, 60];
const GOAL: (usize, usize) = (0, SIDE - 1);

/// Two rooms with a door between them.
///
/// The way from the start (bottom left) over the key (top left) and the door (bottom of the wall)
/// to the goal (top right) is 40 steps long. The goal brings 1 and ends the episode; nothing else
/// has a reward. Observations are five boards: the agent, the wall, the door while it is shut,
/// the key while it lies there, the goal. Actions: up, down, left, right.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct KeyDoor {
    agent: (usize, usize),
    has_key: bool,
}

impl Default for KeyDoor {
    fn default() -> Self {
        Self {
            agent: START,
            has_key: false,
        }
    }
}

impl KeyDoor {
    /// An environment that must be reset before its first step.
    pub fn new() -> Self {
        Self::default()
    }

    fn is_open(&self, place: (usize, usize)) -> bool {
        place.1 != WALL || (place == DOOR && self.has_key)
    }

    fn observe(&self, mut obs: ObsMut<'_>) {
        let mut boards = [0u8; 5 * SIDE * SIDE];
        let mut mark =
            |board: usize, (row, column)| boards[(board * SIDE + row) * SIDE + column] = 1;
        mark(0, self.agent);
        for row in 0..SIDE {
            if (row, WALL) != DOOR {
                mark(1, (row, WALL));
            }
        }
        if !self.has_key {
            mark(2, DOOR);
            mark(3, KEY);
        }
        mark(4, GOAL);
        obs.write(&boards);
    }
}

impl Env for KeyDoor {
    fn observation_space(&self) -> Space {
        Space::bytes(&[5, SIDE, SIDE], 1)
    }

    fn action_space(&self) -> Space {
        Space::Discrete { n: 4 }
    }

    fn reset(&mut self, _rng: &mut Rng, obs: ObsMut<'_>) -> Result<(), EnvError> {
        *self = Self::default();
        self.observe(obs);
        Ok(())
    }

    fn step(
        &mut self,
        action: Action<'_>,
        _rng: &mut Rng,
        obs: ObsMut<'_>,
    ) -> Result<Step, EnvError> {
        let (row, column) = self.agent;
        let place = match action.discrete(4)? {
            0 => (row.saturating_sub(1), column),
            1 => ((row + 1).min(SIDE - 1), column),
            2 => (row, column.saturating_sub(1)),
            _ => (row, (column + 1).min(SIDE - 1)),
        };
        if self.is_open(place) {
            self.agent = place;
        }
        self.has_key |= self.agent == KEY;
        self.observe(obs);
        let terminated = self.agent == GOAL;
        Ok(Step {
            reward: f32::from(u8::from(terminated)),
            terminated,
            truncated: false,
        })
    }

    fn render(&self) -> Result<Picture, EnvError> {
        let place = |place| match place {
            place if place == self.agent => Some(AGENT),
            KEY if !self.has_key => Some(YELLOW),
            GOAL => Some(colours::GOAL),
            DOOR if !self.has_key => Some(BROWN),
            (_, WALL) if place != DOOR => Some(GROUND),
            _ => None,
        };
        Ok(cells(SIDE, SIDE, 36, |row, column| place((row, column))))
    }

    fn render_fps(&self) -> f64 {
        10.0
    }

    fn snapshot(&self) -> Option<Vec<u8>> {
        save(self)
    }

    fn restore(&mut self, snapshot: &[u8]) -> Result<(), EnvError> {
        *self = load(snapshot)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream;
    use starling_tree::{Array, DType, Tree};

    fn walk(env: &mut KeyDoor, way: &[(usize, usize)]) -> (f32, usize) {
        let mut row = Tree::Leaf(Array::zeros(DType::U8, &[5, SIDE, SIDE]));
        let mut rng = stream(1, "env", 0);
        env.reset(&mut rng, ObsMut::at(&mut row, &[])).unwrap();
        let (mut total, mut steps) = (0.0, 0);
        for &(action, count) in way {
            for _ in 0..count {
                let obs = ObsMut::at(&mut row, &[]);
                let step = env.step(Action::Discrete(action), &mut rng, obs);
                let step = step.unwrap();
                total += step.reward;
                steps += 1;
                assert_eq!(step.terminated, step.reward > 0.0);
            }
        }
        (total, steps)
    }

    #[test]
    fn the_way_over_the_key_takes_40_steps() {
        let mut env = KeyDoor::new();
        let way = [(0, 10), (1, 10), (3, 10), (0, 10)];
        assert_eq!(walk(&mut env, &way), (1.0, 40));
    }

    #[test]
    fn without_the_key_the_door_is_a_wall() {
        let mut env = KeyDoor::new();
        assert_eq!(walk(&mut env, &[(3, 10), (0, 10)]).0, 0.0);
        assert_eq!(env.agent, (0, WALL - 1));
    }
}
