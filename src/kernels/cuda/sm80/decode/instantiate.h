// The decode kernels of one kind of pages and one pair of (padded) head dims.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/sm80/decode/codes.cuh"

namespace hysparse::cuda::decode {

struct FullParams;
struct SparseParams;

template <Code kCode, int kD, int kDv>
struct Kernels {
  static cudaError_t full(const FullParams& p, int batch, cudaStream_t stream);
  static cudaError_t sparse(const SparseParams& p, int batch, cudaStream_t stream);
};

}  // namespace hysparse::cuda::decode
