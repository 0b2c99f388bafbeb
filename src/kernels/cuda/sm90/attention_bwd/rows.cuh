// What runs around the main kernel, one CTA a query tile and head: row constants and a zeroed dQ before it,
// dQ in bf16 after it.
#pragma once

#include "kernels/cuda/common/ptx.cuh"
#include "kernels/cuda/sm90/attention_bwd/config.h"

namespace hysparse::cuda::attention_bwd {

__device__ __forceinline__ float dot_8(const uint4& a, const uint4& b) {
  const uint32_t x[4] = {a.x, a.y, a.z, a.w}, y[4] = {b.x, b.y, b.z, b.w};
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 u = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(x[i]));
    const float2 w = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(y[i]));
    sum = fmaf(u.x, w.x, fmaf(u.y, w.y, sum));
  }
  return sum;
}

template <class C>
__global__ void __launch_bounds__(256) before_kernel(const RowParams p) {
  const int head = blockIdx.x % p.heads, index = blockIdx.x / p.heads;
  const Tile tile = p.tiles[index];
  const int64_t slot = int64_t(head) * p.q_tiles + index;
  const int lane = threadIdx.x % 8;  // eight lanes a row
#pragma unroll
  for (int row = threadIdx.x / 8; row < C::kM; row += 32) {
    const bool live = row < tile.q_count;
    float sum = 0;
    if (live) {
      const __nv_bfloat16* o = p.o + int64_t(tile.q_row + row) * p.o_stride_row + head * p.o_stride_head;
      const __nv_bfloat16* d_o =
          p.d_o + int64_t(tile.q_row + row) * p.do_stride_row + head * p.do_stride_head;
#pragma unroll
      for (int i = 0; i < (C::kDV / 8 + 7) / 8; ++i)
        if (const int unit = lane + i * 8; C::kDV % 64 == 0 || unit < C::kDV / 8)
          sum += dot_8(*reinterpret_cast<const uint4*>(o + unit * 8),
                       *reinterpret_cast<const uint4*>(d_o + unit * 8));
    }
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    sum += __shfl_xor_sync(0xffffffffu, sum, 4);
    if (lane == 0) {
      const float lse = live ? p.lse[int64_t(tile.q_row + row) * p.heads + head] : -INFINITY;
      const bool counts = lse != -INFINITY;
      p.rows[(slot * 2) * C::kM + row] = counts ? -lse * 1.4426950408889634f : -INFINITY;
      p.rows[(slot * 2 + 1) * C::kM + row] = counts ? -sum : 0.0f;
    }
  }
  float4* dq = reinterpret_cast<float4*>(p.dq_sum + slot * C::kTile);
  for (int i = threadIdx.x; i < C::kTile / 4; i += 256) dq[i] = float4{0, 0, 0, 0};
}

template <class C, int kPass>
__device__ __forceinline__ void convert_pass(const RowParams& p, const Tile& tile, int head,
                                             const float* sum) {
  constexpr int kN = C::pass_n(kPass);
  for (int i = threadIdx.x; i < 8 * kN; i += 256) {  // 8 warps x kN / 8 column groups x 8 row pairs
    const int sub = i % 8, j = i / 8 % (kN / 8), warp = i / kN, wg = warp / 4;
    const int row = (C::kRows ? wg * 64 : 0) + warp % 4 * 16 + sub,
              column = C::pass_column(kPass, wg) + j * 8;
    if (column >= C::kD) continue;
    const float4* x =
        reinterpret_cast<const float4*>(sum + C::pass_offset(kPass) + warp * 16 * kN) + j * 32 + sub * 4;
    uint32_t low[4], high[4];
#pragma unroll
    for (int l = 0; l < 4; ++l) {
      const float4 y = x[l];
      low[l] = pack_bf16(y.x * p.scale, y.y * p.scale);
      high[l] = pack_bf16(y.z * p.scale, y.w * p.scale);
    }
    __nv_bfloat16* dq = p.dq + int64_t(tile.q_row + row) * p.dq_stride_row + head * p.dq_stride_head + column;
    if (row < tile.q_count) *reinterpret_cast<uint4*>(dq) = uint4{low[0], low[1], low[2], low[3]};
    if (row + 8 < tile.q_count)
      *reinterpret_cast<uint4*>(dq + 8 * p.dq_stride_row) = uint4{high[0], high[1], high[2], high[3]};
  }
}

template <class C>
__global__ void __launch_bounds__(256) after_kernel(const RowParams p) {
  const int head = blockIdx.x % p.heads, index = blockIdx.x / p.heads;
  const Tile tile = p.tiles[index];
  const float* sum = p.dq_sum + (int64_t(head) * p.q_tiles + index) * C::kTile;
  convert_pass<C, 0>(p, tile, head, sum);
  if constexpr (C::kPasses == 2) convert_pass<C, 1>(p, tile, head, sum);
}

}  // namespace hysparse::cuda::attention_bwd
