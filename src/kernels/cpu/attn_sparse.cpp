// Attention over selected blocks. Neighbouring tokens are taken together: the union of their blocks is walked
// once, and at each block only the rows of the tokens that chose it take part. Tiny blocks, and single tokens
// (decoding), gather the keys of one token at a time instead.
#include <algorithm>
#include <optional>

#include "kernels/checks.h"
#include "kernels/cpu/attn_branches.h"
#include "kernels/cpu/impl.h"

namespace hysparse {
namespace attn {
namespace {

constexpr int64_t kTileBytes = int64_t(512)
                               << 10;  // queries, outputs and scores of a tile: half of a usual L2
constexpr int64_t kMaxTokens = 128, kMinTokens = 16;

[[noreturn]] void named_twice(int64_t row, int64_t g) {
  throw failure(
      "internal check",
      fmt::format("sparse attention: the selection of row {}, head {} names a block twice", row, g));
}

}  // namespace

void BlockLists::layout(Slab& slab, int64_t max_blocks, int64_t max_tokens, int64_t entries) {
  begin = slab.take<int32_t>(max_blocks + 2);
  tokens = slab.take<int32_t>(max_tokens * entries);
}

void BlockLists::build(const Selection& selection, int64_t row, int64_t count, int64_t g, int64_t position) {
  const int64_t entries = selection.entries();
  blocks = (position + count - 1) / selection.block + 1;
  // Counting sort; begin[b + 1] runs ahead as the write position of block b and ends where b ends.
  std::fill_n(begin, blocks + 2, 0);
  const auto entry = [&](int64_t i) {
    return reinterpret_cast<const int32_t*>(address(selection.idx, row + i, g));
  };
  for (int64_t i = 0; i < count; ++i) {
    const int64_t last = (position + i) / selection.block;
    for (int64_t e = 0; e < entries; ++e)
      if (const int32_t b = entry(i)[e]; b >= 0 && b <= last) ++begin[b + 2];
  }
  for (int64_t b = 0; b < blocks; ++b) begin[b + 2] += begin[b + 1];
  for (int64_t i = 0; i < count; ++i) {
    const int64_t last = (position + i) / selection.block;
    for (int64_t e = 0; e < entries; ++e) {
      const int32_t b = entry(i)[e];
      if (b < 0 || b > last) continue;
      tokens[begin[b + 1]++] = static_cast<int32_t>(i);
    }
  }
  for (int64_t b = 0; b < blocks; ++b)
    for (int32_t m = begin[b] + 1; m < begin[b + 1]; ++m)
      if (tokens[m] == tokens[m - 1]) named_twice(row + tokens[m], g);
}

SparseForward::SparseForward(Runtime& rt, const SparseAttentionForward& a, DType t)
    : a_(a), shape_(shape_of("sparse_attention", t, a.q, a.kv)), ops_(shape_, a.kv, a.batch) {
  const int64_t row_bytes = int64_t(shape_.dp + shape_.dvp + kKeyTile) * int64_t(sizeof(float));
  const int64_t fit = std::clamp(kTileBytes / (row_bytes * shape_.r), kMinTokens, kMaxTokens);
  const int64_t entries = a.selection.entries();
  int64_t tokens = 1;
  tiles_ = token_tiles(a.batch, shape_.hkv, [&](int64_t s) {
    // Short sequences are cut finer, for enough items to share out.
    const int64_t even = std::max(kMinTokens, a.batch.q_len(s) * shape_.hkv / 16);
    const int64_t step = std::min({fit, even, a.batch.q_len(s)});
    tokens = std::max(tokens, step);
    return step;
  });
  for (int64_t s = 0; s < a.batch.sequences(); ++s)
    work_ += a.batch.q_len(s) * std::min(a.batch.kv_len(s), entries * a.selection.block) * shape_.hq *
             (shape_.d + shape_.dv);
  const int64_t blocks = a.batch.max_kv_len() / a.selection.block + 1;
  workers_ = per_worker<Worker>(rt, [&](Worker& w, Slab& slab) {
    w.tile.layout(slab, shape_, tokens * shape_.r);
    w.lists.layout(slab, blocks, tokens, entries);
    w.index = slab.take<int32_t>(tokens * shape_.r);
    w.entries = slab.take<int32_t>(entries);
  });
}

void SparseForward::run(int64_t item, int worker) {
  const TokenTile& tile = tiles_[size_t(item)];
  Worker& w = workers_[size_t(worker)];
  if (a_.selection.block < kSmallBlock || tile.end - tile.begin == 1)
    by_token(tile, w);
  else
    by_block(tile, w);
}

void SparseForward::by_block(const TokenTile& tile, Worker& w) const {
  const RaggedBatch& batch = a_.batch;
  const int64_t row = batch.cu_q[size_t(tile.s)] + tile.begin, count = tile.end - tile.begin;
  const int64_t position = batch.past_len[size_t(tile.s)] + tile.begin, block = a_.selection.block;
  const int r = shape_.r;
  ops_.load_queries(w.tile, a_.q, a_.scale, row, count, tile.g);
  w.lists.build(a_.selection, row, count, tile.g, position);
  for (int64_t j = w.lists.next(0), following; j < w.lists.blocks; j = following) {
    following = w.lists.next(j + 1);
    const int32_t* chosen_by = w.lists.tokens + w.lists.begin[j];
    const int members = w.lists.begin[j + 1] - w.lists.begin[j];
    for (int m = 0; m < members * r; ++m) w.index[m] = chosen_by[m / r] * r + m % r;
    const int64_t end = std::min((j + 1) * block, position + chosen_by[members - 1] + 1);
    for (int64_t key = j * block; key < end; key += kKeyTile) {
      const int n = static_cast<int>(std::min<int64_t>(kKeyTile, end - key));
      ops_.set_keys(w.tile, tile.s, key, n, tile.g);
      if (const int64_t next = key + n < end ? key + n : following * block; next <= position)
        ops_.expect_keys(w.tile, tile.s, next,
                         static_cast<int>(std::min<int64_t>({kKeyTile, block, position + 1 - next})), tile.g);
      const bool masked = position + chosen_by[0] + 1 - key < n;
      if (masked)
        for (int m = 0; m < members * r; ++m) {
          w.tile.lo[m] = 0;
          w.tile.hi[m] =
              static_cast<int32_t>(std::clamp<int64_t>(position + chosen_by[m / r] + 1 - key, 0, n));
        }
      ops_.attend(w.tile, 0, members * r, w.index, masked);
    }
  }
  ops_.finish(w.tile, row, count, tile.g, a_.sinks, a_.o, a_.lse);
}

void SparseForward::by_token(const TokenTile& tile, Worker& w) const {
  const RaggedBatch& b = a_.batch;
  const int64_t block = a_.selection.block;
  for (int64_t i = tile.begin; i < tile.end; ++i) {
    const int64_t row = b.cu_q[size_t(tile.s)] + i, position = b.past_len[size_t(tile.s)] + i;
    ops_.load_queries(w.tile, a_.q, a_.scale, row, 1, tile.g);
    const auto* entry = reinterpret_cast<const int32_t*>(address(a_.selection.idx, row, tile.g));
    int64_t count = 0;
    for (int64_t e = 0; e < a_.selection.entries(); ++e)
      if (entry[e] >= 0 && entry[e] <= position / block) w.entries[count++] = entry[e];
    if (!std::is_sorted(w.entries, w.entries + count)) std::sort(w.entries, w.entries + count);
    if (std::adjacent_find(w.entries, w.entries + count) != w.entries + count) named_twice(row, tile.g);

    int loaded = 0;
    const auto flush = [&] {
      ops_.set_key_rows(w.tile, loaded);
      ops_.attend(w.tile, 0, shape_.r, nullptr, false);
      loaded = 0;
    };
    for (int64_t e = 0; e < count; ++e) {
      // Tiles begin where those of by_block() do.
      if (loaded > 0 && block >= kSmallBlock) flush();
      const int64_t end = std::min((w.entries[e] + 1) * block, position + 1);
      for (int64_t key = w.entries[e] * block; key < end;) {
        const int n = static_cast<int>(std::min<int64_t>(kKeyTile - loaded, end - key));
        key_rows(a_.kv, b, tile.s, key, n, tile.g, w.tile.k_rows + loaded, w.tile.v_rows + loaded,
                 w.tile.scale_rows + loaded);
        key += n;
        loaded += n;
        if (loaded == kKeyTile) flush();
      }
    }
    if (loaded > 0) flush();
    ops_.finish(w.tile, row, 1, tile.g, a_.sinks, a_.o, a_.lse);
  }
}

}  // namespace attn

void cpu_sparse_attention(Runtime& rt, const SparseAttentionForward& a) {
  const DType t = check_args(a);
  if (a.q.dim(0) == 0) return;
  ArenaScope scope(rt.scratch);
  attn::SparseForward sparse(rt, a, t);
  attn::for_items(rt, sparse.items(), sparse.work(), [&](int64_t i, int worker) { sparse.run(i, worker); });
}

void cpu_sparse_window_gated(Runtime& rt, const SparseWindowGated& a) {
  const GatedSumForward gates{.a = a.sparse.o,
                              .gate_a = a.gate_sparse,
                              .b = a.window ? a.window->o : TensorView{},
                              .gate_b = a.window ? a.gate_window : TensorView{},
                              .out = a.out};
  const RaggedBatch& batch = a.sparse.batch;
  bool decoding = true;  // one token a sequence
  for (int64_t s = 0; s < batch.sequences(); ++s) decoding = decoding && batch.q_len(s) <= 1;
  if (!decoding || (a.window && a.window->kv.heads() != a.sparse.kv.heads())) {
    cpu_sparse_attention(rt, a.sparse);
    if (a.window) cpu_window_attention(rt, *a.window);
    cpu_gated_sum(rt, gates);
    return;
  }
  // The same work items, but one visit to the thread pool: a step of one token is shorter than three
  // wake-ups.
  const DType t = check_args(a.sparse);
  if (a.window) check_args(*a.window);
  check_args(gates);
  if (a.sparse.q.dim(0) == 0) return;
  ArenaScope scope(rt.scratch);
  attn::SparseForward sparse(rt, a.sparse, t);
  std::optional<attn::WindowForward> window;
  if (a.window) window.emplace(rt, *a.window, t);
  const attn::Kernels kernels = attn::kernels();
  const int64_t heads = a.sparse.kv.heads(), r = a.sparse.q.dim(1) / heads;
  const int64_t work = sparse.work() + (window ? window->work() : 0);
  attn::for_items(rt, sparse.items(), work, [&](int64_t i, int worker) {
    sparse.run(i, worker);
    if (window) window->run(i, worker);
    const int64_t row = i / heads, g = i % heads;  // one token a sequence, heads inside
    attn::gated_rows(kernels, gates, row, row + 1, g * r, (g + 1) * r);
  });
}

}  // namespace hysparse
