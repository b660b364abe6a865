//! `Hopper` and `Walker2d`: move forward in a plane without falling.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use starling_envs::{EnvError, Rng};

use crate::drawing::{From, View};
use crate::numpy::sum_of_squares_f32;
use crate::robot::{self, Noise, Robot, Task};
use crate::{Range, Simulation};

/// The options of `Hopper-v5`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct HopperOptions {
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
    /// Reward of a step that ends healthy.
    #[schemars(extend("unbounded" = true))]
    pub healthy_reward: f64,
    /// Whether the episode ends when the robot is not healthy.
    pub terminate_when_unhealthy: bool,
    /// Positions and velocities, except x and z, at which the robot is healthy: `[low, high]`, ends
    /// excluded; null means no limit.
    pub healthy_state_range: Range,
    /// Heights at which the robot is healthy: `[low, high]`, ends excluded; null means no limit.
    pub healthy_z_range: Range,
    /// Angles of the torso at which the robot is healthy: `[low, high]`, ends excluded; null means
    /// no limit.
    pub healthy_angle_range: Range,
    /// Size of the noise in the initial positions and velocities.
    #[schemars(range(min = 0.0))]
    pub reset_noise_scale: f64,
    /// Whether the x position is left out of the observation.
    pub exclude_current_positions_from_observation: bool,
}

impl Default for HopperOptions {
    fn default() -> Self {
        Self {
            xml_file: "hopper.xml".into(),
            frame_skip: 4,
            forward_reward_weight: 1.0,
            ctrl_cost_weight: 1e-3,
            healthy_reward: 1.0,
            terminate_when_unhealthy: true,
            healthy_state_range: Range::new(-100.0, 100.0),
            healthy_z_range: Range::new(0.7, f64::INFINITY),
            healthy_angle_range: Range::new(-0.2, 0.2),
            reset_noise_scale: 5e-3,
            exclude_current_positions_from_observation: true,
        }
    }
}

/// The options of `Hopper-v4`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct HopperV4Options {
    /// Weight of the forward velocity in the reward.
    #[schemars(extend("unbounded" = true))]
    pub forward_reward_weight: f64,
    /// Weight of the squared action, which is subtracted from the reward.
    #[schemars(extend("unbounded" = true))]
    pub ctrl_cost_weight: f64,
    /// Reward of a step; without `terminate_when_unhealthy`, of one that ends healthy.
    #[schemars(extend("unbounded" = true))]
    pub healthy_reward: f64,
    /// Whether the episode ends when the robot is not healthy.
    pub terminate_when_unhealthy: bool,
    /// Positions and velocities, except x and z, at which the robot is healthy: `[low, high]`, ends
    /// excluded; null means no limit.
    pub healthy_state_range: Range,
    /// Heights at which the robot is healthy: `[low, high]`, ends excluded; null means no limit.
    pub healthy_z_range: Range,
    /// Angles of the torso at which the robot is healthy: `[low, high]`, ends excluded; null means
    /// no limit.
    pub healthy_angle_range: Range,
    /// Size of the noise in the initial positions and velocities.
    #[schemars(range(min = 0.0))]
    pub reset_noise_scale: f64,
    /// Whether the x position is left out of the observation.
    pub exclude_current_positions_from_observation: bool,
}

impl Default for HopperV4Options {
    fn default() -> Self {
        let new = HopperOptions::default();
        Self {
            forward_reward_weight: new.forward_reward_weight,
            ctrl_cost_weight: new.ctrl_cost_weight,
            healthy_reward: new.healthy_reward,
            terminate_when_unhealthy: new.terminate_when_unhealthy,
            healthy_state_range: new.healthy_state_range,
            healthy_z_range: new.healthy_z_range,
            healthy_angle_range: new.healthy_angle_range,
            reset_noise_scale: new.reset_noise_scale,
            exclude_current_positions_from_observation: new
                .exclude_current_positions_from_observation,
        }
    }
}

/// The options of `Walker2d-v5`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Walker2dOptions {
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
    /// Reward of a step that ends healthy.
    #[schemars(extend("unbounded" = true))]
    pub healthy_reward: f64,
    /// Whether the episode ends when the robot is not healthy.
    pub terminate_when_unhealthy: bool,
    /// Heights at which the robot is healthy: `[low, high]`, ends excluded; null means no limit.
    pub healthy_z_range: Range,
    /// Angles of the torso at which the robot is healthy: `[low, high]`, ends excluded; null means
    /// no limit.
    pub healthy_angle_range: Range,
    /// Size of the noise in the initial positions and velocities.
    #[schemars(range(min = 0.0))]
    pub reset_noise_scale: f64,
    /// Whether the x position is left out of the observation.
    pub exclude_current_positions_from_observation: bool,
}

impl Default for Walker2dOptions {
    fn default() -> Self {
        Self {
            xml_file: "walker2d_v5.xml".into(),
            frame_skip: 4,
            forward_reward_weight: 1.0,
            ctrl_cost_weight: 1e-3,
            healthy_reward: 1.0,
            terminate_when_unhealthy: true,
            healthy_z_range: Range::new(0.8, 2.0),
            healthy_angle_range: Range::new(-1.0, 1.0),
            reset_noise_scale: 5e-3,
            exclude_current_positions_from_observation: true,
        }
    }
}

/// The options of `Walker2d-v4`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Walker2dV4Options {
    /// Weight of the forward velocity in the reward.
    #[schemars(extend("unbounded" = true))]
    pub forward_reward_weight: f64,
    /// Weight of the squared action, which is subtracted from the reward.
    #[schemars(extend("unbounded" = true))]
    pub ctrl_cost_weight: f64,
    /// Reward of a step; without `terminate_when_unhealthy`, of one that ends healthy.
    #[schemars(extend("unbounded" = true))]
    pub healthy_reward: f64,
    /// Whether the episode ends when the robot is not healthy.
    pub terminate_when_unhealthy: bool,
    /// Heights at which the robot is healthy: `[low, high]`, ends excluded; null means no limit.
    pub healthy_z_range: Range,
    /// Angles of the torso at which the robot is healthy: `[low, high]`, ends excluded; null means
    /// no limit.
    pub healthy_angle_range: Range,
    /// Size of the noise in the initial positions and velocities.
    #[schemars(range(min = 0.0))]
    pub reset_noise_scale: f64,
    /// Whether the x position is left out of the observation.
    pub exclude_current_positions_from_observation: bool,
}

impl Default for Walker2dV4Options {
    fn default() -> Self {
        let new = Walker2dOptions::default();
        Self {
            forward_reward_weight: new.forward_reward_weight,
            ctrl_cost_weight: new.ctrl_cost_weight,
            healthy_reward: new.healthy_reward,
            terminate_when_unhealthy: new.terminate_when_unhealthy,
            healthy_z_range: new.healthy_z_range,
            healthy_angle_range: new.healthy_angle_range,
            reset_noise_scale: new.reset_noise_scale,
            exclude_current_positions_from_observation: new
                .exclude_current_positions_from_observation,
        }
    }
}

/// Both tasks: that of the walker is the hopper's, without a range for the whole state.
pub(crate) struct Walker {
    options: HopperOptions,
    /// Whether the step that ends an episode is paid as a healthy one.
    pays_the_fall: bool,
}

pub(super) fn hopper_v5(options: HopperOptions) -> Result<Robot<Walker>, EnvError> {
    walker(options, false)
}

pub(super) fn hopper_v4(options: HopperV4Options) -> Result<Robot<Walker>, EnvError> {
    let options = HopperOptions {
        forward_reward_weight: options.forward_reward_weight,
        ctrl_cost_weight: options.ctrl_cost_weight,
        healthy_reward: options.healthy_reward,
        terminate_when_unhealthy: options.terminate_when_unhealthy,
        healthy_state_range: options.healthy_state_range,
        healthy_z_range: options.healthy_z_range,
        healthy_angle_range: options.healthy_angle_range,
        reset_noise_scale: options.reset_noise_scale,
        exclude_current_positions_from_observation: options
            .exclude_current_positions_from_observation,
        ..HopperOptions::default()
    };
    walker(options, true)
}

pub(super) fn walker2d_v5(options: Walker2dOptions) -> Result<Robot<Walker>, EnvError> {
    walker2d(options, false)
}

pub(super) fn walker2d_v4(options: Walker2dV4Options) -> Result<Robot<Walker>, EnvError> {
    let options = Walker2dOptions {
        xml_file: "walker2d.xml".into(),
        forward_reward_weight: options.forward_reward_weight,
        ctrl_cost_weight: options.ctrl_cost_weight,
        healthy_reward: options.healthy_reward,
        terminate_when_unhealthy: options.terminate_when_unhealthy,
        healthy_z_range: options.healthy_z_range,
        healthy_angle_range: options.healthy_angle_range,
        reset_noise_scale: options.reset_noise_scale,
        exclude_current_positions_from_observation: options
            .exclude_current_positions_from_observation,
        ..Walker2dOptions::default()
    };
    walker2d(options, true)
}

fn walker2d(options: Walker2dOptions, pays_the_fall: bool) -> Result<Robot<Walker>, EnvError> {
    let options = HopperOptions {
        xml_file: options.xml_file,
        frame_skip: options.frame_skip,
        forward_reward_weight: options.forward_reward_weight,
        ctrl_cost_weight: options.ctrl_cost_weight,
        healthy_reward: options.healthy_reward,
        terminate_when_unhealthy: options.terminate_when_unhealthy,
        healthy_state_range: Range::new(f64::NEG_INFINITY, f64::INFINITY),
        healthy_z_range: options.healthy_z_range,
        healthy_angle_range: options.healthy_angle_range,
        reset_noise_scale: options.reset_noise_scale,
        exclude_current_positions_from_observation: options
            .exclude_current_positions_from_observation,
    };
    walker(options, pays_the_fall)
}

fn walker(options: HopperOptions, pays_the_fall: bool) -> Result<Robot<Walker>, EnvError> {
    options.healthy_state_range.check("healthy_state_range")?;
    options.healthy_z_range.check("healthy_z_range")?;
    options.healthy_angle_range.check("healthy_angle_range")?;
    Robot::new(&options.xml_file.clone(), options.frame_skip, |model| {
        robot::need(model, model.nq() > 2, "at least 3 positions")?;
        Ok(Walker {
            options,
            pays_the_fall,
        })
    })
}

impl Walker {
    fn is_healthy(&self, simulation: &Simulation) -> bool {
        let (qpos, qvel) = (simulation.qpos(), simulation.qvel());
        let mut state = qpos[2..].iter().chain(qvel);
        state.all(|value| self.options.healthy_state_range.contains(*value))
            && self.options.healthy_z_range.contains(qpos[1])
            && self.options.healthy_angle_range.contains(qpos[2])
    }
}

impl Task for Walker {
    fn start(&self, simulation: &mut Simulation, rng: &mut Rng) {
        let scale = self.options.reset_noise_scale;
        robot::disturb_state(simulation, Noise::Uniform, scale, rng);
    }

    fn observe(&self, simulation: &Simulation, observation: &mut Vec<f64>) {
        let skipped = usize::from(self.options.exclude_current_positions_from_observation);
        observation.extend_from_slice(&simulation.qpos()[skipped..]);
        let limits = Range::new(-10.0, 10.0);
        observation.extend(simulation.qvel().iter().map(|value| limits.clip(*value)));
    }

    fn mark(&self, simulation: &Simulation) -> f64 {
        simulation.qpos()[0]
    }

    fn judge(&self, simulation: &Simulation, before: f64, action: &[f32], dt: f64) -> (f64, bool) {
        let velocity = (simulation.qpos()[0] - before) / dt;
        let forward = self.options.forward_reward_weight * velocity;
        let healthy = self.is_healthy(simulation);
        let ends = self.options.terminate_when_unhealthy;
        let paid = healthy || (ends && self.pays_the_fall);
        let rewards = forward + f64::from(u8::from(paid)) * self.options.healthy_reward;
        let cost = self.options.ctrl_cost_weight as f32 * sum_of_squares_f32(action);
        (rewards - f64::from(cost), !healthy && ends)
    }

    fn view(&self) -> View {
        View {
            from: From::Side,
            follow: Some(1),
            centre: [0.0, 0.9],
            width: 3.6,
        }
    }
}
