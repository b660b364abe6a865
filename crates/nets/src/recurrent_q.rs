//! Recurrent action-value networks: torso, previous action and reward, LSTM, head.

use starling_envs::Space;
use starling_tree::{DType, Spec, Tree};
use tch::{Kind, Tensor};

use crate::export::{Element, Graph, NotExported, Value as Exported};
use crate::torso::layer_init;
use crate::{Layout, Lstm, Params, QHead, QNetConfig, ShapeMismatch, Torso, number_of_actions};

/// A network of action values that remembers (Kapturowski et al. 2019, "R2D2").
///
/// The LSTM sees the features of the observation and, unless it is made without, the previous
/// action (one 1 among zeros, all zeros where an episode begins) and the previous reward.
#[derive(Clone, Debug)]
pub struct RecurrentQ {
    torso: Torso,
    core: Lstm,
    head: QHead,
    /// Whether the LSTM sees the previous action and reward.
    last: bool,
}

/// What a [`RecurrentQ`] sees of T steps of B environments.
#[derive(Debug)]
pub struct RecurrentInput {
    /// Observations, `[T·B, ..]` in time-major order.
    pub obs: Tree<Tensor>,
    /// Previous actions as vectors with one 1, `[T, B, A]`; zeros where an episode begins.
    pub actions: Tensor,
    /// Previous rewards, `[T, B]`; zero where an episode begins.
    pub rewards: Tensor,
    /// Other inputs, `[T, B, E]`; none if E is 0.
    pub extra: Option<Tensor>,
    /// 1 where an episode begins, `[T, B]`: the state is zero before it.
    pub starts: Tensor,
    /// Legal actions, `[T, B, A]`, for a head that [wants them](RecurrentQ::wants_legal).
    pub legal: Option<Tensor>,
}

impl RecurrentInput {
    /// The steps from `first` on, `count` of them.
    pub fn narrow(&self, first: i64, count: i64) -> Self {
        let envs = self.starts.size()[1];
        let part = |tensor: &Tensor| tensor.narrow(0, first, count);
        Self {
            obs: self
                .obs
                .map(|tensor| tensor.narrow(0, first * envs, count * envs)),
            actions: part(&self.actions),
            rewards: part(&self.rewards),
            extra: self.extra.as_ref().map(part),
            starts: part(&self.starts),
            legal: self.legal.as_ref().map(part),
        }
    }
}

/// Hidden and cell state, `[B, size]` each.
pub type LstmState = (Tensor, Tensor);

impl RecurrentQ {
    /// A network for the spaces of an environment with discrete actions, with an LSTM of `size`
    /// that is told `extra` more numbers and, with `last`, the previous action and reward;
    /// `prefix` stands before the names of its parameters.
    pub fn new(
        layout: &mut Layout,
        config: &QNetConfig,
        prefix: &str,
        (observations, actions): (&Space, &Space),
        size: usize,
        extra: usize,
        last: bool,
    ) -> Result<Self, ShapeMismatch> {
        let actions = number_of_actions(actions)?;
        let torso = config.build_torso(layout, prefix, observations)?;
        let previous = if last { actions + 1 } else { 0 };
        let inputs = torso.features + previous + extra;
        let init = layer_init(config.orthogonal, inputs, 1.0);
        let core = Lstm::new(layout, &format!("{prefix}core"), inputs, size, init);
        let head = QHead::new(layout, config, prefix, size, actions, 1);
        Ok(Self {
            torso,
            core,
            head,
            last,
        })
    }

    /// Whether [`RecurrentInput::legal`] is used.
    pub fn wants_legal(&self) -> bool {
        self.head.legal
    }

    /// Number of actions (A).
    pub fn actions(&self) -> usize {
        self.head.actions
    }

    /// Hidden and cell state of one environment, by name.
    pub fn state_spec(&self) -> Tree<Spec> {
        let spec = || Tree::Leaf(Spec::new(DType::F32, &[self.core.size]));
        Tree::node([("hidden", spec()), ("cell", spec())])
    }

    /// Action values `[T, B, A]` from the state before the first step, and the state after the
    /// last.
    pub fn forward(
        &self,
        params: &Params,
        input: &RecurrentInput,
        state: &LstmState,
    ) -> (Tensor, LstmState) {
        let [steps, envs] = [input.starts.size()[0], input.starts.size()[1]];
        let features = self.torso.forward(params, &input.obs);
        let features = features.reshape([steps, envs, -1]);
        let rewards = input.rewards.unsqueeze(-1);
        let mut parts = vec![&features];
        if self.last {
            parts.extend([&input.actions, &rewards]);
        }
        parts.extend(&input.extra);
        let x = Tensor::cat(&parts, -1);
        let (hidden, cell) = self
            .core
            .forward(params, &x, &input.starts, (&state.0, &state.1));
        let legal = input.legal.as_ref();
        let values = self.head.forward(params, &hidden, None, legal);
        let values = values.squeeze_dim(-1);
        let last = steps - 1;
        (values, (hidden.select(0, last), cell.select(0, last)))
    }
}

/// What a [`RecurrentQ`] sees of one step in a graph.
#[derive(Debug)]
pub struct ExportedInput {
    /// Observations.
    pub obs: Tree<Exported>,
    /// Previous actions `[N]`, −1 where an episode begins.
    pub action: Exported,
    /// Previous rewards `[N]`, 0 where an episode begins.
    pub reward: Exported,
    /// Other inputs, the same for all observations, `[E]`.
    pub extra: Option<Tensor>,
    /// Legal actions `[N, A]`.
    pub legal: Option<Exported>,
}

impl RecurrentQ {
    /// Whether it sees the previous action and reward.
    pub fn sees_last(&self) -> bool {
        self.last
    }

    /// One step in a graph: action values `[N, A]`, and the state (hidden, cell), which becomes two inputs
    /// of these names, after it.
    pub fn export(
        &self,
        graph: &mut Graph,
        params: &Params,
        input: &ExportedInput,
        [hidden, cell]: [&str; 2],
    ) -> Result<(Exported, [Exported; 2]), NotExported> {
        let hidden = graph.input(hidden, Element::F32, &[self.core.size]);
        let cell = graph.input(cell, Element::F32, &[self.core.size]);
        let mut parts = vec![self.torso.export(graph, params, &input.obs)?];
        if self.last {
            parts.push(graph.one_hot(&input.action, self.head.actions));
            parts.push(graph.unsqueeze(&input.reward, 1));
        }
        if let Some(extra) = &input.extra {
            // A row for each observation: zeros as many, and the same numbers added.
            let zero = graph.scalar(0.0);
            let column = graph.slice(&hidden, 1, 0, 1);
            let column = graph.mul(&column, &zero);
            let extra = graph.constant(&extra.reshape([1, -1]));
            parts.push(graph.add(&column, &extra));
        }
        let x = graph.concat(&parts, 1);
        let (hidden, cell) = self.core.export(graph, params, &x, (&hidden, &cell));
        let values = self
            .head
            .export(graph, params, &hidden, input.legal.as_ref());
        Ok((graph.squeeze(&values, 2), [hidden, cell]))
    }
}

/// Actions `[..]` as vectors with one 1, `[.., A]`, all zeros where `starts` is 1.
pub fn previous_actions(actions: &Tensor, starts: &Tensor, count: usize) -> Tensor {
    let keep = starts.ones_like() - starts;
    actions.one_hot(count as i64).to_kind(Kind::Float) * keep.unsqueeze(-1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use starling_envs::stream;
    use std::sync::Arc;
    use tch::Device;

    const CPU: (Kind, Device) = (Kind::Float, Device::Cpu);

    /// Over four steps of two environments, of which one starts a new episode at the third.
    #[test]
    fn step_by_step_is_the_same_as_at_once() {
        let mut layout = Layout::default();
        let (obs, actions) = (Space::unbounded(&[3]), Space::Discrete { n: 2 });
        let config = QNetConfig {
            dueling: true,
            head_hidden: 4,
            ..QNetConfig::default()
        };
        let net = RecurrentQ::new(&mut layout, &config, "", (&obs, &actions), 6, 2, true);
        let net = net.unwrap();
        let params = Params::init(&Arc::new(layout), &mut stream(1, "init", 0), Device::Cpu);
        let starts = Tensor::from_slice(&[1f32, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0]).reshape([4, 2]);
        let taken = Tensor::from_slice(&[0i64, 0, 1, 0, 1, 1, 0, 1]).reshape([4, 2]);
        let input = RecurrentInput {
            obs: Tree::Leaf(Tensor::arange(24, CPU).reshape([8, 3]) / 10.0),
            actions: previous_actions(&taken, &starts, 2),
            rewards: Tensor::arange(8, CPU).reshape([4, 2]) * 0.3,
            extra: Some(Tensor::arange(16, CPU).reshape([4, 2, 2]) * 0.1),
            starts,
            legal: None,
        };
        let zero = || (Tensor::zeros([2, 6], CPU), Tensor::zeros([2, 6], CPU));
        let (values, end) = net.forward(&params, &input, &zero());
        assert_eq!(values.size(), [4, 2, 2]);
        let mut state = zero();
        for t in 0..4 {
            let (step, after) = net.forward(&params, &input.narrow(t, 1), &state);
            let difference = (step.get(0) - values.get(t)).abs().max();
            assert!(difference.double_value(&[]) < 1e-6);
            state = after;
        }
        assert!((state.1 - end.1).abs().max().double_value(&[]) < 1e-6);
    }

    /// A network that is made without the previous action and reward does not depend on them.
    #[test]
    fn the_previous_action_and_reward_can_be_left_out() {
        let (obs, actions) = (Space::unbounded(&[3]), Space::Discrete { n: 2 });
        for last in [false, true] {
            let mut layout = Layout::default();
            let (config, both) = (QNetConfig::default(), (&obs, &actions));
            let net = RecurrentQ::new(&mut layout, &config, "", both, 6, 0, last).unwrap();
            let params = Params::init(&Arc::new(layout), &mut stream(1, "init", 0), Device::Cpu);
            let values = |action: i64, reward: f64| {
                let starts = Tensor::zeros([1, 1], CPU);
                let taken = Tensor::from_slice(&[action]).reshape([1, 1]);
                let input = RecurrentInput {
                    obs: Tree::Leaf(Tensor::ones([1, 3], CPU)),
                    actions: previous_actions(&taken, &starts, 2),
                    rewards: Tensor::ones([1, 1], CPU) * reward,
                    extra: None,
                    starts,
                    legal: None,
                };
                let zero = || Tensor::zeros([1, 6], CPU);
                net.forward(&params, &input, &(zero(), zero())).0
            };
            let same = values(0, 0.0) == values(1, 3.0);
            assert_eq!(same, !last);
        }
    }

    #[test]
    fn where_an_episode_begins_there_was_no_action() {
        let actions = Tensor::from_slice(&[1i64, 0, 1]);
        let starts = Tensor::from_slice(&[0f32, 1.0, 0.0]);
        let encoded = previous_actions(&actions, &starts, 2).reshape([-1]);
        let encoded = Vec::<f32>::try_from(encoded).unwrap();
        assert_eq!(encoded, [0.0, 1.0, 0.0, 0.0, 0.0, 1.0]);
    }
}
