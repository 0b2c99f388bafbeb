// The inverted index: for every KV head and block of 64 keys the (token, slot) pairs that chose it, in token
// order. The forward walks it block by block where neighbouring tokens share too few blocks for a union list
// to pay; the backward always does.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/common/selection_index.h"

#ifndef HYSPARSE_L2_ROWS
#define HYSPARSE_L2_ROWS 49152
#endif

namespace hysparse::cuda {

// Up to `item_pairs` pairs of one bin: what a CTA of a key-stationary kernel works on at a time.
struct KeyItem {
  int32_t first, count;  // pairs
  int32_t kv_row;        // packed key row of the block's first token
  int32_t token0;        // the packed token that stands there, were it a query (may be < 0)
  int32_t live;          // tokens of the sequence from there on
  int32_t slot;          // number of the item within its pass where the bin has several; -1 where it is alone
  int32_t pad[2];
};

// Blocks are numbered through the whole batch. A pair is token * slots + slot. Tokens are cut into passes and
// pairs sorted by bin = pass * blocks + block, so that a pass's queries stay in the L2 and its partial
// results in a bounded workspace.
struct GatherIndex {
  const BlockSpan* spans;     // [blocks]
  const int32_t* block_base;  // [tokens] number of the first block of the token's sequence
  int blocks, slots, tokens;
  int item_pairs;  // pairs of a work item at most
  int chunks, chunk_tokens;
  int passes, pass_chunks;  // chunks a pass
  int64_t head_pairs;       // from one head's pairs to the next head's; 0: all heads share one index
  int32_t* counts;          // [Hkv, chunks, blocks] pairs of a chunk; after the scan, those of earlier chunks
  int32_t* pair_start;      // [Hkv, passes * blocks + 1]
  int32_t* item_start;      // [Hkv, passes * blocks + 1]
  int32_t* pairs;           // [Hkv, tokens * slots]
  // Of the backward alone; null without.
  KeyItem* items;  // [Hkv, item_capacity]
  int item_capacity;
  int slot_words;
  uint32_t* valid;  // [Hkv, tokens, slot_words] bit s: slot s of the token stands in the index
  uint8_t* subs;  // [Hkv, tokens * slots] quarters (16 keys each) of the block that the pair chose; null: all

  constexpr int bins() const { return passes * blocks; }
  constexpr int pass_tokens() const { return pass_chunks * chunk_tokens; }
};

struct GatherBuild {
  const int32_t* idx;  // [tokens, Hkv, n]
  int n, kv_heads, block;
  const int32_t* position;  // [tokens]
  const UnionLists* hard;   // only tokens of tiles without a union list are entered; null: all
  GatherIndex index;
};
cudaError_t build_gather(const GatherBuild& build, cudaStream_t stream);

// Tokens of a pass of the backward: its queries and gradients of one KV head (bf16, d 128) stay in the L2,
// but a block's dK, dV is flushed once a pass, so its pairs must outweigh that.
inline int64_t backward_pass_tokens(int ratio, int slots, int sequence_blocks) {
  constexpr int64_t kL2Rows = HYSPARSE_L2_ROWS, kRoundsAFlush = 24;
  const int64_t l2 = kL2Rows / ratio, flush = kRoundsAFlush * (64 / ratio) * sequence_blocks / slots;
  return l2 > flush ? l2 : flush;
}

// Slots of a token: an entry of a block of 128 takes two; entries within one block of 64 share the first
// one's.
inline int gather_slots(int entries, int block) {
  return entries * (block > 64 ? block / 64 : 1);
}

}  // namespace hysparse::cuda
