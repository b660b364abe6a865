//! The learner's side: from experience to updates and weights.
//!
//! [`Learning`] is a learner with its source of data: rollouts as they arrive, or a replay
//! (`replay.rs`). `inserters.rs` inserts into the replay, and `pipeline.rs` overlaps its updates.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rand::Rng as _;
use starling_algos::{Algorithm, Batch, Experience, Learner, Progress, Report, Spaces, Started};
use starling_envs::{Rollout, stream};
use starling_nets::Device;

use crate::link::Pace;
use crate::{EngineError, Settings};

mod inserters;
mod means;
mod pipeline;
mod replay;
#[cfg(test)]
mod tests;

use inserters::{insert, is_little};
pub(crate) use means::{Means, Times};
use pipeline::failed;
use replay::{Drawn, ReplayFeed};
pub(crate) use replay::{Feed, replay_layout};

/// Updates asynchronously before the run looks up again. What is owed is not forgotten: the
/// limiter holds the actors back.
const UPDATES_AT_ONCE: usize = 1000;

/// After a signal to stop: how long the updates that are owed for a round may still take.
const LAST_UPDATES: Duration = Duration::from_secs(10);

/// A learner with what feeds it.
pub(crate) struct Learning {
    pub(crate) learner: Box<dyn Learner>,
    pub(crate) feed: Feed,
    /// The updates that the device is computing, oldest first, and their batches.
    under_way: VecDeque<(Drawn, Started)>,
    /// Updates since the beginning, without those under way.
    pub(crate) updates: u64,
    pub(crate) means: Means,
    pub(crate) times: Times,
}

impl Learning {
    pub(crate) fn new(
        algorithm: &dyn Algorithm,
        spaces: &Spaces,
        settings: &Settings,
        device: Device,
        rank: usize,
    ) -> Result<Self, EngineError> {
        // The first weights of a group are those of learner 0. What the others draw themselves, such as
        // the order of minibatches, is to differ.
        let seed = match rank {
            0 => settings.seed,
            rank => stream(settings.seed, "learner-of-group", rank as u64).next_u64(),
        };
        let learner = algorithm.learner(seed, device);
        let feed = match algorithm.experience() {
            Experience::Rollouts { .. } => Feed::Rollouts,
            Experience::Transitions(needs) => {
                let layout = replay_layout(algorithm, spaces, settings.envs);
                let (needs, ahead) = (*needs, learner.in_flight());
                let feed = ReplayFeed::new(needs, layout, settings, device, ahead, rank)?;
                Feed::Replay(Box::new(feed))
            }
        };
        Ok(Self {
            learner,
            feed,
            under_way: VecDeque::new(),
            updates: 0,
            means: Means::default(),
            times: Times::default(),
        })
    }

    /// Whether more experience may come in now.
    pub(crate) fn may_take(&self, steps: u64) -> bool {
        match &self.feed {
            Feed::Rollouts => true,
            // As long as nothing can be drawn, waiting for draws would be waiting forever.
            Feed::Replay(feed) => feed.replay.is_empty() || feed.limiter.may_insert(steps),
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
        pace: Pace,
        stop: &AtomicBool,
    ) -> Result<u64, EngineError> {
        let before = self.updates;
        self.count_lags(rollouts, version);
        let began = Instant::now();
        match &self.feed {
            Feed::Rollouts => self.learn_from_rollouts(rollouts, progress)?,
            Feed::Replay(_) => self.learn_from_replay(rollouts, progress, pace, stop)?,
        }
        self.times.all += began.elapsed();
        Ok(self.updates - before)
    }

    fn count_lags(&mut self, rollouts: &[(usize, &Rollout)], version: u64) {
        for (_, rollout) in rollouts {
            let lag = version.saturating_sub(rollout.version);
            self.means.add("policy_lag", lag as f64);
        }
    }

    /// In a group, the first half of [`absorb`](Learning::absorb): takes in rollouts, and returns how
    /// many updates it could make.
    pub(crate) fn take_in(
        &mut self,
        rollouts: &[(usize, &Rollout)],
        version: u64,
        pace: Pace,
    ) -> Result<u64, EngineError> {
        self.count_lags(rollouts, version);
        let began = Instant::now();
        let Feed::Replay(feed) = &mut self.feed else {
            return Ok(u64::from(!rollouts.is_empty()));
        };
        let steps = insert(&feed.replay, rollouts.iter())?;
        feed.limiter.inserted(steps);
        self.times.insert += began.elapsed();
        self.times.all += began.elapsed();
        Ok(feed.owed(match pace {
            Pace::Free => UPDATES_AT_ONCE as u64,
            Pace::Lag(_) => u64::MAX,
        }))
    }

    /// In a group, the second half: makes one update. Where an average with the group failed, it can be
    /// called again after [`abandon`](Learning::abandon).
    pub(crate) fn learn_once(
        &mut self,
        rollouts: &[(usize, &Rollout)],
        progress: Progress,
    ) -> Result<(), EngineError> {
        let began = Instant::now();
        match &self.feed {
            Feed::Rollouts => self.learn_from_rollouts(rollouts, progress)?,
            Feed::Replay(_) => {
                self.start_update(progress)?;
                self.settle(progress)?;
            }
        }
        self.times.all += began.elapsed();
        Ok(())
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
        self.count(&report.map_err(|source| failed(progress, source))?);
        Ok(())
    }

    fn learn_from_replay(
        &mut self,
        rollouts: &[(usize, &Rollout)],
        progress: Progress,
        pace: Pace,
        stop: &AtomicBool,
    ) -> Result<(), EngineError> {
        let Feed::Replay(feed) = &self.feed else {
            return Ok(());
        };
        let (threads, unlimited) = (feed.threads, feed.needs.rate.samples_per_insert.is_none());
        let replay = Arc::clone(&feed.replay);
        let steps = if threads == 0 || is_little(rollouts) {
            let began = Instant::now();
            let steps = insert(&replay, rollouts.iter())?;
            self.times.insert += began.elapsed();
            steps
        } else {
            self.learn_while_inserting(&replay, rollouts, threads, progress)?
        };
        if let Feed::Replay(feed) = &mut self.feed {
            feed.limiter.inserted(steps);
        }
        let mut stopping: Option<Instant> = None;
        for update in 0.. {
            if !self.may_learn() || pace == Pace::Free && update == UPDATES_AT_ONCE {
                break;
            }
            // In rounds nothing holds the actors back, so that all that is owed is done at once.
            if stop.load(Ordering::Relaxed)
                && stopping.get_or_insert_with(Instant::now).elapsed() > LAST_UPDATES
            {
                tracing::warn!("stopping in the middle of a round: some updates are still pending");
                break;
            }
            self.start_update(progress)?;
            if threads == 0 {
                self.settle(progress)?;
            }
            if unlimited {
                break;
            }
        }
        Ok(())
    }

    fn count(&mut self, report: &Report) {
        self.updates += 1;
        self.times.assemble += Duration::from_secs_f64(report.assemble_s);
        for (name, value) in &report.metrics {
            self.means.add(name, *value);
        }
    }
}
