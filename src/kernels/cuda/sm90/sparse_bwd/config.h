// Shapes and shared-memory plan of the Hopper block-sparse backward.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/common/gather_index.h"

namespace hysparse::cuda::sparse_bwd {

constexpr int kMaxHeads = 64;  // KV heads of a launch

// A group of 64 gathered rows and what is known of them. Written some groups ahead.
struct RowTable {
  uint32_t q[64], d_o[64];  // where the row starts, in 16-byte units; padding repeats a row of the item
  float lse[64];            // log2; inf where the row is padding, so that its weights are 0
  float delta[64];
  int32_t sees[64];            // keys of the block: highest | lowest << 8 | quarters << 16
  int32_t partial[64];         // row of the workspace for its dQ; -1 where it is padding
  int32_t cut;                 // some row does not see all keys
  int32_t end;                 // no group: the stream's work is done
  int32_t first;               // of its item, of which the following speak
  int32_t head;                // KV head within the launch
  int32_t kv_row, live, slot;  // KeyItem's
  int32_t pad;
};

struct Item {
  int32_t head, kv_row, live, slot;  // as in RowTable
};

// A producer warpgroup (one warp gathers q, one dO, one a stream plans) and two consumer warpgroups.
// Small heads: each works on items of its own (a stream). Large heads (kColumns): both take every group and
// own half of the columns each.
template <int kD_, int kDV_>
struct Config {
  static constexpr int kD = kD_, kDV = kDV_;
  static constexpr bool kColumns = kD > 128 || kDV > 128;
  static constexpr int kStreams = kColumns ? 1 : 2;
  static constexpr int kThreads = 3 * 128;
  static constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;  // of 3 x 168
  static constexpr int kChunksD = (kD + 63) / 64, kChunksV = (kDV + 63) / 64;
  static constexpr int kChunk = 64 * 128;  // 64 rows of 64 columns
  static constexpr int kQBytes = kChunksD * kChunk, kOBytes = kChunksV * kChunk;
  static constexpr int kGroupBytes = kQBytes + kOBytes;          // rows of q and of dO
  static constexpr int kKvBytes = kQBytes + kOBytes;             // a block of K and V
  static constexpr int kBuffers = 2, kTables = 8 / kStreams;     // a stream
  static constexpr int kKv = kStreams * kBuffers * kGroupBytes;  // [streams]
  static constexpr int kDs = kKv + kStreams * kKvBytes;          // a warpgroup's dS, [row][key]
  static constexpr int kRows = kDs + 2 * kChunk;
  static constexpr int kItems = kRows + kStreams * kTables * int(sizeof(RowTable));
  static constexpr int kBarriers = kItems + 4 * int(sizeof(Item));
  static constexpr int kSmem = kBarriers + 512 + 1024;
  static_assert(kSmem <= 227 * 1024);
};

struct Params {
  CUtensorMap k, v;
  GatherIndex index;
  int pass;
  int head0, heads;        // KV heads of this launch
  int ratio;               // Hq / Hkv
  uint32_t slots_inverse;  // ceil(2^32 / slots)
  int window;              // keys below position - window + 1 are not visible; 0: no such limit
  float scale_log2, scale;
  const __nv_bfloat16 *q, *d_o;
  uint32_t q_unit_row, q_unit_head, o_unit_row, o_unit_head;  // strides in units of 16 bytes
  const float *lse, *delta;                                   // [tokens, Hq]
  uint32_t* next;  // counts the items that CTAs have taken; 0 at the start
  int q_heads;
  float *dk, *dv;  // += where a block is one item
  int64_t dk_stride_row, dk_stride_head, dv_stride_row, dv_stride_head;
  __nv_bfloat16* partial;  // [heads of the launch, pass tokens * slots, R, d]: dQ / scale a pair
  float*
      shares;  // [heads of the launch, share_capacity, 64, d + dv]: dK, dV of an item that shares its block
  int share_capacity;
};

struct CombineParams {
  GatherIndex index;
  int pass, head0, ratio;
  float scale;
  const __nv_bfloat16* partial;
  __nv_bfloat16* dq;
  int64_t dq_stride_row, dq_stride_head;
};

struct ShareParams {
  GatherIndex index;
  int pass, head0, d, dv;
  const float* shares;
  int share_capacity;
  float *dk, *dv_out;
  int64_t dk_stride_row, dk_stride_head, dv_stride_row, dv_stride_head;
};

}  // namespace hysparse::cuda::sparse_bwd
