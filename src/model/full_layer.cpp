// A full layer: causal softmax attention over its own K, V; where sparse layers read it, it also scores
// blocks and selects (spec section 3).
#include "model/attention_layer.h"

namespace hysparse {
namespace {

void copy_to_trace(Pass& p, const TensorView& from, TensorView& to) {
  to = p.options.trace->arena->alloc(from.dtype, {from.dim(0), from.dim(1), from.dim(2)});
  p.rt.memory.copy(to.data, from.data, from.bytes());
}

// Gives the attention a place for its block scores, where someone wants to see them.
void want_scores(Pass& p, int layer, AttentionForward& attention) {
  Trace* trace = p.options.trace;
  if (!trace || !trace->want_scores) return;
  const int64_t block = p.config.hysparse_block_size;
  const int64_t blocks = (p.batch.max_kv_len() + block - 1) / block;
  attention.score_block = block;
  attention.block_scores = trace->block_scores[layer] =
      trace->arena->alloc(p.accumulation(), {p.tokens(), p.config.kv_heads(), blocks});
}

// o, lse and the selection that the sparse layers read: scored, or handed in.
void attend_and_select(Pass& p, int layer, const AttentionForward& attention) {
  Selection& selection = p.kv_of(layer).selection;
  Trace* trace = p.options.trace;
  const int64_t n = p.tokens(), heads = p.config.kv_heads(), block = p.config.hysparse_block_size;
  selection.block = block;
  selection.prepared = std::make_shared<PreparedSelection>();
  const SelectionMap* pinned = p.options.pinned;
  if (pinned && pinned->count(layer)) {
    selection.idx = pinned->at(layer);
    p.ops().attention(p.rt, attention);
  } else {
    selection.idx = {};
    p.make(selection.idx, Keep::shared, DType::i32, {n, heads, p.config.entries()});
    p.ops().attention_select(p.rt, {.attention = attention,
                                    .block = block,
                                    .force_first = p.config.hysparse_force_first,
                                    .force_diagonal = p.config.hysparse_force_diagonal,
                                    .random = p.config.hysparse_selection == SelectionMode::random,
                                    .random_seed = static_cast<uint64_t>(p.config.hysparse_selection_seed),
                                    .layer = layer,
                                    .idx = selection.idx});
  }
  if (trace && trace->want_selection) copy_to_trace(p, selection.idx, trace->selection[layer]);
}

}  // namespace

void fill_full_attention(Pass& p, int layer) {
  LayerSaved& s = p.saved.layer(layer);
  const LayerPlanEntry& entry = p.entry(layer);
  const int64_t n = p.tokens(), heads = p.config.num_attention_heads;
  Wanted wanted{.kv = entry.emits_scores ? Keep::shared : Keep::own_kv};
  if (entry.gated) wanted.gates[0] = {&p.layer_weights(layer).gate, &s.gate};
  fill_projections(p, layer, wanted);
  if (!s.o) {
    p.kv_of(layer).kv = s.kv;
    p.make(s.o, Keep::quadratic, p.compute(), {n, heads, p.config.dv()});
    p.make(s.lse, Keep::quadratic, p.accumulation(), {n, heads});
    AttentionForward attention{
        .batch = p.batch, .q = s.q, .kv = s.kv, .scale = p.softmax_scale(), .o = s.o, .lse = s.lse};
    if (entry.emits_scores || (p.options.trace && p.options.trace->want_unread_scores))
      want_scores(p, layer, attention);
    if (entry.emits_scores)
      attend_and_select(p, layer, attention);
    else
      p.ops().attention(p.rt, attention);
  }
  if (!entry.gated) {
    if (!s.mix) p.saved.alias(s.mix, s.o);
    return;
  }
  if (s.mix) return;
  if (p.saved.training())
    p.make(s.mix, Keep::cheap, p.compute(), {n, heads, p.config.dv()});
  else
    p.saved.alias(s.mix, s.o);
  p.ops().gated_sum(p.rt, {.a = s.o, .gate_a = s.gate, .out = s.mix});
}

void full_attention_backward(Pass& p, int layer, const TensorView& dmix, GradSum& dx) {
  LayerSaved& s = p.saved.layer(layer);
  if (p.entry(layer).gated) {
    const TensorView dgate = p.scratch(p.accumulation(), {p.tokens(), p.config.gate_width()});
    p.ops().gated_sum_backward(p.rt,
                               {.a = s.o, .gate_a = s.gate, .d_out = dmix, .da = dmix, .dgate_a = dgate});
    gate_backward(p, layer, dgate, p.layer_weights(layer).gate, dx);
  }
  const TensorView dq = p.scratch(p.compute(), {s.q.dim(0), s.q.dim(1), s.q.dim(2)});
  const SharedKV& sum = p.open_gradients(layer);  // holds what the sparse layers have added
  p.ops().attention_backward(p.rt, {.batch = p.batch,
                                    .q = s.q,
                                    .kv = s.kv,
                                    .scale = p.softmax_scale(),
                                    .o = s.o,
                                    .lse = s.lse,
                                    .d_o = dmix,
                                    .dq = dq,
                                    .dk = sum.dk,
                                    .dv = sum.dv});
  q_backward(p, layer, dq, dx);
  kv_backward(p, layer, sum.dk, sum.dv, dx);
  p.close_gradients(layer);
}

}  // namespace hysparse
