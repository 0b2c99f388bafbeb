// A sliding-window layer of the baselines: the window branch alone, with sink, no gate.
#include "model/attention_layer.h"

namespace hysparse {

void fill_window_attention(Pass& p, int layer) {
  LayerSaved& s = p.saved.layer(layer);
  const int64_t n = p.tokens(), heads = p.config.num_attention_heads;
  fill_projections(p, layer, {.kv = Keep::own_kv});
  if (!s.o) {
    p.make(s.o, Keep::attention, p.compute(), {n, heads, p.config.dv()});
    p.make(s.lse, Keep::attention, p.accumulation(), {n, heads});
    p.ops().window_attention(p.rt, {.batch = p.batch,
                                    .q = s.q,
                                    .kv = s.kv,
                                    .window = p.entry(layer).window,
                                    .scale = p.softmax_scale(),
                                    .sinks = p.layer_weights(layer).sinks.value,
                                    .o = s.o,
                                    .lse = s.lse});
  }
  if (!s.mix) p.saved.alias(s.mix, s.o);
}

void window_attention_backward(Pass& p, int layer, const TensorView& dmix, GradSum& dx) {
  LayerSaved& s = p.saved.layer(layer);
  LayerWeights& w = p.layer_weights(layer);
  const int64_t n = p.tokens();
  const TensorView dq = p.scratch(p.compute(), {n, s.q.dim(1), s.q.dim(2)});
  const TensorView dk = p.rt.scratch.alloc_zero(p.accumulation(), {n, s.k.dim(1), s.k.dim(2)});
  const TensorView dv = p.rt.scratch.alloc_zero(p.accumulation(), {n, s.v.dim(1), s.v.dim(2)});
  p.ops().window_attention_backward(p.rt, {.batch = p.batch,
                                           .q = s.q,
                                           .kv = s.kv,
                                           .window = p.entry(layer).window,
                                           .scale = p.softmax_scale(),
                                           .sinks = w.sinks.value,
                                           .o = s.o,
                                           .lse = s.lse,
                                           .d_o = dmix,
                                           .dq = dq,
                                           .dk = dk,
                                           .dv = dv,
                                           .dsinks = w.sinks.grad});
  q_backward(p, layer, dq, dx);
  kv_backward(p, layer, dk, dv, dx);
}

}  // namespace hysparse
