//! `Pendulum-v1`: a pendulum must be swung up and held upright by a weak torque.

use std::f64::consts::PI;

use crate::render::Picture;
use crate::wrappers::{load, save};
use crate::{Action, Env, EnvError, ObsMut, Rng, Space, Step};

use super::drawing;
use super::uniform;

const MAX_SPEED: f64 = 8.0;
const MAX_TORQUE: f32 = 2.0;
/// Seconds between two steps.
const DT: f64 = 0.05;
const GRAVITY: f64 = 10.0;

/// A pendulum of mass 1 and length 1 and a torque between −2 and 2; the reward falls with the
/// distance from standing still upright.
#[derive(Debug, Default)]
pub struct Pendulum {
    /// Angle (0 is upright) and angular velocity.
    state: [f64; 2],
}

impl Pendulum {
    /// An environment that must be reset before its first step.
    pub fn new() -> Self {
        Self::default()
    }

    fn observe(&self, mut obs: ObsMut<'_>) {
        let [theta, speed] = self.state;
        obs.write(&[theta.cos(), theta.sin(), speed].map(|x| x as f32));
    }
}

impl Env for Pendulum {
    fn observation_space(&self) -> Space {
        let high = [1.0, 1.0, MAX_SPEED as f32];
        Space::vector(&high.map(|x| -x), &high)
    }

    fn action_space(&self) -> Space {
        Space::floats(&[1], -MAX_TORQUE, MAX_TORQUE)
    }

    fn reset(&mut self, rng: &mut Rng, obs: ObsMut<'_>) -> Result<(), EnvError> {
        self.state = [uniform(rng, -PI, PI), uniform(rng, -1.0, 1.0)];
        self.observe(obs);
        Ok(())
    }

    fn step(
        &mut self,
        action: Action<'_>,
        _rng: &mut Rng,
        obs: ObsMut<'_>,
    ) -> Result<Step, EnvError> {
        let torque = action.continuous(1)?[0].clamp(-MAX_TORQUE, MAX_TORQUE);
        let [theta, speed] = self.state;
        let angle = (theta + PI).rem_euclid(2.0 * PI) - PI;
        // The torque's own terms are single-precision in Gymnasium.
        let cost = angle * angle + 0.1 * (speed * speed) + f64::from(0.001 * (torque * torque));
        let push = 3.0 * GRAVITY / 2.0 * theta.sin() + f64::from(3.0 * torque);
        let speed = (speed + push * DT).clamp(-MAX_SPEED, MAX_SPEED);
        self.state = [theta + speed * DT, speed];
        self.observe(obs);
        Ok(Step {
            reward: -cost as f32,
            terminated: false,
            truncated: false,
        })
    }

    fn render(&self) -> Result<Picture, EnvError> {
        let [angle, _] = self.state;
        Ok(drawing::pendulum(angle))
    }

    fn render_fps(&self) -> f64 {
        1.0 / DT
    }

    fn snapshot(&self) -> Option<Vec<u8>> {
        save(&self.state)
    }

    fn restore(&mut self, snapshot: &[u8]) -> Result<(), EnvError> {
        self.state = load(snapshot)?;
        Ok(())
    }
}
