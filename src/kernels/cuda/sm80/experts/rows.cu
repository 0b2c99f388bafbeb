// Rows to the experts and back, and the MLP's nonlinearity with the experts' weights.
#include "hysparse/cuda_experts.h"
#include "kernels/cuda/sm80/elem/launch.h"

namespace hysparse::cuda {
namespace {

constexpr int kThreads = 256;

// y[row] = x[source[row] / k]; kUnroll pieces a thread, under way together.
template <class T, int kV, int kUnroll>
__global__ void __launch_bounds__(kThreads) gather_kernel(View x, const int32_t* source, int k, View y) {
  const int64_t width = y.shape[1] / kV, total = y.shape[0] * width,
                first = blockIdx.x * int64_t(kThreads * kUnroll) + threadIdx.x;
  int64_t row[kUnroll];
  const T* from[kUnroll];
  Vector<T, kV> piece[kUnroll];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int64_t i = min(first + u * kThreads, total - 1);
    row[u] = short_ratio(i, int(width), total);
    from[u] =
        static_cast<const T*>(x.data) + int64_t(source[row[u]] / k) * x.stride[0] + (i - row[u] * width) * kV;
  }
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) piece[u] = load_vector<kV>(from[u]);
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int64_t i = first + u * kThreads;
    if (i < total)
      store_vector(static_cast<T*>(y.data) + row[u] * y.stride[0] + (i - row[u] * width) * kV, piece[u]);
  }
}

// y[t] = sum_j x[slot[t, j]] (+ y[t])
template <class T, int kV>
__global__ void sum_kernel(View x, const int32_t* slot, int k, View y, bool accumulate) {
  const int64_t width = y.shape[1] / kV, total = y.shape[0] * width;
  for (int64_t i = blockIdx.x * int64_t(kThreads) + threadIdx.x; i < total;
       i += int64_t(gridDim.x) * kThreads) {
    const int64_t t = short_ratio(i, int(width), total), c = (i - t * width) * kV;
    T* out = static_cast<T*>(y.data) + t * y.stride[0] + c;
    float sum[kV] = {};
    const auto add = [&](const T* p) {
      const auto v = load_vector<kV>(p);
#pragma unroll
      for (int j = 0; j < kV; ++j) sum[j] += to_float(v.x[j]);
    };
    if (accumulate) add(out);
#pragma unroll 4
    for (int j = 0; j < k; ++j)
      add(static_cast<const T*>(x.data) + int64_t(slot[t * k + j]) * x.stride[0] + c);
    Vector<T, kV> v;
#pragma unroll
    for (int j = 0; j < kV; ++j) v.x[j] = from_float<T>(sum[j]);
    store_vector(out, v);
  }
}

__device__ float sigmoid(float x) {
  return 1.0f / (1.0f + expf(-x));
}

template <class T, int kV>
__global__ void swiglu_kernel(View gate, View up, const int32_t* source, const float* weights, View h) {
  const int64_t width = h.shape[1] / kV, total = h.shape[0] * width;
  for (int64_t i = blockIdx.x * int64_t(kThreads) + threadIdx.x; i < total;
       i += int64_t(gridDim.x) * kThreads) {
    const int64_t row = short_ratio(i, int(width), total), c = (i - row * width) * kV;
    const float w = weights[source[row]];
    const auto g = load_vector<kV>(static_cast<const T*>(gate.data) + row * gate.stride[0] + c),
               u = load_vector<kV>(static_cast<const T*>(up.data) + row * up.stride[0] + c);
    Vector<T, kV> out;
#pragma unroll
    for (int j = 0; j < kV; ++j) {
      const float x = to_float(g.x[j]);
      out.x[j] = from_float<T>(w * x * sigmoid(x) * to_float(u.x[j]));
    }
    store_vector(static_cast<T*>(h.data) + row * h.stride[0] + c, out);
  }
}

struct SwigluBackward {
  View gate, up, dh, dgate, dup;
  const int32_t* source;
  const float* weights;
  float* dweights;
};

// A warp a row.
template <class T, int kV>
__global__ void __launch_bounds__(kThreads) swiglu_backward_kernel(const __grid_constant__ SwigluBackward p) {
  const int64_t row = blockIdx.x * int64_t(kThreads / 32) + threadIdx.x / 32;
  if (row >= p.dh.shape[0]) return;
  const auto at = [&](const View& v) { return static_cast<T*>(v.data) + row * v.stride[0]; };
  const int32_t assignment = p.source[row];
  const float w = p.weights[assignment];
  float dw = 0;
  for (int64_t c = threadIdx.x % 32 * kV; c < p.dh.shape[1]; c += 32 * kV) {
    const auto g = load_vector<kV>(at(p.gate) + c), u = load_vector<kV>(at(p.up) + c),
               d = load_vector<kV>(at(p.dh) + c);
    Vector<T, kV> dg, du;
#pragma unroll
    for (int j = 0; j < kV; ++j) {
      const float x = to_float(g.x[j]), y = to_float(u.x[j]), z = to_float(d.x[j]), s = sigmoid(x);
      dw += z * x * s * y;
      dg.x[j] = from_float<T>(w * z * y * s * (1 + x * (1 - s)));
      du.x[j] = from_float<T>(w * z * x * s);
    }
    store_vector(at(p.dgate) + c, dg);
    store_vector(at(p.dup) + c, du);
  }
  dw = warp_total(dw);
  if (threadIdx.x % 32 == 0) p.dweights[assignment] = dw;
}

// run(T{}, vector width) where the dtype is one that activations may have.
template <class Run, class... Views>
int over_rows(const char* op, Run run, const View& first, const Views&... others) {
  const bool ok = with_type(first.dtype, [&](auto t) {
    constexpr int kV = 16 / sizeof(t);
    if (vectors_fit(kV, first, others...))
      run(t, std::integral_constant<int, kV>{});
    else
      run(t, std::integral_constant<int, 1>{});
  });
  return ok ? launched(op) : unsupported_dtype(op);
}

}  // namespace
}  // namespace hysparse::cuda

using namespace hysparse::cuda;

extern "C" {

int hysparse_cuda_expert_gather(hysparse_view x, hysparse_view source, int64_t k, hysparse_view y,
                                hysparse_stream stream) {
  constexpr const char* op = "expert_gather";
  if (x->dtype != y->dtype || x->shape[1] != y->shape[1] || source->shape[0] != y->shape[0] || k < 1 ||
      k > INT32_MAX)
    return refuse(op, "shapes or dtypes do not fit");
  if (y->shape[0] * y->shape[1] == 0) return HYSPARSE_OK;
  return over_rows(
      op,
      [&](auto t, auto width) {
        constexpr int kV = decltype(width)::value, kUnroll = 4;
        gather_kernel<decltype(t), kV, kUnroll>
            <<<unsigned(ceil_div(y->shape[0] * y->shape[1] / kV, kThreads * kUnroll)), kThreads, 0, stream>>>(
                *x, static_cast<const int32_t*>(source->data), int(k), *y);
      },
      *x, *y);
}

int hysparse_cuda_expert_sum(hysparse_view x, hysparse_view slot, hysparse_view y, int32_t accumulate,
                             hysparse_stream stream) {
  constexpr const char* op = "expert_sum";
  if (x->dtype != y->dtype || x->shape[1] != y->shape[1] || slot->shape[0] != y->shape[0])
    return refuse(op, "shapes or dtypes do not fit");
  if (y->shape[0] * y->shape[1] == 0) return HYSPARSE_OK;
  return over_rows(
      op,
      [&](auto t, auto width) {
        constexpr int kV = decltype(width)::value;
        sum_kernel<decltype(t), kV>
            <<<grid_for(y->shape[0] * y->shape[1] / kV, kThreads), kThreads, 0, stream>>>(
                *x, static_cast<const int32_t*>(slot->data), int(slot->shape[1]), *y, accumulate != 0);
      },
      *x, *y);
}

int hysparse_cuda_expert_swiglu(hysparse_view gate, hysparse_view up, hysparse_view source,
                                hysparse_view weights, hysparse_view h, hysparse_stream stream) {
  constexpr const char* op = "expert_swiglu";
  if (!same_shape(*gate, *up) || !same_shape(*gate, *h) || gate->dtype != up->dtype ||
      gate->dtype != h->dtype || source->shape[0] != h->shape[0] || weights->dtype != HYSPARSE_DTYPE_F32)
    return refuse(op, "shapes or dtypes do not fit");
  if (h->shape[0] * h->shape[1] == 0) return HYSPARSE_OK;
  return over_rows(
      op,
      [&](auto t, auto width) {
        constexpr int kV = decltype(width)::value;
        swiglu_kernel<decltype(t), kV>
            <<<grid_for(h->shape[0] * h->shape[1] / kV, kThreads), kThreads, 0, stream>>>(
                *gate, *up, static_cast<const int32_t*>(source->data),
                static_cast<const float*>(weights->data), *h);
      },
      *gate, *up, *h);
}

int hysparse_cuda_expert_swiglu_backward(hysparse_view gate, hysparse_view up, hysparse_view source,
                                         hysparse_view weights, hysparse_view dh, hysparse_view dgate,
                                         hysparse_view dup, hysparse_view dweights, hysparse_stream stream) {
  constexpr const char* op = "expert_swiglu_backward";
  for (const hysparse_view v : {up, dh, dgate, dup})
    if (!same_shape(*gate, *v) || gate->dtype != v->dtype) return refuse(op, "shapes or dtypes do not fit");
  if (source->shape[0] != dh->shape[0] || weights->dtype != HYSPARSE_DTYPE_F32 ||
      dweights->dtype != HYSPARSE_DTYPE_F32)
    return refuse(op, "shapes or dtypes do not fit");
  if (dh->shape[0] == 0) return HYSPARSE_OK;
  const SwigluBackward p{*gate,
                         *up,
                         *dh,
                         *dgate,
                         *dup,
                         static_cast<const int32_t*>(source->data),
                         static_cast<const float*>(weights->data),
                         static_cast<float*>(dweights->data)};
  return over_rows(
      op,
      [&](auto t, auto width) {
        swiglu_backward_kernel<decltype(t), decltype(width)::value>
            <<<unsigned(ceil_div(dh->shape[0], kThreads / 32)), kThreads, 0, stream>>>(p);
      },
      *gate, *up, *dh, *dgate, *dup);
}

}  // extern "C"
