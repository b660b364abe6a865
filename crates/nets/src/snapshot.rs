//! Immutable copies of weights.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use tch::{Device, Tensor};

use crate::native::{self, Mark};
use crate::{Params, ShapeMismatch};

/// All values of [`Params`] at one moment, to be handed to others; clones share them.
///
/// A snapshot of weights on a GPU stays there: users on the same GPU copy it there, and only
/// [`values`](Snapshot::values) copies it to the host.
#[derive(Clone)]
pub struct Snapshot(Arc<Inner>);

struct Inner {
    /// A tensor may be used by one thread at a time.
    on_device: Option<Mutex<Copied>>,
    values: OnceLock<Vec<f32>>,
}

/// A copy that a GPU makes.
struct Copied {
    tensor: Tensor,
    made: Option<Mark>,
}

impl Copied {
    /// The copy, once it is made.
    fn get(&self) -> &Tensor {
        if let Some(made) = &self.made {
            made.wait();
        }
        &self.tensor
    }
}

impl Snapshot {
    /// Values that came from elsewhere.
    pub fn from_values(values: Vec<f32>) -> Self {
        Self(Arc::new(Inner {
            on_device: None,
            values: values.into(),
        }))
    }

    /// All values in the order of the layout, on the host.
    pub fn values(&self) -> &[f32] {
        self.0.values.get_or_init(|| match &self.0.on_device {
            Some(copied) => to_vec(copied.lock().unwrap_or_else(PoisonError::into_inner).get()),
            None => Vec::new(),
        })
    }
}

impl Params {
    /// All values as they are now.
    pub fn snapshot(&self) -> Snapshot {
        let flat = self.flat();
        match self.device() {
            Device::Cuda(_) => {
                let copied = Copied {
                    tensor: flat.copy(),
                    // Others read it on streams of their own.
                    made: Mark::here(self.device()),
                };
                Snapshot(Arc::new(Inner {
                    on_device: Some(Mutex::new(copied)),
                    values: OnceLock::new(),
                }))
            }
            _ => Snapshot::from_values(to_vec(flat)),
        }
    }

    /// Takes over all values of a snapshot of the same layout.
    pub fn load(&self, snapshot: &Snapshot) -> Result<(), ShapeMismatch> {
        if let Some(copied) = &snapshot.0.on_device {
            let copied = copied.lock().unwrap_or_else(PoisonError::into_inner);
            let tensor = &copied.tensor;
            if tensor.device() == self.device() && tensor.size() == self.flat().size() {
                native::own_stream(self.device());
                tch::no_grad(|| self.flat().shallow_clone().copy_(copied.get()));
                // Its memory may be given to somebody else as soon as it is dropped.
                native::synchronize(self.device());
                return Ok(());
            }
        }
        self.load_slice(snapshot.values())
    }
}

fn to_vec(tensor: &Tensor) -> Vec<f32> {
    let mut values = vec![0.0; tensor.numel()];
    tensor
        .to_device(Device::Cpu)
        .copy_data(&mut values, tensor.numel());
    values
}

impl PartialEq for Snapshot {
    fn eq(&self, other: &Self) -> bool {
        self.values() == other.values()
    }
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let place = match (&self.0.on_device, self.0.values.get()) {
            (Some(_), None) => "on the device",
            _ => "on the host",
        };
        write!(f, "Snapshot({place})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Init, Layout};

    /// A snapshot keeps its values while the parameters move on, and fits only their layout.
    #[test]
    fn a_snapshot_stays_as_it_was() {
        let layout = |size: usize| {
            let mut layout = Layout::default();
            layout.add("w", &[size], Init::Constant(0.0));
            Arc::new(layout)
        };
        let params = Params::zeros(&layout(2), Device::Cpu);
        params.load_slice(&[1.0, 2.0]).unwrap();
        let snapshot = params.snapshot();
        params.load_slice(&[3.0, 4.0]).unwrap();
        assert_eq!(snapshot.values(), [1.0, 2.0]);
        params.load(&snapshot).unwrap();
        assert_eq!(params.to_vec(), [1.0, 2.0]);
        let other = Params::zeros(&layout(3), Device::Cpu);
        assert!(other.load(&snapshot).is_err());
    }
}
