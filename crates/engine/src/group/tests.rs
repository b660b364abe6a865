//! Agreements and groups, without a network.

use std::sync::Arc;

use crossbeam_channel::{Receiver, unbounded};

use super::*;

struct Learner {
    rank: usize,
    table: Arc<Table>,
    answers: Receiver<Answer>,
}

impl Learner {
    fn sit(table: &Arc<Table>, wanted: Option<usize>) -> Option<Self> {
        let (tell, answers) = unbounded();
        let tell: Tell = Box::new(move |answer| tell.send(answer).unwrap_or(()));
        let rank = table.sit(wanted, tell)?;
        let table = Arc::clone(table);
        Some(Self {
            rank,
            table,
            answers,
        })
    }

    fn say(&self, word: Word) {
        self.table.say(self.rank, word);
    }

    fn offer(&self, steps: u64, updates: u64) {
        self.say(Word::Offer(Offer {
            steps,
            updates,
            ..Offer::default()
        }));
    }

    fn heard(&self) -> Option<Answer> {
        self.answers.try_recv().ok()
    }

    fn formation(&self) -> Formation {
        match self.heard() {
            Some(Answer::Form(formation)) => formation,
            other => panic!("{other:?} is not a group"),
        }
    }

    /// Enters the group that was formed, with a state of this checksum.
    fn enter(&self, checksum: u32) {
        self.say(Word::Entered {
            standing: Standing::default(),
            checksum,
        });
    }

    fn agreement(&self) -> Agreement {
        match self.heard() {
            Some(Answer::Agree(agreement)) => agreement,
            other => panic!("{other:?} is not an agreement"),
        }
    }
}

fn standing(updates: u64, steps: u64) -> Standing {
    Standing { updates, steps }
}

fn learners(size: usize, losses: u64) -> Vec<Learner> {
    let table = Arc::new(Table::new(size, losses));
    let first = Learner::sit(&table, Some(0));
    let all = first.into_iter();
    let all: Vec<Learner> = all
        .chain((1..size).map(|_| Learner::sit(&table, None).unwrap()))
        .collect();
    assert!(
        Learner::sit(&table, None).is_none(),
        "there is no free seat"
    );
    for learner in &all {
        assert_eq!(learner.heard(), None);
        learner.say(Word::Ready(Standing::default()));
    }
    let everyone: Vec<usize> = (0..size).collect();
    for learner in &all {
        assert_eq!(learner.formation().members, everyone);
    }
    for learner in &all {
        assert_eq!(all[0].heard(), None, "not all are in the group yet");
        learner.enter(7);
    }
    are_equal(&all);
    all
}

/// All go on.
fn are_equal<'a>(all: impl IntoIterator<Item = &'a Learner>) {
    for learner in all {
        assert_eq!(learner.heard(), Some(Answer::Equal));
    }
}

/// Steps are added up; all make as many updates as the one that can make the fewest.
#[test]
fn a_round_is_agreed_on_when_all_have_offered() {
    let all = learners(3, 0);
    all[0].offer(10, 4);
    all[2].offer(7, 2);
    assert_eq!(all[0].heard(), None);
    all[1].offer(5, 3);
    for learner in &all {
        let agreement = learner.agreement();
        assert_eq!((agreement.env_steps, agreement.updates), (22, 2));
        assert_eq!(agreement.all.is_some(), learner.rank == 0);
    }
}

/// The table waits for a learner that computes. After a loss the others form a group, with the state
/// of the most advanced one, and continue; a new learner joins at the next round.
#[test]
fn the_rest_forms_again_and_a_new_one_joins() {
    let all = learners(3, 1);
    let broken = |standing| Word::Broken {
        standing,
        reason: "reset".into(),
    };
    all[0].say(broken(standing(7, 40)));
    all[0].table.lost(1, "killed");
    assert_eq!(all[0].heard(), None);
    all[2].say(broken(standing(8, 41)));
    for learner in [&all[0], &all[2]] {
        let formation = learner.formation();
        assert_eq!(formation.members, [0, 2]);
        assert_eq!((formation.most_advanced, formation.generation), (2, 2));
        learner.enter(8);
    }
    are_equal([&all[0], &all[2]]);
    let new = Learner::sit(&all[0].table, None).unwrap();
    assert_eq!(new.rank, 1);
    new.say(Word::Ready(Standing::default()));
    all[0].offer(1, 1);
    assert_eq!(new.heard(), None);
    all[2].offer(1, 1);
    for learner in [&all[0], &new, &all[2]] {
        assert_eq!(learner.formation().members, [0, 1, 2]);
        learner.enter(9);
    }
    are_equal([&all[0], &new, &all[2]]);
    for learner in [&all[0], &new, &all[2]] {
        learner.offer(1, 1);
    }
    assert_eq!(new.agreement().env_steps, 3);
    // The second loss is one too many.
    all[0].table.lost(2, "killed");
    assert!(matches!(
        all[0].answers.try_iter().last(),
        Some(Answer::Failed(GroupError::Lost { rank: 2, .. }))
    ));
}

/// The members finish a round that broke by themselves. A learner that came back meanwhile joins at
/// the next round, and is not waited for.
#[test]
fn a_learner_that_returns_early_joins_after_the_round() {
    let all = learners(3, 1);
    all[0].table.lost(1, "killed");
    let new = Learner::sit(&all[0].table, None).unwrap();
    for learner in [&all[0], &all[2]] {
        learner.say(Word::Broken {
            standing: standing(7, 40),
            reason: "reset".into(),
        });
    }
    new.say(Word::Ready(Standing::default()));
    for learner in [&all[0], &all[2]] {
        assert_eq!(learner.formation().members, [0, 2]);
        learner.enter(7);
    }
    are_equal([&all[0], &all[2]]);
    assert_eq!(new.heard(), None);
    for learner in [&all[0], &all[2]] {
        learner.offer(1, 1);
    }
    for learner in [&all[0], &new, &all[2]] {
        assert_eq!(learner.formation().members, [0, 1, 2]);
    }
}

#[test]
fn failures_and_different_weights_end_the_run() {
    let all = learners(2, 5);
    all[1].say(Word::Failed("the environment broke".into()));
    let error = all[0].heard();
    let Some(Answer::Failed(error)) = error else {
        panic!("{error:?}");
    };
    assert_eq!(error.to_string(), "learner 1 failed: the environment broke");
    let all = learners(2, 5);
    for (learner, checksum) in all.iter().zip([5, 6]) {
        let checksum = Some(checksum);
        learner.say(Word::Offer(Offer {
            checksum,
            ..Offer::default()
        }));
    }
    let error = all[0].heard();
    assert!(matches!(
        error,
        Some(Answer::Failed(GroupError::Diverged(_)))
    ));
}

/// Nobody makes an update in a new group before all have entered it with the same state. One that is
/// lost on the way, or cannot enter, is no member of the next one.
#[test]
fn a_new_group_is_compared_before_its_first_update() {
    let all = learners(3, 2);
    for learner in &all {
        learner.say(Word::Broken {
            standing: standing(7, 40),
            reason: "reset".into(),
        });
    }
    for learner in &all {
        assert_eq!(learner.formation().members, [0, 1, 2]);
    }
    all[0].enter(1);
    all[1].table.lost(1, "killed");
    assert_eq!(all[0].heard(), None);
    all[2].enter(1);
    for learner in [&all[0], &all[2]] {
        assert_eq!(learner.formation().members, [0, 2]);
    }
    all[0].enter(1);
    assert_eq!(all[0].heard(), None);
    all[2].enter(2);
    let error = all[0].heard();
    let diverged = GroupError::Diverged(vec![1, 2]);
    assert_eq!(error, Some(Answer::Failed(diverged)));
    assert_eq!(all[2].heard(), None, "it does not continue");
}

/// A learner may finish an update that broke for another. When it waits for the verdict on the round, it
/// is the most advanced one of the next group, and waits again.
#[test]
fn a_group_forms_with_a_learner_that_waits_for_the_verdict() {
    for done_first in [true, false] {
        let all = learners(3, 1);
        all[0].table.lost(1, "killed");
        let broken = || {
            all[0].say(Word::Broken {
                standing: standing(7, 3),
                reason: "reset".into(),
            });
        };
        if !done_first {
            broken();
        }
        all[2].say(Word::Done(standing(8, 0)));
        assert_eq!(all[2].answers.len(), usize::from(!done_first));
        if done_first {
            broken();
        }
        for learner in [&all[0], &all[2]] {
            let formation = learner.formation();
            assert_eq!(
                (formation.members, formation.most_advanced),
                (vec![0, 2], 2)
            );
            learner.enter(5);
        }
        are_equal([&all[0], &all[2]]);
        all[2].say(Word::Done(standing(8, 0)));
        all[0].say(Word::Close(Verdict::default()));
        assert_eq!(all[2].heard(), Some(Answer::Verdict(Verdict::default())));
    }
}

/// Learner 0 announces when a verdict follows a round; the others get it when they ask, even later.
#[test]
fn verdicts_reach_all() {
    let all = learners(3, 0);
    let pauses = Pauses {
        at: 10,
        ..Pauses::default()
    };
    for round in 0..2 {
        for learner in &all {
            learner.say(Word::Offer(Offer {
                steps: 2,
                pauses,
                ..Offer::default()
            }));
        }
        for learner in &all {
            assert_eq!(learner.agreement().pause, round == 1);
        }
    }
    let verdict = Verdict {
        checkpoint: Some(Some(1.0)),
        end: true,
    };
    all[1].say(Word::Done(Standing::default()));
    assert_eq!(all[1].heard(), None);
    all[0].say(Word::Close(verdict));
    all[2].say(Word::Done(Standing::default()));
    for learner in &all[1..] {
        assert_eq!(learner.heard(), Some(Answer::Verdict(verdict)));
    }
    all[0].table.close();
    assert_eq!(all[2].heard(), Some(Answer::Closed));
}

/// A group that breaks again and again without a loss is not formed forever.
#[test]
fn hopeless_groups_end_the_run() {
    let all = learners(2, 0);
    for _ in 0..100 {
        for learner in &all {
            learner.say(Word::Broken {
                standing: Standing::default(),
                reason: "no route to host".into(),
            });
        }
        match all[0].heard() {
            Some(Answer::Form(_)) => assert!(matches!(all[1].heard(), Some(Answer::Form(_)))),
            Some(Answer::Failed(error)) => {
                assert!(error.to_string().contains("no route"), "{error}");
                return;
            }
            other => panic!("{other:?}"),
        }
    }
    panic!("the group was formed forever");
}
