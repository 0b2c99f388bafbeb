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

// A union list longer than this many times the entries costs more than going block by block.
constexpr int kUnionFactor = 3;
// Blocks that the counting sort can hold in shared memory.
constexpr int kMaxGatherBlocks = 48 * 1024;

// The parts of the workspace; tile and block tables are the batch's.
struct Layout {
  const TileList* tiles;
  const BlockTable* blocks;  // null: no inverted index
  int tile_tokens, list_block, capacity, chunk_tokens, chunks;
  size_t entries, lengths, counts, pair_start, item_start, pairs;  // offsets
  const BlockTable* backward_blocks;                               // null: no backward
  int pass_chunks, passes, item_capacity, slots;
  size_t b_counts, b_pair_start, b_item_start, b_pairs, b_items, b_valid, b_subs;
  size_t total;
};

int layout_of(const hysparse_cuda_selection_params& p, Layout* out) {
  Layout l{};
  l.tile_tokens = union_tile_tokens(p.q_heads / p.kv_heads);
  l.tiles = p.batch->tiles(l.tile_tokens);
  if (!l.tiles) return HYSPARSE_CUDA_ERROR;
  l.list_block = std::min(p.block, 64);
  const int ratio = p.q_heads / p.kv_heads;
  if (p.block == 64 && (ratio & (ratio - 1)) == 0) {
    l.blocks = p.batch->blocks(64);
    if (!l.blocks) return HYSPARSE_CUDA_ERROR;
    if (l.blocks->count > kMaxGatherBlocks) l.blocks = nullptr;
  }
  const int64_t chosen = int64_t(l.tile_tokens) * p.entries * (p.block / l.list_block);
  l.capacity = int(std::min<int64_t>(chosen, (p.batch->max_kv + l.list_block - 1) / l.list_block + 1));
  if (l.blocks) l.capacity = std::min(l.capacity, kUnionFactor * p.entries);
  size_t at = 0;
  auto take = [&](size_t bytes) {
    const size_t start = at;
    at += align(bytes);
    return start;
  };
  const size_t heads = size_t(p.kv_heads), tiles = l.tiles->host.size();
  l.entries = take(heads * tiles * size_t(l.capacity) * sizeof(UnionEntry));
  l.lengths = take(heads * tiles * 4);
  if (l.blocks) {
    l.chunk_tokens = std::max(128, (p.batch->tokens + 255) / 256);
    l.chunks = (p.batch->tokens + l.chunk_tokens - 1) / l.chunk_tokens;
    l.counts = take(heads * size_t(l.chunks) * size_t(l.blocks->count) * 4);
    l.pair_start = take(heads * (size_t(l.blocks->count) + 1) * 4);
    l.item_start = take(heads * (size_t(l.blocks->count) + 1) * 4);
    l.pairs = take(heads * size_t(p.batch->tokens) * size_t(p.entries) * 4);
  }
  if (p.backward) {
    l.backward_blocks = p.batch->blocks(64);
    if (!l.backward_blocks) return HYSPARSE_CUDA_ERROR;
    const size_t blocks = size_t(l.backward_blocks->count), tokens = size_t(p.batch->tokens);
    if (blocks > size_t(kMaxGatherBlocks))
      return fail(HYSPARSE_UNSUPPORTED, "selection: the backward takes up to " +
                                            std::to_string(kMaxGatherBlocks) + " blocks of 64 keys a batch");
    l.slots = gather_slots(p.entries, p.block);
    if (int64_t(p.batch->tokens) * l.slots > INT32_MAX)
      return fail(HYSPARSE_UNSUPPORTED, "selection: more than 2^31 (token, entry) pairs a KV head");
    l.chunk_tokens = std::max(128, (p.batch->tokens + 255) / 256);
    l.chunks = (p.batch->tokens + l.chunk_tokens - 1) / l.chunk_tokens;
    const int64_t pass = backward_pass_tokens(ratio, l.slots, (p.batch->max_kv + 63) / 64);
    l.pass_chunks = int(std::min<int64_t>((pass + l.chunk_tokens - 1) / l.chunk_tokens, l.chunks));
    l.passes = (l.chunks + l.pass_chunks - 1) / l.pass_chunks;
    const size_t bins = size_t(l.passes) * blocks, pairs = tokens * size_t(l.slots);
    l.item_capacity = int(pairs / size_t(backward_item_pairs(ratio)) + std::min(bins, pairs));
    l.b_counts = take(heads * size_t(l.chunks) * blocks * 4);
    l.b_pair_start = take(heads * (bins + 1) * 4);
    l.b_item_start = take(heads * (bins + 1) * 4);
    l.b_pairs = take(heads * pairs * 4);
    l.b_items = take(heads * size_t(l.item_capacity) * sizeof(KeyItem));
    l.b_valid = take(heads * tokens * size_t((l.slots + 31) / 32) * 4);
    l.b_subs = p.block < 64 ? take(heads * pairs) : 0;
  }
  l.total = at;
  *out = l;
  return HYSPARSE_OK;
}

}  // namespace

extern "C" {

size_t hysparse_cuda_selection_workspace(const hysparse_cuda_selection_params* p) {
  Layout l;
  if (check(p) != HYSPARSE_OK || layout_of(*p, &l) != HYSPARSE_OK) return 0;
  return l.total;
}

int hysparse_cuda_selection_create(const hysparse_cuda_selection_params* p, hysparse_stream stream,
                                   hysparse_cuda_selection** out) {
  if (int e = check(p)) return e;
  if (!p->idx || !out) return fail(HYSPARSE_BAD_ARGUMENT, "selection: no idx or no out");
  Layout l;
  if (int e = layout_of(*p, &l)) return e;
  if (!p->workspace || p->workspace_bytes < l.total)
    return fail(HYSPARSE_BAD_ARGUMENT, "selection: workspace of " + std::to_string(p->workspace_bytes) +
                                           " bytes, needs " + std::to_string(l.total));
  auto s = std::make_unique<hysparse_cuda_selection>();
  s->batch = p->batch;
  s->q_heads = p->q_heads;
  s->kv_heads = p->kv_heads;
  s->block = p->block;
  s->entries = p->entries;
  auto* base = static_cast<std::byte*>(p->workspace);
  s->idx = p->idx;
  auto ints = [&](size_t offset) { return reinterpret_cast<int32_t*>(base + offset); };
  s->unions = {l.tiles->device, int(l.tiles->host.size()),
               l.tile_tokens,   l.list_block,
               l.capacity,      reinterpret_cast<UnionEntry*>(base + l.entries),
               ints(l.lengths)};
  const UnionParams u{p->idx, p->entries, p->kv_heads, p->block, l.capacity, s->unions};
  const int max_blocks = (p->batch->max_kv + p->block - 1) / p->block;
  if (int e = check_cuda(build_unions(u, max_blocks, stream), "selection index")) return e;
  s->gathers = l.blocks != nullptr;
  if (s->gathers) {
    GatherIndex& g = s->index;
    g.spans = l.blocks->spans;
    g.block_base = l.blocks->base;
    g.blocks = l.blocks->count;
    g.slots = p->entries;
    g.tokens = p->batch->tokens;
    g.item_pairs = gather_item_pairs(p->q_heads / p->kv_heads);
    g.chunks = g.pass_chunks = l.chunks;
    g.chunk_tokens = l.chunk_tokens;
    g.passes = 1;
    g.head_pairs = int64_t(g.tokens) * g.slots;
    g.counts = ints(l.counts);
    g.pair_start = ints(l.pair_start);
    g.item_start = ints(l.item_start);
    g.pairs = ints(l.pairs);
    if (int e = check_cuda(
            build_gather({p->idx, p->entries, p->kv_heads, p->block, p->batch->position, &s->unions, g},
                         stream),
            "inverted index"))
      return e;
  }
  s->backward = l.backward_blocks != nullptr;
  if (s->backward) {
    GatherIndex& g = s->backward_index;
    g.spans = l.backward_blocks->spans;
    g.block_base = l.backward_blocks->base;
    g.blocks = l.backward_blocks->count;
    g.slots = l.slots;
    g.tokens = p->batch->tokens;
    g.item_pairs = backward_item_pairs(p->q_heads / p->kv_heads);
    g.chunks = l.chunks;
    g.chunk_tokens = l.chunk_tokens;
    g.passes = l.passes;
    g.pass_chunks = l.pass_chunks;
    g.head_pairs = int64_t(g.tokens) * g.slots;
    g.counts = ints(l.b_counts);
    g.pair_start = ints(l.b_pair_start);
    g.item_start = ints(l.b_item_start);
    g.pairs = ints(l.b_pairs);
    g.items = reinterpret_cast<KeyItem*>(base + l.b_items);
    g.item_capacity = l.item_capacity;
    g.slot_words = (l.slots + 31) / 32;
    g.valid = reinterpret_cast<uint32_t*>(base + l.b_valid);
    g.subs = p->block < 64 ? reinterpret_cast<uint8_t*>(base + l.b_subs) : nullptr;
    if (int e = check_cuda(
            build_gather({p->idx, p->entries, p->kv_heads, p->block, p->batch->position, nullptr, g}, stream),
            "inverted index of the backward"))
      return e;
  }
  *out = s.release();
  return HYSPARSE_OK;
}

void hysparse_cuda_selection_destroy(hysparse_cuda_selection* selection) {
  delete selection;
}

}  // extern "C"
