//! Evaluations in other processes: weights are offered and results recorded without blocking training.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use starling_algos::Saved;
use starling_record::RunFolder;

use super::Training;
use crate::link::evaluations::Evaluated;
use crate::link::{Control, Evaluations, Publication};
use crate::run::config::EvalBy;
use crate::save::keeper::{Best, Keeper};
use crate::{EngineError, Status, Watcher};

/// A single wait at the end of a run without looking whether to stop.
const SLICE: Duration = Duration::from_millis(100);

/// The learner's state of evaluations in other processes.
pub(super) struct RemoteEvaluations {
    evaluations: Arc<Evaluations>,
    /// The learner's state at the steps whose results are pending, so that the best can be kept.
    pins: Vec<(u64, Saved)>,
    keeper: Keeper,
}

impl RemoteEvaluations {
    pub(super) fn evaluations(&self) -> Arc<Evaluations> {
        Arc::clone(&self.evaluations)
    }
}

impl Training {
    /// Prepares evaluations in other processes, if the settings ask for them.
    pub(super) fn with_evaluations(mut self, folder: &RunFolder) -> Result<Self, EngineError> {
        let eval = &self.config.settings.eval;
        if eval.by != EvalBy::Learner && eval.every_steps > 0 {
            self.remote_evaluations = Some(RemoteEvaluations {
                evaluations: Arc::default(),
                pins: Vec::new(),
                keeper: Keeper::start(folder.best_path())?,
            });
        }
        Ok(self)
    }

    /// The queue of evaluations for other processes, if there is one.
    pub fn evaluations(&self) -> Option<Arc<Evaluations>> {
        self.remote_evaluations
            .as_ref()
            .map(RemoteEvaluations::evaluations)
    }

    /// Offers the current weights to evaluators.
    pub(super) fn offer_evaluation(&mut self) {
        let weights = self.evaluated_weights();
        let Some(remote) = &mut self.remote_evaluations else {
            return;
        };
        let env_steps = self.tally.env_steps;
        let replaced = remote.evaluations.offer(Publication {
            weights,
            control: Control { env_steps },
        });
        if let Some(step) = replaced {
            tracing::warn!(
                "no evaluator was available for the weights of step {step} before those of {env_steps}"
            );
        }
        let pin = (env_steps, self.learning.learner.save());
        remote.pins.push(pin);
        let evaluations = &remote.evaluations;
        remote
            .pins
            .retain(|(step, _)| evaluations.is_expected(*step));
    }

    /// Records the results that evaluators have reported.
    pub(super) fn note_evaluations(
        &mut self,
        watcher: &mut dyn Watcher,
    ) -> Result<(), EngineError> {
        let Some(remote) = &self.remote_evaluations else {
            return Ok(());
        };
        if let Some(error) = remote.keeper.failure() {
            return Err(error);
        }
        for evaluated in remote.evaluations.take() {
            self.note_one(evaluated, watcher)?;
        }
        Ok(())
    }

    fn note_one(
        &mut self,
        evaluated: Evaluated,
        watcher: &mut dyn Watcher,
    ) -> Result<(), EngineError> {
        let Evaluated {
            env_steps,
            who,
            evaluation,
        } = evaluated;
        self.warn_of_cut_off(&evaluation);
        let mean = evaluation.mean();
        self.tally.eval_steps += evaluation.lengths.iter().sum::<f64>();
        self.tally.eval_episodes += evaluation.lengths.len() as f64;
        self.tally.last_eval = Some((env_steps, mean));
        self.recorder.log_eval(env_steps, &evaluation.row())?;
        tracing::info!("{who} evaluated the weights of step {env_steps}: mean return {mean}");
        let status = Status {
            env_steps,
            ..self.status()
        };
        watcher.evaluated(&status, &evaluation);
        let Some(remote) = &mut self.remote_evaluations else {
            return Ok(());
        };
        let at = remote.pins.iter().position(|(step, _)| *step == env_steps);
        let pin = at.map(|at| remote.pins.swap_remove(at));
        let is_best = self.tally.best_eval.is_none_or(|best| mean > best);
        if let Some((step, learner)) = pin
            && is_best
        {
            self.tally.best_eval = Some(mean);
            remote.keeper.put(Best {
                step,
                score: mean,
                learner,
            });
        }
        Ok(())
    }

    /// Waits for pending evaluations at the end of the run.
    pub(super) fn await_evaluations(
        &mut self,
        stop: &AtomicBool,
        watcher: &mut dyn Watcher,
    ) -> Result<(), EngineError> {
        let Some(evaluations) = self.evaluations() else {
            return Ok(());
        };
        self.set_busy(true);
        let (began, patience) = (Instant::now(), self.config.patience());
        while evaluations.wait(SLICE) && !stop.load(Ordering::Relaxed) && began.elapsed() < patience
        {
            self.note_evaluations(watcher)?;
        }
        self.set_busy(false);
        self.note_evaluations(watcher)
    }
}
