#include "model/model.h"

#include <algorithm>
#include <numeric>

#include "base/rng.h"
#include "model/attention_layer.h"
#include "model/mlp.h"
#include "model/stats.h"

namespace hysparse {

const std::vector<std::pair<Recompute, std::string_view>>& EnumNames<Recompute>::list() {
  static const std::vector<std::pair<Recompute, std::string_view>> names = {
      {Recompute::none, "none"},
      {Recompute::selective, "selective"},
      {Recompute::projections, "projections"},
      {Recompute::layer, "layer"}};
  return names;
}

namespace {

void stop_if_asked(const ForwardOptions& options) {
  if (options.stop && options.stop->load()) throw Error(ErrorKind::interrupted, "stopped between two layers");
}

// The residual stream: what it is, and what the last sublayer adds to it.
struct Stream {
  TensorView x;       // [n, hidden] T
  TensorView delta;   // [n, hidden] T; empty before the first layer
  TensorView buffer;  // where a sublayer writes its delta
};

// x += delta, y = norm(x). Training keeps every x: the sum goes to `sum`.
void add_norm(Pass& p, Stream& stream, const Weight& weight, TensorView& sum, Keep keep, TensorView& y,
              TensorView& rstd) {
  const double eps = p.config.rms_norm_eps;
  const int64_t n = p.tokens(), hidden = p.config.hidden_size;
  if (p.saved.training()) {
    if (!sum) {
      p.make(sum, keep, p.compute(), {n, hidden});
      p.ops().add(p.rt, {stream.x, stream.delta, sum});
    }
    stream.x = sum;
    if (y) return;
    p.make(y, Keep::cheap, p.compute(), {n, hidden});
    p.make(rstd, Keep::cheap, p.accumulation(), {n});
    p.ops().rmsnorm(p.rt, {.x = sum, .weight = weight, .eps = eps, .y = y, .rstd = rstd});
  } else {
    p.make(y, Keep::cheap, p.compute(), {n, hidden});
    if (stream.delta)
      p.ops().add_rmsnorm(p.rt, {.x = stream.x, .delta = stream.delta, .weight = weight, .eps = eps, .y = y});
    else
      p.ops().rmsnorm(p.rt, {.x = stream.x, .weight = weight, .eps = eps, .y = y});
  }
}

// One layer, as far as something is missing; `refill`: all that its backward reads, no more.
void run_layer(Pass& p, int layer, Stream& stream, bool refill) {
  LayerSaved& s = p.saved.layer(layer);
  LayerWeights& w = p.layer_weights(layer);

  add_norm(p, stream, w.input_layernorm, s.x_in, Keep::quadratic, s.normed1, s.rstd1);
  fill_attention(p, layer);
  if (!s.x_mid) {
    stream.delta = stream.buffer;
    const LinearForward output[] = {{flat(s.mix), w.o_proj, nullptr, stream.delta, false}};
    const Weight* mlp[] = {&w.mlp_gate, &w.mlp_up};
    std::span<const Weight* const> next;
    if (!p.entry(layer).moe) next = mlp;  // which experts follow is not known yet
    p.ops().linear_group(p.rt, output, next);
  }
  add_norm(p, stream, w.post_attention_layernorm, s.x_mid, Keep::costly, s.normed2, s.rstd2);
  fill_mlp(p, layer);
  if (refill) return;
  mlp_output(p, layer, stream.delta);
}

// dx: gradient at the layer's output, turned into the one at its input.
void run_layer_backward(Pass& p, int layer, const TensorView& dx) {
  LayerScope scope(p.saved, p.rt.scratch);
  LayerSaved& s = p.saved.layer(layer);
  LayerWeights& w = p.layer_weights(layer);
  Stream stream;
  stream.x = s.x_in;
  stream.buffer = p.scratch(p.compute(), {p.tokens(), p.config.hidden_size});
  run_layer(p, layer, stream, true);

  const TensorView dnormed = stream.buffer;  // its delta has served
  {
    ArenaScope temporaries(p.rt.scratch);
    mlp_backward(p, layer, dx, dnormed);
  }
  p.ops().rmsnorm_backward(p.rt, {.x = s.x_mid,
                                  .weight = w.post_attention_layernorm,
                                  .rstd = s.rstd2,
                                  .dy = dnormed,
                                  .dx = dx,
                                  .accumulate = true});
  const TensorView dmix = p.scratch(p.compute(), {s.mix.dim(0), s.mix.dim(1), s.mix.dim(2)});
  p.ops().linear_backward(p.rt, {.x = flat(s.mix),
                                 .weight = w.o_proj,
                                 .bias = nullptr,
                                 .dy = dx,
                                 .dx = flat(dmix),
                                 .accumulate = false});
  GradSum dnormed1{dnormed};
  attention_backward(p, layer, dmix, dnormed1);
  p.ops().rmsnorm_backward(p.rt, {.x = s.x_in,
                                  .weight = w.input_layernorm,
                                  .rstd = s.rstd1,
                                  .dy = dnormed,
                                  .dx = dx,
                                  .accumulate = true});
}

// Embedding and all layers.
Stream run_layers(Pass& p, const TensorView& tokens, Model::TrainStats* stats) {
  const int64_t n = p.tokens(), hidden = p.config.hidden_size;
  const int layers = static_cast<int>(p.plan.size());
  Trace* trace = p.options.trace;
  Stream stream;
  if (p.saved.training()) {  // the first layer's input
    p.make(p.saved.layer(0).x_in, Keep::quadratic, p.compute(), {n, hidden});
    stream.x = p.saved.layer(0).x_in;
  } else {
    stream.x = p.scratch(p.compute(), {n, hidden});
  }
  stream.buffer = p.scratch(p.compute(), {n, hidden});
  p.ops().embedding(p.rt, {.tokens = tokens, .weight = p.weights.embed_tokens, .y = stream.x});
  for (int layer = 0; layer < layers; ++layer) {
    stop_if_asked(p.options);
    LayerScope scope(p.saved, p.rt.scratch);
    run_layer(p, layer, stream, false);
    if (trace && trace->want_hidden) {
      trace->hidden.push_back(trace->arena->alloc(p.compute(), {n, hidden}));
      p.ops().add(p.rt, {stream.x, stream.delta, trace->hidden.back()});
    }
    if (stats) collect_stats(p, layer, *stats);
  }
  return stream;
}

// The final norm of some rows of the stream, which it consumes.
TensorView final_norm(Pass& p, const Stream& stream, const std::vector<int64_t>& rows) {
  const auto m = static_cast<int64_t>(rows.size()), hidden = p.config.hidden_size;
  TensorView x = stream.x, delta = stream.delta;
  if (m < p.tokens()) {
    x = p.scratch(p.compute(), {m, hidden});
    delta = p.scratch(p.compute(), {m, hidden});
    p.ops().gather_rows(p.rt, {.src = stream.x, .rows = rows.data(), .dst = x});
    p.ops().gather_rows(p.rt, {.src = stream.delta, .rows = rows.data(), .dst = delta});
  }
  const TensorView y = p.scratch(p.compute(), {m, hidden});
  p.ops().add_rmsnorm(
      p.rt, {.x = x, .delta = delta, .weight = p.weights.norm, .eps = p.config.rms_norm_eps, .y = y});
  return y;
}

// ---- what callers hand in

void check_batch(const RaggedBatch& batch, const TensorView& tokens) {
  const int64_t n = batch.tokens(), sequences = batch.sequences();
  HYSPARSE_CHECK(n > 0 && sequences > 0, "a batch without tokens");
  HYSPARSE_CHECK(batch.cu_q.size() == size_t(sequences) + 1 && batch.cu_q[0] == 0 &&
                     batch.row.size() == size_t(sequences) && batch.position.size() == size_t(n),
                 "batch: cu_q, past_len, row and position do not belong together");
  HYSPARSE_CHECK(tokens.rank == 1 && tokens.dim(0) == n && tokens.dtype == DType::i32,
                 "tokens {} for a batch of {} tokens", tokens.describe(), n);
  for (int64_t s = 0; s < sequences; ++s) {
    HYSPARSE_CHECK(batch.q_len(s) > 0, "sequence {} has no tokens", s);
    for (int64_t i = 0; i < batch.q_len(s); ++i)
      HYSPARSE_CHECK(batch.position[size_t(batch.cu_q[size_t(s)] + i)] == batch.past_len[size_t(s)] + i,
                     "sequence {}: token {} is not at position past_len + {}", s, i, i);
  }
  for (size_t i = 0; i < batch.logit_rows.size(); ++i)
    HYSPARSE_CHECK(batch.logit_rows[i] < n && batch.logit_rows[i] > (i ? batch.logit_rows[i - 1] : -1),
                   "logit_rows must ascend below {}", n);
}

void check_tokens(const Memory& memory, const TensorView& tokens, int64_t vocab) {
  if (memory.device() != DeviceKind::cpu) return;  // the kernels there check
  const int32_t* ids = tokens.as<int32_t>();
  for (int64_t i = 0; i < tokens.dim(0); ++i)
    if (ids[i] < 0 || ids[i] >= vocab)
      throw expected_error(fmt::format("token {}", i), fmt::format("an id from 0 to {}", vocab - 1),
                           std::to_string(ids[i]));
}

// Selections from outside may be a user's file: nothing that is not a block of the token's past may reach a
// kernel.
void check_pinned(const Memory& memory, const ModelConfig& config, const LayerPlan& plan,
                  const RaggedBatch& batch, const SelectionMap& pinned) {
  for (const auto& [layer, idx] : pinned) {
    const std::string where = fmt::format("selection.{}", layer);
    if (layer < 0 || layer >= static_cast<int>(plan.size()) || !plan[size_t(layer)].emits_scores)
      throw input_error(where, "no sparse layer reads a selection of this layer");
    const int64_t n = batch.tokens(), heads = config.kv_heads();
    if (idx.dtype != DType::i32 || idx.rank != 3 || idx.dim(0) != n || idx.dim(1) != heads ||
        idx.dim(2) < 1 || !idx.contiguous())
      throw expected_error(where, fmt::format("contiguous i32[{}, {}, entries]", n, heads), idx.describe());
    if (memory.device() != DeviceKind::cpu) continue;
    const int32_t* block = idx.as<int32_t>();
    for (int64_t t = 0; t < n; ++t) {
      const int64_t last = batch.position[size_t(t)] / config.hysparse_block_size;
      for (int64_t g = 0; g < heads; ++g) {
        int32_t before = -1;
        for (int64_t e = 0; e < idx.dim(2); ++e, ++block) {
          if (*block == -1) continue;
          if (*block <= before || *block > last)
            throw expected_error(where, "ascending blocks of the token's own past, padded with -1",
                                 fmt::format("{} at token {}, KV head {}, entry {}", *block, t, g, e));
          before = *block;
        }
      }
    }
  }
}

void check_pinned_experts(const Memory& memory, const ModelConfig& config, const LayerPlan& plan,
                          const RaggedBatch& batch, const RouteMap& pinned) {
  for (const auto& [layer, experts] : pinned) {
    const std::string where = fmt::format("experts.{}", layer);
    if (layer < 0 || layer >= static_cast<int>(plan.size()) || !plan[size_t(layer)].moe)
      throw input_error(where, "this layer has no experts");
    const int64_t n = batch.tokens(), k = config.num_experts_per_tok;
    if (experts.dtype != DType::i32 || experts.rank != 2 || experts.dim(0) != n || experts.dim(1) != k ||
        !experts.contiguous())
      throw expected_error(where, fmt::format("contiguous i32[{}, {}]", n, k), experts.describe());
    if (memory.device() != DeviceKind::cpu) continue;
    const int32_t* e = experts.as<int32_t>();
    for (int64_t i = 0; i < n * k; ++i)
      if (e[i] < 0 || e[i] >= config.n_routed_experts || (i % k > 0 && e[i] <= e[i - 1]))
        throw expected_error(where, fmt::format("ascending experts below {}", config.n_routed_experts),
                             fmt::format("{} at token {}", e[i], i / k));
  }
}

}  // namespace

struct Model::Impl {
  Impl(Model& model, const ModelConfig& config, Weights& weights)
      : model(model),
        rope(config, accumulation_dtype(weights.options().compute)),
        saved(weights.memory()),
        shared_gradients(weights.memory()),
        shared(config.layer_types.size()) {}

  // What every entry point does first.
  Pass start(Runtime& rt, const RaggedBatch& batch, const TensorView& tokens, KvStore& kv,
             const ForwardOptions& options, SaveMode mode) {
    HYSPARSE_CHECK(&rt.memory == &model.weights_.memory(),
                   "the model's weights live in another memory than the runtime");
    check_batch(batch, tokens);
    check_tokens(rt.memory, tokens, model.config_.vocab_size);
    if (options.pinned) check_pinned(rt.memory, model.config_, model.plan_, batch, *options.pinned);
    if (options.pinned_experts)
      check_pinned_experts(rt.memory, model.config_, model.plan_, batch, *options.pinned_experts);
    if (options.trace) {
      HYSPARSE_CHECK(options.trace->arena, "a trace without an arena");
      options.trace->hidden.clear();
      options.trace->block_scores.clear();
      options.trace->selection.clear();
      options.trace->experts.clear();
    }
    rope.reserve(rt, *std::max_element(batch.position.begin(), batch.position.end()));
    saved.begin(mode, model.plan_.size());
    shared_gradients.reset();
    std::fill(shared.begin(), shared.end(), SharedKV{});
    return Pass{rt,   model.config_, model.plan_, model.weights_,   batch,  kv,
                rope, saved,         shared,      shared_gradients, options};
  }

  Model& model;
  RopeTable rope;
  Saved saved;
  Arena shared_gradients;
  std::vector<SharedKV> shared;
};

Model::Model(const ModelConfig& config, Weights& weights)
    : config_(config),
      plan_(build_layer_plan(config)),
      weights_(weights),
      impl_(std::make_unique<Impl>(*this, config, weights)) {
  HYSPARSE_CHECK(weights.layers.size() == plan_.size(), "weights of {} layers for a config of {}",
                 weights.layers.size(), plan_.size());
}

Model::~Model() = default;

uint64_t Model::layout(Runtime& rt, int64_t positions) {
  impl_->rope.reserve(rt, positions - 1);
  return hash_words({reinterpret_cast<uintptr_t>(this), reinterpret_cast<uintptr_t>(impl_->rope.cos().data),
                     workspace_bytes(), rt.scratch.bytes_reserved()});
}

void Model::forward(Runtime& rt, const RaggedBatch& batch, const TensorView& tokens, KvStore& kv,
                    const TensorView& logits, const ForwardOptions& options) {
  const auto rows = static_cast<int64_t>(batch.logit_rows.size());
  HYSPARSE_CHECK(
      rows == 0 || (logits.rank == 2 && logits.dim(0) == rows && logits.dim(1) == config_.vocab_size),
      "logits {} for {} rows of a vocabulary of {}", logits.describe(), rows, config_.vocab_size);
  Pass p = impl_->start(rt, batch, tokens, kv, options,
                        options.as_training ? SaveMode::none : SaveMode::inference);
  ArenaScope scope(rt.scratch);
  const Stream stream = run_layers(p, tokens, nullptr);
  if (rows == 0) return;
  const TensorView y = final_norm(p, stream, batch.logit_rows);
  p.ops().linear(rt,
                 {.x = y, .weight = weights_.lm_head(), .bias = nullptr, .y = logits, .accumulate = false});
}

void Model::forward_loss(Runtime& rt, const RaggedBatch& batch, const TensorView& tokens,
                         const TensorView& labels, const TensorView& loss, const ForwardOptions& options) {
  TrainKv kv;
  Pass p = impl_->start(rt, batch, tokens, kv, options, SaveMode::inference);
  ArenaScope scope(rt.scratch);
  const Stream stream = run_layers(p, tokens, nullptr);
  std::vector<int64_t> rows(static_cast<size_t>(batch.tokens()));
  std::iota(rows.begin(), rows.end(), 0);
  const TensorView y = final_norm(p, stream, rows);
  p.ops().head_loss(rt,
                    {.x = y, .weight = weights_.lm_head(), .labels = labels, .grad_scale = 0, .loss = loss});
}

void Model::forward_backward(Runtime& rt, const RaggedBatch& batch, const TensorView& tokens,
                             const TensorView& labels, double grad_scale, Recompute recompute,
                             const TensorView& loss, TrainStats* stats, const ForwardOptions& options) {
  HYSPARSE_CHECK(weights_.options().training, "forward_backward needs weights with gradients");
  for (int64_t past : batch.past_len) HYSPARSE_CHECK(past == 0, "training has no past, got {}", past);
  if (stats) *stats = {};
  TrainKv kv;
  Pass p = impl_->start(rt, batch, tokens, kv, options, save_mode(recompute));
  p.labels = labels;
  p.grad_scale = grad_scale;
  ArenaScope scope(rt.scratch);
  const int64_t n = batch.tokens(), hidden = config_.hidden_size;

  const Stream stream = run_layers(p, tokens, stats);
  const TensorView dx = p.scratch(p.compute(), {n, hidden});
  {
    ArenaScope head(rt.scratch);
    const TensorView x = p.scratch(p.compute(), {n, hidden}), y = p.scratch(p.compute(), {n, hidden});
    const TensorView rstd = p.scratch(p.accumulation(), {n});
    p.ops().add(rt, {stream.x, stream.delta, x});
    p.ops().rmsnorm(rt, {.x = x, .weight = weights_.norm, .eps = config_.rms_norm_eps, .y = y, .rstd = rstd});
    p.ops().head_loss(rt, {.x = y,
                           .weight = weights_.lm_head(),
                           .labels = labels,
                           .grad_scale = grad_scale,
                           .loss = loss,
                           .dx = dx});
    p.ops().rmsnorm_backward(
        rt, {.x = x, .weight = weights_.norm, .rstd = rstd, .dy = dx, .dx = dx, .accumulate = false});
  }
  p.saved.begin_backward();
  for (int layer = static_cast<int>(plan_.size()) - 1; layer >= 0; --layer) {
    stop_if_asked(options);
    run_layer_backward(p, layer, dx);
  }
  p.ops().embedding_backward(rt, {.tokens = tokens, .dy = dx, .weight = weights_.embed_tokens});
}

size_t Model::activation_bytes() const {
  return impl_->saved.bytes_kept();
}

size_t Model::workspace_bytes() const {
  return impl_->saved.bytes_reserved() + impl_->shared_gradients.bytes_reserved();
}

}  // namespace hysparse
