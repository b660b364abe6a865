//! Gradient steps over parts of a batch of rollouts.

use std::collections::BTreeMap;

use rand::seq::SliceRandom as _;
use starling_nets::{Kind, Recorded, Tensor};

use crate::LearnError;
use crate::trained::Trained;

/// How a batch is split into gradient steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Passes {
    /// How often each item is learned from.
    pub(crate) epochs: usize,
    /// What is split: steps, or environments where their sequences stay whole.
    pub(crate) items: usize,
    /// Items per gradient step.
    pub(crate) size: usize,
    /// Whether the items come in a new random order in each epoch.
    pub(crate) shuffle: bool,
}

impl Passes {
    /// Random minibatches, several times.
    pub(crate) fn minibatches(epochs: usize, minibatches: usize, items: usize) -> Self {
        Self {
            epochs,
            items,
            size: items.div_ceil(minibatches.min(items)),
            shuffle: true,
        }
    }

    /// All items once and in order, `size` at a time.
    pub(crate) fn once(items: usize, size: usize) -> Self {
        Self {
            epochs: 1,
            items,
            size: size.min(items),
            shuffle: false,
        }
    }
}

/// The gradient steps over one batch's memory, recorded by the number of their items.
#[derive(Debug, Default)]
pub(crate) struct Minibatches {
    steps: BTreeMap<usize, Recorded<Tensor, ()>>,
}

impl Minibatches {
    /// All gradient steps of a batch. `record` gives the first half of a step for the items whose
    /// numbers are its inputs, or for all of them if it is told so. Adds the norms of the gradients
    /// to `norms`, and returns how many steps there were.
    pub(crate) fn learn(
        &mut self,
        passes: Passes,
        trained: &mut Trained,
        norms: &mut Tensor,
        record: impl Fn(&Trained, Tensor, bool) -> Recorded<Tensor, ()>,
    ) -> Result<f64, LearnError> {
        let options = (Kind::Int64, trained.descent.device());
        let mut order: Vec<i64> = (0..passes.items as i64).collect();
        let mut count = 0.0;
        for _ in 0..passes.epochs {
            if passes.shuffle {
                order.shuffle(&mut trained.rng);
            }
            for items in order.chunks(passes.size) {
                let whole = !passes.shuffle && items.len() == passes.items;
                let step = self.steps.entry(items.len()).or_insert_with(|| {
                    let chosen = Tensor::zeros([items.len() as i64], options);
                    record(trained, chosen, whole)
                });
                if !whole {
                    let chosen = step.inputs();
                    chosen.shallow_clone().copy_(&Tensor::from_slice(items));
                }
                step.run();
                *norms += trained.descent.step()?;
                count += 1.0;
            }
        }
        Ok(count)
    }
}
