#pragma once

#include "kernels/cuda/sm90/attention_fwd/instantiate.h"
#include "kernels/cuda/sm90/attention_fwd/kernel.cuh"

namespace hysparse::cuda::attention_fwd {

template <class C>
cudaError_t launch(const Params& p, cudaStream_t stream) {
  static const cudaError_t configured =
      cudaFuncSetAttribute(kernel<C>, cudaFuncAttributeMaxDynamicSharedMemorySize, C::kSmem);
  if (configured != cudaSuccess) return configured;
  kernel<C><<<p.tile_count * p.heads, C::kThreads, C::kSmem, stream>>>(p);
  return cudaGetLastError();
}

template <int kD, int kDV, int kN>
Kernel find_group(int group) {
  switch (group) {
    case 0:
      return {launch<Config<kD, kDV, kN, 0>>, kN};
    case 16:
      return {launch<Config<kD, kDV, kN, 16>>, kN};
    case 32:
      return {launch<Config<kD, kDV, kN, 32>>, kN};
    case 64:
      return {launch<Config<kD, kDV, kN, 64>>, kN};
    default:
      return {};
  }
}

}  // namespace hysparse::cuda::attention_fwd
