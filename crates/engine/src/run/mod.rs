//! The loop of a run: collect, learn, log, evaluate, checkpoint.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::bounded;
use starling_algos::ConfigError;
use starling_envs::Pulse;
use starling_record::{Recorder, RunFolder};
use starling_replay::MemoryPlan;

use self::checkpoints::Wish;
use self::evaluate::{Episodes, Evaluation, MOST_ENVS, evaluate};
use self::parts::{Collectors, Linked, Parts};
use self::report::Clock;
use self::tally::Tally;
use crate::collect::{ActorKit, Station, attend};
use crate::learn::{Feed, Learning};
use crate::link::patience::Watchdog;
use crate::link::wire::{ParcelFormat, PublicationFormat};
use crate::link::{Control, LearnerLink, Pace, Places, Publication, Terms, Weights};
use crate::measure::Profile;
use crate::save::saver::{Saver, open_checkpoints};
use crate::{EngineError, Outcome, Reason, RunConfig, Status, Watcher};

mod checkpoints;
pub(crate) mod config;
pub(crate) mod evaluate;
mod memory;
pub(crate) mod parts;
pub(crate) mod report;
mod resume;
pub(crate) mod tally;
pub(crate) mod watch;

/// A run that is ready to go, from its beginning or from a checkpoint.
pub struct Training {
    config: RunConfig,
    recorder: Recorder,
    saver: Saver,
    /// A checkpoint came due while another one was being written.
    put_off: bool,
    /// When the last checkpoint was taken, and at which step.
    saved: (Instant, Option<u64>),
    learning: Learning,
    kit: ActorKit,
    collectors: Collectors,
    /// What actors have.
    weights: Arc<Weights>,
    /// Updates since the weights were published.
    unpublished: u64,
    tally: Tally,
    clock: Clock,
    profile: Arc<Profile>,
}

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
        Self::assemble(
            config,
            parts,
            recorder,
            Saver::new(checkpoints, None),
            tally,
            (0, None),
            Duration::ZERO,
        )
    }

    /// What a link to actors elsewhere is made for.
    ///
    /// # Errors
    /// With `mode=serial`, whose one actor takes turns with the learner.
    pub fn terms(&self) -> Result<Terms, EngineError> {
        let places = self.places_to_lease()?;
        Ok(Terms {
            parcels: ParcelFormat::of(&self.config, &places)?,
            publications: PublicationFormat {
                weights: self.weights.values.values().len(),
            },
            history: self.config.history(),
            places,
        })
    }

    /// The same run with actors elsewhere, and none in this process. They lease the run's
    /// [`places`](Training::places); `link` is the learner's side of the way to them, made for the
    /// run's [`terms`](Training::terms).
    ///
    /// # Errors
    /// With `mode=serial`, whose one actor takes turns with the learner.
    pub fn with_link(mut self, link: Box<dyn LearnerLink>) -> Result<Self, EngineError> {
        let places = self.places_to_lease()?;
        self.collectors = Collectors::Linked(Linked {
            inbox: self.config.inbox(link, places, &self.tally),
            local: None,
        });
        Ok(self)
    }

    /// The places that actors lease; `None` with `mode=serial`.
    pub fn places(&self) -> Option<Arc<Places>> {
        match &self.collectors {
            Collectors::Serial(_) => None,
            Collectors::Linked(linked) => Some(Arc::clone(linked.inbox.places())),
        }
    }

    fn places_to_lease(&self) -> Result<Arc<Places>, EngineError> {
        self.places().ok_or_else(|| {
            EngineError::Config(ConfigError::Value {
                key: "mode".into(),
                value: "serial".into(),
                allowed: "threads or central where actors are elsewhere".into(),
            })
        })
    }

    /// The settings of the run, as actors elsewhere need them.
    pub fn config(&self) -> &RunConfig {
        &self.config
    }

    /// Where the time of this run goes, growing as it runs.
    pub fn profile(&self) -> Arc<Profile> {
        Arc::clone(&self.profile)
    }

    /// The memory that the replay will take; `None` without one.
    pub fn replay_memory(&self) -> Option<MemoryPlan> {
        match &self.learning.feed {
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
        self.start_collecting()?;
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
        mut parts: Parts,
        recorder: Recorder,
        saver: Saver,
        tally: Tally,
        (version, epoch): (u64, Option<u64>),
        elapsed: Duration,
    ) -> Result<Self, EngineError> {
        let values = parts.learning.learner.weights();
        let collectors = parts.collectors(&config, &tally, version, epoch)?;
        Ok(Self {
            clock: Clock::start(elapsed, tally.env_steps, parts.learning.updates),
            config,
            recorder,
            saver,
            put_off: false,
            saved: (Instant::now(), None),
            learning: parts.learning,
            kit: parts.kit,
            collectors,
            weights: Arc::new(Weights { version, values }),
            unpublished: 0,
            tally,
            profile: Arc::default(),
        })
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

    /// Collects once and learns from it, unless the run is stopped before anything arrives.
    fn round(&mut self, stop: &AtomicBool) -> Result<(), EngineError> {
        let version = self.weights.version;
        let (before, pace) = (self.learning.times, self.config.pace());
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
                self.learning
                    .absorb(&rollouts, progress, version, pace, stop)?
            }
            Collectors::Linked(linked) => {
                let inbox = &mut linked.inbox;
                let progress = self.config.progress(&self.tally);
                let began = Instant::now();
                let parcels = match (&self.learning.feed, pace) {
                    (Feed::Rollouts, _) | (_, Pace::Lag(_)) => match inbox.receive_all(stop)? {
                        Some(parcels) => parcels,
                        None => return Ok(()),
                    },
                    (Feed::Replay(_), Pace::Free) if self.learning.may_take(1) => {
                        inbox.receive_ready(!self.learning.may_learn(), stop)?
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
                    .learning
                    .absorb(&rollouts, progress, version, pace, stop)?;
                inbox.recycle(parcels);
                self.tally.actor_losses = inbox.losses();
                updates
            }
        };
        self.tally.iterations += 1;
        if let Some(restarts) = &self.kit.restarts {
            self.tally.env_restarts = restarts.used();
        }
        for (name, time) in self.learning.times.since(&before) {
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
        self.unpublished += updates;
        let due = match (&self.collectors, &self.learning.feed) {
            (Collectors::Serial(_), _) | (_, Feed::Rollouts) => 1,
            (_, Feed::Replay(_)) => self.config.settings.publish_every_updates,
        };
        let linked = matches!(self.collectors, Collectors::Linked(_));
        // In rounds actors count on a version of every round.
        let in_rounds = linked && self.config.pace() != Pace::Free;
        if self.unpublished >= due || in_rounds {
            let values = match self.unpublished {
                0 => self.weights.values.clone(),
                _ => self.learning.learner.weights(),
            };
            self.unpublished = 0;
            let version = self.weights.version + 1;
            self.weights = Arc::new(Weights { version, values });
        }
        self.tell_actors();
    }

    /// Publishes weights to the actors, and the progress of the run.
    fn tell_actors(&self) {
        if let Collectors::Linked(linked) = &self.collectors {
            linked.inbox.publish(Publication {
                weights: Arc::clone(&self.weights),
                control: Control {
                    env_steps: self.tally.env_steps,
                },
            });
        }
    }

    /// Evaluates the weights. Returns false if the run was stopped meanwhile.
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

    /// Plays the episodes of an evaluation on a separate thread, so that a stuck environment is
    /// detected. `None` if the run was stopped meanwhile.
    fn play_evaluation(&self, stop: &AtomicBool) -> Result<Option<Evaluation>, EngineError> {
        // The learner's own, which actors may not have yet: a checkpoint of the best weights holds
        // those that were judged.
        let weights = Weights {
            version: self.weights.version,
            values: self.learning.learner.weights(),
        };
        let episodes = Episodes {
            count: self.config.settings.eval.episodes,
            seed: self.config.settings.seed,
            index: self.tally.env_steps,
            marks: Vec::new(),
        };
        let (config, algorithm) = (self.config.clone(), Arc::clone(&self.kit.algorithm));
        let (device, pulse) = (self.kit.device, Arc::<Pulse>::default());
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
        let patience = self.config.patience();
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
        let mut row = report::row(
            &status,
            &mut self.clock,
            &mut self.tally,
            &mut self.learning,
        );
        if let Some(places) = self.places() {
            row.set("Diagnostics/Actors", places.held() as f64);
            row.set("Diagnostics/ActorLosses", self.tally.actor_losses as f64);
        }
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

    fn set_busy(&self, busy: bool) {
        if let Collectors::Linked(linked) = &self.collectors {
            linked.inbox.set_busy(busy);
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
            updates: self.learning.updates,
            counts_games: self.tally.counts_games,
            mean_return: (!scores.is_empty()).then(|| scores.summary().average),
            loss: self.learning.means.get("loss"),
            steps_per_second: new_steps as f64 / since.as_secs_f64().max(1e-9),
            elapsed: self.clock.before + since,
        }
    }

    /// Publishes the first weights, and sets the actors of this process to work.
    fn start_collecting(&mut self) -> Result<(), EngineError> {
        self.tell_actors();
        if let Collectors::Linked(linked) = &mut self.collectors
            && let Some(local) = &mut linked.local
        {
            let profile = Arc::clone(&self.profile);
            let station = Station::new(&self.config, &self.kit, local.link(), profile);
            let pulses = local.start(&station)?;
            linked.inbox.watch(pulses);
        }
        Ok(())
    }
}
