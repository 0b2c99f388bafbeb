#include "kernels/cuda/common/selection.h"

#include <algorithm>
#include <memory>
#include <string>

using namespace hysparse::cuda;

namespace {

int check(const hysparse_cuda_selection_params* p) {
  if (!p || !p->batch) return fail(HYSPARSE_BAD_ARGUMENT, "selection: no parameters or no batch");
  if (p->q_heads < 1 || p->kv_heads < 1 || p->q_heads % p->kv_heads != 0 || p->q_heads / p->kv_heads > 64)
    return fail(HYSPARSE_BAD_ARGUMENT, "selection: " + std::to_string(p->q_heads) + " query heads over " +
                                           std::to_string(p->kv_heads) +
                                           " KV heads (a multiple, at most 64 a KV head)");
  if (p->block != 16 && p->block != 32 && p->block != 64 && p->block != 128)
    return fail(HYSPARSE_UNSUPPORTED,
                "selection: block " + std::to_string(p->block) + " is not 16, 32, 64 or 128");
  if (p->entries < 1 || p->entries > 64)
    return fail(HYSPARSE_UNSUPPORTED, "selection: entries must be 1 to 64");
  return HYSPARSE_OK;
}

size_t align(size_t bytes) {
  return (bytes + 255) & ~size_t(255);
}

// Sizes of the parts of the workspace; tile tables are the batch's.
struct Layout {
  int tile_tokens, tile_count, list_block, capacity;
  size_t entries_bytes, lengths_bytes;
};
int layout_of(const hysparse_cuda_selection_params& p, Layout* out) {
  Layout l{};
  l.tile_tokens = union_tile_tokens(p.q_heads / p.kv_heads);
  const TileList* tiles = p.batch->tiles(l.tile_tokens);
  if (!tiles) return HYSPARSE_CUDA_ERROR;
  l.tile_count = int(tiles->host.size());
  l.list_block = std::min(p.block, 64);
  const int64_t chosen = int64_t(l.tile_tokens) * p.entries * (p.block / l.list_block);
  l.capacity = int(std::min<int64_t>(chosen, (p.batch->max_kv + l.list_block - 1) / l.list_block + 1));
  l.entries_bytes =
      align(size_t(p.kv_heads) * size_t(l.tile_count) * size_t(l.capacity) * sizeof(UnionEntry));
  l.lengths_bytes = align(size_t(p.kv_heads) * size_t(l.tile_count) * 4);
  *out = l;
  return HYSPARSE_OK;
}

}  // namespace

extern "C" {

size_t hysparse_cuda_selection_workspace(const hysparse_cuda_selection_params* p) {
  Layout l;
  if (check(p) != HYSPARSE_OK || layout_of(*p, &l) != HYSPARSE_OK) return 0;
  return l.entries_bytes + l.lengths_bytes;
}

int hysparse_cuda_selection_create(const hysparse_cuda_selection_params* p, hysparse_stream stream,
                                   hysparse_cuda_selection** out) {
  if (int e = check(p)) return e;
  if (!p->idx || !out) return fail(HYSPARSE_BAD_ARGUMENT, "selection: no idx or no out");
  Layout l;
  if (int e = layout_of(*p, &l)) return e;
  if (!p->workspace || p->workspace_bytes < l.entries_bytes + l.lengths_bytes)
    return fail(HYSPARSE_BAD_ARGUMENT, "selection: workspace of " + std::to_string(p->workspace_bytes) +
                                           " bytes, needs " +
                                           std::to_string(l.entries_bytes + l.lengths_bytes));
  auto s = std::make_unique<hysparse_cuda_selection>();
  s->batch = p->batch;
  s->q_heads = p->q_heads;
  s->kv_heads = p->kv_heads;
  s->block = p->block;
  s->entries = p->entries;
  auto* base = static_cast<std::byte*>(p->workspace);
  s->unions = {p->batch->tiles(l.tile_tokens)->device,
               l.tile_count,
               l.tile_tokens,
               l.list_block,
               l.capacity,
               reinterpret_cast<UnionEntry*>(base),
               reinterpret_cast<int32_t*>(base + l.entries_bytes)};
  const UnionParams u{p->idx, p->entries, p->kv_heads, p->block, s->unions};
  const int max_blocks = (p->batch->max_kv + p->block - 1) / p->block;
  if (int e = check_cuda(build_unions(u, max_blocks, stream), "selection index")) return e;
  *out = s.release();
  return HYSPARSE_OK;
}

void hysparse_cuda_selection_destroy(hysparse_cuda_selection* selection) {
  delete selection;
}

}  // extern "C"
