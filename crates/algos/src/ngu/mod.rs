//! Never Give Up, "NGU" (Badia et al. 2020), with the meta-controller of Agent57: recurrent
//! Q-learning with intrinsic rewards for novelty.
//!
//! Novelty within an episode is measured by the distances of an embedding to its nearest neighbours
//! in the episode; novelty over the whole run by random network distillation, which scales the
//! former by 1 to 5. Two networks learn the values of the task's rewards and of the intrinsic
//! rewards. An input of both is the *arm* being played: a weight of the intrinsic rewards (β) and a
//! discount (γ). A sliding-window bandit per environment chooses the arm of each episode by the
//! task's returns.
//!
//! Where we differ: distances are divided by their mean over the episode so far, so no state is
//! kept between episodes; evaluation plays the first arm, which has β = 0, and a share of all
//! sequences is relabelled with that arm, so that it learns from what the others find; priorities
//! are the errors of both values, each relative to its mean, because the intrinsic errors would
//! dominate otherwise. The actor computes the intrinsic rewards of a rollout when it is full.

mod arms;
mod export;
mod loss;
mod novelty;
mod policy;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use starling_nets::export::NotExported;
use starling_nets::{
    Device, InverseModel, Kind, Layout, LstmState, Params, RandomDistillation, RecurrentInput,
    RecurrentQ, ShapeMismatch, Snapshot, Tensor,
};
use starling_replay::SequenceConfig;

use crate::config::{ConfigError, require};
use crate::ops::{EpisodicNovelty, discount_ladder, intrinsic_weight, rescale, unscale};
use crate::recurrent::{SequenceLearner, experience};
use crate::value_based::ValueConfig;
use crate::{Algorithm, Experience, Exported, Learner, Policy, Spaces, r2d2};

/// NGU's settings beside the shared ones; `batch_size` counts sequences, and `gamma` is the
/// discount of the first arm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// How episodes are cut into sequences.
    pub sequence: SequenceConfig,
    /// Size of each LSTM.
    #[schemars(range(min = 1, max = 65_536), extend("unit" = "units"))]
    pub lstm: usize,
    /// Number of arms that the bandit chooses from; 1 for no bandit.
    #[schemars(range(min = 1, max = 65_536))]
    pub arms: usize,
    /// Weight of the intrinsic values of the last arm (β).
    #[schemars(range(min = 0.0))]
    pub beta_max: f64,
    /// Weight of the intrinsic values (β) of every arm; null for a ladder from 0 to `beta_max`.
    #[schemars(range(min = 0.0))]
    pub beta: Option<f64>,
    /// Discount of the last arm.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub gamma_min: f64,
    /// Learn values on the scale h(x) = sign(x)(√(|x| + 1) − 1) + εx.
    pub rescale: bool,
    /// The bandit's window: the last episodes of an environment that it considers.
    #[schemars(range(min = 1, max = 65_536))]
    pub bandit_episodes: usize,
    /// Probability that the bandit chooses a random arm.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub bandit_epsilon: f64,
    /// Share of sequences that are learned from as if the first arm had been played. Evaluation
    /// plays the first arm, so that it learns from what the others find.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub exploit_share: f64,
    /// Factor on the task's rewards when values are learned. The values of small rewards far away
    /// would be lost in the errors of the networks.
    #[schemars(extend("exclusiveMinimum" = 0.0))]
    pub reward_scale: f64,
    /// Factor on intrinsic rewards; without it a new place brings about 30.
    #[schemars(extend("exclusiveMinimum" = 0.0))]
    pub intrinsic_scale: f64,
    /// Steps of intrinsic reward before the bootstrap; at most `n_steps`, which is for the task's
    /// rewards.
    #[schemars(range(min = 1, max = 65_536))]
    pub intrinsic_n_steps: usize,
    /// Weight of the errors of intrinsic values in priorities, beside those of the task's values,
    /// each relative to its mean.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub intrinsic_priority: f64,
    /// Novelty within an episode.
    pub episodic: EpisodicNovelty,
    /// Size of the embedding.
    #[schemars(range(min = 1, max = 65_536), extend("unit" = "units"))]
    pub embedding: usize,
    /// Outputs of the random network.
    #[schemars(range(min = 1, max = 65_536))]
    pub rnd_features: usize,
    /// Largest factor for novelty over the whole run (L).
    #[schemars(range(min = 1.0))]
    pub rnd_max: f64,
    /// Train the random network's imitation on the last steps of each sequence only; null for all
    /// of its trained steps.
    #[schemars(range(min = 1, max = 65_536))]
    pub rnd_last_steps: Option<usize>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            sequence: SequenceConfig::default(),
            lstm: 512,
            arms: 32,
            beta_max: 0.3,
            beta: None,
            gamma_min: 0.99,
            rescale: true,
            bandit_episodes: 90,
            bandit_epsilon: 0.5,
            exploit_share: 0.5,
            reward_scale: 1.0,
            intrinsic_scale: 1.0,
            intrinsic_n_steps: 5,
            intrinsic_priority: 1.0,
            episodic: EpisodicNovelty::default(),
            embedding: 32,
            rnd_features: 64,
            rnd_max: 5.0,
            rnd_last_steps: None,
        }
    }
}

/// All settings with their defaults.
pub fn defaults() -> (ValueConfig, Config) {
    let (shared, _) = r2d2::defaults();
    let shared = ValueConfig {
        actor_priorities: false,
        ..shared
    };
    (shared, Config::default())
}

impl Config {
    /// Returns on the scale that values are learned on.
    fn scaled(&self, returns: &Tensor) -> Tensor {
        match self.rescale {
            true => rescale(returns),
            false => returns.shallow_clone(),
        }
    }

    /// Learned values on the scale of rewards.
    fn unscaled(&self, values: &Tensor) -> Tensor {
        match self.rescale {
            true => unscale(values),
            false => values.shallow_clone(),
        }
    }
}

/// NGU for the spaces of an environment.
pub fn build(
    shared: ValueConfig,
    config: Config,
    spaces: &Spaces,
) -> Result<Box<dyn Algorithm>, ConfigError> {
    Ok(Box::new(Ngu::new(shared, config, spaces)?))
}

#[derive(Clone)]
struct Ngu {
    shared: ValueConfig,
    config: Config,
    nets: Nets,
    layout: Arc<Layout>,
    frame_stack: Option<usize>,
}

#[derive(Clone)]
struct Nets {
    extrinsic: RecurrentQ,
    intrinsic: RecurrentQ,
    rnd: RandomDistillation,
    inverse: InverseModel,
}

/// The recurrent states of both networks.
struct Memories {
    extrinsic: LstmState,
    intrinsic: LstmState,
}

/// Values of both networks, `[T, B, A]`.
struct Values {
    extrinsic: Tensor,
    intrinsic: Tensor,
}

impl Memories {
    /// Each part by its name in [`MEMORIES`].
    fn from(part: impl Fn(&str) -> Tensor) -> Self {
        let [a, b, c, d] = MEMORIES.map(part);
        Self {
            extrinsic: (a, b),
            intrinsic: (c, d),
        }
    }

    /// The parts in the order of [`MEMORIES`].
    fn parts(&self) -> [&Tensor; 4] {
        let Self {
            extrinsic,
            intrinsic,
        } = self;
        [&extrinsic.0, &extrinsic.1, &intrinsic.0, &intrinsic.1]
    }
}

impl Values {
    /// The same function of both.
    fn map(&self, f: impl Fn(&Tensor) -> Tensor) -> Self {
        Self {
            extrinsic: f(&self.extrinsic),
            intrinsic: f(&self.intrinsic),
        }
    }

    /// What an agent acts by: both on the scale of rewards, the second times β (`[B, 1]`).
    fn mixed(&self, beta: &Tensor, config: &Config) -> Tensor {
        config.unscaled(&self.extrinsic) + config.unscaled(&self.intrinsic) * beta
    }
}

impl Nets {
    fn forward(
        &self,
        params: &Params,
        input: &RecurrentInput,
        from: &Memories,
    ) -> (Values, Memories) {
        let (extrinsic, after_extrinsic) = self.extrinsic.forward(params, input, &from.extrinsic);
        let (intrinsic, after_intrinsic) = self.intrinsic.forward(params, input, &from.intrinsic);
        let values = Values {
            extrinsic,
            intrinsic,
        };
        let memories = Memories {
            extrinsic: after_extrinsic,
            intrinsic: after_intrinsic,
        };
        (values, memories)
    }
}

/// Names of the parts of [`Memories`] in a policy's memory.
const MEMORIES: [&str; 4] = [
    "extrinsic_hidden",
    "extrinsic_cell",
    "intrinsic_hidden",
    "intrinsic_cell",
];

impl Ngu {
    fn new(shared: ValueConfig, config: Config, spaces: &Spaces) -> Result<Self, ConfigError> {
        shared.check()?;
        let room = config.episodic.memory_steps;
        let enough = room >= config.episodic.neighbours;
        let allowed = "at least algo.episodic.neighbours";
        require(enough, "algo.episodic.memory_steps", room, allowed)?;
        let misfit = |what: &str| ConfigError::Misfit(format!("ngu cannot be used {what}"));
        for (set, what) in [
            (shared.munchausen.is_some(), "with algo.munchausen"),
            (
                shared.net.noisy_sigma.is_some(),
                "with algo.net.noisy_sigma",
            ),
            (shared.actor_priorities, "with algo.actor_priorities"),
        ] {
            if set {
                return Err(misfit(what));
            }
        }
        let mut layout = Layout::default();
        let nets = Nets::new(&mut layout, &shared, &config, spaces);
        let nets = nets.map_err(|ShapeMismatch(reason)| misfit(&format!("here: {reason}")))?;
        Ok(Self {
            shared,
            config,
            nets,
            layout: Arc::new(layout),
            frame_stack: spaces.frame_stack,
        })
    }

    /// β of every arm, `[arms]`.
    fn betas(&self, device: Device) -> Tensor {
        let (high, total) = (self.config.beta_max, self.config.arms);
        let ladder = |arm| intrinsic_weight(high, arm, total);
        let betas = (0..total).map(|arm| self.config.beta.unwrap_or_else(|| ladder(arm)) as f32);
        Tensor::from_slice(&betas.collect::<Vec<_>>()).to_device(device)
    }

    /// γ of every arm, `[arms]`.
    fn gammas(&self, device: Device) -> Tensor {
        let (high, low, total) = (
            self.shared.replay.gamma,
            self.config.gamma_min,
            self.config.arms,
        );
        let gammas = (0..total).map(|arm| discount_ladder(high, low.min(high), arm, total) as f32);
        Tensor::from_slice(&gammas.collect::<Vec<_>>()).to_device(device)
    }
}

impl Nets {
    fn new(
        layout: &mut Layout,
        shared: &ValueConfig,
        config: &Config,
        spaces: &Spaces,
    ) -> Result<Self, ShapeMismatch> {
        let both = (&spaces.observation, &spaces.action);
        let (net, size, arms) = (&shared.net, config.lstm, config.arms);
        Ok(Self {
            extrinsic: RecurrentQ::new(layout, net, "extrinsic.", both, size, arms, true)?,
            intrinsic: RecurrentQ::new(layout, net, "intrinsic.", both, size, arms, true)?,
            rnd: RandomDistillation::new(layout, net, both.0, config.rnd_features)?,
            inverse: InverseModel::new(layout, net, both.0, both.1, config.embedding)?,
        })
    }
}

impl Algorithm for Ngu {
    fn experience(&self) -> Experience {
        experience(&self.shared, &self.config.sequence, self.frame_stack)
    }

    fn discount(&self) -> f64 {
        self.shared.replay.gamma
    }

    fn policy(&self, device: Device) -> Box<dyn Policy> {
        Box::new(policy::Curious::new(self.clone(), device))
    }

    fn export(&self, spaces: &Spaces, weights: &Snapshot) -> Result<Exported, NotExported> {
        export::export(self, spaces, weights)
    }

    fn learner(&self, seed: u64, device: Device) -> Box<dyn Learner> {
        let method = loss::Mixed::new(self.clone(), device);
        Box::new(SequenceLearner::new(method, seed, device))
    }
}

/// Arms `[..]` as vectors with one 1, `[.., arms]`.
fn one_hot(arms: &Tensor, count: usize) -> Tensor {
    arms.one_hot(count as i64).to_kind(Kind::Float)
}
