//! From settings to the parts of a run: the learner, and the actors.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use starling_algos::Progress;
use starling_envs::RestartBudget;

use super::tally::Tally;
use crate::collect::{ActorKit, GROUPS, LocalActors, SerialActor, shares};
use crate::learn::Learning;
use crate::link::{InProcess, Inbox, LearnerLink, Losses, Pace, Place, Places, Start};
use crate::run::config::{cores, spaces_of};
use crate::{Actor, EngineError, Mode, OnActorLoss, OnEnvError, RunConfig};

/// What is made the same way for a new and a resumed run.
pub(crate) struct Parts {
    pub(crate) learning: Learning,
    pub(crate) kit: ActorKit,
    /// The one actor of a serial run.
    pub(crate) actor: Option<Actor>,
    /// Whether the environments count the points of whole games.
    pub(crate) counts_games: bool,
    /// The current step of the run.
    step: u64,
}

/// Who collects.
pub(crate) enum Collectors {
    /// One actor that takes turns with the learner.
    Serial(SerialActor),
    /// Actors at the other end of a link.
    Linked(Linked),
}

/// The learner's end of a link, and the actors of this process, if there are some. The link is
/// closed before they are waited for.
pub(crate) struct Linked {
    pub(crate) inbox: Inbox,
    pub(crate) local: Option<LocalActors>,
}

impl Parts {
    /// `step` is the current step of the run.
    pub(crate) fn make(config: &RunConfig, step: u64) -> Result<Self, EngineError> {
        // Before the first weights are drawn: how sums are split among threads shows in their
        // last bits.
        starling_nets::set_threads(config.torch_threads());
        let settings = &config.settings;
        starling_nets::allow_tf32(settings.tf32);
        let kit = ActorKit::new(config, config.restart_budget())?;
        let place = Place {
            first_env: config.first_env(),
            envs: settings.envs,
            total_envs: config.total_envs(),
        };
        let serial = settings.mode == Mode::Serial;
        let actor = serial.then(|| kit.actor(place, settings.seed));
        let env = config.env_spec()?.make(&config.env)?;
        let spaces = spaces_of(&*env);
        Ok(Self {
            learning: Learning::new(
                &*kit.algorithm,
                &spaces,
                settings,
                settings.device.resolve()?,
                config.seat.rank,
            )?,
            counts_games: env.counts_games(),
            actor: actor.transpose()?,
            kit,
            step,
        })
    }

    /// Who collects for a run that starts from the given weights. `before` is the epoch of an
    /// earlier start.
    pub(crate) fn collectors(
        &mut self,
        config: &RunConfig,
        tally: &Tally,
        first_version: u64,
        before: Option<u64>,
    ) -> Result<Collectors, EngineError> {
        if let Some(actor) = self.actor.take() {
            let threads = config.torch_threads();
            let serial = SerialActor::start(actor, threads, config.patience())?;
            return Ok(Collectors::Serial(serial));
        }
        let start = Start {
            epoch: epoch_after(before),
            seed: config.actor_seed(self.step),
            first_version,
        };
        let places = Arc::new(config.places(start));
        let link = InProcess::new(Arc::clone(&places), config.history());
        let local = LocalActors::new(config, &self.kit, link.clone(), Arc::clone(&places));
        Ok(Collectors::Linked(Linked {
            inbox: config.inbox(Box::new(link), places, tally),
            local: Some(local),
        }))
    }
}

/// The microseconds since 1970, but more than the epoch before: a clock may be wrong.
fn epoch_after(before: Option<u64>) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(0, |now| now.as_micros() as u64);
    before.map_or(now, |before| now.max(before + 1))
}

impl RunConfig {
    /// How many environments may be restarted, if they are to be at all.
    pub(crate) fn restart_budget(&self) -> Option<Arc<RestartBudget>> {
        let settings = &self.settings;
        let restarts = settings.on_env_error == OnEnvError::Restart;
        restarts.then(|| Arc::new(RestartBudget::new(settings.max_env_restarts)))
    }

    /// How many actors may be lost.
    pub(crate) fn losses_allowed(&self) -> u64 {
        match self.settings.on_actor_loss {
            OnActorLoss::Stop => 0,
            OnActorLoss::Continue => self.settings.max_actor_losses,
        }
    }

    /// The learner's end of a link.
    pub(crate) fn inbox(
        &self,
        link: Box<dyn LearnerLink>,
        places: Arc<Places>,
        tally: &Tally,
    ) -> Inbox {
        let losses = Losses {
            allowed: self.losses_allowed(),
            count: tally.actor_losses,
        };
        Inbox::new(link, places, self.pace(), self.patience(), losses)
    }

    /// The environments of the run in the parts that actors lease.
    pub(crate) fn places(&self, start: Start) -> Places {
        let first = self.first_env();
        let shares = shares(first..first + self.settings.envs, self.parts());
        Places::among(shares, self.total_envs(), start)
    }

    /// How many parts there are.
    pub(crate) fn parts(&self) -> usize {
        match self.settings.mode {
            Mode::Central => GROUPS,
            Mode::Serial | Mode::Threads => self.actor_threads(),
        }
    }

    /// Number of this learner's first environment among those of all learners.
    pub(crate) fn first_env(&self) -> usize {
        self.seat.rank * self.settings.envs
    }

    /// Environments of all learners.
    pub(crate) fn total_envs(&self) -> usize {
        self.settings.learners * self.settings.envs
    }

    /// Cores for this learner.
    fn cores(&self) -> usize {
        (cores() / self.seat.beside.max(1)).max(1)
    }

    /// Seed of actors on threads. They are not part of checkpoints: in a run that is resumed at
    /// `step` they draw from other streams than those that began it.
    fn actor_seed(&self, step: u64) -> u64 {
        self.settings.seed ^ step.rotate_left(32)
    }

    /// How actors follow the learner.
    pub(crate) fn pace(&self) -> Pace {
        match (self.settings.asynchronous, self.settings.fixed_lag) {
            (false, _) => Pace::Lag(0),
            (true, Some(lag)) => Pace::Lag(lag),
            (true, None) => Pace::Free,
        }
    }

    /// How many versions of the weights actors may still ask for.
    pub(crate) fn history(&self) -> usize {
        match self.pace() {
            Pace::Free => 1,
            Pace::Lag(lag) => lag as usize + 2,
        }
    }

    /// How long actors and learner wait for each other.
    pub(crate) fn patience(&self) -> Duration {
        Duration::from_secs_f64(self.settings.stall_timeout_s)
    }

    /// How many threads an operation of the learner uses. Serial and lockstep runs never act
    /// and learn at once: there it may have all cores.
    pub(crate) fn torch_threads(&self) -> usize {
        match (self.settings.torch_threads, self.settings.asynchronous) {
            (0, false) => self.cores(),
            (0, true) => self.cores().saturating_sub(self.actor_threads()).max(1),
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
            // Those that draw ahead need cores too, and so do an acting and a learning thread that
            // wait for a GPU without sleeping.
            0 => {
                let on_gpu = matches!(
                    settings.actor_device().resolve(),
                    Ok(starling_nets::Device::Cuda(_))
                );
                let waiting = usize::from(settings.mode == Mode::Central && on_gpu) * 2;
                let others = settings.prefetch_threads + waiting;
                self.cores()
                    .saturating_sub(others)
                    .max(self.cores().div_ceil(2))
            }
            given => given,
        };
        let groups = match settings.mode {
            Mode::Central => GROUPS,
            Mode::Serial | Mode::Threads => 1,
        };
        threads.min(settings.envs / groups)
    }

    pub(crate) fn progress(&self, tally: &Tally) -> Progress {
        Progress {
            env_steps: tally.env_steps,
            total_steps: self.settings.steps,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::Weights;
    use crate::measure::Profile;

    /// Actors on threads are not part of checkpoints. A resumed run must not repeat the streams
    /// with which the run began.
    #[test]
    fn resumed_actors_draw_from_other_streams() {
        let config = RunConfig::from_value(&json!({
            "env": {"id": "CartPole-v1"},
            "algo": {"name": "ppo"},
            "mode": "threads",
            "threads": 1,
            "envs": 2,
            "device": "cpu",
            "torch_threads": 1,
        }))
        .unwrap();
        let collected = |step| {
            let mut parts = Parts::make(&config, step).unwrap();
            let tally = Tally::new(false);
            let collectors = parts.collectors(&config, &tally, 0, None).unwrap();
            let Collectors::Linked(linked) = collectors else {
                panic!("the mode is threads");
            };
            let lease = linked.inbox.places().lease().unwrap();
            let mut actor = parts.kit.actor(lease.place, lease.seed).unwrap();
            let weights = Weights {
                version: 0,
                values: parts.learning.learner.weights(),
            };
            actor.collect(&weights, 0, &Profile::default()).unwrap();
            let rollout = actor.rollout().clone();
            (rollout.obs, rollout.actions)
        };
        let first = collected(0);
        assert_eq!(collected(0), first);
        let resumed = collected(1_000);
        assert_ne!(resumed.0, first.0);
        assert_ne!(resumed.1, first.1);
    }

    #[test]
    fn epochs_grow_though_the_clock_does_not() {
        let now = epoch_after(None);
        assert!(now > 0);
        assert_eq!(epoch_after(Some(now + 1_000_000)), now + 1_000_001);
        assert!(epoch_after(Some(now - 1)) >= now);
    }
}
