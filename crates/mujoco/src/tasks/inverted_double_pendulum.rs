//! `InvertedDoublePendulum`: balance two poles, one on the other, on a cart.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use starling_envs::{EnvError, Rng};

use super::NoOptions;
use crate::drawing::{From, View};
use crate::numpy::square;
use crate::robot::{self, Noise, Robot, Task};
use crate::{Range, Simulation};

/// The options of `InvertedDoublePendulum-v5`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct InvertedDoublePendulumOptions {
    /// The model: one of Gymnasium's by its name, or the path of an MJCF file.
    pub xml_file: String,
    /// Simulation steps per step of the environment.
    #[schemars(range(min = 1, max = 1000), extend("unit" = "simulation steps"))]
    pub frame_skip: usize,
    /// Reward of a step that does not end the episode.
    #[schemars(extend("unbounded" = true))]
    pub healthy_reward: f64,
    /// Size of the noise in the initial positions and velocities.
    #[schemars(range(min = 0.0))]
    pub reset_noise_scale: f64,
}

impl Default for InvertedDoublePendulumOptions {
    fn default() -> Self {
        Self {
            xml_file: "inverted_double_pendulum.xml".into(),
            frame_skip: 5,
            healthy_reward: 10.0,
            reset_noise_scale: 0.1,
        }
    }
}

pub(crate) struct InvertedDoublePendulum {
    options: InvertedDoublePendulumOptions,
    /// v4 pays for the step that ends an episode, and shows the force on each joint, two of which are
    /// always 0.
    is_v4: bool,
}

type Made = Result<Robot<InvertedDoublePendulum>, EnvError>;

pub(super) fn v5(options: InvertedDoublePendulumOptions) -> Made {
    make(options, false)
}

pub(super) fn v4(NoOptions {}: NoOptions) -> Made {
    make(InvertedDoublePendulumOptions::default(), true)
}

fn make(options: InvertedDoublePendulumOptions, is_v4: bool) -> Made {
    Robot::new(&options.xml_file.clone(), options.frame_skip, |model| {
        let good = model.nq() >= 1 && model.nv() >= 3 && model.nsite() >= 1;
        robot::need(model, good, "a position, 3 velocities and a site")?;
        Ok(InvertedDoublePendulum { options, is_v4 })
    })
}

impl Task for InvertedDoublePendulum {
    fn start(&self, simulation: &mut Simulation, rng: &mut Rng) {
        let scale = self.options.reset_noise_scale;
        robot::disturb_state(simulation, Noise::Normal, scale, rng);
    }

    fn observe(&self, simulation: &Simulation, observation: &mut Vec<f64>) {
        let (cart, links) = simulation.qpos().split_at(1);
        observation.extend_from_slice(cart);
        observation.extend(links.iter().map(|angle| angle.sin()));
        observation.extend(links.iter().map(|angle| angle.cos()));
        let limits = Range::new(-10.0, 10.0);
        observation.extend(simulation.qvel().iter().map(|value| limits.clip(*value)));
        let forces = simulation.qfrc_constraint();
        let seen = if self.is_v4 { forces.len() } else { 1 };
        observation.extend(forces[..seen].iter().map(|value| limits.clip(*value)));
    }

    fn mark(&self, _: &Simulation) -> f64 {
        0.0
    }

    fn judge(&self, simulation: &Simulation, _: f64, _: &[f32], _: f64) -> (f64, bool) {
        let [x, _, y] = simulation.site_xpos()[0];
        let falls = y <= 1.0;
        let distance = 0.01 * square(x) + square(y - 2.0);
        let velocities = simulation.qvel();
        let velocity = 1e-3 * square(velocities[1]) + 5e-3 * square(velocities[2]);
        let paid = !falls || self.is_v4;
        let alive = self.options.healthy_reward * f64::from(u8::from(paid));
        (alive - distance - velocity, falls)
    }

    fn view(&self) -> View {
        View {
            from: From::Side,
            follow: None,
            centre: [0.0, 0.5],
            width: 3.6,
        }
    }
}
