//! `MountainCarContinuous-v0`: the mountain car with a throttle, whose use is penalised.

use serde::{Deserialize, Serialize};

use crate::render::Picture;
use crate::wrappers::{load, save};
use crate::{Action, Env, EnvError, ObsMut, Rng, Space, Step};

use super::drawing;
use super::mountain_car::{MAX_POSITION, MAX_SPEED, MIN_POSITION, observation_space};
use super::uniform;

const GOAL: f64 = 0.45;
const POWER: f64 = 0.0015;

/// A car in a valley with a throttle between −1 and 1; 100 for reaching the top, less a tenth of
/// the squared throttle at each step.
#[derive(Debug, Default)]
pub struct MountainCarContinuous {
    state: State,
}

/// Gymnasium starts an episode in double precision and keeps every later state in single, with
/// single-precision arithmetic from there on; to be equal to it we do the same.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum State {
    /// Position at the start; the velocity is 0.
    Start(f64),
    /// Position and velocity after a step.
    Moving([f32; 2]),
}

impl Default for State {
    fn default() -> Self {
        State::Start(0.0)
    }
}

impl MountainCarContinuous {
    /// An environment that must be reset before its first step.
    pub fn new() -> Self {
        Self::default()
    }
}

impl Env for MountainCarContinuous {
    fn observation_space(&self) -> Space {
        observation_space()
    }

    fn action_space(&self) -> Space {
        Space::floats(&[1], -1.0, 1.0)
    }

    fn reset(&mut self, rng: &mut Rng, mut obs: ObsMut<'_>) -> Result<(), EnvError> {
        let position = uniform(rng, -0.6, -0.4);
        self.state = State::Start(position);
        obs.write(&[position as f32, 0.0]);
        Ok(())
    }

    fn step(
        &mut self,
        action: Action<'_>,
        _rng: &mut Rng,
        mut obs: ObsMut<'_>,
    ) -> Result<Step, EnvError> {
        let throttle = action.continuous(1)?[0];
        // cos(3 · position), where the product has the precision of the state.
        let slope = match self.state {
            State::Start(position) => (3.0 * position).cos(),
            State::Moving([position, _]) => f64::from(3.0 * position).cos(),
        };
        // A throttle within bounds is a single-precision number there, a clipped one is not.
        let change = if throttle.abs() <= 1.0 {
            f64::from(throttle * POWER as f32 - (0.0025 * slope) as f32)
        } else {
            f64::from(throttle.signum()) * POWER - 0.0025 * slope
        };
        let (state, arrived) = match self.state {
            State::Start(position) => {
                let (state, arrived) = advance::<f64>(position, change);
                (state.map(|x| x as f32), arrived)
            }
            State::Moving([position, velocity]) => {
                advance::<f32>(position, velocity + change as f32)
            }
        };
        self.state = State::Moving(state);
        obs.write(&state);
        let prize = if arrived { 100.0 } else { 0.0 };
        let price = f64::from(throttle) * f64::from(throttle) * 0.1;
        Ok(Step {
            reward: (prize - price) as f32,
            terminated: arrived,
            truncated: false,
        })
    }

    fn render(&self) -> Result<Picture, EnvError> {
        let position = match self.state {
            State::Start(position) => position,
            State::Moving([position, _]) => position.into(),
        };
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

/// The two precisions of a state.
trait Precision:
    Copy + PartialOrd + std::ops::Add<Output = Self> + std::ops::Neg<Output = Self>
{
    fn of(x: f64) -> Self;
}

impl Precision for f32 {
    fn of(x: f64) -> Self {
        x as f32
    }
}

impl Precision for f64 {
    fn of(x: f64) -> Self {
        x
    }
}

/// The state after moving at a velocity that has yet to be limited, and whether that is the top.
fn advance<F: Precision>(position: F, velocity: F) -> ([F; 2], bool) {
    let mut velocity = limit(velocity, -F::of(MAX_SPEED), F::of(MAX_SPEED));
    let lowest = F::of(MIN_POSITION);
    let position = limit(position + velocity, lowest, F::of(MAX_POSITION));
    if position == lowest && velocity < F::of(0.0) {
        velocity = F::of(0.0);
    }
    let arrived = position >= F::of(GOAL) && velocity >= F::of(0.0);
    ([position, velocity], arrived)
}

fn limit<F: Precision>(x: F, low: F, high: F) -> F {
    if x > high {
        high
    } else if x < low {
        low
    } else {
        x
    }
}
