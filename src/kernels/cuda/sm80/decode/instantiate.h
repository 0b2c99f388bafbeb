// The decode kernels of one pair of (padded) head dims.
#pragma once

#include <cuda_runtime.h>

namespace hysparse::cuda::decode {

struct FullParams;
struct SparseParams;

template <int kD, int kDv>
struct Kernels {
  static cudaError_t full(const FullParams& p, int batch, cudaStream_t stream);
  static cudaError_t sparse(const SparseParams& p, int batch, cudaStream_t stream);
};

}  // namespace hysparse::cuda::decode
