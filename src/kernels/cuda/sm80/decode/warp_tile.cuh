// What one warp does in decode attention: up to 16 query heads of a KV head against keys that it brings to
// shared memory itself, 32 at a time. Warps share nothing until they merge, so that no barrier stands in the
// loop.
#pragma once

#include "kernels/cuda/common/mma.cuh"

namespace hysparse::cuda::decode {

constexpr int kKeys = 32;  // a step
constexpr uint32_t kAll = 0xffffffffu;
constexpr float kLn2 = 0.69314718055994531f, kLog2e = 1.4426950408889634f;

// Where a lane's key row lies; meaningless where its bit of the step's mask is 0.
struct KeyRow {
  const __nv_bfloat16* k;
  const __nv_bfloat16* v;
};

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
  float half_max[2][2];  // of the last step: maximum of a row over its keys 0-15 and 16-31

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

  // Copies the step's rows; absent rows and dims beyond the real ones become zeros. All lanes; one commit
  // group.
  __device__ static void fetch(uint32_t stage, const KeyRow& row, uint32_t mask, int dim, int v_dim) {
    const int lane = threadIdx.x % 32;
    copy_rows<kD, kPitchK>(stage, row.k, mask, dim, lane);
    copy_rows<kDv, kPitchV>(stage + kKeys * kPitchK * 2, row.v, mask, v_dim, lane);
  }

  // Attends to the 32 keys of a stage whose copies have arrived; only those of `mask` are seen.
  __device__ void attend(uint32_t stage, uint32_t mask, float scale_log2) {
    const int lane = threadIdx.x % 32;
    float s[4][4] = {};
    const uint32_t k_at = stage + ((lane % 8 + (lane / 16) * 8) * kPitchK + (lane / 8 % 2) * 8) * 2;
#pragma unroll
    for (int step = 0; step < kD / 16; ++step)
#pragma unroll
      for (int pair = 0; pair < 2; ++pair) {
        uint32_t b[4];
        load_matrices(b, k_at + (pair * 16 * kPitchK + step * 16) * 2);
        mma_16x8x16(s[2 * pair], q[step], b[0], b[1]);
        mma_16x8x16(s[2 * pair + 1], q[step], b[2], b[3]);
      }
#pragma unroll
    for (int t = 0; t < 4; ++t)
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const bool seen = mask >> (t * 8 + (lane % 4) * 2 + (c & 1)) & 1;
        s[t][c] = seen ? s[t][c] * scale_log2 : -INFINITY;
      }
    float base[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int h = 0; h < 2; ++h)
        half_max[h][r] = quad_max(fmaxf(fmaxf(s[2 * h][2 * r], s[2 * h][2 * r + 1]),
                                        fmaxf(s[2 * h + 1][2 * r], s[2 * h + 1][2 * r + 1])));
      const float next = fmaxf(m[r], fmaxf(half_max[0][r], half_max[1][r]));
      base[r] = next == -INFINITY ? 0 : next;
      const float shrink = exp2_fast(m[r] - base[r]);
      m[r] = next;
      l[r] *= shrink;
#pragma unroll
      for (int i = 0; i < kDv / 8; ++i) {
        o[i][2 * r] *= shrink;
        o[i][2 * r + 1] *= shrink;
      }
    }
    uint32_t p[2][4];
#pragma unroll
    for (int t = 0; t < 4; ++t)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float a = exp2_fast(s[t][2 * r] - base[r]), b = exp2_fast(s[t][2 * r + 1] - base[r]);
        l[r] += a + b;
        p[t / 2][(t % 2) * 2 + r] = pack_bf16(a, b);
      }
    const uint32_t v_at =
        stage + (kKeys * kPitchK + (lane % 8 + (lane / 8 % 2) * 8) * kPitchV + (lane / 16) * 8) * 2;
#pragma unroll
    for (int i = 0; i < kDv / 16; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t b[4];
        load_matrices_transposed(b, v_at + (half * 16 * kPitchV + i * 16) * 2);
        mma_16x8x16(o[2 * i], p[half], b[0], b[1]);
        mma_16x8x16(o[2 * i + 1], p[half], b[2], b[3]);
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
  __device__ static void copy_rows(uint32_t stage, const __nv_bfloat16* mine, uint32_t mask, int dim,
                                   int lane) {
    constexpr int kChunks = kDim / 8;
    const uint64_t address = reinterpret_cast<uint64_t>(mine);
    // Any address will do for a row that is absent, as long as it can be read: that of the first row that is
    // there.
    const uint64_t some = __shfl_sync(kAll, address, __ffs(int(mask)) - 1);
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      const int chunk = i * 32 + lane, row = chunk / kChunks, c = chunk % kChunks * 8;
      const uint64_t from = __shfl_sync(kAll, address, row);
      const bool real = (mask >> row & 1) && c < dim;
      copy_async(stage + (row * kPitch + c) * 2, reinterpret_cast<const void*>(real ? from + c * 2 : some),
                 real);
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

}  // namespace hysparse::cuda::decode
