// Shapes and shared-memory plan of the Hopper block-sparse forward over union lists.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/common/selection_index.h"

namespace hysparse::cuda::sparse_fwd {

// kB: tokens a list entry (16, 32 or 64); 64 / kB entries make one key tile.
template <int kD_, int kDV_, int kB_>
struct Config {
  static constexpr int kD = kD_, kDV = kDV_, kB = kB_;
  static constexpr int kM = 128,
                       kN = 64;  // two consumer warpgroups of 64 rows; a row is a (token, head of the group)
  static constexpr int kParts = kN / kB;  // list entries a key tile
  static constexpr int kThreads = 3 * 128;
  static constexpr int kChunksD = (kD + 63) / 64, kChunksV = (kDV + 63) / 64;
  static constexpr int kQBytes = kChunksD * kM * 128;
  static constexpr int kKBytes = kChunksD * kN * 128, kVBytes = kChunksV * kN * 128;
  static constexpr int kStages =
      (220 * 1024 - kQBytes) / (kKBytes + kVBytes) < 6 ? (220 * 1024 - kQBytes) / (kKBytes + kVBytes) : 6;
  static constexpr int kQ = 0, kK = kQBytes, kV = kK + kStages * kKBytes, kBarriers = kV + kStages * kVBytes;
  static constexpr int kSmem = kBarriers + 256 + 1024;
  static_assert(kStages >= 2 && kSmem <= 227 * 1024);
};

struct Params {
  CUtensorMap k, v;
  UnionLists lists;
  const __nv_bfloat16* q;
  int64_t q_stride_row, q_stride_head;
  int kv_heads, ratio;
  float scale_log2;
  const float* sinks;  // optional [Hq], natural-log logits
  __nv_bfloat16* o;
  int64_t o_stride_row, o_stride_head;
  float* lse;  // [tokens, Hq]
};

}  // namespace hysparse::cuda::sparse_fwd
