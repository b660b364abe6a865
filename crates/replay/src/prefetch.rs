//! Batches that are assembled ahead, on threads other than the learner's.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rand::SeedableRng as _;
use starling_envs::Rng;

use crate::{Replay, ReplayError, SequenceBatch, TransitionBatch};

/// Buffers that a replay can fill.
pub trait Draw: Send + 'static {
    /// Fills the buffers with new draws.
    ///
    /// # Errors
    /// As [`Replay::sample_into`] and [`Replay::sample_sequences_into`].
    fn draw(&mut self, replay: &Replay, beta: f64, rng: &mut Rng) -> Result<(), ReplayError>;
}

impl Draw for TransitionBatch {
    fn draw(&mut self, replay: &Replay, beta: f64, rng: &mut Rng) -> Result<(), ReplayError> {
        replay.sample_into(self, beta, rng)
    }
}

impl Draw for SequenceBatch {
    fn draw(&mut self, replay: &Replay, beta: f64, rng: &mut Rng) -> Result<(), ReplayError> {
        replay.sample_sequences_into(self, beta, rng)
    }
}

/// Threads that fill the caller's buffers while the caller does something else.
///
/// The caller passes buffers, each with the β to sample with, and gets them back full, in the same
/// order. So the depth is the number of buffers that the caller made, nothing is sampled without a
/// request (which is what a [`RateLimiter`] counts), and the memory is the caller's: it may be
/// registered with a device once and keeps its address.
///
/// Batches that are sampled ahead use older priorities. A caller that needs reproducible samples,
/// such as a serial run, uses [`Replay::sample_into`] instead.
///
/// [`RateLimiter`]: crate::RateLimiter
#[derive(Debug)]
pub struct Prefetcher<B: Draw> {
    shared: Arc<Shared<B>>,
    threads: Vec<JoinHandle<()>>,
    given: u64,
    taken: u64,
}

/// A buffer that came back.
#[derive(Debug)]
pub struct Filled<B> {
    /// The buffer.
    pub batch: B,
    /// Whether it could be filled.
    pub drawn: Result<(), ReplayError>,
}

impl<B: Draw> Prefetcher<B> {
    /// Starts the threads, at least one.
    ///
    /// # Errors
    /// When a thread cannot be started.
    pub fn new(replay: Arc<Replay>, threads: usize) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                orders: VecDeque::new(),
                filled: BTreeMap::new(),
                closed: false,
            }),
            ordered: Condvar::new(),
            ready: Condvar::new(),
        });
        let mut prefetcher = Self {
            shared,
            threads: Vec::new(),
            given: 0,
            taken: 0,
        };
        for index in 0..threads.max(1) {
            let shared = Arc::clone(&prefetcher.shared);
            let replay = Arc::clone(&replay);
            let thread = std::thread::Builder::new().name(format!("prefetch-{index}"));
            let thread = thread.spawn(move || shared.fill(&replay))?;
            prefetcher.threads.push(thread);
        }
        Ok(prefetcher)
    }

    /// Gives buffers away, to be filled with draws that follow from `seed`, whose importance
    /// weights have the exponent `beta`.
    pub fn give(&mut self, batch: B, beta: f64, seed: u64) {
        let order = Order {
            number: self.given,
            batch,
            beta,
            seed,
        };
        self.given += 1;
        self.shared.lock().orders.push_back(order);
        self.shared.ordered.notify_one();
    }

    /// Takes the buffers back that were given first. `None` if nothing was given, or if it was
    /// not filled within `patience`.
    pub fn take(&mut self, patience: Duration) -> Option<Filled<B>> {
        if self.given == self.taken {
            return None;
        }
        let deadline = Instant::now() + patience;
        let mut state = self.shared.lock();
        loop {
            if let Some(filled) = state.filled.remove(&self.taken) {
                self.taken += 1;
                return Some(filled);
            }
            let left = deadline.checked_duration_since(Instant::now())?;
            let waited = self.shared.ready.wait_timeout(state, left);
            (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Buffers that were given and not taken back yet.
    pub fn ahead(&self) -> usize {
        (self.given - self.taken) as usize
    }
}

impl<B: Draw> Drop for Prefetcher<B> {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.ordered.notify_all();
        for thread in self.threads.drain(..) {
            // A panic there has been reported by the thread; nothing depends on it here.
            let _ = thread.join();
        }
    }
}

#[derive(Debug)]
struct Shared<B> {
    state: Mutex<State<B>>,
    /// Something was ordered, or the threads should end.
    ordered: Condvar,
    /// Something was filled.
    ready: Condvar,
}

#[derive(Debug)]
struct State<B> {
    orders: VecDeque<Order<B>>,
    filled: BTreeMap<u64, Filled<B>>,
    closed: bool,
}

#[derive(Debug)]
struct Order<B> {
    number: u64,
    batch: B,
    beta: f64,
    seed: u64,
}

impl<B: Draw> Shared<B> {
    /// What a thread does until the end.
    fn fill(&self, replay: &Replay) {
        while let Some(order) = self.next_order() {
            let mut batch = order.batch;
            let mut rng = Rng::seed_from_u64(order.seed);
            let drawn = batch.draw(replay, order.beta, &mut rng);
            let filled = Filled { batch, drawn };
            self.lock().filled.insert(order.number, filled);
            self.ready.notify_all();
        }
    }

    fn next_order(&self) -> Option<Order<B>> {
        let mut state = self.lock();
        loop {
            if state.closed {
                return None;
            }
            if let Some(order) = state.orders.pop_front() {
                return Some(order);
            }
            let waited = self.ordered.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl<B> Shared<B> {
    fn lock(&self) -> MutexGuard<'_, State<B>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
