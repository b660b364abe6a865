//! R2D2's policy for other programs.

use starling_nets::export::{Graph, NotExported};
use starling_nets::{Device, Params, Snapshot, no_grad};

use super::R2d2;
use crate::Spaces;
use crate::export::{self, Exported, Inputs};
use crate::recurrent::{exported_input, seen};

const STATE: [&str; 2] = ["hidden", "cell"];

pub(super) fn export(
    algorithm: &R2d2,
    spaces: &Spaces,
    weights: &Snapshot,
) -> Result<Exported, NotExported> {
    let params = Params::zeros(&algorithm.layout, Device::Cpu);
    params.load(weights).map_err(|error| NotExported(error.0))?;
    let mut graph = Graph::default();
    let net = algorithm.net.clone();
    let input = exported_input(&mut graph, spaces, &net, None);
    let (values, state) = net.export(&mut graph, &params, &input, STATE)?;
    let masked = graph.masked(&values, input.legal.as_ref());
    let action = graph.argmax(&masked);
    graph.output("action", &action);
    graph.output("q_values", &values);
    for (name, state) in STATE.iter().zip(&state) {
        graph.output(&format!("{name}_next"), state);
    }
    let spaces = spaces.clone();
    let reference = move |inputs: &Inputs<'_>| {
        let state = STATE.map(|name| inputs.get(name).shallow_clone());
        let seen = seen(inputs, &spaces, &net, None);
        let (values, after) = no_grad(|| net.forward(&params, &seen, &state.into()));
        let values = values.get(0);
        let action = export::greedy(&values, inputs.legal());
        vec![
            ("action".to_owned(), action),
            ("q_values".to_owned(), values),
            ("hidden_next".to_owned(), after.0),
            ("cell_next".to_owned(), after.1),
        ]
    };
    Ok(Exported::policy(graph, reference))
}
