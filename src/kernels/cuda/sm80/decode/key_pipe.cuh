// How a warp brings keys and values to shared memory: a ring of stages of 16 rows that it fills and drains by
// itself, so that no barrier between warps stands in the loop.
#pragma once

#include <algorithm>

#include "hysparse/cuda_decode.h"
#include "kernels/cuda/sm80/decode/warp_tile.cuh"

namespace hysparse::cuda::decode {

// A row of a cache; of codes with the word of its two scales.
struct KeyRow {
  const uint8_t* k;
  const uint8_t* v;
  const uint32_t* scales;
};
// Bytes, and words of scales, between neighbouring rows of a page.
struct RowStrides {
  int64_t k, v, scales;
};

template <Code kCode, int kD, int kDv, int kStages>
class KeyPipe {
 public:
  static constexpr bool kCodes = kCode != Code::bf16;
  static constexpr int kElement = kCodes ? 1 : 2;                                          // bytes
  static constexpr int kPitchK = key_pitch(kCode, kD), kPitchV = value_pitch(kCode, kDv);  // bytes
  static constexpr int kValues = kKeys * kPitchK, kScales = kKeys * (kPitchK + kPitchV);   // in a stage
  static constexpr int kStage = kScales + (kCodes ? kKeys * 4 : 0);                        // bytes
  static constexpr int kBytes = kStages * kStage;                                          // of a warp
  static_assert(sizeof(Partial<kDv>) <= kBytes, "a warp leaves its result where its keys were");

  __device__ KeyPipe(uint8_t* memory, int dim, int v_dim)
      : memory_(memory), dim_(dim * kElement), v_dim_(v_dim * kElement) {}

  // fetch starts copying a step's rows to the next stage. All lanes together, after every lane is done with
  // what the stage held
  // (__syncwarp); an empty mask or count copies nothing but keeps the count of steps. Absent rows and dims
  // beyond the real ones become zeros. Lanes i and i + 16 hold row i, anywhere, of the rows of `mask`...
  __device__ void fetch(const KeyRow& row, uint32_t mask) {
    const uint32_t stage = next_stage();
    if (mask) {
      copy_rows<kD * kElement, kPitchK>(stage, row.k, mask, dim_);
      copy_rows<kDv * kElement, kPitchV>(stage + kValues, row.v, mask, v_dim_);
      if constexpr (kCodes) {
        const int lane = threadIdx.x % 32;
        const bool real = mask >> lane & 1;
        const uint64_t some = __shfl_sync(kAll, reinterpret_cast<uint64_t>(row.scales), __ffs(int(mask)) - 1);
        if (lane < kKeys)
          copy_async_word(stage + kScales + lane * 4,
                          real ? row.scales : reinterpret_cast<const uint32_t*>(some), real);
      }
    }
    copy_async_commit();
  }
  // ...or all hold the first of `count` rows at constant strides.
  __device__ void fetch(const KeyRow& first, const RowStrides& stride, int count) {
    const uint32_t stage = next_stage();
    if (count > 0) {
      copy_run<kD * kElement, kPitchK>(stage, first.k, stride.k, count, dim_);
      copy_run<kDv * kElement, kPitchV>(stage + kValues, first.v, stride.v, count, v_dim_);
      if constexpr (kCodes) {
        const int lane = threadIdx.x % 32;
        if (lane < kKeys)
          copy_async_word(stage + kScales + lane * 4,
                          first.scales + (lane < count ? lane * stride.scales : 0), lane < count);
      }
    }
    copy_async_commit();
  }

  // Waits for the oldest stage and returns its address.
  __device__ uint32_t wait() {
    copy_async_wait<kStages - 1>();
    __syncwarp();
    const uint32_t stage = smem_address(memory_) + used_ * kStage;
    used_ = used_ + 1 == kStages ? 0 : used_ + 1;
    return stage;
  }

  // Where the warp may leave its result when it has waited for all that it fetched.
  __device__ Partial<kDv>& result() {
    copy_async_wait<0>();
    __syncwarp();
    return *reinterpret_cast<Partial<kDv>*>(memory_);
  }

 private:
  __device__ uint32_t next_stage() {
    const uint32_t stage = smem_address(memory_) + filled_ * kStage;
    filled_ = filled_ + 1 == kStages ? 0 : filled_ + 1;
    return stage;
  }

  // kRow, dim: bytes.
  template <int kRow, int kPitch>
  __device__ static void copy_rows(uint32_t stage, const uint8_t* mine, uint32_t mask, int dim) {
    constexpr int kChunks = kRow / 16;
    const uint64_t address = reinterpret_cast<uint64_t>(mine);
    // Any address will do for a row that is absent, as long as it can be read: that of the first row there
    // is.
    const uint64_t some = __shfl_sync(kAll, address, __ffs(int(mask)) - 1);
#pragma unroll
    for (int i = 0; i < kKeys * kChunks / 32; ++i) {
      const int chunk = i * 32 + threadIdx.x % 32, row = chunk / kChunks, c = chunk % kChunks * 16;
      const uint64_t from = __shfl_sync(kAll, address, row);
      const bool real = (mask >> row & 1) && c < dim;
      copy_async(stage + row * kPitch + c, reinterpret_cast<const void*>(real ? from + c : some), real);
    }
  }
  template <int kRow, int kPitch>
  __device__ static void copy_run(uint32_t stage, const uint8_t* first, int64_t stride, int count, int dim) {
    constexpr int kChunks = kRow / 16, kTurns = kKeys * kChunks / 32;
    const int lane = threadIdx.x % 32;
    if (32 % kChunks == 0 && count == kKeys && dim == kRow) {
      constexpr int kRowsATurn = std::max(1, 32 / kChunks);
      const uint8_t* from = first + lane / kChunks * stride + lane % kChunks * 16;
      const uint32_t to = stage + lane / kChunks * kPitch + lane % kChunks * 16;
#pragma unroll
      for (int i = 0; i < kTurns; ++i)
        copy_async(to + i * kRowsATurn * kPitch, from + i * kRowsATurn * stride);
      return;
    }
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
      const int chunk = i * 32 + lane, row = chunk / kChunks, c = chunk % kChunks * 16;
      const bool real = row < count && c < dim;
      copy_async(stage + row * kPitch + c, real ? first + row * stride + c : first, real);
    }
  }

  uint8_t* memory_;
  int dim_, v_dim_, filled_ = 0, used_ = 0;  // dims in bytes
};

// Division by a page size, cheap where it is a power of two.
struct PageMath {
  int size, shift;  // shift < 0: not a power of two
  __device__ int page(int p) const { return shift >= 0 ? p >> shift : p / size; }
  __device__ int inner(int p) const { return shift >= 0 ? p & (size - 1) : p % size; }
};
inline PageMath page_math(int size) {
  int shift = 0;
  while ((1 << shift) < size) ++shift;
  return {size, (1 << shift) == size ? shift : -1};
}

template <int kElement>
__device__ inline const uint8_t* row_of(const hysparse_cuda_rows& r, int64_t outer, int inner, int g) {
  return static_cast<const uint8_t*>(r.data) +
         (outer * r.stride_outer + inner * r.stride_row + g * r.stride_head) * kElement;
}
// The row of key position p of sequence b, KV head g.
template <Code kCode>
__device__ inline KeyRow paged_row(const hysparse_cuda_pages& kv, PageMath math, int kv_heads, int b, int p,
                                   int g) {
  constexpr int kElement = kCode == Code::bf16 ? 2 : 1;
  const int64_t page = kv.page_table[b * kv.page_table_stride + math.page(p)];
  const int inner = math.inner(p);
  KeyRow row{row_of<kElement>(kv.k, page, inner, g), row_of<kElement>(kv.v, page, inner, g), nullptr};
  if constexpr (kCode != Code::bf16)
    row.scales = static_cast<const uint32_t*>(kv.scales) + (page * kv.page_size + inner) * kv_heads + g;
  return row;
}
template <Code kCode>
__device__ inline RowStrides row_strides(const hysparse_cuda_pages& kv, int kv_heads) {
  constexpr int kElement = kCode == Code::bf16 ? 2 : 1;
  return {kv.k.stride_row * kElement, kv.v.stride_row * kElement, kv_heads};
}

}  // namespace hysparse::cuda::decode
