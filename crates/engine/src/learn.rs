//! The learner's side: experience in, updates, weights out.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use starling_algos::{
    Algorithm, Batch, Experience, Learner, Progress, ReplayNeeds, Report, Spaces,
};
use starling_envs::{Rng, Rollout, stream};
use starling_nets::Device;
use starling_replay::{
    Layout, RateLimiter, Replay, ReplayError, SampleId, SequenceBatch, TransitionBatch,
};
use starling_tree::Tree;

use crate::EngineError;

/// Updates in one round at most.
const MOST_UPDATES: usize = 1000;

/// A learner with what feeds it.
pub(crate) struct Pupil {
    pub(crate) learner: Box<dyn Learner>,
    pub(crate) feed: Feed,
    /// Updates since the beginning.
    pub(crate) updates: u64,
    pub(crate) means: Means,
    /// Time spent on learning, and how much of it on bringing batches to the device.
    pub(crate) learning: Duration,
    pub(crate) assembling: Duration,
}

/// Where batches come from.
pub(crate) enum Feed {
    /// Straight from the actors.
    Rollouts,
    /// From a replay.
    Replay(Box<ReplayFeed>),
}

pub(crate) struct ReplayFeed {
    pub(crate) needs: ReplayNeeds,
    pub(crate) replay: Arc<Replay>,
    pub(crate) limiter: RateLimiter,
    pub(crate) rng: Rng,
    drawn: Drawn,
}

/// What the replay draws, in buffers that are used again.
enum Drawn {
    Transitions(Box<TransitionBatch>),
    Sequences(Box<SequenceBatch>),
}

impl Drawn {
    fn new(needs: &ReplayNeeds, layout: &Layout) -> Result<Self, ReplayError> {
        let size = needs.batch_size;
        Ok(match needs.replay.sequence {
            None => Drawn::Transitions(Box::new(TransitionBatch::new(layout, size))),
            Some(_) => {
                let batch = SequenceBatch::new(&needs.replay, layout, size)?;
                Drawn::Sequences(Box::new(batch))
            }
        })
    }

    fn draw(&mut self, replay: &Replay, beta: f64, rng: &mut Rng) -> Result<(), ReplayError> {
        match self {
            Drawn::Transitions(batch) => replay.sample_into(batch, beta, rng),
            Drawn::Sequences(batch) => replay.sample_sequences_into(batch, beta, rng),
        }
    }

    fn batch(&self) -> Batch<'_> {
        match self {
            Drawn::Transitions(batch) => Batch::Transitions(batch),
            Drawn::Sequences(batch) => Batch::Sequences(batch),
        }
    }

    fn ids(&self) -> &[SampleId] {
        match self {
            Drawn::Transitions(batch) => &batch.ids,
            Drawn::Sequences(batch) => &batch.ids,
        }
    }
}

impl Pupil {
    pub(crate) fn new(
        algorithm: &dyn Algorithm,
        spaces: &Spaces,
        seed: u64,
        device: Device,
        envs: usize,
    ) -> Result<Self, EngineError> {
        let feed = match algorithm.experience() {
            Experience::Rollouts { .. } => Feed::Rollouts,
            Experience::Transitions(needs) => {
                let layout = replay_layout(algorithm, spaces, envs);
                Feed::Replay(Box::new(ReplayFeed {
                    drawn: Drawn::new(&needs, &layout)?,
                    replay: Arc::new(Replay::new(needs.replay.clone(), layout)?),
                    limiter: RateLimiter::new(needs.rate.clone())?,
                    needs: *needs,
                    rng: stream(seed, "replay", 0),
                }))
            }
        };
        Ok(Self {
            learner: algorithm.learner(seed, device),
            feed,
            updates: 0,
            means: Means::default(),
            learning: Duration::ZERO,
            assembling: Duration::ZERO,
        })
    }

    /// Whether more experience may come in now.
    pub(crate) fn may_take(&self, steps: u64) -> bool {
        match &self.feed {
            Feed::Rollouts => true,
            Feed::Replay(feed) => feed.limiter.may_insert(steps),
        }
    }

    /// Whether it could learn now without more experience.
    pub(crate) fn may_learn(&self) -> bool {
        match &self.feed {
            Feed::Rollouts => false,
            Feed::Replay(feed) => feed.may_learn(),
        }
    }

    /// Takes in rollouts (each with the number of its first environment) and learns as much as
    /// it should. Returns the number of updates.
    pub(crate) fn absorb(
        &mut self,
        rollouts: &[(usize, &Rollout)],
        progress: Progress,
        version: u64,
    ) -> Result<u64, EngineError> {
        let before = self.updates;
        for (_, rollout) in rollouts {
            let lag = version.saturating_sub(rollout.version);
            self.means.add("policy_lag", lag as f64);
        }
        let began = Instant::now();
        match &self.feed {
            Feed::Rollouts => self.learn_from_rollouts(rollouts, progress)?,
            Feed::Replay(_) => self.learn_from_replay(rollouts, progress)?,
        }
        self.learning += began.elapsed();
        Ok(self.updates - before)
    }

    fn learn_from_rollouts(
        &mut self,
        rollouts: &[(usize, &Rollout)],
        progress: Progress,
    ) -> Result<(), EngineError> {
        let parts: Vec<&Rollout> = rollouts.iter().map(|(_, rollout)| *rollout).collect();
        if parts.is_empty() {
            return Ok(());
        }
        let report = self.learner.update(Batch::Rollouts(&parts), progress);
        let report = report.map_err(|source| EngineError::Learn {
            step: progress.env_steps,
            source,
        })?;
        self.count(&report);
        Ok(())
    }

    fn learn_from_replay(
        &mut self,
        rollouts: &[(usize, &Rollout)],
        progress: Progress,
    ) -> Result<(), EngineError> {
        let Feed::Replay(feed) = &mut self.feed else {
            return Ok(());
        };
        for (first_env, rollout) in rollouts {
            feed.insert(rollout, *first_env)?;
        }
        // Not for ever: between rounds the run looks whether it should end.
        for _ in 0..MOST_UPDATES {
            let Feed::Replay(feed) = &mut self.feed else {
                break;
            };
            if !feed.may_learn() {
                break;
            }
            let (replay, drawn) = (&feed.replay, &mut feed.drawn);
            let beta = feed.needs.beta.at(progress.fraction());
            drawn.draw(replay, beta, &mut feed.rng)?;
            feed.limiter.sampled(feed.needs.batch_steps());
            let report = self.learner.update(drawn.batch(), progress);
            let report = report.map_err(|source| EngineError::Learn {
                step: progress.env_steps,
                source,
            })?;
            if let Some(priorities) = &report.priorities {
                replay.update_priorities(drawn.ids(), priorities)?;
            }
            let unlimited = feed.needs.rate.samples_per_insert.is_none();
            self.count(&report);
            if unlimited {
                break;
            }
        }
        Ok(())
    }

    fn count(&mut self, report: &Report) {
        self.updates += 1;
        self.assembling += Duration::from_secs_f64(report.assemble_s);
        for (name, value) in &report.metrics {
            self.means.add(name, *value);
        }
    }
}

impl ReplayFeed {
    fn may_learn(&self) -> bool {
        !self.replay.is_empty() && self.limiter.may_sample(self.needs.batch_steps())
    }

    fn insert(&mut self, rollout: &Rollout, first_env: usize) -> Result<(), EngineError> {
        let priorities = rollout.policy.get("priority").and_then(Tree::leaf);
        let priorities = priorities.map(|column| column.as_slice::<f32>());
        let steps = self.replay.insert(rollout, first_env, priorities)?;
        self.limiter.inserted(steps as u64);
        Ok(())
    }

    /// Samples drawn and steps inserted so far.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.limiter.drawn_samples(), self.limiter.inserted_steps())
    }
}

/// The columns of a replay for an environment's spaces and what the policy records.
pub(crate) fn replay_layout(algorithm: &dyn Algorithm, spaces: &Spaces, envs: usize) -> Layout {
    let (nothing, records) = (Tree::empty(), algorithm.policy(Device::Cpu).records());
    let (observation, action) = (&spaces.observation, &spaces.action);
    let legal = spaces.legal_actions;
    let rollout = Rollout::new(1, 1, observation, action, legal, &records, &nothing);
    Layout::of_rollout(&rollout, envs)
}

/// Means of named numbers since the last row of metrics.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Means {
    sums: Vec<(String, f64, f64)>,
}

impl Means {
    pub(crate) fn add(&mut self, name: &str, value: f64) {
        match self.sums.iter_mut().find(|(known, _, _)| known == name) {
            Some((_, sum, count)) => {
                *sum += value;
                *count += 1.0;
            }
            None => self.sums.push((name.to_owned(), value, 1.0)),
        }
    }

    /// The means so far, without forgetting them.
    pub(crate) fn get(&self, name: &str) -> Option<f64> {
        let found = self.sums.iter().find(|(known, _, _)| known == name);
        found.map(|(_, sum, count)| sum / count)
    }

    /// The means, and starts anew.
    pub(crate) fn take(&mut self) -> Vec<(String, f64)> {
        let sums = std::mem::take(&mut self.sums).into_iter();
        sums.map(|(name, sum, count)| (name, sum / count)).collect()
    }
}
