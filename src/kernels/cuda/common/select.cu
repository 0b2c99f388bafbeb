// A CTA takes 16 rows of one KV head: it gathers the rows' scores (coalesced along rows) into shared memory
// in slices of blocks, then each warp finds a row's best entries exactly, by bisection on the bits of the
// score and an index-ordered pick; a slice hands its winners on.
#include "kernels/cuda/common/select.h"

namespace hysparse::cuda {
namespace {

constexpr int kRows = 16, kSlice = 512, kWarps = 8, kMaxEntries = 64;
constexpr int kPerLane = kSlice / 32, kCarry = kMaxEntries / 32;

// Order-preserving map of floats to unsigned; every real score maps above 1, 0 stands for "no candidate".
__device__ uint32_t sortable(float x) {
  const uint32_t u = __float_as_uint(x);
  return (u & 0x80000000u) ? ~u : u | 0x80000000u;
}

struct Shared {
  float score[kRows][kSlice + 1];
  uint32_t carry_key[kRows][kMaxEntries];
  int32_t carry_block[kRows][kMaxEntries];
};

// The `want` largest keys of a warp's registers, ties to the earlier slot (slot order = j * 32 + lane =
// ascending block index). Calls take(j, rank) on the lanes that hold a winner, rank ascending by slot;
// returns the number of winners.
template <int kSlots, class Take>
__device__ int pick(const uint32_t (&key)[kSlots], int want, Take take) {
  const int lane = threadIdx.x % 32;
  uint32_t threshold = 0;
  for (int bit = 31; bit >= 0; --bit) {
    const uint32_t candidate = threshold | (1u << bit);
    int count = 0;
#pragma unroll
    for (int j = 0; j < kSlots; ++j) count += key[j] >= candidate;
    count = __reduce_add_sync(0xffffffffu, count);
    if (count >= want) threshold = candidate;
    if (count == want) break;
  }
  // threshold: at least `want` keys are >= it, or it is 0 and all real ones win.
  int above = 0;
#pragma unroll
  for (int j = 0; j < kSlots; ++j) above += key[j] > threshold;
  above = __reduce_add_sync(0xffffffffu, above);
  int equal_left = threshold == 0 ? 0 : want - above;
  int rank = 0;
  const uint32_t below = (1u << lane) - 1;
#pragma unroll
  for (int j = 0; j < kSlots; ++j) {
    const uint32_t equal = __ballot_sync(0xffffffffu, threshold != 0 && key[j] == threshold);
    const bool wins_tie = threshold != 0 && key[j] == threshold && __popc(equal & below) < equal_left;
    const uint32_t winners = __ballot_sync(0xffffffffu, key[j] > threshold || wins_tie);
    if (winners >> lane & 1) take(j, rank + __popc(winners & below));
    rank += __popc(winners);
    equal_left -= min(equal_left, __popc(equal));
  }
  return rank;
}

__global__ void __launch_bounds__(kWarps * 32) kernel(const SelectParams p) {
  extern __shared__ uint8_t raw_smem[];
  Shared& s = *reinterpret_cast<Shared*>(raw_smem);
  const int kv_head = blockIdx.y, ratio = p.q_heads / p.kv_heads;
  const int r0 = blockIdx.x * kRows;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  constexpr float kLn2 = 0.69314718055994531f;

  for (int i = threadIdx.x; i < kRows * kMaxEntries; i += blockDim.x) s.carry_key[0][i] = 0;

  int last_block = 0;  // of the CTA's rows
  for (int r = 0; r < kRows; ++r)
    if (r0 + r < p.rows) last_block = max(last_block, p.position[p.row0 + r0 + r] / p.block);

  const int my_row = threadIdx.x % kRows;  // loading: 16 rows x 16 blocks a pass
  const bool real = r0 + my_row < p.rows;
  const int64_t token = p.row0 + r0 + (real ? my_row : 0);
  const int my_last = p.position[token] / p.block;

  for (int slice = 0; slice <= last_block; slice += kSlice) {
    __syncthreads();
    for (int b = threadIdx.x / kRows; b < kSlice && slice + b <= last_block; b += kWarps * 32 / kRows) {
      float score = -INFINITY;
      if (real && slice + b <= my_last) {
        for (int h = 0; h < ratio; ++h) {
          const int head = kv_head * ratio + h;
          float x = -INFINITY;
          for (int g = 0; g < p.groups_per_block; ++g) {
            const int64_t group = int64_t(slice + b) * p.groups_per_block + g;
            if (group < p.groups)
              x = fmaxf(x, __ldcs(p.raw + (head * p.groups + group) * p.raw_rows + r0 + my_row));
          }
          score = fmaxf(score, x * kLn2 - p.lse[token * p.q_heads + head]);
        }
      }
      s.score[my_row][b] = score;
    }
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
      uint32_t key[kCarry + kPerLane];
      int32_t carried[kCarry];
#pragma unroll
      for (int j = 0; j < kCarry; ++j) {
        key[j] = s.carry_key[r][j * 32 + lane];
        carried[j] = s.carry_block[r][j * 32 + lane];
      }
#pragma unroll
      for (int j = 0; j < kPerLane; ++j) {
        const int b = j * 32 + lane, block = slice + b;
        uint32_t k = block <= diagonal ? max(sortable(s.score[r][b]), 1u) : 0u;
        if (block <= diagonal && p.force_diagonal && block == diagonal) k = 0xfffffffeu;
        if (block <= diagonal && p.force_first && block == 0) k = 0xffffffffu;
        key[kCarry + j] = k;
      }
      __syncwarp();
      const bool done = slice + kSlice > diagonal;
      int32_t* idx = p.idx + (t * p.kv_heads + kv_head) * p.entries;
      const int found = pick<kCarry + kPerLane>(key, p.entries, [&](int j, int rank) {
        int32_t block = slice + (j - kCarry) * 32 + lane;
        if (j < kCarry) block = carried[j < kCarry ? j : 0];
        if (done) {
          idx[rank] = block;
        } else {
          s.carry_key[r][rank] = key[j];
          s.carry_block[r][rank] = block;
        }
      });
      if (done)
        for (int i = found + lane; i < p.entries; i += 32) idx[i] = -1;
      __syncwarp();
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
