//! The loop of a run: collect, learn, log, evaluate, checkpoint.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::bounded;
use starling_algos::Algorithm;
use starling_envs::{Pulse, RestartBudget};
use starling_nets::Device;
use starling_record::{Checkpoints, Recorder, RunFolder};
use starling_replay::MemoryPlan;

use crate::checkpoint::{Lost, Moment, Restored};
use crate::error::Unusable;
use crate::evaluate::MOST_ENVS;
use crate::learn::{Feed, Pupil};
use crate::parts::{Collectors, Parts};
use crate::patience::Watchdog;
use crate::pool::{Pace, Pool, Start};
use crate::profile::Profile;
use crate::report::{self, Clock};
use crate::saver::{Order, Saver, Written, open_checkpoints};
use crate::serial::{SerialActor, attend};
use crate::tally::Tally;
use crate::{
    Actor, EngineError, Episodes, Evaluation, Mode, Outcome, Reason, RunConfig, Status, Watcher,
    Weights, checkpoint, evaluate,
};

/// A run that is ready to go, from its beginning or from a checkpoint.
pub struct Training {
    config: RunConfig,
    algorithm: Arc<dyn Algorithm>,
    device: Device,
    recorder: Recorder,
    saver: Saver,
    /// A checkpoint came due while another one was being written.
    put_off: bool,
    /// When the last checkpoint was taken, and at which step.
    saved: (Instant, Option<u64>),
    pupil: Pupil,
    collectors: Collectors,
    restarts: Option<Arc<RestartBudget>>,
    /// What actors have.
    weights: Arc<Weights>,
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

/// Which checkpoints a run may continue from, one search after the other.
struct Search {
    /// Files that have to be undamaged.
    needed: fn(&str) -> bool,
    /// Give up where as many newer ones are damaged as are usually kept: rather lose a part of the
    /// replay than go back that far.
    near: bool,
}

const SEARCHES: [Search; 3] = [
    Search {
        needed: |_| true,
        near: true,
    },
    Search {
        needed: |name| !checkpoint::is_replay(name),
        near: false,
    },
    Search {
        needed: |_| true,
        near: false,
    },
];

impl Training {
    /// A run from its beginning.
    pub fn start(config: RunConfig, folder: &RunFolder) -> Result<Self, EngineError> {
        if let Some(warning) = folder.warning() {
            tracing::warn!("{warning}");
        }
        let mut recorder = Recorder::create(folder)?;
        recorder.hyperparameters(&report::flatten(&config.to_value()))?;
        let parts = Parts::make(&config, 0)?;
        let checkpoints = open_checkpoints(&config, folder)?;
        let tally = Tally::new(parts.counts_games);
        Ok(Self::assemble(
            config,
            parts,
            recorder,
            Saver::new(checkpoints, None),
            tally,
            0,
            Duration::ZERO,
        ))
    }

    /// A run from the latest usable checkpoint of its folder. Also returns what the user should
    /// know: damaged checkpoints that were passed over, what of the replay is lost, settings that
    /// were changed since, and whether the run continues exactly.
    pub fn resume(
        config: RunConfig,
        folder: &RunFolder,
    ) -> Result<(Self, Vec<String>), EngineError> {
        let mut checkpoints = open_checkpoints(&config, folder)?;
        let mut notes: Vec<String> = folder.warning().map(str::to_owned).into_iter().collect();
        let mut failure: Option<EngineError> = None;
        let mut unusable = BTreeSet::new();
        for search in SEARCHES {
            let mut before = u64::MAX;
            loop {
                let found = checkpoints.latest_before(before, search.needed);
                let (mut checkpoint, damaged) = match found {
                    Ok(found) => found,
                    Err(error) => {
                        failure.get_or_insert(error.into());
                        break;
                    }
                };
                for one in damaged.iter().map(ToString::to_string) {
                    if !notes.contains(&one) {
                        notes.push(one);
                    }
                }
                if search.near && damaged.len() >= config.settings.checkpoint.keep_last {
                    break;
                }
                before = checkpoint.step();
                if unusable.contains(&before) {
                    continue;
                }
                let mut parts = Parts::make(&config, before)?;
                let actor = match &mut parts.collectors {
                    Collectors::Resting(actor) => Some(actor.crew_mut()),
                    _ => None,
                };
                match checkpoint::read(&mut checkpoint, &mut parts.pupil, actor) {
                    Ok(restored) => {
                        notes.extend(what_to_know(&config, &restored));
                        let times = checkpoint.times();
                        let training =
                            Self::continued(config, folder, parts, checkpoints, restored, times)?;
                        return Ok((training, notes));
                    }
                    Err(Unusable(reason)) => {
                        let path = checkpoint.path().to_owned();
                        let error = EngineError::Checkpoint { path, reason };
                        notes.push(error.to_string());
                        // The newest one's reason is the one to report.
                        if unusable.is_empty() {
                            failure = Some(error);
                        }
                        unusable.insert(before);
                        checkpoints.pass_over(before);
                    }
                }
            }
        }
        let (path, damaged) = (folder.checkpoints_path(), Vec::new());
        let none = starling_record::Error::NoCheckpoint { path, damaged };
        Err(failure.unwrap_or(EngineError::Record(none)))
    }

    /// A run from what a checkpoint brought back.
    fn continued(
        config: RunConfig,
        folder: &RunFolder,
        parts: Parts,
        checkpoints: Checkpoints,
        restored: Restored,
        times: Option<serde_json::Value>,
    ) -> Result<Self, EngineError> {
        let recorder = Recorder::resume(folder, restored.recorder)?;
        if let Some(restarts) = &parts.restarts {
            restarts.set_used(restored.tally.env_restarts);
        }
        let elapsed = times.and_then(|times| times["elapsed_s"].as_f64());
        // No checksum covers this file: a time that makes no sense is not worth the run.
        let elapsed = Duration::try_from_secs_f64(elapsed.unwrap_or(0.0)).unwrap_or_default();
        let (mut tally, version) = (restored.tally, restored.version);
        tally.counts_games = parts.counts_games;
        let saver = Saver::new(checkpoints, restored.on_disk);
        Ok(Self::assemble(
            config, parts, recorder, saver, tally, version, elapsed,
        ))
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
    /// are done. A checkpoint is written last, also where the environments failed or are stuck
    /// (but for serial runs whose last checkpoint continues exactly).
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
            if let Err(error) = self.round(stop) {
                self.save_after(&error, watcher);
                return Err(error);
            }
            let now = self.tally.env_steps;
            let due = |every: u64| every > 0 && now / every > before / every;
            watcher.round(&self.status());
            let evaluated = match due(self.config.settings.eval.every_steps) {
                true => self.evaluate(stop, watcher),
                false => Ok(false),
            };
            let evaluated = match evaluated {
                Ok(evaluated) => evaluated,
                Err(error) => {
                    self.save_after(&error, watcher);
                    return Err(error);
                }
            };
            if due(self.config.settings.log_every_steps) {
                self.log(watcher)?;
            }
            let over = self.reason_to_end(stop, stop_after).is_some();
            let best = evaluated && self.score() > self.tally.best_eval;
            if best {
                self.tally.best_eval = self.score();
            }
            if !over {
                let settings = &self.config.settings.checkpoint;
                let minutes = self.saved.0.elapsed().as_secs_f64() / 60.0;
                let late = settings.every_minutes > 0.0 && minutes >= settings.every_minutes;
                let wanted = match best {
                    true => Some(Wish::Best),
                    false => (late || due(settings.every_steps)).then_some(Wish::Due),
                };
                self.checkpoint_if_due(wanted, watcher)?;
            }
        };
        let ended = matches!(reason, Reason::Finished | Reason::Solved);
        if ended && self.clock.last.1 != self.tally.env_steps {
            self.log(watcher)?;
        }
        // If the actor did not come back, a checkpoint of this step that has it is better.
        if self.saved.1 != Some(self.tally.env_steps) || self.has_its_actor() {
            self.save_last(watcher)?;
        }
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
            saved: (Instant::now(), None),
            pupil: parts.pupil,
            collectors: parts.collectors,
            restarts: parts.restarts,
            weights: Arc::new(Weights { version, values }),
            unpublished: 0,
            tally,
            profile: Arc::default(),
        }
    }

    fn reason_to_end(&self, stop: &AtomicBool, stop_after: Option<u64>) -> Option<Reason> {
        let steps = self.tally.env_steps;
        let solved = self.config.settings.stop_at_return.is_some_and(|goal| {
            self.tally.scores().is_full() && self.tally.scores().summary().average >= goal
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

    /// Collects once and learns from it, unless the run is told to stop before anything arrives.
    fn round(&mut self, stop: &AtomicBool) -> Result<(), EngineError> {
        let version = self.weights.version;
        let (before, pace) = (self.pupil.times, self.config.pace());
        let updates = match &mut self.collectors {
            Collectors::Serial(actor) => {
                // Schedules stand where the rollout began: the last one is not at their end.
                let progress = self.config.progress(&self.tally);
                let steps = self.tally.env_steps;
                if !actor.collect(&self.weights, steps, &self.profile, stop)? {
                    return Ok(());
                }
                let Some(actor) = actor.actor_mut() else {
                    return Ok(());
                };
                let episodes = actor.episodes();
                let rollout = actor.rollout();
                self.tally
                    .count(rollout.steps() * rollout.envs(), &episodes);
                let rollouts = [(0, rollout)];
                self.pupil
                    .absorb(&rollouts, progress, version, pace, stop)?
            }
            Collectors::Threads(pool) => {
                let progress = self.config.progress(&self.tally);
                let began = Instant::now();
                let parcels = match (&self.pupil.feed, pace) {
                    (Feed::Rollouts, _) | (_, Pace::Lag(_)) => match pool.receive_all(stop)? {
                        Some(parcels) => parcels,
                        None => return Ok(()),
                    },
                    (Feed::Replay(_), Pace::Free) if self.pupil.may_take(1) => {
                        pool.receive_ready(!self.pupil.may_learn(), stop)?
                    }
                    (Feed::Replay(_), Pace::Free) => Vec::new(),
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
                let updates = self
                    .pupil
                    .absorb(&rollouts, progress, version, pace, stop)?;
                pool.recycle(parcels);
                updates
            }
            Collectors::Resting(_) | Collectors::Waiting(_) | Collectors::Moving => 0,
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

    /// Gives the weights after a round of `updates` updates to the actors.
    fn publish(&mut self, updates: u64) {
        let Collectors::Threads(pool) = &self.collectors else {
            if updates > 0 {
                self.weights = Arc::new(Weights {
                    version: self.weights.version + 1,
                    values: self.pupil.learner.weights(),
                });
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
            let values = match self.unpublished {
                0 => self.weights.values.clone(),
                _ => self.pupil.learner.weights(),
            };
            self.unpublished = 0;
            // In rounds actors count on a version of every round.
            let version = self.weights.version + 1;
            self.weights = Arc::new(Weights { version, values });
            pool.publish(Arc::clone(&self.weights));
        }
    }

    /// Evaluates the weights. Returns false if the run was told to stop meanwhile.
    fn evaluate(
        &mut self,
        stop: &AtomicBool,
        watcher: &mut dyn Watcher,
    ) -> Result<bool, EngineError> {
        self.set_busy(true);
        let started = Instant::now();
        let evaluation = self.play_evaluation(stop);
        self.set_busy(false);
        let Some(evaluation) = evaluation? else {
            return Ok(false);
        };
        self.clock.evaluating += started.elapsed();
        self.tally.eval_steps += evaluation.lengths.iter().sum::<f64>();
        self.tally.eval_episodes += evaluation.lengths.len() as f64;
        self.tally.last_eval = Some((self.tally.env_steps, evaluation.mean()));
        if evaluation.cut_off > 0 {
            tracing::warn!(
                "{} of {} evaluation episodes were cut off after {} steps (eval.max_steps)",
                evaluation.cut_off,
                evaluation.returns.len(),
                self.config.settings.eval.max_steps
            );
        }
        self.recorder
            .log_eval(self.tally.env_steps, &evaluation.row())?;
        watcher.evaluated(&self.status(), &evaluation);
        Ok(true)
    }

    /// Plays the episodes of an evaluation on a thread of its own, so that a stuck environment is
    /// noticed. `None` if the run was told to stop meanwhile.
    fn play_evaluation(&self, stop: &AtomicBool) -> Result<Option<Evaluation>, EngineError> {
        // The learner's own, which actors may not have yet: a checkpoint of the best weights holds
        // those that were judged.
        let weights = Weights {
            version: self.weights.version,
            values: self.pupil.learner.weights(),
        };
        let episodes = Episodes {
            count: self.config.settings.eval.episodes,
            seed: self.config.settings.seed,
            index: self.tally.env_steps,
            marks: Vec::new(),
        };
        let (config, algorithm) = (self.config.clone(), Arc::clone(&self.algorithm));
        let (device, pulse) = (self.device, Arc::<Pulse>::default());
        let watchdog = Watchdog::new([Arc::clone(&pulse)]);
        let cancel = Arc::new(AtomicBool::new(false));
        let cancelled = Arc::clone(&cancel);
        let (results, done) = bounded(1);
        let work = move || {
            starling_nets::set_threads(config.torch_threads());
            let played = evaluate(
                &config,
                &*algorithm,
                &weights,
                device,
                &episodes,
                &cancelled,
                pulse,
            );
            // Whoever waits for it may have given up.
            let _ = results.send(played);
        };
        let thread = std::thread::Builder::new().name("evaluation".into());
        let started = thread.spawn(work);
        started
            .map_err(|error| EngineError::Thread(format!("evaluation did not start: {error}")))?;
        let patience = Duration::from_secs_f64(self.config.settings.stall_timeout_s);
        let give_up = || cancel.store(true, Ordering::Relaxed);
        let played = attend(&done, watchdog, patience, stop, give_up);
        let played = played.map_err(|error| match error {
            EngineError::Stuck { env, seconds, .. } => EngineError::Stuck {
                env: env % MOST_ENVS as u64,
                seconds,
                place: " of the evaluation",
            },
            other => other,
        })?;
        played.unwrap_or(Ok(None))
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

    /// Takes the checkpoint that is wanted now or was put off. One at a time is written; the next
    /// one waits for it, or is put off.
    fn checkpoint_if_due(
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
        self.pupil.settle(self.config.progress(&self.tally))?;
        let status = self.status();
        let actor = match &self.collectors {
            Collectors::Serial(serial) => serial.actor().map(Actor::crew),
            _ => None,
        };
        let moment = Moment::take(
            &self.pupil,
            actor,
            &self.tally,
            self.weights.version,
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

    /// Saves what there is when the environments have failed or are stuck: the learner is whole.
    /// A serial run keeps the checkpoint before, which continues exactly; but not if an
    /// environment is stuck, for then it would have to be waited for again.
    fn save_after(&mut self, error: &EngineError, watcher: &mut dyn Watcher) {
        let serial = self.config.settings.mode == Mode::Serial;
        let has_one = self.saved.1.is_some() || self.clock.steps_before > 0;
        let worth_it = match error {
            EngineError::Stuck { .. } => true,
            EngineError::Env(_) | EngineError::Transport(_) | EngineError::Thread(_) => {
                !(serial && has_one)
            }
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
    fn save_last(&mut self, watcher: &mut dyn Watcher) -> Result<(), EngineError> {
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
    fn has_its_actor(&self) -> bool {
        match &self.collectors {
            Collectors::Serial(serial) => serial.actor().is_some(),
            _ => true,
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
    fn score(&self) -> Option<f64> {
        let evaluates = self.config.settings.eval.every_steps > 0;
        match self.tally.last_eval {
            Some((step, mean)) if step == self.tally.env_steps => Some(mean),
            _ if evaluates || !self.tally.scores().is_full() => None,
            _ => Some(self.tally.scores().summary().average),
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
        let scores = self.tally.scores();
        Status {
            env_steps: self.tally.env_steps,
            total_steps: self.config.settings.steps,
            episodes: self.tally.episodes,
            updates: self.pupil.updates,
            counts_games: self.tally.counts_games,
            mean_return: (!scores.is_empty()).then(|| scores.summary().average),
            loss: self.pupil.means.get("loss"),
            steps_per_second: new_steps as f64 / since.as_secs_f64().max(1e-9),
            elapsed: self.clock.before + since,
        }
    }

    fn start_threads(&mut self) -> Result<(), EngineError> {
        let settings = &self.config.settings;
        let patience = Duration::from_secs_f64(settings.stall_timeout_s);
        let idle = match std::mem::replace(&mut self.collectors, Collectors::Moving) {
            Collectors::Resting(actor) => {
                let threads = self.config.torch_threads();
                let serial = SerialActor::start(*actor, threads, patience)?;
                self.collectors = Collectors::Serial(serial);
                return Ok(());
            }
            Collectors::Waiting(idle) => idle,
            others => {
                self.collectors = others;
                return Ok(());
            }
        };
        let start = Start {
            pace: self.config.pace(),
            patience,
            weights: Arc::clone(&self.weights),
            env_steps: self.tally.env_steps,
            profile: Arc::clone(&self.profile),
            pin: settings.pin_threads,
        };
        let pool = Pool::start(idle, start)?;
        self.collectors = Collectors::Threads(pool);
        Ok(())
    }
}

/// What the user should know of a resumed run.
fn what_to_know(config: &RunConfig, restored: &Restored) -> Vec<String> {
    let mut notes = Vec::new();
    match restored.lost {
        Lost::Nothing => {}
        Lost::OldRows => notes.push(
            "a part of the replay is damaged: the run continues with its newest steps".to_owned(),
        ),
        Lost::Everything => notes.push(
            "the replay is damaged: the run continues with an empty one, which has to fill again \
             before it learns"
                .to_owned(),
        ),
    }
    let changed = changed_settings(&config.to_value(), &restored.settings);
    if !changed.is_empty() {
        notes.push(format!(
            "settings changed since the checkpoint was written: {}",
            changed.join(", ")
        ));
    }
    if !restored.exact {
        notes.push(
            "the environments start new episodes: only mode=serial, with environments that can \
             be saved, continues bit for bit"
                .to_owned(),
        );
    }
    notes
}

/// Settings that are not as they were, by name.
fn changed_settings(now: &serde_json::Value, before: &serde_json::Value) -> Vec<String> {
    if before.is_null() {
        return Vec::new();
    }
    let (now, before) = (report::flatten(now), report::flatten(before));
    let old = |key: &str| before.iter().find(|(name, _)| name == key);
    let changed = now.iter().filter_map(|(key, value)| match old(key) {
        Some((_, old)) if old == value => None,
        Some((_, old)) => Some(format!("{key} (was {old})")),
        None => Some(key.clone()),
    });
    changed.collect()
}
