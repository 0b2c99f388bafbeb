#include "train/run_config.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "io/files.h"
#include "io/json_fields.h"
#include "io/json_value.h"
#include "model/checkpoint.h"
#include "model/config_fields.h"

namespace hysparse {

const std::vector<std::pair<Schedule, std::string_view>>& EnumNames<Schedule>::list() {
  static const std::vector<std::pair<Schedule, std::string_view>> names = {
      {Schedule::wsd, "wsd"}, {Schedule::cosine, "cosine"}, {Schedule::constant, "constant"}};
  return names;
}
const std::vector<std::pair<DecayShape, std::string_view>>& EnumNames<DecayShape>::list() {
  static const std::vector<std::pair<DecayShape, std::string_view>> names = {{DecayShape::linear, "linear"},
                                                                             {DecayShape::sqrt, "sqrt"}};
  return names;
}
const std::vector<std::pair<TrainDType, std::string_view>>& EnumNames<TrainDType>::list() {
  static const std::vector<std::pair<TrainDType, std::string_view>> names = {
      {TrainDType::f32, "f32"}, {TrainDType::bf16, "bf16"}, {TrainDType::f64, "f64"}};
  return names;
}

const std::vector<std::pair<StateDType, std::string_view>>& EnumNames<StateDType>::list() {
  static const std::vector<std::pair<StateDType, std::string_view>> names = {{StateDType::f32, "f32"},
                                                                             {StateDType::bf16, "bf16"}};
  return names;
}

namespace {

// The two groups of a run file beside the model's flat keys.
struct Groups {
  TrainConfig train;
  DataConfig data;
  template <class V>
  static void fields(V&& visit) {
    visit("train", &Groups::train, "how to train");
    visit("data", &Groups::data, "how data is read");
  }
};

std::vector<std::string> model_keys() {
  std::vector<std::string> keys;
  for (const FieldInfo& f : list_fields<ModelConfig>()) keys.push_back(f.name);
  return keys;
}

// Sorts "key=value" overrides: the model's stay for parse_model_config, the others are applied to `groups`.
std::vector<std::string> apply_settings(Groups& groups, const std::vector<std::string>& sets) {
  const std::vector<std::string> keys = model_keys();
  std::vector<std::string> all = keys, of_model;
  for (const FieldInfo& f : list_fields<Groups>()) all.push_back(f.name);
  for (const std::string& set : sets) {
    const size_t equals = set.find('=');
    if (equals == std::string::npos || equals == 0)
      throw expected_error("--set", "key=value", quote_text(set), "for example --set train.lr=3e-4");
    const std::string key = set.substr(0, equals);
    if (std::find(keys.begin(), keys.end(), key) != keys.end()) {
      of_model.push_back(set);
    } else if (std::find(all.begin(), all.end(), key) != all.end() || key == "train" || key == "data") {
      set_field(groups, key, set.substr(equals + 1), "--set");
    } else {
      const std::string near = nearest_name(key, all);
      throw input_error("--set", "unknown key " + quote_text(key),
                        near.empty() ? "" : "did you mean \"" + near + "\"?");
    }
  }
  return of_model;
}

struct RangeCheck {
  const std::string& where;
  void whole(const char* key, int64_t value, int64_t low, int64_t high = int64_t(1) << 40) const {
    if (value < low || value > high)
      throw expected_error(where, fmt::format("train.{} from {} to {}", key, low, high),
                           std::to_string(value));
  }
  void real(const char* key, double value, bool ok, const char* expected) const {
    if (!ok || !std::isfinite(value))
      throw expected_error(where, fmt::format("train.{} {}", key, expected), fmt::format("{}", value));
  }
};

}  // namespace

void validate_run_config(const RunConfig& config, const std::string& where) {
  const TrainConfig& t = config.train;
  const RangeCheck check{where};
  check.whole("steps", t.steps, 1);
  check.whole("seq_len", t.seq_len, 1, int64_t(1) << 31);
  check.whole("global_batch_size", t.global_batch_size, 1, int64_t(1) << 24);
  check.whole("micro_batch_size", t.micro_batch_size, 0, t.global_batch_size);
  check.whole("warmup_steps", t.warmup_steps, 0);
  check.whole("decay_steps", t.decay_steps, 0);
  if (t.decay_steps > t.steps)
    throw input_error(
        where, fmt::format("train.decay_steps {} is more than train.steps {}", t.decay_steps, t.steps),
        fmt::format("set train.decay_steps too, to at most {}; the decay is the last part of the run",
                    t.steps));
  check.whole("max_nonfinite_steps", t.max_nonfinite_steps, 1);
  check.whole("log_interval", t.log_interval, 1);
  check.whole("eval_interval", t.eval_interval, 0);
  check.whole("eval_tokens", t.eval_tokens, 0);
  check.whole("sample_interval", t.sample_interval, 0);
  check.whole("sample_tokens", t.sample_tokens, 1);
  check.whole("checkpoint_interval", t.checkpoint_interval, 0);
  check.whole("keep_last", t.keep_last, 1);
  check.real("lr", t.lr, t.lr > 0, "above 0");
  check.real("min_lr", t.min_lr, t.min_lr >= 0 && t.min_lr <= t.lr, "from 0 to lr");
  check.real("beta1", t.beta1, t.beta1 >= 0 && t.beta1 < 1, "from 0 to below 1");
  check.real("beta2", t.beta2, t.beta2 >= 0 && t.beta2 < 1, "from 0 to below 1");
  check.real("eps", t.eps, t.eps > 0, "above 0");
  check.real("weight_decay", t.weight_decay, t.weight_decay >= 0, "at least 0");
  check.real("grad_clip", t.grad_clip, t.grad_clip >= 0, "at least 0 (0: no clipping)");
  check.real("router_bias_rate", t.router_bias_rate, t.router_bias_rate >= 0 && t.router_bias_rate <= 1,
             "from 0 (experts are not balanced) to 1");
  check.real("router_aux_loss_coef", t.router_aux_loss_coef, t.router_aux_loss_coef >= 0,
             "at least 0 (0: none)");
  check.real("router_z_loss_coef", t.router_z_loss_coef, t.router_z_loss_coef >= 0, "at least 0 (0: none)");
  check.real("time_limit_seconds", t.time_limit_seconds, t.time_limit_seconds >= 0,
             "at least 0 (0: no limit)");
  if (t.state_dtype == StateDType::bf16 && t.dtype != TrainDType::bf16)
    throw expected_error(where, "train.state_dtype bf16 with train.dtype bf16 only",
                         "train.dtype " + std::string(enum_name(t.dtype)));
  if (t.schedule != Schedule::wsd && t.decay_steps != 0)
    throw expected_error(where, "train.decay_steps with schedule wsd only",
                         std::string(enum_name(t.schedule)));
}

RunConfig load_run_config(const std::filesystem::path& path, const std::vector<std::string>& sets,
                          const Log& log) {
  const std::filesystem::path file = config_file(path);
  RunConfig config = parse_run_config(read_file(file), file.string(), sets, log);
  read_generation_config(path, config.model);
  return config;
}

RunConfig parse_run_config(const std::string& json_text, const std::string& where,
                           const std::vector<std::string>& sets, const Log& log) {
  Json json = parse_json(json_text, where);
  if (!json.is_object()) throw expected_error(where, "a JSON object", "another value");
  Groups groups;
  Json settings = Json::object();
  for (const char* key : {"train", "data"}) {
    if (json.contains(key)) settings[key] = json[key];
    json.erase(key);
  }
  for (const auto& item : json.items()) {  // a misspelt group: its nearest name is not a key of the model
    const std::string near = item.value().is_object() ? nearest_name(item.key(), {"train", "data"}) : "";
    if (!near.empty())
      throw input_error(where, "unknown key " + quote_text(item.key()), "did you mean \"" + near + "\"?");
  }
  read_fields(settings, groups, where);
  const std::vector<std::string> model_sets = apply_settings(groups, sets);
  RunConfig config{parse_model_config(dump_json(json), where, model_sets, log), groups.train, groups.data};
  validate_run_config(config, where);
  return config;
}

namespace {

Json to_json(const RunConfig& config) {
  Json json = parse_json(model_config_json(config.model), "config");
  json["train"] = write_fields(config.train);
  json["data"] = write_fields(config.data);
  return json;
}

void add_changes(const Json& before, const Json& after, const std::string& prefix,
                 std::vector<ConfigChange>& out) {
  auto text = [](const Json& object, const std::string& key) {
    return object.contains(key) ? object.at(key).dump() : std::string("null");
  };
  std::vector<std::string> keys;
  for (const auto& item : before.items()) keys.push_back(item.key());
  for (const auto& item : after.items())
    if (!before.contains(item.key())) keys.push_back(item.key());
  for (const std::string& key : keys) {
    const bool group = before.contains(key) && before.at(key).is_object();
    if (group && after.contains(key))
      add_changes(before.at(key), after.at(key), prefix + key + ".", out);
    else if (text(before, key) != text(after, key))
      out.push_back({prefix + key, text(before, key), text(after, key)});
  }
}

}  // namespace

std::string run_config_json(const RunConfig& config) {
  return dump_json(to_json(config));
}

std::vector<ConfigChange> config_changes(const RunConfig& before, const RunConfig& after) {
  std::vector<ConfigChange> out;
  add_changes(to_json(before), to_json(after), "", out);
  return out;
}

}  // namespace hysparse
