//! Whether this processor can compute in bfloat16.

use tch::{Device, Kind, Tensor};

/// Computes a convolution and a product in bfloat16 on the CPU, with their gradients, as networks
/// with `bf16: true` do.
///
/// Some virtual machines advertise AMX and cannot run it: there this call ends the process with
/// SIGILL. So it is made in a separate process, before a network is used: `starling train` runs
/// itself for that, and sets `ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16` if it helps. A program that
/// calls the library without `starling::commands` can do the same.
pub fn try_bf16() {
    let options = (Kind::Float, Device::Cpu);
    // Large enough that oneDNN takes its fastest kernels.
    let image = Tensor::ones([32, 16, 10, 10], options);
    let filters = Tensor::ones([32, 16, 3, 3], options).set_requires_grad(true);
    let weights = Tensor::ones([128, 32 * 8 * 8], options).set_requires_grad(true);
    let bias: Option<Tensor> = None;
    let features = image
        .to_kind(Kind::BFloat16)
        .conv2d(
            &filters.to_kind(Kind::BFloat16),
            bias.as_ref(),
            [1, 1],
            [0, 0],
            [1, 1],
            1,
        )
        .relu()
        .flatten(1, -1);
    let product = features.linear(&weights.to_kind(Kind::BFloat16), bias.as_ref());
    product.mean(Kind::Float).backward();
}
