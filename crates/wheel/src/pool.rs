//! Environments stepped by several threads, into memory of the caller's.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use starling_envs::render::Picture;
use starling_envs::{Action, Env, EnvError, EnvOptions, EnvSpec, ObsMut, Rng, Space, stream};
use starling_tree::{Array, Spec, Tree, ViewMut};

/// When the next episode starts after one that ended; Gymnasium's autoreset modes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Autoreset {
    /// With the next step, whose action is ignored.
    NextStep,
    /// With the step that ended the last one.
    SameStep,
    /// When the caller resets it.
    Disabled,
}

/// What environments of one kind have in common.
pub(crate) struct Kind {
    id: &'static str,
    pub(crate) autoreset: Autoreset,
    pub(crate) observation_space: Space,
    pub(crate) action_space: Space,
    /// The number of actions, if the environments mask some of them.
    pub(crate) legal_actions: Option<usize>,
    pub(crate) counts_lives: bool,
    /// Pictures per second.
    pub(crate) render_fps: f64,
    pub(crate) spec: Tree<Spec>,
    make: Box<dyn Fn() -> Result<Box<dyn Env>, EnvError> + Send + Sync>,
}

/// Environments of one kind that are stepped together.
pub(crate) struct Pool {
    pub(crate) kind: Kind,
    slots: Vec<Slot>,
    workers: Workers,
}

/// One environment.
pub(crate) struct Slot {
    env: Box<dyn Env>,
    rng: Rng,
    /// An episode was started.
    started: bool,
    /// The episode is over and the next one was not started.
    ended: bool,
    last: Option<Last>,
    pub(crate) error: Option<EnvError>,
    /// A continuous action, clipped to its bounds.
    bounded: Vec<f32>,
}

/// What an environment showed at the end of an episode, where the next one has started already.
pub(crate) struct Last {
    /// The arrays of the observation, in order.
    pub(crate) obs: Vec<Vec<u8>>,
    pub(crate) lives: Option<u32>,
    pub(crate) legal: Vec<u8>,
}

/// Where the results of a call are written. Arrays have one row per environment.
pub(crate) struct Results<'a> {
    /// The arrays of the observations, in order.
    pub(crate) obs: Vec<&'a mut [u8]>,
    pub(crate) rewards: &'a mut [f64],
    pub(crate) terminated: &'a mut [bool],
    pub(crate) truncated: &'a mut [bool],
    /// The scores of the games that ended, else NaN.
    pub(crate) scores: &'a mut [f64],
    pub(crate) lives: Option<&'a mut [i64]>,
    pub(crate) legal: Option<&'a mut [u8]>,
}

/// The same for one environment.
pub(crate) struct Row<'a> {
    pub(crate) slot: &'a mut Slot,
    pub(crate) obs: Tree<ViewMut<'a>>,
    pub(crate) reward: &'a mut f64,
    pub(crate) terminated: &'a mut bool,
    pub(crate) truncated: &'a mut bool,
    pub(crate) score: &'a mut f64,
    pub(crate) lives: Option<&'a mut i64>,
    pub(crate) legal: Option<&'a mut [u8]>,
}

impl Kind {
    /// The environments of an id, and what they have in common. Without seeds they draw from the stream
    /// of `entropy`.
    pub(crate) fn make(
        spec: &'static EnvSpec,
        options: EnvOptions,
        count: usize,
        autoreset: Autoreset,
        entropy: u64,
    ) -> Result<(Self, Vec<Slot>), EnvError> {
        if count == 0 {
            return Err(EnvError::Failed("num_envs must be at least 1".into()));
        }
        let make = move || spec.make(&options);
        let slots: Result<Vec<Slot>, EnvError> = (0..count as u64)
            .map(|index| Ok(Slot::new(make()?, stream(entropy, "env", index))))
            .collect();
        let slots = slots?;
        let first = &slots[0].env;
        let (observation_space, action_space) = (first.observation_space(), first.action_space());
        let kind = Self {
            id: spec.id,
            autoreset,
            legal_actions: match &action_space {
                Space::Discrete { n } if first.masks_actions() => Some(*n),
                _ => None,
            },
            counts_lives: spec.family == "atari",
            render_fps: first.render_fps(),
            spec: observation_space.spec(),
            observation_space,
            action_space,
            make: Box::new(make),
        };
        Ok((kind, slots))
    }

    /// A new environment that draws from the stream of a seed alone.
    pub(crate) fn seeded(&self, seed: u64) -> Result<Slot, EnvError> {
        Ok(Slot::new((self.make)()?, stream(seed, "env", 0)))
    }

    /// An error of one environment.
    pub(crate) fn error_at(&self, index: u64, cause: EnvError) -> EnvError {
        EnvError::At {
            index,
            id: self.id.to_owned(),
            cause: Box::new(cause),
        }
    }
}

impl Pool {
    /// Makes the environments.
    pub(crate) fn new(
        spec: &'static EnvSpec,
        options: EnvOptions,
        count: usize,
        threads: Option<usize>,
        autoreset: Autoreset,
        entropy: u64,
    ) -> Result<Self, EnvError> {
        let (kind, slots) = Kind::make(spec, options, count, autoreset, entropy)?;
        Ok(Self {
            kind,
            slots,
            workers: Workers::new(threads.unwrap_or_else(cores).clamp(1, count)),
        })
    }

    /// The number of environments.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Starts an episode in the chosen environments. One with a seed is made again and draws from
    /// the stream of that seed: it does what it would do in any other place.
    pub(crate) fn reset(
        &mut self,
        seeds: &[Option<u64>],
        chosen: &[bool],
        results: Results<'_>,
    ) -> Result<(), EnvError> {
        for (b, slot) in self.slots.iter_mut().enumerate() {
            slot.last = None;
            if let Some(seed) = seeds[b].filter(|_| chosen[b]) {
                *slot = self.kind.seeded(seed)?;
            }
        }
        let (rows, workers) = self.rows(results);
        workers.each(rows, |(b, mut row)| {
            if chosen[b] {
                row.reset();
            }
            row.show();
        });
        self.first_error()
    }

    /// Takes one action in each environment, or in the chosen ones: nothing is written for the others.
    pub(crate) fn step(
        &mut self,
        actions: &Array,
        chosen: Option<&[bool]>,
        results: Results<'_>,
    ) -> Result<(), EnvError> {
        let (autoreset, space) = (self.kind.autoreset, self.kind.action_space.clone());
        let (mut rows, workers) = self.rows(results);
        if let Some(chosen) = chosen {
            rows.retain(|(b, _)| chosen[*b]);
        }
        workers.each(rows, |(b, mut row)| {
            row.take(Action::at(&space, actions, &[b]), &space, autoreset);
            row.show();
        });
        self.first_error()
    }

    /// What the environments showed at the ends of episodes in the last step, where the next ones
    /// have started already.
    pub(crate) fn ends(&mut self) -> Vec<(usize, Last)> {
        let slots = self.slots.iter_mut().enumerate();
        slots
            .filter_map(|(b, slot)| Some((b, slot.last.take()?)))
            .collect()
    }

    /// A picture of one environment.
    pub(crate) fn render(&self, env: usize) -> Result<Picture, EnvError> {
        self.slots[env].render()
    }

    /// The first environment that failed; those that failed have to be reset.
    fn first_error(&mut self) -> Result<(), EnvError> {
        let mut first = Ok(());
        for (index, slot) in (0..).zip(&mut self.slots) {
            if let (Some(cause), true) = (slot.error.take(), first.is_ok()) {
                first = Err(self.kind.error_at(index, cause));
            }
        }
        first
    }

    /// Every environment with its rows.
    fn rows<'a>(&'a mut self, results: Results<'a>) -> (Vec<(usize, Row<'a>)>, &'a mut Workers) {
        let count = self.slots.len();
        let mut obs = observations(&self.kind.spec, results.obs, count).into_iter();
        let mut lives = results.lives.map(|lives| lives.iter_mut());
        let actions = self.kind.legal_actions.unwrap_or(1);
        let mut legal = results.legal.map(|legal| legal.chunks_exact_mut(actions));
        let mut flags = results.terminated.iter_mut().zip(results.truncated);
        let mut numbers = results.rewards.iter_mut().zip(results.scores);
        let rows = self.slots.iter_mut().enumerate().map_while(|(b, slot)| {
            let ((reward, score), (terminated, truncated)) = (numbers.next()?, flags.next()?);
            let row = Row {
                slot,
                obs: obs.next()?,
                reward,
                terminated,
                truncated,
                score,
                lives: lives.as_mut().and_then(Iterator::next),
                legal: legal.as_mut().and_then(Iterator::next),
            };
            Some((b, row))
        });
        (rows.collect(), &mut self.workers)
    }
}

impl Slot {
    fn new(env: Box<dyn Env>, rng: Rng) -> Self {
        Self {
            env,
            rng,
            started: false,
            ended: false,
            last: None,
            error: None,
            bounded: Vec::new(),
        }
    }

    pub(crate) fn render(&self) -> Result<Picture, EnvError> {
        self.env.render()
    }
}

impl Row<'_> {
    /// Takes an action, or starts the next episode.
    pub(crate) fn take(&mut self, action: Action<'_>, space: &Space, autoreset: Autoreset) {
        self.slot.last = None;
        self.clear();
        match (self.slot.ended, autoreset) {
            (true, Autoreset::NextStep) => self.reset(),
            (true, _) => {
                self.slot.error = Some(EnvError::Failed(
                    "its episode is over; reset it before the next step \
                     (options={\"reset_mask\": …})"
                        .into(),
                ))
            }
            (false, _) => self.step(action, space, autoreset == Autoreset::SameStep),
        }
    }

    /// No reward, and no end of an episode.
    pub(crate) fn clear(&mut self) {
        (*self.reward, *self.terminated, *self.truncated) = (0.0, false, false);
        *self.score = f64::NAN;
    }

    pub(crate) fn reset(&mut self) {
        let slot = &mut *self.slot;
        (slot.started, slot.ended) = (true, false);
        let obs = ObsMut::new(self.obs.map_mut(ViewMut::reborrow));
        if let Err(error) = slot.env.reset(&mut slot.rng, obs) {
            (slot.ended, slot.error) = (true, Some(error));
        }
    }

    fn step(&mut self, action: Action<'_>, space: &Space, resets: bool) {
        let slot = &mut *self.slot;
        if !slot.started {
            let text = "it was not reset before its first step";
            slot.error = Some(EnvError::Failed(text.into()));
            return;
        }
        let action = action.within(space, &mut slot.bounded);
        let obs = ObsMut::new(self.obs.map_mut(ViewMut::reborrow));
        let step = match slot.env.step(action, &mut slot.rng, obs) {
            Ok(step) => step,
            Err(error) => {
                // After a wrong action the environment is as before; after a failure it has to be reset.
                slot.started = matches!(error, EnvError::Action { .. });
                slot.error = Some(error);
                return;
            }
        };
        *self.reward = f64::from(step.reward);
        (*self.terminated, *self.truncated) = (step.terminated, step.truncated);
        if !step.done() {
            return;
        }
        slot.ended = true;
        *self.score = slot.env.game_score().unwrap_or(f64::NAN);
        if resets {
            let leaves = self.obs.leaves();
            let mut legal = vec![0; self.legal.as_ref().map_or(0, |legal| legal.len())];
            if !legal.is_empty() {
                slot.env.legal_actions(&mut legal);
            }
            slot.last = Some(Last {
                obs: leaves.iter().map(|(_, view)| view.bytes.to_vec()).collect(),
                lives: slot.env.lives(),
                legal,
            });
            self.reset();
        }
    }

    /// Writes what else an environment shows.
    pub(crate) fn show(&mut self) {
        if let Some(lives) = &mut self.lives {
            **lives = self.slot.env.lives().map_or(0, i64::from);
        }
        if let Some(legal) = &mut self.legal {
            self.slot.env.legal_actions(legal);
        }
    }
}

/// The number of processors.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// One row of the observations for each environment.
fn observations<'a>(
    spec: &'a Tree<Spec>,
    arrays: Vec<&'a mut [u8]>,
    count: usize,
) -> Vec<Tree<ViewMut<'a>>> {
    let mut arrays = arrays.into_iter();
    split(spec, &mut arrays, count)
}

fn split<'a>(
    spec: &'a Tree<Spec>,
    arrays: &mut impl Iterator<Item = &'a mut [u8]>,
    count: usize,
) -> Vec<Tree<ViewMut<'a>>> {
    match spec {
        Tree::Leaf(spec) => {
            let bytes = arrays.next().unwrap_or_default();
            let rows = bytes.chunks_exact_mut(spec.bytes().max(1));
            let view = |bytes| {
                Tree::Leaf(ViewMut {
                    dtype: spec.dtype,
                    shape: &spec.shape,
                    bytes,
                })
            };
            rows.map(view).collect()
        }
        Tree::Node(parts) => {
            let mut rows: Vec<Vec<(String, Tree<ViewMut<'a>>)>> = (0..count)
                .map(|_| Vec::with_capacity(parts.len()))
                .collect();
            for (name, part) in parts {
                let part = split(part, arrays, count);
                for (row, part) in rows.iter_mut().zip(part) {
                    row.push((name.clone(), part));
                }
            }
            rows.into_iter().map(Tree::Node).collect()
        }
    }
}

/// The threads that step the environments of a pool: the caller's, and others beside it.
struct Workers {
    threads: usize,
    /// The threads beside the caller's, started when they are needed first, and the process that
    /// started them: a fork has none.
    started: Option<(rayon::ThreadPool, u32)>,
    /// Seconds that one environment takes, about: what it took at best lately.
    each: f64,
}

/// How long the caller stays awake for the others.
const AWAKE: Duration = Duration::from_micros(200);

/// Less work than this is not worth another thread.
const WORTH_A_THREAD_S: f64 = 20e-6;

impl Workers {
    fn new(threads: usize) -> Self {
        Self {
            threads,
            started: None,
            each: 0.0,
        }
    }

    /// Does the work of every row, on as many threads as are worth it. Threads take rows as they
    /// become free: an environment that takes long does not delay the others. The caller's thread
    /// begins while the others wake up.
    fn each<R: Send>(&mut self, rows: Vec<R>, work: impl Fn(R) + Sync + Send) {
        let (count, start) = (rows.len(), Instant::now());
        let together = match self.each {
            each if each > 0.0 => (WORTH_A_THREAD_S / each).ceil().max(1.0) as usize,
            _ => count,
        };
        let threads = count.div_ceil(together.max(1)).min(self.threads);
        let others = match threads {
            0 | 1 => None,
            _ => self.others(),
        };
        match others {
            Some(others) => {
                let rows = Mutex::new(rows.into_iter());
                let take = || -> Vec<R> {
                    let mut rows = rows.lock().unwrap_or_else(PoisonError::into_inner);
                    rows.by_ref().take(together).collect()
                };
                let working = AtomicUsize::new(threads - 1);
                let work_off = || {
                    let taken = std::iter::from_fn(|| Some(take()).filter(|rows| !rows.is_empty()));
                    taken.flatten().for_each(&work);
                };
                others.in_place_scope(|scope| {
                    for _ in 1..threads {
                        scope.spawn(|_| {
                            work_off();
                            working.fetch_sub(1, Ordering::Relaxed);
                        });
                    }
                    work_off();
                    // The others are at their last rows. To fall asleep and to be woken would take
                    // longer than these.
                    let began = Instant::now();
                    while working.load(Ordering::Relaxed) > 0 && began.elapsed() < AWAKE {
                        std::hint::spin_loop();
                    }
                });
            }
            None => rows.into_iter().for_each(work),
        }
        let took = start.elapsed().as_secs_f64() * threads.max(1) as f64 / count as f64;
        self.each = match self.each {
            each if each > 0.0 && took > each => each * 1.02,
            _ => took,
        };
    }

    fn others(&mut self) -> Option<&rayon::ThreadPool> {
        let process = std::process::id();
        if let Some((pool, by)) = self.started.take() {
            match by == process {
                true => self.started = Some((pool, by)),
                // Its threads are the parent's.
                false => std::mem::forget(pool),
            }
        }
        if self.started.is_none() {
            let builder = rayon::ThreadPoolBuilder::new().num_threads(self.threads - 1);
            let builder = builder.thread_name(|index| format!("envs-{index}"));
            // Without threads the work is done by the caller.
            self.started = Some((builder.build().ok()?, process));
        }
        self.started.as_ref().map(|(pool, _)| pool)
    }
}
