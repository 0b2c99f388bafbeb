#include "eval/study_plan.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "io/files.h"
#include "io/json_fields.h"
#include "io/json_value.h"

namespace hysparse {
namespace {

using Strings = std::vector<std::string>;

// An object with known keys, and where it stands.
class Node {
 public:
  Node(const Json& json, std::string where, const Strings& allowed) : json_(json), where_(std::move(where)) {
    if (!json.is_object()) throw expected_error(where_, "an object", json.dump().substr(0, 40));
    for (const auto& item : json.items())
      if (std::find(allowed.begin(), allowed.end(), item.key()) == allowed.end()) {
        const std::string near = nearest_name(item.key(), allowed);
        throw input_error(where_, "unknown key " + quote_text(item.key()),
                          near.empty() ? "" : "did you mean \"" + near + "\"?");
      }
  }
  bool has(const char* key) const { return json_.contains(key); }
  const std::string& where() const { return where_; }
  std::string at(const char* key) const { return where_ + ": " + key; }
  const Json& raw(const char* key) const {
    if (!has(key)) throw input_error(where_, fmt::format("\"{}\" is missing", key));
    return json_.at(key);
  }
  std::string text(const char* key) const {
    const Json& v = raw(key);
    if (!v.is_string()) throw expected_error(at(key), "a text", v.dump());
    return v.get<std::string>();
  }
  std::string text_or(const char* key, const std::string& other) const {
    return has(key) ? text(key) : other;
  }
  double number(const char* key, double other) const {
    if (!has(key)) return other;
    if (!raw(key).is_number()) throw expected_error(at(key), "a number", raw(key).dump());
    return raw(key).get<double>();
  }
  int64_t whole(const char* key, int64_t other, int64_t low) const {
    if (!has(key)) return other;
    const Json& v = raw(key);
    if (!v.is_number_integer() || v.get<int64_t>() < low)
      throw expected_error(at(key), fmt::format("a whole number of at least {}", low), v.dump());
    return v.get<int64_t>();
  }
  Json object_or_empty(const char* key) const {
    if (!has(key)) return Json::object();
    if (!raw(key).is_object()) throw expected_error(at(key), "an object", raw(key).dump().substr(0, 40));
    return raw(key);
  }
  const Json& list(const char* key) const {
    if (!raw(key).is_array() || raw(key).empty())
      throw expected_error(at(key), "a list that is not empty", raw(key).dump().substr(0, 40));
    return raw(key);
  }

 private:
  const Json& json_;
  std::string where_;
};

void lay_over(Json& base, const Json& top) {
  for (const auto& item : top.items()) base[item.key()] = item.value();
}

void check_name(const std::string& name, const std::string& where) {
  const auto ok = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '.' || c == '-' || c == ' ';
  };
  if (name.empty() || name.size() > 60 || !std::all_of(name.begin(), name.end(), ok) || name[0] == '.')
    throw expected_error(where, "a name of letters, digits, blanks and _ . -", quote_text(name));
}

Strings task_keys() {
  Strings keys;
  for (const FieldInfo& f : list_fields<RecallTask>()) keys.push_back(f.name);
  return keys;
}

// A task among other keys of its object.
RecallTask read_task(const Json& json, const std::string& where, const Strings& others) {
  RecallTask task;
  Json own = json;
  for (const std::string& key : others) own.erase(key);
  read_fields(own, task, where);
  validate_recall_task(task, where);
  return task;
}
Strings with(Strings keys, const Strings& more) {
  keys.insert(keys.end(), more.begin(), more.end());
  return keys;
}

template <class T>
size_t index_of(const std::vector<T>& list, const std::string& name, const std::string& where,
                const char* what) {
  Strings names;
  for (const T& x : list) names.push_back(x.name);
  const auto it = std::find(names.begin(), names.end(), name);
  if (it == names.end()) {
    const std::string near = nearest_name(name, names);
    throw input_error(where, fmt::format("no {} is named {}", what, quote_text(name)),
                      near.empty() ? "" : "did you mean \"" + near + "\"?");
  }
  return static_cast<size_t>(it - names.begin());
}

class Reader {
 public:
  Reader(const Json& json, const std::string& where)
      : top_(json, where,
             {"name", "about", "model", "train", "sizes", "arms", "seeds", "learning_rates", "search_seed",
              "data_seed", "phases", "evaluations", "gate", "claims"}) {
    plan_.where = where;
    plan_.name = top_.text("name");
    check_name(plan_.name, top_.at("name"));
    plan_.about = top_.text_or("about", "");
    plan_.data_seed = top_.whole("data_seed", 1, 0);
  }

  StudyPlan read() {
    read_seeds();
    read_phases();
    read_evaluations();
    read_arms();
    read_gate();
    read_claims();
    return std::move(plan_);
  }

 private:
  void read_seeds() {
    for (const Json& v : top_.list("seeds")) {
      if (!v.is_number_integer() || v.get<int64_t>() < 0)
        throw expected_error(top_.at("seeds"), "whole numbers of at least 0", v.dump());
      plan_.seeds.push_back(v.get<int64_t>());
    }
    if (std::set<int64_t>(plan_.seeds.begin(), plan_.seeds.end()).size() != plan_.seeds.size())
      throw input_error(top_.at("seeds"), "the same seed stands there twice");
    for (const Json& v : top_.list("learning_rates")) {
      if (!v.is_number() || !(v.get<double>() >= 1e-12 && v.get<double>() <= 1e3))
        throw expected_error(top_.at("learning_rates"), "numbers from 1e-12 to 1000", v.dump());
      plan_.learning_rates.push_back(v.get<double>());
    }
    if (std::set<double>(plan_.learning_rates.begin(), plan_.learning_rates.end()).size() !=
        plan_.learning_rates.size())
      throw input_error(top_.at("learning_rates"), "the same rate stands there twice");
    plan_.search_seed = top_.whole("search_seed", 1000, 0);
    if (plan_.searches() &&
        std::find(plan_.seeds.begin(), plan_.seeds.end(), plan_.search_seed) != plan_.seeds.end())
      throw input_error(top_.at("search_seed"),
                        fmt::format("{} is one of the seeds that are reported", plan_.search_seed),
                        "the seed that chooses the learning rate must not be judged by it");
  }

  void read_phases() {
    std::set<std::string> names;
    for (const Json& json : top_.list("phases")) {
      const std::string where = fmt::format("{}: phases[{}]", top_.where(), plan_.phases.size());
      const Node node(json, where, {"name", "tasks", "rows", "held_out_rows", "train"});
      StudyPhase phase;
      phase.name = node.text("name");
      check_name(phase.name, node.at("name"));
      if (!names.insert(phase.name).second) throw input_error(where, "two phases have this name");
      for (const Json& t : node.list("tasks")) {
        const std::string at = fmt::format("{}: tasks[{}]", where, phase.tasks.size());
        const Node task(t, at, with(task_keys(), {"weight"}));
        phase.tasks.push_back({read_task(t, at, {"weight"}), task.whole("weight", 1, 1)});
        if (phase.tasks.back().task.length != phase.tasks[0].task.length)
          throw expected_error(
              at, fmt::format("the length {} of the phase's first task", phase.tasks[0].task.length),
              std::to_string(phase.tasks.back().task.length));
      }
      phase_trains_.push_back(node.object_or_empty("train"));
      phase.rows = node.whole("rows", 0, 1);
      phase.held_out_rows = node.whole("held_out_rows", 256, 1);
      plan_.phases.push_back(std::move(phase));
    }
  }

  void read_evaluations() {
    std::set<std::string> names;
    for (const Json& json : top_.list("evaluations")) {
      const std::string where = fmt::format("{}: evaluations[{}]", top_.where(), plan_.evaluations.size());
      const Strings own = {"name", "samples", "curve_samples"};
      const Node node(json, where, with(task_keys(), own));
      StudyEvaluation e;
      e.name = node.text("name");
      check_name(e.name, node.at("name"));
      if (!names.insert(e.name).second) throw input_error(where, "two evaluations have this name");
      e.task = read_task(json, where, own);
      e.samples = node.whole("samples", e.samples, 1);
      e.curve_samples = node.whole("curve_samples", e.curve_samples, 0);
      plan_.evaluations.push_back(std::move(e));
    }
  }

  void read_arms() {
    std::vector<Json> size_models, arm_models;
    const Strings keys = {"name", "about", "model"};
    const auto read_list = [&](const char* list, const auto& add) {
      std::set<std::string> names;
      for (const Json& json : top_.list(list)) {
        const std::string where = fmt::format("{}: {}[{}]", top_.where(), list, names.size());
        const Node node(json, where, keys);
        check_name(node.text("name"), node.at("name"));
        if (!names.insert(node.text("name")).second)
          throw input_error(where, fmt::format("{} stands there twice", quote_text(node.text("name"))));
        add(node);
      }
    };
    if (top_.has("sizes")) {
      read_list("sizes", [&](const Node& n) {
        plan_.sizes.push_back(n.text("name"));
        size_models.push_back(n.object_or_empty("model"));
      });
    } else {
      plan_.sizes = {""};
      size_models = {Json::object()};
    }
    read_list("arms", [&](const Node& n) {
      plan_.arms.push_back({n.text("name"), n.text_or("about", "")});
      arm_models.push_back(n.object_or_empty("model"));
    });
    // Names that differ may still give one folder ("a b" and "a_b").
    std::set<std::string> folders;
    for (size_t s = 0; s < plan_.sizes.size(); ++s)
      for (size_t a = 0; a < plan_.arms.size(); ++a)
        if (!folders.insert(plan_.make_run(s, a, 1, 1, false).id).second)
          throw input_error(
              top_.at("arms"),
              fmt::format("the runs of {} would share a folder with others", quote_text(plan_.arms[a].name)),
              "rename it");
    for (size_t s = 0; s < plan_.sizes.size(); ++s) {
      auto& of_size = plan_.configs.emplace_back();
      for (size_t a = 0; a < plan_.arms.size(); ++a) {
        auto& of_arm = of_size.emplace_back();
        for (size_t p = 0; p < plan_.phases.size(); ++p)
          of_arm.push_back(config_of(size_models[s], arm_models[a], s, a, p));
      }
    }
    for (size_t p = 0; p < plan_.phases.size(); ++p)
      if (plan_.phases[p].rows == 0) {
        const TrainConfig& t = plan_.configs[0][0][p].train;
        const int64_t most = int64_t(1) << 18;  // rows drawn from any number of steps
        plan_.phases[p].rows = std::min(t.steps, most) * std::min(t.global_batch_size, most);
        plan_.phases[p].rows = std::min(plan_.phases[p].rows, most);
      }
  }

  RunConfig config_of(const Json& size_model, const Json& arm_model, size_t s, size_t a, size_t p) {
    const StudyPhase& phase = plan_.phases[p];
    std::string where = fmt::format("{}: arm \"{}\"", top_.where(), plan_.arms[a].name);
    if (!plan_.sizes[s].empty()) where += fmt::format(", size \"{}\"", plan_.sizes[s]);
    where += fmt::format(", phase \"{}\"", phase.name);
    Json json = top_.object_or_empty("model");
    lay_over(json, size_model);
    lay_over(json, arm_model);
    if (!json.contains("vocab_size")) json["vocab_size"] = recall::kVocabulary;
    for (const char* group : {"train", "data"})
      if (json.contains(group))
        throw input_error(where, fmt::format("\"{}\" under model", group),
                          "training settings stand under train, of the study or of a phase");
    Json train = top_.object_or_empty("train");
    lay_over(train, phase_trains_[p]);
    const int64_t length = phase.tasks[0].task.length;
    if (train.contains("seq_len") && train.at("seq_len") != length)
      throw expected_error(where, fmt::format("train.seq_len as the task's length {}, or left out", length),
                           train.at("seq_len").dump());
    for (const char* key : {"seed", "lr"})
      if (train.contains(key))
        throw input_error(where, fmt::format("train.{} is the study's to set", key),
                          key[0] == 's' ? "name the seeds under seeds" : "name it under learning_rates");
    train["seq_len"] = length;
    train["lr"] = plan_.learning_rates[0];
    json["train"] = train;
    RunConfig config = parse_run_config(dump_json(json), where);
    for (const StudyEvaluation& e : plan_.evaluations)
      if (e.task.length > config.model.max_position_embeddings)
        throw expected_error(
            where,
            fmt::format("max_position_embeddings of at least the {} tokens of \"{}\"", e.task.length, e.name),
            std::to_string(config.model.max_position_embeddings));
    if (config.model.vocab_size < recall::kVocabulary)
      throw expected_error(where, fmt::format("vocab_size of at least {}", recall::kVocabulary),
                           std::to_string(config.model.vocab_size));
    return config;
  }

  void read_gate() {
    if (!top_.has("gate")) return;
    const Node node(top_.raw("gate"), top_.at("gate"), {"arm", "above"});
    plan_.gate_arm = node.text("arm");
    index_of(plan_.arms, plan_.gate_arm, node.where(), "arm");
    plan_.gate_above = node.number("above", 0.9);
    if (!(plan_.gate_above >= 0 && plan_.gate_above < 1))
      throw expected_error(node.at("above"), "an accuracy from 0 to below 1",
                           fmt::format("{}", plan_.gate_above));
  }

  void read_claims() {
    if (!top_.has("claims")) return;
    for (const Json& json : top_.list("claims")) {
      const std::string where = fmt::format("{}: claims[{}]", top_.where(), plan_.claims.size());
      const Node node(json, where, {"claim", "tests"});
      StudyClaim claim{node.text("claim"), {}};
      for (const Json& t : node.list("tests")) {
        const Node test(t, fmt::format("{}: tests[{}]", where, claim.tests.size()),
                        {"evaluation", "arm", "beats", "matches", "margin", "size"});
        if (test.has("beats") == test.has("matches"))
          throw input_error(test.where(), "expected one of \"beats\" and \"matches\", with the other arm");
        StudyTest one;
        one.relation = test.has("beats") ? StudyRelation::beats : StudyRelation::matches;
        if (test.has("margin") && one.relation == StudyRelation::beats)
          throw input_error(test.where(), "a margin belongs to \"matches\"");
        one.evaluation = test.text("evaluation");
        one.arm = test.text("arm");
        one.other = test.text(test.has("beats") ? "beats" : "matches");
        one.margin = test.number("margin", one.margin);
        if (!(one.margin >= 0 && one.margin < 1))
          throw expected_error(test.at("margin"), "an accuracy from 0 to below 1",
                               fmt::format("{}", one.margin));
        one.size = test.text_or("size", "");
        index_of(plan_.evaluations, one.evaluation, test.where(), "evaluation");
        index_of(plan_.arms, one.arm, test.where(), "arm");
        index_of(plan_.arms, one.other, test.where(), "arm");
        if (one.arm == one.other) throw input_error(test.where(), "an arm cannot be compared with itself");
        if (test.has("size") &&
            std::find(plan_.sizes.begin(), plan_.sizes.end(), one.size) == plan_.sizes.end())
          throw input_error(test.where(), fmt::format("no size is named {}", quote_text(one.size)));
        claim.tests.push_back(one);
      }
      plan_.claims.push_back(std::move(claim));
    }
  }

  Node top_;
  StudyPlan plan_;
  std::vector<Json> phase_trains_;
};

}  // namespace

RunConfig StudyPlan::config_of(const StudyRun& run, size_t phase) const {
  RunConfig c = configs[run.size][run.arm][phase];
  c.train.min_lr *= run.lr / c.train.lr;  // the shape of the schedule stays
  c.train.lr = run.lr;
  c.train.seed = run.seed;
  c.model.hysparse_selection_seed = run.seed;
  return c;
}

StudyRun StudyPlan::make_run(size_t size, size_t arm, double lr, int64_t seed, bool search) const {
  StudyRun run;
  run.size = size;
  run.arm = arm;
  run.lr = lr;
  run.seed = seed;
  run.search = search;
  run.id = fmt::format("{}{}{}-lr{}-seed{}", sizes[size], sizes[size].empty() ? "" : "-", arms[arm].name, lr,
                       seed);
  std::replace(run.id.begin(), run.id.end(), ' ', '_');
  return run;
}

std::vector<StudyRun> StudyPlan::search_runs() const {
  std::vector<StudyRun> out;
  if (!searches()) return out;
  for (const double lr : learning_rates)
    for (size_t s = 0; s < sizes.size(); ++s)
      for (size_t a = 0; a < arms.size(); ++a) out.push_back(make_run(s, a, lr, search_seed, true));
  return out;
}

int64_t StudyPlan::steps() const {
  int64_t n = 0;
  for (const RunConfig& c : configs[0][0]) n += c.train.steps;
  return n;
}

StudyPlan parse_study(const std::string& json_text, const std::string& where) {
  return Reader(parse_json(json_text, where), where).read();
}
StudyPlan load_study(const std::filesystem::path& file) {
  return parse_study(read_file(file), file.string());
}

std::string run_description(const StudyPlan& plan, const StudyRun& run) {
  Json j;
  j["data_seed"] = plan.data_seed;
  for (size_t p = 0; p < plan.phases.size(); ++p) {
    const StudyPhase& phase = plan.phases[p];
    Json of_phase;
    of_phase["rows"] = phase.rows;
    of_phase["held_out_rows"] = phase.held_out_rows;
    for (const RecallShare& s : phase.tasks) {
      Json task = write_fields(s.task);
      task["weight"] = s.weight;
      of_phase["tasks"].push_back(std::move(task));
    }
    of_phase["config"] = parse_json(run_config_json(plan.config_of(run, p)), "config");
    j["phases"].push_back(std::move(of_phase));
  }
  for (const StudyEvaluation& e : plan.evaluations) {
    Json task = write_fields(e.task);
    task["name"] = e.name;
    task["samples"] = e.samples;
    task["curve_samples"] = e.curve_samples;
    j["evaluations"].push_back(std::move(task));
  }
  return dump_json(j);
}

}  // namespace hysparse
