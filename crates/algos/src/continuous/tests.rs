//! Whole updates against PyTorch, and how the methods act.

use serde_json::{Value, json};
use starling_envs::{Rollout, Space, stream};
use starling_nets::{Device, Tensor};
use starling_tree::Tree;

use super::learner::ContinuousLearner;
use super::{Continuous, Method, crossq, ddpg, sac, td3};
use crate::config::parse_parts;
use crate::recorded_updates::{self, PROGRESS, batch, begin, close, numbers, spaces};
use crate::{Acting, Algorithm, Batch, Learner, Policy, Report, Spaces};

const TOLERANCE: f64 = 1e-5;

/// Small networks, and plain gradient steps: RMSProp whose averages stay at 1.
fn settings() -> Value {
    json!({
        "net": {"hidden": [4]},
        "learning_rate": 0.1,
        "actor_learning_rate": 0.2,
        "optimizer": {"kind": "rmsprop_tf", "alpha": 1.0, "eps": 0.0},
        "actor_every_updates": 1,
        "priority": {},
    })
}

fn with(settings: &Value, more: &Value) -> Value {
    let mut all = settings.clone();
    for (key, value) in more.as_object().unwrap() {
        all[key] = value.clone();
    }
    all
}

/// A learner with the parameters that PyTorch began with.
fn learner<M: Method>(algorithm: &Continuous<M>, case: &Value) -> ContinuousLearner<M> {
    let mut learner = algorithm.continuous_learner(1, Device::Cpu);
    begin(&mut learner, case);
    learner
}

fn compare<M: Method>(algorithm: &Continuous<M>, case: &Value) {
    let mut learner = learner(algorithm, case);
    let noise = Tensor::from_slice(&numbers(&case["inputs"]["noise"]));
    let batch = batch(&case["inputs"], "returns");
    let report: Report = learner.update_with_noise(&batch, &noise, PROGRESS).unwrap();
    recorded_updates::compare(&learner, &report, case, TOLERANCE);
    let priorities = report.priorities.unwrap();
    for (ours, theirs) in priorities.iter().zip(numbers(&case["priorities"])) {
        close(f64::from(*ours), f64::from(theirs), TOLERANCE, "priority");
    }
}

/// Targets, losses, gradients of critics, actor and α, and target networks: everything that one
/// update changes, as `tests/record_continuous.py` computed it with PyTorch.
#[test]
fn updates_are_those_of_pytorch() {
    let cases = include_str!("../../tests/fixtures/continuous.json");
    let cases: Value = serde_json::from_str(cases).unwrap();
    for case in cases.as_array().unwrap() {
        let given = with(&settings(), &case["settings"]);
        let targets = json!({"target_tau": 0.25, "target_every_updates": 1});
        let of_sac = json!({
            "log_std_min": -1.0,
            "log_std_max": 0.5,
            "initial_alpha": 0.5,
            "alpha_learning_rate": 0.3,
        });
        match case["algorithm"].as_str().unwrap() {
            "sac" => {
                let given = with(&with(&given, &of_sac), &targets);
                let (shared, own) = parse_parts("algo", &given, &sac::defaults()).unwrap();
                compare(&sac::make(shared, own, &spaces()).unwrap(), case);
            }
            "crossq" => {
                let given = with(&given, &of_sac);
                let (shared, own) = parse_parts("algo", &given, &crossq::defaults()).unwrap();
                compare(&crossq::make(shared, own, &spaces()).unwrap(), case);
            }
            "td3" => {
                let given = with(&given, &targets);
                let (shared, own) = parse_parts("algo", &given, &td3::defaults()).unwrap();
                compare(&td3::make(shared, own, &spaces()).unwrap(), case);
            }
            _ => {
                let given = with(&given, &targets);
                let (shared, own) = parse_parts("algo", &given, &ddpg::defaults()).unwrap();
                compare(&ddpg::make(shared, own, &spaces()).unwrap(), case);
            }
        }
    }
}

/// With TD3's defaults the first update moves the critics, the second one actor and targets too.
#[test]
fn a_delayed_actor_waits_for_its_update() {
    let cases = include_str!("../../tests/fixtures/continuous.json");
    let cases: Value = serde_json::from_str(cases).unwrap();
    let case = cases.as_array().unwrap().iter();
    let case = case.into_iter().find(|case| case["algorithm"] == "td3");
    let case = case.unwrap();
    let given = json!({"net": {"hidden": [4]}});
    let (shared, own) = parse_parts("algo", &given, &td3::defaults()).unwrap();
    let mut learner = learner(&td3::make(shared, own, &spaces()).unwrap(), case);
    let batch = batch(&case["inputs"], "returns");
    for moved in [false, true] {
        let before = learner.save();
        let report = learner.update(Batch::Transitions(&batch), PROGRESS);
        let report = report.unwrap();
        let after = learner.save();
        let changed = |name: &str| before[name] != after[name];
        assert!(changed("critic.params.value.bias"));
        assert_eq!(changed("critic.target.value.bias"), moved);
        assert_eq!(changed("actor.params.head.bias"), moved);
        assert_eq!(changed("actor.target.head.bias"), moved);
        let of_actor = report.metrics.iter().any(|(name, _)| *name == "actor_loss");
        assert_eq!(of_actor, moved);
    }
}

/// What a learner saved, another one continues from: random numbers and counters too.
#[test]
fn a_saved_learner_continues_exactly() {
    let cases = include_str!("../../tests/fixtures/continuous.json");
    let cases: Value = serde_json::from_str(cases).unwrap();
    let batch = batch(&cases[0]["inputs"], "returns");
    for name in ["sac", "crossq", "td3", "ddpg"] {
        let spec = crate::registry::find(name).unwrap();
        let net = json!({"hidden": [4], "critic_hidden": [4]});
        let given = json!({"net": net, "actor_every_updates": 3});
        let algorithm = spec.build(&given, &spaces()).unwrap();
        let mut first = algorithm.learner(1, Device::Cpu);
        let update = |learner: &mut Box<dyn Learner>| {
            let report = learner.update(Batch::Transitions(&batch), PROGRESS);
            report.unwrap();
        };
        (0..2).for_each(|_| update(&mut first));
        let mut second = algorithm.learner(2, Device::Cpu);
        second.load(&first.save()).unwrap();
        for learner in [&mut first, &mut second] {
            (0..2).for_each(|_| update(learner));
        }
        assert_eq!(first.save(), second.save(), "{name}");
    }
}

/// The actions of one row for two environments.
fn act(algorithm: &dyn Algorithm, policy: &mut dyn Policy, explore: bool, step: u64) -> Vec<f32> {
    let (none, spaces) = (Tree::empty(), spaces());
    let (obs, action) = (&spaces.observation, &spaces.action);
    let weights = algorithm.learner(1, Device::Cpu).weights();
    policy.load(&weights).unwrap();
    let mut rollout = Rollout::new(1, 2, obs, action, None, &none, &none);
    let mut rngs = [stream(step, "policy", 0), stream(step, "policy", 1)];
    let acting = Acting {
        explore,
        env_steps: step,
        first_env: 0,
        total_envs: 2,
        rngs: &mut rngs,
        state: &mut Tree::empty(),
    };
    policy.act(0, &mut rollout, acting);
    rollout.actions.as_slice::<f32>().to_vec()
}

/// All actions are within their bounds. They are uniform at first, the same in every evaluation,
/// and different while exploring.
#[test]
fn actions_are_within_their_bounds() {
    for name in ["sac", "crossq", "td3", "ddpg"] {
        let spec = crate::registry::find(name).unwrap();
        let net = json!({"hidden": [4], "critic_hidden": [4]});
        let noise = match name {
            "sac" | "crossq" => json!({"net": net, "random_steps": 500}),
            // Noise that often leads out of the bounds.
            _ => json!({"net": net, "random_steps": 500, "exploration_noise": 2.0}),
        };
        let algorithm = spec.build(&noise, &spaces()).unwrap();
        let mut policy = algorithm.policy(Device::Cpu);
        let mut sums = [0.0; 4];
        for step in 0..1000 {
            let actions = act(&*algorithm, &mut *policy, true, step);
            for (i, &action) in actions.iter().enumerate() {
                let (low, high) = [(-2.0, 2.0), (0.0, 4.0)][i % 2];
                assert!((low..=high).contains(&action), "{name}: {action}");
                if step < 500 {
                    sums[i] += f64::from(action) / 500.0;
                }
            }
        }
        for (i, mean) in sums.into_iter().enumerate() {
            let middle = [0.0, 2.0][i % 2];
            assert!((mean - middle).abs() < 0.2, "{name}: {mean}");
        }
        let at = |policy: &mut dyn Policy, explore, step| act(&*algorithm, policy, explore, step);
        assert_eq!(at(&mut *policy, false, 0), at(&mut *policy, false, 600));
        assert_ne!(at(&mut *policy, true, 600), at(&mut *policy, true, 601));
    }
}

#[test]
fn spaces_that_do_not_fit_are_refused() {
    for name in ["sac", "crossq", "td3", "ddpg"] {
        let spec = crate::registry::find(name).unwrap();
        for (action, reason) in [
            (Space::Discrete { n: 2 }, "continuous actions"),
            (Space::unbounded(&[1]), "finite bounds"),
        ] {
            let spaces = Spaces { action, ..spaces() };
            let error = spec.build(&spec.defaults(), &spaces).err().unwrap();
            let error = error.to_string();
            assert!(error.contains(name) && error.contains(reason), "{error}");
        }
    }
}

/// Settings that would have no effect, or not the one that their name promises.
#[test]
fn batch_renormalisation_is_for_crossq_and_target_networks_are_not() {
    let message = |name: &str, given: Value| {
        let spec = crate::registry::find(name).unwrap();
        spec.build(&given, &spaces()).err().unwrap().to_string()
    };
    for name in ["sac", "td3", "ddpg"] {
        let error = message(name, json!({"net": {"layers": "batch_renorm"}}));
        assert!(error.contains("algo.net.layers is batch_renorm"), "{error}");
        assert!(error.contains("--algo crossq"), "{error}");
    }
    for layers in ["plain", "residual"] {
        let error = message("crossq", json!({"net": {"layers": layers}}));
        assert!(
            error.contains("algo.net.layers") && error.contains("--algo sac"),
            "{error}"
        );
    }
    for name in ["target_tau", "target_every_updates"] {
        let error = message("crossq", json!({name: 1}));
        assert!(error.contains(&format!("algo.{name}")), "{error}");
    }
}

/// One update per step whatever the batch is; a replay ratio counts if it is not contradicted.
#[test]
fn updates_per_step_do_not_depend_on_the_batch() {
    let spec = crate::registry::find("sac").unwrap();
    let samples = |given: Value| {
        let algorithm = spec
            .build(&given, &spaces())
            .map_err(|error| error.to_string())?;
        let crate::Experience::Transitions(needs) = algorithm.experience() else {
            panic!("it learns from transitions");
        };
        Ok(needs.rate.samples_per_insert)
    };
    assert_eq!(samples(json!({})), Ok(Some(256.0)));
    assert_eq!(samples(json!({"batch_size": 512})), Ok(Some(512.0)));
    assert_eq!(samples(json!({"updates_per_step": 0.5})), Ok(Some(128.0)));
    assert_eq!(samples(json!({"replay_ratio": 256.0})), Ok(Some(256.0)));
    let ratio = json!({"updates_per_step": null, "replay_ratio": 64.0});
    assert_eq!(samples(ratio), Ok(Some(64.0)));
    assert_eq!(samples(json!({"updates_per_step": null})), Ok(None));
    let error: String = samples(json!({"replay_ratio": 64.0})).unwrap_err();
    assert!(
        error.contains("algo.replay_ratio is 64") && error.contains("updates_per_step"),
        "{error}"
    );
}

/// The statistics of CrossQ's batches need the true next observation where the task ends.
#[test]
fn crossq_keeps_terminal_observations() {
    for (name, kept) in [
        ("crossq", true),
        ("sac", false),
        ("td3", false),
        ("ddpg", false),
    ] {
        let spec = crate::registry::find(name).unwrap();
        let algorithm = spec.build(&spec.defaults(), &spaces()).unwrap();
        let crate::Experience::Transitions(needs) = algorithm.experience() else {
            panic!("it learns from transitions");
        };
        assert_eq!(needs.replay.keep_terminal_obs, kept, "{name}");
    }
}
