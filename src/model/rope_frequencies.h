// How fast each pair of a head's rotated dims turns: powers of rope_theta, scaled as rope_scaling says.
#pragma once

#include <vector>

#include "model/config.h"

namespace hysparse {

struct RopeFrequencies {
  std::vector<double> radians;  // a position, of pair i (dims i and i + half) of rotary_dims() / 2
  double magnitude = 1.0;       // multiplies cos and sin, so rotated queries and keys (yarn)
};

// With f = theta^(-2i/dims), turns = original_max_position_embeddings f / 2 pi:
//   linear  f / factor
//   llama3  f where turns > high_freq_factor, f / factor where turns < low_freq_factor, between them the mean
//           weighted by (turns - low) / (high - low)
//   yarn    the mean of f and f / factor weighted by a ramp over the pairs, from the one that turns beta_fast
//           times to the one that turns beta_slow times; magnitude attention_factor
RopeFrequencies rope_frequencies(const ModelConfig& config);

}  // namespace hysparse
