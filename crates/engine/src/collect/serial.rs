//! One actor that takes turns with the learner.
//!
//! It runs on a separate thread, and the learner waits for it. So a stuck environment can be
//! detected and named, and the run can be stopped meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};

use crate::link::patience::{SLICE, Watchdog};
use crate::measure::Profile;
use crate::{Actor, CollectError, EngineError, Weights};

/// After a signal to stop: how long one call of an environment may still take.
const LAST_CALL: Duration = Duration::from_secs(10);

/// After a signal to stop: how long the work under way may still take.
const LAST_WORK: Duration = Duration::from_secs(60);

/// An actor that is lent to its thread for one rollout at a time.
pub(crate) struct SerialActor {
    /// Away only if it did not come back.
    actor: Option<Box<Actor>>,
    orders: Sender<Order>,
    done: Receiver<Done>,
    patience: Duration,
}

struct Order {
    actor: Box<Actor>,
    weights: Arc<Weights>,
    env_steps: u64,
    profile: Arc<Profile>,
}

type Done = (Box<Actor>, Result<(), CollectError>);

impl SerialActor {
    /// Starts the thread, whose libtorch operations use `torch_threads` threads each.
    pub(crate) fn start(
        actor: Actor,
        torch_threads: usize,
        patience: Duration,
    ) -> Result<Self, EngineError> {
        let (orders, todo) = bounded::<Order>(1);
        let (results, done) = bounded(1);
        let work = move || {
            starling_nets::set_threads(torch_threads);
            for order in todo {
                let mut actor = order.actor;
                let collected = actor.collect(&order.weights, order.env_steps, &order.profile);
                if results.send((actor, collected)).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("actor".into());
        let thread = thread.spawn(work);
        thread.map_err(|error| EngineError::Thread(format!("actor did not start: {error}")))?;
        Ok(Self {
            actor: Some(Box::new(actor)),
            orders,
            done,
            patience,
        })
    }

    /// The actor; `None` if it did not come back.
    pub(crate) fn actor(&self) -> Option<&Actor> {
        self.actor.as_deref()
    }

    /// See [`actor`](SerialActor::actor).
    pub(crate) fn actor_mut(&mut self) -> Option<&mut Actor> {
        self.actor.as_deref_mut()
    }

    /// Collects one rollout. Returns false if the run was told to stop and the actor did not come
    /// back in time.
    pub(crate) fn collect(
        &mut self,
        weights: &Arc<Weights>,
        env_steps: u64,
        profile: &Arc<Profile>,
        stop: &AtomicBool,
    ) -> Result<bool, EngineError> {
        let ended = || EngineError::Thread("actor ended unexpectedly (log.txt may say why)".into());
        let actor = self.actor.take().ok_or_else(ended)?;
        let watchdog = Watchdog::new([Arc::clone(actor.crew().pulse())]);
        let hurry = Arc::clone(actor.crew().hurry());
        let on_stop = || hurry.store(true, Ordering::Relaxed);
        let order = Order {
            actor,
            weights: Arc::clone(weights),
            env_steps,
            profile: Arc::clone(profile),
        };
        self.orders.send(order).map_err(|_| ended())?;
        let done = attend(&self.done, watchdog, self.patience, stop, on_stop)?;
        let Some((actor, collected)) = done else {
            return Ok(false);
        };
        self.actor = Some(actor);
        collected?;
        Ok(true)
    }
}

/// Waits for a thread that steps environments. Fails if one of them is stuck for longer than
/// `patience`. If the run is told to stop, calls `on_stop` once, and returns `None` if the thread
/// does not get ready soon.
pub(crate) fn attend<T>(
    done: &Receiver<T>,
    mut watchdog: Watchdog,
    patience: Duration,
    stop: &AtomicBool,
    on_stop: impl Fn(),
) -> Result<Option<T>, EngineError> {
    let mut stopping: Option<Instant> = None;
    loop {
        match done.recv_timeout(SLICE) {
            Ok(done) => return Ok(Some(done)),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                let what = "of the environments ended unexpectedly (log.txt may say why)";
                return Err(EngineError::Thread(what.into()));
            }
        }
        let still = watchdog.look();
        if let Some(still) = still.filter(|still| still.time > patience) {
            return Err(still.into());
        }
        if stop.load(Ordering::Relaxed) {
            let since = stopping.get_or_insert_with(|| {
                on_stop();
                Instant::now()
            });
            let since = since.elapsed();
            if let Some(still) = still.filter(|still| still.time > LAST_CALL) {
                let env = still.env;
                tracing::warn!("environment {env} does not return; the run stops without it");
                return Ok(None);
            }
            if since > LAST_WORK {
                tracing::warn!("the environments take too long; the run stops without them");
                return Ok(None);
            }
        }
    }
}
