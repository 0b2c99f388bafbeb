// Views in kernels: rows of any rank, vector access where alignment allows, dispatch over dtypes.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "hysparse/cuda_ops.h"

namespace hysparse::cuda {

using View = hysparse_cuda_view;

inline View optional_view(hysparse_view v) {
  return v ? *v : View{};
}
// Rows are all dimensions but the last, in row-major order.
inline int64_t rows_of(const View& v) {
  int64_t n = 1;
  for (int i = 0; i + 1 < v.rank; ++i) n *= v.shape[i];
  return n;
}
// In kernels the dimensions are named by constants alone: a view that is indexed by a variable is first
// copied to local memory, by every thread.
__host__ __device__ inline int64_t width_of(const View& v) {
  return v.rank == 1   ? v.shape[0]
         : v.rank == 2 ? v.shape[1]
         : v.rank == 3 ? v.shape[2]
         : v.rank == 4 ? v.shape[3]
                       : 1;
}
__host__ __device__ inline int64_t row_offset(const View& v, int64_t row) {
  int64_t at = 0;
#pragma unroll
  for (int d = 2; d >= 0; --d) {
    if (d > v.rank - 2) continue;
    if (d == 0) {
      at += row * v.stride[0];
    } else {
      at += row % v.shape[d] * v.stride[d];
      row /= v.shape[d];
    }
  }
  return at;
}
template <class T>
__device__ inline T* row_at(const View& v, int64_t row) {
  return static_cast<T*>(v.data) + row_offset(v, row);
}
// Element i in row-major order, the last dimension included; kFlat: of views without gaps.
template <class T, bool kFlat = false>
__device__ inline T* element_at(const View& v, int64_t i) {
  if constexpr (kFlat) return static_cast<T*>(v.data) + i;
  const int64_t width = width_of(v);
  return row_at<T>(v, i / width) + i % width;
}
// i / d for i < limit: in 32 bits where the limit allows.
__device__ inline int64_t short_ratio(int64_t i, int d, int64_t limit) {
  return limit <= INT32_MAX ? int64_t(unsigned(i) / unsigned(d)) : i / d;
}
// Whether no (present) view has gaps between its rows.
template <class... Views>
bool flat(const Views&... views) {
  const auto without_gaps = [](const View& v) {
    int64_t expected = 1;
    for (int d = v.rank - 1; v.data && d >= 0; --d) {
      if (v.shape[d] > 1 && v.stride[d] != expected) return false;
      expected *= v.shape[d];
    }
    return true;
  };
  return (without_gaps(views) && ...);
}

__device__ inline float to_float(float x) {
  return x;
}
__device__ inline float to_float(double x) {
  return static_cast<float>(x);
}
__device__ inline float to_float(__nv_bfloat16 x) {
  return __bfloat162float(x);
}
template <class T>
__device__ inline T from_float(float x) {
  if constexpr (sizeof(T) == 2)
    return __float2bfloat16_rn(x);
  else
    return x;
}

template <class T, int kCount>
struct alignas(sizeof(T) * kCount) Vector {
  T x[kCount];
};
template <int kCount, class T>
__device__ inline Vector<T, kCount> load_vector(const T* p) {
  return *reinterpret_cast<const Vector<T, kCount>*>(p);
}
template <int kCount, class T>
__device__ inline void store_vector(T* p, const Vector<T, kCount>& v) {
  *reinterpret_cast<Vector<T, kCount>*>(p) = v;
}
inline size_t size_of(int32_t dtype) {
  return dtype == HYSPARSE_DTYPE_BF16                                 ? 2
         : dtype == HYSPARSE_DTYPE_F32 || dtype == HYSPARSE_DTYPE_I32 ? 4
                                                                      : 8;
}
// Every row of every (present) view starts at a multiple of `count` elements' bytes and is a multiple of them
// long.
template <class... Views>
bool vectors_fit(int count, const Views&... views) {
  const auto fits = [count](const View& v) {
    if (!v.data) return true;
    if (reinterpret_cast<uintptr_t>(v.data) % (size_t(count) * size_of(v.dtype)) != 0 ||
        width_of(v) % count != 0)
      return false;
    for (int d = 0; d + 1 < v.rank; ++d)
      if (v.shape[d] > 1 && v.stride[d] % count != 0) return false;
    return true;
  };
  return (fits(views) && ...);
}

// run(width, is_flat), both integral constants: kV elements at a time where the views allow it, and the fast
// addresses of views without gaps.
template <int kV, class Run, class... Views>
void with_layout(Run run, const Views&... views) {
  const auto with_width = [&](auto is_flat) {
    if (vectors_fit(kV, views...))
      run(std::integral_constant<int, kV>{}, is_flat);
    else
      run(std::integral_constant<int, 1>{}, is_flat);
  };
  if (flat(views...))
    with_width(std::true_type{});
  else
    with_width(std::false_type{});
}

// run(T{}) with the type of a dtype that activations may have; false for others.
template <class Run>
bool with_type(int32_t dtype, Run run) {
  if (dtype == HYSPARSE_DTYPE_F32) {
    run(float{});
    return true;
  }
  if (dtype == HYSPARSE_DTYPE_BF16) {
    run(__nv_bfloat16{});
    return true;
  }
  return false;
}

template <class T>
__device__ inline T warp_total(T x) {
  for (int i = 16; i > 0; i /= 2) x += __shfl_xor_sync(0xffffffffu, x, i);
  return x;
}
__device__ inline float warp_largest(float x) {
  for (int i = 16; i > 0; i /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, i));
  return x;
}
// Over the CTA, the same for every thread; a fixed order. Ends with all threads past their reads.
template <class T>
__device__ inline T cta_total(T x) {
  __shared__ T part[32];
  x = warp_total(x);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = x;
  __syncthreads();
  T sum = 0;
  for (unsigned i = 0; i < blockDim.x / 32; ++i) sum += part[i];
  __syncthreads();
  return sum;
}
__device__ inline float cta_largest(float x) {
  __shared__ float part[32];
  x = warp_largest(x);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = x;
  __syncthreads();
  float most = part[0];
  for (unsigned i = 1; i < blockDim.x / 32; ++i) most = fmaxf(most, part[i]);
  __syncthreads();
  return most;
}

}  // namespace hysparse::cuda
