#pragma once

#include "kernels/cuda/common/batch.h"
#include "kernels/cuda/sm90/attention_fwd/config.h"

namespace hysparse::cuda::window_fwd {

struct BandParams;

// The kernel of short windows; launch == null where no shape fits.
struct BandKernel {
  cudaError_t (*launch)(const BandParams&, int tiles, cudaStream_t) = nullptr;
  int tokens = 0, keys = 0;  // a tile
  int longest = 0;           // window
};
struct Kernel {
  cudaError_t (*launch)(const attention_fwd::Params&, cudaStream_t) = nullptr;
  int n = 0;  // keys a tile
  BandKernel (*band)(int ratio) = nullptr;
};
Kernel kernel_64();
Kernel kernel_96();
Kernel kernel_128();
Kernel kernel_192();  // 192/128
Kernel kernel_256();

bool takes(int head_dim, int v_head_dim);
int run(const hysparse_cuda_window_params& p, cudaStream_t stream);

}  // namespace hysparse::cuda::window_fwd
