// The producer warpgroup of the block-sparse backward: a warp each plans, gathers q, gathers dO, and writes
// the partial dQ out. Consumers touch global memory only at an item's end.
#pragma once

#include "kernels/cuda/common/ptx.cuh"
#include "kernels/cuda/sm90/sparse_bwd/config.h"

namespace hysparse::cuda::sparse_bwd {

template <class C>
struct Smem {
  uint8_t* base;
  RowTable* tables;                    // [kStreams][kTables]
  Item* items;                         // [2 warpgroups][2] the one that is worked on, and the one before
  uint64_t *full, *done, *empty;       // [kStreams][kBuffers] rows are there; dQ stands in q's place; free
  uint64_t *table_full, *table_empty;  // [kStreams][kTables]
  uint64_t *kv_full, *kv_empty;        // [kStreams]

  __device__ explicit Smem(uint8_t* raw) {
    base = raw + ((1024 - (smem_address(raw) & 1023)) & 1023);
    tables = reinterpret_cast<RowTable*>(base + C::kRows);
    items = reinterpret_cast<Item*>(base + C::kItems);
    full = reinterpret_cast<uint64_t*>(base + C::kBarriers);
    done = full + C::kStreams * C::kBuffers;
    empty = done + C::kStreams * C::kBuffers;
    table_full = empty + C::kStreams * C::kBuffers;
    table_empty = table_full + C::kStreams * C::kTables;
    kv_full = table_empty + C::kStreams * C::kTables;
    kv_empty = kv_full + C::kStreams;
  }
  // Every thread that uses something arrives for itself.
  __device__ void init() const {
    constexpr int kConsumers = 256 / C::kStreams;  // threads a stream
    for (int i = 0; i < C::kStreams * C::kBuffers; ++i) {
      mbarrier_init(&full[i], 64);
      mbarrier_init(&done[i], kConsumers);
      mbarrier_init(&empty[i], 32);
    }
    for (int i = 0; i < C::kStreams * C::kTables; ++i) {
      mbarrier_init(&table_full[i], 32);
      mbarrier_init(&table_empty[i], 32);
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

// Calls work(stream, i) for group i of each stream in turn until it has returned false for each.
template <class C, class Work>
__device__ __forceinline__ void for_groups(Work work) {
  uint32_t live = (1u << C::kStreams) - 1;
  for (int i = 0; live; ++i)
#pragma unroll
    for (int w = 0; w < C::kStreams; ++w)
      if (live >> w & 1)
        if (!work(w, i)) live &= ~(1u << w);
}

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

// One warp: hands items to the streams as they need them and describes their groups. item_base [heads + 1]:
// number of a head's first item in the launch; item_first [heads]: its number within the head's index.
template <class C>
struct Planner {
  struct Cursor {
    const int32_t* from;  // the next group's first pair
    int left = 0;         // pairs of the item from there on
    int token0;           // KeyItem's
    int head0;            // query head of the group's first
    int first_pair;       // the pair of row 0 of the workspace
    int next[2];          // pairs of this lane's rows
    // The last table, whose lse and delta may still be on their way; -1: none.
    int pending = -1;
    float lse[2], delta[2];
  };

  const Params& p;
  const Smem<C>& s;
  const int *item_base, *item_first;
  const int lane, tokens_a_group;
  int t[2],
      r[2];  // token within a group and query head of this lane's two rows; a padding row is past all items
  int head = 0, taken;
  Cursor cursor[C::kStreams];

  __device__ Planner(const Params& params, const Smem<C>& smem, const int* base, const int* first)
      : p(params),
        s(smem),
        item_base(base),
        item_first(first),
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
  __device__ __forceinline__ void publish(Cursor& u) {
    if (u.pending < 0) return;
    RowTable& table = s.tables[u.pending];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      table.lse[lane + i * 32] = u.lse[i] * 1.4426950408889634f;
      table.delta[lane + i * 32] = u.delta[i];
    }
    mbarrier_arrive(&s.table_full[u.pending]);
    u.pending = -1;
  }
  // The next item, announced in its first table; false when there is none.
  __device__ __forceinline__ bool take(Cursor& u, RowTable& table) {
    const int at = __shfl_sync(0xffffffffu, taken, 0);
    while (head < p.heads && at >= item_base[head + 1]) ++head;
    if (head == p.heads) return false;
    const int index_head = p.index.head_pairs ? p.head0 + head : 0;
    const int4* item =
        reinterpret_cast<const int4*>(p.index.items + int64_t(index_head) * p.index.item_capacity +
                                      item_first[head] + at - item_base[head]);
    const int4 a = __ldg(item), b = __ldg(item + 1);
    count();
    u.from = p.index.pairs + (p.head0 + head) * p.index.head_pairs + a.x;
    u.left = a.y;
    u.token0 = a.w;
    u.head0 = (p.head0 + head) * p.ratio;
    u.first_pair = (p.pass - head) * (p.index.pass_chunks * p.index.chunk_tokens * p.index.slots);
#pragma unroll
    for (int i = 0; i < 2; ++i) load_later(&u.next[i], u.from + min(t[i], u.left - 1));
    if (lane == 0) {
      table.head = head;
      table.kv_row = a.z;
      table.live = b.x;
      table.slot = b.y;
    }
    return true;
  }

  __device__ __forceinline__ bool group(Cursor& u, int stream, int number) {
    const Place<C> place(stream, number);
    RowTable& table = s.tables[place.table];
    publish(u);
    mbarrier_wait(&s.table_empty[place.table], place.table_parity ^ 1);
    const bool first = u.left <= 0;
    if (first && !take(u, table)) {
      if (lane == 0) table.end = 1;
      mbarrier_arrive(&s.table_full[place.table]);
      return false;
    }
    int sees[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = lane + i * 32, pair = u.next[i], token = token_of(p, pair), q_head = u.head0 + r[i];
      const bool real = t[i] < u.left;
      const uint32_t stat = uint32_t(token) * uint32_t(p.q_heads) + uint32_t(q_head);
      u.lse[i] = INFINITY;
      u.delta[i] = 0;
      if (real) {
        load_later(&u.lse[i], p.lse + stat);
        load_later(&u.delta[i], p.delta + stat);
      }
      table.q[row] = uint32_t(token) * p.q_unit_row + uint32_t(q_head) * p.q_unit_head;
      table.d_o[row] = uint32_t(token) * p.o_unit_row + uint32_t(q_head) * p.o_unit_head;
      table.partial[row] = real ? (pair - u.first_pair) * p.ratio + r[i] : -1;
      const int high = token - u.token0;
      sees[i] = min(high, 63) | 0xf << 16;
      if (p.window > 0) sees[i] |= max(high - p.window + 1, 0) << 8;
      if (p.index.subs)
        sees[i] ^= (0xf ^ __ldg(p.index.subs + (u.from - p.index.pairs) + min(t[i], u.left - 1))) << 16;
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
    u.pending = place.table;
    u.from += tokens_a_group;
    u.left -= tokens_a_group;
#pragma unroll
    for (int i = 0; i < 2; ++i) load_later(&u.next[i], u.from + min(t[i], u.left - 1));
    return true;
  }

  __device__ __forceinline__ void run() {
    for_groups<C>([&](int stream, int i) { return group(cursor[stream], stream, i); });
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

// One warp: brings the rows of q (kOfDo: of dO) of each group.
template <class C, bool kOfDo>
__device__ __forceinline__ void gather(const Params& p, const Smem<C>& s) {
  const RowLanes<kOfDo ? C::kDV : C::kD> lanes;
  const uint8_t* from = reinterpret_cast<const uint8_t*>((kOfDo ? p.d_o : p.q) + lanes.unit * 8);
  for_groups<C>([&](int stream, int number) {
    const Place<C> place(stream, number);
    mbarrier_wait(&s.table_full[place.table], place.table_parity);
    const RowTable& table = s.tables[place.table];
    if (table.end) return false;
    const uint4* rows = reinterpret_cast<const uint4*>((kOfDo ? table.d_o : table.q) + lanes.first);
    mbarrier_wait(&s.empty[place.buffer], place.buffer_parity ^ 1);
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
    return true;
  });
  asm volatile("cp.async.wait_all;" ::: "memory");
}

// base[row stride * to] = x for four rows, none where `to` is negative. One statement, so that each address
// has a register of its own: a store holds its registers for long.
__device__ inline void store_rows(__nv_bfloat16* base, int stride, const int4& to, const uint4 (&x)[4]) {
  asm volatile(
      "{ .reg .pred a, b, c, d; setp.ge.s32 a, %4, 0; setp.ge.s32 b, %5, 0; setp.ge.s32 c, %6, 0;"
      " setp.ge.s32 d, %7, 0;"
      " @a st.global.cs.v4.b32 [%0], {%8, %9, %10, %11}; @b st.global.cs.v4.b32 [%1], {%12, %13, %14, %15};"
      " @c st.global.cs.v4.b32 [%2], {%16, %17, %18, %19}; @d st.global.cs.v4.b32 [%3], {%20, %21, %22, "
      "%23}; }" ::"l"(base + int64_t(to.x) * stride),
      "l"(base + int64_t(to.y) * stride), "l"(base + int64_t(to.z) * stride),
      "l"(base + int64_t(to.w) * stride), "r"(to.x), "r"(to.y), "r"(to.z), "r"(to.w), "r"(x[0].x),
      "r"(x[0].y), "r"(x[0].z), "r"(x[0].w), "r"(x[1].x), "r"(x[1].y), "r"(x[1].z), "r"(x[1].w), "r"(x[2].x),
      "r"(x[2].y), "r"(x[2].z), "r"(x[2].w), "r"(x[3].x), "r"(x[3].y), "r"(x[3].z), "r"(x[3].w)
      : "memory");
}

// One warp: writes the groups' dQ, which consumers left in the place of q, to the workspace.
template <class C>
__device__ __forceinline__ void drain(const Params& p, const Smem<C>& s) {
  const RowLanes<C::kD> lanes;
  for_groups<C>([&](int stream, int number) {
    const Place<C> place(stream, number);
    mbarrier_wait(&s.table_full[place.table], place.table_parity);
    const RowTable& table = s.tables[place.table];
    if (table.end) return false;
    const int4* rows = reinterpret_cast<const int4*>(table.partial + lanes.first);
    mbarrier_wait(&s.done[place.buffer], place.buffer_parity);
    const uint8_t* from = s.base + place.buffer * C::kGroupBytes;
    if (lanes.active()) {
#pragma unroll 2
      for (int i0 = 0; i0 < lanes.kSteps; i0 += 4) {
        const int4 to = rows[i0 / 4];
        uint4 x[4];
#pragma unroll
        for (int i = 0; i < 4; ++i)
          x[i] =
              *reinterpret_cast<const uint4*>(from + ((lanes.offset ^ ((i0 + i) % 8 * 16)) + (i0 + i) * 128));
        store_rows(p.partial + lanes.unit * 8, C::kD, to, x);
      }
    }
    mbarrier_arrive(&s.empty[place.buffer]);
    mbarrier_arrive(&s.table_empty[place.table]);
    return true;
  });
}

}  // namespace hysparse::cuda::sparse_bwd
