//! How often entries are drawn, against their exact probabilities.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng;
use starling_envs::{Rollout, Space};
use starling_replay::{
    Draws, GroupDraw, GroupedDraws, Layout, MARK, PriorityConfig, Replay, ReplayConfig,
    ReplayError, TransitionBatch,
};
use starling_tree::{DType, Spec, Tree};

/// Steps of one environment that never ends an episode, or cuts one off every `episode` steps.
fn rollout(steps: usize, episode: Option<usize>) -> Rollout {
    let (none, number) = (Tree::empty(), Space::unbounded(&[]));
    let mut rollout = Rollout::new(
        steps,
        1,
        &number,
        &Space::Discrete { n: 2 },
        None,
        &none,
        &none,
    );
    for t in 0..steps {
        if episode.is_some_and(|length| t % length == length - 1) {
            rollout.truncated.at_mut(&[t, 0]).write(&[1u8]);
            rollout.keep_final(t, 0);
        }
    }
    rollout
}

fn prioritized(alpha: f64, draws: Draws, priorities: &[f32]) -> Replay {
    let rollout = rollout(priorities.len(), None);
    let config = ReplayConfig {
        capacity_steps: priorities.len() + 4,
        n_steps: 1,
        gamma: 0.99,
        priority: Some(PriorityConfig {
            alpha,
            draws,
            ..PriorityConfig::default()
        }),
        ..ReplayConfig::default()
    };
    let replay = Replay::new(config, Layout::of_rollout(&rollout, 1)).unwrap();
    replay.insert(&rollout, 0, Some(priorities)).unwrap();
    replay
}

/// How often each slot was drawn in `batches` batches.
fn counts(replay: &Replay, slots: usize, batches: usize, size: usize) -> Vec<u64> {
    counts_with(20, replay, slots, batches, size)
}

fn counts_with(seed: u64, replay: &Replay, slots: usize, batches: usize, size: usize) -> Vec<u64> {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut counts = vec![0; slots];
    let mut batch = replay.sample(size, 0.4, &mut rng).unwrap();
    for _ in 0..batches {
        replay.sample_into(&mut batch, 0.4, &mut rng).unwrap();
        for id in &batch.ids {
            counts[id.slot] += 1;
        }
    }
    counts
}

/// Pearson's statistic of counts against probabilities in proportion to `weights`.
fn chi_square(counts: &[u64], weights: &[f64]) -> f64 {
    let draws: u64 = counts.iter().sum();
    let total: f64 = weights.iter().sum();
    let terms = counts.iter().zip(weights).map(|(&count, weight)| {
        let expected = draws as f64 * weight / total;
        (count as f64 - expected).powi(2) / expected
    });
    terms.sum()
}

/// What 30 degrees of freedom exceed once in a thousand times.
const CHI_SQUARE_30: f64 = 59.70;

/// Priorities 1 to 31: P(i) = i/496, as in rela's test, which asserted nothing.
#[test]
fn draws_follow_the_priorities() {
    let priorities: Vec<f32> = (1..=31).map(|p| p as f32).collect();
    for alpha in [1.0, 0.6] {
        let exact: Vec<f64> = priorities
            .iter()
            .map(|&p| f64::from(p).powf(alpha))
            .collect();
        let twice: Vec<f64> = exact.iter().map(|w| w.powf(alpha)).collect();
        for draws in [Draws::Independent, Draws::Stratified] {
            let replay = prioritized(alpha, draws, &priorities);
            let counts = counts(&replay, 31, 10_000, 40);
            let statistic = chi_square(&counts, &exact);
            assert!(
                statistic < CHI_SQUARE_30,
                "{statistic} for α {alpha}, {draws:?}"
            );
            // The test would notice an exponent that is applied twice, or not at all.
            if alpha != 1.0 {
                assert!(chi_square(&counts, &twice) > 10.0 * CHI_SQUARE_30);
                let linear: Vec<f64> = (1..=31).map(f64::from).collect();
                assert!(chi_square(&counts, &linear) > 10.0 * CHI_SQUARE_30);
            }
        }
    }
}

/// The same over three streams of different size and weight, whose trees are apart: α = 0.6 over
/// priorities 1 to 31, also after a part of them was given late.
#[test]
fn draws_follow_the_priorities_over_all_streams() {
    let lengths = [3, 20, 8];
    let steps: Vec<Rollout> = lengths.iter().map(|&n| rollout(n, None)).collect();
    for draws in [Draws::Independent, Draws::Stratified] {
        let config = ReplayConfig {
            capacity_steps: 90,
            priority: Some(PriorityConfig {
                alpha: 0.6,
                draws,
                ..PriorityConfig::default()
            }),
            ..ReplayConfig::default()
        };
        let replay = Replay::new(config, Layout::of_rollout(&steps[0], 3)).unwrap();
        let mut next = 0;
        for (stream, rollout) in steps.iter().enumerate() {
            let given: Vec<f32> = (0..rollout.steps())
                .map(|i| (next + i + 1) as f32)
                .collect();
            next += given.len();
            // Every other one is wrong at first.
            let wrong = given.iter().map(|&p| {
                if (p as usize).is_multiple_of(2) {
                    9.0
                } else {
                    p
                }
            });
            let wrong: Vec<f32> = wrong.collect();
            replay.insert(rollout, stream, Some(&wrong)).unwrap();
        }
        let ids = replay.entries();
        let right: Vec<f32> = (1..=31).map(|p| p as f32).collect();
        assert_eq!(replay.update_priorities(&ids, &right), Ok(0));
        let all = counts(&replay, 90, 10_000, 40);
        let counts: Vec<u64> = ids.iter().map(|id| all[id.slot]).collect();
        let exact: Vec<f64> = (1..=31).map(|p| f64::from(p).powf(0.6)).collect();
        let statistic = chi_square(&counts, &exact);
        assert!(statistic < CHI_SQUARE_30, "{statistic}, {draws:?}");
        // It would notice streams that are drawn by their length.
        let weights = lengths.iter().flat_map(|&n| vec![n as f64; n]);
        assert!(chi_square(&counts, &weights.collect::<Vec<_>>()) > 10.0 * CHI_SQUARE_30);
    }
}

/// Independent draws vary as much as chance says, neither more nor less: the mean of 100 such
/// statistics lies within four standard deviations of their expectation, 30 ± 4·√(60/100).
/// Stratified draws vary far less.
#[test]
fn independent_draws_are_independent() {
    let mean = |draws| {
        let replay = prioritized(1.0, draws, &[1.0; 31]);
        let statistics = (0..100).map(|seed| {
            let counts = counts_with(seed, &replay, 31, 250, 40);
            chi_square(&counts, &[1.0; 31])
        });
        statistics.sum::<f64>() / 100.0
    };
    let independent = mean(Draws::Independent);
    assert!((independent - 30.0).abs() < 3.1, "{independent}");
    let stratified = mean(Draws::Stratified);
    assert!(stratified < 15.0, "{stratified}");
}

/// With equal priorities and as many draws as entries, each part of the total is one entry.
#[test]
fn stratified_draws_take_one_from_each_part() {
    let replay = prioritized(0.6, Draws::Stratified, &[2.0; 32]);
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(3);
    for _ in 0..100 {
        let batch = replay.sample(32, 0.4, &mut rng).unwrap();
        let slots: Vec<usize> = batch.ids.iter().map(|id| id.slot).collect();
        assert_eq!(slots, (0..32).collect::<Vec<_>>());
    }
}

/// Streams of different length, one of them full of boundary rows: every entry alike.
#[test]
fn uniform_draws_are_uniform_over_entries() {
    let long = rollout(20, Some(2));
    let short = rollout(11, None);
    let config = ReplayConfig {
        capacity_steps: 100,
        n_steps: 1,
        ..ReplayConfig::default()
    };
    let layout = Layout::of_rollout(&long, 3);
    let replay = Replay::new(config, layout).unwrap();
    replay.insert(&long, 0, None).unwrap();
    replay.insert(&short, 2, None).unwrap();
    let entries: Vec<usize> = replay.entries().into_iter().map(|id| id.slot).collect();
    assert_eq!(entries.len(), 31);
    let all = counts(&replay, 102, 4000, 32);
    let counts: Vec<u64> = entries.iter().map(|&slot| all[slot]).collect();
    assert_eq!(counts.iter().sum::<u64>(), 4000 * 32);
    let statistic = chi_square(&counts, &[1.0; 31]);
    assert!(statistic < CHI_SQUARE_30, "{statistic}");
}

/// With α = β = 1 importance weights are the smallest drawn priority over each entry's own.
#[test]
fn priorities_have_a_ceiling_and_a_first_value() {
    let weights = |replay: &Replay| {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(1);
        let batch = replay.sample(64, 1.0, &mut rng).unwrap();
        let mut by_slot = [f32::NAN; 3];
        for (id, weight) in batch.ids.iter().zip(batch.weights.as_slice::<f32>()) {
            by_slot[id.slot] = *weight;
        }
        by_slot
    };
    let replay = |priority: PriorityConfig, given: Option<&[f32]>| {
        let rollout = rollout(3, None);
        let config = ReplayConfig {
            capacity_steps: 7,
            priority: Some(priority),
            ..ReplayConfig::default()
        };
        let replay = Replay::new(config, Layout::of_rollout(&rollout, 1)).unwrap();
        replay.insert(&rollout, 0, given).unwrap();
        replay
    };
    let linear = PriorityConfig {
        alpha: 1.0,
        ..PriorityConfig::default()
    };
    let given = Some(&[5.0, 0.5, 2.0][..]);
    assert_eq!(weights(&replay(linear.clone(), given)), [0.1, 1.0, 0.25]);
    let limited = PriorityConfig {
        max_priority: Some(1.0),
        ..linear.clone()
    };
    assert_eq!(weights(&replay(limited.clone(), given)), [0.5, 1.0, 0.5]);

    // Two entries are raised: the third keeps what new entries get, 1 or 4.
    for (initial, expected) in [(None, [0.1, 0.5, 1.0]), (Some(4.0), [0.2, 1.0, 0.5])] {
        let config = PriorityConfig {
            initial_priority: initial,
            ..linear.clone()
        };
        let replay = replay(config, None);
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(2);
        let batch = replay.sample(64, 1.0, &mut rng).unwrap();
        for (slot, priority) in [(0, 10.0), (1, 2.0)] {
            let id = batch.ids.iter().find(|id| id.slot == slot).unwrap();
            replay.update_priorities(&[*id], &[priority]).unwrap();
        }
        assert_eq!(weights(&replay), expected);
    }
}

/// Six streams; the rewards of stream s are s, and its weights 1 to 32, times s + 1.
fn six_streams() -> Replay {
    let mut rollout = rollout(32, None);
    let config = ReplayConfig {
        capacity_steps: 6 * 40,
        priority: Some(PriorityConfig {
            alpha: 1.0,
            draws: Draws::Independent,
            ..PriorityConfig::default()
        }),
        ..ReplayConfig::default()
    };
    let replay = Replay::new(config, Layout::of_rollout(&rollout, 6)).unwrap();
    for stream in 0..6 {
        rollout.rewards.as_mut_slice::<f32>().fill(stream as f32);
        let priorities: Vec<f32> = (1..=32).map(|i| (i * (stream + 1)) as f32).collect();
        replay.insert(&rollout, stream, Some(&priorities)).unwrap();
    }
    replay
}

/// The streams of some rows of a batch.
fn streams(batch: &TransitionBatch, rows: std::ops::Range<usize>) -> Vec<usize> {
    let rewards = batch.returns.as_slice::<f32>()[rows].iter();
    rewards.map(|reward| *reward as usize).collect()
}

/// Only the rows that were asked for are drawn, from the streams that were asked for, in proportion
/// to their weights.
#[test]
fn draws_can_be_of_some_streams_only() {
    let replay = six_streams();
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(5);
    let mut batch = replay.sample(20, 0.5, &mut rng).unwrap();
    let mut counts = [0u64; 6];
    for _ in 0..2_000 {
        let before = batch.clone();
        replay
            .sample_from(2..4, 5..15, &mut batch, 0.5, &mut rng)
            .unwrap();
        assert_eq!(before.ids[..5], batch.ids[..5]);
        assert_eq!(before.ids[15..], batch.ids[15..]);
        let weights = batch.weights.as_slice::<f32>();
        assert_eq!(before.weights.as_slice::<f32>()[..5], weights[..5]);
        let largest = weights[5..15].iter().copied().fold(0.0, f32::max);
        assert_eq!(largest, 1.0);
        for stream in streams(&batch, 5..15) {
            counts[stream] += 1;
        }
    }
    assert_eq!(counts.iter().sum::<u64>(), counts[2] + counts[3]);
    let share = counts[2] as f64 / 20_000.0;
    assert!((share - 3.0 / 7.0).abs() < 0.015, "{share}");

    let missing = replay.sample_from(4..7, 0..20, &mut batch, 0.5, &mut rng);
    assert!(matches!(missing, Err(ReplayError::Stream { last: 6, .. })));
    let too_many = replay.sample_from(0..6, 10..21, &mut batch, 0.5, &mut rng);
    assert!(matches!(too_many, Err(ReplayError::Batch { .. })));
}

/// Two draws from each of three groups chosen among three: a group's rows are of its streams, both
/// draws are of the same groups, and every group is chosen equally often, whatever its weight.
#[test]
fn groups_are_chosen_alike_and_drawn_from_twice() {
    let replay = six_streams();
    let draws = GroupedDraws {
        groups: vec![0..1, 1..3, 3..6],
        chosen: 3,
        draws: vec![GroupDraw::all(4), GroupDraw::all(2)],
    };
    assert_eq!(draws.batch_size(), 18);
    let group_of = |stream: &usize| draws.groups.iter().position(|group| group.contains(stream));
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(6);
    let mut batch = TransitionBatch::new(replay.layout(), 18);
    let mut counts = [0u64; 3];
    for _ in 0..3_000 {
        replay
            .sample_groups_into(&mut batch, &draws, 0.5, &mut rng)
            .unwrap();
        for chosen in 0..3 {
            let first = streams(&batch, 4 * chosen..4 * chosen + 4);
            let second = streams(&batch, 12 + 2 * chosen..14 + 2 * chosen);
            let group = group_of(&first[0]).unwrap();
            let all = first.iter().chain(&second);
            assert!(
                all.into_iter()
                    .all(|stream| group_of(stream) == Some(group))
            );
            counts[group] += 1;
        }
    }
    for count in counts {
        let share = count as f64 / 9_000.0;
        assert!((share - 1.0 / 3.0).abs() < 0.02, "{counts:?}");
    }
    let mut small = TransitionBatch::new(replay.layout(), 17);
    let wrong = replay.sample_groups_into(&mut small, &draws, 0.5, &mut rng);
    assert!(matches!(wrong, Err(ReplayError::Batch { .. })));
}

/// Groups of streams that nothing came from yet are never chosen.
#[test]
fn empty_groups_are_left_out() {
    let rollout = rollout(8, None);
    let replay = Replay::new(ReplayConfig::default(), Layout::of_rollout(&rollout, 2)).unwrap();
    let draws = GroupedDraws {
        groups: vec![0..1, 1..2],
        chosen: 2,
        draws: vec![GroupDraw::all(3)],
    };
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(7);
    let mut batch = TransitionBatch::new(replay.layout(), 6);
    let nothing = replay.sample_groups_into(&mut batch, &draws, 0.0, &mut rng);
    assert!(matches!(nothing, Err(ReplayError::Empty { .. })));
    replay.insert(&rollout, 1, None).unwrap();
    let known: Vec<_> = replay.entries();
    for _ in 0..100 {
        replay
            .sample_groups_into(&mut batch, &draws, 0.0, &mut rng)
            .unwrap();
        assert!(batch.ids.iter().all(|id| known.contains(id)));
    }
}

/// Steps 0 to 19 of two streams, of which every third of the first is marked: 0, 3, … 18. A draw of
/// the newest four is of 9, 12, 15 and 18. Without marks a draw is of everything. Every stream is a
/// group.
#[test]
fn marked_steps_are_drawn_by_themselves() {
    let records = Tree::node([(MARK, Tree::Leaf(Spec::scalar(DType::U8)))]);
    let (none, number) = (Tree::empty(), Space::unbounded(&[]));
    let action = Space::Discrete { n: 2 };
    let mut rollout = Rollout::new(20, 2, &number, &action, None, &records, &none);
    for t in (0..20).step_by(3) {
        let Some(Tree::Leaf(marks)) = rollout.policy.get_mut(MARK) else {
            panic!("it was asked for");
        };
        marks.at_mut(&[t, 0]).write(&[1u8]);
    }
    let replay = Replay::new(ReplayConfig::default(), Layout::of_rollout(&rollout, 2)).unwrap();
    replay.insert(&rollout, 0, None).unwrap();
    let draws = GroupedDraws {
        groups: Vec::new(),
        chosen: 4,
        draws: vec![GroupDraw::all(2), GroupDraw::marked(8, 4)],
    };
    let rows = replay.config().rows_per_stream(2);
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(8);
    let mut batch = TransitionBatch::new(replay.layout(), draws.batch_size());
    let (mut marked, mut others) = (BTreeSet::new(), BTreeSet::new());
    for _ in 0..100 {
        replay
            .sample_groups_into(&mut batch, &draws, 0.0, &mut rng)
            .unwrap();
        for chosen in 0..4 {
            let stream = batch.ids[2 * chosen].slot / rows;
            for id in &batch.ids[8 + 8 * chosen..16 + 8 * chosen] {
                assert_eq!(id.slot / rows, stream);
                let set = if stream == 0 {
                    &mut marked
                } else {
                    &mut others
                };
                set.insert(id.slot % rows);
            }
        }
    }
    assert_eq!(marked, BTreeSet::from([9, 12, 15, 18]));
    assert!(others.len() > 15, "{others:?}");
}
