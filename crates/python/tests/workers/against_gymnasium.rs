//! Vectors of Python environments do what Gymnasium itself does with the same seeds and actions, in
//! any number of processes.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::{numbers, options, python, rollout, vector};
use rand::Rng as _;
use serde_json::{Value, json};
use starling_envs::{Space, check, registry, stream};

const ENVS: usize = 3;
const STEPS: usize = 300;

/// Plays random actions; returns them, and what followed in each environment.
fn play(python: &Path, id: &str, settings: &Value) -> (Vec<Value>, Vec<Value>) {
    let mut vector = vector(python, id, ENVS, settings).unwrap();
    let mut rollout = rollout(&*vector, STEPS);
    let mut actions = stream(3, "actions", 0);
    vector.reset(&mut rollout).unwrap();
    for t in 0..STEPS {
        for b in 0..ENVS {
            let legal = rollout.legal.as_ref().map(|legal| legal.at(&[t, b]));
            let legal = legal.map(|legal| legal.as_slice::<u8>());
            let space = vector.action_space();
            space.sample(&mut actions, legal, rollout.actions.at_mut(&[t, b]));
        }
        vector.step(t, &mut rollout).unwrap();
    }
    let discrete = matches!(vector.action_space(), Space::Discrete { .. });
    let chosen = (0..ENVS).map(|b| {
        let of = |t: usize| match discrete {
            true => json!(rollout.actions.at(&[t, b]).as_slice::<i64>()),
            false => json!(rollout.actions.at(&[t, b]).as_slice::<f32>()),
        };
        (0..STEPS).map(of).collect()
    });
    let seen = (0..ENVS).map(|b| {
        let finals = rollout.final_at.iter().enumerate();
        let finals = finals.filter(|(_, (_, env))| *env == b);
        let flag = |flags: &starling_tree::Array, t| flags.at(&[t, b]).bytes[0] != 0;
        json!({
            "obs": (0..=STEPS).map(|t| numbers(&rollout.obs, &[t, b])).collect::<Vec<_>>(),
            "rewards": (0..STEPS)
                .map(|t| f64::from(rollout.rewards.at(&[t, b]).as_slice::<f32>()[0]))
                .collect::<Vec<_>>(),
            "flags": (0..STEPS)
                .map(|t| [flag(&rollout.terminated, t), flag(&rollout.truncated, t)])
                .collect::<Vec<_>>(),
            "finals": finals.map(|(i, _)| numbers(&rollout.final_obs, &[i])).collect::<Vec<_>>(),
        })
    });
    (chosen.collect(), seen.collect())
}

/// What Gymnasium does with these actions. Episodes begin with the numbers of the environment's
/// stream.
fn gymnasium(
    python: &Path,
    id: &str,
    kwargs: &Value,
    parts: &[&str],
    actions: &[Value],
) -> Vec<Value> {
    let seeds = (0..ENVS as u64).map(|b| {
        let mut rng = stream(1, "env", 10 + b);
        (0..STEPS).map(|_| rng.next_u64() >> 33).collect::<Vec<_>>()
    });
    let task = json!({
        "id": id,
        "kwargs": kwargs,
        "parts": parts,
        "discrete": actions[0][0][0].is_i64(),
        "actions": actions,
        "seeds": seeds.collect::<Vec<_>>(),
    });
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/workers/compare.py");
    let mut command = Command::new(python);
    command
        .arg(program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let text = task.to_string();
    let writer = std::thread::spawn(move || input.write_all(text.as_bytes()));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn environments_do_what_gymnasium_does() {
    let Some(python) = python("environments_do_what_gymnasium_does") else {
        return;
    };
    let none = json!({});
    for (id, name, settings, kwargs, parts) in [
        (
            "gym:CartPole-v1",
            "CartPole-v1",
            none.clone(),
            none.clone(),
            &[][..],
        ),
        // Truncated by us and by Gymnasium.
        (
            "gym:CartPole-v1",
            "CartPole-v1",
            json!({"max_episode_steps": 13}),
            json!({"max_episode_steps": 13}),
            &[],
        ),
        (
            "gym:Acrobot-v1",
            "Acrobot-v1",
            json!({"max_episode_steps": 50}),
            json!({"max_episode_steps": 50}),
            &[],
        ),
        (
            "gym:Pendulum-v1",
            "Pendulum-v1",
            none.clone(),
            none.clone(),
            &[],
        ),
        (
            "gym:LunarLander-v3",
            "LunarLander-v3",
            none.clone(),
            none.clone(),
            &[],
        ),
        (
            "gym:LunarLander-v3",
            "LunarLander-v3",
            json!({"kwargs": {"continuous": true, "gravity": -8.0}}),
            json!({"continuous": true, "gravity": -8.0}),
            &[],
        ),
        (
            "gym:minigrid:MiniGrid-DoorKey-5x5-v0",
            "minigrid:MiniGrid-DoorKey-5x5-v0",
            json!({"leave_out": ["mission"], "kwargs": {"max_steps": 40}}),
            json!({"max_steps": 40}),
            &["direction", "image"],
        ),
    ] {
        let (actions, seen) = play(&python, id, &settings);
        let expected = gymnasium(&python, name, &kwargs, parts, &actions);
        for b in 0..ENVS {
            for what in ["flags", "rewards", "obs", "finals"] {
                assert!(
                    seen[b][what] == expected[b][what],
                    "{id} {settings}: {what} of {b}"
                );
            }
            // Pendulum's episodes last for 200 steps.
            assert_ne!(expected[b]["finals"], json!([]), "{id}: no episode ended");
        }
    }
}

#[test]
fn processes_and_other_environments_change_nothing() {
    let Some(python) = python("processes_and_other_environments_change_nothing") else {
        return;
    };
    let with = |each: usize| {
        let settings = json!({"envs_per_worker": each});
        play(&python, "gym:LunarLander-v3", &settings).1
    };
    let one = with(1);
    assert!(with(2) == one && with(3) == one && with(0) == one);
}

#[test]
fn the_checker_finds_nothing() {
    let Some(python) = python("the_checker_finds_nothing") else {
        return;
    };
    for (id, settings) in [
        ("gym:CartPole-v1", json!({})),
        ("gym:Taxi-v4", json!({})),
        (&*crate::own("walk"), json!({})),
        (
            &*crate::own("Masked"),
            json!({"kwargs": {"where": "observation"}}),
        ),
        (
            &*crate::own("Everything"),
            json!({"kwargs": {"action": "tuple"}, "max_episode_steps": 30}),
        ),
    ] {
        starling_python::add();
        let spec = registry::find(id).unwrap();
        let options = options(&python, &settings);
        let registry::Build::Batch(make) = spec.build else {
            panic!("they are batches");
        };
        // Without a limit on steps some of these never end.
        let limited = spec.limit(&options).unwrap().is_some();
        let report = check::check_batch(&mut |count| make(spec.id, &options, count), 5, 2000);
        let findings: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
        let found = findings
            .iter()
            .filter(|text| !limited || !text.contains("episodes"));
        assert_eq!(found.collect::<Vec<_>>(), [""; 0], "{id}");
    }
}
