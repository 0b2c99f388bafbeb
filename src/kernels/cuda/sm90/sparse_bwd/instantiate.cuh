#pragma once

#include "kernels/cuda/sm90/sparse_bwd/combine.cuh"
#include "kernels/cuda/sm90/sparse_bwd/instantiate.h"
#include "kernels/cuda/sm90/sparse_bwd/kernel.cuh"

namespace hysparse::cuda::sparse_bwd {

template <class C>
cudaError_t launch_main(const Params& p, int ctas, cudaStream_t stream) {
  static const cudaError_t configured =
      cudaFuncSetAttribute(kernel<C>, cudaFuncAttributeMaxDynamicSharedMemorySize, C::kSmem);
  if (configured != cudaSuccess) return configured;
  kernel<C><<<ctas, C::kThreads, C::kSmem, stream>>>(p);
  return cudaGetLastError();
}

template <int kD>
cudaError_t launch_combine(const CombineParams& p, int heads, cudaStream_t stream) {
  const int64_t rows = int64_t(p.index.pass_tokens()) * p.ratio;
  combine_kernel<kD><<<dim3(unsigned((rows + 7) / 8), heads), 256, 0, stream>>>(p);
  return cudaGetLastError();
}

template <int kD, int kDV>
Kernels make_kernels() {
  return {launch_main<Config<kD, kDV>>, launch_combine<kD>};
}

}  // namespace hysparse::cuda::sparse_bwd
