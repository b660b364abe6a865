//! `HumanoidStandup`: stand up from lying on the back.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use starling_envs::{EnvError, Rng};

use super::NoOptions;
use super::humanoid::{Parts, squared_contacts, squared_controls};
use crate::drawing::{From, View};
use crate::robot::{self, Noise, Robot, Task};
use crate::{Range, Simulation};

/// The options of `HumanoidStandup-v5`. Gymnasium's `uph_cost_weight` is not among them: it has no
/// effect there.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct HumanoidStandupOptions {
    /// The model: one of Gymnasium's by its name, or the path of an MJCF file.
    pub xml_file: String,
    /// Simulation steps per step of the environment.
    #[schemars(range(min = 1, max = 1000), extend("unit" = "simulation steps"))]
    pub frame_skip: usize,
    /// Weight of the squared action, which is subtracted from the reward.
    #[schemars(extend("unbounded" = true))]
    pub ctrl_cost_weight: f64,
    /// Weight of the squared contact forces, which are subtracted from the reward.
    #[schemars(extend("unbounded" = true))]
    pub impact_cost_weight: f64,
    /// Range to which the weighted contact forces are clipped: `[low, high]`; null means no limit.
    pub impact_cost_range: Range,
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

impl Default for HumanoidStandupOptions {
    fn default() -> Self {
        Self {
            xml_file: "humanoidstandup.xml".into(),
            frame_skip: 5,
            ctrl_cost_weight: 0.1,
            impact_cost_weight: 0.5e-6,
            impact_cost_range: Range::new(f64::NEG_INFINITY, 10.0),
            reset_noise_scale: 1e-2,
            exclude_current_positions_from_observation: true,
            include_cinert_in_observation: true,
            include_cvel_in_observation: true,
            include_qfrc_actuator_in_observation: true,
            include_cfrc_ext_in_observation: true,
        }
    }
}

pub(crate) struct HumanoidStandup {
    options: HumanoidStandupOptions,
    parts: Parts,
}

pub(super) fn v5(options: HumanoidStandupOptions) -> Result<Robot<HumanoidStandup>, EnvError> {
    let parts = Parts {
        skipped: 2 * usize::from(options.exclude_current_positions_from_observation),
        first_body: 1,
        first_dof: 6,
        cinert: options.include_cinert_in_observation,
        cvel: options.include_cvel_in_observation,
        qfrc_actuator: options.include_qfrc_actuator_in_observation,
        cfrc_ext: options.include_cfrc_ext_in_observation,
    };
    make(options, parts)
}

pub(super) fn v4(NoOptions {}: NoOptions) -> Result<Robot<HumanoidStandup>, EnvError> {
    make(HumanoidStandupOptions::default(), Parts::v4(2))
}

fn make(options: HumanoidStandupOptions, parts: Parts) -> Result<Robot<HumanoidStandup>, EnvError> {
    options.impact_cost_range.check("impact_cost_range")?;
    Robot::new(&options.xml_file.clone(), options.frame_skip, |model| {
        Parts::check(model)?;
        Ok(HumanoidStandup { options, parts })
    })
}

impl Task for HumanoidStandup {
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

    fn mark(&self, _: &Simulation) -> f64 {
        0.0
    }

    fn judge(&self, simulation: &Simulation, _: f64, _: &[f32], _: f64) -> (f64, bool) {
        let options = &self.options;
        // The height is divided by the time of one simulation step, whatever the frame skip.
        let height = simulation.qpos()[2] / simulation.model().timestep();
        let controls = options.ctrl_cost_weight * squared_controls(simulation);
        let impacts = options.impact_cost_weight * squared_contacts(simulation);
        let impacts = options.impact_cost_range.clip(impacts);
        (height - controls - impacts + 1.0, false)
    }

    fn view(&self) -> View {
        View {
            from: From::Side,
            follow: Some(1),
            centre: [0.0, 0.95],
            width: 3.6,
        }
    }
}
