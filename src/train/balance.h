// Balancing of experts without a loss of its own: after each step the bias that joins a score for the choice
// alone goes up where an expert had less than the mean load, and down where it had more (spec section 7).
#pragma once

#include "model/weights.h"

namespace hysparse {

// What one step gave to the experts of a layer; NaN where it has none, or no token counted.
struct ExpertLoad {
  double max_over_mean, min_over_mean;
  double idle;     // experts without a token
  double entropy;  // of the shares, over log(experts): 1 where all is even
};
ExpertLoad expert_load(const LayerWeights& layer, Memory& memory);

// bias_e += rate * sign(mean load - load_e) in every MoE layer, by the loads since zero_grad().
void balance_experts(Weights& weights, double rate);

}  // namespace hysparse
