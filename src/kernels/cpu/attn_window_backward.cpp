// Gradient of sliding-window attention. A piece adds to the keys of its own tokens directly; the keys before
// it, which it shares with earlier pieces, go to a partial copy.
#include <algorithm>

#include "kernels/checks.h"
#include "kernels/cpu/attn_grad.h"
#include "kernels/cpu/impl.h"

namespace hysparse {
namespace attn {
namespace {

constexpr int64_t kQueryRows = 96;
constexpr int64_t kNarrow = 256;       // as in the forward
constexpr int64_t kPieceTokens = 256;  // at least

}  // namespace
}  // namespace attn

void cpu_window_attention_backward(Runtime& rt, const WindowAttentionBackward& a) {
  using namespace attn;
  const DType t = check_args(a);
  if (a.q.dim(0) == 0) return;
  const RaggedBatch& b = a.batch;
  const Shape shape = shape_of("window_attention_backward", t, a.q, a.kv);
  const GradOps ops({b, a.q, a.kv, a.scale, a.o, a.lse, a.d_o, a.dq, a.dk, a.dv, a.sinks, a.dsinks}, shape);
  ArenaScope scope(rt.scratch);
  const int64_t tokens = std::max<int64_t>(1, kQueryRows / shape.r);
  std::vector<GradTile> workers = per_worker<GradTile>(
      rt, [&](GradTile& w, Slab& slab) { w.layout(slab, shape, tokens * shape.r, false); });

  const auto halo_begin = [&](const Piece& p) {
    return std::max<int64_t>(0, b.past_len[size_t(p.s)] + p.begin - a.window + 1);
  };
  std::vector<Piece> pieces;
  int64_t work = 0;
  for (int64_t s = 0; s < b.sequences(); ++s) {
    const int64_t length = b.q_len(s), past = b.past_len[size_t(s)];
    const int64_t even = (length + kPieces - 1) / kPieces;
    const int64_t least = std::max(kPieceTokens, std::min(a.window, even));
    const int64_t step = (least + tokens - 1) / tokens * tokens;
    work += length * std::min(b.kv_len(s), a.window) * shape.hq * (shape.d + shape.dv);
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

  for_items(rt, static_cast<int64_t>(pieces.size()), work, [&](int64_t item, int worker) {
    const Piece& p = pieces[size_t(item)];
    GradTile& w = workers[size_t(worker)];
    const int64_t past = b.past_len[size_t(p.s)];
    const KeyGrads own = ops.caller_grads(p.s, p.g);
    for (int64_t begin = p.begin; begin < p.end; begin += tokens) {
      const int64_t count = std::min(tokens, p.end - begin), token = b.cu_q[size_t(p.s)] + begin;
      const int64_t position = past + begin;
      const int64_t step = a.window <= kNarrow ? kKeyTile / 2 : kKeyTile;
      ops.load_queries(w, token, count, p.g, &sink_sums[size_t(item) * size_t(shape.r)]);
      for (int64_t key = std::max<int64_t>(0, position - a.window + 1); key < position + count;) {
        // A tile of keys lies on one side of the piece's first token.
        const bool halo = !p.direct && key < past + p.begin;
        const int64_t stop = halo ? past + p.begin : position + count;
        const int n = static_cast<int>(std::min(step, stop - key));
        ops.load_keys(w, p.s, key, n, p.g, halo ? p.part : own);
        const int64_t from = std::max<int64_t>(0, key - position);
        const int64_t to = std::min(count, key + n - 1 + a.window - position);
        const bool masked = position + from + 1 < key + n || position + to - a.window > key;
        const int rows = static_cast<int>(to - from) * shape.r;
        if (masked)
          for (int i = 0; i < rows; ++i) {
            const int64_t at = position + from + i / shape.r;
            w.lo[i] = static_cast<int32_t>(std::max<int64_t>(0, at - a.window + 1 - key));
            w.hi[i] = static_cast<int32_t>(std::min<int64_t>(n, at + 1 - key));
          }
        ops.pair(w, static_cast<int>(from) * shape.r, rows, nullptr, n, masked);
        key += n;
      }
      ops.store_dq(w, token, count, p.g);
    }
  });

  // Pieces of a sequence and head follow one another; their halos are added in that order.
  std::vector<size_t> heads;
  for (size_t i = 0; i < pieces.size(); ++i)
    if (pieces[i].direct) heads.push_back(i);
  for_items(rt, static_cast<int64_t>(heads.size()), work / 8, [&](int64_t item, int) {
    for (size_t i = heads[size_t(item)] + 1; i < pieces.size() && !pieces[i].direct; ++i)
      ops.add(ops.caller_grads(pieces[i].s, pieces[i].g), pieces[i].part, halo_begin(pieces[i]),
              b.past_len[size_t(pieces[i].s)] + pieces[i].begin);
  });
  reduce_sinks(pieces, sink_sums, shape.r, a.dsinks);
}

}  // namespace hysparse
