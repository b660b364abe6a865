//! Evaluations by other processes while training continues.
//!
//! ```text
//! learner ── offer ─▶ newest weights ── claim ─▶ evaluator
//!    ▲                                             │ renew, renew, …
//!    └──────────────── take ◀──────── report ◀─────┘
//! ```
//!
//! The learner offers weights when an evaluation is due, and does not wait. An unclaimed offer is
//! replaced by the next one, so that evaluators always get the newest weights. A claim is a lease that
//! its evaluator renews with heartbeats, and an evaluation is reported once.

use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::Publication;
use crate::Evaluation;

/// A claim expires after this time without a heartbeat.
pub const SILENCE: Duration = Duration::from_secs(10);

/// Claims that can be open at the same time. Older ones are dropped.
const MOST_CLAIMS: usize = 8;

/// Evaluators that are remembered.
const MOST_EVALUATORS: usize = 1_000;

/// The longest name of a process, in bytes, and for people, in characters.
const MOST_SESSION_BYTES: usize = 64;
const MOST_NAME: usize = 100;

/// Pending evaluations, and reported results.
#[derive(Debug, Default)]
pub struct Evaluations {
    state: Mutex<State>,
    changed: Condvar,
}

/// A result.
#[derive(Clone, Debug, PartialEq)]
pub struct Evaluated {
    /// Steps of the run when the weights were offered.
    pub env_steps: u64,
    /// The evaluator.
    pub who: String,
    /// What it played.
    pub evaluation: Evaluation,
}

/// An evaluator, for display.
#[derive(Clone, Debug, PartialEq)]
pub struct Evaluator {
    /// Its name.
    pub name: String,
    /// Its last heartbeat.
    pub heard: Instant,
    /// Evaluations that it has reported.
    pub evaluated: u64,
    /// The step of the weights that it evaluates now.
    pub playing: Option<u64>,
}

/// What was counted since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tallied {
    /// Weights that were offered.
    pub offered: u64,
    /// Offers that were replaced by newer ones before anybody claimed them.
    pub replaced: u64,
    /// Claims that expired, or were dropped because there were too many.
    pub given_up: u64,
    /// Evaluations that were reported, each once.
    pub evaluated: u64,
    /// Reports that came after their claim had ended.
    pub unwanted: u64,
}

#[derive(Debug, Default)]
struct State {
    /// Oldest first; at most one is not claimed.
    open: Vec<Open>,
    /// The step of the last offer.
    newest: Option<u64>,
    done: Vec<Evaluated>,
    evaluators: HashMap<Vec<u8>, Evaluator>,
    closed: bool,
    counts: Tallied,
}

#[derive(Debug)]
struct Open {
    publication: Publication,
    claim: Option<Claim>,
}

#[derive(Debug)]
struct Claim {
    who: Vec<u8>,
    heard: Instant,
}

impl Open {
    fn step(&self) -> u64 {
        self.publication.control.env_steps
    }

    fn is_claimed_by(&self, who: &[u8]) -> bool {
        self.claim.as_ref().is_some_and(|claim| claim.who == who)
    }
}

impl Evaluations {
    /// Offers weights for evaluation, in place of an unclaimed offer. Returns the step of the offer
    /// that it replaced.
    pub fn offer(&self, publication: Publication) -> Option<u64> {
        let mut state = self.lock();
        state.end_silent_claims();
        let unclaimed = state.open.iter().position(|open| open.claim.is_none());
        let replaced = unclaimed.map(|at| state.open.remove(at).step());
        state.counts.replaced += u64::from(replaced.is_some());
        if state.open.len() >= MOST_CLAIMS {
            state.open.remove(0);
            state.counts.given_up += 1;
        }
        state.counts.offered += 1;
        state.newest = Some(publication.control.env_steps);
        state.open.push(Open {
            publication,
            claim: None,
        });
        self.changed.notify_all();
        replaced
    }

    /// The newest weights for an evaluator, waiting for them no longer than `limit`. One that asks
    /// again gets what it has claimed.
    pub fn claim(&self, who: &[u8], name: &str, limit: Duration) -> Option<Publication> {
        let until = Instant::now() + limit;
        let mut state = self.lock();
        loop {
            if state.closed || !state.hear(who, name) {
                return None;
            }
            state.end_silent_claims();
            let own = state.open.iter().position(|open| open.is_claimed_by(who));
            let free = || state.open.iter().rposition(|open| open.claim.is_none());
            if let Some(at) = own.or_else(free) {
                let open = &mut state.open[at];
                open.claim = Some(Claim {
                    who: who.to_owned(),
                    heard: Instant::now(),
                });
                let publication = open.publication.clone();
                let step = publication.control.env_steps;
                state.note(who, |evaluator| evaluator.playing = Some(step));
                return Some(publication);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// A heartbeat of an evaluator. Returns whether its claim is still valid.
    pub fn renew(&self, who: &[u8], name: &str, env_steps: u64) -> bool {
        let mut state = self.lock();
        state.hear(who, name);
        let mut open = state.open.iter_mut();
        let open = open.find(|open| open.step() == env_steps && open.is_claimed_by(who));
        match open.and_then(|open| open.claim.as_mut()) {
            Some(claim) => {
                claim.heard = Instant::now();
                true
            }
            None => false,
        }
    }

    /// The result of an evaluator. Returns whether it was accepted: once per claim.
    pub fn report(&self, who: &[u8], env_steps: u64, version: u64, evaluation: Evaluation) -> bool {
        let mut state = self.lock();
        let at = state.open.iter().position(|open| {
            let same = open.publication.weights.version == version;
            open.step() == env_steps && same && open.is_claimed_by(who)
        });
        state.note(who, |evaluator| {
            evaluator.playing = None;
            evaluator.evaluated += u64::from(at.is_some());
        });
        let Some(at) = at else {
            state.counts.unwanted += 1;
            return false;
        };
        state.open.remove(at);
        state.counts.evaluated += 1;
        let name = state.evaluators.get(who).map(|found| found.name.clone());
        state.done.push(Evaluated {
            env_steps,
            who: name.unwrap_or_else(|| "an evaluator".into()),
            evaluation,
        });
        self.changed.notify_all();
        true
    }

    /// The results since the last call.
    pub fn take(&self) -> Vec<Evaluated> {
        std::mem::take(&mut self.lock().done)
    }

    /// Whether the result of the weights of this step may still come, or has come and was not taken.
    pub fn is_expected(&self, env_steps: u64) -> bool {
        let state = self.lock();
        let open = state.open.iter().any(|open| open.step() == env_steps);
        open || state.done.iter().any(|done| done.env_steps == env_steps)
    }

    /// Waits a little for a result. Returns whether one may still come: an evaluator is working on it,
    /// or may claim the offer.
    pub fn wait(&self, limit: Duration) -> bool {
        let mut state = self.lock();
        state.end_silent_claims();
        let heard = |found: &Evaluator| found.heard.elapsed() < SILENCE;
        let anybody = state.evaluators.values().any(heard);
        let pending = state.open.iter();
        let pending = pending.filter(|open| open.claim.is_some() || anybody);
        if state.done.is_empty() && pending.count() > 0 && !state.closed {
            let waited = self.changed.wait_timeout(state, limit);
            drop(waited);
            return true;
        }
        !state.done.is_empty()
    }

    /// Ends all waits of evaluators, now and later.
    pub fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    /// Whether the run has ended.
    pub fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// An evaluator has left, or knows that the run has ended.
    pub fn forget(&self, who: &[u8]) {
        let mut state = self.lock();
        state.evaluators.remove(who);
        let newest = state.newest;
        // Only the newest weights are offered again.
        let before = state.open.len();
        state
            .open
            .retain(|open| !open.is_claimed_by(who) || Some(open.step()) == newest);
        let given_up = before - state.open.len();
        state.counts.given_up += given_up as u64;
        if let Some(open) = state.open.last_mut()
            && open.is_claimed_by(who)
        {
            open.claim = None;
            self.changed.notify_all();
        }
    }

    /// Evaluators with a recent heartbeat.
    pub fn evaluators(&self) -> Vec<Evaluator> {
        let state = self.lock();
        let all = state.evaluators.values();
        let mut all: Vec<_> = all
            .filter(|found| found.heard.elapsed() < SILENCE)
            .cloned()
            .collect();
        all.sort_by(|one, other| one.name.cmp(&other.name));
        all
    }

    /// What was counted.
    pub fn counts(&self) -> Tallied {
        self.lock().counts
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Records a heartbeat. Returns false if there are too many evaluators to track this one.
    fn hear(&mut self, who: &[u8], name: &str) -> bool {
        let now = Instant::now();
        if let Some(found) = self.evaluators.get_mut(who) {
            found.heard = now;
            return true;
        }
        self.evaluators
            .retain(|_, found| found.heard.elapsed() < SILENCE);
        if who.len() > MOST_SESSION_BYTES || self.evaluators.len() >= MOST_EVALUATORS {
            return false;
        }
        let plain = |c: char| if c.is_control() { ' ' } else { c };
        let evaluator = Evaluator {
            name: name.chars().take(MOST_NAME).map(plain).collect(),
            heard: now,
            evaluated: 0,
            playing: None,
        };
        self.evaluators.insert(who.to_owned(), evaluator);
        true
    }

    fn note(&mut self, who: &[u8], change: impl FnOnce(&mut Evaluator)) {
        if let Some(found) = self.evaluators.get_mut(who) {
            found.heard = Instant::now();
            change(found);
        }
    }

    /// Expires claims without a heartbeat. Others can claim the weights, unless there are newer ones.
    fn end_silent_claims(&mut self) {
        let silent = |open: &Open| {
            let claim = open.claim.as_ref();
            claim.is_some_and(|claim| claim.heard.elapsed() > SILENCE)
        };
        let newest = self.newest;
        let before = self.open.len();
        self.open
            .retain(|open| !silent(open) || Some(open.step()) == newest);
        self.counts.given_up += (before - self.open.len()) as u64;
        for open in self.open.iter_mut().filter(|open| silent(open)) {
            open.claim = None;
            self.counts.given_up += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::Weights;
    use crate::link::Control;

    const NOW: Duration = Duration::ZERO;

    fn weights(env_steps: u64) -> Publication {
        Publication {
            weights: Arc::new(Weights {
                version: env_steps / 10,
                values: starling_nets::Snapshot::from_values(vec![env_steps as f32]),
            }),
            control: Control { env_steps },
        }
    }

    fn played(mean: f64) -> Evaluation {
        Evaluation {
            returns: vec![mean],
            lengths: vec![1.0],
            ..Evaluation::default()
        }
    }

    fn step(claimed: Option<Publication>) -> Option<u64> {
        claimed.map(|claimed| claimed.control.env_steps)
    }

    #[test]
    fn evaluators_get_the_newest_weights() {
        let all = Evaluations::default();
        assert_eq!(all.claim(b"a", "a", NOW), None);
        assert_eq!(all.offer(weights(100)), None);
        assert_eq!(all.offer(weights(200)), Some(100));
        assert_eq!(step(all.claim(b"a", "a", NOW)), Some(200));
        // An answer that was lost is given again, and to nobody else.
        assert_eq!(step(all.claim(b"a", "a", NOW)), Some(200));
        assert_eq!(all.claim(b"b", "b", NOW), None);
        assert_eq!(all.offer(weights(300)), None);
        assert_eq!(step(all.claim(b"b", "b", NOW)), Some(300));
        assert_eq!(all.counts().replaced, 1);
    }

    #[test]
    fn each_evaluation_counts_once() {
        let all = Evaluations::default();
        all.offer(weights(100));
        all.claim(b"a", "a", NOW).unwrap();
        assert!(!all.report(b"b", 100, 10, played(1.0)), "not its claim");
        assert!(!all.report(b"a", 100, 11, played(1.0)), "other weights");
        assert!(all.report(b"a", 100, 10, played(2.0)));
        assert!(!all.report(b"a", 100, 10, played(3.0)), "twice");
        let done = all.take();
        assert_eq!(done.len(), 1);
        assert_eq!((done[0].env_steps, done[0].evaluation.mean()), (100, 2.0));
        assert_eq!(all.take(), []);
        assert_eq!((all.counts().evaluated, all.counts().unwanted), (1, 3));
    }

    #[test]
    fn open_claims_are_bounded() {
        let all = Evaluations::default();
        for number in 0..20_u8 {
            all.offer(weights(u64::from(number) * 100));
            all.claim(&[number], "one", NOW).unwrap();
        }
        assert!(!all.renew(&[0], "one", 0), "it was given up");
        assert!(all.renew(&[19], "one", 1_900));
        assert_eq!(all.lock().open.len(), MOST_CLAIMS);
    }

    #[test]
    fn an_evaluator_that_leaves_gives_its_claim_back() {
        let all = Evaluations::default();
        all.offer(weights(100));
        all.claim(b"a", "a", NOW).unwrap();
        all.forget(b"a");
        assert_eq!(step(all.claim(b"b", "b", NOW)), Some(100));
    }

    /// Weights of a lost evaluator are dropped when newer ones were offered, even if those have been
    /// evaluated already.
    #[test]
    fn old_claims_are_given_up() {
        let all = Evaluations::default();
        all.offer(weights(100));
        all.claim(b"a", "a", NOW).unwrap();
        all.offer(weights(200));
        all.claim(b"b", "b", NOW).unwrap();
        assert!(all.report(b"b", 200, 20, played(1.0)));
        all.forget(b"a");
        assert_eq!(all.claim(b"b", "b", NOW), None);
        assert_eq!(all.counts().given_up, 1);
    }

    #[test]
    fn closing_ends_waits() {
        let all = Arc::new(Evaluations::default());
        let other = Arc::clone(&all);
        let waits = std::thread::spawn(move || other.claim(b"a", "a", Duration::from_secs(60)));
        std::thread::sleep(Duration::from_millis(20));
        all.close();
        assert_eq!(waits.join().unwrap(), None);
    }
}
