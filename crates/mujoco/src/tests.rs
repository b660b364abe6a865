//! Tests of the environments that need no recordings.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use serde_json::{Value, json};
use starling_envs::{Action, Env, EnvError, EnvOptions, EnvSpec, ObsMut, Rollout, Space, stream};
use starling_tree::{Array, Tree};

use crate::{Library, Model, MujocoError, Simulation, place, tasks};

/// The library, or `None` after the test has been recorded as skipped.
pub(crate) fn library_or_skip(test: &str) -> Option<Arc<Library>> {
    match place::open() {
        Ok(library) => Some(library),
        // One that is there must be usable.
        Err(error) if place::is_there() => panic!("{error}"),
        Err(error) => {
            starling_testing::skip("mujoco", test, &error.to_string());
            None
        }
    }
}

/// All tasks and all families of tasks.
fn all_specs() -> Vec<EnvSpec> {
    let specs = tasks::specs().into_iter();
    specs.chain(tasks::meta_specs()).collect()
}

fn spec(id: &str) -> EnvSpec {
    let mut specs = all_specs().into_iter();
    specs.find(|spec| spec.id == id).unwrap()
}

fn options(table: Value) -> EnvOptions {
    EnvOptions::from_table(&table).unwrap()
}

/// An environment with a row for its observations and a stream of random actions.
struct Play {
    env: Box<dyn Env>,
    row: Tree<Array>,
    rng: starling_envs::Rng,
    actions: starling_envs::Rng,
}

impl Play {
    fn new(spec: &EnvSpec, table: Value) -> Result<Self, EnvError> {
        let env = spec.make(&options(table))?;
        let row = Tree::zeros(&env.observation_space().spec(), &[]);
        Ok(Self {
            env,
            row,
            rng: stream(1, "test", 0),
            actions: stream(1, "actions", 0),
        })
    }

    fn reset(&mut self) {
        let obs = ObsMut::at(&mut self.row, &[]);
        self.env.reset(&mut self.rng, obs).unwrap();
    }

    /// A random step: its observation and reward, and whether the episode is over.
    fn step(&mut self) -> Result<(Vec<f32>, f32, bool), EnvError> {
        let space = self.env.action_space();
        let spec = Rollout::action_spec(&space);
        let mut column = Array::zeros(spec.dtype, &[&[1], &spec.shape[..]].concat());
        space.sample(&mut self.actions, None, column.at_mut(&[0]));
        let action = Action::at(&space, &column, &[0]);
        let obs = ObsMut::at(&mut self.row, &[]);
        let step = self.env.step(action, &mut self.rng, obs)?;
        let shown = self.row.leaf().unwrap().as_slice::<f32>().to_vec();
        Ok((shown, step.reward, step.done()))
    }
}

#[test]
fn a_snapshot_continues_bit_by_bit() {
    if library_or_skip("a_snapshot_continues_bit_by_bit").is_none() {
        return;
    }
    for spec in all_specs() {
        let mut first = Play::new(&spec, json!({})).unwrap();
        first.reset();
        for _ in 0..137 {
            if first.step().unwrap().2 {
                first.reset();
            }
        }
        let snapshot = first.env.snapshot().unwrap();
        // With another past, so that everything must come from the snapshot.
        let mut second = Play::new(&spec, json!({})).unwrap();
        second.rng = stream(2, "other", 0);
        second.reset();
        for _ in 0..20 {
            second.step().unwrap();
        }
        second.env.restore(&snapshot).unwrap();
        assert_eq!(second.env.snapshot().unwrap(), snapshot, "{}", spec.id);
        (second.rng, second.actions) = (first.rng.clone(), first.actions.clone());
        for step in 0..300 {
            let (wanted, found) = (first.step().unwrap(), second.step().unwrap());
            let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&wanted.0), bits(&found.0), "{}, step {step}", spec.id);
            assert_eq!(
                wanted.1.to_bits(),
                found.1.to_bits(),
                "{}, step {step}",
                spec.id
            );
            assert_eq!(wanted.2, found.2, "{}, step {step}", spec.id);
            if wanted.2 {
                first.reset();
                second.reset();
            }
        }
        for damaged in [
            &snapshot[..snapshot.len() - 1],
            &[&snapshot[..], &[0]].concat(),
            &[1, 2],
        ] {
            let error = second.env.restore(damaged).unwrap_err();
            assert!(matches!(error, EnvError::Snapshot(_)), "{error}");
        }
    }
}

/// How the first states are spread, where Gymnasium's are: noise of the right kind and size.
#[test]
fn first_states_are_drawn_as_in_gymnasium() {
    if library_or_skip("first_states_are_drawn_as_in_gymnasium").is_none() {
        return;
    }
    // The environment, the place of a position and of a velocity in its observation, the limits of the
    // position, and the standard deviation of the velocity.
    for (id, position, velocity, limit, deviation) in [
        ("HalfCheetah-v5", 3, 12, 0.1, 0.1),
        ("Hopper-v5", 1, 8, 5e-3, 5e-3 / f64::sqrt(3.0)),
        ("Swimmer-v5", 1, 5, 0.1, 0.1 / f64::sqrt(3.0)),
        ("InvertedPendulum-v5", 1, 3, 0.01, 0.01 / f64::sqrt(3.0)),
        ("Pusher-v5", 0, 9, 0.0, 0.005 / f64::sqrt(3.0)),
    ] {
        let mut play = Play::new(&spec(id), json!({})).unwrap();
        let mut draws = Vec::new();
        for _ in 0..2000 {
            play.reset();
            let shown = play.row.leaf().unwrap().as_slice::<f32>();
            draws.push((f64::from(shown[position]), f64::from(shown[velocity])));
        }
        let count = draws.len() as f64;
        let largest = draws.iter().fold(0.0, |a, b| f64::max(a, b.0.abs()));
        assert!(
            largest <= limit && largest >= 0.98 * limit,
            "{id}: {largest}"
        );
        let spread = draws.iter().map(|draw| draw.1 * draw.1).sum::<f64>() / count;
        let ratio = spread.sqrt() / deviation;
        assert!((0.93..1.07).contains(&ratio), "{id}: {ratio}");
    }
    // Targets lie in a disc, objects to be pushed outside of one.
    let mut reacher = Play::new(&spec("Reacher-v5"), json!({})).unwrap();
    let mut pusher = Play::new(&spec("Pusher-v5"), json!({})).unwrap();
    for _ in 0..200 {
        reacher.reset();
        let shown = reacher.row.leaf().unwrap().as_slice::<f32>();
        assert!(shown[4].hypot(shown[5]) < 0.2);
        pusher.reset();
        let shown = pusher.row.leaf().unwrap().as_slice::<f32>();
        let (object, goal) = (&shown[17..19], &shown[20..22]);
        assert!((object[0] - goal[0]).hypot(object[1] - goal[1]) > 0.169);
    }
}

#[test]
fn every_task_has_a_picture_that_changes() {
    if library_or_skip("every_task_has_a_picture_that_changes").is_none() {
        return;
    }
    for spec in all_specs() {
        let mut play = Play::new(&spec, json!({})).unwrap();
        play.reset();
        let first = play.env.render().unwrap();
        let colours: std::collections::HashSet<&[u8]> = first.rgb.chunks_exact(3).collect();
        assert!(colours.len() > 5, "{}", spec.id);
        for _ in 0..10 {
            play.step().unwrap();
        }
        assert_ne!(play.env.render().unwrap(), first, "{}", spec.id);
        assert!(
            (5.0..=130.0).contains(&play.env.render_fps()),
            "{}",
            spec.id
        );
        if let Ok(folder) = std::env::var("STARLING_PICTURES") {
            let picture = play.env.render().unwrap();
            let head = format!("P6 {} {} 255\n", picture.width, picture.height);
            let path = Path::new(&folder).join(format!("{}.ppm", spec.id));
            std::fs::write(path, [head.as_bytes(), &picture.rgb].concat()).unwrap();
        }
    }
}

#[test]
fn options_that_cannot_be_used_are_refused() {
    if library_or_skip("options_that_cannot_be_used_are_refused").is_none() {
        return;
    }
    let refused = |id: &str, table: Value| match spec(id).make(&options(table.clone())) {
        Ok(_) => panic!("{id} accepts {table}"),
        Err(error) => error.to_string(),
    };
    assert_eq!(
        refused("HalfCheetah-v5", json!({"frame_skip": 0})),
        "env.frame_skip is 0; allowed: between 1 and 1000"
    );
    assert_eq!(
        refused("HalfCheetah-v5", json!({"reset_noise_scale": -0.1})),
        "env.reset_noise_scale is -0.1; allowed: 0 or more"
    );
    let error = refused("Hopper-v5", json!({"healthy_z_range": [2, 1]}));
    assert!(
        error.starts_with("env.healthy_z_range is [2, 1]; allowed: two numbers"),
        "{error}"
    );
    let error = refused("Hopper-v4", json!({"frame_skip": 4}));
    assert!(
        error.starts_with("there is no setting called 'env.frame_skip'"),
        "{error}"
    );
    let error = refused("Ant-v5", json!({"main_body": 99}));
    assert!(
        error.contains("a body of number 99 (env.main_body)"),
        "{error}"
    );
    let error = refused("Ant-v5", json!({"main_body": "head"}));
    assert!(error.contains("no body called 'head'"), "{error}");
    let error = refused("Reacher-v5", json!({"xml_file": "hopper.xml"}));
    assert!(error.contains("no body called 'fingertip'"), "{error}");
    let error = refused("Ant-v5", json!({"xml_file": "inverted_pendulum.xml"}));
    assert!(error.contains("needs at least 3 positions"), "{error}");
}

#[test]
fn models_of_files_are_used_and_damaged_ones_refused() {
    if library_or_skip("models_of_files_are_used_and_damaged_ones_refused").is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("swimmer.xml");
    let path_text = path.to_str().unwrap();
    let swimmer = crate::robot::ASSETS
        .iter()
        .find(|(name, _)| *name == "swimmer.xml");
    let text = swimmer.unwrap().1;
    let make = || spec("Swimmer-v5").make(&options(json!({"xml_file": path_text})));
    let refused = || match make() {
        Ok(_) => panic!("a damaged model is accepted"),
        Err(error) => error.to_string(),
    };
    let start = format!("the model {path_text} cannot be used: ");
    assert!(refused().starts_with(&start), "{}", refused());
    std::fs::write(&path, text).unwrap();
    assert_eq!(make().unwrap().observation_space(), Space::unbounded(&[8]));
    std::fs::write(&path, &text[..text.len() / 2]).unwrap();
    assert!(
        refused().starts_with(&start) && refused().contains("XML"),
        "{}",
        refused()
    );
    std::fs::write(
        &path,
        "<mujoco><worldbody><body name='a'/><body name='a'/></worldbody></mujoco>",
    )
    .unwrap();
    assert!(refused().starts_with(&start), "{}", refused());
}

#[test]
fn an_unstable_simulation_is_an_error() {
    if library_or_skip("an_unstable_simulation_is_an_error").is_none() {
        return;
    }
    let table = json!({"reset_noise_scale": 1e15});
    let mut play = Play::new(&spec("HalfCheetah-v5"), table.clone()).unwrap();
    play.reset();
    let error = play.step().unwrap_err().to_string();
    assert!(
        error.starts_with("the simulation is unstable: MuJoCo found NaN"),
        "{error}"
    );
    assert!(error.contains("in qpos["), "{error}");
    // Until it is reset, it stays so: MuJoCo has put it into another state.
    assert!(play.step().is_err());
    let mut good = Play::new(&spec("HalfCheetah-v5"), json!({})).unwrap();
    good.reset();
    play.env.restore(&good.env.snapshot().unwrap()).unwrap();
    play.step().unwrap();
    // A vector names the environment.
    let spec = spec("HalfCheetah-v5");
    let mut vector = spec.make_vec(&options(table), 2, 0, "env", 5).unwrap();
    let (obs, actions) = (
        vector.observation_space().clone(),
        vector.action_space().clone(),
    );
    let mut rollout = Rollout::new(1, 2, &obs, &actions, None, &Tree::empty(), &Tree::empty());
    vector.reset(&mut rollout).unwrap();
    let error = vector.step(0, &mut rollout).unwrap_err().to_string();
    assert!(
        error.starts_with("environment 5 (HalfCheetah-v5): the simulation is"),
        "{error}"
    );
}

#[test]
fn a_fatal_error_of_mujoco_is_an_error() {
    let Some(library) = library_or_skip("a_fatal_error_of_mujoco_is_an_error") else {
        return;
    };
    // So little memory that the first step has no room for its constraints.
    let ball = |i: usize| {
        format!(
            "<body pos='0 0 {}'><freejoint/><geom size='.1'/><geom size='.1' pos='.15 0 0'/></body>",
            0.05 + 0.1 * i as f64
        )
    };
    let balls: String = (0..20).map(ball).collect();
    let text = format!(
        "<mujoco><size memory='20K'/><worldbody><geom type='plane' size='1 1 1'/>{balls}\
         </worldbody></mujoco>"
    );
    let model = Arc::new(Model::from_text(&library, "small.xml", &text).unwrap());
    let mut simulation = Simulation::new(&model).unwrap();
    let error = simulation.step(1).unwrap_err();
    assert!(matches!(error, MujocoError::Stopped(_)), "{error}");
    assert!(
        error.to_string().contains("MuJoCo stopped with an error: "),
        "{error}"
    );
    // And again, instead of anything worse.
    assert!(simulation.step(1).is_err() && simulation.reset().is_err());
}

#[test]
fn libraries_that_cannot_be_used_say_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(place::FILE);
    let refused = || Library::open(&path).unwrap_err().to_string();
    std::fs::write(&path, "not a library").unwrap();
    assert!(
        refused().contains("cannot be opened as a library"),
        "{}",
        refused()
    );
    assert!(refused().contains("`./starling mujoco`"), "{}", refused());
    if let Ok(whole) = place::find() {
        let whole = std::fs::read(whole).unwrap();
        std::fs::write(&path, &whole[..whole.len() / 2]).unwrap();
        assert!(refused().contains("bytes of"), "{}", refused());
        assert!(
            refused().contains("cannot be opened as a library"),
            "{}",
            refused()
        );
    }
    // A library of each kind has its own file: an open one must not be overwritten.
    for (number, source, expected) in [
        (
            1,
            "int mj_version(void) { return 3003007; }",
            "is MuJoCo 3.3.7, and 3.17.0 is needed",
        ),
        (
            2,
            "int mj_version(void) { return 337; }",
            "is MuJoCo 3.3.7, and 3.17.0 is needed",
        ),
        (
            3,
            "int mj_version(void) { return 3017000; }",
            "has no function called mju_setLogHandler",
        ),
        (
            4,
            "int something(void) { return 1; }",
            "has no function called mj_version",
        ),
    ] {
        let code = folder.path().join(format!("{number}.c"));
        let path = folder.path().join(format!("{number}.so"));
        std::fs::write(&code, source).unwrap();
        let compiler = Command::new("cc")
            .args(["-shared", "-fPIC", "-o"])
            .args([&path, &code])
            .status();
        if !compiler.is_ok_and(|status| status.success()) {
            let test = "libraries_that_cannot_be_used_say_what_to_do";
            return starling_testing::skip("cc", test, "there is no C compiler");
        }
        let error = Library::open(&path).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert!(error.contains("`./starling mujoco`"), "{error}");
    }
}
