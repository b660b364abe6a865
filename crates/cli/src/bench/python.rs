//! Steps per second of Python environments, next to the vector environments of other libraries.
//!
//! All step eight environments with random actions and reset finished episodes. They alternate for three
//! rounds of two seconds each, so that other load affects all of them alike, and the median round
//! counts. `Picture` has observations of 4×84×84 bytes and no computation, so that only the transfer is
//! measured.

use std::io::Write;
use std::path::Path;
use std::process::Command;

use rand::RngExt as _;
use starling_envs::{EnvOptions, Rollout, registry, stream};
use starling_tree::Tree;

use super::BenchError;

const ENVS: usize = 8;
const STEPS: usize = 16;
const ROUNDS: usize = 3;
const SECONDS: f64 = 2.0;

/// Other libraries, whether they use processes, and their names in `peer_python.py`.
const PEERS: [(&str, bool, &str); 4] = [
    ("Gymnasium, one process", false, "gymnasium-sync"),
    ("Gymnasium, AsyncVectorEnv", true, "gymnasium-async"),
    ("Stable-Baselines3, SubprocVecEnv", true, "sb3"),
    ("PufferLib, Multiprocessing", true, "pufferlib"),
];

/// Measures with a Python that has gymnasium and, if they are to be compared with, the others.
pub(super) fn run(python: &Path, out: &mut dyn Write) -> Result<(), BenchError> {
    let folder = tempfile::tempdir()?;
    let program = folder.path().join("peer_python.py");
    std::fs::write(&program, include_str!("peer_python.py"))?;
    let picture = format!("python:{}:Picture", program.display());
    writeln!(
        out,
        "{:<34} {:>14} {:>14}",
        format!("steps/s of {ENVS} environments"),
        "CartPole-v1",
        "4x84x84 bytes"
    )?;
    let tasks = [("gym:CartPole-v1", "CartPole-v1"), (&*picture, "Picture")];
    // Ours with the usual number of workers, with two and with one; then the peers.
    let mut speeds = vec![[const { Vec::new() }; 2]; 3 + PEERS.len()];
    for _ in 0..ROUNDS {
        for (task, (id, name)) in tasks.iter().enumerate() {
            for (row, each) in [0, ENVS / 2, ENVS].into_iter().enumerate() {
                speeds[row][task].push(ours(python, id, each)?);
            }
            for (row, (.., peer)) in PEERS.iter().enumerate() {
                speeds[3 + row][task].extend(theirs(python, &program, peer, name));
            }
        }
    }
    let median = |speeds: &mut Vec<f64>| {
        speeds.sort_by(f64::total_cmp);
        speeds.get(speeds.len() / 2).copied()
    };
    let speeds: Vec<[Option<f64>; 2]> = speeds
        .iter_mut()
        .map(|[first, second]| [median(first), median(second)])
        .collect();
    let ours = ["Starling", "Starling, two workers", "Starling, one worker"].into_iter();
    let names = ours.chain(PEERS.map(|(name, ..)| name));
    for (name, row) in names.zip(&speeds) {
        let [first, second] = row.map(|speed| match speed {
            Some(speed) => format!("{speed:.0}"),
            None => "–".into(),
        });
        writeln!(out, "{name:<34} {first:>14} {second:>14}")?;
    }
    let best = |task: usize| {
        let peers = PEERS.iter().zip(&speeds[3..]);
        let several = peers.filter(|((_, processes, _), _)| *processes);
        several
            .filter_map(|(_, row)| row[task])
            .fold(f64::NAN, f64::max)
    };
    let [first, second] = [0, 1].map(|task| {
        let ours = speeds[0][task].unwrap_or(f64::NAN);
        format!("{:.1}x", ours / best(task))
    });
    let name = "Starling / best with processes";
    writeln!(out, "{name:<34} {first:>14} {second:>14}")?;
    Ok(())
}

fn ours(python: &Path, id: &str, envs_per_worker: usize) -> Result<f64, BenchError> {
    let spec = registry::find(id).map_err(|error| Box::new(crate::EngineError::from(error)))?;
    let options = serde_json::json!({"python": python, "envs_per_worker": envs_per_worker});
    let options = EnvOptions::from_table(&options).map_err(starling_envs::EnvError::from)?;
    let mut vector = spec.make_vec(&options, ENVS, 0, "env", 0)?;
    let nothing = Tree::empty();
    let mut rollout = Rollout::new(
        STEPS,
        ENVS,
        vector.observation_space(),
        vector.action_space(),
        vector.legal_actions(),
        &nothing,
        &nothing,
    );
    let mut rng = stream(0, "actions", 0);
    vector.reset(&mut rollout)?;
    let mut rates = Vec::new();
    for _ in 0..11 {
        let (begun, mut steps) = (std::time::Instant::now(), 0);
        while begun.elapsed().as_secs_f64() < SECONDS / 10.0 {
            for action in rollout.actions.as_mut_slice::<i64>() {
                *action = rng.random_range(0..2);
            }
            for t in 0..STEPS {
                vector.step(t, &mut rollout)?;
            }
            rollout.carry_over();
            vector.finished().for_each(drop);
            steps += STEPS * ENVS;
        }
        rates.push(steps as f64 / begun.elapsed().as_secs_f64());
    }
    let measured = &mut rates[1..];
    measured.sort_by(f64::total_cmp);
    Ok(measured[measured.len() / 2])
}

/// What a peer's program prints; `None` if it is not installed.
fn theirs(python: &Path, program: &Path, peer: &str, name: &str) -> Option<f64> {
    let mut command = Command::new(python);
    command
        .arg(program)
        .args([peer, name, &ENVS.to_string(), &SECONDS.to_string()]);
    let output = command
        .output()
        .ok()
        .filter(|output| output.status.success())?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().last()?.trim().parse().ok()
}
