// Sliding-window attention forward for short windows on Hopper: all keys that a query sees fit in one tile,
// so there is no loop over keys and no rescaling. A CTA takes two groups of 64 rows (tokens x the query heads
// of one KV head), a warpgroup each; two CTAs share a processor and cover each other's waits.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>

#include "kernels/cuda/common/batch.h"
#include "kernels/cuda/common/ptx.cuh"
#include "kernels/cuda/common/wgmma.cuh"

namespace hysparse::cuda::window_fwd {

// kTokens: tokens a group; 16, or at most 8.
template <int kD_, int kDV_, int kTokens_>
struct BandConfig {
  static constexpr int kD = kD_, kDV = kDV_, kTokens = kTokens_, kRatio = 64 / kTokens;
  static constexpr int kN = 144;                            // keys of a group
  static constexpr int kOffset = kTokens == 16 ? 16 : 0;    // the second group's lie so much further on
  static constexpr int kKeys = kN + kOffset;                // of the tile: they end with its last token
  static constexpr int kLongest = kKeys - 2 * kTokens + 1;  // window
  static_assert(kTokens == 16 || kTokens <= 8);
  static constexpr int kChunksD = (kD + 63) / 64, kChunksV = (kDV + 63) / 64;
  static constexpr int kQ = 0, kQBytes = kChunksD * 128 * 128,
                       kQRoom = (kChunksD > kChunksV ? kChunksD : kChunksV) * 128 * 128;
  static constexpr int kK = kQRoom, kKBytes = kChunksD * kKeys * 128;
  static constexpr int kV = kK + kKBytes, kVBytes = kChunksV * kKeys * 128;
  static constexpr int kBarriers = kV + kVBytes;
  static constexpr int kSmem = kBarriers + 1024;  // the barriers, or what aligning the start takes
};

struct BandParams {
  CUtensorMap q, k, v;
  const Tile* tiles;  // of 2 kTokens tokens
  int kv_heads, window;
  float scale_log2;
  const float* sinks;  // optional [Hq], natural-log logits
  __nv_bfloat16* o;
  int64_t o_stride_row, o_stride_head;
  float* lse;  // [tokens, Hq]
};

template <class C>
struct Band {
  float s[C::kN / 2], o[C::kDV / 2];
  uint32_t pf[C::kN / 16][4];
  float m[2], l[2];

  const BandParams& p;
  uint8_t* const base;
  const Tile tile;
  const int kv_head, wg, warp, lane;
  const int first_key;  // position of the first of this group's keys; negative at a sequence's start

  __device__ Band(const BandParams& params, uint8_t* smem, const Tile& t, int head, int warpgroup)
      : p(params),
        base(smem),
        tile(t),
        kv_head(head),
        wg(warpgroup),
        warp(threadIdx.x % 128 / 32),
        lane(threadIdx.x % 32),
        first_key(t.position + 2 * C::kTokens - C::kKeys + warpgroup * C::kOffset) {}

  __device__ __forceinline__ int row(int r) const { return warp * 16 + lane / 4 + r * 8; }
  __device__ __forceinline__ int token(int row) const { return wg * C::kTokens + row / C::kRatio; }

  __device__ __forceinline__ void mask(int j) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int high = tile.position + token(row(r)) - first_key, low = max(high - p.window + 1, -first_key);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int key = j * 8 + lane % 4 * 2 + i;
        if (key > high || key < low) s[j * 4 + r * 2 + i] = -INFINITY;
      }
    }
  }

  __device__ __forceinline__ void weights() {
    // Where the window fills the tile only the first and last keys are seen by some rows and not by others.
    if (C::kTokens == 16 && p.window == 128 && first_key >= 0) {
#pragma unroll
      for (int j = 0; j < C::kN / 8; ++j)
        if (j < 2 || j >= C::kN / 8 - 2) mask(j);
    } else {
#pragma unroll
      for (int j = 0; j < C::kN / 8; ++j) mask(j);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float top = -INFINITY;
#pragma unroll
      for (int j = 0; j < C::kN / 8; ++j) top = fmaxf(top, fmaxf(s[j * 4 + 2 * r], s[j * 4 + 2 * r + 1]));
      m[r] = quad_max(top) * p.scale_log2;
      const float shift = m[r] == -INFINITY ? 0.0f : m[r];
      float sum = 0;
#pragma unroll
      for (int j = 0; j < C::kN / 8; ++j) {
        const float x = exp2_fast(fmaf(s[j * 4 + 2 * r], p.scale_log2, -shift));
        const float y = exp2_fast(fmaf(s[j * 4 + 2 * r + 1], p.scale_log2, -shift));
        sum += x + y;
        pf[j / 2][j % 2 * 2 + r] = pack_bf16(x, y);
      }
      l[r] = quad_sum(sum);
    }
  }

  // Rows of V that are no keys of this sequence, or none that a row of the tile sees: a NaN there would
  // survive a weight of 0.
  __device__ __forceinline__ void clear_v() {
    const int start = tile.position + 2 * C::kTokens - C::kKeys, end = tile.position + tile.q_count;
    if (start >= 0 && tile.q_count == 2 * C::kTokens) return;
    for (int x = threadIdx.x; x < C::kChunksV * C::kKeys * 8; x += 256) {
      const int key = start + x / 8 % C::kKeys;
      if (key < 0 || key >= end) reinterpret_cast<uint4*>(base + C::kV)[x] = uint4{0, 0, 0, 0};
    }
    fence_async_proxy();
    named_barrier_sync(3, 256);
  }

  __device__ __forceinline__ void store() {
    constexpr float kLog2e = 1.4426950408889634f, kLn2 = 0.69314718055994531f;
    const int heads = p.kv_heads * C::kRatio;
    float factor[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int head = kv_head * C::kRatio + row(r) % C::kRatio, t = token(row(r));
      const float sink = p.sinks ? p.sinks[head] * kLog2e : -INFINITY;
      const float top = fmaxf(m[r], sink), shift = top == -INFINITY ? 0.0f : top;
      const float mine = exp2_fast(m[r] - shift), total = l[r] * mine + exp2_fast(sink - shift);
      factor[r] = total > 0 ? mine / total : 0.0f;
      if (lane % 4 == 0 && t < tile.q_count)
        p.lse[int64_t(tile.q_row + t) * heads + head] = total > 0 ? (shift + log2f(total)) * kLn2 : -INFINITY;
    }
    // Through the place of this warp's rows of q.
    named_barrier_sync(1 + wg, 128);
    uint8_t* out = base + C::kQ + (wg * 64 + warp * 16) * 128;
    const int matrix = lane / 8, i8 = lane % 8;
    const uint32_t to = smem_address(out) + (matrix % 2 * 8 + i8) * 128;
#pragma unroll
    for (int j = 0; j < C::kDV / 8; j += 2) {
      const uint32_t x[4] = {pack_bf16(o[j * 4] * factor[0], o[j * 4 + 1] * factor[0]),
                             pack_bf16(o[j * 4 + 2] * factor[1], o[j * 4 + 3] * factor[1]),
                             pack_bf16(o[j * 4 + 4] * factor[0], o[j * 4 + 5] * factor[0]),
                             pack_bf16(o[j * 4 + 6] * factor[1], o[j * 4 + 7] * factor[1])};
      store_matrices(to + j / 8 * (128 * 128) + (((j % 8 + matrix / 2) ^ i8) * 16), x);
    }
    __syncwarp();
    constexpr int kUnits = C::kDV / 8;
#pragma unroll 4
    for (int x = lane; x < 16 * kUnits; x += 32) {
      const int y = x / kUnits, unit = x % kUnits, t = token(warp * 16 + y);
      const int head = kv_head * C::kRatio + (warp * 16 + y) % C::kRatio;
      if (t < tile.q_count)
        *reinterpret_cast<uint4*>(p.o + int64_t(tile.q_row + t) * p.o_stride_row + head * p.o_stride_head +
                                  unit * 8) =
            *reinterpret_cast<const uint4*>(out + unit / 8 * (128 * 128) + y * 128 +
                                            ((unit % 8) ^ (y % 8)) * 16);
    }
  }

  __device__ __forceinline__ void run(uint64_t* qk_full, uint64_t* v_full) {
    mbarrier_wait(qk_full, 0);
    wgmma_fence_operand(s);
    wgmma_fence();
    {
      const uint64_t a = descriptor_k_major(smem_address(base + C::kQ) + wg * 64 * 128);
      const uint64_t b = descriptor_k_major(smem_address(base + C::kK) + wg * C::kOffset * 128);
#pragma unroll
      for (int c = 0; c < C::kD / 16; ++c)
        Wgmma<C::kN>::template ss<0>(s, advance(a, c / 4 * (128 * 128) + c % 4 * 32),
                                     advance(b, c / 4 * (C::kKeys * 128) + c % 4 * 32), c != 0);
    }
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_fence_operand(s);
    weights();
    mbarrier_wait(v_full, 0);
    clear_v();
    wgmma_fence_operand(o);
    wgmma_fence();
    {
      const uint64_t b =
          descriptor_mn_major(smem_address(base + C::kV) + wg * C::kOffset * 128, C::kKeys * 128);
#pragma unroll
      for (int c = 0; c < C::kN / 16; ++c)
        Wgmma<C::kDV>::template rs<1>(o, pf[c], advance(b, c * 16 * 128), c != 0);
    }
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_fence_operand(o);
    store();
  }
};

template <class C>
__global__ void __launch_bounds__(256, 2) band_kernel(const __grid_constant__ BandParams p) {
  extern __shared__ uint8_t raw_smem[];
  uint8_t* base = raw_smem + ((1024 - (smem_address(raw_smem) & 1023)) & 1023);
  uint64_t* bars = reinterpret_cast<uint64_t*>(raw_smem == base ? base + C::kBarriers : raw_smem);
  const int kv_head = blockIdx.x % p.kv_heads;
  const Tile tile = p.tiles[blockIdx.x / p.kv_heads];
  if (threadIdx.x == 0) {
    mbarrier_init(&bars[0], 1);
    mbarrier_init(&bars[1], 1);
    mbarrier_init_fence();
    const int key_row = tile.kv_row + tile.position + 2 * C::kTokens - C::kKeys;
    mbarrier_expect(&bars[0], C::kQBytes + C::kKBytes);
    for (int c = 0; c < C::kChunksD; ++c) {
      tma_load_3d(base + C::kQ + c * 128 * 128, &p.q, &bars[0], c * 64, kv_head * C::kRatio, tile.q_row);
      tma_load_3d(base + C::kK + c * C::kKeys * 128, &p.k, &bars[0], c * 64, kv_head, key_row);
    }
    mbarrier_expect(&bars[1], C::kVBytes);
    for (int c = 0; c < C::kChunksV; ++c)
      tma_load_3d(base + C::kV + c * C::kKeys * 128, &p.v, &bars[1], c * 64, kv_head, key_row);
  }
  __syncthreads();
  Band<C>(p, base, tile, kv_head, __shfl_sync(0xffffffffu, threadIdx.x / 128, 0)).run(&bars[0], &bars[1]);
}

}  // namespace hysparse::cuda::window_fwd
