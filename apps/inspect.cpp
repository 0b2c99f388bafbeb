// hysparse inspect: what a model directory holds and how its layers hang together.
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/thread_pool.h"
#include "commands.h"
#include "common.h"
#include "io/files.h"
#include "io/json_fields.h"
#include "io/json_value.h"
#include "io/safetensors.h"
#include "model/checkpoint.h"
#include "model/config_fields.h"
#include "train/run_config.h"

namespace hysparse {
namespace {

namespace fs = std::filesystem;

struct Flags {
  std::string dir;
  bool json = false, headers_only = false;
  int threads = 0;
};

struct BadTensor {
  std::string name;
  NonFinite values;
};

struct TensorLine {
  std::string name, dtype;
  std::vector<int64_t> shape;
  int64_t times = 1;  // experts of one kind are one line
};

const char* kind_text(LayerKind kind) {
  return kind == LayerKind::full ? "full" : kind == LayerKind::sparse ? "sparse" : "window";
}

// "....experts.17.up_proj.weight" -> "....experts.*.up_proj.weight"
std::string without_expert(const std::string& name) {
  const size_t at = name.find(".experts.");
  if (at == std::string::npos) return name;
  const size_t begin = at + 9, end = name.find('.', begin);
  return end == std::string::npos ? name : name.substr(0, begin) + "*" + name.substr(end);
}

// In the order given; experts of a kind are counted on their first line.
class TensorList {
 public:
  void add(const std::string& name, const std::string& dtype, const std::vector<int64_t>& shape) {
    const std::string shown = without_expert(name);
    const auto [it, fresh] =
        index_.emplace(fmt::format("{} {} {}", shown, dtype, fmt::join(shape, ",")), lines.size());
    if (fresh)
      lines.push_back({shown, dtype, shape});
    else
      ++lines[it->second].times;
  }
  std::vector<TensorLine> lines;

 private:
  std::map<std::string, size_t> index_;
};

bool has_weights(const fs::path& dir) {
  return file_exists(dir / "model.safetensors") || file_exists(dir / "model.safetensors.index.json");
}

// What is stored, in the config's order, then what the config does not know; or, without weights, what the
// config asks for.
TensorList list_tensors(const fs::path& dir, const std::vector<WeightSpec>& specs, bool stored) {
  TensorList list;
  if (!stored) {
    for (const WeightSpec& spec : specs) list.add(spec.name, "-", spec.shape);
    return list;
  }
  const SafetensorsSet files(dir);
  std::map<std::string, bool> known;
  for (const WeightSpec& spec : specs) {
    known[spec.name] = true;
    if (files.has(spec.name)) list.add(spec.name, files.entry(spec.name).dtype, files.entry(spec.name).shape);
  }
  for (const std::string& name : files.names())
    if (!known.count(name)) list.add(name, files.entry(name).dtype, files.entry(name).shape);
  return list;
}

// Reads every value that is stored: NaN and infinities are what a diverged run or a damaged file leaves
// behind.
std::vector<BadTensor> find_nonfinite(const fs::path& dir, int threads) {
  const SafetensorsSet files(dir);
  const std::vector<std::string> names = files.names();
  std::vector<BadTensor> all(names.size());
  ThreadPool pool(threads);
  pool.parallel_for(std::ssize(names), [&](int64_t i, int) {
    const auto at = static_cast<size_t>(i);
    all[at] = {names[at], files.count_nonfinite(names[at])};
  });
  std::erase_if(all, [](const BadTensor& t) { return !t.values; });
  return all;
}

std::string bad_text(const BadTensor& t) {
  return fmt::format("{} ({} NaN, {} infinite)", t.name, t.values.nan, t.values.infinite);
}

std::string selection_text(const ModelConfig& config, const LayerPlanEntry& e) {
  return e.selection_source < 0 ? ""
                                : fmt::format("selection of layer {} ({}, {} blocks of {})",
                                              e.selection_source, enum_name(config.hysparse_selection),
                                              config.entries(), config.hysparse_block_size);
}

void print_text(const ModelConfig& config, const LayerPlan& plan, const TensorList& tensors, bool stored,
                const std::vector<BadTensor>* bad) {
  auto line = [](const std::string& text) { std::printf("%s\n", text.c_str()); };
  const auto kind = config.kind();
  line(fmt::format(
      "attention {}, {} layers, hidden {}, heads {} / {} KV, head_dim {}, v_head_dim {}, vocab {}{}",
      kind ? enum_name(*kind) : "of a list", plan.size(), config.hidden_size, config.num_attention_heads,
      config.kv_heads(), config.d(), config.dv(), config.vocab_size,
      config.tie_word_embeddings ? " (tied head)" : ""));
  line(fmt::format("RoPE {}", describe_rope(config)));
  line(fmt::format("end ids [{}]", fmt::join(config.eos_token_id, ", ")));
  line("");
  line("layers");
  for (size_t i = 0; i < plan.size(); ++i) {
    const LayerPlanEntry& e = plan[i];
    std::string text = fmt::format("  {:>3} {:<6}", i, kind_text(e.kind));
    if (e.kind == LayerKind::sparse)
      text += fmt::format(" K, V of layer {}; {}", e.kv_source, selection_text(config, e));
    if (e.kind == LayerKind::full)
      text += e.emits_scores ? " own K, V; scores and selects for the sparse layers after it" : " own K, V";
    if (e.window > 0)
      text += fmt::format("; window {} over {} K, V", e.window, e.own_window_kv ? "its own" : "the shared");
    if (e.kind == LayerKind::full && e.gated) text += "; gated";
    if (e.moe)
      text +=
          fmt::format("; {} experts, {} a token{}", config.n_routed_experts, config.num_experts_per_tok,
                      config.n_shared_experts > 0 ? fmt::format(", {} shared", config.n_shared_experts) : "");
    line(text);
  }
  line("");
  line(stored ? "tensors" : "tensors that the config asks for (no weights here)");
  for (const TensorLine& t : tensors.lines)
    line(fmt::format("  {:<64} {:<5} [{}]{}", t.name, t.dtype, fmt::join(t.shape, ", "),
                     t.times > 1 ? fmt::format(" x {}", t.times) : ""));
  if (!bad) return;
  line("");
  line(bad->empty() ? "values: all are finite"
                    : fmt::format("values: {} tensors hold NaN or infinities", bad->size()));
  for (const BadTensor& t : *bad) line("  " + bad_text(t));
}

Json to_json(const ModelConfig& config, const LayerPlan& plan, const TensorList& tensors,
             const std::vector<BadTensor>* bad) {
  Json out;
  out["config"] = parse_json(model_config_json(config), "config");
  out["rope"] = {
      {"theta", config.rope_theta}, {"rotated_dims", config.rotary_dims()}, {"head_dim", config.d()}};
  if (config.rope_scaling) out["rope"]["scaling"] = write_fields(*config.rope_scaling);
  out["layers"] = Json::array();
  for (const LayerPlanEntry& e : plan)
    out["layers"].push_back({{"kind", kind_text(e.kind)},
                             {"kv_source", e.kv_source},
                             {"selection_source", e.selection_source},
                             {"window", e.window},
                             {"own_window_kv", e.own_window_kv},
                             {"emits_scores", e.emits_scores},
                             {"gated", e.gated},
                             {"moe", e.moe}});
  out["tensors"] = Json::array();
  for (const TensorLine& t : tensors.lines)
    out["tensors"].push_back({{"name", t.name}, {"dtype", t.dtype}, {"shape", t.shape}, {"count", t.times}});
  if (!bad) return out;
  out["nonfinite"] = Json::array();
  for (const BadTensor& t : *bad)
    out["nonfinite"].push_back({{"name", t.name}, {"nan", t.values.nan}, {"infinite", t.values.infinite}});
  return out;
}

void run(const Flags& flags) {
  const Log log = stderr_log();
  const ModelConfig config = load_run_config(flags.dir, {}, log).model;
  const LayerPlan plan = build_layer_plan(config);
  const bool stored = fs::is_directory(flags.dir) && has_weights(flags.dir);
  const TensorList tensors = list_tensors(flags.dir, weight_specs(config, plan), stored);
  std::vector<BadTensor> found;
  const bool read_values = stored && !flags.headers_only;
  if (read_values) found = find_nonfinite(flags.dir, flags.threads);
  const std::vector<BadTensor>* bad = read_values ? &found : nullptr;
  if (flags.json)
    std::fputs(dump_json(to_json(config, plan, tensors, bad)).c_str(), stdout);
  else
    print_text(config, plan, tensors, stored, bad);
  std::fflush(stdout);
  if (stored) check_model_dir(flags.dir, config, log);
  if (!found.empty())
    throw input_error(flags.dir,
                      fmt::format("{} tensors hold values that are not finite, the first is {}", found.size(),
                                  bad_text(found.front())),
                      "the run diverged or the file is damaged: take an earlier checkpoint");
}

}  // namespace

void add_inspect(CLI::App& app) {
  auto flags = std::make_shared<Flags>();
  CLI::App& c = *app.add_subcommand(
      "inspect", "tensors, effective RoPE and layer plan of a model directory, checked against each other");
  c.add_option("DIR", flags->dir, "model directory (or a config or run file alone)")->required();
  c.add_flag("--json", flags->json, "print JSON");
  c.add_flag("--headers-only", flags->headers_only,
             "do not read the values (else they are searched for NaN and infinities)");
  c.add_option("--threads", flags->threads, "0 = all CPUs this process may use")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
  c.footer(
      "Exit code 2 where config and tensors do not fit each other or a value is not finite; the report is "
      "printed all "
      "the same.\nExample: hysparse inspect out/demo/model");
  c.callback([flags] { run(*flags); });
}

}  // namespace hysparse
