// CUDA graphs and streams. A library of its own, opened after libtorch's CUDA half, so that the
// program starts on machines without it. All functions return 0, or 1 after leaving a message for
// `starling_cuda_error`.

#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAStream.h>

#include <exception>
#include <mutex>
#include <string>

namespace {
thread_local std::string message;

// libtorch notes every graph in the state of its random generator, in a set without a lock.
std::mutex graphs;

template <typename Work>
int guarded(Work work) {
  try {
    work();
    return 0;
  } catch (const std::exception& error) {
    message = error.what();
    return 1;
  }
}
}  // namespace

extern "C" {

const char* starling_cuda_error() { return message.c_str(); }

// Gives the calling thread a stream of its own unless it has one: graphs cannot be recorded on
// the default stream, and threads that share it wait for each other. The work of an urgent stream
// is done before waiting work of others.
int starling_own_stream(int device, int urgent) {
  return guarded([&] {
    auto current = c10::cuda::getCurrentCUDAStream(device);
    if (current == c10::cuda::getDefaultCUDAStream(device)) {
      current.synchronize();
      c10::cuda::setCurrentCUDAStream(c10::cuda::getStreamFromPool(urgent != 0, device));
    }
  });
}

// Waits until the calling thread's stream has done all it was given.
int starling_synchronize(int device) {
  return guarded([&] { c10::cuda::getCurrentCUDAStream(device).synchronize(); });
}

at::cuda::CUDAGraph* starling_graph_new() {
  at::cuda::CUDAGraph* graph = nullptr;
  guarded([&] { graph = new at::cuda::CUDAGraph(); });
  return graph;
}

void starling_graph_free(at::cuda::CUDAGraph* graph) {
  std::lock_guard<std::mutex> lock(graphs);
  delete graph;
}

// Only work of the calling thread is recorded; other threads go on with theirs.
int starling_graph_begin(at::cuda::CUDAGraph* graph) {
  return guarded([&] {
    std::lock_guard<std::mutex> lock(graphs);
    graph->capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
  });
}

int starling_graph_end(at::cuda::CUDAGraph* graph) {
  return guarded([&] { graph->capture_end(); });
}

int starling_graph_replay(at::cuda::CUDAGraph* graph) {
  return guarded([&] { graph->replay(); });
}
}
