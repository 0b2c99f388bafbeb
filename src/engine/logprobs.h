// Log-probabilities of tokens, as requests ask for them.
#pragma once

#include <cstdint>
#include <vector>

namespace hysparse {

// Natural log, of the model's own distribution: softmax of the logits before any penalty, bias, constraint or
// temperature, over the ids that may be drawn.
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

}  // namespace hysparse
