//! Whether a device computes the same results as the CPU.
//!
//! On a GPU, acting and updating are recorded after a few runs and then replayed. A recording must
//! read its inputs from the addresses that the next batch is written to. So a comparison makes more
//! updates than the recording needs, each with a different batch.

use starling_algos::{Algorithm, Batch, Experience, Learner, Progress, Report, Saved};
use starling_envs::{Rng, Rollout, stream};
use starling_nets::Device;
use starling_replay::{
    Layout, PRIORITY, Replay, ReplayError, SampleId, SequenceBatch, TransitionBatch,
};
use starling_tree::{DType, Tree};

use crate::measure::Profile;
use crate::{Actor, EngineError, Place, RunConfig, Weights};

/// How far a device is from the CPU: the most that was seen in one update or rollout.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Comparison {
    /// Updates that were made.
    pub updates: usize,
    /// Distance of the weights after an update, relative to how far it moved them.
    pub weights: f64,
    /// Difference of the loss, relative to its size.
    pub loss: f64,
    /// The same two on the CPU alone, between weights that differ by rounding: how much an update
    /// amplifies it.
    pub rounding: (f64, f64),
    /// Share of actions that were chosen differently.
    pub actions: f64,
    /// Largest difference of what policies record (values, log-probabilities), relative to its
    /// size.
    pub records: f64,
}

impl Comparison {
    /// Whether the differences are those of rounding: float32 sums in another order, and what
    /// an optimiser makes of them (Adam takes a step of full size where a gradient is nothing but
    /// rounding).
    pub fn agrees(&self) -> bool {
        let within = |difference: f64, most: f64| difference.is_finite() && difference <= most;
        self.updates > 0
            && within(self.weights, 0.01 + 5.0 * self.rounding.0)
            && within(self.loss, 0.001 + 5.0 * self.rounding.1)
            && within(self.actions, 0.005)
            && within(self.records, 0.01)
    }
}

/// Lets a run's policy collect and its learner learn on the CPU and on `device`, from the same
/// batches, until there were `updates` updates. Every update starts from the CPU's state.
///
/// # Errors
/// When the environments or a learner fail.
pub fn compare_devices(
    config: &RunConfig,
    device: Device,
    updates: usize,
) -> Result<Comparison, EngineError> {
    starling_nets::set_threads(config.torch_threads());
    // TensorFloat-32 is a choice, not a mistake.
    starling_nets::allow_tf32(false);
    let algorithm = config.algorithm()?;
    let seed = config.settings.seed;
    let mut pair = Pair {
        cpu: algorithm.learner(seed, Device::Cpu),
        device: algorithm.learner(seed, device),
        shaken: algorithm.learner(seed, Device::Cpu),
        found: Comparison::default(),
        feed: Feed::default(),
        rng: stream(seed, "selftest", 0),
    };
    let mut actors = [
        actor(config, &*algorithm, Device::Cpu)?,
        actor(config, &*algorithm, device)?,
    ];
    let (mut steps, mut chosen, mut different) = (0, 0, 0);
    let mut in_step = true;
    while pair.found.updates < updates {
        let weights = Weights {
            version: pair.found.updates as u64,
            values: pair.cpu.weights(),
        };
        for actor in &mut actors {
            actor.collect(&weights, steps, &Profile::default())?;
        }
        let [cpu, other] = &actors;
        let rollout = cpu.rollout();
        // One action that differs leads to other observations.
        if in_step {
            let rows = different_rows(rollout, other.rollout());
            chosen += rollout.steps() * rollout.envs();
            different += rows;
            in_step = rows == 0;
            if in_step {
                let apart = records_apart(rollout, other.rollout());
                worst(&mut pair.found.records, apart);
            }
        }
        let progress = Progress {
            env_steps: steps,
            total_steps: config.settings.steps,
        };
        steps += (rollout.steps() * rollout.envs()) as u64;
        pair.learn(&*algorithm, rollout, progress)?;
        for actor in &mut actors {
            actor.episodes();
        }
    }
    pair.found.actions = f64::from(different as u32) / f64::from(chosen.max(1) as u32);
    Ok(pair.found)
}

fn actor(
    config: &RunConfig,
    algorithm: &dyn Algorithm,
    device: Device,
) -> Result<Actor, EngineError> {
    let envs = config.settings.envs;
    let place = Place {
        first_env: 0,
        envs,
        total_envs: envs,
    };
    let (spec, seed) = (config.env_spec()?, config.settings.seed);
    Ok(Actor::new(
        spec,
        &config.env,
        algorithm,
        device,
        seed,
        place,
        0,
    )?)
}

/// The same learner on two devices, with what both are fed.
struct Pair {
    cpu: Box<dyn Learner>,
    device: Box<dyn Learner>,
    /// The CPU's, from weights that differ in their last digits.
    shaken: Box<dyn Learner>,
    found: Comparison,
    feed: Feed,
    rng: Rng,
}

/// Where batches come from, once something was collected.
#[derive(Default)]
enum Feed {
    #[default]
    Nothing,
    Transitions(Replay, Box<TransitionBatch>),
    Sequences(Replay, Box<SequenceBatch>),
}

impl Pair {
    /// Lets both learn from a rollout, or from what is drawn after it was stored.
    fn learn(
        &mut self,
        algorithm: &dyn Algorithm,
        rollout: &Rollout,
        progress: Progress,
    ) -> Result<(), EngineError> {
        let needs = match algorithm.experience() {
            Experience::Rollouts { .. } => {
                self.update(Batch::Rollouts(&[rollout]), progress)?;
                return Ok(());
            }
            Experience::Transitions(needs) => needs,
        };
        if matches!(self.feed, Feed::Nothing) {
            let layout = Layout::of_rollout(rollout, rollout.envs());
            let replay = Replay::new(needs.replay.clone(), layout.clone())?;
            let size = needs.batch_size;
            self.feed = match needs.replay.sequence {
                None => Feed::Transitions(replay, Box::new(TransitionBatch::new(&layout, size))),
                Some(_) => {
                    let batch = SequenceBatch::new(&needs.replay, &layout, size)?;
                    Feed::Sequences(replay, Box::new(batch))
                }
            };
        }
        let mut feed = std::mem::take(&mut self.feed);
        let beta = needs.beta.at(progress.fraction());
        let priorities = rollout.policy.get(PRIORITY).and_then(Tree::leaf);
        let priorities = priorities.map(|column| column.as_slice::<f32>());
        match &mut feed {
            Feed::Nothing => {}
            Feed::Transitions(replay, batch) => {
                replay.insert(rollout, 0, priorities)?;
                if replay.len() >= needs.batch_size {
                    let rng = &mut self.rng;
                    match &needs.draws {
                        Some(draws) => replay.sample_groups_into(batch, draws, beta, rng)?,
                        None => replay.sample_into(batch, beta, rng)?,
                    }
                    let report = self.update(Batch::Transitions(batch), progress)?;
                    prioritize(replay, &batch.ids, &report)?;
                }
            }
            Feed::Sequences(replay, batch) => {
                replay.insert(rollout, 0, priorities)?;
                if replay.len() >= needs.batch_size {
                    replay.sample_sequences_into(batch, beta, &mut self.rng)?;
                    let report = self.update(Batch::Sequences(batch), progress)?;
                    prioritize(replay, &batch.ids, &report)?;
                }
            }
        }
        self.feed = feed;
        Ok(())
    }

    fn update(&mut self, batch: Batch<'_>, progress: Progress) -> Result<Report, EngineError> {
        let step = progress.env_steps;
        let failed = |source| EngineError::Learn { step, source };
        let before = self.cpu.weights();
        let state = self.cpu.save();
        self.device.load(&state).map_err(failed)?;
        let shaken = shake(state, &mut self.rng);
        self.shaken.load(&shaken).map_err(failed)?;
        let cpu = self.cpu.update(batch, progress).map_err(failed)?;
        let device = self.device.update(batch, progress).map_err(failed)?;
        let shaken = self.shaken.update(batch, progress).map_err(failed)?;
        let after = self.cpu.weights();
        let moved = distance(after.values(), before.values()).max(1e-12);
        let apart = |learner: &dyn Learner, report: &Report| {
            let losses = (loss(&cpu) - loss(report)).abs() / loss(&cpu).abs().max(1e-2);
            (
                distance(learner.weights().values(), after.values()) / moved,
                losses,
            )
        };
        let (weights, losses) = apart(&*self.device, &device);
        let rounding = apart(&*self.shaken, &shaken);
        let found = &mut self.found;
        worst(&mut found.weights, weights);
        worst(&mut found.loss, losses);
        worst(&mut found.rounding.0, rounding.0);
        worst(&mut found.rounding.1, rounding.1);
        found.updates += 1;
        Ok(cpu)
    }
}

fn loss(report: &Report) -> f64 {
    let mut metrics = report.metrics.iter();
    let found = metrics.find(|(name, _)| *name == "loss");
    found.map_or(0.0, |(_, loss)| *loss)
}

/// Changes all weights by up to a millionth, as much as sums in another order would change what
/// is computed from them.
fn shake(mut state: Saved, rng: &mut Rng) -> Saved {
    use rand::RngExt as _;

    let weights = state
        .iter_mut()
        .filter(|(name, _)| name.starts_with("params."));
    for (_, array) in weights {
        for weight in array.as_mut_slice::<f32>() {
            *weight *= 1.0 + rng.random_range(-1e-6..=1e-6f32);
        }
    }
    state
}

fn prioritize(replay: &Replay, ids: &[SampleId], report: &Report) -> Result<(), ReplayError> {
    match &report.priorities {
        Some(priorities) => replay.update_priorities(ids, priorities).map(drop),
        None => Ok(()),
    }
}

/// Steps whose actions differ. Numbers may differ by rounding.
fn different_rows(a: &Rollout, b: &Rollout) -> usize {
    let (a, b) = (&a.actions, &b.actions);
    match a.dtype() {
        DType::F32 => {
            let pairs = a.as_slice::<f32>().iter().zip(b.as_slice::<f32>());
            pairs.filter(|(a, b)| (*a - *b).abs() > 1e-2).count()
        }
        dtype => {
            let size = dtype.size();
            let pairs = a.bytes().chunks(size).zip(b.bytes().chunks(size));
            pairs.filter(|(a, b)| a != b).count()
        }
    }
}

/// Largest difference of a recorded number.
fn records_apart(a: &Rollout, b: &Rollout) -> f64 {
    let mut apart = 0.0f64;
    for ((_, a), (_, b)) in a.policy.leaves().into_iter().zip(b.policy.leaves()) {
        if a.dtype() == DType::F32 {
            for (a, b) in a.as_slice::<f32>().iter().zip(b.as_slice::<f32>()) {
                let difference = f64::from((a - b).abs());
                worst(&mut apart, difference / f64::from(a.abs()).max(1.0));
            }
        }
    }
    apart
}

/// Keeps the larger difference; NaN is larger than any.
pub(super) fn worst(kept: &mut f64, difference: f64) {
    *kept = match difference.is_nan() {
        true => f64::INFINITY,
        false => kept.max(difference),
    };
}

fn distance(a: &[f32], b: &[f32]) -> f64 {
    let squares = a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2));
    squares.sum::<f64>().sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_judged_by_what_rounding_does() {
        let close = Comparison {
            updates: 10,
            weights: 0.03,
            loss: 1e-4,
            rounding: (0.02, 1e-4),
            actions: 0.0,
            records: 1e-5,
        };
        assert!(close.agrees());
        let nothing_rounded = Comparison {
            rounding: (0.0, 0.0),
            ..close
        };
        assert!(!nothing_rounded.agrees());
        assert!(!Comparison { loss: 0.5, ..close }.agrees());
        let nothing_done = Comparison {
            updates: 0,
            ..close
        };
        assert!(!nothing_done.agrees());
        // A device that computes NaN does not agree.
        let mut broken = close;
        worst(&mut broken.weights, f64::NAN);
        worst(&mut broken.weights, 0.0);
        assert!(!broken.agrees());
    }
}
