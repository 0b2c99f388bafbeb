// Embedding, RoPE, add, cast, gather: operations that move or rotate rows.
#include <algorithm>
#include <cub/device/device_radix_sort.cuh>

#include "kernels/cuda/sm80/elem/launch.h"

namespace hysparse::cuda {
namespace {

constexpr int kThreads = 256;

// dst row i = src row of(i), or NaN where that is outside [0, src_rows).
template <class T, int kV, class Index>
__global__ void gather_kernel(View src, const Index* of, View dst) {
  join_stream();
  const int64_t width = dst.shape[1] / kV, total = dst.shape[0] * width;
  for (int64_t i = blockIdx.x * int64_t(kThreads) + threadIdx.x; i < total;
       i += int64_t(gridDim.x) * kThreads) {
    const int64_t row = i / width, c = i % width * kV, from = of[row];
    Vector<T, kV> x;
    if (from >= 0 && from < src.shape[0]) {
      x = load_vector<kV>(row_at<T>(src, from) + c);
    } else {
#pragma unroll
      for (int j = 0; j < kV; ++j) x.x[j] = from_float<T>(NAN);
    }
    store_vector(row_at<T>(dst, row) + c, x);
  }
}

template <class Index>
int gather(const char* op, const View& src, const Index* of, const View& dst, cudaStream_t stream) {
  if (src.rank != 2 || dst.rank != 2 || src.shape[1] != dst.shape[1] || src.dtype != dst.dtype)
    return refuse(op, "source and target rows differ");
  if (dst.shape[0] == 0 || dst.shape[1] == 0) return HYSPARSE_OK;
  const bool ok = with_type(dst.dtype, [&](auto t) {
    using T = decltype(t);
    constexpr int kV = 16 / sizeof(T);
    if (vectors_fit(kV, src, dst))
      launch_overlapped<gather_kernel<T, kV, Index>>(grid_for(dst.shape[0] * dst.shape[1] / kV, kThreads),
                                                     kThreads, stream, {}, src, of, dst);
    else
      launch_overlapped<gather_kernel<T, 1, Index>>(grid_for(dst.shape[0] * dst.shape[1], kThreads), kThreads,
                                                    stream, {}, src, of, dst);
  });
  return ok ? launched(op) : unsupported_dtype(op);
}

__global__ void number_kernel(int32_t* index, int64_t n) {
  const int64_t i = blockIdx.x * int64_t(kThreads) + threadIdx.x;
  if (i < n) index[i] = int32_t(i);
}

// Tokens sorted, their rows in order within each: the CTA of a token's first place sums its rows, a thread a
// column.
template <class T, class G>
__global__ void embedding_backward_kernel(const int32_t* token, const int32_t* row, int64_t n, View dy,
                                          View grad) {
  const int64_t first = blockIdx.x;
  const int32_t t = token[first];
  if ((first > 0 && token[first - 1] == t) || t < 0 || t >= grad.shape[0]) return;
  for (int64_t c = blockIdx.y * int64_t(kThreads) + threadIdx.x; c < dy.shape[1];
       c += int64_t(gridDim.y) * kThreads) {
    G* g = row_at<G>(grad, t) + c;
    float sum = to_float(*g);
    for (int64_t i = first; i < n && token[i] == t; ++i) sum += to_float(row_at<T>(dy, row[i])[c]);
    *g = from_float<G>(sum);
  }
}

struct SortMemory {
  size_t sorted, index, order, temporary, total;  // byte offsets
  size_t temporary_bytes;
};
SortMemory sort_memory(int64_t n) {
  SortMemory m{};
  const size_t each = (size_t(std::max<int64_t>(n, 1)) * 4 + 255) / 256 * 256;
  cub::DeviceRadixSort::SortPairs(nullptr, m.temporary_bytes, static_cast<const int32_t*>(nullptr),
                                  static_cast<int32_t*>(nullptr), static_cast<const int32_t*>(nullptr),
                                  static_cast<int32_t*>(nullptr), int(n));
  m.sorted = 0;
  m.index = each;
  m.order = 2 * each;
  m.temporary = 3 * each;
  m.total = m.temporary + m.temporary_bytes;
  return m;
}

// kV pairs of a head a thread; kTwo: row 1 of the grid takes the second tensor, which costs much work a
// little.
template <class T, int kV, bool kFlat, bool kTwo>
__global__ void rope_kernel(View first_x, View second_x, const int32_t* position, View cos, View sin,
                            float sign) {
  join_stream();
  const auto rotate = [&](const View& x) {
    const int half = int(cos.shape[1]), width = half / kV, heads = int(x.shape[1]);
    const int64_t groups = x.shape[0] * heads * width;
    for (int64_t i = blockIdx.x * int64_t(kThreads) + threadIdx.x; i < groups;
         i += int64_t(gridDim.x) * kThreads) {
      const int64_t row = short_ratio(i, width, groups);
      const int c = int(i - row * width) * kV;
      T* p = (kFlat ? static_cast<T*>(x.data) + row * x.shape[2] : row_at<T>(x, row)) + c;
      const int64_t at = position[short_ratio(row, heads, groups)];
      const auto a = load_vector<kV>(static_cast<const float*>(cos.data) + at * cos.stride[0] + c),
                 b = load_vector<kV>(static_cast<const float*>(sin.data) + at * sin.stride[0] + c);
      auto first = load_vector<kV>(p), second = load_vector<kV>(p + half);
#pragma unroll
      for (int j = 0; j < kV; ++j) {
        const float u = to_float(first.x[j]), v = to_float(second.x[j]), s = sign * b.x[j];
        first.x[j] = from_float<T>(u * a.x[j] - v * s);
        second.x[j] = from_float<T>(v * a.x[j] + u * s);
      }
      store_vector(p, first);
      store_vector(p + half, second);
    }
  };
  if (kTwo && blockIdx.y == 1)
    rotate(second_x);
  else
    rotate(first_x);
}

template <class T, int kV, bool kFlat>
__global__ void add_kernel(View a, View b, View y, int64_t total) {
  for (int64_t i = blockIdx.x * int64_t(kThreads) + threadIdx.x; i < total;
       i += int64_t(gridDim.x) * kThreads) {
    const auto x = load_vector<kV>(element_at<T, kFlat>(a, i * kV)),
               z = load_vector<kV>(element_at<T, kFlat>(b, i * kV));
    Vector<T, kV> sum;
#pragma unroll
    for (int j = 0; j < kV; ++j) sum.x[j] = from_float<T>(to_float(x.x[j]) + to_float(z.x[j]));
    store_vector(element_at<T, kFlat>(y, i * kV), sum);
  }
}

template <class From, class To, int kV, bool kFlat>
__global__ void cast_kernel(View src, View dst, int64_t total) {
  for (int64_t i = blockIdx.x * int64_t(kThreads) + threadIdx.x; i < total;
       i += int64_t(gridDim.x) * kThreads) {
    const auto x = load_vector<kV>(element_at<From, kFlat>(src, i * kV));
    Vector<To, kV> y;
#pragma unroll
    for (int j = 0; j < kV; ++j) {
      if constexpr (sizeof(To) == 8)
        y.x[j] = sizeof(From) == 2 ? double(to_float(x.x[j])) : double(x.x[j]);
      else
        y.x[j] = from_float<To>(to_float(x.x[j]));
    }
    store_vector(element_at<To, kFlat>(dst, i * kV), y);
  }
}

template <class Run>
bool with_real(int32_t dtype, Run run) {
  if (dtype == HYSPARSE_DTYPE_F64) {
    run(double{});
    return true;
  }
  return with_type(dtype, run);
}

}  // namespace
}  // namespace hysparse::cuda

using namespace hysparse::cuda;

extern "C" {

int hysparse_cuda_embedding(hysparse_view tokens, hysparse_view table, hysparse_view y,
                            hysparse_stream stream) {
  return gather("embedding", *table, static_cast<const int32_t*>(tokens->data), *y, stream);
}

int hysparse_cuda_gather_rows(hysparse_view src, const int64_t* rows, hysparse_view dst,
                              hysparse_stream stream) {
  return gather("gather_rows", *src, rows, *dst, stream);
}

size_t hysparse_cuda_embedding_backward_workspace(int64_t tokens) {
  return sort_memory(tokens).total;
}

int hysparse_cuda_embedding_backward(hysparse_view tokens, hysparse_view dy, hysparse_view grad,
                                     void* workspace, size_t workspace_bytes, hysparse_stream stream) {
  constexpr const char* op = "embedding_backward";
  const int64_t n = dy->shape[0];
  if (n == 0) return HYSPARSE_OK;
  if (n > INT32_MAX) return refuse(op, "too many tokens for one call");
  const SortMemory m = sort_memory(n);
  if (!workspace || workspace_bytes < m.total) return refuse(op, "the workspace is too small");
  char* base = static_cast<char*>(workspace);
  auto* sorted = reinterpret_cast<int32_t*>(base + m.sorted);
  auto* index = reinterpret_cast<int32_t*>(base + m.index);
  auto* order = reinterpret_cast<int32_t*>(base + m.order);
  number_kernel<<<unsigned(ceil_div(n, kThreads)), kThreads, 0, stream>>>(index, n);
  size_t bytes = m.temporary_bytes;
  const cudaError_t e = cub::DeviceRadixSort::SortPairs(
      base + m.temporary, bytes, static_cast<const int32_t*>(tokens->data), sorted,
      static_cast<const int32_t*>(index), order, int(n), 0, 32, stream);
  if (int code = check_cuda(e, op)) return code;
  const dim3 grid(unsigned(n), unsigned(std::min<int64_t>(ceil_div(dy->shape[1], kThreads), 64)));
  bool ok = false;
  with_type(dy->dtype, [&](auto t) {
    ok = with_type(grad->dtype, [&](auto g) {
      embedding_backward_kernel<decltype(t), decltype(g)>
          <<<grid, kThreads, 0, stream>>>(sorted, order, n, *dy, *grad);
    });
  });
  return ok ? launched(op) : unsupported_dtype(op);
}

int hysparse_cuda_rope(hysparse_view x, hysparse_view more, const int32_t* position, hysparse_view cos,
                       hysparse_view sin, int32_t inverse, hysparse_stream stream) {
  const View second = optional_view(more);
  if (x->rank != 3 || 2 * cos->shape[1] > x->shape[2])
    return refuse("rope", "the tables are wider than the heads");
  if (second.data && (second.rank != 3 || second.shape[0] != x->shape[0] || second.dtype != x->dtype ||
                      2 * cos->shape[1] > second.shape[2]))
    return refuse("rope", "the second tensor does not go with the first");
  const auto pairs = [&](const View& v) { return v.data ? v.shape[0] * v.shape[1] * cos->shape[1] : 0; };
  if (pairs(*x) == 0 && pairs(second) == 0) return HYSPARSE_OK;
  constexpr int64_t kFew = int64_t(1) << 16;  // pairs: beyond, a launch of its own is nothing
  const bool together = second.data && std::max(pairs(*x), pairs(second)) <= kFew;
  const bool ok = with_type(x->dtype, [&](auto t) {
    using T = decltype(t);
    const auto run = [&](auto two, const View& first, const View& other) {
      const int64_t total = std::max(pairs(first), pairs(other));
      const auto launch = [&](auto width, auto is_flat) {
        constexpr int kV = decltype(width)::value;
        launch_overlapped<rope_kernel<T, kV, decltype(is_flat)::value, decltype(two)::value>>(
            dim3(grid_for(total / kV, kThreads), two ? 2 : 1), kThreads, stream, {}, first, other, position,
            *cos, *sin, inverse ? -1.0f : 1.0f);
      };
      if (total == 0) return;
      if (cos->shape[1] % 4 == 0 && vectors_fit(4, first, other, *cos, *sin) && flat(first, other))
        launch(std::integral_constant<int, 4>{}, std::true_type{});
      else
        launch(std::integral_constant<int, 1>{}, std::false_type{});
    };
    if (together) return run(std::true_type{}, *x, second);
    run(std::false_type{}, *x, View{});
    if (second.data) run(std::false_type{}, second, View{});
  });
  return ok ? launched("rope") : unsupported_dtype("rope");
}

int hysparse_cuda_add(hysparse_view a, hysparse_view b, hysparse_view y, hysparse_stream stream) {
  if (!same_shape(*a, *b) || !same_shape(*a, *y)) return refuse("add", "shapes differ");
  const int64_t total = rows_of(*y) * width_of(*y);
  if (total == 0) return HYSPARSE_OK;
  const bool ok = with_type(y->dtype, [&](auto t) {
    using T = decltype(t);
    with_layout<16 / sizeof(T)>(
        [&](auto width, auto is_flat) {
          constexpr int kV = decltype(width)::value;
          add_kernel<T, kV, decltype(is_flat)::value>
              <<<grid_for(total / kV, kThreads), kThreads, 0, stream>>>(*a, *b, *y, total / kV);
        },
        *a, *b, *y);
  });
  return ok ? launched("add") : unsupported_dtype("add");
}

int hysparse_cuda_cast(hysparse_view src, hysparse_view dst, hysparse_stream stream) {
  if (!same_shape(*src, *dst)) return refuse("cast", "shapes differ");
  const int64_t total = rows_of(*dst) * width_of(*dst);
  if (total == 0) return HYSPARSE_OK;
  bool ok = false;
  with_real(src->dtype, [&](auto from) {
    ok = with_real(dst->dtype, [&](auto to) {
      with_layout<2>(
          [&](auto width, auto is_flat) {
            constexpr int kV = decltype(width)::value;
            cast_kernel<decltype(from), decltype(to), kV, decltype(is_flat)::value>
                <<<grid_for(total / kV, kThreads), kThreads, 0, stream>>>(*src, *dst, total / kV);
          },
          *src, *dst);
    });
  });
  return ok ? launched("cast") : unsupported_dtype("cast");
}

}  // extern "C"
