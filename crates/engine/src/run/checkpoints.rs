//! When a run writes checkpoints.

use std::time::Instant;

use super::Training;
use super::parts::Collectors;
use crate::error::Unusable;
use crate::save::moment::Moment;
use crate::save::saver::{Order, Written};
use crate::{Actor, EngineError, Mode, Watcher};

/// Why a checkpoint is wanted before the end.
#[derive(Clone, Copy)]
pub(super) enum Wish {
    /// Its time has come; a little later will do.
    Due,
    /// These weights were just found to be the best. Later there will be others.
    Best,
}

impl Training {
    /// Takes the checkpoint that is wanted now or was put off. One at a time is written; the next
    /// one waits for it, or is put off.
    pub(super) fn checkpoint_if_due(
        &mut self,
        wanted: Option<Wish>,
        watcher: &mut dyn Watcher,
    ) -> Result<(), EngineError> {
        let written = self.saver.written()?;
        self.announce(written, watcher);
        let was_put_off = self.put_off;
        self.put_off |= wanted.is_some() || self.saver.gave_up();
        if !self.put_off {
            return Ok(());
        }
        match (self.saver.writing(), wanted) {
            (None, _) => {}
            (Some(_), Some(Wish::Best)) => self.wait_for_checkpoint(watcher)?,
            (Some(_), None) => return Ok(()),
            (Some(step), Some(Wish::Due)) => {
                if !was_put_off {
                    tracing::info!(
                        env_steps = self.tally.env_steps,
                        "checkpoint postponed: that of step {step} is still being written"
                    );
                }
                return Ok(());
            }
        }
        self.checkpoint()
    }

    /// Fixes this moment; it is written while the run continues.
    fn checkpoint(&mut self) -> Result<(), EngineError> {
        let began = Instant::now();
        self.learning.settle(self.config.progress(&self.tally))?;
        let status = self.status();
        let (actor, epoch) = match &self.collectors {
            Collectors::Serial(serial) => (serial.actor().map(Actor::crew), None),
            Collectors::Linked(linked) => (None, Some(linked.inbox.places().epoch())),
        };
        let moment = Moment::take(
            &self.learning,
            actor,
            &self.tally,
            (self.weights.version, epoch),
            self.recorder.state(),
            self.config.to_value(),
            self.saver.on_disk(),
        );
        let moment = moment.map_err(|Unusable(reason)| EngineError::Save {
            step: status.env_steps,
            reason,
        })?;
        self.saver.begin(Order {
            status,
            score: self.score(),
            moment,
            tables: self.recorder.tables()?,
        })?;
        self.put_off = false;
        self.saved = (Instant::now(), Some(self.tally.env_steps));
        let paused = began.elapsed();
        self.profile.add("learner", "checkpoint", paused);
        tracing::info!(
            env_steps = self.tally.env_steps,
            paused_ms = paused.as_secs_f64() * 1e3,
            "writing a checkpoint"
        );
        Ok(())
    }

    /// Saves what there is when the environments or other learners have failed, or when an environment
    /// is stuck: this learner is whole.
    /// A serial run keeps the checkpoint before, which continues exactly; but not if an
    /// environment is stuck, for then it would have to be waited for again.
    pub(super) fn save_after(&mut self, error: &EngineError, watcher: &mut dyn Watcher) {
        let serial = self.config.settings.mode == Mode::Serial;
        let has_one = self.saved.1.is_some() || self.clock.steps_before > 0;
        let worth_it = match error {
            EngineError::Stuck { .. } => true,
            EngineError::Env(_)
            | EngineError::Link(_)
            | EngineError::Thread(_)
            | EngineError::Group(_) => !(serial && has_one),
            _ => false,
        };
        if !worth_it || self.saved.1 == Some(self.tally.env_steps) || self.tally.env_steps == 0 {
            return;
        }
        if let Err(error) = self.save_last(watcher) {
            tracing::error!("{error}");
        }
    }

    /// Writes a checkpoint after which nothing follows.
    pub(super) fn save_last(&mut self, watcher: &mut dyn Watcher) -> Result<(), EngineError> {
        self.wait_for_checkpoint(watcher)?;
        self.checkpoint()?;
        self.wait_for_checkpoint(watcher)?;
        if self.saver.gave_up() {
            self.checkpoint()?;
            self.wait_for_checkpoint(watcher)?;
        }
        Ok(())
    }

    /// False for a serial run whose actor did not come back.
    pub(super) fn has_its_actor(&self) -> bool {
        match &self.collectors {
            Collectors::Serial(serial) => serial.actor().is_some(),
            Collectors::Linked(_) => true,
        }
    }

    fn wait_for_checkpoint(&mut self, watcher: &mut dyn Watcher) -> Result<(), EngineError> {
        self.set_busy(true);
        let written = self.saver.wait()?;
        self.set_busy(false);
        self.announce(written, watcher);
        Ok(())
    }

    fn announce(&self, written: Option<Written>, watcher: &mut dyn Watcher) {
        let Some(written) = written else {
            return;
        };
        self.profile.add("checkpoints", "write", written.took);
        tracing::info!(
            folder = %written.folder.display(),
            wrote_s = written.took.as_secs_f64(),
            "checkpoint"
        );
        watcher.checkpointed(&written.status, &written.folder);
    }

    /// How good the present weights are: their evaluation; without evaluations the mean of the
    /// last 100 games or episodes.
    pub(super) fn score(&self) -> Option<f64> {
        if self.is_follower() {
            return self.score;
        }
        let evaluates = self.config.settings.eval.every_steps > 0;
        match self.tally.last_eval {
            Some((step, mean)) if step == self.tally.env_steps => Some(mean),
            _ if evaluates || !self.tally.scores().is_full() => None,
            _ => Some(self.tally.scores().summary().average),
        }
    }
}
