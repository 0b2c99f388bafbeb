// From logits to a token.
#pragma once

#include <cstdint>
#include <vector>

#include "tensor/tensor.h"

namespace hysparse {

// Applied in this order: repetition penalty, temperature, top-k, top-p, min-p (as in transformers).
struct SamplerOptions {
  double temperature = 1.0;         // 0: greedy, nothing below matters but the penalty
  int64_t top_k = 0;                // keep the k most likely tokens; 0: all
  double top_p = 1.0;               // keep the fewest most likely tokens whose probabilities reach this sum
  double min_p = 0.0;               // drop tokens less likely than this share of the likeliest
  double repetition_penalty = 1.0;  // of every token seen: logit / penalty where > 0, else logit * penalty
  uint64_t seed = 0;

  // Throws Error(input) naming the field that is out of range; NaN is out of range everywhere.
  void check() const;
};

// The i-th token drawn depends on the logits, what was seen and (seed, i) alone: not on threads, time or
// earlier draws. Equal logits rank by the lower id.
class Sampler {
 public:
  Sampler(const SamplerOptions& options, int64_t vocab);
  // Tokens that the repetition penalty counts: the prompt's and the answer's.
  void see(const std::vector<int32_t>& tokens);
  void see(int32_t token);
  // `logits` [vocab] f32 or f64, host. NaN or +inf, or nothing above -inf, throw Error(failure).
  int32_t sample(const TensorView& logits, uint64_t index);

 private:
  struct Candidate {
    double logit;
    int32_t id;
  };
  int32_t draw(uint64_t index);
  void sort_prefix(size_t count);

  SamplerOptions options_;
  std::vector<bool> seen_;
  std::vector<int32_t> seen_ids_;
  std::vector<double> logits_;
  std::vector<Candidate> candidates_;
};

}  // namespace hysparse
