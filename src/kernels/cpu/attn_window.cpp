// Sliding-window attention. For usual windows a tile of tokens has all keys of its band at hand, and a few
// tokens at a time meet the part that they see in one step. Wide windows walk the band in tiles of keys, as
// full attention does. Columns are cut at multiples of positions, so that a row's sums do not depend on the
// tokens beside it.
#include <algorithm>

#include "kernels/checks.h"
#include "kernels/cpu/attn_branches.h"
#include "kernels/cpu/impl.h"

namespace hysparse {
namespace attn {

WindowPlan::WindowPlan(const RaggedBatch& batch, const Shape& shape, int64_t window) : band(window <= kBand) {
  const int64_t rows = band ? 256 : 192;
  fit = std::max<int64_t>(band ? kStep : 1, std::min<int64_t>(rows / shape.r, 64));
  for (int64_t s = 0; s < batch.sequences(); ++s) {
    const int64_t n = batch.q_len(s);
    tokens = std::max(tokens, std::min(fit, n));
    work += n * std::min(batch.kv_len(s), window) * shape.hq * (shape.d + shape.dv);
  }
  keys = band ? window + tokens + kPad : kKeyTile;
  rows_at_once = (band ? std::min(tokens, kStep) : tokens) * shape.r;
  columns = band ? window + kStep + kPad : kKeyTile;
}

WindowForward::WindowForward(Runtime& rt, const WindowAttentionForward& a, DType t)
    : a_(a),
      shape_(shape_of("window_attention", t, a.q, a.kv)),
      ops_(shape_, a.kv, a.batch),
      plan_(a.batch, shape_, a.window) {
  tiles_ = token_tiles(a.batch, shape_.hkv, [&](int64_t) { return plan_.fit; });
  workers_ = per_worker<Tile>(rt, [&](Tile& w, Slab& slab) {
    w.layout(slab, shape_, plan_.tokens * shape_.r, plan_.keys, plan_.rows_at_once, plan_.columns);
  });
}

void WindowForward::run(int64_t item, int worker) {
  const TokenTile& tile = tiles_[size_t(item)];
  Tile& w = workers_[size_t(worker)];
  const int64_t row = a_.batch.cu_q[size_t(tile.s)] + tile.begin, count = tile.end - tile.begin;
  const int64_t position = a_.batch.past_len[size_t(tile.s)] + tile.begin;  // of the first token
  ops_.load_queries(w, a_.q, a_.scale, row, count, tile.g);
  plan_.band ? in_band(tile, position, w) : in_key_tiles(tile, position, w);
  ops_.finish(w, row, count, tile.g, a_.sinks, a_.o, a_.lse);
}

void WindowForward::in_band(const TokenTile& tile, int64_t position, Tile& w) const {
  const int64_t count = tile.end - tile.begin;
  const int64_t oldest = std::max<int64_t>(0, position - a_.window + 1);
  const int64_t base = oldest / kPad * kPad;  // key of column 0
  ops_.set_keys(w, tile.s, base, static_cast<int>(position + count - base), tile.g, oldest);
  for (int64_t from = 0; from < count; from += WindowPlan::kStep) {
    const WindowStep step(position, from, std::min(count, from + WindowPlan::kStep), base, a_.window);
    step.bounds(shape_.r, w.lo, w.hi);
    ops_.attend_columns(w, static_cast<int>(from) * shape_.r, step.tokens * shape_.r, nullptr, step.column,
                        step.n, true);
  }
}

void WindowForward::in_key_tiles(const TokenTile& tile, int64_t position, Tile& w) const {
  const int64_t count = tile.end - tile.begin;
  const int r = shape_.r;
  const int64_t oldest = std::max<int64_t>(0, position - a_.window + 1);
  for (int64_t key = oldest / kKeyTile * kKeyTile; key < position + count; key += kKeyTile) {
    const int n = static_cast<int>(std::min<int64_t>(kKeyTile, position + count - key));
    ops_.set_keys(w, tile.s, key, n, tile.g, oldest);
    if (const int64_t next = key + n; next < position + count)
      ops_.expect_keys(w, tile.s, next,
                       static_cast<int>(std::min<int64_t>(kKeyTile, position + count - next)), tile.g);
    const WindowRows rows(position, count, key, n, a_.window);
    if (rows.masked) rows.bounds(r, w.lo, w.hi);
    ops_.attend(w, static_cast<int>(rows.from) * r, static_cast<int>(rows.to - rows.from) * r, nullptr,
                rows.masked);
  }
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
