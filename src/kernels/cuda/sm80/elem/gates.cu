// SwiGLU and the gated sum of two branches, forward and backward.
#include <algorithm>

#include "kernels/cuda/sm80/elem/launch.h"

namespace hysparse::cuda {
namespace {

constexpr int kThreads = 256;

// exp of a negative number only: it never overflows, and small results keep their digits.
__device__ float sigmoid(float x) {
  const float e = expf(-fabsf(x));
  return (x < 0 ? e : 1.0f) / (1.0f + e);
}

template <class T, int kV, bool kFlat>
__global__ void swiglu_kernel(View gate, View up, View h, int64_t total) {
  join_stream();
  for (int64_t i = blockIdx.x * int64_t(kThreads) + threadIdx.x; i < total;
       i += int64_t(gridDim.x) * kThreads) {
    const auto g = load_vector<kV>(element_at<T, kFlat>(gate, i * kV)),
               u = load_vector<kV>(element_at<T, kFlat>(up, i * kV));
    Vector<T, kV> y;
#pragma unroll
    for (int j = 0; j < kV; ++j)
      y.x[j] = from_float<T>(to_float(g.x[j]) * sigmoid(to_float(g.x[j])) * to_float(u.x[j]));
    store_vector(element_at<T, kFlat>(h, i * kV), y);
  }
}

template <class T, int kV, bool kFlat>
__global__ void swiglu_backward_kernel(View gate, View up, View dh, View dgate, View dup, int64_t total) {
  for (int64_t i = blockIdx.x * int64_t(kThreads) + threadIdx.x; i < total;
       i += int64_t(gridDim.x) * kThreads) {
    const auto g = load_vector<kV>(element_at<T, kFlat>(gate, i * kV)),
               u = load_vector<kV>(element_at<T, kFlat>(up, i * kV)),
               d = load_vector<kV>(element_at<T, kFlat>(dh, i * kV));
    Vector<T, kV> dg, du;
#pragma unroll
    for (int j = 0; j < kV; ++j) {
      const float x = to_float(g.x[j]), s = sigmoid(x), y = to_float(d.x[j]);
      dg.x[j] = from_float<T>(y * to_float(u.x[j]) * s * (1 + x * (1 - s)));
      du.x[j] = from_float<T>(y * x * s);
    }
    store_vector(element_at<T, kFlat>(dgate, i * kV), dg);
    store_vector(element_at<T, kFlat>(dup, i * kV), du);
  }
}

// Row `token` of a gate or its gradient; both have two dimensions.
__device__ float* gate_row(const View& gate, int64_t token) {
  return static_cast<float*>(gate.data) + token * gate.stride[0];
}
__device__ float gate_at(const View& gate, int64_t token, int head, int c, int heads, int dv) {
  return sigmoid(gate_row(gate, token)[gate.shape[1] == heads ? head : head * dv + c]);
}

template <class T, int kV, bool kFlat>
__global__ void gated_sum_kernel(View a, View gate_a, View b, View gate_b, View out, int64_t groups) {
  const int heads = int(a.shape[1]), dv = int(a.shape[2]), width = dv / kV;
  for (int64_t i = blockIdx.x * int64_t(kThreads) + threadIdx.x; i < groups;
       i += int64_t(gridDim.x) * kThreads) {
    const int64_t row = short_ratio(i, width, groups), token = short_ratio(row, heads, groups);
    const int c = int(i - row * width) * kV, head = int(row - token * heads);
    const auto x = load_vector<kV>(element_at<T, kFlat>(a, i * kV));
    Vector<T, kV> y;
    if (b.data) y = load_vector<kV>(element_at<T, kFlat>(b, i * kV));
    Vector<T, kV> sum;
    float ga = 0, gb = 0;
#pragma unroll
    for (int j = 0; j < kV; ++j) {
      if (j == 0 || gate_a.shape[1] != heads) ga = gate_at(gate_a, token, head, c + j, heads, dv);
      float z = ga * to_float(x.x[j]);
      if (b.data) {
        if (j == 0 || gate_b.shape[1] != heads) gb = gate_at(gate_b, token, head, c + j, heads, dv);
        z += gb * to_float(y.x[j]);
      }
      sum.x[j] = from_float<T>(z);
    }
    store_vector(element_at<T, kFlat>(out, i * kV), sum);
  }
}

template <class T, bool kFlat>
__device__ T* row_of(const View& v, int64_t row) {
  return kFlat ? static_cast<T*>(v.data) + row * v.shape[2] : row_at<T>(v, row);
}

// kLanes threads a token and head. Each reads all it needs before it writes da, which may be d_out.
template <class T, int kV, bool kFlat, int kLanes>
__global__ void gated_sum_backward_kernel(View a, View gate_a, View b, View gate_b, View d_out, View da,
                                          View db, View dgate_a, View dgate_b, int64_t rows) {
  const int heads = int(a.shape[1]), dv = int(a.shape[2]);
  const int64_t row = blockIdx.x * int64_t(kThreads / kLanes) + threadIdx.x / kLanes;
  const bool valid = row < rows;  // all lanes of a warp stay for its sums
  const int lane = threadIdx.x % kLanes;
  const int64_t token = valid ? short_ratio(row, heads, rows) : 0;
  const int head = int(row - token * heads);
  float sum_a = 0, sum_b = 0;
  const auto branch = [&](int c, const Vector<T, kV>& g, const Vector<T, kV>& value, const View& gate,
                          const View& dx, const View& dgate, float& sum) {
    const bool whole = gate.shape[1] == heads;
    Vector<T, kV> d;
    float s = 0;
#pragma unroll
    for (int j = 0; j < kV; ++j) {
      if (j == 0 || !whole) s = gate_at(gate, token, head, c + j, heads, dv);
      const float y = to_float(g.x[j]), dg = y * to_float(value.x[j]) * s * (1 - s);
      d.x[j] = from_float<T>(s * y);
      if (whole)
        sum += dg;
      else
        gate_row(dgate, token)[head * dv + c + j] = dg;
    }
    store_vector(row_of<T, kFlat>(dx, row) + c, d);
  };
  for (int c = valid ? lane * kV : dv; c < dv; c += kLanes * kV) {
    const auto g = load_vector<kV>(row_of<T, kFlat>(d_out, row) + c),
               x = load_vector<kV>(row_of<T, kFlat>(a, row) + c);
    Vector<T, kV> y;
    if (b.data) y = load_vector<kV>(row_of<T, kFlat>(b, row) + c);
    branch(c, g, x, gate_a, da, dgate_a, sum_a);
    if (b.data) branch(c, g, y, gate_b, db, dgate_b, sum_b);
  }
#pragma unroll
  for (int i = kLanes / 2; i > 0; i /= 2) {
    sum_a += __shfl_xor_sync(0xffffffffu, sum_a, i);
    sum_b += __shfl_xor_sync(0xffffffffu, sum_b, i);
  }
  if (!valid || lane != 0) return;
  if (gate_a.shape[1] == heads) gate_row(dgate_a, token)[head] = sum_a;
  if (b.data && gate_b.shape[1] == heads) gate_row(dgate_b, token)[head] = sum_b;
}

}  // namespace
}  // namespace hysparse::cuda

using namespace hysparse::cuda;

extern "C" {

int hysparse_cuda_swiglu(hysparse_view gate, hysparse_view up, hysparse_view h, hysparse_stream stream) {
  const int64_t total = rows_of(*h) * width_of(*h);
  if (!same_shape(*gate, *h) || !same_shape(*up, *h)) return refuse("swiglu", "shapes differ");
  if (total == 0) return HYSPARSE_OK;
  const bool ok = with_type(h->dtype, [&](auto t) {
    using T = decltype(t);
    with_layout<16 / sizeof(T)>(
        [&](auto width, auto is_flat) {
          constexpr int kV = decltype(width)::value;
          launch_overlapped<swiglu_kernel<T, kV, decltype(is_flat)::value>>(
              grid_for(total / kV, kThreads), kThreads, stream, {}, *gate, *up, *h, total / kV);
        },
        *gate, *up, *h);
  });
  return ok ? launched("swiglu") : unsupported_dtype("swiglu");
}

int hysparse_cuda_swiglu_backward(hysparse_view gate, hysparse_view up, hysparse_view dh, hysparse_view dgate,
                                  hysparse_view dup, hysparse_stream stream) {
  constexpr const char* op = "swiglu_backward";
  const int64_t total = rows_of(*dh) * width_of(*dh);
  for (const View* v : {gate, up, dgate, dup})
    if (!same_shape(*v, *dh)) return refuse(op, "shapes differ");
  if (total == 0) return HYSPARSE_OK;
  const bool ok = with_type(dh->dtype, [&](auto t) {
    using T = decltype(t);
    with_layout<16 / sizeof(T)>(
        [&](auto width, auto is_flat) {
          constexpr int kV = decltype(width)::value;
          swiglu_backward_kernel<T, kV, decltype(is_flat)::value>
              <<<grid_for(total / kV, kThreads), kThreads, 0, stream>>>(*gate, *up, *dh, *dgate, *dup,
                                                                        total / kV);
        },
        *gate, *up, *dh, *dgate, *dup);
  });
  return ok ? launched(op) : unsupported_dtype(op);
}

int hysparse_cuda_gated_sum(hysparse_view a, hysparse_view gate_a, hysparse_view b, hysparse_view gate_b,
                            hysparse_view out, hysparse_stream stream) {
  const int64_t total = rows_of(*a) * width_of(*a);
  if (a->rank != 3 || !same_shape(*a, *out)) return refuse("gated_sum", "shapes differ");
  if (total == 0) return HYSPARSE_OK;
  const bool ok = with_type(a->dtype, [&](auto t) {
    using T = decltype(t);
    const View other = optional_view(b);
    with_layout<16 / sizeof(T)>(
        [&](auto width, auto is_flat) {
          constexpr int kV = decltype(width)::value;
          gated_sum_kernel<T, kV, decltype(is_flat)::value>
              <<<grid_for(total / kV, kThreads), kThreads, 0, stream>>>(
                  *a, *gate_a, other, optional_view(gate_b), *out, total / kV);
        },
        *a, other, *out);
  });
  return ok ? launched("gated_sum") : unsupported_dtype("gated_sum");
}

int hysparse_cuda_gated_sum_backward(hysparse_view a, hysparse_view gate_a, hysparse_view b,
                                     hysparse_view gate_b, hysparse_view d_out, hysparse_view da,
                                     hysparse_view db, hysparse_view dgate_a, hysparse_view dgate_b,
                                     hysparse_stream stream) {
  constexpr const char* op = "gated_sum_backward";
  const int64_t rows = rows_of(*a);
  if (a->rank != 3 || !same_shape(*a, *d_out)) return refuse(op, "shapes differ");
  if (rows == 0) return HYSPARSE_OK;
  const bool ok = with_type(a->dtype, [&](auto t) {
    using T = decltype(t);
    const View other = optional_view(b), d_other = optional_view(db);
    const auto run = [&](auto width, auto is_flat, auto lanes) {
      constexpr int kLanes = decltype(lanes)::value;
      gated_sum_backward_kernel<T, decltype(width)::value, decltype(is_flat)::value, kLanes>
          <<<unsigned(ceil_div(rows, kThreads / kLanes)), kThreads, 0, stream>>>(
              *a, *gate_a, other, optional_view(gate_b), *d_out, *da, d_other, *dgate_a,
              optional_view(dgate_b), rows);
    };
    with_layout<16 / sizeof(T)>(
        [&](auto width, auto is_flat) {
          if (a->shape[2] <= 16 * width)  // half a warp holds a head
            run(width, is_flat, std::integral_constant<int, 16>{});
          else
            run(width, is_flat, std::integral_constant<int, 32>{});
        },
        *a, other, *d_out, *da, d_other);
  });
  return ok ? launched(op) : unsupported_dtype(op);
}

}  // extern "C"
