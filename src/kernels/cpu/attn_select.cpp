#include "kernels/cpu/attn_select.h"

#include <algorithm>
#include <limits>

#include "base/rng.h"
#include "kernels/checks.h"
#include "kernels/cpu/attn_tile.h"
#include "kernels/cpu/impl.h"

namespace hysparse {
namespace attn {

void select_row(const float* score, int64_t last, int64_t entries, Forced forced, int32_t* idx,
                Candidate* workspace) {
  const int64_t capacity = candidates_for(entries);
  constexpr float kSurely = std::numeric_limits<float>::infinity();
  const auto better = [](const Candidate& a, const Candidate& b) {
    return a.score > b.score || (a.score == b.score && a.block < b.block);
  };
  int64_t count = 0;
  // Blocks come in ascending order, so a later one must beat the last that is kept, not equal it.
  float bar = kNone;
  const auto keep_best = [&] {
    std::nth_element(workspace, workspace + entries - 1, workspace + count, better);
    count = entries;
    bar = workspace[entries - 1].score;
  };
  const auto offer = [&](float x, int64_t j) {
    if (!(x > bar)) return;
    workspace[count++] = {x, static_cast<int32_t>(j)};
    if (count == capacity) keep_best();
  };
  offer(forced.first || (forced.diagonal && last == 0) ? kSurely : score[0], 0);
  for (int64_t j = 1; j < last; ++j) offer(score[j], j);
  if (last > 0) offer(forced.diagonal ? kSurely : score[last], last);
  if (count > entries) keep_best();
  std::sort(workspace, workspace + count,
            [](const Candidate& a, const Candidate& b) { return a.block < b.block; });
  for (int64_t e = 0; e < entries; ++e) idx[e] = e < count ? workspace[e].block : -1;
}

void random_row(const RaggedBatch& batch, uint64_t seed, int64_t layer, int64_t s, int64_t head,
                int64_t position, int64_t last, float* score) {
  // hash_words of all words but the block, which comes last.
  const uint64_t prefix =
      hash_words({seed, batch.step, static_cast<uint64_t>(batch.row[size_t(s)]), static_cast<uint64_t>(layer),
                  static_cast<uint64_t>(head), static_cast<uint64_t>(position)});
  for (int64_t j = 0; j <= last; ++j)
    score[j] = static_cast<float>(to_unit(mix64(prefix ^ static_cast<uint64_t>(j))));
}

namespace {

// fn(row, head, s, position, worker) for all tokens and KV heads, in tasks of a fixed number of tokens.
template <class F>
void for_tokens_heads(Runtime& rt, const RaggedBatch& batch, int64_t heads, const F& fn) {
  constexpr int64_t kTokens = 64;
  struct Piece {
    int64_t s, begin, end;
  };
  std::vector<Piece> pieces;
  for (int64_t s = 0; s < batch.sequences(); ++s)
    for (int64_t i = 0; i < batch.q_len(s); i += kTokens)
      pieces.push_back({s, i, std::min(batch.q_len(s), i + kTokens)});
  const int64_t work = batch.tokens() * heads * batch.max_kv_len();
  for_items(rt, static_cast<int64_t>(pieces.size()), work, [&](int64_t item, int worker) {
    const Piece& piece = pieces[size_t(item)];
    for (int64_t i = piece.begin; i < piece.end; ++i)
      for (int64_t g = 0; g < heads; ++g)
        fn(batch.cu_q[size_t(piece.s)] + i, g, piece.s, batch.past_len[size_t(piece.s)] + i, worker);
  });
}

void want_f32(const char* op, DType t) {
  if (t != DType::f32)
    throw failure("internal check", fmt::format("{}: the CPU kernels rank in f32, got {}", op, name_of(t)));
}

}  // namespace
}  // namespace attn

void cpu_select_blocks(Runtime& rt, const SelectBlocks& a) {
  attn::want_f32("select_blocks", check_args(a));
  const int64_t entries = a.idx.dim(2);
  ArenaScope scope(rt.scratch);
  const auto workspace = attn::per_worker<attn::Candidate*>(rt, [&](attn::Candidate*& w, attn::Slab& slab) {
    w = slab.take<attn::Candidate>(attn::candidates_for(entries));
  });
  const attn::Forced forced{a.force_first, a.force_diagonal};
  attn::for_tokens_heads(
      rt, a.batch, a.idx.dim(1), [&](int64_t row, int64_t g, int64_t, int64_t t, int worker) {
        attn::select_row(reinterpret_cast<const float*>(attn::address(a.block_scores, row, g)), t / a.block,
                         entries, forced, reinterpret_cast<int32_t*>(attn::address(a.idx, row, g)),
                         workspace[size_t(worker)]);
      });
}

void cpu_random_scores(Runtime& rt, const RandomScores& a) {
  attn::want_f32("random_scores", check_args(a));
  attn::for_tokens_heads(rt, a.batch, a.block_scores.dim(1),
                         [&](int64_t row, int64_t g, int64_t s, int64_t t, int) {
                           float* score = reinterpret_cast<float*>(attn::address(a.block_scores, row, g));
                           attn::random_row(a.batch, a.seed, a.layer, s, g, t, t / a.block, score);
                           std::fill(score + t / a.block + 1, score + a.block_scores.dim(2), attn::kNone);
                         });
}

}  // namespace hysparse
