// hysparse eval choice: multiple choice by log-likelihood.
#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "common.h"
#include "engine/engine.h"
#include "engine_flags.h"
#include "eval/choice.h"
#include "eval_commands.h"
#include "io/files.h"
#include "io/json_value.h"
#include "shipped.h"
#include "text_model.h"

namespace hysparse {
namespace {

struct Flags {
  std::string model, input, out;
  ChoiceOptions options;
  bool json = false, quiet = false, stats = false;
  EngineFlags engine;
  std::string weights = "dtype";
  DeviceFlags device;
};

Json number(double x) {
  return std::isnan(x) ? Json(nullptr) : Json(x);
}

// A line an item: what each choice got, token by token.
std::string details(const std::vector<ChoiceItem>& items, const std::vector<ScoredItem>& scored) {
  std::string out;
  for (size_t i = 0; i < items.size(); ++i) {
    Json choices = Json::array();
    for (size_t c = 0; c < scored[i].choices.size(); ++c) {
      const ScoredChoice& s = scored[i].choices[c];
      std::vector<int32_t> ids;
      Json logprobs = Json::array();
      for (const TokenLogprob& t : s.tokens) {
        ids.push_back(t.token);
        logprobs.push_back(t.logprob);
      }
      choices.push_back({{"text", items[i].choices[c]},
                         {"loglikelihood", s.loglikelihood},
                         {"bytes", s.bytes},
                         {"greedy", s.greedy},
                         {"tokens", ids},
                         {"logprobs", std::move(logprobs)}});
    }
    Json line = {{"index", i}};
    if (!items[i].id.empty()) line["id"] = items[i].id;
    line.update({{"gold", items[i].gold},
                 {"best", scored[i].best},
                 {"best_normalised", scored[i].best_normalised},
                 {"choices", std::move(choices)}});
    out += dump_json(line, -1) + "\n";
  }
  return out;
}

void run(const Flags& f) {
  const std::vector<ChoiceItem> items = read_choice_items(f.input);
  CommandMachine machine(f.device);
  TextModel m = load_text_model(f.model.empty() ? shipped_model() : f.model,
                                {.compute = machine.compute(), .format = weight_format_of(f.weights)},
                                machine.runtime().memory, warnings_only(machine.runtime().log));
  m.text();
  m.loaded.weights->pack(machine.runtime());
  ModelStep step(m.model());
  Engine engine(machine.runtime(), step, engine_options(f.engine, m));
  ChoiceOptions options = f.options;
  const bool live = stderr_is_terminal() && !f.quiet;
  options.stop = &interrupt_flag();
  options.progress = [&](int64_t done) {
    if (live) std::fprintf(stderr, "\r%lld of %zu items", static_cast<long long>(done), items.size());
  };
  const std::vector<ScoredItem> scored = score_choices(engine, m, items, options);
  if (live) std::fprintf(stderr, "\r\x1b[K");
  if (!f.out.empty()) write_file_atomic(f.out, details(items, scored));
  const EngineStats stats = engine.stats();
  if (f.stats)
    std::fprintf(stderr, "%lld prompt tokens computed, %lld from the prefix cache\n",
                 static_cast<long long>(stats.prompt_tokens), static_cast<long long>(stats.cached_tokens));
  const ChoiceResult r = summarise(items, scored);
  if (f.json) {
    std::printf("%s", dump_json({{"items", r.items},
                                 {"acc", r.accuracy},
                                 {"acc_stderr", number(r.accuracy_error)},
                                 {"acc_norm", r.normalised},
                                 {"acc_norm_stderr", number(r.normalised_error)},
                                 {"chance", r.chance}})
                          .c_str());
    return;
  }
  std::printf(
      "items      %lld\nacc        %.4f +- %.4f (standard error)\nacc_norm   %.4f +- %.4f (by bytes)\n"
      "chance     %.4f\n",
      static_cast<long long>(r.items), r.accuracy, r.accuracy_error, r.normalised, r.normalised_error,
      r.chance);
}

}  // namespace

void add_eval_choice(CLI::App& eval) {
  auto flags = std::make_shared<Flags>();
  Flags& f = *flags;
  CLI::App& c = *eval.add_subcommand("choice", "multiple choice by log-likelihood");
  add_model_flag(c, f.model);
  c.add_option(
       "input", f.input,
       "JSON lines: {\"context\": TEXT, \"choices\": [TEXT, ...], \"gold\": NUMBER}, and \"id\" where wanted")
      ->required();
  c.add_option("--delimiter", f.options.delimiter, "what stands between a context and each choice")
      ->capture_default_str();
  c.add_option("--out", f.out, "file for a JSON line an item: log-likelihoods, token by token");
  c.add_flag("--json", f.json, "print one JSON object");
  c.add_flag("--stats", f.stats, "tokens computed and cached, on standard error");
  c.add_flag("--quiet", f.quiet, "no progress");
  add_engine_flags(c, f.engine);
  add_device_flags(c, f.device);
  add_weights_flag(c, f.weights);
  c.footer(
      "Tokens and figures are those of lm-evaluation-harness; acc_norm divides by bytes: "
      "docs/evaluation.md.\n"
      "Example: hysparse eval choice --model out/run/model questions.jsonl --out scores.jsonl");
  c.callback([flags] { run(*flags); });
}

}  // namespace hysparse
