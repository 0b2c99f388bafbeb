// Products with few rows (decode): c[n, out] = a[n, depth] w[out, depth]^T, bound by reading w once.
#include "kernels/cuda/sm80/elem/gemv.h"

#include "kernels/cuda/sm80/elem/launch.h"

namespace hysparse::cuda {
namespace {

constexpr int kWarps = 8, kVector = 8, kUnroll = 4;

// A warp an output column; each lane sums every 32nd group of 8, then the lanes in a fixed tree: the order
// does not depend on the number of rows.
template <class Out, int kRows>
__global__ void __launch_bounds__(kWarps * 32)
    gemv_kernel(const __nv_bfloat16* a, int64_t a_stride, const __nv_bfloat16* w, int64_t w_stride, Out* c,
                int64_t c_stride, int out, int depth, bool accumulate) {
  const int column = blockIdx.x * kWarps + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (column >= out) return;
  const __nv_bfloat16* row = w + column * w_stride;
  float sum[kRows] = {};
  const auto add = [&](const uint4& packed, int k) {
    const auto* pairs = reinterpret_cast<const __nv_bfloat162*>(&packed);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const uint4 x = __ldg(reinterpret_cast<const uint4*>(a + r * a_stride + k));
      const auto* y = reinterpret_cast<const __nv_bfloat162*>(&x);
#pragma unroll
      for (int j = 0; j < kVector / 2; ++j) {
        const float2 p = __bfloat1622float2(pairs[j]), q = __bfloat1622float2(y[j]);
        sum[r] = fmaf(p.x, q.x, sum[r]);
        sum[r] = fmaf(p.y, q.y, sum[r]);
      }
    }
  };
  constexpr int kStep = 32 * kVector;
  int k = lane * kVector;
  for (; k + (kUnroll - 1) * kStep < depth; k += kUnroll * kStep) {
    uint4 packed[kUnroll];
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) packed[i] = __ldcs(reinterpret_cast<const uint4*>(row + k + i * kStep));
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) add(packed[i], k + i * kStep);
  }
  for (; k < depth; k += kStep) add(__ldcs(reinterpret_cast<const uint4*>(row + k)), k);
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const float total = warp_total(sum[r]);
    if (lane != 0) continue;
    Out* y = c + r * c_stride + column;
    *y = from_float<Out>(accumulate ? to_float(*y) + total : total);
  }
}

template <class Out, int kRows>
void launch(const View& a, const View& w, const View& c, bool accumulate, cudaStream_t stream) {
  const int out = int(c.shape[1]);
  gemv_kernel<Out, kRows><<<unsigned(ceil_div(out, kWarps)), kWarps * 32, 0, stream>>>(
      static_cast<const __nv_bfloat16*>(a.data), a.stride[0], static_cast<const __nv_bfloat16*>(w.data),
      w.stride[0], static_cast<Out*>(c.data), c.stride[0], out, int(a.shape[1]), accumulate);
}

}  // namespace

bool gemv_takes(const View& a, bool a_transposed, const View& b, bool b_transposed, const View& c) {
  const auto suits = [](const View& v) {
    return v.dtype == HYSPARSE_DTYPE_BF16 && reinterpret_cast<uintptr_t>(v.data) % 16 == 0 &&
           v.stride[0] % kVector == 0;
  };
  return !a_transposed && b_transposed && a.shape[0] >= 1 && a.shape[0] <= kMostGemvRows && suits(a) &&
         suits(b) && a.shape[1] % kVector == 0 && a.shape[1] <= INT32_MAX && c.shape[1] <= INT32_MAX / 2;
}

void gemv(const View& a, const View& w, const View& c, bool accumulate, cudaStream_t stream) {
  with_type(c.dtype, [&](auto out) {
    using Out = decltype(out);
    static_assert(kMostGemvRows == 4);
    switch (a.shape[0]) {
      case 1:
        return launch<Out, 1>(a, w, c, accumulate, stream);
      case 2:
        return launch<Out, 2>(a, w, c, accumulate, stream);
      case 3:
        return launch<Out, 3>(a, w, c, accumulate, stream);
      default:
        return launch<Out, 4>(a, w, c, accumulate, stream);
    }
  });
}

}  // namespace hysparse::cuda
