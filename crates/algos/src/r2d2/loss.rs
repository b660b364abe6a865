//! The errors of R2D2's values.

use std::sync::Arc;

use starling_nets::{Kind, Layout, Params, Tensor, no_grad};
use starling_replay::SequenceConfig;

use super::R2d2;
use crate::ops::huber;
use crate::recurrent::{Losses, SequenceInputs, SequenceMethod, mean_counted, unroll};
use crate::value_based::ValueConfig;

/// What comes of a batch, `[L, B]` each.
pub(super) struct Compared {
    /// Values of the actions taken.
    pub(super) taken: Tensor,
    /// What they should have been.
    pub(super) targets: Tensor,
}

impl R2d2 {
    pub(super) fn compare(
        &self,
        online: &Params,
        target: &Params,
        inputs: &SequenceInputs,
    ) -> Compared {
        let (net, size) = (&self.net, self.config.lstm);
        let input = inputs.whole(net, None);
        let values = |params: &Params| {
            let stored = (inputs.stored("hidden", size), inputs.stored("cell", size));
            unroll(&input, inputs.burn_in(), stored, |input, state| {
                net.forward(params, input, state)
            })
        };
        let online = values(online);
        let following = no_grad(|| {
            let values = values(target);
            let judge = match self.shared.double {
                true => online.detach(),
                false => values.shallow_clone(),
            };
            inputs.following(&values, &inputs.best(judge), &inputs.bootstrap())
        });
        Compared {
            taken: inputs.taken(&online),
            targets: self.targets(inputs.returns(), inputs.discounts(), &following),
        }
    }
}

impl SequenceMethod for R2d2 {
    const REPORTED: &'static [&'static str] = &["td_error", "q_value"];

    fn share(&self) -> Self {
        self.clone()
    }

    fn layout(&self) -> &Arc<Layout> {
        &self.layout
    }

    fn shared(&self) -> &ValueConfig {
        &self.shared
    }

    fn sequence(&self) -> &SequenceConfig {
        &self.config.sequence
    }

    fn losses(&self, online: &Params, target: &Params, inputs: &SequenceInputs) -> Losses {
        let Compared { taken, targets } = self.compare(online, target, inputs);
        let mask = inputs.mask();
        let errors = (targets - &taken) * mask;
        let losses = match self.config.huber_delta {
            None => errors.square() * 0.5,
            Some(delta) => huber(&errors, delta),
        };
        let sizes = errors.detach().abs();
        let losses = losses * inputs.weights();
        Losses {
            loss: match self.config.sum_over_time {
                false => mean_counted(&losses, mask),
                // What does not count has an error, and so a loss, of 0.
                true => losses.sum(Kind::Float) / inputs.sequences() as f64,
            },
            numbers: vec![mean_counted(&sizes, mask), mean_counted(&taken, mask)],
            errors: sizes,
            seen: Vec::new(),
        }
    }
}
