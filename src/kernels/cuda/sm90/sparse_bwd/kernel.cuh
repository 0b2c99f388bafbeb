// Block-sparse attention backward for Hopper, key block by key block. A work item is a block of 64 keys and
// pairs (token, slot) that chose it. A producer warpgroup gathers the tokens' rows of q and dO, 64 at a time;
// consumer warpgroups compute, with keys as the rows of the products,
//   S^T = K q^T,  P^T = exp(scale S^T - lse),  dP^T = V dO^T,  dS^T = P^T (dP^T - delta),
//   dV += P^T dO,  dK += dS^T q,  dQ = dS K,
// keep dK and dV in registers over the item and write a partial dQ a pair, which combine() sums. P^T and dS^T
// go from accumulators to operands in registers; dS alone passes through shared memory. Nothing is added to
// by two CTAs: the result is the same to the bit in every run.
#pragma once

#include "kernels/cuda/common/ptx.cuh"
#include "kernels/cuda/common/wgmma.cuh"
#include "kernels/cuda/sm90/sparse_bwd/config.h"

namespace hysparse::cuda::sparse_bwd {

// The items of this CTA, one after another: every grid-th of the launch's.
struct Walk {
  const Params& p;
  const int* base;   // shared [heads + 1]: number of a head's first item in the launch
  const int* first;  // shared [heads]: its number within the head's index
  int at, head = 0;

  __device__ Walk(const Params& params, const int* b, const int* f)
      : p(params), base(b), first(f), at(int(blockIdx.x) - int(gridDim.x)) {}
  // Fields of the current item that are not worth a register until they are needed.
  __device__ __forceinline__ void reload(KeyItem* item) const {
    const KeyItem* from = here();
    item->kv_row = *reinterpret_cast<const volatile int*>(&from->kv_row);
    item->live = *reinterpret_cast<const volatile int*>(&from->live);
    item->slot = *reinterpret_cast<const volatile int*>(&from->slot);
  }
  __device__ __forceinline__ const KeyItem* here() const {
    const int index_head = p.index.head_pairs ? p.head0 + head : 0;
    return p.index.items + int64_t(index_head) * p.index.item_capacity + first[head] + at - base[head];
  }
  __device__ __forceinline__ bool next(KeyItem* item) {
    at += gridDim.x;
    while (head < p.heads && at >= base[head + 1]) ++head;
    if (head == p.heads) return false;
    const int4* from = reinterpret_cast<const int4*>(here());
    const int4 a = __ldg(from), b = __ldg(from + 1);
    item->first = a.x;
    item->count = a.y;
    item->kv_row = a.z;
    item->token0 = a.w;
    item->live = b.x;
    item->slot = b.y;
    return true;
  }
  __device__ __forceinline__ const int32_t* pairs() const {
    return p.index.pairs + (p.head0 + head) * p.index.head_pairs;
  }
};

__device__ inline int token_of(const Params& p, int pair) {
  if (p.index.slots == 1) return pair;
  const int token = int(__umulhi(uint32_t(pair), p.slots_inverse));
  return token * p.index.slots > pair ? token - 1 : token;
}
__device__ inline void copy_async_16(uint32_t to, const void* from, bool real) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(real ? 16 : 0)
               : "memory");
}
__device__ inline void copy_async_4(uint32_t to, const void* from, bool real) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(real ? 4 : 0)
               : "memory");
}
// Arrives once this thread's copies so far are done.
__device__ inline void mbarrier_arrive_copies(uint64_t* bar) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(smem_address(bar)) : "memory");
}
__device__ inline void store_matrices(uint32_t to, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(a), "r"(b),
               "r"(c), "r"(d)
               : "memory");
}
__device__ inline void store_matrices_transposed(uint32_t to, uint32_t a, uint32_t b, uint32_t c,
                                                 uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(a),
               "r"(b), "r"(c), "r"(d)
               : "memory");
}
__device__ inline void add_pair(float* to, float x, float y) {
  asm volatile("red.relaxed.gpu.global.add.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(x), "f"(y) : "memory");
}

// 64 rows of kChunks * 64 columns (kDim of them real), token by token, all heads of the group side by side.
template <int kDim, int kChunks>
__device__ __forceinline__ void gather_rows(const Params& p, uint32_t to0, const __nv_bfloat16* base,
                                            int64_t stride_row, int64_t stride_head, int head0, int token_low,
                                            int token_high) {
  constexpr int kUnits = kChunks * 8;         // 16-byte units a row
  constexpr bool kFixed = 128 % kUnits == 0;  // a thread keeps its column
  const int thread = threadIdx.x;
#pragma unroll 2
  for (int i = thread; i < 64 * kUnits; i += 128) {
    const int row = kFixed ? thread / kUnits + (i - thread) / kUnits : i / kUnits;
    const int unit = kFixed ? thread % kUnits : i % kUnits;
    const int t = row * p.row_to_token >> 16;
    int token = __shfl_sync(0xffffffffu, token_low, t % 32);
    if (p.ratio == 1) {
      const int high = __shfl_sync(0xffffffffu, token_high, t % 32);
      token = t < 32 ? token : high;
    }
    const bool real = token >= 0 && unit * 8 < kDim;
    const __nv_bfloat16* from = base;
    if (real) from += token * stride_row + (head0 + row - t * p.ratio) * stride_head + unit * 8;
    copy_async_16(to0 + (unit / 8 * 64 + row) * 128 + ((unit % 8) ^ (row % 8)) * 16, from, real);
  }
}

template <class C>
__device__ __forceinline__ void produce(const Params& p, uint8_t* base, Walk walk, uint64_t* full,
                                        uint64_t* empty, uint64_t* kv_full, uint64_t* kv_empty) {
  const int thread = threadIdx.x, lane = thread % 32;
  const int tokens_a_group = 64 / p.ratio;
  int c = 0;
  KeyItem item;
  for (int n = 0; walk.next(&item); ++n) {
    const int head = p.head0 + walk.head, stage = n % C::kStages;
    const int32_t* pairs = walk.pairs() + item.first;
    // A group has at most 64 tokens: two a lane. Read one group ahead.
    const auto pair_at = [&](int i, int t) {
      return t < tokens_a_group && i + t < item.count ? __ldg(pairs + i + t) : -1;
    };
    int low = pair_at(0, lane), high = p.ratio == 1 ? pair_at(0, lane + 32) : -1;
    if (thread == 0) {
      mbarrier_wait(&kv_empty[stage], ((n / C::kStages) & 1) ^ 1);
      mbarrier_expect(&kv_full[stage], C::kKvBytes);
      uint8_t* to = base + C::kKv + stage * C::kKvBytes;
      for (int i = 0; i < C::kChunksD; ++i)
        tma_load_3d(to + i * C::kChunk, &p.k, &kv_full[stage], i * 64, head, item.kv_row);
      for (int i = 0; i < C::kChunksV; ++i)
        tma_load_3d(to + C::kQBytes + i * C::kChunk, &p.v, &kv_full[stage], i * 64, head, item.kv_row);
    }
    __syncwarp();
    for (int at = 0; at < item.count; at += tokens_a_group, ++c) {
      const int buffer = c % C::kBuffers;
      const int token_low = low >= 0 ? token_of(p, low) : -1, token_high = high >= 0 ? token_of(p, high) : -1;
      low = pair_at(at + tokens_a_group, lane);
      if (p.ratio == 1) high = pair_at(at + tokens_a_group, lane + 32);
      mbarrier_wait(&empty[buffer], ((c / C::kBuffers) & 1) ^ 1);
      const uint32_t to = smem_address(base + buffer * C::kGroupBytes);
      const int head0 = head * p.ratio;
      gather_rows<C::kD, C::kChunksD>(p, to, p.q, p.q_stride_row, p.q_stride_head, head0, token_low,
                                      token_high);
      gather_rows<C::kDV, C::kChunksV>(p, to + C::kQBytes, p.d_o, p.o_stride_row, p.o_stride_head, head0,
                                       token_low, token_high);
      {
        const int row = thread % 64, t = row * p.row_to_token >> 16;
        const int first = __shfl_sync(0xffffffffu, token_low, t % 32),
                  second = __shfl_sync(0xffffffffu, token_high, t % 32);
        const int token = t < 32 ? first : second;
        const float* from = thread < 64 ? p.lse : p.delta;
        if (token >= 0) from += int64_t(token) * p.q_heads + head0 + row - t * p.ratio;
        copy_async_4(smem_address(base + C::kStats + buffer * 512 + thread * 4), from, token >= 0);
      }
      mbarrier_arrive_copies(&full[buffer]);
    }
  }
  asm volatile("cp.async.wait_all;" ::: "memory");
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
  uint8_t* const base;
  const int wg, thread, lane, warp;

  __device__ Consumer(const Params& params, uint8_t* smem, int warpgroup)
      : p(params),
        base(smem),
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
    for (int x = wg * 128 + thread; x < (C::kChunksD + C::kChunksV) * tail * 8; x += 256) {
      const int chunk = x / (tail * 8), r = x % (tail * 8);
      reinterpret_cast<uint4*>(kv + chunk * C::kChunk)[live * 8 + r] = uint4{0, 0, 0, 0};
    }
    fence_async_proxy();
    sync_both();
  }

  // One group: 64 rows against the block of K and V at `kv`.
  __device__ __forceinline__ void group(const int32_t* pairs, const uint8_t* subs, int at, int count,
                                        int token0, int head, int c, uint32_t kv, uint64_t* full,
                                        uint64_t* empty) {
    const int buffer = c % C::kBuffers;
    const uint32_t q = smem_address(base + buffer * C::kGroupBytes), d_o = q + C::kQBytes;
    const uint32_t ds_tile = smem_address(base + C::kDs + wg * C::kChunk);
    const uint32_t k = kv, v = kv + C::kQBytes;
    mbarrier_wait(&full[buffer], (c / C::kBuffers) & 1);
    fence_async_proxy();
    float s[32], dp[32];
    wgmma_fence_operand(s);
    wgmma_fence_operand(dp);
    wgmma_fence();
#pragma unroll
    for (int c = 0; c < C::kD / 16; ++c)
      Wgmma<64>::ss<0>(s, descriptor_k_major(k + c / 4 * C::kChunk + c % 4 * 32),
                       descriptor_k_major(q + c / 4 * C::kChunk + c % 4 * 32), c != 0);
    wgmma_commit();
#pragma unroll
    for (int c = 0; c < C::kDV / 16; ++c)
      Wgmma<64>::ss<0>(dp, descriptor_k_major(v + c / 4 * C::kChunk + c % 4 * 32),
                       descriptor_k_major(d_o + c / 4 * C::kChunk + c % 4 * 32), c != 0);
    wgmma_commit();
    // The keys that rows lane and lane + 32 see, as highest | lowest << 8 | quarters << 16.
    constexpr int kAll = 63 | 0xf << 16;
    int sees[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = lane + i * 32, t = row * p.row_to_token >> 16;
      sees[i] = kAll;
      if ((t + 1) * p.ratio <= 64 && at + t < count) {
        const int high = token_of(p, __ldg(pairs + at + t)) - token0;
        const int low = p.window > 0 ? max(high - p.window + 1, 0) : 0;
        sees[i] = min(high, 63) | low << 8 | (subs ? __ldg(subs + at + t) : 0xf) << 16;
      }
    }
    const bool cut = __any_sync(0xffffffffu, sees[0] != kAll || sees[1] != kAll);
    const float2* lse = reinterpret_cast<const float2*>(base + C::kStats + buffer * 512) + lane % 4;
    const float2* delta = lse + 32;

    wgmma_wait<1>();
    wgmma_fence_operand(s);
    if (cut) {
      const int key = warp * 16 + lane / 4;
#pragma unroll
      for (int j = 0; j < 8; ++j)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int x = __shfl_sync(0xffffffffu, sees[j / 4], j % 4 * 8 + lane % 4 * 2 + i);
          const int high = x & 0xff, low = x >> 8 & 0xff;
          const bool chosen = x >> (16 + warp) & 1;
          if (!chosen || key > high || key < low) s[j * 4 + i] = -INFINITY;
          if (!chosen || key + 8 > high || key + 8 < low) s[j * 4 + 2 + i] = -INFINITY;
        }
    }
    uint32_t pf[4][4];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float2 l = lse[j * 4];
      const float x = l.x * 1.4426950408889634f, y = l.y * 1.4426950408889634f;
      s[j * 4] = exp2_fast(fmaf(s[j * 4], p.scale_log2, -x));
      s[j * 4 + 1] = exp2_fast(fmaf(s[j * 4 + 1], p.scale_log2, -y));
      s[j * 4 + 2] = exp2_fast(fmaf(s[j * 4 + 2], p.scale_log2, -x));
      s[j * 4 + 3] = exp2_fast(fmaf(s[j * 4 + 3], p.scale_log2, -y));
      pf[j / 2][j % 2 * 2] = pack_bf16(s[j * 4], s[j * 4 + 1]);
      pf[j / 2][j % 2 * 2 + 1] = pack_bf16(s[j * 4 + 2], s[j * 4 + 3]);
    }
    wgmma_wait<0>();
    wgmma_fence_operand(dp);
    wgmma_fence_operand(dv);
    wgmma_fence();
#pragma unroll
    for (int c = 0; c < 4; ++c)
      Wgmma<kNv>::template rs<1>(
          dv, pf[c], descriptor_mn_major(d_o + kChunkV0 * C::kChunk + c * 16 * 128, C::kChunk), 1);
    wgmma_commit();
    uint32_t df[4][4];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float2 d = delta[j * 4];
      df[j / 2][j % 2 * 2] = pack_bf16(s[j * 4] * (dp[j * 4] - d.x), s[j * 4 + 1] * (dp[j * 4 + 1] - d.y));
      df[j / 2][j % 2 * 2 + 1] =
          pack_bf16(s[j * 4 + 2] * (dp[j * 4 + 2] - d.x), s[j * 4 + 3] * (dp[j * 4 + 3] - d.y));
    }
    {
      // Matrix m of four: keys 16 warp + 8 (m % 2), rows 16 c + 8 (m / 2); its row i goes where lane 8 m + i
      // says.
      const int m = lane / 8, i = lane % 8;
      const uint32_t to = ds_tile + (m / 2 * 8 + i) * 128 + ((warp * 2 + m % 2) ^ i) * 16;
#pragma unroll
      for (int c = 0; c < 4; ++c)
        store_matrices_transposed(to + c * 16 * 128, df[c][0], df[c][1], df[c][2], df[c][3]);
    }
    fence_async_proxy();
    sync();
    wgmma_fence_operand(dk);
    wgmma_fence();
#pragma unroll
    for (int c = 0; c < 4; ++c)
      Wgmma<kNd>::template rs<1>(dk, df[c],
                                 descriptor_mn_major(q + kChunkD0 * C::kChunk + c * 16 * 128, C::kChunk), 1);
    wgmma_commit();
    wgmma_wait<1>();  // dV: its operands' registers are free
    wgmma_fence_operand(dv);
    constexpr int kParts = kNd == 128 ? 2 : 1, kNq = kNd / kParts;  // dQ at once or in halves
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const int chunk0 = kChunkD0 + part * (kNq / 64);
      float dq[kNq / 2];
      wgmma_fence_operand(dq);
      wgmma_fence();
#pragma unroll
      for (int c = 0; c < 4; ++c)
        Wgmma<kNq>::template ss<1>(dq, descriptor_k_major(ds_tile + c * 32),
                                   descriptor_mn_major(k + chunk0 * C::kChunk + c * 16 * 128, C::kChunk),
                                   c != 0);
      wgmma_commit();
      wgmma_wait<0>();
      wgmma_fence_operand(dq);
      if (part == 0) {
        wgmma_fence_operand(dk);
        // dQ goes out through this warp's rows of the q buffer, once nobody reads it any more.
        if (C::kColumns)
          sync_both();
        else
          sync();
      }
      const int m = lane / 8, i = lane % 8;
      const int row = warp * 16 + m % 2 * 8 + i;
#pragma unroll
      for (int j = 0; j < kNq / 8; j += 2) {
        const int unit = chunk0 * 8 + j + m / 2;
        store_matrices(q + (unit / 8 * 64 + row) * 128 + ((unit % 8) ^ i) * 16,
                       pack_bf16(dq[j * 4], dq[j * 4 + 1]), pack_bf16(dq[j * 4 + 2], dq[j * 4 + 3]),
                       pack_bf16(dq[j * 4 + 4], dq[j * 4 + 5]), pack_bf16(dq[j * 4 + 6], dq[j * 4 + 7]));
      }
    }
    __syncwarp();
    {
      constexpr int kUnits = kNd / 8;
      const int t =
          (warp * 16 + lane % 16) * p.row_to_token >> 16;  // of the row whose pair this lane looks up
      const int own = (t + 1) * p.ratio <= 64 && at + t < count ? __ldg(pairs + at + t) : -1;
      const int pass_pair0 = p.pass * p.index.pass_chunks * p.index.chunk_tokens * p.index.slots;
      const int64_t head_row = int64_t(head) * p.index.pass_chunks * p.index.chunk_tokens * p.index.slots;
#pragma unroll 4
      for (int x = lane; x < 16 * kUnits; x += 32) {
        const int y = warp * 16 + x / kUnits, unit = kChunkD0 * 8 + x % kUnits;
        const int to = __shfl_sync(0xffffffffu, own, y % 16);
        const int r = y - (y * p.row_to_token >> 16) * p.ratio;
        if (to >= 0)
          __stcs(reinterpret_cast<uint4*>(p.partial + ((head_row + to - pass_pair0) * p.ratio + r) * C::kD +
                                          unit * 8),
                 *reinterpret_cast<const uint4*>(base + buffer * C::kGroupBytes + (unit / 8 * 64 + y) * 128 +
                                                 ((unit % 8) ^ (y % 8)) * 16));
      }
    }
    mbarrier_arrive(&empty[buffer]);
  }

  // Joins the two warpgroups' sums in the place of K and V: dK to the first, dV to the second.
  __device__ __forceinline__ void exchange(uint8_t* kv) {
    float* x = reinterpret_cast<float*>(kv) + thread;
    float* y = reinterpret_cast<float*>(kv + C::kQBytes) + thread;
#pragma unroll
    for (int round = 0; round < 2; ++round) {
      sync_both();
      if (wg == 1) {
#pragma unroll
        for (int i = 0; i < 16 * C::kChunksD; ++i)
          if (round * 16 * C::kChunksD + i < kNd / 2) x[i * 128] = dk[round * 16 * C::kChunksD + i];
      } else {
#pragma unroll
        for (int i = 0; i < 16 * C::kChunksV; ++i)
          if (round * 16 * C::kChunksV + i < kNv / 2) y[i * 128] = dv[round * 16 * C::kChunksV + i];
      }
      sync_both();
      if (wg == 0) {
#pragma unroll
        for (int i = 0; i < 16 * C::kChunksD; ++i)
          if (round * 16 * C::kChunksD + i < kNd / 2) dk[round * 16 * C::kChunksD + i] += x[i * 128];
      } else {
#pragma unroll
        for (int i = 0; i < 16 * C::kChunksV; ++i)
          if (round * 16 * C::kChunksV + i < kNv / 2) dv[round * 16 * C::kChunksV + i] += y[i * 128];
      }
    }
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
          add_pair(at, x, y);
        else
          *reinterpret_cast<float2*>(at) = float2{x, y};
      }
    }
  }

  __device__ __forceinline__ void flush(const KeyItem& item, int head) {
    const bool alone = item.slot < 0;
    float* dk_to = p.dk + item.kv_row * p.dk_stride_row + (p.head0 + head) * p.dk_stride_head;
    float* dv_to = p.dv + item.kv_row * p.dv_stride_row + (p.head0 + head) * p.dv_stride_head;
    int64_t dk_stride = p.dk_stride_row, dv_stride = p.dv_stride_row;
    if (!alone) {
      constexpr int kWidth = C::kD + C::kDV;
      dk_to = p.shares + (int64_t(head) * p.share_capacity + item.slot) * 64 * kWidth;
      dv_to = dk_to + C::kD;
      dk_stride = dv_stride = kWidth;
    }
    if (C::kColumns || wg == 0) write(dk, dk_to + kChunkD0 * 64, dk_stride, p.scale, item.live, alone);
    if (C::kColumns || wg == 1) write(dv, dv_to + kChunkV0 * 64, dv_stride, 1.0f, item.live, alone);
  }

  __device__ __forceinline__ void run(Walk walk, uint64_t* full, uint64_t* empty, uint64_t* kv_full,
                                      uint64_t* kv_empty) {
    const int tokens_a_group = 64 / p.ratio;
    int c = 0;
    KeyItem item;
    for (int n = 0; walk.next(&item); ++n) {
      const int stage = n % C::kStages;
      uint8_t* kv = base + C::kKv + stage * C::kKvBytes;
      const int32_t* pairs = walk.pairs() + item.first;
      const uint8_t* subs =
          p.index.subs ? p.index.subs + (p.head0 + walk.head) * p.index.head_pairs + item.first : nullptr;
#pragma unroll
      for (int i = 0; i < kNd / 2; ++i) dk[i] = 0;
#pragma unroll
      for (int i = 0; i < kNv / 2; ++i) dv[i] = 0;
      mbarrier_wait(&kv_full[stage], (n / C::kStages) & 1);
      if (item.live < 64) clear_tail(kv, item.live);
      for (int at = 0; at < item.count; at += tokens_a_group, ++c)
        if (C::kColumns || c % 2 == wg)
          group(pairs, subs, at, item.count, item.token0, walk.head, c, smem_address(kv), full, empty);
      if (!C::kColumns) {
        exchange(kv);
        fence_async_proxy();
      }
      mbarrier_arrive(&kv_empty[stage]);
      walk.reload(&item);
      flush(item, walk.head);
    }
  }
};

template <class C>
__global__ void __launch_bounds__(C::kThreads, 1) kernel(const __grid_constant__ Params p) {
  extern __shared__ uint8_t raw_smem[];
  __shared__ int item_base[kMaxHeads + 1], item_first[kMaxHeads];
  uint8_t* base = raw_smem + ((1024 - (smem_address(raw_smem) & 1023)) & 1023);
  uint64_t* full = reinterpret_cast<uint64_t*>(base + C::kBarriers);
  uint64_t* empty = full + C::kBuffers;
  uint64_t* kv_full = empty + C::kBuffers;
  uint64_t* kv_empty = kv_full + C::kStages;
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
    for (int i = 0; i < C::kBuffers; ++i) {
      mbarrier_init(&full[i], 128);
      mbarrier_init(&empty[i], C::kColumns ? 256 : 128);
    }
    for (int i = 0; i < C::kStages; ++i) {
      mbarrier_init(&kv_full[i], 1);
      mbarrier_init(&kv_empty[i], 256);
    }
    mbarrier_init_fence();
  }
  __syncthreads();
  const Walk walk(p, item_base, item_first);
  if (threadIdx.x < 128) {
    registers_give<40>();
    produce<C>(p, base, walk, full, empty, kv_full, kv_empty);
  } else {
    registers_take<232>();
    if (!C::kColumns || threadIdx.x < 256)
      Consumer<C, 0>(p, base, threadIdx.x / 128 - 1).run(walk, full, empty, kv_full, kv_empty);
    else
      Consumer<C, 1>(p, base, 1).run(walk, full, empty, kv_full, kv_empty);
  }
}

}  // namespace hysparse::cuda::sparse_bwd
