// RMSNorm (with the residual's addition), forward and backward.
#include <algorithm>

#include "kernels/cuda/sm80/elem/launch.h"

namespace hysparse::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kShortRow = 1024;  // rows up to here go to a warp each

// Rows a CTA of the backward pass takes.
int chunk_rows(int64_t width) {
  return width <= kShortRow ? 128 : 16;
}

__device__ float* rstd_at(const View& rstd,
                          int64_t row) {  // [n] or [n, heads], as the rows that it belongs to
  if (rstd.rank == 2)
    return static_cast<float*>(rstd.data) + row / rstd.shape[1] * rstd.stride[0] +
           row % rstd.shape[1] * rstd.stride[1];
  return static_cast<float*>(rstd.data) + row * rstd.stride[0];
}

// A CTA takes a row, or each warp one where rows are short. kPasses: vectors of a row that a thread keeps
// between the sum and the scaling; 0: it reads them again.
template <class T, int kV, bool kRowAWarp, int kPasses>
__global__ void __launch_bounds__(kThreads)
    forward_kernel(View x, View delta, View weight, float eps, View y, View rstd, int64_t rows) {
  const int lanes = kRowAWarp ? 32 : kThreads, lane = threadIdx.x % lanes;
  const int64_t row =
      kRowAWarp ? blockIdx.x * int64_t(kThreads / 32) + threadIdx.x / 32 : int64_t(blockIdx.x);
  join_stream();
  if (row >= rows) return;
  const int64_t width = width_of(x);
  T* in = row_at<T>(x, row);
  const T* more = delta.data ? row_at<T>(delta, row) : nullptr;
  float sum = 0;
  const auto plus = [&](int64_t c, Vector<T, kV>& v, const Vector<T, kV>& d) {
    if (more) {
#pragma unroll
      for (int j = 0; j < kV; ++j) v.x[j] = from_float<T>(to_float(v.x[j]) + to_float(d.x[j]));
      store_vector(in + c, v);
    }
#pragma unroll
    for (int j = 0; j < kV; ++j) sum += to_float(v.x[j]) * to_float(v.x[j]);
  };
  const T* w = static_cast<const T*>(weight.data);
  T* out = row_at<T>(y, row);
  const auto total = [&] {
    sum = kRowAWarp ? warp_total(sum) : cta_total(sum);
    const float scale = 1.0f / sqrtf(sum / float(width) + eps);
    if (rstd.data && lane == 0) *rstd_at(rstd, row) = scale;
    return scale;
  };
  const auto write = [&](int64_t c, Vector<T, kV> v, const Vector<T, kV>& g, float scale) {
#pragma unroll
    for (int j = 0; j < kV; ++j) v.x[j] = from_float<T>(to_float(v.x[j]) * scale * to_float(g.x[j]));
    store_vector(out + c, v);
  };
  if constexpr (kPasses > 0) {
    Vector<T, kV> v[kPasses], d[kPasses], g[kPasses];
#pragma unroll
    for (int i = 0; i < kPasses; ++i) {  // all reads are under way before the first is waited for
      const int64_t c = int64_t(i * lanes + lane) * kV;
      if (c >= width) continue;
      v[i] = load_vector<kV>(in + c);
      if (more) d[i] = load_vector<kV>(more + c);
      g[i] = load_vector<kV>(w + c);
    }
#pragma unroll
    for (int i = 0; i < kPasses; ++i) {
      const int64_t c = int64_t(i * lanes + lane) * kV;
      if (c < width) plus(c, v[i], d[i]);
    }
    const float scale = total();
#pragma unroll
    for (int i = 0; i < kPasses; ++i) {
      const int64_t c = int64_t(i * lanes + lane) * kV;
      if (c < width) write(c, v[i], g[i], scale);
    }
  } else {
    for (int64_t c = lane * kV; c < width; c += lanes * kV) {
      auto v = load_vector<kV>(in + c);
      Vector<T, kV> d;
      if (more) d = load_vector<kV>(more + c);
      plus(c, v, d);
    }
    const float scale = total();
    for (int64_t c = lane * kV; c < width; c += lanes * kV)
      write(c, load_vector<kV>(in + c), load_vector<kV>(w + c), scale);
  }
}

// dx = rstd (dy w - x rstd^2 mean(dy w x)). A CTA takes chunk_rows(width) rows, each warp one at a time where
// rows are short, and leaves the rows' share of dw in part [chunks, width]: summed in registers, kPasses
// vectors a thread.
template <class T, int kV, int kPasses, bool kRowAWarp>
__global__ void __launch_bounds__(kThreads)
    backward_kernel(View x, View weight, View rstd, View dy, View dx, bool accumulate, float* part,
                    int64_t rows, int chunk) {
  constexpr int kLanes = kRowAWarp ? 32 : kThreads, kGroups = kThreads / kLanes;
  const int lane = threadIdx.x % kLanes, group = threadIdx.x / kLanes, width = int(width_of(x));
  const int64_t first = int64_t(blockIdx.x) * chunk, last = min(rows, first + chunk);
  const T* w = static_cast<const T*>(weight.data);
  float dw[kPasses][kV] = {};
  for (int64_t row = first + group; row < last; row += kGroups) {
    const T* in = row_at<T>(x, row);
    const T* g = row_at<T>(dy, row);
    T* out = row_at<T>(dx, row);
    // All reads are under way before the first is waited for; of long rows, dx is read later: registers.
    constexpr bool kEarly = kPasses <= 2;
    Vector<T, kV> a[kPasses], b[kPasses], d[kPasses];
    float mean = 0;
#pragma unroll
    for (int i = 0; i < kPasses; ++i) {
      const int c = (i * kLanes + lane) * kV;
      if (c >= width) continue;
      a[i] = load_vector<kV>(in + c);
      b[i] = load_vector<kV>(g + c);
      if (kEarly && accumulate) d[i] = load_vector<kV>(out + c);
    }
    const float r = *rstd_at(rstd, row);
#pragma unroll
    for (int i = 0; i < kPasses; ++i) {
      const int c = (i * kLanes + lane) * kV;
      if (c >= width) continue;
      const auto u = load_vector<kV>(w + c);
#pragma unroll
      for (int j = 0; j < kV; ++j) mean += to_float(b[i].x[j]) * to_float(u.x[j]) * to_float(a[i].x[j]);
    }
    mean = (kRowAWarp ? warp_total(mean) : cta_total(mean)) / float(width);
    const float m = r * r * mean;
#pragma unroll
    for (int i = 0; i < kPasses; ++i) {
      const int c = (i * kLanes + lane) * kV;
      if (c >= width) continue;
      const auto u = load_vector<kV>(w + c);
      if (!kEarly && accumulate) d[i] = load_vector<kV>(out + c);
#pragma unroll
      for (int j = 0; j < kV; ++j) {
        const float p = to_float(a[i].x[j]), q = to_float(b[i].x[j]);
        const float step = r * (q * to_float(u.x[j]) - p * m);
        dw[i][j] += q * p * r;
        d[i].x[j] = from_float<T>(accumulate ? to_float(d[i].x[j]) + step : step);
      }
      store_vector(out + c, d[i]);
    }
  }
  if (!part) return;
  __shared__ float shared[kRowAWarp ? kGroups * kShortRow : 1];
  if constexpr (kRowAWarp) {
#pragma unroll
    for (int i = 0; i < kPasses; ++i)
#pragma unroll
      for (int j = 0; j < kV; ++j)
        if (const int c = (i * kLanes + lane) * kV + j; c < width) shared[group * kShortRow + c] = dw[i][j];
    __syncthreads();
    for (int c = threadIdx.x; c < width; c += kThreads) {
      float sum = 0;
      for (int k = 0; k < kGroups; ++k) sum += shared[k * kShortRow + c];
      part[int64_t(blockIdx.x) * width + c] = sum;
    }
  } else {
#pragma unroll
    for (int i = 0; i < kPasses; ++i)
#pragma unroll
      for (int j = 0; j < kV; ++j)
        if (const int c = (i * kLanes + lane) * kV + j; c < width)
          part[int64_t(blockIdx.x) * width + c] = dw[i][j];
  }
}

// 32 columns a CTA; its warps take every 32nd chunk, then their sums in order.
constexpr int kSumThreads = 1024;
__global__ void __launch_bounds__(kSumThreads)
    sum_chunks_kernel(const float* part, int64_t chunks, int64_t width, float* dw) {
  constexpr int kSumWarps = kSumThreads / 32;
  __shared__ float sums[kSumWarps][32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t c = blockIdx.x * 32ll + lane;
  float sum = 0;
  if (c < width) {
#pragma unroll 8
    for (int64_t i = warp; i < chunks; i += kSumWarps) sum += part[i * width + c];
  }
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || c >= width) return;
  float total = 0;
#pragma unroll
  for (int i = 0; i < kSumWarps; ++i) total += sums[i][lane];
  dw[c] += total;
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
      constexpr int kCount = decltype(vector)::value, kPasses = 4;
      const auto launch = [&](auto a_warp, auto passes) {
        constexpr bool kRowAWarp = decltype(a_warp)::value;
        launch_overlapped<forward_kernel<T, kCount, kRowAWarp, decltype(passes)::value>>(
            unsigned(kRowAWarp ? ceil_div(rows, kThreads / 32) : rows), kThreads, stream, {}, *x, d, *weight,
            float(eps), *y, r, rows);
      };
      const auto with_passes = [&](auto a_warp) {
        const int64_t a_pass = (decltype(a_warp)::value ? 32 : kThreads) * kCount;
        if (width <= 2 * a_pass)
          launch(a_warp, std::integral_constant<int, 2>{});
        else if (width <= kPasses * a_pass)
          launch(a_warp, std::integral_constant<int, kPasses>{});
        else
          launch(a_warp, std::integral_constant<int, 0>{});
      };
      if (width <= kShortRow)
        with_passes(std::true_type{});
      else
        with_passes(std::false_type{});
    };
    if (vectors_fit(kV, *x, d, *weight, *y))
      run(std::integral_constant<int, kV>{});
    else
      run(std::integral_constant<int, 1>{});
  });
  return ok ? launched("rmsnorm") : unsupported_dtype("rmsnorm");
}

size_t hysparse_cuda_rmsnorm_backward_workspace(int64_t rows, int64_t width) {
  return size_t(ceil_div(rows, chunk_rows(width))) * size_t(width) * sizeof(float);
}

int hysparse_cuda_rmsnorm_backward(hysparse_view x, hysparse_view weight, hysparse_view rstd,
                                   hysparse_view dy, hysparse_view dx, int32_t accumulate,
                                   hysparse_view dweight, void* workspace, size_t workspace_bytes,
                                   hysparse_stream stream) {
  constexpr const char* op = "rmsnorm_backward";
  const int64_t rows = rows_of(*x), width = width_of(*x), chunks = ceil_div(rows, chunk_rows(width));
  const View dw = optional_view(dweight);
  if (rows == 0 || width == 0) return HYSPARSE_OK;
  if (!same_shape(*x, *dy) || !same_shape(*x, *dx)) return refuse(op, "shapes differ");
  if (dw.data && workspace_bytes < hysparse_cuda_rmsnorm_backward_workspace(rows, width))
    return refuse(op, "the workspace is too small");
  float* part = dw.data ? static_cast<float*>(workspace) : nullptr;
  bool too_long = false;
  const bool ok = with_type(x->dtype, [&](auto t) {
    using T = decltype(t);
    constexpr int kV = 16 / sizeof(T);
    const auto run = [&](auto vector, auto passes, auto row_a_warp) {
      backward_kernel<T, decltype(vector)::value, decltype(passes)::value, decltype(row_a_warp)::value>
          <<<unsigned(chunks), kThreads, 0, stream>>>(*x, *weight, *rstd, *dy, *dx, accumulate != 0, part,
                                                      rows, chunk_rows(width));
    };
    const auto with_passes = [&](auto vector, auto row_a_warp) {
      const int64_t a_pass = int64_t(decltype(vector)::value) * (decltype(row_a_warp)::value ? 32 : kThreads);
      if (width <= a_pass)
        run(vector, std::integral_constant<int, 1>{}, row_a_warp);
      else if (width <= 2 * a_pass)
        run(vector, std::integral_constant<int, 2>{}, row_a_warp);
      else if (width <= 8 * a_pass)
        run(vector, std::integral_constant<int, 8>{}, row_a_warp);
      else if (width <= 32 * a_pass)
        run(vector, std::integral_constant<int, 32>{}, row_a_warp);
      else
        too_long = true;
    };
    const auto with_vector = [&](auto vector) {
      if (width <= kShortRow)
        with_passes(vector, std::true_type{});
      else
        with_passes(vector, std::false_type{});
    };
    if (vectors_fit(kV, *x, *weight, *dy, *dx))
      with_vector(std::integral_constant<int, kV>{});
    else
      with_vector(std::integral_constant<int, 1>{});
  });
  if (!ok) return unsupported_dtype(op);
  if (too_long) return fail(HYSPARSE_UNSUPPORTED, std::string(op) + ": rows of " + std::to_string(width));
  if (int e = launched(op)) return e;
  if (part)
    sum_chunks_kernel<<<unsigned(ceil_div(width, 32)), kSumThreads, 0, stream>>>(
        part, chunks, width, static_cast<float*>(dw.data));
  return launched(op);
}

}  // extern "C"
