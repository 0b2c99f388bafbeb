// A CTA takes 16 rows of one KV head: it gathers the rows' scores (coalesced along rows) into shared memory
// in slices of blocks, then each warp finds a row's best entries exactly: candidates below the `entries`-th
// largest lane maximum cannot win and are dropped, the few survivors are cut by bisection on the bits of the
// score and taken in index order. A slice hands its winners on to the next.
#include "kernels/cuda/common/select.h"

namespace hysparse::cuda {
namespace {

constexpr int kRows = 16, kSlice = 512, kWarps = 8, kMaxEntries = 64;
constexpr int kSlots =
    kMaxEntries / 32 + kSlice / 32;  // candidates a lane: winners of earlier slices, then this slice
constexpr int kCarry = kMaxEntries / 32;
constexpr uint32_t kAll = 0xffffffffu;

// Order-preserving map of floats to unsigned; every real score maps above 0, which stands for "no candidate".
__device__ uint32_t sortable(float x) {
  const uint32_t u = __float_as_uint(x);
  return max((u & 0x80000000u) ? ~u : u | 0x80000000u, 1u);
}

struct Shared {
  float score[kRows][kSlice + 1];
  uint32_t carry_key[kRows][kMaxEntries];
  int32_t carry_block[kRows][kMaxEntries];
  uint32_t live_key[kWarps][128];  // survivors of the row at hand
  int32_t live_block[kWarps][128];
};

// The largest T such that at least `want` of the warp's keys are >= T (0 when there are fewer than `want`
// real ones).
template <int kCount>
__device__ uint32_t threshold_of(const uint32_t (&key)[kCount], int want) {
  uint32_t threshold = 0;
  for (int bit = 31; bit >= 0; --bit) {
    const uint32_t candidate = threshold | (1u << bit);
    int count = 0;
#pragma unroll
    for (int j = 0; j < kCount; ++j) count += __popc(__ballot_sync(kAll, key[j] >= candidate));
    if (count >= want) threshold = candidate;
    if (count == want) break;
  }
  return threshold;
}

// Hands the `want` largest keys to take(j, rank): ties to the earlier slot, rank ascending in slot order (j *
// 32 + lane). Returns how many.
template <int kCount, class Take>
__device__ int pick(const uint32_t (&key)[kCount], int want, Take take) {
  const uint32_t below = (1u << threadIdx.x % 32) - 1;
  const uint32_t threshold = threshold_of(key, want);
  int above = 0;
#pragma unroll
  for (int j = 0; j < kCount; ++j) above += __popc(__ballot_sync(kAll, key[j] > threshold));
  int ties = threshold == 0 ? 0 : want - above, rank = 0;
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    const bool tied = threshold != 0 && key[j] == threshold;
    const uint32_t equal = __ballot_sync(kAll, tied);
    const bool wins = key[j] > threshold || (tied && __popc(equal & below) < ties);
    const uint32_t winners = __ballot_sync(kAll, wins);
    if (wins) take(j, rank + __popc(winners & below));
    rank += __popc(winners);
    ties -= min(ties, __popc(equal));
  }
  return rank;
}

// How many of the warp's first `count` values are larger than this lane's (equal ones of earlier lanes count
// as larger).
__device__ int rank_in_warp(uint32_t x, int count) {
  const int lane = threadIdx.x % 32;
  int rank = 0;
#pragma unroll 8
  for (int i = 0; i < count; ++i) {
    const uint32_t y = __shfl_sync(kAll, x, i);
    rank += y > x || (y == x && i < lane);
  }
  return rank;
}

__device__ void select_row(const SelectParams& p, Shared& s, int r, int slice, int diagonal, int32_t* idx) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const uint32_t below = (1u << lane) - 1;
  uint32_t key[kSlots];
  const int used = min(kSlice, diagonal - slice + 1);
  uint32_t lane_max = 0;
#pragma unroll
  for (int j = 0; j < kSlots; ++j) {
    key[j] = 0;
    if (j < kCarry) {
      if (slice > 0) key[j] = s.carry_key[r][j * 32 + lane];
    } else if ((j - kCarry) * 32 < used) {
      const int b = (j - kCarry) * 32 + lane, block = slice + b;
      if (b < used) {
        key[j] = sortable(s.score[r][b]);
        if (p.force_diagonal && block == diagonal) key[j] = 0xfffffffeu;
        if (p.force_first && block == 0) key[j] = kAll;
      }
    }
    lane_max = max(lane_max, key[j]);
  }
  const bool done = slice + kSlice > diagonal;
  int carried[kCarry];
#pragma unroll
  for (int j = 0; j < kCarry; ++j) carried[j] = s.carry_block[r][j * 32 + lane];
  __syncwarp();
  auto keep = [&](int rank, uint32_t k, int32_t block) {
    if (done) {
      idx[rank] = block;
    } else {
      s.carry_key[r][rank] = k;
      s.carry_block[r][rank] = block;
    }
  };
  int found = -1;
  if (p.entries <= 32) {
    const uint32_t at_rank = __ballot_sync(kAll, rank_in_warp(lane_max, 32) == p.entries - 1);
    const uint32_t bound = max(__shfl_sync(kAll, lane_max, __ffs(int(at_rank)) - 1), 1u);
    int live = 0;
#pragma unroll
    for (int j = 0; j < kSlots; ++j) {
      if (j >= kCarry && (j - kCarry) * 32 >= used) continue;
      const uint32_t lives = __ballot_sync(kAll, key[j] >= bound);
      const int at = live + __popc(lives & below);
      if ((lives >> lane & 1) && at < 128) {
        s.live_key[warp][at] = key[j];
        s.live_block[warp][at] = j < kCarry ? carried[j < kCarry ? j : 0] : slice + (j - kCarry) * 32 + lane;
      }
      live += __popc(lives);
    }
    __syncwarp();
    if (live <= 32) {
      const uint32_t k = lane < live ? s.live_key[warp][lane] : 0;
      const bool wins = rank_in_warp(k, live) < p.entries && lane < live;
      const uint32_t winners = __ballot_sync(kAll, wins);
      if (wins) keep(__popc(winners & below), k, s.live_block[warp][lane]);
      found = __popc(winners);
    } else if (live <= 64) {
      uint32_t k[2];
#pragma unroll
      for (int j = 0; j < 2; ++j) k[j] = j * 32 + lane < live ? s.live_key[warp][j * 32 + lane] : 0;
      found =
          pick(k, p.entries, [&](int j, int rank) { keep(rank, k[j], s.live_block[warp][j * 32 + lane]); });
    } else if (live <= 128) {
      uint32_t k[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) k[j] = j * 32 + lane < live ? s.live_key[warp][j * 32 + lane] : 0;
      found =
          pick(k, p.entries, [&](int j, int rank) { keep(rank, k[j], s.live_block[warp][j * 32 + lane]); });
    }
  }
  if (found < 0)
    found = pick(key, p.entries, [&](int j, int rank) {
      keep(rank, key[j], j < kCarry ? carried[j < kCarry ? j : 0] : slice + (j - kCarry) * 32 + lane);
    });
  if (done)
    for (int i = found + lane; i < p.entries; i += 32) idx[i] = -1;
  else
    for (int i = found + lane; i < kMaxEntries; i += 32) s.carry_key[r][i] = 0;
  __syncwarp();
}

// score[row][b] of the slice: max over the group's heads of (raw maximum - lse).
__device__ void gather(const SelectParams& p, Shared& s, int kv_head, int r0, int slice, int last_block) {
  constexpr float kLn2 = 0.69314718055994531f;
  const int ratio = p.q_heads / p.kv_heads, my_row = threadIdx.x % kRows;
  const bool real = r0 + my_row < p.rows;
  const int64_t token = p.row0 + r0 + (real ? my_row : 0);
  const int my_last = real ? p.position[token] / p.block : -1;
  const float* lse = p.lse + token * p.q_heads + kv_head * ratio;
  const float* raw = p.raw + int64_t(kv_head) * ratio * p.groups * p.raw_rows + r0 + my_row;
  for (int b = threadIdx.x / kRows; b < kSlice && slice + b <= last_block; b += kWarps * 32 / kRows) {
    float score = -INFINITY;
    if (slice + b <= my_last) {
      const int64_t first = int64_t(slice + b) * p.groups_per_block;
      for (int h = 0; h < ratio; h += 4) {  // four loads in flight
        float x[4];
#pragma unroll
        for (int i = 0; i < 4; ++i)
          x[i] = h + i < ratio ? __ldcs(raw + ((h + i) * p.groups + first) * p.raw_rows) : -INFINITY;
        for (int g = 1; g < p.groups_per_block && first + g < p.groups; ++g)
#pragma unroll
          for (int i = 0; i < 4; ++i)
            if (h + i < ratio)
              x[i] = fmaxf(x[i], __ldcs(raw + ((h + i) * p.groups + first + g) * p.raw_rows));
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (h + i < ratio) score = fmaxf(score, x[i] * kLn2 - lse[h + i]);
      }
    }
    s.score[my_row][b] = score;
  }
}

__global__ void __launch_bounds__(kWarps * 32) kernel(const SelectParams p) {
  extern __shared__ uint8_t raw_smem[];
  Shared& s = *reinterpret_cast<Shared*>(raw_smem);
  const int kv_head = blockIdx.y, r0 = (gridDim.x - 1 - blockIdx.x) * kRows;  // long rows first
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  __shared__ int last_shared;
  if (warp == 0) {
    int last = lane < kRows && r0 + lane < p.rows ? p.position[p.row0 + r0 + lane] / p.block : 0;
    last = __reduce_max_sync(kAll, last);
    if (lane == 0) last_shared = last;
  }
  __syncthreads();
  const int last_block = last_shared;

  for (int slice = 0; slice <= last_block; slice += kSlice) {
    __syncthreads();
    gather(p, s, kv_head, r0, slice, last_block);
    __syncthreads();
    for (int r = warp; r < kRows && r0 + r < p.rows; r += kWarps) {
      const int64_t t = p.row0 + r0 + r;
      const int diagonal = p.position[t] / p.block;
      if (p.block_scores) {
        float* out = p.block_scores + (t * p.kv_heads + kv_head) * p.score_stride + slice;
        for (int b = lane; b < kSlice && slice + b < p.score_stride; b += 32)
          out[b] = slice + b <= diagonal ? s.score[r][b] : -INFINITY;
      }
      if (slice > diagonal || p.entries == 0) continue;
      int32_t* idx = p.idx + (t * p.kv_heads + kv_head) * p.entries;
      if (diagonal < p.entries) {  // every block wins
        for (int i = lane; i < p.entries; i += 32) idx[i] = i <= diagonal ? i : -1;
      } else {
        select_row(p, s, r, slice, diagonal, idx);
      }
    }
  }
  if (p.block_scores) {  // slices that no row of this CTA reaches
    const int first = (last_block / kSlice + 1) * kSlice;
    for (int r = warp; r < kRows && r0 + r < p.rows; r += kWarps) {
      float* out = p.block_scores + ((p.row0 + r0 + r) * int64_t(p.kv_heads) + kv_head) * p.score_stride;
      for (int64_t b = first + lane; b < p.score_stride; b += 32) out[b] = -INFINITY;
    }
  }
}

}  // namespace

cudaError_t select_blocks(const SelectParams& p, cudaStream_t stream) {
  static const cudaError_t configured =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(sizeof(Shared)));
  if (configured != cudaSuccess) return configured;
  const dim3 grid((p.rows + kRows - 1) / kRows, p.kv_heads);
  kernel<<<grid, kWarps * 32, sizeof(Shared), stream>>>(p);
  return cudaGetLastError();
}

}  // namespace hysparse::cuda
