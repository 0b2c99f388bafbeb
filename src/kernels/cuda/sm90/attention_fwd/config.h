// Shapes and shared-memory plan of the Hopper forward kernel.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/common/batch.h"

namespace hysparse::cuda::attention_fwd {

// kD, kDV head dims; kN keys a tile; kGroup tokens a raw score (0: no scores); kWindow: a sliding window with
// sinks instead of all keys.
template <int kD_, int kDV_, int kN_, int kGroup_, bool kWindow_ = false>
struct Config {
  static constexpr int kD = kD_, kDV = kDV_, kN = kN_, kGroup = kGroup_;
  static constexpr bool kWindow = kWindow_;
  static constexpr int kM = 128;  // query rows a CTA: two consumer warpgroups of 64
  static constexpr int kConsumers = 2;
  static constexpr int kThreads = (kConsumers + 1) * 128;
  static constexpr int kStages = 2;
  static constexpr int kChunksD = (kD + 63) / 64,
                       kChunksV = (kDV + 63) / 64;  // 64 columns: one swizzle row of 128 bytes
  static constexpr int kQBytes = kChunksD * kM * 128;
  static constexpr int kKBytes = kChunksD * kN * 128;  // a stage
  static constexpr int kVBytes = kChunksV * kN * 128;
  static constexpr int kQ = 0, kK = kQBytes, kV = kK + kStages * kKBytes, kBarriers = kV + kStages * kVBytes;
  static constexpr int kSmem =
      kBarriers + 256 + 1024;  // + slack to align the start to 1024 bytes (the swizzle's period)
  static_assert(kSmem <= 227 * 1024);
};

struct Params {
  CUtensorMap q, k, v;
  const Tile* tiles;  // of this launch
  int tile_count;
  int heads, ratio;   // Hq, Hq / Hkv
  int section_heads;  // heads that share the L2 at a time
  float scale_log2;   // softmax scale * log2(e)
  __nv_bfloat16* o;
  int64_t o_stride_row, o_stride_head;
  float* lse;  // [tokens, Hq]
  float* raw;  // [Hq, groups, raw_rows] row maxima a group of kGroup keys, log2 domain, not normalised
  int groups;
  int raw_rows, raw_row0;  // rows of the workspace; packed row of its row 0
  int window;              // keys that a query sees, itself included
  const float* sinks;      // optional [Hq], natural-log logits
};

}  // namespace hysparse::cuda::attention_fwd
