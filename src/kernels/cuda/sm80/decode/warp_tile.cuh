// The arithmetic of decode attention: one warp, up to 16 query heads of a KV head against 16 keys at a time.
#pragma once

#include "kernels/cuda/common/mma.cuh"
#include "kernels/cuda/sm80/decode/codes.cuh"

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
// more), else 16. Codes: a lane reads them as they lie, 16 bytes of a key and 8 of a value at a time, so that
// dims come in another order within 64: of keys that changes nothing but where a query's numbers belong, of
// values where an output's do. Scales are of keys, and meet scores and probabilities.
template <Code kCode, int kD, int kDv, int kRows>
struct WarpTile {
  static constexpr bool kCodes = kCode != Code::bf16;
  static constexpr int kPitchK = key_pitch(kCode, kD), kPitchV = value_pitch(kCode, kDv);  // bytes
  static constexpr int kValues = kKeys * kPitchK, kScales = kKeys * (kPitchK + kPitchV);
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
        const int row = lane / 4 + (i & 1) * 8;
        const int c = kCodes ? s / 4 * 64 + (lane % 4) * 16 + s % 4 * 4 + (i >> 1) * 2
                             : s * 16 + (lane % 4) * 2 + (i >> 1) * 8;
        q[s][i] =
            row < rows && c < dim ? *reinterpret_cast<const uint32_t*>(base + row * stride_head + c) : 0;
      }
  }

  // Attends to keys [16, kPitchK] and values behind them in shared memory; only those of `mask` are seen.
  __device__ void attend(uint32_t keys, uint32_t mask, float scale_log2) {
    const int lane = threadIdx.x % 32;
    float part[2][2][4] = {};  // even and odd steps apart: shorter chains
    if constexpr (kCodes)
      code_scores(keys, part);
    else
      bf16_scores(keys, part);
    uint2 scales[2] = {};  // of this lane's keys
    if constexpr (kCodes) {
#pragma unroll
      for (int t = 0; t < 2; ++t) scales[t] = shared_8(keys + kScales + (t * 8 + (lane % 4) * 2) * 4);
    }
    const auto scale_of = [&](int t, int c, bool value) {
      const uint32_t word = c & 1 ? scales[t].y : scales[t].x;
      return __uint_as_float(value ? word & 0xffff0000u : word << 16);
    };
    float s[2][2 * kHalves];
#pragma unroll
    for (int t = 0; t < 2; ++t)
#pragma unroll
      for (int c = 0; c < 2 * kHalves; ++c) {
        s[t][c] = (part[0][t][c] + part[1][t][c]) * scale_log2;
        if constexpr (kCodes) s[t][c] *= scale_of(t, c, false);
      }
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
        float a = exp2_fast(s[t][2 * r] - base[r]), b = exp2_fast(s[t][2 * r + 1] - base[r]);
        l[r] += a + b;
        if constexpr (kCodes) {
          a *= scale_of(t, 0, true);
          b *= scale_of(t, 1, true);
        }
        p[t * 2 + r] = pack_bf16(a, b);
      }
    if constexpr (kCodes)
      add_code_values(keys + kValues, p);
    else
      add_bf16_values(keys + kValues, p);
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
      if constexpr (kCodes) {
#pragma unroll
        for (int i = 0; i < kDv / 8; i += 4)
#pragma unroll
          for (int e = 0; e < 2; ++e)
            *reinterpret_cast<float4*>(&to.o[row][i / 8 * 64 + ((lane % 4) * 2 + e) * 8 + i % 8]) = {
                o[i][2 * r + e], o[i + 1][2 * r + e], o[i + 2][2 * r + e], o[i + 3][2 * r + e]};
      } else {
#pragma unroll
        for (int i = 0; i < kDv / 8; ++i)
          *reinterpret_cast<float2*>(&to.o[row][i * 8 + (lane % 4) * 2]) = {o[i][2 * r], o[i][2 * r + 1]};
      }
    }
  }

 private:
  __device__ void bf16_scores(uint32_t keys, float (&part)[2][2][4]) const {
    const int lane = threadIdx.x % 32;
    const uint32_t k_at = keys + (lane % 8 + (lane / 16) * 8) * kPitchK + (lane / 8 % 2) * 16;
#pragma unroll
    for (int step = 0; step < kD / 16; ++step) {
      uint32_t b[4];
      load_matrices(b, k_at + step * 32);
      mma_16x8x16(part[step % 2][0], q[step], b[0], b[1]);
      mma_16x8x16(part[step % 2][1], q[step], b[2], b[3]);
    }
  }
  __device__ void code_scores(uint32_t keys, float (&part)[2][2][4]) const {
    const int lane = threadIdx.x % 32;
    const uint32_t k_at = keys + lane / 4 * kPitchK + (lane % 4) * 16;
#pragma unroll
    for (int slab = 0; slab < kD / 64; ++slab)
#pragma unroll
      for (int t = 0; t < 2; ++t) {
        const uint4 x = shared_16(k_at + t * 8 * kPitchK + slab * 64);
        const uint32_t words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
        for (int i = 0; i < 4; ++i)
          mma_16x8x16(part[i % 2][t], q[slab * 4 + i], pair_of<kCode, false>(words[i]),
                      pair_of<kCode, true>(words[i]));
      }
  }
  __device__ void add_bf16_values(uint32_t values, const uint32_t (&p)[4]) {
    const int lane = threadIdx.x % 32;
    const uint32_t v_at = values + (lane % 8 + (lane / 8 % 2) * 8) * kPitchV + (lane / 16) * 16;
#pragma unroll
    for (int i = 0; i < kDv / 16; ++i) {
      uint32_t b[4];
      load_matrices_transposed(b, v_at + i * 32);
      mma_16x8x16(o[2 * i], p, b[0], b[1]);
      mma_16x8x16(o[2 * i + 1], p, b[2], b[3]);
    }
  }
  __device__ void add_code_values(uint32_t values, const uint32_t (&p)[4]) {
    const int lane = threadIdx.x % 32;
    const uint32_t v_at = values + (lane % 4) * 2 * kPitchV + lane / 4 * 8;
#pragma unroll
    for (int slab = 0; slab < kDv / 64; ++slab) {
      uint2 x[4];  // keys 2j, 2j + 1, 2j + 8, 2j + 9
#pragma unroll
      for (int i = 0; i < 4; ++i) x[i] = shared_8(v_at + ((i & 1) + (i >> 1) * 8) * kPitchV + slab * 64);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const auto word = [&](int i) { return half ? x[i].y : x[i].x; };
        // Two keys' codes of a dim side by side.
        const uint32_t near01 = __byte_perm(word(0), word(1), 0x5140),
                       near23 = __byte_perm(word(0), word(1), 0x7362),
                       far01 = __byte_perm(word(2), word(3), 0x5140),
                       far23 = __byte_perm(word(2), word(3), 0x7362);
        float(*to)[4] = o + slab * 8 + half * 4;
        mma_16x8x16(to[0], p, pair_of<kCode, false>(near01), pair_of<kCode, false>(far01));
        mma_16x8x16(to[1], p, pair_of<kCode, true>(near01), pair_of<kCode, true>(far01));
        mma_16x8x16(to[2], p, pair_of<kCode, false>(near23), pair_of<kCode, false>(far23));
        mma_16x8x16(to[3], p, pair_of<kCode, true>(near23), pair_of<kCode, true>(far23));
      }
    }
  }
};

}  // namespace hysparse::cuda::decode
