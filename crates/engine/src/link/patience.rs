//! Waiting: how long, and for which environment.
//!
//! A pause of the whole process (Ctrl-Z, a suspended laptop, a cluster's scheduler) is not a
//! stall. Waits are therefore made of short slices, and a slice that took far longer than it was
//! asked to take counts only as much as it should have taken.

use std::sync::Arc;
use std::time::{Duration, Instant};

use starling_envs::Pulse;

/// A single wait without looking up.
pub(crate) const SLICE: Duration = Duration::from_millis(100);

/// What one slice, or one look of a [`Watchdog`], counts at most.
const MOST: Duration = Duration::from_secs(1);

/// How long a wait may still take.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    left: Duration,
}

impl Patience {
    /// So long.
    pub fn new(left: Duration) -> Self {
        Self { left }
    }

    /// How long to wait before the next look.
    pub fn slice(&self) -> Duration {
        self.left.min(SLICE)
    }

    /// What is left of it.
    pub fn left(&self) -> Duration {
        self.left
    }

    /// Counts a slice that began then. Returns false once the patience is used up.
    pub fn spend(&mut self, began: Instant) -> bool {
        self.left = self.left.saturating_sub(began.elapsed().min(MOST));
        !self.left.is_zero()
    }
}

/// Notices environments that do not return.
#[derive(Debug)]
pub(crate) struct Watchdog {
    watched: Vec<Watched>,
    looked: Instant,
}

#[derive(Debug)]
struct Watched {
    pulse: Arc<Pulse>,
    at_work: Option<(u64, u64)>,
    /// How long nothing has changed.
    still: Duration,
}

/// An environment that has been in one call for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Still {
    /// Its number in the run.
    pub(crate) env: u64,
    pub(crate) time: Duration,
}

impl Watchdog {
    pub(crate) fn new(pulses: impl IntoIterator<Item = Arc<Pulse>>) -> Self {
        let watched = pulses.into_iter().map(|pulse| Watched {
            at_work: pulse.at_work(),
            pulse,
            still: Duration::ZERO,
        });
        Self {
            watched: watched.collect(),
            looked: Instant::now(),
        }
    }

    /// The environment that has been in one call for the longest time.
    pub(crate) fn look(&mut self) -> Option<Still> {
        let since = self.looked.elapsed().min(MOST);
        self.looked = Instant::now();
        let mut longest: Option<Still> = None;
        for watched in &mut self.watched {
            let now = watched.pulse.at_work();
            watched.still = match now.is_some() && now == watched.at_work {
                true => watched.still + since,
                false => Duration::ZERO,
            };
            watched.at_work = now;
            if let Some((env, _)) = now
                && longest.is_none_or(|other| watched.still > other.time)
            {
                let time = watched.still;
                longest = Some(Still { env, time });
            }
        }
        longest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A slice that took a minute was a pause of the process, not a wait.
    #[test]
    fn a_pause_costs_little_patience() {
        let mut patience = Patience::new(Duration::from_secs(10));
        let a_minute_ago = Instant::now() - Duration::from_secs(60);
        for _ in 0..9 {
            assert!(patience.spend(a_minute_ago));
        }
        assert!(!patience.spend(a_minute_ago));
    }
}
