// Gradient of sliding-window attention. A piece adds to the keys of its own tokens directly; the keys before
// it, which it shares with earlier pieces, go to a partial copy.
#include <algorithm>

#include "kernels/checks.h"
#include "kernels/cpu/attn_grad.h"
#include "kernels/cpu/attn_window.h"
#include "kernels/cpu/impl.h"

namespace hysparse {

void cpu_window_attention_backward(Runtime& rt, const WindowAttentionBackward& a) {
  using namespace attn;
  const DType t = check_args(a);
  if (a.q.dim(0) == 0) return;
  const RaggedBatch& b = a.batch;
  const Shape shape = shape_of("window_attention_backward", t, a.q, a.kv);
  const GradOps ops({b, a.q, a.kv, a.scale, a.o, a.lse, a.d_o, a.dq, a.dk, a.dv, a.sinks, a.dsinks}, shape);
  constexpr int64_t kPieceTokens = 256;  // at least
  const WindowPlan plan(b, shape, a.window);
  const int64_t tokens = plan.fit;
  ArenaScope scope(rt.scratch);
  std::vector<GradTile> workers = per_worker<GradTile>(rt, [&](GradTile& w, Slab& slab) {
    w.layout(slab, shape, plan.tokens * shape.r, false, plan.keys, plan.rows_at_once, plan.columns);
  });

  const auto halo_begin = [&](const Piece& p) {
    return std::max<int64_t>(0, b.past_len[size_t(p.s)] + p.begin - a.window + 1);
  };
  std::vector<Piece> pieces;
  for (int64_t s = 0; s < b.sequences(); ++s) {
    const int64_t length = b.q_len(s), past = b.past_len[size_t(s)];
    const int64_t even = (length + kPieces - 1) / kPieces;
    const int64_t least = std::max(kPieceTokens, std::min(a.window, even));
    const int64_t step = (least + tokens - 1) / tokens * tokens;
    for (int64_t g = 0; g < shape.hkv; ++g)
      for (int64_t begin = 0; begin < length; begin += step) {
        Piece p{s, g, begin, std::min(length, begin + step), begin == 0, {}};
        if (!p.direct) {
          p.part = ops.partial(rt.scratch, halo_begin(p), past + begin - halo_begin(p));
          ops.zero(p.part, halo_begin(p), past + begin);
        }
        pieces.push_back(p);
      }
  }
  std::vector<double> sink_sums(pieces.size() * size_t(shape.r));

  for_items(rt, static_cast<int64_t>(pieces.size()), plan.work, [&](int64_t item, int worker) {
    const Piece& p = pieces[size_t(item)];
    GradTile& w = workers[size_t(worker)];
    const int64_t past = b.past_len[size_t(p.s)];
    const KeyGrads own = ops.caller_grads(p.s, p.g);
    // Keys before the piece's first token go to its partial copy.
    const auto load = [&](int64_t key, int n) {
      const int64_t before = p.direct ? 0 : std::clamp<int64_t>(past + p.begin - key, 0, n);
      for (int j = 0; j < n; ++j) {
        const KeyGrads& to = j < before ? p.part : own;
        w.dk_rows[j] = to.dk_row(key + j);
        w.dv_rows[j] = to.dv_row(key + j);
      }
      key_rows(a.kv, b, p.s, key, n, p.g, w.k_rows, w.v_rows);
      ops.load_key_rows(w, n);
    };
    for (int64_t begin = p.begin; begin < p.end; begin += tokens) {
      const int64_t count = std::min(tokens, p.end - begin), token = b.cu_q[size_t(p.s)] + begin;
      const int64_t position = past + begin, base = std::max<int64_t>(0, position - a.window + 1);
      ops.load_queries(w, token, count, p.g, &sink_sums[size_t(item) * size_t(shape.r)]);
      if (plan.band) {
        load(base, static_cast<int>(position + count - base));
        ops.clear_key_grads(w);
        for (int64_t from = 0; from < count; from += WindowPlan::kStep) {
          const WindowStep step(position, from, std::min(count, from + WindowPlan::kStep), base, a.window);
          step.bounds(shape.r, w.lo, w.hi);
          ops.pair_columns(w, static_cast<int>(from) * shape.r, step.tokens * shape.r, step.column, step.n,
                           true);
        }
        ops.add_key_grads(w, w.loaded);
      } else {
        for (int64_t key = base; key < position + count; key += kKeyTile) {
          const int n = static_cast<int>(std::min<int64_t>(kKeyTile, position + count - key));
          load(key, n);
          const WindowRows rows(position, count, key, n, a.window);
          if (rows.masked) rows.bounds(shape.r, w.lo, w.hi);
          ops.pair(w, static_cast<int>(rows.from) * shape.r, static_cast<int>(rows.to - rows.from) * shape.r,
                   nullptr, rows.masked);
        }
      }
      ops.store_dq(w, token, count, p.g);
    }
  });

  // Pieces of a sequence and head follow one another; their halos are added in that order.
  std::vector<size_t> heads;
  for (size_t i = 0; i < pieces.size(); ++i)
    if (pieces[i].direct) heads.push_back(i);
  for_items(rt, static_cast<int64_t>(heads.size()), plan.work / 8, [&](int64_t item, int) {
    for (size_t i = heads[size_t(item)] + 1; i < pieces.size() && !pieces[i].direct; ++i)
      ops.add(ops.caller_grads(pieces[i].s, pieces[i].g), pieces[i].part, halo_begin(pieces[i]),
              b.past_len[size_t(pieces[i].s)] + pieces[i].begin);
  });
  reduce_sinks(pieces, sink_sums, shape.r, a.dsinks);
}

}  // namespace hysparse
