// The inverted index: for every KV head and block the (token, entry) pairs that chose it, in token order.
// Sparse kernels walk it block by block where neighbouring tokens share too few blocks for a union list to
// pay.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/common/selection_index.h"

namespace hysparse::cuda {

// Blocks are numbered through the whole batch. A pair is token * slots + entry.
struct GatherIndex {
  const BlockSpan* spans;     // [blocks]
  const int32_t* block_base;  // [tokens] number of the first block of the token's sequence
  int blocks, slots, tokens;
  int item_pairs;  // pairs of a work item at most
  int chunks, chunk_tokens;
  int32_t* counts;      // [Hkv, chunks, blocks] pairs of a chunk; after the scan, those of earlier chunks
  int32_t* pair_start;  // [Hkv, blocks + 1]
  int32_t* item_start;  // [Hkv, blocks + 1]
  int32_t* pairs;       // [Hkv, tokens * slots]
};

// hard: [Hkv, tile_count] of `unions`: only tokens of tiles marked 1 are entered.
cudaError_t build_gather(const int32_t* idx, int n, int kv_heads, const UnionLists& unions,
                         const GatherIndex& index, cudaStream_t stream);

}  // namespace hysparse::cuda
