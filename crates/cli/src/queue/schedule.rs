//! What to run next.

use super::{Asha, Event, Trial, What};

/// The state of all runs of a queue, and the scheduling rule.
#[derive(Debug)]
pub(super) struct Schedule {
    prune: Option<Asha>,
    runs: Vec<RunState>,
}

/// How far one run has come.
#[derive(Clone, Debug)]
pub(super) struct RunState {
    pub(super) trial: Trial,
    pub(super) stage: Stage,
    /// Its scores at the rungs that it has reached.
    pub(super) rungs: Vec<f64>,
    /// How often it failed.
    pub(super) failures: u32,
    /// The seconds that it has run.
    pub(super) seconds: f64,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Stage {
    /// Not started yet.
    Waiting,
    /// In a slot now.
    Running,
    /// Started earlier, and to be continued: the queue ended, or the run failed and is tried again.
    Interrupted,
    /// Stopped at the last of its rungs.
    Paused,
    /// At its end, with this score.
    Finished(f64),
    /// Given up.
    Failed(String),
}

/// What a free slot should do.
#[derive(Debug, PartialEq)]
pub(super) enum Next {
    /// Start or continue a run, up to this many steps or to its end.
    Run(Trial, Option<u64>),
    /// Wait until another run has ended.
    Wait,
    /// Nothing is left to do.
    Done,
}

impl Schedule {
    pub(super) fn new(trials: &[Trial], prune: Option<Asha>) -> Self {
        let waiting = trials.iter().map(|&trial| RunState {
            trial,
            stage: Stage::Waiting,
            rungs: Vec::new(),
            failures: 0,
            seconds: 0.0,
        });
        Self {
            prune,
            runs: waiting.collect(),
        }
    }

    pub(super) fn runs(&self) -> &[RunState] {
        &self.runs
    }

    /// Brings a run to the state that an event leaves it in, now or when the queue is continued.
    pub(super) fn apply(&mut self, event: &Event) {
        let Some(run) = self.runs.iter_mut().find(|run| run.trial == event.trial) else {
            return;
        };
        run.seconds += event.seconds;
        match &event.what {
            What::Chosen { .. } => {}
            What::Started => run.stage = Stage::Running,
            What::Paused { score } => {
                run.rungs.push(score.unwrap_or(f64::NAN));
                run.stage = Stage::Paused;
            }
            What::Finished { score } => run.stage = Stage::Finished(score.unwrap_or(f64::NAN)),
            What::Interrupted => run.stage = Stage::Interrupted,
            What::Failed { reason, last } => {
                run.failures += 1;
                run.stage = match last {
                    true => Stage::Failed(reason.clone()),
                    false => Stage::Interrupted,
                };
            }
        }
    }

    /// Runs that were in a slot when the queue was killed are in none now.
    pub(super) fn continued(&mut self) {
        for run in &mut self.runs {
            if run.stage == Stage::Running {
                run.stage = Stage::Interrupted;
            }
        }
    }

    pub(super) fn next(&self) -> Next {
        let interrupted = self.runs.iter().find(|run| run.stage == Stage::Interrupted);
        let waiting = || self.runs.iter().find(|run| run.stage == Stage::Waiting);
        match interrupted.or_else(|| self.promoted()).or_else(waiting) {
            Some(run) => Next::Run(run.trial, self.next_rung(run)),
            None if self.runs.iter().any(|run| run.stage == Stage::Running) => Next::Wait,
            None => Next::Done,
        }
    }

    fn next_rung(&self, run: &RunState) -> Option<u64> {
        let rungs = self.prune.as_ref().map(|prune| prune.rungs.as_slice());
        rungs.unwrap_or_default().get(run.rungs.len()).copied()
    }

    /// A paused run that may continue, from the highest rung that has one.
    fn promoted(&self) -> Option<&RunState> {
        let prune = self.prune.as_ref()?;
        (0..prune.rungs.len()).rev().find_map(|rung| {
            let scores = self.runs.iter().map(|run| run.rungs.get(rung).copied());
            let promoted = prune.promoted(&scores.collect::<Vec<_>>());
            let mut promoted = promoted.into_iter().map(|i| &self.runs[i]);
            promoted.find(|run| run.stage == Stage::Paused && run.rungs.len() == rung + 1)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trial(variant: usize) -> Trial {
        Trial { variant, seed: 1 }
    }

    fn event(variant: usize, what: What) -> Event {
        Event::new(trial(variant), what)
    }

    #[test]
    fn runs_follow_each_other_and_interrupted_ones_come_first() {
        let trials: Vec<Trial> = (0..3).map(trial).collect();
        let mut schedule = Schedule::new(&trials, None);
        assert_eq!(schedule.next(), Next::Run(trial(0), None));
        schedule.apply(&event(0, What::Started));
        assert_eq!(schedule.next(), Next::Run(trial(1), None));
        schedule.apply(&event(1, What::Started));
        schedule.apply(&event(0, What::Finished { score: Some(1.0) }));
        schedule.continued();
        assert_eq!(schedule.next(), Next::Run(trial(1), None));
        schedule.apply(&event(1, What::Started));
        let reason = "killed".to_owned();
        schedule.apply(&event(1, What::Failed { reason, last: true }));
        schedule.apply(&event(2, What::Started));
        assert_eq!(schedule.next(), Next::Wait);
        schedule.apply(&event(2, What::Finished { score: None }));
        assert_eq!(schedule.next(), Next::Done);
    }

    #[test]
    fn promoted_runs_come_before_new_ones() {
        let trials: Vec<Trial> = (0..7).map(trial).collect();
        let asha = Asha {
            eta: 3,
            rungs: vec![100, 300],
        };
        let mut schedule = Schedule::new(&trials, Some(asha));
        for (variant, score) in [(0, 1.0), (1, 3.0), (2, 2.0)] {
            assert_eq!(schedule.next(), Next::Run(trial(variant), Some(100)));
            schedule.apply(&event(variant, What::Started));
            let score = Some(score);
            schedule.apply(&event(variant, What::Paused { score }));
        }
        // The best of three.
        assert_eq!(schedule.next(), Next::Run(trial(1), Some(300)));
        schedule.apply(&event(1, What::Started));
        // The queue is killed: the run continues to the same rung.
        schedule.continued();
        assert_eq!(schedule.next(), Next::Run(trial(1), Some(300)));
        schedule.apply(&event(1, What::Started));
        schedule.apply(&event(1, What::Paused { score: Some(4.0) }));
        assert_eq!(schedule.next(), Next::Run(trial(3), Some(100)));
    }
}
