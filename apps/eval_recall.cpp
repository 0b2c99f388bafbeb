// hysparse eval recall: look-up tasks whose answers are known, on models that were trained on them.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "common.h"
#include "eval/recall.h"
#include "eval_commands.h"
#include "io/json_fields.h"
#include "io/json_value.h"
#include "recall_flags.h"
#include "text_model.h"

namespace hysparse {

void add_recall_flags(CLI::App& c, RecallFlags& f) {
  for (const FieldInfo& field : list_fields<RecallTask>()) {
    std::string flag = "--" + field.name;
    c.add_option(flag, f.values[field.name], fmt::format("{} [{}]", field.help, field.default_value));
  }
}

RecallTask RecallFlags::task() const {
  RecallTask t;
  for (const auto& [key, value] : values) {
    if (value.empty()) continue;
    const bool list = key == "hops" && value[0] != '[';  // "1,2" as well as [1, 2]
    set_field(t, key, list ? "[" + value + "]" : value, "--" + key);
  }
  validate_recall_task(t, "--task");
  return t;
}

int64_t RecallFlags::length(int64_t otherwise) const {
  RecallTask t;
  t.length = otherwise;
  const std::string& value = values.at("length");
  if (!value.empty()) set_field(t, "length", value, "--length");
  return t.length;
}

namespace {

struct Flags {
  std::string model;
  RecallFlags task;
  RecallOptions options;
  bool json = false;
  DeviceFlags device;
};

Json score_json(const RecallScore& s) {
  Json j;
  j["answers"] = s.answers;
  j["right"] = s.right;
  j["accuracy"] = s.accuracy();
  j["standard_error"] = s.standard_error();
  j["nats"] = s.nats_per_answer();
  return j;
}

void run(const Flags& f) {
  const RecallTask task = f.task.task();
  CommandMachine machine(f.device);
  Runtime& rt = machine.runtime();
  TextModel m = load_text_model(f.model, {.compute = machine.compute()}, rt.memory, warnings_only(rt.log));
  m.loaded.weights->pack(rt);
  RecallOptions o = f.options;
  const bool live = stderr_is_terminal();
  const std::atomic<bool>& interrupted = interrupt_flag();
  o.progress = [&](int64_t rows) {
    if (live) std::fprintf(stderr, "\r%lld rows", static_cast<long long>(rows));
    if (interrupted) throw Error(ErrorKind::interrupted, "interrupted");
  };
  const RecallResult r = evaluate_recall(rt, m.model(), task, o);
  if (live) std::fprintf(stderr, "\r\x1b[K");
  if (f.json) {
    Json j = score_json(r.all);
    j["task"] = write_fields(task);
    j["samples"] = o.rows;
    j["seed"] = o.seed;
    j["chance"] = recall_chance(task);
    for (const auto& [hops, score] : r.by_hops) j["hops"][std::to_string(hops)] = score_json(score);
    std::printf("%s", dump_json(j).c_str());
    return;
  }
  std::printf("%s: %lld rows, chance %.4f\n", describe(task).c_str(), static_cast<long long>(o.rows),
              recall_chance(task));
  std::printf("%-6s %9s %9s %10s\n", "hops", "answers", "accuracy", "+-");
  const auto line = [](const std::string& name, const RecallScore& s) {
    std::printf("%-6s %9lld %9.4f %10.4f\n", name.c_str(), static_cast<long long>(s.answers), s.accuracy(),
                s.standard_error());
  };
  for (const auto& [hops, score] : r.by_hops) line(std::to_string(hops), score);
  if (r.by_hops.size() > 1) line("all", r.all);
}

}  // namespace

void add_eval_recall(CLI::App& eval) {
  auto flags = std::make_shared<Flags>();
  Flags& f = *flags;
  CLI::App& c = *eval.add_subcommand("recall",
                                     "MQAR, copy, phonebook, chains, walks and paragraphs: accuracy by hops "
                                     "(models trained on these tasks)");
  c.add_option("--model", f.model, "model directory")->required();
  add_recall_flags(c, f.task);
  c.add_option("--samples", f.options.rows, "rows")->check(CLI::Range(1, 1 << 30))->capture_default_str();
  c.add_option("--batch", f.options.batch, "rows a forward; 0: as many as fit in 16384 tokens")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  c.add_option("--seed", f.options.seed, "of the rows")->capture_default_str();
  c.add_flag("--json", f.json, "print a JSON object");
  add_device_flags(c, f.device);
  c.footer(
      "Example: hysparse eval recall --model out/tiny/runs/full-lr0.003-seed1/1-short/model --task walk "
      "--hops 1,2 --length 64");
  c.callback([flags] { run(*flags); });
}

}  // namespace hysparse
