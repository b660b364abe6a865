//! `CartPole-v1`: a cart is pushed left or right so that the pole on it stays up.

use crate::render::Picture;
use crate::wrappers::{load, save};
use crate::{Action, Env, EnvError, ObsMut, Rng, Space, Step};

use super::drawing;
use super::uniform;

const GRAVITY: f64 = 9.8;
const POLE_MASS: f64 = 0.1;
const TOTAL_MASS: f64 = POLE_MASS + 1.0;
/// Half the pole's length.
const LENGTH: f64 = 0.5;
const POLE_MASS_LENGTH: f64 = POLE_MASS * LENGTH;
const FORCE: f64 = 10.0;
/// Seconds between two steps.
const TAU: f64 = 0.02;
const MAX_ANGLE: f64 = 12.0 * 2.0 * std::f64::consts::PI / 360.0;
const MAX_POSITION: f64 = 2.4;

/// A pole on a cart; a reward of 1 per step as long as it stays up.
#[derive(Debug, Default)]
pub struct CartPole {
    /// Position, velocity, angle of the pole, angular velocity.
    state: [f64; 4],
}

impl CartPole {
    /// An environment that must be reset before its first step.
    pub fn new() -> Self {
        Self::default()
    }

    fn observe(&self, mut obs: ObsMut<'_>) {
        obs.write(&self.state.map(|x| x as f32));
    }
}

impl Env for CartPole {
    fn observation_space(&self) -> Space {
        let high = [
            (MAX_POSITION * 2.0) as f32,
            f32::INFINITY,
            (MAX_ANGLE * 2.0) as f32,
            f32::INFINITY,
        ];
        Space::vector(&high.map(|x| -x), &high)
    }

    fn action_space(&self) -> Space {
        Space::Discrete { n: 2 }
    }

    fn reset(&mut self, rng: &mut Rng, obs: ObsMut<'_>) -> Result<(), EnvError> {
        self.state = std::array::from_fn(|_| uniform(rng, -0.05, 0.05));
        self.observe(obs);
        Ok(())
    }

    fn step(
        &mut self,
        action: Action<'_>,
        _rng: &mut Rng,
        obs: ObsMut<'_>,
    ) -> Result<Step, EnvError> {
        let force = if action.discrete(2)? == 1 {
            FORCE
        } else {
            -FORCE
        };
        let [x, x_dot, theta, theta_dot] = self.state;
        let (sin, cos) = (theta.sin(), theta.cos());
        let pull = (force + POLE_MASS_LENGTH * (theta_dot * theta_dot) * sin) / TOTAL_MASS;
        let theta_acc = (GRAVITY * sin - cos * pull)
            / (LENGTH * (4.0 / 3.0 - POLE_MASS * (cos * cos) / TOTAL_MASS));
        let x_acc = pull - POLE_MASS_LENGTH * theta_acc * cos / TOTAL_MASS;
        let x = x + TAU * x_dot;
        let theta = theta + TAU * theta_dot;
        self.state = [x, x_dot + TAU * x_acc, theta, theta_dot + TAU * theta_acc];
        self.observe(obs);
        Ok(Step {
            reward: 1.0,
            terminated: x.abs() > MAX_POSITION || theta.abs() > MAX_ANGLE,
            truncated: false,
        })
    }

    fn render(&self) -> Result<Picture, EnvError> {
        let [position, _, angle, _] = self.state;
        Ok(drawing::cart_pole(position, angle, MAX_POSITION))
    }

    fn render_fps(&self) -> f64 {
        1.0 / TAU
    }

    fn snapshot(&self) -> Option<Vec<u8>> {
        save(&self.state)
    }

    fn restore(&mut self, snapshot: &[u8]) -> Result<(), EnvError> {
        self.state = load(snapshot)?;
        Ok(())
    }
}
