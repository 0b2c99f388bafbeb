// RMSNorm (with the residual's addition), forward and backward.
#include <algorithm>

#include "kernels/cuda/sm80/elem/launch.h"

namespace hysparse::cuda {
namespace {

constexpr int kThreads = 256, kChunkRows = 32;

__device__ float* rstd_at(const View& rstd,
                          int64_t row) {  // [n] or [n, heads], as the rows that it belongs to
  if (rstd.rank == 2)
    return static_cast<float*>(rstd.data) + row / rstd.shape[1] * rstd.stride[0] +
           row % rstd.shape[1] * rstd.stride[1];
  return static_cast<float*>(rstd.data) + row * rstd.stride[0];
}

// A CTA of kWarps * 32 threads takes a row, or each warp one where rows are short.
template <class T, int kV, bool kRowAWarp>
__global__ void __launch_bounds__(kThreads)
    forward_kernel(View x, View delta, View weight, float eps, View y, View rstd, int64_t rows) {
  const int lanes = kRowAWarp ? 32 : kThreads, lane = threadIdx.x % lanes;
  const int64_t row =
      kRowAWarp ? blockIdx.x * int64_t(kThreads / 32) + threadIdx.x / 32 : int64_t(blockIdx.x);
  if (row >= rows) return;
  const int64_t width = x.shape[x.rank - 1];
  T* in = row_at<T>(x, row);
  const T* more = delta.data ? row_at<T>(delta, row) : nullptr;
  float sum = 0;
  for (int64_t c = lane * kV; c < width; c += lanes * kV) {
    auto v = load_vector<kV>(in + c);
    if (more) {
      const auto d = load_vector<kV>(more + c);
#pragma unroll
      for (int j = 0; j < kV; ++j) v.x[j] = from_float<T>(to_float(v.x[j]) + to_float(d.x[j]));
      store_vector(in + c, v);
    }
#pragma unroll
    for (int j = 0; j < kV; ++j) sum += to_float(v.x[j]) * to_float(v.x[j]);
  }
  sum = kRowAWarp ? warp_total(sum) : cta_total(sum);
  const float scale = 1.0f / sqrtf(sum / float(width) + eps);
  if (rstd.data && lane == 0) *rstd_at(rstd, row) = scale;
  const T* w = static_cast<const T*>(weight.data);
  T* out = row_at<T>(y, row);
  for (int64_t c = lane * kV; c < width; c += lanes * kV) {
    auto v = load_vector<kV>(in + c);
    const auto g = load_vector<kV>(w + c);
#pragma unroll
    for (int j = 0; j < kV; ++j) v.x[j] = from_float<T>(to_float(v.x[j]) * scale * to_float(g.x[j]));
    store_vector(out + c, v);
  }
}

// dx = rstd (dy w - x rstd^2 mean(dy w x)); a CTA takes kChunkRows rows and leaves their share of dw in part
// [chunks, width].
template <class T, int kV>
__global__ void __launch_bounds__(kThreads) backward_kernel(View x, View weight, View rstd, View dy, View dx,
                                                            bool accumulate, float* part, int64_t rows) {
  const int64_t width = x.shape[x.rank - 1], first = int64_t(blockIdx.x) * kChunkRows,
                last = min(rows, first + kChunkRows);
  const T* w = static_cast<const T*>(weight.data);
  float* mine = part ? part + blockIdx.x * width : nullptr;
  for (int64_t row = first; row < last; ++row) {
    const T* in = row_at<T>(x, row);
    const T* g = row_at<T>(dy, row);
    T* out = row_at<T>(dx, row);
    float mean = 0;
    for (int64_t c = threadIdx.x * kV; c < width; c += kThreads * kV) {
      const auto a = load_vector<kV>(in + c), b = load_vector<kV>(g + c), u = load_vector<kV>(w + c);
#pragma unroll
      for (int j = 0; j < kV; ++j) mean += to_float(b.x[j]) * to_float(u.x[j]) * to_float(a.x[j]);
    }
    mean = cta_total(mean) / float(width);
    const float r = *rstd_at(rstd, row), m = r * r * mean;
    for (int64_t c = threadIdx.x * kV; c < width; c += kThreads * kV) {
      const auto a = load_vector<kV>(in + c), b = load_vector<kV>(g + c), u = load_vector<kV>(w + c);
      Vector<T, kV> d;
      if (accumulate) d = load_vector<kV>(out + c);
#pragma unroll
      for (int j = 0; j < kV; ++j) {
        const float step = r * (to_float(b.x[j]) * to_float(u.x[j]) - to_float(a.x[j]) * m);
        if (mine) {
          const float add = to_float(b.x[j]) * to_float(a.x[j]) * r;
          mine[c + j] = row == first ? add : mine[c + j] + add;
        }
        d.x[j] = from_float<T>(accumulate ? to_float(d.x[j]) + step : step);
      }
      store_vector(out + c, d);
    }
  }
}

__global__ void sum_chunks_kernel(const float* part, int64_t chunks, int64_t width, float* dw) {
  const int64_t c = blockIdx.x * int64_t(kThreads) + threadIdx.x;
  if (c >= width) return;
  float sum = 0;
  for (int64_t i = 0; i < chunks; ++i) sum += part[i * width + c];
  dw[c] += sum;
}

}  // namespace
}  // namespace hysparse::cuda

using namespace hysparse::cuda;

extern "C" {

int hysparse_cuda_rmsnorm(hysparse_view x, hysparse_view delta, hysparse_view weight, double eps,
                          hysparse_view y, hysparse_view rstd, hysparse_stream stream) {
  const View d = optional_view(delta), r = optional_view(rstd);
  const int64_t rows = rows_of(*x), width = width_of(*x);
  if (rows == 0 || width == 0) return HYSPARSE_OK;
  if (!same_shape(*x, *y) || weight->shape[0] != width || weight->dtype != x->dtype)
    return refuse("rmsnorm", "shapes or dtypes differ");
  const bool ok = with_type(x->dtype, [&](auto t) {
    using T = decltype(t);
    constexpr int kV = 16 / sizeof(T);
    const auto run = [&](auto vector) {
      constexpr int kCount = decltype(vector)::value;
      if (width <= 1024)
        forward_kernel<T, kCount, true><<<unsigned(ceil_div(rows, kThreads / 32)), kThreads, 0, stream>>>(
            *x, d, *weight, float(eps), *y, r, rows);
      else
        forward_kernel<T, kCount, false>
            <<<unsigned(rows), kThreads, 0, stream>>>(*x, d, *weight, float(eps), *y, r, rows);
    };
    if (vectors_fit(kV, *x, d, *weight, *y))
      run(std::integral_constant<int, kV>{});
    else
      run(std::integral_constant<int, 1>{});
  });
  return ok ? launched("rmsnorm") : unsupported_dtype("rmsnorm");
}

size_t hysparse_cuda_rmsnorm_backward_workspace(int64_t rows, int64_t width) {
  return size_t(ceil_div(rows, kChunkRows)) * size_t(width) * sizeof(float);
}

int hysparse_cuda_rmsnorm_backward(hysparse_view x, hysparse_view weight, hysparse_view rstd,
                                   hysparse_view dy, hysparse_view dx, int32_t accumulate,
                                   hysparse_view dweight, void* workspace, size_t workspace_bytes,
                                   hysparse_stream stream) {
  constexpr const char* op = "rmsnorm_backward";
  const int64_t rows = rows_of(*x), width = width_of(*x), chunks = ceil_div(rows, kChunkRows);
  const View dw = optional_view(dweight);
  if (rows == 0 || width == 0) return HYSPARSE_OK;
  if (!same_shape(*x, *dy) || !same_shape(*x, *dx)) return refuse(op, "shapes differ");
  if (dw.data && workspace_bytes < hysparse_cuda_rmsnorm_backward_workspace(rows, width))
    return refuse(op, "the workspace is too small");
  float* part = dw.data ? static_cast<float*>(workspace) : nullptr;
  const bool ok = with_type(x->dtype, [&](auto t) {
    using T = decltype(t);
    constexpr int kV = 16 / sizeof(T);
    if (vectors_fit(kV, *x, *weight, *dy, *dx))
      backward_kernel<T, kV><<<unsigned(chunks), kThreads, 0, stream>>>(*x, *weight, *rstd, *dy, *dx,
                                                                        accumulate != 0, part, rows);
    else
      backward_kernel<T, 1><<<unsigned(chunks), kThreads, 0, stream>>>(*x, *weight, *rstd, *dy, *dx,
                                                                       accumulate != 0, part, rows);
  });
  if (!ok) return unsupported_dtype(op);
  if (int e = launched(op)) return e;
  if (part)
    sum_chunks_kernel<<<unsigned(ceil_div(width, kThreads)), kThreads, 0, stream>>>(
        part, chunks, width, static_cast<float*>(dw.data));
  return launched(op);
}

}  // extern "C"
