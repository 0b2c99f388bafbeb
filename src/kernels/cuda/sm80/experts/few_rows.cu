// Products over groups of few rows (decoding): y[r, out] = W_e x[r], a warp an output column of one expert.
#include "kernels/cuda/sm80/elem/launch.h"
#include "kernels/cuda/sm80/experts/find.cuh"
#include "kernels/cuda/sm80/experts/grouped.h"

namespace hysparse::cuda::experts {
namespace {

constexpr int kWarps = 8, kVector = 8, kUnroll = 4, kRows = 4;
constexpr int64_t kMostRows = 16;  // beyond, tiles on the tensor cores are faster

template <int kCount>
__device__ void column(const Product& p, const __nv_bfloat16* w, int row, int out) {
  const int lane = threadIdx.x % 32, depth = int(p.a.shape[1]);
  const auto* a = static_cast<const __nv_bfloat16*>(p.a.data) + row * p.a.stride[0];
  float sum[kCount] = {};
  const auto add = [&](const uint4& packed, int k) {
    const auto* pairs = reinterpret_cast<const __nv_bfloat162*>(&packed);
#pragma unroll
    for (int r = 0; r < kCount; ++r) {
      const uint4 x = *reinterpret_cast<const uint4*>(a + r * p.a.stride[0] + k);
      const auto* y = reinterpret_cast<const __nv_bfloat162*>(&x);
#pragma unroll
      for (int j = 0; j < kVector / 2; ++j) {
        const float2 u = __bfloat1622float2(pairs[j]), v = __bfloat1622float2(y[j]);
        sum[r] = fmaf(u.x, v.x, sum[r]);
        sum[r] = fmaf(u.y, v.y, sum[r]);
      }
    }
  };
  constexpr int kStep = 32 * kVector;
  int k = lane * kVector;
  for (; k + (kUnroll - 1) * kStep < depth; k += kUnroll * kStep) {
    uint4 packed[kUnroll];
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) packed[i] = __ldcs(reinterpret_cast<const uint4*>(w + k + i * kStep));
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) add(packed[i], k + i * kStep);
  }
  for (; k < depth; k += kStep) add(__ldcs(reinterpret_cast<const uint4*>(w + k)), k);
#pragma unroll
  for (int r = 0; r < kCount; ++r) {
    const float total = warp_total(sum[r]);
    if (lane == 0)
      static_cast<__nv_bfloat16*>(p.c.data)[(row + r) * p.c.stride[0] + out] =
          from_float<__nv_bfloat16>(total);
  }
}

// blockIdx.y: a row; the CTAs of every fourth row of an expert do that row and the three behind it.
__global__ void __launch_bounds__(kWarps * 32) few_rows_kernel(const __grid_constant__ Product p) {
  const int out = int(blockIdx.x) * kWarps + int(threadIdx.x) / 32, row = int(blockIdx.y);
  const int experts = int(p.w.shape[0]), e = expert_of(p.offset, experts, row);
  const int begin = p.offset[e], end = p.offset[e + 1];
  if (row < begin || row >= end || (row - begin) % kRows != 0 || out >= p.w.shape[1]) return;
  const auto* w = static_cast<const __nv_bfloat16*>(p.w.data) + e * p.w.stride[0] + out * p.w.stride[1];
  switch (min(kRows, end - row)) {
    case 1:
      return column<1>(p, w, row, out);
    case 2:
      return column<2>(p, w, row, out);
    case 3:
      return column<3>(p, w, row, out);
    default:
      return column<4>(p, w, row, out);
  }
}

}  // namespace

bool few_rows_take(const Product& p) {
  const auto suits = [](const View& v, int64_t distance) {
    return v.dtype == HYSPARSE_DTYPE_BF16 && reinterpret_cast<uintptr_t>(v.data) % 16 == 0 &&
           distance % kVector == 0;
  };
  return p.a.shape[0] <= kMostRows && !p.accumulate && suits(p.a, p.a.stride[0]) &&
         suits(p.w, p.w.stride[0] | p.w.stride[1]) && p.c.dtype == HYSPARSE_DTYPE_BF16 &&
         p.a.shape[1] % kVector == 0 && p.a.shape[1] <= INT32_MAX / 2 && p.w.shape[1] <= INT32_MAX / 2;
}

void few_rows(const Product& p, cudaStream_t stream) {
  const dim3 grid(unsigned(ceil_div(p.w.shape[1], kWarps)), unsigned(p.a.shape[0]));
  few_rows_kernel<<<grid, kWarps * 32, 0, stream>>>(p);
}

}  // namespace hysparse::cuda::experts
