// What one warp does in decode attention: up to 16 query heads of a KV head against keys that it brings to
// shared memory itself, 32 at a time. Warps share nothing until they merge, so that no barrier stands in the
// loop.
#pragma once

#include "kernels/cuda/common/mma.cuh"

namespace hysparse::cuda::decode {

constexpr int kKeys = 16;  // a step
constexpr uint32_t kAll = 0xffffffffu;
constexpr float kLn2 = 0.69314718055994531f, kLog2e = 1.4426950408889634f;

// Key rows of a step: lane i's row i, each anywhere...
struct KeyRow {
  const __nv_bfloat16* k;
  const __nv_bfloat16* v;
};
// ...or `count` rows from k, v on at constant strides.
struct KeyRun {
  const __nv_bfloat16* k;
  const __nv_bfloat16* v;
  int64_t k_stride, v_stride;
  int count;
};

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

template <int kD, int kDv>
struct WarpTile {
  static constexpr int kPitchK = kD + 8, kPitchV = kDv + 8;   // odd multiples of 16 bytes: no bank conflicts
  static constexpr int kStage = kKeys * (kPitchK + kPitchV);  // elements
  static_assert(sizeof(Partial<kDv>) <= kStage * 2, "a warp leaves its result in its stage");

  uint32_t q[kD / 16][4];
  float o[kDv / 8][4];
  float m[2], l[2];
  float step_max[2];  // a row's maximum over the keys of the last step

  __device__ void start() {
#pragma unroll
    for (int i = 0; i < kDv / 8; ++i)
#pragma unroll
      for (int c = 0; c < 4; ++c) o[i][c] = 0;
    m[0] = m[1] = -INFINITY;
    l[0] = l[1] = 0;
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

  // Copies the step's rows, those of `mask`; absent rows and dims beyond the real ones become zeros. All
  // lanes.
  __device__ static void fetch(uint32_t stage, const KeyRow& row, uint32_t mask, int dim, int v_dim) {
    copy_rows<kD, kPitchK>(stage, row.k, mask, dim);
    copy_rows<kDv, kPitchV>(stage + kKeys * kPitchK * 2, row.v, mask, v_dim);
  }
  __device__ static void fetch(uint32_t stage, const KeyRun& run, int dim, int v_dim) {
    copy_run<kD, kPitchK>(stage, run.k, run.k_stride, run.count, dim);
    copy_run<kDv, kPitchV>(stage + kKeys * kPitchK * 2, run.v, run.v_stride, run.count, v_dim);
  }

  // Attends to the keys of a stage whose copies have arrived; only those of `mask` are seen.
  __device__ void attend(uint32_t stage, uint32_t mask, float scale_log2) {
    const int lane = threadIdx.x % 32;
    float part[2][2][4] = {};  // even and odd steps apart: shorter chains
    const uint32_t k_at = stage + ((lane % 8 + (lane / 16) * 8) * kPitchK + (lane / 8 % 2) * 8) * 2;
#pragma unroll
    for (int step = 0; step < kD / 16; ++step) {
      uint32_t b[4];
      load_matrices(b, k_at + step * 32);
      mma_16x8x16(part[step % 2][0], q[step], b[0], b[1]);
      mma_16x8x16(part[step % 2][1], q[step], b[2], b[3]);
    }
    float s[2][4];
#pragma unroll
    for (int t = 0; t < 2; ++t)
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const bool seen = mask >> (t * 8 + (lane % 4) * 2 + (c & 1)) & 1;
        s[t][c] = seen ? (part[0][t][c] + part[1][t][c]) * scale_log2 : -INFINITY;
      }
    float base[2], shrink[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      step_max[r] = quad_max(fmaxf(fmaxf(s[0][2 * r], s[0][2 * r + 1]), fmaxf(s[1][2 * r], s[1][2 * r + 1])));
      const float next = fmaxf(m[r], step_max[r]);
      base[r] = next == -INFINITY ? 0 : next;
      shrink[r] = exp2_fast(m[r] - base[r]);
      m[r] = next;
    }
    if (__any_sync(kAll, shrink[0] != 1.0f || shrink[1] != 1.0f)) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        l[r] *= shrink[r];
#pragma unroll
        for (int i = 0; i < kDv / 8; ++i) {
          o[i][2 * r] *= shrink[r];
          o[i][2 * r + 1] *= shrink[r];
        }
      }
    }
    uint32_t p[4];
#pragma unroll
    for (int t = 0; t < 2; ++t)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float a = exp2_fast(s[t][2 * r] - base[r]), b = exp2_fast(s[t][2 * r + 1] - base[r]);
        l[r] += a + b;
        p[t * 2 + r] = pack_bf16(a, b);
      }
    const uint32_t v_at =
        stage + (kKeys * kPitchK + (lane % 8 + (lane / 8 % 2) * 8) * kPitchV + (lane / 16) * 8) * 2;
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
    for (int r = 0; r < 2; ++r) {
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

 private:
  template <int kDim, int kPitch>
  __device__ static void copy_rows(uint32_t stage, const __nv_bfloat16* mine, uint32_t mask, int dim) {
    constexpr int kChunks = kDim / 8;
    const uint64_t address = reinterpret_cast<uint64_t>(mine);
    // Any address will do for a row that is absent, as long as it can be read: that of the first row there
    // is.
    const uint64_t some = __shfl_sync(kAll, address, __ffs(int(mask)) - 1);
#pragma unroll
    for (int i = 0; i < kKeys * kChunks / 32; ++i) {
      const int chunk = i * 32 + threadIdx.x % 32, row = chunk / kChunks, c = chunk % kChunks * 8;
      const uint64_t from = __shfl_sync(kAll, address, row);
      const bool real = (mask >> row & 1) && c < dim;
      copy_async(stage + (row * kPitch + c) * 2, reinterpret_cast<const void*>(real ? from + c * 2 : some),
                 real);
    }
  }
  template <int kDim, int kPitch>
  __device__ static void copy_run(uint32_t stage, const __nv_bfloat16* base, int64_t stride, int count,
                                  int dim) {
    constexpr int kChunks = kDim / 8;
#pragma unroll
    for (int i = 0; i < kKeys * kChunks / 32; ++i) {
      const int chunk = i * 32 + threadIdx.x % 32, row = chunk / kChunks, c = chunk % kChunks * 8;
      const bool real = row < count && c < dim;
      copy_async(stage + (row * kPitch + c) * 2, real ? base + row * stride + c : base, real);
    }
  }
};

// Rows of a cache at position p of sequence b, KV head g.
template <class Rows>
__device__ inline const __nv_bfloat16* row_of(const Rows& r, int64_t outer, int64_t inner, int g) {
  return static_cast<const __nv_bfloat16*>(r.data) + outer * r.stride_outer + inner * r.stride_row +
         g * r.stride_head;
}
template <class Pages>
__device__ inline KeyRow paged_row(const Pages& kv, int b, int p, int g) {
  const int64_t page = kv.page_table[b * kv.page_table_stride + p / kv.page_size];
  const int inner = p % kv.page_size;
  return {row_of(kv.k, page, inner, g), row_of(kv.v, page, inner, g)};
}

// `count` <= kKeys rows from position p on, all in one page.
template <class Pages>
__device__ inline KeyRun paged_run(const Pages& kv, int b, int p, int count, int g) {
  const KeyRow first = paged_row(kv, b, p, g);
  return {first.k, first.v, kv.k.stride_row, kv.v.stride_row, count};
}

}  // namespace hysparse::cuda::decode
