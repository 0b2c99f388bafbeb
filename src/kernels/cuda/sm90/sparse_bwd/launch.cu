#include "kernels/cuda/sm90/sparse_bwd/launch.h"

#include <algorithm>
#include <cstddef>
#include <string>

#include "kernels/cuda/common/attention_stats.h"
#include "kernels/cuda/common/tensor_map.h"
#include "kernels/cuda/sm90/sparse_bwd/instantiate.h"

namespace hysparse::cuda::sparse_bwd {
namespace {

constexpr size_t kBudget = size_t(2) << 30;

size_t align(size_t bytes) {
  return (bytes + 255) & ~size_t(255);
}
// Partial dQ rows of one KV head of a pass.
size_t partial_rows(const Arguments& a) {
  return size_t(a.index->pass_tokens()) * size_t(a.index->slots) * size_t(a.q_heads / a.kv_heads);
}
// Items of one KV head of a pass that can share a block with others.
int share_capacity(const Arguments& a) {
  if (a.window) return 0;
  const size_t pairs = size_t(a.index->pass_tokens()) * size_t(a.index->slots);
  return int(std::min(pairs / size_t(a.index->item_pairs) + size_t(a.index->blocks),
                      size_t(a.index->item_capacity)));
}
size_t share_bytes(const Arguments& a) {
  return size_t(share_capacity(a)) * 64 * size_t(a.head_dim + a.v_head_dim) * 4;
}
int heads_a_launch(const Arguments& a) {
  const size_t head = partial_rows(a) * size_t(a.head_dim) * 2 + share_bytes(a);
  return int(std::clamp<size_t>(kBudget / head, 1, size_t(std::min(a.kv_heads, kMaxHeads))));
}

int launches(const Arguments& a) {
  const int heads = heads_a_launch(a);
  return a.index->passes * ((a.kv_heads + heads - 1) / heads);
}

struct Layout {
  size_t next, delta, sinks, partial, shares, total;
};
Layout layout_of(const Arguments& a) {
  Layout l{};
  const size_t heads = size_t(heads_a_launch(a));
  l.next = 0;
  l.delta = align(size_t(launches(a)) * 4);
  l.sinks = l.delta + (a.delta ? 0 : align(size_t(a.batch->tokens) * size_t(a.q_heads) * 4));
  l.partial = l.sinks + align(sink_gradient_workspace(a.batch->tokens, a.q_heads));
  l.shares = l.partial + align(heads * partial_rows(a) * size_t(a.head_dim) * 2);
  l.total = l.shares + align(heads * share_bytes(a));
  return l;
}

constexpr int kShareRows = 8;

// Adds the sums of the items that share a block, in order. A CTA a (block, KV head, kShareRows keys).
__global__ void __launch_bounds__(256) share_kernel(const ShareParams p) {
  const int block = blockIdx.x, launch_head = blockIdx.y, head = p.head0 + launch_head;
  const int32_t* starts = p.index.item_start + int64_t(head) * (p.index.passes * p.index.blocks + 1) +
                          int64_t(p.pass) * p.index.blocks;
  const int first = starts[block] - starts[0], count = starts[block + 1] - starts[block];
  if (count < 2) return;
  const BlockSpan span = p.index.spans[block];
  const int width = p.d + p.dv, live = min(span.live, 64);
  const float* from = p.shares + (int64_t(launch_head) * p.share_capacity + first) * 64 * width;
  const int row0 = blockIdx.z * kShareRows, end = min(row0 + kShareRows, live);
  for (int i = row0 * (width / 4) + threadIdx.x; i < end * (width / 4); i += 256) {
    const int row = i / (width / 4), column = i % (width / 4) * 4;
    float4 sum{0, 0, 0, 0};
#pragma unroll 8
    for (int s = 0; s < count; ++s) {
      const float4 x =
          __ldcs(reinterpret_cast<const float4*>(from + (int64_t(s) * 64 + row) * width + column));
      sum.x += x.x;
      sum.y += x.y;
      sum.z += x.z;
      sum.w += x.w;
    }
    float* to = column < p.d
                    ? p.dk + int64_t(span.kv_row + row) * p.dk_stride_row + head * p.dk_stride_head + column
                    : p.dv_out + int64_t(span.kv_row + row) * p.dv_stride_row + head * p.dv_stride_head +
                          column - p.d;
    float4 y = *reinterpret_cast<const float4*>(to);
    y.x += sum.x;
    y.y += sum.y;
    y.z += sum.z;
    y.w += sum.w;
    *reinterpret_cast<float4*>(to) = y;
  }
}

int check_rows(const hysparse_cuda_tensor& t, int multiple, const char* name) {
  if (reinterpret_cast<uintptr_t>(t.data) % 16 != 0 || t.stride_row % multiple != 0 ||
      t.stride_head % multiple != 0)
    return fail(HYSPARSE_BAD_ARGUMENT,
                std::string(name) + ": address and strides must be multiples of 16 bytes");
  return HYSPARSE_OK;
}

// Rows are found by a 32-bit number of 16-byte units.
int check_gathered(const hysparse_cuda_tensor& t, int64_t rows, int64_t heads, const char* name) {
  if (int e = check_rows(t, 8, name)) return e;
  if (t.stride_row < 0 || t.stride_head < 0 ||
      ((rows - 1) * t.stride_row + (heads - 1) * t.stride_head) / 8 > int64_t(UINT32_MAX))
    return fail(HYSPARSE_UNSUPPORTED,
                std::string(name) + ": strides must be positive and span at most 64 GiB");
  return HYSPARSE_OK;
}

}  // namespace

bool takes(int head_dim, int v_head_dim) {
  return find_kernels(head_dim, v_head_dim).main != nullptr;
}

Kernels find_kernels(int head_dim, int v_head_dim) {
  if (head_dim == 192 && v_head_dim == 128) return kernels_192();
  if (head_dim != v_head_dim) return {};
  switch (head_dim) {
    case 64:
      return kernels_64();
    case 96:
      return kernels_96();
    case 128:
      return kernels_128();
    case 256:
      return kernels_256();
    default:
      return {};
  }
}

size_t workspace(const Arguments& a) {
  return layout_of(a).total;
}

int run(const Arguments& a, cudaStream_t stream) {
  const Layout l = layout_of(a);
  auto* base = static_cast<std::byte*>(a.workspace);
  if (int e = check_gathered(a.q, a.batch->tokens, a.q_heads, "q")) return e;
  if (int e = check_rows(a.o, 8, "o")) return e;
  if (int e = check_gathered(a.d_o, a.batch->tokens, a.q_heads, "d_o")) return e;
  if (int e = check_rows(a.dq, 8, "dq")) return e;
  if (int e = check_rows(a.dk, 4, "dk")) return e;
  if (int e = check_rows(a.dv, 4, "dv")) return e;
  const float* delta = a.delta;
  if (!delta) {
    auto* own = reinterpret_cast<float*>(base + l.delta);
    if (int e = check_cuda(attention_delta(a.o, a.d_o, a.batch->tokens, a.q_heads, a.v_head_dim, own, stream),
                           "attention backward delta"))
      return e;
    delta = own;
  }
  if (a.dsinks) {
    if (int e = check_cuda(sink_gradient(a.sinks, a.lse, delta, a.batch->tokens, a.q_heads, a.dsinks,
                                         base + l.sinks, stream),
                           "sink gradient"))
      return e;
  }
  const Kernels kernels = find_kernels(a.head_dim, a.v_head_dim);
  Params p{};
  if (int e = make_tensor_map(&p.k, a.k, a.kv_rows, a.kv_heads, a.head_dim, 64, "k")) return e;
  if (int e = make_tensor_map(&p.v, a.v, a.kv_rows, a.kv_heads, a.v_head_dim, 64, "v")) return e;
  p.index = *a.index;
  p.ratio = a.q_heads / a.kv_heads;

  p.slots_inverse = uint32_t((uint64_t(1) << 32) / uint64_t(p.index.slots) +
                             ((uint64_t(1) << 32) % uint64_t(p.index.slots) != 0 ? 1 : 0));
  p.window = a.window;
  p.scale = a.scale;
  p.scale_log2 = a.scale * 1.4426950408889634f;
  auto* next = reinterpret_cast<uint32_t*>(base + l.next);
  if (int e = check_cuda(cudaMemsetAsync(next, 0, size_t(launches(a)) * 4, stream), "attention backward"))
    return e;
  p.q = static_cast<const __nv_bfloat16*>(a.q.data);
  p.q_unit_row = uint32_t(a.q.stride_row / 8);
  p.q_unit_head = uint32_t(a.q.stride_head / 8);
  p.d_o = static_cast<const __nv_bfloat16*>(a.d_o.data);
  p.o_unit_row = uint32_t(a.d_o.stride_row / 8);
  p.o_unit_head = uint32_t(a.d_o.stride_head / 8);
  p.lse = a.lse;
  p.delta = delta;
  p.q_heads = a.q_heads;
  p.dk = static_cast<float*>(a.dk.data);
  p.dk_stride_row = a.dk.stride_row;
  p.dk_stride_head = a.dk.stride_head;
  p.dv = static_cast<float*>(a.dv.data);
  p.dv_stride_row = a.dv.stride_row;
  p.dv_stride_head = a.dv.stride_head;
  p.partial = reinterpret_cast<__nv_bfloat16*>(base + l.partial);
  p.shares = reinterpret_cast<float*>(base + l.shares);
  p.share_capacity = share_capacity(a);
  CombineParams c{p.index,
                  0,
                  0,
                  p.ratio,
                  a.scale,
                  p.partial,
                  static_cast<__nv_bfloat16*>(a.dq.data),
                  a.dq.stride_row,
                  a.dq.stride_head};
  ShareParams s{p.index,          0,    0,    a.head_dim,      a.v_head_dim,     p.shares,
                p.share_capacity, p.dk, p.dv, p.dk_stride_row, p.dk_stride_head, p.dv_stride_row,
                p.dv_stride_head};
  int device = 0, ctas = 0;
  if (int e = check_cuda(cudaGetDevice(&device), "device")) return e;
  if (int e = check_cuda(cudaDeviceGetAttribute(&ctas, cudaDevAttrMultiProcessorCount, device), "device"))
    return e;
  const int heads = heads_a_launch(a);
  for (int pass = 0; pass < p.index.passes; ++pass)
    for (int head = 0; head < a.kv_heads; head += heads) {
      p.pass = c.pass = s.pass = pass;
      p.head0 = c.head0 = s.head0 = head;
      p.heads = std::min(heads, a.kv_heads - head);
      p.next = next++;
      if (int e = check_cuda(kernels.main(p, ctas, stream), "sparse attention backward")) return e;
      if (p.share_capacity > 0) {
        share_kernel<<<dim3(p.index.blocks, p.heads, 64 / kShareRows), 256, 0, stream>>>(s);
        if (int e = check_cuda(cudaGetLastError(), "sparse attention dk, dv")) return e;
      }
      if (int e = check_cuda(kernels.combine(c, p.heads, stream), "sparse attention dq")) return e;
    }
  return HYSPARSE_OK;
}

}  // namespace hysparse::cuda::sparse_bwd
