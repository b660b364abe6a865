//! The loop of a run: collect, learn, log, evaluate, checkpoint.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use starling_algos::{Algorithm, Policy, Progress};
use starling_envs::Episode;
use starling_nets::Device;
use starling_record::{
    Checkpoint, Checkpoints, Recorder, Retention, Row, RunFolder, Summary, Window,
};
use starling_replay::MemoryPlan;

use crate::central::{Central, GROUPS, crews};
use crate::checkpoint::{self, Tally};
use crate::collect::{Place, Recruits, rollout_steps};
use crate::config::{cores, spaces_of};
use crate::error::Unusable;
use crate::learn::{Feed, Pupil};
use crate::pool::{Idle, Pace, Pool, Start};
use crate::profile::Profile;
use crate::{Actor, EngineError, Evaluation, Mode, RunConfig, Weights, evaluate};

/// Episodes that statistics look back on.
const WINDOW: usize = 100;

/// A run that is ready to go, from its beginning or from a checkpoint.
pub struct Training {
    config: RunConfig,
    algorithm: Box<dyn Algorithm>,
    device: Device,
    recorder: Recorder,
    checkpoints: Checkpoints,
    pupil: Pupil,
    collectors: Collectors,
    /// What actors have.
    weights: Weights,
    /// Updates since the weights were published.
    unpublished: u64,
    tally: Tally,
    clock: Clock,
    profile: Arc<Profile>,
}

enum Collectors {
    /// The main thread collects.
    Serial(Box<Actor>),
    /// Actors that wait to be moved to threads.
    Waiting(Idle),
    /// Nobody, for the moment of moving them.
    Moving,
    /// Actors at work.
    Threads(Pool),
}

/// Why a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// All steps are done.
    Finished,
    /// The return that was asked for is reached (`stop_at_return`).
    Solved,
    /// The steps of `--stop-after` are done; `resume` goes on.
    Paused,
    /// A signal asked to stop; `resume` goes on.
    Interrupted,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Why.
    pub reason: Reason,
    /// How far it came.
    pub status: Status,
}

/// How far a run has come.
#[derive(Clone, Debug, PartialEq)]
pub struct Status {
    /// Steps of all environments.
    pub env_steps: u64,
    /// Steps at which the run ends.
    pub total_steps: u64,
    /// Episodes that ended.
    pub episodes: u64,
    /// Updates of the learner.
    pub updates: u64,
    /// Mean return of the last 100 episodes.
    pub mean_return: Option<f64>,
    /// Mean loss since the last row of metrics.
    pub loss: Option<f64>,
    /// Steps per second since the run (or the resumed part of it) began.
    pub steps_per_second: f64,
    /// Time spent, earlier parts of the run included.
    pub elapsed: Duration,
}

/// Somebody who looks on, such as a progress bar. The engine itself never prints.
pub trait Watcher {
    /// Called after every round of collecting and learning.
    fn round(&mut self, _status: &Status) {}

    /// Called with every row of metrics.
    fn row(&mut self, _status: &Status, _row: &Row) {}

    /// Called with every evaluation.
    fn evaluated(&mut self, _status: &Status, _evaluation: &Evaluation) {}

    /// Called when a checkpoint was written.
    fn checkpointed(&mut self, _status: &Status, _folder: &Path) {}
}

/// Nobody looks on.
impl Watcher for () {}

struct Clock {
    started: Instant,
    /// Time spent on evaluations.
    evaluating: Duration,
    /// Time that the learner waited for actors on threads.
    waiting: Duration,
    /// Both at the last row of metrics.
    last_idle: (Duration, Duration),
    /// Of earlier parts of the run.
    before: Duration,
    steps_before: u64,
    /// Of the last row of metrics: time, steps, updates.
    last: (Duration, u64, u64),
}

impl Training {
    /// A run from its beginning.
    pub fn start(config: RunConfig, folder: &RunFolder) -> Result<Self, EngineError> {
        let mut recorder = Recorder::create(folder)?;
        recorder.hyperparameters(&flatten(&config.to_value()))?;
        let parts = Parts::make(&config, 0)?;
        let tally = Tally {
            env_steps: 0,
            iterations: 0,
            episodes: 0,
            new_episodes: 0,
            returns: Window::new(WINDOW),
            discounted_returns: Window::new(WINDOW),
            lengths: Window::new(WINDOW),
            nonzero_rewards: Window::new(WINDOW),
            game_scores: Window::new(WINDOW),
            last_eval: None,
            best_eval: None,
            eval_steps: 0.0,
            eval_episodes: 0.0,
            replay_counts: (0, 0),
        };
        let checkpoints = Checkpoints::open(&folder.checkpoints_path(), retention(&config))?;
        Ok(Self::assemble(
            config,
            parts,
            recorder,
            checkpoints,
            tally,
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
        let mut checkpoints = Checkpoints::open(&folder.checkpoints_path(), retention(&config))?;
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
        let recorder = Recorder::resume(folder, restored.recorder)?;
        let elapsed = latest.times().and_then(|times| times["elapsed_s"].as_f64());
        let elapsed = Duration::from_secs_f64(elapsed.unwrap_or(0.0).max(0.0));
        let (tally, version) = (restored.tally, restored.version);
        let training = Self::assemble(
            config,
            parts,
            recorder,
            checkpoints,
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
            if (best || due(self.config.settings.checkpoint.every_steps)) && !over {
                self.checkpoint(watcher)?;
            }
        };
        let ended = matches!(reason, Reason::Finished | Reason::Solved);
        if ended && self.clock.last.1 != self.tally.env_steps {
            self.log(watcher)?;
        }
        self.checkpoint(watcher)?;
        let status = self.status();
        tracing::info!(?reason, env_steps = status.env_steps, "the run ended");
        Ok(Outcome { reason, status })
    }

    fn assemble(
        config: RunConfig,
        parts: Parts,
        recorder: Recorder,
        checkpoints: Checkpoints,
        tally: Tally,
        version: u64,
        elapsed: Duration,
    ) -> Self {
        let values = parts.pupil.learner.weights();
        Self {
            clock: Clock {
                started: Instant::now(),
                evaluating: Duration::ZERO,
                waiting: Duration::ZERO,
                last_idle: (Duration::ZERO, Duration::ZERO),
                before: elapsed,
                steps_before: tally.env_steps,
                last: (elapsed, tally.env_steps, parts.pupil.updates),
            },
            config,
            algorithm: parts.algorithm,
            device: parts.device,
            recorder,
            checkpoints,
            pupil: parts.pupil,
            collectors: parts.collectors,
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
        let evaluation = evaluate(
            &self.config,
            &*self.algorithm,
            &self.weights,
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

    /// One row of metrics, under rlpyt's names and CleanRL's.
    fn log(&mut self, watcher: &mut dyn Watcher) -> Result<(), EngineError> {
        let status = self.status();
        let (last_time, last_steps, last_updates) = self.clock.last;
        let seconds = (status.elapsed - last_time).as_secs_f64().max(1e-9);
        let (new_steps, new_updates) =
            (status.env_steps - last_steps, status.updates - last_updates);
        let tally = &mut self.tally;
        let mut row = Row::new();
        row.set("Diagnostics/Iteration", tally.iterations as f64);
        row.set("Diagnostics/CumTime (s)", status.elapsed.as_secs_f64());
        row.set("Diagnostics/SamplerIteration", tally.iterations as f64);
        row.set("Diagnostics/CumSteps", status.env_steps as f64);
        row.set("Diagnostics/CumCompletedTrajs", status.episodes as f64);
        row.set("Diagnostics/CumUpdates", status.updates as f64);
        row.set("Diagnostics/StepsPerSecond", new_steps as f64 / seconds);
        row.set("Diagnostics/UpdatesPerSecond", new_updates as f64 / seconds);
        let (evaluating, waiting) = (self.clock.evaluating, self.clock.waiting);
        let (last_evaluating, last_waiting) = self.clock.last_idle;
        let acting = seconds - (evaluating - last_evaluating).as_secs_f64();
        row.set(
            "Diagnostics/NonEvalSamplesPerSecond",
            new_steps as f64 / acting.max(1e-9),
        );
        row.set(
            "Diagnostics/OptThrottle",
            (waiting - last_waiting).as_secs_f64(),
        );
        self.clock.last_idle = (evaluating, waiting);
        if let Feed::Replay(feed) = &self.pupil.feed {
            let (samples, inserted) = feed.counts();
            let (last_samples, last_inserted) = tally.replay_counts;
            let ratio = |samples: u64, steps: u64| samples as f64 / (steps as f64).max(1.0);
            let new = ratio(samples - last_samples, inserted - last_inserted);
            tally.replay_counts = (samples, inserted);
            row.set("Diagnostics/ReplayRatio", new);
            row.set("Diagnostics/CumReplayRatio", ratio(samples, inserted));
            row.set("Diagnostics/ReplaySize", feed.replay.len() as f64);
        }
        row.set("Diagnostics/NewCompletedTrajs", tally.new_episodes as f64);
        row.set("Diagnostics/StepsInEval", tally.eval_steps);
        row.set("Diagnostics/TrajsInEval", tally.eval_episodes);
        row.set(
            "Diagnostics/CumEvalTime",
            self.clock.evaluating.as_secs_f64(),
        );
        (tally.eval_steps, tally.eval_episodes) = (0.0, 0.0);
        let in_window = tally.lengths.values().sum();
        row.set("Diagnostics/StepsInTrajWindow", in_window);
        tally.new_episodes = 0;
        let returns = tally.returns.summary();
        let lengths = tally.lengths.summary();
        row.set_summary("Return", &returns);
        row.set_summary("DiscountedReturn", &tally.discounted_returns.summary());
        row.set_summary("Length", &lengths);
        let nonzero: Summary = tally.nonzero_rewards.summary();
        row.set_summary("NonzeroRewards", &nonzero);
        if !tally.game_scores.is_empty() {
            row.set_summary("GameScore", &tally.game_scores.summary());
        }
        row.set("charts/episodic_return", returns.average);
        row.set("charts/episodic_length", lengths.average);
        row.set("charts/SPS", new_steps as f64 / seconds);
        for (name, mean) in self.pupil.means.take() {
            match name.as_str() {
                "policy_lag" | "learning_rate" | "epsilon" => {
                    row.set(format!("charts/{name}"), mean)
                }
                _ => row.set(format!("losses/{name}"), mean),
            }
        }
        self.recorder.log(status.env_steps, &row)?;
        self.clock.last = (status.elapsed, status.env_steps, status.updates);
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

    fn checkpoint(&mut self, watcher: &mut dyn Watcher) -> Result<(), EngineError> {
        self.set_busy(true);
        let status = self.status();
        let recorder = self.recorder.state()?;
        let actor = match &self.collectors {
            Collectors::Serial(actor) => Some(actor.crew()),
            _ => None,
        };
        let score = self.score();
        let mut writer = self.checkpoints.begin(status.env_steps)?;
        let version = self.weights.version;
        let written = checkpoint::write(
            &mut writer,
            &self.pupil,
            actor,
            &self.tally,
            version,
            recorder,
        );
        written.map_err(|Unusable(reason)| EngineError::Save {
            step: status.env_steps,
            reason,
        })?;
        writer.times(&serde_json::json!({"elapsed_s": status.elapsed.as_secs_f64()}))?;
        let folder = writer.commit(score)?;
        self.set_busy(false);
        tracing::info!(folder = %folder.display(), "checkpoint");
        watcher.checkpointed(&status, &folder);
        Ok(())
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

    fn status(&self) -> Status {
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

/// What is made the same way for a new and a resumed run.
struct Parts {
    algorithm: Box<dyn Algorithm>,
    device: Device,
    pupil: Pupil,
    collectors: Collectors,
}

impl Parts {
    /// `step` is where the run stands. Actors on threads are not part of checkpoints: resumed
    /// there, they draw from other streams than those that began the run.
    fn make(config: &RunConfig, step: u64) -> Result<Self, EngineError> {
        // Before the first weights are drawn: how sums are split among threads shows in their
        // last bits.
        starling_nets::set_threads(config.torch_threads());
        let settings = &config.settings;
        let spec = config.env_spec()?;
        let algorithm = config.algorithm()?;
        let device = settings.device.resolve()?;
        starling_nets::allow_tf32(settings.tf32);
        let seed = match settings.mode {
            Mode::Serial => settings.seed,
            Mode::Threads | Mode::Central => settings.seed ^ step.rotate_left(32),
        };
        let collectors = collectors(config, &*algorithm, device, seed)?;
        let spaces = spaces_of(&*spec.make(&config.env)?);
        Ok(Self {
            pupil: Pupil::new(
                &*algorithm,
                &spaces,
                settings.seed,
                device,
                settings.envs,
                settings.prefetch_threads,
            )?,
            algorithm,
            device,
            collectors,
        })
    }
}

/// Who steps the environments.
fn collectors(
    config: &RunConfig,
    algorithm: &dyn Algorithm,
    device: Device,
    seed: u64,
) -> Result<Collectors, EngineError> {
    let settings = &config.settings;
    let (envs, threads) = (settings.envs, config.actor_threads());
    let spec = config.env_spec()?;
    let actor = |share: Range<usize>| {
        let place = Place {
            first_env: share.start,
            envs: share.len(),
            total_envs: envs,
        };
        let decorrelate = settings.decorrelate_steps;
        Actor::new(
            spec,
            &config.env,
            algorithm,
            device,
            seed,
            place,
            decorrelate,
        )
    };
    Ok(match settings.mode {
        Mode::Serial => Collectors::Serial(Box::new(actor(0..envs)?)),
        Mode::Threads => {
            let actors = shares(0..envs, threads).map(actor);
            Collectors::Waiting(Idle::Actors(actors.collect::<Result<_, _>>()?))
        }
        Mode::Central => {
            let policy = algorithm.policy(device);
            let recruits = Recruits {
                spec,
                options: &config.env,
                discount: algorithm.discount(),
                steps: rollout_steps(algorithm),
                records: policy.records(),
                state: policy.state(),
                seed,
                total_envs: envs,
                decorrelate_steps: settings.decorrelate_steps,
            };
            let groups = shares(0..envs, GROUPS).map(|group| {
                let parts = crews(group.len(), threads);
                let crews = shares(group, parts);
                crews
                    .map(|share| recruits.crew(share.start, share.len()))
                    .collect()
            });
            let groups = groups.collect::<Result<Vec<Vec<_>>, _>>()?;
            let central = Central::new(policy, groups, threads, config.torch_threads());
            Collectors::Waiting(Idle::Central(Box::new(central)))
        }
    })
}

/// A range in so many parts, as even as it goes.
fn shares(whole: Range<usize>, parts: usize) -> impl Iterator<Item = Range<usize>> {
    let (start, length) = (whole.start, whole.len());
    (0..parts).map(move |i| start + i * length / parts..start + (i + 1) * length / parts)
}

impl RunConfig {
    /// How actors follow the learner.
    fn pace(&self) -> Pace {
        match (self.settings.asynchronous, self.settings.fixed_lag) {
            (false, _) => Pace::Lag(0),
            (true, Some(lag)) => Pace::Lag(lag),
            (true, None) => Pace::Free,
        }
    }

    /// How many threads an operation of the learner uses. Serial and lockstep runs never act
    /// and learn at once: there it may have all cores.
    fn torch_threads(&self) -> usize {
        match (self.settings.torch_threads, self.settings.asynchronous) {
            (0, false) => cores(),
            (0, true) => cores().saturating_sub(self.actor_threads()).max(1),
            (given, _) => given,
        }
    }

    /// Threads that step environments.
    pub(crate) fn collecting_threads(&self) -> usize {
        match self.settings.mode {
            Mode::Serial => 1,
            Mode::Threads | Mode::Central => self.actor_threads(),
        }
    }

    fn actor_threads(&self) -> usize {
        let settings = &self.settings;
        let threads = match settings.threads {
            // Those that draw ahead need cores too.
            0 => cores().saturating_sub(settings.prefetch_threads).max(1),
            given => given,
        };
        let groups = match settings.mode {
            Mode::Central => GROUPS,
            Mode::Serial | Mode::Threads => 1,
        };
        threads.min(settings.envs / groups)
    }

    fn progress(&self, tally: &Tally) -> Progress {
        Progress {
            env_steps: tally.env_steps,
            total_steps: self.settings.steps,
        }
    }
}

impl Tally {
    fn count(&mut self, steps: usize, episodes: &[Episode]) {
        self.env_steps += steps as u64;
        self.episodes += episodes.len() as u64;
        self.new_episodes += episodes.len() as u64;
        for episode in episodes {
            self.returns.push(episode.return_);
            self.discounted_returns.push(episode.discounted_return);
            self.lengths.push(episode.length as f64);
            self.nonzero_rewards.push(episode.nonzero_rewards as f64);
            if let Some(score) = episode.game_score {
                self.game_scores.push(score);
            }
        }
    }
}

/// Plays episodes with the weights of a checkpoint, and notes the returns at some steps of each.
pub fn evaluate_checkpoint(
    config: &RunConfig,
    checkpoint: &Checkpoint,
    episodes: usize,
    seed: u64,
    marks: &[u64],
) -> Result<Evaluation, EngineError> {
    starling_nets::set_threads(config.torch_threads());
    let algorithm = config.algorithm()?;
    let device = config.settings.device.resolve()?;
    let weights = Weights {
        version: 0,
        values: weights_of(config, checkpoint, &*algorithm, device)?,
    };
    evaluate(
        config,
        &*algorithm,
        &weights,
        device,
        episodes,
        seed,
        0,
        marks,
    )
}

/// The policy of a checkpoint, ready to act.
pub fn policy_of_checkpoint(
    config: &RunConfig,
    checkpoint: &Checkpoint,
) -> Result<Box<dyn Policy>, EngineError> {
    let algorithm = config.algorithm()?;
    let device = config.settings.device.resolve()?;
    let mut policy = algorithm.policy(device);
    policy.load(&weights_of(config, checkpoint, &*algorithm, device)?)?;
    Ok(policy)
}

fn weights_of(
    config: &RunConfig,
    checkpoint: &Checkpoint,
    algorithm: &dyn Algorithm,
    device: Device,
) -> Result<Vec<f32>, EngineError> {
    let unusable = |reason: String| EngineError::Checkpoint {
        path: checkpoint.path().to_owned(),
        reason,
    };
    let saved = checkpoint::read_learner(checkpoint).map_err(|error| unusable(error.0))?;
    let mut learner = algorithm.learner(config.settings.seed, device);
    learner
        .load(&saved)
        .map_err(|error| unusable(error.to_string()))?;
    Ok(learner.weights())
}

fn retention(config: &RunConfig) -> Retention {
    let checkpoint = &config.settings.checkpoint;
    Retention {
        keep_last: checkpoint.keep_last,
        milestone_steps: checkpoint.milestone_steps,
    }
}

/// Every setting by its dotted name.
fn flatten(value: &serde_json::Value) -> Vec<(String, String)> {
    fn walk(path: &str, value: &serde_json::Value, out: &mut Vec<(String, String)>) {
        match value.as_object() {
            Some(section) => {
                for (key, value) in section {
                    let path = match path {
                        "" => key.clone(),
                        _ => format!("{path}.{key}"),
                    };
                    walk(&path, value, out);
                }
            }
            None => out.push((path.to_owned(), value.to_string())),
        }
    }
    let mut out = Vec::new();
    walk("", value, &mut out);
    out
}
