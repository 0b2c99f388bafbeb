// The MLP part of a layer: down(silu(gate x) * up x), and in a MoE layer that of its shared experts beside
// the routed ones (moe.h).
#pragma once

#include "model/pass.h"

namespace hysparse {

void fill_mlp(Pass& p, int layer);                         // up to the hidden activations
void mlp_output(Pass& p, int layer, const TensorView& y);  // y [n, hidden] T
void mlp_backward(Pass& p, int layer, const TensorView& dy, const TensorView& dx);  // dx: gradient at normed2

}  // namespace hysparse
