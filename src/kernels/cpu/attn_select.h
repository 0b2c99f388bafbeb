// Ranking of blocks: the part of selection that works on one row of scores.
#pragma once

#include <cstdint>

#include "kernels/ops.h"

namespace hysparse::attn {

// Workspace of select_row for `entries` entries.
struct Candidate {
  float score;
  int32_t block;
};
constexpr int64_t candidates_for(int64_t entries) {
  return 2 * entries + 64;
}

struct Forced {
  bool first = false, diagonal = false;
};

// Writes the `entries` blocks of largest score among 0..last to idx, ascending, padded with -1. Equal scores:
// lower index first. Scores of -inf or NaN are never chosen; forced blocks always are, before all others.
void select_row(const float* score, int64_t last, int64_t entries, Forced forced, int32_t* idx,
                Candidate* workspace);

// Random scores of blocks 0..last of one token and KV head.
void random_row(const RaggedBatch& batch, uint64_t seed, int64_t layer, int64_t s, int64_t head,
                int64_t position, int64_t last, float* score);

}  // namespace hysparse::attn
