//! Host memory for transfers to and from a device.

use std::cell::Cell;

use starling_tree::{Array, Spec};
use tch::{Device, Kind, Tensor};

use crate::convert::kind_of;
use crate::native::{self, Mark};

/// Rows in host memory, pinned where the device is a GPU, and their place on the device. On the
/// CPU both are the same memory.
#[derive(Debug)]
pub struct Staging {
    /// Written in turn.
    hosts: Vec<Tensor>,
    turn: Cell<usize>,
    device: Tensor,
    row_bytes: usize,
}

impl Staging {
    /// Rows of zeros.
    pub fn new(rows: usize, spec: &Spec, device: Device) -> Self {
        Self::ahead(rows, spec, device, 1)
    }

    /// Rows of zeros that can be written while up to `uploads - 1` earlier uploads are not done.
    pub fn ahead(rows: usize, spec: &Spec, device: Device, uploads: usize) -> Self {
        let shape = std::iter::once(rows).chain(spec.shape.iter().copied());
        let shape: Vec<i64> = shape.map(|n| n as i64).collect();
        let kind = kind_of(spec.dtype);
        let host = Tensor::zeros(&shape, (kind, Device::Cpu));
        let (hosts, on_device) = match device {
            Device::Cuda(_) => {
                let hosts = (0..uploads.max(1)).map(|_| native::pinned(&host));
                (hosts.collect(), Tensor::zeros(&shape, (kind, device)))
            }
            _ => (vec![host.shallow_clone()], host),
        };
        Self {
            hosts,
            turn: Cell::new(0),
            device: on_device,
            row_bytes: spec.bytes(),
        }
    }

    /// Overwrites rows from `first` on with whole rows of bytes. The upload before must be done
    /// by now; of those that may be [`ahead`](Staging::ahead), the oldest.
    pub fn write(&self, first: usize, bytes: &[u8]) {
        native::write_bytes(self.host(), first * self.row_bytes, bytes);
    }

    fn host(&self) -> &Tensor {
        &self.hosts[self.turn.get()]
    }

    /// Overwrites all rows with those of an array of the same size and copies them to the device;
    /// an array that was [`sent`](send) is copied from its place there. A GPU reads a [`pin`]ned
    /// array asynchronously: it must not change before the thread's stream has reached that point.
    pub fn load(&self, array: &Array) {
        let memory = array
            .memory()
            .and_then(|memory| memory.as_any().downcast_ref());
        match memory {
            Some(memory) if self.device.device() != Device::Cpu => {
                let memory: &native::PinnedMemory = memory;
                let from = memory.tensor(self.device.kind(), &self.device.size());
                native::copy_async(&self.device, &from);
            }
            _ => {
                self.write(0, array.bytes());
                self.upload();
            }
        }
    }

    /// Copies all rows to the device; asynchronously on a GPU.
    pub fn upload(&self) {
        if self.device.device() != Device::Cpu {
            native::copy_async(&self.device, self.host());
            self.turn.set((self.turn.get() + 1) % self.hosts.len());
        }
    }

    /// The rows on the device, always the same tensor.
    pub fn tensor(&self) -> &Tensor {
        &self.device
    }
}

/// Host memory for results of a device, pinned if the device is a GPU.
#[derive(Debug, Default)]
pub struct Landing {
    host: Vec<Tensor>,
}

impl Landing {
    /// Tensors as arrays of float32 numbers. All copies from a GPU are started before it is waited
    /// for.
    pub fn fetch(&mut self, tensors: &[&Tensor]) -> Vec<Array> {
        let Some(&Device::Cuda(index)) = tensors.first().map(|tensor| tensor.device()).as_ref()
        else {
            return tensors
                .iter()
                .map(|tensor| crate::array_of(tensor))
                .collect();
        };
        let fits = self.host.len() == tensors.len()
            && std::iter::zip(&self.host, tensors)
                .all(|(host, tensor)| host.size() == tensor.size());
        if !fits {
            let place = |tensor: &&Tensor| {
                native::pinned(&Tensor::zeros(tensor.size(), (Kind::Float, Device::Cpu)))
            };
            self.host = tensors.iter().map(place).collect();
        }
        for (host, tensor) in std::iter::zip(&self.host, tensors) {
            native::copy_async(host, tensor);
        }
        native::synchronize(Device::Cuda(index));
        self.host.iter().map(crate::array_of).collect()
    }
}

/// Results on their way from a device to the host.
pub struct Arriving {
    host: Vec<Tensor>,
    arrived: Option<Mark>,
}

impl Arriving {
    /// Tensors of float32 numbers as they are once the device has done what the calling thread asked
    /// of it. Does not wait.
    pub fn of(tensors: &[&Tensor]) -> Self {
        let device = tensors
            .first()
            .map_or(Device::Cpu, |tensor| tensor.device());
        let land = |tensor: &&Tensor| match device {
            Device::Cuda(_) => {
                let zeros = Tensor::zeros(tensor.size(), (Kind::Float, Device::Cpu));
                let host = native::pinned(&zeros);
                native::copy_async(&host, tensor);
                host
            }
            _ => tensor.shallow_clone(),
        };
        Self {
            host: tensors.iter().map(land).collect(),
            arrived: Mark::here(device),
        }
    }

    /// Waits for them.
    pub fn wait(self) -> Vec<Array> {
        if let Some(arrived) = &self.arrived {
            arrived.wait();
        }
        self.host.iter().map(crate::array_of).collect()
    }
}

/// Moves an array to memory from which the device can fetch by itself, where the device is a GPU.
pub fn pin(array: &mut Array, device: Device) {
    if let Device::Cuda(_) = device {
        array.move_to(|words| native::PinnedMemory::new(words, device));
    }
}

/// Copies those arrays that are [`pin`]ned to their device, and waits until they are there: any
/// thread may do so ahead of the one that [`load`](Staging::load)s them.
pub fn send<'a>(arrays: impl IntoIterator<Item = &'a mut Array>) {
    let mut device = Device::Cpu;
    for array in arrays {
        let memory = array
            .memory_mut()
            .and_then(|memory| memory.as_any_mut().downcast_mut());
        if let Some(memory) = memory {
            let memory: &mut native::PinnedMemory = memory;
            device = memory.device();
            native::own_stream(device);
            memory.send();
        }
    }
    native::synchronize(device);
}

/// Whether a device sees what was last written into an array, [`pin`]ned, [`sent`](send) ahead, and
/// changed after it was sent.
pub fn staging_works(device: Device) -> bool {
    let mut array = Array::from_slice(&[1f32, 2.0], &[2]);
    pin(&mut array, device);
    let staging = Staging::new(2, &Spec::scalar(array.dtype()), device);
    let seen = |array: &Array| {
        native::own_stream(device);
        staging.load(array);
        native::synchronize(device);
        crate::array_of(staging.tensor()).as_slice::<f32>().to_vec()
    };
    let mut same = seen(&array) == [1.0, 2.0];
    array.as_mut_slice::<f32>()[0] = 3.0;
    send([&mut array]);
    same &= seen(&array) == [3.0, 2.0];
    array.as_mut_slice::<f32>()[1] = 4.0;
    same & (seen(&array) == [3.0, 4.0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_seen() {
        assert!(staging_works(Device::Cpu));
    }
}
