// A sparse layer: one query, two branches (spec section 4). The sparse branch reads the K, V and the
// selection of its source, a full layer before it; the window branch reads its own K, V (own), the shared
// ones (shared), or does not exist (none). Both have sinks; gates weigh them.
#include "model/attention_layer.h"

namespace hysparse {

void fill_sparse_attention(Pass& p, int layer) {
  LayerSaved& s = p.saved.layer(layer);
  LayerWeights& w = p.layer_weights(layer);
  const LayerPlanEntry& entry = p.entry(layer);
  const SharedKV& source = p.kv_of(entry.kv_source);
  const int64_t n = p.tokens(), heads = p.config.num_attention_heads, dv = p.config.dv();
  const bool window = entry.window > 0;

  Wanted wanted;
  if (entry.own_window_kv) wanted.kv = Keep::own_kv;
  wanted.gates[0] = {&w.sparse_gate, &s.gate};
  if (window) wanted.gates[1] = {&w.window_gate, &s.window_gate};
  fill_projections(p, layer, wanted);
  if (s.mix) return;

  const bool attend = !s.o;
  if (attend) {
    p.make(s.o, Keep::attention, p.compute(), {n, heads, dv});
    p.make(s.lse, Keep::attention, p.accumulation(), {n, heads});
    if (window) {
      p.make(s.window_o, Keep::attention, p.compute(), {n, heads, dv});
      p.make(s.window_lse, Keep::attention, p.accumulation(), {n, heads});
    }
  }
  if (p.saved.training())
    p.make(s.mix, Keep::cheap, p.compute(), {n, heads, dv});
  else
    p.saved.alias(s.mix, s.o);
  if (!attend) {
    p.ops().gated_sum(p.rt,
                      {.a = s.o, .gate_a = s.gate, .b = s.window_o, .gate_b = s.window_gate, .out = s.mix});
    return;
  }
  const WindowAttentionForward window_branch{.batch = p.batch,
                                             .q = s.q,
                                             .kv = entry.own_window_kv ? s.kv : source.kv,
                                             .window = entry.window,
                                             .scale = p.softmax_scale(),
                                             .sinks = w.sinks.value,
                                             .o = s.window_o,
                                             .lse = s.window_lse};
  p.ops().sparse_window_gated(p.rt, {.sparse = {.batch = p.batch,
                                                .q = s.q,
                                                .kv = source.kv,
                                                .selection = p.kv_of(entry.selection_source).selection,
                                                .scale = p.softmax_scale(),
                                                .sinks = w.sparse_sinks.value,
                                                .o = s.o,
                                                .lse = s.lse},
                                     .window = window ? &window_branch : nullptr,
                                     .gate_sparse = s.gate,
                                     .gate_window = s.window_gate,
                                     .out = s.mix});
}

void sparse_attention_backward(Pass& p, int layer, const TensorView& dmix, GradSum& dx) {
  LayerSaved& s = p.saved.layer(layer);
  LayerWeights& w = p.layer_weights(layer);
  const LayerPlanEntry& entry = p.entry(layer);
  const int64_t n = p.tokens();
  const bool window = entry.window > 0;
  const DType t = p.compute(), acc = p.accumulation();

  const TensorView dgate = p.scratch(acc, {n, p.config.gate_width()});
  TensorView d_o = dmix, window_d_o, window_dgate;
  if (window) {
    d_o = p.scratch(t, {n, s.o.dim(1), s.o.dim(2)});
    window_d_o = p.scratch(t, {n, s.o.dim(1), s.o.dim(2)});
    window_dgate = p.scratch(acc, {n, p.config.gate_width()});
  }
  p.ops().gated_sum_backward(p.rt, {.a = s.o,
                                    .gate_a = s.gate,
                                    .b = s.window_o,
                                    .gate_b = s.window_gate,
                                    .d_out = dmix,
                                    .da = d_o,
                                    .db = window_d_o,
                                    .dgate_a = dgate,
                                    .dgate_b = window_dgate});
  gate_backward(p, layer, dgate, w.sparse_gate, dx);
  if (window) gate_backward(p, layer, window_dgate, w.window_gate, dx);

  const SharedKV& source = p.open_gradients(entry.kv_source);
  const TensorView dq = p.scratch(t, {n, s.q.dim(1), s.q.dim(2)});
  p.ops().sparse_attention_backward(p.rt, {.batch = p.batch,
                                           .q = s.q,
                                           .kv = source.kv,
                                           .selection = p.kv_of(entry.selection_source).selection,
                                           .scale = p.softmax_scale(),
                                           .sinks = w.sparse_sinks.value,
                                           .o = s.o,
                                           .lse = s.lse,
                                           .d_o = d_o,
                                           .dq = dq,
                                           .dk = source.dk,
                                           .dv = source.dv,
                                           .dsinks = w.sparse_sinks.grad});
  if (window) {
    TensorView dk = source.dk, dv = source.dv;
    if (entry.own_window_kv) {
      dk = p.rt.scratch.alloc_zero(acc, {n, s.k.dim(1), s.k.dim(2)});
      dv = p.rt.scratch.alloc_zero(acc, {n, s.v.dim(1), s.v.dim(2)});
    }
    const TensorView window_dq = p.scratch(t, {n, s.q.dim(1), s.q.dim(2)});
    p.ops().window_attention_backward(p.rt, {.batch = p.batch,
                                             .q = s.q,
                                             .kv = entry.own_window_kv ? s.kv : source.kv,
                                             .window = entry.window,
                                             .scale = p.softmax_scale(),
                                             .sinks = w.sinks.value,
                                             .o = s.window_o,
                                             .lse = s.window_lse,
                                             .d_o = window_d_o,
                                             .dq = window_dq,
                                             .dk = dk,
                                             .dv = dv,
                                             .dsinks = w.sinks.grad});
    p.ops().add(p.rt, {.a = dq, .b = window_dq, .y = dq});
    if (entry.own_window_kv) kv_backward(p, layer, dk, dv, dx);
  }
  q_backward(p, layer, dq, dx);
}

}  // namespace hysparse
