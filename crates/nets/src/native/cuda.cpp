// CUDA graphs and streams. A library of its own, opened after libtorch's CUDA half, so that the
// program starts on machines without it. All functions return 0, or 1 after leaving a message for
// `starling_cuda_error`.

#include <ATen/cuda/CUDAGraph.h>
#include <c10/core/Event.h>
#include <c10/cuda/CUDAStream.h>

#include <memory>
#include <mutex>

#include "guarded.h"

namespace {
// libtorch notes every graph in the state of its random generator, in a set without a lock.
std::mutex graphs;
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

// The device of the calling thread from now on, for libraries that ask CUDA for it.
int starling_use_device(int device) {
  return guarded([&] { c10::cuda::set_device(static_cast<c10::DeviceIndex>(device)); });
}

// The calling thread's stream, as CUDA's own type.
void* starling_stream(int device) { return c10::cuda::getCurrentCUDAStream(device).stream(); }

// Whether the calling thread's stream has done all it was given: 0 if so, 1 if not yet, -1 after an
// error.
int starling_stream_query(int device) {
  bool done = false;
  int code = guarded([&] { done = c10::cuda::getCurrentCUDAStream(device).query(); });
  return code != 0 ? -1 : (done ? 0 : 1);
}

// A mark behind all that the calling thread's stream was given; null on failure.
c10::Event* starling_mark_new(int device) {
  c10::Event* mark = nullptr;
  guarded([&] {
    auto made = std::make_unique<c10::Event>(c10::DeviceType::CUDA);
    made->record(c10::cuda::getCurrentCUDAStream(device).unwrap());
    mark = made.release();
  });
  return mark;
}

// Waits until the GPU has come to a mark.
int starling_mark_wait(c10::Event* mark) {
  return guarded([&] { mark->synchronize(); });
}

void starling_mark_free(c10::Event* mark) { delete mark; }

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
