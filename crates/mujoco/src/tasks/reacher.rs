//! `Reacher`: reach a target with an arm of two links.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use starling_envs::{EnvError, Rng};

use super::NoOptions;
use crate::Simulation;
use crate::drawing::{From, View};
use crate::numpy::{distance, sum_of_squares_f32};
use crate::robot::{self, Noise, Robot, Task};

/// The options of `Reacher-v5`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ReacherOptions {
    /// The model: one of Gymnasium's by its name, or the path of an MJCF file.
    pub xml_file: String,
    /// Simulation steps per step of the environment.
    #[schemars(range(min = 1, max = 1000), extend("unit" = "simulation steps"))]
    pub frame_skip: usize,
    /// Weight of the distance from fingertip to target, which is subtracted from the reward.
    #[schemars(extend("unbounded" = true))]
    pub reward_dist_weight: f64,
    /// Weight of the squared action, which is subtracted from the reward.
    #[schemars(extend("unbounded" = true))]
    pub reward_control_weight: f64,
}

impl Default for ReacherOptions {
    fn default() -> Self {
        Self {
            xml_file: "reacher.xml".into(),
            frame_skip: 2,
            reward_dist_weight: 1.0,
            reward_control_weight: 1.0,
        }
    }
}

pub(crate) struct Reacher {
    options: ReacherOptions,
    fingertip: usize,
    target: usize,
    /// v4 pays for the place before the step, and shows the height of the target, which is constant.
    is_v4: bool,
}

pub(super) fn v5(options: ReacherOptions) -> Result<Robot<Reacher>, EnvError> {
    make(options, false)
}

pub(super) fn v4(NoOptions {}: NoOptions) -> Result<Robot<Reacher>, EnvError> {
    make(ReacherOptions::default(), true)
}

fn make(options: ReacherOptions, is_v4: bool) -> Result<Robot<Reacher>, EnvError> {
    Robot::new(&options.xml_file.clone(), options.frame_skip, |model| {
        let good = model.nq() >= 4 && model.nv() >= 2;
        robot::need(model, good, "at least 4 positions and 2 velocities")?;
        Ok(Reacher {
            options,
            fingertip: robot::body(model, "fingertip")?,
            target: robot::body(model, "target")?,
            is_v4,
        })
    })
}

impl Task for Reacher {
    fn start(&self, simulation: &mut Simulation, rng: &mut Rng) {
        robot::disturb(simulation.qpos_mut(), Noise::Uniform, 0.1, rng);
        let goal = loop {
            let goal = [(); 2].map(|()| robot::uniform(rng, -0.2, 0.2));
            if f64::hypot(goal[0], goal[1]) < 0.2 {
                break goal;
            }
        };
        let first = simulation.model().nq() - 2;
        simulation.qpos_mut()[first..].copy_from_slice(&goal);
        robot::disturb(simulation.qvel_mut(), Noise::Uniform, 0.005, rng);
        let first = simulation.model().nv() - 2;
        simulation.qvel_mut()[first..].fill(0.0);
    }

    fn observe(&self, simulation: &Simulation, observation: &mut Vec<f64>) {
        let (arm, goal) = simulation.qpos().split_at(2);
        observation.extend(arm.iter().map(|angle| angle.cos()));
        observation.extend(arm.iter().map(|angle| angle.sin()));
        observation.extend_from_slice(goal);
        observation.extend_from_slice(&simulation.qvel()[..2]);
        let (tip, target) = (
            simulation.xpos()[self.fingertip],
            simulation.xpos()[self.target],
        );
        let axes = if self.is_v4 { 3 } else { 2 };
        observation.extend((0..axes).map(|axis| tip[axis] - target[axis]));
    }

    /// The reward for the distance.
    fn mark(&self, simulation: &Simulation) -> f64 {
        let places = simulation.xpos();
        -distance(places[self.fingertip], places[self.target]) * self.options.reward_dist_weight
    }

    fn judge(&self, simulation: &Simulation, before: f64, action: &[f32], _: f64) -> (f64, bool) {
        let near = match self.is_v4 {
            true => before,
            false => self.mark(simulation),
        };
        let effort = -sum_of_squares_f32(action) * self.options.reward_control_weight as f32;
        (near + f64::from(effort), false)
    }

    fn view(&self) -> View {
        View {
            from: From::Above,
            follow: None,
            centre: [0.0, 0.0],
            width: 0.72,
        }
    }
}
