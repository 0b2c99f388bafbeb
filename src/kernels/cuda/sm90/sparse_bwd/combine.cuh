// dQ of a token: the sum of its pairs' partial products, in slot order.
#pragma once

#include "kernels/cuda/common/ptx.cuh"
#include "kernels/cuda/sm90/sparse_bwd/config.h"

namespace hysparse::cuda::sparse_bwd {

// A warp a (token, query head): its lanes take 16 bytes each, of as many slots at once as fit. Heads of a KV
// head are neighbours, so that a pair's rows are read as one run.
template <int kD>
__global__ void __launch_bounds__(256, 4) combine_kernel(const CombineParams p) {
  constexpr int kLanes = kD / 8, kSide = kLanes >= 32 ? 1 : 32 / kLanes, kBatch = 4;
  const int lane = threadIdx.x % 32, side = lane / kLanes, unit = lane % kLanes;
  const int pass_tokens = p.index.pass_chunks * p.index.chunk_tokens, token0 = p.pass * pass_tokens;
  const int tokens = min(pass_tokens, p.index.tokens - token0);
  const int64_t row = int64_t(blockIdx.x) * 8 + threadIdx.x / 32;
  if (row >= int64_t(tokens) * p.ratio) return;
  const int t = int(row / p.ratio), r = int(row % p.ratio), pass_head = blockIdx.y,
            head = p.head0 + pass_head;
  const uint32_t* valid =
      p.index.valid +
      ((p.index.head_pairs ? int64_t(head) : 0) * p.index.tokens + token0 + t) * p.index.slot_words;
  const int64_t pair0 = (int64_t(pass_head) * pass_tokens + t) * p.index.slots;
  const uint4* from = reinterpret_cast<const uint4*>(p.partial + (pair0 * p.ratio + r) * kD) + unit;
  float acc[8] = {};
  for (int s0 = 0; s0 < p.index.slots; s0 += kBatch * kSide) {
    uint4 run[kBatch];
    bool real[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int s = s0 + i * kSide + side;
      real[i] = side < kSide && s < p.index.slots && (__ldg(valid + s / 32) >> (s % 32) & 1);
      if (real[i]) run[i] = __ldcs(from + int64_t(s) * p.ratio * kLanes);
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (!real[i]) continue;  // was not written
      const __nv_bfloat162* x = reinterpret_cast<const __nv_bfloat162*>(&run[i]);
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const float2 y = __bfloat1622float2(x[c]);
        acc[2 * c] += y.x;
        acc[2 * c + 1] += y.y;
      }
    }
  }
#pragma unroll
  for (int c = 0; c < 8; ++c) {
    float sum = acc[c];
#pragma unroll
    for (int other = 1; other < kSide; ++other)
      sum += __shfl_sync(0xffffffffu, acc[c], (unit + other * kLanes) % 32);
    acc[c] = sum * p.scale;
  }
  if (side == 0) {
    const uint4 out{pack_bf16(acc[0], acc[1]), pack_bf16(acc[2], acc[3]), pack_bf16(acc[4], acc[5]),
                    pack_bf16(acc[6], acc[7])};
    *reinterpret_cast<uint4*>(p.dq + int64_t(token0 + t) * p.dq_stride_row +
                              int64_t(head * p.ratio + r) * p.dq_stride_head + unit * 8) = out;
  }
}

}  // namespace hysparse::cuda::sparse_bwd
