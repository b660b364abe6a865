// Groups of processes that reduce and broadcast tensors: c10d's Gloo, which libtorch contains.
// Functions return 0 or a pointer; otherwise they leave a message for `starling_gloo_error`.

#define USE_C10D_GLOO
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <chrono>
#include <vector>

#include "guarded.h"

namespace {
using std::chrono::milliseconds;
}  // namespace

extern "C" {

const char* starling_gloo_error() { return message.c_str(); }

// The store by which the members of a group find each other. With a listening socket (`socket` is not
// negative), which it takes over, it serves the store; otherwise it connects to one.
c10d::TCPStore* starling_store_new(const char* host, uint16_t port, int socket,
                                   int64_t timeout_ms) {
  c10d::TCPStore* store = nullptr;
  guarded([&] {
    c10d::TCPStoreOptions options;
    options.port = port;
    options.isServer = socket >= 0;
    if (socket >= 0) {
      options.masterListenFd = socket;
    }
    options.waitWorkers = false;
    options.timeout = milliseconds(timeout_ms);
    store = c10::make_intrusive<c10d::TCPStore>(host, options).release();
  });
  return store;
}

void starling_store_free(c10d::TCPStore* store) {
  guarded([&] { c10::intrusive_ptr<c10d::TCPStore>::reclaim(store); });
}

// One member of a group. All members name the same `prefix`; `address` is where the others reach it.
c10d::ProcessGroupGloo* starling_gloo_new(c10d::TCPStore* store, const char* prefix,
                                          const char* address, int rank, int size,
                                          int64_t timeout_ms) {
  c10d::ProcessGroupGloo* group = nullptr;
  guarded([&] {
    auto shared = c10::intrusive_ptr<c10d::Store>::reclaim_copy(store);
    auto named = c10::make_intrusive<c10d::PrefixStore>(prefix, shared);
    auto options = c10d::ProcessGroupGloo::Options::create(milliseconds(timeout_ms));
    options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(address));
    options->threads = 1;
    group = c10::make_intrusive<c10d::ProcessGroupGloo>(named, rank, size, options).release();
  });
  return group;
}

void starling_gloo_free(c10d::ProcessGroupGloo* group) {
  guarded([&] { c10::intrusive_ptr<c10d::ProcessGroupGloo>::reclaim(group); });
}

// Replaces a tensor by its sum over the group.
int starling_gloo_sum(c10d::ProcessGroupGloo* group, const at::Tensor* tensor) {
  return guarded([&] {
    std::vector<at::Tensor> tensors{*tensor};
    group->allreduce(tensors)->wait();
  });
}

// Replaces a tensor by that of the member `root`.
int starling_gloo_broadcast(c10d::ProcessGroupGloo* group, const at::Tensor* tensor, int root) {
  return guarded([&] {
    std::vector<at::Tensor> tensors{*tensor};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    group->broadcast(tensors, options)->wait();
  });
}
}
