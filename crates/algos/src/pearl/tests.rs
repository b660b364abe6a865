//! Whole updates against PyTorch, and what a policy does in a trial.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use starling_envs::{Rollout, Space, stream};
use starling_nets::{Device, Kind, Params, ReduceError, Reducer, Tensor};
use starling_replay::MARK;
use starling_tree::{Array, Tree};

use super::policy::{CONTEXT, KNOWN, Phase, TrialState};
use super::{Config, Pearl, divergence, make, product_of_gaussians};
use crate::config::parse_config;
use crate::export::Inputs;
use crate::recorded_updates::{
    self, PROGRESS, batch, begin, compare, empty_batch, numbers, spaces,
};
use crate::{Acting, Algorithm, Batch, Learner, Spaces, TRIAL};

const TOLERANCE: f64 = 2e-5;

fn pearl(settings: &Value) -> Pearl {
    make(parse_config("algo", settings).unwrap(), &spaces()).unwrap()
}

fn close(ours: f64, theirs: f64, what: &str) {
    recorded_updates::close(ours, theirs, TOLERANCE, what);
}

fn cases() -> Vec<Value> {
    let cases = include_str!("../../tests/fixtures/pearl.json");
    serde_json::from_str(cases).unwrap()
}

/// Plain gradient steps: RMSProp whose averages stay at 1.
fn settings(case: &Value) -> Value {
    let mut settings = case["settings"].clone();
    settings["optimizer"] = json!({"kind": "rmsprop_tf", "alpha": 1.0, "eps": 0.0});
    settings
}

/// Posteriors, KL divergence, all losses and gradients, and the target network: everything that one
/// update changes, as `tests/record_pearl.py` computed it with PyTorch.
#[test]
fn updates_are_those_of_pytorch() {
    for case in cases() {
        let mut learner = pearl(&settings(&case)).pearl_learner(1, Device::Cpu);
        begin(&mut learner, &case);
        let inputs = &case["inputs"];
        let noise = ["z_noise", "action_noise"].map(|name| numbers(&inputs[name]));
        let noise = noise.map(|noise| Tensor::from_slice(&noise));
        let batch = batch(inputs, "rewards");
        let report = learner.update_with_noise(&batch, [&noise[0], &noise[1]], PROGRESS);
        compare(&learner, &report.unwrap(), &case, TOLERANCE);
    }
}

/// The product of N(1, 1) and N(3, 4) is N(1.4, 0.8), whose divergence from N(0, 1) is 0.991572.
#[test]
fn posterior_and_divergence_by_hand() {
    let tensor = |values: [f32; 2]| Tensor::from_slice(&values).reshape([1, 2, 1]);
    let (mean, variance) = product_of_gaussians(&tensor([1.0, 3.0]), &tensor([1.0, 4.0]));
    close(mean.double_value(&[0, 0]), 1.4, "mean");
    close(variance.double_value(&[0, 0]), 0.8, "variance");
    let kl = divergence(&mean, &variance).double_value(&[]);
    close(kl, 0.991_572, "divergence");
}

/// The actor's loss does not move the encoder, and the critics' loss does: with a KL weight of 0 the
/// encoder's gradient is that of the critics alone, and it is not zero.
#[test]
fn the_encoder_learns_from_the_critics() {
    let case = &cases()[0];
    let mut given = settings(case);
    given["kl_weight"] = json!(0.0);
    let mut learner = pearl(&given).pearl_learner(1, Device::Cpu);
    let before = learner.save();
    learner
        .update(
            Batch::Transitions(&batch(&case["inputs"], "rewards")),
            PROGRESS,
        )
        .unwrap();
    let after = learner.save();
    let name = "critic.params.encoder.last.weight";
    assert_ne!(before[name], after[name]);
}

/// A group of learners that all have the same gradient.
struct Copies(usize);

impl Reducer for Copies {
    fn mean(&mut self, _: &Tensor) -> Result<(), ReduceError> {
        Ok(())
    }

    fn size(&self) -> usize {
        self.0
    }
}

/// The KL divergence is a sum over tasks and the other losses are means: three learners with the same
/// batch do what one would whose batch has each task three times, that is with three times the weight.
#[test]
fn the_divergence_of_a_group_is_that_of_all_its_tasks() {
    let case = &cases()[0];
    let batch = batch(&case["inputs"], "rewards");
    let learn = |kl_weight: f64, group: Option<usize>| {
        let mut given = settings(case);
        given["kl_weight"] = json!(kl_weight);
        let mut learner = pearl(&given).pearl_learner(1, Device::Cpu);
        if let Some(size) = group {
            learner.join(Arc::new(Mutex::new(Copies(size))));
        }
        learner
            .update(Batch::Transitions(&batch), PROGRESS)
            .unwrap();
        learner.critics.params().to_vec()
    };
    let (group, alone) = (learn(0.5, Some(3)), learn(1.5, None));
    for (group, alone) in group.iter().zip(&alone) {
        close(f64::from(*group), f64::from(*alone), "parameter");
    }
    assert_ne!(group, learn(0.5, Some(1)));
}

#[test]
fn a_saved_learner_continues_exactly() {
    for case in cases() {
        let algorithm = pearl(&case["settings"]);
        let batch = batch(&case["inputs"], "rewards");
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
        assert_eq!(first.save(), second.save());
        assert_eq!(first.weights().values(), second.weights().values());
    }
}

/// A trial of training has trajectories on the prior, then on the posterior, the last ones no
/// context.
#[test]
fn a_trial_goes_through_its_phases() {
    let config = Config {
        latent_size: 1,
        prior_steps: 4,
        posterior_steps: 2,
        extra_steps: 3,
        ..Config::default()
    };
    let mut slice = vec![0.0; TrialState::size(1)];
    let (mut phases, mut by_posterior) = (Vec::new(), Vec::new());
    // Trajectories of two steps; the first is of the time before learning starts.
    for trajectory in 0..7 {
        let mut trial = TrialState::in_slice(&mut slice, 1);
        by_posterior.push(trial.next_of_training(&config, trajectory == 0));
        phases.push(trial.phase());
        (0..2).for_each(|_| trial.step());
    }
    use Phase::{Extra, Initial, Posterior, Prior};
    let expected = [Initial, Prior, Prior, Posterior, Extra, Extra, Prior];
    assert_eq!(phases, expected);
    for (phase, by_posterior) in phases.into_iter().zip(by_posterior) {
        let expected = matches!(phase, Posterior | Extra);
        assert_eq!(by_posterior, expected, "{phase:?}");
    }
}

/// In an evaluation: two trajectories on the prior, one on the posterior of all transitions, and one
/// on the prior again to compare with. Then a new trial begins.
#[test]
fn a_trial_of_an_evaluation_adapts_in_its_third_trajectory() {
    let config = Config {
        latent_size: 1,
        ..Config::default()
    };
    let mut slice = vec![0.0; TrialState::size(1)];
    let rng = &mut stream(1, "policy", 0);
    let mut adapted = Vec::new();
    for _ in 0..8 {
        let mut trial = TrialState::in_slice(&mut slice, 1);
        trial.next_of_evaluation(&config, rng);
        adapted.push((trial.z[0] - 100.0).abs() < 5.0);
        trial.step();
        trial.add(&[4.0, 400.0]);
    }
    let trial = [false, false, true, false];
    assert_eq!(adapted, [trial, trial].concat());
}

/// Every transition becomes context, however rollouts are cut: also the last one of an episode and of a
/// rollout. In training it is remembered as it is, in evaluations what the encoder says about it is
/// added up.
#[test]
fn every_transition_becomes_context_once() {
    for explore in [true, false] {
        becomes_context_once(explore);
    }
}

fn becomes_context_once(explore: bool) {
    let algorithm = pearl(&json!({
        "latent_size": 2,
        "hidden": [4],
        "encoder_hidden": [4],
        "context_next_obs": true,
        "learning_starts_steps": 0,
        "prior_steps": 100,
    }));
    let learner = algorithm.learner(3, Device::Cpu);
    let mut policy = algorithm.policy(Device::Cpu);
    policy.load(&learner.weights()).unwrap();
    let (records, state) = (policy.records(), policy.state());
    let Spaces {
        observation,
        action,
        ..
    } = &spaces();
    let mut rngs = [stream(1, "policy", 0)];
    let mut state: Tree<Array> = Tree::zeros(&state, &[1]);
    let mut rows: Vec<Vec<f32>> = Vec::new();
    let mut next = 0.0;
    // Two rollouts of three steps; an episode ends with the first rollout.
    for rollout_number in 0..2 {
        let none = Tree::empty();
        let mut rollout = Rollout::new(3, 1, observation, action, None, &records, &none);
        let mut show = |rollout: &mut Rollout, t: usize| {
            next += 0.1;
            let Tree::Leaf(obs) = &mut rollout.obs else {
                panic!("an observation is one array here");
            };
            obs.at_mut(&[t, 0]).write(&[next, -next, 1.0]);
            vec![next, -next, 1.0]
        };
        let mut seen = show(&mut rollout, 0);
        for t in 0..=3 {
            let mut acting = Acting {
                explore,
                env_steps: 0,
                first_env: 0,
                total_envs: 1,
                rngs: &mut rngs,
                state: &mut state,
            };
            if t == 3 {
                let mut parts = [crate::Part {
                    rollout: &mut rollout,
                    acting,
                }];
                policy.finish(0, &mut parts);
                break;
            }
            policy.act(t, &mut rollout, acting.reborrow());
            let reward = t as f32 - 0.5;
            rollout.rewards.at_mut(&[t, 0]).write(&[reward]);
            let taken = rollout.actions.at(&[t, 0]).as_slice::<f32>().to_vec();
            let after = show(&mut rollout, t + 1);
            let unit = [taken[0] / 2.0, taken[1] / 2.0 - 1.0];
            rows.push([&seen[..], &unit, &[reward], &after].concat());
            seen = after;
            if rollout_number == 0 && t == 2 {
                rollout.truncated.at_mut(&[t, 0]).write(&[1u8]);
                rollout.keep_final(t, 0);
                seen = show(&mut rollout, t + 1);
                let Some(Tree::Leaf(begun)) = state.get_mut("begun") else {
                    panic!("it is part of the state");
                };
                begun.bytes_mut().fill(0);
            }
        }
        let marks = rollout.policy.get(MARK).unwrap().leaf().unwrap();
        assert_eq!(marks.as_slice::<u8>(), [1, 1, 1]);
        drop(seen);
    }
    let trial = |part: &str| {
        let part = state.get(&format!("{TRIAL}.{part}")).unwrap();
        part.leaf().unwrap().as_slice::<f32>()
    };
    let ours = trial(KNOWN);
    assert_eq!(ours[6], 6.0);
    if explore {
        let all = rows.concat();
        assert_eq!(trial(CONTEXT)[..all.len()], all);
        return;
    }
    let params = Params::zeros(&algorithm.networks.acting, Device::Cpu);
    params.load(&learner.weights()).unwrap();
    let context = Tensor::from_slice(&rows.concat()).reshape([6, -1]);
    let (means, variances) = algorithm.networks.encode(&params, &context).unwrap();
    let sum = |x: Tensor| x.sum_dim_intlist([0].as_slice(), false, Kind::Float);
    let expected = [sum(variances.reciprocal()), sum(means / variances)];
    for (i, expected) in expected.iter().enumerate() {
        for j in 0..2 {
            let theirs = expected.double_value(&[j as i64]);
            close(f64::from(ours[2 * i + j]), theirs, "sum");
        }
    }
    // The exported encoder, given one transition after the other, knows the same.
    let exported = algorithm.export(&spaces(), &learner.weights()).unwrap();
    let encoder = exported.encoder.unwrap().reference;
    let mut known = [0, 1].map(|_| Tensor::zeros([1, 2], (Kind::Float, Device::Cpu)));
    for row in rows {
        let (obs, unit, next) = (&row[..3], &row[3..5], &row[6..]);
        let action = [unit[0] * 2.0, (unit[1] + 1.0) * 2.0];
        let [precision, weighted] = known;
        let inputs = [
            ("observation", Tensor::from_slice(obs).unsqueeze(0)),
            ("action", Tensor::from_slice(&action).unsqueeze(0)),
            ("reward", Tensor::from_slice(&[row[5]])),
            ("terminated", Tensor::from_slice(&[0u8])),
            ("next_observation", Tensor::from_slice(next).unsqueeze(0)),
            ("precision", precision),
            ("weighted_mean", weighted),
        ];
        let inputs = inputs.map(|(name, value)| (name.to_owned(), value));
        let mut outputs = encoder(&Inputs(&inputs)).into_iter();
        known = [(); 2].map(|()| outputs.next().unwrap().1);
    }
    for (i, known) in known.iter().enumerate() {
        for j in 0..2 {
            let exported = known.double_value(&[0, j as i64]);
            close(exported, f64::from(ours[2 * i + j]), "exported sum");
        }
    }
}

/// In training the posterior is that of the encoder at the time when it is inferred, not of those that
/// the context was collected with, from as many transitions as the encoder is trained with.
#[test]
fn the_posterior_of_training_is_by_the_present_encoder() {
    let algorithm = pearl(&json!({
        "latent_size": 2,
        "hidden": [4],
        "encoder_hidden": [4],
        "learning_starts_steps": 0,
        "prior_steps": 1,
        "context_batch": 4,
    }));
    let weights = [3, 4].map(|seed| algorithm.learner(seed, Device::Cpu).weights());
    let mut policy = algorithm.policy(Device::Cpu);
    let (records, state) = (policy.records(), policy.state());
    let Spaces {
        observation,
        action,
        ..
    } = &spaces();
    let mut rngs = [stream(1, "policy", 0)];
    let mut state: Tree<Array> = Tree::zeros(&state, &[1]);
    // One step on the prior with the first weights, then an episode begins with the second.
    for weights in &weights {
        policy.load(weights).unwrap();
        let none = Tree::empty();
        let mut rollout = Rollout::new(1, 1, observation, action, None, &records, &none);
        let Tree::Leaf(obs) = &mut rollout.obs else {
            panic!("an observation is one array here");
        };
        obs.at_mut(&[0, 0]).write(&[0.5f32, -1.0, 2.0]);
        let mut acting = Acting {
            explore: true,
            env_steps: 0,
            first_env: 0,
            total_envs: 1,
            rngs: &mut rngs,
            state: &mut state,
        };
        policy.act(0, &mut rollout, acting.reborrow());
        rollout.rewards.at_mut(&[0, 0]).write(&[1.5f32]);
        rollout.terminated.at_mut(&[0, 0]).write(&[1u8]);
        let mut parts = [crate::Part {
            rollout: &mut rollout,
            acting,
        }];
        policy.finish(0, &mut parts);
        let Some(Tree::Leaf(begun)) = state.get_mut("begun") else {
            panic!("it is part of the state");
        };
        begun.bytes_mut().fill(0);
    }
    let trial = |part: &str| {
        let part = state.get(&format!("{TRIAL}.{part}")).unwrap();
        part.leaf().unwrap().as_slice::<f32>().to_vec()
    };
    let (known, context) = (trial(KNOWN), trial(CONTEXT));
    let params = Params::zeros(&algorithm.networks.acting, Device::Cpu);
    params.load(&weights[1]).unwrap();
    let context = Tensor::from_slice(&context).reshape([1, -1]);
    let (means, variances) = algorithm.networks.encode(&params, &context).unwrap();
    for j in 0..2 {
        let (mean, variance) = (means.double_value(&[0, j]), variances.double_value(&[0, j]));
        let at = j as usize;
        close(f64::from(known[at]), 4.0 / variance, "precision");
        close(
            f64::from(known[2 + at]),
            4.0 * mean / variance,
            "weighted mean",
        );
    }
}

#[test]
fn settings_that_do_not_fit_are_refused() {
    let message = |settings: Value, spaces: &Spaces| {
        let config = parse_config("algo", &settings).unwrap();
        make(config, spaces).err().unwrap().to_string()
    };
    let late = message(json!({"eval_prior_trajectories": 3}), &spaces());
    assert!(late.contains("algo.eval_prior_trajectories is 3"), "{late}");
    let discrete = Spaces {
        action: Space::Discrete { n: 2 },
        ..spaces()
    };
    let refused = message(json!({}), &discrete);
    assert!(refused.contains("pearl cannot be used here"), "{refused}");
}

/// Without z it is SAC: nothing but the critics, value and actor.
#[test]
fn an_oracle_has_no_encoder() {
    let mut given = cases()[0]["settings"].clone();
    given["latent_size"] = json!(0);
    let algorithm = pearl(&given);
    let mut learner = algorithm.learner(1, Device::Cpu);
    assert!(learner.save().keys().all(|name| !name.contains("encoder")));
    let rows = algorithm.config.draws().batch_size();
    assert_eq!(rows, 8);
    let whole = batch(&cases()[0]["inputs"], "rewards");
    let mut part = empty_batch(rows);
    let (Tree::Leaf(to), Tree::Leaf(from)) = (&mut part.obs, &whole.obs) else {
        panic!("an observation is one array here");
    };
    to.as_mut_slice::<f32>()
        .copy_from_slice(&from.as_slice::<f32>()[..3 * rows]);
    let report = learner.update(Batch::Transitions(&part), PROGRESS).unwrap();
    let kl = report.metrics.iter().find(|(name, _)| *name == "kl");
    assert_eq!(kl.unwrap().1, 0.0);
}
