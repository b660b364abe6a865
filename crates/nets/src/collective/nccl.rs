//! The collective of NCCL.

use std::time::Duration;

use tch::{Device, Tensor};

use super::{Collective, Gloo};
use crate::native::nccl;
use crate::{ReduceError, synchronize, unrecorded};

/// A group of GPUs. The library is opened at run time. If a member is lost, or does not respond before the
/// timeout, the call fails; the group is then unusable, and its members have to form a new one.
pub struct Nccl {
    inner: nccl::Nccl,
    device: Device,
    rank: usize,
    size: usize,
}

impl Nccl {
    /// Joins a group with a GPU of this machine. Members find each other by a group of Gloo, which is
    /// closed again. All calls have to come from the calling thread.
    ///
    /// # Errors
    /// When there is no such library, or when a member does not come.
    pub fn join(mut gloo: Gloo, device: Device, timeout: Duration) -> Result<Self, ReduceError> {
        let (rank, size) = (gloo.rank(), gloo.size());
        let Device::Cuda(index) = device else {
            let text = "NCCL needs GPUs: set device=cuda:0, or collective=gloo";
            return Err(ReduceError(text.into()));
        };
        // All have the library, or none continues.
        let version = nccl::version();
        let known = version.as_ref().map_or(0, |version| i64::from(*version));
        let versions = Tensor::zeros([size as i64], (tch::Kind::Float, Device::Cpu));
        let _ = versions.get(rank as i64).fill_(known);
        gloo.sum(&versions)?;
        version.map_err(ReduceError)?;
        let mut id = match rank {
            0 => nccl::new_id().map_err(ReduceError)?.0,
            _ => [0; 128],
        };
        if versions.min().double_value(&[]) == 0.0 {
            return Err(ReduceError("NCCL is missing on another learner".into()));
        }
        let shared = Tensor::from_slice(&id);
        gloo.broadcast(&shared, 0)?;
        shared.copy_data_u8(&mut id, 128);
        let inner = nccl::Nccl::new(nccl::Id(id), (rank, size), index, timeout);
        Ok(Self {
            inner: inner.map_err(ReduceError)?,
            device,
            rank,
            size,
        })
    }

    /// Calls a function with a tensor on the GPU: a copy, if the tensor is elsewhere.
    fn on_device(
        &mut self,
        values: &Tensor,
        work: impl FnOnce(&mut nccl::Nccl, &Tensor) -> Result<(), String>,
    ) -> Result<(), ReduceError> {
        let (own, device) = (values.detach(), self.device);
        tch::no_grad(|| {
            if own.device() == device {
                return work(&mut self.inner, &own).map_err(ReduceError);
            }
            let there = unrecorded(device, || own.to_device(device));
            work(&mut self.inner, &there).map_err(ReduceError)?;
            unrecorded(device, || own.shallow_clone().copy_(&there));
            synchronize(device);
            Ok(())
        })
    }
}

/// The version of NCCL here, such as 22809 for 2.28.9.
///
/// # Errors
/// When there is no such library.
pub fn nccl_version() -> Result<i32, ReduceError> {
    nccl::version().map_err(ReduceError)
}

impl Collective for Nccl {
    fn sum(&mut self, values: &Tensor) -> Result<(), ReduceError> {
        self.on_device(values, |nccl, values| nccl.sum(values))
    }

    fn broadcast(&mut self, values: &Tensor, root: usize) -> Result<(), ReduceError> {
        self.on_device(values, |nccl, values| nccl.broadcast(values, root))
    }

    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }
}
