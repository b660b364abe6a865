//! Sequences: recurrent states as in an unbroken unroll, numbers worked by hand, and budgets.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use starling_envs::{Rollout, Space, stream};
use starling_replay::{
    Layout, PriorityConfig, Replay, ReplayConfig, ReplayError, SampleId, SequenceBatch,
    SequenceConfig, mixed_priority,
};
use starling_tree::{Array, DType, Spec, Tree};

/// Part C of the check values: η = 0.9 over 0.1, 0.5, 2, 0.4 gives 1.875.
#[test]
fn the_priority_of_a_sequence_is_mixed() {
    assert!((mixed_priority([0.1, 0.5, 2.0, 0.4], 0.9) - 1.875).abs() < 1e-6);
    assert_eq!(mixed_priority([3.0], 0.9), 3.0);
    assert_eq!(mixed_priority([], 0.9), 0.0);
}

fn config(burn_in: usize, length: usize, overlap: usize, interval: usize) -> ReplayConfig {
    ReplayConfig {
        capacity_steps: 1000,
        n_steps: 2,
        gamma: 0.5,
        priority: Some(PriorityConfig {
            alpha: 1.0,
            ..PriorityConfig::default()
        }),
        sequence: Some(SequenceConfig {
            burn_in_steps: burn_in,
            length_steps: length,
            overlap_steps: overlap,
            state_interval_steps: interval,
            priority_eta: 0.9,
        }),
        ..ReplayConfig::default()
    }
}

/// A recurrent unit: what it remembers of everything it saw.
fn unit(state: f32, obs: f32) -> f32 {
    (0.9 * state + obs).sin()
}

/// One environment and a policy with a memory. Episodes of the given lengths, the ones with an
/// odd number cut off; the policy records its state before each step.
fn unrolled(lengths: &[usize]) -> (Rollout, Vec<f32>) {
    let steps: usize = lengths.iter().sum();
    let memory = Tree::node([("state", Tree::Leaf(Spec::new(DType::F32, &[1])))]);
    let (space, actions) = (Space::unbounded(&[1]), Space::Discrete { n: 7 });
    let mut rollout = Rollout::new(steps, 1, &space, &actions, None, &memory, &Tree::empty());
    let (mut t, mut states) = (0, Vec::new());
    for (episode, &length) in lengths.iter().enumerate() {
        let mut state = 0.0;
        for step in 0..length {
            let obs = (t as f32 * 0.7).cos();
            leaf(&mut rollout.obs).at_mut(&[t, 0]).write(&[obs]);
            rollout.rewards.at_mut(&[t, 0]).write(&[t as f32]);
            rollout.actions.at_mut(&[t, 0]).write(&[(t % 7) as i64]);
            for (_, array) in rollout.policy.leaves_mut() {
                array.at_mut(&[t, 0]).write(&[state]);
            }
            states.push(state);
            state = unit(state, obs);
            if step + 1 == length {
                let last = ((t + 1) as f32 * 0.7).cos();
                leaf(&mut rollout.obs).at_mut(&[t + 1, 0]).write(&[last]);
                let flag = match episode % 2 {
                    0 => &mut rollout.terminated,
                    _ => &mut rollout.truncated,
                };
                flag.at_mut(&[t, 0]).write(&[1u8]);
                rollout.keep_final(t, 0);
            }
            t += 1;
        }
    }
    leaf(&mut rollout.obs)
        .at_mut(&[t, 0])
        .write(&[(t as f32 * 0.7).cos()]);
    (rollout, states)
}

fn leaf(tree: &mut Tree<Array>) -> &mut Array {
    match tree {
        Tree::Leaf(array) => array,
        Tree::Node(_) => panic!("observations are numbers"),
    }
}

fn all(replay: &Replay) -> SequenceBatch {
    let ids = replay.entries();
    let mut batch = SequenceBatch::new(replay.config(), replay.layout(), ids.len()).unwrap();
    assert_eq!(replay.read_sequences_into(&ids, &mut batch), Ok(0));
    batch
}

/// Unrolling every sequence from its stored state, with zeros where `resets` says so, gives the
/// states that the actor had, bit for bit, at every step that was seen.
#[test]
fn states_are_those_of_an_unbroken_unroll() {
    let (rollout, states) = unrolled(&[3, 17, 1, 40, 9, 22]);
    for (burn_in, length, overlap, interval) in [
        (0, 5, 0, 1),
        (4, 6, 2, 2),
        (8, 8, 4, 4),
        (3, 4, 1, 3),
        (6, 5, 3, 1),
    ] {
        let config = config(burn_in, length, overlap, interval);
        let replay = Replay::new(config, Layout::of_rollout(&rollout, 1)).unwrap();
        replay.insert(&rollout, 0, None).unwrap();
        let batch = all(&replay);
        let total = burn_in + length + 2;
        let mut covered = vec![false; states.len()];
        for b in 0..batch.size() {
            let mut state = batch.state.leaf().unwrap().at(&[b]).as_slice::<f32>()[0];
            for position in 0..total {
                let at = [position, b];
                if batch.resets.at(&at).bytes[0] == 1 {
                    state = 0.0;
                }
                let obs = batch.obs.leaf().unwrap().at(&at).as_slice::<f32>()[0];
                // Rewards are the numbers of the steps.
                let step = batch.rewards.at(&at).as_slice::<f32>()[0] as usize;
                let is_step =
                    batch.valid.at(&at).bytes[0] == 1 && (step > 0 || position == burn_in);
                if is_step && states[step] != state {
                    panic!("step {step}: {state} is not {}", states[step]);
                }
                let trained = position >= burn_in && position < burn_in + length;
                if trained && batch.mask.at(&[position - burn_in, b]).as_slice::<f32>()[0] == 1.0 {
                    covered[step] = true;
                }
                state = unit(state, obs);
            }
        }
        // Every step of every episode is trained in at least one sequence.
        assert!(covered.iter().all(|&covered| covered));
    }
}

/// Length 4, overlap 2, burn-in 2, n = 2, γ = 0.5: an episode of 7 steps that is cut off.
#[test]
fn an_episode_is_cut_into_sequences_worked_by_hand() {
    let (mut rollout, _) = unrolled(&[1, 7]);
    for (t, reward) in rollout.rewards.as_mut_slice::<f32>().iter_mut().enumerate() {
        *reward = [64.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0][t];
    }
    let replay = Replay::new(config(2, 4, 2, 2), Layout::of_rollout(&rollout, 1)).unwrap();
    // Priorities of the steps: the first sequence of the second episode mixes 1, 2, 3, 4.
    let given: Vec<f32> = (0..8).map(|p| p as f32).collect();
    replay.insert(&rollout, 0, Some(&given)).unwrap();
    // Starts: the one step of the first episode; steps 0, 2, 4 of the second. Step 6 begins
    // none, since what is left of the episode is in the sequence before.
    let ids = replay.entries();
    let slots: Vec<usize> = ids.iter().map(|id| id.slot).collect();
    assert_eq!(slots, [0, 1, 3, 5]);
    let weights: Vec<f64> = ids.iter().map(|&id| replay.weight(id).unwrap()).collect();
    let mix = |largest: f64, mean: f64| 0.9 * largest + 0.1 * mean;
    let expected = [1e-6, mix(4.0, 2.5), mix(6.0, 4.5), mix(7.0, 6.0)];
    for (weight, expected) in weights.iter().zip(expected) {
        assert!((weight - expected).abs() < 1e-9, "{weights:?}");
    }

    let batch = all(&replay);
    let column = |array: &Array, b: usize| -> Vec<f32> {
        let size = batch.size();
        array
            .as_slice::<f32>()
            .iter()
            .skip(b)
            .step_by(size)
            .copied()
            .collect()
    };
    let flags = |array: &Array, b: usize| -> Vec<u8> {
        array
            .bytes()
            .iter()
            .skip(b)
            .step_by(batch.size())
            .copied()
            .collect()
    };
    let places = |b: usize| -> Vec<i64> {
        let all = batch.bootstrap.as_slice::<i64>().iter();
        all.skip(b).step_by(batch.size()).copied().collect()
    };
    // The first episode: one step, which ends the task. Everything else is padding.
    assert_eq!(flags(&batch.valid, 0), [0, 0, 1, 0, 0, 0, 0, 0]);
    assert_eq!(flags(&batch.resets, 0), [0, 0, 1, 0, 0, 0, 0, 0]);
    assert_eq!(column(&batch.mask, 0), [1.0, 0.0, 0.0, 0.0]);
    assert_eq!(column(&batch.returns, 0), [64.0, 0.0, 0.0, 0.0]);
    assert_eq!(column(&batch.discounts, 0), [0.0; 4]);
    // The second one from its beginning: the burn-in is padding.
    assert_eq!(flags(&batch.valid, 1), [0, 0, 1, 1, 1, 1, 1, 1]);
    assert_eq!(flags(&batch.resets, 1), [0, 0, 1, 0, 0, 0, 0, 0]);
    assert_eq!(column(&batch.returns, 1), [2.0, 4.0, 8.0, 16.0]);
    assert_eq!(column(&batch.discounts, 1), [0.25; 4]);
    assert_eq!(places(1), [4, 5, 6, 7]);
    assert_eq!(
        column(&batch.rewards, 1),
        [0.0, 0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 0.0]
    );
    assert_eq!(
        column(&batch.prev_rewards, 1),
        [0.0, 0.0, 0.0, 1.0, 2.0, 4.0, 8.0, 16.0]
    );
    // Its last one: steps 4, 5, 6 behind a burn-in of 2, 3; then the final observation.
    assert_eq!(flags(&batch.valid, 3), [1, 1, 1, 1, 1, 1, 0, 0]);
    assert_eq!(flags(&batch.resets, 3), [0; 8]);
    assert_eq!(column(&batch.mask, 3), [1.0, 1.0, 1.0, 0.0]);
    // 16 + 32/2 with V two steps on; 32 + 64/2 and 64 with V at the final observation, which
    // lies at position 5: cut off is not ended.
    assert_eq!(column(&batch.returns, 3), [32.0, 64.0, 64.0, 0.0]);
    assert_eq!(column(&batch.discounts, 3), [0.25, 0.25, 0.5, 0.0]);
    assert_eq!(places(3), [4, 5, 5, 5]);
}

#[test]
fn transitions_and_sequences_are_not_confused() {
    let (rollout, _) = unrolled(&[20]);
    let layout = Layout::of_rollout(&rollout, 1);
    let sequences = Replay::new(config(2, 4, 2, 2), layout.clone()).unwrap();
    sequences.insert(&rollout, 0, None).unwrap();
    let mut rng = stream(1, "test", 0);
    let message = sequences.sample(4, 0.4, &mut rng).unwrap_err().to_string();
    assert!(message.contains("holds sequences"), "{message}");
    let transitions = ReplayConfig {
        sequence: None,
        ..config(2, 4, 2, 2)
    };
    let transitions = Replay::new(transitions, layout).unwrap();
    transitions.insert(&rollout, 0, None).unwrap();
    let message = transitions.sample_sequences(4, 0.4, &mut rng).unwrap_err();
    assert!(matches!(message, ReplayError::Kind { .. }), "{message}");
    // Buffers for other lengths are refused.
    let mut other = SequenceBatch::new(&config(2, 3, 1, 2), sequences.layout(), 4).unwrap();
    let refused = sequences.sample_sequences_into(&mut other, 0.4, &mut rng);
    assert_eq!(refused, Err(ReplayError::Batch { column: "obs" }));
}

/// Pictures that are no stack, or do not follow each other.
#[test]
fn what_is_no_stack_of_frames_is_refused() {
    let (space, none) = (Space::bytes(&[2, 3, 3], 255), Tree::empty());
    let actions = Space::Discrete { n: 2 };
    let mut rollout = Rollout::new(4, 1, &space, &actions, None, &none, &none);
    for t in 0..=4u8 {
        let item = leaf(&mut rollout.obs).at_mut(&[t.into(), 0]);
        item.bytes[..9].fill(t);
        item.bytes[9..].fill(t + 1);
    }
    let config = ReplayConfig {
        capacity_steps: 50,
        frame_stack: Some(2),
        ..ReplayConfig::default()
    };
    let replay = Replay::new(config, Layout::of_rollout(&rollout, 1)).unwrap();
    assert_eq!(replay.insert(&rollout, 0, None), Ok(4));
    leaf(&mut rollout.obs).at_mut(&[3, 0]).bytes[0] = 99;
    let refused = replay.insert(&rollout, 0, None);
    assert_eq!(refused, Err(ReplayError::NotAStack { t: 2, b: 0 }));
    assert_eq!(replay.inserted_steps(), 4);
}

/// A compressed replay stays within its budget by dropping its oldest steps, and goes on
/// exactly from a snapshot.
#[test]
fn a_budget_is_kept() {
    let (space, none) = (Space::bytes(&[40, 40], 255), Tree::empty());
    let actions = Space::Discrete { n: 2 };
    let mut rollout = Rollout::new(30, 1, &space, &actions, None, &none, &none);
    let mut rng = stream(4, "test", 0);
    let mut config = ReplayConfig {
        capacity_steps: 500,
        priority: Some(PriorityConfig::default()),
        compress: true,
        ..ReplayConfig::default()
    };
    let layout = Layout::of_rollout(&rollout, 1);
    let other = config.memory(&layout).other_bytes;
    // Room for about 100 frames of noise.
    let limit = other + 160_000;
    config.memory_limit_bytes = Some(limit);
    let replay = Replay::new(config.clone(), layout.clone()).unwrap();
    let mut next = |rng: &mut starling_envs::Rng| {
        rollout.carry_over();
        for t in 1..=30 {
            rand::Rng::fill_bytes(rng, leaf(&mut rollout.obs).at_mut(&[t, 0]).bytes);
        }
        rollout.clone()
    };
    for _ in 0..10 {
        replay.insert(&next(&mut rng), 0, None).unwrap();
        assert!(replay.bytes() as u64 <= limit + 3200, "{}", replay.bytes());
    }
    assert!((80..110).contains(&replay.len()), "{}", replay.len());
    let newest: Vec<SampleId> = replay.entries();
    assert_eq!(newest.last().unwrap().slot, 299);

    let mut saved = Vec::new();
    let snapshot = starling_replay::Snapshot::begin(&replay, None).unwrap();
    snapshot.write(&mut saved).unwrap();
    let none = |_| -> std::io::Result<&[u8]> { panic!("there is one part only") };
    let (loaded, _) = Replay::load(&saved[..], none, &config, &layout).unwrap();
    for _ in 0..10 {
        let rollout = next(&mut rng);
        replay.insert(&rollout, 0, None).unwrap();
        loaded.insert(&rollout, 0, None).unwrap();
        assert_eq!(loaded.entries(), replay.entries());
    }
}
