#include "model/mlp.h"

#include <array>

namespace hysparse {

void fill_mlp(Pass& p, int layer) {
  LayerSaved& s = p.saved.layer(layer);
  LayerWeights& w = p.layer_weights(layer);
  const int64_t n = p.tokens(), width = p.config.intermediate_size;
  if (!s.mlp_gate) {
    p.make(s.mlp_gate, Keep::costly, p.compute(), {n, width});
    p.make(s.mlp_up, Keep::costly, p.compute(), {n, width});
    p.ops().linear_group(
        p.rt,
        std::array<LinearForward, 2>{
            {{.x = s.normed2, .weight = w.mlp_gate, .bias = nullptr, .y = s.mlp_gate, .accumulate = false},
             {.x = s.normed2, .weight = w.mlp_up, .bias = nullptr, .y = s.mlp_up, .accumulate = false}}});
  }
  if (s.mlp_hidden) return;
  if (p.saved.training())
    p.make(s.mlp_hidden, Keep::cheap, p.compute(), {n, width});
  else
    p.saved.alias(s.mlp_hidden, s.mlp_gate);
  p.ops().swiglu(p.rt, {.gate = s.mlp_gate, .up = s.mlp_up, .h = s.mlp_hidden});
}

void mlp_output(Pass& p, int layer, const TensorView& y) {
  p.ops().linear(p.rt, {.x = p.saved.layer(layer).mlp_hidden,
                        .weight = p.layer_weights(layer).mlp_down,
                        .bias = nullptr,
                        .y = y,
                        .accumulate = false});
}

void mlp_backward(Pass& p, int layer, const TensorView& dy, const TensorView& dx) {
  LayerSaved& s = p.saved.layer(layer);
  LayerWeights& w = p.layer_weights(layer);
  const int64_t n = p.tokens(), width = p.config.intermediate_size;
  const TensorView dgate = p.scratch(p.compute(), {n, width}), dup = p.scratch(p.compute(), {n, width});
  p.ops().linear_backward(
      p.rt,
      {.x = s.mlp_hidden, .weight = w.mlp_down, .bias = nullptr, .dy = dy, .dx = dgate, .accumulate = false});
  p.ops().swiglu_backward(p.rt,
                          {.gate = s.mlp_gate, .up = s.mlp_up, .dh = dgate, .dgate = dgate, .dup = dup});
  p.ops().linear_backward(
      p.rt,
      {.x = s.normed2, .weight = w.mlp_gate, .bias = nullptr, .dy = dgate, .dx = dx, .accumulate = false});
  p.ops().linear_backward(
      p.rt, {.x = s.normed2, .weight = w.mlp_up, .bias = nullptr, .dy = dup, .dx = dx, .accumulate = true});
}

}  // namespace hysparse
