// One translation unit a head dim: the dense forward's kernel over a band of key tiles, and where short
// windows pay the kernel of one tile.
#pragma once

#include "kernels/cuda/sm90/attention_fwd/instantiate.cuh"
#include "kernels/cuda/sm90/window_fwd/band.cuh"
#include "kernels/cuda/sm90/window_fwd/launch.h"

namespace hysparse::cuda::window_fwd {

template <class C>
cudaError_t launch_band(const BandParams& p, int tiles, cudaStream_t stream) {
  static const cudaError_t configured =
      cudaFuncSetAttribute(band_kernel<C>, cudaFuncAttributeMaxDynamicSharedMemorySize, C::kSmem);
  if (configured != cudaSuccess) return configured;
  band_kernel<C><<<tiles * p.kv_heads, 256, C::kSmem, stream>>>(p);
  return cudaGetLastError();
}
template <class C>
BandKernel make_band() {
  return {launch_band<C>, 2 * C::kTokens, C::kKeys, C::kLongest};
}
template <int kD, int kDV>
BandKernel find_band(int ratio) {
  switch (ratio) {
    case 4:
      return make_band<BandConfig<kD, kDV, 16>>();
    case 8:
      return make_band<BandConfig<kD, kDV, 8>>();
    case 16:
      return make_band<BandConfig<kD, kDV, 4>>();
    default:
      return {};
  }
}
inline BandKernel no_band(int) {
  return {};
}

template <int kD, int kDV, int kN>
Kernel make_kernel(BandKernel (*band)(int ratio)) {
  return {attention_fwd::launch<attention_fwd::Config<kD, kDV, kN, 0, true>>, kN, band};
}

}  // namespace hysparse::cuda::window_fwd
