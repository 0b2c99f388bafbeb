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

// ---- RoPE: one theta, one share of dims and one scaling, whichever way they are spelled

// Takes `key` out of a nested object to the top level; both may state it, with one value.
void lift(Json& object, Json& nested, const char* place, const char* key, const std::string& where) {
  if (!nested.contains(key)) return;
  const Json value = nested[key];
  nested.erase(key);
  if (!value.is_number())
    throw expected_error(fmt::format("{}: {}.{}", where, place, key), "a number", brief(value));
  if (has_value(object, key) &&
      (!object[key].is_number() || object[key].get<double>() != value.get<double>()))
    throw input_error(
        fmt::format("{}: {}", where, key),
        fmt::format("says {} at the top level and {} in {}", brief(object[key]), brief(value), place),
        "state it once");
  object[key] = value;
}

// The scaling that `place` (rope_scaling, or rope_parameters in newer files) states; null for none. Older
// files say "type" for "rope_type"; null means absent.
Json stated_scaling(Json& object, const char* place, const std::string& where) {
  if (!has_value(object, place)) return nullptr;
  Json nested = object[place];
  const std::string full = fmt::format("{}: {}", where, place);
  if (!nested.is_object()) throw expected_error(full, "an object or null", brief(nested));
  lift(object, nested, place, "rope_theta", where);
  lift(object, nested, place, "partial_rotary_factor", where);
  if (has_value(nested, "type")) {
    if (has_value(nested, "rope_type") && nested["rope_type"] != nested["type"])
      throw input_error(full, fmt::format("says type {} and rope_type {}", brief(nested["type"]),
                                          brief(nested["rope_type"])));
    nested["rope_type"] = nested["type"];
  }
  nested.erase("type");
  for (auto item = nested.begin(); item != nested.end();)
    item = item.value().is_null() ? nested.erase(item) : std::next(item);
  if (nested.empty() ||
      (nested.size() == 1 && nested.contains("rope_type") && nested["rope_type"] == "default"))
    return nullptr;
  if (!nested.contains("rope_type"))
    throw expected_error(full, "a rope_type beside other keys", brief(nested));
  const Json& type = nested["rope_type"];
  const bool known = type == "linear" || type == "llama3" || type == "yarn";  // others are refused later
  if (known && !nested.contains("factor")) throw expected_error(full + ".factor", "a number", "nothing");
  return nested;
}

// Leaves rope_theta, partial_rotary_factor and rope_scaling; false where the file states no rope base.
bool resolve_rope(Json& object, const std::string& where) {
  Json scaling = stated_scaling(object, "rope_scaling", where);
  const Json newer = stated_scaling(object, "rope_parameters", where);
  if (!scaling.is_null() && !newer.is_null() && scaling != newer)
    throw input_error(where + ": rope_scaling",
                      fmt::format("says {}, and rope_parameters {}", brief(scaling), brief(newer)),
                      "state it once");
  if (scaling.is_null()) scaling = newer;
  object.erase("rope_scaling");
  object.erase("rope_parameters");
  if (!scaling.is_null()) {
    const bool bounded = scaling["rope_type"] == "llama3" || scaling["rope_type"] == "yarn";
    constexpr const char* kOriginal = "original_max_position_embeddings";
    if (bounded && !scaling.contains(kOriginal) && has_value(object, "max_position_embeddings"))
      scaling[kOriginal] = object["max_position_embeddings"];
    object["rope_scaling"] = std::move(scaling);
  }
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
                                 "rope_scaling",
                                 "rope_parameters",
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
    } else {
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
  if (const Family* family = family_of(object, where)) object = from_hugging_face(object, *family, where);
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

void add_end_ids(ModelConfig& config, const std::string& json_text, const std::string& where) {
  const Json object = parse_json(json_text, where);
  if (!object.is_object()) throw expected_error(where, "a JSON object", brief(object));
  if (!has_value(object, "eos_token_id")) return;
  ModelConfig theirs;
  read_fields(Json{{"eos_token_id", object["eos_token_id"]}}, theirs, where);
  for (const int64_t id : theirs.eos_token_id)
    if (std::count(config.eos_token_id.begin(), config.eos_token_id.end(), id) == 0)
      config.eos_token_id.push_back(id);
}

std::string model_config_json(const ModelConfig& config) {
  HYSPARSE_CHECK(!config.layer_types.empty(), "a config is saved before finalize()");
  ModelConfig saved = config;
  saved.attention.reset();
  saved.num_key_value_heads = config.kv_heads();
  return dump_json(write_fields(saved));
}

}  // namespace hysparse
