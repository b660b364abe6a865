//! Collective operations of a group of learners: all-reduce and broadcast.
//!
//! A [`Collective`] is one member of a group of processes, such as [`Gloo`]. Learners hold a [`Group`],
//! whose collective is replaced when members leave and join.

mod conformance;
mod group;
mod mpi;
mod nccl;

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use tch::{Device, Tensor};

use crate::native::{gloo, synchronize};
use crate::{ReduceError, unrecorded};

pub use conformance::check_collective;
pub use group::{Group, Spent};
pub use mpi::Mpi;
pub use nccl::{Nccl, nccl_version};

/// One member of a group of processes. All members make the same calls in the same order.
pub trait Collective: Send {
    /// All-reduce: replaces every number of a contiguous tensor by its sum over the group.
    fn sum(&mut self, values: &Tensor) -> Result<(), ReduceError>;

    /// Broadcast: replaces a contiguous tensor by that of the member `root`.
    fn broadcast(&mut self, values: &Tensor, root: usize) -> Result<(), ReduceError>;

    /// Rank of this member, from 0.
    fn rank(&self) -> usize;

    /// Number of members.
    fn size(&self) -> usize;
}

/// The rendezvous store of Gloo's groups (c10d's `TCPStore`). It has no access control: anyone who
/// reaches its port can read and write it.
#[derive(Clone, Debug)]
pub struct GlooStore(Arc<gloo::Store>);

impl GlooStore {
    /// Serves the store of a group at this socket.
    pub fn serve(listener: TcpListener, timeout: Duration) -> Result<Self, ReduceError> {
        let store = gloo::Store::serve(listener, timeout).map_err(ReduceError)?;
        Ok(Self(Arc::new(store)))
    }

    /// Connects to the store of a group.
    pub fn connect(at: SocketAddr, timeout: Duration) -> Result<Self, ReduceError> {
        let store = gloo::Store::connect(at, timeout).map_err(ReduceError)?;
        Ok(Self(Arc::new(store)))
    }
}

/// A group over TCP, with c10d's Gloo, for tensors in host memory. If a member's process ended, the
/// next call fails at once; if it does not respond, after the timeout. After an error the group is
/// unusable, and its members have to form a new one.
#[derive(Debug)]
pub struct Gloo {
    inner: gloo::Gloo,
    rank: usize,
    size: usize,
}

impl Gloo {
    /// Joins the group called `name`, of which this is the member `rank` of `size`, and waits for the
    /// others. `address` is this machine's as they reach it.
    pub fn join(
        store: &GlooStore,
        name: &str,
        address: &str,
        rank: usize,
        size: usize,
        timeout: Duration,
    ) -> Result<Self, ReduceError> {
        let inner = gloo::Gloo::new(&store.0, name, address, (rank, size), timeout);
        let inner = inner.map_err(ReduceError)?;
        Ok(Self { inner, rank, size })
    }
}

impl Collective for Gloo {
    fn sum(&mut self, values: &Tensor) -> Result<(), ReduceError> {
        on_host(values, |host| self.inner.sum(host))
    }

    fn broadcast(&mut self, values: &Tensor, root: usize) -> Result<(), ReduceError> {
        on_host(values, |host| self.inner.broadcast(host, root))
    }

    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }
}

/// Calls a function with a tensor in host memory: a copy, if the tensor is on a device.
fn on_host(
    values: &Tensor,
    work: impl FnOnce(&Tensor) -> Result<(), String>,
) -> Result<(), ReduceError> {
    tch::no_grad(|| match values.device() {
        Device::Cpu => work(&values.detach()).map_err(ReduceError),
        device => {
            let host = unrecorded(device, || values.to_device(Device::Cpu));
            work(&host).map_err(ReduceError)?;
            unrecorded(device, || values.detach().copy_(&host));
            synchronize(device);
            Ok(())
        }
    })
}

#[cfg(test)]
mod tests;
