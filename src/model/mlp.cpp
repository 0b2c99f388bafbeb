#include "model/mlp.h"

#include "model/moe.h"

namespace hysparse {
namespace {

int64_t width_of(const Pass& p, int layer) {
  return p.config.dense_width(p.entry(layer).moe);
}

}  // namespace

void fill_mlp(Pass& p, int layer) {
  if (p.entry(layer).moe) fill_experts(p, layer);
  LayerSaved& s = p.saved.layer(layer);
  LayerWeights& w = p.layer_weights(layer);
  const int64_t n = p.tokens(), width = width_of(p, layer);
  if (width == 0) return;
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
  const bool moe = p.entry(layer).moe;
  if (moe) experts_output(p, layer, y);
  if (width_of(p, layer) == 0) return;
  const LinearForward down[] = {
      {p.saved.layer(layer).mlp_hidden, p.layer_weights(layer).mlp_down, nullptr, y, moe}};
  p.ops().linear_group(p.rt, down, p.first_weights(layer + 1));
}

void mlp_backward(Pass& p, int layer, const TensorView& dy, const TensorView& dx) {
  LayerSaved& s = p.saved.layer(layer);
  LayerWeights& w = p.layer_weights(layer);
  const int64_t n = p.tokens(), width = width_of(p, layer);
  const bool moe = p.entry(layer).moe;
  if (moe) experts_backward(p, layer, dy, dx);
  if (width == 0) return;
  const TensorView dgate = p.scratch(p.compute(), {n, width}), dup = p.scratch(p.compute(), {n, width});
  p.ops().linear_backward(
      p.rt,
      {.x = s.mlp_hidden, .weight = w.mlp_down, .bias = nullptr, .dy = dy, .dx = dgate, .accumulate = false});
  p.ops().swiglu_backward(p.rt,
                          {.gate = s.mlp_gate, .up = s.mlp_up, .dh = dgate, .dgate = dgate, .dup = dup});
  p.ops().linear_backward(
      p.rt,
      {.x = s.normed2, .weight = w.mlp_gate, .bias = nullptr, .dy = dgate, .dx = dx, .accumulate = moe});
  p.ops().linear_backward(
      p.rt, {.x = s.normed2, .weight = w.mlp_up, .bias = nullptr, .dy = dup, .dx = dx, .accumulate = true});
}

}  // namespace hysparse
