//! `HopperRandParams-v0` and `Walker2dRandParams-v0`: run forward with a body whose masses, inertias,
//! damping and friction are random, as PEARL's reference has them (Rakelly et al. 2019).

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use starling_envs::meta::{NumpyLegacy, TaskSettings};
use starling_envs::{EnvError, Rng};

use crate::drawing::{From, View};
use crate::numpy::sum_of_squares;
use crate::robot::{self, Noise, Robot, Task};
use crate::{Range, Simulation};

/// Simulation steps per step of the environment, and seconds of each.
const FRAME_SKIP: usize = 4;
const TIMESTEP: f64 = 0.004;
/// Factors are powers of these, in the order of `Model::dynamics_mut`: masses, inertias, damping,
/// friction. Exponents are uniform up to [`LARGEST`], up or down.
const BASES: [f64; 4] = [1.5, 1.5, 1.3, 1.5];
const LARGEST: f64 = 3.0;

/// The options of `HopperRandParams-v0` and `Walker2dRandParams-v0`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct RandomParamsOptions {
    /// The task: the seed of the body's parameters; null for those of the model. Tasks have
    /// `task_seed` plus their number.
    pub body_seed: Option<u32>,
    /// Its tasks.
    #[serde(flatten)]
    pub tasks: TaskSettings,
}

/// The options of a task.
pub(super) fn task(options: &RandomParamsOptions, number: usize) -> Value {
    json!({"body_seed": options.tasks.task_seed.wrapping_add(number as u32)})
}

pub(super) fn hopper(options: RandomParamsOptions) -> Result<Robot<Runner>, EnvError> {
    runner("hopper.xml", options, Health::Hopper)
}

pub(super) fn walker2d(options: RandomParamsOptions) -> Result<Robot<Runner>, EnvError> {
    runner("walker2d.xml", options, Health::Walker)
}

fn runner(
    xml: &'static str,
    options: RandomParamsOptions,
    health: Health,
) -> Result<Robot<Runner>, EnvError> {
    let mut model = robot::load_own(xml)?;
    model.set_timestep(TIMESTEP);
    let mut numpy = options.body_seed.map(NumpyLegacy::new);
    let mut exponents = Vec::new();
    for (numbers, base) in model.dynamics_mut().into_iter().zip(BASES) {
        for number in numbers {
            let exponent = numpy
                .as_mut()
                .map_or(0.0, |numpy| numpy.uniform(-LARGEST, LARGEST));
            *number *= base.powf(exponent);
            exponents.push(exponent);
        }
    }
    if !options.tasks.show_task {
        exponents.clear();
    }
    Robot::with_model(Arc::new(model), FRAME_SKIP, |_| {
        Ok(Runner { health, exponents })
    })
}

/// When a robot has not fallen.
enum Health {
    Hopper,
    Walker,
}

pub(super) struct Runner {
    health: Health,
    /// Those of all factors, if the task is shown.
    exponents: Vec<f64>,
}

impl Runner {
    fn is_up(&self, simulation: &Simulation) -> bool {
        let (qpos, qvel) = (simulation.qpos(), simulation.qvel());
        let (height, angle) = (qpos[1], qpos[2]);
        match self.health {
            Health::Hopper => {
                let mut state = qpos[2..].iter().chain(qvel);
                state.all(|value| value.abs() < 100.0) && height > 0.7 && angle.abs() < 0.2
            }
            Health::Walker => height > 0.8 && height < 2.0 && angle > -1.0 && angle < 1.0,
        }
    }
}

impl Task for Runner {
    fn start(&self, simulation: &mut Simulation, rng: &mut Rng) {
        robot::disturb_state(simulation, Noise::Uniform, 0.005, rng);
    }

    fn observe(&self, simulation: &Simulation, observation: &mut Vec<f64>) {
        observation.extend_from_slice(&simulation.qpos()[1..]);
        let limits = Range::new(-10.0, 10.0);
        observation.extend(simulation.qvel().iter().map(|value| limits.clip(*value)));
        observation.extend_from_slice(&self.exponents);
    }

    fn mark(&self, simulation: &Simulation) -> f64 {
        simulation.qpos()[0]
    }

    fn judge(&self, simulation: &Simulation, before: f64, action: &[f32], dt: f64) -> (f64, bool) {
        let velocity = (simulation.qpos()[0] - before) / dt;
        let cost = 1e-3 * sum_of_squares(action.iter().map(|&value| f64::from(value)));
        (velocity + 1.0 - cost, !self.is_up(simulation))
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
