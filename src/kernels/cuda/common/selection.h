#pragma once

#include "kernels/cuda/common/gather_index.h"
#include "kernels/cuda/common/selection_index.h"

struct hysparse_cuda_selection {
  const hysparse_cuda_batch* batch;
  int32_t q_heads, kv_heads, block, entries;
  const int32_t* idx;
  hysparse::cuda::UnionLists unions;
  bool gathers;  // tiles without a union list exist as an inverted index
  hysparse::cuda::GatherIndex index;
  bool backward;  // the inverted index of all tokens is there
  hysparse::cuda::GatherIndex backward_index;
};

namespace hysparse::cuda {

// Tokens a union tile: two warpgroups of 64 (token, head) rows.
inline int union_tile_tokens(int ratio) {
  return 2 * (64 / ratio);
}

// (token, entry) pairs of a gather work item: a few rounds of three warpgroups.
inline int gather_item_pairs(int ratio) {
  return 12 * (64 / ratio);
}
// The backward flushes a block's dK, dV after each item: long ones, but many enough to share out evenly.
inline int backward_item_pairs(int ratio) {
  return 32 * (64 / ratio);
}

}  // namespace hysparse::cuda
