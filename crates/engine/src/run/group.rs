//! A run that is one learner of a group.
//!
//! Learner 0 runs like a single learner ([`Training::run`]), and tells the others when a checkpoint or
//! the end follows a round. They only collect, learn and save ([`Training::run_in_group`]).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use starling_algos::{ConfigError, LearnError, Progress};
use starling_envs::{Episode, Rollout};
use starling_nets::Group;

use super::Training;
use super::checkpoints::Wish;
use super::tally::Tally;
use crate::group::{Assembly, GroupError, Membership, Offer, Pauses, Verdict};
use crate::learn::Learning;
use crate::link::{Pace, Weights};
use crate::{EngineError, Reason};

/// What was collected in a round.
pub(super) struct Collected<'a> {
    pub(super) rollouts: &'a [(usize, &'a Rollout)],
    pub(super) episodes: &'a [Episode],
    pub(super) progress: Progress,
    /// Of the weights.
    pub(super) version: u64,
    pub(super) pace: Pace,
    pub(super) pauses: Pauses,
}

/// What was learned in a round.
pub(super) struct Learned {
    pub(super) updates: u64,
    /// Whether something may follow.
    pub(super) pause: bool,
}

/// Counts and learns what was collected, alone or with the others of a group.
pub(super) fn learn(
    learning: &mut Learning,
    group: Option<&mut Membership>,
    tally: &mut Tally,
    collected: &Collected<'_>,
    stop: &AtomicBool,
) -> Result<Learned, EngineError> {
    let Collected {
        rollouts,
        episodes,
        progress,
        version,
        pace,
        pauses,
    } = *collected;
    let steps = rollouts.iter().map(|(_, part)| part.steps() * part.envs());
    let steps: usize = steps.sum();
    let Some(group) = group else {
        tally.count(steps, episodes);
        let updates = learning.absorb(rollouts, progress, version, pace, stop)?;
        return Ok(Learned {
            updates,
            pause: true,
        });
    };
    let offer = Offer {
        steps: steps as u64,
        updates: learning.take_in(rollouts, version, pace)?,
        episodes: episodes.to_vec(),
        pauses,
        ..Offer::default()
    };
    let before = learning.updates;
    let agreement = group.agree(offer, learning, stop)?;
    match &agreement.all {
        Some((all, _)) => tally.count(0, all),
        None => tally.count(0, episodes),
    }
    tally.env_steps = agreement.env_steps;
    let target = learning.updates.saturating_add(agreement.updates);
    while learning.updates < target {
        match learning.learn_once(rollouts, progress) {
            Ok(()) => group.updated(),
            Err(EngineError::Learn {
                source: LearnError::Group(failure),
                ..
            }) => group.recover(&failure, learning, stop)?,
            Err(error) => return Err(error),
        }
    }
    Ok(Learned {
        updates: learning.updates.saturating_sub(before),
        pause: agreement.pause,
    })
}

impl Training {
    /// The same run as a learner of a group.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn with_group(mut self, assembly: Box<dyn Assembly>) -> Result<Self, EngineError> {
        let group = Group::new(self.config.settings.bf16_gradients);
        let group = group
            .map_err(|error| EngineError::Thread(format!("collective did not start: {error}")))?;
        let reducer = Arc::new(Mutex::new(group.clone()));
        self.learning.learner.join(reducer);
        let library = (self.config.settings.collective, self.kit.device);
        self.group = Some(Membership::new(assembly, group, library));
        Ok(self)
    }

    /// Runs as one of the other learners of a group until learner 0 says that the run has ended, or
    /// until `stop` is set. Returns whether the run has ended.
    ///
    /// # Errors
    /// When learner 0 is gone, or when this learner cannot continue, which ends the run.
    pub fn run_in_group(mut self, stop: &AtomicBool) -> Result<bool, EngineError> {
        let ran = self.follow(stop);
        match ran {
            Err(EngineError::Group(GroupError::Closed)) => Ok(!stop.load(Ordering::Relaxed)),
            Err(error) => {
                let gone = matches!(error, EngineError::Group(_));
                if let Some(group) = self.group.as_mut().filter(|_| !gone) {
                    group.fail(error.to_string());
                }
                Err(error)
            }
            Ok(()) => Ok(true),
        }
    }

    fn follow(&mut self, stop: &AtomicBool) -> Result<(), EngineError> {
        self.join_group(stop)?;
        self.start_collecting()?;
        let every = self.config.settings.log_every_steps;
        loop {
            let before = self.tally.env_steps;
            let pause = self.round(stop, Pauses::default())?;
            if stop.load(Ordering::Relaxed) {
                return Err(GroupError::Closed.into());
            }
            if self.tally.env_steps / every > before / every {
                self.log(&mut ())?;
            }
            let Some(group) = self.group.as_mut().filter(|_| pause) else {
                continue;
            };
            let verdict = group.verdict(&mut self.learning, stop)?;
            if let Some(score) = verdict.checkpoint {
                self.score = score;
                match verdict.end {
                    true => self.save_last(&mut ())?,
                    false => self.checkpoint_if_due(Some(Wish::Best), &mut ())?,
                }
            }
            if verdict.end {
                return Ok(());
            }
        }
    }

    /// Waits for the others, and starts from their state.
    pub(super) fn join_group(&mut self, stop: &AtomicBool) -> Result<(), EngineError> {
        let learners = self.config.settings.learners;
        let Some(group) = &mut self.group else {
            return match learners {
                1 => Ok(()),
                _ => Err(EngineError::Config(ConfigError::Value {
                    key: "learners".into(),
                    value: learners.to_string(),
                    allowed: "1 in a program that starts no other learners".into(),
                })),
            };
        };
        let env_steps = group.join(&mut self.learning, stop)?;
        if group.rank() > 0 {
            self.tally.env_steps = env_steps;
            self.clock.last.1 = env_steps;
            self.clock.steps_before = env_steps;
        }
        self.weights = Arc::new(Weights {
            version: self.weights.version,
            values: self.learning.learner.weights(),
        });
        Ok(())
    }

    /// When a verdict follows a round.
    pub(super) fn pauses(&self, stop: &AtomicBool, stop_after: Option<u64>) -> Pauses {
        let (settings, steps) = (&self.config.settings, self.tally.env_steps);
        let next = |every: u64| match every {
            0 => u64::MAX,
            every => (steps / every + 1).saturating_mul(every),
        };
        let goals = [settings.steps, stop_after.unwrap_or(u64::MAX)];
        let goals = goals.into_iter().filter(|goal| *goal > steps);
        let dates = [
            next(settings.eval.every_steps),
            next(settings.checkpoint.every_steps),
        ];
        Pauses {
            now: stop.load(Ordering::Relaxed)
                || self.is_late()
                || self.asked.load(Ordering::Relaxed)
                || settings.stop_at_return.is_some(),
            at: goals.chain(dates).min().unwrap_or(u64::MAX),
            check_at: next(settings.log_every_steps),
        }
    }

    /// Sends the verdict to the others. In a group a checkpoint is never postponed.
    pub(super) fn close_round(
        &mut self,
        pause: bool,
        ended: Option<Reason>,
        wanted: Option<Wish>,
    ) -> Result<Option<Wish>, EngineError> {
        let score = self.score();
        let Some(group) = &mut self.group else {
            return Ok(wanted);
        };
        let save = ended.is_some() || wanted.is_some();
        if pause {
            group.close(Verdict {
                checkpoint: save.then_some(score),
                end: ended.is_some(),
            })?;
        }
        Ok(wanted.map(|_| Wish::Best))
    }

    /// Whether this is another learner than that of the run.
    pub(super) fn is_follower(&self) -> bool {
        self.group.as_ref().is_some_and(|group| group.rank() > 0)
    }
}
