//! What a learner computes about a rollout is what its actors computed when they acted.
//!
//! In `mode=serial` with one gradient step per rollout both have the same weights, so that every
//! importance weight of IMPALA is 1, whatever the network remembers or normalises.

#![expect(clippy::unwrap_used, reason = "a test ends where something fails")]

use starling::record::Table;
use starling::settings::{Request, resolve};

fn importance_weights(env: &str, overrides: &[&str]) -> Vec<f64> {
    let mut request = Request::new(env);
    request.algo = Some("impala".into());
    let serial = [
        "mode=serial",
        "asynchronous=false",
        "envs=4",
        "steps=4000",
        "log_every_steps=400",
        "stop_at_return=null",
        "torch_threads=1",
        "algo.batch_envs=null",
        "algo.learning_rate=0.003",
    ];
    let overrides = serial.iter().chain(overrides);
    request.overrides = overrides.map(|pair| pair.to_string()).collect();
    let config = resolve(&request).unwrap();
    let root = tempfile::tempdir().unwrap();
    let folder = starling::create_folder(&config, root.path(), "acting").unwrap();
    let training = starling::Training::start(config, &folder).unwrap();
    let never = std::sync::atomic::AtomicBool::new(false);
    training.run(&never, None, &mut ()).unwrap();
    let table = Table::read(&folder.progress_path()).unwrap();
    table.column("losses/importance_weight").unwrap()
}

fn all_are_one(env: &str, overrides: &[&str]) {
    let weights = importance_weights(env, overrides);
    assert!(weights.len() >= 8, "{weights:?}");
    for weight in &weights {
        assert!((weight - 1.0).abs() < 1e-4, "{overrides:?}: {weights:?}");
    }
}

#[test]
fn of_a_network_without_memory() {
    all_are_one("CartPole-v1", &[]);
    all_are_one("Pendulum-v1", &["algo.net.last_action_reward=true"]);
}

/// Pendulum's episodes are cut off after 200 steps, CartPole's end in the middle of rollouts.
#[test]
fn of_a_network_that_remembers_and_normalises() {
    for env in ["CartPole-v1", "Pendulum-v1"] {
        let overrides = [
            "algo.net.lstm=8",
            "algo.net.last_action_reward=true",
            "algo.net.normalize_observations=true",
            "algo.normalize_returns=true",
        ];
        all_are_one(env, &overrides);
    }
}

/// The weights are not 1 by construction: several gradient steps per rollout move the policy.
#[test]
fn but_not_of_later_gradient_steps() {
    let weights = importance_weights("CartPole-v1", &["algo.batch_envs=1"]);
    assert!(
        weights.iter().any(|weight| (weight - 1.0).abs() > 1e-4),
        "{weights:?}"
    );
}
