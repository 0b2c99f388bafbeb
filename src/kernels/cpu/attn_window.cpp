// Sliding-window attention: a tile of queries walks the keys of its band; each tile of keys meets the rows
// that see any of it.
#include <algorithm>

#include "kernels/checks.h"
#include "kernels/cpu/attn_branches.h"
#include "kernels/cpu/impl.h"

namespace hysparse {
namespace attn {
namespace {

constexpr int64_t kQueryRows = 192;
constexpr int64_t kNarrow =
    256;  // windows up to here take half tiles of keys: less of the band's corners is wasted

}  // namespace

WindowForward::WindowForward(Runtime& rt, const WindowAttentionForward& a, DType t)
    : a_(a), shape_(shape_of("window_attention", t, a.q, a.kv)), ops_(shape_, a.kv, a.batch) {
  const int64_t fit = std::max<int64_t>(1, kQueryRows / shape_.r);
  int64_t tokens = 1;
  tiles_ = token_tiles(a.batch, shape_.hkv, [&](int64_t s) {
    const int64_t step = std::min(fit, a.batch.q_len(s));
    tokens = std::max(tokens, step);
    return step;
  });
  for (int64_t s = 0; s < a.batch.sequences(); ++s)
    work_ += a.batch.q_len(s) * std::min(a.batch.kv_len(s), a.window) * shape_.hq * (shape_.d + shape_.dv);
  workers_ = per_worker<Tile>(rt, [&](Tile& w, Slab& slab) { w.layout(slab, shape_, tokens * shape_.r); });
}

void WindowForward::run(int64_t item, int worker) {
  const TokenTile& tile = tiles_[size_t(item)];
  Tile& w = workers_[size_t(worker)];
  const RaggedBatch& b = a_.batch;
  const int64_t row = b.cu_q[size_t(tile.s)] + tile.begin, count = tile.end - tile.begin;
  const int64_t position = b.past_len[size_t(tile.s)] + tile.begin;  // of the first token
  const int64_t step = a_.window <= kNarrow && count > 1 ? kKeyTile / 2 : kKeyTile;
  const int r = shape_.r;
  ops_.load_queries(w, a_.q, a_.scale, row, count, tile.g);
  for (int64_t key = std::max<int64_t>(0, position - a_.window + 1); key < position + count; key += step) {
    const int n = static_cast<int>(std::min(step, position + count - key));
    ops_.set_keys(w, tile.s, key, n, tile.g);
    if (const int64_t next = key + n; next < position + count)
      ops_.expect_keys(w, tile.s, next, static_cast<int>(std::min(step, position + count - next)), tile.g);
    // Tokens [from, to) of the tile see some of the keys [key, key + n).
    const int64_t from = std::max<int64_t>(0, key - position);
    const int64_t to = std::min(count, key + n - 1 + a_.window - position);
    const bool masked = position + from + 1 < key + n || position + to - a_.window > key;
    const int rows = static_cast<int>(to - from) * r;
    if (masked)
      for (int i = 0; i < rows; ++i) {
        const int64_t t = position + from + i / r;
        w.lo[i] = static_cast<int32_t>(std::max<int64_t>(0, t - a_.window + 1 - key));
        w.hi[i] = static_cast<int32_t>(std::min<int64_t>(n, t + 1 - key));
      }
    ops_.attend(w, static_cast<int>(from) * r, rows, nullptr, masked);
  }
  ops_.finish(w, row, count, tile.g, a_.sinks, a_.o, a_.lse);
}

}  // namespace attn

void cpu_window_attention(Runtime& rt, const WindowAttentionForward& a) {
  const DType t = check_args(a);
  if (a.q.dim(0) == 0) return;
  ArenaScope scope(rt.scratch);
  attn::WindowForward window(rt, a, t);
  attn::for_items(rt, window.items(), window.work(), [&](int64_t i, int worker) { window.run(i, worker); });
}

}  // namespace hysparse
