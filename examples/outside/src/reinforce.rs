//! REINFORCE (Williams 1992): an algorithm with its own network.
//!
//! One gradient step per rollout, for observations that are one vector and actions that are
//! choices. A rollout's end is treated as the end of its episodes, so it should be long.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use starling::JsonSchema;
use starling::algos::registry::Built;
use starling::algos::{
    Acting, AlgoSpec, Algorithm, Batch, ConfigError, Experience, LearnError, Learner, Policy,
    Progress, Report, Saved, Spaces,
};
use starling::envs::{Rollout, Space, stream};
use starling::nets::{
    Descent, Device, Init, Kind, Layout, Linear, OptimizerConfig, Params, ShapeMismatch, SharedReducer,
    Snapshot, Tensor, argmax, array_of, no_grad, sample_categorical, tensor_of, tensor_of_view,
};
use starling::tree::{Spec, Tree};

/// The line for the table.
pub fn spec() -> AlgoSpec {
    AlgoSpec::new(
        "reinforce",
        "Policy gradient by the returns of whole rollouts",
        "Williams 1992",
        build,
    )
}

/// Its settings: `algo.hidden=32` on the command line.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(crate = "starling::schemars")]
struct Config {
    /// Steps of each environment per rollout.
    #[schemars(range(min = 1))]
    rollout_steps: usize,
    /// Units of the hidden layer.
    #[schemars(range(min = 1, max = 65_536), extend("unit" = "units"))]
    hidden: usize,
    /// Learning rate.
    #[schemars(range(min = 0.0, max = 10.0))]
    learning_rate: f64,
    /// Discount per step (γ).
    #[schemars(range(min = 0.0, max = 1.0))]
    gamma: f64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            rollout_steps: 256,
            hidden: 64,
            learning_rate: 0.005,
            gamma: 0.99,
        }
    }
}

fn build(config: Config, spaces: &Spaces) -> Built {
    let (Space::Box { shape, .. }, Space::Discrete { n }) = (&spaces.observation, &spaces.action)
    else {
        let text = "reinforce needs observations that are one array, and a choice of actions";
        return Err(ConfigError::Misfit(text.into()));
    };
    let mut layout = Layout::default();
    let net = Net::new(&mut layout, shape.iter().product(), config.hidden, *n);
    Ok(Box::new(Reinforce {
        config,
        net,
        layout: Arc::new(layout),
    }))
}

/// A network is a description; it computes with any set of parameters.
#[derive(Clone)]
struct Net {
    hidden: Linear,
    logits: Linear,
}

impl Net {
    fn new(layout: &mut Layout, inputs: usize, hidden: usize, actions: usize) -> Self {
        let init = |fan_in| Init::FanIn { fan_in };
        Self {
            hidden: Linear::new(layout, "hidden", inputs, hidden, init(inputs)),
            logits: Linear::new(layout, "logits", hidden, actions, init(hidden)),
        }
    }

    /// Logits `[N, A]` of observations `[N, ..]`.
    fn forward(&self, params: &Params, obs: &Tensor) -> Tensor {
        let obs = obs.to_kind(Kind::Float).flatten(1, -1);
        let hidden = self.hidden.forward(params, &obs).tanh();
        self.logits.forward(params, &hidden)
    }
}

struct Reinforce {
    config: Config,
    net: Net,
    layout: Arc<Layout>,
}

impl Algorithm for Reinforce {
    fn experience(&self) -> Experience {
        Experience::Rollouts {
            steps: self.config.rollout_steps,
        }
    }

    fn discount(&self) -> f64 {
        self.config.gamma
    }

    fn policy(&self, device: Device) -> Box<dyn Policy> {
        Box::new(Actor {
            net: self.net.clone(),
            params: Params::zeros(&self.layout, device),
        })
    }

    fn learner(&self, seed: u64, device: Device) -> Box<dyn Learner> {
        let params = Params::init(&self.layout, &mut stream(seed, "learner", 0), device);
        Box::new(Climber {
            config: self.config.clone(),
            net: self.net.clone(),
            descent: Descent::new(params, OptimizerConfig::default(), Some(1.0)),
        })
    }
}

struct Actor {
    net: Net,
    params: Params,
}

impl Policy for Actor {
    fn records(&self) -> Tree<Spec> {
        Tree::empty()
    }

    fn state(&self) -> Tree<Spec> {
        Tree::empty()
    }

    fn load(&mut self, weights: &Snapshot) -> Result<(), ShapeMismatch> {
        self.params.load(weights)
    }

    fn act(&mut self, t: usize, rollout: &mut Rollout, acting: Acting<'_>) {
        let Some(obs) = rollout.obs.leaf() else {
            return;
        };
        let obs = tensor_of_view(obs.at(&[t]), self.params.device());
        let logits = array_of(&no_grad(|| self.net.forward(&self.params, &obs)));
        for (b, rng) in acting.rngs.iter_mut().enumerate() {
            let row = logits.at(&[b]);
            let row = row.as_slice::<f32>();
            let action = match acting.explore {
                true => sample_categorical(row, rng).0,
                false => argmax(row),
            };
            rollout.actions.at_mut(&[t, b]).write(&[action as i64]);
        }
    }
}

struct Climber {
    config: Config,
    net: Net,
    descent: Descent,
}

/// Discounted sums of the rewards that follow each step within its episode, `[T, B]`.
fn returns(rollout: &Rollout, gamma: f32) -> Vec<f32> {
    let envs = rollout.envs();
    let mut sums = rollout.rewards.as_slice::<f32>().to_vec();
    let ends = rollout.terminated.as_slice::<u8>().iter();
    let ends = ends.zip(rollout.truncated.as_slice::<u8>());
    let ends: Vec<bool> = ends.map(|(a, b)| a | b != 0).collect();
    for at in (0..sums.len().saturating_sub(envs)).rev() {
        if !ends[at] {
            sums[at] += gamma * sums[at + envs];
        }
    }
    sums
}

impl Learner for Climber {
    fn update(&mut self, batch: Batch<'_>, _: Progress) -> Result<Report, LearnError> {
        let Batch::Rollouts(rollouts) = batch else {
            return Err(LearnError::WrongBatch { wanted: "rollouts" });
        };
        let whole = Rollout::side_by_side(rollouts).ok_or(LearnError::Mismatch)?;
        let device = self.descent.device();
        let obs = whole.obs.leaf().ok_or(LearnError::Mismatch)?;
        let steps = whole.steps() as i64;
        let obs = tensor_of(obs, device).narrow(0, 0, steps).flatten(0, 1);
        let actions = tensor_of(&whole.actions, device).reshape([-1, 1]);
        let returns = returns(&whole, self.config.gamma as f32);
        let returns = Tensor::from_slice(&returns).to_device(device);
        let centred = &returns - returns.mean(Kind::Float);
        let advantages = centred / returns.std(false).clamp_min(1e-6);

        let net = self.net.clone();
        let inputs = (obs, actions, advantages);
        let mut loss = self.descent.of(inputs, move |(obs, actions, advantages), params| {
            let log_probs = net.forward(params, obs).log_softmax(-1, Kind::Float);
            let taken = log_probs.gather(1, actions, false).squeeze_dim(1);
            let loss = -(taken * advantages).mean(Kind::Float);
            let value = loss.detach();
            (loss, value)
        });
        let value = loss.run().double_value(&[]);
        let optimizer = self.descent.optimizer();
        optimizer.set_learning_rate(self.config.learning_rate);
        let norm = self.descent.step()?.double_value(&[]);
        Report::checked(vec![("loss", value), ("grad_norm", norm)], None)
    }

    fn weights(&self) -> Snapshot {
        self.descent.params().snapshot()
    }

    fn join(&mut self, reducer: SharedReducer) {
        self.descent.join(reducer);
    }

    fn save(&self) -> Saved {
        let params = self.descent.params().named().into_iter();
        let params = params.map(|(name, array)| (format!("params.{name}"), array));
        let state = self.descent.optimizer().state().into_iter();
        let state = state.map(|(name, array)| (format!("optimizer.{name}"), array));
        params.chain(state).collect()
    }

    fn load(&mut self, saved: &Saved) -> Result<(), LearnError> {
        let get = |set: &str, name: &str| saved.get(&format!("{set}.{name}")).cloned();
        self.descent.params().load_named(|name| get("params", name))?;
        let optimizer = self.descent.optimizer();
        Ok(optimizer.load(|name| get("optimizer", name))?)
    }
}
