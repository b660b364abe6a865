//! `PointRobot-v0` and `SparsePointRobot-v0`: go to a goal in the plane that is not observed.

use std::f64::consts::PI;

use rand::RngExt as _;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use starling_settings::Schema;

use super::{FAMILY, Family, TaskSettings, held_out};
use crate::render::colours::{AGENT, GOAL, GROUND, PAPER};
use crate::render::{Canvas, Picture};
use crate::wrappers::{load, save};
use crate::{Action, Env, EnvError, EnvOptions, EnvSpec, ObsMut, Rng, Space, Step};

/// Largest move along each axis.
const REACH: f32 = 0.1;
/// Steps of an episode.
const LIMIT: u64 = 20;
/// How near the goal the sparse reward is paid.
const RADIUS: f64 = 0.2;
/// Width and height of pictures, in pixels.
const SIDE: usize = 320;
/// What a picture shows along each axis: from minus this to this.
const VIEW: f64 = 2.2;
/// The part of an observation with the reward that a task is to be recognised by, where that is not
/// the reward.
const CONTEXT_REWARD: &str = "context_reward";

/// The options of `PointRobot-v0`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct PointRobotOptions {
    /// The task: where the goal is, along x. Drawn goals are between -1 and 1.
    #[schemars(extend("unbounded" = true))]
    pub goal_x: f64,
    /// Where the goal is, along y.
    #[schemars(extend("unbounded" = true))]
    pub goal_y: f64,
    /// Its tasks.
    #[serde(flatten)]
    pub tasks: TaskSettings,
}

impl Default for PointRobotOptions {
    fn default() -> Self {
        Self {
            goal_x: 0.5,
            goal_y: 0.5,
            tasks: TaskSettings::default(),
        }
    }
}

/// The options of `SparsePointRobot-v0`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct SparsePointRobotOptions {
    /// The task: the angle at which the goal is, 1 away from the start, in radians; 0 is along x.
    /// Those of the tasks are evenly spaced from 0 to pi.
    #[schemars(extend("unbounded" = true))]
    pub angle: f64,
    /// Whether the reward is the sparse one: 1 minus the distance within 0.2 of the goal, otherwise
    /// 0. Training has minus the distance; evaluations set this.
    pub sparse: bool,
    /// Its tasks.
    #[serde(flatten)]
    pub tasks: TaskSettings,
}

impl Default for SparsePointRobotOptions {
    fn default() -> Self {
        Self {
            angle: PI / 2.0,
            sparse: false,
            tasks: TaskSettings::default(),
        }
    }
}

/// A point that moves by up to 0.1 along each axis and is paid minus the distance to its goal.
///
/// The sparse one starts at the origin, and has a second part in its observation: the sparse reward
/// of the last step, by which the task is to be recognised.
#[derive(Debug)]
pub struct PointRobot {
    goal: [f64; 2],
    /// Of the sparse robot, whether the reward is the sparse one.
    sparse: Option<bool>,
    show_task: bool,
    place: [f64; 2],
    /// The sparse reward of the last step.
    context_reward: f32,
}

impl PointRobot {
    /// A robot that starts anywhere between -1 and 1.
    pub fn dense(options: &PointRobotOptions) -> Self {
        let goal = [options.goal_x, options.goal_y];
        Self::new(goal, None, options.tasks.show_task)
    }

    /// A robot that starts at the origin and is told little.
    pub fn sparse(options: &SparsePointRobotOptions) -> Self {
        let goal = [options.angle.cos(), options.angle.sin()];
        Self::new(goal, Some(options.sparse), options.tasks.show_task)
    }

    fn new(goal: [f64; 2], sparse: Option<bool>, show_task: bool) -> Self {
        Self {
            goal,
            sparse,
            show_task,
            place: [0.0; 2],
            context_reward: 0.0,
        }
    }

    fn observe(&self, mut obs: ObsMut<'_>) {
        let mut seen = self.place.map(|x| x as f32).to_vec();
        if self.show_task {
            seen.extend(self.goal.map(|x| x as f32));
        }
        match self.sparse {
            None => obs.write(&seen),
            Some(_) => {
                obs.part::<f32>("position").copy_from_slice(&seen);
                obs.part::<f32>(CONTEXT_REWARD)[0] = self.context_reward;
            }
        }
    }
}

impl Env for PointRobot {
    fn observation_space(&self) -> Space {
        let position = Space::unbounded(&[if self.show_task { 4 } else { 2 }]);
        match self.sparse {
            None => position,
            Some(_) => Space::Dict(vec![
                ("position".into(), position),
                (CONTEXT_REWARD.into(), Space::unbounded(&[1])),
            ]),
        }
    }

    fn action_space(&self) -> Space {
        Space::floats(&[2], -REACH, REACH)
    }

    fn reset(&mut self, rng: &mut Rng, obs: ObsMut<'_>) -> Result<(), EnvError> {
        self.place = match self.sparse {
            None => std::array::from_fn(|_| rng.random_range(-1.0..1.0)),
            Some(_) => [0.0; 2],
        };
        self.context_reward = 0.0;
        self.observe(obs);
        Ok(())
    }

    fn step(
        &mut self,
        action: Action<'_>,
        _rng: &mut Rng,
        obs: ObsMut<'_>,
    ) -> Result<Step, EnvError> {
        for (place, by) in self.place.iter_mut().zip(action.continuous(2)?) {
            *place += f64::from(by.clamp(-REACH, REACH));
        }
        let [x, y] = [0, 1].map(|i| self.place[i] - self.goal[i]);
        let distance = (x * x + y * y).sqrt();
        let sparse = if distance <= RADIUS {
            1.0 - distance
        } else {
            0.0
        };
        self.context_reward = sparse as f32;
        self.observe(obs);
        let reward = match self.sparse {
            Some(true) => sparse,
            _ => -distance,
        };
        Ok(Step {
            reward: reward as f32,
            terminated: false,
            truncated: false,
        })
    }

    fn render(&self) -> Result<Picture, EnvError> {
        let at = |[x, y]: [f64; 2]| {
            let half = SIDE as f64 / 2.0;
            [half * (1.0 + x / VIEW), half * (1.0 - y / VIEW)]
        };
        let scale = SIDE as f64 / 2.0 / VIEW;
        let mut canvas = Canvas::new(SIDE, SIDE, PAPER);
        canvas.line(at([-VIEW, 0.0]), at([VIEW, 0.0]), 1.0, GROUND);
        canvas.line(at([0.0, -VIEW]), at([0.0, VIEW]), 1.0, GROUND);
        canvas.circle(at(self.goal), RADIUS * scale, [178, 223, 178]);
        canvas.circle(at(self.goal), 4.0, GOAL);
        canvas.circle(at(self.place), 6.0, AGENT);
        Ok(canvas.finish())
    }

    fn render_fps(&self) -> f64 {
        10.0
    }

    fn snapshot(&self) -> Option<Vec<u8>> {
        save(&(self.place, self.context_reward))
    }

    fn restore(&mut self, snapshot: &[u8]) -> Result<(), EnvError> {
        (self.place, self.context_reward) = load(snapshot)?;
        Ok(())
    }
}

/// The entry of the dense robot in the table of environments.
pub(crate) const POINT_ROBOT: EnvSpec = EnvSpec {
    max_episode_steps: Some(LIMIT),
    options: Schema::of::<PointRobotOptions>,
    for_evaluation: held_out,
    tasks: Some(Family {
        settings: |options| Ok(options.read::<PointRobotOptions>()?.tasks),
        task: square,
    }),
    ..EnvSpec::new(
        "PointRobot-v0",
        FAMILY,
        "go to a goal in the plane that is not seen (a family of tasks, for meta-learning)",
        |_, options| Ok(Box::new(PointRobot::dense(&options.read()?))),
    )
};

/// The entry of the sparse robot.
pub(crate) const SPARSE_POINT_ROBOT: EnvSpec = EnvSpec {
    max_episode_steps: Some(LIMIT),
    options: Schema::of::<SparsePointRobotOptions>,
    for_evaluation: |options| held_out(options).with(&json!({"sparse": true})),
    tasks: Some(Family {
        settings: |options| Ok(options.read::<SparsePointRobotOptions>()?.tasks),
        task: half_circle,
    }),
    ..EnvSpec::new(
        "SparsePointRobot-v0",
        FAMILY,
        "find a goal with a sparse reward near it (a family of tasks, for meta-learning)",
        |_, options| Ok(Box::new(PointRobot::sparse(&options.read()?))),
    )
};

/// A goal in the square that the robots start in.
fn square(options: &EnvOptions, number: usize) -> Result<Value, EnvError> {
    let mut numpy = options.read::<PointRobotOptions>()?.tasks.generator();
    let mut goal = [0.0; 2];
    for _ in 0..=number {
        goal = [0, 1].map(|_| numpy.uniform(-1.0, 1.0));
    }
    Ok(json!({"goal_x": goal[0], "goal_y": goal[1]}))
}

/// One of evenly spaced angles, in numpy's random order.
fn half_circle(options: &EnvOptions, number: usize) -> Result<Value, EnvError> {
    let settings = options.read::<SparsePointRobotOptions>()?.tasks;
    let mut order: Vec<usize> = (0..settings.total()).collect();
    settings.generator().shuffle(&mut order);
    let last = (order.len() - 1).max(1) as f64;
    Ok(json!({"angle": PI * order[number] as f64 / last}))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{registry, stream};
    use starling_tree::Tree;

    fn task(id: &str, table: Value, number: usize) -> Value {
        let options = EnvOptions::from_table(&table).unwrap();
        let spec = registry::find(id).unwrap();
        let family = spec.tasks.unwrap();
        family.of(&options, number).unwrap().family()
    }

    /// The first goals that PEARL's reference draws, and the first angles.
    #[test]
    fn goals_are_those_of_the_reference() {
        let close = |ours: &Value, theirs: f64| (ours.as_f64().unwrap() - theirs).abs() < 1e-8;
        let many = json!({"train_tasks": 80, "eval_tasks": 20});
        let goals = [
            (-0.475_950_649_968_836_6, -0.682_632_055_691_068_8),
            (-0.443_746_961_011_280_5, -0.081_366_225_570_866_7),
        ];
        for (number, (x, y)) in goals.into_iter().enumerate() {
            let goal = task("PointRobot-v0", many.clone(), number);
            assert!(close(&goal["goal_x"], x) && close(&goal["goal_y"], y));
        }
        let held_out = json!({"train_tasks": 1, "eval_tasks": 1, "held_out": true});
        let goal = task("PointRobot-v0", held_out, 0);
        assert!(close(&goal["goal_x"], goals[1].0));
        for (number, cosine) in [(0, 0.997_986_68), (1, 0.047_581_92), (2, -0.916_108_46)] {
            let angle = task("SparsePointRobot-v0", many.clone(), number)["angle"].as_f64();
            assert!((angle.unwrap().cos() - cosine).abs() < 1e-7);
        }
    }

    /// From the origin to (0, 0.1), with the goal at (0, 0.25): 0.15 away.
    #[test]
    fn rewards_by_hand() {
        let options = SparsePointRobotOptions::default();
        for (sparse, expected) in [(false, -0.15), (true, 0.85)] {
            let mut robot = PointRobot::sparse(&SparsePointRobotOptions {
                sparse,
                ..options.clone()
            });
            robot.goal = [0.0, 0.25];
            let rng = &mut stream(1, "test", 0);
            let mut obs = Tree::zeros(&robot.observation_space().spec(), &[1]);
            robot.reset(rng, ObsMut::at(&mut obs, &[0])).unwrap();
            let action = Action::Continuous(&[0.0, 7.0]);
            let step = robot.step(action, rng, ObsMut::at(&mut obs, &[0])).unwrap();
            assert!((step.reward - expected).abs() < 1e-6);
            let part = |name| {
                obs.get(name)
                    .unwrap()
                    .leaf()
                    .unwrap()
                    .as_slice::<f32>()
                    .to_vec()
            };
            assert_eq!(part("position"), [0.0, 0.1]);
            assert!((part(CONTEXT_REWARD)[0] - 0.85).abs() < 1e-6);
        }
    }
}
