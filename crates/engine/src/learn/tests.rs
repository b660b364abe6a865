//! Tests of the learner with its replay, and an actor that collects for it.

use serde_json::json;
use starling_replay::{GroupDraw, GroupedDraws, Prefetcher, TransitionBatch};

use super::*;
use crate::link::Weights;
use crate::measure::Profile;
use crate::run::parts::Parts;
use crate::{Actor, RunConfig};

/// A learner, and an actor that collects for it with its first weights.
struct Pair {
    learning: Learning,
    actor: Actor,
    weights: Weights,
}

const PROGRESS: Progress = Progress {
    env_steps: 0,
    total_steps: 1_000_000,
};

impl Pair {
    fn new(env: &str, envs: usize, algo: serde_json::Value, prefetch_threads: usize) -> Self {
        let config = RunConfig::from_value(&json!({
            "env": {"id": env},
            "algo": algo,
            "envs": envs,
            "device": "cpu",
            "torch_threads": 1,
        }))
        .unwrap();
        let parts = Parts::make(&config, 0).unwrap();
        let actor = parts.actor.unwrap();
        let env = config.env_spec().unwrap().make(&config.env).unwrap();
        let spaces = crate::run::config::spaces_of(&*env);
        let settings = Settings {
            prefetch_threads,
            ..config.settings
        };
        let learning =
            Learning::new(&*parts.kit.algorithm, &spaces, &settings, Device::Cpu, 0).unwrap();
        let weights = Weights {
            version: 0,
            values: learning.learner.weights(),
        };
        Self {
            learning,
            actor,
            weights,
        }
    }

    fn collect(&mut self) -> &Rollout {
        let profile = Profile::default();
        self.actor.collect(&self.weights, 0, &profile).unwrap();
        self.actor.rollout()
    }

    /// Collects once and learns all that is owed for it.
    fn round(&mut self) {
        self.collect();
        self.learning.take(&[(0, self.actor.rollout())]);
    }

    fn feed(&mut self) -> &mut ReplayFeed {
        match &mut self.learning.feed {
            Feed::Replay(feed) => feed,
            Feed::Rollouts => panic!("action values are learned from a replay"),
        }
    }
}

impl Learning {
    fn take(&mut self, rollouts: &[(usize, &Rollout)]) {
        let stop = AtomicBool::new(false);
        self.absorb(rollouts, PROGRESS, 0, Pace::Lag(0), &stop)
            .unwrap();
    }
}

/// With batches drawn ahead or without: every update that was started ends, its priorities
/// reach the replay, and its buffers come back.
#[test]
fn updates_end_and_their_buffers_come_back() {
    for threads in [0, 2] {
        let algo = json!({
            "name": "dqn",
            "capacity_steps": 4_000,
            "learning_starts_steps": 100,
            "batch_size": 16,
            "replay_ratio": 8,
            "priority": {"alpha": 0.6},
        });
        let mut pair = Pair::new("CartPole-v1", 4, algo, threads);
        for _ in 0..40 {
            pair.round();
        }
        assert_eq!(!pair.learning.under_way.is_empty(), threads > 0);
        pair.learning.settle(PROGRESS).unwrap();

        let updates = pair.learning.updates;
        let feed = pair.feed();
        let ahead = feed.prefetcher.as_ref().map_or(0, Prefetcher::ahead);
        assert_eq!(feed.spare.len() + ahead, (2 * threads).max(1));
        let (samples, _) = feed.counts();
        assert_eq!(samples, 16 * (updates + ahead as u64));
        assert!(updates > 50, "{updates}");
        let mut batch = TransitionBatch::new(feed.replay.layout(), 16);
        feed.replay
            .sample_into(&mut batch, 1.0, &mut feed.rng)
            .unwrap();
        let weights = batch.weights.as_slice::<f32>();
        assert!(weights.iter().any(|weight| *weight != weights[0]));
    }
}

/// A learner of sequences with nothing drawable yet, though the ratio owes samples: either the
/// learner may learn or more experience may come in, at every moment.
#[test]
fn limiter_and_empty_replay_do_not_hold_each_other() {
    let algo = json!({
        "name": "r2d2",
        "rollout_steps": 5,
        "batch_size": 1,
        "replay_ratio": 4,
        "learning_starts_steps": 1,
        "net": {"hidden": [8]},
    });
    let mut pair = Pair::new("MountainCar-v0", 64, algo, 0);
    let mut rounds = 0;
    while pair.learning.updates == 0 {
        let moves = pair.learning.may_take(1) || pair.learning.may_learn();
        assert!(moves, "round {rounds}");
        pair.round();
        rounds += 1;
    }
    assert!(rounds > 2, "something could be drawn at once");
}

/// Every batch is put together as the algorithm asks: half from the environments of one group,
/// half from those of another or of the same.
#[test]
fn an_algorithm_can_ask_for_several_draws() {
    for threads in [0, 1] {
        let algo = json!({"name": "dqn", "learning_starts_steps": 100, "batch_size": 8});
        let mut pair = Pair::new("CartPole-v1", 4, algo, threads);
        let draws = GroupedDraws {
            groups: vec![0..1, 1..4],
            chosen: 2,
            draws: vec![GroupDraw::all(4)],
        };
        let feed = pair.feed();
        for drawn in &mut feed.spare {
            let Drawn::Transitions(_, asked) = drawn else {
                panic!("DQN learns from transitions");
            };
            *asked = Some(draws.clone());
        }
        for _ in 0..40 {
            pair.round();
        }
        pair.learning.settle(PROGRESS).unwrap();
        assert!(pair.learning.updates > 0);
        let feed = pair.feed();
        let rows = feed.replay.config().rows_per_stream(4);
        for drawn in &feed.spare {
            let groups: Vec<bool> = drawn.ids().iter().map(|id| id.slot / rows > 0).collect();
            assert!(groups[..4].iter().all(|group| *group == groups[0]));
            assert!(groups[4..].iter().all(|group| *group == groups[4]));
        }
    }
}

/// In rounds the ratio holds however many updates a round owes.
#[test]
fn a_round_does_all_the_updates_that_it_owes() {
    let algo = json!({
        "name": "dqn",
        "rollout_steps": 64,
        "batch_size": 1,
        "replay_ratio": 2,
        "learning_starts_steps": 1,
        "net": {"hidden": [4]},
    });
    let mut pair = Pair::new("CartPole-v1", 16, algo, 0);
    pair.round();
    // 1024 steps owe 2048 samples.
    assert!(pair.learning.updates >= 2_000, "{}", pair.learning.updates);
}

/// What is drawn ahead follows the run's stream, which a checkpoint holds: a resumed run does
/// not draw the same again.
#[test]
fn drawing_ahead_advances_the_stream() {
    let algo = json!({"name": "dqn", "learning_starts_steps": 8, "batch_size": 4});
    let mut pair = Pair::new("CartPole-v1", 8, algo, 1);
    let before = pair.feed().rng.clone();
    for _ in 0..4 {
        pair.round();
    }
    assert!(pair.learning.updates > 0);
    assert_ne!(pair.feed().rng, before);
}

/// Several threads store what arrived; the rollouts of one environment keep their order.
#[test]
fn threads_that_store_keep_the_order_of_each_environment() {
    let algo = json!({
        "name": "dqn",
        "learning_starts_steps": 100_000,
        "rollout_steps": 2,
    });
    let mut pair = Pair::new("CartPole-v1", 4, algo, 3);
    let collected: Vec<Rollout> = (0..300).map(|_| pair.collect().clone()).collect();
    let rollouts: Vec<_> = collected.iter().map(|rollout| (0, rollout)).collect();
    pair.learning.take(&rollouts);
    assert_eq!(pair.feed().replay.inserted_steps(), 300 * 2 * 4);
    assert_eq!(pair.feed().replay.breaks(), 0);
}
