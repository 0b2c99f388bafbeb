// Block-sparse attention forward, key block by key block: a work item is a block and up to `item_pairs` of
// the tokens that chose it. K and V of the block are brought once; three consumer warpgroups gather the
// tokens' query rows 64 at a time, attend to the block alone and write the partial output and its log-sum-exp
// a (token, entry). combine() joins a token's partials. Speed does not depend on what neighbours choose.
#pragma once

#include "kernels/cuda/common/gather_index.h"
#include "kernels/cuda/common/ptx.cuh"
#include "kernels/cuda/common/wgmma.cuh"

namespace hysparse::cuda::sparse_fwd {

constexpr int kMaxItemPairs = 12 * 64;

// A work item as the producer hands it over, beside its K and V.
struct GatherItem {
  int head, count;  // KV head within the pass; pairs, 0 = no more work
  int live;         // keys of the sequence from the block's first on
  int pad;
  uint32_t q[kMaxItemPairs];        // where the pair's first query row starts, in 16-byte units
  uint32_t partial[kMaxItemPairs];  // its first row of the workspace
  int limit[kMaxItemPairs];         // last key of the block that it sees; may lie behind the block
};

template <int kD_, int kDV_>
struct GatherConfig {
  static constexpr int kD = kD_, kDV = kDV_, kN = 64;
  static constexpr int kGroups = kDV > 128 ? 2 : 3;  // consumer warpgroups
  static constexpr int kRegisters = kGroups == 2 ? 240 : 160;
  static constexpr int kThreads = (kGroups + 1) * 128;
  static constexpr int kChunksD = (kD + 63) / 64, kChunksV = (kDV + 63) / 64;
  static constexpr int kStages = 2;
  static constexpr int kQBytes = kChunksD * 64 * 128;  // a warpgroup's buffer
  static constexpr int kKBytes = kChunksD * kN * 128, kVBytes = kChunksV * kN * 128;
  static constexpr int kQBuffers =
      kGroups * 2 * kQBytes + kStages * (kKBytes + kVBytes) <= 220 * 1024 ? 2 : 1;
  static constexpr int kQ = 0, kK = kGroups * kQBuffers * kQBytes, kV = kK + kStages * kKBytes;
  static constexpr int kItems = kV + kStages * kVBytes;
  static constexpr int kBarriers = kItems + kStages * int(sizeof(GatherItem)), kSmem = kBarriers + 64 + 1024;
  static_assert(kSmem <= 227 * 1024);
};

struct GatherParams {
  CUtensorMap k, v;
  GatherIndex index;
  const int32_t* position;  // [tokens]
  const __nv_bfloat16* q;
  uint32_t q_unit_row, q_unit_head;  // strides in units of 16 bytes
  int ratio, ratio_shift;            // Hq / Hkv, a power of two, and its logarithm
  int head0, heads;                  // KV heads of this pass
  float scale_log2;
  __nv_bfloat16* partial;  // [heads of the pass, tokens * slots, R, dv]
  float* partial_lse;      // [heads of the pass, tokens * slots, R], log2
};

// Item number i of the pass; false behind the last one.
__device__ inline bool find_item(const GatherParams& p, int i, int* head, int* block, int* first,
                                 int* count) {
  for (int h = 0; h < p.heads; ++h) {
    const int32_t* starts = p.index.item_start + int64_t(p.head0 + h) * (p.index.blocks + 1);
    const int items = starts[p.index.blocks];
    if (i >= items) {
      i -= items;
      continue;
    }
    int low = 0, high = p.index.blocks - 1;  // last block whose first item is at or before i
    while (low < high) {
      const int mid = (low + high + 1) / 2;
      if (starts[mid] <= i)
        low = mid;
      else
        high = mid - 1;
    }
    const int32_t* pairs = p.index.pair_start + int64_t(p.head0 + h) * (p.index.blocks + 1);
    *head = h;
    *block = low;
    *first = pairs[low] + (i - starts[low]) * p.index.item_pairs;
    *count = min(p.index.item_pairs, pairs[low + 1] - *first);
    return true;
  }
  return false;
}

template <class C>
struct GatherConsumer {
  float s[C::kN / 2];
  float o[C::kDV / 2];
  uint32_t pf[C::kN / 16][4];

  const GatherParams& p;
  uint8_t *q, *k, *v;  // this warpgroup's Q buffers; the stages
  const int wg, lane, thread, tokens_a_group;

  __device__ GatherConsumer(const GatherParams& params, uint8_t* base, int warpgroup)
      : p(params),
        q(base + C::kQ + warpgroup * C::kQBuffers * C::kQBytes),
        k(base + C::kK),
        v(base + C::kV),
        wg(warpgroup),
        lane(threadIdx.x % 32),
        thread(threadIdx.x % 128),
        tokens_a_group(64 / params.ratio) {}

  // Starts the copy of 64 query rows: the pairs of the item from `first` on, all their heads.
  __device__ __forceinline__ void fetch(const GatherItem& item, int first, int buffer) {
    constexpr int kUnits = C::kChunksD * 8, kRowsAStep = 128 / kUnits;  // a thread keeps its 16-byte column
    static_assert(128 % kUnits == 0 || kUnits == 24);
    const uint32_t to0 = smem_address(q + buffer * C::kQBytes);
#pragma unroll 4
    for (int i = thread; i < 64 * kUnits; i += 128) {
      const int row =
          kRowsAStep * kUnits == 128 ? thread / kUnits + (i - thread) / 128 * kRowsAStep : i / kUnits;
      const int unit = kRowsAStep * kUnits == 128 ? thread % kUnits : i % kUnits;
      const int t = row >> p.ratio_shift;
      const bool real = first + t < item.count && unit * 8 < C::kD;
      uint32_t from = 0;
      if (real) from = item.q[first + t] + (row & (p.ratio - 1)) * p.q_unit_head + unit;
      const uint32_t to = to0 + (unit / 8 * 64 + row) * 128 + ((unit % 8) ^ (row % 8)) * 16;
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(p.q + uint64_t(from) * 8),
                   "r"(real ? 16 : 0)
                   : "memory");
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  }

  __device__ __forceinline__ void sync() {
    named_barrier_sync(1 + wg, 128);
  }

  // Rows of V behind the sequence's last key hold another sequence or nothing; a NaN there would survive a
  // weight of 0.
  __device__ __forceinline__ void clear_tail(int stage, int live) {
    for (int x = thread; x < C::kChunksV * (C::kN - live) * 8; x += 128) {
      const int c = x / ((C::kN - live) * 8), r = x % ((C::kN - live) * 8);
      reinterpret_cast<uint4*>(v + stage * C::kVBytes)[(c * C::kN + live) * 8 + r] = uint4{0, 0, 0, 0};
    }
    fence_async_proxy();
    sync();
  }

  // 64 rows against the block in `stage`.
  __device__ __forceinline__ void attend(const GatherItem& item, int first, int buffer, int stage) {
    const uint32_t qa = smem_address(q + buffer * C::kQBytes), ka = smem_address(k + stage * C::kKBytes);
    const uint32_t va = smem_address(v + stage * C::kVBytes);
    wgmma_fence_operand(s);
    wgmma_fence();
#pragma unroll
    for (int c = 0; c < C::kD / 16; ++c)
      Wgmma<C::kN>::template ss<0>(s, descriptor_k_major(qa + c / 4 * (64 * 128) + c % 4 * 32),
                                   descriptor_k_major(ka + c / 4 * (C::kN * 128) + c % 4 * 32), c != 0);
    wgmma_commit();
    int row[2], limit[2];
    bool real[2];
    bool cut = false;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      row[r] = thread / 32 * 16 + lane / 4 + r * 8;
      const int at = first + (row[r] >> p.ratio_shift);
      real[r] = at < item.count;
      limit[r] = real[r] ? item.limit[at] : C::kN;
      cut |= limit[r] < C::kN - 1;
    }
    wgmma_wait<0>();
    wgmma_fence_operand(s);
    if (cut) {
#pragma unroll
      for (int j = 0; j < C::kN / 8; ++j) {
        const int col = j * 8 + lane % 4 * 2;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          if (col > limit[r]) s[j * 4 + 2 * r] = -INFINITY;
          if (col + 1 > limit[r]) s[j * 4 + 2 * r + 1] = -INFINITY;
        }
      }
    }
    float inverse[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float top = -INFINITY;
#pragma unroll
      for (int j = 0; j < C::kN / 8; ++j) top = fmaxf(top, fmaxf(s[j * 4 + 2 * r], s[j * 4 + 2 * r + 1]));
      const float shift = quad_max(top) * p.scale_log2;
      float sum = 0;
#pragma unroll
      for (int j = 0; j < C::kN / 8; ++j) {
        s[j * 4 + 2 * r] = exp2_fast(fmaf(s[j * 4 + 2 * r], p.scale_log2, -shift));
        s[j * 4 + 2 * r + 1] = exp2_fast(fmaf(s[j * 4 + 2 * r + 1], p.scale_log2, -shift));
        sum += s[j * 4 + 2 * r] + s[j * 4 + 2 * r + 1];
      }
      sum = quad_sum(sum);
      inverse[r] = 1.0f / sum;
      if (lane % 4 == 0 && real[r])
        p.partial_lse[item.partial[first + (row[r] >> p.ratio_shift)] + (row[r] & (p.ratio - 1))] =
            shift + log2f(sum);
    }
#pragma unroll
    for (int c = 0; c < C::kN / 16; ++c)
#pragma unroll
      for (int i = 0; i < 4; ++i) pf[c][i] = pack_bf16(s[c * 8 + i * 2], s[c * 8 + i * 2 + 1]);
    wgmma_fence_operand(o);
    wgmma_fence();
#pragma unroll
    for (int c = 0; c < C::kN / 16; ++c)
      Wgmma<C::kDV>::template rs<1>(o, pf[c], descriptor_mn_major(va + c * 16 * 128, C::kN * 128), c != 0);
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_fence_operand(o);
    // Out through this warp's rows of the Q buffer; every warp's products over it are done once all have
    // passed the barrier.
    sync();
    uint8_t* out = q + buffer * C::kQBytes;
    const int matrix = lane / 8, i8 = lane % 8;  // this lane addresses row i8 of matrix `matrix` of four
    const uint32_t to = smem_address(out) + (thread / 32 * 16 + matrix % 2 * 8 + i8) * 128;
#pragma unroll
    for (int j = 0; j < C::kDV / 8; j += 2) {
      const uint32_t x[4] = {pack_bf16(o[j * 4] * inverse[0], o[j * 4 + 1] * inverse[0]),
                             pack_bf16(o[j * 4 + 2] * inverse[1], o[j * 4 + 3] * inverse[1]),
                             pack_bf16(o[j * 4 + 4] * inverse[0], o[j * 4 + 5] * inverse[0]),
                             pack_bf16(o[j * 4 + 6] * inverse[1], o[j * 4 + 7] * inverse[1])};
      store_matrices(to + j / 8 * (64 * 128) + (((j % 8 + matrix / 2) ^ i8) * 16), x);
    }
    __syncwarp();
    constexpr int kUnits = C::kDV / 8;
#pragma unroll 4
    for (int x = lane; x < 16 * kUnits; x += 32) {
      const int y = thread / 32 * 16 + x / kUnits, j = x % kUnits, at = first + (y >> p.ratio_shift);
      if (at < item.count)
        __stcs(reinterpret_cast<uint4*>(p.partial +
                                        uint64_t(item.partial[at] + (y & (p.ratio - 1))) * C::kDV + j * 8),
               *reinterpret_cast<const uint4*>(out + (j / 8 * 64 + y) * 128 + ((j % 8) ^ (y % 8)) * 16));
    }
  }

  __device__ __forceinline__ void run(const GatherItem* items, uint64_t* full, uint64_t* empty) {
    for (int n = 0;; ++n) {
      const int stage = n % C::kStages;
      mbarrier_wait(&full[stage], (n / C::kStages) & 1);
      const GatherItem& item = items[stage];
      if (item.count == 0) return;
      const int step = C::kGroups * tokens_a_group;
      int at = wg * tokens_a_group, buffer = 0;
      if (at < item.count) {
        fetch(item, at, 0);
        if (item.live < C::kN) clear_tail(stage, item.live);
      }
      for (; at < item.count; at += step) {
        asm volatile("cp.async.wait_group 0;" ::: "memory");
        fence_async_proxy();
        sync();
        if (C::kQBuffers == 2 && at + step < item.count) fetch(item, at + step, buffer ^ 1);
        attend(item, at, buffer, stage);
        if (C::kQBuffers == 2) {
          buffer ^= 1;
        } else {
          sync();
          if (at + step < item.count) fetch(item, at + step, 0);
        }
      }
      sync();  // the buffers are free for the next item's first fetch, and all warps have read the item
      if (lane == 0) mbarrier_arrive(&empty[stage]);
    }
  }
};

// One warp: finds the items, copies their pairs and brings their K and V, a stage ahead of the consumers.
template <class C>
__device__ __forceinline__ void gather_produce(const GatherParams& p, uint8_t* base, GatherItem* items,
                                               uint64_t* full, uint64_t* empty) {
  const int lane = threadIdx.x % 32;
  for (int n = 0;; ++n) {
    int head = 0, block = 0, first = 0, count = 0;
    const bool any = find_item(p, int(blockIdx.x) + n * int(gridDim.x), &head, &block, &first, &count);
    const int stage = n % C::kStages;
    mbarrier_wait(&empty[stage], ((n / C::kStages) & 1) ^ 1);
    GatherItem& item = items[stage];
    if (!any) {
      if (lane == 0) item.count = 0;
      mbarrier_arrive(&full[stage]);
      return;
    }
    const BlockSpan span = p.index.spans[block];
    const int32_t* pairs = p.index.pairs + int64_t(p.head0 + head) * p.index.tokens * p.index.slots + first;
    const uint32_t pass_pair = uint32_t(head) * uint32_t(p.index.tokens * p.index.slots);
    const uint32_t head_unit = uint32_t((p.head0 + head) * p.ratio) * p.q_unit_head;
    for (int i = lane; i < count; i += 32) {
      const int pair = pairs[i], token = pair / p.index.slots;
      item.q[i] = uint32_t(token) * p.q_unit_row + head_unit;
      item.partial[i] = (pass_pair + uint32_t(pair)) * uint32_t(p.ratio);
      item.limit[i] = p.position[token] - span.position;
    }
    // Each lane publishes its own part of the table.
    if (lane != 0) {
      mbarrier_arrive(&full[stage]);
    } else {
      item.head = head;
      item.count = count;
      item.live = span.live;
      mbarrier_expect(&full[stage], C::kKBytes + C::kVBytes);
      for (int c = 0; c < C::kChunksD; ++c)
        tma_load_3d(base + C::kK + stage * C::kKBytes + c * C::kN * 128, &p.k, &full[stage], c * 64,
                    p.head0 + head, span.kv_row);
      for (int c = 0; c < C::kChunksV; ++c)
        tma_load_3d(base + C::kV + stage * C::kVBytes + c * C::kN * 128, &p.v, &full[stage], c * 64,
                    p.head0 + head, span.kv_row);
    }
    __syncwarp();
  }
}

template <class C>
__global__ void __launch_bounds__(C::kThreads, 1) gather_kernel(const __grid_constant__ GatherParams p) {
  extern __shared__ uint8_t raw_smem[];
  uint8_t* base = raw_smem + ((1024 - (smem_address(raw_smem) & 1023)) & 1023);
  GatherItem* items = reinterpret_cast<GatherItem*>(base + C::kItems);
  uint64_t* full = reinterpret_cast<uint64_t*>(base + C::kBarriers);
  uint64_t* empty = full + C::kStages;
  if (threadIdx.x == 0) {
    for (int i = 0; i < C::kStages; ++i) {
      mbarrier_init(&full[i], 32);
      mbarrier_init(&empty[i], C::kGroups * 4);
    }
    mbarrier_init_fence();
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    registers_give<24>();
    if (threadIdx.x < 32) gather_produce<C>(p, base, items, full, empty);
  } else {
    registers_take<C::kRegisters>();
    GatherConsumer<C>(p, base, threadIdx.x / 128 - 1).run(items, full, empty);
  }
}

}  // namespace hysparse::cuda::sparse_fwd
