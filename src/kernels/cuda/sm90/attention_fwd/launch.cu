// Host side of the Hopper forward: checks, tensor maps, query chunks over a bounded score workspace,
// selection.
#include "kernels/cuda/sm90/attention_fwd/launch.h"

#include <algorithm>

#include "kernels/cuda/common/select.h"
#include "kernels/cuda/common/tensor_map.h"
#include "kernels/cuda/sm90/attention_fwd/config.h"
#include "kernels/cuda/sm90/attention_fwd/instantiate.h"

namespace hysparse::cuda::attention_fwd {
namespace {

constexpr size_t kScoreBudget = size_t(1) << 30;

bool scored(const hysparse_cuda_attention_params& p) {
  return p.entries > 0 || p.block_scores;
}
int group_of(const hysparse_cuda_attention_params& p) {
  return scored(p) ? std::min<int>(p.block, 64) : 0;
}

// Raw maxima a row: groups rounded up to whole key tiles of 128.
int64_t groups_of(const hysparse_cuda_attention_params& p) {
  const int64_t tiles = (p.batch->max_kv + 127) / 128;
  return tiles * (128 / group_of(p));
}
int64_t chunk_rows(const hysparse_cuda_attention_params& p) {
  const int64_t row_bytes = int64_t(p.q_heads) * groups_of(p) * 4;
  const int64_t fits = int64_t(kScoreBudget) / row_bytes / 128 * 128;
  return std::min<int64_t>(std::max<int64_t>(fits, 128), (p.batch->tokens + 127) / 128 * 128);
}

}  // namespace

bool takes(const hysparse_cuda_attention_params& p) {
  return find_kernel(p.head_dim, p.v_head_dim, group_of(p)).launch != nullptr &&
         (!scored(p) || p.block <= 128);
}

size_t workspace(const hysparse_cuda_attention_params& p) {
  return scored(p) ? size_t(p.q_heads) * size_t(groups_of(p)) * size_t(chunk_rows(p)) * 4 : 0;
}

int run(const hysparse_cuda_attention_params& p, cudaStream_t stream) {
  const Kernel kernel = find_kernel(p.head_dim, p.v_head_dim, group_of(p));
  const TileList* tiles = p.batch->tiles(128);
  if (!tiles) return HYSPARSE_CUDA_ERROR;
  const TileList& list = *tiles;
  Params k{};
  if (int e = make_tensor_map(&k.q, p.q, p.batch->tokens, p.q_heads, p.head_dim, 128, "q")) return e;
  if (int e = make_tensor_map(&k.k, p.k, p.kv_rows, p.kv_heads, p.head_dim, kernel.n, "k")) return e;
  if (int e = make_tensor_map(&k.v, p.v, p.kv_rows, p.kv_heads, p.v_head_dim, kernel.n, "v")) return e;
  k.heads = p.q_heads;
  k.ratio = p.q_heads / p.kv_heads;
  // As many KV heads side by side as keep their K and V in half of the L2.
  const int64_t kv_bytes = int64_t(p.batch->max_kv) * (p.head_dim + p.v_head_dim) * 2;
  int kv_side = int(std::clamp<int64_t>((int64_t(24) << 20) / std::max<int64_t>(kv_bytes, 1), 1, p.kv_heads));
  while (p.kv_heads % kv_side != 0) --kv_side;
  k.section_heads = kv_side * k.ratio;
  k.scale_log2 = p.scale * 1.4426950408889634f;
  k.o = static_cast<__nv_bfloat16*>(p.o.data);
  k.o_stride_row = p.o.stride_row;
  k.o_stride_head = p.o.stride_head;
  k.lse = p.lse;
  if (!scored(p)) {
    k.tiles = list.device;
    k.tile_count = int(list.host.size());
    return check_cuda(kernel.launch(k, stream), "attention forward");
  }
  k.raw = static_cast<float*>(p.workspace);
  k.groups = int(groups_of(p));
  k.raw_rows = int(chunk_rows(p));
  SelectParams s{};
  s.raw = k.raw;
  s.groups = k.groups;
  s.raw_rows = k.raw_rows;
  s.lse = p.lse;
  s.position = p.batch->position;
  s.q_heads = p.q_heads;
  s.kv_heads = p.kv_heads;
  s.groups_per_block = p.block / group_of(p);
  s.block = p.block;
  s.entries = p.entries;
  s.force_first = p.force_first != 0;
  s.force_diagonal = p.force_diagonal != 0;
  s.idx = p.idx;
  s.block_scores = p.block_scores;
  s.score_stride = p.score_stride;
  for (size_t t = 0; t < list.host.size();) {
    size_t end = t;
    const int row0 = list.host[t].q_row;
    while (end < list.host.size() && list.host[end].q_row + list.host[end].q_count - row0 <= k.raw_rows)
      ++end;
    k.tiles = list.device + t;
    k.tile_count = int(end - t);
    k.raw_row0 = s.row0 = row0;
    s.rows = list.host[end - 1].q_row + list.host[end - 1].q_count - row0;
    if (int e = check_cuda(kernel.launch(k, stream), "attention forward")) return e;
    if (int e = check_cuda(select_blocks(s, stream), "block selection")) return e;
    t = end;
  }
  return HYSPARSE_OK;
}

}  // namespace hysparse::cuda::attention_fwd
