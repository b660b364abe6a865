//! `Acrobot-v1`: two hanging links, driven at the joint between them, must swing their end up.

use std::f64::consts::PI;

use crate::render::Picture;
use crate::wrappers::{load, save};
use crate::{Action, Env, EnvError, ObsMut, Rng, Space, Step};

use super::drawing;
use super::uniform;

/// Seconds between two steps.
const DT: f64 = 0.2;
const GRAVITY: f64 = 9.8;
/// Both links: length 1, mass 1, moment of inertia 1, centre of mass in the middle.
const CENTRE: f64 = 0.5;
const MAX_SPEED_1: f64 = 4.0 * PI;
const MAX_SPEED_2: f64 = 9.0 * PI;

/// Two links and a torque of −1, 0 or 1 at the joint; a reward of −1 per step until the end is
/// one link's length above the upper joint.
#[derive(Debug, Default)]
pub struct Acrobot {
    /// Both angles (0 hangs down, the second relative to the first) and their velocities.
    state: [f64; 4],
}

impl Acrobot {
    /// An environment that must be reset before its first step.
    pub fn new() -> Self {
        Self::default()
    }

    fn observe(&self, mut obs: ObsMut<'_>) {
        let [theta1, theta2, speed1, speed2] = self.state;
        let shown = [
            theta1.cos(),
            theta1.sin(),
            theta2.cos(),
            theta2.sin(),
            speed1,
            speed2,
        ];
        obs.write(&shown.map(|x| x as f32));
    }
}

impl Env for Acrobot {
    fn observation_space(&self) -> Space {
        let high = [1.0, 1.0, 1.0, 1.0, MAX_SPEED_1 as f32, MAX_SPEED_2 as f32];
        Space::vector(&high.map(|x| -x), &high)
    }

    fn action_space(&self) -> Space {
        Space::Discrete { n: 3 }
    }

    fn reset(&mut self, rng: &mut Rng, obs: ObsMut<'_>) -> Result<(), EnvError> {
        // Gymnasium rounds the start, and only the start, to single precision. It also takes the
        // first sines and cosines in single precision; ours, in double, are the nearest numbers
        // and differ from those by one unit in the last place less than once in a thousand.
        self.state = std::array::from_fn(|_| f64::from(uniform(rng, -0.1, 0.1) as f32));
        self.observe(obs);
        Ok(())
    }

    fn step(
        &mut self,
        action: Action<'_>,
        _rng: &mut Rng,
        obs: ObsMut<'_>,
    ) -> Result<Step, EnvError> {
        let torque = action.discrete(3)? as f64 - 1.0;
        let [theta1, theta2, speed1, speed2] = integrate(self.state, torque);
        let theta1 = wrap(theta1);
        let theta2 = wrap(theta2);
        self.state = [
            theta1,
            theta2,
            speed1.clamp(-MAX_SPEED_1, MAX_SPEED_1),
            speed2.clamp(-MAX_SPEED_2, MAX_SPEED_2),
        ];
        self.observe(obs);
        let terminated = -theta1.cos() - (theta2 + theta1).cos() > 1.0;
        Ok(Step {
            reward: if terminated { 0.0 } else { -1.0 },
            terminated,
            truncated: false,
        })
    }

    fn render(&self) -> Result<Picture, EnvError> {
        let [first, second, ..] = self.state;
        Ok(drawing::acrobot(first, second))
    }

    fn render_fps(&self) -> f64 {
        15.0
    }

    fn snapshot(&self) -> Option<Vec<u8>> {
        save(&self.state)
    }

    fn restore(&mut self, snapshot: &[u8]) -> Result<(), EnvError> {
        self.state = load(snapshot)?;
        Ok(())
    }
}

/// One step of the classical Runge-Kutta method.
fn integrate(start: [f64; 4], torque: f64) -> [f64; 4] {
    let ahead = |dt: f64, slope: [f64; 4]| std::array::from_fn(|i| start[i] + dt * slope[i]);
    let k1 = derivative(start, torque);
    let k2 = derivative(ahead(DT / 2.0, k1), torque);
    let k3 = derivative(ahead(DT / 2.0, k2), torque);
    let k4 = derivative(ahead(DT, k3), torque);
    std::array::from_fn(|i| start[i] + DT / 6.0 * (k1[i] + 2.0 * k2[i] + 2.0 * k3[i] + k4[i]))
}

/// The equations of motion of Sutton and Barto's book.
fn derivative([theta1, theta2, speed1, speed2]: [f64; 4], torque: f64) -> [f64; 4] {
    let (sin2, cos2) = (theta2.sin(), theta2.cos());
    let d1 = CENTRE * CENTRE + (1.0 + CENTRE * CENTRE + 2.0 * CENTRE * cos2) + 1.0 + 1.0;
    let d2 = (CENTRE * CENTRE + CENTRE * cos2) + 1.0;
    let phi2 = CENTRE * GRAVITY * (theta1 + theta2 - PI / 2.0).cos();
    let phi1 = -CENTRE * (speed2 * speed2) * sin2 - 2.0 * CENTRE * speed2 * speed1 * sin2
        + (CENTRE + 1.0) * GRAVITY * (theta1 - PI / 2.0).cos()
        + phi2;
    let acceleration2 = (torque + d2 / d1 * phi1 - CENTRE * (speed1 * speed1) * sin2 - phi2)
        / (CENTRE * CENTRE + 1.0 - d2 * d2 / d1);
    let acceleration1 = -(d2 * acceleration2 + phi1) / d1;
    [speed1, speed2, acceleration1, acceleration2]
}

/// An angle between −π and π.
fn wrap(mut angle: f64) -> f64 {
    while angle > PI {
        angle -= 2.0 * PI;
    }
    while angle < -PI {
        angle += 2.0 * PI;
    }
    angle
}
