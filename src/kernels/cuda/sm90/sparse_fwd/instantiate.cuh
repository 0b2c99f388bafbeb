#pragma once

#include "kernels/cuda/sm90/sparse_fwd/instantiate.h"
#include "kernels/cuda/sm90/sparse_fwd/kernel.cuh"

namespace hysparse::cuda::sparse_fwd {

template <class C>
cudaError_t launch(const Params& p, cudaStream_t stream) {
  static const cudaError_t configured =
      cudaFuncSetAttribute(kernel<C>, cudaFuncAttributeMaxDynamicSharedMemorySize, C::kSmem);
  if (configured != cudaSuccess) return configured;
  kernel<C><<<p.lists.tile_count * p.kv_heads, C::kThreads, C::kSmem, stream>>>(p);
  return cudaGetLastError();
}

template <int kD, int kDV>
cudaError_t launch_partials(const GatherParams& p, int ctas, cudaStream_t stream) {
  using C = GatherConfig<kD, kDV>;
  static const cudaError_t configured =
      cudaFuncSetAttribute(gather_kernel<C>, cudaFuncAttributeMaxDynamicSharedMemorySize, C::kSmem);
  if (configured != cudaSuccess) return configured;
  gather_kernel<C><<<ctas, C::kThreads, C::kSmem, stream>>>(p);
  return cudaGetLastError();
}

template <int kDV>
cudaError_t launch_combine(const CombineParams& p, int heads, cudaStream_t stream) {
  combine_kernel<kDV><<<dim3(p.unions.tile_count, heads), 256, 0, stream>>>(p);
  return cudaGetLastError();
}

template <int kD, int kDV>
Gather make_gather() {
  return {launch_partials<kD, kDV>, launch_combine<kDV>};
}

template <int kD, int kDV>
Launch find_block(int block) {
  switch (block) {
    case 16:
      return launch<Config<kD, kDV, 16>>;
    case 32:
      return launch<Config<kD, kDV, 32>>;
    case 64:
      return launch<Config<kD, kDV, 64>>;
    default:
      return nullptr;
  }
}

}  // namespace hysparse::cuda::sparse_fwd
