//! Pipelined updates: while the device computes one update, the replay gets the priorities of the
//! previous one.

use std::time::Instant;

use starling_algos::{LearnError, Progress, Report};

use super::Learning;
use super::replay::{Drawn, Feed};
use crate::EngineError;

impl Learning {
    /// Starts the next update once the one before is finished, whose priorities the replay gets
    /// while the device computes.
    pub(super) fn start_update(&mut self, progress: Progress) -> Result<(), EngineError> {
        let Feed::Replay(feed) = &mut self.feed else {
            return Ok(());
        };
        let beta = feed.needs.beta.at(progress.fraction());
        let began = Instant::now();
        let Some(drawn) = feed.next(beta)? else {
            return Ok(());
        };
        self.times.draw += began.elapsed();
        let finished = self.finish(progress)?;
        let started = self.learner.start(drawn.batch(), progress);
        let started = started.map_err(|source| failed(progress, source))?;
        self.under_way = Some((drawn, started));
        match finished {
            Some((drawn, report)) => self.prioritize(drawn, &report),
            None => Ok(()),
        }
    }

    /// Finishes the update in progress.
    pub(crate) fn settle(&mut self, progress: Progress) -> Result<(), EngineError> {
        match self.finish(progress)? {
            Some((drawn, report)) => self.prioritize(drawn, &report),
            None => Ok(()),
        }
    }

    /// Waits for the update that is under way.
    fn finish(&mut self, progress: Progress) -> Result<Option<(Drawn, Report)>, EngineError> {
        let Some((drawn, started)) = self.under_way.take() else {
            return Ok(None);
        };
        let report = started.finish();
        let report = report.map_err(|source| failed(progress, source))?;
        self.count(&report);
        Ok(Some((drawn, report)))
    }

    /// Gives a batch's new priorities to the replay, and its buffers back.
    fn prioritize(&mut self, drawn: Drawn, report: &Report) -> Result<(), EngineError> {
        let Feed::Replay(feed) = &mut self.feed else {
            return Ok(());
        };
        let began = Instant::now();
        if let Some(priorities) = &report.priorities {
            feed.replay.update_priorities(drawn.ids(), priorities)?;
        }
        feed.spare.push(drawn);
        self.times.prioritize += began.elapsed();
        Ok(())
    }
}

/// An update failed.
pub(super) fn failed(progress: Progress, source: LearnError) -> EngineError {
    EngineError::Learn {
        step: progress.env_steps,
        source,
    }
}
