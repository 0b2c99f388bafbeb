#pragma once

#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/sm80/decode/full.cuh"
#include "kernels/cuda/sm80/decode/instantiate.h"
#include "kernels/cuda/sm80/decode/sparse.cuh"

namespace hysparse::cuda::decode {

template <int kD, int kDv, int kRows, int kStages>
cudaError_t launch_full(const FullParams& p, int batch, cudaStream_t stream) {
  constexpr int kSmem = kSplitWarps * KeyPipe<kD, kDv, kStages>::kBytes;
  constexpr auto kKernel = full_kernel<kD, kDv, kRows, kStages>;
  const cudaError_t e = cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSmem);
  if (e != cudaSuccess) return e;
  return launch_overlapped<kKernel>(dim3(p.kv_heads, p.splits, batch), kSplitWarps * 32, stream,
                                    {.shared_bytes = kSmem}, p);
}

template <int kD, int kDv>
cudaError_t Kernels<kD, kDv>::full(const FullParams& p, int batch, cudaStream_t stream) {
  return p.q_heads / p.kv_heads <= 8 ? launch_full<kD, kDv, 8, 3>(p, batch, stream)
                                     : launch_full<kD, kDv, 16, 3>(p, batch, stream);
}

template <int kD, int kDv, int kRows, int kCluster>
cudaError_t launch_sparse(const SparseParams& p, int batch, cudaStream_t stream) {
  constexpr int kSmem = kSparseSmem<kD, kDv>;
  constexpr auto kKernel = sparse_kernel<kD, kDv, kRows, kCluster>;
  const cudaError_t e = cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSmem);
  if (e != cudaSuccess) return e;
  return launch_overlapped<kKernel>(dim3(p.kv_heads * kCluster, batch), kSparseThreads, stream,
                                    {.shared_bytes = kSmem, .cluster = kCluster}, p);
}
template <int kD, int kDv, int kRows>
cudaError_t launch_sparse(const SparseParams& p, int batch, cudaStream_t stream) {
  constexpr int kCluster = 8;
  static const bool clusters = [] {
    bool hopper = false;
    return built_for_hopper(sparse_kernel<kD, kDv, kRows, kCluster>, hopper) == cudaSuccess && hopper;
  }();
  return clusters ? launch_sparse<kD, kDv, kRows, kCluster>(p, batch, stream)
                  : launch_sparse<kD, kDv, kRows, 1>(p, batch, stream);
}

template <int kD, int kDv>
cudaError_t Kernels<kD, kDv>::sparse(const SparseParams& p, int batch, cudaStream_t stream) {
  return p.q_heads / p.kv_heads <= 8 ? launch_sparse<kD, kDv, 8>(p, batch, stream)
                                     : launch_sparse<kD, kDv, 16>(p, batch, stream);
}

}  // namespace hysparse::cuda::decode
