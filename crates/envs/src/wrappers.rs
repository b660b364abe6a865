//! Wrappers around environments.

use serde::{Deserialize, Serialize};

use crate::render::Picture;
use crate::{Action, Env, EnvError, ObsMut, Rng, Space, Step};

/// Truncates episodes after a number of steps.
#[derive(Debug)]
pub struct TimeLimit<E> {
    env: E,
    max_steps: u64,
    elapsed: u64,
}

#[derive(Serialize, Deserialize)]
struct State {
    elapsed: u64,
    env: Vec<u8>,
}

impl<E: Env> TimeLimit<E> {
    /// Episodes of `env` that last at most `max_steps` steps.
    pub fn new(env: E, max_steps: u64) -> Self {
        Self {
            env,
            max_steps,
            elapsed: 0,
        }
    }
}

impl<E: Env> Env for TimeLimit<E> {
    fn observation_space(&self) -> Space {
        self.env.observation_space()
    }

    fn action_space(&self) -> Space {
        self.env.action_space()
    }

    fn reset(&mut self, rng: &mut Rng, obs: ObsMut<'_>) -> Result<(), EnvError> {
        self.elapsed = 0;
        self.env.reset(rng, obs)
    }

    fn step(
        &mut self,
        action: Action<'_>,
        rng: &mut Rng,
        obs: ObsMut<'_>,
    ) -> Result<Step, EnvError> {
        let mut step = self.env.step(action, rng, obs)?;
        self.elapsed += 1;
        if self.elapsed >= self.max_steps {
            step.truncated = true;
            self.env.cut_off();
        }
        Ok(step)
    }

    fn frame_stack(&self) -> Option<usize> {
        self.env.frame_stack()
    }

    fn masks_actions(&self) -> bool {
        self.env.masks_actions()
    }

    fn legal_actions(&self, mask: &mut [u8]) {
        self.env.legal_actions(mask);
    }

    fn game_score(&self) -> Option<f64> {
        self.env.game_score()
    }

    fn counts_games(&self) -> bool {
        self.env.counts_games()
    }

    fn lives(&self) -> Option<u32> {
        self.env.lives()
    }

    fn cut_off(&mut self) {
        self.env.cut_off();
    }

    fn render(&self) -> Result<Picture, EnvError> {
        self.env.render()
    }

    fn render_fps(&self) -> f64 {
        self.env.render_fps()
    }

    fn snapshot(&self) -> Option<Vec<u8>> {
        save(&State {
            elapsed: self.elapsed,
            env: self.env.snapshot()?,
        })
    }

    fn restore(&mut self, snapshot: &[u8]) -> Result<(), EnvError> {
        let state: State = load(snapshot)?;
        self.env.restore(&state.env)?;
        self.elapsed = state.elapsed;
        Ok(())
    }
}

/// A state as the bytes of a snapshot.
pub(crate) fn save<S: Serialize>(state: &S) -> Option<Vec<u8>> {
    postcard::to_allocvec(state).ok()
}

/// A state from the bytes of a snapshot, all of which it must use.
pub(crate) fn load<'a, S: Deserialize<'a>>(snapshot: &'a [u8]) -> Result<S, EnvError> {
    match postcard::take_from_bytes(snapshot) {
        Ok((state, [])) => Ok(state),
        Ok((_, rest)) => Err(EnvError::Snapshot(format!("{} bytes too many", rest.len()))),
        Err(error) => Err(EnvError::Snapshot(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::classic::Pendulum;
    use crate::stream;
    use starling_tree::{Array, DType, Tree};

    #[test]
    fn the_limit_counts_from_0_after_a_reset_and_continues_from_a_snapshot() {
        let mut rng = stream(0, "limit", 0);
        let mut row = Tree::Leaf(Array::zeros(DType::F32, &[3]));
        let mut env = TimeLimit::new(Pendulum::new(), 3);
        let mut truncations = |env: &mut TimeLimit<Pendulum>, steps: usize| -> Vec<bool> {
            let step = |_| {
                let obs = ObsMut::at(&mut row, &[]);
                let step = env.step(Action::Continuous(&[0.0]), &mut rng, obs);
                step.unwrap().truncated
            };
            (0..steps).map(step).collect()
        };
        assert_eq!(truncations(&mut env, 1), [false]);
        let snapshot = env.snapshot().unwrap();
        assert_eq!(truncations(&mut env, 2), [false, true]);
        env.restore(&snapshot).unwrap();
        assert_eq!(truncations(&mut env, 2), [false, true]);
        let mut start = Tree::Leaf(Array::zeros(DType::F32, &[3]));
        let obs = ObsMut::at(&mut start, &[]);
        env.reset(&mut stream(0, "limit", 1), obs).unwrap();
        assert_eq!(truncations(&mut env, 3), [false, false, true]);
    }
}
