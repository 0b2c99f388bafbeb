#include "kernels/cuda/common/attention_stats.h"

#include <cuda_bf16.h>

#include <algorithm>
#include <cstdint>

namespace hysparse::cuda {
namespace {

constexpr int kChunkTokens = 256;

// A group of `lanes` threads (a power of two, at most 32) a row; each takes 8 columns at a time.
__global__ void __launch_bounds__(256)
    delta_kernel(const __nv_bfloat16* o, int64_t o_row, int64_t o_head, const __nv_bfloat16* d_o,
                 int64_t do_row, int64_t do_head, int64_t rows, int heads, int dv, int lanes, float* delta) {
  const int64_t row = (int64_t(blockIdx.x) * 256 + threadIdx.x) / lanes;
  const int lane = threadIdx.x % lanes;
  const bool real = row < rows;
  const int64_t token = real ? row / heads : 0;
  const int head = real ? int(row % heads) : 0;
  float sum = 0;
  if (real)
    for (int c = lane * 8; c < dv; c += lanes * 8) {
      const uint4 x = *reinterpret_cast<const uint4*>(o + token * o_row + head * o_head + c);
      const uint4 y = *reinterpret_cast<const uint4*>(d_o + token * do_row + head * do_head + c);
      const __nv_bfloat162* a = reinterpret_cast<const __nv_bfloat162*>(&x);
      const __nv_bfloat162* b = reinterpret_cast<const __nv_bfloat162*>(&y);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 u = __bfloat1622float2(a[i]), v = __bfloat1622float2(b[i]);
        sum = fmaf(u.x, v.x, fmaf(u.y, v.y, sum));
      }
    }
  for (int step = lanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  if (real && lane == 0) delta[row] = sum;
}

// Eight warps share a chunk of tokens; a lane owns a head.
__global__ void __launch_bounds__(256)
    sink_partial_kernel(const float* sinks, const float* lse, const float* delta, int tokens, int heads,
                        float* partial) {
  __shared__ float sums[8][32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, head = blockIdx.y * 32 + lane;
  const int first = blockIdx.x * kChunkTokens, end = min(first + kChunkTokens, tokens);
  float sum = 0;
  if (head < heads) {
    const float sink = sinks[head];
    for (int t = first + warp; t < end; t += 8) {
      const float l = lse[int64_t(t) * heads + head];
      if (l != -INFINITY && sink != -INFINITY) sum += expf(sink - l) * delta[int64_t(t) * heads + head];
    }
  }
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp == 0 && head < heads) {
    for (int w = 1; w < 8; ++w) sum += sums[w][lane];
    partial[int64_t(blockIdx.x) * heads + head] = sum;
  }
}

__global__ void sink_sum_kernel(const float* partial, int chunks, int heads, float* dsinks) {
  const int head = blockIdx.x * blockDim.x + threadIdx.x;
  if (head >= heads) return;
  float sum = 0;
  for (int c = 0; c < chunks; ++c) sum += partial[int64_t(c) * heads + head];
  dsinks[head] -= sum;
}

}  // namespace

cudaError_t attention_delta(const hysparse_cuda_tensor& o, const hysparse_cuda_tensor& d_o, int tokens,
                            int heads, int dv, float* delta, cudaStream_t stream) {
  int lanes = 1;
  while (lanes < 32 && lanes * 8 < dv) lanes *= 2;
  const int64_t rows = int64_t(tokens) * heads, rows_a_block = 256 / lanes;
  delta_kernel<<<unsigned((rows + rows_a_block - 1) / rows_a_block), 256, 0, stream>>>(
      static_cast<const __nv_bfloat16*>(o.data), o.stride_row, o.stride_head,
      static_cast<const __nv_bfloat16*>(d_o.data), d_o.stride_row, d_o.stride_head, rows, heads, dv, lanes,
      delta);
  return cudaGetLastError();
}

size_t sink_gradient_workspace(int tokens, int heads) {
  return size_t((tokens + kChunkTokens - 1) / kChunkTokens) * size_t(heads) * sizeof(float);
}

cudaError_t sink_gradient(const float* sinks, const float* lse, const float* delta, int tokens, int heads,
                          float* dsinks, void* workspace, cudaStream_t stream) {
  const int chunks = (tokens + kChunkTokens - 1) / kChunkTokens;
  auto* partial = static_cast<float*>(workspace);
  sink_partial_kernel<<<dim3(chunks, (heads + 31) / 32), 256, 0, stream>>>(sinks, lse, delta, tokens, heads,
                                                                           partial);
  sink_sum_kernel<<<(heads + 31) / 32, 32, 0, stream>>>(partial, chunks, heads, dsinks);
  return cudaGetLastError();
}

}  // namespace hysparse::cuda
