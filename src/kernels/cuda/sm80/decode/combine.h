#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace hysparse::cuda::decode {

struct CombineParams {
  const int32_t* kv_len;
  int q_heads, kv_heads, v_dim;
  const float* part_o;  // as FullParams
  const float2* part;
  int splits;
  const float* raw;
  int64_t blocks;
  __nv_bfloat16* o;
  int64_t o_row, o_head;
  float* lse;
  int block, entries;
  bool force_first, force_diagonal;
  int32_t* idx;
  float* block_scores;
  int64_t score_stride;
};
// Behind full_kernel on the stream, set up while that ends.
cudaError_t combine(const CombineParams& p, int batch, cudaStream_t stream);

}  // namespace hysparse::cuda::decode
