//! `Ant`: run on four legs.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use starling_envs::{EnvError, Rng};

use crate::drawing::{From, View};
use crate::numpy::{sum_of_squares, sum_of_squares_f32};
use crate::robot::{self, Noise, Robot, Task};
use crate::{Range, Simulation};

/// The options of `Ant-v5`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AntOptions {
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
    /// Reward of a step that ends healthy.
    #[schemars(extend("unbounded" = true))]
    pub healthy_reward: f64,
    /// The body whose velocity is rewarded, by number or by name.
    pub main_body: BodyOption,
    /// Whether the episode ends when the robot is not healthy.
    pub terminate_when_unhealthy: bool,
    /// Heights at which the robot is healthy: `[low, high]`, ends included; null means no limit.
    pub healthy_z_range: Range,
    /// Range to which contact forces are clipped: `[low, high]`; null means no limit.
    pub contact_force_range: Range,
    /// Size of the noise in the initial positions and velocities.
    #[schemars(range(min = 0.0))]
    pub reset_noise_scale: f64,
    /// Whether the x and y positions are left out of the observation.
    pub exclude_current_positions_from_observation: bool,
    /// Whether the contact forces on each body are part of the observation.
    pub include_cfrc_ext_in_observation: bool,
}

impl Default for AntOptions {
    fn default() -> Self {
        Self {
            xml_file: "ant.xml".into(),
            frame_skip: 5,
            forward_reward_weight: 1.0,
            ctrl_cost_weight: 0.5,
            contact_cost_weight: 5e-4,
            healthy_reward: 1.0,
            main_body: BodyOption::Number(1),
            terminate_when_unhealthy: true,
            healthy_z_range: Range::new(0.2, 1.0),
            contact_force_range: Range::new(-1.0, 1.0),
            reset_noise_scale: 0.1,
            exclude_current_positions_from_observation: true,
            include_cfrc_ext_in_observation: true,
        }
    }
}

/// A body of a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum BodyOption {
    /// By its number; 0 is the world.
    Number(usize),
    /// By its name.
    Name(String),
}

/// The options of `Ant-v4`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AntV4Options {
    /// The model: one of Gymnasium's by its name, or the path of an MJCF file.
    pub xml_file: String,
    /// Weight of the squared action, which is subtracted from the reward.
    #[schemars(extend("unbounded" = true))]
    pub ctrl_cost_weight: f64,
    /// Whether contact forces are part of the observation and are subtracted from the reward.
    pub use_contact_forces: bool,
    /// Weight of the squared contact forces.
    #[schemars(extend("unbounded" = true))]
    pub contact_cost_weight: f64,
    /// Reward of a step; without `terminate_when_unhealthy`, of one that ends healthy.
    #[schemars(extend("unbounded" = true))]
    pub healthy_reward: f64,
    /// Whether the episode ends when the robot is not healthy.
    pub terminate_when_unhealthy: bool,
    /// Heights at which the robot is healthy: `[low, high]`, ends included; null means no limit.
    pub healthy_z_range: Range,
    /// Range to which contact forces are clipped: `[low, high]`; null means no limit.
    pub contact_force_range: Range,
    /// Size of the noise in the initial positions and velocities.
    #[schemars(range(min = 0.0))]
    pub reset_noise_scale: f64,
    /// Whether the x and y positions are left out of the observation.
    pub exclude_current_positions_from_observation: bool,
}

impl Default for AntV4Options {
    fn default() -> Self {
        let new = AntOptions::default();
        Self {
            xml_file: new.xml_file,
            ctrl_cost_weight: new.ctrl_cost_weight,
            use_contact_forces: false,
            contact_cost_weight: new.contact_cost_weight,
            healthy_reward: new.healthy_reward,
            terminate_when_unhealthy: new.terminate_when_unhealthy,
            healthy_z_range: new.healthy_z_range,
            contact_force_range: new.contact_force_range,
            reset_noise_scale: new.reset_noise_scale,
            exclude_current_positions_from_observation: new
                .exclude_current_positions_from_observation,
        }
    }
}

pub(crate) struct Ant {
    options: AntOptions,
    main_body: usize,
    /// Whether contact forces are subtracted from the reward.
    charges_contacts: bool,
    /// The first body whose contact forces are seen.
    first_body: usize,
    /// Whether the step that ends an episode is paid as a healthy one.
    pays_the_fall: bool,
}

pub(super) fn v5(options: AntOptions) -> Result<Robot<Ant>, EnvError> {
    make(options, true, false)
}

pub(super) fn v4(options: AntV4Options) -> Result<Robot<Ant>, EnvError> {
    let charges = options.use_contact_forces;
    let options = AntOptions {
        xml_file: options.xml_file,
        ctrl_cost_weight: options.ctrl_cost_weight,
        contact_cost_weight: options.contact_cost_weight,
        healthy_reward: options.healthy_reward,
        main_body: BodyOption::Name("torso".into()),
        terminate_when_unhealthy: options.terminate_when_unhealthy,
        healthy_z_range: options.healthy_z_range,
        contact_force_range: options.contact_force_range,
        reset_noise_scale: options.reset_noise_scale,
        exclude_current_positions_from_observation: options
            .exclude_current_positions_from_observation,
        include_cfrc_ext_in_observation: charges,
        ..AntOptions::default()
    };
    make(options, charges, true)
}

fn make(options: AntOptions, charges_contacts: bool, is_v4: bool) -> Result<Robot<Ant>, EnvError> {
    options.healthy_z_range.check("healthy_z_range")?;
    options.contact_force_range.check("contact_force_range")?;
    Robot::new(&options.xml_file.clone(), options.frame_skip, |model| {
        robot::need(model, model.nq() > 2, "at least 3 positions")?;
        let main_body = match &options.main_body {
            BodyOption::Number(number) => *number,
            BodyOption::Name(name) => robot::body(model, name)?,
        };
        let what = format!("a body of number {main_body} (env.main_body)");
        robot::need(model, main_body < model.nbody(), &what)?;
        Ok(Ant {
            options,
            main_body,
            charges_contacts,
            first_body: usize::from(!is_v4),
            pays_the_fall: is_v4,
        })
    })
}

impl Ant {
    /// The clipped contact forces of bodies from one on.
    fn forces<'a>(
        &self,
        simulation: &'a Simulation,
        first: usize,
    ) -> impl ExactSizeIterator<Item = f64> + use<'a> {
        let range = self.options.contact_force_range;
        let forces = simulation.cfrc_ext()[first..].as_flattened();
        forces.iter().map(move |force| range.clip(*force))
    }

    fn is_healthy(&self, simulation: &Simulation) -> bool {
        let mut state = simulation.qpos().iter().chain(simulation.qvel());
        let Range { low, high } = self.options.healthy_z_range;
        state.all(|value| value.is_finite()) && (low..=high).contains(&simulation.qpos()[2])
    }
}

impl Task for Ant {
    fn reads_contact_forces(&self) -> bool {
        self.charges_contacts || self.options.include_cfrc_ext_in_observation
    }

    fn start(&self, simulation: &mut Simulation, rng: &mut Rng) {
        let scale = self.options.reset_noise_scale;
        robot::disturb_state(simulation, Noise::Normal, scale, rng);
    }

    fn observe(&self, simulation: &Simulation, observation: &mut Vec<f64>) {
        let skipped = 2 * usize::from(self.options.exclude_current_positions_from_observation);
        observation.extend_from_slice(&simulation.qpos()[skipped..]);
        observation.extend_from_slice(simulation.qvel());
        if self.options.include_cfrc_ext_in_observation {
            observation.extend(self.forces(simulation, self.first_body));
        }
    }

    fn mark(&self, simulation: &Simulation) -> f64 {
        simulation.xpos()[self.main_body][0]
    }

    fn judge(&self, simulation: &Simulation, before: f64, action: &[f32], dt: f64) -> (f64, bool) {
        let velocity = (self.mark(simulation) - before) / dt;
        let forward = velocity * self.options.forward_reward_weight;
        let healthy = self.is_healthy(simulation);
        let ends = self.options.terminate_when_unhealthy;
        let paid = healthy || (ends && self.pays_the_fall);
        let rewards = forward + f64::from(u8::from(paid)) * self.options.healthy_reward;
        let cost = self.options.ctrl_cost_weight as f32 * sum_of_squares_f32(action);
        let mut costs = f64::from(cost);
        if self.charges_contacts {
            let squares = sum_of_squares(self.forces(simulation, 0));
            costs += self.options.contact_cost_weight * squares;
        }
        (rewards - costs, !healthy && ends)
    }

    fn view(&self) -> View {
        View {
            from: From::Above,
            follow: Some(self.main_body),
            centre: [0.0, 0.0],
            width: 5.0,
        }
    }
}
