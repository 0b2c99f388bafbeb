// The shapes that are compiled; one translation unit a head dim.
#pragma once

#include "kernels/cuda/sm90/sparse_fwd/config.h"

namespace hysparse::cuda::sparse_fwd {

using Launch = cudaError_t (*)(const Params&, cudaStream_t);

// block: tokens a list entry (16, 32 or 64). Null where no shape fits.
Launch find_kernel(int head_dim, int v_head_dim, int block);

Launch find_64(int block);
Launch find_96(int block);
Launch find_128(int block);
Launch find_192(int block);  // 192/128
Launch find_256(int block);

}  // namespace hysparse::cuda::sparse_fwd
