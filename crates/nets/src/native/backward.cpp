// The backward pass, with the gradient handed over in parts as they become ready.
// Functions return 0 or a pointer; otherwise they leave a message for `starling_backward_error`.

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "guarded.h"

namespace {
using Ready = void (*)(void* context, int part);

// Where the gradients of parameters go, and which of them belong to one part. The hooks of the
// parameters share it.
struct Parts {
  std::vector<at::Tensor> places;
  std::vector<int> part_of;

  // Of the pass under way; without one, hooks do nothing.
  Ready ready = nullptr;
  void* context = nullptr;
  std::vector<bool> arrived;
  std::vector<int> missing;
  size_t next = 0;

  void begin(Ready to, void* with) {
    ready = to;
    context = with;
    next = 0;
    arrived.assign(places.size(), false);
    missing.clear();
    for (int part : part_of) {
      missing.resize(std::max(missing.size(), static_cast<size_t>(part) + 1), 0);
      missing[part] += 1;
    }
  }

  void arrive(size_t parameter) {
    arrived[parameter] = true;
    missing[part_of[parameter]] -= 1;
    // In order, whichever is complete first: all members of a group have to agree on it.
    for (; next < missing.size() && missing[next] == 0; ++next) {
      ready(context, static_cast<int>(next));
    }
  }

  // The loss does not depend on those that did not arrive.
  void finish() {
    for (size_t i = 0; i < places.size(); ++i) {
      if (!arrived[i]) {
        places[i].zero_();
        arrive(i);
      }
    }
  }
};
}  // namespace

extern "C" {

const char* starling_backward_error() { return message.c_str(); }

// Hooks on `count` parameters. The gradient of each goes to its place and belongs to its part; parts
// are numbered from 0.
std::shared_ptr<Parts>* starling_parts_new(const at::Tensor* const* parameters,
                                           const at::Tensor* const* places, const int* part_of,
                                           int count) {
  std::shared_ptr<Parts>* made = nullptr;
  guarded([&] {
    auto parts = std::make_shared<Parts>();
    for (int i = 0; i < count; ++i) {
      parts->places.push_back(*places[i]);
      parts->part_of.push_back(part_of[i]);
    }
    for (int i = 0; i < count; ++i) {
      parameters[i]->register_hook([parts, i](const at::Tensor& gradient) {
        if (parts->ready != nullptr && gradient.defined()) {
          parts->places[i].copy_(gradient);
          parts->arrive(i);
        }
      });
    }
    made = new std::shared_ptr<Parts>(std::move(parts));
  });
  return made;
}

void starling_parts_free(std::shared_ptr<Parts>* parts) { delete parts; }

// Differentiates a scalar with respect to the parameters of the hooks. `ready` is called once per part,
// in order, when its gradients are in their places.
int starling_parts_backward(std::shared_ptr<Parts>* handle, const at::Tensor* loss,
                            const at::Tensor* const* parameters, int count, Ready ready,
                            void* context) {
  Parts& parts = **handle;
  int code = guarded([&] {
    std::vector<at::Tensor> inputs;
    for (int i = 0; i < count; ++i) {
      inputs.push_back(*parameters[i]);
    }
    parts.begin(ready, context);
    torch::autograd::grad({*loss}, inputs, /*grad_outputs=*/{}, /*retain_graph=*/false,
                          /*create_graph=*/false, /*allow_unused=*/true);
    parts.finish();
  });
  parts.ready = nullptr;
  return code;
}
}
