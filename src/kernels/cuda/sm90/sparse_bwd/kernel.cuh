// Block-sparse attention backward for Hopper, key block by key block. A work item is a block of 64 keys and
// pairs (token, slot) that chose it. A producer warpgroup gathers the tokens' rows of q and dO, 64 at a time;
// consumer warpgroups compute, with keys as the rows of the products,
//   S^T = K q^T,  P^T = exp(scale S^T - lse),  dP^T = V dO^T,  dS^T = P^T (dP^T - delta),
//   dV += P^T dO,  dK += dS^T q,  dQ = dS K,
// keep dK and dV in registers over the item and leave a partial dQ a pair, which combine() sums. P^T and dS^T
// go from accumulators to operands in registers; dS alone passes through shared memory. CTAs take items as
// they get free, but nothing is added to by two of them: the result is the same to the bit in every run.
#pragma once

#include "kernels/cuda/common/wgmma.cuh"
#include "kernels/cuda/sm90/sparse_bwd/produce.cuh"

namespace hysparse::cuda::sparse_bwd {

__device__ inline void store_matrices_transposed(uint32_t to, const uint32_t (&x)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x[0]),
               "r"(x[1]), "r"(x[2]), "r"(x[3])
               : "memory");
}

// kPart: which half of the columns (kColumns), else 0 for both warpgroups.
template <class C, int kPart>
struct Consumer {
  static constexpr int kChunkD0 = C::kColumns && kPart ? (C::kChunksD + 1) / 2 : 0;
  static constexpr int kChunkV0 = C::kColumns && kPart ? (C::kChunksV + 1) / 2 : 0;
  // Columns of dK and dQ, and of dV, that this warpgroup owns.
  static constexpr int kNd = !C::kColumns ? C::kD
                             : kPart      ? C::kD - kChunkD0 * 64
                                          : (C::kChunksD + 1) / 2 * 64;
  static constexpr int kNv = !C::kColumns ? C::kDV
                             : kPart      ? C::kDV - kChunkV0 * 64
                                          : (C::kChunksV + 1) / 2 * 64;

  float dk[kNd / 2], dv[kNv / 2];

  const Params& p;
  const Smem<C>& sm;
  const int wg, thread, lane, warp;

  __device__ Consumer(const Params& params, const Smem<C>& smem, int warpgroup)
      : p(params),
        sm(smem),
        wg(warpgroup),
        thread(threadIdx.x % 128),
        lane(threadIdx.x % 32),
        warp(threadIdx.x % 128 / 32) {}

  __device__ __forceinline__ void sync() { named_barrier_sync(1 + wg, 128); }
  __device__ __forceinline__ void sync_both() { named_barrier_sync(3, 256); }

  // Rows of K and V behind the sequence's last key hold another sequence or nothing; a NaN there would
  // survive a weight of 0.
  __device__ __forceinline__ void clear_tail(uint8_t* kv, int live) {
    const int tail = 64 - live;
    constexpr int kAll = C::kColumns ? 256 : 128;
    for (int x = threadIdx.x % kAll; x < (C::kChunksD + C::kChunksV) * tail * 8; x += kAll) {
      const int chunk = x / (tail * 8), r = x % (tail * 8);
      reinterpret_cast<uint4*>(kv + chunk * C::kChunk)[live * 8 + r] = uint4{0, 0, 0, 0};
    }
    fence_async_proxy();
    if (C::kColumns)
      sync_both();
    else
      sync();
  }

  // kCount columns from chunk0 on of this warp's rows, from q's place to the workspace.
  template <int kCount>
  __device__ __forceinline__ void write_dq(const RowTable& table, int buffer, int chunk0) {
    constexpr int kUnits = kCount / 8, kSteps = 16 * kUnits / 32;  // of 16 bytes
    const uint8_t* from = sm.base + buffer * C::kGroupBytes + chunk0 * C::kChunk;
    int to[kSteps];
    uint4 x[kSteps];
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const int y = warp * 16 + (lane + i * 32) / kUnits, unit = (lane + i * 32) % kUnits;
      to[i] = table.partial[y];
      x[i] = *reinterpret_cast<const uint4*>(from + unit / 8 * C::kChunk + y * 128 +
                                             ((unit % 8) ^ (y % 8)) * 16);
    }
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const int unit = (lane + i * 32) % kUnits;
      if (to[i] >= 0)
        __stcs(reinterpret_cast<uint4*>(p.partial + int64_t(to[i]) * C::kD + chunk0 * 64 + unit * 8), x[i]);
    }
  }

  // 64 rows against the block of K and V at `k`.
  __device__ __forceinline__ void group(const Place<C>& place, const RowTable& table, uint32_t k) {
    const uint32_t q = smem_address(sm.base) + place.buffer * C::kGroupBytes, d_o = q + C::kQBytes;
    const uint32_t ds_tile = smem_address(sm.base) + C::kDs + wg * C::kChunk;
    float s[32], dp[32];
    mbarrier_wait(&sm.full[place.buffer], place.buffer_parity);
    fence_async_proxy();
    wgmma_fence_operand(s);
    wgmma_fence_operand(dp);
    wgmma_fence();
    {
      const uint64_t a = descriptor_k_major(k), b = descriptor_k_major(q);
#pragma unroll
      for (int i = 0; i < C::kD / 16; ++i)
        Wgmma<64>::ss<0>(s, advance(a, i / 4 * C::kChunk + i % 4 * 32),
                         advance(b, i / 4 * C::kChunk + i % 4 * 32), i != 0);
      wgmma_commit();
    }
    {
      const uint64_t a = descriptor_k_major(k + C::kQBytes), b = descriptor_k_major(d_o);
#pragma unroll
      for (int i = 0; i < C::kDV / 16; ++i)
        Wgmma<64>::ss<0>(dp, advance(a, i / 4 * C::kChunk + i % 4 * 32),
                         advance(b, i / 4 * C::kChunk + i % 4 * 32), i != 0);
      wgmma_commit();
    }
    const float2* lse = reinterpret_cast<const float2*>(table.lse) + lane % 4;
    const float2* delta = reinterpret_cast<const float2*>(table.delta) + lane % 4;
    const bool cut = table.cut;

    wgmma_wait<1>();
    wgmma_fence_operand(s);
    if (cut) {
      const int key = warp * 16 + lane / 4;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const int2 sees = reinterpret_cast<const int2*>(table.sees)[j * 4 + lane % 4];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int x = i == 0 ? sees.x : sees.y;
          const int high = x & 0xff, low = x >> 8 & 0xff;
          const bool chosen = x >> (16 + warp) & 1;
          if (!chosen || key > high || key < low) s[j * 4 + i] = -INFINITY;
          if (!chosen || key + 8 > high || key + 8 < low) s[j * 4 + 2 + i] = -INFINITY;
        }
      }
    }
    uint32_t pf[4][4];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float2 l = lse[j * 4];
      s[j * 4] = exp2_fast(fmaf(s[j * 4], p.scale_log2, -l.x));
      s[j * 4 + 1] = exp2_fast(fmaf(s[j * 4 + 1], p.scale_log2, -l.y));
      s[j * 4 + 2] = exp2_fast(fmaf(s[j * 4 + 2], p.scale_log2, -l.x));
      s[j * 4 + 3] = exp2_fast(fmaf(s[j * 4 + 3], p.scale_log2, -l.y));
      pf[j / 2][j % 2 * 2] = pack_bf16(s[j * 4], s[j * 4 + 1]);
      pf[j / 2][j % 2 * 2 + 1] = pack_bf16(s[j * 4 + 2], s[j * 4 + 3]);
    }
    wgmma_wait<0>();
    wgmma_fence_operand(dp);
    wgmma_fence_operand(dv);
    wgmma_fence();
    {
      const uint64_t b = descriptor_mn_major(d_o + kChunkV0 * C::kChunk, C::kChunk);
#pragma unroll
      for (int i = 0; i < 4; ++i) Wgmma<kNv>::template rs<1>(dv, pf[i], advance(b, i * 16 * 128), 1);
      wgmma_commit();
    }
    uint32_t df[4][4];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float2 d = delta[j * 4];
      df[j / 2][j % 2 * 2] = pack_bf16(s[j * 4] * (dp[j * 4] - d.x), s[j * 4 + 1] * (dp[j * 4 + 1] - d.y));
      df[j / 2][j % 2 * 2 + 1] =
          pack_bf16(s[j * 4 + 2] * (dp[j * 4 + 2] - d.x), s[j * 4 + 3] * (dp[j * 4 + 3] - d.y));
    }
    const int m = lane / 8, i8 = lane % 8;  // this lane addresses row i8 of matrix m of four
    {
      // Matrix m: keys 16 warp + 8 (m % 2), rows 16 c + 8 (m / 2).
      const uint32_t to = ds_tile + (m / 2 * 8 + i8) * 128 + ((warp * 2 + m % 2) ^ i8) * 16;
#pragma unroll
      for (int i = 0; i < 4; ++i) store_matrices_transposed(to + i * 16 * 128, df[i]);
    }
    fence_async_proxy();
    sync();
    wgmma_fence_operand(dk);
    wgmma_fence();
    {
      const uint64_t b = descriptor_mn_major(q + kChunkD0 * C::kChunk, C::kChunk);
#pragma unroll
      for (int i = 0; i < 4; ++i) Wgmma<kNd>::template rs<1>(dk, df[i], advance(b, i * 16 * 128), 1);
      wgmma_commit();
    }
    wgmma_wait<1>();  // dV: its operands' registers are free, and dO
    wgmma_fence_operand(dv);
    mbarrier_arrive(&sm.o_empty[place.buffer]);
    constexpr int kParts = kNd == 128 ? 2 : 1, kNq = kNd / kParts;  // dQ at once or in halves
    float dq[kNq / 2];
    const auto issue_dq = [&](int part) {
      wgmma_fence_operand(dq);
      wgmma_fence();
      const uint64_t a = descriptor_k_major(ds_tile);
      const uint64_t b = descriptor_mn_major(k + (kChunkD0 + part * (kNq / 64)) * C::kChunk, C::kChunk);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        Wgmma<kNq>::template ss<1>(dq, advance(a, i * 32), advance(b, i * 16 * 128), i != 0);
      wgmma_commit();
    };
    issue_dq(0);
    wgmma_wait<0>();
    wgmma_fence_operand(dq);
    wgmma_fence_operand(dk);
    // dQ goes out through this warp's rows of q, once nobody reads that any more.
    if (C::kColumns)
      sync_both();
    else
      sync();
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const int chunk0 = kChunkD0 + part * (kNq / 64);
      uint32_t x[kNq / 16][4];
#pragma unroll
      for (int j = 0; j < kNq / 4; ++j) x[j / 4][j % 4] = pack_bf16(dq[j * 2], dq[j * 2 + 1]);
      if (part + 1 < kParts) issue_dq(part + 1);
      const uint32_t to = q + chunk0 * C::kChunk + (warp * 16 + m % 2 * 8 + i8) * 128;
#pragma unroll
      for (int j = 0; j < kNq / 8; j += 2)
        store_matrices(to + j / 8 * C::kChunk + (((j % 8 + m / 2) ^ i8) * 16), x[j / 2]);
      __syncwarp();
      write_dq<kNq>(table, place.buffer, chunk0);
      if (part + 1 < kParts) {
        wgmma_wait<0>();
        wgmma_fence_operand(dq);
      }
    }
    mbarrier_arrive(&sm.q_empty[place.buffer]);
    mbarrier_arrive(&sm.table_empty[place.table]);
  }

  template <int kCount>
  __device__ __forceinline__ void write(const float (&acc)[kCount], float* to, int64_t stride, float factor,
                                        int live, bool add) {
    const int row = warp * 16 + lane / 4;
    to += row * stride + lane % 4 * 2;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (row + r * 8 >= live) continue;
#pragma unroll
      for (int j = 0; j < kCount / 4; ++j) {
        float* at = to + r * 8 * stride + j * 8;
        const float x = acc[j * 4 + 2 * r] * factor, y = acc[j * 4 + 2 * r + 1] * factor;
        if (add)
          add_2(at, x, y);
        else
          *reinterpret_cast<float2*>(at) = float2{x, y};
      }
    }
  }

  __device__ __forceinline__ void flush(const Item& item) {
    const int live = item.live, slot = item.slot;
    const bool alone = slot < 0;
    float* dk_to = p.dk + item.kv_row * p.dk_stride_row + (p.head0 + item.head) * p.dk_stride_head;
    float* dv_to = p.dv + item.kv_row * p.dv_stride_row + (p.head0 + item.head) * p.dv_stride_head;
    int64_t dk_stride = p.dk_stride_row, dv_stride = p.dv_stride_row;
    if (!alone) {
      constexpr int kWidth = C::kD + C::kDV;
      dk_to = p.shares + (int64_t(item.head) * p.share_capacity + slot) * 64 * kWidth;
      dv_to = dk_to + C::kD;
      dk_stride = dv_stride = kWidth;
    }
    write(dk, dk_to + kChunkD0 * 64, dk_stride, p.scale, live, alone);
    write(dv, dv_to + kChunkV0 * 64, dv_stride, 1.0f, live, alone);
  }

  // Brings K and V of the stream's item number n, which starts with this table, once nobody reads the last
  // ones any more.
  __device__ __forceinline__ void load_kv(const RowTable& table, int stream, int n) {
    mbarrier_arrive(&sm.kv_empty[stream]);
    if (thread != 0 || (C::kColumns && wg != 0)) return;
    mbarrier_wait(&sm.kv_empty[stream], n & 1);
    uint8_t* to = sm.base + C::kKv + stream * C::kKvBytes;
    uint64_t* bar = &sm.kv_full[stream];
    mbarrier_expect(bar, C::kKvBytes);
    for (int i = 0; i < C::kChunksD; ++i)
      tma_load_3d(to + i * C::kChunk, &p.k, bar, i * 64, p.head0 + table.head, table.kv_row);
    for (int i = 0; i < C::kChunksV; ++i)
      tma_load_3d(to + C::kQBytes + i * C::kChunk, &p.v, bar, i * 64, p.head0 + table.head, table.kv_row);
  }

  __device__ __forceinline__ void run() {
    const int stream = C::kColumns ? 0 : wg;
    uint8_t* kv = sm.base + C::kKv + stream * C::kKvBytes;
    int items = 0;
    for (int i = 0;; ++i) {
      const Place<C> place(stream, i);
      mbarrier_wait(&sm.table_full[place.table], place.table_parity);
      const RowTable& table = sm.tables[place.table];
      const bool end = table.end;
      if (end || table.first) {
        if (!end) load_kv(table, stream, items);
        if (items > 0) flush(sm.items[wg * 2 + (items - 1) % 2]);
        if (end) break;
        // Read when the item is done; until then its groups' barriers lie between.
        if (thread == 0)
          sm.items[wg * 2 + items % 2] = Item{table.head, table.kv_row, table.live, table.slot};
#pragma unroll
        for (int i = 0; i < kNd / 2; ++i) dk[i] = 0;
#pragma unroll
        for (int i = 0; i < kNv / 2; ++i) dv[i] = 0;
        mbarrier_wait(&sm.kv_full[stream], items++ & 1);
        if (table.live < 64) clear_tail(kv, table.live);
      }
      group(place, table, smem_address(kv));
    }
  }
};

template <class C>
__global__ void __launch_bounds__(C::kThreads, 1) kernel(const __grid_constant__ Params p) {
  extern __shared__ uint8_t raw_smem[];
  __shared__ int item_base[kMaxHeads + 1], item_first[kMaxHeads];
  const Smem<C> sm(raw_smem);
  if (threadIdx.x < p.heads) {
    const int head = p.index.head_pairs ? p.head0 + threadIdx.x : 0;
    const int32_t* starts = p.index.item_start + int64_t(head) * (p.index.passes * p.index.blocks + 1) +
                            int64_t(p.pass) * p.index.blocks;
    item_first[threadIdx.x] = starts[0];
    item_base[threadIdx.x + 1] = starts[p.index.blocks] - starts[0];
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    item_base[0] = 0;
    for (int h = 0; h < p.heads; ++h) item_base[h + 1] += item_base[h];
    sm.init();
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    registers_give<C::kProducerRegisters>();
    const int role = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
    if (role == 0)
      gather<C, false>(p, sm);
    else if (role == 1)
      gather<C, true>(p, sm);
    else if (role - 2 < C::kStreams)
      Planner<C>(p, sm, item_base, item_first, role - 2).run();
  } else {
    registers_take<C::kConsumerRegisters>();
    if (!C::kColumns || threadIdx.x < 256)
      Consumer<C, 0>(p, sm, __shfl_sync(0xffffffffu, threadIdx.x / 128 - 1, 0)).run();
    else
      Consumer<C, 1>(p, sm, 1).run();
  }
}

}  // namespace hysparse::cuda::sparse_bwd
