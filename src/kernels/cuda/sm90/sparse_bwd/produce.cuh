// The producer warpgroup of the block-sparse backward: a warp a stream plans, one gathers q, one gathers dO.
#pragma once

#include "kernels/cuda/common/ptx.cuh"
#include "kernels/cuda/sm90/sparse_bwd/config.h"

namespace hysparse::cuda::sparse_bwd {

template <class C>
struct Smem {
  uint8_t* base;
  RowTable* tables;                    // [kStreams][kTables]
  Item* items;                         // [2 warpgroups][2] the one that is worked on, and the one before
  uint64_t *full, *q_empty, *o_empty;  // [kStreams][kBuffers]
  uint64_t *table_full, *table_empty;  // [kStreams][kTables]
  uint64_t *kv_full, *kv_empty;        // [kStreams]

  __device__ explicit Smem(uint8_t* raw) {
    base = raw + ((1024 - (smem_address(raw) & 1023)) & 1023);
    tables = reinterpret_cast<RowTable*>(base + C::kRows);
    items = reinterpret_cast<Item*>(base + C::kItems);
    full = reinterpret_cast<uint64_t*>(base + C::kBarriers);
    q_empty = full + C::kStreams * C::kBuffers;
    o_empty = q_empty + C::kStreams * C::kBuffers;
    table_full = o_empty + C::kStreams * C::kBuffers;
    table_empty = table_full + C::kStreams * C::kTables;
    kv_full = table_empty + C::kStreams * C::kTables;
    kv_empty = kv_full + C::kStreams;
  }
  // Every thread that uses something arrives for itself.
  __device__ void init() const {
    constexpr int kConsumers = 256 / C::kStreams;  // threads a stream
    for (int i = 0; i < C::kStreams * C::kBuffers; ++i) {
      mbarrier_init(&full[i], 64);
      mbarrier_init(&q_empty[i], kConsumers);
      mbarrier_init(&o_empty[i], kConsumers);
    }
    for (int i = 0; i < C::kStreams * C::kTables; ++i) {
      mbarrier_init(&table_full[i], 32);
      mbarrier_init(&table_empty[i], kConsumers);
    }
    for (int i = 0; i < C::kStreams; ++i) {
      mbarrier_init(&kv_full[i], 1);
      mbarrier_init(&kv_empty[i], kConsumers);
    }
    mbarrier_init_fence();
  }
};

// Where group i of a stream stands.
template <class C>
struct Place {
  int buffer, table;
  uint32_t buffer_parity, table_parity;
  __device__ __forceinline__ Place(int stream, int i)
      : buffer(stream * C::kBuffers + i % C::kBuffers),
        table(stream * C::kTables + i % C::kTables),
        buffer_parity((i / C::kBuffers) & 1),
        table_parity((i / C::kTables) & 1) {}
};

__device__ inline int token_of(const Params& p, int pair) {
  if (p.index.slots == 1) return pair;
  const int token = int(__umulhi(uint32_t(pair), p.slots_inverse));
  return token * p.index.slots > pair ? token - 1 : token;
}

// Loads that are not to be moved: what they overwrite was used right before, so that nothing waits for them
// until the next use.
__device__ inline void load_later(int* to, const int32_t* from) {
  asm volatile("ld.global.nc.s32 %0, [%1];" : "=r"(*to) : "l"(from) : "memory");
}
__device__ inline void load_later(float* to, const float* from) {
  asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(*to) : "l"(from) : "memory");
}

// One warp a stream: takes items as they are needed and describes their groups. item_base [heads + 1]:
// number of a head's first item in the launch; item_first [heads]: its number within the head's index.
template <class C>
struct Planner {
  const Params& p;
  const Smem<C>& s;
  const int *item_base, *item_first;
  const int stream, lane, tokens_a_group;
  // Token within a group and query head of this lane's two rows; a padding row is past all items.
  int t[2], r[2];
  int head = 0, taken;
  const int32_t* from;  // the next group's first pair
  int left = 0;         // pairs of the item from there on
  int token0;           // KeyItem's
  int head0;            // query head of the group's first
  int first_pair;       // the pair of row 0 of the workspace
  int next[2];          // pairs of this lane's rows
  // The last table, whose lse and delta may still be on their way; -1: none.
  int pending = -1;
  float lse[2], delta[2];

  __device__ Planner(const Params& params, const Smem<C>& smem, const int* base, const int* first, int number)
      : p(params),
        s(smem),
        item_base(base),
        item_first(first),
        stream(number),
        lane(threadIdx.x % 32),
        tokens_a_group(64 / params.ratio) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = lane + i * 32;
      t[i] = row / p.ratio;
      r[i] = row - t[i] * p.ratio;
      if (t[i] >= tokens_a_group) {
        t[i] = 1 << 29;
        r[i] = 0;
      }
    }
    count();
  }

  __device__ __forceinline__ void count() {
    taken = lane == 0 ? int(atomicAdd(p.next, 1u)) : 0;
  }
  __device__ __forceinline__ void publish() {
    if (pending < 0) return;
    RowTable& table = s.tables[pending];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      table.lse[lane + i * 32] = lse[i] * 1.4426950408889634f;
      table.delta[lane + i * 32] = delta[i];
    }
    mbarrier_arrive(&s.table_full[pending]);
    pending = -1;
  }
  // The next item, announced in its first table; false when there is none.
  __device__ __forceinline__ bool take(RowTable& table) {
    const int at = __shfl_sync(0xffffffffu, taken, 0);
    while (head < p.heads && at >= item_base[head + 1]) ++head;
    if (head == p.heads) return false;
    const int index_head = p.index.head_pairs ? p.head0 + head : 0;
    const int4* item =
        reinterpret_cast<const int4*>(p.index.items + int64_t(index_head) * p.index.item_capacity +
                                      item_first[head] + at - item_base[head]);
    const int4 a = __ldg(item), b = __ldg(item + 1);
    count();
    from = p.index.pairs + (p.head0 + head) * p.index.head_pairs + a.x;
    left = a.y;
    token0 = a.w;
    head0 = (p.head0 + head) * p.ratio;
    first_pair = (p.pass - head) * (p.index.pass_chunks * p.index.chunk_tokens * p.index.slots);
#pragma unroll
    for (int i = 0; i < 2; ++i) load_later(&next[i], from + min(t[i], left - 1));
    if (lane == 0) {
      table.head = head;
      table.kv_row = a.z;
      table.live = b.x;
      table.slot = b.y;
    }
    return true;
  }

  __device__ __forceinline__ bool group(int number) {
    const Place<C> place(stream, number);
    RowTable& table = s.tables[place.table];
    publish();
    mbarrier_wait(&s.table_empty[place.table], place.table_parity ^ 1);
    const bool first = left <= 0;
    if (first && !take(table)) {
      if (lane == 0) table.end = 1;
      mbarrier_arrive(&s.table_full[place.table]);
      return false;
    }
    int sees[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = lane + i * 32, pair = next[i], token = token_of(p, pair), q_head = head0 + r[i];
      const bool real = t[i] < left;
      const uint32_t stat = uint32_t(token) * uint32_t(p.q_heads) + uint32_t(q_head);
      lse[i] = INFINITY;
      delta[i] = 0;
      if (real) {
        load_later(&lse[i], p.lse + stat);
        load_later(&delta[i], p.delta + stat);
      }
      table.q[row] = uint32_t(token) * p.q_unit_row + uint32_t(q_head) * p.q_unit_head;
      table.d_o[row] = uint32_t(token) * p.o_unit_row + uint32_t(q_head) * p.o_unit_head;
      table.partial[row] = real ? (pair - first_pair) * p.ratio + r[i] : -1;
      const int high = token - token0;
      sees[i] = min(high, 63) | 0xf << 16;
      if (p.window > 0) sees[i] |= max(high - p.window + 1, 0) << 8;
      if (p.index.subs)
        sees[i] ^= (0xf ^ __ldg(p.index.subs + (from - p.index.pairs) + min(t[i], left - 1))) << 16;
    }
    constexpr int kAll = 63 | 0xf << 16;
    const bool cut = __any_sync(0xffffffffu, sees[0] != kAll || sees[1] != kAll);
    if (cut) {
      table.sees[lane] = sees[0];
      table.sees[lane + 32] = sees[1];
    }
    if (lane == 0) {
      table.cut = cut;
      table.end = 0;
      table.first = first;
    }
    pending = place.table;
    from += tokens_a_group;
    left -= tokens_a_group;
#pragma unroll
    for (int i = 0; i < 2; ++i) load_later(&next[i], from + min(t[i], left - 1));
    return true;
  }

  __device__ __forceinline__ void run() {
    for (int i = 0; group(i);) ++i;
  }
};

// Rows over the lanes of a warp: `kLanes` lanes a row, 16 bytes each; lane group `sub` has kSteps rows in
// order.
template <int kDim>
struct RowLanes {
  static constexpr int kUnits = kDim / 8;
  static constexpr int kLanes = kUnits <= 8 ? 8 : (kUnits <= 16 ? 16 : 32);
  static constexpr int kSteps = 64 * kLanes / 32;
  static_assert(kUnits <= 32 && kSteps % 8 == 0);
  int first;        // row
  int unit;         // of 16 bytes
  uint32_t offset;  // of row `first` in the swizzled tile; row first + i: (offset ^ i % 8 * 16) + i * 128
  __device__ RowLanes() {
    const int lane = threadIdx.x % 32;
    first = lane / kLanes * kSteps;
    unit = lane % kLanes;
    offset = uint32_t((unit / 8 * 64 + first) * 128 + unit % 8 * 16);
  }
  __device__ bool active() const { return kUnits == kLanes || unit < kUnits; }
};

// One warp: brings the rows of q (kOfDo: of dO) of the groups, whichever stream has one and room for it.
template <class C, bool kOfDo>
__device__ __forceinline__ void gather(const Params& p, const Smem<C>& s) {
  const RowLanes<kOfDo ? C::kDV : C::kD> lanes;
  const uint8_t* from = reinterpret_cast<const uint8_t*>((kOfDo ? p.d_o : p.q) + lanes.unit * 8);
  uint64_t* empty = kOfDo ? s.o_empty : s.q_empty;
  int next[C::kStreams] = {};  // group
  uint32_t live = (1u << C::kStreams) - 1;
  const auto seen = [](uint64_t* bar, uint32_t parity) {
    return __all_sync(0xffffffffu, mbarrier_test(bar, parity));
  };
  while (live) {
#pragma unroll
    for (int w = 0; w < C::kStreams; ++w) {
      if (!(live >> w & 1)) continue;
      const Place<C> place(w, next[w]);
      if (!seen(&s.table_full[place.table], place.table_parity)) continue;
      const RowTable& table = s.tables[place.table];
      if (table.end) {
        live &= ~(1u << w);
        continue;
      }
      if (!seen(&empty[place.buffer], place.buffer_parity ^ 1)) continue;
      const uint4* rows = reinterpret_cast<const uint4*>((kOfDo ? table.d_o : table.q) + lanes.first);
      const uint32_t to =
          smem_address(s.base + place.buffer * C::kGroupBytes + (kOfDo ? C::kQBytes : 0)) + lanes.offset;
      if (lanes.active()) {
#pragma unroll 2
        for (int i0 = 0; i0 < lanes.kSteps; i0 += 8) {
          const uint4 a = rows[i0 / 4], b = rows[i0 / 4 + 1];
          const uint32_t start[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
          for (int i = 0; i < 8; ++i)
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((to ^ (i * 16)) + (i0 + i) * 128),
                         "l"(from + uint64_t(start[i]) * 16)
                         : "memory");
        }
      }
      asm volatile(
          "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(smem_address(&s.full[place.buffer]))
          : "memory");
      ++next[w];
    }
  }
  asm volatile("cp.async.wait_all;" ::: "memory");
}

}  // namespace hysparse::cuda::sparse_bwd
