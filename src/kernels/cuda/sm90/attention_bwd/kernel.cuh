// Dense causal attention backward for Hopper. A CTA keeps a tile of keys and values and walks the query
// tiles that see it, for all query heads of its KV head; dK and dV stay in registers. A producer warp
// streams Q, dO and the row constants; scores are formed transposed (keys x queries), so that P and dS feed
// dV and dK from registers. dS also goes through shared memory for dQ = dS K, one tile late: a warpgroup
// waits only for what the other wrote an iteration ago, and in every stretch of arithmetic a product is
// queued behind it. Tiles of dQ are summed in f32 in global memory by the bulk engine; in deterministic mode
// each warp's part takes its key tiles in order.
#pragma once

#include "kernels/cuda/common/ptx.cuh"
#include "kernels/cuda/common/wgmma.cuh"
#include "kernels/cuda/sm90/attention_bwd/config.h"

namespace hysparse::cuda::attention_bwd {

template <class C>
struct Smem {
  uint8_t *k, *v;    // [chunks][kN][128 B]
  uint8_t *q, *d_o;  // [stages][chunks][kM][128 B]
  uint8_t* ds;       // [2][kM / 64][128 keys][64 queries], or with kSplit 2 x 64 keys
  uint8_t* dq;       // [8 warps][4096 B]
  float *lse, *delta;
  uint64_t *k_full, *v_full, *q_full, *o_full, *q_empty, *o_empty;
  uint64_t *ds_full, *ds_empty;  // [2]; with kSplit [warpgroup][2]
  uint32_t* work;

  __device__ explicit Smem(uint8_t* raw) {
    uint8_t* base = raw + ((1024 - (smem_address(raw) & 1023)) & 1023);
    k = base + C::kK;
    v = base + C::kV;
    q = base + C::kQ;
    d_o = base + C::kO;
    ds = base + C::kDs;
    dq = base + C::kDq;
    lse = reinterpret_cast<float*>(base + C::kLse);
    delta = reinterpret_cast<float*>(base + C::kDelta);
    k_full = reinterpret_cast<uint64_t*>(base + C::kBarriers);
    v_full = k_full + 1;
    q_full = k_full + 2;
    o_full = k_full + 4;
    q_empty = k_full + 6;
    o_empty = k_full + 8;
    ds_full = k_full + 10;
    ds_empty = k_full + 14;
    work = reinterpret_cast<uint32_t*>(k_full + 18);
  }
};

// The query tiles of a CTA: head by head, the last tile first.
template <class C>
struct Walk {
  const KeyTile& tile;
  int head, k;  // k: tile number from the first that sees the keys

  __device__ Walk(const KeyTile& t, int first_head) : tile(t), head(first_head), k(t.q_tiles - 1) {}
  __device__ __forceinline__ void next() {
    if (--k < 0) {
      k = tile.q_tiles - 1;
      ++head;
    }
  }
  __device__ __forceinline__ int position() const {
    return k == 0 ? tile.q_position : (tile.q_position / C::kM + k) * C::kM;
  }
  __device__ __forceinline__ int q_row() const { return tile.q_row + position() - tile.q_position; }
  __device__ __forceinline__ int slot(int q_tiles) const { return head * q_tiles + tile.q_tile + k; }
};

template <class C>
__device__ __forceinline__ void produce(const Params& p, const Smem<C>& s, const KeyTile& tile, int kv_head,
                                        int head, int count) {
  Walk<C> walk(tile, head);
  mbarrier_expect(s.k_full, C::kKBytes);
  for (int c = 0; c < C::kChunksD; ++c)
    tma_load_3d(s.k + c * C::kN * 128, &p.k, s.k_full, c * 64, kv_head, tile.kv_row);
  for (int i = 0; i < count; ++i, walk.next()) {
    const int stage = i % C::kStages;
    const uint32_t parity = (i / C::kStages) & 1;
    const int row = walk.q_row();
    const float* rows = p.rows + int64_t(walk.slot(p.q_tiles)) * (2 * C::kM);
    mbarrier_wait(&s.q_empty[stage], parity ^ 1);
    mbarrier_expect(&s.q_full[stage], C::kQBytes + C::kRowBytes);
    for (int c = 0; c < C::kChunksD; ++c)
      tma_load_3d(s.q + stage * C::kQBytes + c * C::kM * 128, &p.q, &s.q_full[stage], c * 64, walk.head, row);
    bulk_load(s.lse + stage * C::kM, rows, C::kRowBytes, &s.q_full[stage]);
    if (i == 0) {
      mbarrier_expect(s.v_full, C::kVBytes);
      for (int c = 0; c < C::kChunksV; ++c)
        tma_load_3d(s.v + c * C::kN * 128, &p.v, s.v_full, c * 64, kv_head, tile.kv_row);
    }
    mbarrier_wait(&s.o_empty[stage], parity ^ 1);
    mbarrier_expect(&s.o_full[stage], C::kOBytes + C::kRowBytes);
    for (int c = 0; c < C::kChunksV; ++c)
      tma_load_3d(s.d_o + stage * C::kOBytes + c * C::kM * 128, &p.d_o, &s.o_full[stage], c * 64, walk.head,
                  row);
    bulk_load(s.delta + stage * C::kM, rows + C::kM, C::kRowBytes, &s.o_full[stage]);
  }
}

// One consumer warpgroup.
template <class C, bool kDeterministic>
struct Consumer {
  float dk[C::kColsK / 2], dv[C::kColsV / 2];
  float s[C::kM / 2], dp[C::kM / 2];              // scores, then P; dP
  uint32_t pf[C::kM / 16][4], df[C::kM / 16][4];  // P and dS as A operands

  const Params& p;
  const Smem<C>& sm;
  const KeyTile& tile;
  const int wg, lane, warp;  // warp within the CTA's eight
  const int row;             // first of this thread's two key rows (row, row + 8) within the tile
  int turn = -1;             // deterministic: tile of dQ given in but not yet passed on

  __device__ Consumer(const Params& params, const Smem<C>& smem, const KeyTile& t)
      : p(params),
        sm(smem),
        tile(t),
        wg(threadIdx.x / 128 - 1),
        lane(threadIdx.x % 32),
        warp(threadIdx.x / 32 - 4),
        row((C::kSplit ? warp % 4 : warp) * 16 + lane / 4) {}

  __device__ __forceinline__ int barrier(int buffer) const { return C::kSplit ? wg * 2 + buffer : buffer; }
  __device__ __forceinline__ void arrive(uint64_t* bar) {
    if (lane == 0) mbarrier_arrive(bar);
  }

  __device__ __forceinline__ void issue_s(int stage) {
    const uint32_t k = smem_address(sm.k) + (C::kSplit ? 0 : wg * 64 * 128);
    const uint32_t q = smem_address(sm.q) + stage * C::kQBytes;
#pragma unroll
    for (int c = 0; c < C::kD / 16; ++c)
      Wgmma<C::kM>::template ss<0>(s, descriptor_k_major(k + c / 4 * (C::kN * 128) + c % 4 * 32),
                                   descriptor_k_major(q + c / 4 * (C::kM * 128) + c % 4 * 32), c != 0);
    wgmma_commit();
  }
  __device__ __forceinline__ void issue_dp(int stage) {
    const uint32_t v = smem_address(sm.v) + (C::kSplit ? 0 : wg * 64 * 128);
    const uint32_t d_o = smem_address(sm.d_o) + stage * C::kOBytes;
#pragma unroll
    for (int c = 0; c < C::kDV / 16; ++c)
      Wgmma<C::kM>::template ss<0>(dp, descriptor_k_major(v + c / 4 * (C::kN * 128) + c % 4 * 32),
                                   descriptor_k_major(d_o + c / 4 * (C::kM * 128) + c % 4 * 32), c != 0);
    wgmma_commit();
  }
  __device__ __forceinline__ void issue_dv(int stage) {
    const uint32_t d_o =
        smem_address(sm.d_o) + stage * C::kOBytes + (C::kSplit ? wg * (C::kColsV / 64) * C::kM * 128 : 0);
#pragma unroll
    for (int c = 0; c < C::kM / 16; ++c)
      Wgmma<C::kColsV>::template rs<1>(dv, pf[c], descriptor_mn_major(d_o + c * 16 * 128, C::kM * 128), 1);
    wgmma_commit();
  }
  __device__ __forceinline__ void issue_dk(int stage) {
    const uint32_t q =
        smem_address(sm.q) + stage * C::kQBytes + (C::kSplit ? wg * (C::kColsK / 64) * C::kM * 128 : 0);
    const uint32_t ds = smem_address(sm.ds) + stage * C::kDsBytes + wg * 64 * 128;
#pragma unroll
    for (int c = 0; c < C::kM / 16; ++c)
      if constexpr (C::kSharedDs)
        Wgmma<C::kColsK>::template ss<1>(dk, descriptor_k_major(ds + c / 4 * (128 * 128) + c % 4 * 32),
                                         descriptor_mn_major(q + c * 16 * 128, C::kM * 128), 1);
      else
        Wgmma<C::kColsK>::template rs<1>(dk, df[c], descriptor_mn_major(q + c * 16 * 128, C::kM * 128), 1);
    wgmma_commit();
  }
  template <int kPass>
  __device__ __forceinline__ void issue_dq(int buffer, float (&dq)[C::pass_n(kPass) / 2]) {
    const int column = C::pass_column(kPass, wg);
    const uint32_t ds = smem_address(sm.ds) + buffer * C::kDsBytes +
                        (C::kSplit ? wg * 64 * 128 : (C::kRows ? wg * C::kN * 128 : 0));
    const uint32_t k = smem_address(sm.k) + column / 64 * (C::kN * 128) + column % 64 * 2;
#pragma unroll
    for (int c = 0; c < C::kN / 16; ++c)
      Wgmma<C::pass_n(kPass)>::template ss<1, 1>(dq, descriptor_mn_major(ds + c * 16 * 128, C::kN * 128),
                                                 descriptor_mn_major(k + c * 16 * 128, C::kN * 128), c != 0);
    wgmma_commit();
  }

  // P = exp(scale q.k - lse); limit: first query column that sees the first of this thread's rows.
  template <bool kMasked>
  __device__ __forceinline__ void exponentials(int stage, int limit) {
    const float* lse = sm.lse + stage * C::kM + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < C::kM / 8; ++j) {
      const float2 l = *reinterpret_cast<const float2*>(lse + j * 8);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& x = s[j * 4 + i];
        x = exp2_fast(fmaf(x, p.scale_log2, i % 2 == 0 ? l.x : l.y));
        if constexpr (kMasked)
          if (j * 8 + lane % 4 * 2 + i % 2 < limit + i / 2 * 8) x = 0;
      }
    }
  }
  __device__ __forceinline__ void pack(uint32_t (&to)[C::kM / 16][4], const float (&x)[C::kM / 2]) {
#pragma unroll
    for (int c = 0; c < C::kM / 16; ++c) {
#pragma unroll
      for (int i = 0; i < 4; ++i) to[c][i] = pack_bf16(x[c * 8 + i * 2], x[c * 8 + i * 2 + 1]);
    }
  }
  // dS = P (dP - delta).
  __device__ __forceinline__ void gradients(int stage) {
    const float* delta = sm.delta + stage * C::kM + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < C::kM / 8; ++j) {
      const float2 d = *reinterpret_cast<const float2*>(delta + j * 8);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float lo, hi;
        if constexpr (C::kPacked) {
          const uint32_t x = pf[j / 2][j % 2 * 2 + r];
          lo = __uint_as_float(x << 16);
          hi = __uint_as_float(x & 0xffff0000u);
        } else {
          lo = s[j * 4 + r * 2];
          hi = s[j * 4 + r * 2 + 1];
        }
        df[j / 2][j % 2 * 2 + r] =
            pack_bf16(lo * (dp[j * 4 + r * 2] + d.x), hi * (dp[j * 4 + r * 2 + 1] + d.y));
      }
    }
  }
  __device__ __forceinline__ void store_ds(int buffer) {
    const uint32_t ds =
        smem_address(sm.ds) + buffer * C::kDsBytes + (warp * 16 + lane / 8 % 2 * 8 + lane % 8) * 128;
#pragma unroll
    for (int c = 0; c < C::kM / 16; ++c)
      store_matrices(ds + c / 4 * (128 * 128) + (((c % 4 * 2 + lane / 16) ^ (lane % 8)) * 16), df[c]);
  }

  // Deterministic mode: this warp's part of dQ tile `slot` takes the key tiles in order.
  __device__ __forceinline__ uint32_t* turn_of(int slot) {
    return p.turns + int64_t(slot) * 8 + warp;
  }
  __device__ __forceinline__ void pass_turn() {
    if (turn < 0) return;
    if constexpr (C::kStaged) {
      if (lane == 0) {
        bulk_wait();
        fence_proxies();
      }
    }
    __threadfence();
    __syncwarp();
    if (lane == 0) store_release(turn_of(turn), uint32_t(tile.order) + 1);
    turn = -1;
  }
  __device__ __forceinline__ void take_turn(int slot) {
    pass_turn();
    if (lane == 0) {
      while (load_acquire(turn_of(slot)) != uint32_t(tile.order)) __nanosleep(20);
      if constexpr (C::kStaged) fence_proxies();
    }
    __syncwarp();
    turn = slot;
  }

  template <int kPass>
  __device__ __forceinline__ void add_dq(int slot, const float (&dq)[C::pass_n(kPass) / 2]) {
    constexpr int kN = C::pass_n(kPass);
    if constexpr (kDeterministic && kPass == 0) take_turn(slot);
    float* to = p.dq + int64_t(slot) * C::kTile + C::pass_offset(kPass) + warp * 16 * kN;
    const int groups = min(kN, C::kD - C::pass_column(kPass, wg)) / 8;  // of columns; fewer at 96
    if constexpr (C::kStaged) {
      uint8_t* from = sm.dq + warp * 4096;
      if (lane == 0) bulk_wait_read();
      __syncwarp();
#pragma unroll
      for (int j = 0; j < kN / 8; ++j)
        *reinterpret_cast<float4*>(from + (j * 32 + lane) * 16) =
            float4{dq[j * 4], dq[j * 4 + 1], dq[j * 4 + 2], dq[j * 4 + 3]};
      fence_async_proxy();
      __syncwarp();
      if (lane == 0) bulk_add(to, from, groups * 512);
    } else {
#pragma unroll
      for (int j = 0; j < kN / 8; ++j)
        if (C::kD % 64 == 0 || j < groups)
          add_4(to + (j * 32 + lane) * 4, dq[j * 4], dq[j * 4 + 1], dq[j * 4 + 2], dq[j * 4 + 3]);
    }
  }

  // Rows of K and V behind the tile's live keys are another sequence's or undefined: a NaN there would
  // survive the product with dS = 0.
  __device__ __forceinline__ void clear_tail() {
    const int rows = C::kN - tile.live;
    for (int i = threadIdx.x - 128; i < (C::kChunksD + C::kChunksV) * rows * 8; i += 256) {
      const int c = i / (rows * 8), r = i % (rows * 8);
      uint8_t* chunk = c < C::kChunksD ? sm.k + c * (C::kN * 128) : sm.v + (c - C::kChunksD) * (C::kN * 128);
      *reinterpret_cast<uint4*>(chunk + tile.live * 128 + r * 16) = uint4{0, 0, 0, 0};
    }
    fence_async_proxy();
    named_barrier_sync(1, 256);
  }

  template <int kCount>
  __device__ __forceinline__ void add_rows(float* to, int64_t stride, float scale, const float (&x)[kCount]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (row + r * 8 >= tile.live) continue;
      float* at = to + (row + r * 8) * stride + (C::kSplit ? wg * kCount * 2 : 0) + lane % 4 * 2;
#pragma unroll
      for (int j = 0; j < kCount / 4; ++j)
        add_2(at + j * 8, x[j * 4 + r * 2] * scale, x[j * 4 + r * 2 + 1] * scale);
    }
  }

  // From the scores of tile i, in flight, to its dS in shared memory; dV takes its share on the way. Nothing
  // is in flight behind it.
  __device__ __forceinline__ void scores_to_gradients(int i, int position) {
    const int stage = i & 1;
    const uint32_t parity = (i >> 1) & 1;
    mbarrier_wait(&sm.o_full[stage], parity);
    if constexpr (C::kLean) {
      wgmma_wait<0>();
    } else {
      wgmma_fence_operand(dp);
      wgmma_fence();
      issue_dp(stage);
      wgmma_wait<1>();
    }
    wgmma_fence_operand(s);
    const int limit = tile.position + row - position;
    if (position < tile.position + C::kN - 1)
      exponentials<true>(stage, limit);
    else
      exponentials<false>(stage, limit);
    pack(pf, s);
    if constexpr (C::kLean) wgmma_fence_operand(dp);
    wgmma_fence();
    if constexpr (C::kLean) issue_dp(stage);
    issue_dv(stage);
    wgmma_wait<1>();
    wgmma_fence_operand(dp);
    gradients(stage);
    mbarrier_wait(&sm.ds_empty[barrier(stage)], parity ^ 1);
    store_ds(stage);
    fence_async_proxy();
    __syncwarp();
    arrive(&sm.ds_full[barrier(stage)]);
    if constexpr (C::kSharedDs) named_barrier_sync(2 + wg, 128);
    wgmma_wait<0>();
  }

  __device__ __forceinline__ void run(int kv_head, int head, int count) {
    static_assert(C::kStages == 2);
    float dq0[C::pass_n(0) / 2], dq1[C::pass_n(1) / 2];
#pragma unroll
    for (int i = 0; i < C::kColsK / 2; ++i) dk[i] = 0;
#pragma unroll
    for (int i = 0; i < C::kColsV / 2; ++i) dv[i] = 0;
    Walk<C> walk(tile, head);
    int before = 0;  // dQ tile of the iteration before

    mbarrier_wait(sm.k_full, 0);
    if (tile.live < C::kN) {
      mbarrier_wait(sm.v_full, 0);
      clear_tail();
    }
    mbarrier_wait(&sm.q_full[0], 0);
    wgmma_fence_operand(s);
    wgmma_fence_operand(dk);
    wgmma_fence_operand(dv);
    wgmma_fence();
    issue_s(0);
    mbarrier_wait(sm.v_full, 0);
    scores_to_gradients(0, walk.position());

    for (int i = 0; i + 1 < count; ++i) {
      const int stage = i & 1, other = stage ^ 1;
      wgmma_fence();
      issue_dk(stage);
      // dQ of the tile before. The first iteration has none and multiplies whatever is there.
      if (i > 0) mbarrier_wait(&sm.ds_full[barrier(other)], ((i - 1) >> 1) & 1);
      wgmma_fence_operand(dq0);
      wgmma_fence();
      issue_dq<0>(other, dq0);
      wgmma_wait<1>();
      arrive(&sm.q_empty[stage]);
      arrive(&sm.o_empty[stage]);
      if constexpr (C::kPasses == 2) {
        wgmma_wait<0>();
        wgmma_fence_operand(dq0);
        if (i > 0) add_dq<0>(before, dq0);
        wgmma_fence_operand(dq1);
        wgmma_fence();
        issue_dq<1>(other, dq1);
      }
      mbarrier_wait(&sm.q_full[other], ((i + 1) >> 1) & 1);
      wgmma_fence_operand(s);
      wgmma_fence();
      issue_s(other);
      wgmma_wait<1>();
      if constexpr (C::kPasses == 2)
        wgmma_fence_operand(dq1);
      else
        wgmma_fence_operand(dq0);
      if (i > 0) {
        arrive(&sm.ds_empty[barrier(other)]);
        if constexpr (C::kPasses == 2)
          add_dq<1>(before, dq1);
        else
          add_dq<0>(before, dq0);
      }
      before = walk.slot(p.q_tiles);
      walk.next();
      scores_to_gradients(i + 1, walk.position());
    }

    wgmma_fence();
    issue_dk((count - 1) & 1);
    wgmma_wait<0>();
    if (count > 1) last_dq(count - 2, before);
    last_dq(count - 1, walk.slot(p.q_tiles));
    wgmma_fence_operand(dk);
    wgmma_fence_operand(dv);
    if constexpr (kDeterministic) pass_turn();
    add_rows(p.dk + tile.kv_row * p.dk_stride_row + kv_head * p.dk_stride_head, p.dk_stride_row, p.scale, dk);
    add_rows(p.dv + tile.kv_row * p.dv_stride_row + kv_head * p.dv_stride_head, p.dv_stride_row, 1.0f, dv);
    if constexpr (C::kStaged)
      if (lane == 0) bulk_wait();
  }

  template <int kPass>
  __device__ __forceinline__ void last_dq_pass(int buffer, int slot) {
    float dq[C::pass_n(kPass) / 2];
    wgmma_fence_operand(dq);
    wgmma_fence();
    issue_dq<kPass>(buffer, dq);
    wgmma_wait<0>();
    wgmma_fence_operand(dq);
    add_dq<kPass>(slot, dq);
  }
  __device__ __forceinline__ void last_dq(int i, int slot) {
    mbarrier_wait(&sm.ds_full[barrier(i & 1)], (i >> 1) & 1);
    last_dq_pass<0>(i & 1, slot);
    if constexpr (C::kPasses == 2) last_dq_pass<1>(i & 1, slot);
  }
};

template <class C, bool kDeterministic>
__global__ void __launch_bounds__(C::kThreads, 1) kernel(const __grid_constant__ Params p) {
  extern __shared__ uint8_t raw_smem[];
  const Smem<C> sm(raw_smem);
  if (threadIdx.x == 0) {
    tma_prefetch(&p.q);
    tma_prefetch(&p.k);
    tma_prefetch(&p.v);
    tma_prefetch(&p.d_o);
    mbarrier_init(sm.k_full, 1);
    mbarrier_init(sm.v_full, 1);
    for (int i = 0; i < C::kStages; ++i) {
      mbarrier_init(&sm.q_full[i], 1);
      mbarrier_init(&sm.o_full[i], 1);
      mbarrier_init(&sm.q_empty[i], C::kConsumers * 4);
      mbarrier_init(&sm.o_empty[i], C::kConsumers * 4);
    }
    for (int i = 0; i < (C::kSplit ? 4 : 2); ++i) {
      mbarrier_init(&sm.ds_full[i], C::kSplit ? 4 : 8);
      mbarrier_init(&sm.ds_empty[i], C::kSplit ? 4 : 8);
    }
    mbarrier_init_fence();
    // CTAs that wait for others must start after them, whatever order the hardware starts them in.
    if constexpr (kDeterministic) *sm.work = atomicAdd(p.ticket, 1u);
  }
  __syncthreads();
  // Heads of a section run side by side over the longest tiles first.
  const int work = kDeterministic ? int(*sm.work) : int(blockIdx.x);
  const int parts = p.ratio / p.heads_a_cta;
  const int per_tile = p.section_heads * parts, per_section = per_tile * p.tile_count;
  const int section = work / per_section, rest = work % per_section;
  const int kv_head = section * p.section_heads + rest % per_tile / parts;
  const int head = kv_head * p.ratio + rest % parts * p.heads_a_cta;
  const KeyTile tile = p.tiles[rest / per_tile];
  const int count = tile.q_tiles * p.heads_a_cta;
  if (threadIdx.x < 128) {
    registers_give<24>();
    if (threadIdx.x == 0) produce<C>(p, sm, tile, kv_head, head, count);
  } else {
    registers_take<240>();
    Consumer<C, kDeterministic>(p, sm, tile).run(kv_head, head, count);
  }
}

}  // namespace hysparse::cuda::attention_bwd
