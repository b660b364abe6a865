//! `Humanoid`: walk as a human does.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use starling_envs::{EnvError, Rng};

use crate::drawing::{From, View};
use crate::numpy::{sum, sum_of_squares};
use crate::robot::{self, Noise, Robot, Task};
use crate::{Model, Range, Simulation};

/// The options of `Humanoid-v5`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct HumanoidOptions {
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
    /// Weight of the squared contact forces, which are subtracted from the reward.
    #[schemars(extend("unbounded" = true))]
    pub contact_cost_weight: f64,
    /// Range to which the weighted contact forces are clipped: `[low, high]`; null means no limit.
    pub contact_cost_range: Range,
    /// Reward of a step that ends healthy.
    #[schemars(extend("unbounded" = true))]
    pub healthy_reward: f64,
    /// Whether the episode ends when the robot is not healthy.
    pub terminate_when_unhealthy: bool,
    /// Heights at which the robot is healthy: `[low, high]`, ends excluded; null means no limit.
    pub healthy_z_range: Range,
    /// Size of the noise in the initial positions and velocities.
    #[schemars(range(min = 0.0))]
    pub reset_noise_scale: f64,
    /// Whether the x and y positions are left out of the observation.
    pub exclude_current_positions_from_observation: bool,
    /// Whether the inertia and mass of each body are part of the observation.
    pub include_cinert_in_observation: bool,
    /// Whether the velocity of each body is part of the observation.
    pub include_cvel_in_observation: bool,
    /// Whether the forces of the actuators are part of the observation.
    pub include_qfrc_actuator_in_observation: bool,
    /// Whether the contact forces on each body are part of the observation.
    pub include_cfrc_ext_in_observation: bool,
}

impl Default for HumanoidOptions {
    fn default() -> Self {
        Self {
            xml_file: "humanoid.xml".into(),
            frame_skip: 5,
            forward_reward_weight: 1.25,
            ctrl_cost_weight: 0.1,
            contact_cost_weight: 5e-7,
            contact_cost_range: Range::new(f64::NEG_INFINITY, 10.0),
            healthy_reward: 5.0,
            terminate_when_unhealthy: true,
            healthy_z_range: Range::new(1.0, 2.0),
            reset_noise_scale: 1e-2,
            exclude_current_positions_from_observation: true,
            include_cinert_in_observation: true,
            include_cvel_in_observation: true,
            include_qfrc_actuator_in_observation: true,
            include_cfrc_ext_in_observation: true,
        }
    }
}

/// The options of `Humanoid-v4`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct HumanoidV4Options {
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
    /// Size of the noise in the initial positions and velocities.
    #[schemars(range(min = 0.0))]
    pub reset_noise_scale: f64,
    /// Whether the x and y positions are left out of the observation.
    pub exclude_current_positions_from_observation: bool,
}

impl Default for HumanoidV4Options {
    fn default() -> Self {
        let new = HumanoidOptions::default();
        Self {
            forward_reward_weight: new.forward_reward_weight,
            ctrl_cost_weight: new.ctrl_cost_weight,
            healthy_reward: new.healthy_reward,
            terminate_when_unhealthy: new.terminate_when_unhealthy,
            healthy_z_range: new.healthy_z_range,
            reset_noise_scale: new.reset_noise_scale,
            exclude_current_positions_from_observation: new
                .exclude_current_positions_from_observation,
        }
    }
}

/// What is seen of a humanoid.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parts {
    /// Leading positions that are left out.
    pub(super) skipped: usize,
    /// The first body that is seen: without the world from v5 on.
    pub(super) first_body: usize,
    /// The first degree of freedom whose actuators' forces are seen: without the torso's six, which
    /// have none, from v5 on.
    pub(super) first_dof: usize,
    pub(super) cinert: bool,
    pub(super) cvel: bool,
    pub(super) qfrc_actuator: bool,
    pub(super) cfrc_ext: bool,
}

impl Parts {
    /// All that v4 shows.
    pub(super) fn v4(skipped: usize) -> Self {
        Self {
            skipped,
            first_body: 0,
            first_dof: 0,
            cinert: true,
            cvel: true,
            qfrc_actuator: true,
            cfrc_ext: true,
        }
    }

    /// Refuses a model that is too small.
    pub(super) fn check(model: &Model) -> Result<(), EnvError> {
        let good = model.nq() > 2 && model.nv() >= 6;
        robot::need(model, good, "at least 3 positions and 6 velocities")
    }

    pub(super) fn observe(&self, simulation: &Simulation, observation: &mut Vec<f64>) {
        let first = self.first_body;
        observation.extend_from_slice(&simulation.qpos()[self.skipped..]);
        observation.extend_from_slice(simulation.qvel());
        if self.cinert {
            observation.extend_from_slice(simulation.cinert()[first..].as_flattened());
        }
        if self.cvel {
            observation.extend_from_slice(simulation.cvel()[first..].as_flattened());
        }
        if self.qfrc_actuator {
            observation.extend_from_slice(&simulation.qfrc_actuator()[self.first_dof..]);
        }
        if self.cfrc_ext {
            observation.extend_from_slice(simulation.cfrc_ext()[first..].as_flattened());
        }
    }
}

/// The sum of the squares of all contact forces.
pub(super) fn squared_contacts(simulation: &Simulation) -> f64 {
    sum_of_squares(simulation.cfrc_ext().as_flattened().iter().copied())
}

/// The sum of the squares of all controls, which are in double precision.
pub(super) fn squared_controls(simulation: &Simulation) -> f64 {
    sum_of_squares(simulation.ctrl().iter().copied())
}

pub(crate) struct Humanoid {
    options: HumanoidOptions,
    parts: Parts,
    total_mass: f64,
    is_v4: bool,
}

pub(super) fn v5(options: HumanoidOptions) -> Result<Robot<Humanoid>, EnvError> {
    let parts = Parts {
        skipped: 2 * usize::from(options.exclude_current_positions_from_observation),
        first_body: 1,
        first_dof: 6,
        cinert: options.include_cinert_in_observation,
        cvel: options.include_cvel_in_observation,
        qfrc_actuator: options.include_qfrc_actuator_in_observation,
        cfrc_ext: options.include_cfrc_ext_in_observation,
    };
    make(options, parts, false)
}

pub(super) fn v4(options: HumanoidV4Options) -> Result<Robot<Humanoid>, EnvError> {
    let skipped = 2 * usize::from(options.exclude_current_positions_from_observation);
    let options = HumanoidOptions {
        forward_reward_weight: options.forward_reward_weight,
        ctrl_cost_weight: options.ctrl_cost_weight,
        healthy_reward: options.healthy_reward,
        terminate_when_unhealthy: options.terminate_when_unhealthy,
        healthy_z_range: options.healthy_z_range,
        reset_noise_scale: options.reset_noise_scale,
        ..HumanoidOptions::default()
    };
    make(options, Parts::v4(skipped), true)
}

fn make(options: HumanoidOptions, parts: Parts, is_v4: bool) -> Result<Robot<Humanoid>, EnvError> {
    options.healthy_z_range.check("healthy_z_range")?;
    options.contact_cost_range.check("contact_cost_range")?;
    Robot::new(&options.xml_file.clone(), options.frame_skip, |model| {
        Parts::check(model)?;
        Ok(Humanoid {
            options,
            parts,
            total_mass: sum(model.body_masses()),
            is_v4,
        })
    })
}

impl Task for Humanoid {
    fn reads_contact_forces(&self) -> bool {
        true
    }

    fn start(&self, simulation: &mut Simulation, rng: &mut Rng) {
        let scale = self.options.reset_noise_scale;
        robot::disturb_state(simulation, Noise::Uniform, scale, rng);
    }

    fn observe(&self, simulation: &Simulation, observation: &mut Vec<f64>) {
        self.parts.observe(simulation, observation);
    }

    /// The x position of the centre of mass.
    fn mark(&self, simulation: &Simulation) -> f64 {
        let bodies = simulation.model().body_masses().iter();
        let moments = bodies
            .zip(simulation.xipos())
            .map(|(mass, at)| mass * at[0]);
        moments.fold(0.0, |sum, moment| sum + moment) / self.total_mass
    }

    fn judge(&self, simulation: &Simulation, before: f64, _: &[f32], dt: f64) -> (f64, bool) {
        let options = &self.options;
        let velocity = (self.mark(simulation) - before) / dt;
        let forward = options.forward_reward_weight * velocity;
        let healthy = options.healthy_z_range.contains(simulation.qpos()[2]);
        let ends = options.terminate_when_unhealthy;
        let paid = healthy || (ends && self.is_v4);
        let rewards = forward + f64::from(u8::from(paid)) * options.healthy_reward;
        let mut costs = options.ctrl_cost_weight * squared_controls(simulation);
        if !self.is_v4 {
            let contacts = options.contact_cost_weight * squared_contacts(simulation);
            costs += options.contact_cost_range.clip(contacts);
        }
        (rewards - costs, !healthy && ends)
    }

    fn view(&self) -> View {
        View {
            from: From::Side,
            follow: Some(1),
            centre: [0.0, 0.95],
            width: 3.2,
        }
    }
}
