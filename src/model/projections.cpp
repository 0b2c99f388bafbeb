// Query, key, value and gate projections of a layer: linear (+ bias), RMSNorm of each head (qk_norm), RoPE.
#include <cmath>
#include <vector>

#include "model/attention_layer.h"

namespace hysparse {
namespace {

const Weight* optional(const Weight& w) {
  return w ? &w : nullptr;
}
Weight* optional(Weight& w) {
  return w ? &w : nullptr;
}

Rope rope(Pass& p, const TensorView& x, bool inverse) {
  return {.x = x,
          .position = p.batch.position.data(),
          .cos = p.rope.cos(),
          .sin = p.rope.sin(),
          .inverse = inverse};
}

using Group = std::vector<LinearForward>;

void project(Pass& p, int layer, const Weight& weight, const Weight& bias, const TensorView& y,
             Group& group) {
  group.push_back({.x = p.saved.layer(layer).normed1,
                   .weight = weight,
                   .bias = optional(bias),
                   .y = y.rank == 3 ? flat(y) : y,
                   .accumulate = false});
}

void project_backward(Pass& p, const TensorView& x, Weight& weight, Weight* bias, const TensorView& dy,
                      GradSum& dx) {
  p.ops().linear_backward(
      p.rt, {.x = x, .weight = weight, .bias = bias, .dy = dy, .dx = dx.view, .accumulate = dx.accumulate()});
}

// Through RoPE and the head norm, in place: what came out of the projection.
void head_backward(Pass& p, const TensorView& d, const TensorView& raw, const TensorView& rstd,
                   Weight& norm) {
  p.ops().rope(p.rt, rope(p, d, true));
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

// q in the making: what its projection writes.
void project_q(Pass& p, int layer, Group& group) {
  LayerSaved& s = p.saved.layer(layer);
  LayerWeights& w = p.layer_weights(layer);
  const bool raw = w.q_norm && p.saved.training();  // the norm's backward reads what went in
  TensorView& y = raw ? s.q_raw : s.q;
  if (y) return;
  p.make(y, Keep::costly, p.compute(), {p.tokens(), p.config.num_attention_heads, p.config.d()});
  project(p, layer, w.q_proj, w.q_bias, y, group);
}
void norm_q(Pass& p, int layer) {
  LayerSaved& s = p.saved.layer(layer);
  const Weight& norm = p.layer_weights(layer).q_norm;
  const double eps = p.config.rms_norm_eps;
  if (norm && p.saved.training()) {
    const int64_t n = p.tokens(), heads = p.config.num_attention_heads;
    p.make(s.q, Keep::cheap, p.compute(), {n, heads, p.config.d()});
    p.make(s.q_rstd, Keep::cheap, p.accumulation(), {n, heads});
    p.ops().rmsnorm(p.rt, {.x = s.q_raw, .weight = norm, .eps = eps, .y = s.q, .rstd = s.q_rstd});
  } else if (norm) {
    p.ops().rmsnorm(p.rt, {.x = s.q, .weight = norm, .eps = eps, .y = s.q});
  }
}

void project_kv(Pass& p, int layer, Keep keep, Group& group) {
  LayerSaved& s = p.saved.layer(layer);
  LayerWeights& w = p.layer_weights(layer);
  const int64_t n = p.tokens(), heads = p.config.kv_heads();
  const bool raw = w.k_norm && p.saved.training();
  p.make(s.k, keep, p.compute(), {n, heads, p.config.d()});
  p.make(s.v, keep, p.compute(), {n, heads, p.config.dv()});
  if (raw) p.make(s.k_raw, keep, p.compute(), {n, heads, p.config.d()});
  project(p, layer, w.k_proj, w.k_bias, raw ? s.k_raw : s.k, group);
  project(p, layer, w.v_proj, w.v_bias, s.v, group);
}
void norm_k(Pass& p, int layer, Keep keep) {
  LayerSaved& s = p.saved.layer(layer);
  const Weight& norm = p.layer_weights(layer).k_norm;
  const double eps = p.config.rms_norm_eps;
  if (norm && p.saved.training()) {
    p.make(s.k_rstd, keep, p.accumulation(), {p.tokens(), p.config.kv_heads()});
    p.ops().rmsnorm(p.rt, {.x = s.k_raw, .weight = norm, .eps = eps, .y = s.k, .rstd = s.k_rstd});
  } else if (norm) {
    p.ops().rmsnorm(p.rt, {.x = s.k, .weight = norm, .eps = eps, .y = s.k});
  }
}

}  // namespace

std::vector<const Weight*> Pass::first_weights(int layer) const {
  if (layer == static_cast<int>(plan.size())) return {&weights.lm_head()};
  const LayerWeights& w = layer_weights(layer);
  std::vector<const Weight*> first = {&w.q_proj};
  for (const Weight* more : {&w.k_proj, &w.v_proj, &w.sparse_gate, &w.window_gate, &w.gate})
    if (*more) first.push_back(more);
  return first;
}

double Pass::softmax_scale() const {
  return 1.0 / std::sqrt(static_cast<double>(config.d()));
}

void fill_projections(Pass& p, int layer, const Wanted& wanted) {
  LayerSaved& s = p.saved.layer(layer);
  const bool q = !s.q, kv = wanted.kv && !s.k;
  Group group;
  if (q) project_q(p, layer, group);
  if (kv) project_kv(p, layer, *wanted.kv, group);
  for (const Gate& gate : wanted.gates) {
    if (!gate.weight || *gate.logits) continue;
    p.make(*gate.logits, Keep::costly, p.accumulation(), {p.tokens(), p.config.gate_width()});
    project(p, layer, *gate.weight, {}, *gate.logits, group);
  }
  const Weight* next[] = {&p.layer_weights(layer).o_proj};
  if (!group.empty()) p.ops().linear_group(p.rt, group, next);
  std::vector<Rope> rotated;
  if (q) {
    norm_q(p, layer);
    rotated.push_back(rope(p, s.q, false));
  }
  if (kv) {
    norm_k(p, layer, *wanted.kv);
    rotated.push_back(rope(p, s.k, false));
  }
  p.ops().rope_group(p.rt, rotated);
  if (kv) s.kv = p.kv.append(layer, p.batch, s.k, s.v);
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
