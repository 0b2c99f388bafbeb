// The shapes that are compiled; one translation unit a head dim.
#pragma once

#include "kernels/cuda/sm90/attention_fwd/config.h"

namespace hysparse::cuda::attention_fwd {

struct Kernel {
  cudaError_t (*launch)(const Params&, cudaStream_t) = nullptr;
  int n = 0;  // keys a tile
};
// group: tokens a raw score (16, 32 or 64), 0 for none. An empty Kernel where no shape fits.
Kernel find_kernel(int head_dim, int v_head_dim, int group);

Kernel find_64(int group);
Kernel find_96(int group);
Kernel find_128(int group);
Kernel find_192(int group);  // 192/128
Kernel find_256(int group);

}  // namespace hysparse::cuda::attention_fwd
