// Which rows belong to which expert: a stable sort of the assignments by expert.
#include <cub/cub.cuh>

#include "hysparse/cuda_experts.h"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/sm80/elem/launch.h"

namespace hysparse::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kFew = 256;  // assignments that one CTA sorts by counting
constexpr int32_t kIgnore = -100;

struct Tables {
  int32_t *offset, *source, *slot;
};

// Few assignments (decoding): each finds its place by counting those before it.
__global__ void __launch_bounds__(kFew) few_kernel(const int32_t* chosen, int rows, int experts, Tables out) {
  __shared__ int32_t key[kFew], sorted[kFew];
  join_stream();
  const int i = threadIdx.x;
  if (i < rows) key[i] = chosen[i];
  __syncthreads();
  if (i < rows) {
    const int32_t mine = key[i];
    int at = 0;
    for (int o = 0; o < rows; ++o) at += key[o] < mine || (key[o] == mine && o < i);
    sorted[at] = mine;
    out.source[at] = i;
    out.slot[i] = at;
  }
  __syncthreads();
  for (int e = i; e <= experts; e += kFew) {
    int low = 0, high = rows;  // the first of sorted[] that is at least e
    while (low < high) {
      const int middle = (low + high) / 2;
      if (sorted[middle] < e)
        low = middle + 1;
      else
        high = middle;
    }
    out.offset[e] = low;
  }
}

__global__ void number_kernel(int32_t* index, int64_t n) {
  const int64_t i = blockIdx.x * int64_t(kThreads) + threadIdx.x;
  if (i < n) index[i] = int32_t(i);
}

// From sorted experts: the inverse of source, and where each expert begins.
__global__ void places_kernel(const int32_t* sorted, int64_t rows, int experts, Tables out) {
  const int64_t row = blockIdx.x * int64_t(kThreads) + threadIdx.x;
  if (row >= rows) return;
  out.slot[out.source[row]] = int32_t(row);
  const auto within = [&](int32_t e) { return min(max(e, -1), experts); };
  const int own = within(sorted[row]), before = row > 0 ? within(sorted[row - 1]) : -1;
  for (int e = before + 1; e <= own; ++e) out.offset[e] = int32_t(row);
  if (row + 1 == rows)
    for (int e = own + 1; e <= experts; ++e) out.offset[e] = int32_t(rows);
}

// A CTA an expert: load += its rows whose token counts.
__global__ void __launch_bounds__(kThreads)
    load_kernel(const int32_t* offset, const int32_t* source, int k, const int32_t* labels, int64_t* load) {
  const int begin = offset[blockIdx.x], end = offset[blockIdx.x + 1];
  int count = 0;
  if (labels) {
    for (int r = begin + int(threadIdx.x); r < end; r += kThreads) count += labels[source[r] / k] != kIgnore;
    count = cta_total(count);
  } else {
    count = end - begin;
  }
  if (threadIdx.x == 0) load[blockIdx.x] += count;
}

struct SortMemory {
  size_t sorted, index, temporary, total;  // byte offsets
  size_t temporary_bytes;
};
int bits_of(int64_t experts) {
  int bits = 1;
  while (int64_t(1) << bits < experts) ++bits;
  return bits;
}
SortMemory sort_memory(int64_t rows, int64_t experts) {
  SortMemory m{};
  if (rows <= kFew) return m;
  const size_t each = (size_t(rows) * 4 + 255) / 256 * 256;
  cub::DeviceRadixSort::SortPairs(nullptr, m.temporary_bytes, static_cast<const int32_t*>(nullptr),
                                  static_cast<int32_t*>(nullptr), static_cast<const int32_t*>(nullptr),
                                  static_cast<int32_t*>(nullptr), int(rows), 0, bits_of(experts));
  m.index = each;
  m.temporary = 2 * each;
  m.total = m.temporary + m.temporary_bytes;
  return m;
}

}  // namespace
}  // namespace hysparse::cuda

using namespace hysparse::cuda;

extern "C" {

size_t hysparse_cuda_expert_tables_workspace(int64_t rows, int64_t experts) {
  return sort_memory(rows, experts).total;
}

int hysparse_cuda_expert_tables(hysparse_view experts, hysparse_view labels, hysparse_view offset,
                                hysparse_view source, hysparse_view slot, hysparse_view load, void* workspace,
                                size_t workspace_bytes, hysparse_stream stream) {
  constexpr const char* op = "expert_tables";
  const int64_t k = experts->shape[1], rows = experts->shape[0] * k, e = offset->shape[0] - 1;
  if (rows >= INT32_MAX || e < 1 || e >= INT32_MAX / 2) return refuse(op, "too many assignments or experts");
  if (source->shape[0] != rows || !same_shape(*experts, *slot)) return refuse(op, "shapes do not fit");
  const auto* chosen = static_cast<const int32_t*>(experts->data);
  const Tables out{static_cast<int32_t*>(offset->data), static_cast<int32_t*>(source->data),
                   static_cast<int32_t*>(slot->data)};
  if (rows <= kFew) {
    const cudaError_t code =
        launch_overlapped<few_kernel>(1, kFew, stream, {}, chosen, int(rows), int(e), out);
    if (int failed = check_cuda(code, op)) return failed;
  } else {
    const SortMemory m = sort_memory(rows, e);
    if (!workspace || workspace_bytes < m.total) return refuse(op, "the workspace is too small");
    char* base = static_cast<char*>(workspace);
    auto* sorted = reinterpret_cast<int32_t*>(base + m.sorted);
    auto* index = reinterpret_cast<int32_t*>(base + m.index);
    const unsigned grid = unsigned(ceil_div(rows, kThreads));
    number_kernel<<<grid, kThreads, 0, stream>>>(index, rows);
    size_t bytes = m.temporary_bytes;
    const cudaError_t code = cub::DeviceRadixSort::SortPairs(base + m.temporary, bytes, chosen, sorted,
                                                             static_cast<const int32_t*>(index), out.source,
                                                             int(rows), 0, bits_of(e), stream);
    if (int failed = check_cuda(code, op)) return failed;
    places_kernel<<<grid, kThreads, 0, stream>>>(sorted, rows, int(e), out);
  }
  if (load && load->data)
    load_kernel<<<unsigned(e), kThreads, 0, stream>>>(
        out.offset, out.source, int(k), labels ? static_cast<const int32_t*>(labels->data) : nullptr,
        static_cast<int64_t*>(load->data));
  return launched(op);
}

}  // extern "C"
