//! Central acting: threads that only step environments, and one thread that chooses the actions
//! of all of them in large batches.
//!
//! The environments stand in two groups. While the threads step one, the actions of the other
//! are chosen, so that neither side waits for the other as long as both take the same time.
//! Each group is cut into more crews than there are threads, and a free thread takes the next
//! waiting crew: where a new episode begins, a step takes many times longer.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};

use starling_algos::{Part, Policy};
use starling_envs::Pulse;

use crate::collect::crew::{CollectError, Crew};
use crate::collect::pool::{Pace, Station};
use crate::link::patience::SLICE;
use crate::{EngineError, Parcel, Transport as _, TransportError};

/// Groups of environments that take turns.
pub(crate) const GROUPS: usize = 2;

/// Into how many crews a group of `envs` environments is cut.
pub(crate) fn crews(envs: usize, threads: usize) -> usize {
    const PER_THREAD: usize = 4;
    const LEAST_ENVS: usize = 4;
    (threads * PER_THREAD).min(envs / LEAST_ENVS).max(threads)
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
    /// Number of the rollout under way.
    rollout: u64,
    /// The rollout is begun; if not, it waits for weights.
    begun: bool,
    /// Used buffers for the next rollout.
    spares: Vec<starling_envs::Rollout>,
}

/// A crew on its way to a thread, which is to take the actions of row `t`.
struct Job {
    crew: Box<Crew>,
    group: usize,
    number: usize,
    t: usize,
}

/// A crew on its way back, or what went wrong.
struct Done {
    group: usize,
    number: usize,
    crew: Result<Box<Crew>, CollectError>,
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
            rollout: 0,
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

    pub(crate) fn groups(&self) -> usize {
        self.groups.len()
    }

    /// What shows whether the environments are moving.
    pub(crate) fn pulses(&self) -> impl Iterator<Item = Arc<Pulse>> {
        let crews = self
            .groups
            .iter()
            .flat_map(|group| group.crews.iter().flatten());
        crews.map(|crew| Arc::clone(crew.pulse()))
    }

    /// Starts all threads.
    pub(crate) fn start(
        self: Box<Self>,
        station: &Station,
    ) -> Result<Vec<JoinHandle<()>>, TransportError> {
        let (jobs, todo) = unbounded();
        let (done, results) = unbounded();
        let mut handles = Vec::new();
        for thread in 0..self.threads {
            let (its_station, todo, done) = (station.clone(), todo.clone(), done.clone());
            let name = format!("envs-{thread}");
            let who = name.clone();
            let work = move || {
                its_station.guard(&who, || {
                    step(&its_station, &todo, &done);
                    Ok(())
                });
            };
            handles.push(station.spawn(name, thread, work)?);
        }
        let core = self.threads;
        let its_station = station.clone();
        let work = move || {
            its_station.guard("central", || self.run(&its_station, &jobs, &results));
        };
        handles.push(station.spawn("central".into(), core, work)?);
        Ok(handles)
    }

    /// What the acting thread does.
    fn run(
        mut self,
        station: &Station,
        jobs: &Sender<Job>,
        results: &Receiver<Done>,
    ) -> Result<(), EngineError> {
        starling_nets::set_threads(self.torch_threads);
        let mut version = None;
        for turn in (0..self.groups.len()).cycle() {
            self.gather(turn, station, results)?;
            let group = &mut self.groups[turn];
            let steps = group.rollout_steps();
            if group.begun && group.t == steps {
                self.deliver(turn, station)?;
            }
            // In lockstep the weights of the next round need the rollouts of all groups.
            let waits = station.pace != Pace::Free && self.is_behind(turn);
            if !self.groups[turn].begun && !waits {
                let began = Instant::now();
                let weights = station.weights(self.groups[turn].rollout)?;
                station.profile.add("central", "wait", began.elapsed());
                if version != Some(weights.version) {
                    self.policy.load(&weights.values)?;
                    version = Some(weights.version);
                }
                self.groups[turn].begin(weights.version)?;
            }
            if self.groups[turn].begun {
                self.act(turn, station, jobs);
            }
        }
        Ok(())
    }

    /// Whether some other group is still in an earlier round.
    fn is_behind(&self, turn: usize) -> bool {
        let round = self.groups[turn].rollout;
        self.groups.iter().any(|group| group.rollout < round)
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
            match results.recv_timeout(SLICE) {
                Ok(done) => self.groups[done.group].crews[done.number] = Some(done.crew?),
                // The learner watches over the environments and ends the run if one is stuck.
                Err(RecvTimeoutError::Timeout) if !station.transport.is_closed() => {}
                Err(_) => return Err(TransportError::Closed.into()),
            }
        }
        station.profile.add("central", "wait", began.elapsed());
        Ok(())
    }

    /// Sends a group's full rollouts to the learner.
    fn deliver(&mut self, turn: usize, station: &Station) -> Result<(), EngineError> {
        let began = Instant::now();
        let group = &mut self.groups[turn];
        let (t, env_steps) = (group.t, station.steps());
        let mut parts = group.parts(t, env_steps);
        self.policy.finish(turn, &mut parts);
        drop(parts);
        let crews = group.crews.iter_mut().flatten();
        let mut parcel = Parcel {
            actor: turn,
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
        let spares = station.transport.send(parcel, station.patience)?;
        station.profile.add("central", "wait", began.elapsed());
        group.spares = spares.unwrap_or_default();
        group.rollout += 1;
        group.t = 0;
        group.begun = false;
        Ok(())
    }

    /// Chooses the actions of a group and lets its environments take them.
    fn act(&mut self, turn: usize, station: &Station, jobs: &Sender<Job>) {
        let began = Instant::now();
        let group = &mut self.groups[turn];
        let t = group.t;
        let mut parts = group.parts(t, station.steps());
        self.policy.act_together(t, turn, &mut parts);
        drop(parts);
        station.profile.add("central", "infer", began.elapsed());
        group.t += 1;
        for (number, crew) in group.crews.iter_mut().enumerate() {
            if let Some(crew) = crew.take() {
                let job = Job {
                    crew,
                    group: turn,
                    number,
                    t,
                };
                // If all threads have ended, waiting for their results says so.
                let _ = jobs.send(job);
            }
        }
    }
}

impl Group {
    fn rollout_steps(&self) -> usize {
        let first = self.crews.iter().flatten().next();
        first.map_or(0, |crew| crew.rollout().steps())
    }

    fn begin(&mut self, version: u64) -> Result<(), CollectError> {
        for crew in self.crews.iter_mut().flatten() {
            crew.begin(version)?;
        }
        self.begun = true;
        Ok(())
    }

    fn parts(&mut self, t: usize, env_steps: u64) -> Vec<Part<'_>> {
        let crews = self.crews.iter_mut().flatten();
        crews.map(|crew| crew.part(t, env_steps)).collect()
    }
}

/// What a thread that only steps environments does.
fn step(station: &Station, todo: &Receiver<Job>, done: &Sender<Done>) {
    loop {
        let began = Instant::now();
        let Ok(job) = todo.recv() else {
            return;
        };
        station.profile.add("environments", "wait", began.elapsed());
        let began = Instant::now();
        let mut crew = job.crew;
        let stepped = crew.step(job.t);
        station.profile.add("environments", "step", began.elapsed());
        let answer = Done {
            group: job.group,
            number: job.number,
            crew: stepped.map(|()| crew).map_err(CollectError::from),
        };
        if done.send(answer).is_err() {
            return;
        }
    }
}
