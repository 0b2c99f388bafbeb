// From raw row maxima to block log-scores and the indices of the best blocks (spec section 3).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace hysparse::cuda {

struct SelectParams {
  const float* raw;  // [Hq, groups, raw_rows], log2 domain, not normalised
  int64_t groups;
  int raw_rows;
  const float* lse;         // [tokens, Hq], natural log
  const int32_t* position;  // [tokens]
  int row0, rows;           // packed rows [row0, row0 + rows) are rows 0.. of raw
  int q_heads, kv_heads;
  int groups_per_block;  // block / group
  int block, entries;
  bool force_first, force_diagonal;
  int32_t* idx;         // [tokens, Hkv, entries]
  float* block_scores;  // optional [tokens, Hkv, score_stride]
  int64_t score_stride;
};
cudaError_t select_blocks(const SelectParams& p, cudaStream_t stream);

}  // namespace hysparse::cuda
