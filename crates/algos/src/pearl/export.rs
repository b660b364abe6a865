//! PEARL's policy for other programs, and the encoder that infers its z.
//!
//! What the encoder knows of a task are the sums of 1/σ² and μ/σ² over its transitions.

use starling_envs::Space;
use starling_nets::export::{Element, Graph, NotExported, Value};
use starling_nets::{Device, Kind, Params, Snapshot, Tensor, UnitScale, array_of, no_grad};
use starling_tree::Spec;

use super::Pearl;
use super::networks::{CONTEXT_REWARD, Networks};
use crate::Spaces;
use crate::continuous::choose_squashed;
use crate::export::{
    ACTION, Computation, Exported, Inputs, NEXT, REWARD, TERMINATED, Z, Z_MEAN, Z_STD,
    observation_names,
};

/// Sums over the transitions of a task.
const PRECISION: &str = "precision";
const WEIGHTED_MEAN: &str = "weighted_mean";

pub(super) fn export(
    algorithm: &Pearl,
    spaces: &Spaces,
    weights: &Snapshot,
) -> Result<Exported, NotExported> {
    let networks = &algorithm.networks;
    let params = || -> Result<Params, NotExported> {
        let params = Params::zeros(&networks.acting, Device::Cpu);
        params.load(weights).map_err(|error| NotExported(error.0))?;
        Ok(params)
    };
    Ok(Exported {
        policy: policy(algorithm, spaces, params()?),
        encoder: encoder(algorithm, spaces, params()?),
    })
}

fn policy(algorithm: &Pearl, spaces: &Spaces, params: Params) -> Computation {
    let (networks, actions) = (&algorithm.networks, algorithm.networks.bounds.len());
    let mut graph = Graph::default();
    let mut x = vec![observation(&mut graph, spaces, "")];
    if networks.latent > 0 {
        x.push(graph.input(Z, Element::F32, &[networks.latent]));
    }
    let x = graph.concat(&x, 1);
    let [mean, log_std] = networks.export_acting(&mut graph, &params, &x);
    let action = graph.tanh(&mean);
    let action = networks.bounds.export(&mut graph, &action);
    let shape = [&[-1], &action_shape(spaces)[..]].concat();
    let action = graph.reshape(&action, &shape);
    for (name, value) in [(ACTION, &action), ("mean", &mean), ("log_std", &log_std)] {
        graph.output(name, value);
    }
    let (networks, spaces) = (std::sync::Arc::clone(networks), spaces.clone());
    Computation::new(graph, move |inputs| {
        let obs = seen(inputs, &spaces, "");
        let z = match networks.latent {
            0 => obs.narrow(1, 0, 0),
            _ => inputs.get(Z).shallow_clone(),
        };
        let policy = no_grad(|| networks.acting(&params, &obs, &z));
        let proposed = array_of(&Tensor::cat(&[&policy.mean, &policy.log_std], 1));
        let mut chosen = Vec::new();
        for row in proposed.as_slice::<f32>().chunks(2 * actions) {
            let mut action = vec![0.0; actions];
            choose_squashed(row, None, &mut action);
            networks.bounds.scale(&mut action);
            chosen.extend(action);
        }
        let action = Tensor::from_slice(&chosen).reshape(shape.as_slice());
        let outputs = [
            (ACTION, action),
            ("mean", policy.mean),
            ("log_std", policy.log_std),
        ];
        outputs.map(|(name, value)| (name.to_owned(), value)).into()
    })
}

fn encoder(algorithm: &Pearl, spaces: &Spaces, params: Params) -> Option<Computation> {
    let networks = &algorithm.networks;
    let unit = networks.bounds.unit(Device::Cpu);
    let mut graph = Graph::default();
    let context = context_in(&mut graph, networks, spaces, &unit);
    let known =
        [PRECISION, WEIGHTED_MEAN].map(|name| graph.input(name, Element::F32, &[networks.latent]));
    let (mean, variance) = networks.export_encode(&mut graph, &params, &context)?;
    let one = graph.scalar(1.0);
    let precision = graph.div(&one, &variance);
    let weighted = graph.mul(&mean, &precision);
    let precision = graph.add(&known[0], &precision);
    let weighted = graph.add(&known[1], &weighted);
    let z_mean = graph.div(&weighted, &precision);
    let root = graph.sqrt(&precision);
    let z_std = graph.div(&one, &root);
    let outputs = [precision, weighted, z_mean, z_std];
    for (name, value) in output_names().iter().zip(&outputs) {
        graph.output(name, value);
    }
    let (networks, spaces) = (std::sync::Arc::clone(networks), spaces.clone());
    Some(Computation::new(graph, move |inputs| {
        let context = context_of(inputs, &networks, &spaces, &unit);
        let Some((means, variances)) = no_grad(|| networks.encode(&params, &context)) else {
            return Vec::new();
        };
        let precisions = variances.reciprocal();
        let precision = inputs.get(PRECISION) + &precisions;
        let weighted = inputs.get(WEIGHTED_MEAN) + means * precisions;
        let (mean, std) = (&weighted / &precision, precision.rsqrt());
        output_names()
            .into_iter()
            .zip([precision, weighted, mean, std])
            .collect()
    }))
}

fn output_names() -> [String; 4] {
    [
        format!("{PRECISION}_next"),
        format!("{WEIGHTED_MEAN}_next"),
        Z_MEAN.to_owned(),
        Z_STD.to_owned(),
    ]
}

/// The arrays of an observation that the agent sees, by name.
fn parts(space: &Space) -> Vec<(String, Spec)> {
    let specs = space.spec();
    let specs = specs.leaves().into_iter().map(|(_, spec)| spec.clone());
    let named = observation_names(space).into_iter().zip(specs);
    named.filter(|(name, _)| name != CONTEXT_REWARD).collect()
}

fn context_reward_shape(spaces: &Spaces) -> Vec<usize> {
    let spec = spaces.observation.spec();
    let part = spec.get(CONTEXT_REWARD).and_then(|part| part.leaf());
    part.map_or(Vec::new(), |spec| spec.shape.to_vec())
}

fn action_shape(spaces: &Spaces) -> Vec<i64> {
    match &spaces.action {
        Space::Box { shape, .. } => shape.iter().map(|&size| size as i64).collect(),
        _ => Vec::new(),
    }
}

/// An observation `[N, O]` in a graph, whose inputs have names that begin with `prefix`.
fn observation(graph: &mut Graph, spaces: &Spaces, prefix: &str) -> Value {
    let parts = parts(&spaces.observation).into_iter().map(|(name, spec)| {
        let input = graph.input(&format!("{prefix}{name}"), spec.dtype.into(), &spec.shape);
        graph.reshape(&input, &[-1, spec.elements() as i64])
    });
    let parts: Vec<Value> = parts.collect();
    graph.concat(&parts, 1)
}

/// The same for the networks themselves.
fn seen(inputs: &Inputs<'_>, spaces: &Spaces, prefix: &str) -> Tensor {
    let parts = parts(&spaces.observation).into_iter().map(|(name, spec)| {
        let part = inputs.get(&format!("{prefix}{name}"));
        part.reshape([-1, spec.elements() as i64])
    });
    Tensor::cat(&parts.collect::<Vec<_>>(), 1)
}

/// A transition as the encoder sees it, in a graph. Where the episode ended, nothing is taken of the next
/// observation.
fn context_in(graph: &mut Graph, networks: &Networks, spaces: &Spaces, unit: &UnitScale) -> Value {
    let obs = observation(graph, spaces, "");
    let sizes: Vec<usize> = action_shape(spaces)
        .iter()
        .map(|&size| size as usize)
        .collect();
    let action = graph.input(ACTION, Element::F32, &sizes);
    let action = graph.reshape(&action, &[-1, networks.bounds.len() as i64]);
    let action = unit.export(graph, &action);
    let reward = graph.input(REWARD, Element::F32, &[]);
    let mut reward = graph.unsqueeze(&reward, 1);
    let looks_ahead = networks.context.next_obs || networks.seen.context_reward;
    let goes_on = looks_ahead.then(|| {
        let terminated = graph.input(TERMINATED, Element::U8, &[]);
        let terminated = graph.unsqueeze(&terminated, 1);
        let zero = graph.constant(&Tensor::from_slice(&[0u8]));
        graph.equal(&terminated, &zero)
    });
    let mut context = vec![obs.clone(), action];
    if let (true, Some(goes_on)) = (networks.seen.context_reward, &goes_on) {
        let name = format!("{NEXT}{CONTEXT_REWARD}");
        let own = graph.input(&name, Element::F32, &context_reward_shape(spaces));
        let own = graph.reshape(&own, &[-1, 1]);
        reward = graph.choose(goes_on, &own, &reward);
    }
    context.push(reward);
    if let (true, Some(goes_on)) = (networks.context.next_obs, &goes_on) {
        let next = observation(graph, spaces, NEXT);
        context.push(graph.choose(goes_on, &next, &obs));
    }
    graph.concat(&context, 1)
}

/// The same for the networks themselves.
fn context_of(
    inputs: &Inputs<'_>,
    networks: &Networks,
    spaces: &Spaces,
    unit: &UnitScale,
) -> Tensor {
    let obs = seen(inputs, spaces, "");
    let mut reward = inputs.get(REWARD).unsqueeze(1);
    let goes_on = || inputs.get(TERMINATED).unsqueeze(1).eq(0);
    if networks.seen.context_reward {
        let own = inputs
            .get(&format!("{NEXT}{CONTEXT_REWARD}"))
            .reshape([-1, 1]);
        reward = own.where_self(&goes_on(), &reward);
    }
    let mut context = vec![obs.shallow_clone(), unit.apply(inputs.get(ACTION)), reward];
    if networks.context.next_obs {
        let next = seen(inputs, spaces, NEXT);
        context.push(next.where_self(&goes_on(), &obs));
    }
    Tensor::cat(&context, 1).to_kind(Kind::Float)
}
