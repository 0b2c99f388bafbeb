// Toy models for the tests: TINY with selections that are really sparse at some tens of tokens, and all its
// parameters away from their symmetric initial values.
#pragma once

#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/rng.h"
#include "kernels/cpu/cpu.h"
#include "kernels/ref/ref.h"
#include "model/model.h"

namespace hysparse::tiny {

inline ModelConfig config(AttentionKind kind = AttentionKind::hysparse,
                          const std::function<void(ModelConfig&)>& change = {}) {
  ModelConfig c;
  c.num_hidden_layers = 9;
  c.hidden_size = 64;
  c.intermediate_size = 96;
  c.vocab_size = 97;
  c.num_attention_heads = 4;
  c.num_key_value_heads = 2;
  c.head_dim = 32;
  c.sliding_window = 6;
  c.hysparse_block_size = 4;
  c.hysparse_topk_tokens = 8;
  c.attention = kind;
  c.initializer_range = 0.15;
  if (change) change(c);
  c.finalize("tiny");
  return c;
}

// Some experts in every layer but the first.
inline void with_experts(ModelConfig& c) {
  c.n_routed_experts = 5;
  c.num_experts_per_tok = 2;
  c.moe_intermediate_size = 32;
  c.first_k_dense_replace = 1;
  c.routed_scaling_factor = 1.5;
}

inline void set(const TensorView& v, int64_t i, double x) {
  if (v.dtype == DType::f64) v.as<double>()[i] = x;
  if (v.dtype == DType::f32) v.as<float>()[i] = static_cast<float>(x);
  if (v.dtype == DType::bf16) v.as<bf16>()[i] = bf16(static_cast<float>(x));
}
inline double get(const TensorView& v, int64_t i) {
  if (v.dtype == DType::f64) return v.as<double>()[i];
  if (v.dtype == DType::f32) return static_cast<double>(v.as<float>()[i]);
  if (v.dtype == DType::bf16) return static_cast<double>(static_cast<float>(v.as<bf16>()[i]));
  return v.as<int32_t>()[i];
}
inline std::vector<double> values(const TensorView& v) {
  std::vector<double> out;
  for (int64_t i = 0; i < v.numel(); ++i) out.push_back(get(v, i));
  return out;
}
inline double max_abs(const std::vector<double>& v) {
  double m = 0;
  for (double x : v) m = std::max(m, std::abs(x));
  return m;
}
inline double max_diff(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return INFINITY;
  double m = 0;
  for (size_t i = 0; i < a.size(); ++i) m = std::max(m, a[i] == b[i] ? 0.0 : std::abs(a[i] - b[i]));
  return std::isnan(m) ? INFINITY : m;
}

// Norms around 1, sinks and biases around 0: nothing stays where a mistake would not show. Rounded to f32, so
// every dtype sees the same values (bf16 rounds once more).
inline void disturb(Weights& weights, uint64_t seed) {
  uint64_t stream = 1000;
  for (Weight* w : weights.all()) {
    Rng rng(seed, stream++);
    const bool norm = w->name.find("norm") != std::string::npos;
    if (w->decay) continue;
    for (int64_t i = 0; i < w->value.numel(); ++i) {
      const double x = static_cast<double>(static_cast<float>((norm ? 1.0 : 0.0) + 0.3 * rng.normal()));
      if (w->master) set(w->master, i, x);
      set(w->value, i, x);
    }
    ++w->version;
  }
}

// A model with everything it needs around it.
struct Machine {
  explicit Machine(const ModelConfig& c, DType dtype = DType::f64, bool training = true, int threads = 1,
                   uint64_t seed = 7)
      : config(c),
        plan(build_layer_plan(c)),
        weights(c, plan, {dtype, training}),
        pool(threads),
        ops(dtype == DType::f64 ? ref_ops() : cpu_ops()),
        rt{pool, scratch, ops, host_memory()} {
    weights.init_random(c, plan, seed);
    disturb(weights, seed);
    model = std::make_unique<Model>(config, weights);
  }
  DType acc() const { return accumulation_dtype(weights.options().compute); }

  ModelConfig config;
  LayerPlan plan;
  Weights weights;
  ThreadPool pool;
  Arena scratch;
  const Ops& ops;
  Runtime rt;
  std::unique_ptr<Model> model;
};

// Documents packed back to back, their tokens and next-token labels.
struct Documents {
  explicit Documents(const std::vector<int64_t>& lengths, int64_t vocab = 97, uint64_t seed = 3)
      : tokens(DType::i32, {sum(lengths)}), labels(DType::i32, {sum(lengths)}) {
    for (int64_t n : lengths) batch.add_sequence(n);
    Rng rng(seed);
    for (int64_t i = 0; i < batch.tokens(); ++i)
      tokens.view().as<int32_t>()[i] = static_cast<int32_t>(rng.below(static_cast<uint64_t>(vocab)));
    relabel();
    for (int64_t i = 0; i < batch.tokens(); ++i) batch.logit_rows.push_back(i);
  }
  void relabel() {
    for (int64_t s = 0; s < batch.sequences(); ++s)
      for (int64_t i = batch.cu_q[size_t(s)]; i < batch.cu_q[size_t(s) + 1]; ++i)
        labels.view().as<int32_t>()[i] =
            i + 1 < batch.cu_q[size_t(s) + 1] ? tokens.view().as<int32_t>()[i + 1] : kIgnoreLabel;
  }
  static int64_t sum(const std::vector<int64_t>& v) {
    int64_t n = 0;
    for (int64_t x : v) n += x;
    return n;
  }
  RaggedBatch batch;
  Tensor tokens, labels;
};

inline std::vector<double> logits(Machine& m, const Documents& docs, const ForwardOptions& options = {}) {
  TrainKv kv;
  const Tensor out(m.acc(), {static_cast<int64_t>(docs.batch.logit_rows.size()), m.config.vocab_size});
  m.model->forward(m.rt, docs.batch, docs.tokens, kv, out, options);
  return values(out);
}

// Loss of each token; gradients are those of their sum times `scale`.
inline std::vector<double> train(Machine& m, const Documents& docs, const ForwardOptions& options = {},
                                 Recompute recompute = Recompute::none, double scale = 1.0,
                                 Model::TrainStats* stats = nullptr) {
  const Tensor loss(m.acc(), {docs.batch.tokens()});
  m.weights.zero_grad();
  m.model->forward_backward(m.rt, docs.batch, docs.tokens, docs.labels, scale, recompute, loss, stats,
                            options);
  return values(loss);
}

inline std::vector<std::vector<double>> gradients(Machine& m) {
  std::vector<std::vector<double>> out;
  for (Weight* w : m.weights.all()) out.push_back(w->grad ? values(w->grad) : std::vector<double>{});
  return out;
}

// The selections and routes that a free forward makes.
struct Pinned {
  Pinned(Machine& m, const Documents& docs) {
    Trace trace;
    trace.arena = &arena;
    trace.want_selection = trace.want_experts = true;
    ForwardOptions options;
    options.trace = &trace;
    logits(m, docs, options);
    map = trace.selection;
    experts = trace.experts;
  }
  // Options that keep to them.
  ForwardOptions options() const {
    ForwardOptions o;
    o.pinned = &map;
    o.pinned_experts = &experts;
    return o;
  }
  Arena arena;
  SelectionMap map;
  RouteMap experts;
};

}  // namespace hysparse::tiny
