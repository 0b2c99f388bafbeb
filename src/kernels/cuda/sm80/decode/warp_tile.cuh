// The arithmetic of decode attention: one warp, up to 16 query heads of a KV head against 16 keys at a time.
#pragma once

#include "kernels/cuda/common/mma.cuh"

namespace hysparse::cuda::decode {

constexpr int kKeys = 16;  // a step
constexpr uint32_t kAll = 0xffffffffu;
constexpr float kLn2 = 0.69314718055994531f, kLog2e = 1.4426950408889634f;

__device__ constexpr uint32_t first_bits(int n) {
  return n >= 32 ? kAll : n <= 0 ? 0u : (1u << n) - 1;
}

// The rows' running maximum (log2 domain), sum and unnormalised output, as one warp or a group of warps
// leaves them.
template <int kDv>
struct Partial {
  float m[16], l[16];
  float o[16][kDv];
};

// kRows: 8 where no KV head has more query heads (the tensor core's rows 8-15 then are zeros and cost nothing
// more), else 16.
template <int kD, int kDv, int kRows>
struct WarpTile {
  static constexpr int kPitchK = kD + 8, kPitchV = kDv + 8;  // odd multiples of 16 bytes: no bank conflicts
  static constexpr int kHalves = kRows / 8;

  uint32_t q[kD / 16][4];
  float o[kDv / 8][4];
  float m[kHalves], l[kHalves];  // rows lane / 4 and lane / 4 + 8; l: this lane's share
  float step_max[kHalves];       // a row's maximum over the keys of the last step

  __device__ void start() {
#pragma unroll
    for (int i = 0; i < kDv / 8; ++i)
#pragma unroll
      for (int c = 0; c < 4; ++c) o[i][c] = 0;
#pragma unroll
    for (int r = 0; r < kHalves; ++r) {
      m[r] = -INFINITY;
      l[r] = 0;
    }
  }

  __device__ void load_q(const __nv_bfloat16* base, int64_t stride_head, int rows, int dim) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int s = 0; s < kD / 16; ++s)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = lane / 4 + (i & 1) * 8, c = s * 16 + (lane % 4) * 2 + (i >> 1) * 8;
        q[s][i] =
            row < rows && c < dim ? *reinterpret_cast<const uint32_t*>(base + row * stride_head + c) : 0;
      }
  }

  // Attends to keys [16, kPitchK] and values behind them in shared memory; only those of `mask` are seen.
  __device__ void attend(uint32_t keys, uint32_t mask, float scale_log2) {
    const int lane = threadIdx.x % 32;
    float part[2][2][4] = {};  // even and odd steps apart: shorter chains
    const uint32_t k_at = keys + ((lane % 8 + (lane / 16) * 8) * kPitchK + (lane / 8 % 2) * 8) * 2;
#pragma unroll
    for (int step = 0; step < kD / 16; ++step) {
      uint32_t b[4];
      load_matrices(b, k_at + step * 32);
      mma_16x8x16(part[step % 2][0], q[step], b[0], b[1]);
      mma_16x8x16(part[step % 2][1], q[step], b[2], b[3]);
    }
    float s[2][2 * kHalves];
#pragma unroll
    for (int t = 0; t < 2; ++t)
#pragma unroll
      for (int c = 0; c < 2 * kHalves; ++c) s[t][c] = (part[0][t][c] + part[1][t][c]) * scale_log2;
    if ((mask & 0xffff) != 0xffff) {
#pragma unroll
      for (int t = 0; t < 2; ++t)
#pragma unroll
        for (int c = 0; c < 2 * kHalves; ++c)
          if (!(mask >> (t * 8 + (lane % 4) * 2 + (c & 1)) & 1)) s[t][c] = -INFINITY;
    }
    float base[kHalves], shrink[kHalves];
    bool rises = false;
#pragma unroll
    for (int r = 0; r < kHalves; ++r) {
      step_max[r] = quad_max(fmaxf(fmaxf(s[0][2 * r], s[0][2 * r + 1]), fmaxf(s[1][2 * r], s[1][2 * r + 1])));
      const float next = fmaxf(m[r], step_max[r]);
      rises = rises || next != m[r];
      base[r] = next == -INFINITY ? 0 : next;
      shrink[r] = exp2_fast(m[r] - base[r]);
      m[r] = next;
    }
    if (__any_sync(kAll, rises)) {
#pragma unroll
      for (int r = 0; r < kHalves; ++r) {
        l[r] *= shrink[r];
#pragma unroll
        for (int i = 0; i < kDv / 8; ++i) {
          o[i][2 * r] *= shrink[r];
          o[i][2 * r + 1] *= shrink[r];
        }
      }
    }
    uint32_t p[4] = {};
#pragma unroll
    for (int t = 0; t < 2; ++t)
#pragma unroll
      for (int r = 0; r < kHalves; ++r) {
        const float a = exp2_fast(s[t][2 * r] - base[r]), b = exp2_fast(s[t][2 * r + 1] - base[r]);
        l[r] += a + b;
        p[t * 2 + r] = pack_bf16(a, b);
      }
    const uint32_t v_at =
        keys + (kKeys * kPitchK + (lane % 8 + (lane / 8 % 2) * 8) * kPitchV + (lane / 16) * 8) * 2;
#pragma unroll
    for (int i = 0; i < kDv / 16; ++i) {
      uint32_t b[4];
      load_matrices_transposed(b, v_at + i * 32);
      mma_16x8x16(o[2 * i], p, b[0], b[1]);
      mma_16x8x16(o[2 * i + 1], p, b[2], b[3]);
    }
  }

  __device__ void leave(Partial<kDv>& to) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < kHalves; ++r) {
      const int row = lane / 4 + r * 8;
      const float sum = quad_sum(l[r]);
      if (lane % 4 == 0) {
        to.m[row] = m[r];
        to.l[row] = sum;
      }
#pragma unroll
      for (int i = 0; i < kDv / 8; ++i)
        *reinterpret_cast<float2*>(&to.o[row][i * 8 + (lane % 4) * 2]) = {o[i][2 * r], o[i][2 * r + 1]};
    }
  }
};

}  // namespace hysparse::cuda::decode
