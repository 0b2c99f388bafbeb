#pragma once

#include "kernels/cuda/common/device.h"
#include "kernels/cuda/sm80/decode/full.cuh"
#include "kernels/cuda/sm80/decode/instantiate.h"
#include "kernels/cuda/sm80/decode/sparse.cuh"

namespace hysparse::cuda::decode {

template <int kD, int kDv, int kRows, int kStages>
cudaError_t launch_full(const FullParams& p, int batch, cudaStream_t stream) {
  constexpr int kSmem = kSplitWarps * KeyPipe<kD, kDv, kStages>::kBytes;
  const auto kernel = full_kernel<kD, kDv, kRows, kStages>;
  const cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSmem);
  if (e != cudaSuccess) return e;
  kernel<<<dim3(p.kv_heads, p.splits, batch), kSplitWarps * 32, kSmem, stream>>>(p);
  return cudaGetLastError();
}

template <int kD, int kDv>
cudaError_t Kernels<kD, kDv>::full(const FullParams& p, int batch, cudaStream_t stream) {
  return p.q_heads / p.kv_heads <= 8 ? launch_full<kD, kDv, 8, 3>(p, batch, stream)
                                     : launch_full<kD, kDv, 16, 3>(p, batch, stream);
}

template <int kD, int kDv, int kRows>
cudaError_t launch_sparse(const SparseParams& p, int batch, cudaStream_t stream) {
  constexpr int kCluster = 8, kSmem = kSparseSmem<kD, kDv>;
  bool clusters = false;
  cudaError_t e = built_for_hopper(sparse_kernel<kD, kDv, kRows, kCluster>, clusters);
  if (e != cudaSuccess) return e;
  const auto kernel = clusters ? sparse_kernel<kD, kDv, kRows, kCluster> : sparse_kernel<kD, kDv, kRows, 1>;
  e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSmem);
  if (e != cudaSuccess) return e;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {kCluster, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(p.kv_heads * (clusters ? kCluster : 1), batch);
  config.blockDim = dim3(kSparseThreads);
  config.dynamicSmemBytes = kSmem;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = clusters ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, p);
}

template <int kD, int kDv>
cudaError_t Kernels<kD, kDv>::sparse(const SparseParams& p, int batch, cudaStream_t stream) {
  return p.q_heads / p.kv_heads <= 8 ? launch_sparse<kD, kDv, 8>(p, batch, stream)
                                     : launch_sparse<kD, kDv, 16>(p, batch, stream);
}

}  // namespace hysparse::cuda::decode
