// Decode attention behind hysparse/cuda_decode.h; arguments are checked by the caller (api_decode.cu).
#pragma once

#include "hysparse/cuda_decode.h"

namespace hysparse::cuda::decode {

size_t workspace(const hysparse_cuda_decode_full_params& p);
int64_t most_blocks();  // that a selection can rank
int run(const hysparse_cuda_decode_full_params& p, cudaStream_t stream);
int run(const hysparse_cuda_decode_sparse_params& p, cudaStream_t stream);

}  // namespace hysparse::cuda::decode
