// The routed experts of a MoE layer (spec section 7): sum over a token's experts of weight * expert(x).
#pragma once

#include "model/pass.h"

namespace hysparse {

void fill_experts(Pass& p, int layer);                         // up to expert_hidden
void experts_output(Pass& p, int layer, const TensorView& y);  // y [n, hidden] T
void experts_backward(Pass& p, int layer, const TensorView& dy,
                      const TensorView& dx);  // dx: gradient at normed2

}  // namespace hysparse
