//! The counters and statistics of a run.

use serde::{Deserialize, Serialize};
use starling_envs::Episode;
use starling_record::Window;

/// How far a run has come, and what its episodes were like.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Tally {
    /// Steps of all environments.
    pub(crate) env_steps: u64,
    /// Rounds of collecting and learning.
    pub(crate) iterations: u64,
    /// Episodes that ended.
    pub(crate) episodes: u64,
    /// Episodes that ended since the last row of metrics.
    pub(crate) new_episodes: u64,
    /// Returns of the last 100 episodes.
    pub(crate) returns: Window,
    /// Discounted returns of the last 100 episodes.
    pub(crate) discounted_returns: Window,
    /// Lengths of the last 100 episodes.
    pub(crate) lengths: Window,
    /// Steps with a reward, of the last 100 episodes.
    pub(crate) nonzero_rewards: Window,
    /// Points of the last 100 games, where environments count them.
    pub(crate) game_scores: Window,
    /// Whether they do.
    #[serde(default)]
    pub(crate) counts_games: bool,
    /// Step and mean return of the last evaluation.
    pub(crate) last_eval: Option<(u64, f64)>,
    /// Mean return of the best evaluation.
    pub(crate) best_eval: Option<f64>,
    /// Steps and episodes of evaluations since the last row of metrics.
    pub(crate) eval_steps: f64,
    /// See `eval_steps`.
    pub(crate) eval_episodes: f64,
    /// Environments that failed and were restarted.
    #[serde(default)]
    pub(crate) env_restarts: u64,
    /// Actors that were lost.
    #[serde(default)]
    pub(crate) actor_losses: u64,
    /// Samples drawn from the replay and steps inserted by the last row of metrics.
    pub(crate) replay_counts: (u64, u64),
}

/// Episodes that statistics look back on.
const WINDOW: usize = 100;

impl Tally {
    /// Of a run that begins, whose environments count the points of whole games or do not.
    pub(crate) fn new(counts_games: bool) -> Self {
        Self {
            env_steps: 0,
            iterations: 0,
            episodes: 0,
            new_episodes: 0,
            returns: Window::new(WINDOW),
            discounted_returns: Window::new(WINDOW),
            lengths: Window::new(WINDOW),
            nonzero_rewards: Window::new(WINDOW),
            game_scores: Window::new(WINDOW),
            counts_games,
            last_eval: None,
            best_eval: None,
            eval_steps: 0.0,
            eval_episodes: 0.0,
            env_restarts: 0,
            actor_losses: 0,
            replay_counts: (0, 0),
        }
    }

    /// What a run is judged by while it trains: scores of the last 100 whole games where
    /// environments count them (an episode may be one life, its rewards clipped), else returns of
    /// the last 100 episodes.
    pub(crate) fn scores(&self) -> &Window {
        match self.counts_games {
            true => &self.game_scores,
            false => &self.returns,
        }
    }

    /// Adds steps and the episodes that ended with them.
    pub(crate) fn count(&mut self, steps: usize, episodes: &[Episode]) {
        self.env_steps += steps as u64;
        self.episodes += episodes.len() as u64;
        self.new_episodes += episodes.len() as u64;
        for episode in episodes {
            self.returns.push(episode.return_);
            self.discounted_returns.push(episode.discounted_return);
            self.lengths.push(episode.length as f64);
            self.nonzero_rewards.push(episode.nonzero_rewards as f64);
            if let Some(score) = episode.game_score {
                self.game_scores.push(score);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where games are counted, the clipped returns of single lives are not what a run is judged
    /// by, not even before the first game has ended.
    #[test]
    fn whole_games_count_where_there_are_games() {
        let life = Episode {
            env: 0,
            return_: 3.0,
            discounted_return: 3.0,
            length: 10,
            nonzero_rewards: 3,
            game_score: None,
        };
        let game = Episode {
            game_score: Some(120.0),
            ..life
        };
        let mut tally = Tally::new(true);
        tally.count(10, &[life, life]);
        assert!(tally.scores().is_empty());
        tally.count(10, &[game]);
        assert_eq!(tally.scores().summary().average, 120.0);
        let mut tally = Tally::new(false);
        tally.count(10, &[life]);
        assert_eq!(tally.scores().summary().average, 3.0);
    }
}
