//! `TMaze-v0`: a sign at the beginning of a corridor says which way to turn at its end (after
//! Bakker 2002).

use rand::RngExt as _;
use serde::{Deserialize, Serialize};

use crate::render::colours::{AGENT, BOARD, GOAL, GROUND, PAPER};
use crate::render::{Canvas, Picture};
use crate::wrappers::{load, save};
use crate::{Action, Env, EnvError, ObsMut, Rng, Space, Step};

/// Steps from the sign to the junction.
const CORRIDOR: u32 = 10;

/// A corridor with a junction at its end.
///
/// Observations are four flags: the sign says up, the sign says down (both only in the first
/// place), in the corridor, at the junction. Actions: 0 goes forward, 1 up, 2 down. At the
/// junction the right turn brings 1 and the wrong one −1, and the episode ends; a step into a
/// wall costs 0.02. Without remembering the sign, an agent cannot do better than 0 on average.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct TMaze {
    place: u32,
    up: bool,
}

impl TMaze {
    /// An environment that must be reset before its first step.
    pub fn new() -> Self {
        Self::default()
    }

    /// The corridor, the two ways at its end, the sign at its beginning, and the agent. The sign is
    /// bright where the agent sees it.
    fn draw(&self) -> Picture {
        const CELL: f64 = 50.0;
        let corner = |column: u32, row: i32| {
            [
                f64::from(column) * CELL + 25.0,
                f64::from(row + 1) * CELL + 25.0,
            ]
        };
        let middle = |column: u32, row: i32| corner(column, row).map(|x| x + CELL / 2.0);
        let mut canvas = Canvas::new(600, 200, BOARD);
        let arms = [(CORRIDOR, -1), (CORRIDOR, 1)];
        for (column, row) in (0..=CORRIDOR).map(|column| (column, 0)).chain(arms) {
            let [x, y] = corner(column, row);
            canvas.rectangle([x + 1.0, y + 1.0], CELL - 2.0, CELL - 2.0, PAPER);
        }
        let colour = if self.place == 0 { GOAL } else { GROUND };
        let way = if self.up { -1.0 } else { 1.0 };
        let [x, y] = middle(0, 0);
        let tip = [x, y + 20.0 * way];
        canvas.line([x, y - 16.0 * way], [x, y + 8.0 * way], 6.0, colour);
        canvas.polygon(
            &[tip, [x - 12.0, y + 2.0 * way], [x + 12.0, y + 2.0 * way]],
            colour,
        );
        canvas.circle(middle(self.place, 0), 12.0, AGENT);
        canvas.finish()
    }

    fn observe(&self, mut obs: ObsMut<'_>) {
        let flags = [
            self.place == 0 && self.up,
            self.place == 0 && !self.up,
            self.place < CORRIDOR,
            self.place == CORRIDOR,
        ];
        obs.write(&flags.map(|flag| f32::from(u8::from(flag))));
    }
}

impl Env for TMaze {
    fn observation_space(&self) -> Space {
        Space::floats(&[4], 0.0, 1.0)
    }

    fn action_space(&self) -> Space {
        Space::Discrete { n: 3 }
    }

    fn reset(&mut self, rng: &mut Rng, obs: ObsMut<'_>) -> Result<(), EnvError> {
        self.place = 0;
        self.up = rng.random();
        self.observe(obs);
        Ok(())
    }

    fn step(
        &mut self,
        action: Action<'_>,
        _rng: &mut Rng,
        obs: ObsMut<'_>,
    ) -> Result<Step, EnvError> {
        let action = action.discrete(3)?;
        let at_junction = self.place == CORRIDOR;
        let (reward, terminated) = match (at_junction, action) {
            (false, 0) => {
                self.place += 1;
                (0.0, false)
            }
            (true, 1 | 2) if (action == 1) == self.up => (1.0, true),
            (true, 1 | 2) => (-1.0, true),
            _ => (-0.02, false),
        };
        self.observe(obs);
        Ok(Step {
            reward,
            terminated,
            truncated: false,
        })
    }

    fn render(&self) -> Result<Picture, EnvError> {
        Ok(self.draw())
    }

    fn render_fps(&self) -> f64 {
        8.0
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

    fn observed(row: &Tree<Array>) -> Vec<f32> {
        row.leaf().unwrap().as_slice().to_vec()
    }

    #[test]
    fn the_sign_is_seen_once_and_decides_at_the_end() {
        let mut row = Tree::Leaf(Array::zeros(DType::F32, &[4]));
        let mut rng = stream(1, "env", 0);
        let mut env = TMaze::new();
        let mut signs = [0, 0];
        for _ in 0..50 {
            env.reset(&mut rng, ObsMut::at(&mut row, &[])).unwrap();
            let seen = observed(&row);
            assert_eq!(seen[2..], [1.0, 0.0]);
            let up = seen[0] == 1.0;
            assert_eq!(seen[1] == 1.0, !up);
            signs[usize::from(up)] += 1;
            let mut step = |action: usize, row: &mut Tree<Array>| {
                let obs = ObsMut::at(row, &[]);
                env.step(Action::Discrete(action), &mut rng, obs).unwrap()
            };
            assert_eq!(step(1, &mut row).reward, -0.02);
            assert_eq!(observed(&row), seen);
            for _ in 0..CORRIDOR {
                assert_eq!(step(0, &mut row), Step::default());
                assert_eq!(observed(&row)[..2], [0.0, 0.0]);
            }
            assert_eq!(observed(&row), [0.0, 0.0, 0.0, 1.0]);
            let last = step(1, &mut row);
            assert_eq!(last.reward, if up { 1.0 } else { -1.0 });
            assert!(last.terminated);
        }
        assert!(signs.iter().all(|count| *count > 10), "{signs:?}");
    }
}
