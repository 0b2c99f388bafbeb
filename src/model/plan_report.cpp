#include "model/plan_report.h"

#include <algorithm>

#include "base/error.h"
#include "model/saved.h"

namespace hysparse {
namespace {

constexpr const char* kWhat = "plan";

int64_t product(int64_t a, int64_t b) {
  return checked_product(a, b, kWhat);
}
int64_t sum(int64_t a, int64_t b) {
  return checked_sum(a, b, kWhat);
}

// Bytes a token of everything that LayerSaved may hold for a layer, by how dear it is.
struct LayerBytes {
  int64_t kept = 0, dropped = 0;
};
LayerBytes layer_bytes(const ModelConfig& c, const LayerPlanEntry& e, DType compute, SaveMode mode) {
  const auto t = static_cast<int64_t>(size_of(compute));
  const auto a = static_cast<int64_t>(size_of(accumulation_dtype(compute)));
  const int64_t hidden = c.hidden_size, hq = c.num_attention_heads, hkv = c.kv_heads();
  LayerBytes bytes;
  auto add = [&](Keep keep, int64_t count) { (is_kept(keep, mode) ? bytes.kept : bytes.dropped) += count; };

  add(Keep::quadratic, hidden * t);  // x_in
  add(Keep::cheap, hidden * t + a);  // normed1, rstd1
  if (c.qk_norm) {
    add(Keep::costly, hq * c.d() * t);
    add(Keep::cheap, hq * c.d() * t + hq * a);
  } else {
    add(Keep::costly, hq * c.d() * t);
  }
  if (e.kind != LayerKind::sparse || e.own_window_kv) {
    const Keep keep = e.emits_scores ? Keep::shared : Keep::own_kv;
    add(keep, hkv * (c.d() + c.dv()) * t);
    if (c.qk_norm) add(keep, hkv * c.d() * t + hkv * a);
  }
  if (e.emits_scores) add(Keep::shared, hkv * c.entries() * 4);
  const int64_t o = hq * c.dv() * t + hq * a;
  add(e.kind == LayerKind::full ? Keep::quadratic : Keep::attention, o);
  if (e.gated) {
    add(Keep::costly, c.gate_width() * a);
    add(Keep::cheap, hq * c.dv() * t);  // mix
  }
  if (e.kind == LayerKind::sparse && e.window > 0) {
    add(Keep::attention, o);
    add(Keep::costly, c.gate_width() * a);
  }
  add(Keep::costly, hidden * t);     // x_mid
  add(Keep::cheap, hidden * t + a);  // normed2, rstd2
  const int64_t width = c.dense_width(e.moe);
  add(Keep::costly, 2 * width * t);
  add(Keep::cheap, width * t);
  if (e.moe) {
    const int64_t k = c.num_experts_per_tok, f = c.moe_intermediate_size;
    add(Keep::costly, c.n_routed_experts * a);           // router_logits
    add(Keep::shared, k * 4);                            // chosen
    add(Keep::cheap, k * (a + 2 * 4) + k * hidden * t);  // expert_weights, tables, expert_x
    add(Keep::costly, 2 * k * f * t);
    add(Keep::cheap, k * f * t);
  }
  return bytes;
}

// What run_layer_backward holds beside LayerSaved, the larger of its two halves.
int64_t backward_bytes(const ModelConfig& c, const LayerPlanEntry& e, DType compute) {
  const auto t = static_cast<int64_t>(size_of(compute));
  const auto a = static_cast<int64_t>(size_of(accumulation_dtype(compute)));
  const int64_t hq = c.num_attention_heads, hkv = c.kv_heads();
  int64_t feed_forward = 2 * c.dense_width(e.moe) * t;
  if (e.moe) {
    const int64_t k = c.num_experts_per_tok;
    const int64_t rows = k * (c.hidden_size + 2 * c.moe_intermediate_size) * t;
    feed_forward = std::max(feed_forward, rows + k * a + c.n_routed_experts * (t < a ? a + t : a));
  }
  int64_t attention = hq * c.dv() * t + hq * c.d() * t;  // dmix, dq
  if (e.gated) attention += c.gate_width() * a;
  if (e.kind == LayerKind::sparse && e.window > 0)
    attention += 2 * hq * c.dv() * t + hq * c.d() * t + c.gate_width() * a;
  // dK, dV (of a full layer that others read: TrainingMemory::shared_gradients), and their copy in T.
  if (e.own_window_kv || e.kind == LayerKind::full)
    attention += hkv * (c.d() + c.dv()) * ((e.emits_scores ? 0 : a) + (t < a ? t : 0));
  return c.hidden_size * t + std::max(feed_forward, attention);
}

// Mean over t of min(t + 1, limit) for t in [0, n).
double mean_keys(double n, double limit) {
  if (n <= limit) return (n + 1) / 2;
  return (limit * (limit + 1) / 2 + (n - limit) * limit) / n;
}

FlopsReport count_flops(const ModelConfig& c, const LayerPlan& plan, const ParameterCounts& parameters,
                        int64_t context) {
  FlopsReport f;
  const auto n = static_cast<double>(context);
  const double per_key = 2.0 * static_cast<double>(c.num_attention_heads * (c.d() + c.dv()));
  auto attend = [&](double limit) {
    f.attention_prefill += per_key * mean_keys(n, limit);
    f.attention_decode += per_key * std::min(n + 1, limit);
  };
  for (const LayerPlanEntry& e : plan) {
    if (e.kind == LayerKind::full) attend(n + 1);
    if (e.kind == LayerKind::sparse) attend(static_cast<double>(c.hysparse_topk_tokens));
    if (e.window > 0) attend(static_cast<double>(e.window));
  }
  const double linear = 2.0 * static_cast<double>(parameters.active_with_head);
  f.prefill = linear + f.attention_prefill;
  f.decode = linear + f.attention_decode;
  return f;
}

TrainingMemory training_memory(const ModelConfig& c, const LayerPlan& plan, int64_t tokens,
                               const TrainingOptions& options) {
  const DType compute = options.compute;
  const auto t = static_cast<int64_t>(size_of(compute));
  const auto a = static_cast<int64_t>(size_of(accumulation_dtype(compute)));
  TrainingMemory m;
  for (const WeightSpec& spec : weight_specs(c, plan)) {
    int64_t n = 1;
    for (const int64_t d : spec.shape) n = product(n, d);
    const bool narrow = options.narrow_state && spec.shape.size() == 2;
    const int64_t gradient = spec.trained ? product(n, narrow ? t : a) : 0;
    const auto share = [&](int64_t bytes) { return (bytes + options.ranks - 1) / options.ranks; };
    const bool has_copy = t < a && !spec.always_f32;
    m.weights = sum(m.weights, has_copy ? sum(product(n, t), share(product(n, a))) : product(n, a));
    m.gradients = sum(m.gradients, gradient);
    m.optimizer = sum(m.optimizer, share(product(gradient, 2)));
  }
  for (const auto& [r, name] : EnumNames<Recompute>::list()) {
    m.activations[static_cast<int>(r)] = activation_bytes(c, plan, tokens, compute, r);
    int64_t largest = 0;
    for (const LayerPlanEntry& e : plan)
      largest =
          std::max(largest, layer_bytes(c, e, compute, save_mode(r)).dropped + backward_bytes(c, e, compute));
    m.working[static_cast<int>(r)] = product(largest, tokens);
  }
  if (std::any_of(plan.begin(), plan.end(), [](const LayerPlanEntry& e) { return e.emits_scores; }))
    m.shared_gradients = product(tokens, c.kv_heads() * (c.d() + c.dv()) * a);
  // dx and the buffer of a sublayer's output; then the head: x, y, and logits (with their gradient where it
  // is narrower) of a chunk.
  const int64_t rows = std::min(tokens, std::max<int64_t>(64, options.chunk_bytes / (c.vocab_size * a)));
  m.head = sum(product(tokens, 4 * c.hidden_size * t), product(rows, c.vocab_size * (t < a ? a + t : a)));
  return m;
}

}  // namespace

int64_t activation_bytes(const ModelConfig& config, const LayerPlan& plan, int64_t tokens, DType compute,
                         Recompute recompute) {
  int64_t per_token = 0;
  int64_t fixed = 0;
  for (const LayerPlanEntry& e : plan) {
    per_token = sum(per_token, layer_bytes(config, e, compute, save_mode(recompute)).kept);
    if (e.moe && is_kept(Keep::cheap, save_mode(recompute)))
      fixed += (config.n_routed_experts + 1) * 4;  // offset
  }
  return sum(product(per_token, tokens), fixed);
}

ParameterCounts count_parameters(const ModelConfig& config, const LayerPlan& plan) {
  ParameterCounts counts;
  auto count = [&](const WeightSpec& spec) {
    int64_t n = 1;
    for (int64_t d : spec.shape) n = product(n, d);
    return n;
  };
  int64_t expert = 0;
  for (const WeightSpec& spec : weight_specs(config, plan)) {
    const int64_t n = count(spec);
    counts.total = sum(counts.total, n);
    if (spec.name == "model.embed_tokens.weight")
      counts.embedding = n;
    else if (spec.name == "lm_head.weight")
      counts.head = n;
    else if (spec.expert)
      expert = sum(expert, n);
    else
      counts.active = sum(counts.active, n);
  }
  if (expert > 0)
    counts.active = sum(counts.active, expert / config.n_routed_experts * config.num_experts_per_tok);
  counts.active_with_head = sum(counts.active, product(config.vocab_size, config.hidden_size));
  return counts;
}

TrainingMemory training_memory(const ModelConfig& config, int64_t tokens, const TrainingOptions& options) {
  return training_memory(config, build_layer_plan(config), tokens, options);
}

PlanReport make_plan_report(const ModelConfig& config, int64_t context, int64_t batch, DType train_dtype,
                            int kv_dtype_bytes, int ranks) {
  auto positive = [](const char* flag, int64_t value) {
    constexpr int64_t limit = (int64_t(1) << 31) - 2;
    if (value < 1 || value > limit)
      throw expected_error(flag, fmt::format("a whole number from 1 to {}", limit), std::to_string(value));
  };
  positive("context", context);
  positive("batch", batch);

  PlanReport r;
  r.context = context;
  r.batch = batch;
  r.kv_dtype_bytes = kv_dtype_bytes;
  r.kind = config.kind();
  if (context > config.max_position_embeddings)
    r.notes.push_back(fmt::format(
        "the context of {} tokens is beyond the {} of max_position_embeddings: the config runs there only "
        "with a larger one",
        context, config.max_position_embeddings));
  const LayerPlan plan = build_layer_plan(config);
  r.parameters = count_parameters(config, plan);
  for (const AttentionKind kind : {AttentionKind::full, AttentionKind::hybrid_swa, AttentionKind::hysparse}) {
    const ModelConfig other = twin(config, kind);
    KvReport kv{kind, kv_bytes(other, build_layer_plan(other), kv_dtype_bytes)};
    kv.at_context = product(kv.bytes.at(context), batch);
    kv.full_layers = std::count(other.layer_types.begin(), other.layer_types.end(), "full_attention");
    r.kv.push_back(kv);
  }
  const auto full = static_cast<double>(r.kv[0].at_context);
  for (KvReport& kv : r.kv) kv.smaller = full / static_cast<double>(kv.at_context);
  r.own = kv_bytes(config, plan, kv_dtype_bytes);
  r.own_at_context = product(r.own.at(context), batch);
  r.own_smaller = full / static_cast<double>(r.own_at_context);
  r.own_8_bits = kv_bytes(config, plan, kv_dtype_bytes, KvDtype::int8);
  r.own_8_bits_at_context = product(r.own_8_bits.at(context), batch);

  const ModelConfig full_twin = twin(config, AttentionKind::full);
  const LayerPlan full_plan = build_layer_plan(full_twin);
  r.flops = count_flops(config, plan, r.parameters, context);
  r.flops_full = count_flops(full_twin, full_plan, count_parameters(full_twin, full_plan), context);
  r.ranks = ranks;
  r.training =
      training_memory(config, plan, product(context, batch), {.compute = train_dtype, .ranks = ranks});
  return r;
}

}  // namespace hysparse
