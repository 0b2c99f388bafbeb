// Gradient of causal attention over all keys.
#include <algorithm>
#include <cmath>

#include "kernels/checks.h"
#include "kernels/cpu/attn_grad.h"
#include "kernels/cpu/impl.h"

namespace hysparse {
namespace attn {
namespace {

constexpr int64_t kQueryRows = 96;

// Tokens [0, end) of a sequence see this many keys in all.
double keys_seen(double past, double end) {
  return past * end + end * (end + 1) / 2;
}

// Pieces of about equal work, cut at whole query tiles. All but the last get a partial copy of dk and dv.
std::vector<Piece> cut(const RaggedBatch& b, int64_t heads, int64_t tokens) {
  double all = 0;
  for (int64_t s = 0; s < b.sequences(); ++s)
    all += static_cast<double>(heads) * keys_seen(double(b.past_len[size_t(s)]), double(b.q_len(s)));
  std::vector<Piece> pieces;
  for (int64_t s = 0; s < b.sequences(); ++s) {
    const double past = static_cast<double>(b.past_len[size_t(s)]);
    const double own = keys_seen(past, double(b.q_len(s)));
    const auto count =
        static_cast<int64_t>(std::clamp(std::round(own * double(kPieces) / all), 1.0, double(kPieces)));
    for (int64_t g = 0; g < heads; ++g)
      for (int64_t i = 0, begin = 0; begin < b.q_len(s); ++i) {
        // keys_seen(past, x) = own (i + 1) / count
        const double goal = own * double(i + 1) / double(count), p = past + 0.5;
        auto end =
            static_cast<int64_t>(std::llround((std::sqrt(p * p + 2 * goal) - p) / double(tokens))) * tokens;
        end = std::max(end, begin + tokens);
        if (i + 1 >= count || end > b.q_len(s)) end = b.q_len(s);
        pieces.push_back({s, g, begin, end, end == b.q_len(s), {}});
        begin = end;
      }
  }
  return pieces;
}

}  // namespace
}  // namespace attn

void cpu_attention_backward(Runtime& rt, const AttentionBackward& a) {
  using namespace attn;
  const DType t = check_args(a);
  if (a.q.dim(0) == 0) return;
  const RaggedBatch& b = a.batch;
  const Shape shape = shape_of("attention_backward", t, a.q, a.kv);
  const GradOps ops({b, a.q, a.kv, a.scale, a.o, a.lse, a.d_o, a.dq, a.dk, a.dv, {}, {}}, shape);
  ArenaScope scope(rt.scratch);
  const int64_t tokens = std::max<int64_t>(1, kQueryRows / shape.r);
  std::vector<Piece> pieces = cut(b, shape.hkv, tokens);
  std::vector<GradTile> workers = per_worker<GradTile>(
      rt, [&](GradTile& w, Slab& slab) { w.layout(slab, shape, tokens * shape.r, false); });
  int64_t work = 0;
  for (Piece& p : pieces) {
    const int64_t keys = b.past_len[size_t(p.s)] + p.end;
    work += (p.end - p.begin) * keys * shape.r * (shape.d + shape.dv);
    p.part = p.direct ? ops.caller_grads(p.s, p.g) : ops.partial(rt.scratch, 0, keys);
  }

  for_items(rt, static_cast<int64_t>(pieces.size()), work, [&](int64_t item, int worker) {
    const Piece& p = pieces[size_t(item)];
    GradTile& w = workers[size_t(worker)];
    const int64_t past = b.past_len[size_t(p.s)];
    if (!p.direct) ops.zero(p.part, 0, past + p.end);
    for (int64_t begin = p.begin; begin < p.end; begin += tokens) {
      const int64_t count = std::min(tokens, p.end - begin), token = b.cu_q[size_t(p.s)] + begin;
      const int rows = static_cast<int>(count) * shape.r;
      const int64_t position = past + begin, keys = position + count;
      ops.load_queries(w, token, count, p.g, nullptr);
      for (int64_t key = 0; key < keys; key += kKeyTile) {
        const int n = static_cast<int>(std::min<int64_t>(kKeyTile, keys - key));
        ops.load_keys(w, p.s, key, n, p.g, p.part);
        if (const int64_t next = key + n; next < keys)
          ops.expect_keys(w, p.s, next, static_cast<int>(std::min<int64_t>(kKeyTile, keys - next)), p.g);
        if (position + 1 - key >= n) {
          ops.pair(w, 0, rows, nullptr, false);
          continue;
        }
        const int first = static_cast<int>(std::max<int64_t>(0, key - position)) * shape.r;
        for (int i = first; i < rows; ++i) {
          w.lo[i - first] = 0;
          w.hi[i - first] = static_cast<int32_t>(std::min<int64_t>(n, position + i / shape.r + 1 - key));
        }
        ops.pair(w, first, rows - first, nullptr, true);
      }
      ops.store_dq(w, token, count, p.g);
    }
  });

  // Partial copies, piece after piece; key rows are independent.
  constexpr int64_t kRows = 512;
  std::vector<Piece> runs;  // begin, end: keys; one a sequence, head and run of keys
  for (const Piece& p : pieces)
    if (!p.direct && p.begin == 0)
      for (int64_t k = 0; k < b.kv_len(p.s); k += kRows)
        runs.push_back({p.s, p.g, k, std::min(b.kv_len(p.s), k + kRows), false, {}});
  rt.pool.parallel_for(static_cast<int64_t>(runs.size()), [&](int64_t item, int) {
    const Piece& run = runs[size_t(item)];
    const KeyGrads to = ops.caller_grads(run.s, run.g);
    for (const Piece& p : pieces)
      if (!p.direct && p.s == run.s && p.g == run.g)
        ops.add(to, p.part, run.begin, std::min(run.end, b.past_len[size_t(p.s)] + p.end));
  });
}

}  // namespace hysparse
