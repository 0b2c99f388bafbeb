// Shapes, shared-memory plan and workspace layout of the Hopper backward kernel.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/common/batch.h"

namespace hysparse::cuda::attention_bwd {

// A CTA owns kN keys of one KV head and walks the query tiles (kM rows) that see them. Two consumer
// warpgroups:
//   - normally each owns 64 keys (dK, dV rows), and of dQ half the columns (kM 64) or half the rows (kM 128);
//   - kSplit (head dim 256): both own the same 64 keys and half the columns of dK, dV and dQ each, so that
//     the accumulators fit; scores are computed twice.
template <int kD_, int kDV_, int kM_>
struct Config {
  static constexpr int kD = kD_, kDV = kDV_, kM = kM_;
  static constexpr bool kSplit = kD > 192;
  static constexpr bool kLean =
      kD >= 192;  // dP only after P is packed: too many accumulators for S and dP at once
  static constexpr bool kPacked = kLean || kM == 128;  // dS from P as rounded for dV
  static constexpr bool kSharedDs = kD == 192;         // dK reads dS from shared memory too
  static constexpr bool kRows = kM == 128;             // dQ cut by rows
  static constexpr bool kStaged = !kSplit;             // dQ leaves through shared memory and the bulk engine
  static constexpr int kN = kSplit ? 64 : 128;
  static constexpr int kConsumers = 2;
  static constexpr int kThreads = (kConsumers + 1) * 128;
  static constexpr int kStages = 2;
  static constexpr int kColsK = kSplit ? kD / 2 : kD, kColsV = kSplit ? kDV / 2 : kDV;  // a warpgroup's

  static constexpr int kChunksD = (kD + 63) / 64, kChunksV = (kDV + 63) / 64;  // 64 columns: 128 bytes a row
  static constexpr int kKBytes = kChunksD * kN * 128, kVBytes = kChunksV * kN * 128;
  static constexpr int kQBytes = kChunksD * kM * 128, kOBytes = kChunksV * kM * 128;  // a stage
  static constexpr int kRowBytes = kM * 4;              // -lse or -delta of a tile
  static constexpr int kDsBytes = kM / 64 * 128 * 128;  // [chunks of 64 queries][128 keys, or 2 x 64][64]
  static constexpr int kDqBytes = kStaged ? 8 * 4096 : 0;
  static constexpr int kK = 0, kV = kK + kKBytes, kQ = kV + kVBytes, kO = kQ + kStages * kQBytes,
                       kDs = kO + kStages * kOBytes, kDq = kDs + 2 * kDsBytes, kLse = kDq + kDqBytes,
                       kDelta = kLse + kStages * kRowBytes, kBarriers = kDelta + kStages * kRowBytes;
  static constexpr int kSmem = kBarriers + 256 + 1024;  // + slack to align the start to 1024 bytes
  static_assert(kSmem <= 227 * 1024);

  // dQ of a tile is produced in passes of kPassN(i) columns a warpgroup. In the workspace a pass is
  // [8 warps][kPassN / 8][32 lanes][4]: each thread's accumulators as they are.
  static constexpr int kPasses = kSplit || kD == 192 ? 2 : 1;
  static constexpr int pass_n(int pass) { return kD == 192 && pass == 1 ? 32 : 64; }
  static constexpr int pass_offset(int pass) { return pass == 0 ? 0 : 128 * 64; }  // floats
  __host__ __device__ static constexpr int pass_column(int pass, int wg) {
    if (kRows) return 0;
    if (kD == 192) return pass == 0 ? wg * 128 : 64 + wg * 32;
    return kSplit ? wg * 128 + pass * 64 : wg * 64;
  }
  static constexpr int kTile = kM * kChunksD * 64;  // floats of dQ a tile
};

struct Params {
  CUtensorMap q, k, v, d_o;
  const KeyTile* tiles;  // longest first
  int tile_count;
  int kv_heads, ratio;  // Hkv, Hq / Hkv
  int section_heads;    // KV heads that share the L2 at a time
  int heads_a_cta;      // query heads a CTA loops over; divides ratio
  int q_tiles;          // of the whole batch
  float scale, scale_log2;
  const float* rows;  // [Hq, q_tiles, 2, kM]: -lse log2(e) (-inf: row does not count), -rowsum(o d_o)
  float* dq;          // [Hq, q_tiles, kTile]
  float* dk;          // [kv rows, Hkv, d], +=
  float* dv;
  int64_t dk_stride_row, dk_stride_head, dv_stride_row, dv_stride_head;
  // Deterministic: [Hq, q_tiles, 8] key tiles that a warp's part of dQ has taken, and the counter that
  // hands out CTAs' work in order.
  uint32_t* turns;
  uint32_t* ticket;
};

// Before and after: row constants and zeroed dQ; dQ in bf16.
struct RowParams {
  const Tile* tiles;
  int q_tiles, heads;
  float scale;
  const __nv_bfloat16 *o, *d_o;
  int64_t o_stride_row, o_stride_head, do_stride_row, do_stride_head;
  const float* lse;  // [tokens, Hq]
  float* rows;
  float* dq_sum;
  __nv_bfloat16* dq;
  int64_t dq_stride_row, dq_stride_head;
};

}  // namespace hysparse::cuda::attention_bwd
