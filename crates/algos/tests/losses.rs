//! Losses and gradients of PPO and A2C against a PyTorch computation, recorded by
//! `record_losses.py`: network, distribution, loss and gradient together.

#![expect(clippy::unwrap_used, reason = "a test ends where something fails")]

use std::sync::Arc;

use serde_json::Value;
use starling_algos::{PolicyGradientConfig, a2c, ppo};
use starling_envs::{Space, stream};
use starling_nets::{
    Activation, ActorCritic, Device, Kind, Layout, NetConfig, Params, Tensor, array_of,
};
use starling_tree::{Array, Tree};

const ROWS: i64 = 12;
const INPUTS: usize = 4;
const ACTIONS: usize = 3;

fn numbers(value: &Value) -> Vec<f32> {
    let numbers = value.as_array().unwrap().iter();
    numbers.map(|x| x.as_f64().unwrap() as f32).collect()
}

fn close(ours: f64, theirs: f64, what: &str) {
    let error = (ours - theirs).abs();
    assert!(
        error < 1e-5 * theirs.abs().max(1.0),
        "{what}: {ours} is not {theirs}"
    );
}

fn compare(case: &Value) {
    let gaussian = case["gaussian"].as_bool().unwrap();
    let actions = match gaussian {
        true => Space::unbounded(&[ACTIONS]),
        false => Space::Discrete { n: ACTIONS },
    };
    let config = NetConfig {
        hidden: Some(vec![5]),
        activation: Activation::Tanh,
        ..NetConfig::default()
    };
    let mut layout = Layout::default();
    let net = ActorCritic::new(&mut layout, &config, &Space::unbounded(&[INPUTS]), &actions);
    let net = net.unwrap();
    let params = Params::init(&Arc::new(layout), &mut stream(1, "init", 0), Device::Cpu);
    let recorded = &case["parameters"];
    let array = |name: &str, field: &str| {
        let parameter = recorded.get(name)?;
        let shape = parameter["shape"].as_array()?.iter();
        let shape: Vec<usize> = shape.map(|n| n.as_u64().unwrap() as usize).collect();
        Some(Array::from_slice(&numbers(&parameter[field]), &shape))
    };
    params.load_named(|name| array(name, "value")).unwrap();
    let params = params.trainable();

    let inputs = &case["inputs"];
    let vector = |name: &str| Tensor::from_slice(&numbers(&inputs[name]));
    let obs = Tree::Leaf(vector("obs").reshape([ROWS, INPUTS as i64]));
    let starts = Tensor::zeros([1, ROWS], (Kind::Float, Device::Cpu));
    let output = net.forward(&params, &obs, None, 1, &starts, &Tree::empty());
    let taken = match gaussian {
        true => vector("actions").reshape([ROWS, ACTIONS as i64]),
        false => vector("actions").to_kind(Kind::Int64),
    };
    let (log_probs, entropy) = (output.policy.log_prob(&taken), output.policy.entropy());
    let (advantages, returns) = (vector("advantages"), vector("returns"));
    let settings = &case["settings"];
    let setting = |name: &str| settings[name].as_f64().unwrap();
    let shared = PolicyGradientConfig {
        value_coef: setting("value_coef"),
        entropy_coef: setting("entropy_coef"),
        ..PolicyGradientConfig::default()
    };
    let terms = match case["algorithm"].as_str().unwrap() {
        "ppo" => {
            let compared = ppo::Compared {
                log_probs: &log_probs,
                old_log_probs: &vector("old_log_probs"),
                advantages: &advantages,
                values: &output.value,
                old_values: &vector("old_values"),
                returns: &returns,
                entropy: &entropy,
            };
            let ratio_clip = Tensor::from(setting("ratio_clip") as f32);
            ppo::loss(&compared, settings["value_clip"].as_f64(), &ratio_clip)
        }
        _ => a2c::loss(&log_probs, &advantages, &output.value, &returns, &entropy),
    };
    let loss = shared.total(&terms.policy_loss, &terms.value_loss, &terms.entropy);
    close(
        loss.double_value(&[]),
        case["loss"].as_f64().unwrap(),
        "loss",
    );
    let gradient = array_of(&params.gradient(&loss));
    let mut rest = gradient.as_slice::<f32>();
    for (name, value) in params.named() {
        let (ours, after) = rest.split_at(value.as_slice::<f32>().len());
        rest = after;
        let theirs = array(&name, "gradient").unwrap();
        for (ours, theirs) in ours.iter().zip(theirs.as_slice::<f32>()) {
            close(f64::from(*ours), f64::from(*theirs), &name);
        }
    }
    assert!(rest.is_empty());
}

#[test]
fn losses_and_gradients_are_those_of_pytorch() {
    let recorded: Value = serde_json::from_str(include_str!("fixtures/losses.json")).unwrap();
    let cases = recorded["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 6);
    for case in cases {
        compare(case);
    }
}
