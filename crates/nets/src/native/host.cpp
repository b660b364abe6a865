// What tch does not wrap and every build of libtorch has. All functions return 0, or 1 after
// leaving a message for `starling_native_error`.

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_fused_adam.h>

#include "guarded.h"

extern "C" {

const char* starling_native_error() { return message.c_str(); }

// One step of Adam over one vector; `steps` and `rate` are tensors on the vector's device.
int starling_fused_adam(at::Tensor* params, const at::Tensor* gradient, at::Tensor* mean,
                        at::Tensor* square, at::Tensor* steps, const at::Tensor* rate,
                        double beta1, double beta2, double eps) {
  return guarded([&] {
    at::_fused_adam_({*params}, {*gradient}, {*mean}, {*square}, {}, {*steps}, *rate, beta1, beta2,
                     /*weight_decay=*/0.0, eps, /*amsgrad=*/false, /*maximize=*/false);
  });
}

// Copies without waiting for a GPU where the memory allows it.
int starling_copy_async(at::Tensor* to, const at::Tensor* from) {
  return guarded([&] { to->copy_(*from, /*non_blocking=*/true); });
}

// A copy in pinned memory, from which a GPU can fetch by itself; null on failure.
at::Tensor* starling_pinned(const at::Tensor* tensor) {
  at::Tensor* pinned = nullptr;
  guarded([&] { pinned = new at::Tensor(tensor->pin_memory()); });
  return pinned;
}

// The same memory, whose changes automatic differentiation does not notice; null on failure.
at::Tensor* starling_unnoticed(const at::Tensor* tensor) {
  at::Tensor* same = nullptr;
  guarded([&] { same = new at::Tensor(tensor->variable_data()); });
  return same;
}

// Lets a GPU round the inputs of products to 10 bits of mantissa (TensorFloat-32), and lets cuDNN
// measure which algorithm is fastest for each shape.
int starling_tune(int tf32, int benchmark) {
  return guarded([&] {
    auto& context = at::globalContext();
    context.setAllowTF32CuDNN(tf32 != 0);
    context.setAllowTF32CuBLAS(tf32 != 0);
    context.setBenchmarkCuDNN(benchmark != 0);
  });
}
}
