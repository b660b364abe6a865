//! Recurrent action values for other programs.

use starling_nets::export::{Element, Graph};
use starling_nets::{Device, ExportedInput, Kind, RecurrentInput, RecurrentQ, Tensor};

use crate::Spaces;
use crate::export::{self, Inputs, LAST_ACTION, LAST_REWARD};

/// What a network sees of one step, as inputs of a graph; `extra` `[E]` is the same for all observations.
pub(crate) fn exported_input(
    graph: &mut Graph,
    spaces: &Spaces,
    net: &RecurrentQ,
    extra: Option<Tensor>,
) -> ExportedInput {
    let (obs, legal) = export::inputs(graph, spaces);
    let (action, reward) = match net.sees_last() {
        true => (
            graph.input(LAST_ACTION, Element::I64, &[]),
            graph.input(LAST_REWARD, Element::F32, &[]),
        ),
        // They are not looked at.
        false => (graph.scalar(0.0), graph.scalar(0.0)),
    };
    ExportedInput {
        obs,
        action,
        reward,
        extra,
        legal,
    }
}

/// The same for the network itself.
pub(crate) fn seen(
    inputs: &Inputs<'_>,
    spaces: &Spaces,
    net: &RecurrentQ,
    extra: Option<&Tensor>,
) -> RecurrentInput {
    let count = inputs.count() as i64;
    let zeros = |shape: &[i64]| Tensor::zeros(shape, (Kind::Float, Device::Cpu));
    let actions = net.actions();
    RecurrentInput {
        obs: inputs.obs(&spaces.observation),
        actions: match net.sees_last() {
            true => export::one_hot(inputs.get(LAST_ACTION), actions).unsqueeze(0),
            false => zeros(&[1, count, actions as i64]),
        },
        rewards: match net.sees_last() {
            true => inputs.get(LAST_REWARD).unsqueeze(0),
            false => zeros(&[1, count]),
        },
        extra: extra.map(|extra| extra.reshape([1, 1, -1]).repeat([1, count, 1])),
        starts: zeros(&[1, count]),
        legal: match net.wants_legal() {
            true => inputs.legal().map(|legal| legal.unsqueeze(0)),
            false => None,
        },
    }
}
