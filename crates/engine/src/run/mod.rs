//! The loop of a run: collect, learn, log, evaluate, checkpoint.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use starling_algos::{ConfigError, Progress};
use starling_envs::{Episode, Rollout};
use starling_record::{Recorder, RunFolder};
use starling_replay::MemoryPlan;

use self::checkpoints::Wish;
use self::evaluate::Evaluation;
use self::evaluation_player::EvaluationPlayer;
use self::group::{Collected, Learned};
use self::parts::{Collectors, Linked, Parts};
use self::remote_evaluations::RemoteEvaluations;
use self::report::Clock;
use self::tally::Tally;
use crate::collect::{ActorKit, Station};
use crate::group::{Membership, Pauses};
use crate::learn::{Feed, Learning};
use crate::link::wire::{ParcelFormat, PublicationFormat};
use crate::link::{Control, LearnerLink, Pace, Places, Publication, Start, Terms, Weights};
use crate::measure::Profile;
use crate::save::saver::{Saver, open_checkpoints};
use crate::{Agent, EngineError, Filmed, Outcome, Played, Reason, RunConfig, Status, Watcher};

mod checkpoints;
pub(crate) mod config;
pub(crate) mod evaluate;
pub(crate) mod evaluation_player;
mod group;
mod live;
mod memory;
pub(crate) mod parts;
mod remote_evaluations;
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
    /// The other learners.
    group: Option<Membership>,
    /// In a group: the last score that learner 0 sent.
    score: Option<f64>,
    kit: ActorKit,
    collectors: Collectors,
    /// What actors have.
    weights: Arc<Weights>,
    /// Updates since the weights were published.
    unpublished: u64,
    /// Evaluations that other processes make, if they do.
    remote_evaluations: Option<RemoteEvaluations>,
    tally: Tally,
    clock: Clock,
    profile: Arc<Profile>,
    /// Set to request a checkpoint now.
    asked: Arc<AtomicBool>,
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
        let training = Self::assemble(
            config,
            parts,
            recorder,
            Saver::new(checkpoints, None),
            tally,
            (0, None),
            Duration::ZERO,
        );
        training?.with_evaluations(folder)
    }

    /// What a link to actors elsewhere is made for.
    ///
    /// # Errors
    /// With `mode=serial`, whose one actor takes turns with the learner.
    pub fn terms(&self) -> Result<Terms, EngineError> {
        self.terms_of(self.places_to_lease()?)
    }

    /// What a link to evaluators is made for: it has no places for actors.
    ///
    /// # Errors
    /// When the environment or the algorithm cannot be made.
    pub fn terms_of_evaluators(&self) -> Result<Terms, EngineError> {
        self.terms_of(Arc::new(Places::new([], Start::default())))
    }

    fn terms_of(&self, places: Arc<Places>) -> Result<Terms, EngineError> {
        let remote = self.remote_evaluations.as_ref();
        Ok(Terms {
            parcels: ParcelFormat::of(&self.config, &places)?,
            publications: PublicationFormat {
                weights: self.weights.values.values().len(),
            },
            history: self.config.history(),
            evaluations: remote.map(RemoteEvaluations::evaluations),
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

    /// The same run, which writes a checkpoint after its current round whenever `asked` is set, and
    /// clears it.
    #[must_use]
    pub fn with_checkpoints_on_request(mut self, asked: Arc<AtomicBool>) -> Self {
        self.asked = asked;
        self
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
        let _live = self.show_live();
        self.join_group(stop)?;
        self.start_collecting()?;
        let mut ended = self.reason_to_end(stop, stop_after);
        let reason = loop {
            if let Some(reason) = ended {
                break reason;
            }
            let before = self.tally.env_steps;
            let pauses = self.pauses(stop, stop_after);
            let pause = match self.round(stop, pauses) {
                Ok(pause) => pause,
                Err(error) => {
                    self.save_after(&error, watcher);
                    return Err(error);
                }
            };
            let now = self.tally.env_steps;
            let due = |every: u64| every > 0 && now / every > before / every;
            watcher.round(&self.status());
            let evaluated = match (
                due(self.config.settings.eval.every_steps),
                &self.remote_evaluations,
            ) {
                (true, None) => self.evaluate(stop, watcher),
                (true, Some(_)) => {
                    self.offer_evaluation();
                    Ok(false)
                }
                (false, _) => Ok(false),
            };
            self.note_evaluations(watcher)?;
            let evaluated = match evaluated {
                Ok(evaluated) => evaluated,
                Err(error) => {
                    self.save_after(&error, watcher);
                    return Err(error);
                }
            };
            if due(self.config.settings.video.every_steps) {
                self.film();
            }
            if due(self.config.settings.log_every_steps) {
                self.log(watcher)?;
            }
            // Other learners have to hear of what follows: only after a round with a pause.
            ended = match pause {
                true => self.reason_to_end(stop, stop_after),
                false => None,
            };
            let best = evaluated && self.score() > self.tally.best_eval;
            if best {
                self.tally.best_eval = self.score();
            }
            let every = self.config.settings.checkpoint.every_steps;
            let due = self.is_late() || due(every);
            let wanted = match (best, pause && (due || self.is_asked())) {
                (true, _) => Some(Wish::Best),
                (false, due) => due.then_some(Wish::Due),
            };
            let wanted = self.close_round(pause, ended, wanted)?;
            if ended.is_none() {
                self.checkpoint_if_due(wanted, watcher)?;
            }
        };
        let ended = matches!(reason, Reason::Finished | Reason::Solved);
        if ended {
            self.await_evaluations(stop, watcher)?;
        }
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
            group: None,
            score: None,
            kit: parts.kit,
            collectors,
            weights: Arc::new(Weights { version, values }),
            unpublished: 0,
            remote_evaluations: None,
            tally,
            profile: Arc::default(),
            asked: Arc::default(),
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

    /// Whether the last checkpoint is too old.
    fn is_late(&self) -> bool {
        let settings = &self.config.settings.checkpoint;
        let minutes = self.saved.0.elapsed().as_secs_f64() / 60.0;
        settings.every_minutes > 0.0 && minutes >= settings.every_minutes
    }

    /// Collects once and learns from it, unless the run is stopped before anything arrives. Returns
    /// whether something may follow: always without a group.
    fn round(&mut self, stop: &AtomicBool, pauses: Pauses) -> Result<bool, EngineError> {
        let version = self.weights.version;
        let (before, pace) = (self.learning.times, self.config.pace());
        let first_env = self.config.first_env();
        let learn = |learning: &mut Learning,
                     group: &mut Option<Membership>,
                     tally: &mut Tally,
                     rollouts: &[(usize, &Rollout)],
                     episodes: &[Episode],
                     progress: Progress| {
            let collected = Collected {
                rollouts,
                episodes,
                progress,
                version,
                pace,
                pauses,
            };
            group::learn(learning, group.as_mut(), tally, &collected, stop)
        };
        let leads = self.group.as_ref().is_some_and(|group| group.rank() == 0);
        let Learned { updates, pause } = match &mut self.collectors {
            Collectors::Serial(actor) => {
                // Schedules stand where the rollout began: the last one is not at their end.
                let progress = self.config.progress(&self.tally);
                let steps = self.tally.env_steps;
                let collected = actor.collect(&self.weights, steps, &self.profile, stop)?;
                let mut actor = actor.actor_mut().filter(|_| collected);
                if actor.is_none() && !leads {
                    return Ok(true);
                }
                let episodes = actor.as_mut().map(|actor| actor.episodes());
                let episodes = episodes.unwrap_or_default();
                let rollouts = actor.as_ref().map(|actor| (0, actor.rollout()));
                let (learning, group) = (&mut self.learning, &mut self.group);
                learn(
                    learning,
                    group,
                    &mut self.tally,
                    rollouts.as_slice(),
                    &episodes,
                    progress,
                )?
            }
            Collectors::Linked(linked) => {
                let inbox = &mut linked.inbox;
                let progress = self.config.progress(&self.tally);
                let began = Instant::now();
                let parcels = match (&self.learning.feed, pace) {
                    (Feed::Rollouts, _) | (_, Pace::Lag(_)) => match inbox.receive_all(stop)? {
                        Some(parcels) => parcels,
                        // The others of a group hear of the end only in a round of all.
                        None if leads => Vec::new(),
                        None => return Ok(true),
                    },
                    (Feed::Replay(_), Pace::Free) if self.learning.may_take(1) => {
                        inbox.receive_ready(!self.learning.may_learn(), stop)?
                    }
                    (Feed::Replay(_), Pace::Free) => Vec::new(),
                };
                self.clock.waiting += began.elapsed();
                self.profile.add("learner", "wait", began.elapsed());
                let (mut rollouts, mut episodes) = (Vec::new(), Vec::new());
                for parcel in &parcels {
                    let its = parcel.rollouts.iter();
                    // The replay of a learner begins with its own first environment.
                    rollouts.extend(its.map(|(first, rollout)| (first - first_env, rollout)));
                    episodes.extend(&parcel.episodes);
                }
                let (learning, group) = (&mut self.learning, &mut self.group);
                let learned = learn(
                    learning,
                    group,
                    &mut self.tally,
                    &rollouts,
                    &episodes,
                    progress,
                )?;
                inbox.recycle(parcels);
                self.tally.actor_losses = inbox.losses();
                learned
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
        Ok(pause)
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
        self.warn_of_cut_off(&evaluation);
        self.recorder
            .log_eval(self.tally.env_steps, &evaluation.row())?;
        watcher.evaluated(&self.status(), &evaluation);
        Ok(true)
    }

    fn warn_of_cut_off(&self, evaluation: &Evaluation) {
        if evaluation.cut_off > 0 {
            tracing::warn!(
                "{} of {} evaluation episodes were cut off after {} steps (eval.max_steps)",
                evaluation.cut_off,
                evaluation.returns.len(),
                self.config.settings.eval.max_steps
            );
        }
    }

    /// Plays the episodes of an evaluation. `None` if the run was stopped meanwhile.
    fn play_evaluation(&self, stop: &AtomicBool) -> Result<Option<Evaluation>, EngineError> {
        let player = EvaluationPlayer::with(
            &self.config,
            Arc::clone(&self.kit.algorithm),
            self.kit.device,
        );
        player.play(self.evaluated_weights(), self.tally.env_steps, stop)
    }

    /// The learner's own, which actors may not have yet: a checkpoint of the best weights holds those
    /// that were evaluated.
    fn evaluated_weights(&self) -> Arc<Weights> {
        Arc::new(Weights {
            version: self.weights.version,
            values: self.learning.learner.weights(),
        })
    }

    /// Writes a video of one episode. A run does not end because that fails: the log says why.
    fn film(&mut self) {
        self.set_busy(true);
        let started = Instant::now();
        match self.try_to_film() {
            Ok((path, played)) => tracing::info!("{} shows an episode: {played}", path.display()),
            Err(error) => tracing::warn!("no video was made: {error}"),
        }
        self.set_busy(false);
        self.clock.evaluating += started.elapsed();
    }

    fn try_to_film(&self) -> Result<(PathBuf, Played), EngineError> {
        let (config, steps) = (&self.config, self.tally.env_steps);
        let weights = self.learning.learner.weights();
        let policy = evaluate::policy_with(config, &weights, self.kit.device)?;
        let agent = Agent::with_policy(config, policy)?;
        let spec = config.env_spec()?;
        let options = (spec.for_evaluation)(&config.env);
        let seed = config.settings.seed.wrapping_add(steps);
        let roles = ["video", "video-policy"];
        let mut filmed = Filmed::new(spec, &options, Some(agent), roles, seed)?;
        let video = &config.settings.video;
        let videos = self.recorder.folder().join("videos");
        std::fs::create_dir_all(&videos).map_err(|source| starling_record::Error::Io {
            action: "create the folder",
            path: videos.clone(),
            source,
        })?;
        let name = format!("{steps:012}.{}", video.format.extension());
        let path = videos.join(name);
        let played = filmed.film(&[&path], video.max_steps, |_, _| Ok::<(), EngineError>(()))?;
        Ok((path, played))
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
        if let Some(group) = &mut self.group {
            group.report(&mut row);
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
