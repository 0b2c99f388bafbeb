// Query, key, value and gate projections of a layer: linear (+ bias), RMSNorm of each head (qk_norm), RoPE.
#include <cmath>

#include "model/attention_layer.h"

namespace hysparse {
namespace {

const Weight* optional(const Weight& w) {
  return w ? &w : nullptr;
}
Weight* optional(Weight& w) {
  return w ? &w : nullptr;
}

void rope(Pass& p, const TensorView& x, bool inverse) {
  p.ops().rope(p.rt, {.x = x,
                      .position = p.batch.position.data(),
                      .cos = p.rope.cos(),
                      .sin = p.rope.sin(),
                      .inverse = inverse});
}

void project(Pass& p, const TensorView& x, const Weight& weight, const Weight& bias, const TensorView& y) {
  p.ops().linear(p.rt, {.x = x, .weight = weight, .bias = optional(bias), .y = flat(y), .accumulate = false});
}

void project_backward(Pass& p, const TensorView& x, Weight& weight, Weight* bias, const TensorView& dy,
                      GradSum& dx) {
  p.ops().linear_backward(
      p.rt, {.x = x, .weight = weight, .bias = bias, .dy = dy, .dx = dx.view, .accumulate = dx.accumulate()});
}

// Through RoPE and the head norm, in place: what came out of the projection.
void head_backward(Pass& p, const TensorView& d, const TensorView& raw, const TensorView& rstd,
                   Weight& norm) {
  rope(p, d, true);
  if (norm)
    p.ops().rmsnorm_backward(p.rt,
                             {.x = raw, .weight = norm, .rstd = rstd, .dy = d, .dx = d, .accumulate = false});
}

// In the compute dtype: the gradients of K and V are summed in A.
TensorView rounded(Pass& p, const TensorView& d) {
  if (d.dtype == p.compute()) return d;
  const TensorView out = p.scratch(p.compute(), {d.dim(0), d.dim(1), d.dim(2)});
  p.ops().cast(p.rt, {.src = d, .dst = out});
  return out;
}

}  // namespace

double Pass::softmax_scale() const {
  return 1.0 / std::sqrt(static_cast<double>(config.d()));
}

void fill_q(Pass& p, int layer) {
  LayerSaved& s = p.saved.layer(layer);
  LayerWeights& w = p.layer_weights(layer);
  if (s.q) return;
  const int64_t n = p.tokens(), heads = p.config.num_attention_heads, d = p.config.d();
  if (w.q_norm && p.saved.training()) {
    if (!s.q_raw) {
      p.make(s.q_raw, Keep::costly, p.compute(), {n, heads, d});
      project(p, s.normed1, w.q_proj, w.q_bias, s.q_raw);
    }
    p.make(s.q, Keep::cheap, p.compute(), {n, heads, d});
    p.make(s.q_rstd, Keep::cheap, p.accumulation(), {n, heads});
    p.ops().rmsnorm(
        p.rt, {.x = s.q_raw, .weight = w.q_norm, .eps = p.config.rms_norm_eps, .y = s.q, .rstd = s.q_rstd});
  } else {
    p.make(s.q, Keep::costly, p.compute(), {n, heads, d});
    project(p, s.normed1, w.q_proj, w.q_bias, s.q);
    if (w.q_norm)
      p.ops().rmsnorm(p.rt, {.x = s.q, .weight = w.q_norm, .eps = p.config.rms_norm_eps, .y = s.q});
  }
  rope(p, s.q, false);
}

void fill_kv(Pass& p, int layer, Keep keep) {
  LayerSaved& s = p.saved.layer(layer);
  LayerWeights& w = p.layer_weights(layer);
  if (s.k) return;
  const int64_t n = p.tokens(), heads = p.config.kv_heads();
  p.make(s.k, keep, p.compute(), {n, heads, p.config.d()});
  p.make(s.v, keep, p.compute(), {n, heads, p.config.dv()});
  project(p, s.normed1, w.v_proj, w.v_bias, s.v);
  if (w.k_norm && p.saved.training()) {
    p.make(s.k_raw, keep, p.compute(), {n, heads, p.config.d()});
    p.make(s.k_rstd, keep, p.accumulation(), {n, heads});
    project(p, s.normed1, w.k_proj, w.k_bias, s.k_raw);
    p.ops().rmsnorm(
        p.rt, {.x = s.k_raw, .weight = w.k_norm, .eps = p.config.rms_norm_eps, .y = s.k, .rstd = s.k_rstd});
  } else {
    project(p, s.normed1, w.k_proj, w.k_bias, s.k);
    if (w.k_norm)
      p.ops().rmsnorm(p.rt, {.x = s.k, .weight = w.k_norm, .eps = p.config.rms_norm_eps, .y = s.k});
  }
  rope(p, s.k, false);
  s.kv = p.kv.append(layer, p.batch, s.k, s.v);
}

void fill_gate(Pass& p, int layer, TensorView& gate, const Weight& weight) {
  if (gate) return;
  p.make(gate, Keep::costly, p.accumulation(), {p.tokens(), p.config.gate_width()});
  p.ops().linear(
      p.rt,
      {.x = p.saved.layer(layer).normed1, .weight = weight, .bias = nullptr, .y = gate, .accumulate = false});
}

void q_backward(Pass& p, int layer, const TensorView& dq, GradSum& dx) {
  LayerSaved& s = p.saved.layer(layer);
  LayerWeights& w = p.layer_weights(layer);
  head_backward(p, dq, s.q_raw, s.q_rstd, w.q_norm);
  project_backward(p, s.normed1, w.q_proj, optional(w.q_bias), flat(dq), dx);
}

void kv_backward(Pass& p, int layer, const TensorView& dk_sum, const TensorView& dv_sum, GradSum& dx) {
  LayerSaved& s = p.saved.layer(layer);
  LayerWeights& w = p.layer_weights(layer);
  const TensorView dk = rounded(p, dk_sum), dv = rounded(p, dv_sum);
  head_backward(p, dk, s.k_raw, s.k_rstd, w.k_norm);
  project_backward(p, s.normed1, w.k_proj, optional(w.k_bias), flat(dk), dx);
  project_backward(p, s.normed1, w.v_proj, optional(w.v_bias), flat(dv), dx);
}

void gate_backward(Pass& p, int layer, const TensorView& dgate, Weight& weight, GradSum& dx) {
  project_backward(p, p.saved.layer(layer).normed1, weight, nullptr, dgate, dx);
}

}  // namespace hysparse
