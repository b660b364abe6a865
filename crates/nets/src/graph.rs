//! Computations that are recorded once and replayed with one call.

use tch::Device;

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
pub struct Graph<T> {
    device: Device,
    /// Off, every run is ordinary.
    enabled: bool,
    runs: usize,
    recorded: Option<RawGraph>,
    output: Option<T>,
}

impl<T> Graph<T> {
    /// A computation that nothing is known of yet.
    pub fn new(device: Device, enabled: bool) -> Self {
        Self {
            device,
            enabled: enabled && matches!(device, Device::Cuda(_)),
            runs: 0,
            recorded: None,
            output: None,
        }
    }

    /// Runs the computation, which must be the same at each call. The tensors that it returns
    /// are overwritten by the next run.
    pub fn run(&mut self, compute: impl FnOnce() -> T) -> &T {
        if self.enabled {
            native::own_stream(self.device);
            self.runs += 1;
            if self.runs == WARM_UP + 1 {
                match RawGraph::new() {
                    None => self.enabled = false,
                    Some(mut graph) => {
                        graph.begin();
                        let output = compute();
                        graph.end();
                        graph.replay();
                        self.recorded = Some(graph);
                        return self.output.insert(output);
                    }
                }
            }
        }
        if let (Some(graph), true) = (&mut self.recorded, self.output.is_some()) {
            graph.replay();
            return self.output.get_or_insert_with(compute);
        }
        self.output.insert(compute())
    }

    /// Forgets the recording: the tensors or shapes it was made of are no longer the same.
    pub fn reset(&mut self) {
        self.recorded = None;
        self.output = None;
        self.runs = 0;
    }
}

impl<T> std::fmt::Debug for Graph<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Graph")
            .field("device", &self.device)
            .field("recorded", &self.recorded.is_some())
            .finish_non_exhaustive()
    }
}
