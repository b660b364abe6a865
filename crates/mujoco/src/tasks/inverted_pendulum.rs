//! `InvertedPendulum`: balance a pole on a cart.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use starling_envs::{EnvError, Rng};

use super::NoOptions;
use crate::Simulation;
use crate::drawing::{From, View};
use crate::robot::{self, Noise, Robot, Task};

/// The options of `InvertedPendulum-v5`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct InvertedPendulumOptions {
    /// The model: one of Gymnasium's by its name, or the path of an MJCF file.
    pub xml_file: String,
    /// Simulation steps per step of the environment.
    #[schemars(range(min = 1, max = 1000), extend("unit" = "simulation steps"))]
    pub frame_skip: usize,
    /// Size of the noise in the initial positions and velocities.
    #[schemars(range(min = 0.0))]
    pub reset_noise_scale: f64,
}

impl Default for InvertedPendulumOptions {
    fn default() -> Self {
        Self {
            xml_file: "inverted_pendulum.xml".into(),
            frame_skip: 2,
            reset_noise_scale: 0.01,
        }
    }
}

pub(crate) struct InvertedPendulum {
    reset_noise_scale: f64,
    /// Whether the step that ends an episode is paid.
    pays_the_fall: bool,
}

pub(super) fn v5(options: InvertedPendulumOptions) -> Result<Robot<InvertedPendulum>, EnvError> {
    make(options, false)
}

pub(super) fn v4(NoOptions {}: NoOptions) -> Result<Robot<InvertedPendulum>, EnvError> {
    make(InvertedPendulumOptions::default(), true)
}

fn make(
    options: InvertedPendulumOptions,
    pays_the_fall: bool,
) -> Result<Robot<InvertedPendulum>, EnvError> {
    Robot::new(&options.xml_file, options.frame_skip, |model| {
        robot::need(model, model.nq() >= 2, "at least 2 positions")?;
        Ok(InvertedPendulum {
            reset_noise_scale: options.reset_noise_scale,
            pays_the_fall,
        })
    })
}

impl Task for InvertedPendulum {
    fn start(&self, simulation: &mut Simulation, rng: &mut Rng) {
        robot::disturb_state(simulation, Noise::Uniform, self.reset_noise_scale, rng);
    }

    fn observe(&self, simulation: &Simulation, observation: &mut Vec<f64>) {
        observation.extend_from_slice(simulation.qpos());
        observation.extend_from_slice(simulation.qvel());
    }

    fn mark(&self, _: &Simulation) -> f64 {
        0.0
    }

    fn judge(&self, simulation: &Simulation, _: f64, _: &[f32], _: f64) -> (f64, bool) {
        let mut state = simulation.qpos().iter().chain(simulation.qvel());
        let falls = !state.all(|value| value.is_finite()) || simulation.qpos()[1].abs() > 0.2;
        let paid = !falls || self.pays_the_fall;
        (f64::from(u8::from(paid)), falls)
    }

    fn view(&self) -> View {
        View {
            from: From::Side,
            follow: None,
            centre: [0.0, 0.25],
            width: 2.6,
        }
    }
}
