//! All runs and queues below a folder, read once for all pages that are open.
//!
//! Every change has a number. A page that knows everything up to a number asks for what came later.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use serde_json::{Value, json};
use starling_record::find_runs;
use tokio::sync::watch;
use twox_hash::XxHash3_64;

use crate::process::{Locks, NotAsked, Verified};
use crate::queue::{self, Queue};
use crate::run::{Run, State, names};

/// The runs and queues below a folder.
pub(crate) struct Library {
    root: PathBuf,
    shelf: Mutex<Shelf>,
    /// The number of the last change.
    news: watch::Sender<u64>,
    /// Processes that were asked to stop.
    asked: Mutex<HashSet<(String, i32)>>,
}

#[derive(Default)]
struct Shelf {
    runs: HashMap<String, Arc<Mutex<Run>>>,
    ids: HashMap<PathBuf, String>,
    /// Runs whose folders were deleted, and the number of that change.
    gone: BTreeMap<String, u64>,
    queues: Vec<Queue>,
    queues_changed: u64,
}

impl Library {
    pub(crate) fn new(root: PathBuf) -> Self {
        Self {
            root,
            shelf: Mutex::default(),
            news: watch::Sender::new(0),
            asked: Mutex::default(),
        }
    }

    /// Looks at all files once.
    pub(crate) fn poll(&self) {
        let locks = Locks::read();
        let locks = locks.as_ref();
        let now = SystemTime::now();
        let last = *self.news.borrow();
        let next = last + 1;
        let mut changed = self.discover(next);
        let runs: Vec<_> = self.shelf().runs.values().cloned().collect();
        for run in &runs {
            let mut run = lock(run);
            let (settings, anything) = run.poll(locks, now);
            if settings {
                run.flat_changed = next;
            }
            if settings || anything {
                run.changed = next;
                changed = true;
            }
        }
        changed |= self.poll_queues(locks, next);
        if changed {
            self.news.send_replace(next);
        }
    }

    /// Adds new runs and forgets those that were deleted.
    fn discover(&self, next: u64) -> bool {
        // A folder without runs is no error here.
        let found = find_runs(std::slice::from_ref(&self.root)).unwrap_or_default();
        let mut shelf = self.shelf();
        let mut changed = false;
        for path in &found {
            if shelf.ids.contains_key(path) {
                continue;
            }
            let id = self.id_of(path);
            // One that is being made has no whole files yet, and is found the next time.
            let Ok(run) = Run::open(path, id.clone()) else {
                continue;
            };
            shelf.gone.remove(&id);
            shelf.ids.insert(path.clone(), id.clone());
            shelf.runs.insert(id, Arc::new(Mutex::new(run)));
            changed = true;
        }
        if shelf.ids.len() > found.len() {
            let found: BTreeSet<&PathBuf> = found.iter().collect();
            let gone = shelf.ids.keys().filter(|path| !found.contains(path));
            for path in gone.cloned().collect::<Vec<_>>() {
                if let Some(id) = shelf.ids.remove(&path) {
                    shelf.runs.remove(&id);
                    shelf.gone.insert(id, next);
                    changed = true;
                }
            }
        }
        changed
    }

    fn poll_queues(&self, locks: Option<&Locks>, next: u64) -> bool {
        let mut found = Vec::new();
        queue::find(&self.root, 4, &mut found);
        found.sort();
        let read = |path: &PathBuf| {
            let name = path.strip_prefix(&self.root).unwrap_or(path).display();
            let name = name.to_string();
            let mut queue = Queue::read(path, self.id_of(path), name, locks)?;
            self.link(path, &mut queue);
            Some(queue)
        };
        let queues: Vec<Queue> = found.iter().filter_map(read).collect();
        let mut shelf = self.shelf();
        if shelf.queues == queues {
            return false;
        }
        shelf.queues = queues;
        shelf.queues_changed = next;
        true
    }

    /// Finds the runs of a queue by their names and seeds. Of several the last one counts.
    fn link(&self, path: &Path, queue: &mut Queue) {
        let shelf = self.shelf();
        let below = shelf.ids.iter().filter(|(run, _)| run.starts_with(path));
        let mut below: Vec<(&PathBuf, &String)> = below.collect();
        below.sort();
        let mut by_name: HashMap<(String, u64), &String> = HashMap::new();
        for (_, id) in below {
            if let Some(run) = shelf.runs.get(id) {
                let info = &lock(run).summary.info;
                by_name.insert((info.name.clone(), info.seed), id);
            }
        }
        for trial in &mut queue.trials {
            let key = (trial.variant.clone(), trial.seed);
            trial.run = by_name.get(&key).map(|id| (*id).clone());
        }
    }

    /// The same whenever the program is started again, so that links stay valid.
    pub(crate) fn id_of(&self, path: &Path) -> String {
        let relative = path.strip_prefix(&self.root).unwrap_or(path);
        let name = relative.as_os_str().as_encoded_bytes();
        format!("{:016x}", XxHash3_64::oneshot(name))
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        self.news.subscribe()
    }

    /// What has changed after the change `after`, and the number of the last change.
    pub(crate) fn since(&self, after: u64) -> (u64, Value) {
        let last = *self.news.borrow();
        let shelf = self.shelf();
        let mut runs = Vec::new();
        for run in shelf.runs.values() {
            let run = lock(run);
            // What is being changed at this moment comes with the next change.
            if run.changed <= after || run.changed > last {
                continue;
            }
            let mut row = serde_json::to_value(&run.summary).unwrap_or(Value::Null);
            if run.flat_changed > after {
                row["settings"] = Value::Object(run.flat.clone());
            }
            runs.push(row);
        }
        let gone = shelf.gone.iter().filter(|(_, change)| **change > after);
        let gone: Vec<&String> = gone.map(|(id, _)| id).collect();
        let mut news = json!({ "runs": runs, "gone": gone });
        if shelf.queues_changed > after {
            news["queues"] = queue::as_json(&shelf.queues);
        }
        (last, news)
    }

    /// All runs with their settings and folders.
    pub(crate) fn rows(&self) -> Vec<Value> {
        let shelf = self.shelf();
        let rows = shelf.runs.values().map(|run| {
            let run = lock(run);
            let mut row = serde_json::to_value(&run.summary).unwrap_or(Value::Null);
            row["settings"] = Value::Object(run.flat.clone());
            row["path"] = run.path().display().to_string().into();
            row
        });
        rows.collect()
    }

    pub(crate) fn run(&self, id: &str) -> Option<Arc<Mutex<Run>>> {
        self.shelf().runs.get(id).cloned()
    }

    /// The columns that any run has in `progress.csv` and in `eval.csv`.
    pub(crate) fn columns(&self) -> (BTreeSet<String>, BTreeSet<String>) {
        let runs: Vec<_> = self.shelf().runs.values().cloned().collect();
        let (mut progress, mut eval) = (BTreeSet::new(), BTreeSet::new());
        for run in runs {
            let run = lock(&run);
            progress.extend(names(&run.progress));
            eval.extend(names(&run.eval));
        }
        (progress, eval)
    }

    /// Asks the process of a run to stop. Each process is asked once: a second signal would end it
    /// without a checkpoint.
    pub(crate) fn stop(&self, run: &Mutex<Run>) -> Result<i32, NotAsked> {
        let (id, found) = Self::process_of(run)?;
        let process = found.process();
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        if asked.contains(&(id.clone(), process)) {
            return Err(NotAsked::AlreadyAsked(process));
        }
        found.stop()?;
        asked.insert((id, process));
        Ok(process)
    }

    /// Asks the process of a run to write a checkpoint.
    pub(crate) fn checkpoint(run: &Mutex<Run>) -> Result<i32, NotAsked> {
        let (_, found) = Self::process_of(run)?;
        found.checkpoint()?;
        Ok(found.process())
    }

    fn process_of(run: &Mutex<Run>) -> Result<(String, Verified), NotAsked> {
        let (id, state, path) = {
            let run = lock(run);
            (run.summary.id.clone(), run.summary.state, run.lock())
        };
        match state {
            State::Running => Ok((id, Verified::find(&path)?)),
            _ => Err(NotAsked::NotRunning),
        }
    }

    fn shelf(&self) -> MutexGuard<'_, Shelf> {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A run that a panicking thread held has nothing half done that matters: it is read again.
pub(crate) fn lock(run: &Mutex<Run>) -> MutexGuard<'_, Run> {
    run.lock().unwrap_or_else(PoisonError::into_inner)
}
