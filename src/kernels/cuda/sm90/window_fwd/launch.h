#pragma once

#include "kernels/cuda/common/batch.h"
#include "kernels/cuda/sm90/attention_fwd/config.h"

namespace hysparse::cuda::window_fwd {

struct Kernel {
  cudaError_t (*launch)(const attention_fwd::Params&, cudaStream_t) = nullptr;
  int n = 0;  // keys a tile
};
Kernel kernel_64();
Kernel kernel_96();
Kernel kernel_128();
Kernel kernel_192();  // 192/128
Kernel kernel_256();

bool takes(int head_dim, int v_head_dim);
int run(const hysparse_cuda_window_params& p, cudaStream_t stream);

}  // namespace hysparse::cuda::window_fwd
