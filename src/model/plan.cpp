#include "model/plan.h"

#include "base/error.h"

namespace hysparse {

LayerPlan build_layer_plan(const ModelConfig& config) {
  LayerPlan plan;
  int last_full = -1;
  for (size_t i = 0; i < config.layer_types.size(); ++i) {
    const int layer = static_cast<int>(i);
    const std::string& type = config.layer_types[i];
    LayerPlanEntry entry;
    entry.kv_source = layer;
    entry.moe = config.moe_layer(layer);
    if (type == enum_name(LayerType::full_attention)) {
      entry.kind = LayerKind::full;
      entry.gated = config.full_attention_gate;
      last_full = layer;
    } else if (type == enum_name(LayerType::sliding_attention)) {
      entry.kind = LayerKind::window;
      entry.window = config.sliding_window;
      entry.own_window_kv = true;
    } else {
      if (last_full < 0)
        throw input_error(fmt::format("layer_types[{}]", layer),
                          fmt::format("layer {} is sparse and has no full layer before it to read", layer));
      entry.kind = LayerKind::sparse;
      entry.kv_source = last_full;
      entry.selection_source = last_full;
      entry.window = config.hysparse_window == WindowMode::none ? 0 : config.sliding_window;
      entry.own_window_kv = config.hysparse_window == WindowMode::own;
      entry.gated = true;
      plan[static_cast<size_t>(last_full)].emits_scores = true;
    }
    plan.push_back(entry);
  }
  return plan;
}

const std::vector<std::pair<KvDtype, std::string_view>>& EnumNames<KvDtype>::list() {
  static const std::vector<std::pair<KvDtype, std::string_view>> names{
      {KvDtype::compute, "auto"}, {KvDtype::int8, "int8"}, {KvDtype::fp8, "fp8"}};
  return names;
}

KvDtype parse_kv_dtype(std::string_view option, std::string_view name) {
  for (const auto& [value, known] : EnumNames<KvDtype>::list())
    if (known == name) return value;
  throw expected_error(std::string(option), "auto, int8 or fp8", std::string(name));
}

int64_t checked_product(int64_t a, int64_t b, const char* what) {
  int64_t out = 0;
  if (__builtin_mul_overflow(a, b, &out))
    throw expected_error(what, "a number below 2^63", fmt::format("{} x {}", a, b));
  return out;
}

int64_t checked_sum(int64_t a, int64_t b, const char* what) {
  int64_t out = 0;
  if (__builtin_add_overflow(a, b, &out))
    throw expected_error(what, "a number below 2^63", fmt::format("{} + {}", a, b));
  return out;
}

int64_t KvBytes::at(int64_t context) const {
  return checked_sum(checked_product(per_token, context, "KV cache bytes"), rings, "KV cache bytes");
}

KvBytes kv_bytes(const ModelConfig& config, const LayerPlan& plan, int dtype_bytes, KvDtype kv) {
  const int64_t row = config.kv_heads() * (config.d() + config.dv()) * dtype_bytes;
  const int64_t in_page = kv == KvDtype::compute ? row : config.kv_heads() * (config.d() + config.dv() + 4);
  KvBytes bytes;
  for (const LayerPlanEntry& entry : plan) {
    if (entry.kind == LayerKind::full) bytes.per_token += in_page;
    if (entry.own_window_kv)
      bytes.rings = checked_sum(bytes.rings, checked_product(row, entry.window, "ring bytes"), "ring bytes");
  }
  return bytes;
}

ModelConfig twin(const ModelConfig& config, AttentionKind kind) {
  ModelConfig other = config;
  replace_layout(other, kind);
  other.finalize("twin");
  return other;
}

}  // namespace hysparse
