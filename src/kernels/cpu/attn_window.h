// How a sliding window is cut, shared by its forward and backward.
#pragma once

#include <algorithm>

#include "kernels/cpu/attn_tile.h"

namespace hysparse::attn {

struct WindowPlan {
  static constexpr int64_t kBand = 256;  // windows up to here keep the keys of a whole tile of tokens at hand
  static constexpr int64_t kStep = 16;   // tokens that meet a band at a time: a multiple of kPad

  bool band;
  int64_t fit = 1;                                  // tokens of a tile
  int64_t tokens = 1;                               // the most of a tile of this batch
  int64_t keys = 0, rows_at_once = 0, columns = 0;  // extents of its scratch
  int64_t work = 0;                                 // multiply-adds of the forward

  WindowPlan(const RaggedBatch& batch, const Shape& shape, int64_t window);
};

// Tokens [from, to) of a tile whose first token stands at `position`, against a band whose column 0 is key
// `base`.
struct WindowStep {
  int column, n, tokens;     // they see (part of) columns [column, column + n)
  int64_t t, first, window;  // position of the first token; key of `column`

  WindowStep(int64_t position, int64_t from, int64_t to, int64_t base, int64_t window_)
      : tokens(static_cast<int>(to - from)), t(position + from), window(window_) {
    const int64_t oldest = std::max<int64_t>(0, t - window + 1);
    column = static_cast<int>((oldest - base) / kPad * kPad);
    first = base + column;
    n = static_cast<int>(position + to - first);
  }
  void bounds(int r, int32_t* lo, int32_t* hi) const {
    for (int i = 0; i < tokens * r; ++i) {
      lo[i] = static_cast<int32_t>(std::max<int64_t>(0, t + i / r - window + 1 - first));
      hi[i] = static_cast<int32_t>(t + i / r + 1 - first);
    }
  }
};

// The tokens [from, to) of a tile of `count`, the first at `position`, that see some of the keys [key, key +
// n).
struct WindowRows {
  int64_t from, to;
  bool masked;
  int64_t t, key, n, window;

  WindowRows(int64_t position, int64_t count, int64_t key_, int64_t n_, int64_t window_)
      : from(std::max<int64_t>(0, key_ - position)),
        to(std::min(count, key_ + n_ - 1 + window_ - position)),
        masked(position + from + 1 < key_ + n_ || position + to - window_ > key_),
        t(position + from),
        key(key_),
        n(n_),
        window(window_) {}
  void bounds(int r, int32_t* lo, int32_t* hi) const {
    for (int64_t i = 0; i < (to - from) * r; ++i) {
      lo[i] = static_cast<int32_t>(std::max<int64_t>(0, t + i / r - window + 1 - key));
      hi[i] = static_cast<int32_t>(std::min<int64_t>(n, t + i / r + 1 - key));
    }
  }
};

}  // namespace hysparse::attn
