// What every attention backward starts with: delta = rowsum(o * dO), and the sinks' gradient from it.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "hysparse/cuda.h"

namespace hysparse::cuda {

// delta [tokens, heads] of bf16 [tokens, heads, dv] tensors; dv a multiple of 8.
cudaError_t attention_delta(const hysparse_cuda_tensor& o, const hysparse_cuda_tensor& d_o, int tokens,
                            int heads, int dv, float* delta, cudaStream_t stream);

// dsinks[h] -= sum over tokens of exp(sink - lse) delta, in a fixed order.
size_t sink_gradient_workspace(int tokens, int heads);
cudaError_t sink_gradient(const float* sinks, const float* lse, const float* delta, int tokens, int heads,
                          float* dsinks, void* workspace, cudaStream_t stream);

}  // namespace hysparse::cuda
