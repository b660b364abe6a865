//! Environments of which some are stepped while the caller works on the results of others.
//!
//! An environment is either idle; or in the queue of those that have an action, from which threads take
//! them; or being stepped; or in the queue of those that are done, in the order of arrival.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use starling_envs::render::Picture;
use starling_envs::{Action, EnvError, EnvOptions, EnvSpec, Rollout};
use starling_tree::{Array, Tree};

use crate::pool::{Autoreset, Kind, Results, Row, Slot, cores};

/// Environments with their threads.
pub(crate) struct AsyncPool {
    pub(crate) kind: Arc<Kind>,
    /// Those that wait for an action.
    idle: Vec<Option<Box<Station>>>,
    batch: usize,
    threads: usize,
    shared: Arc<Shared>,
    /// The process that started the threads; a fork has none of them.
    started_by: Option<u32>,
}

/// One environment with its next action, and what it showed last.
struct Station {
    index: usize,
    slot: Slot,
    /// None to start an episode.
    action: Option<Array>,
    obs: Tree<Array>,
    reward: f64,
    terminated: bool,
    truncated: bool,
    score: f64,
    lives: i64,
    legal: Vec<u8>,
}

#[derive(Default)]
struct Shared {
    queues: Mutex<Queues>,
    /// There is something to do, or it is over.
    work: Condvar,
    /// One more is done.
    done: Condvar,
}

#[derive(Default)]
struct Queues {
    waiting: VecDeque<Box<Station>>,
    done: VecDeque<Box<Station>>,
    closed: bool,
}

/// Why nothing was received.
pub(crate) enum NotReceived {
    /// Not enough are done; ask again.
    Yet,
    /// Fewer environments than a batch have an action: that many have.
    Never(usize),
    Failed(EnvError),
}

impl AsyncPool {
    /// Makes the environments, of which `batch` are received at once.
    pub(crate) fn new(
        spec: &'static EnvSpec,
        options: EnvOptions,
        count: usize,
        batch: usize,
        threads: Option<usize>,
        entropy: u64,
    ) -> Result<Self, EnvError> {
        let (kind, slots) = Kind::make(spec, options, count, Autoreset::NextStep, entropy)?;
        if batch == 0 || batch > count {
            let text = format!("batch_size is {batch}; allowed: 1 to num_envs ({count})");
            return Err(EnvError::Failed(text));
        }
        let station = |(index, slot)| Station {
            index,
            slot,
            action: None,
            obs: Tree::zeros(&kind.spec, &[]),
            reward: 0.0,
            terminated: false,
            truncated: false,
            score: f64::NAN,
            lives: 0,
            legal: vec![0; kind.legal_actions.unwrap_or(0)],
        };
        let stations = slots.into_iter().enumerate().map(station);
        Ok(Self {
            idle: stations.map(|station| Some(Box::new(station))).collect(),
            kind: Arc::new(kind),
            batch,
            threads: threads
                .unwrap_or_else(|| cores().min(batch))
                .clamp(1, count),
            shared: Arc::default(),
            started_by: None,
        })
    }

    /// The number of environments.
    pub(crate) fn len(&self) -> usize {
        self.idle.len()
    }

    /// Starts episodes in these environments, with seeds where there are some.
    pub(crate) fn reset(&mut self, envs: &[usize], seeds: &[Option<u64>]) -> Result<(), EnvError> {
        self.check(envs)?;
        for (&env, seed) in envs.iter().zip(seeds) {
            if let (Some(station), Some(seed)) = (&mut self.idle[env], seed) {
                station.slot = self.kind.seeded(*seed)?;
            }
        }
        self.send_each(envs, |_| None)
    }

    /// Takes actions, one row for each of these environments.
    pub(crate) fn send(&mut self, envs: &[usize], actions: &Array) -> Result<(), EnvError> {
        self.check(envs)?;
        let spec = Rollout::action_spec(&self.kind.action_space);
        let action = |row: usize| {
            let mut action = Array::zeros(spec.dtype, &spec.shape);
            action.bytes_mut().copy_from_slice(actions.at(&[row]).bytes);
            Some(action)
        };
        self.send_each(envs, action)
    }

    /// Writes the results of those that were done first, and says which environments they are of. After
    /// an error, the environment that failed has to be reset; results of others are received next.
    pub(crate) fn receive(
        &mut self,
        wait: Duration,
        results: &mut Results<'_>,
    ) -> Result<Vec<usize>, NotReceived> {
        let sent = self.idle.iter().filter(|station| station.is_none()).count();
        if sent < self.batch {
            return Err(NotReceived::Never(sent));
        }
        let failed = |queues: &Queues| {
            let mut done = queues.done.iter();
            done.position(|station| station.slot.error.is_some())
        };
        let waited = self
            .shared
            .done
            .wait_timeout_while(self.shared.lock(), wait, |queues| {
                queues.done.len() < self.batch && failed(queues).is_none()
            });
        let mut queues = waited.unwrap_or_else(PoisonError::into_inner).0;
        let failed = failed(&queues);
        let done = &mut queues.done;
        if let Some(mut station) = failed.and_then(|at| done.remove(at)) {
            let index = station.index;
            let cause = station.slot.error.take();
            self.idle[index] = Some(station);
            let cause = cause.unwrap_or_else(|| EnvError::Failed(String::new()));
            return Err(NotReceived::Failed(self.kind.error_at(index as u64, cause)));
        }
        if done.len() < self.batch {
            return Err(NotReceived::Yet);
        }
        let batch: Vec<Box<Station>> = done.drain(..self.batch).collect();
        drop(queues);
        let mut envs = Vec::with_capacity(batch.len());
        for (row, station) in batch.into_iter().enumerate() {
            station.write(row, results);
            envs.push(station.index);
            let index = station.index;
            self.idle[index] = Some(station);
        }
        Ok(envs)
    }

    /// A picture of one environment.
    pub(crate) fn render(&self, env: usize) -> Result<Picture, EnvError> {
        self.check(&[env])?;
        match &self.idle[env] {
            Some(station) => station.slot.render(),
            None => Err(self.busy(env)),
        }
    }

    /// Whether these environments exist, once each, and wait for an action.
    fn check(&self, envs: &[usize]) -> Result<(), EnvError> {
        let mut seen = vec![false; self.idle.len()];
        for &env in envs {
            let last = self.idle.len() - 1;
            let Some(seen) = seen.get_mut(env) else {
                let text = format!("env_id has {env}; allowed: 0 to {last}");
                return Err(EnvError::Failed(text));
            };
            if std::mem::replace(seen, true) {
                return Err(EnvError::Failed(format!("env_id has {env} twice")));
            }
            if self.idle[env].is_none() {
                return Err(self.busy(env));
            }
        }
        Ok(())
    }

    fn busy(&self, env: usize) -> EnvError {
        let text = "it has an action already; receive its result first (recv)";
        self.kind
            .error_at(env as u64, EnvError::Failed(text.into()))
    }

    fn send_each(
        &mut self,
        envs: &[usize],
        action: impl Fn(usize) -> Option<Array>,
    ) -> Result<(), EnvError> {
        self.start()?;
        let mut queues = self.shared.lock();
        for (row, &env) in envs.iter().enumerate() {
            if let Some(mut station) = self.idle[env].take() {
                station.action = action(row);
                queues.waiting.push_back(station);
            }
        }
        drop(queues);
        self.shared.work.notify_all();
        Ok(())
    }

    /// Starts the threads, if they are not running.
    fn start(&mut self) -> Result<(), EnvError> {
        let process = std::process::id();
        match self.started_by {
            Some(by) if by == process => return Ok(()),
            Some(_) => {
                let text = "its threads are those of the process that this one was forked from; make the \
                            environments again";
                return Err(EnvError::Failed(text.into()));
            }
            None => {}
        }
        for index in 0..self.threads {
            let (shared, kind) = (Arc::clone(&self.shared), Arc::clone(&self.kind));
            std::thread::Builder::new()
                .name(format!("envs-{index}"))
                .spawn(move || shared.step_all(&kind))
                .map_err(|error| EnvError::Failed(format!("no thread can be started: {error}")))?;
        }
        self.started_by = Some(process);
        Ok(())
    }
}

impl Drop for AsyncPool {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.work.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Steps environments until the pool is dropped.
    fn step_all(&self, kind: &Kind) {
        let mut queues = self.lock();
        while !queues.closed {
            let Some(mut station) = queues.waiting.pop_front() else {
                let woken = self.work.wait(queues);
                queues = woken.unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            drop(queues);
            if catch_unwind(AssertUnwindSafe(|| station.advance(kind))).is_err() {
                station.slot.error = Some(EnvError::Failed("it panicked".into()));
            }
            queues = self.lock();
            queues.done.push_back(station);
            self.done.notify_all();
        }
    }
}

impl Station {
    fn advance(&mut self, kind: &Kind) {
        let Self { legal, lives, .. } = self;
        let mut row = Row {
            slot: &mut self.slot,
            obs: self.obs.at_mut(&[]),
            reward: &mut self.reward,
            terminated: &mut self.terminated,
            truncated: &mut self.truncated,
            score: &mut self.score,
            lives: kind.counts_lives.then_some(lives),
            legal: kind.legal_actions.map(|_| legal.as_mut_slice()),
        };
        match &self.action {
            Some(action) => {
                let space = &kind.action_space;
                row.take(Action::at(space, action, &[]), space, kind.autoreset);
            }
            None => {
                row.clear();
                row.reset();
            }
        }
        row.show();
    }

    /// Writes a row of results.
    fn write(&self, row: usize, results: &mut Results<'_>) {
        for ((_, from), to) in self.obs.leaves().into_iter().zip(&mut results.obs) {
            let bytes = from.bytes();
            to[row * bytes.len()..(row + 1) * bytes.len()].copy_from_slice(bytes);
        }
        results.rewards[row] = self.reward;
        results.terminated[row] = self.terminated;
        results.truncated[row] = self.truncated;
        results.scores[row] = self.score;
        if let Some(lives) = &mut results.lives {
            lives[row] = self.lives;
        }
        if let Some(legal) = &mut results.legal {
            let width = self.legal.len();
            legal[row * width..(row + 1) * width].copy_from_slice(&self.legal);
        }
    }
}
