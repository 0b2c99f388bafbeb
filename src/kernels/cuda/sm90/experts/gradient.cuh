// Grouped products for Hopper, gradient of the weights: tiles of 128 x 256 of one expert's matrix, summed
// over its rows, 64 a stage. What a stage holds behind an expert's last row is another expert's or undefined,
// and is cleared in shared memory before it is multiplied.
#pragma once

#include "kernels/cuda/common/ptx.cuh"
#include "kernels/cuda/common/wgmma.cuh"
#include "kernels/cuda/sm90/experts/config.h"
#include "kernels/cuda/sm90/experts/tiles.cuh"

namespace hysparse::cuda::experts {

struct GradientSmem {
  uint8_t* stages;
  float* scratch;
  int32_t* first;
  uint64_t *full, *empty;
  __device__ explicit GradientSmem(uint8_t* raw) {
    uint8_t* base = raw + ((1024 - (smem_address(raw) & 1023)) & 1023);
    stages = base;
    scratch = reinterpret_cast<float*>(base + Gradient::kScratch);
    first = reinterpret_cast<int32_t*>(base + Gradient::kFirst);
    full = reinterpret_cast<uint64_t*>(base + Gradient::kBarriers);
    empty = full + Gradient::kStages;
  }
};

struct GradientTile {
  int expert, row, rows, m0, n0;
};
__device__ __forceinline__ GradientTile gradient_tile(const GradientParams& p, const int32_t* first, int tile,
                                                      int tiles_n) {
  const int e = expert_of_tile(first, p.experts, tile), at = tile - first[e], begin = p.offset[e];
  return {e, begin, p.offset[e + 1] - begin, at / tiles_n * Gradient::kM, at % tiles_n * Gradient::kN};
}

// By a warp, whose first lane brings the rows; all ask that the tile's gradients come to the L2.
template <class T>
__device__ __forceinline__ void produce(const GradientParams& p, const GradientSmem& s, int tiles,
                                        int tiles_n) {
  using G = Gradient;
  Ring<G::kStages> ring;
  const int lane = threadIdx.x;
  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const GradientTile t = gradient_tile(p, s.first, tile, tiles_n);
    const T* grad = static_cast<const T*>(p.grad) + t.expert * p.expert_stride + t.n0;
    for (int m = t.m0 + lane; m < min(t.m0 + G::kM, p.m); m += 32)
      prefetch_l2(grad + m * p.row_stride, min(G::kN, p.n - t.n0) * int(sizeof(T)));
    __syncwarp();
    if (lane != 0) continue;
    for (int r = 0; r < t.rows; r += kDepth, ring.next()) {
      uint8_t* stage = s.stages + ring.stage * G::kStageBytes;
      uint64_t* full = &s.full[ring.stage];
      mbarrier_wait(&s.empty[ring.stage], ring.parity ^ 1);
      mbarrier_expect(full, G::kStageBytes);
#pragma unroll
      for (int c = 0; c < G::kM / 64; ++c)
        tma_load_3d(stage + c * G::kChunk, &p.dy, full, t.m0 + c * 64, 0, t.row + r);
#pragma unroll
      for (int c = 0; c < G::kN / 64; ++c)
        tma_load_3d(stage + G::kABytes + c * G::kChunk, &p.x, full, t.n0 + c * 64, 0, t.row + r);
    }
  }
}

// Rows from `valid` on, of all chunks of a stage, by both consumer warpgroups.
__device__ __forceinline__ void clear_rows(uint8_t* stage, int valid) {
  constexpr int kChunks = Gradient::kStageBytes / Gradient::kChunk;
  uint4* x = reinterpret_cast<uint4*>(stage);
  const int units = (kDepth - valid) * 8;  // of 16 bytes, in a chunk
  for (int i = threadIdx.x - 128; i < kChunks * units; i += 256)
    x[i / units * (Gradient::kChunk / 16) + valid * 8 + i % units] = uint4{0, 0, 0, 0};
  fence_async_proxy();
  consumers_sync();
}

// grad += acc, where this warp's 16 rows of the tile are: 8 rows of 64 columns at a time through its own
// shared memory, so that gradients are read and written in whole lines. What is added to comes a turn ahead.
template <class T>
__device__ __forceinline__ void add_tile(const GradientParams& p, const GradientTile& t, T* grad,
                                         const float (&acc)[Gradient::kN / 2], float* scratch) {
  constexpr int kEach = 16 / sizeof(T);            // elements a thread reads and writes together
  constexpr int kLanes = 64 / kEach;               // threads a row
  constexpr int kLoads = 8 * kLanes / 32;          // of 32 / kLanes rows each
  constexpr int kTurns = 2 * (Gradient::kN / 64);  // first the upper 8 rows, then the lower
  const int warp = threadIdx.x / 32 % 4, wg = threadIdx.x / 128 - 1, lane = threadIdx.x % 32;
  const int row = lane / kLanes, column = lane % kLanes * kEach, m0 = t.m0 + wg * 64 + warp * 16;
  float* put = scratch + lane / 4 * Gradient::kScratchPitch + lane % 4 * 2;
  const float* get = scratch + row * Gradient::kScratchPitch + column;
  const auto place = [&](int turn, int i) -> T* {
    const int m = m0 + turn / (kTurns / 2) * 8 + i * (32 / kLanes) + row,
              n = t.n0 + turn % (kTurns / 2) * 64 + column;
    return m < p.m && n < p.n ? grad + m * p.row_stride + n : nullptr;
  };
  uint4 old[2][kLoads];
  const auto fetch = [&](int turn) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const T* from = place(turn, i);
      if (from) old[turn % 2][i] = *reinterpret_cast<const uint4*>(from);
    }
  };
  fetch(0);
#pragma unroll
  for (int turn = 0; turn < kTurns; ++turn) {
    const int h = turn / (kTurns / 2), chunk = turn % (kTurns / 2);
    if (turn + 1 < kTurns) fetch(turn + 1);
    __syncwarp();
#pragma unroll
    for (int j = 0; j < 8; ++j)
      *reinterpret_cast<float2*>(put + j * 8) =
          float2{acc[(chunk * 8 + j) * 4 + 2 * h], acc[(chunk * 8 + j) * 4 + 2 * h + 1]};
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      T* to = place(turn, i);
      if (!to) continue;
      T* x = reinterpret_cast<T*>(&old[turn % 2][i]);
      const float* sum = get + i * (32 / kLanes) * Gradient::kScratchPitch;
      float add[kEach];
#pragma unroll
      for (int k = 0; k < kEach; k += 4) {
        const float4 v = *reinterpret_cast<const float4*>(sum + k);
        add[k] = v.x, add[k + 1] = v.y, add[k + 2] = v.z, add[k + 3] = v.w;
      }
#pragma unroll
      for (int k = 0; k < kEach; ++k) {
        if constexpr (sizeof(T) == 4)
          x[k] += add[k];
        else
          x[k] = __float2bfloat16_rn(__bfloat162float(x[k]) + add[k]);
      }
      *reinterpret_cast<uint4*>(to) = old[turn % 2][i];
    }
  }
  __syncwarp();
}

template <class T>
__device__ __forceinline__ void consume(const GradientParams& p, const GradientSmem& s, int tiles,
                                        int tiles_n) {
  using G = Gradient;
  const int wg = threadIdx.x / 128 - 1, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  Ring<G::kStages> ring;
  float acc[G::kN / 2];
  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const GradientTile t = gradient_tile(p, s.first, tile, tiles_n);
    int before = 0;
    for (int r = 0; r < t.rows; r += kDepth, ring.next()) {
      uint8_t* stage = s.stages + ring.stage * G::kStageBytes;
      const uint32_t a = smem_address(stage) + wg * G::kChunk, b = smem_address(stage) + G::kABytes;
      mbarrier_wait(&s.full[ring.stage], ring.parity);
      if (t.rows - r < kDepth) clear_rows(stage, t.rows - r);
      wgmma_fence_operand(acc);
      wgmma_fence();
#pragma unroll
      for (int c = 0; c < kDepth / 16; ++c)
        Wgmma<G::kN>::template ss<1, 1>(acc, descriptor_mn_major(a + c * 16 * 128, G::kChunk),
                                        descriptor_mn_major(b + c * 16 * 128, G::kChunk), r != 0 || c != 0);
      wgmma_commit();
      if (r > 0) {
        wgmma_wait<1>();
        if (lane == 0) mbarrier_arrive(&s.empty[before]);
      }
      before = ring.stage;
    }
    wgmma_wait<0>();
    wgmma_fence_operand(acc);
    if (lane == 0) mbarrier_arrive(&s.empty[before]);

    add_tile(p, t, static_cast<T*>(p.grad) + t.expert * p.expert_stride, acc,
             s.scratch + (wg * 4 + warp) * 8 * G::kScratchPitch);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads, 1) gradient_kernel(const __grid_constant__ GradientParams p) {
  extern __shared__ uint8_t raw_smem[];
  const GradientSmem s(raw_smem);
  if (threadIdx.x == 0) {
    tma_prefetch(&p.dy);
    tma_prefetch(&p.x);
    for (int i = 0; i < Gradient::kStages; ++i) {
      mbarrier_init(&s.full[i], 1);
      mbarrier_init(&s.empty[i], 8);
    }
    mbarrier_init_fence();
  }
  const int tiles_n = (p.n + Gradient::kN - 1) / Gradient::kN,
            each = (p.m + Gradient::kM - 1) / Gradient::kM * tiles_n;
  count_tiles(p.offset, p.experts, s.first, [&](int rows) { return rows > 0 ? each : 0; });
  const int tiles = s.first[p.experts];
  if (threadIdx.x < 128) {
    registers_give<40>();
    if (threadIdx.x < 32) produce<T>(p, s, tiles, tiles_n);
  } else {
    registers_take<232>();
    consume<T>(p, s, tiles, tiles_n);
  }
}

}  // namespace hysparse::cuda::experts
