//! Steps per second of a vector of environments on one thread, for every environment in the table.
//!
//! Random actions are drawn and written into the columns as part of the measured time. The
//! speed is that of the median rollout of 64 steps of 64 environments in two seconds, so that
//! other work on the machine hardly disturbs it. Next to it is its ratio to the peer: the same
//! environment in Python, in Gymnasium 1.4 or the package minatar 1.0.15, measured once on another
//! machine.

use std::io::Write;
use std::time::{Duration, Instant};

use rand::RngExt as _;
use starling_envs::{EnvError, EnvOptions, EnvSpec, Rollout, Space, registry, stream};
use starling_tree::Tree;

use super::BenchError;

const ENVS: usize = 64;
const STEPS: usize = 64;
pub(super) const RUN: Duration = Duration::from_secs(2);

/// Steps per second of the peers in Python, by `peer_env_speed.py` on one core of an AMD EPYC.
const PEERS: &[(&str, f64)] = &[
    ("CartPole-v1", 169_902.0),
    ("MountainCar-v0", 100_510.0),
    ("MountainCarContinuous-v0", 458_243.0),
    ("Acrobot-v1", 31_380.0),
    ("Pendulum-v1", 95_680.0),
    ("MinAtar/Asterix-v1", 311_088.0),
    ("MinAtar/Breakout-v1", 399_090.0),
    ("MinAtar/Freeway-v1", 146_366.0),
    ("MinAtar/Seaquest-v1", 251_991.0),
    ("MinAtar/SpaceInvaders-v1", 42_085.0),
];

/// Measures the environments whose id contains `wanted`.
pub(super) fn run(wanted: &str, out: &mut dyn Write) -> Result<(), BenchError> {
    // The Atari games have a measurement of their own.
    let all = registry::all().into_iter();
    let there = starling_mujoco::place::is_there();
    let mut chosen = all.filter(|spec| {
        let usable = there || !starling_mujoco::needs_mujoco(spec.id);
        usable && spec.family != "atari" && spec.id.contains(wanted)
    });
    let first = chosen.next();
    let first = first.ok_or_else(|| BenchError::NoEnv(wanted.to_owned()))?;
    writeln!(out, "{:<26} {:>12} {:>9}", "environment", "steps/s", "peer")?;
    for spec in std::iter::once(first).chain(chosen) {
        let speed = measure(spec, ENVS, STEPS)?;
        let peer = PEERS.iter().find(|(id, _)| *id == spec.id);
        let peer = peer.map_or(String::new(), |(_, peer)| format!("{:.0}x", speed / peer));
        writeln!(out, "{:<26} {speed:>12.0} {peer:>9}", spec.id)?;
        out.flush()?;
    }
    writeln!(
        out,
        "peer: compared with Gymnasium 1.4 and minatar 1.0.15 in Python, measured on one core of \
         an AMD EPYC, not on this machine"
    )?;
    Ok(())
}

/// Steps per second of a vector of `envs` environments, in rollouts of `steps` steps.
pub(super) fn measure(spec: &EnvSpec, envs: usize, steps: usize) -> Result<f64, EnvError> {
    let mut vector = spec.make_vec(&EnvOptions::default(), envs, 0, "env", 0)?;
    let mut rollout = Rollout::new(
        steps,
        envs,
        vector.observation_space(),
        vector.action_space(),
        vector.legal_actions(),
        &Tree::empty(),
        &Tree::empty(),
    );
    let action_space = vector.action_space().clone();
    let mut rng = stream(0, "actions", 0);
    vector.reset(&mut rollout)?;
    let start = Instant::now();
    let mut times = Vec::new();
    while start.elapsed() < RUN {
        let before = Instant::now();
        for t in 0..steps {
            match action_space {
                Space::Discrete { n } => {
                    for action in rollout.actions.at_mut(&[t]).as_mut_slice::<i64>() {
                        *action = rng.random_range(0..n as i64);
                    }
                }
                _ => {
                    for b in 0..envs {
                        let action = rollout.actions.at_mut(&[t, b]);
                        action_space.sample(&mut rng, None, action);
                    }
                }
            }
            vector.step(t, &mut rollout)?;
        }
        rollout.carry_over();
        vector.finished().for_each(drop);
        times.push(before.elapsed());
    }
    times.sort_unstable();
    let median = times[times.len() / 2].as_secs_f64();
    Ok((steps * envs) as f64 / median)
}
