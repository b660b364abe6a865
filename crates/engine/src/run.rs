//! The loop of a run: collect, learn, log, evaluate, checkpoint.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use starling_algos::Algorithm;
use starling_envs::RestartBudget;
use starling_nets::Device;
use starling_record::{Recorder, RunFolder};
use starling_replay::MemoryPlan;

use crate::checkpoint::Moment;
use crate::error::Unusable;
use crate::learn::{Feed, Pupil};
use crate::parts::{Collectors, Parts};
use crate::pool::{Pace, Pool, Start};
use crate::profile::Profile;
use crate::report::{self, Clock};
use crate::saver::{Order, Saver, Written, open_checkpoints};
use crate::tally::Tally;
use crate::{
    EngineError, Outcome, Reason, RunConfig, Status, Watcher, Weights, checkpoint, evaluate,
};

/// A run that is ready to go, from its beginning or from a checkpoint.
pub struct Training {
    config: RunConfig,
    algorithm: Box<dyn Algorithm>,
    device: Device,
    recorder: Recorder,
    saver: Saver,
    /// A checkpoint came due while another one was being written.
    put_off: bool,
    pupil: Pupil,
    collectors: Collectors,
    restarts: Option<Arc<RestartBudget>>,
    /// What actors have.
    weights: Weights,
    /// Updates since the weights were published.
    unpublished: u64,
    tally: Tally,
    clock: Clock,
    profile: Arc<Profile>,
}

/// Why a checkpoint is wanted before the end.
#[derive(Clone, Copy)]
enum Wish {
    /// Its time has come; a little later will do.
    Due,
    /// These weights were just found to be the best. Later there will be others.
    Best,
}

impl Training {
    /// A run from its beginning.
    pub fn start(config: RunConfig, folder: &RunFolder) -> Result<Self, EngineError> {
        let mut recorder = Recorder::create(folder)?;
        recorder.hyperparameters(&report::flatten(&config.to_value()))?;
        let parts = Parts::make(&config, 0)?;
        let checkpoints = open_checkpoints(&config, folder)?;
        Ok(Self::assemble(
            config,
            parts,
            recorder,
            Saver::new(checkpoints, None),
            Tally::new(),
            0,
            Duration::ZERO,
        ))
    }

    /// A run from the latest usable checkpoint of its folder. Also returns what the user should
    /// know: damaged checkpoints that were passed over, and whether the run continues exactly.
    pub fn resume(
        config: RunConfig,
        folder: &RunFolder,
    ) -> Result<(Self, Vec<String>), EngineError> {
        let mut checkpoints = open_checkpoints(&config, folder)?;
        let (latest, damaged) = checkpoints.latest()?;
        let mut notes: Vec<String> = damaged.iter().map(ToString::to_string).collect();
        let mut parts = Parts::make(&config, latest.step())?;
        let actor = match &mut parts.collectors {
            Collectors::Serial(actor) => Some(actor.crew_mut()),
            _ => None,
        };
        let restored = checkpoint::read(&latest, &mut parts.pupil, actor);
        let restored = restored.map_err(|Unusable(reason)| EngineError::Checkpoint {
            path: latest.path().to_owned(),
            reason,
        })?;
        if !restored.exact {
            notes.push(
                "the environments start new episodes: only mode=serial, with environments that \
                 can be saved, continues bit for bit"
                    .into(),
            );
        }
        if let Some(restarts) = &parts.restarts {
            restarts.set_used(restored.tally.env_restarts);
        }
        let recorder = Recorder::resume(folder, restored.recorder)?;
        let elapsed = latest.times().and_then(|times| times["elapsed_s"].as_f64());
        // No checksum covers this file: a time that makes no sense is not worth the run.
        let elapsed = Duration::try_from_secs_f64(elapsed.unwrap_or(0.0)).unwrap_or_default();
        let (tally, version) = (restored.tally, restored.version);
        let training = Self::assemble(
            config,
            parts,
            recorder,
            Saver::new(checkpoints, restored.on_disk),
            tally,
            version,
            elapsed,
        );
        Ok((training, notes))
    }

    /// Where the time of this run goes, growing as it runs.
    pub fn profile(&self) -> Arc<Profile> {
        Arc::clone(&self.profile)
    }

    /// The memory that the replay will take; `None` without one.
    pub fn replay_memory(&self) -> Option<MemoryPlan> {
        match &self.pupil.feed {
            Feed::Rollouts => None,
            Feed::Replay(feed) => Some(feed.replay.memory()),
        }
    }

    /// Runs to the end, or until `stop` is set, or until `stop_after` steps of the whole run
    /// are done. Unless an error ended it, a checkpoint is written last.
    pub fn run(
        mut self,
        stop: &AtomicBool,
        stop_after: Option<u64>,
        watcher: &mut dyn Watcher,
    ) -> Result<Outcome, EngineError> {
        self.start_threads()?;
        let reason = loop {
            if let Some(reason) = self.reason_to_end(stop, stop_after) {
                break reason;
            }
            let before = self.tally.env_steps;
            self.round()?;
            let now = self.tally.env_steps;
            let due = |every: u64| every > 0 && now / every > before / every;
            watcher.round(&self.status());
            let evaluated = due(self.config.settings.eval.every_steps);
            if evaluated {
                self.evaluate(watcher)?;
            }
            if due(self.config.settings.log_every_steps) {
                self.log(watcher)?;
            }
            let over = self.reason_to_end(stop, stop_after).is_some();
            let best = evaluated && self.score() > self.tally.best_eval;
            if best {
                self.tally.best_eval = self.score();
            }
            if !over {
                let wanted = match best {
                    true => Some(Wish::Best),
                    false => due(self.config.settings.checkpoint.every_steps).then_some(Wish::Due),
                };
                self.checkpoint_if_due(wanted, watcher)?;
            }
        };
        let ended = matches!(reason, Reason::Finished | Reason::Solved);
        if ended && self.clock.last.1 != self.tally.env_steps {
            self.log(watcher)?;
        }
        self.wait_for_checkpoint(watcher)?;
        self.checkpoint()?;
        self.wait_for_checkpoint(watcher)?;
        let status = self.status();
        tracing::info!(?reason, env_steps = status.env_steps, "the run ended");
        Ok(Outcome { reason, status })
    }

    fn assemble(
        config: RunConfig,
        parts: Parts,
        recorder: Recorder,
        saver: Saver,
        tally: Tally,
        version: u64,
        elapsed: Duration,
    ) -> Self {
        let values = parts.pupil.learner.weights();
        Self {
            clock: Clock::start(elapsed, tally.env_steps, parts.pupil.updates),
            config,
            algorithm: parts.algorithm,
            device: parts.device,
            recorder,
            saver,
            put_off: false,
            pupil: parts.pupil,
            collectors: parts.collectors,
            restarts: parts.restarts,
            weights: Weights { version, values },
            unpublished: 0,
            tally,
            profile: Arc::default(),
        }
    }

    fn reason_to_end(&self, stop: &AtomicBool, stop_after: Option<u64>) -> Option<Reason> {
        let steps = self.tally.env_steps;
        let solved = self.config.settings.stop_at_return.is_some_and(|goal| {
            self.tally.returns.is_full() && self.tally.returns.summary().average >= goal
        });
        if steps >= self.config.settings.steps {
            Some(Reason::Finished)
        } else if solved {
            Some(Reason::Solved)
        } else if stop.load(Ordering::Relaxed) {
            Some(Reason::Interrupted)
        } else if stop_after.is_some_and(|limit| steps >= limit) {
            Some(Reason::Paused)
        } else {
            None
        }
    }

    /// Collects once and learns from it.
    fn round(&mut self) -> Result<(), EngineError> {
        let version = self.weights.version;
        let before = self.pupil.times;
        let updates = match &mut self.collectors {
            Collectors::Serial(actor) => {
                // Schedules stand where the rollout began: the last one is not at their end.
                let progress = self.config.progress(&self.tally);
                let steps = self.tally.env_steps;
                actor.collect(&self.weights, steps, &self.profile)?;
                let episodes = actor.episodes();
                let rollout = actor.rollout();
                self.tally
                    .count(rollout.steps() * rollout.envs(), &episodes);
                self.pupil.absorb(&[(0, rollout)], progress, version)?
            }
            Collectors::Threads(pool) => {
                let progress = self.config.progress(&self.tally);
                let in_rounds = self.config.pace() != Pace::Free;
                let began = Instant::now();
                let parcels = match (&self.pupil.feed, in_rounds) {
                    (Feed::Rollouts, _) | (_, true) => pool.receive_all()?,
                    (Feed::Replay(_), false) if self.pupil.may_take(1) => {
                        pool.receive_ready(!self.pupil.may_learn())?
                    }
                    (Feed::Replay(_), false) => Vec::new(),
                };
                self.clock.waiting += began.elapsed();
                self.profile.add("learner", "wait", began.elapsed());
                let mut rollouts = Vec::new();
                for parcel in &parcels {
                    let its = parcel.rollouts.iter();
                    let steps = its.clone().map(|(_, part)| part.steps() * part.envs());
                    self.tally.count(steps.sum(), &parcel.episodes);
                    rollouts.extend(its.map(|(first_env, rollout)| (*first_env, rollout)));
                }
                let updates = self.pupil.absorb(&rollouts, progress, version)?;
                pool.recycle(parcels);
                updates
            }
            Collectors::Waiting(_) | Collectors::Moving => 0,
        };
        self.tally.iterations += 1;
        if let Some(restarts) = &self.restarts {
            self.tally.env_restarts = restarts.used();
        }
        for (name, time) in self.pupil.times.since(&before) {
            if !time.is_zero() {
                self.profile.add("learner", name, time);
            }
        }
        let began = Instant::now();
        self.publish(updates);
        self.profile.add("learner", "publish", began.elapsed());
        Ok(())
    }

    /// Gives the weights after a round with so many updates to the actors.
    fn publish(&mut self, updates: u64) {
        let Collectors::Threads(pool) = &self.collectors else {
            if updates > 0 {
                self.weights.values = self.pupil.learner.weights();
                self.weights.version += 1;
            }
            return;
        };
        pool.progress(self.tally.env_steps);
        self.unpublished += updates;
        let in_rounds = self.config.pace() != Pace::Free;
        let due = match self.pupil.feed {
            Feed::Rollouts => 1,
            Feed::Replay(_) => self.config.settings.publish_every_updates,
        };
        if self.unpublished >= due || in_rounds {
            if self.unpublished > 0 {
                self.weights.values = self.pupil.learner.weights();
            }
            self.unpublished = 0;
            // In rounds actors count on a version of every round.
            self.weights.version += 1;
            pool.publish(self.weights.clone());
        }
    }

    fn evaluate(&mut self, watcher: &mut dyn Watcher) -> Result<(), EngineError> {
        self.set_busy(true);
        let started = Instant::now();
        // The learner's own, which actors may not have yet: a checkpoint of the best weights holds
        // those that were judged.
        let weights = Weights {
            version: self.weights.version,
            values: self.pupil.learner.weights(),
        };
        let evaluation = evaluate(
            &self.config,
            &*self.algorithm,
            &weights,
            self.device,
            self.config.settings.eval.episodes,
            self.config.settings.seed,
            self.tally.env_steps,
            &[],
        )?;
        self.set_busy(false);
        self.clock.evaluating += started.elapsed();
        self.tally.eval_steps += evaluation.lengths.iter().sum::<f64>();
        self.tally.eval_episodes += evaluation.lengths.len() as f64;
        self.tally.last_eval = Some((self.tally.env_steps, evaluation.mean()));
        self.recorder
            .log_eval(self.tally.env_steps, &evaluation.row())?;
        watcher.evaluated(&self.status(), &evaluation);
        Ok(())
    }

    fn log(&mut self, watcher: &mut dyn Watcher) -> Result<(), EngineError> {
        let status = self.status();
        let row = report::row(&status, &mut self.clock, &mut self.tally, &mut self.pupil);
        self.recorder.log(status.env_steps, &row)?;
        tracing::info!(
            env_steps = status.env_steps,
            mean_return = status.mean_return,
            loss = status.loss,
            steps_per_second = status.steps_per_second.round(),
            "progress"
        );
        watcher.row(&status, &row);
        Ok(())
    }

    /// Takes the checkpoint that is wanted now or was put off. One at a time is written; the
    /// next waits for it, unless the run may go on meanwhile.
    fn checkpoint_if_due(
        &mut self,
        wanted: Option<Wish>,
        watcher: &mut dyn Watcher,
    ) -> Result<(), EngineError> {
        let written = self.saver.written()?;
        self.announce(written, watcher);
        self.put_off |= wanted.is_some();
        if !self.put_off {
            return Ok(());
        }
        match (self.saver.writing(), wanted) {
            (None, _) => {}
            (Some(_), Some(Wish::Best)) => self.wait_for_checkpoint(watcher)?,
            (Some(_), None) => return Ok(()),
            (Some(step), Some(Wish::Due)) => {
                tracing::info!(
                    env_steps = self.tally.env_steps,
                    "a checkpoint is put off: that of step {step} is still being written"
                );
                return Ok(());
            }
        }
        self.checkpoint()
    }

    /// Fixes this moment; it is written while the run goes on.
    fn checkpoint(&mut self) -> Result<(), EngineError> {
        let began = Instant::now();
        self.pupil.settle(self.config.progress(&self.tally))?;
        let status = self.status();
        let actor = match &self.collectors {
            Collectors::Serial(actor) => Some(actor.crew()),
            _ => None,
        };
        let moment = Moment::take(
            &self.pupil,
            actor,
            &self.tally,
            self.weights.version,
            self.recorder.state(),
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
        let paused = began.elapsed();
        self.profile.add("learner", "checkpoint", paused);
        tracing::info!(
            env_steps = self.tally.env_steps,
            paused_ms = paused.as_secs_f64() * 1e3,
            "a checkpoint is begun"
        );
        Ok(())
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

    /// How good the present weights are: their evaluation; without evaluations the mean return
    /// of 100 episodes.
    fn score(&self) -> Option<f64> {
        let evaluates = self.config.settings.eval.every_steps > 0;
        match self.tally.last_eval {
            Some((step, mean)) if step == self.tally.env_steps => Some(mean),
            _ if evaluates || !self.tally.returns.is_full() => None,
            _ => Some(self.tally.returns.summary().average),
        }
    }

    fn set_busy(&self, busy: bool) {
        if let Collectors::Threads(pool) = &self.collectors {
            pool.set_busy(busy);
        }
    }

    /// How far the run is.
    pub fn status(&self) -> Status {
        let since = self.clock.started.elapsed();
        let new_steps = self.tally.env_steps - self.clock.steps_before;
        let returns = &self.tally.returns;
        Status {
            env_steps: self.tally.env_steps,
            total_steps: self.config.settings.steps,
            episodes: self.tally.episodes,
            updates: self.pupil.updates,
            mean_return: (!returns.is_empty()).then(|| returns.summary().average),
            loss: self.pupil.means.get("loss"),
            steps_per_second: new_steps as f64 / since.as_secs_f64().max(1e-9),
            elapsed: self.clock.before + since,
        }
    }

    fn start_threads(&mut self) -> Result<(), EngineError> {
        let idle = match std::mem::replace(&mut self.collectors, Collectors::Moving) {
            Collectors::Waiting(idle) => idle,
            others => {
                self.collectors = others;
                return Ok(());
            }
        };
        let settings = &self.config.settings;
        let start = Start {
            pace: self.config.pace(),
            patience: Duration::from_secs_f64(settings.stall_timeout_s),
            weights: self.weights.clone(),
            env_steps: self.tally.env_steps,
            profile: Arc::clone(&self.profile),
            pin: settings.pin_threads,
        };
        let pool = Pool::start(idle, start)?;
        self.collectors = Collectors::Threads(pool);
        Ok(())
    }
}
