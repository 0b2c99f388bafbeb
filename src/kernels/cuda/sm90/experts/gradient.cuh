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
  int32_t* first;
  uint64_t *full, *empty;
  __device__ explicit GradientSmem(uint8_t* raw) {
    uint8_t* base = raw + ((1024 - (smem_address(raw) & 1023)) & 1023);
    stages = base;
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

__device__ __forceinline__ void produce(const GradientParams& p, const GradientSmem& s, int tiles,
                                        int tiles_n) {
  using G = Gradient;
  Ring<G::kStages> ring;
  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const GradientTile t = gradient_tile(p, s.first, tile, tiles_n);
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

    const int m = t.m0 + wg * 64 + warp * 16 + lane / 4;
    T* grad = static_cast<T*>(p.grad) + t.expert * p.expert_stride;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (m + h * 8 >= p.m) continue;
      T* g = grad + (m + h * 8) * p.row_stride;
      if constexpr (sizeof(T) == 4) {
#pragma unroll
        for (int j = 0; j < G::kN / 8; ++j) {
          const int n = t.n0 + j * 8 + lane % 4 * 2;
          // One addition to each element in a launch: its order is not open.
          if (n < p.n) add_2(g + n, acc[j * 4 + 2 * h], acc[j * 4 + 2 * h + 1]);
        }
      } else {
        constexpr int kRun = 8;  // loads under way together
#pragma unroll
        for (int j0 = 0; j0 < G::kN / 8; j0 += kRun) {
          __nv_bfloat162 old[kRun];
#pragma unroll
          for (int j = 0; j < kRun; ++j) {
            const int n = t.n0 + (j0 + j) * 8 + lane % 4 * 2;
            old[j] = n < p.n ? *reinterpret_cast<const __nv_bfloat162*>(g + n) : __nv_bfloat162{};
          }
#pragma unroll
          for (int j = 0; j < kRun; ++j) {
            const int n = t.n0 + (j0 + j) * 8 + lane % 4 * 2;
            const float2 x = __bfloat1622float2(old[j]);
            if (n < p.n)
              *reinterpret_cast<__nv_bfloat162*>(g + n) =
                  __floats2bfloat162_rn(x.x + acc[(j0 + j) * 4 + 2 * h], x.y + acc[(j0 + j) * 4 + 2 * h + 1]);
          }
        }
      }
    }
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
    registers_give<24>();
    if (threadIdx.x == 0) produce(p, s, tiles, tiles_n);
  } else {
    registers_take<240>();
    consume<T>(p, s, tiles, tiles_n);
  }
}

}  // namespace hysparse::cuda::experts
