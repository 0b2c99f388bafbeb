// Dense causal attention forward for Hopper: a TMA producer warp and two consumer warpgroups that take turns
// on the tensor cores, so that one's softmax runs under the other's products. Keys are walked from the
// diagonal down; the product of the next tile's scores is issued before the current tile's P V. On request
// every row's raw maximum a group of keys goes to global memory (the oracle).
#pragma once

#include "kernels/cuda/common/ptx.cuh"
#include "kernels/cuda/common/wgmma.cuh"
#include "kernels/cuda/sm90/attention_fwd/config.h"

namespace hysparse::cuda::attention_fwd {

template <class C>
struct Smem {
  __nv_bfloat16* q;  // [chunksD][kM][64]
  __nv_bfloat16* k;  // [stages][chunksD][kN][64]
  __nv_bfloat16* v;  // [stages][chunksV][kN][64]
  uint64_t *q_full, *k_full, *v_full, *k_empty, *v_empty;

  __device__ explicit Smem(uint8_t* raw) {
    uint8_t* base = raw + ((1024 - (smem_address(raw) & 1023)) & 1023);
    q = reinterpret_cast<__nv_bfloat16*>(base + C::kQ);
    k = reinterpret_cast<__nv_bfloat16*>(base + C::kK);
    v = reinterpret_cast<__nv_bfloat16*>(base + C::kV);
    q_full = reinterpret_cast<uint64_t*>(base + C::kBarriers);
    k_full = q_full + 1;
    v_full = k_full + C::kStages;
    k_empty = v_full + C::kStages;
    v_empty = k_empty + C::kStages;
  }
};

template <class C>
__device__ __forceinline__ void produce(const Params& p, const Smem<C>& s, const Tile& tile, int head,
                                        int first, int tiles_n) {
  const int kv_head = head / p.ratio;
  mbarrier_expect(s.q_full, C::kQBytes);
  for (int c = 0; c < C::kChunksD; ++c)
    tma_load_3d(s.q + c * C::kM * 64, &p.q, s.q_full, c * 64, head, tile.q_row);
  for (int i = 0; i < tiles_n; ++i) {
    const int stage = i % C::kStages;
    const uint32_t parity = (i / C::kStages) & 1;
    const int row = tile.kv_row + (first + tiles_n - 1 - i) * C::kN;
    mbarrier_wait(&s.k_empty[stage], parity ^ 1);
    mbarrier_expect(&s.k_full[stage], C::kKBytes);
    for (int c = 0; c < C::kChunksD; ++c)
      tma_load_3d(s.k + (stage * C::kChunksD + c) * C::kN * 64, &p.k, &s.k_full[stage], c * 64, kv_head, row);
    mbarrier_wait(&s.v_empty[stage], parity ^ 1);
    mbarrier_expect(&s.v_full[stage], C::kVBytes);
    for (int c = 0; c < C::kChunksV; ++c)
      tma_load_3d(s.v + (stage * C::kChunksV + c) * C::kN * 64, &p.v, &s.v_full[stage], c * 64, kv_head, row);
  }
}

// One consumer warpgroup: 64 query rows of the tile.
template <class C>
struct Consumer {
  static constexpr int kS = C::kN / 2;  // accumulator registers a thread
  float s[kS];
  float o[C::kDV / 2];
  uint32_t pf[C::kN / 16][4];  // P as the A operand
  float m[2], l[2];            // row maximum (raw units) and sum

  const Params& p;
  const Smem<C>& sm;
  const Tile tile;
  const int head, wg, lane, row;  // row: first of this thread's two rows (row, row + 8) within the tile

  __device__ Consumer(const Params& params, const Smem<C>& smem, const Tile& t, int h, int warpgroup)
      : p(params),
        sm(smem),
        tile(t),
        head(h),
        wg(warpgroup),
        lane(threadIdx.x % 32),
        row(warpgroup * 64 + (threadIdx.x % 128) / 32 * 16 + (threadIdx.x % 32) / 4) {}

  __device__ __forceinline__ void issue_qk(int stage) {
    const uint32_t q = smem_address(sm.q) + wg * 64 * 128;
    const uint32_t k = smem_address(sm.k) + stage * C::kKBytes;
#pragma unroll
    for (int c = 0; c < C::kD / 16; ++c)
      Wgmma<C::kN>::template ss<0>(s, descriptor_k_major(q + c / 4 * (C::kM * 128) + c % 4 * 32),
                                   descriptor_k_major(k + c / 4 * (C::kN * 128) + c % 4 * 32), c != 0);
    wgmma_commit();
  }
  __device__ __forceinline__ void issue_pv(int stage, bool first) {
    const uint32_t v = smem_address(sm.v) + stage * C::kVBytes;
#pragma unroll
    for (int c = 0; c < C::kN / 16; ++c)
      Wgmma<C::kDV>::template rs<1>(o, pf[c], descriptor_mn_major(v + c * 16 * 128, C::kN * 128),
                                    !(first && c == 0));
    wgmma_commit();
  }

  // Max, exponentials and sums of the scores in s; emits the raw maxima. n: key tile. Returns the factors for
  // o in `alpha`.
  template <bool kMasked>
  __device__ __forceinline__ void softmax(int n, float (&alpha)[2]) {
    if constexpr (kMasked) {
      const int limit = tile.position + row - n * C::kN;  // last visible column of the first row
#pragma unroll
      for (int j = 0; j < C::kN / 8; ++j) {
        const int col = j * 8 + lane % 4 * 2;
        if (col > limit) s[j * 4] = -INFINITY;
        if (col + 1 > limit) s[j * 4 + 1] = -INFINITY;
        if (col > limit + 8) s[j * 4 + 2] = -INFINITY;
        if (col + 1 > limit + 8) s[j * 4 + 3] = -INFINITY;
        if constexpr (C::kWindow) {
          const int below = limit - p.window;  // last key before the first row's window
          if (col <= below) s[j * 4] = -INFINITY;
          if (col + 1 <= below) s[j * 4 + 1] = -INFINITY;
          if (col <= below + 8) s[j * 4 + 2] = -INFINITY;
          if (col + 1 <= below + 8) s[j * 4 + 3] = -INFINITY;
        }
      }
    }
    float top[2];
    if constexpr (C::kGroup > 0) {
      constexpr int kGroups = C::kN / C::kGroup;
      float g[kGroups * 2];  // group-major, two rows each
#pragma unroll
      for (int i = 0; i < kGroups; ++i) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          float x = -INFINITY;
#pragma unroll
          for (int j = 0; j < C::kGroup / 8; ++j) {
            const int at = (i * C::kGroup / 8 + j) * 4 + 2 * r;
            x = fmaxf(x, fmaxf(s[at], s[at + 1]));
          }
          g[i * 2 + r] = quad_max(x);
        }
      }
      emit<kGroups>(n, g);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        top[r] = g[r];
#pragma unroll
        for (int i = 1; i < kGroups; ++i) top[r] = fmaxf(top[r], g[i * 2 + r]);
      }
    } else {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float x = -INFINITY;
#pragma unroll
        for (int j = 0; j < C::kN / 8; ++j) x = fmaxf(x, fmaxf(s[j * 4 + 2 * r], s[j * 4 + 2 * r + 1]));
        top[r] = quad_max(x);
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float next = fmaxf(m[r], top[r]);
      const float shift = next == -INFINITY ? 0.0f : next * p.scale_log2;  // no visible key yet
      alpha[r] = exp2_fast(fmaf(m[r], p.scale_log2, -shift));
      m[r] = next;
      float sum = 0;
#pragma unroll
      for (int j = 0; j < C::kN / 8; ++j) {
        s[j * 4 + 2 * r] = exp2_fast(fmaf(s[j * 4 + 2 * r], p.scale_log2, -shift));
        s[j * 4 + 2 * r + 1] = exp2_fast(fmaf(s[j * 4 + 2 * r + 1], p.scale_log2, -shift));
        sum += s[j * 4 + 2 * r] + s[j * 4 + 2 * r + 1];
      }
      l[r] = l[r] * alpha[r] + sum;
    }
  }

  // The quad's four threads share the stores of a row pair's groups.
  template <int kGroups>
  __device__ __forceinline__ void emit(int n, const float (&g)[kGroups * 2]) {
    const int q = lane % 4;
#pragma unroll
    for (int i = 0; i < kGroups * 2; i += 4) {
      // Selects, not an index: a run-time index would move the registers to memory.
      const float low = q & 1 ? g[i + 1] : g[i];
      const float high = i + 2 < kGroups * 2
                             ? (q & 1 ? g[min(i + 3, kGroups * 2 - 1)] : g[min(i + 2, kGroups * 2 - 1)])
                             : low;
      const float x = q & 2 ? high : low;
      const int index = i + q, r = row + (index & 1) * 8;
      if (index < kGroups * 2 && r < tile.q_count) {
        const int64_t group = int64_t(n) * kGroups + index / 2;
        __stcs(p.raw + (head * int64_t(p.groups) + group) * p.raw_rows + (tile.q_row - p.raw_row0 + r),
               x * p.scale_log2);
      }
    }
  }

  __device__ __forceinline__ void pack() {
#pragma unroll
    for (int c = 0; c < C::kN / 16; ++c) {
      pf[c][0] = pack_bf16(s[c * 8 + 0], s[c * 8 + 1]);
      pf[c][1] = pack_bf16(s[c * 8 + 2], s[c * 8 + 3]);
      pf[c][2] = pack_bf16(s[c * 8 + 4], s[c * 8 + 5]);
      pf[c][3] = pack_bf16(s[c * 8 + 6], s[c * 8 + 7]);
    }
  }
  __device__ __forceinline__ void rescale(const float (&alpha)[2]) {
#pragma unroll
    for (int j = 0; j < C::kDV / 8; ++j) {
      o[j * 4] *= alpha[0];
      o[j * 4 + 1] *= alpha[0];
      o[j * 4 + 2] *= alpha[1];
      o[j * 4 + 3] *= alpha[1];
    }
  }
  __device__ __forceinline__ void release(uint64_t* barrier) {
    if (lane == 0) mbarrier_arrive(barrier);
  }
  __device__ __forceinline__ void my_turn() {
    named_barrier_sync(1 + wg, 256);
  }
  __device__ __forceinline__ void your_turn() {
    named_barrier_arrive(2 - wg, 256);
  }

  // Rows of V behind the last visible key are another sequence's or undefined: a NaN there would survive the
  // product with P = 0.
  __device__ __forceinline__ void clear_tail(int stage, int first) {
    uint4* v = reinterpret_cast<uint4*>(sm.v + stage * (C::kVBytes / 2));
    for (int i = threadIdx.x - 128; i < C::kChunksV * (C::kN - first) * 8; i += 256) {
      const int c = i / ((C::kN - first) * 8), r = i % ((C::kN - first) * 8);
      v[(c * C::kN + first) * 8 + r] = uint4{0, 0, 0, 0};
    }
    fence_async_proxy();
    named_barrier_sync(3, 256);
  }

  // Key tiles first..first + tiles_n - 1.
  __device__ __forceinline__ void run(int first, int tiles_n) {
    m[0] = m[1] = -INFINITY;
    l[0] = l[1] = 0;
    float alpha[2];
    const int unmasked = tile.position / C::kN;  // tiles below this one are visible to every row
    const int visible = tile.position + tile.q_count;
    if (wg == 1) your_turn();

    mbarrier_wait(sm.q_full, 0);
    mbarrier_wait(&sm.k_full[0], 0);
    my_turn();
    wgmma_fence_operand(s);
    wgmma_fence();
    issue_qk(0);
    your_turn();
    wgmma_wait<0>();
    wgmma_fence_operand(s);
    release(&sm.k_empty[0]);
    softmax<true>(first + tiles_n - 1, alpha);
    pack();
    if (visible % C::kN != 0) {
      mbarrier_wait(&sm.v_full[0], 0);
      clear_tail(0, visible % C::kN);
    }

    for (int i = 1; i < tiles_n; ++i) {
      const int n = first + tiles_n - 1 - i;
      const int stage = i % C::kStages, before = (i - 1) % C::kStages;
      mbarrier_wait(&sm.k_full[stage], (i / C::kStages) & 1);
      my_turn();
      wgmma_fence_operand(s);
      wgmma_fence_operand(o);
      wgmma_fence();
      issue_qk(stage);
      mbarrier_wait(&sm.v_full[before], ((i - 1) / C::kStages) & 1);
      wgmma_fence();
      issue_pv(before, i == 1);
      your_turn();
      wgmma_wait<1>();
      wgmma_fence_operand(s);
      release(&sm.k_empty[stage]);
      if (C::kWindow || n >= unmasked)
        softmax<true>(n, alpha);
      else
        softmax<false>(n, alpha);
      wgmma_wait<0>();
      wgmma_fence_operand(o);
      release(&sm.v_empty[before]);
      pack();
      rescale(alpha);
    }
    const int last = tiles_n - 1;
    mbarrier_wait(&sm.v_full[last % C::kStages], (last / C::kStages) & 1);
    wgmma_fence_operand(o);
    wgmma_fence();
    issue_pv(last % C::kStages, last == 0);
    l[0] = quad_sum(l[0]);
    l[1] = quad_sum(l[1]);
    wgmma_wait<0>();
    wgmma_fence_operand(o);
    store();
  }

  // O through this warpgroup's own rows of the Q tile, so that global stores are whole 16-byte runs; rows
  // past the tile stay untouched.
  __device__ __forceinline__ void store() {
    float inverse[2], log_sum[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      inverse[r] = 1.0f / l[r];
      log_sum[r] = m[r] * p.scale_log2 + log2f(l[r]);
      if constexpr (C::kWindow) {
        if (p.sinks) {
          const float sink = p.sinks[head] * 1.4426950408889634f, own = m[r] * p.scale_log2;
          const float top = fmaxf(sink, own), mine = exp2_fast(own - top);
          const float total = l[r] * mine + exp2_fast(sink - top);
          inverse[r] = mine / total;
          log_sum[r] = top + log2f(total);
        }
      }
    }
    if (lane % 4 == 0) {
#pragma unroll
      for (int r = 0; r < 2; ++r)
        if (row + r * 8 < tile.q_count)
          p.lse[int64_t(tile.q_row + row + r * 8) * p.heads + head] = log_sum[r] * 0.69314718055994531f;
    }
    uint8_t* q = reinterpret_cast<uint8_t*>(sm.q);
#pragma unroll
    for (int j = 0; j < C::kDV / 8; ++j) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int y = row + r * 8;
        const int chunk = j / 8, unit = (j % 8) ^ (y % 8);  // 16-byte units, swizzled against bank conflicts
        *reinterpret_cast<uint32_t*>(q + (chunk * C::kM + y) * 128 + unit * 16 + lane % 4 * 4) =
            pack_bf16(o[j * 4 + 2 * r] * inverse[r], o[j * 4 + 2 * r + 1] * inverse[r]);
      }
    }
    __syncwarp();  // a warp reads back only its own 16 rows
    const int first = row - lane / 4;
    constexpr int kUnits = C::kDV / 8;
    for (int i = lane; i < 16 * kUnits; i += 32) {
      const int y = first + i / kUnits, j = i % kUnits;
      if (y < tile.q_count)
        *reinterpret_cast<uint4*>(p.o + int64_t(tile.q_row + y) * p.o_stride_row + head * p.o_stride_head +
                                  j * 8) =
            *reinterpret_cast<const uint4*>(q + (j / 8 * C::kM + y) * 128 + ((j % 8) ^ (y % 8)) * 16);
    }
  }
};

template <class C>
__global__ void __launch_bounds__(C::kThreads, 1) kernel(const __grid_constant__ Params p) {
  extern __shared__ uint8_t raw_smem[];
  const Smem<C> sm(raw_smem);
  // Heads of a section run side by side over the longest tiles first.
  const int per_section = p.section_heads * p.tile_count;
  const int section = blockIdx.x / per_section, rest = blockIdx.x % per_section;
  const int head = section * p.section_heads + rest % p.section_heads;
  const Tile tile = p.tiles[p.tile_count - 1 - rest / p.section_heads];
  const int first = C::kWindow ? max(tile.position - p.window + 1, 0) / C::kN : 0;
  const int tiles_n = (tile.position + tile.q_count + C::kN - 1) / C::kN - first;

  if (threadIdx.x == 0) {
    tma_prefetch(&p.q);
    tma_prefetch(&p.k);
    tma_prefetch(&p.v);
    mbarrier_init(sm.q_full, 1);
    for (int i = 0; i < C::kStages; ++i) {
      mbarrier_init(&sm.k_full[i], 1);
      mbarrier_init(&sm.v_full[i], 1);
      mbarrier_init(&sm.k_empty[i], C::kConsumers * 4);
      mbarrier_init(&sm.v_empty[i], C::kConsumers * 4);
    }
    mbarrier_init_fence();
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    registers_give<24>();
    if (threadIdx.x == 0) produce<C>(p, sm, tile, head, first, tiles_n);
  } else {
    registers_take<240>();
    Consumer<C>(p, sm, tile, head, threadIdx.x / 128 - 1).run(first, tiles_n);
  }
}

}  // namespace hysparse::cuda::attention_fwd
