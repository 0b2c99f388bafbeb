// config.json: ours, the model part of a run file, and Hugging Face configs of the families listed below.
#include <fmt/ranges.h>
#include <algorithm>

#include <nlohmann/json.hpp>

#include "io/json_fields.h"
#include "io/json_value.h"
#include "model/config.h"
#include "model/config_fields.h"

namespace hysparse {
namespace {

std::string brief(const Json& value) {
  const std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  return text.size() <= 60 ? text : text.substr(0, 57) + "...";
}

bool has_value(const Json& object, const char* key) {
  return object.contains(key) && !object[key].is_null();
}

// ---- RoPE: one theta and one share of dims, whichever way they are spelled

// Moves `key` of rope_parameters to the top level; both may state it, with one value.
void lift(Json& object, const Json& nested, const char* key, const std::string& where) {
  if (!nested.contains(key)) return;
  const Json& value = nested[key];
  if (!value.is_number())
    throw expected_error(fmt::format("{}: rope_parameters.{}", where, key), "a number", brief(value));
  if (has_value(object, key) &&
      (!object[key].is_number() || object[key].get<double>() != value.get<double>()))
    throw input_error(
        fmt::format("{}: {}", where, key),
        fmt::format("says {} at the top level and {} in rope_parameters", brief(object[key]), brief(value)),
        "state it once");
  object[key] = value;
}

// The plain embedding is called "default" under either spelling of the key; any other changes the angles.
void demand_plain_rope(const Json& object, const std::string& place) {
  for (const char* key : {"rope_type", "type"})
    if (has_value(object, key) && object[key] != "default")
      throw expected_error(fmt::format("{}.{}", place, key),
                           "\"default\": no other type is known to this program", brief(object[key]),
                           "it scales the rotary angles");
}

// Lifts a nested rope base to the top level; false where the file states none.
bool resolve_rope(Json& object, const std::string& where) {
  if (has_value(object, "rope_scaling")) {
    const Json scaling = object["rope_scaling"];
    const std::string place = where + ": rope_scaling";
    if (scaling.is_object()) demand_plain_rope(scaling, place);
    const bool plain = scaling.is_object() && scaling.size() == 1 &&
                       (scaling.contains("rope_type") || scaling.contains("type"));
    if (!plain)
      throw expected_error(place, "null: scaled rotary embeddings are not known to this program",
                           brief(scaling));
  }
  object.erase("rope_scaling");
  if (has_value(object, "rope_parameters")) {
    const Json nested = object["rope_parameters"];
    const std::string place = where + ": rope_parameters";
    if (!nested.is_object()) throw expected_error(place, "an object", brief(nested));
    demand_plain_rope(nested, place);
    for (const auto& item : nested.items())
      if (item.key() != "rope_type" && item.key() != "type" && item.key() != "rope_theta" &&
          item.key() != "partial_rotary_factor")
        throw expected_error(place, "rope_type, rope_theta, partial_rotary_factor", quote_text(item.key()));
    lift(object, nested, "rope_theta", where);
    lift(object, nested, "partial_rotary_factor", where);
  }
  object.erase("rope_parameters");
  if (has_value(object, "rope_theta")) return true;
  object.erase("rope_theta");
  return false;
}

// ---- Hugging Face configs of known families: every key is kept, demanded to have its plain value, or known
// to change nothing; any other is an error.

struct Family {
  const char* model_type;
  const char* architecture;  // the class whose weights are a language model's
  bool bias;                 // on q, k and v, whatever the keys say
  bool qk_norm;
};

// MiMo is Qwen 2 with further layers that predict the tokens after the next; those layers are left out.
constexpr Family kFamilies[] = {{"llama", "LlamaForCausalLM", false, false},
                                {"qwen2", "Qwen2ForCausalLM", true, false},
                                {"qwen3", "Qwen3ForCausalLM", false, true},
                                {"mimo", "MiMoForCausalLM", true, false}};

constexpr const char* kKept[] = {"num_hidden_layers",
                                 "hidden_size",
                                 "num_attention_heads",
                                 "num_key_value_heads",
                                 "head_dim",
                                 "intermediate_size",
                                 "vocab_size",
                                 "max_position_embeddings",
                                 "rms_norm_eps",
                                 "rope_theta",
                                 "partial_rotary_factor",
                                 "tie_word_embeddings",
                                 "initializer_range",
                                 "eos_token_id",
                                 "bos_token_id",
                                 "pad_token_id",
                                 "layer_types"};

constexpr const char* kWithoutEffect[] = {"torch_dtype",
                                          "dtype",
                                          "transformers_version",
                                          "use_cache",
                                          "attention_dropout",
                                          "_name_or_path",
                                          "max_window_layers",
                                          "sliding_window",
                                          "auto_map",
                                          "tokenizer_class",
                                          "_attn_implementation",
                                          "attn_implementation",
                                          "_attn_implementation_autoset",
                                          "num_nextn_predict_layers",
                                          "is_llama_config",
                                          "transformers.js_config",
                                          "unsloth_fixed",
                                          "unsloth_version"};

// A key that must have the one value that this program computes.
struct Demand {
  const char* key;
  Json value;
  const char* why;
};

template <class Names>
bool listed(const Names& names, const std::string& name) {
  return std::any_of(std::begin(names), std::end(names), [&](const char* n) { return name == n; });
}

// The family of a foreign config, by model_type or (where there is none) by its architecture; null for ours.
const Family* family_of(const Json& object, const std::string& where) {
  const bool typed = has_value(object, "model_type");
  if (typed && object["model_type"] == "hysparse") return nullptr;
  if (!typed && !has_value(object, "architectures")) return nullptr;
  std::vector<std::string> names, architectures;
  for (const Family& f : kFamilies) {
    names.emplace_back(f.model_type);
    architectures.emplace_back(f.architecture);
  }
  const Json stated = has_value(object, "architectures") ? object["architectures"] : Json::array();
  const auto states = [&](const Family& f) {
    return stated.is_array() && std::find(stated.begin(), stated.end(), f.architecture) != stated.end();
  };
  for (const Family& f : kFamilies) {
    if (typed ? object["model_type"] != f.model_type : !states(f)) continue;
    if (stated != Json::array() && !states(f))
      throw expected_error(where + ": architectures", quote_text(f.architecture), brief(stated),
                           "a class of another name may compute something else");
    return &f;
  }
  if (typed)
    throw expected_error(where + ": model_type", fmt::format("hysparse, {}", fmt::join(names, ", ")),
                         brief(object["model_type"]));
  throw expected_error(where + ": architectures", fmt::format("one of {}", fmt::join(architectures, ", ")),
                       brief(stated));
}

Json from_hugging_face(const Json& theirs, const Family& family, const std::string& where) {
  const std::vector<Demand> demands = {
      {"hidden_act", "silu", "the MLP is SwiGLU"},
      {"mlp_bias", false, "the MLP has no bias"},
      {"pretraining_tp", 1, "projections are not sliced"},
      {"use_sliding_window", false, "such a window has no sinks"},
      {"attention_bias", false, "there it also means a bias on o_proj"},
      {"rope_interleaved", false, "dims are rotated in halves"},
      {"quantization_config", nullptr, "only plain weights are read"},
  };
  Json ours = {{"model_type", "hysparse"}, {"attention", "full"}};
  for (const auto& item : theirs.items()) {
    const std::string key = item.key();
    const Json& value = item.value();
    const auto demand =
        std::find_if(demands.begin(), demands.end(), [&](const Demand& d) { return key == d.key; });
    if (key == "model_type" || key == "architectures" || listed(kWithoutEffect, key)) continue;
    if (demand != demands.end()) {
      const bool implied = family.bias && key == "attention_bias" && value == true;
      if (!value.is_null() && value != demand->value && !implied)
        throw expected_error(fmt::format("{}: {}", where, key),
                             fmt::format("{} in a {} model", demand->value.dump(), family.model_type),
                             brief(value), demand->why);
    } else if (listed(kKept, key)) {
      ours[key] = value;
    } else if (key != "rope_parameters" && key != "rope_scaling") {
      throw input_error(
          where,
          fmt::format("unknown key {} in a config of model_type {}", quote_text(key), family.model_type),
          "it may change what the model computes, so it is not ignored");
    }
  }
  if (family.bias) ours["attention_bias"] = true;
  if (family.qk_norm) ours["qk_norm"] = true;
  if (ours.value("pad_token_id", Json()) == -1) ours.erase("pad_token_id");  // their "none"
  return ours;
}

// ---- overrides

// What the overrides said about the layout, which the file may have stated otherwise.
struct LayoutOverrides {
  bool attention = false, interval = false, layers = false, layer_types = false;
};

// An override wins over what the file says: `attention` replaces layer_types, and the other way round.
void settle_layout(ModelConfig& config, const LayoutOverrides& set) {
  if (set.layer_types) {
    if (!set.attention) config.attention.reset();
    if (!set.interval) config.full_attention_interval.reset();
    return;
  }
  if (config.layer_types.empty() || !(set.attention || set.interval)) return;
  if (set.attention && config.attention && !set.interval && !set.layers) {
    replace_layout(config, *config.attention);  // keeps where the full layers of an explicit list are
    return;
  }
  if (!config.attention) config.attention = config.kind();
  if (config.attention) config.layer_types.clear();
}

void check_kv_heads(const ModelConfig& config, const std::string& where) {
  if (config.num_key_value_heads < 1)
    throw expected_error(where + ": num_key_value_heads", "at least 1",
                         std::to_string(config.num_key_value_heads),
                         "without the key there are as many as query heads");
}

void apply_overrides(ModelConfig& config, const std::vector<std::string>& overrides) {
  LayoutOverrides layout;
  for (const std::string& text : overrides) {
    const size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0)
      throw expected_error("--set", "key=value", quote_text(text), "for example --set rope_theta=640000");
    const std::string key = text.substr(0, equals);
    set_field(config, key, text.substr(equals + 1), "--set");
    if (key == "num_key_value_heads") check_kv_heads(config, "--set");
    layout.attention |= key == "attention";
    layout.interval |= key == "full_attention_interval";
    layout.layers |= key == "num_hidden_layers";
    layout.layer_types |= key == "layer_types";
  }
  settle_layout(config, layout);
}

}  // namespace

ModelConfig parse_model_config(const std::string& json_text, const std::string& where,
                               const std::vector<std::string>& overrides, const Log& sink) {
  Json object = parse_json(json_text, where);
  if (!object.is_object()) throw expected_error(where, "a JSON object", brief(object));
  if (const Family* family = family_of(object, where)) {
    Json ours = from_hugging_face(object, *family, where);
    for (const char* key : {"rope_parameters", "rope_scaling"})
      if (object.contains(key)) ours[key] = object[key];
    object = std::move(ours);
  }
  bool states_theta = resolve_rope(object, where);
  for (const std::string& o : overrides) states_theta |= o.rfind("rope_theta=", 0) == 0;
  ModelConfig config;
  read_fields(object, config, where);
  // Only an absent key means "as many as query heads".
  if (has_value(object, "num_key_value_heads")) check_kv_heads(config, where);
  apply_overrides(config, overrides);
  config.finalize(where);
  if (!states_theta)
    log(sink, LogLevel::info,
        fmt::format("{}: rope_theta is stated nowhere, using the default {}", where, config.rope_theta));
  return config;
}

std::string model_config_json(const ModelConfig& config) {
  HYSPARSE_CHECK(!config.layer_types.empty(), "a config is saved before finalize()");
  ModelConfig saved = config;
  saved.attention.reset();
  saved.num_key_value_heads = config.kv_heads();
  return dump_json(write_fields(saved));
}

}  // namespace hysparse
