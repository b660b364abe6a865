//! Novelty within an episode (Badia et al. 2020, "Never Give Up").

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Settings of the episodic novelty.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EpisodicNovelty {
    /// Places of an episode that are remembered; then the oldest is forgotten.
    #[schemars(range(min = 1, max = 1_048_576))]
    pub memory_steps: usize,
    /// Number of nearest neighbours (k).
    #[schemars(range(min = 1, max = 65_536))]
    pub neighbours: usize,
    /// Compare squared distances, as in the paper; false compares Euclidean distances, as in
    /// MarltasCore.
    pub squared: bool,
    /// How quickly similarity falls with distance (ε of the kernel).
    #[schemars(extend("exclusiveMinimum" = 0.0))]
    pub kernel_epsilon: f64,
    /// Distances below this, relative to the mean, count as 0 (ξ).
    #[schemars(range(min = 0.0))]
    pub cluster_distance: f64,
    /// Keeps the denominator away from 0 (c).
    #[schemars(range(min = 0.0))]
    pub pseudo_counts: f64,
    /// Similarity above which there is no reward at all (s_max).
    #[schemars(range(min = 0.0))]
    pub max_similarity: f64,
}

impl Default for EpisodicNovelty {
    fn default() -> Self {
        Self {
            memory_steps: 1000,
            neighbours: 10,
            squared: true,
            kernel_epsilon: 1e-4,
            cluster_distance: 0.008,
            pseudo_counts: 1e-3,
            max_similarity: 8.0,
        }
    }
}

impl EpisodicNovelty {
    /// The reward of a place whose nearest neighbours are at these distances, when `mean` is the
    /// running mean of such distances.
    pub fn reward(&self, distances: &[f32], mean: f64) -> f64 {
        let mean = mean.max(1e-8);
        let kernel = distances.iter().map(|&distance| {
            let distance = (f64::from(distance) / mean - self.cluster_distance).max(0.0);
            self.kernel_epsilon / (distance + self.kernel_epsilon)
        });
        let similarity = kernel.sum::<f64>().sqrt() + self.pseudo_counts;
        match similarity > self.max_similarity {
            true => 0.0,
            false => 1.0 / similarity,
        }
    }

    /// The k smallest distances of a place to those remembered (one after the other), squared or
    /// not; `None` while there are fewer than k.
    pub fn nearest(&self, place: &[f32], memory: &[f32]) -> Option<Vec<f32>> {
        let remembered = memory.chunks_exact(place.len());
        let mut distances: Vec<f32> = remembered
            .map(|other| {
                let squares = place.iter().zip(other).map(|(a, b)| (a - b) * (a - b));
                squares.sum()
            })
            .collect();
        let k = self.neighbours;
        if distances.len() < k || k == 0 {
            return None;
        }
        distances.select_nth_unstable_by(k - 1, f32::total_cmp);
        distances.truncate(k);
        if !self.squared {
            distances.iter_mut().for_each(|d| *d = d.sqrt());
        }
        Some(distances)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers of an independent script.
    #[test]
    fn rewards_computed_elsewhere() {
        let novelty = EpisodicNovelty::default();
        let distances: Vec<f32> = (0..10).map(|i| i as f32).collect();
        assert!((novelty.reward(&distances, 4.5) - 0.998354).abs() < 1e-6);
        assert!((novelty.reward(&[0.0; 10], 1.0) - 0.316128).abs() < 1e-6);
        assert_eq!(novelty.reward(&[0.0; 65], 1.0), 0.0);
    }

    #[test]
    fn the_nearest_are_found() {
        let novelty = EpisodicNovelty {
            neighbours: 2,
            ..EpisodicNovelty::default()
        };
        let memory = [0.0, 0.0, 3.0, 4.0, 1.0, 0.0];
        let mut nearest = novelty.nearest(&[0.0, 0.0], &memory).unwrap();
        nearest.sort_by(f32::total_cmp);
        assert_eq!(nearest, [0.0, 1.0]);
        assert_eq!(novelty.nearest(&[0.0, 0.0], &memory[..2]), None);
        let euclidean = EpisodicNovelty {
            squared: false,
            neighbours: 3,
            ..novelty
        };
        let mut nearest = euclidean.nearest(&[0.0, 0.0], &memory).unwrap();
        nearest.sort_by(f32::total_cmp);
        assert_eq!(nearest, [0.0, 1.0, 5.0]);
    }
}
