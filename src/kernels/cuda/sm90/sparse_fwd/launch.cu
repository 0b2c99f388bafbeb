#include "kernels/cuda/sm90/sparse_fwd/launch.h"

#include <algorithm>
#include <cstddef>

#include "kernels/cuda/common/tensor_map.h"
#include "kernels/cuda/sm90/sparse_fwd/instantiate.h"

namespace hysparse::cuda::sparse_fwd {

namespace {

constexpr size_t kPartialBudget = size_t(1) << 30;

// Partial outputs and log-sum-exps of one KV head.
size_t head_bytes(const hysparse_cuda_sparse_params& p) {
  const size_t rows =
      size_t(p.selection->batch->tokens) * size_t(p.selection->entries) * size_t(p.q_heads / p.kv_heads);
  return rows * size_t(p.v_head_dim) * 2 + rows * 4;
}
int heads_a_pass(const hysparse_cuda_sparse_params& p) {
  return int(std::clamp<size_t>(kPartialBudget / head_bytes(p), 1, size_t(p.kv_heads)));
}

}  // namespace

bool takes(const hysparse_cuda_sparse_params& p) {
  return find_kernel(p.head_dim, p.v_head_dim, p.selection->unions.list_block) != nullptr;
}

size_t workspace(const hysparse_cuda_sparse_params& p) {
  return p.selection->gathers ? head_bytes(p) * size_t(heads_a_pass(p)) + 256 : 0;
}

int run(const hysparse_cuda_sparse_params& p, cudaStream_t stream) {
  const int block = p.selection->unions.list_block;
  Params k{};
  if (int e = make_tensor_map(&k.k, p.k, p.kv_rows, p.kv_heads, p.head_dim, block, "k")) return e;
  if (int e = make_tensor_map(&k.v, p.v, p.kv_rows, p.kv_heads, p.v_head_dim, block, "v")) return e;
  k.lists = p.selection->unions;
  k.q = static_cast<const __nv_bfloat16*>(p.q.data);
  k.q_stride_row = p.q.stride_row;
  k.q_stride_head = p.q.stride_head;
  k.kv_heads = p.kv_heads;
  k.ratio = p.q_heads / p.kv_heads;
  k.scale_log2 = p.scale * 1.4426950408889634f;
  k.sinks = p.sinks;
  k.o = static_cast<__nv_bfloat16*>(p.o.data);
  k.o_stride_row = p.o.stride_row;
  k.o_stride_head = p.o.stride_head;
  k.lse = p.lse;
  if (int e = check_cuda(find_kernel(p.head_dim, p.v_head_dim, block)(k, stream), "sparse attention forward"))
    return e;
  if (!p.selection->gathers) return HYSPARSE_OK;

  // Rows of q are found by a 32-bit number of 16-byte units.
  if (p.q.stride_row % 8 != 0 || p.q.stride_head % 8 != 0 || p.q.stride_row < 0 || p.q.stride_head < 0 ||
      (int64_t(p.selection->batch->tokens) * p.q.stride_row + int64_t(p.q_heads) * p.q.stride_head) / 8 >
          int64_t(UINT32_MAX))
    return fail(HYSPARSE_UNSUPPORTED, "q: strides must be positive multiples of 8 and span at most 64 GiB");
  const Gather gather = find_gather(p.head_dim, p.v_head_dim);
  int device = 0, ctas = 0;
  if (int e = check_cuda(cudaGetDevice(&device), "device")) return e;
  if (int e = check_cuda(cudaDeviceGetAttribute(&ctas, cudaDevAttrMultiProcessorCount, device), "device"))
    return e;
  const int pass = heads_a_pass(p);
  const size_t rows = size_t(p.selection->batch->tokens) * size_t(p.selection->entries) * size_t(k.ratio);
  auto* partial = static_cast<__nv_bfloat16*>(p.workspace);
  auto* partial_lse =
      reinterpret_cast<float*>(static_cast<std::byte*>(p.workspace) +
                               (rows * size_t(p.v_head_dim) * 2 * size_t(pass) + 255) / 256 * 256);
  int shift = 0;
  while (1 << shift < k.ratio) ++shift;
  GatherParams g{k.k,
                 k.v,
                 p.selection->index,
                 p.selection->batch->position,
                 k.q,
                 uint32_t(k.q_stride_row / 8),
                 uint32_t(k.q_stride_head / 8),
                 k.ratio,
                 shift,
                 0,
                 0,
                 k.scale_log2,
                 partial,
                 partial_lse};
  CombineParams c{k.lists,
                  p.selection->idx,
                  p.selection->batch->position,
                  p.selection->entries,
                  p.selection->batch->tokens,
                  p.kv_heads,
                  k.ratio,
                  0,
                  partial,
                  partial_lse,
                  p.sinks,
                  k.o,
                  k.o_stride_row,
                  k.o_stride_head,
                  p.lse};
  for (int head = 0; head < p.kv_heads; head += pass) {
    g.head0 = c.head0 = head;
    g.heads = std::min(pass, p.kv_heads - head);
    if (int e = check_cuda(gather.partials(g, ctas, stream), "sparse attention partials")) return e;
    if (int e = check_cuda(gather.combine(c, g.heads, stream), "sparse attention combine")) return e;
  }
  return HYSPARSE_OK;
}

}  // namespace hysparse::cuda::sparse_fwd
