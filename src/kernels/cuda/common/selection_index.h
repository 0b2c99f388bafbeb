// What every sparse kernel reads instead of raw indices; built once a full layer and used by all its sparse
// layers, forward and backward.
//
// Union lists. Query tokens are cut into tiles of `tile_tokens` consecutive tokens of one sequence; for each
// tile and KV head the list holds every block that some token of the tile chose, ascending, with a bit a
// token. Blocks of 128 are entered as two of 64.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/common/batch.h"

namespace hysparse::cuda {

struct UnionEntry {
  int32_t block;  // index within the sequence, in units of list_block tokens
  int32_t pad;
  uint64_t mask[2];  // bit i of mask[w]: token w * (tile_tokens / 2) + i of the tile chose the block
};

// Tiles of one half-height list: tokens [q_row, q_row + q_count) of one sequence (Tile's fields).
struct UnionLists {
  const Tile* tiles;  // [tile_count]
  int tile_count, tile_tokens;
  int list_block;       // tokens a list entry: min(block, 64)
  int capacity;         // entries a list
  UnionEntry* entries;  // [Hkv, tile_count, capacity]
  int32_t* lengths;     // [Hkv, tile_count]
};

struct UnionParams {
  const int32_t* idx;  // [tokens, Hkv, n]
  int n, kv_heads, block;
  int longest;  // entries of a list worth walking
  UnionLists lists;
};
cudaError_t build_unions(const UnionParams& p, int max_blocks, cudaStream_t stream);

}  // namespace hysparse::cuda
