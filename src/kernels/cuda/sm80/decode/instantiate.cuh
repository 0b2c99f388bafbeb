#pragma once

#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/sm80/decode/full.cuh"
#include "kernels/cuda/sm80/decode/instantiate.h"
#include "kernels/cuda/sm80/decode/sparse.cuh"

namespace hysparse::cuda::decode {

template <Code kCode, int kD, int kDv, int kRows>
cudaError_t launch_full(const FullParams& p, int batch, cudaStream_t stream) {
  constexpr int kStages = kCode == Code::bf16 ? 3 : 4;
  constexpr int kSmem = kSplitWarps * KeyPipe<kCode, kD, kDv, kStages>::kBytes;
  constexpr auto kKernel = full_kernel<kCode, kD, kDv, kRows, kStages>;
  const cudaError_t e = cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSmem);
  if (e != cudaSuccess) return e;
  return launch_overlapped<kKernel>(dim3(p.kv_heads, p.splits, batch), kSplitWarps * 32, stream,
                                    {.shared_bytes = kSmem}, p);
}

template <Code kCode, int kD, int kDv>
cudaError_t Kernels<kCode, kD, kDv>::full(const FullParams& p, int batch, cudaStream_t stream) {
  return p.q_heads / p.kv_heads <= 8 ? launch_full<kCode, kD, kDv, 8>(p, batch, stream)
                                     : launch_full<kCode, kD, kDv, 16>(p, batch, stream);
}

template <Code kCode, int kD, int kDv, int kRows, int kCluster>
cudaError_t launch_sparse(const SparseParams& p, int batch, cudaStream_t stream) {
  constexpr int kSmem = SparseSmem<kCode, kD, kDv>::kAll;
  constexpr auto kKernel = sparse_kernel<kCode, kD, kDv, kRows, kCluster>;
  const cudaError_t e = cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSmem);
  if (e != cudaSuccess) return e;
  return launch_overlapped<kKernel>(dim3(p.kv_heads * kCluster, batch), kSparseThreads, stream,
                                    {.shared_bytes = kSmem, .cluster = kCluster}, p);
}
template <Code kCode, int kD, int kDv, int kRows>
cudaError_t launch_sparse(const SparseParams& p, int batch, cudaStream_t stream) {
  constexpr int kCluster = 8;
  static const bool clusters = [] {
    bool hopper = false;
    return built_for_hopper(sparse_kernel<kCode, kD, kDv, kRows, kCluster>, hopper) == cudaSuccess && hopper;
  }();
  return clusters ? launch_sparse<kCode, kD, kDv, kRows, kCluster>(p, batch, stream)
                  : launch_sparse<kCode, kD, kDv, kRows, 1>(p, batch, stream);
}

template <Code kCode, int kD, int kDv>
cudaError_t Kernels<kCode, kD, kDv>::sparse(const SparseParams& p, int batch, cudaStream_t stream) {
  return p.q_heads / p.kv_heads <= 8 ? launch_sparse<kCode, kD, kDv, 8>(p, batch, stream)
                                     : launch_sparse<kCode, kD, kDv, 16>(p, batch, stream);
}

}  // namespace hysparse::cuda::decode
