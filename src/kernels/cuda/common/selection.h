#pragma once

#include "kernels/cuda/common/selection_index.h"

struct hysparse_cuda_selection {
  const hysparse_cuda_batch* batch;
  int32_t q_heads, kv_heads, block, entries;
  hysparse::cuda::UnionLists unions;
};

namespace hysparse::cuda {

// Tokens a union tile: two warpgroups of 64 (token, head) rows.
inline int union_tile_tokens(int ratio) {
  return 2 * (64 / ratio);
}

}  // namespace hysparse::cuda
