//! Batches of transitions in staging memory, and what comes back from an update, for learners whose
//! update is one recorded computation.

use starling_nets::{Arriving, Device, Staging, Tensor};
use starling_replay::TransitionBatch;
use starling_tree::{Array, Spec, Tree};

use crate::{LearnError, Report};

/// Updates that a GPU may have been given before the first of them is finished: small networks take
/// it less time than the host needs to notice.
pub(crate) const IN_FLIGHT: usize = 4;

/// Updates that may be under way on a device.
pub(crate) fn in_flight(device: Device) -> usize {
    match device {
        Device::Cuda(_) => IN_FLIGHT,
        _ => 1,
    }
}

/// Where batches of transitions are written.
pub(crate) struct StagedTransitions {
    obs: Tree<Staging>,
    next_obs: Tree<Staging>,
    actions: Staging,
    returns: Staging,
    discounts: Staging,
}

/// Transitions on the device, always in the same memory.
pub(crate) struct TransitionColumns {
    pub(crate) obs: Tree<Tensor>,
    pub(crate) next_obs: Tree<Tensor>,
    pub(crate) actions: Tensor,
    /// `[N]`.
    pub(crate) returns: Tensor,
    /// `[N]`.
    pub(crate) discounts: Tensor,
}

/// Memory for columns like this one.
pub(crate) fn staged(column: &Array, device: Device) -> Staging {
    let (rows, item) = (column.shape()[0], &column.shape()[1..]);
    Staging::ahead(rows, &Spec::new(column.dtype(), item), device, IN_FLIGHT)
}

impl StagedTransitions {
    /// Memory for batches like this one.
    pub(crate) fn new(batch: &TransitionBatch, device: Device) -> Self {
        let column = |array: &Array| staged(array, device);
        Self {
            obs: batch.obs.map(column),
            next_obs: batch.next_obs.map(column),
            actions: column(&batch.actions),
            returns: column(&batch.returns),
            discounts: column(&batch.discounts),
        }
    }

    /// Takes over a batch of the same shape.
    pub(crate) fn load(&self, batch: &TransitionBatch) {
        for (columns, arrays) in [(&self.obs, &batch.obs), (&self.next_obs, &batch.next_obs)] {
            let arrays = arrays.leaves().into_iter();
            for ((_, column), (_, array)) in columns.leaves().into_iter().zip(arrays) {
                column.load(array);
            }
        }
        self.actions.load(&batch.actions);
        self.returns.load(&batch.returns);
        self.discounts.load(&batch.discounts);
    }

    /// The same memory on the device.
    pub(crate) fn columns(&self) -> TransitionColumns {
        let one = |column: &Staging| column.tensor().shallow_clone();
        TransitionColumns {
            obs: self.obs.map(one),
            next_obs: self.next_obs.map(one),
            actions: one(&self.actions),
            returns: one(&self.returns),
            discounts: one(&self.discounts),
        }
    }
}

/// The report of an update from its numbers, which `names` names in order, and from priorities, if they
/// arrive as well.
pub(crate) fn report(
    names: &[&'static str],
    arriving: Arriving,
    learning_rate: f64,
) -> Result<Report, LearnError> {
    let mut arrays = arriving.wait().into_iter();
    let numbers = arrays.next().ok_or(LearnError::Mismatch)?;
    let numbers = numbers.as_slice::<f32>().iter().map(|&x| f64::from(x));
    let mut metrics: Vec<_> = names.iter().copied().zip(numbers).collect();
    metrics.push(("learning_rate", learning_rate));
    let priorities = arrays.next().map(|all| all.as_slice::<f32>().to_vec());
    Report::checked(metrics, priorities)
}
