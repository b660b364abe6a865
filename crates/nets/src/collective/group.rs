//! A learner's handle of its group. A thread makes all calls of the collective in order, so that a
//! gradient is averaged in parts while the backward pass computes the next part.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tch::{Kind, Tensor};

use super::Collective;
use crate::native::Mark;
use crate::{ReduceError, Reducer};

/// A learner's handle of its group: the current collective, or none while it is alone. Clones share it.
#[derive(Clone)]
pub struct Group(Arc<Inner>);

struct Inner {
    state: Mutex<State>,
    thread: Option<(Sender<Job>, JoinHandle<()>)>,
}

#[derive(Default)]
struct State {
    /// Members of the group.
    size: usize,
    /// Whether gradients are sent as bfloat16.
    bf16: bool,
    /// Parts of a gradient that are being averaged.
    started: Vec<Receiver<Outcome>>,
    /// Steps of the current update that were applied, by an attempt before this one included.
    applied: u64,
    /// Steps of the current attempt.
    attempted: u64,
    spent: Spent,
}

/// How many gradients were averaged, and the time it took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// Gradients.
    pub gradients: u64,
    /// In the collective.
    pub averaging: Duration,
    /// The part of it for which the learner waited.
    pub waiting: Duration,
}

/// A call of the collective.
type Job = Box<dyn FnOnce(&mut Member) + Send>;

/// What came of a call, and how long it took.
type Outcome = (Result<(), ReduceError>, Duration);

/// What the thread has.
#[derive(Default)]
struct Member {
    collective: Option<Box<dyn Collective>>,
    /// Why the collective is unusable.
    broken: Option<ReduceError>,
}

impl Group {
    /// No group yet. With `bf16` gradients are rounded to bfloat16 for the all-reduce, which halves
    /// the traffic.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn new(bf16: bool) -> std::io::Result<Self> {
        let (jobs, queue) = channel::<Job>();
        let work = move || {
            let mut member = Member::default();
            queue.iter().for_each(|job| job(&mut member));
        };
        let thread = std::thread::Builder::new().name("collective".into());
        let thread = thread.spawn(work)?;
        let state = State {
            size: 1,
            bf16,
            ..State::default()
        };
        Ok(Self(Arc::new(Inner {
            state: Mutex::new(state),
            thread: Some((jobs, thread)),
        })))
    }

    /// Makes a collective, and uses it from now on. It is made by the thread that uses it.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn enter(
        &self,
        make: impl FnOnce() -> Result<Box<dyn Collective>, ReduceError> + Send + 'static,
    ) -> Result<(), ReduceError> {
        self.leave();
        let (entered, size) = channel();
        let outcome = self.0.call(move |member| {
            let collective = make()?;
            // The receiver waits for this call.
            let _ = entered.send(collective.size());
            *member = Member {
                collective: Some(collective),
                broken: None,
            };
            Ok(())
        });
        wait(&outcome)?.0?;
        self.lock().size = size.recv().unwrap_or(1);
        Ok(())
    }

    /// Uses no collective from now on.
    pub fn leave(&self) {
        let mut state = self.lock();
        state.started.clear();
        state.size = 1;
        drop(state);
        let outcome = self.0.call(|member| {
            *member = Member::default();
            Ok(())
        });
        // Without the thread there is no collective.
        let _ = wait(&outcome);
    }

    /// Replaces bytes by those of the member `root`, which has as many.
    pub fn broadcast_bytes(&self, bytes: &mut [u8], root: usize) -> Result<(), ReduceError> {
        let tensor = Tensor::from_slice(bytes);
        let shared = tensor.shallow_clone();
        let outcome = self
            .0
            .call(move |member| member.used(|collective| collective.broadcast(&shared, root)));
        wait(&outcome)?.0?;
        tensor.copy_data_u8(bytes, bytes.len());
        Ok(())
    }

    /// Steps of the current update that were applied.
    pub fn applied(&self) -> u64 {
        self.lock().applied
    }

    /// The next update begins, of which the first `applied` steps were applied by an attempt that
    /// broke. They are computed, but not applied again.
    pub fn begin_update(&self, applied: u64) {
        let mut state = self.lock();
        (state.applied, state.attempted) = (applied, 0);
    }

    /// The gradients so far.
    pub fn spent(&self) -> Spent {
        self.lock().spent
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Every change is whole before anything could panic.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts to average a tensor, which is ready when the calling thread's device has come so far.
    fn begin(&self, values: &Tensor, bf16: bool) -> Receiver<Outcome> {
        let mark = Mark::here(values.device());
        let values = values.detach();
        self.0.call(move |member| {
            if let Some(mark) = mark {
                mark.wait();
            }
            tch::no_grad(|| member.mean(&values, bf16))
        })
    }
}

impl Inner {
    fn call(
        &self,
        work: impl FnOnce(&mut Member) -> Result<(), ReduceError> + Send + 'static,
    ) -> Receiver<Outcome> {
        let (reply, outcome) = channel();
        let job: Job = Box::new(move |member| {
            let began = Instant::now();
            let result = work(member);
            // Nobody waits for what was left behind.
            let _ = reply.send((result, began.elapsed()));
        });
        if let Some((jobs, _)) = &self.thread {
            // Without the thread the reply fails.
            let _ = jobs.send(job);
        }
        outcome
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some((jobs, thread)) = self.thread.take() {
            drop(jobs);
            // A panic was an error of the call that it ended.
            let _ = thread.join();
        }
    }
}

fn wait(outcome: &Receiver<Outcome>) -> Result<Outcome, ReduceError> {
    let ended = |_| ReduceError("the thread of the collective has ended".into());
    outcome.recv().map_err(ended)
}

impl Member {
    /// A call of the collective, if there is one. After an error it is not used again, so that no call
    /// waits for members that are gone.
    fn used(
        &mut self,
        work: impl FnOnce(&mut dyn Collective) -> Result<(), ReduceError>,
    ) -> Result<(), ReduceError> {
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        let Some(collective) = &mut self.collective else {
            return Ok(());
        };
        work(&mut **collective).inspect_err(|error| self.broken = Some(error.clone()))
    }

    fn mean(&mut self, values: &Tensor, bf16: bool) -> Result<(), ReduceError> {
        self.used(|collective| {
            let rounded = bf16.then(|| values.to_kind(Kind::BFloat16));
            let sent = rounded.as_ref().unwrap_or(values);
            collective.sum(sent)?;
            let _ = sent.shallow_clone().g_div_scalar_(collective.size() as f64);
            if let Some(rounded) = &rounded {
                values.shallow_clone().copy_(rounded);
            }
            crate::synchronize(values.device());
            Ok(())
        })
    }
}

impl Reducer for Group {
    fn mean(&mut self, values: &Tensor) -> Result<(), ReduceError> {
        match self.size() {
            1 => Ok(()),
            _ => wait(&self.begin(values, false))?.0,
        }
    }

    fn mean_gradient(&mut self, gradient: &Tensor) -> Result<(), ReduceError> {
        let mut state = self.lock();
        if state.size == 1 {
            return Ok(());
        }
        let (bf16, began) = (state.bf16, Instant::now());
        let mut started = std::mem::take(&mut state.started);
        drop(state);
        if started.is_empty() {
            started.push(self.begin(gradient, bf16));
        }
        let (mut result, mut averaging) = (Ok(()), Duration::ZERO);
        for part in started {
            let (averaged, took) = wait(&part)?;
            result = result.and(averaged);
            averaging += took;
        }
        result?;
        let spent = &mut self.lock().spent;
        spent.gradients += 1;
        spent.averaging += averaging;
        spent.waiting += began.elapsed();
        Ok(())
    }

    fn takes_parts(&mut self) -> bool {
        let state = self.lock();
        state.size > 1 && state.attempted >= state.applied
    }

    fn start(&mut self, part: &Tensor) {
        let bf16 = self.lock().bf16;
        let started = self.begin(part, bf16);
        self.lock().started.push(started);
    }

    fn skips_step(&mut self) -> bool {
        let mut state = self.lock();
        let skips = state.attempted < state.applied;
        state.attempted += u64::from(skips);
        skips
    }

    fn applied_step(&mut self) {
        let mut state = self.lock();
        state.attempted += 1;
        state.applied = state.attempted;
    }

    fn size(&self) -> usize {
        self.lock().size
    }
}

impl std::fmt::Debug for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Group").field("size", &self.size()).finish()
    }
}
