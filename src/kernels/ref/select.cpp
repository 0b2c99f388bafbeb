// Block selection and the scores of its random control.
#include <algorithm>

#include "base/rng.h"
#include "kernels/checks.h"
#include "kernels/ref/loops.h"
#include "kernels/ref/ref_ops.h"

namespace hysparse::ref {
namespace {

// Calls fn(row, g, j_last, s) for every token and KV head; j_last is the block of the token itself.
template <class F>
void for_tokens_heads(const RaggedBatch& batch, int64_t heads, int64_t block, const F& fn) {
  const std::vector<int64_t> s_of = sequence_of_row(batch);
  for (int64_t row = 0; row < batch.tokens(); ++row) {
    const int64_t s = s_of[size_t(row)];
    for (int64_t g = 0; g < heads; ++g) fn(row, g, position_of(batch, s, row) / block, s);
  }
}

}  // namespace

void RefOps::select_blocks(Runtime&, const SelectBlocks& a) const {
  require_f64(check_args(a), "select_blocks");
  const int64_t entries = a.idx.dim(2);
  for_tokens_heads(a.batch, a.idx.dim(1), a.block, [&](int64_t row, int64_t g, int64_t j_last, int64_t) {
    const double* score = at(a.block_scores, row, g);
    std::vector<int64_t> chosen;  // candidates, then the best of them, then in ascending order
    const auto rank = [&](int64_t j) {
      const bool forced = (a.force_first && j == 0) || (a.force_diagonal && j == j_last);
      return forced ? kInf : score[j];
    };
    for (int64_t j = 0; j <= j_last; ++j)
      if (rank(j) > -kInf) chosen.push_back(j);  // false for NaN too
    const auto best = chosen.begin() + std::min<int64_t>(entries, static_cast<int64_t>(chosen.size()));
    std::partial_sort(chosen.begin(), best, chosen.end(),
                      [&](int64_t x, int64_t y) { return rank(x) != rank(y) ? rank(x) > rank(y) : x < y; });
    chosen.erase(best, chosen.end());
    std::sort(chosen.begin(), chosen.end());
    int32_t* out = a.idx.as<int32_t>() + row * a.idx.stride[0] + g * a.idx.stride[1];
    for (int64_t e = 0; e < entries; ++e)
      out[e] = e < static_cast<int64_t>(chosen.size()) ? static_cast<int32_t>(chosen[size_t(e)]) : -1;
  });
}

void RefOps::random_scores(Runtime&, const RandomScores& a) const {
  require_f64(check_args(a), "random_scores");
  const RaggedBatch& b = a.batch;
  for_tokens_heads(b, a.block_scores.dim(1), a.block, [&](int64_t row, int64_t g, int64_t j_last, int64_t s) {
    const auto position = static_cast<uint64_t>(position_of(b, s, row));
    double* score = at(a.block_scores, row, g);
    for (int64_t j = 0; j < a.block_scores.dim(2); ++j)
      score[j] =
          j > j_last
              ? -kInf
              : static_cast<float>(to_unit(hash_words(
                    {a.seed, b.step, static_cast<uint64_t>(b.row[size_t(s)]), static_cast<uint64_t>(a.layer),
                     static_cast<uint64_t>(g), position, static_cast<uint64_t>(j)})));
  });
}

}  // namespace hysparse::ref
