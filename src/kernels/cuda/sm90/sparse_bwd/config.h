// Shapes and shared-memory plan of the Hopper block-sparse backward.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/common/gather_index.h"

namespace hysparse::cuda::sparse_bwd {

constexpr int kMaxHeads = 64;  // KV heads of a launch

// Two consumer warpgroups. Small heads: they take turns over the groups of 64 gathered rows and join their
// dK, dV at an item's end. Large heads (kColumns): both take every group and own half of the columns each.
template <int kD_, int kDV_>
struct Config {
  static constexpr int kD = kD_, kDV = kDV_;
  static constexpr bool kColumns = kD > 128 || kDV > 128;
  static constexpr int kThreads = 3 * 128;
  static constexpr int kChunksD = (kD + 63) / 64, kChunksV = (kDV + 63) / 64;
  static constexpr int kChunk = 64 * 128;  // 64 rows of 64 columns
  static constexpr int kQBytes = kChunksD * kChunk, kOBytes = kChunksV * kChunk;
  static constexpr int kGroupBytes = kQBytes + kOBytes;  // rows of q and of dO
  static constexpr int kKvBytes = kQBytes + kOBytes;     // a block of K and V
  static constexpr int kBuffers = kColumns ? 2 : 4;
  static constexpr int kStages = kBuffers * kGroupBytes + 2 * kKvBytes + 2 * kChunk <= 220 * 1024 ? 2 : 1;
  static constexpr int kKv = kBuffers * kGroupBytes;
  static constexpr int kDs = kKv + kStages * kKvBytes;  // a warpgroup's dS, [row][key]
  static constexpr int kStats = kDs + 2 * kChunk;       // [buffers][lse, delta][64]
  static constexpr int kBarriers = kStats + kBuffers * 512;
  static constexpr int kSmem = kBarriers + 128 + 1024;
  static_assert(kSmem <= 227 * 1024);
};

struct Params {
  CUtensorMap k, v;
  GatherIndex index;
  int pass;
  int head0, heads;         // KV heads of this launch
  int ratio, row_to_token;  // Hq / Hkv; row * row_to_token >> 16 = row / ratio for rows below 64
  uint32_t slots_inverse;   // ceil(2^32 / slots)
  int window;               // keys below position - window + 1 are not visible; 0: no such limit
  float scale_log2, scale;
  const __nv_bfloat16 *q, *d_o;
  int64_t q_stride_row, q_stride_head, o_stride_row, o_stride_head;
  const float *lse, *delta;  // [tokens, Hq]
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
