#pragma once

#include "kernels/cuda/sm90/attention_bwd/instantiate.h"
#include "kernels/cuda/sm90/attention_bwd/kernel.cuh"
#include "kernels/cuda/sm90/attention_bwd/rows.cuh"

namespace hysparse::cuda::attention_bwd {

template <class C, bool kDeterministic>
cudaError_t launch_as(const Params& p, int ctas, cudaStream_t stream) {
  static const cudaError_t configured =
      cudaFuncSetAttribute(kernel<C, kDeterministic>, cudaFuncAttributeMaxDynamicSharedMemorySize, C::kSmem);
  if (configured != cudaSuccess) return configured;
  kernel<C, kDeterministic><<<ctas, C::kThreads, C::kSmem, stream>>>(p);
  return cudaGetLastError();
}
template <class C>
cudaError_t launch(const Params& p, bool deterministic, int ctas, cudaStream_t stream) {
  return deterministic ? launch_as<C, true>(p, ctas, stream) : launch_as<C, false>(p, ctas, stream);
}
template <class C>
cudaError_t before(const RowParams& p, cudaStream_t stream) {
  before_kernel<C><<<p.heads * p.q_tiles, 256, 0, stream>>>(p);
  return cudaGetLastError();
}
template <class C>
cudaError_t after(const RowParams& p, cudaStream_t stream) {
  after_kernel<C><<<p.heads * p.q_tiles, 256, 0, stream>>>(p);
  return cudaGetLastError();
}

template <class C>
Kernel make_kernel() {
  return {launch<C>, before<C>, after<C>, C::kM, C::kN, C::kTile};
}

}  // namespace hysparse::cuda::attention_bwd
