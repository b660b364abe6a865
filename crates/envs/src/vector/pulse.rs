//! Lets another thread see whether the environments of a vector make progress.

use std::sync::atomic::{AtomicU64, Ordering};

/// Which environment a vector is stepping, for a watchdog on another thread.
///
/// A call into an environment cannot be interrupted. But a watchdog can notice that it does not
/// return, and name it.
#[derive(Debug, Default)]
pub struct Pulse {
    beats: AtomicU64,
    /// Number of the environment plus one; 0 while none is at work.
    at_work: AtomicU64,
}

impl Pulse {
    /// The environment that is at work, by its number in the run, and a count that changes with
    /// every call of an environment. `None` while none is at work.
    pub fn at_work(&self) -> Option<(u64, u64)> {
        let env = self.at_work.load(Ordering::Relaxed).checked_sub(1)?;
        Some((env, self.beats.load(Ordering::Relaxed)))
    }

    /// Another environment of the batch that is at work is the one that is waited for.
    pub fn point(&self, env: u64) {
        self.at_work.store(env + 1, Ordering::Relaxed);
    }

    /// One thread beats at a time, so that plain loads and stores are enough.
    pub(super) fn beat(&self, env: u64) {
        let beats = self.beats.load(Ordering::Relaxed);
        self.beats.store(beats.wrapping_add(1), Ordering::Relaxed);
        self.at_work.store(env + 1, Ordering::Relaxed);
    }

    pub(super) fn rest(&self) {
        self.at_work.store(0, Ordering::Relaxed);
    }
}
