//! `Pusher`: push an object to a target with an arm of seven joints.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use starling_envs::{EnvError, Rng};

use crate::Simulation;
use crate::drawing::{From, View};
use crate::numpy::{distance, sum_of_squares_f32};
use crate::robot::{self, Noise, Robot, Task};

/// The options of `Pusher-v5`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PusherOptions {
    /// The model: one of Gymnasium's by its name, or the path of an MJCF file.
    pub xml_file: String,
    /// Simulation steps per step of the environment.
    #[schemars(range(min = 1, max = 1000), extend("unit" = "simulation steps"))]
    pub frame_skip: usize,
    /// Weight of the distance from arm to object, which is subtracted from the reward.
    #[schemars(extend("unbounded" = true))]
    pub reward_near_weight: f64,
    /// Weight of the distance from object to target, which is subtracted from the reward.
    #[schemars(extend("unbounded" = true))]
    pub reward_dist_weight: f64,
    /// Weight of the squared action, which is subtracted from the reward.
    #[schemars(extend("unbounded" = true))]
    pub reward_control_weight: f64,
}

impl Default for PusherOptions {
    fn default() -> Self {
        Self {
            xml_file: "pusher_v5.xml".into(),
            frame_skip: 5,
            reward_near_weight: 0.5,
            reward_dist_weight: 1.0,
            reward_control_weight: 0.1,
        }
    }
}

pub(crate) struct Pusher {
    options: PusherOptions,
    arm: usize,
    object: usize,
    goal: usize,
}

/// Joints of the arm.
const JOINTS: usize = 7;

pub(super) fn v5(options: PusherOptions) -> Result<Robot<Pusher>, EnvError> {
    Robot::new(&options.xml_file.clone(), options.frame_skip, |model| {
        let good = model.nq() >= JOINTS + 4 && model.nv() >= JOINTS + 4;
        robot::need(model, good, "11 positions and velocities")?;
        Ok(Pusher {
            options,
            arm: robot::body(model, "tips_arm")?,
            object: robot::body(model, "object")?,
            goal: robot::body(model, "goal")?,
        })
    })
}

impl Task for Pusher {
    fn start(&self, simulation: &mut Simulation, rng: &mut Rng) {
        // The goal is at the origin, and the object not too near to it.
        let object = loop {
            let x = robot::uniform(rng, -0.3, 0.0);
            let y = robot::uniform(rng, -0.2, 0.2);
            if f64::hypot(x, y) > 0.17 {
                break [x, y];
            }
        };
        let first = simulation.model().nq() - 4;
        simulation.qpos_mut()[first..first + 2].copy_from_slice(&object);
        simulation.qpos_mut()[first + 2..].fill(0.0);
        robot::disturb(simulation.qvel_mut(), Noise::Uniform, 0.005, rng);
        let first = simulation.model().nv() - 4;
        simulation.qvel_mut()[first..].fill(0.0);
    }

    fn observe(&self, simulation: &Simulation, observation: &mut Vec<f64>) {
        observation.extend_from_slice(&simulation.qpos()[..JOINTS]);
        observation.extend_from_slice(&simulation.qvel()[..JOINTS]);
        for body in [self.arm, self.object, self.goal] {
            observation.extend_from_slice(&simulation.xpos()[body]);
        }
    }

    fn mark(&self, _: &Simulation) -> f64 {
        0.0
    }

    fn judge(&self, simulation: &Simulation, _: f64, action: &[f32], _: f64) -> (f64, bool) {
        let options = &self.options;
        let places = simulation.xpos();
        let near = -distance(places[self.object], places[self.arm]) * options.reward_near_weight;
        let far = -distance(places[self.object], places[self.goal]) * options.reward_dist_weight;
        let effort = -sum_of_squares_f32(action) * options.reward_control_weight as f32;
        (far + f64::from(effort) + near, false)
    }

    fn view(&self) -> View {
        View {
            from: From::Above,
            follow: None,
            centre: [0.3, -0.3],
            width: 2.4,
        }
    }
}
