//! `HalfCheetah`: run on two legs in a plane.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use starling_envs::{EnvError, Rng};

use crate::Simulation;
use crate::drawing::{From, View};
use crate::numpy::sum_of_squares_f32;
use crate::robot::{self, Noise, Robot, Task};

/// The options of `HalfCheetah-v5`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct HalfCheetahOptions {
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
    /// Whether the x position is left out of the observation.
    pub exclude_current_positions_from_observation: bool,
}

impl Default for HalfCheetahOptions {
    fn default() -> Self {
        Self {
            xml_file: "half_cheetah.xml".into(),
            frame_skip: 5,
            forward_reward_weight: 1.0,
            ctrl_cost_weight: 0.1,
            reset_noise_scale: 0.1,
            exclude_current_positions_from_observation: true,
        }
    }
}

/// The options of `HalfCheetah-v4`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct HalfCheetahV4Options {
    /// Weight of the forward velocity in the reward.
    #[schemars(extend("unbounded" = true))]
    pub forward_reward_weight: f64,
    /// Weight of the squared action, which is subtracted from the reward.
    #[schemars(extend("unbounded" = true))]
    pub ctrl_cost_weight: f64,
    /// Size of the noise in the initial positions and velocities.
    #[schemars(range(min = 0.0))]
    pub reset_noise_scale: f64,
    /// Whether the x position is left out of the observation.
    pub exclude_current_positions_from_observation: bool,
}

impl Default for HalfCheetahV4Options {
    fn default() -> Self {
        Self {
            forward_reward_weight: 1.0,
            ctrl_cost_weight: 0.1,
            reset_noise_scale: 0.1,
            exclude_current_positions_from_observation: true,
        }
    }
}

pub(crate) struct HalfCheetah(HalfCheetahOptions);

pub(super) fn v5(options: HalfCheetahOptions) -> Result<Robot<HalfCheetah>, EnvError> {
    Robot::new(&options.xml_file.clone(), options.frame_skip, |model| {
        robot::need(model, model.nq() > 1, "at least 2 positions")?;
        Ok(HalfCheetah(options))
    })
}

pub(super) fn v4(options: HalfCheetahV4Options) -> Result<Robot<HalfCheetah>, EnvError> {
    v5(HalfCheetahOptions {
        forward_reward_weight: options.forward_reward_weight,
        ctrl_cost_weight: options.ctrl_cost_weight,
        reset_noise_scale: options.reset_noise_scale,
        exclude_current_positions_from_observation: options
            .exclude_current_positions_from_observation,
        ..HalfCheetahOptions::default()
    })
}

impl Task for HalfCheetah {
    fn start(&self, simulation: &mut Simulation, rng: &mut Rng) {
        robot::disturb_state(simulation, Noise::Normal, self.0.reset_noise_scale, rng);
    }

    fn observe(&self, simulation: &Simulation, observation: &mut Vec<f64>) {
        let skipped = usize::from(self.0.exclude_current_positions_from_observation);
        observation.extend_from_slice(&simulation.qpos()[skipped..]);
        observation.extend_from_slice(simulation.qvel());
    }

    fn mark(&self, simulation: &Simulation) -> f64 {
        simulation.qpos()[0]
    }

    fn judge(&self, simulation: &Simulation, before: f64, action: &[f32], dt: f64) -> (f64, bool) {
        let velocity = (simulation.qpos()[0] - before) / dt;
        let forward = self.0.forward_reward_weight * velocity;
        // numpy keeps the product in the single precision of the action.
        let cost = self.0.ctrl_cost_weight as f32 * sum_of_squares_f32(action);
        (forward - f64::from(cost), false)
    }

    fn view(&self) -> View {
        View {
            from: From::Side,
            follow: Some(1),
            centre: [0.0, 0.8],
            width: 4.0,
        }
    }
}
