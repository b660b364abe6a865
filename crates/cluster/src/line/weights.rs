//! Weights of a process: those that it has, and how others are fetched, once for all its threads.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use starling_engine::Weights;
use starling_engine::link::wire::{self, PublicationFormat};
use starling_engine::link::{Control, LeaseId, LinkError, Patience, Publication, Wanted};

use super::way::Trouble;
use super::{Backoff, SLICE, Shared, timed_out};
use crate::protocol::{Ask, State};

/// Versions of the weights that a process keeps.
const KEPT: usize = 4;

/// Weights that the process has, and those on their way.
#[derive(Default)]
pub(super) struct Cache {
    /// The start of the learner that published them.
    epoch: u64,
    /// Oldest first.
    held: VecDeque<Publication>,
    /// What is asked for at the moment, with a number that grows.
    pulls: Vec<(Wanted, u64)>,
    /// Counts them.
    begun: u64,
    /// How the last ones that ended without weights ended.
    ended: VecDeque<(u64, Miss)>,
}

/// How an attempt to get weights ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Miss {
    /// There are no such weights yet.
    NotYet,
    /// The same, and the learner is busy with something long.
    Busy,
    /// The learner cannot be reached.
    Away(String),
    /// The learner refused.
    Refused(String),
    /// The lease of the thread that asked has ended.
    LeaseEnded,
    /// The run has ended.
    Closed,
}

impl Shared {
    /// The weights that an actor asks for, waiting for them if necessary. `check` tells whether its
    /// lease is still good.
    pub(super) fn weights(
        &self,
        lease: LeaseId,
        format: PublicationFormat,
        wanted: Wanted,
        patience: Duration,
        check: impl Fn() -> Result<(), LinkError>,
    ) -> Result<Publication, LinkError> {
        let asked_after = self.cache().begun;
        let (mut left, mut pauses) = (Patience::new(patience), Backoff::new());
        let mut away: Option<Instant> = None;
        loop {
            check()?;
            let began = Instant::now();
            let cache = self.cache();
            let pull = cache.pulls.iter().find(|(pulled, _)| *pulled == wanted);
            let pull = pull.map(|(_, number)| *number);
            let attempt = match pull {
                // Another thread asks for the same. Its answer is good for this one too, unless it
                // asked for the latest before this one did.
                Some(number) => {
                    let fresh = wanted != Wanted::Latest || number > asked_after;
                    match self.await_pull(cache, number, lease, wanted)? {
                        Err(Miss::LeaseEnded) => continue,
                        _ if !fresh => continue,
                        attempt => attempt,
                    }
                }
                None => self.pull(cache, lease, format, wanted, left),
            };
            let ended = match attempt {
                Ok(publication) => return Ok(publication),
                Err(ended) => ended,
            };
            match ended {
                Miss::Closed => {
                    self.closed.store(true, Ordering::Relaxed);
                    return Err(LinkError::Closed);
                }
                Miss::LeaseEnded => return Err(LinkError::LeaseEnded(lease)),
                Miss::Refused(reason) => return Err(LinkError::Lost(reason)),
                Miss::Busy => (left, away) = (Patience::new(patience), None),
                Miss::NotYet if left.spend(began) => away = None,
                Miss::NotYet => return Err(timed_out(patience)),
                Miss::Away(reason) => {
                    // The learner cannot be reached, which is not the same as slow.
                    let since = *away.get_or_insert(began);
                    if self.is_missing(&reason) || since.elapsed() > self.options.reconnect {
                        return Err(LinkError::Lost(reason));
                    }
                    std::thread::sleep(pauses.next());
                }
            }
        }
    }

    /// Waits for the pull of another thread.
    fn await_pull(
        &self,
        mut cache: MutexGuard<'_, Cache>,
        number: u64,
        lease: LeaseId,
        wanted: Wanted,
    ) -> Result<Result<Publication, Miss>, LinkError> {
        while cache.pulls.iter().any(|(_, pull)| *pull == number) {
            let waited = self.pulled.wait_timeout(cache, SLICE);
            cache = waited.unwrap_or_else(PoisonError::into_inner).0;
            if self.is_over() {
                return Err(LinkError::Closed);
            }
        }
        if let Some(found) = cache.get(lease.epoch, wanted) {
            return Ok(Ok(found.clone()));
        }
        let ended = cache.ended.iter().find(|(pull, _)| *pull == number);
        // Without an account of it, the learner said that there is nothing yet, long ago.
        let ended = ended.map_or(Miss::NotYet, |(_, ended)| ended.clone());
        Ok(Err(ended))
    }

    /// Asks the learner once.
    fn pull(
        &self,
        mut cache: MutexGuard<'_, Cache>,
        lease: LeaseId,
        format: PublicationFormat,
        wanted: Wanted,
        left: Patience,
    ) -> Result<Publication, Miss> {
        cache.begun += 1;
        let mut pull = Pull {
            shared: self,
            number: cache.begun,
            ended: None,
        };
        cache.pulls.push((wanted, pull.number));
        // Kept until the answer is there, which may be their changes.
        let have: Vec<Arc<Weights>> = match cache.epoch == lease.epoch {
            true => cache
                .held
                .iter()
                .map(|held| Arc::clone(&held.weights))
                .collect(),
            false => Vec::new(),
        };
        drop(cache);
        let ask = Ask {
            lease: lease.into(),
            exactly: match wanted {
                Wanted::Latest => None,
                Wanted::Exactly(version) => Some(version),
            },
            have: have.iter().map(|weights| weights.version).collect(),
            patience_ms: left.left().as_millis() as u64,
            bytes_per_s: None,
        };
        let most = wire::HEADER_BYTES as u64 + format.most_bytes();
        let answer = self.runtime.block_on(self.way.weights(ask, most));
        if answer.is_ok() {
            self.is_there();
        }
        let ended = match answer {
            Ok((told, _)) if told.state() == State::Closed => Miss::Closed,
            Ok((told, _)) if told.state() == State::Ended => Miss::LeaseEnded,
            Ok((told, frame)) if told.found => {
                let control = Control {
                    env_steps: told.env_steps,
                };
                let held = |version| have.iter().find(|held| held.version == version).cloned();
                let read = (!frame.is_empty()).then(|| format.read_with(&frame, held));
                let read = read.transpose();
                match read {
                    Ok(read) => {
                        let weights = read.map(|read| read.weights);
                        if weights.is_some() {
                            self.pulls.fetch_add(1, Ordering::Relaxed);
                        }
                        let mut cache = self.cache();
                        if wanted == Wanted::Latest && cache.is_older(lease.epoch, told.version) {
                            self.went_back.fetch_add(1, Ordering::Relaxed);
                        }
                        let noted = cache.note(lease.epoch, told.version, control, weights);
                        match noted {
                            Some(publication) => return Ok(publication),
                            // They were dropped meanwhile: ask again.
                            None => Miss::NotYet,
                        }
                    }
                    Err(error) => Miss::Away(format!("damaged weights: {error}")),
                }
            }
            Ok((told, _)) if told.state() == State::Busy => Miss::Busy,
            Ok(_) => Miss::NotYet,
            Err(Trouble::Final(reason)) => Miss::Refused(reason),
            Err(Trouble::Away(reason)) => Miss::Away(reason),
        };
        pull.ended = Some(ended.clone());
        Err(ended)
    }
}

/// A pull in progress. However it ends, others do not wait for it any more.
struct Pull<'a> {
    shared: &'a Shared,
    number: u64,
    ended: Option<Miss>,
}

impl Drop for Pull<'_> {
    fn drop(&mut self) {
        let mut cache = self.shared.cache();
        let number = self.number;
        cache.pulls.retain(|(_, pull)| *pull != number);
        if let Some(ended) = self.ended.take() {
            cache.ended.push_back((number, ended));
            if cache.ended.len() > KEPT {
                cache.ended.pop_front();
            }
        }
        drop(cache);
        self.shared.pulled.notify_all();
    }
}

impl Cache {
    fn get(&self, epoch: u64, wanted: Wanted) -> Option<&Publication> {
        let found = match wanted {
            Wanted::Latest => self.held.back(),
            Wanted::Exactly(version) => {
                let mut held = self.held.iter();
                held.find(|held| held.weights.version == version)
            }
        };
        found.filter(|_| self.epoch == epoch)
    }

    /// Whether the process has had newer weights than these.
    fn is_older(&self, epoch: u64, version: u64) -> bool {
        let newest = self.held.back().map_or(0, |held| held.weights.version);
        (epoch, version) < (self.epoch, newest)
    }

    /// Notes what the learner of this epoch told. Returns `None` if the weights are missing, which
    /// were dropped meanwhile.
    fn note(
        &mut self,
        epoch: u64,
        version: u64,
        control: Control,
        weights: Option<Arc<Weights>>,
    ) -> Option<Publication> {
        if epoch > self.epoch {
            self.held.clear();
            self.epoch = epoch;
        }
        let mut held = self.held.iter();
        let at = held.position(|held| held.weights.version == version);
        let weights = match (weights, at) {
            (Some(weights), _) => weights,
            (None, at) => Arc::clone(&self.held.get(at?)?.weights),
        };
        let publication = Publication { weights, control };
        match at {
            Some(at) => self.held[at] = publication.clone(),
            None => {
                let held = &self.held;
                let after = held.partition_point(|held| held.weights.version < version);
                self.held.insert(after, publication.clone());
                if self.held.len() > KEPT {
                    self.held.pop_front();
                }
            }
        }
        Some(publication)
    }
}
