//! NGU compared with numbers worked out by hand, and one rollout from acting to the update.

use starling_envs::{Rollout, Space, stream};
use starling_nets::QNetConfig;
use starling_replay::{Layout as Rows, Replay};
use starling_tree::{Array, DType, Spec, Tree};

use super::arms::{keep_pulls, pulls_of};
use super::loss::n_step_returns;
use super::novelty::Remembered;
use super::*;
use crate::recurrent::{acts_as_alone, leaf};
use crate::{Acting, Batch, Part, Progress};

/// A small one, for observations of one space and two actions.
fn small(obs: &Space) -> Ngu {
    let spaces = Spaces {
        observation: obs.clone(),
        action: Space::Discrete { n: 2 },
        legal_actions: None,
        frame_stack: None,
    };
    let (mut shared, mut config) = defaults();
    shared.replay.capacity_steps = 200;
    shared.replay.batch_size = 4;
    shared.replay.n_steps = 2;
    shared.net = QNetConfig {
        hidden: Some(vec![8]),
        ..QNetConfig::default()
    };
    config.lstm = 4;
    config.arms = 3;
    config.episodic.memory_steps = 16;
    config.episodic.neighbours = 3;
    config.sequence = SequenceConfig {
        burn_in_steps: 4,
        length_steps: 4,
        overlap_steps: 2,
        state_interval_steps: 2,
        priority_eta: 0.9,
    };
    Ngu::new(shared, config, &spaces).unwrap()
}

#[test]
fn together_they_act_as_each_alone() {
    let mut ngu = small(&Space::unbounded(&[1]));
    let exploration = &mut ngu.shared.exploration;
    (exploration.epsilon_start, exploration.epsilon_end) = (0.3, 0.3);
    acts_as_alone(&ngu);
}

/// A rollout of two episodes through policy, replay and learner: the bandit learns of the
/// first episode, places of the second are remembered, and an update moves the weights and
/// the statistics but not the random network.
#[test]
fn a_rollout_becomes_an_update() {
    const STEPS: usize = 24;
    const END: usize = 13;
    let (obs, action) = (Space::unbounded(&[2]), Space::Discrete { n: 2 });
    let ngu = small(&obs);
    let mut learner = ngu.learner(1, Device::Cpu);
    let mut policy = ngu.policy(Device::Cpu);
    policy.load(&learner.weights()).unwrap();
    let (records, memory) = (policy.records(), policy.state());
    let mut rollout = Rollout::new(STEPS, 1, &obs, &action, None, &records, &memory);
    let seen: Vec<f32> = (0..2 * (STEPS + 1)).map(|i| (i as f32).sin()).collect();
    rollout.obs = Tree::Leaf(Array::from_slice(&seen, &[STEPS + 1, 1, 2]));
    rollout.rewards = Array::from_slice(&[0.5f32; STEPS], &[STEPS, 1]);
    rollout.terminated.as_mut_slice::<u8>()[END] = 1;
    rollout.keep_final(END, 0);
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
    for t in 0..STEPS {
        policy.act(t, &mut rollout, acting.reborrow());
        if t == END {
            for (_, array) in acting.state.leaves_mut() {
                array.bytes_mut().fill(0);
            }
        }
    }
    let rollout_and_acting = Part {
        rollout: &mut rollout,
        acting,
    };
    policy.finish(0, &mut [rollout_and_acting]);
    let pulls = pulls_of(&state, 0);
    assert_eq!(pulls.len(), 1);
    assert_eq!(pulls[0].1, 7.0, "fourteen rewards of a half");
    let visited = leaf(&state, "visited").unwrap().as_slice::<i64>();
    assert_eq!(visited, [(STEPS - END - 1) as i64]);
    let intrinsic = leaf(&rollout.policy, "intrinsic").unwrap();
    let intrinsic = intrinsic.as_slice::<f32>();
    assert_eq!(intrinsic[..3], [0.0; 3]);
    assert!(intrinsic[3..=END].iter().all(|reward| *reward > 0.0));
    assert_eq!(intrinsic[END + 1], 0.0);

    let Experience::Transitions(needs) = ngu.experience() else {
        panic!("ngu has a replay");
    };
    let replay = Replay::new(needs.replay, Rows::of_rollout(&rollout, 1)).unwrap();
    replay.insert(&rollout, 0, None).unwrap();
    let batch = replay.sample_sequences(4, 0.6, &mut stream(1, "replay", 0));
    let batch = batch.unwrap();
    let progress = Progress {
        env_steps: 0,
        total_steps: 1,
    };
    let before = learner.save();
    let report = learner.update(Batch::Sequences(&batch), progress).unwrap();
    assert_eq!(
        report.priorities.map(|priorities| priorities.len()),
        Some(4)
    );
    let after = learner.save();
    let moved = |name: &str| {
        let found = before.keys().filter(|key| key.starts_with(name));
        found.filter(|key| before[*key] != after[*key]).count()
    };
    assert!(moved("params.extrinsic.") > 0 && moved("params.intrinsic.") > 0);
    assert!(moved("params.embedding.") > 0 && moved("params.rnd.predictor.") > 0);
    assert!(moved("params.rnd.norm.") > 0);
    assert_eq!(moved("params.rnd.target."), 0);
}

/// γ = ½ and 1: 1 + ½·2 + ¼·4 = 3 and 7 for the first step, 2 + ½·4 = 4 and 6 for the second.
#[test]
fn returns_have_the_discount_of_their_arm() {
    let rewards = Tensor::from_slice(&[9f32, 9.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0, 0.0, 0.0]);
    let gamma = Tensor::from_slice(&[0.5f32, 1.0]);
    let returns = n_step_returns(&rewards.reshape([5, 2]), &gamma, 1, 2, 3);
    let returns = Vec::<f32>::try_from(returns.reshape([-1])).unwrap();
    assert_eq!(returns, [3.0, 7.0, 4.0, 6.0]);
}

/// What comes back to the same place is worth less than what goes on, and nothing is
/// rewarded before there are k neighbours.
#[test]
fn new_places_are_worth_more() {
    let novelty = EpisodicNovelty {
        neighbours: 2,
        memory_steps: 8,
        ..EpisodicNovelty::default()
    };
    let walk = |places: &[f32]| {
        let mut memory = Remembered::default();
        let rewards = places.iter().map(|&x| memory.visit(&[x], &novelty));
        rewards.collect::<Vec<f64>>()
    };
    let onward = walk(&[0.0, 1.0, 2.0, 3.0, 4.0]);
    let back = walk(&[0.0, 1.0, 0.0, 1.0, 0.0]);
    assert_eq!(onward[..2], [0.0, 0.0]);
    for (onward, back) in onward[2..].iter().zip(&back[2..]) {
        assert!(onward > back, "{onward} {back}");
    }
    // The ring forgets: a ninth place takes the room of the first.
    let mut memory = Remembered::default();
    for i in 0..9 {
        memory.visit(&[i as f32], &novelty);
    }
    assert_eq!(memory.places[..2], [8.0, 1.0]);
}

#[test]
fn bandits_survive_in_the_memory() {
    let spec = |dtype, shape: &[usize]| Tree::Leaf(Spec::new(dtype, shape));
    let state = Tree::node([
        ("pulls", spec(DType::F32, &[3, 2])),
        ("pulled", spec(DType::I64, &[])),
    ]);
    let mut state = Tree::zeros(&state, &[2]);
    keep_pulls(&mut state, 1, &[(4, 0.5), (2, -1.0)]);
    assert_eq!(pulls_of(&state, 1), [(4, 0.5), (2, -1.0)]);
    assert_eq!(pulls_of(&state, 0), []);
}

#[test]
fn one_arm_can_have_any_weight() {
    let mut ngu = small(&Space::unbounded(&[1]));
    let betas = |ngu: &Ngu| Vec::<f32>::try_from(ngu.betas(Device::Cpu)).unwrap();
    let ladder = betas(&ngu);
    assert_eq!([ladder[0], ladder[2]], [0.0, 0.3]);
    ngu.config.arms = 1;
    assert_eq!(betas(&ngu), [0.0]);
    ngu.config.beta = Some(0.15);
    assert_eq!(betas(&ngu), [0.15]);
}

/// Values 3 and 2 with β = ½: 4 as they are, and h⁻¹(3) + ½·h⁻¹(2) on the scale h.
#[test]
fn values_are_mixed_on_the_scale_of_rewards() {
    let tensor = |value: f32| Tensor::from_slice(&[value]).reshape([1, 1]);
    let values = Values {
        extrinsic: tensor(3.0),
        intrinsic: tensor(2.0),
    };
    let mixed = |rescale| {
        let config = Config {
            rescale,
            ..Config::default()
        };
        values.mixed(&tensor(0.5), &config).double_value(&[0, 0])
    };
    assert_eq!(mixed(false), 4.0);
    let expected = unscale(&tensor(3.0)) + unscale(&tensor(2.0)) * 0.5;
    assert!((mixed(true) - expected.double_value(&[0, 0])).abs() < 1e-6);
    assert!(mixed(true) > 15.0);
}
