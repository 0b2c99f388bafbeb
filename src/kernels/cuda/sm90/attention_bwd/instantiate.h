// The shapes that are compiled; one translation unit a head dim.
#pragma once

#include "kernels/cuda/sm90/attention_bwd/config.h"

namespace hysparse::cuda::attention_bwd {

struct Kernel {
  cudaError_t (*launch)(const Params&, bool deterministic, int ctas, cudaStream_t) = nullptr;
  cudaError_t (*before)(const RowParams&, cudaStream_t) = nullptr;
  cudaError_t (*after)(const RowParams&, cudaStream_t) = nullptr;
  int m = 0, n = 0;  // query rows and keys a tile
  int tile = 0;      // floats of dQ a query tile
};
// An empty Kernel where no shape fits.
Kernel find_kernel(int head_dim, int v_head_dim);

Kernel find_64();
Kernel find_96();
Kernel find_128();
Kernel find_192();  // 192/128
Kernel find_256();

}  // namespace hysparse::cuda::attention_bwd
