//! Parallelised Q-learning (PQN; Gallici et al. 2025): Q-learning on the fresh rollouts of many
//! environments, without a replay and without a target network.
//!
//! At the beginning of an update, λ-returns of the rollout are computed with the current network;
//! several epochs of shuffled minibatches follow. Layer normalisation (`net.layer_norm`, on by
//! default) and a small λ keep it stable.
//!
//! Where we differ from the paper: Adam instead of RAdam; a truncated episode is bootstrapped from
//! its final observation; each environment draws its random actions from a separate stream.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use starling_envs::Rollout;
use starling_nets::export::NotExported;
use starling_nets::{
    Device, Kind, OptimizerConfig, Params, QNetConfig, Recorded, Schedule, SharedReducer, Snapshot,
    Staging, Tensor, array_of, no_grad, own_stream, tensor_of, unrecorded,
};
use starling_tree::{Array, DType, Spec, Tree};

use crate::config::{ConfigError, refuse, require};
use crate::dqn::{self, Dqn};
use crate::export::Exported;
use crate::minibatches::{Minibatches, Passes};
use crate::ops::lambda_returns;
use crate::rollout_columns::RolloutColumns;
use crate::trained::Trained;
use crate::value_based::{EpsilonGreedy, Greedy, Method as _, ValueConfig, exported, mask};
use crate::{
    Algorithm, Batch, Experience, LearnError, Learner, Policy, Progress, Report, Saved, Spaces,
};

/// PQN's settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Steps of each environment per rollout.
    #[schemars(range(min = 1))]
    pub rollout_steps: usize,
    /// Passes over each rollout.
    #[schemars(range(min = 1))]
    pub epochs: usize,
    /// Parts that a rollout is split into; each gives one gradient step per epoch.
    #[schemars(range(min = 1))]
    pub minibatches: usize,
    /// Learning rate, possibly a schedule.
    #[schemars(extend("minimum" = 0.0, "maximum" = 10.0))]
    pub learning_rate: Schedule,
    /// Discount per step (γ).
    #[schemars(range(min = 0.0, max = 1.0))]
    pub gamma: f64,
    /// Weight of longer returns in the targets (λ).
    #[schemars(range(min = 0.0, max = 1.0))]
    pub q_lambda: f64,
    /// Factor on every reward.
    #[schemars(extend("exclusiveMinimum" = 0.0))]
    pub reward_scale: f64,
    /// Probability of a random action (ε) at the start.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub epsilon_start: f64,
    /// Probability of a random action after the decay.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub epsilon_end: f64,
    /// Steps over which ε decays.
    pub epsilon_decay_steps: u64,
    /// Probability of a random action in evaluation.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub epsilon_eval: f64,
    /// Maximum norm of the gradient.
    #[schemars(extend("exclusiveMinimum" = 0.0))]
    pub clip_norm: f64,
    /// The optimiser.
    pub optimizer: OptimizerConfig,
    /// The network.
    pub net: QNetConfig,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            rollout_steps: 32,
            epochs: 2,
            minibatches: 32,
            learning_rate: Schedule::linear(5e-4, 0.0, 1.0),
            gamma: 0.99,
            q_lambda: 0.65,
            reward_scale: 1.0,
            epsilon_start: 1.0,
            epsilon_end: 0.05,
            epsilon_decay_steps: 1_000_000,
            epsilon_eval: 0.0,
            clip_norm: 10.0,
            optimizer: OptimizerConfig::default(),
            net: QNetConfig {
                layer_norm: true,
                orthogonal: false,
                ..QNetConfig::default()
            },
        }
    }
}

impl Config {
    fn check(&self) -> Result<(), ConfigError> {
        refuse(self.net.problem())?;
        let noise = self.net.noisy_sigma;
        require(
            noise.is_none(),
            "algo.net.noisy_sigma",
            noise.unwrap_or(0.0),
            "null: PQN explores by random actions",
        )
    }
}

/// PQN for the spaces of an environment.
pub fn build(config: Config, spaces: &Spaces) -> Result<Box<dyn Algorithm>, ConfigError> {
    Ok(Box::new(Pqn::new(config, spaces)?))
}

struct Pqn {
    config: Config,
    /// How it acts: as DQN does.
    acting: ValueConfig,
    values: Arc<Dqn>,
    frame_stack: Option<usize>,
}

impl Pqn {
    fn new(config: Config, spaces: &Spaces) -> Result<Self, ConfigError> {
        config.check()?;
        let acting = ValueConfig {
            exploration: EpsilonGreedy {
                epsilon_start: config.epsilon_start,
                epsilon_end: config.epsilon_end,
                epsilon_decay_steps: config.epsilon_decay_steps,
                epsilon_eval: config.epsilon_eval,
                ..EpsilonGreedy::default()
            },
            net: config.net.clone(),
            ..ValueConfig::default()
        };
        let values = Dqn::new("pqn", &acting, dqn::Config::default(), spaces)?;
        Ok(Self {
            config,
            acting,
            values: Arc::new(values),
            frame_stack: spaces.frame_stack,
        })
    }

    fn learner(&self, seed: u64, device: Device) -> PqnLearner {
        let (optimizer, clip_norm) = (self.config.optimizer, Some(self.config.clip_norm));
        let layout = self.values.net().1;
        PqnLearner {
            config: self.config.clone(),
            values: Arc::clone(&self.values),
            trained: Trained::new(layout, optimizer, clip_norm, seed, device),
            place: None,
            sums: Tensor::zeros([2], (Kind::Float, device)),
            norms: Tensor::zeros([], (Kind::Float, device)),
        }
    }
}

impl Algorithm for Pqn {
    fn experience(&self) -> Experience {
        Experience::Rollouts {
            steps: self.config.rollout_steps,
        }
    }

    fn discount(&self) -> f64 {
        self.config.gamma
    }

    fn policy(&self, device: Device) -> Box<dyn Policy> {
        let (acting, values) = (self.acting.clone(), Arc::clone(&self.values));
        Box::new(Greedy::new(acting, self.frame_stack, values, device))
    }

    fn export(&self, spaces: &Spaces, weights: &Snapshot) -> Result<Exported, NotExported> {
        exported(&self.values, spaces, weights)
    }

    fn learner(&self, seed: u64, device: Device) -> Box<dyn Learner> {
        Box::new(self.learner(seed, device))
    }
}

/// PQN's loss over one minibatch: half the mean squared error of the chosen actions' values.
pub fn loss(chosen: &Tensor, targets: &Tensor) -> Tensor {
    (chosen - targets).square().mean(Kind::Float) * 0.5
}

struct PqnLearner {
    config: Config,
    values: Arc<Dqn>,
    trained: Trained,
    place: Option<Place>,
    /// Sums of loss and value over gradient steps.
    sums: Tensor,
    norms: Tensor,
}

/// The memory of a batch, and the gradient steps over it.
struct Place {
    columns: RolloutColumns,
    /// λ-returns, `T·B` rows.
    targets: Staging,
    steps: Minibatches,
}

impl Place {
    fn new(rollouts: &[&Rollout], device: Device) -> Self {
        let envs = rollouts.iter().map(|rollout| rollout.envs()).sum();
        let columns = RolloutColumns::new(rollouts[0], envs, device);
        let rows = columns.steps * columns.envs;
        Self {
            columns,
            targets: Staging::new(rows, &Spec::scalar(DType::F32), device),
            steps: Minibatches::default(),
        }
    }
}

/// Values `[N, A]` of observations `[N, ..]` with legal actions `[N, A]`.
fn values_of(values: &Dqn, params: &Params, obs: &Tree<Tensor>, legal: Option<&Tensor>) -> Tensor {
    values.values(&values.outputs(params, obs, None, None, legal))
}

impl PqnLearner {
    /// λ-returns `[T·B]` under the present network.
    fn targets(&self, rollouts: &[&Rollout], columns: &RolloutColumns) -> Vec<f32> {
        let (params, device) = (self.trained.params(), self.trained.descent.device());
        let best = |obs: &Tree<Tensor>, legal: Option<&Tensor>| {
            let values = no_grad(|| values_of(&self.values, params, obs, legal));
            array_of(&mask(values, legal).amax([-1].as_slice(), false))
        };
        let obs = columns.obs.map(|column| column.tensor().shallow_clone());
        let all = best(&obs, columns.legal.as_ref().map(Staging::tensor));
        // What follows each step within its episode.
        let envs = columns.envs;
        let mut next = all.as_slice::<f32>()[envs..].to_vec();
        let mut ends = vec![false; next.len()];
        let mut rewards = vec![0.0; next.len()];
        let scale = self.config.reward_scale as f32;
        let mut first = 0;
        for rollout in rollouts {
            let count = rollout.final_at.len() as i64;
            if count > 0 {
                let finals = &rollout.final_obs;
                let finals = finals.map(|array| tensor_of(array, device).narrow(0, 0, count));
                let legal = (!rollout.final_legal.is_empty()).then(|| {
                    let legal = Tensor::from_slice(&rollout.final_legal).to_device(device);
                    legal.reshape([count, -1])
                });
                let finals = best(&finals, legal.as_ref());
                for (&(t, b), &value) in rollout.final_at.iter().zip(finals.as_slice::<f32>()) {
                    next[t * envs + first + b] = value;
                }
            }
            let own = rollout.envs();
            let rows = rollout.rewards.as_slice::<f32>().iter();
            let flags = rollout.terminated.as_slice::<u8>().iter();
            let flags = flags.zip(rollout.truncated.as_slice::<u8>());
            for (i, (reward, (&terminated, &truncated))) in rows.zip(flags).enumerate() {
                let at = i / own * envs + first + i % own;
                rewards[at] = reward * scale;
                ends[at] = terminated | truncated != 0;
                if terminated != 0 {
                    next[at] = 0.0;
                }
            }
            first += own;
        }
        let (gamma, lambda) = (self.config.gamma as f32, self.config.q_lambda as f32);
        lambda_returns(&rewards, &next, &ends, envs, gamma, lambda)
    }

    /// The first half of a gradient step over the chosen rows of a batch.
    fn record(
        &self,
        place: &Place,
    ) -> impl Fn(&Trained, Tensor, bool) -> Recorded<Tensor, ()> + use<> {
        let same = |column: &Staging| column.tensor().shallow_clone();
        let columns = &place.columns;
        let rows = (columns.steps * columns.envs) as i64;
        let obs = columns.obs.map(|column| column.tensor().narrow(0, 0, rows));
        let legal = columns.legal.as_ref().map(same);
        let (actions, targets) = (same(&columns.actions), same(&place.targets));
        let (values, sums) = (Arc::clone(&self.values), self.sums.shallow_clone());
        move |trained, chosen, _whole| {
            let same = Tensor::shallow_clone;
            let (obs, legal) = (obs.map(same), legal.as_ref().map(same));
            let (actions, targets) = (same(&actions), same(&targets));
            let (values, sums) = (Arc::clone(&values), same(&sums));
            trained.descent.of(chosen, move |chosen, params| {
                let pick = |tensor: &Tensor| tensor.index_select(0, chosen);
                let wants_legal = values.net().0.head().legal;
                let legal = legal.as_ref().filter(|_| wants_legal).map(pick);
                let all = values_of(&values, params, &obs.map(pick), legal.as_ref());
                let actions = pick(&actions).reshape([-1, 1]);
                let taken = all.gather(1, &actions, false).squeeze_dim(1);
                let loss = loss(&taken, &pick(&targets));
                let mut sums = sums.shallow_clone();
                sums += Tensor::stack(&[&loss, &taken.mean(Kind::Float)], 0).detach();
                (loss, ())
            })
        }
    }
}

impl Learner for PqnLearner {
    fn update(&mut self, batch: Batch<'_>, progress: Progress) -> Result<Report, LearnError> {
        let Batch::Rollouts(rollouts) = batch else {
            return Err(LearnError::WrongBatch { wanted: "rollouts" });
        };
        let device = self.trained.descent.device();
        own_stream(device);
        let place = self.place.take();
        let place = place.filter(|place| place.columns.fits(rollouts));
        let mut place = place.unwrap_or_else(|| Place::new(rollouts, device));
        place.columns.load(rollouts);
        let targets = unrecorded(device, || self.targets(rollouts, &place.columns));
        let rows = targets.len();
        place.targets.load(&Array::from_slice(&targets, &[rows]));

        let learning_rate = self.config.learning_rate.at(progress.fraction());
        let descent = &self.trained.descent;
        descent.optimizer().set_learning_rate(learning_rate);
        let _ = (self.sums.zero_(), self.norms.zero_());
        let passes = Passes::minibatches(self.config.epochs, self.config.minibatches, rows);
        let record = self.record(&place);
        let (trained, norms) = (&mut self.trained, &mut self.norms);
        let steps = place.steps.learn(passes, trained, norms, record)?;
        self.place = Some(place);
        let sums = Tensor::cat(&[&self.sums, &self.norms.reshape([1])], 0);
        let means = array_of(&(sums / steps));
        let means = means.as_slice::<f32>().iter().map(|&mean| f64::from(mean));
        let names = ["loss", "q_value", "grad_norm"];
        let mut metrics: Vec<_> = names.into_iter().zip(means).collect();
        metrics.push(("learning_rate", learning_rate));
        Report::checked(metrics, None)
    }

    fn weights(&self) -> Snapshot {
        self.trained.params().snapshot()
    }

    fn join(&mut self, reducer: SharedReducer) {
        self.trained.descent.join(reducer);
    }

    fn save(&self) -> Saved {
        self.trained.save()
    }

    fn load(&mut self, saved: &Saved) -> Result<(), LearnError> {
        self.trained.load(saved)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use starling_envs::Space;

    /// Observations 1, 2, 3, 4 of one environment, rewards of 1, Q(s, ·) = (s, 2s): the best values
    /// are 2, 4, 6, 8. γ = λ = ½. Without an end, backwards: 1 + ½·8 = 5, then
    /// 1 + ½(½·6 + ½·5) = 3.75 and 1 + ½(½·4 + ½·3.75) = 2.9375.
    #[test]
    fn targets_by_hand() {
        let (obs, action) = (Space::unbounded(&[1]), Space::Discrete { n: 2 });
        let spaces = Spaces {
            observation: obs.clone(),
            action: action.clone(),
            legal_actions: None,
            frame_stack: None,
        };
        let config = Config {
            gamma: 0.5,
            q_lambda: 0.5,
            net: QNetConfig {
                hidden: Some(vec![]),
                ..QNetConfig::default()
            },
            ..Config::default()
        };
        let pqn = Pqn::new(config, &spaces).unwrap();
        let learner = pqn.learner(1, Device::Cpu);
        let params = learner.trained.params();
        params.load_slice(&[1.0, 2.0, 0.0, 0.0]).unwrap();
        let none = Tree::empty();
        let mut rollout = Rollout::new(3, 1, &obs, &action, None, &none, &none);
        rollout.obs = Tree::Leaf(Array::from_slice(&[1f32, 2.0, 3.0, 4.0], &[4, 1, 1]));
        rollout.rewards = Array::from_slice(&[1f32; 3], &[3, 1]);
        let targets = |rollout: &Rollout| {
            let place = Place::new(&[rollout], Device::Cpu);
            place.columns.load(&[rollout]);
            learner.targets(&[rollout], &place.columns)
        };
        assert_eq!(targets(&rollout), [2.9375, 3.75, 5.0]);

        // Truncated with the second step, at the observation 10, worth 20: 1 + ½·20 = 11, and
        // 1 + ½(½·4 + ½·11) = 4.75 before it.
        rollout.truncated.as_mut_slice::<u8>()[1] = 1;
        rollout.final_at = vec![(1, 0)];
        rollout.final_obs = Tree::Leaf(Array::from_slice(&[10f32], &[1, 1]));
        assert_eq!(targets(&rollout), [4.75, 11.0, 5.0]);

        // Terminated there: 1, and 1 + ½(½·4 + ½·1) = 2.25.
        rollout.terminated.as_mut_slice::<u8>()[1] = 1;
        assert_eq!(targets(&rollout), [2.25, 1.0, 5.0]);

        // The better action is illegal at the observation 10, which is worth 10 then.
        rollout.terminated.as_mut_slice::<u8>()[1] = 0;
        rollout.final_legal = vec![1, 0];
        assert_eq!(targets(&rollout), [3.5, 6.0, 5.0]);
    }

    #[test]
    fn loss_by_hand() {
        let (chosen, targets) = (
            Tensor::from_slice(&[1f32, 3.0]),
            Tensor::from_slice(&[2f32, 6.0]),
        );
        assert_eq!(loss(&chosen, &targets).double_value(&[]), 2.5);
    }
}
