#include "model/moe.h"

namespace hysparse {
namespace {

// The experts of every token and their weights. The choice is made once: what recomputes a layer keeps it.
void fill_route(Pass& p, int layer) {
  LayerSaved& s = p.saved.layer(layer);
  const LayerWeights& w = p.layer_weights(layer);
  const ModelConfig& c = p.config;
  const int64_t n = p.tokens(), k = c.num_experts_per_tok;
  if (!s.router_logits) {
    p.make(s.router_logits, Keep::costly, p.accumulation(), {n, c.n_routed_experts});
    p.ops().linear(
        p.rt,
        {.x = s.normed2, .weight = w.router, .bias = nullptr, .y = s.router_logits, .accumulate = false});
  }
  if (s.expert_weights) return;
  bool known = bool(s.chosen);
  const bool first = !known;
  if (!known) {
    p.make(s.chosen, Keep::shared, DType::i32, {n, k});
    const RouteMap* pinned = p.options.pinned_experts;
    const auto given = pinned ? pinned->find(layer) : RouteMap::const_iterator{};
    known = pinned && given != pinned->end();
    if (known) p.rt.memory.copy(s.chosen.data, given->second.data, s.chosen.bytes());
  }
  p.make(s.expert_weights, Keep::cheap, p.accumulation(), {n, k});
  p.ops().route(p.rt, {.logits = s.router_logits,
                       .bias = w.router_bias.value,
                       .normalise = c.norm_topk_prob,
                       .scale = c.routed_scaling_factor,
                       .pinned = known,
                       .experts = s.chosen,
                       .weights = s.expert_weights});
  p.make(s.tables.offset, Keep::cheap, DType::i32, {c.n_routed_experts + 1});
  p.make(s.tables.source, Keep::cheap, DType::i32, {n * k});
  p.make(s.tables.slot, Keep::cheap, DType::i32, {n, k});
  p.ops().expert_tables(p.rt, {.experts = s.chosen,
                               .labels = p.labels,
                               .tables = s.tables,
                               .load = first && p.labels ? w.expert_load : TensorView{}});
  if (Trace* trace = p.options.trace; trace && trace->want_experts && first) {
    trace->experts[layer] = trace->arena->alloc(DType::i32, {n, k});
    p.rt.memory.copy(trace->experts[layer].data, s.chosen.data, s.chosen.bytes());
  }
}

}  // namespace

void fill_experts(Pass& p, int layer) {
  fill_route(p, layer);
  if (!p.saved.training()) return;  // experts_output() does the rest, and keeps nothing
  LayerSaved& s = p.saved.layer(layer);
  const LayerWeights& w = p.layer_weights(layer);
  const int64_t rows = p.tokens() * p.config.num_experts_per_tok, f = p.config.moe_intermediate_size;
  if (!s.expert_x) {
    p.make(s.expert_x, Keep::cheap, p.compute(), {rows, p.config.hidden_size});
    p.ops().expert_gather(p.rt, {s.normed2, s.tables, s.expert_x});
  }
  if (!s.expert_gate) {
    p.make(s.expert_gate, Keep::costly, p.compute(), {rows, f});
    p.make(s.expert_up, Keep::costly, p.compute(), {rows, f});
    p.ops().grouped_linear_pair(
        p.rt, {s.expert_x, s.tables, w.expert_gate, w.expert_up, s.expert_gate, s.expert_up});
  }
  if (s.expert_hidden) return;
  p.make(s.expert_hidden, Keep::cheap, p.compute(), {rows, f});
  p.ops().expert_swiglu(p.rt, {.gate = s.expert_gate,
                               .up = s.expert_up,
                               .tables = s.tables,
                               .weights = s.expert_weights,
                               .h = s.expert_hidden});
}

void experts_output(Pass& p, int layer, const TensorView& y) {
  ArenaScope temporaries(p.rt.scratch);
  const LayerSaved& s = p.saved.layer(layer);
  if (!p.saved.training()) {
    const LayerWeights& w = p.layer_weights(layer);
    return p.ops().expert_mlp(p.rt, {.x = s.normed2,
                                     .tables = s.tables,
                                     .weights = s.expert_weights,
                                     .gate = w.expert_gate,
                                     .up = w.expert_up,
                                     .down = w.expert_down,
                                     .y = y});
  }
  const TensorView out = p.scratch(p.compute(), {s.expert_hidden.dim(0), p.config.hidden_size});
  p.ops().grouped_linear(p.rt, {s.expert_hidden, s.tables, p.layer_weights(layer).expert_down, out});
  p.ops().expert_sum(p.rt, {.x = out, .tables = s.tables, .y = y, .accumulate = false});
}

void experts_backward(Pass& p, int layer, const TensorView& dy, const TensorView& dx) {
  ArenaScope temporaries(p.rt.scratch);
  LayerSaved& s = p.saved.layer(layer);
  LayerWeights& w = p.layer_weights(layer);
  const ModelConfig& c = p.config;
  const int64_t rows = s.expert_hidden.dim(0), f = c.moe_intermediate_size;
  const TensorView drows =
      p.scratch(p.compute(), {rows, c.hidden_size});  // dy, then the gradient at expert_x
  const TensorView dgate = p.scratch(p.compute(), {rows, f}), dup = p.scratch(p.compute(), {rows, f});
  const TensorView dweights = p.scratch(p.accumulation(), {p.tokens(), c.num_experts_per_tok});
  p.ops().expert_gather(p.rt, {dy, s.tables, drows});
  p.ops().grouped_linear_backward(p.rt, {.x = s.expert_hidden,
                                         .tables = s.tables,
                                         .weights = w.expert_down,
                                         .dy = drows,
                                         .dx = dgate,
                                         .accumulate = false});
  p.ops().expert_swiglu_backward(p.rt, {.gate = s.expert_gate,
                                        .up = s.expert_up,
                                        .tables = s.tables,
                                        .weights = s.expert_weights,
                                        .dh = dgate,
                                        .dgate = dgate,
                                        .dup = dup,
                                        .dweights = dweights});
  p.ops().grouped_linear_pair_backward(p.rt, {.x = s.expert_x,
                                              .tables = s.tables,
                                              .first = w.expert_gate,
                                              .second = w.expert_up,
                                              .dy_first = dgate,
                                              .dy_second = dup,
                                              .dx = drows});
  p.ops().expert_sum(p.rt, {.x = drows, .tables = s.tables, .y = dx, .accumulate = false});

  const TensorView dlogits = p.scratch(p.accumulation(), {p.tokens(), c.n_routed_experts});
  p.ops().route_backward(p.rt, {.batch = p.batch,
                                .logits = s.router_logits,
                                .experts = s.chosen,
                                .normalise = c.norm_topk_prob,
                                .scale = c.routed_scaling_factor,
                                .dweights = dweights,
                                .labels = p.labels,
                                .balance = p.options.router.balance * p.grad_scale,
                                .z = p.options.router.z * p.grad_scale,
                                .dlogits = dlogits});
  p.ops().linear_backward(
      p.rt,
      {.x = s.normed2, .weight = w.router, .bias = nullptr, .dy = dlogits, .dx = dx, .accumulate = true});
}

}  // namespace hysparse
