//! NGU's intrinsic rewards.

use starling_envs::Rollout;
use starling_nets::{Device, Kind, Params, Tensor, array_of, no_grad, tensor_of, unrecorded};
use starling_tree::{Array, Tree};

use super::Ngu;
use crate::Part;
use crate::ops::EpisodicNovelty;
use crate::recurrent::leaf;
use crate::shown::Shown;

/// Writes the rewards of the rollouts of a group for what is new, step by step, and the memory of
/// the episodes that continue.
pub(super) fn reward(ngu: &Ngu, params: &Params, shown: &mut Shown, parts: &mut [Part<'_>]) {
    let (embeddings, surprises) = look_at(ngu, params, shown, parts);
    let (embeddings, surprises) = (embeddings.as_slice::<f32>(), surprises.as_slice::<f32>());
    let size = ngu.nets.inverse.size;
    let novelty = &ngu.config.episodic;
    let (most, scale) = (ngu.config.rnd_max as f32, ngu.config.intrinsic_scale as f32);
    let mut first = 0;
    for Part { rollout, acting } in parts {
        let (steps, envs) = (rollout.steps(), rollout.envs());
        let ends: Vec<bool> = ends(rollout).collect();
        for b in 0..envs {
            let mut memory = Remembered::of(&rollout.state, b, size);
            for t in 0..steps {
                let row = t * shown.envs() + first + b;
                let place = &embeddings[row * size..(row + 1) * size];
                let episodic = memory.visit(place, novelty);
                let reward = scale * episodic as f32 * surprises[row].clamp(1.0, most);
                let at = t * envs + b;
                if let Some(Tree::Leaf(column)) = rollout.policy.get_mut("intrinsic") {
                    column.as_mut_slice::<f32>()[at] = reward;
                }
                if ends[at] {
                    memory = Remembered::default();
                }
            }
            memory.keep(acting.state, b);
        }
        first += envs;
    }
}

/// Whether an episode ended, step by step and environment by environment.
pub(super) fn ends(rollout: &Rollout) -> impl Iterator<Item = bool> + '_ {
    let terminated = rollout.terminated.as_slice::<u8>().iter();
    let truncated = rollout.truncated.as_slice::<u8>().iter();
    terminated.zip(truncated).map(|(a, b)| *a != 0 || *b != 0)
}

/// Embeddings `[T·B, size]` and surprise `[T·B]` of what each step of a group led to.
fn look_at(ngu: &Ngu, params: &Params, shown: &mut Shown, parts: &[Part<'_>]) -> (Array, Array) {
    let device = params.device();
    let (steps, envs) = (parts[0].rollout.steps(), shown.envs());
    shown.show(steps, parts);
    let after = |rows: &Tensor| rows.narrow(0, 1, steps as i64).flatten(0, 1);
    let mut after = match shown.rows() {
        Some(rows) => rows.map(|rows| after(rows).copy()),
        None => side_by_side(parts, device).map(after),
    };
    let mut first = 0;
    for Part { rollout, .. } in parts {
        let ended = rollout.final_at.iter();
        let ended: Vec<i64> = ended.map(|&(t, b)| (t * envs + first + b) as i64).collect();
        if !ended.is_empty() {
            let rows = Tensor::from_slice(&ended).to_device(device);
            let finals = rollout.final_obs.map(|array| {
                let all = tensor_of(array, device);
                all.narrow(0, 0, ended.len() as i64)
            });
            let same = after.zip_mut(&finals, |all, finals| {
                let _ = all.index_copy_(0, &rows, finals);
            });
            debug_assert!(same.is_ok(), "both are observations of one space");
        }
        first += rollout.envs();
    }
    let look = || {
        let embeddings = ngu.nets.inverse.embed(params, &after);
        let surprises = match after.leaf() {
            Some(obs) => ngu.nets.rnd.surprise(params, obs),
            None => Tensor::ones([(steps * envs) as i64], (Kind::Float, device)),
        };
        (array_of(&embeddings), array_of(&surprises))
    };
    unrecorded(device, || no_grad(look))
}

/// Observations `[T + 1, B, ..]` of all rollouts.
fn side_by_side(parts: &[Part<'_>], device: Device) -> Tree<Tensor> {
    let columns = parts.iter().map(|part| part.rollout.obs.leaves());
    let columns: Vec<Vec<(String, &Array)>> = columns.collect();
    let mut leaf = 0;
    parts[0].rollout.obs.map(|_| {
        let column = columns
            .iter()
            .map(|leaves| tensor_of(leaves[leaf].1, device));
        let column: Vec<Tensor> = column.collect();
        leaf += 1;
        Tensor::cat(&column, 1)
    })
}

/// What an episode has visited so far.
#[derive(Default)]
pub(super) struct Remembered {
    /// Embeddings, one after the other, in a ring.
    pub(super) places: Vec<f32>,
    visited: usize,
    /// Sum and number of the distances to nearest neighbours.
    distance: (f64, f64),
}

impl Remembered {
    fn of(state: &Tree<Array>, b: usize, size: usize) -> Self {
        let (Some(places), Some(visited), Some(distance)) = (
            leaf(state, "places"),
            leaf(state, "visited"),
            leaf(state, "distance"),
        ) else {
            return Self::default();
        };
        let visited = visited.as_slice::<i64>()[b] as usize;
        let row = places.at(&[b]);
        let row = row.as_slice::<f32>();
        let used = (visited * size).min(row.len());
        let distance = distance.at(&[b]);
        let distance = distance.as_slice::<f32>();
        Self {
            places: row[..used].to_vec(),
            visited,
            distance: (f64::from(distance[0]), f64::from(distance[1])),
        }
    }

    /// The reward of a place, which is remembered from then on.
    pub(super) fn visit(&mut self, place: &[f32], novelty: &EpisodicNovelty) -> f64 {
        let reward = match novelty.nearest(place, &self.places) {
            None => 0.0,
            Some(distances) => {
                let sum: f64 = distances.iter().map(|&d| f64::from(d)).sum();
                self.distance.0 += sum;
                self.distance.1 += distances.len() as f64;
                novelty.reward(&distances, self.distance.0 / self.distance.1)
            }
        };
        let at = self.visited % novelty.memory_steps * place.len();
        match at < self.places.len() {
            true => self.places[at..at + place.len()].copy_from_slice(place),
            false => self.places.extend_from_slice(place),
        }
        self.visited += 1;
        reward
    }

    fn keep(&self, state: &mut Tree<Array>, b: usize) {
        if let Some(Tree::Leaf(column)) = state.get_mut("places") {
            let mut row = column.at_mut(&[b]);
            let row = row.as_mut_slice::<f32>();
            row.fill(0.0);
            row[..self.places.len()].copy_from_slice(&self.places);
        }
        if let Some(Tree::Leaf(column)) = state.get_mut("visited") {
            column.as_mut_slice::<i64>()[b] = self.visited as i64;
        }
        if let Some(Tree::Leaf(column)) = state.get_mut("distance") {
            let (sum, count) = (self.distance.0 as f32, self.distance.1 as f32);
            column.at_mut(&[b]).write(&[sum, count]);
        }
    }
}
