// The shapes that are compiled; one translation unit a head dim.
#pragma once

#include "kernels/cuda/sm90/sparse_fwd/combine.cuh"
#include "kernels/cuda/sm90/sparse_fwd/config.h"
#include "kernels/cuda/sm90/sparse_fwd/gather_kernel.cuh"

namespace hysparse::cuda::sparse_fwd {

using Launch = cudaError_t (*)(const Params&, cudaStream_t);

struct Gather {
  cudaError_t (*partials)(const GatherParams&, int ctas, cudaStream_t) = nullptr;
  cudaError_t (*combine)(const CombineParams&, int heads, cudaStream_t) = nullptr;
};
Gather find_gather(int head_dim, int v_head_dim);
Gather gather_64();
Gather gather_96();
Gather gather_128();
Gather gather_192();
Gather gather_256();

// block: tokens a list entry (16, 32 or 64). Null where no shape fits.
Launch find_kernel(int head_dim, int v_head_dim, int block);

Launch find_64(int block);
Launch find_96(int block);
Launch find_128(int block);
Launch find_192(int block);  // 192/128
Launch find_256(int block);

}  // namespace hysparse::cuda::sparse_fwd
