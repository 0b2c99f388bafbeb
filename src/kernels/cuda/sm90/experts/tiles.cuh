// What the grouped products for Hopper share: tiles counted through the experts, on the device.
#pragma once

#include <cstdint>

#include "kernels/cuda/common/ptx.cuh"
#include "kernels/cuda/sm90/experts/config.h"

namespace hysparse::cuda::experts {

// As store_matrices, but lane l gives the address of column l % 8 of matrix l / 8.
__device__ __forceinline__ void store_matrices_transposed(uint32_t smem, const uint32_t (&x)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(smem),
               "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
               : "memory");
}

// Asks that `bytes` (a multiple of 16, as the address) come to the L2.
__device__ __forceinline__ void prefetch_l2(const void* p, int bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p), "r"(bytes) : "memory");
}

// The places of a pipeline of kStages buffers, taken in turn.
template <int kStages>
struct Ring {
  int stage = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void next() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// first[e] = tiles of the experts before e, first[experts] = all; count(rows): tiles of an expert. By all of
// kThreads threads; ends synchronised.
template <class Count>
__device__ __forceinline__ void count_tiles(const int32_t* offset, int experts, int32_t* first, Count count) {
  __shared__ int32_t of_warp[kThreads / 32];
  const int each = (experts + kThreads - 1) / kThreads, begin = min(int(threadIdx.x) * each, experts),
            end = min(begin + each, experts), lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int own = 0;
  for (int e = begin; e < end; ++e) own += count(offset[e + 1] - offset[e]);
  int through = own;
  for (int i = 1; i < 32; i *= 2) {
    const int other = __shfl_up_sync(0xffffffffu, through, i);
    if (lane >= i) through += other;
  }
  if (lane == 31) of_warp[warp] = through;
  __syncthreads();
  int at = through - own;
  for (int w = 0; w < warp; ++w) at += of_warp[w];
  for (int e = begin; e < end; ++e) {
    first[e] = at;
    at += count(offset[e + 1] - offset[e]);
  }
  if (threadIdx.x == kThreads - 1) first[experts] = at;
  __syncthreads();
}

// The expert of a tile: the last that begins at or before it.
__device__ __forceinline__ int expert_of_tile(const int32_t* first, int experts, int tile) {
  int low = 0, high = experts;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (first[middle] <= tile)
      low = middle;
    else
      high = middle;
  }
  return low;
}

// A barrier of the two consumer warpgroups.
__device__ __forceinline__ void consumers_sync() {
  named_barrier_sync(1, 256);
}

}  // namespace hysparse::cuda::experts
