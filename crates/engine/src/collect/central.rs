//! Central inference: threads that only step environments, and one thread that chooses all actions
//! in large batches.
//!
//! The environments are divided into two groups. While the threads step one group, actions are
//! chosen for the other, so neither side waits if both take the same time. Each group is divided
//! into more crews than there are threads, and a free thread takes the next waiting crew, because
//! steps that begin a new episode take many times longer than others.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TryRecvError, unbounded};

use starling_algos::{Part, Policy};
use starling_envs::Pulse;
use starling_nets::Device;

use super::crew::{CollectError, Crew};
use super::local::{panic_message, pin_to_core};
use super::serve::Station;
use crate::EngineError;
use crate::link::patience::SLICE;
use crate::link::{Lease, LinkError, Pace, Parcel};

/// How long a thread that has nothing to do looks for work before it sleeps, where a GPU acts: a
/// sleeping thread takes longer to wake than a GPU to choose actions.
const AWAKE: Duration = Duration::from_micros(500);

/// Groups of environments that take turns.
pub(crate) const GROUPS: usize = 2;

/// Into how many crews a group of `envs` environments is cut: a multiple of the threads, so that
/// all of them end at the same time.
pub(crate) fn crews(envs: usize, threads: usize) -> usize {
    const PER_THREAD: usize = 4;
    const LEAST_ENVS: usize = 2;
    threads * (envs / threads / LEAST_ENVS).clamp(1, PER_THREAD)
}

/// Environments and the one policy that acts for all.
pub(crate) struct Central {
    policy: Box<dyn Policy>,
    groups: Vec<Group>,
    threads: usize,
    /// Threads of one operation of the policy.
    torch_threads: usize,
}

/// Environments whose actions are chosen together.
struct Group {
    /// Away while their environments step.
    crews: Vec<Option<Box<Crew>>>,
    /// The row whose actions come next.
    t: usize,
    /// Number of the parcel under way.
    number: u64,
    /// Steps of the run when the rollout under way began.
    env_steps: u64,
    /// The rollout is begun; if not, it waits for weights.
    begun: bool,
    /// Used buffers for the next rollout.
    spares: Vec<starling_envs::Rollout>,
}

/// A crew on its way to a thread.
struct Job {
    crew: Box<Crew>,
    group: usize,
    number: usize,
    task: Task,
}

/// What a thread does with a crew.
#[derive(Clone, Copy)]
enum Task {
    /// Begins the first rollout, with weights of this version: the environments start, and may
    /// take many steps before.
    Begin(u64),
    /// Takes the actions of this row.
    Step(usize),
}

/// A crew on its way back, or what went wrong.
struct Done {
    group: usize,
    number: usize,
    crew: Result<Box<Crew>, EngineError>,
}

impl Central {
    /// The crews of each group, in the order of their environments.
    pub(crate) fn new(
        policy: Box<dyn Policy>,
        crews: Vec<Vec<Crew>>,
        threads: usize,
        torch_threads: usize,
    ) -> Self {
        let groups = crews.into_iter().map(|crews| Group {
            crews: crews.into_iter().map(|crew| Some(Box::new(crew))).collect(),
            t: 0,
            number: 0,
            env_steps: 0,
            begun: false,
            spares: Vec::new(),
        });
        Self {
            policy,
            groups: groups.collect(),
            threads,
            torch_threads,
        }
    }

    /// What shows whether the environments are moving.
    pub(crate) fn pulses(&self) -> impl Iterator<Item = Arc<Pulse>> {
        let crews = self
            .groups
            .iter()
            .flat_map(|group| group.crews.iter().flatten());
        crews.map(|crew| Arc::clone(crew.pulse()))
    }

    /// All crews that are not away.
    pub(super) fn crews_mut(&mut self) -> impl Iterator<Item = &mut Crew> {
        let crews = self.groups.iter_mut().flat_map(|group| &mut group.crews);
        crews.flatten().map(|crew| &mut **crew)
    }

    /// Collects until the run ends; each lease is the place of one group. The calling thread acts,
    /// and others step.
    pub(super) fn run(
        self,
        station: &Station,
        leases: &[Lease],
        pin: bool,
    ) -> Result<(), EngineError> {
        let (jobs, todo) = unbounded();
        let (done, results) = unbounded();
        if pin {
            pin_to_core(self.threads);
        }
        std::thread::scope(|scope| {
            for thread in 0..self.threads {
                let (todo, done) = (todo.clone(), done.clone());
                let name = format!("envs-{thread}");
                let work = move || {
                    if pin {
                        pin_to_core(thread);
                    }
                    step(station, thread, &todo, &done);
                };
                let builder = std::thread::Builder::new().name(name.clone());
                let started = builder.spawn_scoped(scope, work);
                started.map_err(|error| {
                    EngineError::Thread(format!("{name} did not start: {error}"))
                })?;
            }
            // The threads end with the last of what they are given to do.
            self.act_for_all(station, leases, jobs, &results)
        })
    }

    fn act_for_all(
        mut self,
        station: &Station,
        leases: &[Lease],
        jobs: Sender<Job>,
        results: &Receiver<Done>,
    ) -> Result<(), EngineError> {
        starling_nets::set_threads(self.torch_threads);
        starling_nets::urgent_stream(station.device);
        let mut version = None;
        for turn in (0..self.groups.len()).cycle() {
            self.gather(turn, station, results)?;
            let group = &mut self.groups[turn];
            let steps = group.rollout_steps();
            if group.begun && group.t == steps {
                self.deliver(turn, station, &leases[turn])?;
            }
            // In lockstep the weights of the next round need the rollouts of all groups.
            let waits = station.pace != Pace::Free && self.is_ahead(turn, leases);
            if !self.groups[turn].begun && !waits {
                let began = Instant::now();
                let round = leases[turn].first_round + self.groups[turn].number;
                let (weights, env_steps) = station.weights(&leases[turn], round)?;
                station.profile.add("central", "wait", began.elapsed());
                if version != Some(weights.version) {
                    self.policy.load(&weights.values)?;
                    version = Some(weights.version);
                }
                let group = &mut self.groups[turn];
                if group.number == 0 {
                    group.send(turn, Task::Begin(weights.version), &jobs);
                    self.gather(turn, station, results)?;
                    self.groups[turn].begun(env_steps);
                } else {
                    group.begin(weights.version, env_steps)?;
                }
            }
            if self.groups[turn].begun {
                self.act(turn, station, &jobs);
            }
        }
        Ok(())
    }

    /// Whether some other group is still in an earlier round.
    fn is_ahead(&self, turn: usize, leases: &[Lease]) -> bool {
        let round = |turn: usize| leases[turn].first_round + self.groups[turn].number;
        (0..self.groups.len()).any(|other| round(other) < round(turn))
    }

    /// Waits until all crews of a group are back.
    fn gather(
        &mut self,
        turn: usize,
        station: &Station,
        results: &Receiver<Done>,
    ) -> Result<(), EngineError> {
        let began = Instant::now();
        while self.groups[turn].crews.iter().any(Option::is_none) {
            let done = match soon(results, station) {
                Some(done) => Ok(done),
                None => results.recv_timeout(SLICE),
            };
            match done {
                Ok(done) => self.groups[done.group].crews[done.number] = Some(done.crew?),
                // The learner watches over the environments and ends the run if one is stuck.
                Err(RecvTimeoutError::Timeout) if !station.link.is_closed() => {}
                Err(_) => return Err(LinkError::Closed.into()),
            }
        }
        station.profile.add("central", "wait", began.elapsed());
        Ok(())
    }

    /// Sends a group's full rollouts to the learner.
    fn deliver(
        &mut self,
        turn: usize,
        station: &Station,
        lease: &Lease,
    ) -> Result<(), EngineError> {
        let began = Instant::now();
        let group = &mut self.groups[turn];
        let mut parts = group.parts(group.t);
        self.policy.finish(turn, &mut parts);
        drop(parts);
        let crews = group.crews.iter_mut().flatten();
        let mut parcel = Parcel {
            lease: lease.id,
            number: group.number,
            rollouts: Vec::new(),
            episodes: Vec::new(),
        };
        let mut spares = std::mem::take(&mut group.spares).into_iter();
        for crew in crews {
            parcel.episodes.extend(crew.episodes());
            let rollout = crew.take_rollout(spares.next());
            parcel.rollouts.push((crew.place().first_env, rollout));
        }
        station.profile.add("central", "publish", began.elapsed());
        let began = Instant::now();
        let spares = station.link.send(parcel, station.patience)?;
        station.profile.add("central", "wait", began.elapsed());
        group.spares = spares.unwrap_or_default();
        group.number += 1;
        group.t = 0;
        group.begun = false;
        Ok(())
    }

    /// Chooses the actions of a group and lets its environments take them.
    fn act(&mut self, turn: usize, station: &Station, jobs: &Sender<Job>) {
        let began = Instant::now();
        let group = &mut self.groups[turn];
        let t = group.t;
        let mut parts = group.parts(t);
        self.policy.act_together(t, turn, &mut parts);
        drop(parts);
        station.profile.add("central", "infer", began.elapsed());
        group.t += 1;
        group.send(turn, Task::Step(t), jobs);
    }
}

impl Group {
    fn rollout_steps(&self) -> usize {
        let first = self.crews.iter().flatten().next();
        first.map_or(0, |crew| crew.rollout().steps())
    }

    fn begin(&mut self, version: u64, env_steps: u64) -> Result<(), CollectError> {
        for crew in self.crews.iter_mut().flatten() {
            crew.begin(version)?;
        }
        self.begun(env_steps);
        Ok(())
    }

    fn begun(&mut self, env_steps: u64) {
        self.begun = true;
        self.env_steps = env_steps;
    }

    /// Sends all crews to the threads.
    fn send(&mut self, group: usize, task: Task, jobs: &Sender<Job>) {
        for (number, crew) in self.crews.iter_mut().enumerate() {
            if let Some(crew) = crew.take() {
                let job = Job {
                    crew,
                    group,
                    number,
                    task,
                };
                // If all threads have ended, waiting for their results says so.
                let _ = jobs.send(job);
            }
        }
    }

    fn parts(&mut self, t: usize) -> Vec<Part<'_>> {
        let env_steps = self.env_steps;
        let crews = self.crews.iter_mut().flatten();
        crews.map(|crew| crew.part(t, env_steps)).collect()
    }
}

/// What arrives while the thread stays awake.
fn soon<T>(receiver: &Receiver<T>, station: &Station) -> Option<T> {
    if station.device == Device::Cpu {
        return None;
    }
    let began = Instant::now();
    while began.elapsed() < AWAKE {
        match receiver.try_recv() {
            Err(TryRecvError::Empty) => std::thread::yield_now(),
            arrived => return arrived.ok(),
        }
    }
    None
}

/// What a thread that only steps environments does.
fn step(station: &Station, thread: usize, todo: &Receiver<Job>, done: &Sender<Done>) {
    loop {
        let began = Instant::now();
        let job = match soon(todo, station) {
            Some(job) => Ok(job),
            None => todo.recv(),
        };
        let Ok(job) = job else {
            return;
        };
        station.profile.add("environments", "wait", began.elapsed());
        let began = Instant::now();
        let mut crew = job.crew;
        let stepped = catch_unwind(AssertUnwindSafe(|| match job.task {
            Task::Begin(version) => crew.begin(version),
            Task::Step(t) => crew.step(t),
        }));
        station.profile.add("environments", "step", began.elapsed());
        let crew = match stepped {
            Ok(Ok(())) => Ok(crew),
            Ok(Err(error)) => Err(error.into()),
            Err(panic) => {
                let said = panic_message(&*panic);
                Err(EngineError::Thread(format!(
                    "envs-{thread} panicked: {said}"
                )))
            }
        };
        let answer = Done {
            group: job.group,
            number: job.number,
            crew,
        };
        if done.send(answer).is_err() {
            return;
        }
    }
}
