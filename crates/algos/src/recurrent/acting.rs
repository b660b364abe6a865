//! Acting with a memory, for several rollouts at once.
//!
//! The memory of an environment holds recurrent states by name, and beside them the action before
//! (`action`, a vector with one 1) and the reward before (`reward`).

use rand::RngExt as _;
use starling_envs::Rollout;
use starling_nets::{
    Device, Kind, RecurrentInput, RecurrentQ, Tensor, tensor_of, tensor_of_view, tree_of,
};
use starling_tree::{Array, Tree};

use crate::Part;
use crate::value_based::{ValueConfig, greedy_action, random_action};

/// Before row `t`: brings the reward of the row before into the memories, and records the
/// recurrent states that sequences may begin with.
pub(crate) fn begin(t: usize, parts: &mut [Part<'_>]) {
    for Part { rollout, acting } in parts {
        if t > 0 {
            remember_reward(rollout, t - 1, acting.state);
        }
        if let Some(record) = rollout.policy.get_mut("state") {
            for (name, column) in record.leaves_mut() {
                if let Some(array) = leaf(acting.state, &name) {
                    column.at_mut(&[t]).bytes.copy_from_slice(array.bytes());
                }
            }
        }
    }
}

/// What a network sees of row `t` of the rollouts, side by side as one step of B environments.
pub(crate) fn look(
    t: usize,
    parts: &[Part<'_>],
    net: &RecurrentQ,
    extra: Option<Tensor>,
    device: Device,
) -> RecurrentInput {
    let seen = parts
        .iter()
        .map(|part| tree_of(&part.rollout.obs, &[t], device));
    let actions = stored(parts, "action", &[net.actions()], device);
    let rewards = stored(parts, "reward", &[], device);
    RecurrentInput {
        obs: join(seen.collect()),
        actions: actions.unsqueeze(0),
        // Where an episode begins the memory is zero already.
        starts: rewards.zeros_like().unsqueeze(0),
        rewards: rewards.unsqueeze(0),
        extra: extra.map(|extra| extra.unsqueeze(0)),
        legal: match net.wants_legal() {
            true => legal_at(t, parts, device).map(|legal| legal.unsqueeze(0)),
            false => None,
        },
    }
}

/// Legal actions `[B, A]` of row `t` of the rollouts, if they have any.
fn legal_at(t: usize, parts: &[Part<'_>], device: Device) -> Option<Tensor> {
    let each = parts.iter().map(|part| {
        let legal = part.rollout.legal.as_ref()?.at(&[t]);
        Some(tensor_of_view(legal, device))
    });
    Some(side_by_side(each.collect::<Option<Vec<_>>>()?))
}

/// A part of the memories of all rollouts, `[B, item]`.
pub(crate) fn stored(parts: &[Part<'_>], name: &str, item: &[usize], device: Device) -> Tensor {
    let each = parts
        .iter()
        .map(|part| match leaf(part.acting.state, name) {
            Some(array) => tensor_of(array, device),
            None => {
                let shape = std::iter::once(part.acting.rngs.len()).chain(item.iter().copied());
                let shape: Vec<i64> = shape.map(|n| n as i64).collect();
                Tensor::zeros(&shape, (Kind::Float, device))
            }
        });
    side_by_side(each.collect())
}

/// Overwrites a part of the memories with rows `[B, ..]` of all rollouts.
pub(crate) fn keep(parts: &mut [Part<'_>], name: &str, rows: &Array) {
    let mut rest = rows.bytes();
    for part in parts {
        let Some(Tree::Leaf(place)) = part.acting.state.get_mut(name) else {
            debug_assert!(false, "the policy's memory has '{name}'");
            continue;
        };
        let (own, others) = rest.split_at(place.bytes().len());
        place.bytes_mut().copy_from_slice(own);
        rest = others;
    }
    debug_assert!(rest.is_empty(), "one row for each environment");
}

/// What was chosen for one rollout, with values `[B]` each.
pub(crate) struct Decided {
    /// Of the actions taken.
    pub(crate) taken: Vec<f32>,
    /// Of the best actions.
    pub(crate) best: Vec<f32>,
}

/// Writes the actions of row `t` of one rollout, whose values begin with row `first` of `[B, A]`,
/// and remembers them.
pub(crate) fn decide(
    t: usize,
    part: &mut Part<'_>,
    values: &mut Array,
    first: usize,
    config: &ValueConfig,
) -> Decided {
    let exploration = &config.exploration;
    let count = values.shape()[1];
    let Part { rollout, acting } = part;
    let mut previous = vec![0f32; acting.rngs.len() * count];
    let (mut taken, mut best) = (Vec::new(), Vec::new());
    for (b, rng) in acting.rngs.iter_mut().enumerate() {
        let legal = rollout.legal.as_ref().map(|mask| mask.at(&[t, b]));
        let legal = legal.map(|row| row.as_slice::<u8>());
        let mut row = values.at_mut(&[first + b]);
        let row = row.as_mut_slice::<f32>();
        let unmasked = row.to_vec();
        let greedy = greedy_action(row, legal);
        let epsilon = match acting.explore {
            true => exploration.at(acting.env_steps, acting.first_env + b, acting.total_envs),
            false => exploration.epsilon_eval,
        };
        let action = match rng.random::<f64>() < epsilon {
            true => random_action(count, legal, rng),
            false => greedy,
        };
        rollout.actions.at_mut(&[t, b]).write(&[action as i64]);
        previous[b * count + action] = 1.0;
        taken.push(unmasked[action]);
        best.push(unmasked[greedy]);
    }
    if let Some(Tree::Leaf(place)) = acting.state.get_mut("action") {
        place.as_mut_slice::<f32>().copy_from_slice(&previous);
    }
    Decided { taken, best }
}

/// Brings the reward of step `t` into a policy's memory, unless the episode ended with it.
pub(crate) fn remember_reward(rollout: &Rollout, t: usize, state: &mut Tree<Array>) {
    let Some(Tree::Leaf(column)) = state.get_mut("reward") else {
        return;
    };
    let rewards = rollout.rewards.at(&[t]);
    let ends = [&rollout.terminated, &rollout.truncated].map(|flags| flags.at(&[t]).bytes);
    let column = column.as_mut_slice::<f32>().iter_mut();
    for (b, (to, reward)) in column.zip(rewards.as_slice::<f32>()).enumerate() {
        *to = if ends.iter().any(|flags| flags[b] != 0) {
            0.0
        } else {
            *reward
        };
    }
}

/// An array of a tree by its name.
pub(crate) fn leaf<'a>(tree: &'a Tree<Array>, name: &str) -> Option<&'a Array> {
    tree.get(name)?.leaf()
}

/// Tensors joined along their first dimension. There must be one at least.
pub(crate) fn side_by_side(mut tensors: Vec<Tensor>) -> Tensor {
    match tensors.len() {
        1 => tensors.swap_remove(0),
        _ => Tensor::cat(&tensors, 0),
    }
}

/// Observations of several rollouts as one batch. There must be one at least.
fn join(mut parts: Vec<Tree<Tensor>>) -> Tree<Tensor> {
    if parts.len() == 1 {
        return parts.swap_remove(0);
    }
    let columns: Vec<Vec<(String, &Tensor)>> = parts.iter().map(Tree::leaves).collect();
    let mut leaf = 0;
    parts[0].map(|_| {
        let column: Vec<&Tensor> = columns.iter().map(|leaves| leaves[leaf].1).collect();
        leaf += 1;
        Tensor::cat(&column, 0)
    })
}
