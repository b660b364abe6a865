//! Networks with a policy and a value.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use starling_envs::Space;
use starling_tree::{DType, Spec, Tree, View};
use tch::Tensor;

use crate::export::{Element, Graph, NotExported, Value as Exported};
use crate::torso::layer_init;
use crate::{
    Activation, Distribution, Layout, Linear, Lstm, Moments, Padding, Params, PolicyHead,
    RunningNorm, ShapeMismatch, Torso, TorsoName,
};

/// What a network looks like.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct NetConfig {
    /// The network that processes observations: a built-in one, or one that your program adds.
    pub torso: TorsoName,
    /// Settings of a torso that your program adds; null for its defaults.
    pub torso_options: Option<Map<String, Value>>,
    /// Your own network to process observations, instead of the torso: a TorchScript file written
    /// by `examples/torchscript/export.py`.
    pub torchscript: Option<String>,
    /// Factor on the number of filters of each convolution.
    #[schemars(range(min = 1, max = 64))]
    pub width: usize,
    /// Zeros around the image before each convolution: a list with one number per convolution, or
    /// `same` for TensorFlow's `SAME` padding; null uses the torso's default.
    pub padding: Option<Padding>,
    /// Sizes of the fully connected layers; null uses the torso's default.
    #[schemars(inner(range(min = 1, max = 65_536)), extend("unit" = "units"))]
    pub hidden: Option<Vec<usize>>,
    /// What follows each fully connected layer.
    pub activation: Activation,
    /// Layer normalisation after each fully connected layer and each convolution outside
    /// residual blocks.
    pub layer_norm: bool,
    /// Size of an LSTM between the torso and the heads; 0 for none.
    #[schemars(range(max = 65_536), extend("unit" = "units"))]
    pub lstm: usize,
    /// Constant added to the input of the LSTM's forget gate: 1 in TensorFlow's LSTM, 0 in
    /// PyTorch's.
    #[schemars(extend("unbounded" = true))]
    pub lstm_forget_bias: f64,
    /// Feed the last action and the last reward, clipped to ±1, to the layers after the torso.
    pub last_action_reward: bool,
    /// Orthogonal initial weights; false uses PyTorch's default.
    pub orthogonal: bool,
    /// Give the value function its own torso, and its own LSTM if there is one.
    pub separate_critic: bool,
    /// Scale observations to mean 0 and standard deviation 1 by running statistics, which are
    /// stored with the weights.
    pub normalize_observations: bool,
    /// Logarithm of the initial standard deviation of continuous actions. Sampled actions are
    /// clipped to their bounds: with 1 and bounds of ±1 most of them are at a bound.
    #[schemars(range(min = -10.0, max = 10.0))]
    pub initial_log_std: f64,
    /// Compute everything before the heads in bfloat16: about half the time where the hardware
    /// has it. Weights, heads and losses stay float32.
    pub bf16: bool,
    /// Store images with channels last, which is faster on GPUs.
    pub channels_last: bool,
}

impl Default for NetConfig {
    fn default() -> Self {
        Self {
            torso: TorsoName::default(),
            torso_options: None,
            torchscript: None,
            width: 1,
            padding: None,
            hidden: None,
            activation: Activation::Relu,
            layer_norm: false,
            lstm: 0,
            lstm_forget_bias: 0.0,
            last_action_reward: false,
            orthogonal: true,
            separate_critic: false,
            normalize_observations: false,
            initial_log_std: 0.0,
            bf16: false,
            channels_last: false,
        }
    }
}

impl NetConfig {
    /// The first setting that contradicts another: its name, its value, what is allowed.
    pub fn problem(&self) -> Option<(&'static str, String, &'static str)> {
        let path = self.torchscript.as_ref()?;
        let untouched = self.torso == NetConfig::default().torso
            && self.torso_options.is_none()
            && self.width == 1
            && self.padding.is_none()
            && self.hidden.is_none()
            && !self.layer_norm
            && !self.normalize_observations;
        let allowed = "null with torso, torso_options, width, padding, hidden, layer_norm or \
                       normalize_observations: those describe the built-in networks";
        (!untouched).then(|| ("net.torchscript", path.clone(), allowed))
    }
}

/// A policy and the value of being in a state.
#[derive(Clone, Debug)]
pub struct ActorCritic {
    trunk: Trunk,
    critic: Option<Trunk>,
    policy: PolicyHead,
    value: Linear,
    /// How the last action and reward are shown, if they are: then observations are
    /// [`with_last`](ActorCritic::with_last).
    pub last: Option<LastInput>,
}

/// What an [`ActorCritic`] says about observations `[T, B]`, rows in time-major order.
#[derive(Debug)]
pub struct ActorCriticOutput {
    /// Distribution over actions, one row for each of the T·B observations.
    pub policy: Distribution,
    /// Values `[T·B]`.
    pub value: Tensor,
    /// Recurrent states after each step, `[T·B, ..]`, in the structure of
    /// [`ActorCritic::state_spec`].
    pub states: Tree<Tensor>,
}

impl ActorCritic {
    /// A network for the spaces of an environment; adds its parameters to `layout`.
    pub fn new(
        layout: &mut Layout,
        config: &NetConfig,
        observations: &Space,
        actions: &Space,
    ) -> Result<Self, ShapeMismatch> {
        let last = match config.last_action_reward {
            true => Some(LastInput::new(actions)?),
            false => None,
        };
        let extra = last.as_ref().map_or(0, |last| last.size);
        let names = ["torso", "core", "hidden", "cell"];
        let trunk = Trunk::new(layout, config, observations, extra, names)?;
        let names = ["critic", "critic_core", "critic_hidden", "critic_cell"];
        let critic = match config.separate_critic {
            true => Some(Trunk::new(layout, config, observations, extra, names)?),
            false => None,
        };
        let features = trunk.features();
        let init = layer_init(config.orthogonal, features, 0.01);
        let policy = PolicyHead::new(
            layout,
            "policy",
            features,
            actions,
            init,
            config.initial_log_std,
        )?;
        let init = layer_init(config.orthogonal, features, 1.0);
        let value = Linear::new(layout, "value", features, 1, init);
        Ok(Self {
            trunk,
            critic,
            policy,
            value,
            last,
        })
    }

    /// The recurrent state of one environment; empty without an LSTM.
    pub fn state_spec(&self) -> Tree<Spec> {
        let trunks = [Some(&self.trunk), self.critic.as_ref()];
        let cores = trunks.into_iter().flatten();
        let cores = cores.filter_map(|trunk| Some((trunk.state_names, trunk.core.as_ref()?)));
        let parts = cores.flat_map(|(names, core)| {
            names.map(|name| (name, Tree::Leaf(Spec::new(DType::F32, &[core.size]))))
        });
        Tree::node(parts)
    }

    /// Observations `[N, ..]` together with the encoded last actions and rewards that
    /// [`LastInput::encode`] gives.
    pub fn with_last(observation: Tree<Tensor>, last: Tensor) -> Tree<Tensor> {
        Tree::node([("observation", observation), ("last", Tree::Leaf(last))])
    }

    /// Policy and value for observations `[T·B, ..]` of `steps` = T steps.
    ///
    /// `legal` `[T·B, A]` masks actions; `starts` `[T, B]` holds 1 where an episode begins and
    /// `state` is the recurrent state before the first step (both only looked at with an LSTM).
    pub fn forward(
        &self,
        params: &Params,
        obs: &Tree<Tensor>,
        legal: Option<&Tensor>,
        steps: usize,
        starts: &Tensor,
        state: &Tree<Tensor>,
    ) -> ActorCriticOutput {
        let (obs, last) = self.parts(obs);
        let mut states = Vec::new();
        let mut run =
            |trunk: &Trunk| trunk.forward(params, obs, last, steps, starts, state, &mut states);
        let features = run(&self.trunk);
        let value = match &self.critic {
            Some(critic) => self.value.forward(params, &run(critic)),
            None => self.value.forward(params, &features),
        };
        ActorCriticOutput {
            policy: self.policy.forward(params, &features, legal),
            value: value.squeeze_dim(-1),
            states: Tree::node(states),
        }
    }

    /// One step in a graph: outputs by name, of which `action` is the most probable one. Recurrent states
    /// become inputs, and outputs with `_next` after their names. If the network sees the last action and
    /// reward, they are inputs too: `last_action`, for choices −1 and otherwise 0 where an episode begins,
    /// and `last_reward`, 0 there.
    pub fn export(
        &self,
        graph: &mut Graph,
        params: &Params,
        obs: &Tree<Exported>,
        legal: Option<&Exported>,
        actions: &Space,
    ) -> Result<(), NotExported> {
        let last = self.last.as_ref().map(|last| last.export(graph, actions));
        let mut states = Vec::new();
        let mut run = |graph: &mut Graph, trunk: &Trunk| {
            trunk.export(graph, params, obs, last.as_ref(), &mut states)
        };
        let features = run(graph, &self.trunk)?;
        let (name, numbers, action) = self.policy.export(graph, params, &features, legal, actions);
        let value = match &self.critic {
            Some(critic) => {
                let features = run(graph, critic)?;
                self.value.export(graph, params, &features)
            }
            None => self.value.export(graph, params, &features),
        };
        let value = graph.squeeze(&value, 1);
        graph.output("action", &action);
        graph.output(name, &numbers);
        graph.output("value", &value);
        for (name, state) in states {
            graph.output(&format!("{name}_next"), &state);
        }
        Ok(())
    }

    /// What observations `[N, ..]` bring to its running statistics, if it keeps any.
    pub fn seen(&self, obs: &Tree<Tensor>) -> Vec<(RunningNorm, Moments)> {
        let (obs, _) = self.parts(obs);
        let mut seen = self.trunk.torso.seen(obs);
        if let Some(critic) = &self.critic {
            seen.extend(critic.torso.seen(obs));
        }
        seen
    }

    fn parts<'a>(&self, obs: &'a Tree<Tensor>) -> (&'a Tree<Tensor>, Option<&'a Tensor>) {
        if self.last.is_none() {
            return (obs, None);
        }
        match (obs.get("observation"), obs.get("last")) {
            (Some(obs), Some(Tree::Leaf(last))) => (obs, Some(last)),
            _ => panic!("the observations come without last actions and rewards"),
        }
    }
}

/// The last action and reward as numbers: choices as vectors with one 1, everything zero at the
/// beginning of an episode.
#[derive(Clone, Debug)]
pub struct LastInput {
    choices: Option<Vec<usize>>,
    /// Size of the encoding.
    pub size: usize,
}

impl LastInput {
    fn new(actions: &Space) -> Result<Self, ShapeMismatch> {
        let choices = match actions {
            Space::Discrete { n } => vec![*n],
            Space::MultiDiscrete { choices } => choices.clone(),
            Space::Box { shape, .. } => {
                return Ok(Self {
                    choices: None,
                    size: shape.iter().product::<usize>() + 1,
                });
            }
            Space::Dict(_) => {
                return Err(ShapeMismatch(
                    "net.last_action_reward cannot be used with named parts of actions".into(),
                ));
            }
        };
        Ok(Self {
            size: choices.iter().sum::<usize>() + 1,
            choices: Some(choices),
        })
    }

    /// The last action and reward as inputs of a graph, encoded, `[N, size]`.
    fn export(&self, graph: &mut Graph, actions: &Space) -> Exported {
        let mut parts = Vec::new();
        match &self.choices {
            None => {
                let shape: &[usize] = match actions {
                    Space::Box { shape, .. } => shape,
                    _ => &[],
                };
                let action = graph.input("last_action", Element::F32, shape);
                parts.push(graph.reshape(&action, &[-1, self.size as i64 - 1]));
            }
            Some(choices) if matches!(actions, Space::Discrete { .. }) => {
                let action = graph.input("last_action", Element::I64, &[]);
                parts.push(graph.one_hot(&action, choices[0]));
            }
            Some(choices) => {
                let action = graph.input("last_action", Element::I64, &[choices.len()]);
                for (i, &n) in choices.iter().enumerate() {
                    let part = graph.slice(&action, 1, i as i64, i as i64 + 1);
                    let part = graph.squeeze(&part, 1);
                    parts.push(graph.one_hot(&part, n));
                }
            }
        }
        let reward = graph.input("last_reward", Element::F32, &[]);
        let (low, high) = (graph.scalar(-1.0), graph.scalar(1.0));
        let reward = graph.clamp(&reward, &low, &high);
        parts.push(graph.unsqueeze(&reward, 1));
        graph.concat(&parts, 1)
    }

    /// Encodes one action and the reward that followed.
    pub fn encode(&self, action: View<'_>, reward: f32, encoded: &mut [f32]) {
        encoded.fill(0.0);
        let mut place = 0;
        match &self.choices {
            None => {
                let values = action.as_slice::<f32>();
                encoded[..values.len()].copy_from_slice(values);
            }
            Some(choices) => {
                for (&chosen, n) in action.as_slice::<i64>().iter().zip(choices) {
                    encoded[place + chosen as usize] = 1.0;
                    place += n;
                }
            }
        }
        encoded[self.size - 1] = reward.clamp(-1.0, 1.0);
    }
}

/// A torso and the memory after it.
#[derive(Clone, Debug)]
struct Trunk {
    torso: Torso,
    core: Option<Lstm>,
    /// Features of the torso and what is shown beside them.
    inputs: usize,
    state_names: [&'static str; 2],
}

impl Trunk {
    fn new(
        layout: &mut Layout,
        config: &NetConfig,
        observations: &Space,
        extra: usize,
        [torso, core, hidden, cell]: [&'static str; 4],
    ) -> Result<Self, ShapeMismatch> {
        let torso = Torso::new(layout, torso, observations, config)?;
        let inputs = torso.features + extra;
        let core = (config.lstm > 0).then(|| {
            let init = layer_init(config.orthogonal, inputs, 1.0);
            let core = Lstm::new(layout, core, inputs, config.lstm, init);
            core.with_forget_bias(config.lstm_forget_bias)
        });
        Ok(Self {
            torso,
            core,
            inputs,
            state_names: [hidden, cell],
        })
    }

    fn features(&self) -> usize {
        self.core.as_ref().map_or(self.inputs, |core| core.size)
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "private, and each is a different input"
    )]
    fn forward(
        &self,
        params: &Params,
        obs: &Tree<Tensor>,
        last: Option<&Tensor>,
        steps: usize,
        starts: &Tensor,
        state: &Tree<Tensor>,
        states: &mut Vec<(&'static str, Tree<Tensor>)>,
    ) -> Tensor {
        let mut features = self.torso.forward(params, obs);
        if let Some(last) = last {
            features = Tensor::cat(&[&features, last], -1);
        }
        let Some(core) = &self.core else {
            return features;
        };
        let part = |name| match state.get(name) {
            Some(Tree::Leaf(tensor)) => tensor,
            _ => panic!("the recurrent state has no part called '{name}'"),
        };
        let sequence = features.reshape([steps as i64, -1, features.size()[1]]);
        let [hidden_name, cell_name] = self.state_names;
        let state = (part(hidden_name), part(cell_name));
        let (hidden, cell) = core.forward(params, &sequence, starts, state);
        let features = hidden.flatten(0, 1);
        states.push((hidden_name, Tree::Leaf(features.shallow_clone())));
        states.push((cell_name, Tree::Leaf(cell.flatten(0, 1))));
        features
    }
}

impl Trunk {
    fn export(
        &self,
        graph: &mut Graph,
        params: &Params,
        obs: &Tree<Exported>,
        last: Option<&Exported>,
        states: &mut Vec<(&'static str, Exported)>,
    ) -> Result<Exported, NotExported> {
        let mut features = self.torso.export(graph, params, obs)?;
        if let Some(last) = last {
            features = graph.concat(&[features, last.clone()], 1);
        }
        let Some(core) = &self.core else {
            return Ok(features);
        };
        let [hidden_name, cell_name] = self.state_names;
        let hidden = graph.input(hidden_name, Element::F32, &[core.size]);
        let cell = graph.input(cell_name, Element::F32, &[core.size]);
        let (hidden, cell) = core.export(graph, params, &features, (&hidden, &cell));
        states.push((hidden_name, hidden.clone()));
        states.push((cell_name, cell));
        Ok(hidden)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use starling_envs::stream;
    use std::sync::Arc;
    use tch::{Device, Kind};

    #[test]
    fn a_recurrent_network_gives_the_same_step_by_step_and_at_once() {
        for separate_critic in [false, true] {
            same_step_by_step_and_at_once(&NetConfig {
                lstm: 8,
                separate_critic,
                ..NetConfig::default()
            });
        }
    }

    fn same_step_by_step_and_at_once(config: &NetConfig) {
        let mut layout = Layout::default();
        let actions = Space::Discrete { n: 2 };
        let net = ActorCritic::new(&mut layout, config, &Space::unbounded(&[3]), &actions);
        let net = net.unwrap();
        let params = Params::init(&Arc::new(layout), &mut stream(1, "init", 0), Device::Cpu);
        let cpu = (Kind::Float, Device::Cpu);
        let obs = Tensor::arange(4 * 2 * 3, cpu).reshape([4, 2, 3]) / 10.0;
        let starts = Tensor::from_slice(&[1f32, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0]).reshape([4, 2]);
        let zeros = net
            .state_spec()
            .map(|spec| Tensor::zeros([2, spec.shape[0] as i64], cpu));
        let whole = Tree::Leaf(obs.reshape([8, 3]));
        let at_once = net.forward(&params, &whole, None, 4, &starts, &zeros);
        let mut state = zeros;
        for t in 0..4 {
            let row = Tree::Leaf(obs.select(0, t));
            let starts = starts.narrow(0, t, 1);
            let step = net.forward(&params, &row, None, 1, &starts, &state);
            let same = at_once.value.narrow(0, 2 * t, 2) - step.value;
            assert!(same.abs().max().double_value(&[]) < 1e-6);
            state = step.states;
        }
    }

    #[test]
    fn continuous_actions_start_with_the_given_deviation() {
        let log_std = |config: &NetConfig| {
            let mut layout = Layout::default();
            let actions = Space::floats(&[2], -1.0, 1.0);
            let net = ActorCritic::new(&mut layout, config, &Space::unbounded(&[3]), &actions);
            let net = net.unwrap();
            let params = Params::init(&Arc::new(layout), &mut stream(1, "init", 0), Device::Cpu);
            let zeros = |shape: &[i64]| Tensor::zeros(shape, (Kind::Float, Device::Cpu));
            let obs = Tree::Leaf(zeros(&[1, 3]));
            let output = net.forward(&params, &obs, None, 1, &zeros(&[1, 1]), &Tree::empty());
            match output.policy {
                Distribution::Gaussian { log_std, .. } => Vec::<f32>::try_from(log_std).unwrap(),
                Distribution::Categorical { .. } => panic!("these actions are continuous"),
            }
        };
        assert_eq!(log_std(&NetConfig::default()), [0.0, 0.0]);
        let wide = NetConfig {
            initial_log_std: 1.5,
            ..NetConfig::default()
        };
        assert_eq!(log_std(&wide), [1.5, 1.5]);
    }

    /// Action 1 of 3 with reward 7, clipped to 1, beside the observation.
    #[test]
    fn last_actions_and_rewards_reach_the_heads() {
        let config = NetConfig {
            hidden: Some(vec![]),
            last_action_reward: true,
            ..NetConfig::default()
        };
        let mut layout = Layout::default();
        let actions = Space::Discrete { n: 3 };
        let net = ActorCritic::new(&mut layout, &config, &Space::unbounded(&[2]), &actions);
        let net = net.unwrap();
        let params = Params::init(&Arc::new(layout), &mut stream(1, "init", 0), Device::Cpu);
        let action = starling_tree::Array::from_slice(&[1i64], &[]);
        let mut encoded = [5f32; 4];
        let last = net.last.as_ref().unwrap();
        last.encode(action.at(&[]), 7.0, &mut encoded);
        assert_eq!(encoded, [0.0, 1.0, 0.0, 1.0]);
        let last = Tensor::from_slice(&encoded).reshape([1, 4]);
        let starts = Tensor::zeros([1, 1], (Kind::Float, Device::Cpu));
        let value = |last: Tensor| {
            let obs = Tensor::zeros([1, 2], (Kind::Float, Device::Cpu));
            let obs = ActorCritic::with_last(Tree::Leaf(obs), last);
            let output = net.forward(&params, &obs, None, 1, &starts, &Tree::empty());
            output.value.double_value(&[0])
        };
        assert_eq!(value(last.zeros_like()), 0.0, "orthogonal biases are 0");
        assert!(value(last).abs() > 1e-3);
    }
}
