// hysparse bench: how fast this machine runs the kernels and whole models.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "bench_attention.h"
#include "bench_parts.h"
#include "commands.h"
#include "common.h"
#include "io/files.h"
#include "ranks.h"
#include "shipped.h"

namespace hysparse {
namespace {

struct Flags {
  std::vector<std::string> parts;
  std::vector<std::string> configs;
  std::vector<std::string> sets;
  std::string json;
  bool twin = false, list_kernels = false;
  int capability = 0;
  CLI::Option *context_option = nullptr, *attention_option = nullptr;
  BenchSettings settings;
  std::string weights = "dtype", kv_dtype = "auto";
  DeviceFlags device;
  RankFlags ranks;
};

// Attention operations and whole stacks, up to T 32k.
void run_attention(Runtime& rt, const BenchSettings& settings, BenchReport& report) {
  if (settings.compute == DType::f64) throw input_error("bench attention", "runs in f32 or bf16, not in f64");
  AttentionBenchOptions options;
  options.dtype = settings.compute;
  options.runs = std::min(settings.repeats, 3);  // minutes a row at the longest
  options.longest = settings.attention_tokens;
  double peak = 0;  // the best matrix product of this very run stands for the machine's limit
  for (const BenchResult& r : report.results())
    if (r.name == "linear") peak = std::max(peak, r.median());
  const AttentionBench bench = bench_attention(rt, options, peak, [&](const AttentionBenchRow& row) {
    std::vector<std::pair<std::string, std::string>> shape{{"shape", row.shape}};
    if (row.fraction_of_peak > 0)
      shape.emplace_back("of_linear", fmt::format("{:.0f}%", 100 * row.fraction_of_peak));
    if (row.gigabytes_a_second > 0) shape.emplace_back("GB/s", fmt::format("{:.2f}", row.gigabytes_a_second));
    std::vector<double> rates;
    for (const double seconds : row.runs) rates.push_back(row.flops / seconds / 1e9);
    report.add({row.name, std::move(shape), "GFLOP/s", std::move(rates)});
  });
  for (const AttentionStackRow& row : bench.stacks)
    report.add({"stack " + row.name,
                {{"shape", row.shape},
                 {"full_seconds", fmt::format("{:.4f}", row.full_seconds)},
                 {"hysparse_seconds", fmt::format("{:.4f}", row.hysparse_seconds)}},
                "x full",
                {row.ratio}});
}

DType dtype_of(const std::string& name) {
  for (const DType t : {DType::f32, DType::bf16, DType::f64})
    if (name == name_of(t)) return t;
  throw expected_error("dtype", "f32, bf16 or f64", name);
}

std::vector<BenchModel> models_of(const Flags& f, const Log& log) {
  std::vector<std::string> configs = f.configs;
  if (configs.empty())
    for (const char* name : {"demo.json", "bench-30m.json"})
      configs.push_back(shipped("configs", name, "name a config with --config"));
  std::vector<BenchModel> models;
  for (const std::string& path : configs) {
    const RunConfig config = load_run_config(path, f.sets, log);
    const auto& kind = config.model.attention;
    models.push_back({std::filesystem::path(path).stem().string(),
                      kind ? std::string(enum_name(*kind)) : "as in layer_types", config});
    if (!f.twin) continue;
    models.push_back(models.back());
    models.back().attention = "full";
    models.back().config.model = twin(models.back().config.model, AttentionKind::full);
  }
  return models;
}

void list(const Flags& f) {
  for (const BenchModel& m : models_of(f, stderr_log()))
    list_kernels(m, f.device.device, dtype_of(f.device.dtype), f.capability);
}

// One process's part: all of it where there is one.
void run_rank(const Flags& f, const std::vector<std::string>& parts, const RankContext& rank) {
  const auto wants = [&](const char* part) { return std::count(parts.begin(), parts.end(), part) > 0; };
  exit_when_interrupted();
  CommandMachine machine(rank.device);
  const Runtime& m = machine.runtime();
  const std::unique_ptr<Comm> comm = rank.make_comm(m.memory);
  Runtime rt{m.pool, m.scratch, m.ops, m.memory, rank.is_root() ? m.log : Log(), comm ? *comm : self_comm()};
  BenchSettings settings = f.settings;
  settings.compute = machine.compute();
  settings.weights = weight_format_of(f.weights);
  settings.kv_dtype = parse_kv_dtype("--kv-cache-dtype", f.kv_dtype);
  if (f.context_option->count() > 0 && f.attention_option->count() == 0)
    settings.attention_tokens = settings.context;
  BenchReport report(rt.ops.name(), f.device.dtype, rt.pool.threads());

  const std::vector<BenchModel> models = models_of(f, rt.log);

  if (wants("kernels")) bench_kernels(rt, models.back(), settings, report);
  if (wants("gemm")) bench_gemm(rt, models.back(), settings, report);
  if (wants("attention")) run_attention(rt, settings, report);
  // Each with a workspace of its own: a model may need the memory of the one before.
  const auto each_model = [&](auto part) {
    for (const BenchModel& m : models) {
      Arena scratch(rt.memory);
      Runtime own{rt.pool, scratch, rt.ops, rt.memory, rt.log, rt.comm};
      part(own, m);
    }
  };
  if (wants("train"))
    each_model([&](Runtime& on, const BenchModel& m) { bench_train(on, m, settings, report); });
  if (wants("prefill") || wants("decode"))
    each_model([&](Runtime& on, const BenchModel& m) {
      bench_inference(on, m, settings, wants("prefill"), wants("decode"), report);
    });
  if (wants("engine"))
    each_model([&](Runtime& on, const BenchModel& m) { bench_engine(on, m, settings, report); });

  if (!rank.is_root()) return;
  if (!f.json.empty()) write_file_atomic(f.json, report.json());
  std::string again;
  for (const std::string& part : parts) again += " " + part;
  for (const std::string& path : f.configs) again += " --config " + path;
  for (const std::string& set : f.sets) again += " --set " + set;
  if (f.weights != "dtype") again += " --weights " + f.weights;
  if (f.kv_dtype != "auto") again += " --kv-cache-dtype " + f.kv_dtype;
  if (rank.device.device != "cpu") again += " --device " + rank.device.device;
  if (rank.size() > 1) again += fmt::format(" --ranks {}", rank.size());
  if (settings.prompt_tokens > 0) again += fmt::format(" --prompt-tokens {}", settings.prompt_tokens);
  if (settings.answer_tokens > 0) again += fmt::format(" --answer-tokens {}", settings.answer_tokens);
  for (const int64_t n : settings.batches) again += fmt::format(" --batch {}", n);
  if (wants("prefill")) again += fmt::format(" --chunk {}", settings.chunk);
  std::printf(
      "again: hysparse bench%s --dtype %s --threads %d --context %lld --attention-tokens %lld --repeat "
      "%d%s\n",
      again.c_str(), f.device.dtype.c_str(), rt.pool.threads(), static_cast<long long>(settings.context),
      static_cast<long long>(settings.attention_tokens), settings.repeats, f.twin ? " --twin" : "");
}

void run(const Flags& f) {
  std::vector<std::string> parts = f.parts;
  const bool on_gpu = f.device.device == "cuda" || f.ranks.gpus > 0;
  if (parts.empty() || std::count(parts.begin(), parts.end(), "all"))
    parts = on_gpu ? std::vector<std::string>{"train", "prefill", "decode", "engine"}
                   : std::vector<std::string>{"kernels", "attention", "train", "prefill", "decode", "engine"};
  const auto wants = [&](const char* part) { return std::count(parts.begin(), parts.end(), part) > 0; };
  if (f.list_kernels) return list(f);
  for (const char* part : {"kernels", "gemm", "attention"})
    if (on_gpu && wants(part))
      throw input_error(
          fmt::format("bench {}", part), "measures the CPU's kernels",
          "./run gpu-check measures the GPU's; train, prefill and decode run with --device cuda");
  if ((local_ranks(f.ranks) > 1 || f.ranks.ranks == "env") && parts != std::vector<std::string>{"train"})
    throw input_error("bench", "several ranks train, and do nothing else together",
                      "hysparse bench train --ranks N");
  if (!f.json.empty()) AtomicFile writable(f.json);  // known before minutes of measuring
  run_ranks(f.ranks, f.device, "", [&](const RankContext& rank) { run_rank(f, parts, rank); });
}

}  // namespace

void add_bench(CLI::App& app) {
  auto flags = std::make_shared<Flags>();
  Flags& f = *flags;
  CLI::App& c = *app.add_subcommand("bench", "measure kernels and whole models with random weights");
  c.add_option("part", f.parts,
               "kernels, gemm (beside oneDNN), attention, train, prefill, decode, engine, or all (the "
               "default: without gemm)")
      ->check(CLI::IsMember({"kernels", "gemm", "attention", "train", "prefill", "decode", "engine", "all"}));
  c.add_option("--config", f.configs,
               "run file or config.json of a model; default: the demo's and bench-30m.json");
  c.add_option("--set", f.sets, "key=value over the configs; may be given again and again");
  c.add_flag("--twin", f.twin, "measure each model's full-attention twin, too");
  f.context_option =
      c.add_option("--context", f.settings.context,
                   "tokens of the prompt for prefill and decode, and the longest sequence of attention")
          ->check(CLI::Range(1, 1 << 24))
          ->capture_default_str();
  c.add_option("--chunk", f.settings.chunk, "tokens of the prompt that go through the model at once")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  f.attention_option = c.add_option("--attention-tokens", f.settings.attention_tokens,
                                    "longest sequence of the attention part, if not --context")
                           ->check(CLI::Range(1, 1 << 20))
                           ->capture_default_str();
  c.add_flag("--list-kernels", f.list_kernels,
             "measure nothing: print which kernel each attention operation takes for the configs' shapes");
  c.add_option("--capability", f.capability,
               "--list-kernels for a GPU that need not be here: 90 is compute capability 9.0")
      ->check(CLI::Range(0, 999));
  c.add_flag("--step-profile", f.settings.step_profile,
             "train, prefill: once more, its time by kernel family (each call is waited for)");
  c.add_option("--requests", f.settings.requests, "engine: how many requests decode at once, one figure each")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  c.add_option("--prompt-tokens", f.settings.prompt_tokens,
               "engine: tokens of each request's prompt, all read before the clock starts; default: 128")
      ->check(CLI::Range(1, 1 << 20));
  c.add_option("--answer-tokens", f.settings.answer_tokens,
               "engine: time whole requests with answers of so many tokens, prompts included, with all free "
               "memory for the cache")
      ->check(CLI::Range(1, 1 << 20));
  c.add_option("--batch", f.settings.batches,
               "decode: this many sequences at once, each with --context tokens behind it; one figure each")
      ->check(CLI::Range(1, 1024));
  c.add_option("--decode-tokens", f.settings.decode_tokens, "tokens that a run of decode or engine decodes")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  c.add_option("--repeat", f.settings.repeats, "runs of each figure; the median counts")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  c.add_option("--json", f.json, "write all figures with every run to this file");
  add_device_flags(c, f.device);
  add_rank_flags(c, f.ranks);
  add_weights_flag(c, f.weights);
  add_kv_dtype_flag(c, f.kv_dtype);
  c.footer(
      "Example: hysparse bench decode --config configs/demo.json --context 8192 --twin --json bench.json");
  c.callback([flags] { run(*flags); });
}

}  // namespace hysparse
