// Joins the partial outputs of the gather kernel: o = sum_e w_e o_e with w_e = exp(lse_e - lse), the sink in
// the denominator.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/common/gather_index.h"
#include "kernels/cuda/common/ptx.cuh"

namespace hysparse::cuda::sparse_fwd {

struct CombineParams {
  UnionLists unions;        // tiles with length < 0 are the ones to join
  const int32_t* idx;       // [tokens, Hkv, n], blocks of 64
  const int32_t* position;  // [tokens]
  int n, tokens, kv_heads, ratio, head0;
  const __nv_bfloat16* partial;
  const float* partial_lse;
  const float* sinks;
  __nv_bfloat16* o;
  int64_t o_stride_row, o_stride_head;
  float* lse;
};

// A CTA a (tile, KV head of the pass); a warp a (token, query head): its lanes take 16 bytes each, of as many
// entries at once as fit.
template <int kDV>
__global__ void __launch_bounds__(256, 4) combine_kernel(const CombineParams p) {
  const int tile_index = blockIdx.x, pass_head = blockIdx.y, head = p.head0 + pass_head;
  if (p.unions.lengths[int64_t(head) * p.unions.tile_count + tile_index] >= 0) return;
  const Tile tile = p.unions.tiles[tile_index];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  constexpr int kLanes = kDV / 8, kSide = 32 / kLanes;  // lanes a row of dv; entries side by side
  constexpr int kBatch = 4;                             // loads in flight a lane
  const int side = lane / kLanes, unit = lane % kLanes;
  for (int i = warp; i < tile.q_count * p.ratio; i += 8) {
    const int token = tile.q_row + i / p.ratio, r = i % p.ratio, q_head = head * p.ratio + r;
    const int64_t pair0 = (int64_t(pass_head) * p.tokens + token) * p.n;
    const int32_t* idx = p.idx + (int64_t(token) * p.kv_heads + head) * p.n;
    float own[2],
        top = p.sinks ? p.sinks[q_head] * 1.4426950408889634f : -INFINITY;  // log2 units; up to 64 entries
    const float sink = top;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int e = j * 32 + lane;
      // A block behind the query has no partial.
      const bool there = e < p.n && idx[e] >= 0 && int64_t(idx[e]) * 64 <= p.position[token];
      own[j] = there ? p.partial_lse[(pair0 + e) * p.ratio + r] : -INFINITY;
      top = fmaxf(top, own[j]);
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, step));
    const float shift = top == -INFINITY ? 0.0f : top;
    float sum = lane == 0 ? exp2f(sink - shift) : 0.0f;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      own[j] = exp2f(own[j] - shift);
      sum += own[j];
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    const float inverse = sum > 0 ? 1.0f / sum : 0.0f;
    float acc[8] = {};
    const uint4* from = reinterpret_cast<const uint4*>(p.partial + (pair0 * p.ratio + r) * kDV) + unit;
    for (int e0 = 0; e0 < p.n; e0 += kBatch * kSide) {
      uint4 run[kBatch];
      float w[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int e = e0 + i * kSide + side;
        const float low = __shfl_sync(0xffffffffu, own[0], e % 32),
                    high = __shfl_sync(0xffffffffu, own[1], e % 32);
        w[i] = side < kSide && e < p.n ? (e < 32 ? low : high) * inverse : 0.0f;
        if (w[i] != 0.0f) run[i] = __ldcs(from + int64_t(e) * p.ratio * kLanes);
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (w[i] == 0.0f) continue;  // an empty entry, or one without weight, was not read
        const __nv_bfloat162* x = reinterpret_cast<const __nv_bfloat162*>(&run[i]);
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const float2 y = __bfloat1622float2(x[c]);
          acc[2 * c] += w[i] * y.x;
          acc[2 * c + 1] += w[i] * y.y;
        }
      }
    }
    uint4 out;
    uint32_t* packed = reinterpret_cast<uint32_t*>(&out);
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      float sum_sides = acc[c];
#pragma unroll
      for (int other = 1; other < kSide; ++other)
        sum_sides += __shfl_sync(0xffffffffu, acc[c], (unit + other * kLanes) % 32);
      acc[c] = sum_sides;
    }
#pragma unroll
    for (int c = 0; c < 4; ++c) packed[c] = pack_bf16(acc[2 * c], acc[2 * c + 1]);
    if (side == 0)
      *reinterpret_cast<uint4*>(p.o + int64_t(token) * p.o_stride_row + int64_t(q_head) * p.o_stride_head +
                                unit * 8) = out;
    if (lane == 0)
      p.lse[int64_t(token) * p.kv_heads * p.ratio + q_head] =
          sum > 0 ? (shift + log2f(sum)) * 0.69314718055994531f : -INFINITY;
  }
}

}  // namespace hysparse::cuda::sparse_fwd
