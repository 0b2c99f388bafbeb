#pragma once

#include "kernels/cuda/common/batch.h"

namespace hysparse::cuda::attention_bwd {

// True where the Hopper kernel takes this shape (head dims 64, 96, 128, 192/128, 256).
bool takes(const hysparse_cuda_attention_backward_params& p);
size_t workspace(const hysparse_cuda_attention_backward_params& p);
int run(const hysparse_cuda_attention_backward_params& p, cudaStream_t stream);

}  // namespace hysparse::cuda::attention_bwd
