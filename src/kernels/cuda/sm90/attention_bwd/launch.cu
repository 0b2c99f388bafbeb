// Host side of the Hopper backward: checks, tensor maps, workspace, the three kernels.
#include "kernels/cuda/sm90/attention_bwd/launch.h"

#include <algorithm>
#include <string>

#include "kernels/cuda/common/tensor_map.h"
#include "kernels/cuda/sm90/attention_bwd/config.h"
#include "kernels/cuda/sm90/attention_bwd/instantiate.h"

namespace hysparse::cuda::attention_bwd {
namespace {

struct Plan {
  size_t rows, turns, ticket, bytes;  // offsets in the workspace; dQ sums are its start
};

Plan plan(const hysparse_cuda_attention_backward_params& p, const Kernel& kernel, size_t q_tiles) {
  const auto align = [](size_t x) { return (x + 255) / 256 * 256; };
  const size_t slots = size_t(p.q_heads) * q_tiles;
  Plan w;
  w.rows = align(slots * size_t(kernel.tile) * 4);
  w.turns = w.rows + align(slots * 2 * size_t(kernel.m) * 4);
  w.ticket = w.turns + (p.deterministic ? align(slots * 8 * 4) : 0);
  w.bytes = w.ticket + (p.deterministic ? 256 : 0);
  return w;
}

int check_rows(const hysparse_cuda_tensor& t, int unit, const char* name) {
  if (reinterpret_cast<uintptr_t>(t.data) % 16 == 0 && t.stride_row % unit == 0 && t.stride_head % unit == 0)
    return HYSPARSE_OK;
  return fail(HYSPARSE_BAD_ARGUMENT,
              std::string(name) + ": address and strides must be multiples of 16 bytes");
}

}  // namespace

bool takes(const hysparse_cuda_attention_backward_params& p) {
  return find_kernel(p.head_dim, p.v_head_dim).launch != nullptr;
}

size_t workspace(const hysparse_cuda_attention_backward_params& p) {
  const Kernel kernel = find_kernel(p.head_dim, p.v_head_dim);
  const TileList* tiles = kernel.launch ? p.batch->tiles(kernel.m) : nullptr;
  return tiles ? plan(p, kernel, tiles->host.size()).bytes : 0;
}

int run(const hysparse_cuda_attention_backward_params& p, cudaStream_t stream) {
  const Kernel kernel = find_kernel(p.head_dim, p.v_head_dim);
  const TileList* queries = p.batch->tiles(kernel.m);
  const KeyTileList* keys = p.batch->key_tiles(kernel.n, kernel.m);
  if (!queries || !keys) return HYSPARSE_CUDA_ERROR;
  const Plan at = plan(p, kernel, queries->host.size());
  uint8_t* base = static_cast<uint8_t*>(p.workspace);
  const bool deterministic = p.deterministic != 0;

  Params k{};
  if (int e = make_tensor_map(&k.q, p.q, p.batch->tokens, p.q_heads, p.head_dim, kernel.m, "q")) return e;
  if (int e = make_tensor_map(&k.k, p.k, p.kv_rows, p.kv_heads, p.head_dim, kernel.n, "k")) return e;
  if (int e = make_tensor_map(&k.v, p.v, p.kv_rows, p.kv_heads, p.v_head_dim, kernel.n, "v")) return e;
  if (int e = make_tensor_map(&k.d_o, p.d_o, p.batch->tokens, p.q_heads, p.v_head_dim, kernel.m, "d_o"))
    return e;
  if (int e = check_rows(p.o, 8, "o")) return e;
  if (int e = check_rows(p.dq, 8, "dq")) return e;
  if (int e = check_rows(p.dk, 4, "dk")) return e;
  if (int e = check_rows(p.dv, 4, "dv")) return e;
  k.tiles = keys->device;
  k.tile_count = keys->count;
  k.kv_heads = p.kv_heads;
  k.ratio = p.q_heads / p.kv_heads;
  k.q_tiles = int(queries->host.size());
  k.scale = p.scale;
  k.scale_log2 = p.scale * 1.4426950408889634f;
  k.dq = reinterpret_cast<float*>(base);
  k.rows = reinterpret_cast<float*>(base + at.rows);
  k.dk = static_cast<float*>(p.dk.data);
  k.dk_stride_row = p.dk.stride_row;
  k.dk_stride_head = p.dk.stride_head;
  k.dv = static_cast<float*>(p.dv.data);
  k.dv_stride_row = p.dv.stride_row;
  k.dv_stride_head = p.dv.stride_head;
  if (deterministic) {
    k.turns = reinterpret_cast<uint32_t*>(base + at.turns);
    k.ticket = reinterpret_cast<uint32_t*>(base + at.ticket);
  }

  int device = 0, processors = 132;
  if (cudaGetDevice(&device) == cudaSuccess)
    cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  // A CTA takes up to four query heads of its KV head (more would leave few, long CTAs), fewer where
  // processors would idle; the parts' sums meet in dK and dV in no fixed order. Deterministic: all heads.
  const int64_t enough = int64_t(processors) * 2, whole = int64_t(k.tile_count) * p.kv_heads;
  k.heads_a_cta = k.ratio;
  if (!deterministic)
    while (k.heads_a_cta > 1 &&
           (k.ratio % k.heads_a_cta != 0 || k.heads_a_cta > 4 || whole * (k.ratio / k.heads_a_cta) < enough))
      --k.heads_a_cta;
  // As many KV heads side by side as keep one query head's Q, dO and dQ in the L2, but enough CTAs.
  const int64_t bytes = int64_t(p.batch->tokens) * ((p.head_dim + p.v_head_dim) * 2 + p.head_dim * 4);
  const int64_t each = int64_t(k.tile_count) * (k.ratio / k.heads_a_cta);
  const int64_t fits = std::max<int64_t>((int64_t(40) << 20) / bytes, (enough + each - 1) / each);
  k.section_heads = int(std::clamp<int64_t>(fits, 1, p.kv_heads));
  while (p.kv_heads % k.section_heads != 0) ++k.section_heads;

  RowParams r{};
  r.tiles = queries->device;
  r.q_tiles = k.q_tiles;
  r.heads = p.q_heads;
  r.scale = p.scale;
  r.o = static_cast<const __nv_bfloat16*>(p.o.data);
  r.o_stride_row = p.o.stride_row;
  r.o_stride_head = p.o.stride_head;
  r.d_o = static_cast<const __nv_bfloat16*>(p.d_o.data);
  r.do_stride_row = p.d_o.stride_row;
  r.do_stride_head = p.d_o.stride_head;
  r.lse = p.lse;
  r.rows = reinterpret_cast<float*>(base + at.rows);
  r.dq_sum = k.dq;
  r.dq = static_cast<__nv_bfloat16*>(p.dq.data);
  r.dq_stride_row = p.dq.stride_row;
  r.dq_stride_head = p.dq.stride_head;

  if (deterministic)
    if (int e = check_cuda(cudaMemsetAsync(k.turns, 0, at.bytes - at.turns, stream), "attention backward"))
      return e;
  if (int e = check_cuda(kernel.before(r, stream), "attention backward: rows")) return e;
  const int ctas = int(whole * (k.ratio / k.heads_a_cta));
  if (int e = check_cuda(kernel.launch(k, deterministic, ctas, stream), "attention backward")) return e;
  return check_cuda(kernel.after(r, stream), "attention backward: dq");
}

}  // namespace hysparse::cuda::attention_bwd
