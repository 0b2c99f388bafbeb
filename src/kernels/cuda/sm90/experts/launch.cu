// Host side of the grouped products for Hopper: whether they take a shape, and tensor maps. All experts are
// one 3D map, since they stand at equal distances.
#include "kernels/cuda/sm90/experts/launch.h"

#include <algorithm>

#include "kernels/cuda/common/batch.h"
#include "kernels/cuda/common/device.h"
#include "kernels/cuda/common/tensor_map.h"
#include "kernels/cuda/sm90/experts/config.h"
#include "kernels/cuda/sm90/experts/gradient.cuh"
#include "kernels/cuda/sm90/experts/rows.cuh"

namespace hysparse::cuda::experts {
namespace {

bool suits(const View& v) {
  bool ok = v.dtype == HYSPARSE_DTYPE_BF16 && reinterpret_cast<uintptr_t>(v.data) % 16 == 0 &&
            v.shape[v.rank - 1] % 8 == 0;
  for (int d = 0; d < v.rank; ++d) ok = ok && v.shape[d] < (int64_t(1) << 30);
  for (int d = 0; d + 1 < v.rank; ++d) ok = ok && v.stride[d] % 8 == 0 && v.stride[d] < (int64_t(1) << 38);
  return ok;
}

// The number of SMs, or 0 where the device does not run these kernels.
template <class Kernel>
int processors(Kernel kernel) {
  bool hopper = false;
  int device = 0, count = 0;
  if (compute_capability() != 90 || built_for_hopper(kernel, hopper) != cudaSuccess || !hopper ||
      cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device) != cudaSuccess) {
    (void)cudaGetLastError();
    return 0;
  }
  return count;
}

template <class Kernel, class Params>
int launch(Kernel kernel, const Params& p, int bytes, int ctas, cudaStream_t stream) {
  cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (e == cudaSuccess) {
    kernel<<<ctas, kThreads, bytes, stream>>>(p);
    e = cudaGetLastError();
  }
  return check_cuda(e, "grouped product");
}

int rows_map(CUtensorMap* map, const View& v, int box, const char* name) {
  return make_tensor_map(map, {v.data, v.stride[0], v.stride[0]}, v.shape[0], 1, int(v.shape[1]), box, name);
}

template <bool kTransposed>
bool run_product(const Product& p, const Product* second, cudaStream_t stream, int& code) {
  const int sms = processors(rows_kernel<kTransposed>);
  if (sms == 0) return false;
  RowsParams k{};
  code = HYSPARSE_OK;
  for (int i = 0; i < (second ? 2 : 1); ++i) {
    const Product& one = i == 0 ? p : *second;
    const hysparse_cuda_tensor w{one.w.data, one.w.stride[0], one.w.stride[1]};
    code = make_tensor_map(&k.weights[i], w, one.w.shape[0], int(one.w.shape[1]), int(one.w.shape[2]), 1,
                           "weights", kTransposed ? kDepth : Rows::kM);
    if (code == HYSPARSE_OK) code = rows_map(&k.a[i], one.a, Rows::kBox, "rows");
    if (code != HYSPARSE_OK) return true;
    k.c[i] = static_cast<__nv_bfloat16*>(one.c.data);
    k.c_stride[i] = one.c.stride[0];
  }
  k.sources = kTransposed && second ? 2 : 1;
  k.outputs = !kTransposed && second ? 2 : 1;
  k.offset = p.offset;
  k.experts = int(p.w.shape[0]);
  k.m = int(p.c.shape[1]);
  k.k = int(p.a.shape[1]);
  k.accumulate = p.accumulate;
  // No more CTAs than there can be tiles.
  const int64_t tiles = ((p.a.shape[0] + Rows::kN - 1) / Rows::kN + std::min(p.a.shape[0], p.w.shape[0])) *
                        ((p.c.shape[1] + Rows::kM - 1) / Rows::kM) * k.outputs;
  code = launch(rows_kernel<kTransposed>, k, Rows::kBytes, int(std::min<int64_t>(sms, tiles)), stream);
  return true;
}

template <class T>
bool run_gradient(const WeightGradient& p, cudaStream_t stream, int& code) {
  const int sms = processors(gradient_kernel<T>);
  if (sms == 0) return false;
  GradientParams k{};
  code = rows_map(&k.dy, p.dy, kDepth, "gradient rows");
  if (code == HYSPARSE_OK) code = rows_map(&k.x, p.x, kDepth, "rows");
  if (code != HYSPARSE_OK) return true;
  k.offset = p.offset;
  k.experts = int(p.grad.shape[0]);
  k.m = int(p.dy.shape[1]);
  k.n = int(p.x.shape[1]);
  k.grad = p.grad.data;
  k.expert_stride = p.grad.stride[0];
  k.row_stride = p.grad.stride[1];
  code = launch(gradient_kernel<T>, k, Gradient::kBytes, sms, stream);
  return true;
}

}  // namespace

bool fast_product(Kind kind, const Product& p, const Product* second, cudaStream_t stream, int& code) {
  if (!suits(p.a) || !suits(p.c) || !suits(p.w) || p.w.shape[0] > kMostExperts || p.a.shape[1] == 0)
    return false;
  if (second && (!suits(second->a) || !suits(second->c) || !suits(second->w))) return false;
  return kind == Kind::dx ? run_product<true>(p, second, stream, code)
                          : run_product<false>(p, second, stream, code);
}

bool fast_gradient(const WeightGradient& p, cudaStream_t stream, int& code) {
  const bool narrow = p.grad.dtype == HYSPARSE_DTYPE_BF16;
  if (!suits(p.dy) || !suits(p.x) || p.grad.shape[0] > kMostExperts ||
      (!narrow && p.grad.dtype != HYSPARSE_DTYPE_F32) || reinterpret_cast<uintptr_t>(p.grad.data) % 16 != 0 ||
      p.grad.stride[0] % 8 != 0 || p.grad.stride[1] % 8 != 0)
    return false;
  return narrow ? run_gradient<__nv_bfloat16>(p, stream, code) : run_gradient<float>(p, stream, code);
}

}  // namespace hysparse::cuda::experts
