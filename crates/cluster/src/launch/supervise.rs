//! Supervises all roles of a plan: shared state, and shutdown.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::program::{Installed, Program};
use super::tend::{Listening, tend};
use super::{Host, Kind, LaunchError, Plan, Role};

/// State of a role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Its host is being prepared.
    Preparing,
    /// It waits for the learner.
    Waiting,
    /// It runs.
    Running,
    /// It failed and will be started again.
    Pausing,
    /// It is told to stop.
    Stopping,
    /// It has ended.
    Ended,
    /// It failed and will not be restarted.
    Failed,
}

/// A role, for display.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// Such as `actor 3`.
    pub role: String,
    /// Where.
    pub host: String,
    /// Its state.
    pub standing: Standing,
    /// Restarts so far.
    pub restarts: u64,
    /// When it entered this state.
    pub since: Instant,
    /// Its last line.
    pub said: String,
}

/// How a launch ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The run is complete.
    Finished,
    /// It was interrupted; its checkpoint is written.
    Interrupted,
}

/// What all roles share.
pub(super) struct Shared {
    pub(super) plan: Plan,
    pub(super) program: Program,
    /// Folder of the roles' logs.
    pub(super) logs: Option<PathBuf>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    views: Vec<Option<View>>,
    /// The folder of the run.
    run: Option<String>,
    /// By learner, the join file for its actors.
    joined: HashMap<usize, Joined>,
    /// Learner 0's join file for other learners.
    group: Option<Joined>,
    phase: Phase,
    failure: Option<LaunchError>,
    /// Hosts that are prepared, or why not.
    installed: HashMap<Host, Arc<Mutex<Option<Installed>>>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Joined {
    pub(super) join: String,
    /// How often the learner has started.
    pub(super) start: u64,
}

/// What roles are to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    /// Run.
    #[default]
    Going,
    /// The learner is to stop, and the others with it.
    Interrupted,
    /// The run is over: the others end by themselves.
    Over,
    /// All are to stop now.
    Stopping,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn phase(&self) -> Phase {
        self.lock().phase
    }

    /// Phases only go forward.
    pub(super) fn enter(&self, phase: Phase) {
        let mut state = self.lock();
        state.phase = state.phase.max(phase);
        self.changed.notify_all();
    }

    pub(super) fn fail(&self, error: LaunchError) {
        self.lock().failure.get_or_insert(error);
        self.enter(Phase::Stopping);
    }

    /// The join file that a role needs.
    pub(super) fn joined(&self, role: &Role) -> Option<Joined> {
        let state = self.lock();
        match role.kind {
            Kind::Learner => state.group.clone(),
            Kind::Actor | Kind::Evaluator => state.joined.get(&role.serves).cloned(),
        }
    }

    pub(super) fn run(&self) -> Option<String> {
        self.lock().run.clone()
    }

    /// A learner, by number, lets others join.
    pub(super) fn set_joined(&self, learner: usize, told: Listening) {
        let mut state = self.lock();
        let next = |before: Option<&Joined>, join: serde_json::Value| Joined {
            join: join.to_string(),
            start: before.map_or(1, |joined| joined.start + 1),
        };
        if learner == 0 {
            state.run = Some(told.run);
        }
        if let Some(join) = told.join {
            let joined = next(state.joined.get(&learner), join);
            state.joined.insert(learner, joined);
        }
        if let Some(join) = told.learners {
            state.group = Some(next(state.group.as_ref(), join));
        }
        self.changed.notify_all();
    }

    /// Waits a little for a change.
    pub(super) fn pause(&self, limit: Duration) {
        let waited = self.changed.wait_timeout(self.lock(), limit);
        drop(waited);
    }

    pub(super) fn note(&self, at: usize, change: impl FnOnce(&mut View)) {
        if let Some(Some(view)) = self.lock().views.get_mut(at) {
            change(view);
        }
    }

    pub(super) fn stand(&self, at: usize, standing: Standing) {
        self.note(at, |view| {
            if view.standing != standing {
                view.standing = standing;
                view.since = Instant::now();
            }
        });
    }

    /// The program on a host; several roles of one host prepare it once.
    pub(super) fn installed(&self, at: usize, host: &Host) -> Result<Installed, LaunchError> {
        let slot = Arc::clone(self.lock().installed.entry(host.clone()).or_default());
        let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(installed) = &*slot {
            return Ok(installed.clone());
        }
        let say = |what: &str| self.note(at, |view| view.said = what.to_owned());
        let installed = self.program.install(&self.plan, host, &say)?;
        Ok(slot.insert(installed).clone())
    }
}

/// The processes of a plan, for as long as it lives.
pub struct Launch {
    shared: Arc<Shared>,
    learner: Option<JoinHandle<()>>,
    others: Vec<JoinHandle<()>>,
}

/// How long the learner may take to write its last checkpoint.
const LAST_CHECKPOINT: Duration = Duration::from_secs(180);

/// How long the others may take to end after the run.
const FAREWELL: Duration = Duration::from_secs(10);

/// A single wait.
const LOOK: Duration = Duration::from_millis(100);

impl Launch {
    /// Starts all roles. Each has its own log file in the folder `logs`.
    ///
    /// # Errors
    /// When the plan makes no sense.
    pub fn start(plan: Plan, logs: Option<PathBuf>) -> Result<Self, LaunchError> {
        let roles = plan.roles()?;
        let state = State {
            views: roles.iter().map(|role| Some(view(role))).collect(),
            ..State::default()
        };
        let shared = Arc::new(Shared {
            program: Program::own()?,
            plan,
            logs,
            state: Mutex::new(state),
            changed: Condvar::new(),
        });
        let mut threads = Vec::new();
        for (at, role) in roles.into_iter().enumerate() {
            let shared = Arc::clone(&shared);
            let thread = std::thread::Builder::new().name(format!("role-{at}"));
            let started = thread.spawn(move || tend(&shared, at, &role));
            threads.push(started.map_err(|error| LaunchError::Here(error.to_string()))?);
        }
        let others = threads.split_off(1);
        Ok(Self {
            shared,
            learner: threads.pop(),
            others,
        })
    }

    /// How all roles are.
    pub fn views(&self) -> Vec<View> {
        self.shared.lock().views.iter().flatten().cloned().collect()
    }

    /// The folder of the run on the learner's host, once it is known.
    pub fn run_folder(&self) -> Option<String> {
        self.shared.run()
    }

    /// Waits until the run has ended, or `stop` is set; ends all roles. `watch` is called often.
    ///
    /// # Errors
    /// The role that failed.
    pub fn wait(
        self,
        stop: &AtomicBool,
        mut watch: impl FnMut(&Self),
    ) -> Result<Ending, LaunchError> {
        let mut interrupted: Option<Instant> = None;
        while self.learner.as_ref().is_some_and(|one| !one.is_finished()) {
            if stop.load(Ordering::Relaxed) && interrupted.is_none() {
                interrupted = Some(Instant::now());
                self.shared.enter(Phase::Interrupted);
            }
            if interrupted.is_some_and(|since| since.elapsed() > LAST_CHECKPOINT) {
                self.shared.enter(Phase::Stopping);
            }
            watch(&self);
            self.shared.pause(LOOK);
        }
        self.shared.enter(Phase::Over);
        let over = Instant::now();
        while self.others.iter().any(|one| !one.is_finished()) {
            if over.elapsed() > FAREWELL {
                self.shared.enter(Phase::Stopping);
            }
            watch(&self);
            self.shared.pause(LOOK);
        }
        watch(&self);
        let failure = self.shared.lock().failure.take();
        match (failure, interrupted) {
            (Some(failure), _) => Err(failure),
            (None, Some(_)) => Ok(Ending::Interrupted),
            (None, None) => Ok(Ending::Finished),
        }
    }
}

impl Drop for Launch {
    /// Nothing that was started is left behind.
    fn drop(&mut self) {
        self.shared.enter(Phase::Stopping);
        let threads = self.learner.take().into_iter().chain(self.others.drain(..));
        for thread in threads {
            if thread.join().is_err() {
                tracing::error!("a thread that watches a role panicked");
            }
        }
    }
}

fn view(role: &Role) -> View {
    let name = role.kind.name();
    View {
        role: match role.leads() {
            true => name.to_owned(),
            false => format!("{name} {}", role.number),
        },
        host: role.host.to_string(),
        standing: Standing::Preparing,
        restarts: 0,
        since: Instant::now(),
        said: String::new(),
    }
}
