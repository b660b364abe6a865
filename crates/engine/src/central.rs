//! Central acting: threads that only step environments, and one thread that chooses the actions
//! of all of them in large batches.
//!
//! The environments stand in two groups. While the threads step one, the actions of the other
//! are chosen, so that neither side waits for the other as long as both take the same time.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Instant;

use starling_algos::{Part, Policy};

use crate::collect::{CollectError, Crew};
use crate::pool::{Pace, Station};
use crate::{EngineError, Parcel, Transport as _, TransportError};

/// Groups of environments that take turns.
pub(crate) const GROUPS: usize = 2;

/// Environments and the one policy that acts for all.
pub(crate) struct Central {
    policy: Box<dyn Policy>,
    groups: Vec<Group>,
    /// Threads of one operation of the policy.
    torch_threads: usize,
}

/// Environments whose actions are chosen together.
struct Group {
    /// One for each thread; away while its environments step.
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
    t: usize,
}

/// A crew on its way back, or what went wrong.
struct Done {
    group: usize,
    thread: usize,
    crew: Result<Box<Crew>, CollectError>,
}

impl Central {
    /// `crews[g][i]` are the environments of group `g` on thread `i`.
    pub(crate) fn new(
        policy: Box<dyn Policy>,
        crews: Vec<Vec<Crew>>,
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
            torch_threads,
        }
    }

    pub(crate) fn groups(&self) -> usize {
        self.groups.len()
    }

    /// Starts all threads.
    pub(crate) fn start(
        self: Box<Self>,
        station: &Station,
    ) -> Result<Vec<JoinHandle<()>>, TransportError> {
        let threads = self.groups.first().map_or(0, |group| group.crews.len());
        let (done, results) = channel();
        let (mut handles, mut jobs) = (Vec::new(), Vec::new());
        for thread in 0..threads {
            let (job, todo) = channel();
            jobs.push(job);
            let (its_station, done) = (station.clone(), done.clone());
            let work = move || step(&its_station, thread, &todo, &done);
            handles.push(station.spawn(format!("envs-{thread}"), thread, work)?);
        }
        let its_station = station.clone();
        let work = move || {
            its_station.guard(0, || self.run(&its_station, &jobs, &results));
        };
        handles.push(station.spawn("central".into(), threads, work)?);
        Ok(handles)
    }

    /// What the acting thread does.
    fn run(
        mut self,
        station: &Station,
        jobs: &[Sender<Job>],
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
            let done = results.recv_timeout(station.patience).map_err(|error| {
                let what = match error {
                    RecvTimeoutError::Timeout => "the environments of a thread to step",
                    RecvTimeoutError::Disconnected => {
                        "the threads of the environments, which ended"
                    }
                };
                TransportError::TimedOut {
                    who: "the acting thread",
                    what,
                    seconds: station.patience.as_secs(),
                }
            })?;
            self.groups[done.group].crews[done.thread] = Some(done.crew?);
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
    fn act(&mut self, turn: usize, station: &Station, jobs: &[Sender<Job>]) {
        let began = Instant::now();
        let group = &mut self.groups[turn];
        let t = group.t;
        let mut parts = group.parts(t, station.steps());
        self.policy.act_together(t, turn, &mut parts);
        drop(parts);
        station.profile.add("central", "infer", began.elapsed());
        group.t += 1;
        for (crew, jobs) in group.crews.iter_mut().zip(jobs) {
            if let Some(crew) = crew.take() {
                let job = Job {
                    crew,
                    group: turn,
                    t,
                };
                // A thread that ended has left a message, or its silence is noticed.
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
fn step(station: &Station, thread: usize, todo: &Receiver<Job>, done: &Sender<Done>) {
    loop {
        let began = Instant::now();
        let Ok(Job { mut crew, group, t }) = todo.recv() else {
            return;
        };
        station.profile.add("environments", "wait", began.elapsed());
        let began = Instant::now();
        let stepped = crew.step(t);
        station.profile.add("environments", "step", began.elapsed());
        let crew = match stepped {
            Ok(()) => Ok(crew),
            Err(error) => Err(error.into()),
        };
        let answer = Done {
            group,
            thread,
            crew,
        };
        if done.send(answer).is_err() {
            return;
        }
    }
}
