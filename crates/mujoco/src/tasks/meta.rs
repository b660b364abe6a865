//! Families of tasks for meta-learning, as PEARL defines them (Rakelly et al. 2019): the same robot,
//! and a reward that depends on a setting, or a body that does (`random_params.rs`). Every value of
//! the setting is a task of its family.
//!
//! Contact forces are zero, as they were in the reference with MuJoCo 2.0, which did not compute them:
//! there is no contact cost, and contact forces in observations are zero.

use std::f64::consts::TAU;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use starling_envs::meta::{FAMILY, Family, TaskSettings, held_out};
use starling_envs::{EnvError, EnvSpec, Rng, Schema};

use super::humanoid::Parts;
use super::random_params::{self, RandomParamsOptions};
use crate::drawing::{From, View};
use crate::numpy::sum_of_squares;
use crate::robot::{self, Noise, Robot, Task};
use crate::{Model, Simulation};

/// Steps of an episode.
const LIMIT: u64 = 200;

/// The options of `CheetahDir-v0`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct CheetahDirOptions {
    /// The task: 1 to run forward, -1 to run backward.
    #[schemars(range(min = -1.0, max = 1.0))]
    pub direction: f64,
    /// Its tasks: forward and backward in turn, also in evaluations.
    #[serde(flatten)]
    pub tasks: TaskSettings,
}

impl Default for CheetahDirOptions {
    fn default() -> Self {
        Self {
            direction: 1.0,
            tasks: TaskSettings::default(),
        }
    }
}

/// The options of `CheetahVel-v0`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct CheetahVelOptions {
    /// The task: the velocity to run with; the paper's are between 0 and 3.
    #[schemars(extend("unbounded" = true))]
    pub velocity: f64,
    /// Its tasks.
    #[serde(flatten)]
    pub tasks: TaskSettings,
}

impl Default for CheetahVelOptions {
    fn default() -> Self {
        Self {
            velocity: 1.5,
            tasks: TaskSettings::default(),
        }
    }
}

/// The options of `AntDir-v0` and `HumanoidDir-v0`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct DirectionOptions {
    /// The task: the angle of the direction to go, in radians; 0 is along x.
    #[schemars(extend("unbounded" = true))]
    pub angle: f64,
    /// Whether the tasks are to go forward and backward in turn, also in evaluations, instead of in
    /// all directions.
    pub forward_backward: bool,
    /// Its tasks.
    #[serde(flatten)]
    pub tasks: TaskSettings,
}

/// The options of `AntGoal-v0`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct AntGoalOptions {
    /// The task: where to go, along x; the paper's goals are up to 3 away.
    #[schemars(extend("unbounded" = true))]
    pub goal_x: f64,
    /// Where to go, along y.
    #[schemars(extend("unbounded" = true))]
    pub goal_y: f64,
    /// Its tasks.
    #[serde(flatten)]
    pub tasks: TaskSettings,
}

impl Default for AntGoalOptions {
    fn default() -> Self {
        Self {
            goal_x: 2.0,
            goal_y: 0.0,
            tasks: TaskSettings::default(),
        }
    }
}

macro_rules! families {
    ($($id:literal, $options:ty, $make:path, $task:expr, $summary:literal;)*) => {
        /// The entries of the families for the table of environments.
        pub fn meta_specs() -> Vec<EnvSpec> {
            vec![$(EnvSpec {
                max_episode_steps: Some(LIMIT),
                options: Schema::of::<$options>,
                for_evaluation: held_out,
                tasks: Some(Family {
                    settings: |options| Ok(options.read::<$options>()?.tasks),
                    task: |options, number| Ok($task(&options.read::<$options>()?, number)),
                }),
                ..EnvSpec::new($id, FAMILY, $summary, |_, options| {
                    Ok(Box::new($make(options.read::<$options>()?)?))
                })
            }),*]
        }

        #[cfg(test)]
        fn exact(id: &str, options: &starling_envs::EnvOptions) -> Box<dyn crate::robot::Exact> {
            match id {
                $($id => Box::new($make(options.read::<$options>().unwrap()).unwrap()),)*
                other => panic!("there is no family called {other}"),
            }
        }
    };
}

families! {
    "CheetahDir-v0", CheetahDirOptions, cheetah_dir, forward_or_backward,
        "run forward or backward (a family of two tasks, for meta-learning)";
    "CheetahVel-v0", CheetahVelOptions, cheetah_vel, velocity,
        "run with a velocity (a family of tasks, for meta-learning)";
    "AntDir-v0", DirectionOptions, ant_dir, angle,
        "run in a direction on four legs (a family of tasks, for meta-learning)";
    "AntGoal-v0", AntGoalOptions, ant_goal, goal,
        "run to a place on four legs (a family of tasks, for meta-learning)";
    "HumanoidDir-v0", DirectionOptions, humanoid_dir, angle,
        "walk in a direction (a family of tasks, for meta-learning)";
    "HopperRandParams-v0", RandomParamsOptions, random_params::hopper, random_params::task,
        "hop with a random body (a family of tasks, for meta-learning)";
    "Walker2dRandParams-v0", RandomParamsOptions, random_params::walker2d, random_params::task,
        "walk with a random body (a family of tasks, for meta-learning)";
}

fn forward_or_backward(_: &CheetahDirOptions, number: usize) -> Value {
    json!({"direction": if number.is_multiple_of(2) { 1.0 } else { -1.0 }})
}

/// The n-th of numpy's uniform numbers, from 0 to below 1.
fn drawn(tasks: &TaskSettings, n: usize) -> f64 {
    let mut numpy = tasks.generator();
    (0..n).fold(numpy.unit(), |_, _| numpy.unit())
}

/// Uniformly from 0 to 3.
fn velocity(options: &CheetahVelOptions, number: usize) -> Value {
    json!({"velocity": 3.0 * drawn(&options.tasks, number)})
}

fn angle(options: &DirectionOptions, number: usize) -> Value {
    let turn = match options.forward_backward {
        true => 0.5 * (number % 2) as f64,
        false => drawn(&options.tasks, number),
    };
    json!({"angle": turn * TAU})
}

/// Uniformly in a circle of radius 3: all angles are drawn before all distances.
fn goal(options: &AntGoalOptions, number: usize) -> Value {
    let tasks = &options.tasks;
    let angle = TAU * drawn(tasks, number);
    let distance = 3.0 * drawn(tasks, tasks.total() + number).sqrt();
    json!({"goal_x": distance * angle.cos(), "goal_y": distance * angle.sin()})
}

/// What an oracle sees of its task; otherwise nothing.
fn shown(tasks: &TaskSettings, task: &[f64]) -> Vec<f64> {
    match tasks.show_task {
        true => task.to_vec(),
        false => Vec::new(),
    }
}

fn squares(action: &[f32]) -> f64 {
    sum_of_squares(action.iter().map(|&value| f64::from(value)))
}

/// What a cheetah is paid for.
enum Pace {
    Direction(f64),
    Velocity(f64),
}

struct Cheetah {
    pace: Pace,
    torso: usize,
    shown: Vec<f64>,
}

fn cheetah(pace: Pace, shown: Vec<f64>) -> Result<Robot<Cheetah>, EnvError> {
    Robot::new("half_cheetah.xml", 5, |model| {
        let torso = robot::body(model, "torso")?;
        Ok(Cheetah { pace, torso, shown })
    })
}

fn cheetah_dir(options: CheetahDirOptions) -> Result<Robot<Cheetah>, EnvError> {
    let shown = shown(&options.tasks, &[options.direction]);
    cheetah(Pace::Direction(options.direction), shown)
}

fn cheetah_vel(options: CheetahVelOptions) -> Result<Robot<Cheetah>, EnvError> {
    let shown = shown(&options.tasks, &[options.velocity]);
    cheetah(Pace::Velocity(options.velocity), shown)
}

impl Task for Cheetah {
    fn start(&self, simulation: &mut Simulation, rng: &mut Rng) {
        robot::disturb_state(simulation, Noise::Normal, 0.1, rng);
    }

    fn observe(&self, simulation: &Simulation, observation: &mut Vec<f64>) {
        observation.extend_from_slice(&simulation.qpos()[1..]);
        observation.extend_from_slice(simulation.qvel());
        observation.extend_from_slice(&simulation.xpos()[self.torso]);
        observation.extend_from_slice(&self.shown);
    }

    fn mark(&self, simulation: &Simulation) -> f64 {
        simulation.qpos()[0]
    }

    fn judge(&self, simulation: &Simulation, before: f64, action: &[f32], dt: f64) -> (f64, bool) {
        let velocity = (simulation.qpos()[0] - before) / dt;
        let moving = match self.pace {
            Pace::Direction(direction) => direction * velocity,
            Pace::Velocity(wanted) => -(velocity - wanted).abs(),
        };
        (moving - 0.05 * squares(action), false)
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

/// What an ant is paid for.
enum Aim {
    /// A unit vector.
    Direction([f64; 2]),
    Goal([f64; 2]),
}

struct Ant {
    aim: Aim,
    torso: usize,
    shown: Vec<f64>,
}

fn ant(aim: Aim, shown: Vec<f64>) -> Result<Robot<Ant>, EnvError> {
    Robot::new("ant.xml", 5, |model| {
        let torso = robot::body(model, "torso")?;
        Ok(Ant { aim, torso, shown })
    })
}

fn ant_dir(options: DirectionOptions) -> Result<Robot<Ant>, EnvError> {
    let direction = towards(options.angle);
    ant(Aim::Direction(direction), shown(&options.tasks, &direction))
}

fn ant_goal(options: AntGoalOptions) -> Result<Robot<Ant>, EnvError> {
    let goal = [options.goal_x, options.goal_y];
    ant(Aim::Goal(goal), shown(&options.tasks, &goal))
}

fn towards(angle: f64) -> [f64; 2] {
    [angle.cos(), angle.sin()]
}

/// How far a place is along a direction.
fn along(place: [f64; 2], direction: [f64; 2]) -> f64 {
    place[0] * direction[0] + place[1] * direction[1]
}

impl Ant {
    fn place(&self, simulation: &Simulation) -> [f64; 2] {
        let [x, y, _] = simulation.xpos()[self.torso];
        [x, y]
    }
}

impl Task for Ant {
    fn start(&self, simulation: &mut Simulation, rng: &mut Rng) {
        robot::disturb_state(simulation, Noise::Normal, 0.1, rng);
    }

    fn observe(&self, simulation: &Simulation, observation: &mut Vec<f64>) {
        let skipped = match self.aim {
            Aim::Direction(_) => 2,
            Aim::Goal(_) => 0,
        };
        observation.extend_from_slice(&simulation.qpos()[skipped..]);
        observation.extend_from_slice(simulation.qvel());
        if let Aim::Goal(_) = self.aim {
            let contacts = 6 * simulation.model().nbody();
            observation.extend(std::iter::repeat_n(0.0, contacts));
        }
        observation.extend_from_slice(&self.shown);
    }

    fn mark(&self, simulation: &Simulation) -> f64 {
        match self.aim {
            Aim::Direction(direction) => along(self.place(simulation), direction),
            Aim::Goal(_) => 0.0,
        }
    }

    fn judge(&self, simulation: &Simulation, before: f64, action: &[f32], dt: f64) -> (f64, bool) {
        let (place, cost) = (self.place(simulation), squares(action));
        match self.aim {
            Aim::Direction(direction) => {
                let velocity = (along(place, direction) - before) / dt;
                let height = simulation.qpos()[2];
                let state = simulation.qpos().iter().chain(simulation.qvel());
                let finite = state.into_iter().all(|value| value.is_finite());
                let ended = !finite || !(0.2..=1.0).contains(&height);
                (velocity - 0.5 * cost + 1.0, ended)
            }
            Aim::Goal([x, y]) => {
                let distance = (place[0] - x).abs() + (place[1] - y).abs();
                (-distance - 0.1 * cost, false)
            }
        }
    }

    fn view(&self) -> View {
        View {
            from: From::Above,
            follow: Some(1),
            centre: [0.0, 0.0],
            width: 6.0,
        }
    }
}

struct Humanoid {
    direction: [f64; 2],
    parts: Parts,
    total_mass: f64,
    shown: Vec<f64>,
}

fn humanoid_dir(options: DirectionOptions) -> Result<Robot<Humanoid>, EnvError> {
    Robot::new("humanoid.xml", 5, |model: &Model| {
        let direction = towards(options.angle);
        Ok(Humanoid {
            direction,
            shown: shown(&options.tasks, &direction),
            parts: Parts::v4(2),
            total_mass: model.body_masses().iter().sum(),
        })
    })
}

impl Task for Humanoid {
    fn start(&self, simulation: &mut Simulation, rng: &mut Rng) {
        robot::disturb_state(simulation, Noise::Uniform, 0.01, rng);
    }

    fn observe(&self, simulation: &Simulation, observation: &mut Vec<f64>) {
        self.parts.observe(simulation, observation);
        observation.extend_from_slice(&self.shown);
    }

    fn mark(&self, simulation: &Simulation) -> f64 {
        let masses = simulation.model().body_masses().iter();
        let bodies = masses.zip(simulation.xipos());
        let moment = bodies.map(|(mass, [x, y, _])| mass * along([*x, *y], self.direction));
        moment.sum::<f64>() / self.total_mass
    }

    /// The reference divides by the time of one simulation step, not of the whole step.
    fn judge(
        &self,
        simulation: &Simulation,
        before: f64,
        _action: &[f32],
        _dt: f64,
    ) -> (f64, bool) {
        let timestep = simulation.model().timestep();
        let moving = 0.25 * (self.mark(simulation) - before) / timestep;
        let cost = 0.1 * super::humanoid::squared_controls(simulation);
        let height = simulation.qpos()[2];
        (moving - cost + 5.0, !(1.0..=2.0).contains(&height))
    }

    fn view(&self) -> View {
        View {
            from: From::Side,
            follow: Some(1),
            centre: [0.0, 1.0],
            width: 3.5,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use starling_envs::EnvOptions;

    fn numbers(value: &Value) -> Vec<f64> {
        let numbers = value.as_array().unwrap().iter();
        numbers.map(|number| number.as_f64().unwrap()).collect()
    }

    /// The reference's definitions on MuJoCo's Python bindings, as `tests/record_meta.py` recorded
    /// them. Sums are in another order, so the last digits may differ.
    #[test]
    fn tasks_are_those_of_the_reference() {
        if crate::tests::library_or_skip("tasks_are_those_of_the_reference").is_none() {
            return;
        }
        let cases: Value = serde_json::from_str(include_str!("../../tests/meta.json")).unwrap();
        for case in cases.as_array().unwrap() {
            let id = case["id"].as_str().unwrap();
            let options = EnvOptions::from_table(&case["options"]).unwrap();
            let mut env = exact(id, &options);
            env.begin_at(&numbers(&case["qpos"]), &numbers(&case["qvel"]))
                .unwrap();
            let close =
                |ours: f64, theirs: f64| (ours - theirs).abs() <= 1e-9 * theirs.abs().max(1.0);
            let seen = |ours: &[f64], theirs: &Value| {
                let theirs = numbers(theirs);
                ours.len() == theirs.len() && ours.iter().zip(theirs).all(|(a, b)| close(*a, b))
            };
            assert!(seen(env.exact().0, &case["first"]), "{id}");
            for (t, step) in case["steps"].as_array().unwrap().iter().enumerate() {
                let action: Vec<f32> = numbers(&step["action"]).iter().map(|&x| x as f32).collect();
                let ended = env.advance(&action).unwrap();
                let (obs, reward) = env.exact();
                assert!(seen(obs, &step["obs"]), "{id}, step {t}");
                assert!(
                    close(reward, step["reward"].as_f64().unwrap()),
                    "{id}, step {t}"
                );
                assert_eq!(ended, step["done"].as_bool().unwrap(), "{id}, step {t}");
            }
        }
    }

    /// numpy's numbers for cheetah-vel; directions in turn; an ant's goal is at most 3 away.
    #[test]
    fn tasks_are_drawn_as_in_the_reference() {
        let of = |id: &str, more: Value, number: usize| {
            let mut table = json!({"train_tasks": 100, "eval_tasks": 30});
            let more = more.as_object().unwrap().clone();
            table.as_object_mut().unwrap().extend(more);
            let options = EnvOptions::from_table(&table).unwrap();
            let specs = meta_specs();
            let spec = specs.iter().find(|spec| spec.id == id).unwrap();
            spec.tasks.unwrap().of(&options, number).unwrap().family()
        };
        let close = |ours: &Value, theirs: f64| (ours.as_f64().unwrap() - theirs).abs() < 1e-6;
        let none = || json!({});
        let held_out = || json!({"held_out": true});
        assert!(close(
            &of("CheetahVel-v0", none(), 0)["velocity"],
            0.786_074
        ));
        assert!(close(
            &of("CheetahVel-v0", none(), 4)["velocity"],
            0.963_002
        ));
        for (number, velocity) in [(0, 2.050_959), (1, 0.083_069), (30, 2.050_959)] {
            let task = of("CheetahVel-v0", held_out(), number);
            assert!(close(&task["velocity"], velocity), "{task}");
        }
        assert!(close(
            &of("CheetahDir-v0", held_out(), 1)["direction"],
            -1.0
        ));
        let both = json!({"forward_backward": true});
        assert!(close(&of("AntDir-v0", both, 3)["angle"], TAU / 2.0));
        assert!(close(
            &of("AntDir-v0", none(), 0)["angle"],
            TAU * 0.786_074_025 / 3.0
        ));
        let goal = of("AntGoal-v0", none(), 0);
        let [x, y] = ["goal_x", "goal_y"].map(|name| goal[name].as_f64().unwrap());
        let angle = y.atan2(x).rem_euclid(TAU);
        assert!((angle - TAU * 0.786_074_025 / 3.0).abs() < 1e-6);
        assert!(x.hypot(y) < 3.0);
        let bodies = [0, 1].map(|number| of("HopperRandParams-v0", none(), number));
        assert_ne!(bodies[0], bodies[1]);
    }
}
