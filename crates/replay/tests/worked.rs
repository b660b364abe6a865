//! Numbers worked by hand or by a second implementation.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng;
use starling_envs::{Rollout, Space};
use starling_replay::{
    Draws, Layout, PriorityConfig, Replay, ReplayConfig, ReplayError, SampleId, Snapshot,
};
use starling_tree::{Array, DType, Tree};

/// How an episode goes on after a step.
#[derive(Clone, Copy, PartialEq)]
enum Then {
    Goes,
    Terminates,
    Truncates,
}
use Then::{Goes, Terminates, Truncates};

/// A rollout of one environment whose observations are numbers: `first`, `first` + 1, ...; the
/// final observation of an episode is the number that its step leads to, plus one half.
fn rollout(first: f32, steps: &[(f32, Then)]) -> Rollout {
    let number = Space::unbounded(&[1]);
    let (none, t) = (Tree::empty(), steps.len());
    let mut rollout = Rollout::new(
        t,
        1,
        &number,
        &Space::Discrete { n: 100 },
        None,
        &none,
        &none,
    );
    let numbers: Vec<f32> = (0..=t).map(|i| first + i as f32).collect();
    for (i, &(reward, then)) in steps.iter().enumerate() {
        rollout.rewards.at_mut(&[i, 0]).write(&[reward]);
        rollout
            .actions
            .at_mut(&[i, 0])
            .write(&[(first as i64 + i as i64) % 100]);
        if then == Goes {
            continue;
        }
        let flag = if then == Terminates {
            &mut rollout.terminated
        } else {
            &mut rollout.truncated
        };
        flag.at_mut(&[i, 0]).write(&[1u8]);
        obs_of(&mut rollout)
            .at_mut(&[i + 1, 0])
            .write(&[numbers[i + 1] + 0.5]);
        rollout.keep_final(i, 0);
    }
    obs_of(&mut rollout)
        .as_mut_slice::<f32>()
        .copy_from_slice(&numbers);
    rollout.version = first as u64;
    rollout
}

fn obs_of(rollout: &mut Rollout) -> &mut Array {
    match &mut rollout.obs {
        Tree::Leaf(array) => array,
        Tree::Node(_) => panic!("observations are numbers"),
    }
}

fn replay(config: ReplayConfig, like: &Rollout) -> Replay {
    Replay::new(config, Layout::of_rollout(like, 1)).unwrap()
}

fn config(capacity_steps: usize, n_steps: usize, gamma: f64) -> ReplayConfig {
    ReplayConfig {
        capacity_steps,
        n_steps,
        gamma,
        ..ReplayConfig::default()
    }
}

fn prioritized(capacity_steps: usize, alpha: f64, draws: Draws) -> ReplayConfig {
    ReplayConfig {
        priority: Some(PriorityConfig {
            alpha,
            draws,
            ..PriorityConfig::default()
        }),
        ..config(capacity_steps, 1, 0.99)
    }
}

/// (observation, action, return, discount, next observation) of every entry.
fn entries(replay: &Replay) -> Vec<(f32, i64, f32, f32, f32)> {
    let ids: Vec<SampleId> = replay.entries();
    assert_eq!(ids.len(), replay.len());
    let mut batch = starling_replay::TransitionBatch::new(replay.layout(), ids.len());
    assert_eq!(replay.read_into(&ids, &mut batch), Ok(0));
    let obs = batch.obs.leaf().unwrap().as_slice::<f32>();
    let next = batch.next_obs.leaf().unwrap().as_slice::<f32>();
    let returns = batch.returns.as_slice::<f32>();
    let discounts = batch.discounts.as_slice::<f32>();
    let actions = batch.actions.as_slice::<i64>();
    (0..ids.len())
        .map(|i| (obs[i], actions[i], returns[i], discounts[i], next[i]))
        .collect()
}

fn rng(seed: u64) -> Xoshiro256PlusPlus {
    Xoshiro256PlusPlus::seed_from_u64(seed)
}

fn close(a: f64, b: f64) {
    assert!((a - b).abs() < 1e-6, "{a} is not {b}");
}

/// n = 3, γ = 0.9, r = 1..6, the task ends at index 3: returns 5.23, 7.94, 6.6, 4.
#[test]
fn n_step_returns_stop_where_the_task_ends() {
    let ends = [Goes, Goes, Goes, Terminates, Goes, Goes];
    let steps: Vec<_> = ends
        .iter()
        .enumerate()
        .map(|(i, &e)| (i as f32 + 1.0, e))
        .collect();
    let rollout = rollout(0.0, &steps);
    let replay = replay(config(20, 3, 0.9), &rollout);
    assert_eq!(replay.insert(&rollout, 0, None), Ok(6));
    let entries = entries(&replay);
    let returns: Vec<f32> = entries.iter().map(|e| e.2).collect();
    assert_eq!(returns, [5.23, 7.94, 6.6, 4.0]);
    let discounts: Vec<f32> = entries.iter().map(|e| e.3).collect();
    assert_eq!(discounts, [0.729, 0.0, 0.0, 0.0]);
    // The first one bootstraps three steps later; the last two steps have no successors yet.
    assert_eq!((entries[0].0, entries[0].4), (0.0, 3.0));
}

/// n = 3, γ = 0.5, cut off after the second step: 1 + 0.5·2 = 2 and γ² = 0.25 with the final
/// observation 2.5, though the row that follows shows the next episode's first one, 2.
#[test]
fn targets_bootstrap_through_truncation_from_the_final_observation() {
    let rollout = rollout(
        0.0,
        &[(1.0, Goes), (2.0, Truncates), (4.0, Goes), (8.0, Goes)],
    );
    let replay = replay(config(20, 3, 0.5), &rollout);
    replay.insert(&rollout, 0, None).unwrap();
    let expected = [(0.0, 0, 2.0, 0.25, 2.5), (1.0, 1, 2.0, 0.5, 2.5)];
    assert_eq!(entries(&replay), expected);
}

/// The task ends with the second step, in an observation of 2.5; the row that follows shows the next
/// episode's first one, 2, which is not what the step led to. Also from a snapshot.
#[test]
fn terminal_observations_are_kept_if_asked_for() {
    let first = rollout(0.0, &[(1.0, Goes), (2.0, Terminates), (4.0, Goes)]);
    for (kept, last) in [(false, 2.0), (true, 2.5)] {
        let config = ReplayConfig {
            keep_terminal_obs: kept,
            ..config(20, 2, 0.5)
        };
        let replay = replay(config.clone(), &first);
        replay.insert(&first, 0, None).unwrap();
        let ended = [(0.0, 0, 2.0, 0.0, last), (1.0, 1, 2.0, 0.0, last)];
        assert_eq!(entries(&replay), ended);
        let mut bytes = Vec::new();
        let snapshot = Snapshot::begin(&replay, None).unwrap();
        snapshot.write(&mut bytes).unwrap();
        let none = |_| -> std::io::Result<&[u8]> { Err(std::io::ErrorKind::NotFound.into()) };
        let layout = Layout::of_rollout(&first, 1);
        let (replay, _) = Replay::load(&bytes[..], none, &config, &layout).unwrap();
        let second = rollout(3.0, &[(8.0, Terminates)]);
        replay.insert(&second, 0, None).unwrap();
        let last = if kept { 4.5 } else { 4.0 };
        let more = [(2.0, 2, 8.0, 0.0, last), (3.0, 3, 8.0, 0.0, last)];
        assert_eq!(entries(&replay)[2..], more);
    }
}

/// A step without its successors waits until the next rollout brings them.
#[test]
fn the_last_transition_is_completed_by_the_next_rollout() {
    let first = rollout(0.0, &[(1.0, Goes), (2.0, Goes)]);
    let replay = replay(config(20, 2, 0.5), &first);
    replay.insert(&first, 0, None).unwrap();
    assert_eq!(entries(&replay), [(0.0, 0, 2.0, 0.25, 2.0)]);
    let second = rollout(2.0, &[(4.0, Terminates)]);
    replay.insert(&second, 0, None).unwrap();
    let expected = [
        (0.0, 0, 2.0, 0.25, 2.0),
        (1.0, 1, 4.0, 0.0, 3.0),
        (2.0, 2, 4.0, 0.0, 3.0),
    ];
    assert_eq!(entries(&replay), expected);
    assert_eq!((replay.breaks(), replay.inserted_steps()), (0, 3));
}

/// An environment that was restarted: the open episode counts as cut off where it stopped.
#[test]
fn a_rollout_that_does_not_go_on_cuts_the_episode_off() {
    let first = rollout(0.0, &[(1.0, Goes), (2.0, Goes)]);
    let replay = replay(config(20, 3, 0.5), &first);
    replay.insert(&first, 0, None).unwrap();
    assert!(replay.is_empty());
    let second = rollout(50.0, &[(4.0, Goes)]);
    replay.insert(&second, 0, None).unwrap();
    let expected = [(0.0, 0, 2.0, 0.25, 2.0), (1.0, 1, 2.0, 0.5, 2.0)];
    assert_eq!(entries(&replay), expected);
    assert_eq!(replay.breaks(), 1);
}

/// Priorities 1, 2, 3, 4 with α = 0.6 and β = 0.4.
#[test]
fn probabilities_and_importance_weights() {
    let rollout = rollout(0.0, &[(0.0, Goes); 4]);
    let replay = replay(prioritized(10, 0.6, Draws::Stratified), &rollout);
    replay
        .insert(&rollout, 0, Some(&[1.0, 2.0, 3.0, 4.0]))
        .unwrap();
    let ids: Vec<SampleId> = replay.entries();
    let drawn_by: Vec<f64> = ids.iter().map(|&id| replay.weight(id).unwrap()).collect();
    let total: f64 = drawn_by.iter().sum();
    for (weight, p) in drawn_by.iter().zip([0.14823, 0.224674, 0.286555, 0.340542]) {
        close(weight / total, p);
    }
    let batch = replay.sample(1000, 0.4, &mut rng(1)).unwrap();
    let expected = [1.0, 0.846745, 0.768229, 0.716978];
    for (id, &weight) in batch.ids.iter().zip(batch.weights.as_slice::<f32>()) {
        close(f64::from(weight), expected[id.slot]);
    }
}

/// The same priorities given late, by `update_priorities`: α is applied once there as well.
#[test]
fn updated_priorities_are_raised_to_alpha_once() {
    let rollout = rollout(0.0, &[(0.0, Goes); 4]);
    let replay = replay(prioritized(10, 0.6, Draws::Stratified), &rollout);
    replay.insert(&rollout, 0, None).unwrap();
    let ids: Vec<SampleId> = replay.entries();
    assert!(ids.iter().all(|&id| replay.weight(id) == Some(1.0)));
    assert_eq!(replay.update_priorities(&ids, &[1.0, 2.0, 3.0, 4.0]), Ok(0));
    for (&id, p) in ids.iter().zip([1.0f64, 2.0, 3.0, 4.0]) {
        close(replay.weight(id).unwrap(), p.powf(0.6));
    }
    // New entries get the largest priority so far, 4.
    let mut next = crate::rollout(4.0, &[(0.0, Goes)]);
    next.version = 9;
    replay.insert(&next, 0, None).unwrap();
    let newest = replay.entries().into_iter().next_back().unwrap();
    close(replay.weight(newest).unwrap(), 4f64.powf(0.6));
    // A priority of zero can still be drawn.
    replay.update_priorities(&[newest], &[0.0]).unwrap();
    close(replay.weight(newest).unwrap(), 1e-6f64.powf(0.6));
}

#[test]
fn priorities_for_overwritten_entries_are_dropped() {
    let rollout = rollout(0.0, &[(0.0, Goes); 4]);
    let replay = replay(prioritized(5, 1.0, Draws::Independent), &rollout);
    replay.insert(&rollout, 0, None).unwrap();
    let old: Vec<SampleId> = replay.entries();
    assert_eq!(old.len(), 4);
    // Two more steps take the places of the first two, and the pending observation one more.
    replay
        .insert(&crate::rollout(4.0, &[(0.0, Goes); 2]), 0, None)
        .unwrap();
    let before: Vec<_> = replay
        .entries()
        .into_iter()
        .map(|id| (id, replay.weight(id)))
        .collect();
    let late = replay.update_priorities(&old[..2], &[7.0, 8.0]);
    assert_eq!(late, Ok(2));
    let after: Vec<_> = replay
        .entries()
        .into_iter()
        .map(|id| (id, replay.weight(id)))
        .collect();
    assert_eq!(before, after);
    assert_eq!(replay.update_priorities(&old, &[5.0; 4]), Ok(2));
    assert_eq!(replay.weight(old[2]), Some(5.0));
    assert_eq!(replay.weight(old[0]), None);
}

#[test]
fn wrong_input_is_refused_and_changes_nothing() {
    let good = rollout(0.0, &[(0.0, Goes); 4]);
    let replay = replay(prioritized(10, 0.6, Draws::Stratified), &good);
    let empty = replay.sample(4, 0.4, &mut rng(1)).unwrap_err();
    assert_eq!(empty, ReplayError::Empty { steps: 0 });

    let message = |result: Result<usize, ReplayError>| result.unwrap_err().to_string();
    let other = Rollout::new(
        2,
        1,
        &Space::unbounded(&[3]),
        &Space::Discrete { n: 2 },
        None,
        &Tree::empty(),
        &Tree::empty(),
    );
    let expected = "replay: 'obs' of the rollout is F32 [3], but this replay stores F32 [1]";
    assert_eq!(message(replay.insert(&other, 0, None)), expected);
    assert!(message(replay.insert(&good, 1, None)).contains("there are only 1"));
    let nan = replay.insert(&good, 0, Some(&[1.0, f32::NAN, 1.0, 1.0]));
    assert!(message(nan).contains("priority 1 of 4 is NaN"));
    let mut cut = rollout(0.0, &[(0.0, Truncates)]);
    cut.final_at.clear();
    assert_eq!(
        replay.insert(&cut, 0, None),
        Err(ReplayError::FinalMissing { t: 0, b: 0 })
    );
    assert_eq!(replay.inserted_steps(), 0);

    replay.insert(&good, 0, None).unwrap();
    let ids: Vec<SampleId> = replay.entries();
    assert!(message(replay.update_priorities(&ids, &[1.0])).contains("1 priorities"));
    let wrong = replay.update_priorities(&ids, &[2.0, 2.0, f32::INFINITY, 2.0]);
    assert!(message(wrong).contains("inf"));
    assert!(ids.iter().all(|&id| replay.weight(id) == Some(1.0)));

    let mut batch = replay.sample(4, 0.4, &mut rng(1)).unwrap();
    batch.next_obs = Tree::Leaf(Array::zeros(DType::F32, &[4, 3]));
    let wrong = replay.sample_into(&mut batch, 0.4, &mut rng(1));
    assert_eq!(wrong, Err(ReplayError::Batch { column: "next_obs" }));
}
