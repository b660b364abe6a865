//! The columns of rollouts, on the learner's device.

use std::sync::{Mutex, PoisonError};

use starling_envs::Rollout;
use starling_nets::{Device, Staging, Tensor, array_of, no_grad};
use starling_tree::{Array, Spec, Tree};

/// Observations `[T + 1, B, ..]` that a policy leaves on its device, for a learner on the same one.
pub(crate) type DeviceColumns = Mutex<Tree<Tensor>>;

/// Observations `[T + 1, B, ..]` that a policy left on its device with a rollout, copied to the host;
/// `None` if it left none. They are those of the rollout.
pub fn resident_observations(rollout: &Rollout) -> Option<Tree<Array>> {
    let columns = rollout.resident.get::<DeviceColumns>()?;
    let columns = columns.lock().unwrap_or_else(PoisonError::into_inner);
    Some(columns.map(array_of))
}

/// Observations, legal actions and actions of a batch of rollouts: host memory that is filled, and
/// its place on the device. It stays where it is, so that what is computed from there can be
/// recorded. Rows are in time-major order.
#[derive(Debug)]
pub(crate) struct RolloutColumns {
    pub(crate) steps: usize,
    pub(crate) envs: usize,
    /// `(T + 1)·B` rows.
    pub(crate) obs: Tree<Staging>,
    /// `(T + 1)·B` rows.
    pub(crate) legal: Option<Staging>,
    /// `T·B` rows.
    pub(crate) actions: Staging,
}

impl RolloutColumns {
    /// Memory for batches of `envs` environments, of rollouts like this one.
    pub(crate) fn new(like: &Rollout, envs: usize, device: Device) -> Self {
        let steps = like.steps();
        let column = |rows: usize, array: &Array| {
            let item = Spec::new(array.dtype(), &array.shape()[2..]);
            Staging::new(rows, &item, device)
        };
        let all = (steps + 1) * envs;
        Self {
            steps,
            envs,
            obs: like.obs.map(|array| column(all, array)),
            legal: like.legal.as_ref().map(|array| column(all, array)),
            actions: column(steps * envs, &like.actions),
        }
    }

    /// Whether a batch has this size.
    pub(crate) fn fits(&self, rollouts: &[&Rollout]) -> bool {
        let envs: usize = rollouts.iter().map(|rollout| rollout.envs()).sum();
        let steps = rollouts.first().map(|rollout| rollout.steps());
        (Some(self.steps), self.envs) == (steps, envs)
    }

    /// Brings a batch of the same size to the device. Observations that a policy left there are
    /// not sent again.
    pub(crate) fn load(&self, rollouts: &[&Rollout]) {
        let (mut first, mut written) = (0, false);
        for rollout in rollouts {
            if rollout.resident.get::<DeviceColumns>().is_none() {
                let arrays = rollout.obs.leaves().into_iter();
                for ((_, column), (_, array)) in self.obs.leaves().into_iter().zip(arrays) {
                    self.write(column, first, array);
                }
                written = true;
            }
            if let (Some(column), Some(legal)) = (&self.legal, &rollout.legal) {
                self.write(column, first, legal);
            }
            self.write(&self.actions, first, &rollout.actions);
            first += rollout.envs();
        }
        for (_, column) in self.obs.leaves().into_iter().filter(|_| written) {
            column.upload();
        }
        for column in self.legal.iter().chain([&self.actions]) {
            column.upload();
        }
        self.copy_resident(rollouts);
    }

    /// Writes a column `[rows, b, ..]` beside those of the environments before it.
    fn write(&self, column: &Staging, first: usize, array: &Array) {
        for t in 0..array.shape()[0] {
            column.write(t * self.envs + first, array.at(&[t]).bytes);
        }
    }

    fn copy_resident(&self, rollouts: &[&Rollout]) {
        let all = [self.steps as i64 + 1, self.envs as i64];
        let mut first = 0;
        for rollout in rollouts {
            let envs = rollout.envs() as i64;
            if let Some(columns) = rollout.resident.get::<DeviceColumns>() {
                let columns = columns.lock().unwrap_or_else(PoisonError::into_inner);
                let columns = columns.leaves().into_iter();
                for ((_, place), (_, column)) in self.obs.leaves().into_iter().zip(columns) {
                    let place = place.tensor().unflatten(0, all.as_slice());
                    no_grad(|| place.narrow(1, first, envs).copy_(column));
                }
            }
            first += envs;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use starling_envs::{Resident, Space};

    /// What a policy leaves on its device can be read back, and goes to the learner in place of the
    /// rollout's own observations.
    #[test]
    fn observations_left_on_a_device_are_found_there() {
        let (space, empty) = (Space::unbounded(&[1]), Tree::empty());
        let actions = Space::Discrete { n: 2 };
        let mut rollout = Rollout::new(1, 2, &space, &actions, None, &empty, &empty);
        assert!(resident_observations(&rollout).is_none());
        let left = Tensor::from_slice(&[1f32, 2.0, 3.0, 4.0]).reshape([2, 2, 1]);
        rollout.resident = Resident::new(DeviceColumns::new(Tree::Leaf(left)));
        let read = resident_observations(&rollout).unwrap();
        assert_eq!(read.leaf().unwrap().as_slice::<f32>(), [1.0, 2.0, 3.0, 4.0]);
        let columns = RolloutColumns::new(&rollout, 2, Device::Cpu);
        columns.load(&[&rollout]);
        let loaded = array_of(columns.obs.leaf().unwrap().tensor());
        assert_eq!(loaded.as_slice::<f32>(), [1.0, 2.0, 3.0, 4.0]);
    }
}
