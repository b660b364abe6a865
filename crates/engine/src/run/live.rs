//! Live state of a run, for the dashboard and `starling status`.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use starling_record::{Activity, Component, Joining, Live, Role, host_name};

use super::Training;
use super::parts::Collectors;
use crate::link::evaluations::{Evaluations, Evaluator};
use crate::link::ledger::Counts;
use crate::link::{LearnerLink, Places, RemoteActor};
use crate::measure::Profile;

/// How often it is written.
const EVERY: Duration = Duration::from_secs(1);

impl Training {
    /// Whether a checkpoint was asked for since the last call.
    pub(super) fn is_asked(&self) -> bool {
        // Looked at in every round: usually nothing is written.
        self.asked.load(Ordering::Relaxed) && self.asked.swap(false, Ordering::Relaxed)
    }

    /// Writes `live.json` from now on, until what is returned is dropped.
    pub(super) fn show_live(&self) -> LiveThread {
        let linked = match &self.collectors {
            Collectors::Serial(_) => None,
            Collectors::Linked(linked) => {
                Some((linked.inbox.link(), Arc::clone(linked.inbox.places())))
            }
        };
        LiveThread::start(Source {
            path: self.recorder.live_path(),
            profile: Arc::clone(&self.profile),
            linked,
            evaluations: self.evaluations(),
            before: Before::default(),
        })
    }
}

/// The thread that writes `live.json`, also while the run waits for something.
pub(super) struct LiveThread {
    ending: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl LiveThread {
    fn start(mut source: Source) -> Self {
        let ending = Arc::new(AtomicBool::new(false));
        let theirs = Arc::clone(&ending);
        let thread = std::thread::Builder::new().name("live".into());
        let thread = thread.spawn(move || {
            loop {
                let ended = theirs.load(Ordering::Relaxed);
                // A failed write does not end the run. A full disk is noticed elsewhere.
                if let Err(error) = source.look(ended).write(&source.path) {
                    tracing::debug!("{error}");
                }
                if ended {
                    return;
                }
                std::thread::park_timeout(EVERY);
            }
        });
        let thread = thread.inspect_err(|error| tracing::warn!("no live state: {error}"));
        Self {
            ending,
            thread: thread.ok(),
        }
    }
}

impl Drop for LiveThread {
    fn drop(&mut self) {
        self.ending.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            if thread.join().is_err() {
                tracing::error!("the thread that writes live.json panicked");
            }
        }
    }
}

/// Where the live state comes from.
struct Source {
    path: PathBuf,
    profile: Arc<Profile>,
    linked: Option<(Arc<dyn LearnerLink>, Arc<Places>)>,
    evaluations: Option<Arc<Evaluations>>,
    before: Before,
}

/// What was counted when it was looked at last.
#[derive(Default)]
struct Before {
    at: Option<Instant>,
    /// Steps of actors by name.
    steps: HashMap<String, u64>,
    bytes: u64,
}

impl Source {
    fn look(&mut self, ended: bool) -> Live {
        let seconds = self
            .before
            .at
            .map(|at| at.elapsed().as_secs_f64().max(1e-3));
        self.before.at = Some(Instant::now());
        let mut learner = Role {
            role: "learner".into(),
            name: format!("{}:{}", host_name(), std::process::id()),
            state: "learning".into(),
            silent_s: Some(0.0),
            ..Role::default()
        };
        let (mut actors, mut joining) = (Vec::new(), None);
        match &self.linked {
            None => learner.state = "collecting and learning in turns".into(),
            Some((link, places)) => match link.remote_actors() {
                Some((all, counts)) => {
                    joining = Some(self.before.joining(&counts, places, seconds));
                    actors = self.before.actors(all, seconds);
                }
                None => {
                    let held = places.held();
                    learner.state = format!("learning, {held} actors in this process");
                }
            },
        }
        let evaluations = self.evaluations.as_ref();
        let evaluators = evaluations.map(|all| all.evaluators()).unwrap_or_default();
        let evaluators = evaluators.into_iter().map(evaluator_role);
        let live = Live {
            ended,
            profile: components(&self.profile),
            roles: [learner]
                .into_iter()
                .chain(actors)
                .chain(evaluators)
                .collect(),
            joining,
            ..Live::default()
        };
        live.of_this_process()
    }
}

impl Before {
    fn joining(&mut self, counts: &Counts, places: &Places, seconds: Option<f64>) -> Joining {
        let bytes = counts.bytes - std::mem::replace(&mut self.bytes, counts.bytes);
        Joining {
            places: places.len() as u64,
            joined: counts.joined,
            left: counts.left,
            lost: counts.lost,
            reconnects: counts.reconnects,
            duplicates: counts.duplicates,
            refused: counts.refused,
            bytes_per_s: seconds.map_or(0.0, |seconds| bytes as f64 / seconds),
        }
    }

    fn actors(&mut self, actors: Vec<RemoteActor>, seconds: Option<f64>) -> Vec<Role> {
        let mut steps = HashMap::new();
        let roles = actors.into_iter().map(|actor| {
            let before = self.steps.get(&actor.name).copied().unwrap_or(0);
            let new = actor.steps.saturating_sub(before);
            steps.insert(actor.name.clone(), actor.steps);
            actor_role(actor, seconds.map(|seconds| new as f64 / seconds))
        });
        let roles = roles.collect();
        self.steps = steps;
        roles
    }
}

fn components(profile: &Profile) -> Vec<Component> {
    let components = profile.components().into_iter();
    let components = components.map(|(name, activities)| Component {
        name: name.to_owned(),
        activities: activities
            .into_iter()
            .map(|(name, spent)| Activity {
                name: name.to_owned(),
                seconds: spent.time.as_secs_f64(),
                times: spent.times,
            })
            .collect(),
    });
    components.collect()
}

fn actor_role(actor: RemoteActor, steps_per_s: Option<f64>) -> Role {
    let Some((_, envs)) = actor.place else {
        return Role {
            role: "spare".into(),
            name: actor.name,
            state: "waits for a place".into(),
            silent_s: Some(actor.silent.as_secs_f64()),
            ..Role::default()
        };
    };
    let state = match actor.away {
        None => "connected",
        Some(_) => "no connection",
    };
    Role {
        role: "actor".into(),
        name: actor.name,
        state: state.into(),
        envs: Some(envs as u64),
        parcels: Some(actor.parcels),
        steps: Some(actor.steps),
        steps_per_s,
        lag: actor.lag,
        joined_s: Some(actor.held.as_secs_f64()),
        silent_s: Some(actor.silent.as_secs_f64()),
        away_s: actor.away.map(|away| away.as_secs_f64()),
        reconnects: Some(actor.reconnects),
        ..Role::default()
    }
}

fn evaluator_role(evaluator: Evaluator) -> Role {
    let doing = match evaluator.playing {
        Some(step) => format!("evaluates step {step}"),
        None => "waits for weights".into(),
    };
    Role {
        role: "evaluator".into(),
        name: evaluator.name,
        state: format!("{doing}, {} reported", evaluator.evaluated),
        silent_s: Some(evaluator.heard.elapsed().as_secs_f64()),
        reported: Some(evaluator.evaluated),
        evaluating: evaluator.playing,
        ..Role::default()
    }
}
