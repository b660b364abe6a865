//! Checks of batches of environments.

use std::panic::{AssertUnwindSafe, catch_unwind};

use starling_tree::Tree;

use super::{Report, check};
use crate::vector::message_of;
use crate::{
    BatchOfOne, BatchVecEnv, Env, EnvBatch, EnvError, ObsMut, Rng, Rollout, SyncVecEnv, VecEnv,
    stream,
};

/// Makes a new batch of that many environments of the kind that is checked.
pub type MakeBatch<'a> = &'a mut dyn FnMut(usize) -> Result<Box<dyn EnvBatch>, EnvError>;

/// Environments of the batches that are compared.
const WIDTH: usize = 3;

/// Steps over which they are compared.
const STEPS: usize = 211;

/// Takes `steps` random steps in a batch of one environment and looks for what [`check`] looks for.
/// Then compares a batch of three with three batches of one.
///
/// Checked are: that a batch has the size that was asked for; that each of its environments does
/// what it would do alone; that a reset leaves the rows of other environments alone; that the
/// snapshots of single environments continue in the same way in a new batch.
pub fn check_batch(make: MakeBatch<'_>, seed: u64, steps: u64) -> Report {
    let mut alone =
        || -> Result<Box<dyn Env>, EnvError> { Ok(Box::new(BatchOfOne::new(make(1)?)?)) };
    let mut report = check(&mut alone, seed, steps);
    if !report.passed() {
        return report;
    }
    let compared = catch_unwind(AssertUnwindSafe(|| compare(make, seed, &mut report)));
    match compared {
        Ok(Ok(())) => {}
        Ok(Err(error)) => report.find(
            format!("a batch of {WIDTH} failed where batches of 1 do not: {error}"),
            "batches of any size must be possible",
        ),
        Err(panic) => report.find(
            format!("a batch of {WIDTH} panicked: {}", message_of(&*panic)),
            "return an EnvError if the batch cannot continue",
        ),
    }
    report
}

fn compare(make: MakeBatch<'_>, seed: u64, report: &mut Report) -> Result<(), EnvError> {
    let mut batch = make(WIDTH)?;
    if batch.len() != WIDTH {
        report.find(
            format!("a batch of {WIDTH} environments has {}", batch.len()),
            "create as many environments as requested",
        );
        return Ok(());
    }
    rows(&mut *batch, seed, report)?;
    let mut together = vector(make, seed)?;
    let ones = (0..WIDTH).map(|_| Ok(Box::new(BatchOfOne::new(make(1)?)?) as Box<dyn Env>));
    let ones = ones.collect::<Result<_, EnvError>>()?;
    let mut apart = SyncVecEnv::from_envs(ones, seed, "check", 0)?;
    let mut first = Course::new(&together, seed);
    let mut second = Course::new(&apart, seed);
    together.reset(&mut first.rollout)?;
    apart.reset(&mut second.rollout)?;
    for t in 0..STEPS {
        first.step(&mut together)?;
        second.step(&mut apart)?;
        if first.moment(&mut together) != second.moment(&mut apart) {
            report.find(
                format!(
                    "an environment behaves differently in a batch than alone, from step {t} on"
                ),
                "draw only from the generator of that environment, and write only its row",
            );
            return Ok(());
        }
    }
    let saved = together.snapshot();
    if !saved.is_complete() {
        return Ok(());
    }
    let mut restored = vector(make, seed ^ 1)?;
    let mut third = Course {
        rollout: first.rollout.clone(),
        rng: first.rng.clone(),
    };
    restored.restore(&saved, &mut third.rollout)?;
    for t in 0..STEPS {
        first.step(&mut together)?;
        third.step(&mut restored)?;
        if first.moment(&mut together) != third.moment(&mut restored) {
            report.find(
                format!(
                    "snapshots restored into a new batch continue differently, from step {t} on"
                ),
                "save all state of the requested environment that influences later steps",
            );
            return Ok(());
        }
    }
    Ok(())
}

fn vector(make: MakeBatch<'_>, seed: u64) -> Result<BatchVecEnv, EnvError> {
    BatchVecEnv::new("checked", make(WIDTH)?, None, seed, "check", 0)
}

/// Resets of one environment at a time must leave the rows of the others alone.
fn rows(batch: &mut dyn EnvBatch, seed: u64, report: &mut Report) -> Result<(), EnvError> {
    let mut rngs: Vec<Rng> = (0..WIDTH as u64)
        .map(|i| stream(seed, "check", i))
        .collect();
    let mut obs = Tree::zeros(&batch.observation_space().spec(), &[WIDTH]);
    batch.reset(&[true; WIDTH], &mut rngs, ObsMut::at(&mut obs, &[]))?;
    for b in 0..WIDTH {
        for (_, array) in obs.leaves_mut() {
            array.bytes_mut().fill(0xaa);
        }
        let mut which = [false; WIDTH];
        which[b] = true;
        batch.reset(&which, &mut rngs, ObsMut::at(&mut obs, &[]))?;
        let mut others = (0..WIDTH).filter(|other| *other != b);
        let touched = others.any(|other| {
            let leaves = obs.leaves();
            let mut rows = leaves.iter().map(|(_, array)| array.at(&[other]).bytes);
            rows.any(|row| row.iter().any(|byte| *byte != 0xaa))
        });
        if touched {
            report.find(
                format!("a reset of environment {b} alone writes the rows of others"),
                "reset and write only the environments that `which` names",
            );
        }
    }
    Ok(())
}

/// A vector's rollout of one step, and who chooses its actions.
struct Course {
    rollout: Rollout,
    rng: Rng,
}

impl Course {
    fn new(vector: &dyn VecEnv, seed: u64) -> Self {
        let nothing = Tree::empty();
        Self {
            rollout: Rollout::new(
                1,
                vector.len(),
                vector.observation_space(),
                vector.action_space(),
                vector.legal_actions(),
                &nothing,
                &nothing,
            ),
            rng: stream(seed, "check-actions", 0),
        }
    }

    fn step(&mut self, vector: &mut dyn VecEnv) -> Result<(), EnvError> {
        let rollout = &mut self.rollout;
        for b in 0..rollout.envs() {
            let legal = rollout.legal.as_ref().map(|legal| legal.at(&[0, b]));
            let legal = legal.map(|legal| legal.as_slice::<u8>());
            let action = rollout.actions.at_mut(&[0, b]);
            vector.action_space().sample(&mut self.rng, legal, action);
        }
        vector.step(0, rollout)
    }

    /// Everything that the step wrote; the next one starts from there.
    fn moment(&mut self, vector: &mut dyn VecEnv) -> impl PartialEq + use<> {
        let rollout = &mut self.rollout;
        let leaves = rollout.obs.leaves().into_iter();
        let obs: Vec<Vec<u8>> = leaves
            .map(|(_, array)| array.at(&[1]).bytes.to_vec())
            .collect();
        let ended = rollout.final_at.clone();
        let last = rollout.final_obs.leaves().into_iter();
        let last: Vec<Vec<u8>> = last
            .flat_map(|(_, array)| (0..ended.len()).map(|i| array.at(&[i]).bytes.to_vec()))
            .collect();
        let flags = [
            rollout.rewards.bytes().to_vec(),
            rollout.terminated.bytes().to_vec(),
            rollout.truncated.bytes().to_vec(),
            rollout.final_legal.clone(),
            rollout
                .legal
                .as_ref()
                .map_or(Vec::new(), |legal| legal.at(&[1]).bytes.to_vec()),
        ];
        let mut episodes: Vec<_> = vector.finished().collect();
        episodes.sort_by_key(|episode| episode.env);
        rollout.carry_over();
        (obs, ended, last, flags, episodes)
    }
}
