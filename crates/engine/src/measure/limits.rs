//! The speed of the environments alone, and of the learner alone, on this machine.

use std::time::{Duration, Instant};

use starling_algos::{Batch, Progress};
use starling_envs::{EnvError, Rollout, Space, VecEnv, stream};

use crate::collect::rollout_steps;
use crate::{EngineError, RunConfig};

/// Steps per second that bound a run: it cannot be faster than either.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Of the environments with random actions, on as many threads as the run uses.
    pub env_steps_per_second: f64,
    /// Of the learner, fed the same experience again and again, not counting the time that
    /// bringing it to the device takes. Infinite for algorithms that
    /// learn from a replay, whose rate is chosen, not given by the steps.
    pub learner_steps_per_second: f64,
}

/// Measures both sides of a run for `seconds` each.
pub fn limits(config: &RunConfig, seconds: f64) -> Result<Limits, EngineError> {
    let time = Duration::from_secs_f64(seconds);
    let threads = config.collecting_threads();
    let envs = config.settings.envs;
    let mut vectors = Vec::new();
    for i in 0..threads {
        let (first, next) = (i * envs / threads, (i + 1) * envs / threads);
        vectors.push(vector(config, first, next - first)?);
    }
    let rates = std::thread::scope(|scope| {
        let running: Vec<_> = vectors
            .into_iter()
            .map(|envs| scope.spawn(move || step_for(envs, time)))
            .collect();
        let rates = running.into_iter().map(|thread| match thread.join() {
            Ok(rate) => rate,
            Err(_) => Err(EnvError::Failed("its thread panicked".into())),
        });
        rates.sum::<Result<f64, EnvError>>()
    })?;
    Ok(Limits {
        env_steps_per_second: rates,
        learner_steps_per_second: learn_for(config, time)?,
    })
}

fn vector(config: &RunConfig, first: usize, count: usize) -> Result<Box<dyn VecEnv>, EngineError> {
    let spec = config.env_spec()?;
    let seed = config.settings.seed;
    Ok(spec.make_vec(&config.env, count, seed, "limits", first as u64)?)
}

fn rollout_for(
    config: &RunConfig,
    envs: &dyn VecEnv,
    steps: usize,
) -> Result<Rollout, EngineError> {
    let algorithm = config.algorithm()?;
    let policy = algorithm.policy(starling_nets::Device::Cpu);
    Ok(Rollout::new(
        steps,
        envs.len(),
        envs.observation_space(),
        envs.action_space(),
        envs.legal_actions(),
        &policy.records(),
        &starling_algos::carried_state(&policy.state()),
    ))
}

fn step_for(mut envs: Box<dyn VecEnv>, time: Duration) -> Result<f64, EnvError> {
    const STEPS: usize = 8;
    let nothing = starling_tree::Tree::empty();
    let mut rollout = Rollout::new(
        STEPS,
        envs.len(),
        envs.observation_space(),
        envs.action_space(),
        envs.legal_actions(),
        &nothing,
        &nothing,
    );
    let space = envs.action_space().clone();
    let mut rng = stream(0, "limits", 0);
    envs.reset(&mut rollout)?;
    let (began, mut steps) = (Instant::now(), 0);
    while began.elapsed() < time {
        for t in 0..STEPS {
            random_actions(&space, t, &mut rollout, &mut rng);
            envs.step(t, &mut rollout)?;
        }
        rollout.carry_over();
        envs.finished().for_each(drop);
        steps += STEPS * rollout.envs();
    }
    Ok(steps as f64 / began.elapsed().as_secs_f64())
}

fn random_actions(space: &Space, t: usize, rollout: &mut Rollout, rng: &mut starling_envs::Rng) {
    for b in 0..rollout.envs() {
        let legal = rollout.legal.as_ref().map(|legal| legal.at(&[t, b]));
        let legal = legal.map(|legal| legal.as_slice::<u8>());
        space.sample(rng, legal, rollout.actions.at_mut(&[t, b]));
    }
}

fn learn_for(config: &RunConfig, time: Duration) -> Result<f64, EngineError> {
    let algorithm = config.algorithm()?;
    if !matches!(
        algorithm.experience(),
        starling_algos::Experience::Rollouts { .. }
    ) {
        return Ok(f64::INFINITY);
    }
    let settings = &config.settings;
    let device = settings.device.resolve()?;
    let steps = rollout_steps(&*algorithm);
    let mut envs = vector(config, 0, settings.envs)?;
    let mut rollout = rollout_for(config, &*envs, steps)?;
    let mut rng = stream(0, "limits", 1);
    envs.reset(&mut rollout)?;
    // A few rows of real experience; the rest may repeat zeros, for speed they are as good.
    let space = envs.action_space().clone();
    for t in 0..steps.min(4) {
        random_actions(&space, t, &mut rollout, &mut rng);
        envs.step(t, &mut rollout)?;
    }
    let mut learner = algorithm.learner(settings.seed, device);
    let progress = Progress {
        env_steps: 0,
        total_steps: settings.steps,
    };
    let mut update = || {
        learner
            .update(Batch::Rollouts(&[&rollout]), progress)
            .map_err(|source| EngineError::Learn { step: 0, source })
    };
    // The first ones are slower: memory is taken, graphs are recorded.
    for _ in 0..3 {
        update()?;
    }
    let (began, mut updates, mut assembling) = (Instant::now(), 0, 0.0);
    while began.elapsed() < time || updates == 0 {
        assembling += update()?.assemble_s;
        updates += 1;
    }
    // In a run the observations may be on the device already.
    let learning = began.elapsed().as_secs_f64() - assembling;
    Ok((updates * steps * settings.envs) as f64 / learning.max(1e-9))
}
