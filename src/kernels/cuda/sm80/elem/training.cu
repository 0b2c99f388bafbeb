// Cross entropy, AdamW, sum of squares, column sums.
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "kernels/cuda/sm80/elem/launch.h"

namespace hysparse::cuda {
namespace {

constexpr int kThreads = 512, kIgnore = -100, kSumCtas = 512;

template <class Out>
__global__ void __launch_bounds__(kThreads)
    cross_entropy_kernel(View logits, const int32_t* labels, float scale, View loss, View dlogits) {
  const int64_t row = blockIdx.x, vocab = logits.shape[1];
  const float* z = row_at<float>(logits, row);
  Out* dz = dlogits.data ? row_at<Out>(dlogits, row) : nullptr;
  float* out = static_cast<float*>(loss.data) + row * loss.stride[0];
  const int32_t label = labels[row];
  if (label == kIgnore) {
    if (dz)
      for (int64_t i = threadIdx.x; i < vocab; i += kThreads) dz[i] = from_float<Out>(0);
    if (threadIdx.x == 0) *out = 0;
    return;
  }
  const bool real = label >= 0 && label < vocab;
  float m = -INFINITY, sum = 0;  // one pass: rescaled as the maximum grows
  for (int64_t i = threadIdx.x; i < vocab; i += kThreads) {
    const float x = z[i];
    if (x > m) {
      sum = sum * expf(m - x) + 1;
      m = x;
    } else {
      sum += expf(x - m);
    }
  }
  const float most = cta_largest(m);
  const float total = cta_total(m == -INFINITY && sum == 0 ? 0.0f : sum * expf(m - most));
  const float at_label = real ? z[label] : NAN;
  __syncthreads();  // dlogits may be logits
  if (threadIdx.x == 0) *out = logf(total) + most - at_label;
  if (!dz) return;
  const float inverse = 1.0f / total;
  for (int64_t i = threadIdx.x; i < vocab; i += kThreads)
    dz[i] = from_float<Out>(real ? scale * (expf(z[i] - most) * inverse - (i == label ? 1.0f : 0.0f)) : NAN);
}

// kV weights a thread: T values, G gradients, M moments.
template <class T, class G, class M, int kV>
__global__ void adamw_kernel(float* master, T* value, const G* grad, M* m, M* v,
                             hysparse_cuda_adamw_settings s, float bias1, float bias2, int64_t groups) {
  const float b1 = float(s.beta1), b2 = float(s.beta2), rest1 = float(1 - s.beta1),
              rest2 = float(1 - s.beta2), scale = float(s.grad_scale), lr = float(s.lr), eps = float(s.eps),
              decay = float(s.weight_decay);
  for (int64_t i = blockIdx.x * int64_t(kThreads) + threadIdx.x; i < groups;
       i += int64_t(gridDim.x) * kThreads) {
    const auto g = load_vector<kV>(grad + i * kV);
    auto m_new = load_vector<kV>(m + i * kV), v_new = load_vector<kV>(v + i * kV);
    auto w = load_vector<kV>(master + i * kV);
    Vector<T, kV> narrow;
#pragma unroll
    for (int j = 0; j < kV; ++j) {
      const float x = to_float(g.x[j]) * scale;
      const float m1 = b1 * to_float(m_new.x[j]) + rest1 * x, v1 = b2 * to_float(v_new.x[j]) + rest2 * x * x;
      m_new.x[j] = from_float<M>(m1);
      v_new.x[j] = from_float<M>(v1);
      w.x[j] -= lr * ((m1 / bias1) / (sqrtf(v1 / bias2) + eps) + decay * w.x[j]);
      narrow.x[j] = from_float<T>(w.x[j]);
    }
    store_vector(m + i * kV, m_new);
    store_vector(v + i * kV, v_new);
    store_vector(master + i * kV, w);
    if (static_cast<void*>(value) != static_cast<void*>(master)) store_vector(value + i * kV, narrow);
  }
}

template <class T, int kV>
__global__ void squares_kernel(const T* x, int64_t groups, double* part) {
  double sum = 0;
  for (int64_t i = blockIdx.x * int64_t(kThreads) + threadIdx.x; i < groups;
       i += int64_t(gridDim.x) * kThreads) {
    const auto v = load_vector<kV>(x + i * kV);
    if constexpr (sizeof(T) == 8) {
      for (int j = 0; j < kV; ++j) sum += v.x[j] * v.x[j];
    } else {
#pragma unroll
      for (int j = 0; j < kV; ++j) sum += double(to_float(v.x[j])) * double(to_float(v.x[j]));
    }
  }
  sum = cta_total(sum);
  if (threadIdx.x == 0) part[blockIdx.x] = sum;
}
__global__ void sum_kernel(const double* part, int count, double* out) {
  const double sum = cta_total(int(threadIdx.x) < count ? part[threadIdx.x] : 0.0);
  if (threadIdx.x == 0) *out += sum;
}

// 32 columns a CTA; its warps take every 16th row, then their sums in order.
template <class T>
__global__ void __launch_bounds__(kThreads) column_sums_kernel(View x, float* out) {
  __shared__ float part[kThreads / 32][32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t c = blockIdx.x * 32ll + lane;
  float sum = 0;
  if (c < x.shape[1])
    for (int64_t row = warp; row < x.shape[0]; row += kThreads / 32) sum += to_float(row_at<T>(x, row)[c]);
  part[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || c >= x.shape[1]) return;
  float total = 0;
  for (int i = 0; i < kThreads / 32; ++i) total += part[i][lane];
  out[c] += total;
}

}  // namespace
}  // namespace hysparse::cuda

using namespace hysparse::cuda;

extern "C" {

int hysparse_cuda_cross_entropy(hysparse_view logits, hysparse_view labels, double grad_scale,
                                hysparse_view loss, hysparse_view dlogits, hysparse_stream stream) {
  constexpr const char* op = "cross_entropy";
  const View d = optional_view(dlogits);
  const int64_t rows = logits->shape[0];
  if (logits->rank != 2 || logits->dtype != HYSPARSE_DTYPE_F32) return unsupported_dtype(op);
  if (rows == 0) return HYSPARSE_OK;
  const bool ok = with_type(d.data ? d.dtype : HYSPARSE_DTYPE_F32, [&](auto t) {
    cross_entropy_kernel<decltype(t)><<<unsigned(rows), kThreads, 0, stream>>>(
        *logits, static_cast<const int32_t*>(labels->data), float(grad_scale), *loss, d);
  });
  return ok ? launched(op) : unsupported_dtype(op);
}

int hysparse_cuda_adamw(hysparse_view master, hysparse_view value, hysparse_view grad, hysparse_view m,
                        hysparse_view v, const hysparse_cuda_adamw_settings* s, hysparse_stream stream) {
  const int64_t n = rows_of(*master) * width_of(*master);
  if (n == 0) return HYSPARSE_OK;
  if (master->dtype != HYSPARSE_DTYPE_F32 || m->dtype != v->dtype) return unsupported_dtype("adamw");
  const float bias1 = float(1 - std::pow(s->beta1, double(s->step))),
              bias2 = float(1 - std::pow(s->beta2, double(s->step)));
  bool ok = false;
  const auto run = [&](auto t, auto g, auto moment) {
    using T = decltype(t);
    using G = decltype(g);
    using M = decltype(moment);
    const auto launch = [&](auto width) {
      constexpr int kV = decltype(width)::value;
      adamw_kernel<T, G, M, kV><<<grid_for(n / kV, kThreads), kThreads, 0, stream>>>(
          static_cast<float*>(master->data), static_cast<T*>(value->data), static_cast<const G*>(grad->data),
          static_cast<M*>(m->data), static_cast<M*>(v->data), *s, bias1, bias2, n / kV);
    };
    if (n % 4 == 0 && vectors_fit(4, *master, *value, *grad, *m, *v))
      launch(std::integral_constant<int, 4>{});
    else
      launch(std::integral_constant<int, 1>{});
  };
  with_type(value->dtype, [&](auto t) {
    with_type(grad->dtype,
              [&](auto g) { ok = with_type(m->dtype, [&](auto moment) { run(t, g, moment); }); });
  });
  return ok ? launched("adamw") : unsupported_dtype("adamw");
}

int hysparse_cuda_sum_squares(hysparse_view x, hysparse_view out, void* workspace, hysparse_stream stream) {
  const int64_t n = rows_of(*x) * width_of(*x);
  if (n == 0) return HYSPARSE_OK;
  if (!workspace) return refuse("sum_squares", "no workspace");
  double* part = static_cast<double*>(workspace);
  const int ctas = int(std::min<int64_t>(kSumCtas, ceil_div(n, kThreads)));
  static_assert(kSumCtas * sizeof(double) <= HYSPARSE_CUDA_SUM_SQUARES_WORKSPACE && kSumCtas <= kThreads);
  const auto run = [&](auto t) {
    using T = decltype(t);
    constexpr int kV = 16 / sizeof(T);
    const T* data = static_cast<const T*>(x->data);
    if (n % kV == 0 && reinterpret_cast<uintptr_t>(data) % 16 == 0)
      squares_kernel<T, kV><<<ctas, kThreads, 0, stream>>>(data, n / kV, part);
    else
      squares_kernel<T, 1><<<ctas, kThreads, 0, stream>>>(data, n, part);
  };
  if (x->dtype == HYSPARSE_DTYPE_F64)
    run(double{});
  else if (!with_type(x->dtype, run))
    return unsupported_dtype("sum_squares");
  sum_kernel<<<1, kThreads, 0, stream>>>(part, ctas, static_cast<double*>(out->data));
  return launched("sum_squares");
}

int hysparse_cuda_column_sums(hysparse_view x, hysparse_view out, hysparse_stream stream) {
  if (x->rank != 2 || out->shape[0] != x->shape[1]) return refuse("column_sums", "shapes differ");
  if (x->shape[0] == 0 || x->shape[1] == 0) return HYSPARSE_OK;
  const bool ok = with_type(x->dtype, [&](auto t) {
    column_sums_kernel<decltype(t)>
        <<<unsigned(ceil_div(x->shape[1], 32)), kThreads, 0, stream>>>(*x, static_cast<float*>(out->data));
  });
  return ok ? launched("column_sums") : unsupported_dtype("column_sums");
}

}  // extern "C"
