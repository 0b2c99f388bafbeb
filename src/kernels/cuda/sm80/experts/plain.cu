// Products over groups of rows for every shape, dtype and GPU: tiles of 64 x 64 in shared memory, plain f32
// arithmetic. Correct and slow.
#include "kernels/cuda/sm80/elem/launch.h"
#include "kernels/cuda/sm80/experts/grouped.h"

namespace hysparse::cuda::experts {
namespace {

constexpr int kTile = 64, kDepth = 16, kThreads = 256, kEach = 4;
constexpr unsigned kAll = 0xffffffffu;

// Rows [begin, end) of `expert`, none where the CTA has no work. Row tiles are counted through the experts.
struct Rows {
  int expert, begin, end;
};
__device__ Rows find_rows(const int32_t* offset, int experts, int tile) {
  const int lane = threadIdx.x % 32;
  int before = 0;  // tiles of the experts so far
  for (int first = 0; first < experts; first += 32) {
    const int e = first + lane;
    const int begin = e < experts ? offset[e] : 0, end = e < experts ? offset[e + 1] : 0;
    const int tiles = (end - begin + kTile - 1) / kTile;
    int through = tiles;
    for (int i = 1; i < 32; i *= 2) {
      const int other = __shfl_up_sync(kAll, through, i);
      if (lane >= i) through += other;
    }
    through += before;
    const unsigned past = __ballot_sync(kAll, through > tile);
    if (past != 0) {
      const int owner = __ffs(past) - 1;
      const int own = tile - __shfl_sync(kAll, through - tiles, owner);
      const int b = __shfl_sync(kAll, begin, owner) + own * kTile;
      return {first + owner, b, min(b + kTile, __shfl_sync(kAll, end, owner))};
    }
    before = __shfl_sync(kAll, through, 31);
  }
  return {0, 0, 0};
}

// sum[i][j] of a 64 x 64 tile: rows ty * 4 + i, columns tx * 4 + j; a(m, k) and b(n, k) give 0 out of range.
template <class A, class B>
__device__ void tile_product(float (&sum)[kEach][kEach], int64_t depth, A a, B b) {
  __shared__ float x[kDepth][kTile + 1], y[kDepth][kTile + 1];
  const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
  for (int64_t k0 = 0; k0 < depth; k0 += kDepth) {
    for (int i = threadIdx.x; i < kTile * kDepth; i += kThreads) {
      x[i % kDepth][i / kDepth] = a(i / kDepth, k0 + i % kDepth);
      y[i % kDepth][i / kDepth] = b(i / kDepth, k0 + i % kDepth);
    }
    __syncthreads();
    for (int k = 0; k < kDepth; ++k) {
#pragma unroll
      for (int i = 0; i < kEach; ++i)
#pragma unroll
        for (int j = 0; j < kEach; ++j)
          sum[i][j] = fmaf(x[k][ty * kEach + i], y[k][tx * kEach + j], sum[i][j]);
    }
    __syncthreads();
  }
}

template <class T>
__device__ const T* at(const View& v, int64_t row) {
  return static_cast<const T*>(v.data) + row * v.stride[0];
}

template <class T, Kind kKind>
__global__ void __launch_bounds__(kThreads) product_kernel(const __grid_constant__ Product p) {
  const Rows rows = find_rows(p.offset, int(p.w.shape[0]), int(blockIdx.x));
  if (rows.begin >= rows.end) return;
  const int64_t n0 = blockIdx.y * int64_t(kTile), width = p.c.shape[1], depth = p.a.shape[1];
  const T* w = static_cast<const T*>(p.w.data) + rows.expert * p.w.stride[0];
  const int64_t w_row = p.w.stride[1];
  float sum[kEach][kEach] = {};
  tile_product(
      sum, depth,
      [&](int m, int64_t k) {
        return rows.begin + m < rows.end && k < depth ? to_float(at<T>(p.a, rows.begin + m)[k]) : 0.0f;
      },
      [&](int n, int64_t k) {
        if (n0 + n >= width || k >= depth) return 0.0f;
        return to_float(kKind == Kind::forward ? w[(n0 + n) * w_row + k] : w[k * w_row + n0 + n]);
      });
  const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
  for (int i = 0; i < kEach; ++i)
    for (int j = 0; j < kEach; ++j) {
      const int64_t row = rows.begin + ty * kEach + i, n = n0 + tx * kEach + j;
      if (row >= rows.end || n >= width) continue;
      T* c = static_cast<T*>(p.c.data) + row * p.c.stride[0] + n;
      *c = from_float<T>(p.accumulate ? to_float(*c) + sum[i][j] : sum[i][j]);
    }
}

template <class T, class G>
__global__ void __launch_bounds__(kThreads) gradient_kernel(const __grid_constant__ WeightGradient p) {
  const int64_t begin = p.offset[blockIdx.z], end = p.offset[blockIdx.z + 1];
  if (begin >= end) return;
  const int64_t m0 = blockIdx.y * int64_t(kTile), n0 = blockIdx.x * int64_t(kTile), out = p.dy.shape[1],
                in = p.x.shape[1];
  float sum[kEach][kEach] = {};
  tile_product(
      sum, end - begin,
      [&](int m, int64_t k) {
        return m0 + m < out && begin + k < end ? to_float(at<T>(p.dy, begin + k)[m0 + m]) : 0.0f;
      },
      [&](int n, int64_t k) {
        return n0 + n < in && begin + k < end ? to_float(at<T>(p.x, begin + k)[n0 + n]) : 0.0f;
      });
  const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
  for (int i = 0; i < kEach; ++i)
    for (int j = 0; j < kEach; ++j) {
      const int64_t m = m0 + ty * kEach + i, n = n0 + tx * kEach + j;
      if (m >= out || n >= in) continue;
      G* g = static_cast<G*>(p.grad.data) + blockIdx.z * p.grad.stride[0] + m * p.grad.stride[1] + n;
      *g = from_float<G>(to_float(*g) + sum[i][j]);
    }
}

}  // namespace

bool plain_product(Kind kind, const Product& p, cudaStream_t stream) {
  // As many row tiles as there can be: every expert may end with a part of one.
  const int64_t rows = p.a.shape[0], tiles = ceil_div(rows, kTile) + std::min(rows, p.w.shape[0]);
  const dim3 grid(unsigned(tiles), unsigned(ceil_div(p.c.shape[1], kTile)));
  return with_type(p.a.dtype, [&](auto t) {
    using T = decltype(t);
    if (kind == Kind::forward)
      product_kernel<T, Kind::forward><<<grid, kThreads, 0, stream>>>(p);
    else
      product_kernel<T, Kind::dx><<<grid, kThreads, 0, stream>>>(p);
  });
}

bool plain_gradient(const WeightGradient& p, cudaStream_t stream) {
  bool ok = false;
  with_type(p.dy.dtype, [&](auto t) {
    ok = with_type(p.grad.dtype, [&](auto g) {
      // The grid's third dimension ends at 65,535 experts.
      const int64_t experts = p.grad.shape[0];
      for (int64_t first = 0; first < experts; first += 65535) {
        WeightGradient part = p;
        part.offset += first;
        part.grad.data = static_cast<decltype(g)*>(p.grad.data) + first * p.grad.stride[0];
        const dim3 grid(unsigned(ceil_div(p.x.shape[1], kTile)), unsigned(ceil_div(p.dy.shape[1], kTile)),
                        unsigned(std::min<int64_t>(65535, experts - first)));
        gradient_kernel<decltype(t), decltype(g)><<<grid, kThreads, 0, stream>>>(part);
      }
    });
  });
  return ok;
}

}  // namespace hysparse::cuda::experts
