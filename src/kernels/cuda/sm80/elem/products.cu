// Products of few rows (decode), several of one x at a time: y_i[n, out_i] = x[n, depth] w_i[out_i, depth]^T,
// bound by reading every w once. All weights of a call are one list of units of four columns, cut evenly over
// as many CTAs as run at once; the warps of a CTA cut the depth, so that its end does not wait for one long
// column. Where nothing writes the weights, the first of them are on their way while the kernel before ends.
#include "kernels/cuda/sm80/elem/products.h"

#include <algorithm>

#include "kernels/cuda/sm80/elem/launch.h"

namespace hysparse::cuda {
namespace {

constexpr int kWarps = 8, kVector = 8, kChunk = 32 * kVector, kColumns = 4;
constexpr int kUnits = 8;  // between two meetings of a CTA's warps

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

// What a warp brings of the weights: for each of its units in turn, chunks `warp`, warp + 8, ... of the
// depth.
class Loader {
 public:
  __device__ Loader(const List& list, int depth, int begin, int end)
      : list_(list),
        depth_(depth),
        start_(threadIdx.x / 32 * kChunk + threadIdx.x % 32 * kVector),
        unit_(begin),
        end_(end) {
    enter();
  }
  // Of the next step; behind the last one nothing.
  __device__ void load(uint4 (&packed)[kColumns]) {
    if (unit_ >= end_) return;
#pragma unroll
    for (int j = 0; j < kColumns; ++j) packed[j] = k_ < depth_ ? load_once(w_[j] + k_) : uint4{};
    k_ += kWarps * kChunk;
    if (k_ - start_ >= depth_ - warp_start()) {
      ++unit_;
      enter();
    }
  }

 private:
  __device__ int warp_start() const {
    return threadIdx.x / 32 * kChunk;
  }
  __device__ void enter() {
    k_ = start_;
    if (unit_ >= end_) return;
    const Unit unit = unit_at(list_, unit_);
#pragma unroll
    for (int j = 0; j < kColumns; ++j) w_[j] = weights_of(list_, unit, j);
  }

  const List& list_;
  const __nv_bfloat16* w_[kColumns];
  const int depth_, start_;
  int k_, unit_, end_;
};

// Lane l of warp w sums elements of chunks w, w + 8, ...; then lanes, then warps in order: the same whatever
// the number of rows and the other products. Weights are two steps ahead of the sums; `constant`: nothing in
// the stream writes them, and the first are asked for while the kernel before still runs.
template <int kRows>
__global__ void __launch_bounds__(kWarps * 32, kRows <= 2 ? 3 : 2)
    products_kernel(const __nv_bfloat16* x, int64_t x_stride, int depth, bool constant,
                    const __grid_constant__ List list) {
  __shared__ float part[kWarps][kUnits * kColumns][kRows];
  const int64_t units = list.first[list.count];
  const int begin = int(units * blockIdx.x / gridDim.x), end = int(units * (blockIdx.x + 1) / gridDim.x);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (!constant) wait_for_launcher();
  Loader loader(list, depth, begin, end);
  uint4 even[kColumns], odd[kColumns];
  loader.load(even);
  loader.load(odd);
  if (constant) wait_for_launcher();

  // Steps of a unit; a warp behind the end of the depth has one, of zeros.
  const int steps = max(1, (depth - warp * kChunk + kWarps * kChunk - 1) / (kWarps * kChunk));
  float sum[kRows][kColumns] = {};
  int k = warp * kChunk + lane * kVector, step = 0, unit = begin;
  const auto add = [&](uint4(&packed)[kColumns]) {
    float a[kRows][kVector];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const uint4 row = k < depth ? __ldg(reinterpret_cast<const uint4*>(x + r * x_stride + k)) : uint4{};
      unpack(row, a[r]);
    }
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      float b[kVector];
      unpack(packed[j], b);
#pragma unroll
      for (int r = 0; r < kRows; ++r)
#pragma unroll
        for (int i = 0; i < kVector; ++i) sum[r][j] = fmaf(a[r][i], b[i], sum[r][j]);
    }
    loader.load(packed);
    k += kWarps * kChunk;
    if (++step < steps) return;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float total = lane_sums(sum[r]);
      if (lane % 8 == 0) part[warp][(unit - begin) % kUnits * kColumns + lane / 8][r] = total;
#pragma unroll
      for (int j = 0; j < kColumns; ++j) sum[r][j] = 0;
    }
    step = 0;
    k = warp * kChunk + lane * kVector;
    if (++unit < end && (unit - begin) % kUnits != 0) return;
    // The warps meet.
    __syncthreads();
    if (unit == end) launch_dependents();
    const int from = begin + (unit - 1 - begin) / kUnits * kUnits;
    for (int i = threadIdx.x; i < (unit - from) * kColumns * kRows; i += kWarps * 32) {
      const int r = i % kRows, c = i / kRows;
      const Unit at = unit_at(list, from + c / kColumns);
      const hysparse_cuda_product& p = list.product[at.product];
      const int column = at.column + c % kColumns;
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
  };
  while (unit < end) {
    add(even);
    if (unit < end) add(odd);
  }
}

template <int kRows>
cudaError_t launch(const View& x, const List& list, bool constant, cudaStream_t stream) {
  static const int resident = [] {
    int device = 0, processors = 1, each = 1;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
    cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, products_kernel<kRows>, kWarps * 32, 0);
    return std::max(1, processors * each);
  }();
  return launch_overlapped<products_kernel<kRows>>(
      unsigned(std::min(resident, list.first[list.count])), kWarps * 32, stream, {},
      static_cast<const __nv_bfloat16*>(x.data), x.stride[0], int(x.shape[1]), constant, list);
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

cudaError_t few_row_products(const View& x, const hysparse_cuda_product* products, int count, bool constant,
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
      return launch<1>(x, list, constant, stream);
    case 2:
      return launch<2>(x, list, constant, stream);
    case 3:
      return launch<3>(x, list, constant, stream);
    default:
      return launch<4>(x, list, constant, stream);
  }
}

}  // namespace hysparse::cuda

using namespace hysparse::cuda;

extern "C" {

int hysparse_cuda_linear_group(hysparse_view x, const hysparse_cuda_product* products, int32_t count,
                               int32_t constant, hysparse_stream stream) {
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
  return check_cuda(few_row_products(*x, products, count, constant != 0, stream), op);
}

}  // extern "C"
