// Experts kept in 8 bits, as the products' type: those that have rows alone.
#include <cuda_fp8.h>

#include "hysparse/cuda_experts.h"
#include "kernels/cuda/sm80/elem/launch.h"

namespace hysparse::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kGroup = 64;  // kQuantGroup of kernels/weight.h

__device__ float value_of(int8_t x) {
  return float(x);
}
__device__ float value_of(__nv_fp8_e4m3 x) {
  return float(x);
}

// blockIdx.y: an expert; its matrix in a grid-stride loop, kV elements of a row a thread.
template <class Narrow, class T, int kV>
__global__ void widen_kernel(View values, View scales, const int32_t* offset, View wide) {
  const int64_t e = blockIdx.y;
  if (offset[e] >= offset[e + 1]) return;
  const int64_t in = values.shape[2], width = in / kV, total = values.shape[1] * width;
  const bool groups = sizeof(Narrow) == 1 && values.dtype == HYSPARSE_DTYPE_I8;
  for (int64_t i = blockIdx.x * int64_t(kThreads) + threadIdx.x; i < total;
       i += int64_t(gridDim.x) * kThreads) {
    const int64_t row = i / width, c = (i - row * width) * kV;
    const auto x = load_vector<kV>(static_cast<const Narrow*>(values.data) + e * values.stride[0] +
                                   row * values.stride[1] + c);
    const float scale = static_cast<const float*>(
        scales.data)[e * scales.stride[0] + row * scales.stride[1] + (groups ? c / kGroup : 0)];
    Vector<T, kV> out;
#pragma unroll
    for (int j = 0; j < kV; ++j) out.x[j] = from_float<T>(scale * value_of(x.x[j]));
    store_vector(static_cast<T*>(wide.data) + e * wide.stride[0] + row * wide.stride[1] + c, out);
  }
}

}  // namespace
}  // namespace hysparse::cuda

using namespace hysparse::cuda;

extern "C" int hysparse_cuda_widen_experts(hysparse_view values, hysparse_view scales, hysparse_view offset,
                                           hysparse_view wide, hysparse_stream stream) {
  constexpr const char* op = "widen_experts";
  const bool f8 = values->dtype == HYSPARSE_DTYPE_F8;
  if (!f8 && values->dtype != HYSPARSE_DTYPE_I8) return refuse(op, "values in i8 or f8");
  if (values->rank != 3 || !same_shape(*values, *wide) || scales->rank != 3 ||
      scales->shape[0] != values->shape[0] || scales->shape[1] != values->shape[1] ||
      scales->shape[2] != (f8 ? 1 : ceil_div(values->shape[2], kGroup)) ||
      offset->shape[0] != values->shape[0] + 1 || values->shape[0] > 65535)
    return refuse(op, "shapes do not fit");
  const int64_t each = values->shape[1] * values->shape[2];
  if (values->shape[0] * each == 0) return HYSPARSE_OK;
  const auto* begins = static_cast<const int32_t*>(offset->data);
  const bool ok = with_type(wide->dtype, [&](auto t) {
    using T = decltype(t);
    const auto run = [&](auto narrow, auto width) {
      constexpr int kV = decltype(width)::value;
      const dim3 grid(unsigned(std::min<int64_t>(ceil_div(each / kV, kThreads * 4), 64)),
                      unsigned(values->shape[0]));
      widen_kernel<decltype(narrow), T, kV><<<grid, kThreads, 0, stream>>>(*values, *scales, begins, *wide);
    };
    const auto with_width = [&](auto narrow) {
      const uint64_t bits = reinterpret_cast<uint64_t>(values->data) | uint64_t(values->stride[0]) |
                            uint64_t(values->stride[1]) | uint64_t(values->shape[2]);
      if (bits % 8 == 0 && vectors_fit(16 / sizeof(T), *wide) && wide->shape[2] % 8 == 0)
        run(narrow, std::integral_constant<int, 8>{});
      else
        run(narrow, std::integral_constant<int, 1>{});
    };
    if (f8)
      with_width(__nv_fp8_e4m3{});
    else
      with_width(int8_t{});
  });
  return ok ? launched(op) : unsupported_dtype(op);
}
