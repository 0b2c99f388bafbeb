// The plan report as JSON.
#include <cmath>
#include <nlohmann/json.hpp>

#include "io/json_value.h"
#include "model/plan_report.h"

namespace hysparse {
namespace {

Json flops_json(const FlopsReport& f) {
  return {{"prefill_mean", f.prefill},
          {"prefill_attention", f.attention_prefill},
          {"decode", f.decode},
          {"decode_attention", f.attention_decode}};
}

double two_digits(double x) {
  return std::round(x * 100) / 100;
}

Json kv_json(const KvBytes& bytes, int64_t at_context, double smaller) {
  return {{"bytes_per_token", bytes.per_token},
          {"ring_bytes", bytes.rings},
          {"bytes_at_context", at_context},
          {"times_smaller_than_full", two_digits(smaller)}};
}

}  // namespace

std::string plan_report_json(const ModelConfig& config, const PlanReport& r, DType dtype) {
  Json out;
  out["context"] = r.context;
  out["batch"] = r.batch;
  out["dtype"] = std::string(name_of(dtype));
  out["max_position_embeddings"] = config.max_position_embeddings;
  out["notes"] = r.notes;
  out["attention"] = r.kind ? Json(std::string(enum_name(*r.kind))) : Json();
  out["layer_types"] = config.layer_types;
  out["parameters"] = {{"total", r.parameters.total},
                       {"active", r.parameters.active},
                       {"active_with_head", r.parameters.active_with_head},
                       {"embedding", r.parameters.embedding},
                       {"head", r.parameters.head}};
  for (const KvReport& kv : r.kv) {
    Json entry = kv_json(kv.bytes, kv.at_context, kv.smaller);
    entry["full_layers"] = kv.full_layers;
    out["kv_cache"][std::string(enum_name(kv.kind))] = entry;
  }
  out["kv_cache"]["this_config"] = kv_json(r.own, r.own_at_context, r.own_smaller);
  out["kv_cache"]["this_config_int8_or_fp8"] =
      kv_json(r.own_8_bits, r.own_8_bits_at_context,
              static_cast<double>(r.kv[0].at_context) / static_cast<double>(r.own_8_bits_at_context));
  out["flops_per_token"] = {{"this_config", flops_json(r.flops)}, {"full", flops_json(r.flops_full)}};
  Json& memory = out["training_memory"];
  memory = {{"ranks", r.ranks},
            {"weights", r.training.weights},
            {"gradients", r.training.gradients},
            {"optimizer", r.training.optimizer},
            {"shared_kv_gradients", r.training.shared_gradients},
            {"stream_and_head", r.training.head}};
  for (const auto& [policy, name] : EnumNames<Recompute>::list()) {
    const int i = static_cast<int>(policy);
    memory["recompute_" + std::string(name)] = {{"activations", r.training.activations[i]},
                                                {"layer_backward", r.training.working[i]},
                                                {"total", r.training.total(i)}};
  }
  return dump_json(out);
}

}  // namespace hysparse
