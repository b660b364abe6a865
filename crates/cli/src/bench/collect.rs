//! The overhead of an actor per step, besides its environments and its network.
//!
//! The same environments are stepped in three ways: bare, by an actor with random actions and no
//! network, and by an actor with PPO's network. The first difference is the collector's overhead,
//! the second the network's.

use std::io::Write;

use rand::RngExt as _;
use starling_algos::{Acting, Policy};
use starling_engine::{Actor, Place, Weights};
use starling_envs::{Rollout, stream};
use starling_nets::{Device, ShapeMismatch, Snapshot};
use starling_tree::{Spec, Tree};

use super::{BenchError, rate};
use crate::EngineError;
use crate::settings::{Request, resolve};

const ENVS: usize = 16;
const STEPS: usize = 64;

pub(super) fn run(out: &mut dyn Write) -> Result<(), BenchError> {
    writeln!(out, "{ENVS} environments, one thread; nanoseconds per step")?;
    writeln!(
        out,
        "{:<22} {:>8} {:>10} {:>9} {:>10}",
        "environment", "bare", "collector", "overhead", "with PPO"
    )?;
    for id in ["CartPole-v1", "MinAtar/Breakout-v1"] {
        let bare = bare(id)?;
        let random = actor(id, true)?;
        let network = actor(id, false)?;
        let overhead = random - bare;
        writeln!(
            out,
            "{id:<22} {bare:>8.0} {random:>10.0} {overhead:>9.0} {network:>10.0}"
        )?;
    }
    Ok(())
}

fn nanoseconds(rollouts_per_second: f64) -> f64 {
    1e9 / rollouts_per_second / (ENVS * STEPS) as f64
}

fn bare(id: &str) -> Result<f64, BenchError> {
    let spec = starling_envs::registry::find(id).map_err(|e| Box::new(EngineError::from(e)))?;
    let mut envs = spec.make_vec(&Default::default(), ENVS, 1, "env", 0)?;
    let nothing = Tree::empty();
    let (obs, action) = (envs.observation_space(), envs.action_space());
    let mut rollout = Rollout::new(STEPS, ENVS, obs, action, None, &nothing, &nothing);
    let mut rngs: Vec<_> = (0..ENVS as u64).map(|i| stream(1, "bench", i)).collect();
    envs.reset(&mut rollout)?;
    let speed = rate(|| {
        for t in 0..STEPS {
            let actions = rollout.actions.at_mut(&[t]);
            for (action, rng) in actions.into_mut_slice::<i64>().iter_mut().zip(&mut rngs) {
                *action = rng.random_range(0..2);
            }
            envs.step(t, &mut rollout)?;
        }
        envs.finished().for_each(drop);
        rollout.carry_over();
        Ok::<_, BenchError>(())
    })?;
    Ok(nanoseconds(speed))
}

fn actor(id: &str, random: bool) -> Result<f64, BenchError> {
    let mut request = Request::new(id);
    request.overrides = vec![
        format!("envs={ENVS}"),
        format!("algo.rollout_steps={STEPS}"),
    ];
    let config = resolve(&request).map_err(Box::new)?;
    let algorithm = config.algorithm().map_err(Box::new)?;
    let spec = config.env_spec().map_err(Box::new)?;
    let envs = spec.make_vec(&config.env, ENVS, 1, "env", 0)?;
    let place = Place {
        first_env: 0,
        envs: ENVS,
        total_envs: ENVS,
    };
    let (policy, values): (Box<dyn Policy>, _) = match random {
        true => (Box::new(AtRandom), Snapshot::from_values(Vec::new())),
        false => (
            algorithm.policy(Device::Cpu),
            algorithm.learner(1, Device::Cpu).weights(),
        ),
    };
    let profile = starling_engine::Profile::default();
    let mut actor = Actor::with_envs(envs, policy, STEPS, 1, place);
    let weights = Weights { version: 0, values };
    starling_nets::set_threads(1);
    let speed = rate(|| {
        actor
            .collect(&weights, 0, &profile)
            .map_err(|e| Box::new(EngineError::from(e)))?;
        drop(actor.episodes());
        Ok::<_, BenchError>(())
    })?;
    Ok(nanoseconds(speed))
}

/// Draws one of two actions without looking.
struct AtRandom;

impl Policy for AtRandom {
    fn records(&self) -> Tree<Spec> {
        Tree::empty()
    }

    fn state(&self) -> Tree<Spec> {
        Tree::empty()
    }

    fn load(&mut self, _: &Snapshot) -> Result<(), ShapeMismatch> {
        Ok(())
    }

    fn act(&mut self, t: usize, rollout: &mut Rollout, acting: Acting<'_>) {
        let actions = rollout.actions.at_mut(&[t]);
        for (action, rng) in actions.into_mut_slice::<i64>().iter_mut().zip(acting.rngs) {
            *action = rng.random_range(0..2);
        }
    }
}
