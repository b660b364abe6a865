//! R2D2 compared with numbers worked out by hand and with one unbroken pass.

use starling_envs::{Rng, Rollout, Space, stream};
use starling_nets::{Kind, RecurrentInput, previous_actions, tensor_of};
use starling_replay::{Layout as Rows, Replay, ReplayConfig};
use starling_tree::{Array, Tree};

use super::*;
use crate::recurrent::{SequenceInputs, SequenceMethod as _, acts_as_alone, leaf};
use crate::{Acting, Part};

fn algorithm() -> R2d2 {
    let spaces = Spaces {
        observation: Space::unbounded(&[1]),
        action: Space::Discrete { n: 2 },
        legal_actions: None,
        frame_stack: None,
    };
    let (mut shared, mut config) = defaults();
    shared.replay.n_steps = 2;
    shared.replay.gamma = 0.9;
    shared.exploration.epsilon_start = 0.5;
    shared.exploration.epsilon_end = 0.5;
    shared.net = QNetConfig {
        hidden: Some(vec![4]),
        dueling: true,
        ..QNetConfig::default()
    };
    config.lstm = 5;
    config.sequence = SequenceConfig {
        burn_in_steps: 4,
        length_steps: 4,
        overlap_steps: 2,
        state_interval_steps: 2,
        priority_eta: 0.9,
    };
    R2d2::new(shared, config, &spaces).unwrap()
}

/// h(10) = 2.326625, and h(1 + ½·10) = √7 − 1 + 0.006.
#[test]
fn targets_are_on_the_learned_scale() {
    let one = |value: f32| Tensor::from_slice(&[value]);
    let target = algorithm().targets(&one(1.0), &one(0.5), &one(2.326625));
    let expected = 7f64.sqrt() - 1.0 + 0.006;
    assert!((target.double_value(&[0]) - expected).abs() < 1e-4);
}

#[test]
fn together_they_act_as_each_alone() {
    acts_as_alone(&algorithm());
}

const STEPS: usize = 24;
/// The task ends with this step.
const END: usize = 9;

/// A rollout of two episodes whose observations tell the step, acted by the policy.
fn rollout(policy: &mut dyn Policy) -> Rollout {
    let (obs, action) = (Space::unbounded(&[1]), Space::Discrete { n: 2 });
    let (records, state) = (policy.records(), policy.state());
    let mut rollout = Rollout::new(STEPS, 1, &obs, &action, None, &records, &state);
    let seen: Vec<f32> = (0..=STEPS).map(|t| t as f32 / 10.0).collect();
    rollout.obs = Tree::Leaf(Array::from_slice(&seen, &[STEPS + 1, 1, 1]));
    let rewards: Vec<f32> = (0..STEPS).map(|t| (t % 3) as f32).collect();
    rollout.rewards = Array::from_slice(&rewards, &[STEPS, 1]);
    rollout.terminated.as_mut_slice::<u8>()[END] = 1;
    let mut state = Tree::zeros(&state, &[1]);
    let mut rngs = [stream(1, "policy", 0)];
    fn acting<'a>(rngs: &'a mut [Rng], state: &'a mut Tree<Array>) -> Acting<'a> {
        Acting {
            explore: true,
            env_steps: 0,
            first_env: 0,
            total_envs: 1,
            rngs,
            state,
        }
    }
    for t in 0..STEPS {
        policy.act(t, &mut rollout, acting(&mut rngs, &mut state));
        if t == END {
            // As the engine does it.
            for (_, array) in state.leaves_mut() {
                array.bytes_mut().fill(0);
            }
        }
    }
    let part = Part {
        rollout: &mut rollout,
        acting: acting(&mut rngs, &mut state),
    };
    policy.finish(0, &mut [part]);
    rollout
}

/// Values `[T, A]` of one unbroken pass over the rollout.
fn unbroken(learner: &SequenceLearner<R2d2>, rollout: &Rollout) -> Tensor {
    let (net, cpu) = (&algorithm().net, Device::Cpu);
    let mut starts = [0f32; STEPS];
    (starts[0], starts[END + 1]) = (1.0, 1.0);
    let starts = Tensor::from_slice(&starts).reshape([-1, 1]);
    let shifted = |tensor: Tensor| {
        let first = tensor.narrow(0, 0, 1).zeros_like();
        let previous = Tensor::cat(&[first, tensor.narrow(0, 0, STEPS as i64 - 1)], 0);
        previous.reshape([-1, 1])
    };
    let actions = shifted(tensor_of(&rollout.actions, cpu));
    let rewards = shifted(tensor_of(&rollout.rewards, cpu));
    let input = RecurrentInput {
        obs: rollout.obs.map(|array| {
            let all = tensor_of(array, cpu).narrow(0, 0, STEPS as i64);
            all.flatten(0, 1)
        }),
        actions: previous_actions(&actions, &starts, 2),
        rewards: rewards * (starts.ones_like() - &starts),
        extra: None,
        starts,
        legal: None,
    };
    let zero = || Tensor::zeros([1, 5], (Kind::Float, cpu));
    let (values, _) = net.forward(learner.nets.online.params(), &input, &(zero(), zero()));
    values.squeeze_dim(1)
}

/// Stored states and burn-in give the values of an unbroken pass, in every sequence.
#[test]
fn sequences_with_stored_state_equal_an_unbroken_pass() {
    let algorithm = algorithm();
    let learner = SequenceLearner::new(algorithm.clone(), 1, Device::Cpu);
    let mut policy = algorithm.policy(Device::Cpu);
    policy.load(&learner.weights()).unwrap();
    let rollout = rollout(&mut *policy);
    let values = unbroken(&learner, &rollout);
    let actions = rollout.actions.as_slice::<i64>();
    let taken = |t: usize| values.double_value(&[t as i64, actions[t]]);

    let Experience::Transitions(needs) = algorithm.experience() else {
        panic!("r2d2 has a replay");
    };
    let config = ReplayConfig {
        capacity_steps: 100,
        ..needs.replay
    };
    let replay = Replay::new(config, Rows::of_rollout(&rollout, 1)).unwrap();
    replay.insert(&rollout, 0, None).unwrap();
    let batch = replay.sample_sequences(64, 0.6, &mut stream(1, "replay", 0));
    let batch = batch.unwrap();
    let inputs = SequenceInputs::new(&batch, 4, Device::Cpu);
    inputs.load(&batch, &[0; 64]);
    let compared = algorithm.compare(learner.nets.online.params(), &learner.nets.target, &inputs);
    let (seen, mask) = (batch.obs.leaf().unwrap(), batch.mask.as_slice::<f32>());
    let mut steps = std::collections::BTreeSet::new();
    for b in 0..64 {
        for t in 0..4 {
            if mask[t * 64 + b] == 0.0 {
                continue;
            }
            let step = seen.at(&[4 + t, b]).as_slice::<f32>()[0] * 10.0;
            let step = step.round() as usize;
            let value = compared.taken.double_value(&[t as i64, b as i64]);
            assert!((value - taken(step)).abs() < 1e-5, "step {step}");
            steps.insert(step);
        }
    }
    assert!(steps.len() > 15, "{steps:?}");
}

/// The actor's errors against those worked out from the unbroken pass.
#[test]
fn actors_see_errors_on_the_learned_scale() {
    let algorithm = algorithm();
    let learner = SequenceLearner::new(algorithm.clone(), 1, Device::Cpu);
    let mut policy = algorithm.policy(Device::Cpu);
    policy.load(&learner.weights()).unwrap();
    let rollout = rollout(&mut *policy);
    let values = unbroken(&learner, &rollout);
    let priorities = leaf(&rollout.policy, "priority").unwrap();
    let priorities = priorities.as_slice::<f32>();
    let (rewards, actions) = (
        rollout.rewards.as_slice::<f32>(),
        rollout.actions.as_slice::<i64>(),
    );
    let one = |value: f64| Tensor::from_slice(&[value as f32]);
    for t in 0..STEPS - 2 {
        let mut return_ = f64::from(rewards[t]);
        if t != END {
            return_ += 0.9 * f64::from(rewards[t + 1]);
        }
        let ended = t == END || t + 1 == END;
        let next = values.get(t as i64 + 2).max().double_value(&[]);
        let discount = if ended { 0.0 } else { 0.81 };
        let target = algorithm.targets(&one(return_), &one(discount), &one(next));
        let value = values.double_value(&[t as i64, actions[t]]);
        let expected = (target.double_value(&[0]) - value).abs();
        let given = f64::from(priorities[t]);
        assert!((given - expected).abs() < 1e-4, "{t}: {given}, {expected}");
    }
}

/// A sum over time is the mean over all counted steps times their number per sequence.
#[test]
fn the_loss_can_be_a_sum_over_time() {
    let mean = algorithm();
    let mut sum = algorithm();
    sum.config.sum_over_time = true;
    let learner = SequenceLearner::new(mean.clone(), 1, Device::Cpu);
    let mut policy = mean.policy(Device::Cpu);
    policy.load(&learner.weights()).unwrap();
    let rollout = rollout(&mut *policy);
    let Experience::Transitions(needs) = mean.experience() else {
        panic!("r2d2 has a replay");
    };
    let config = ReplayConfig {
        capacity_steps: 100,
        ..needs.replay
    };
    let replay = Replay::new(config, Rows::of_rollout(&rollout, 1)).unwrap();
    replay.insert(&rollout, 0, None).unwrap();
    let batch = replay.sample_sequences(64, 0.6, &mut stream(1, "replay", 0));
    let batch = batch.unwrap();
    let counted: f32 = batch.mask.as_slice::<f32>().iter().sum();
    let inputs = SequenceInputs::new(&batch, 4, Device::Cpu);
    inputs.load(&batch, &[0; 64]);
    let (online, target) = (learner.nets.online.params(), &learner.nets.target);
    let [mean, sum] = [mean, sum].map(|method| {
        let losses = method.losses(online, target, &inputs);
        losses.loss.double_value(&[])
    });
    let expected = mean * f64::from(counted) / 64.0;
    assert!(
        (sum - expected).abs() < 1e-5 * expected,
        "{sum}, {expected}"
    );
}

/// With all advantages 0 but one, which is illegal, the values of actors and learner are V.
#[test]
fn actors_and_learner_know_the_legal_actions() {
    let spaces = Spaces {
        observation: Space::unbounded(&[1]),
        action: Space::Discrete { n: 2 },
        legal_actions: Some(2),
        frame_stack: None,
    };
    let (mut shared, mut config) = defaults();
    shared.net = QNetConfig {
        hidden: Some(vec![]),
        dueling: true,
        dueling_legal: true,
        ..QNetConfig::default()
    };
    shared.exploration.epsilon_ladder = Some(crate::value_based::Ladder {
        base: 0.0,
        ..Default::default()
    });
    (shared.replay.n_steps, shared.replay.gamma) = (1, 0.5);
    config.lstm = 1;
    config.rescale = false;
    let algorithm = R2d2::new(shared, config, &spaces).unwrap();
    let params = starling_nets::Params::zeros(&algorithm.layout, Device::Cpu);
    let count = params.to_vec().len();
    let mut weights = vec![0.0; count];
    // The biases of the head: two advantages, and behind one more weight the value.
    let last = count - 1;
    (weights[last - 2], weights[last]) = (100.0, 3.0);
    params.load_slice(&weights).unwrap();
    let named: Vec<String> = params.named().into_iter().map(|(name, _)| name).collect();
    assert_eq!(
        named[named.len() - 3..],
        ["advantage.bias", "value.weight", "value.bias"]
    );
    let mut policy = algorithm.policy(Device::Cpu);
    policy
        .load(&starling_nets::Snapshot::from_values(weights))
        .unwrap();
    let (obs, action) = (Space::unbounded(&[1]), Space::Discrete { n: 2 });
    let (records, memory) = (policy.records(), policy.state());
    let mut rollout = Rollout::new(4, 1, &obs, &action, Some(2), &records, &memory);
    rollout.legal = Some(Array::from_slice(&[1u8, 0].repeat(5), &[5, 1, 2]));
    let mut state = Tree::zeros(&memory, &[1]);
    let mut rngs = [stream(1, "policy", 0)];
    let mut acting = Acting {
        explore: true,
        env_steps: 0,
        first_env: 0,
        total_envs: 1,
        rngs: &mut rngs,
        state: &mut state,
    };
    for t in 0..4 {
        policy.act(t, &mut rollout, acting.reborrow());
    }
    let part = Part {
        rollout: &mut rollout,
        acting,
    };
    policy.finish(0, &mut [part]);
    // 0 + ½·3 − 3, and not what 50 less would give.
    let priorities = leaf(&rollout.policy, "priority").unwrap();
    assert_eq!(priorities.as_slice::<f32>(), [1.5; 4]);
}
