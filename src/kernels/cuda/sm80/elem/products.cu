// Products of few rows (decode), several of one x at a time: y_i[n, out_i] = x[n, depth] w_i[out_i, depth]^T,
// bound by reading every w once. All weights of a call are one list of units of four columns, cut evenly over
// the CTAs; the warps of a CTA cut the depth, so that a CTA's end does not wait for one long column. While
// the kernel before still runs, each CTA already asks for its first weights to be brought to L2.
#include "kernels/cuda/sm80/elem/products.h"

#include <algorithm>

#include "kernels/cuda/sm80/elem/launch.h"

namespace hysparse::cuda {
namespace {

constexpr int kWarps = 8, kVector = 8, kChunk = 32 * kVector, kColumns = 4;
constexpr int kUnits = 8;              // between two meetings of a CTA's warps
constexpr int kAheadBytes = 48 << 10;  // of weights that a CTA asks for early

struct List {
  hysparse_cuda_product product[HYSPARSE_CUDA_PRODUCTS];
  int first[HYSPARSE_CUDA_PRODUCTS + 1];  // unit of each product
  int count;
};

struct Unit {
  int product, column;
};
__device__ Unit unit_at(const List& list, int unit) {
  int i = 0;
  while (unit >= list.first[i + 1]) ++i;
  return {i, (unit - list.first[i]) * kColumns};
}
// Columns behind the last are the last, and not written.
__device__ const __nv_bfloat16* weights_of(const List& list, Unit u, int j) {
  const hysparse_cuda_product& p = list.product[u.product];
  return static_cast<const __nv_bfloat16*>(p.w) + min(u.column + j, p.out - 1) * p.w_stride;
}

__device__ void prefetch_to_l2(const void* p, uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p), "r"(bytes) : "memory");
#endif
}

__device__ uint4 load_once(const __nv_bfloat16* p) {
  uint4 x;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "l"(p));
  return x;
}

__device__ void unpack(const uint4& packed, float (&x)[kVector]) {
  const auto* pairs = reinterpret_cast<const __nv_bfloat162*>(&packed);
#pragma unroll
  for (int j = 0; j < kVector / 2; ++j) {
    const float2 p = __bfloat1622float2(pairs[j]);
    x[2 * j] = p.x;
    x[2 * j + 1] = p.y;
  }
}

// Sums of four columns over the lanes; lane l holds that of column l / 8. The order is fixed.
__device__ float lane_sums(const float (&x)[kColumns]) {
  const int lane = threadIdx.x % 32;
  const bool upper = lane & 16, odd = lane & 8;
  float a = upper ? x[2] : x[0], b = upper ? x[3] : x[1];
  a += __shfl_xor_sync(~0u, upper ? x[0] : x[2], 16);
  b += __shfl_xor_sync(~0u, upper ? x[1] : x[3], 16);
  float sum = odd ? b : a;
  sum += __shfl_xor_sync(~0u, odd ? a : b, 8);
  for (int i = 4; i > 0; i /= 2) sum += __shfl_xor_sync(~0u, sum, i);
  return sum;
}

template <class T>
__device__ void store(void* y, int64_t at, float x, bool accumulate) {
  T* p = static_cast<T*>(y) + at;
  *p = from_float<T>(accumulate ? to_float(*p) + x : x);
}

// Lane l of warp w sums elements of chunks w, w + 8, ...; then lanes, then warps in order: the same whatever
// the number of rows and the other products.
template <int kRows>
__global__ void __launch_bounds__(kWarps * 32, kRows <= 2 ? 4 : 3)
    products_kernel(const __nv_bfloat16* x, int64_t x_stride, int depth, const __grid_constant__ List list) {
  __shared__ float part[kWarps][kUnits * kColumns][kRows];
  const int64_t units = list.first[list.count];
  const int begin = int(units * blockIdx.x / gridDim.x), end = int(units * (blockIdx.x + 1) / gridDim.x);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int ahead = max(1, kAheadBytes / (depth * 2));  // columns
  launch_dependents();
  for (int i = threadIdx.x; i < min(ahead, (end - begin) * kColumns); i += kWarps * 32)
    prefetch_to_l2(weights_of(list, unit_at(list, begin + i / kColumns), i % kColumns), uint32_t(depth) * 2);
  wait_for_launcher();

  for (int from = begin; from < end; from += kUnits) {
    const int to = min(end, from + kUnits);
    for (int u = from; u < to; ++u) {
      const Unit unit = unit_at(list, u);
      const __nv_bfloat16* w[kColumns];
#pragma unroll
      for (int j = 0; j < kColumns; ++j) w[j] = weights_of(list, unit, j);
      float sum[kRows][kColumns] = {};
      for (int k = warp * kChunk + lane * kVector; k < depth; k += 2 * kWarps * kChunk) {
        const int next = k + kWarps * kChunk;
        const bool two = next < depth;
        uint4 packed[2][kColumns];
#pragma unroll
        for (int j = 0; j < kColumns; ++j) packed[0][j] = load_once(w[j] + k);
#pragma unroll
        for (int j = 0; j < kColumns; ++j) packed[1][j] = two ? load_once(w[j] + next) : uint4{};
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          if (half == 1 && !two) break;
          float a[kRows][kVector];
#pragma unroll
          for (int r = 0; r < kRows; ++r)
            unpack(__ldg(reinterpret_cast<const uint4*>(x + r * x_stride + (half ? next : k))), a[r]);
#pragma unroll
          for (int j = 0; j < kColumns; ++j) {
            float b[kVector];
            unpack(packed[half][j], b);
#pragma unroll
            for (int r = 0; r < kRows; ++r)
#pragma unroll
              for (int i = 0; i < kVector; ++i) sum[r][j] = fmaf(a[r][i], b[i], sum[r][j]);
          }
        }
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float total = lane_sums(sum[r]);
        if (lane % 8 == 0) part[warp][(u - from) * kColumns + lane / 8][r] = total;
      }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < (to - from) * kColumns * kRows; i += kWarps * 32) {
      const int r = i % kRows, c = i / kRows;
      const Unit unit = unit_at(list, from + c / kColumns);
      const hysparse_cuda_product& p = list.product[unit.product];
      const int column = unit.column + c % kColumns;
      if (column >= p.out) continue;
      float total = 0;
#pragma unroll
      for (int j = 0; j < kWarps; ++j) total += part[j][c][r];
      if (p.bias) total += to_float(static_cast<const __nv_bfloat16*>(p.bias)[column]);
      if (p.y_dtype == HYSPARSE_DTYPE_F32)
        store<float>(p.y, r * p.y_stride + column, total, p.accumulate);
      else
        store<__nv_bfloat16>(p.y, r * p.y_stride + column, total, p.accumulate);
    }
    __syncthreads();
  }
}

template <int kRows>
cudaError_t launch(const View& x, const List& list, cudaStream_t stream) {
  static const int resident = [] {
    int device = 0, processors = 1, each = 1;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
    cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, products_kernel<kRows>, kWarps * 32, 0);
    return std::max(1, processors * each);
  }();
  return launch_overlapped<products_kernel<kRows>>(
      unsigned(std::min(resident, list.first[list.count])), kWarps * 32, stream, {},
      static_cast<const __nv_bfloat16*>(x.data), x.stride[0], int(x.shape[1]), list);
}

bool in_groups(const void* p, int64_t stride) {
  return reinterpret_cast<uintptr_t>(p) % 16 == 0 && stride % kVector == 0;
}

}  // namespace

bool few_rows_suit(const View& x, const void* w, int64_t w_stride) {
  return x.dtype == HYSPARSE_DTYPE_BF16 && x.shape[0] >= 1 && x.shape[0] <= kMostFewRows && x.shape[1] > 0 &&
         x.shape[1] % kVector == 0 && x.shape[1] <= INT32_MAX / 4 && in_groups(x.data, x.stride[0]) &&
         in_groups(w, w_stride);
}

cudaError_t few_row_products(const View& x, const hysparse_cuda_product* products, int count,
                             cudaStream_t stream) {
  List list{};
  for (int i = 0; i < count; ++i) {
    if (products[i].out == 0) continue;
    list.product[list.count] = products[i];
    list.first[list.count + 1] = list.first[list.count] + (products[i].out + kColumns - 1) / kColumns;
    ++list.count;
  }
  if (list.count == 0) return cudaSuccess;
  static_assert(kMostFewRows == 4);
  switch (x.shape[0]) {
    case 1:
      return launch<1>(x, list, stream);
    case 2:
      return launch<2>(x, list, stream);
    case 3:
      return launch<3>(x, list, stream);
    default:
      return launch<4>(x, list, stream);
  }
}

}  // namespace hysparse::cuda

using namespace hysparse::cuda;

extern "C" {

int hysparse_cuda_linear_group(hysparse_view x, const hysparse_cuda_product* products, int32_t count,
                               hysparse_stream stream) {
  constexpr const char* op = "linear_group";
  if (x->rank != 2) return refuse(op, "x is not a matrix");
  if (count < 0 || (count > 0 && !products)) return refuse(op, "no products");
  const auto no = [&](const char* why) { return fail(HYSPARSE_UNSUPPORTED, std::string(op) + ": " + why); };
  if (count > HYSPARSE_CUDA_PRODUCTS) return no("more than 8 products");
  for (int i = 0; i < count; ++i) {
    const hysparse_cuda_product& p = products[i];
    if (p.out < 0 || (p.out > 0 && (!p.w || !p.y))) return refuse(op, "a null tensor");
    if (p.y_dtype != HYSPARSE_DTYPE_F32 && p.y_dtype != HYSPARSE_DTYPE_BF16) return unsupported_dtype(op);
    if (!few_rows_suit(*x, p.w, p.w_stride)) return no("1 to 4 rows of bf16 in groups of 16 bytes");
  }
  return check_cuda(few_row_products(*x, products, count, stream), op);
}

}  // extern "C"
