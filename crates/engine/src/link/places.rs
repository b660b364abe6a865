//! Places: the run's environments in parts that actors lease.
//!
//! The number of places is fixed for a run; actors are interchangeable. What depends on an
//! environment's number (its random stream, its place in a schedule of exploration, its ring in
//! the replay) therefore does not depend on who steps it.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

/// Which environments of the run an actor has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// Number of its first environment.
    pub first_env: usize,
    /// How many it has.
    pub envs: usize,
    /// Environments of the whole run.
    pub total_envs: usize,
}

/// Names a lease. No two leases of a run have the same name, not even those of different starts
/// of its learner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseId {
    /// Number of the place.
    pub place: usize,
    /// How often the place was leased before, since the learner started.
    pub term: u64,
    /// Which start of the learner granted it; grows from start to start.
    pub epoch: u64,
}

/// The right to collect at a place, and all that an actor has to know besides the run's settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// Its name.
    pub id: LeaseId,
    /// The environments.
    pub place: Place,
    /// Seed of the actor's random streams.
    pub seed: u64,
    /// Version of the weights with which the learner started.
    pub first_version: u64,
    /// The round of the learner, counted from its start, that the first parcel belongs to.
    pub first_round: u64,
}

/// From where a learner starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Start {
    /// See [`LeaseId::epoch`].
    pub epoch: u64,
    /// Seed of the actors' random streams.
    pub seed: u64,
    /// Version of the first weights.
    pub first_version: u64,
}

/// What becomes of a parcel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is the next one of its lease.
    Use,
    /// It was here before.
    Duplicate,
    /// Its lease has ended.
    Ended,
    /// One before it is missing: this is number `expected`.
    Gap {
        /// The number that should have come.
        expected: u64,
    },
}

/// The places of a run: who holds them, and which parcel of each comes next. Shared by the
/// learner and the link, so that a link can answer actors while the learner learns.
#[derive(Debug)]
pub struct Places {
    start: Start,
    slots: Mutex<Vec<Slot>>,
}

#[derive(Debug)]
struct Slot {
    place: Place,
    /// Leases that were granted.
    terms: u64,
    held: bool,
    /// Number of the parcel that comes next under the present lease.
    next: u64,
    /// Parcels that were used since the learner started.
    used: u64,
}

impl Places {
    /// The environments `0..total_envs`, cut at the given ranges.
    pub fn new(shares: impl IntoIterator<Item = Range<usize>>, start: Start) -> Self {
        let shares: Vec<Range<usize>> = shares.into_iter().collect();
        let total_envs = shares.last().map_or(0, |last| last.end);
        Self::among(shares, total_envs, start)
    }

    /// Some of the environments `0..total_envs`, cut at the given ranges: the others are those of other
    /// learners.
    pub fn among(
        shares: impl IntoIterator<Item = Range<usize>>,
        total_envs: usize,
        start: Start,
    ) -> Self {
        let slots = shares.into_iter().map(|share| Slot {
            place: Place {
                first_env: share.start,
                envs: share.len(),
                total_envs,
            },
            terms: 0,
            held: false,
            next: 0,
            used: 0,
        });
        Self {
            start,
            slots: Mutex::new(slots.collect()),
        }
    }

    /// Leases the first place that is free.
    pub fn lease(&self) -> Option<Lease> {
        let mut slots = self.lock();
        let free = slots.iter().position(|slot| !slot.held)?;
        self.grant(&mut slots, free)
    }

    /// Leases this place, if it is free.
    pub fn lease_at(&self, place: usize) -> Option<Lease> {
        let mut slots = self.lock();
        match slots.get(place) {
            Some(slot) if !slot.held => self.grant(&mut slots, place),
            _ => None,
        }
    }

    /// Ends a lease. The place is free from then on, and parcels of the lease are not used.
    /// Returns false if it had ended before.
    pub fn end(&self, lease: LeaseId) -> bool {
        let mut slots = self.lock();
        let holds = self.is_current(&slots, lease);
        if holds {
            slots[lease.place].held = false;
        }
        holds
    }

    /// Whether a lease has not ended.
    pub fn holds(&self, lease: LeaseId) -> bool {
        self.is_current(&self.lock(), lease)
    }

    /// What becomes of a parcel. One that is used is counted.
    pub fn judge(&self, lease: LeaseId, number: u64) -> Verdict {
        let mut slots = self.lock();
        if !self.is_current(&slots, lease) {
            return Verdict::Ended;
        }
        let slot = &mut slots[lease.place];
        let expected = slot.next;
        match number.cmp(&expected) {
            std::cmp::Ordering::Less => Verdict::Duplicate,
            std::cmp::Ordering::Greater => Verdict::Gap { expected },
            std::cmp::Ordering::Equal => {
                slot.next += 1;
                slot.used += 1;
                Verdict::Use
            }
        }
    }

    /// How many places there are.
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// Whether there is none, as for a link to evaluators alone.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many of them are leased.
    pub fn held(&self) -> usize {
        self.lock().iter().filter(|slot| slot.held).count()
    }

    /// All of them, in the order of environments.
    pub fn all(&self) -> Vec<Place> {
        self.lock().iter().map(|slot| slot.place).collect()
    }

    /// See [`LeaseId::epoch`].
    pub fn epoch(&self) -> u64 {
        self.start.epoch
    }

    fn grant(&self, slots: &mut [Slot], place: usize) -> Option<Lease> {
        let slot = slots.get_mut(place)?;
        let term = slot.terms;
        slot.terms += 1;
        slot.held = true;
        slot.next = 0;
        Some(Lease {
            id: LeaseId {
                place,
                term,
                epoch: self.start.epoch,
            },
            place: slot.place,
            // The next holder does not repeat the random numbers of the previous one.
            seed: self.start.seed ^ term.rotate_left(16),
            first_version: self.start.first_version,
            first_round: slot.used,
        })
    }

    fn is_current(&self, slots: &[Slot], lease: LeaseId) -> bool {
        lease.epoch == self.start.epoch
            && slots
                .get(lease.place)
                .is_some_and(|slot| slot.held && slot.terms.checked_sub(1) == Some(lease.term))
    }

    /// Nothing inside can panic halfway, so a poisoned lock is as good as any.
    fn lock(&self) -> MutexGuard<'_, Vec<Slot>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn places(epoch: u64) -> Places {
        let start = Start {
            epoch,
            seed: 7,
            first_version: 3,
        };
        Places::new([0..2, 2..5], start)
    }

    #[test]
    fn a_place_has_one_holder_at_a_time() {
        let places = places(1);
        let (first, second) = (places.lease().unwrap(), places.lease().unwrap());
        assert_eq!((first.place.first_env, first.place.envs), (0, 2));
        assert_eq!((second.place.first_env, second.place.envs), (2, 3));
        assert_eq!(second.place.total_envs, 5);
        assert_eq!((places.lease(), places.lease_at(0)), (None, None));
        assert!(places.end(first.id) && !places.end(first.id));
        assert_eq!(places.held(), 1);
        let again = places.lease().unwrap();
        assert_eq!((again.id.place, again.id.term), (0, 1));
        assert_ne!(again.seed, first.seed);
        assert_eq!(first.seed, 7, "a run without losses draws from its seed");
        assert!(places.holds(again.id) && !places.holds(first.id));
    }

    /// A new holder collects for the round that the old one did not deliver.
    #[test]
    fn a_lease_begins_with_the_round_that_is_missing() {
        let places = places(1);
        let first = places.lease_at(1).unwrap();
        assert_eq!((first.first_version, first.first_round), (3, 0));
        for number in 0..4 {
            assert_eq!(places.judge(first.id, number), Verdict::Use);
        }
        places.end(first.id);
        let second = places.lease_at(1).unwrap();
        assert_eq!(second.first_round, 4);
        assert_eq!(places.judge(first.id, 4), Verdict::Ended);
        assert_eq!(places.judge(second.id, 1), Verdict::Gap { expected: 0 });
        assert_eq!(places.judge(second.id, 0), Verdict::Use);
    }

    /// A learner that starts again knows nothing of the leases before.
    #[test]
    fn leases_of_an_earlier_start_have_ended() {
        let before = places(1).lease().unwrap();
        let places = places(2);
        let now = places.lease().unwrap();
        assert_eq!(before.id.term, now.id.term);
        assert_eq!(places.judge(before.id, 0), Verdict::Ended);
        assert_eq!(places.judge(now.id, 0), Verdict::Use);
    }

    proptest! {
        /// Whatever is delivered twice, late, out of order or after a change of hands: the
        /// numbers that are used under a lease are 0, 1, 2, … without gap or repetition.
        #[test]
        fn each_parcel_is_used_once_and_in_order(
            deliveries in proptest::collection::vec((0u64..4, 0u64..6, any::<bool>()), 0..200)
        ) {
            let places = places(9);
            let mut leases = vec![places.lease_at(0).unwrap()];
            let mut used = vec![0u64];
            let mut total = 0;
            for (back, number, hand_over) in deliveries {
                if hand_over && number == 5 {
                    places.end(leases.last().unwrap().id);
                    let next = places.lease_at(0).unwrap();
                    prop_assert_eq!(next.first_round, total);
                    leases.push(next);
                    used.push(0);
                }
                let index = leases.len().saturating_sub(1 + back as usize);
                let current = index + 1 == leases.len();
                match places.judge(leases[index].id, number) {
                    Verdict::Use => {
                        prop_assert!(current);
                        prop_assert_eq!(number, used[index]);
                        used[index] += 1;
                        total += 1;
                    }
                    Verdict::Duplicate => prop_assert!(current && number < used[index]),
                    Verdict::Gap { expected } => {
                        prop_assert!(current && number > expected);
                        prop_assert_eq!(expected, used[index]);
                    }
                    Verdict::Ended => prop_assert!(!current),
                }
            }
        }
    }
}
