#include "model/mlp.h"

namespace hysparse {

void fill_mlp(Pass& p, int layer) {
  LayerSaved& s = p.saved.layer(layer);
  LayerWeights& w = p.layer_weights(layer);
  const int64_t n = p.tokens(), width = p.config.intermediate_size;
  if (!s.mlp_gate) {
    p.make(s.mlp_gate, Keep::costly, p.compute(), {n, width});
    p.make(s.mlp_up, Keep::costly, p.compute(), {n, width});
    const LinearForward group[] = {{s.normed2, w.mlp_gate, nullptr, s.mlp_gate, false},
                                   {s.normed2, w.mlp_up, nullptr, s.mlp_up, false}};
    const Weight* next[] = {&w.mlp_down};
    p.ops().linear_group(p.rt, group, next);
  }
  if (s.mlp_hidden) return;
  if (p.saved.training())
    p.make(s.mlp_hidden, Keep::cheap, p.compute(), {n, width});
  else
    p.saved.alias(s.mlp_hidden, s.mlp_gate);
  p.ops().swiglu(p.rt, {.gate = s.mlp_gate, .up = s.mlp_up, .h = s.mlp_hidden});
}

void mlp_output(Pass& p, int layer, const TensorView& y) {
  const LinearForward down[] = {
      {p.saved.layer(layer).mlp_hidden, p.layer_weights(layer).mlp_down, nullptr, y, false}};
  p.ops().linear_group(p.rt, down, p.first_weights(layer + 1));
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
