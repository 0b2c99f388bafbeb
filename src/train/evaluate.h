// Held-out loss during training: whole windows, masked as in training.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "kernels/ops.h"
#include "model/model.h"
#include "train/data.h"

namespace hysparse {

struct HeldOutOptions {
  int64_t seq_len = 512;
  int64_t rows = 8;        // of a forward pass
  int64_t max_tokens = 0;  // 0: every whole window of the split
  bool document_mask = true;
  // Text bytes of every token id (0 for special ones): makes bits per byte exact for the windows that were
  // read. Empty: the split's mean.
  std::vector<int32_t> token_bytes;
};

struct HeldOut {
  double nats_per_token = 0.0;
  double bits_per_byte = 0.0;
  int64_t targets = 0;  // tokens scored
};

// Number i of `count` windows spread evenly over the `total` ones of a split: the middle of its share.
int64_t spread_window(int64_t i, int64_t count, int64_t total);

// Windows spread evenly over the split, so that few of them still see all its documents' kinds; every
// evaluation of a run reads the same. A split shorter than one window is read as one shorter window; one
// without two tokens throws Error(input). Ranks call it together: each reads its share, all get the result.
HeldOut evaluate_held_out(Runtime& rt, Model& model, const TokenData& data, const HeldOutOptions& options);

}  // namespace hysparse
