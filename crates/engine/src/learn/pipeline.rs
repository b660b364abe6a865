//! Pipelined updates: while the device computes one update or several, the replay gets the priorities
//! of those before.

use std::time::Instant;

use starling_algos::{LearnError, Progress, Report};

use super::Learning;
use super::replay::{Drawn, Feed};
use crate::EngineError;

impl Learning {
    /// Starts the next update. If as many as the learner allows are under way, it first waits for the
    /// oldest, whose priorities the replay gets while the device computes.
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
        let mut finished = Vec::new();
        while self.under_way.len() >= self.learner.in_flight() {
            finished.extend(self.finish(progress)?);
        }
        match self.learner.start(drawn.batch(), progress) {
            Ok(started) => self.under_way.push_back((drawn, started)),
            Err(source) => {
                // In a group the update may be made again.
                if let Feed::Replay(feed) = &mut self.feed {
                    feed.spare.push(drawn);
                }
                return Err(failed(progress, source));
            }
        }
        for (drawn, report) in finished {
            self.prioritize(drawn, &report)?;
        }
        Ok(())
    }

    /// Forgets the updates in progress.
    pub(crate) fn abandon(&mut self) {
        if let Feed::Replay(feed) = &mut self.feed {
            feed.spare
                .extend(self.under_way.drain(..).map(|(drawn, _)| drawn));
        }
    }

    /// Finishes all updates in progress.
    pub(crate) fn settle(&mut self, progress: Progress) -> Result<(), EngineError> {
        while let Some((drawn, report)) = self.finish(progress)? {
            self.prioritize(drawn, &report)?;
        }
        Ok(())
    }

    /// Waits for the oldest update that is under way.
    fn finish(&mut self, progress: Progress) -> Result<Option<(Drawn, Report)>, EngineError> {
        let Some((drawn, started)) = self.under_way.pop_front() else {
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
