// The only batch layout: ragged sequences, tokens packed back to back.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace hysparse {

// S sequences (in training: documents). Sequence s owns query rows [cu_q[s], cu_q[s+1]); its first query row
// sits at position past_len[s] of the sequence. Attention, windows, selections and labels never cross a
// sequence. Training, one-shot prefill, chunked prefill and decode differ only in the numbers here.
struct RaggedBatch {
  std::vector<int64_t> cu_q{0};     // [S + 1], cu_q[0] == 0
  std::vector<int64_t> past_len;    // [S] tokens already in the cache; 0 in training
  std::vector<int64_t> row;         // [S] training row of the step (counter of random selection); 0 elsewhere
  std::vector<int32_t> position;    // [tokens] position within the sequence = past_len[s] + offset
  std::vector<int64_t> logit_rows;  // query rows whose logits are wanted, ascending; used by the model's head
  std::vector<int32_t> kv_lens;     // [S] kv_len(s)
  int64_t kv_bound = 0;  // at least max_kv_len(), for steps that repeat as sequences grow; 0: unset
  uint64_t step = 0;     // training step (counter of random selection); 0 elsewhere

  int64_t sequences() const { return static_cast<int64_t>(past_len.size()); }
  int64_t tokens() const { return cu_q.back(); }
  int64_t q_len(int64_t s) const { return cu_q[size_t(s) + 1] - cu_q[size_t(s)]; }
  int64_t kv_len(int64_t s) const { return past_len[size_t(s)] + q_len(s); }
  int64_t max_kv_len() const {
    int64_t m = 0;
    for (int64_t s = 0; s < sequences(); ++s) m = std::max(m, kv_len(s));
    return m;
  }
  // Appends a sequence of `length` > 0 new tokens after `past` cached ones.
  void add_sequence(int64_t length, int64_t past = 0, int64_t row_index = 0) {
    cu_q.push_back(cu_q.back() + length);
    past_len.push_back(past);
    row.push_back(row_index);
    kv_lens.push_back(static_cast<int32_t>(past + length));
    for (int64_t i = 0; i < length; ++i) position.push_back(static_cast<int32_t>(past + i));
  }
};

}  // namespace hysparse
