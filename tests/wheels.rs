//! The Python packages, in virtual environments that have nothing else of ours. `./starling test`
//! builds the wheels and installs them (scripts/test_wheels.sh).

#![expect(clippy::unwrap_used, reason = "a test ends where something fails")]

use std::path::{Path, PathBuf};
use std::process::Command;

use starling::envs::{EnvOptions, Rollout, Space, registry};
use starling_testing::skip;
use starling_tree::{Array, Tree};

/// The folder of `scripts/test_wheels.sh`, and the Python of one of its environments.
fn python(environment: &str, test: &str) -> Option<(PathBuf, PathBuf)> {
    let folder = std::env::var_os("STARLING_TEST_WHEELS").map(PathBuf::from);
    let python = folder.map(|folder| {
        let python = folder.join(environment).join("bin").join("python");
        (folder, python)
    });
    let found = python.filter(|(_, python)| python.is_file());
    if found.is_none() {
        let why = format!("there is no environment '{environment}' in STARLING_TEST_WHEELS");
        skip(&format!("wheels-{environment}"), test, &why);
    }
    found
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Runs a Python that knows nothing of this checkout; fails with all it says.
fn run(python: &Path, arguments: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(python);
    command.args(arguments).current_dir(folder.path());
    command
        .env_remove("LD_LIBRARY_PATH")
        .env_remove("PYTHONPATH");
    command.env("OMP_NUM_THREADS", "1");
    let output = command.output().unwrap();
    let said = [&output.stdout[..], &output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    assert!(output.status.success(), "{arguments:?}\n{said}");
    said
}

/// Runs the tests of a package. Those that it skips are listed with ours, and fail if what they lack is
/// required, as it is in CI.
fn unit_tests(python: &Path, environment: &str, package: &str, pattern: &str) {
    let folder = root().join("python").join(package).join("tests");
    let folder = folder.display().to_string();
    let words: [&str; 8] = [
        "-m", "unittest", "discover", "-v", "-s", &folder, "-p", pattern,
    ];
    let said = run(python, &words);
    assert!(!said.contains("Ran 0 tests"), "{said}");
    let skipped: Vec<(&str, &str)> = said
        .lines()
        .filter_map(|line| line.split_once(" ... skipped "))
        .collect();
    // Nothing else than passed and skipped.
    let expected = match skipped.len() {
        0 => "OK".to_owned(),
        count => format!("OK (skipped={count})"),
    };
    assert!(said.lines().any(|line| line == expected), "{said}");
    for (test, why) in skipped {
        let lacks = match why.contains("ROMs") {
            true => "roms".to_owned(),
            false => format!("wheels-{environment}"),
        };
        skip(&lacks, test, why);
    }
}

#[test]
fn the_wheel_without_torch_is_small() {
    let test = "the_wheel_without_torch_is_small";
    let Some((folder, _)) = python("envs", test) else {
        return;
    };
    let files = std::fs::read_dir(folder.join("dist")).unwrap();
    let files = files.map(|file| file.unwrap());
    let name = |file: &std::fs::DirEntry| file.file_name().into_string().unwrap();
    let wheels: Vec<_> = files
        .filter(|file| name(file).starts_with("starling_rl-"))
        .collect();
    assert_eq!(wheels.len(), 1);
    assert!(name(&wheels[0]).contains("-cp310-abi3-"));
    let bytes = wheels[0].metadata().unwrap().len();
    assert!(bytes < 2_000_000, "{bytes} bytes");
}

#[test]
fn vectors_and_replay_pass_their_tests_against_gymnasium() {
    let test = "vectors_and_replay_pass_their_tests_against_gymnasium";
    if let Some((_, python)) = python("envs", test) {
        unit_tests(&python, "envs", "starling-rl", "test_[eorvw]*.py");
    }
}

#[test]
fn vectors_do_in_python_what_they_do_in_rust() {
    let test = "vectors_do_in_python_what_they_do_in_rust";
    let Some((_, python)) = python("envs", test) else {
        return;
    };
    starling::add_environments();
    let folder = tempfile::tempdir().unwrap();
    let dump = root().join("python/starling-rl/tests/dump.py");
    let (seed, count, steps) = (11, 3, 200);
    for id in [
        "CartPole-v1",
        "MinAtar/Seaquest-v1",
        "ALE/Breakout-v5",
        "HalfCheetah-v5",
    ] {
        let game = starling::envs::atari::parse(id);
        if game.is_some_and(|(game, _)| !starling::envs::atari::roms::is_there(game)) {
            skip("roms", test, "no ROMs");
            continue;
        }
        if id == "HalfCheetah-v5" && !starling::mujoco::place::is_there() {
            skip("mujoco", test, "no MuJoCo");
            continue;
        }
        let file = folder.path().join("dump");
        let numbers = [seed, count, steps].map(|number| number.to_string());
        let [seed_text, count_text, steps_text] = numbers.each_ref().map(String::as_str);
        let (script, to) = (dump.display().to_string(), file.display().to_string());
        run(
            &python,
            &[&script, id, seed_text, count_text, steps_text, &to],
        );
        let found = std::fs::read(&file).unwrap();
        let expected = expected(id, seed, count, steps);
        assert_eq!(found.len(), expected.len(), "{id}");
        assert!(found == expected, "{id}");
    }
}

/// What `dump.py` writes, from Rust's vectors: environment b has the seed of its own that Gymnasium
/// gives it.
fn expected(id: &str, seed: u64, count: u64, steps: u64) -> Vec<u8> {
    let spec = registry::find(id).unwrap();
    let mut vectors: Vec<_> = (0..count)
        .map(|b| {
            let options = EnvOptions::default();
            let mut vector = spec.make_vec(&options, 1, seed + b, "env", 0).unwrap();
            let (nothing, action) = (Tree::empty(), vector.action_space().clone());
            let observation = vector.observation_space().clone();
            let mut rollout = Rollout::new(1, 1, &observation, &action, None, &nothing, &nothing);
            vector.reset(&mut rollout).unwrap();
            (vector, rollout, action)
        })
        .collect();
    let mut bytes = Vec::new();
    for (_, rollout, _) in &vectors {
        bytes.extend(rollout.obs.leaf().unwrap().at(&[0]).bytes);
    }
    for t in 0..steps as usize {
        for (b, (vector, rollout, action)) in vectors.iter_mut().enumerate() {
            match action {
                Space::Discrete { n } => {
                    let choice = (7 * t + 3 * b) % *n;
                    rollout.actions.as_mut_slice::<i64>()[0] = choice as i64;
                }
                _ => {
                    let actions = rollout.actions.as_mut_slice::<f32>();
                    for (i, value) in actions.iter_mut().enumerate() {
                        let number = ((7 * t + 3 * b + 5 * i) % 11) as f64 - 5.0;
                        *value = (number / 5.0) as f32;
                    }
                }
            }
            vector.step(0, rollout).unwrap();
            bytes.extend(rollout.obs.leaf().unwrap().at(&[1]).bytes);
        }
        let columns: [fn(&Rollout) -> &Array; 3] =
            [|r| &r.rewards, |r| &r.terminated, |r| &r.truncated];
        for column in columns {
            for (_, rollout, _) in &vectors {
                bytes.extend(column(rollout).bytes());
            }
        }
    }
    bytes
}

#[test]
fn stable_baselines3_trains_on_our_vectors() {
    let test = "stable_baselines3_trains_on_our_vectors";
    if let Some((_, python)) = python("train", test) {
        unit_tests(&python, "train", "starling-rl", "test_sb3.py");
    }
}

#[test]
fn torch_is_not_imported_where_it_is_installed() {
    let test = "torch_is_not_imported_where_it_is_installed";
    if let Some((_, python)) = python("train", test) {
        unit_tests(&python, "train", "starling-rl", "test_torch.py");
    }
}

/// The script is not ours: `scripts/test_wheels.sh` takes it from CleanRL's wheel.
#[test]
fn cleanrl_s_script_for_envpool_runs_with_one_changed_line() {
    let test = "cleanrl_s_script_for_envpool_runs_with_one_changed_line";
    let Some((folder, python)) = python("train", test) else {
        return;
    };
    let (game, _) = starling::envs::atari::parse("ALE/Breakout-v5").unwrap();
    if !starling::envs::atari::roms::is_there(game) {
        skip("roms", test, "no ROMs");
        return;
    }
    let script = std::fs::read_to_string(folder.join("ppo_atari_envpool.py")).unwrap();
    let import = "\nimport envpool\n";
    assert_eq!(script.matches(import).count(), 1);
    let changed = script.replace(import, "\nimport starling.envpool as envpool\n");
    let own = tempfile::tempdir().unwrap();
    let path = own.path().join("ppo_atari_envpool.py");
    std::fs::write(&path, changed).unwrap();
    let path = path.display().to_string();
    let small =
        "--env-id Breakout-v5 --num-envs 8 --num-steps 64 --total-timesteps 1024 --update-epochs 1";
    let arguments: Vec<&str> = [&*path].into_iter().chain(small.split(' ')).collect();
    let said = run(&python, &arguments);
    assert!(said.contains("SPS:"), "{said}");
    assert!(said.contains("episodic_return="), "{said}");
}

#[test]
fn the_program_trains_without_rust_and_its_agent_acts_in_python() {
    let test = "the_program_trains_without_rust_and_its_agent_acts_in_python";
    if let Some((_, python)) = python("train", test) {
        unit_tests(&python, "train", "starling-rl-train", "test_*.py");
    }
}
