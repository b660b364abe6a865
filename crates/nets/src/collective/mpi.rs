//! The collective of MPI.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tch::Tensor;

use super::{Collective, on_host};
use crate::ReduceError;
use crate::native::mpi::World;

/// The processes of this program's `mpirun`, if MPI is initialised.
static WORLD: Mutex<Option<World>> = Mutex::new(None);

/// All processes that `mpirun` (or Slurm's `srun`) started with this one, for tensors in host memory. The
/// library is opened at run time. If a process is lost, the others cannot continue: `mpirun` ends them.
#[derive(Clone, Copy, Debug)]
pub struct Mpi {
    rank: usize,
    size: usize,
    timeout: Duration,
}

impl Mpi {
    /// Opens the library and initialises MPI, if that was not done yet.
    ///
    /// # Errors
    /// When there is no library, or when it cannot be initialised.
    pub fn join(timeout: Duration) -> Result<Self, ReduceError> {
        let mut world = lock();
        let world = match &mut *world {
            Some(world) => world,
            none => none.insert(World::open().map_err(ReduceError)?),
        };
        Ok(Self {
            rank: world.rank(),
            size: world.size(),
            timeout,
        })
    }

    /// Replaces bytes by those of the process `root`.
    ///
    /// # Errors
    /// When a process does not answer.
    pub fn broadcast_bytes(&mut self, bytes: &mut Vec<u8>, root: usize) -> Result<(), ReduceError> {
        let length = Tensor::from_slice(&[bytes.len() as i64]);
        self.broadcast(&length, root)?;
        bytes.resize(length.int64_value(&[0]) as usize, 0);
        let content = Tensor::from_slice(bytes);
        self.broadcast(&content, root)?;
        let length = bytes.len();
        content.copy_data_u8(bytes, length);
        Ok(())
    }

    /// Ends MPI in this process, once all processes are done. Without it `mpirun` says that the process
    /// failed.
    ///
    /// # Errors
    /// When MPI reports one.
    pub fn finalize(self) -> Result<(), ReduceError> {
        match lock().take() {
            Some(mut world) => world.finalize().map_err(ReduceError),
            None => Ok(()),
        }
    }
}

fn lock() -> MutexGuard<'static, Option<World>> {
    // A panic in a call has ended the run.
    WORLD.lock().unwrap_or_else(PoisonError::into_inner)
}

fn with_world(work: impl FnOnce(&mut World) -> Result<(), String>) -> Result<(), String> {
    let mut world = lock();
    let world = world.as_mut();
    work(world.ok_or_else(|| "MPI has ended".to_owned())?)
}

impl Collective for Mpi {
    fn sum(&mut self, values: &Tensor) -> Result<(), ReduceError> {
        on_host(values, |host| {
            with_world(|world| world.sum(host, self.timeout))
        })
    }

    fn broadcast(&mut self, values: &Tensor, root: usize) -> Result<(), ReduceError> {
        on_host(values, |host| {
            with_world(|world| world.broadcast(host, root, self.timeout))
        })
    }

    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }
}
