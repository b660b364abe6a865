//! Computations that are recorded once and replayed with one call.

use std::sync::{PoisonError, RwLock};

use tch::Device;

use crate::native::{self, RawGraph};

/// Runs before recording: libraries choose their algorithms and take their memory in the first.
const WARM_UP: usize = 3;

/// Held exclusively while a computation is recorded, and shared by computations that are not. The
/// first time that libraries see a shape they may do what concerns the whole device (measure
/// algorithms, give memory back), and that breaks a recording under way in another thread.
static RECORDING: RwLock<()> = RwLock::new(());

/// Runs a computation on a device that is not [`Recorded`], so that it does not disturb the
/// recordings of other threads. It must not contain another one.
pub fn unrecorded<T>(device: Device, compute: impl FnOnce() -> T) -> T {
    let _shared = matches!(device, Device::Cuda(_))
        .then(|| RECORDING.read().unwrap_or_else(PoisonError::into_inner));
    compute()
}

/// A computation that owns its inputs: fill them, run, read the output.
///
/// On a GPU the first runs are ordinary, then the computation is recorded as a CUDA graph, and from
/// then on a run is one launch instead of hundreds. On the CPU every run is ordinary.
///
/// The computation is given once and owns all that it reads, so a recording never outlives its
/// tensors. [`inputs`](Recorded::inputs) are only lent: their tensors can be overwritten, not
/// replaced. The computation must not read numbers back to the host, and its shapes must not change.
pub struct Recorded<I, O> {
    device: Device,
    /// Off, every run is ordinary.
    enabled: bool,
    runs: usize,
    graph: Option<RawGraph>,
    output: Option<O>,
    compute: Box<dyn Fn(&I) -> O + Send>,
    inputs: I,
}

impl<I, O> Recorded<I, O> {
    /// A computation on the tensors of a device.
    pub fn new(device: Device, inputs: I, compute: impl Fn(&I) -> O + Send + 'static) -> Self {
        Self {
            device,
            enabled: matches!(device, Device::Cuda(_)),
            runs: 0,
            graph: None,
            output: None,
            compute: Box::new(compute),
            inputs,
        }
    }

    /// What the computation reads, to be filled before a run.
    pub fn inputs(&self) -> &I {
        &self.inputs
    }

    /// Runs the computation. The tensors of the output are overwritten by the next run.
    pub fn run(&mut self) -> &O {
        if self.enabled {
            native::own_stream(self.device);
            if let (Some(graph), Some(_)) = (&mut self.graph, &self.output) {
                graph.replay();
                return self
                    .output
                    .get_or_insert_with(|| (self.compute)(&self.inputs));
            }
            self.runs += 1;
            if self.runs > WARM_UP {
                match RawGraph::new() {
                    None => self.enabled = false,
                    Some(mut graph) => {
                        let exclusive = RECORDING.write();
                        graph.begin();
                        let output = (self.compute)(&self.inputs);
                        graph.end();
                        drop(exclusive);
                        graph.replay();
                        self.graph = Some(graph);
                        return self.output.insert(output);
                    }
                }
            }
        }
        let output = unrecorded(self.device, || (self.compute)(&self.inputs));
        self.output.insert(output)
    }
}

impl<I: std::fmt::Debug, O> std::fmt::Debug for Recorded<I, O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recorded")
            .field("inputs", &self.inputs)
            .field("recorded", &self.graph.is_some())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::{Kind, Tensor};

    /// Fill, run, read: every run sees what its inputs hold by then.
    #[test]
    fn a_run_reads_the_inputs_as_they_are() {
        let factor = Tensor::from(3f32);
        let inputs = Tensor::zeros([2], (Kind::Float, Device::Cpu));
        let mut tripled = Recorded::new(Device::Cpu, inputs, move |x: &Tensor| x * &factor);
        for number in 1..8 {
            let _ = tripled.inputs().shallow_clone().fill_(f64::from(number));
            let output = Vec::<f32>::try_from(tripled.run()).unwrap();
            assert_eq!(output, [3.0 * number as f32; 2]);
        }
    }
}
