// The shapes that are compiled; one translation unit a head dim.
#pragma once

#include "kernels/cuda/sm90/sparse_bwd/config.h"

namespace hysparse::cuda::sparse_bwd {

struct Kernels {
  cudaError_t (*main)(const Params&, int ctas, cudaStream_t) = nullptr;
  cudaError_t (*combine)(const CombineParams&, int heads, cudaStream_t) = nullptr;
};
Kernels find_kernels(int head_dim, int v_head_dim);  // main == null where no shape fits

Kernels kernels_64();
Kernels kernels_96();
Kernels kernels_128();
Kernels kernels_192();  // 192/128
Kernels kernels_256();

}  // namespace hysparse::cuda::sparse_bwd
