// Block-sparse attention forward for Hopper. A CTA takes a tile of tokens with all query heads of one KV
// head: its two consumer warpgroups hold 64 (token, head) rows each and walk the tile's union list; a
// producer warp streams the listed blocks of K and V. Each block is multiplied for all rows of a warpgroup
// that has any token in it; rows whose token did not choose the block get weight 0.
#pragma once

#include "kernels/cuda/common/ptx.cuh"
#include "kernels/cuda/common/wgmma.cuh"
#include "kernels/cuda/sm90/sparse_fwd/config.h"

namespace hysparse::cuda::sparse_fwd {

template <class C>
struct Smem {
  uint8_t *q, *k, *v;  // [chunksD][kM][128 B]; [stages][chunksD][kN][128 B]; [stages][chunksV][kN][128 B]
  uint64_t *full, *empty;

  __device__ explicit Smem(uint8_t* raw) {
    uint8_t* base = raw + ((1024 - (smem_address(raw) & 1023)) & 1023);
    q = base + C::kQ;
    k = base + C::kK;
    v = base + C::kV;
    full = reinterpret_cast<uint64_t*>(base + C::kBarriers);
    empty = full + C::kStages;
  }
};

template <class C>
__device__ __forceinline__ void produce(const Params& p, const Smem<C>& s, const Tile& tile, int head,
                                        const UnionEntry* list, int length) {
  const int tiles = (length + C::kParts - 1) / C::kParts;
  for (int i = 0; i < tiles; ++i) {
    const int stage = i % C::kStages;
    mbarrier_wait(&s.empty[stage], ((i / C::kStages) & 1) ^ 1);
    mbarrier_expect(&s.full[stage], C::kKBytes + C::kVBytes);
    for (int e = 0; e < C::kParts; ++e) {
      // A missing last entry loads the block before it once more: defined numbers, weight 0.
      const int row = tile.kv_row + list[min(i * C::kParts + e, length - 1)].block * C::kB;
      for (int c = 0; c < C::kChunksD; ++c)
        tma_load_3d(s.k + stage * C::kKBytes + (c * C::kN + e * C::kB) * 128, &p.k, &s.full[stage], c * 64,
                    head, row);
      for (int c = 0; c < C::kChunksV; ++c)
        tma_load_3d(s.v + stage * C::kVBytes + (c * C::kN + e * C::kB) * 128, &p.v, &s.full[stage], c * 64,
                    head, row);
    }
  }
}

template <class C>
struct Consumer {
  float s[C::kN / 2];
  float o[C::kDV / 2];
  uint32_t pf[C::kN / 16][4];
  float m[2], l[2];

  const Params& p;
  const Smem<C>& sm;
  const Tile tile;
  const UnionEntry* list;
  const int length, kv_head, wg, lane;
  int token[2],
      head[2];  // this thread's two rows: token within the tile (-1: padding), head within the group
  int position[2];

  __device__ Consumer(const Params& params, const Smem<C>& smem, const Tile& t, int kv,
                      const UnionEntry* entries, int count, int warpgroup)
      : p(params),
        sm(smem),
        tile(t),
        list(entries),
        length(count),
        kv_head(kv),
        wg(warpgroup),
        lane(threadIdx.x % 32) {
    const int half = p.lists.tile_tokens / 2;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = threadIdx.x % 128 / 32 * 16 + lane / 4 + r * 8;
      const int in_half = row / p.ratio;
      token[r] = in_half < half && wg * half + in_half < tile.q_count ? wg * half + in_half : -1;
      head[r] = row % p.ratio;
      position[r] = tile.position + token[r];
    }
  }

  // The mask bits of this warpgroup's tokens for entry e of key tile i.
  __device__ __forceinline__ uint64_t mask_of(int i, int e) const {
    const int at = i * C::kParts + e;
    return at < length ? __ldg(reinterpret_cast<const unsigned long long*>(&list[at].mask[wg])) : 0;
  }
  __device__ __forceinline__ bool wanted(int i) const {
    uint64_t any = 0;
#pragma unroll
    for (int e = 0; e < C::kParts; ++e) any |= mask_of(i, e);
    return any != 0;
  }
  __device__ __forceinline__ void release(int i) {
    if (lane == 0) mbarrier_arrive(&sm.empty[i % C::kStages]);
  }
  __device__ __forceinline__ void wait_full(int i) {
    mbarrier_wait(&sm.full[i % C::kStages], (i / C::kStages) & 1);
  }
  // The next key tile from i on that this warpgroup needs; `tiles` when there is none.
  __device__ __forceinline__ int find(int i, int tiles) const {
    while (i < tiles && !wanted(i)) ++i;
    return i;
  }
  // Gives back the tiles [i, end) unread.
  __device__ __forceinline__ void skip(int i, int end) {
    for (; i < end; ++i) {
      wait_full(i);
      release(i);
    }
  }

  // Copies the 64 rows of q into the swizzled tile; padding rows are zero.
  __device__ __forceinline__ void load_q() {
    const int half = p.lists.tile_tokens / 2;
    constexpr int kUnits = C::kChunksD * 8;  // 16-byte units a row
    for (int i = threadIdx.x % 128; i < 64 * kUnits; i += 128) {
      const int row = i / kUnits, unit = i % kUnits;
      const int t = row / p.ratio, tok = wg * half + t;
      uint4 x{0, 0, 0, 0};
      if (t < half && tok < tile.q_count && unit * 8 < C::kD)
        x = *reinterpret_cast<const uint4*>(p.q + int64_t(tile.q_row + tok) * p.q_stride_row +
                                            int64_t(kv_head * p.ratio + row % p.ratio) * p.q_stride_head +
                                            unit * 8);
      *reinterpret_cast<uint4*>(sm.q + (unit / 8 * C::kM + wg * 64 + row) * 128 +
                                ((unit % 8) ^ (row % 8)) * 16) = x;
    }
    fence_async_proxy();
    named_barrier_sync(1 + wg, 128);
  }

  __device__ __forceinline__ void issue_qk(int i) {
    const uint32_t q = smem_address(sm.q) + wg * 64 * 128;
    const uint32_t k = smem_address(sm.k) + i % C::kStages * C::kKBytes;
#pragma unroll
    for (int c = 0; c < C::kD / 16; ++c)
      Wgmma<C::kN>::template ss<0>(s, descriptor_k_major(q + c / 4 * (C::kM * 128) + c % 4 * 32),
                                   descriptor_k_major(k + c / 4 * (C::kN * 128) + c % 4 * 32), c != 0);
    wgmma_commit();
  }
  __device__ __forceinline__ void issue_pv(int i, bool first) {
    const uint32_t v = smem_address(sm.v) + i % C::kStages * C::kVBytes;
#pragma unroll
    for (int c = 0; c < C::kN / 16; ++c)
      Wgmma<C::kDV>::template rs<1>(o, pf[c], descriptor_mn_major(v + c * 16 * 128, C::kN * 128),
                                    !(first && c == 0));
    wgmma_commit();
  }

  // Rows of V behind the sequence's last key hold another sequence or nothing; a NaN there would survive a
  // weight of 0. Only the block that holds the tile's last position can reach them, and only this tile's own
  // tokens see it.
  __device__ __forceinline__ void clear_tail(int i) {
    const int visible = tile.position + tile.q_count;
#pragma unroll
    for (int e = 0; e < C::kParts; ++e) {
      const int at = min(i * C::kParts + e, length - 1);
      const int live = max(0, visible - list[at].block * C::kB);  // 0: a block behind the tile
      if (live >= C::kB) continue;
      for (int x = threadIdx.x % 128; x < C::kChunksV * (C::kB - live) * 8; x += 128) {
        const int c = x / ((C::kB - live) * 8), r = x % ((C::kB - live) * 8);
        reinterpret_cast<uint4*>(sm.v + i % C::kStages * C::kVBytes)[(c * C::kN + e * C::kB + live) * 8 + r] =
            uint4{0, 0, 0, 0};
      }
      fence_async_proxy();
      named_barrier_sync(1 + wg, 128);
    }
  }

  // Online softmax over the tile in s. A row outside a block's mask takes no part in it: its shift is +inf,
  // so its weights are 0.
  __device__ __forceinline__ void softmax(int i, float (&alpha)[2]) {
    bool on[C::kParts][2];
    bool cut = false;  // some row, or the sequence's last visible key, ends inside this tile
    const int half = p.lists.tile_tokens / 2;
#pragma unroll
    for (int e = 0; e < C::kParts; ++e) {
      const uint64_t mask = mask_of(i, e);
      const int first = list[min(i * C::kParts + e, length - 1)].block * C::kB;
      cut |= tile.position + tile.q_count < first + C::kB;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        on[e][r] = token[r] >= 0 && (mask >> (token[r] - wg * half) & 1);
        cut |= on[e][r] && position[r] < first + C::kB - 1;
      }
    }
    if (__any_sync(0xffffffffu, cut)) {
#pragma unroll
      for (int e = 0; e < C::kParts; ++e) {
        const int first = list[min(i * C::kParts + e, length - 1)].block * C::kB;
#pragma unroll
        for (int j = e * C::kB / 8; j < (e + 1) * C::kB / 8; ++j) {
          const int key = first + (j - e * C::kB / 8) * 8 + lane % 4 * 2;
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            if (key > position[r]) s[j * 4 + 2 * r] = -INFINITY;
            if (key + 1 > position[r]) s[j * 4 + 2 * r + 1] = -INFINITY;
          }
        }
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float top = -INFINITY;
#pragma unroll
      for (int e = 0; e < C::kParts; ++e) {
        float x = -INFINITY;
#pragma unroll
        for (int j = 0; j < C::kB / 8; ++j) {
          const int at = (e * C::kB / 8 + j) * 4 + 2 * r;
          x = fmaxf(x, fmaxf(s[at], s[at + 1]));
        }
        top = on[e][r] ? fmaxf(top, x) : top;
      }
      const float next = fmaxf(m[r], quad_max(top));
      const float shift = next == -INFINITY ? 0.0f : next * p.scale_log2;
      alpha[r] = exp2_fast(fmaf(m[r], p.scale_log2, -shift));
      m[r] = next;
      float sum = 0;
#pragma unroll
      for (int e = 0; e < C::kParts; ++e) {
        const float part_shift = on[e][r] ? shift : INFINITY;
#pragma unroll
        for (int j = 0; j < C::kB / 8; ++j) {
          const int at = (e * C::kB / 8 + j) * 4 + 2 * r;
          s[at] = exp2_fast(fmaf(s[at], p.scale_log2, -part_shift));
          s[at + 1] = exp2_fast(fmaf(s[at + 1], p.scale_log2, -part_shift));
          sum += s[at] + s[at + 1];
        }
      }
      l[r] = l[r] * alpha[r] + sum;
    }
  }

  __device__ __forceinline__ void pack() {
#pragma unroll
    for (int c = 0; c < C::kN / 16; ++c)
#pragma unroll
      for (int i = 0; i < 4; ++i) pf[c][i] = pack_bf16(s[c * 8 + i * 2], s[c * 8 + i * 2 + 1]);
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

  // Scores and weights of a tile that is here, nothing else in flight.
  __device__ __forceinline__ void scores(int i, float (&alpha)[2]) {
    wgmma_fence_operand(s);
    wgmma_fence();
    issue_qk(i);
    wgmma_wait<0>();
    wgmma_fence_operand(s);
    softmax(i, alpha);
    pack();
    clear_tail(i);
  }
  __device__ __forceinline__ void finish_pv(int i, bool first) {
    wgmma_fence_operand(o);
    wgmma_fence();
    issue_pv(i, first);
    wgmma_wait<0>();
    wgmma_fence_operand(o);
    release(i);
  }

  __device__ __forceinline__ void run() {
    m[0] = m[1] = -INFINITY;
    l[0] = l[1] = 0;
    float alpha[2];
    load_q();
    const int tiles = (length + C::kParts - 1) / C::kParts;
    int i = find(0, tiles);
    skip(0, i);
    if (i < tiles) {
      wait_full(i);
      scores(i, alpha);
      bool first = true;
      while (true) {
        const int next = find(i + 1, tiles);
        if (next == tiles) break;
        if (next - i >= C::kStages) {
          // The producer cannot bring `next` before it gets this tile's place back.
          finish_pv(i, first);
          skip(i + 1, next);
          wait_full(next);
          scores(next, alpha);
          rescale(alpha);
        } else {
          skip(i + 1, next);
          wait_full(next);
          wgmma_fence_operand(s);
          wgmma_fence_operand(o);
          wgmma_fence();
          issue_qk(next);
          wgmma_fence();
          issue_pv(i, first);
          wgmma_wait<1>();
          wgmma_fence_operand(s);
          softmax(next, alpha);
          wgmma_wait<0>();
          wgmma_fence_operand(o);
          release(i);
          pack();
          rescale(alpha);
          clear_tail(next);
        }
        first = false;
        i = next;
      }
      finish_pv(i, first);
      skip(i + 1, tiles);
    } else {
#pragma unroll
      for (int j = 0; j < C::kDV / 2; ++j) o[j] = 0;
    }
    store();
  }

  __device__ __forceinline__ void store() {
    constexpr float kLog2e = 1.4426950408889634f, kLn2 = 0.69314718055994531f;
    float factor[2];
    const int heads = p.kv_heads * p.ratio;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float sum = quad_sum(l[r]);
      const float sink = p.sinks && token[r] >= 0 ? p.sinks[kv_head * p.ratio + head[r]] * kLog2e : -INFINITY;
      const float own = m[r] * p.scale_log2;
      const float top = fmaxf(own, sink);
      const float shift = top == -INFINITY ? 0.0f : top;
      const float mine = exp2_fast(own - shift);
      const float total = sum * mine + exp2_fast(sink - shift);
      factor[r] = total > 0 ? mine / total : 0.0f;
      if (lane % 4 == 0 && token[r] >= 0)
        p.lse[int64_t(tile.q_row + token[r]) * heads + kv_head * p.ratio + head[r]] =
            total > 0 ? (shift + log2f(total)) * kLn2 : -INFINITY;
    }
    // Through this warp's own rows of the Q tile (all products that read it are done in this warpgroup).
    named_barrier_sync(1 + wg, 128);
    const int warp_row = wg * 64 + threadIdx.x % 128 / 32 * 16;
#pragma unroll
    for (int j = 0; j < C::kDV / 8; ++j)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int y = warp_row + lane / 4 + r * 8;
        *reinterpret_cast<uint32_t*>(sm.q + (j / 8 * C::kM + y) * 128 + ((j % 8) ^ (y % 8)) * 16 +
                                     lane % 4 * 4) =
            pack_bf16(o[j * 4 + 2 * r] * factor[r], o[j * 4 + 2 * r + 1] * factor[r]);
      }
    __syncwarp();
    const int half = p.lists.tile_tokens / 2;
    constexpr int kUnits = C::kDV / 8;
    for (int x = lane; x < 16 * kUnits; x += 32) {
      const int y = warp_row + x / kUnits, j = x % kUnits;
      const int row = y - wg * 64, t = row / p.ratio, tok = wg * half + t;
      if (t < half && tok < tile.q_count)
        *reinterpret_cast<uint4*>(p.o + int64_t(tile.q_row + tok) * p.o_stride_row +
                                  int64_t(kv_head * p.ratio + row % p.ratio) * p.o_stride_head + j * 8) =
            *reinterpret_cast<const uint4*>(sm.q + (j / 8 * C::kM + y) * 128 + ((j % 8) ^ (y % 8)) * 16);
    }
  }
};

template <class C>
__global__ void __launch_bounds__(C::kThreads, 1) kernel(const __grid_constant__ Params p) {
  extern __shared__ uint8_t raw_smem[];
  const Smem<C> sm(raw_smem);
  const int head = blockIdx.x / p.lists.tile_count;
  const int tile_index = p.lists.tile_count - 1 - blockIdx.x % p.lists.tile_count;
  const Tile tile = p.lists.tiles[tile_index];
  const int64_t at = int64_t(head) * p.lists.tile_count + tile_index;
  const UnionEntry* list = p.lists.entries + at * p.lists.capacity;
  const int length = p.lists.lengths[at];
  if (length < 0) return;  // goes block by block

  if (threadIdx.x == 0) {
    tma_prefetch(&p.k);
    tma_prefetch(&p.v);
    for (int i = 0; i < C::kStages; ++i) {
      mbarrier_init(&sm.full[i], 1);
      mbarrier_init(&sm.empty[i], 8);
    }
    mbarrier_init_fence();
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    registers_give<24>();
    if (threadIdx.x == 0) produce<C>(p, sm, tile, head, list, length);
  } else {
    registers_take<240>();
    Consumer<C>(p, sm, tile, head, list, length, threadIdx.x / 128 - 1).run();
  }
}

}  // namespace hysparse::cuda::sparse_fwd
