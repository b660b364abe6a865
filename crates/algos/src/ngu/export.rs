//! NGU's policy for other programs: that of the first arm, which evaluations play.
//!
//! Values are learned on a compressed scale, and given on it. If the first arm has intrinsic values (β > 0),
//! both are brought to the scale of rewards to choose an action, in double precision: the inverse of the
//! compression loses digits.

use starling_nets::export::{Element, Graph, NotExported, Value};
use starling_nets::{Device, Kind, Params, Snapshot, Tensor, no_grad};

use super::{MEMORIES, Memories, Ngu};
use crate::Spaces;
use crate::export::{self, Exported, Inputs};
use crate::ops::RESCALE_EPSILON;
use crate::recurrent::{exported_input, seen};

pub(super) fn export(
    algorithm: &Ngu,
    spaces: &Spaces,
    weights: &Snapshot,
) -> Result<Exported, NotExported> {
    let params = Params::zeros(&algorithm.layout, Device::Cpu);
    params.load(weights).map_err(|error| NotExported(error.0))?;
    let mut graph = Graph::default();
    let (extrinsic, intrinsic) = (&algorithm.nets.extrinsic, &algorithm.nets.intrinsic);
    let first_arm = Tensor::from_slice(&[0i64]);
    let told = super::one_hot(&first_arm, algorithm.config.arms).reshape([-1]);
    let beta = algorithm.betas(Device::Cpu).double_value(&[0]);
    let input = exported_input(&mut graph, spaces, extrinsic, Some(told.copy()));
    let [a, b, c, d] = MEMORIES;
    let (values, mut states) = {
        let (values, state) = extrinsic.export(&mut graph, &params, &input, [a, b])?;
        (values, state.to_vec())
    };
    let mut chosen_by = values.clone();
    let mut second = None;
    if beta != 0.0 {
        let (own, state) = intrinsic.export(&mut graph, &params, &input, [c, d])?;
        states.extend(state);
        let rescaled = algorithm.config.rescale;
        let [task, new] =
            [&values, &own].map(|values| on_reward_scale(&mut graph, values, rescaled));
        let beta = graph.constant(&Tensor::from(beta));
        let new = graph.mul(&new, &beta);
        chosen_by = graph.add(&task, &new);
        chosen_by = graph.cast(&chosen_by, Element::F32);
        second = Some(own);
    }
    let masked = graph.masked(&chosen_by, input.legal.as_ref());
    let action = graph.argmax(&masked);
    graph.output("action", &action);
    graph.output("q_values", &values);
    if let Some(second) = &second {
        graph.output("intrinsic_values", second);
    }
    for (name, state) in MEMORIES.iter().zip(&states) {
        graph.output(&format!("{name}_next"), state);
    }
    let (ngu, spaces) = (algorithm.clone(), spaces.clone());
    let reference = move |inputs: &Inputs<'_>| {
        let seen = seen(inputs, &spaces, &ngu.nets.extrinsic, Some(&told));
        let zeros = || {
            let shape = [inputs.count() as i64, ngu.config.lstm as i64];
            Tensor::zeros(shape, (Kind::Float, Device::Cpu))
        };
        let used = if beta == 0.0 { 2 } else { 4 };
        let memories = Memories::from(|name| match MEMORIES[..used].contains(&name) {
            true => inputs.get(name).shallow_clone(),
            false => zeros(),
        });
        let (values, after) = no_grad(|| ngu.nets.forward(&params, &seen, &memories));
        let weight = Tensor::full([inputs.count() as i64, 1], beta, (Kind::Float, Device::Cpu));
        let mixed = values.mixed(&weight, &ngu.config).get(0);
        let action = export::greedy(&mixed, inputs.legal());
        let mut outputs = vec![
            ("action".to_owned(), action),
            ("q_values".to_owned(), values.extrinsic.get(0)),
        ];
        if beta != 0.0 {
            outputs.push(("intrinsic_values".to_owned(), values.intrinsic.get(0)));
        }
        for (name, state) in MEMORIES[..used].iter().zip(after.parts()) {
            outputs.push((format!("{name}_next"), state.shallow_clone()));
        }
        outputs
    };
    Ok(Exported::policy(graph, reference))
}

/// Learned values on the scale of rewards, in double precision: the inverse of h.
fn on_reward_scale(graph: &mut Graph, values: &Value, rescaled: bool) -> Value {
    let x = graph.cast(values, Element::F64);
    if !rescaled {
        return x;
    }
    let e = RESCALE_EPSILON;
    let number = |graph: &mut Graph, number: f64| graph.constant(&Tensor::from(number));
    let size = graph.abs(&x);
    let shift = number(graph, 1.0 + e);
    let root = graph.add(&size, &shift);
    let factor = number(graph, 4.0 * e);
    let root = graph.mul(&root, &factor);
    let one = number(graph, 1.0);
    let root = graph.add(&root, &one);
    let root = graph.sqrt(&root);
    let root = graph.sub(&root, &one);
    let half = number(graph, 0.5 / e);
    let root = graph.mul(&root, &half);
    let square = graph.mul(&root, &root);
    let square = graph.sub(&square, &one);
    let sign = graph.sign(&x);
    graph.mul(&sign, &square)
}
