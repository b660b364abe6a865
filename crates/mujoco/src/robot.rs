//! The environment that all tasks share: Gymnasium's `MujocoEnv`.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use rand::RngExt as _;
use rand_distr::StandardNormal;
use serde::{Deserialize, Serialize};
use starling_envs::render::Picture;
use starling_envs::{Action, Env, EnvError, ObsMut, Rng, Space, Step};

use crate::drawing::{self, View};
use crate::{Model, MujocoError, Simulation, place};

/// What distinguishes one task from another.
pub(crate) trait Task: Send {
    /// Whether [`observe`](Task::observe) or [`judge`](Task::judge) reads `cfrc_ext`. Gymnasium computes
    /// it for every task; nothing else depends on it.
    fn reads_contact_forces(&self) -> bool {
        false
    }

    /// Draws the state that an episode starts with, into a simulation at the model's initial state.
    fn start(&self, simulation: &mut Simulation, rng: &mut Rng);

    /// Appends the observation.
    fn observe(&self, simulation: &Simulation, observation: &mut Vec<f64>);

    /// What the reward of the next step needs of the state before it.
    fn mark(&self, simulation: &Simulation) -> f64;

    /// The reward of a step, and whether the episode ends with it.
    fn judge(&self, simulation: &Simulation, before: f64, action: &[f32], dt: f64) -> (f64, bool);

    /// How it is shown.
    fn view(&self) -> View;
}

/// One environment: a simulation and a task.
pub(crate) struct Robot<T> {
    task: T,
    simulation: Simulation,
    frame_skip: usize,
    observation: Vec<f64>,
    /// The reward of the last step, before it is rounded to single precision.
    reward: f64,
    /// [`Task::mark`] after the last step.
    mark: f64,
}

/// A whole state.
#[derive(Serialize, Deserialize)]
struct Snapshot {
    simulation: Vec<f64>,
    mark: f64,
}

impl<T: Task> Robot<T> {
    /// `task` makes the task from the model, in which it may look up bodies.
    pub(crate) fn new(
        xml_file: &str,
        frame_skip: usize,
        task: impl FnOnce(&Model) -> Result<T, EnvError>,
    ) -> Result<Self, EnvError> {
        Self::with_model(load(xml_file)?, frame_skip, task)
    }

    /// The same with a model of its own.
    pub(crate) fn with_model(
        model: Arc<Model>,
        frame_skip: usize,
        task: impl FnOnce(&Model) -> Result<T, EnvError>,
    ) -> Result<Self, EnvError> {
        let mut robot = Self {
            task: task(&model)?,
            simulation: Simulation::new(&model)?,
            frame_skip,
            observation: Vec::new(),
            reward: 0.0,
            mark: 0.0,
        };
        // Its length is the observation space's.
        robot.simulation.forward()?;
        robot.observe();
        Ok(robot)
    }

    /// Seconds per step.
    fn dt(&self) -> f64 {
        self.simulation.model().timestep() * self.frame_skip as f64
    }

    fn observe(&mut self) {
        self.observation.clear();
        self.task.observe(&self.simulation, &mut self.observation);
        self.mark = self.task.mark(&self.simulation);
    }

    /// Starts an episode, in the state that `start` writes into the simulation.
    fn begin(&mut self, start: impl FnOnce(&T, &mut Simulation)) -> Result<(), MujocoError> {
        self.simulation.reset()?;
        start(&self.task, &mut self.simulation);
        self.simulation.forward()?;
        self.observe();
        Ok(())
    }

    /// One step; returns whether the episode ends.
    fn advance(&mut self, action: &[f32]) -> Result<bool, MujocoError> {
        for (control, value) in self.simulation.ctrl_mut().iter_mut().zip(action) {
            *control = f64::from(*value);
        }
        self.simulation.step(self.frame_skip)?;
        if self.task.reads_contact_forces() {
            self.simulation.contact_forces()?;
        }
        let before = self.mark;
        self.observe();
        let dt = self.dt();
        let (reward, terminated) = self.task.judge(&self.simulation, before, action, dt);
        self.reward = reward;
        Ok(terminated)
    }

    fn show(&self, mut obs: ObsMut<'_>) {
        let row = obs.as_mut_slice::<f32>();
        for (place, value) in row.iter_mut().zip(&self.observation) {
            *place = *value as f32;
        }
    }
}

impl<T: Task> Env for Robot<T> {
    /// Gymnasium's observations are in double precision; ours are rounded to single, which is what
    /// networks compute with.
    fn observation_space(&self) -> Space {
        Space::unbounded(&[self.observation.len()])
    }

    fn action_space(&self) -> Space {
        let ranges = self.simulation.model().control_ranges();
        let end =
            |which: usize| -> Vec<f32> { ranges.iter().map(|range| range[which] as f32).collect() };
        Space::vector(&end(0), &end(1))
    }

    fn reset(&mut self, rng: &mut Rng, obs: ObsMut<'_>) -> Result<(), EnvError> {
        self.begin(|task, simulation| task.start(simulation, rng))?;
        self.show(obs);
        Ok(())
    }

    fn step(
        &mut self,
        action: Action<'_>,
        _rng: &mut Rng,
        obs: ObsMut<'_>,
    ) -> Result<Step, EnvError> {
        let action = action.continuous(self.simulation.model().nu())?;
        let terminated = self.advance(action)?;
        self.show(obs);
        Ok(Step {
            reward: self.reward as f32,
            terminated,
            truncated: false,
        })
    }

    fn render(&self) -> Result<Picture, EnvError> {
        Ok(drawing::draw(&self.simulation, self.task.view()))
    }

    fn render_fps(&self) -> f64 {
        1.0 / self.dt()
    }

    fn snapshot(&self) -> Option<Vec<u8>> {
        let snapshot = Snapshot {
            simulation: self.simulation.state().ok()?,
            mark: self.mark,
        };
        postcard::to_allocvec(&snapshot).ok()
    }

    fn restore(&mut self, snapshot: &[u8]) -> Result<(), EnvError> {
        let (snapshot, rest): (Snapshot, _) = postcard::take_from_bytes(snapshot)
            .map_err(|error| EnvError::Snapshot(error.to_string()))?;
        if !rest.is_empty() {
            let text = format!("{} bytes too many", rest.len());
            return Err(EnvError::Snapshot(text));
        }
        self.simulation.set_state(&snapshot.simulation)?;
        // For pictures: the next step computes everything else.
        self.simulation.kinematics()?;
        self.mark = snapshot.mark;
        Ok(())
    }
}

/// What tests see of an environment.
#[cfg(test)]
pub(crate) trait Exact: Env {
    /// Starts an episode at a state.
    fn begin_at(&mut self, qpos: &[f64], qvel: &[f64]) -> Result<(), MujocoError>;

    /// One step; returns whether the episode ends.
    fn advance(&mut self, action: &[f32]) -> Result<bool, MujocoError>;

    /// The observation and the reward in double precision.
    fn exact(&self) -> (&[f64], f64);
}

#[cfg(test)]
impl<T: Task> Exact for Robot<T> {
    fn begin_at(&mut self, qpos: &[f64], qvel: &[f64]) -> Result<(), MujocoError> {
        self.begin(|_, simulation| {
            simulation.qpos_mut().copy_from_slice(qpos);
            simulation.qvel_mut().copy_from_slice(qvel);
        })
    }

    fn advance(&mut self, action: &[f32]) -> Result<bool, MujocoError> {
        self.advance(action)
    }

    fn exact(&self) -> (&[f64], f64) {
        (&self.observation, self.reward)
    }
}

/// Noise of which kind.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Noise {
    /// Uniformly between −scale and scale.
    Uniform,
    /// Normal, with `scale` as its standard deviation.
    Normal,
}

/// Adds noise to numbers.
pub(crate) fn disturb(values: &mut [f64], noise: Noise, scale: f64, rng: &mut Rng) {
    for value in values {
        *value += match noise {
            Noise::Uniform => uniform(rng, -scale, scale),
            Noise::Normal => scale * rng.sample::<f64, _>(StandardNormal),
        };
    }
}

/// Adds noise to the positions, uniformly, and to the velocities, as most tasks do.
pub(crate) fn disturb_state(
    simulation: &mut Simulation,
    velocities: Noise,
    scale: f64,
    rng: &mut Rng,
) {
    disturb(simulation.qpos_mut(), Noise::Uniform, scale, rng);
    disturb(simulation.qvel_mut(), velocities, scale, rng);
}

/// A number uniformly between two bounds.
pub(crate) fn uniform(rng: &mut Rng, low: f64, high: f64) -> f64 {
    low + (high - low) * rng.random::<f64>()
}

/// The number of a body that the task needs.
pub(crate) fn body(model: &Model, name: &str) -> Result<usize, EnvError> {
    let missing = || MujocoError::Model {
        name: "of env.xml_file".into(),
        reason: format!("it has no body called '{name}', which this task needs"),
    };
    Ok(model.body(name).ok_or_else(missing)?)
}

/// Refuses a model that has too few of what a task reads.
pub(crate) fn need(model: &Model, good: bool, what: &str) -> Result<(), EnvError> {
    if good {
        return Ok(());
    }
    let reason = format!(
        "this task needs {what}; it has {} positions, {} velocities, {} controls and {} sites",
        model.nq(),
        model.nv(),
        model.nu(),
        model.nsite()
    );
    let name = "of env.xml_file".into();
    Err(MujocoError::Model { name, reason }.into())
}

macro_rules! assets {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../assets/", $name)))),*]
    };
}

/// Gymnasium's models.
pub(crate) static ASSETS: &[(&str, &str)] = assets![
    "ant.xml",
    "half_cheetah.xml",
    "hopper.xml",
    "humanoid.xml",
    "humanoidstandup.xml",
    "inverted_double_pendulum.xml",
    "inverted_pendulum.xml",
    "pusher_v5.xml",
    "reacher.xml",
    "swimmer.xml",
    "walker2d.xml",
    "walker2d_v5.xml",
];

/// A model of ours by its name, which is not shared and may be changed.
pub(crate) fn load_own(name: &'static str) -> Result<Model, MujocoError> {
    let library = place::open()?;
    let _one_at_a_time = MODELS.lock().unwrap_or_else(PoisonError::into_inner);
    let text = ASSETS.iter().find(|(known, _)| *known == name);
    let (_, text) = text.ok_or_else(|| MujocoError::Model {
        name: name.into(),
        reason: "it is not part of this program".into(),
    })?;
    Model::from_text(&library, name, text)
}

/// A model of ours by its name, which environments share, or that of a file.
fn load(xml_file: &str) -> Result<Arc<Model>, MujocoError> {
    let library = place::open()?;
    // One at a time: MuJoCo's compiler keeps the last model for itself.
    let mut models = MODELS.lock().unwrap_or_else(PoisonError::into_inner);
    let Some((name, text)) = ASSETS.iter().find(|(name, _)| *name == xml_file) else {
        return Ok(Arc::new(Model::from_file(&library, Path::new(xml_file))?));
    };
    let models = models.get_or_insert_with(HashMap::new);
    if let Some(model) = models.get(name).and_then(Weak::upgrade) {
        return Ok(model);
    }
    let model = Arc::new(Model::from_text(&library, name, text)?);
    models.insert(name, Arc::downgrade(&model));
    Ok(model)
}

/// Models in use, by name.
static MODELS: Mutex<Option<HashMap<&'static str, Weak<Model>>>> = Mutex::new(None);
