//! Writes the best weights found by evaluators in other processes, while training continues.
//!
//! They are those of an earlier step, so they cannot be part of a checkpoint that continues the run:
//! the folder `best` of the run holds the learner's state alone, in the format of a checkpoint.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use starling_algos::Saved;
use starling_record::{Checkpoints, Retention};

use super::moment::{LEARNER, to_safetensors};
use crate::EngineError;
use crate::error::Unusable;

/// Writes one set of weights at a time. A better one replaces one that is waiting.
pub(crate) struct Keeper {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    next: Option<Best>,
    ending: bool,
    failed: Option<(u64, String)>,
}

/// Weights and their score.
pub(crate) struct Best {
    pub(crate) step: u64,
    pub(crate) score: f64,
    pub(crate) learner: Saved,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Keeper {
    /// One that writes to this folder, which is created with the first weights.
    pub(crate) fn start(folder: PathBuf) -> Result<Self, EngineError> {
        let shared = Arc::<Shared>::default();
        let theirs = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("best".into());
        let thread = thread.spawn(move || work(&theirs, &folder));
        let thread =
            thread.map_err(|error| EngineError::Thread(format!("best did not start: {error}")))?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// Writes these weights soon.
    pub(crate) fn put(&self, best: Best) {
        self.shared.lock().next = Some(best);
        self.shared.changed.notify_all();
    }

    /// Why weights could not be written, once.
    pub(crate) fn failure(&self) -> Option<EngineError> {
        let (step, reason) = self.shared.lock().failed.take()?;
        Some(EngineError::Save { step, reason })
    }
}

impl Drop for Keeper {
    /// What was put is written.
    fn drop(&mut self) {
        self.shared.lock().ending = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that keeps the best weights panicked");
        }
        if let Some(error) = self.failure() {
            tracing::error!("{error}");
        }
    }
}

fn work(shared: &Shared, folder: &Path) {
    let mut checkpoints: Option<Checkpoints> = None;
    loop {
        let best = {
            let mut state = shared.lock();
            loop {
                match state.next.take() {
                    Some(best) => break best,
                    None if state.ending => return,
                    None => {
                        let waited = shared.changed.wait(state);
                        state = waited.unwrap_or_else(PoisonError::into_inner);
                    }
                }
            }
        };
        let step = best.step;
        if let Err(Unusable(reason)) = write(&mut checkpoints, folder, &best) {
            shared.lock().failed = Some((step, reason));
        }
    }
}

fn write(
    checkpoints: &mut Option<Checkpoints>,
    folder: &Path,
    best: &Best,
) -> Result<(), Unusable> {
    let checkpoints = match checkpoints {
        Some(checkpoints) => checkpoints,
        None => {
            let retention = Retention {
                keep_last: 1,
                milestone_steps: None,
            };
            checkpoints.insert(Checkpoints::open(folder, retention)?)
        }
    };
    let mut writer = checkpoints.begin(best.step)?;
    writer.file(LEARNER, &to_safetensors(&best.learner)?)?;
    let committed = writer.commit(Some(best.score))?;
    for warning in &committed.warnings {
        tracing::warn!("{warning}");
    }
    tracing::info!(
        folder = %committed.path.display(),
        mean_return = best.score,
        "the best weights so far"
    );
    Ok(())
}
