//! Which arm an episode plays, and the returns of past arms.

use starling_envs::{Rng, Rollout};
use starling_tree::{Array, Tree};

use super::Config;
use super::novelty::ends;
use crate::Part;
use crate::ops::choose_arm;
use crate::recurrent::leaf;

/// The arms of the environments of a rollout. Episodes that begin get one, by the bandit as of
/// the rollout's beginning; in evaluation it is the first.
pub(super) fn choose(part: &mut Part<'_>, config: &Config) -> Vec<i64> {
    let Part { rollout, acting } = part;
    let explore = acting.explore;
    let mut chosen = Vec::new();
    let Some(Tree::Leaf(arms)) = acting.state.get_mut("arm") else {
        debug_assert!(false, "the policy's memory has the arms");
        return chosen;
    };
    let arms = arms.as_mut_slice::<i64>().iter_mut();
    for (b, (arm, rng)) in arms.zip(acting.rngs.iter_mut()).enumerate() {
        // 0 where an episode begins, else the number of the arm plus 1.
        if *arm == 0 {
            *arm = 1 + match explore {
                true => next(&rollout.state, b, config, rng) as i64,
                false => 0,
            };
        }
        chosen.push(*arm - 1);
    }
    chosen
}

fn next(state: &Tree<Array>, b: usize, config: &Config, rng: &mut Rng) -> usize {
    let pulls = pulls_of(state, b);
    choose_arm(&pulls, config.arms, config.bandit_epsilon, rng)
}

/// Updates the bandits with the returns of a rollout's episodes.
pub(super) fn reward(rollout: &Rollout, state: &mut Tree<Array>, config: &Config) {
    let envs = rollout.envs();
    let rewards = rollout.rewards.as_slice::<f32>();
    let arms = leaf(&rollout.policy, "arm").map(|column| column.as_slice::<i64>());
    let scores = leaf(&rollout.state, "score").map(|column| column.as_slice::<f32>());
    let (Some(arms), Some(scores)) = (arms, scores) else {
        debug_assert!(false, "the rollout has arms and scores");
        return;
    };
    let ends: Vec<bool> = ends(rollout).collect();
    for (b, &score) in scores.iter().enumerate() {
        let mut pulls = pulls_of(&rollout.state, b);
        let mut score = score;
        for at in (b..rewards.len()).step_by(envs) {
            score += rewards[at];
            if ends[at] {
                pulls.push((arms[at] as usize, score));
                score = 0.0;
            }
        }
        let late = pulls.len().saturating_sub(config.bandit_episodes);
        keep_pulls(state, b, &pulls[late..]);
        if let Some(Tree::Leaf(column)) = state.get_mut("score") {
            column.as_mut_slice::<f32>()[b] = score;
        }
    }
}

/// The last arms of an environment and their returns.
pub(super) fn pulls_of(state: &Tree<Array>, b: usize) -> Vec<(usize, f32)> {
    let (Some(pulls), Some(pulled)) = (leaf(state, "pulls"), leaf(state, "pulled")) else {
        debug_assert!(false, "the policy's memory has the bandits");
        return Vec::new();
    };
    let count = pulled.as_slice::<i64>()[b] as usize;
    let row = pulls.at(&[b]);
    let pairs = row.as_slice::<f32>().chunks_exact(2).take(count);
    pairs.map(|pair| (pair[0] as usize, pair[1])).collect()
}

pub(super) fn keep_pulls(state: &mut Tree<Array>, b: usize, pulls: &[(usize, f32)]) {
    if let Some(Tree::Leaf(column)) = state.get_mut("pulls") {
        let mut row = column.at_mut(&[b]);
        let row = row.as_mut_slice::<f32>();
        row.fill(0.0);
        for (pair, &(arm, reward)) in row.chunks_exact_mut(2).zip(pulls) {
            pair.copy_from_slice(&[arm as f32, reward]);
        }
    }
    if let Some(Tree::Leaf(column)) = state.get_mut("pulled") {
        column.as_mut_slice::<i64>()[b] = pulls.len() as i64;
    }
}
