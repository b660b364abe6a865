//! Policies with a value for other programs.

use starling_envs::{Space, stream};
use starling_nets::export::{Graph, NotExported};
use starling_nets::{ActorCritic, Device, Kind, Params, Snapshot, Tensor, array_of, no_grad};
use starling_tree::{Array, DType, Tree};

use super::Model;
use crate::Spaces;
use crate::export::{self, Exported, Inputs, LAST_ACTION, LAST_REWARD};

impl Model {
    pub(super) fn export(
        &self,
        spaces: &Spaces,
        weights: &Snapshot,
    ) -> Result<Exported, NotExported> {
        let params = Params::zeros(&self.layout, Device::Cpu);
        params.load(weights).map_err(|error| NotExported(error.0))?;
        let mut graph = Graph::default();
        let (obs, legal) = export::inputs(&mut graph, spaces);
        self.net
            .export(&mut graph, &params, &obs, legal.as_ref(), &spaces.action)?;
        let (net, spaces) = (self.net.clone(), spaces.clone());
        Ok(Exported::policy(graph, move |inputs| {
            no_grad(|| reference(&net, &params, &spaces, inputs))
        }))
    }
}

/// One step of the network, and the most probable actions within their bounds.
fn reference(
    net: &ActorCritic,
    params: &Params,
    spaces: &Spaces,
    inputs: &Inputs<'_>,
) -> Vec<(String, Tensor)> {
    let count = inputs.count();
    let mut obs = inputs.obs(&spaces.observation);
    if net.last.is_some() {
        obs = ActorCritic::with_last(obs, last(net, spaces, inputs));
    }
    let state_spec = net.state_spec();
    let state = Tree::node(state_spec.leaves().into_iter().map(|(name, _)| {
        let state = inputs.get(&name).shallow_clone();
        (name, Tree::Leaf(state))
    }));
    let starts = Tensor::zeros([1, count as i64], (Kind::Float, Device::Cpu));
    let output = net.forward(params, &obs, inputs.legal(), 1, &starts, &state);
    let numbers = output.policy.tensors().into_iter().map(array_of);
    let mut actions = actions_column(&spaces.action, count);
    let mut rngs: Vec<_> = (0..count as u64).map(|i| stream(0, "export", i)).collect();
    output
        .policy
        .sampler(numbers)
        .act(0, &mut rngs, false, 0, &mut actions, None);
    let actions = export::rows(&actions).squeeze_dim(0);
    let actions = within(actions, &spaces.action);
    let name = match &output.policy {
        starling_nets::Distribution::Categorical { .. } => "logits",
        starling_nets::Distribution::Gaussian { .. } => "mean",
    };
    let mut outputs = vec![
        ("action".to_owned(), actions),
        (name.to_owned(), output.policy.tensors()[0].shallow_clone()),
        ("value".to_owned(), output.value),
    ];
    for (name, state) in output.states.leaves() {
        outputs.push((format!("{name}_next"), state.shallow_clone()));
    }
    outputs
}

/// Last actions and rewards as the policy encodes them; zeros where an episode begins.
fn last(net: &ActorCritic, spaces: &Spaces, inputs: &Inputs<'_>) -> Tensor {
    let Some(last) = &net.last else {
        return inputs.get(LAST_REWARD).unsqueeze(1);
    };
    let (actions, rewards) = (
        array_of(inputs.get(LAST_ACTION)),
        array_of(inputs.get(LAST_REWARD)),
    );
    let count = inputs.count();
    let mut encoded = vec![0.0; count * last.size];
    for (row, encoded) in encoded.chunks_mut(last.size).enumerate() {
        let action = actions.at(&[row]);
        let begins = match spaces.action {
            Space::Box { .. } => false,
            _ => action.as_slice::<i64>().iter().any(|choice| *choice < 0),
        };
        if !begins {
            last.encode(action, rewards.as_slice::<f32>()[row], encoded);
        }
    }
    Tensor::from_slice(&encoded).reshape([count as i64, last.size as i64])
}

/// Room for one row of actions, `[1, N, ..]`.
fn actions_column(space: &Space, count: usize) -> Array {
    match space {
        Space::Box { shape, .. } => Array::zeros(DType::F32, &[&[1, count], &shape[..]].concat()),
        Space::MultiDiscrete { choices } => Array::zeros(DType::I64, &[1, count, choices.len()]),
        _ => Array::zeros(DType::I64, &[1, count]),
    }
}

/// As an environment gets them.
fn within(actions: Tensor, space: &Space) -> Tensor {
    let Space::Box { shape, bounds, .. } = space else {
        return actions;
    };
    let (low, high): (Vec<f32>, Vec<f32>) =
        (0..shape.iter().product()).map(|i| bounds.of(i)).unzip();
    let shape: Vec<i64> = shape.iter().map(|&n| n as i64).collect();
    let row = |row: &[f32]| Tensor::from_slice(row).reshape(shape.as_slice());
    actions.maximum(&row(&low)).minimum(&row(&high))
}
