//! What a learner computes about a rollout is what its actors computed when they acted.
//!
//! In `mode=serial` with one gradient step per rollout both have the same weights, so that every
//! importance weight of IMPALA is 1, whatever the network remembers or normalises. Then V-trace
//! without clipping gives returns of λ = 1, and IMPALA is A2C, update for update: two paths from
//! a rollout to a gradient that share little code, in every mode and on every device.

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

/// The losses of every update, `[updates][4]`, of a run whose weights are always up to date.
fn losses(algo: &str, setup: &[&str]) -> Vec<[f64; 4]> {
    let mut request = Request::new("CartPole-v1");
    request.algo = Some(algo.into());
    request.preset = Some("none".into());
    // 64 steps per update: IMPALA's sums are 64 times A2C's means, and an Adam whose eps is 64
    // times larger takes the same steps.
    let shared = [
        "asynchronous=false",
        "envs=4",
        "steps=1280",
        "log_every_steps=64",
        "torch_threads=1",
        "algo.rollout_steps=16",
        "algo.gamma=0.9",
        "algo.value_coef=0.5",
        "algo.entropy_coef=0.01",
        "algo.learning_rate=0.01",
    ];
    let own: &[&str] = match algo {
        "a2c" => &[
            "algo.gae_lambda=1",
            "algo.clip_norm=1e9",
            "algo.optimizer={kind: adam, eps: 0.001}",
        ],
        _ => &[
            "algo.reward_clipping=null",
            "algo.rho_clip=null",
            "algo.c_clip=null",
            "algo.pg_rho_clip=null",
            "algo.clip_norm=null",
            "algo.optimizer={kind: adam, eps: 0.064}",
        ],
    };
    let overrides = shared.iter().chain(own).chain(setup);
    request.overrides = overrides.map(|pair| pair.to_string()).collect();
    let config = resolve(&request).unwrap();
    let root = tempfile::tempdir().unwrap();
    let folder = starling::create_folder(&config, root.path(), "acting").unwrap();
    let training = starling::Training::start(config, &folder).unwrap();
    let never = std::sync::atomic::AtomicBool::new(false);
    training.run(&never, None, &mut ()).unwrap();
    let table = Table::read(&folder.progress_path()).unwrap();
    let columns = ["loss", "policy_loss", "value_loss", "entropy"];
    let columns = columns.map(|name| table.column(&format!("losses/{name}")).unwrap());
    (0..columns[0].len())
        .map(|row| [0, 1, 2, 3].map(|column| columns[column][row]))
        .collect()
}

/// Episodes end by falling and, after 15 steps, by truncation.
#[test]
fn impala_without_clipping_is_a2c() {
    let mut devices = vec![("cpu", 1e-4)];
    if starling::nets::load_cuda() && starling::nets::cuda_devices() > 0 {
        // Products of matrices are rounded more coarsely there.
        devices.push(("cuda:0", 1e-2));
    }
    let modes = [
        &["mode=serial"][..],
        &["mode=threads", "threads=2"],
        &["mode=central", "threads=2"],
    ];
    let networks = [
        &["algo.net.hidden=[16]"][..],
        &[
            "algo.net.hidden=[8]",
            "algo.net.lstm=8",
            "algo.net.last_action_reward=true",
        ],
    ];
    for (device, tolerance) in devices {
        for mode in modes {
            for network in networks {
                let device = format!("device={device}");
                let setup = [&[&*device, "env.max_episode_steps=15"], mode, network].concat();
                let (a2c, impala) = (losses("a2c", &setup), losses("impala", &setup));
                assert_eq!((a2c.len(), impala.len()), (20, 20), "{setup:?}");
                for (update, (a2c, impala)) in a2c.iter().zip(&impala).enumerate() {
                    for (a, b) in a2c.iter().zip(impala) {
                        let near = (a - b).abs() < tolerance * (1.0 + a.abs());
                        assert!(near, "{setup:?}, update {update}: {a2c:?}, {impala:?}");
                    }
                }
                // The updates change something that the losses show.
                assert!((a2c[0][2] - a2c[19][2]).abs() > 0.05, "{a2c:?}");
            }
        }
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
