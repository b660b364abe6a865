//! Computations that are recorded once and replayed with one call.

use tch::{Device, Tensor};

use crate::native::{self, RawGraph};

/// Runs before recording: libraries choose their algorithms and take their memory in the first.
const WARM_UP: usize = 3;

/// A computation on tensors that stay where they are.
///
/// On a GPU the first runs are ordinary, then it is recorded as a CUDA graph, and from then on a
/// run is one launch instead of hundreds. On the CPU every run is ordinary.
///
/// For this to be the same computation, everything it reads must lie in tensors that outlive it
/// and are only overwritten, never replaced; it must not read numbers back to the host, and its
/// shapes must not change.
pub struct Graph {
    device: Device,
    /// Off, every run is ordinary.
    enabled: bool,
    runs: usize,
    recorded: Option<(RawGraph, Vec<Tensor>)>,
}

impl Graph {
    /// A computation that nothing is known of yet.
    pub fn new(device: Device, enabled: bool) -> Self {
        Self {
            device,
            enabled,
            runs: 0,
            recorded: None,
        }
    }

    /// Runs the computation. What it returns is overwritten by the next run.
    ///
    /// `compute` must be the same computation at each call.
    pub fn run(&mut self, compute: impl FnOnce() -> Vec<Tensor>) -> Vec<Tensor> {
        if !self.enabled || !matches!(self.device, Device::Cuda(_)) {
            return compute();
        }
        native::own_stream(self.device);
        self.runs += 1;
        if self.recorded.is_none() {
            if self.runs <= WARM_UP {
                return compute();
            }
            let Some(mut graph) = RawGraph::new() else {
                self.enabled = false;
                return compute();
            };
            graph.begin();
            let outputs = compute();
            graph.end();
            self.recorded = Some((graph, outputs));
        }
        let Some((graph, outputs)) = &mut self.recorded else {
            return Vec::new();
        };
        graph.replay();
        outputs.iter().map(Tensor::shallow_clone).collect()
    }

    /// Forgets the recording: the tensors or shapes it was made of are no longer the same.
    pub fn reset(&mut self) {
        self.recorded = None;
        self.runs = 0;
    }
}

impl std::fmt::Debug for Graph {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Graph")
            .field("device", &self.device)
            .field("recorded", &self.recorded.is_some())
            .finish_non_exhaustive()
    }
}
