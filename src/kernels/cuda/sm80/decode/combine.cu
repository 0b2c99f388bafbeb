// Merges the splits of a full layer's decode, a CTA a query head, and ranks its blocks, a CTA a KV head.
#include "kernels/cuda/sm80/decode/combine.h"

#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/common/select_cta.cuh"
#include "kernels/cuda/sm80/decode/full.cuh"

namespace hysparse::cuda::decode {
namespace {

// Splits are summed in this many classes (s modulo it), then the classes in order, whatever the number of
// threads.
constexpr int kClasses = 16, kMaxDim = 256;

__device__ float warp_max(float x) {
  for (int i = 16; i > 0; i /= 2) x = fmaxf(x, __shfl_xor_sync(kAll, x, i));
  return x;
}
__device__ float warp_sum(float x) {
  for (int i = 16; i > 0; i /= 2) x += __shfl_xor_sync(kAll, x, i);
  return x;
}

// Maximum and sum of a head over its splits, by one warp.
__device__ float2 merged(const float2* part, int splits) {
  const int lane = threadIdx.x % 32;
  float m = -INFINITY;
#pragma unroll 4
  for (int s = lane; s < splits; s += 32) m = fmaxf(m, part[s].x);
  m = warp_max(m);
  float l = 0;
#pragma unroll 4
  for (int s = lane; s < splits; s += 32) l += part[s].y * exp2_fast(part[s].x - m);
  return {m, warp_sum(l)};
}

__device__ float natural_lse(float2 merged) {
  return (merged.x + log2f(merged.y)) * kLn2;
}

template <int kWarps>
__device__ void merge_output(const CombineParams& p, int b, int head, int splits) {
  __shared__ float sum[kClasses][kMaxDim];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t first = (int64_t(b) * p.q_heads + head) * p.splits;
  const float2* part = p.part + first;
  const float2 all = merged(part, splits);
  for (int of = warp; of < kClasses; of += kWarps) {
    float4 o[2] = {};
#pragma unroll 8
    for (int s = of; s < splits; s += kClasses) {
      const float f = exp2_fast(part[s].x - all.x);
      const float* from = p.part_o + (first + s) * p.v_dim;
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int c = (j * 32 + lane) * 4;
        if (c >= p.v_dim) continue;
        const float4 x = __ldcs(reinterpret_cast<const float4*>(from + c));
        o[j].x += f * x.x;
        o[j].y += f * x.y;
        o[j].z += f * x.z;
        o[j].w += f * x.w;
      }
    }
#pragma unroll
    for (int j = 0; j < 2; ++j)
      if ((j * 32 + lane) * 4 < p.v_dim) *reinterpret_cast<float4*>(&sum[of][(j * 32 + lane) * 4]) = o[j];
  }
  __syncthreads();
  if (int(threadIdx.x) < p.v_dim) {
    float x = 0;
#pragma unroll
    for (int i = 0; i < kClasses; ++i) x += sum[i][threadIdx.x];
    p.o[b * p.o_row + head * p.o_head + threadIdx.x] = __float2bfloat16_rn(all.y > 0 ? x / all.y : 0.0f);
  }
  if (threadIdx.x == 0 && p.lse) p.lse[int64_t(b) * p.q_heads + head] = natural_lse(all);
}

template <int kWarps>
__device__ void rank_blocks(const CombineParams& p, int b, int g, int length, int splits) {
  extern __shared__ uint32_t keys[];
  __shared__ float lse[16];
  const int warp = threadIdx.x / 32, ratio = p.q_heads / p.kv_heads, head0 = g * ratio;
  for (int h = warp; h < ratio; h += kWarps) {
    const float2 all = merged(p.part + (int64_t(b) * p.q_heads + head0 + h) * p.splits, splits);
    if (threadIdx.x % 32 == 0) lse[h] = natural_lse(all);
  }
  __syncthreads();
  const int n = (length + p.block - 1) / p.block;
  const float* raw = p.raw + (int64_t(b) * p.q_heads + head0) * p.blocks;
  float* scores = p.block_scores ? p.block_scores + (int64_t(b) * p.kv_heads + g) * p.score_stride : nullptr;
  for (int i = threadIdx.x; i < n; i += kWarps * 32) {
    float score = -INFINITY, x[16];
#pragma unroll
    for (int h = 0; h < 16; ++h) x[h] = h < ratio ? raw[h * p.blocks + i] : -INFINITY;
#pragma unroll
    for (int h = 0; h < 16; ++h)
      if (h < ratio) score = fmaxf(score, x[h] * kLn2 - lse[h]);
    if (scores) scores[i] = score;
    uint32_t key = sortable_score(score);
    if (p.force_diagonal && i == n - 1) key = 0xfffffffeu;
    if (p.force_first && i == 0) key = kAll;
    if (p.entries > 0) keys[i] = key;
  }
  if (scores)
    for (int64_t i = n + threadIdx.x; i < p.score_stride; i += kWarps * 32) scores[i] = -INFINITY;
  if (p.entries == 0) return;
  __syncthreads();
  select_cta<kWarps>([&](int i) { return keys[i]; }, n, p.entries,
                     p.idx + (int64_t(b) * p.kv_heads + g) * p.entries);
}

template <int kWarps>
__global__ void __launch_bounds__(kWarps * 32) kernel(const CombineParams p) {
  join_stream();
  const int b = blockIdx.y, length = p.kv_len[b], splits = splits_of(length);
  // The longer work first.
  const int rankers = gridDim.x - p.q_heads;
  if (int(blockIdx.x) < rankers)
    rank_blocks<kWarps>(p, b, blockIdx.x, length, splits);
  else
    merge_output<kWarps>(p, b, blockIdx.x - rankers, splits);
}

template <int kWarps>
cudaError_t launch(const CombineParams& p, dim3 grid, cudaStream_t stream) {
  const size_t smem = p.entries > 0 ? size_t(p.blocks) * sizeof(uint32_t) : 0;
  if (smem > 24 << 10) {
    const cudaError_t e =
        cudaFuncSetAttribute(kernel<kWarps>, cudaFuncAttributeMaxDynamicSharedMemorySize, int(smem));
    if (e != cudaSuccess) return e;
  }
  return launch_overlapped<kernel<kWarps>>(grid, kWarps * 32, stream, {.shared_bytes = smem}, p);
}

}  // namespace

cudaError_t combine(const CombineParams& p, int batch, cudaStream_t stream) {
  const dim3 grid(p.q_heads + (p.raw ? p.kv_heads : 0), batch);
  // Few CTAs: many threads each; many: more of them at once.
  return int64_t(grid.x) * grid.y <= 256 ? launch<16>(p, grid, stream) : launch<8>(p, grid, stream);
}

}  // namespace hysparse::cuda::decode
