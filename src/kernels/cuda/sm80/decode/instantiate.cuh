#pragma once

#include "kernels/cuda/sm80/decode/full.cuh"
#include "kernels/cuda/sm80/decode/instantiate.h"
#include "kernels/cuda/sm80/decode/sparse.cuh"

namespace hysparse::cuda::decode {

template <int kD, int kDv, int kStages>
cudaError_t launch_full(const FullParams& p, int batch, cudaStream_t stream) {
  constexpr int kSmem = kSplitWarps * kStages * WarpTile<kD, kDv>::kStage * 2;
  const auto kernel = full_kernel<kD, kDv, kStages>;
  const cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSmem);
  if (e != cudaSuccess) return e;
  kernel<<<dim3(p.kv_heads, p.splits, batch), kSplitWarps * 32, kSmem, stream>>>(p);
  return cudaGetLastError();
}

template <int kD, int kDv>
cudaError_t Kernels<kD, kDv>::full(const FullParams& p, int batch, cudaStream_t stream) {
  constexpr int kMany = 3;
  int device = 0, most = 0;
  cudaError_t e = cudaGetDevice(&device);
  if (e == cudaSuccess) e = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  if (e != cudaSuccess) return e;
  const bool fits = kSplitWarps * kMany * WarpTile<kD, kDv>::kStage * 2 <= most;
  return fits ? launch_full<kD, kDv, kMany>(p, batch, stream) : launch_full<kD, kDv, 2>(p, batch, stream);
}

template <int kD, int kDv>
cudaError_t Kernels<kD, kDv>::sparse(const SparseParams& p, int batch, bool clusters, cudaStream_t stream) {
  constexpr int kCluster = 8, kSmem = kSparseSmem<kD, kDv>;
  const auto kernel = clusters ? sparse_kernel<kD, kDv, kCluster> : sparse_kernel<kD, kDv, 1>;
  const cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSmem);
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

}  // namespace hysparse::cuda::decode
