// Grouped products for Hopper, forward and input gradient: persistent CTAs take tiles of 256 columns x up to
// 160 rows of one expert in turn; a producer thread brings 64 of the sum's terms a stage by TMA, two
// warpgroups multiply, each 128 columns. Rows of a stage behind an expert's last are another expert's or
// undefined: they stand on the N side, where a column's result depends on that column alone, and are not
// stored.
#pragma once

#include "kernels/cuda/common/ptx.cuh"
#include "kernels/cuda/common/wgmma.cuh"
#include "kernels/cuda/sm90/experts/config.h"
#include "kernels/cuda/sm90/experts/tiles.cuh"
#include "kernels/cuda/sm90/experts/wgmma_narrow.cuh"

namespace hysparse::cuda::experts {

struct RowsSmem {
  uint8_t *stages, *scratch;
  int32_t* first;
  uint64_t *full, *empty;
  __device__ explicit RowsSmem(uint8_t* raw) {
    uint8_t* base = raw + ((1024 - (smem_address(raw) & 1023)) & 1023);
    stages = base;
    scratch = base + Rows::kScratch;
    first = reinterpret_cast<int32_t*>(base + Rows::kFirst);
    full = reinterpret_cast<uint64_t*>(base + Rows::kBarriers);
    empty = full + Rows::kStages;
  }
};

struct RowsTile {
  int expert, row, rows, output, m0;
};
__device__ __forceinline__ int row_tiles(int rows) {
  return (rows + Rows::kN - 1) / Rows::kN;
}
// Tiles of an expert: row tiles of nearly equal heights, the column tiles of each side by side.
__device__ __forceinline__ RowsTile rows_tile(const RowsParams& p, const int32_t* first, int tile,
                                              int column_tiles) {
  const int e = expert_of_tile(first, p.experts, tile), at = tile - first[e];
  const int begin = p.offset[e], rows = p.offset[e + 1] - begin, count = row_tiles(rows);
  const int height = ((rows + count - 1) / count + 15) / 16 * 16, across = column_tiles * p.outputs;
  const int part = at / across, column = at % across;
  return {e, begin + part * height, min(height, rows - part * height), column / column_tiles,
          column % column_tiles * Rows::kM};
}

template <bool kTransposed>
__device__ __forceinline__ void produce(const RowsParams& p, const RowsSmem& s, int tiles, int column_tiles) {
  Ring<Rows::kStages> ring;
  const int steps = (p.k + kDepth - 1) / kDepth;
  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const RowsTile t = rows_tile(p, s.first, tile, column_tiles);
    const int boxes = (t.rows + Rows::kBox - 1) / Rows::kBox;
    for (int step = 0; step < steps * p.sources; ++step, ring.next()) {
      const int source = step >= steps, i = step - source * steps;
      const CUtensorMap *weights = &p.weights[source + t.output], *a = &p.a[source];
      uint8_t* stage = s.stages + ring.stage * Rows::kStageBytes;
      uint64_t* full = &s.full[ring.stage];
      mbarrier_wait(&s.empty[ring.stage], ring.parity ^ 1);
      mbarrier_expect(full, Rows::kWeightBytes + boxes * Rows::kBox * 128);
      if constexpr (kTransposed) {
#pragma unroll
        for (int c = 0; c < Rows::kM / 64; ++c)
          tma_load_3d(stage + c * kDepth * 128, weights, full, t.m0 + c * 64, i * kDepth, t.expert);
      } else {
        tma_load_3d(stage, weights, full, i * kDepth, t.m0, t.expert);
      }
      for (int b = 0; b < boxes; ++b)
        tma_load_3d(stage + Rows::kWeightBytes + b * Rows::kBox * 128, a, full, i * kDepth, 0,
                    t.row + b * Rows::kBox);
    }
  }
}

// A tile whose rows fill N columns: this warpgroup's 128 of the 256 columns of c.
template <bool kTransposed, int N>
__device__ __forceinline__ void consume_tile(const RowsParams& p, const RowsSmem& s, const RowsTile& t,
                                             Ring<Rows::kStages>& ring) {
  const int wg = threadIdx.x / 128 - 1, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  const int steps = (p.k + kDepth - 1) / kDepth * p.sources;
  float acc[2][N / 2] = {};  // written here, or the compiler keeps those of every N alive from tile to tile
  int before = 0;
  for (int i = 0; i < steps; ++i, ring.next()) {
    const uint32_t w = smem_address(s.stages) + ring.stage * Rows::kStageBytes, a = w + Rows::kWeightBytes;
    mbarrier_wait(&s.full[ring.stage], ring.parity);
    wgmma_fence_operand(acc[0]);
    wgmma_fence_operand(acc[1]);
    wgmma_fence();
#pragma unroll
    for (int c = 0; c < kDepth / 16; ++c) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const uint64_t weights =
            kTransposed ? descriptor_mn_major(w + (wg * 2 + h) * (kDepth * 128) + c * 16 * 128, kDepth * 128)
                        : descriptor_k_major(w + (wg * 2 + h) * 64 * 128 + c * 32);
        WgmmaRows<N>::template ss<0, kTransposed ? 1 : 0>(acc[h], weights, descriptor_k_major(a + c * 32), 1);
      }
    }
    wgmma_commit();
    if (i > 0) {
      wgmma_wait<1>();
      if (lane == 0) mbarrier_arrive(&s.empty[before]);
    }
    before = ring.stage;
  }
  wgmma_wait<0>();
  wgmma_fence_operand(acc[0]);
  wgmma_fence_operand(acc[1]);
  if (lane == 0) mbarrier_arrive(&s.empty[before]);

  // 8 rows of c at a time through the warpgroup's shared memory, so that a row's 128 columns are stored as
  // whole lines; two buffers in turn: whoever writes one has passed the barrier behind which all had read it.
  constexpr int kPitch = Rows::kScratchPitch;
  uint8_t* scratch = s.scratch + wg * (2 * 8 * kPitch);
  const uint32_t put =
      smem_address(scratch) + lane % 8 * kPitch + (lane / 16 * 64 + warp * 16 + lane / 8 % 2 * 8) * 2;
  const int row = threadIdx.x % 128 / 16, unit = threadIdx.x % 16, m = t.m0 + wg * 128 + unit * 8;
  const uint8_t* get = scratch + row * kPitch + unit * 16;
  const int64_t stride = p.c_stride[t.output];
  __nv_bfloat16* out = p.c[t.output] + int64_t(t.row + row) * stride + m;
#pragma unroll
  for (int i = 0; i < N / 8; ++i) {
    const uint32_t packed[4] = {
        pack_bf16(acc[0][i * 4], acc[0][i * 4 + 1]), pack_bf16(acc[0][i * 4 + 2], acc[0][i * 4 + 3]),
        pack_bf16(acc[1][i * 4], acc[1][i * 4 + 1]), pack_bf16(acc[1][i * 4 + 2], acc[1][i * 4 + 3])};
    store_matrices_transposed(put + i % 2 * (8 * kPitch), packed);
    named_barrier_sync(2 + wg, 128);
    uint4 value = *reinterpret_cast<const uint4*>(get + i % 2 * (8 * kPitch));
    if (i * 8 + row < t.rows && m < p.m) {
      uint4* c = reinterpret_cast<uint4*>(out + int64_t(i * 8) * stride);
      if (p.accumulate) {
        const uint4 old = *c;
        auto* y = reinterpret_cast<__nv_bfloat162*>(&value);
        const auto* z = reinterpret_cast<const __nv_bfloat162*>(&old);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float2 u = __bfloat1622float2(y[j]), v = __bfloat1622float2(z[j]);
          y[j] = __floats2bfloat162_rn(u.x + v.x, u.y + v.y);
        }
      }
      *c = value;
    }
    __syncwarp();
  }
  named_barrier_sync(2 + wg, 128);
}

template <bool kTransposed>
__device__ __forceinline__ void consume(const RowsParams& p, const RowsSmem& s, int tiles, int column_tiles) {
  Ring<Rows::kStages> ring;
  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const RowsTile t = rows_tile(p, s.first, tile, column_tiles);
    switch ((t.rows + 15) / 16) {
#define HYSPARSE_HEIGHT(i)                            \
  case i:                                             \
    consume_tile<kTransposed, 16 * i>(p, s, t, ring); \
    break
      HYSPARSE_HEIGHT(1);
      HYSPARSE_HEIGHT(2);
      HYSPARSE_HEIGHT(3);
      HYSPARSE_HEIGHT(4);
      HYSPARSE_HEIGHT(5);
      HYSPARSE_HEIGHT(6);
      HYSPARSE_HEIGHT(7);
      HYSPARSE_HEIGHT(8);
      HYSPARSE_HEIGHT(9);
      HYSPARSE_HEIGHT(10);
#undef HYSPARSE_HEIGHT
    }
  }
}

template <bool kTransposed>
__global__ void __launch_bounds__(kThreads, 1) rows_kernel(const __grid_constant__ RowsParams p) {
  extern __shared__ uint8_t raw_smem[];
  const RowsSmem s(raw_smem);
  if (threadIdx.x == 0) {
    tma_prefetch(&p.weights[0]);
    tma_prefetch(&p.a[0]);
    for (int i = 0; i < Rows::kStages; ++i) {
      mbarrier_init(&s.full[i], 1);
      mbarrier_init(&s.empty[i], 8);
    }
    mbarrier_init_fence();
  }
  const int column_tiles = (p.m + Rows::kM - 1) / Rows::kM;
  count_tiles(p.offset, p.experts, s.first,
              [&](int rows) { return row_tiles(rows) * column_tiles * p.outputs; });
  const int tiles = s.first[p.experts];
  if (threadIdx.x < 128) {
    registers_give<24>();
    if (threadIdx.x == 0) produce<kTransposed>(p, s, tiles, column_tiles);
  } else {
    registers_take<240>();
    consume<kTransposed>(p, s, tiles, column_tiles);
  }
}

}  // namespace hysparse::cuda::experts
