// Log-probabilities of tokens, as requests ask for them.
#pragma once

#include <cstdint>
#include <vector>

#include "tensor/tensor.h"

namespace hysparse {

// Natural log, of the model's own distribution: softmax of the logits before any penalty, bias, constraint or
// temperature, over every row of the head.
struct TokenLogprob {
  int32_t token = -1;
  float logprob = 0;
};

// At one position: the token that stands there, and the likeliest ones (descending, ties to the lower id),
// as many as the request asked for; the token itself may be among them.
struct TokenLogprobs {
  TokenLogprob token;
  std::vector<TokenLogprob> top;
};

// One position. Keeps the view: what it shows must outlive this.
class LogSoftmax {
 public:
  // `logits` [vocab] f32 or f64, host: all rows of the head. NaN or +inf, or nothing above -inf, throw
  // Error(failure).
  explicit LogSoftmax(const TensorView& logits);
  float of(int32_t token) const;
  // The k likeliest (all, where the vocabulary is smaller). Their values are to the bit those of of():
  // clients compare them.
  std::vector<TokenLogprob> top(int64_t k) const;
  // What a request that asked for `k` gets of `token`; k < 1: no others.
  TokenLogprobs report(int32_t token, int64_t k) const { return {{token, of(token)}, top(k)}; }

 private:
  float value(size_t i) const;

  TensorView logits_;
  double normaliser_;
};

}  // namespace hysparse
