//! `Swimmer`: a chain of three links in a viscous fluid.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use starling_envs::{EnvError, Rng};

use crate::Simulation;
use crate::drawing::{From, View};
use crate::numpy::sum_of_squares_f32;
use crate::robot::{self, Noise, Robot, Task};

/// The options of `Swimmer-v5`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SwimmerOptions {
    /// The model: one of Gymnasium's by its name, or the path of an MJCF file.
    pub xml_file: String,
    /// Simulation steps per step of the environment.
    #[schemars(range(min = 1, max = 1000), extend("unit" = "simulation steps"))]
    pub frame_skip: usize,
    /// Weight of the forward velocity in the reward.
    #[schemars(extend("unbounded" = true))]
    pub forward_reward_weight: f64,
    /// Weight of the squared action, which is subtracted from the reward.
    #[schemars(extend("unbounded" = true))]
    pub ctrl_cost_weight: f64,
    /// Size of the noise in the initial positions and velocities.
    #[schemars(range(min = 0.0))]
    pub reset_noise_scale: f64,
    /// Whether the x and y positions are left out of the observation.
    pub exclude_current_positions_from_observation: bool,
}

impl Default for SwimmerOptions {
    fn default() -> Self {
        Self {
            xml_file: "swimmer.xml".into(),
            frame_skip: 4,
            forward_reward_weight: 1.0,
            ctrl_cost_weight: 1e-4,
            reset_noise_scale: 0.1,
            exclude_current_positions_from_observation: true,
        }
    }
}

/// The options of `Swimmer-v4`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SwimmerV4Options {
    /// Weight of the forward velocity in the reward.
    #[schemars(extend("unbounded" = true))]
    pub forward_reward_weight: f64,
    /// Weight of the squared action, which is subtracted from the reward.
    #[schemars(extend("unbounded" = true))]
    pub ctrl_cost_weight: f64,
    /// Size of the noise in the initial positions and velocities.
    #[schemars(range(min = 0.0))]
    pub reset_noise_scale: f64,
    /// Whether the x and y positions are left out of the observation.
    pub exclude_current_positions_from_observation: bool,
}

impl Default for SwimmerV4Options {
    fn default() -> Self {
        Self {
            forward_reward_weight: 1.0,
            ctrl_cost_weight: 1e-4,
            reset_noise_scale: 0.1,
            exclude_current_positions_from_observation: true,
        }
    }
}

pub(crate) struct Swimmer(SwimmerOptions);

pub(super) fn v5(options: SwimmerOptions) -> Result<Robot<Swimmer>, EnvError> {
    Robot::new(&options.xml_file.clone(), options.frame_skip, |model| {
        robot::need(model, model.nq() > 2, "at least 3 positions")?;
        Ok(Swimmer(options))
    })
}

pub(super) fn v4(options: SwimmerV4Options) -> Result<Robot<Swimmer>, EnvError> {
    v5(SwimmerOptions {
        forward_reward_weight: options.forward_reward_weight,
        ctrl_cost_weight: options.ctrl_cost_weight,
        reset_noise_scale: options.reset_noise_scale,
        exclude_current_positions_from_observation: options
            .exclude_current_positions_from_observation,
        ..SwimmerOptions::default()
    })
}

impl Task for Swimmer {
    fn start(&self, simulation: &mut Simulation, rng: &mut Rng) {
        robot::disturb_state(simulation, Noise::Uniform, self.0.reset_noise_scale, rng);
    }

    fn observe(&self, simulation: &Simulation, observation: &mut Vec<f64>) {
        let skipped = 2 * usize::from(self.0.exclude_current_positions_from_observation);
        observation.extend_from_slice(&simulation.qpos()[skipped..]);
        observation.extend_from_slice(simulation.qvel());
    }

    fn mark(&self, simulation: &Simulation) -> f64 {
        simulation.qpos()[0]
    }

    fn judge(&self, simulation: &Simulation, before: f64, action: &[f32], dt: f64) -> (f64, bool) {
        let velocity = (simulation.qpos()[0] - before) / dt;
        let forward = self.0.forward_reward_weight * velocity;
        let cost = self.0.ctrl_cost_weight as f32 * sum_of_squares_f32(action);
        (forward - f64::from(cost), false)
    }

    fn view(&self) -> View {
        View {
            from: From::Above,
            follow: Some(1),
            centre: [0.2, 0.0],
            width: 5.0,
        }
    }
}
