//! The coordinator of a group: tracks its members and synchronises their rounds.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{Agreement, Answer, Formation, GroupError, Offer, Standing, Verdict, Word};

/// Groups that may break in succession without a completed round.
const MOST_BROKEN: u32 = 10;

/// Sends replies to a learner.
pub type Tell = Box<dyn Fn(Answer) + Send>;

/// The coordinator of a group. It uses no network and no clock: the caller passes messages
/// ([`say`](Table::say)) and reports lost learners ([`lost`](Table::lost)).
pub struct Table(Mutex<State>);

struct State {
    /// Learners that the first group waits for.
    learners: usize,
    /// By rank.
    seats: BTreeMap<usize, Seat>,
    generation: u64,
    /// The members of the present group that are still there.
    members: Vec<usize>,
    /// Whether a member was lost since the group formed.
    changed: bool,
    env_steps: u64,
    /// The verdict on the last round, for those who ask late.
    verdict: Option<Verdict>,
    /// Losses since the start.
    losses: u64,
    losses_allowed: u64,
    /// Groups that broke since the last agreement.
    broken: u32,
    closed: bool,
}

struct Seat {
    tell: Tell,
    /// Its message that has not been answered yet.
    word: Option<Word>,
}

impl Table {
    /// For a run of `learners` learners, of which `losses_allowed` may be lost.
    pub fn new(learners: usize, losses_allowed: u64) -> Self {
        Self(Mutex::new(State {
            learners,
            seats: BTreeMap::new(),
            generation: 0,
            members: Vec::new(),
            changed: false,
            env_steps: 0,
            verdict: None,
            losses: 0,
            losses_allowed,
            broken: 0,
            closed: false,
        }))
    }

    /// Assigns a rank: the requested one, or the first free one except 0. `None` if there is none, or
    /// if the run has ended.
    pub fn sit(&self, wanted: Option<usize>, tell: Tell) -> Option<usize> {
        let mut state = self.lock();
        let free = |rank: &usize| !state.seats.contains_key(rank);
        let rank = match wanted {
            Some(rank) => Some(rank).filter(|rank| *rank < state.learners && free(rank)),
            None => (1..state.learners).find(free),
        };
        let rank = rank.filter(|_| !state.closed)?;
        state.seats.insert(rank, Seat { tell, word: None });
        Some(rank)
    }

    /// Handles a message of a learner.
    pub fn say(&self, rank: usize, word: Word) {
        let mut state = self.lock();
        match word {
            Word::Failed(reason) => {
                state.seats.remove(&rank);
                state.give_up(GroupError::Failed { rank, reason });
            }
            Word::Close(verdict) => state.close_round(verdict),
            Word::Done(standing) => match state.verdict {
                Some(verdict) => state.tell(rank, Answer::Verdict(verdict)),
                None => state.hear(rank, Word::Done(standing)),
            },
            word => state.hear(rank, word),
        }
    }

    /// A learner is gone.
    pub fn lost(&self, rank: usize, reason: &str) {
        let mut state = self.lock();
        let leaving = state.closed || state.verdict.is_some_and(|verdict| verdict.end);
        if state.seats.remove(&rank).is_none() || leaving {
            return;
        }
        let member = state.members.contains(&rank);
        tracing::warn!(learner = rank, "a learner was lost: {reason}");
        // One that was not a member yet can try again.
        state.losses += u64::from(member);
        state.members.retain(|other| *other != rank);
        state.changed |= member;
        if state.losses > state.losses_allowed {
            let reason = reason.to_owned();
            state.give_up(GroupError::Lost { rank, reason });
        } else {
            state.look();
        }
    }

    /// Steps of the run so far, to be known before the first group forms.
    pub fn begin_at(&self, env_steps: u64) {
        self.lock().env_steps = env_steps;
    }

    /// How many learners are there.
    pub fn present(&self) -> usize {
        self.lock().seats.len()
    }

    /// Ends the run for all.
    pub fn close(&self) {
        let mut state = self.lock();
        if !std::mem::replace(&mut state.closed, true) {
            state
                .seats
                .values()
                .for_each(|seat| (seat.tell)(Answer::Closed));
        }
    }

    /// Whether the run has ended.
    pub fn is_closed(&self) -> bool {
        self.lock().closed
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Every change is whole before anything could panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn tell(&self, rank: usize, answer: Answer) {
        if let Some(seat) = self.seats.get(&rank) {
            (seat.tell)(answer);
        }
    }

    fn hear(&mut self, rank: usize, word: Word) {
        if let Some(seat) = self.seats.get_mut(&rank) {
            seat.word = Some(word);
            self.look();
        }
    }

    /// Learner 0 gets the failure instead of its next reply, and ends the run.
    fn give_up(&self, error: GroupError) {
        self.tell(0, Answer::Failed(error));
    }

    fn close_round(&mut self, verdict: Verdict) {
        self.verdict = Some(verdict);
        for seat in self.seats.values_mut() {
            if matches!(seat.word, Some(Word::Done(_))) {
                seat.word = None;
                (seat.tell)(Answer::Verdict(verdict));
            }
        }
    }

    /// Answers the members once all of them have said something. Learners that want to join are not
    /// waited for.
    fn look(&mut self) {
        let first = self.generation == 0;
        if first && self.seats.len() < self.learners {
            return;
        }
        let is_member = |rank: &usize| first || self.members.contains(rank);
        let members = || self.seats.iter().filter(|(rank, _)| is_member(rank));
        let any = |such: fn(&Word) -> bool| {
            members().any(|(_, seat)| seat.word.as_ref().is_some_and(such))
        };
        let broken = any(|word| matches!(word, Word::Broken { .. }));
        let entered = any(|word| matches!(word, Word::Entered { .. }));
        // One that has finished the round waits for learner 0, unless the round broke for another.
        let done = any(|word| matches!(word, Word::Done(_)));
        if members().any(|(_, seat)| seat.word.is_none()) || done && !broken {
            return;
        }
        // A new one cannot take part in a round that has begun: after a failure the members finish it
        // by themselves.
        let may_join =
            |seat: &Seat| !broken && !entered && matches!(seat.word, Some(Word::Ready(_)));
        let chosen = self.seats.iter();
        let chosen = chosen.filter(|(rank, seat)| is_member(rank) || may_join(seat));
        let chosen: Vec<usize> = chosen.map(|(rank, _)| *rank).collect();
        if broken || self.changed || chosen != self.members {
            self.form(chosen, broken);
        } else if entered {
            self.compare();
        } else {
            self.agree();
        }
    }

    /// All members are in a new group. They continue if they have the same state.
    fn compare(&mut self) {
        let seats = self.seats.iter_mut();
        let seats = seats.filter(|(rank, _)| self.members.contains(rank));
        let states = seats.filter_map(|(_, seat)| match seat.word.take() {
            Some(Word::Entered { standing, checksum }) => Some((standing, checksum)),
            _ => None,
        });
        let states: Vec<(Standing, u32)> = states.collect();
        let all = states.len() == self.members.len();
        if !all || states.windows(2).any(|two| two[0] != two[1]) {
            let sums = states.into_iter().map(|(_, sum)| sum).collect();
            return self.give_up(GroupError::Diverged(sums));
        }
        let (standing, checksum) = states.first().copied().unwrap_or_default();
        tracing::info!(
            generation = self.generation,
            learners = ?self.members,
            updates = standing.updates,
            checksum,
            "the learners of the group are equal"
        );
        for rank in &self.members {
            self.tell(*rank, Answer::Equal);
        }
    }

    fn form(&mut self, chosen: Vec<usize>, broken: bool) {
        let mut reasons = self.seats.values().filter_map(|seat| match &seat.word {
            Some(Word::Broken { reason, .. }) => Some(reason.clone()),
            _ => None,
        });
        self.broken += u32::from(broken);
        if self.broken > MOST_BROKEN {
            let reason = reasons.next().unwrap_or_default();
            return self.give_up(GroupError::Unreachable(reason));
        }
        let standing = |seat: &Seat| match &seat.word {
            Some(
                Word::Ready(standing)
                | Word::Done(standing)
                | Word::Broken { standing, .. }
                | Word::Entered { standing, .. },
            ) => *standing,
            Some(Word::Offer(offer)) => offer.standing,
            _ => Standing::default(),
        };
        // Among equals, the lowest rank.
        let most_advanced = self.seats.iter().rev();
        let most_advanced = most_advanced.filter(|(rank, _)| chosen.contains(rank));
        let most_advanced = most_advanced.max_by_key(|(_, seat)| standing(seat));
        self.generation += 1;
        let formation = Formation {
            generation: self.generation,
            most_advanced: most_advanced.map_or(0, |(rank, _)| *rank),
            env_steps: self.env_steps,
            members: chosen,
        };
        tracing::info!(
            generation = formation.generation,
            learners = ?formation.members,
            most_advanced = formation.most_advanced,
            "the learners form a group"
        );
        self.members.clone_from(&formation.members);
        self.changed = false;
        for (rank, seat) in &mut self.seats {
            if formation.members.contains(rank) {
                seat.word = None;
                (seat.tell)(Answer::Form(formation.clone()));
            }
        }
    }

    fn agree(&mut self) {
        let seats = self.seats.iter_mut();
        let seats = seats.filter(|(rank, _)| self.members.contains(rank));
        let offers = seats.map(|(_, seat)| match seat.word.take() {
            Some(Word::Offer(offer)) => offer,
            _ => Offer::default(),
        });
        let offers: Vec<Offer> = offers.collect();
        let sums: Vec<u32> = offers.iter().filter_map(|offer| offer.checksum).collect();
        if sums.windows(2).any(|two| two[0] != two[1]) {
            return self.give_up(GroupError::Diverged(sums));
        }
        let before = self.env_steps;
        // Whatever a learner says.
        let steps = offers.iter().map(|offer| offer.steps);
        self.env_steps = steps.fold(before, u64::saturating_add);
        self.broken = 0;
        self.verdict = None;
        let pauses = offers.first().map(|offer| offer.pauses).unwrap_or_default();
        let passed = |at: u64| before < at && at <= self.env_steps;
        let agreement = Agreement {
            env_steps: self.env_steps,
            updates: offers.iter().map(|offer| offer.updates).min().unwrap_or(0),
            pause: pauses.now || passed(pauses.at),
            check: passed(pauses.check_at),
            all: None,
        };
        let learners = offers.len();
        let mut episodes = Vec::new();
        offers
            .into_iter()
            .for_each(|offer| episodes.extend(offer.episodes));
        let seats = self.seats.iter();
        for (rank, seat) in seats.filter(|(rank, _)| self.members.contains(rank)) {
            let all = (*rank == 0).then(|| (std::mem::take(&mut episodes), learners));
            (seat.tell)(Answer::Agree(Agreement {
                all,
                ..agreement.clone()
            }));
        }
    }
}

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Table")
            .field("present", &self.present())
            .finish_non_exhaustive()
    }
}
