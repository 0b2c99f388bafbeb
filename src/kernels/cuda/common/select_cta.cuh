// Exact selection of the largest keys by one CTA: ties to the lower index, ascending order.
#pragma once

#include <cstdint>

namespace hysparse::cuda {

// Order-preserving map of floats to unsigned above 0, which stands for "no such block" (-inf, NaN).
__device__ inline uint32_t sortable_score(float x) {
  if (!(x > -INFINITY)) return 0;
  const uint32_t u = __float_as_uint(x);
  return (u & 0x80000000u) ? ~u : u | 0x80000000u;
}

// Sum over the CTA; `slot` is zero before and each call has its own.
__device__ inline int count_of_all(int mine, int* slot) {
  mine = __reduce_add_sync(0xffffffffu, mine);
  if (threadIdx.x % 32 == 0 && mine != 0) atomicAdd(slot, mine);
  __syncthreads();
  return *slot;
}

// The largest T with at least `want` keys >= T, by bisection; 0 when fewer are there.
template <int kWarps, class Key>
__device__ uint32_t threshold_of(const Key& key, int n, int want) {
  __shared__ int counts[32];
  if (threadIdx.x < 32) counts[threadIdx.x] = 0;
  __syncthreads();
  uint32_t threshold = 0;
  for (int bit = 31; bit >= 0; --bit) {
    const uint32_t candidate = threshold | (1u << bit);
    int mine = 0;
    for (int i = threadIdx.x; i < n; i += kWarps * 32) mine += key(i) >= candidate;
    const int count = count_of_all(mine, &counts[bit]);
    if (count >= want) threshold = candidate;
    if (count == want) break;
  }
  return threshold;
}

// Calls take(rank among those that pass, i) for the i in [0, n) that pass, in ascending order; returns their
// number. All threads.
template <int kWarps, class Passes, class Take>
__device__ int in_order(int n, Passes passes, Take take) {
  __shared__ int before[2][kWarps];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int found = 0;
  for (int i0 = 0, turn = 0; i0 < n; i0 += kWarps * 32, turn ^= 1) {
    const int i = i0 + threadIdx.x;
    const uint32_t who = __ballot_sync(0xffffffffu, i < n && passes(i));
    if (lane == 0) before[turn][warp] = __popc(who);
    __syncthreads();
    int mine = found + __popc(who & ((1u << lane) - 1));
    for (int j = 0; j < kWarps; ++j) {
      found += before[turn][j];
      if (j < warp) mine += before[turn][j];
    }
    if (who >> lane & 1) take(mine, i);
  }
  __syncthreads();
  return found;
}

// A bound that at least `entries` (<= 32) keys reach: the entries-th largest of 32 maxima of disjoint
// subsets. At least 1, so that no key that stands for "no such block" passes.
template <int kWarps, class Key>
__device__ uint32_t lower_bound(const Key& key, int n, int entries) {
  __shared__ uint32_t maxima[kWarps][32];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  uint32_t best = 0;
  for (int i = threadIdx.x; i < n; i += kWarps * 32) best = max(best, key(i));
  maxima[warp][lane] = best;
  __syncthreads();
#pragma unroll
  for (int j = 0; j < kWarps; ++j) best = max(best, maxima[j][lane]);
  int rank = 0;
#pragma unroll 8
  for (int i = 0; i < 32; ++i) {
    const uint32_t other = __shfl_sync(0xffffffffu, best, i);
    rank += other > best || (other == best && i < lane);
  }
  const uint32_t at = __ballot_sync(0xffffffffu, rank == entries - 1);
  return max(1u, __shfl_sync(0xffffffffu, best, __ffs(int(at)) - 1));
}

// The `entries` largest of key(0) .. key(n - 1): ties to the lower index, ascending, padded with -1. Keys
// below a bound drop out first; the few that stay find their rank by comparing with each other.
template <int kWarps, class Key>
__device__ void select_cta(const Key& key, int n, int entries, int32_t* idx) {
  __shared__ uint32_t live_key[kWarps * 32];
  __shared__ int live_index[kWarps * 32];
  const uint32_t bound =
      entries <= 32 ? lower_bound<kWarps>(key, n, entries) : max(1u, threshold_of<kWarps>(key, n, entries));
  const int live = in_order<kWarps>(
      n, [&](int i) { return key(i) >= bound; },
      [&](int rank, int i) {
        if (rank >= kWarps * 32) return;
        live_key[rank] = key(i);
        live_index[rank] = i;
      });
  int found;
  if (live <= kWarps * 32) {
    bool wins = int(threadIdx.x) < live;
    if (wins) {
      const uint32_t mine = live_key[threadIdx.x];
      int rank = 0;
#pragma unroll 4
      for (int j = 0; j < live; ++j)
        rank += live_key[j] > mine || (live_key[j] == mine && j < int(threadIdx.x));
      wins = rank < entries;
    }
    found = in_order<kWarps>(
        live, [&](int) { return wins; }, [&](int rank, int i) { idx[rank] = live_index[i]; });
  } else {
    const uint32_t threshold = max(1u, threshold_of<kWarps>(key, n, entries));
    const int above = in_order<kWarps>(
        n, [&](int i) { return key(i) > threshold; }, [](int, int) {});
    // Of those that tie, the first `entries - above`: all below the index of the last of them.
    __shared__ int last_tie;
    if (threadIdx.x == 0) last_tie = n;
    __syncthreads();
    in_order<kWarps>(
        n, [&](int i) { return key(i) == threshold; },
        [&](int rank, int i) {
          if (rank == entries - above - 1) last_tie = i;
        });
    const int last = last_tie;
    found = in_order<kWarps>(
        n, [&](int i) { return key(i) > threshold || (key(i) == threshold && i <= last); },
        [&](int rank, int i) { idx[rank] = i; });
  }
  for (int i = found + threadIdx.x; i < entries; i += kWarps * 32) idx[i] = -1;
}

}  // namespace hysparse::cuda
