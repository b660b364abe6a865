//! `MountainCar-v0`: a car that is too weak to climb the hill must build up speed by rocking.

use crate::render::Picture;
use crate::wrappers::{load, save};
use crate::{Action, Env, EnvError, ObsMut, Rng, Space, Step};

use super::drawing;
use super::uniform;

pub(super) const MIN_POSITION: f64 = -1.2;
pub(super) const MAX_POSITION: f64 = 0.6;
pub(super) const MAX_SPEED: f64 = 0.07;
const GOAL: f64 = 0.5;
const FORCE: f64 = 0.001;
const GRAVITY: f64 = 0.0025;

/// A car in a valley that is pushed left, not at all, or right; a reward of −1 per step until
/// it is on the hill.
#[derive(Debug, Default)]
pub struct MountainCar {
    /// Position and velocity.
    state: [f64; 2],
}

impl MountainCar {
    /// An environment that must be reset before its first step.
    pub fn new() -> Self {
        Self::default()
    }

    fn observe(&self, mut obs: ObsMut<'_>) {
        obs.write(&self.state.map(|x| x as f32));
    }
}

/// What both cars show.
pub(super) fn observation_space() -> Space {
    Space::vector(
        &[MIN_POSITION as f32, -MAX_SPEED as f32],
        &[MAX_POSITION as f32, MAX_SPEED as f32],
    )
}

impl Env for MountainCar {
    fn observation_space(&self) -> Space {
        observation_space()
    }

    fn action_space(&self) -> Space {
        Space::Discrete { n: 3 }
    }

    fn reset(&mut self, rng: &mut Rng, obs: ObsMut<'_>) -> Result<(), EnvError> {
        self.state = [uniform(rng, -0.6, -0.4), 0.0];
        self.observe(obs);
        Ok(())
    }

    fn step(
        &mut self,
        action: Action<'_>,
        _rng: &mut Rng,
        obs: ObsMut<'_>,
    ) -> Result<Step, EnvError> {
        let push = action.discrete(3)? as f64 - 1.0;
        let [position, velocity] = self.state;
        let velocity = velocity + (push * FORCE + (3.0 * position).cos() * -GRAVITY);
        let mut velocity = velocity.clamp(-MAX_SPEED, MAX_SPEED);
        let position = (position + velocity).clamp(MIN_POSITION, MAX_POSITION);
        if position == MIN_POSITION && velocity < 0.0 {
            velocity = 0.0;
        }
        self.state = [position, velocity];
        self.observe(obs);
        Ok(Step {
            reward: -1.0,
            terminated: position >= GOAL && velocity >= 0.0,
            truncated: false,
        })
    }

    fn render(&self) -> Result<Picture, EnvError> {
        let [position, _] = self.state;
        Ok(drawing::mountain_car(
            position,
            GOAL,
            MIN_POSITION,
            MAX_POSITION,
        ))
    }

    fn render_fps(&self) -> f64 {
        30.0
    }

    fn snapshot(&self) -> Option<Vec<u8>> {
        save(&self.state)
    }

    fn restore(&mut self, snapshot: &[u8]) -> Result<(), EnvError> {
        self.state = load(snapshot)?;
        Ok(())
    }
}
