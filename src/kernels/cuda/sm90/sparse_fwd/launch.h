#pragma once

#include "kernels/cuda/common/selection.h"

namespace hysparse::cuda::sparse_fwd {

bool takes(const hysparse_cuda_sparse_params& p);
size_t workspace(const hysparse_cuda_sparse_params& p);
int run(const hysparse_cuda_sparse_params& p, cudaStream_t stream);

}  // namespace hysparse::cuda::sparse_fwd
