// Products through cuBLASLt, and a plain kernel where it offers none (odd alignments).
#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>

#include "kernels/cuda/sm80/elem/launch.h"
#include "kernels/cuda/sm80/elem/products.h"

namespace hysparse::cuda {
namespace {

constexpr int kTile = 16;

// c[i, j] (+)= sum_k a(i, k) b(k, j)
template <class T, class Out>
__global__ void plain_kernel(View a, bool a_transposed, View b, bool b_transposed, View c, int64_t depth,
                             bool accumulate) {
  __shared__ float x[kTile][kTile + 1], y[kTile][kTile + 1];
  const int64_t i = blockIdx.y * int64_t(kTile) + threadIdx.y, j = blockIdx.x * int64_t(kTile) + threadIdx.x;
  float sum = 0;
  for (int64_t k0 = 0; k0 < depth; k0 += kTile) {
    const int64_t ka = k0 + threadIdx.x, kb = k0 + threadIdx.y;
    x[threadIdx.y][threadIdx.x] = i < c.shape[0] && ka < depth
                                      ? to_float(a_transposed ? row_at<T>(a, ka)[i] : row_at<T>(a, i)[ka])
                                      : 0.0f;
    y[threadIdx.y][threadIdx.x] = j < c.shape[1] && kb < depth
                                      ? to_float(b_transposed ? row_at<T>(b, j)[kb] : row_at<T>(b, kb)[j])
                                      : 0.0f;
    __syncthreads();
    for (int k = 0; k < kTile; ++k) sum += x[threadIdx.y][k] * y[k][threadIdx.x];
    __syncthreads();
  }
  if (i >= c.shape[0] || j >= c.shape[1]) return;
  Out* out = row_at<Out>(c, i) + j;
  *out = from_float<Out>(accumulate ? to_float(*out) + sum : sum);
}

// c = sum (+ bias) (+ c), rounded once.
template <class Bias, class Out, int kV, bool kFlat>
__global__ void finish_kernel(View sum, View bias, View c, bool accumulate) {
  const int64_t total = c.shape[0] * c.shape[1] / kV;
  for (int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x; i < total;
       i += int64_t(gridDim.x) * blockDim.x) {
    Out* y = element_at<Out, kFlat>(c, i * kV);
    auto x = load_vector<kV>(element_at<float, kFlat>(sum, i * kV));
    Vector<Out, kV> out;
    if (accumulate) out = load_vector<kV>(y);
    const Bias* b = bias.data ? static_cast<const Bias*>(bias.data) + i * kV % c.shape[1] : nullptr;
#pragma unroll
    for (int j = 0; j < kV; ++j) {
      float z = x.x[j];
      if (b) z += to_float(b[j]);
      if (accumulate) z += to_float(out.x[j]);
      out.x[j] = from_float<Out>(z);
    }
    store_vector(y, out);
  }
}

cudaDataType type_of(int32_t dtype) {
  return dtype == HYSPARSE_DTYPE_BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

struct Product {
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr;
  cublasLtMatmulAlgo_t algorithm{};
  bool usable = false;
  Product() = default;
  Product(const Product&) = delete;
  Product& operator=(const Product&) = delete;
  ~Product() {
    for (auto layout : {a, b, c})
      if (layout) cublasLtMatrixLayoutDestroy(layout);
    if (operation) cublasLtMatmulDescDestroy(operation);
  }
};

uint32_t alignment_of(const View& v) {
  const uint64_t bits = reinterpret_cast<uint64_t>(v.data) | uint64_t(v.stride[0]) * size_of(v.dtype) | 256;
  return uint32_t(bits & (~bits + 1));
}

// Several products of one shape at once, the operands of each so many elements behind those of the one
// before.
struct Series {
  int32_t count = 1;
  int64_t a = 0, b = 0, c = 0;
};

// All that the choice of an algorithm depends on.
using Key = std::array<int64_t, 19>;
Key key_of(int device, const View& a, bool a_transposed, const View& b, bool b_transposed, const View& c,
           int64_t depth, const Series& series, size_t workspace_bytes) {
  return {device,       c.shape[0],      c.shape[1],      depth,           a.stride[0],
          b.stride[0],  c.stride[0],     a.dtype,         c.dtype,         a_transposed,
          b_transposed, alignment_of(a), alignment_of(b), alignment_of(c), int64_t(workspace_bytes),
          series.count, series.a,        series.b,        series.c};
}

// Row-major c = a b is column-major c^T = b^T a^T.
void choose(cublasLtHandle_t lt, const View& a, bool a_transposed, const View& b, bool b_transposed,
            const View& c, int64_t depth, const Series& series, size_t workspace_bytes, Product& p) {
  struct Preference {
    cublasLtMatmulPreference_t handle = nullptr;
    ~Preference() {
      if (handle) cublasLtMatmulPreferenceDestroy(handle);
    }
  } preference;
  const auto set = [&](cublasLtMatmulDescAttributes_t name, const auto& x) {
    return cublasLtMatmulDescSetAttribute(p.operation, name, &x, sizeof x) == CUBLAS_STATUS_SUCCESS;
  };
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t name, const auto& x) {
    return cublasLtMatmulPreferenceSetAttribute(preference.handle, name, &x, sizeof x) ==
           CUBLAS_STATUS_SUCCESS;
  };
  const auto layout = [&](cublasLtMatrixLayout_t& l, const View& v, uint64_t rows, uint64_t columns,
                          int64_t next) {
    const auto with = [&](cublasLtMatrixLayoutAttribute_t name, const auto& x) {
      return cublasLtMatrixLayoutSetAttribute(l, name, &x, sizeof x) == CUBLAS_STATUS_SUCCESS;
    };
    return cublasLtMatrixLayoutCreate(&l, type_of(v.dtype), rows, columns, v.stride[0]) ==
               CUBLAS_STATUS_SUCCESS &&
           (series.count == 1 || (with(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, series.count) &&
                                  with(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, next)));
  };
  const uint64_t m = uint64_t(c.shape[1]), n = uint64_t(c.shape[0]), k = uint64_t(depth);
  const cublasOperation_t op_first = b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N,
                          op_second = a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  bool ok = cublasLtMatmulDescCreate(&p.operation, CUBLAS_COMPUTE_32F, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS;
  ok = ok && set(CUBLASLT_MATMUL_DESC_TRANSA, op_first) && set(CUBLASLT_MATMUL_DESC_TRANSB, op_second);
  ok = ok && layout(p.a, b, b_transposed ? k : m, b_transposed ? m : k, series.b) &&
       layout(p.b, a, a_transposed ? n : k, a_transposed ? k : n, series.a) && layout(p.c, c, m, n, series.c);
  ok = ok && cublasLtMatmulPreferenceCreate(&preference.handle) == CUBLAS_STATUS_SUCCESS;
  // Without split-K reductions, whose order a run might change.
  const uint32_t reduction = CUBLASLT_REDUCTION_SCHEME_NONE;
  ok = ok && prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_bytes) &&
       prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reduction) &&
       prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_of(b)) &&
       prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_of(a)) &&
       prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment_of(c)) &&
       prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment_of(c));
  cublasLtMatmulHeuristicResult_t best{};
  int found = 0;
  p.usable = ok &&
             cublasLtMatmulAlgoGetHeuristic(lt, p.operation, p.a, p.b, p.c, p.c, preference.handle, 1, &best,
                                            &found) == CUBLAS_STATUS_SUCCESS &&
             found > 0;
  p.algorithm = best.algo;
}

// The handle and the chosen products of all devices; a choice costs more than many a product.
struct Library {
  std::mutex mutex;
  std::map<int, cublasLtHandle_t> handles;
  std::map<Key, Product> products;
};
constexpr size_t kMostProducts = 4096;

// False where cuBLASLt has no kernel.
bool library_product(const View& a, bool a_transposed, const View& b, bool b_transposed, const View& c,
                     int64_t depth, const Series& series, bool accumulate, void* workspace,
                     size_t workspace_bytes, cudaStream_t stream, cublasStatus_t& status) {
  static Library library;
  status = CUBLAS_STATUS_SUCCESS;
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return false;
  const std::lock_guard lock(library.mutex);
  cublasLtHandle_t& lt = library.handles[device];
  if (!lt && cublasLtCreate(&lt) != CUBLAS_STATUS_SUCCESS) {
    lt = nullptr;
    return false;
  }
  if (library.products.size() >= kMostProducts) library.products.clear();
  const auto [found, fresh] = library.products.try_emplace(
      key_of(device, a, a_transposed, b, b_transposed, c, depth, series, workspace_bytes));
  Product& p = found->second;
  if (fresh) choose(lt, a, a_transposed, b, b_transposed, c, depth, series, workspace_bytes, p);
  if (!p.usable) return false;
  const float one = 1, beta = accumulate ? 1.0f : 0.0f;
  status = cublasLtMatmul(lt, p.operation, &one, b.data, p.a, a.data, p.b, &beta, c.data, p.c, c.data, p.c,
                          &p.algorithm, workspace, workspace_bytes, stream);
  return true;
}

// c (+)= the sum of parts [count, rows, columns], in order, rounded once.
template <class Out, int kV>
__global__ void sum_parts_kernel(const float* parts, int count, int64_t part_size, View c, bool accumulate) {
  const int64_t i = (blockIdx.x * int64_t(blockDim.x) + threadIdx.x) * kV;
  if (i >= part_size) return;
  Out* y = element_at<Out>(c, i);
  float sum[kV] = {};
  Vector<Out, kV> out;
  if (accumulate) out = load_vector<kV>(y);
#pragma unroll
  for (int j = 0; j < kV; ++j)
    if (accumulate) sum[j] = to_float(out.x[j]);
#pragma unroll 4
  for (int s = 0; s < count; ++s) {
    const auto x = load_vector<kV>(parts + s * part_size + i);
#pragma unroll
    for (int j = 0; j < kV; ++j) sum[j] += x.x[j];
  }
#pragma unroll
  for (int j = 0; j < kV; ++j) out.x[j] = from_float<Out>(sum[j]);
  store_vector(y, out);
}

// Deep products of few tiles (gradients of small weights) leave most of the GPU idle: their depth is cut, the
// parts are multiplied side by side and summed in order. How it is cut depends on the shape alone.
struct Parts {
  int32_t count = 1;
  int64_t depth = 0;  // of each; the last may have more
};
Parts parts_of(const View& c, int64_t depth, size_t workspace_bytes) {
  constexpr int64_t kTile = 128, kLeast = 1024, kRound = 64;
  int device = 0, processors = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device) != cudaSuccess)
    return {};
  const int64_t tiles = ceil_div(c.shape[0], kTile) * ceil_div(c.shape[1], kTile);
  const int64_t room = int64_t(workspace_bytes / 2) / (c.shape[0] * c.shape[1] * int64_t(sizeof(float))) - 1;
  const int64_t count = std::min({processors / tiles, depth / kLeast, room});
  if (count < 2) return {};
  return {int32_t(count), depth / count / kRound * kRound};
}

// False where it is not done.
bool product_in_parts(const View& a, bool a_transposed, const View& b, bool b_transposed, const View& c,
                      int64_t depth, bool accumulate, void* workspace, size_t workspace_bytes,
                      cudaStream_t stream, cublasStatus_t& status) {
  const Parts parts = parts_of(c, depth, workspace_bytes);
  if (parts.count < 2) return false;
  const int64_t size = c.shape[0] * c.shape[1], done = parts.count * parts.depth, rest = depth - done;
  View part = c;
  part.data = workspace;
  part.dtype = HYSPARSE_DTYPE_F32;
  part.stride[0] = c.shape[1];
  const size_t taken = size_t(ceil_div((parts.count + 1) * size * int64_t(sizeof(float)), 256)) * 256;
  void* more = static_cast<char*>(workspace) + taken;
  const auto behind = [&](const View& v, bool along_rows, int64_t by) {  // elements
    return along_rows ? by * v.stride[0] : by;
  };
  const Series series{parts.count, behind(a, a_transposed, parts.depth),
                      behind(b, !b_transposed, parts.depth), size};
  if (!library_product(a, a_transposed, b, b_transposed, part, parts.depth, series, false, more,
                       workspace_bytes - taken, stream, status))
    return false;
  if (status != CUBLAS_STATUS_SUCCESS) return true;
  if (rest > 0) {
    const auto from = [&](const View& v, bool along_rows) {
      View out = v;
      out.data = static_cast<char*>(v.data) + size_t(behind(v, along_rows, done)) * size_of(v.dtype);
      return out;
    };
    View last = part;
    last.data = static_cast<float*>(workspace) + parts.count * size;
    if (!library_product(from(a, a_transposed), a_transposed, from(b, !b_transposed), b_transposed, last,
                         rest, {}, false, more, workspace_bytes - taken, stream, status))
      return false;
    if (status != CUBLAS_STATUS_SUCCESS) return true;
  }
  with_type(c.dtype, [&](auto out) {
    using Out = decltype(out);
    const auto run = [&](auto width) {
      constexpr int kV = decltype(width)::value, kThreads = 256;
      sum_parts_kernel<Out, kV><<<unsigned(ceil_div(size / kV, kThreads)), kThreads, 0, stream>>>(
          static_cast<const float*>(workspace), parts.count + (rest > 0), size, c, accumulate);
    };
    if (vectors_fit(4, c))
      run(std::integral_constant<int, 4>{});
    else
      run(std::integral_constant<int, 1>{});
  });
  return true;
}

}  // namespace
}  // namespace hysparse::cuda

using namespace hysparse::cuda;

extern "C" {

int hysparse_cuda_matmul(hysparse_view a, int32_t a_transposed, hysparse_view b, int32_t b_transposed,
                         hysparse_view c, int32_t accumulate, void* workspace, size_t workspace_bytes,
                         hysparse_stream stream) {
  constexpr const char* op = "matmul";
  if (a->rank != 2 || b->rank != 2 || c->rank != 2) return refuse(op, "needs matrices");
  const int64_t depth = a->shape[a_transposed ? 0 : 1];
  if (b->shape[b_transposed ? 1 : 0] != depth || c->shape[0] != a->shape[a_transposed ? 1 : 0] ||
      c->shape[1] != b->shape[b_transposed ? 0 : 1] || a->dtype != b->dtype)
    return refuse(op, "shapes or dtypes do not fit");
  if (c->shape[0] == 0 || c->shape[1] == 0) return HYSPARSE_OK;
  if (!a_transposed && b_transposed && c->shape[1] <= INT32_MAX / 4 &&
      few_rows_suit(*a, b->data, b->stride[0])) {
    const hysparse_cuda_product one{b->data,      nullptr,        c->data,
                                    b->stride[0], c->stride[0],   int32_t(c->shape[1]),
                                    c->dtype,     accumulate != 0};
    return check_cuda(few_row_products(*a, &one, 1, false, stream), op);
  }
  cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
  if (depth > 0 && (product_in_parts(*a, a_transposed != 0, *b, b_transposed != 0, *c, depth, accumulate != 0,
                                     workspace, workspace_bytes, stream, status) ||
                    library_product(*a, a_transposed != 0, *b, b_transposed != 0, *c, depth, {},
                                    accumulate != 0, workspace, workspace_bytes, stream, status))) {
    if (status == CUBLAS_STATUS_SUCCESS) return launched(op);
    return fail(HYSPARSE_CUDA_ERROR, "matmul: cuBLASLt status " + std::to_string(int(status)));
  }
  const dim3 grid(unsigned(ceil_div(c->shape[1], kTile)), unsigned(ceil_div(c->shape[0], kTile)));
  bool ok = false;
  with_type(a->dtype, [&](auto t) {
    ok = with_type(c->dtype, [&](auto out) {
      plain_kernel<decltype(t), decltype(out)><<<grid, dim3(kTile, kTile), 0, stream>>>(
          *a, a_transposed != 0, *b, b_transposed != 0, *c, depth, accumulate != 0);
    });
  });
  return ok ? launched(op) : unsupported_dtype(op);
}

int hysparse_cuda_finish_product(hysparse_view sum, hysparse_view bias, hysparse_view c, int32_t accumulate,
                                 hysparse_stream stream) {
  constexpr const char* op = "finish_product";
  const View extra = optional_view(bias);
  if (c->rank != 2 || !same_shape(*sum, *c) || (extra.data && extra.shape[0] != c->shape[1]))
    return refuse(op, "shapes differ");
  const int64_t total = c->shape[0] * c->shape[1];
  if (total == 0) return HYSPARSE_OK;
  bool ok = sum->dtype == HYSPARSE_DTYPE_F32;
  ok = ok && with_type(extra.data ? extra.dtype : HYSPARSE_DTYPE_F32, [&](auto t) {
         ok = with_type(c->dtype, [&](auto out) {
           with_layout<4>(
               [&](auto width, auto is_flat) {
                 constexpr int kV = decltype(width)::value;
                 finish_kernel<decltype(t), decltype(out), kV, decltype(is_flat)::value>
                     <<<grid_for(total / kV, 256), 256, 0, stream>>>(*sum, extra, *c, accumulate != 0);
               },
               *sum, *c);
         });
       });
  return ok ? launched(op) : unsupported_dtype(op);
}

}  // extern "C"
