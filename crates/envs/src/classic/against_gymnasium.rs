//! Compares every step with recorded episodes of Gymnasium (`tests/record_classic.py`).
//!
//! Everything is equal to the last bit of single precision with the sine and cosine of glibc.
//! Results may differ with a mathematical library that rounds them differently.

use serde::Deserialize;
use starling_tree::{Array, Tree};

use super::mountain_car_continuous;
use crate::wrappers::save;
use crate::{Action, EnvOptions, ObsMut, registry, stream};

#[derive(Deserialize)]
struct Fixture {
    discrete: bool,
    episodes: Vec<Episode>,
}

#[derive(Deserialize)]
struct Episode {
    state: Vec<f64>,
    actions: String,
    observations: String,
    rewards: String,
    terminated: bool,
    truncated: bool,
}

#[test]
fn cart_pole() {
    compare("CartPole-v1");
}

#[test]
fn mountain_car() {
    compare("MountainCar-v0");
}

#[test]
fn mountain_car_continuous() {
    compare("MountainCarContinuous-v0");
}

#[test]
fn acrobot() {
    compare("Acrobot-v1");
}

#[test]
fn pendulum() {
    compare("Pendulum-v1");
}

fn compare(id: &str) {
    let text = include_str!("../../tests/fixtures/classic.json");
    let mut fixtures: serde_json::Map<String, serde_json::Value> =
        serde_json::from_str(text).unwrap();
    let fixture: Fixture = serde_json::from_value(fixtures.remove(id).unwrap()).unwrap();
    let mut env = registry::find(id)
        .unwrap()
        .make(&EnvOptions::default())
        .unwrap();
    let mut rng = stream(0, "unused", 0);
    for (number, episode) in fixture.episodes.iter().enumerate() {
        let observations = floats(&episode.observations);
        let rewards = floats(&episode.rewards);
        let actions: Vec<f32> = if fixture.discrete {
            let digits = episode.actions.chars();
            digits.map(|c| c.to_digit(10).unwrap() as f32).collect()
        } else {
            floats(&episode.actions)
        };
        let width = observations.len() / (rewards.len() + 1);
        let mut row = Tree::Leaf(Array::from_slice(&vec![0f32; width], &[width]));
        let state = if id == "MountainCarContinuous-v0" {
            save(&mountain_car_continuous::State::Start(episode.state[0]))
        } else if episode.state.len() == 4 {
            save(&<[f64; 4]>::try_from(&episode.state[..]).unwrap())
        } else {
            save(&<[f64; 2]>::try_from(&episode.state[..]).unwrap())
        };
        // The time limit's state: no steps yet, then the environment's own.
        env.restore(&save(&(0u64, state.unwrap())).unwrap())
            .unwrap();
        for (t, reward) in rewards.iter().enumerate() {
            let action = if fixture.discrete {
                Action::Discrete(actions[t] as usize)
            } else {
                Action::Continuous(&actions[t..=t])
            };
            let step = env
                .step(action, &mut rng, ObsMut::at(&mut row, &[]))
                .unwrap();
            let shown = row.leaf().unwrap().as_slice::<f32>();
            let expected = &observations[(t + 1) * width..(t + 2) * width];
            let same = shown
                .iter()
                .zip(expected)
                .all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(
                same,
                "{id}, episode {number}, step {t}: {shown:?} where Gymnasium has {expected:?}"
            );
            assert_eq!(
                step.reward.to_bits(),
                reward.to_bits(),
                "{id}, episode {number}, step {t}: reward {} where Gymnasium has {reward}",
                step.reward
            );
            let last = t + 1 == rewards.len();
            assert_eq!(step.terminated, last && episode.terminated, "step {t}");
            assert_eq!(step.truncated, last && episode.truncated, "step {t}");
        }
    }
}

fn floats(hex: &str) -> Vec<f32> {
    let words = hex.as_bytes().chunks(8);
    words
        .map(|word| std::str::from_utf8(word).unwrap())
        .map(|word| f32::from_bits(u32::from_str_radix(word, 16).unwrap()))
        .collect()
}
