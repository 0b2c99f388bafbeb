// A layer's experts for few tokens, bound by reading the matrices of the active ones once: gate, up and the
// nonlinearity in one launch, down and the sum over a token's experts in another. A warp a column; every sum
// has one order.
#include <cuda_fp8.h>

#include "hysparse/cuda_experts.h"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/sm80/elem/launch.h"
#include "kernels/cuda/sm80/experts/find.cuh"

namespace hysparse::cuda::experts {
namespace {

using bf16 = __nv_bfloat16;
constexpr int kWarps = 8, kRows = 4, kMostActive = 32;
constexpr int kMostRows = 64, kMostRowsF8 = 128;  // beyond, grouped products are faster

// 16 bytes of a matrix: products with as many elements of x.
template <class W>
struct Run;
template <>
struct Run<bf16> {
  static constexpr int kCount = 8;
  float x[8];
  __device__ explicit Run(const uint4& packed) {
    const auto* p = reinterpret_cast<const __nv_bfloat162*>(&packed);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 v = __bfloat1622float2(p[i]);
      x[2 * i] = v.x;
      x[2 * i + 1] = v.y;
    }
  }
};
template <>
struct Run<__nv_fp8_e4m3> {
  static constexpr int kCount = 16;
  float x[16];
  __device__ explicit Run(const uint4& packed) {
    const auto* p = reinterpret_cast<const __nv_fp8x2_storage_t*>(&packed);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float2 v = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(p[i], __NV_E4M3)));
      x[2 * i] = v.x;
      x[2 * i + 1] = v.y;
    }
  }
};
template <class W>
__device__ float dot(const Run<W>& w, const bf16* x) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < Run<W>::kCount / 8; ++i) {
    const Run<bf16> v(*reinterpret_cast<const uint4*>(x + 8 * i));
#pragma unroll
    for (int j = 0; j < 8; ++j) sum = fmaf(w.x[8 * i + j], v.x[j], sum);
  }
  return sum;
}
template <class W>
__device__ uint4 load(const W* p) {
  return __ldcs(reinterpret_cast<const uint4*>(p));
}
__device__ float scale_of(const View& scales, int64_t expert, int64_t row) {
  return scales.data
             ? static_cast<const float*>(scales.data)[expert * scales.stride[0] + row * scales.stride[1]]
             : 1.0f;
}

struct Params {
  hysparse_cuda_expert_mlp_params p;
  bf16* h;          // [R, f]
  int32_t* expert;  // [R]
  int f, hidden, k, experts;
};

// Column c of the hidden rows [row, row + kCount) of expert e.
template <class W, int kCount>
__device__ void hidden_column(const Params& a, int e, int row, int c) {
  constexpr int kEach = Run<W>::kCount, kStep = 32 * kEach, kUnroll = 4;
  const int lane = threadIdx.x % 32;
  const W *gate = static_cast<const W*>(a.p.gate.data) + e * a.p.gate.stride[0] + c * a.p.gate.stride[1],
          *up = static_cast<const W*>(a.p.up.data) + e * a.p.up.stride[0] + c * a.p.up.stride[1];
  const auto* source = static_cast<const int32_t*>(a.p.source.data);
  const bf16* x[kCount];
  int assignment[kCount];
  float g[kCount] = {}, u[kCount] = {};
#pragma unroll
  for (int r = 0; r < kCount; ++r) {
    assignment[r] = source[row + r];
    x[r] = static_cast<const bf16*>(a.p.x.data) + assignment[r] / a.k * a.p.x.stride[0];
  }
  const auto add = [&](const uint4& packed_gate, const uint4& packed_up, int i) {
    const Run<W> wg(packed_gate), wu(packed_up);
#pragma unroll
    for (int r = 0; r < kCount; ++r) {
      g[r] += dot(wg, x[r] + i);
      u[r] += dot(wu, x[r] + i);
    }
  };
  int i = lane * kEach;
  for (; i + (kUnroll - 1) * kStep < a.hidden; i += kUnroll * kStep) {
    uint4 pg[kUnroll], pu[kUnroll];
#pragma unroll
    for (int j = 0; j < kUnroll; ++j) {
      pg[j] = load(gate + i + j * kStep);
      pu[j] = load(up + i + j * kStep);
    }
#pragma unroll
    for (int j = 0; j < kUnroll; ++j) add(pg[j], pu[j], i + j * kStep);
  }
  for (; i < a.hidden; i += kStep) add(load(gate + i), load(up + i), i);
  const float gate_scale = scale_of(a.p.gate_scales, e, c), up_scale = scale_of(a.p.up_scales, e, c);
#pragma unroll
  for (int r = 0; r < kCount; ++r) {
    const float y = warp_total(g[r]) * gate_scale, z = warp_total(u[r]) * up_scale;
    if (lane == 0)
      a.h[int64_t(row + r) * a.f + c] = __float2bfloat16_rn(
          static_cast<const float*>(a.p.weights.data)[assignment[r]] * y / (1.0f + expf(-y)) * z);
  }
}

// blockIdx.y: a row; the CTAs of every fourth row of an expert do that row and the three behind it.
template <class W>
__global__ void __launch_bounds__(kWarps * 32) hidden_kernel(const __grid_constant__ Params a) {
  wait_for_launcher();  // it fills the GPU: what follows starts at its end
  const auto* offset = static_cast<const int32_t*>(a.p.offset.data);
  const int row = int(blockIdx.y), e = expert_of(offset, a.experts, row), begin = offset[e],
            end = offset[e + 1];
  if (row < begin || row >= end || (row - begin) % kRows != 0) return;
  const int count = min(kRows, end - row), c = int(blockIdx.x) * kWarps + int(threadIdx.x) / 32;
  if (blockIdx.x == 0 && int(threadIdx.x) < count) a.expert[row + threadIdx.x] = e;
  if (c >= a.f) return;
  switch (count) {
    case 1:
      return hidden_column<W, 1>(a, e, row, c);
    case 2:
      return hidden_column<W, 2>(a, e, row, c);
    case 3:
      return hidden_column<W, 3>(a, e, row, c);
    default:
      return hidden_column<W, 4>(a, e, row, c);
  }
}

// blockIdx.y: a token. The k rows of its experts' matrices that make column c are read one behind the other.
template <class W>
__global__ void __launch_bounds__(kWarps * 32) down_kernel(const __grid_constant__ Params a) {
  constexpr int kEach = Run<W>::kCount, kUnroll = 4;
  __shared__ int32_t slots[kMostActive], experts[kMostActive];
  wait_for_launcher();
  const int t = int(blockIdx.y), c = int(blockIdx.x) * kWarps + int(threadIdx.x) / 32,
            lane = threadIdx.x % 32;
  if (int(threadIdx.x) < a.k) {
    const int slot = static_cast<const int32_t*>(a.p.slot.data)[t * a.k + threadIdx.x];
    slots[threadIdx.x] = slot;
    experts[threadIdx.x] = a.expert[slot];
  }
  __syncthreads();
  if (c >= a.hidden) return;
  const W* down = static_cast<const W*>(a.p.down.data) + c * a.p.down.stride[1];
  const int each = a.f / kEach, total = a.k * each;
  float sum = 0;
  for (int first = lane; first < total; first += 32 * kUnroll) {
    uint4 packed[kUnroll];
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      const int at = first + i * 32, j = at / each;
      if (at < total) packed[i] = load(down + experts[j] * a.p.down.stride[0] + (at - j * each) * kEach);
    }
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      const int at = first + i * 32, j = at / each;
      if (at >= total) continue;
      const bf16* h = a.h + int64_t(slots[j]) * a.f + (at - j * each) * kEach;
      sum += scale_of(a.p.down_scales, experts[j], c) * dot(Run<W>(packed[i]), h);
    }
  }
  sum = warp_total(sum);
  if (lane == 0) static_cast<bf16*>(a.p.y.data)[t * a.p.y.stride[0] + c] = __float2bfloat16_rn(sum);
}

bool aligned(const View& v, int count) {
  bool ok = reinterpret_cast<uintptr_t>(v.data) % 16 == 0 && v.shape[v.rank - 1] % count == 0;
  for (int d = 0; d + 1 < v.rank; ++d) ok = ok && v.stride[d] % count == 0;
  return ok;
}

bool takes(const hysparse_cuda_expert_mlp_params& p) {
  const bool f8 = p.gate.dtype == HYSPARSE_DTYPE_F8;
  const int count = f8 ? 16 : 8;
  if (!f8 && p.gate.dtype != HYSPARSE_DTYPE_BF16) return false;
  for (const View* v : {&p.gate, &p.up, &p.down})
    if (v->dtype != p.gate.dtype || v->rank != 3 || !aligned(*v, count)) return false;
  for (const View* v : {&p.gate_scales, &p.up_scales, &p.down_scales})
    if ((v->data != nullptr) != f8) return false;
  return p.x.dtype == HYSPARSE_DTYPE_BF16 && p.y.dtype == HYSPARSE_DTYPE_BF16 && aligned(p.x, 8) &&
         p.slot.shape[1] <= kMostActive &&
         p.slot.shape[0] * p.slot.shape[1] <= (f8 ? kMostRowsF8 : kMostRows) &&
         p.gate.shape[1] <= INT32_MAX / 2 && p.gate.shape[2] <= INT32_MAX / 2 && p.gate.shape[1] % count == 0;
}

template <class W>
int launch(const Params& a, int64_t rows, int64_t n, cudaStream_t stream) {
  cudaError_t e = launch_overlapped<hidden_kernel<W>>(dim3(unsigned(ceil_div(a.f, kWarps)), unsigned(rows)),
                                                      kWarps * 32, stream, {}, a);
  if (e == cudaSuccess)
    e = launch_overlapped<down_kernel<W>>(dim3(unsigned(ceil_div(a.hidden, kWarps)), unsigned(n)),
                                          kWarps * 32, stream, {}, a);
  return check_cuda(e, "expert_mlp");
}

size_t hidden_bytes(int64_t rows, int64_t f) {
  return (size_t(rows) * size_t(f) * sizeof(bf16) + 255) / 256 * 256;
}

}  // namespace
}  // namespace hysparse::cuda::experts

using namespace hysparse::cuda;
using namespace hysparse::cuda::experts;

extern "C" {

size_t hysparse_cuda_expert_mlp_workspace(int64_t rows, int64_t f) {
  return hidden_bytes(rows, f) + size_t(rows) * sizeof(int32_t);
}

int hysparse_cuda_expert_mlp(const hysparse_cuda_expert_mlp_params* p, void* workspace,
                             size_t workspace_bytes, hysparse_stream stream) {
  constexpr const char* op = "expert_mlp";
  if (!takes(*p)) return fail(HYSPARSE_UNSUPPORTED, "expert_mlp: few rows of bf16 alone");
  const int64_t n = p->slot.shape[0], k = p->slot.shape[1], f = p->gate.shape[1], hidden = p->gate.shape[2];
  if (!same_shape(p->gate, p->up) || p->down.shape[0] != p->gate.shape[0] || p->down.shape[1] != hidden ||
      p->down.shape[2] != f || p->x.shape[0] != n || p->x.shape[1] != hidden || !same_shape(p->x, p->y) ||
      p->offset.shape[0] != p->gate.shape[0] + 1)
    return refuse(op, "shapes do not fit");
  if (n == 0) return HYSPARSE_OK;
  if (!workspace || workspace_bytes < hysparse_cuda_expert_mlp_workspace(n * k, f))
    return refuse(op, "the workspace is too small");
  Params a{*p,
           static_cast<__nv_bfloat16*>(workspace),
           nullptr,
           int(f),
           int(hidden),
           int(k),
           int(p->gate.shape[0])};
  a.expert = reinterpret_cast<int32_t*>(static_cast<char*>(workspace) + hidden_bytes(n * k, f));
  return p->gate.dtype == HYSPARSE_DTYPE_F8 ? launch<__nv_fp8_e4m3>(a, n * k, n, stream)
                                            : launch<__nv_bfloat16>(a, n * k, n, stream);
}

}  // extern "C"
