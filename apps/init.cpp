// hysparse init: a model directory with random weights.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "commands.h"
#include "common.h"
#include "model/checkpoint.h"
#include "tokenizer/tokenizer.h"
#include "train/run_config.h"

namespace hysparse {
namespace {

struct Flags {
  std::string config, out, tokenizer, dtype = "f32";
  int64_t seed = 0;
  int threads = 0;
  std::vector<std::string> sets;
  CLI::Option *seed_option = nullptr, *tokenizer_option = nullptr;
};

// The folder that the tokenizer's files are copied from; empty for none.
std::filesystem::path tokenizer_folder(const Flags& flags, const ModelConfig& model) {
  if (flags.tokenizer_option->count() == 0) return {};
  const Tokenizer tokenizer = Tokenizer::load(flags.tokenizer);
  if (tokenizer.vocab_size() > model.vocab_size)
    throw expected_error("--tokenizer " + flags.tokenizer,
                         fmt::format("at most {} tokens (vocab_size)", model.vocab_size),
                         std::to_string(tokenizer.vocab_size()), "raise vocab_size with --set");
  const std::filesystem::path path = flags.tokenizer;
  return std::filesystem::is_directory(path) ? path : std::filesystem::absolute(path).parent_path();
}

void run(const Flags& flags) {
  const RunConfig run = load_run_config(flags.config, flags.sets, stderr_log());
  const std::filesystem::path tokenizer = tokenizer_folder(flags, run.model);
  const DType as = flags.dtype == "bf16" ? DType::bf16 : DType::f32;
  const int64_t seed = flags.seed_option->count() > 0 ? flags.seed : run.train.seed;
  const LayerPlan plan = build_layer_plan(run.model);
  ThreadPool pool(flags.threads);
  Weights weights(run.model, plan, {});
  weights.init_random(run.model, plan, static_cast<uint64_t>(seed), &pool);
  save_model_dir(flags.out, run.model, weights, as, tokenizer);
  std::printf("%s: %lld parameters in %s, seed %lld\n", flags.out.c_str(),
              static_cast<long long>(weights.parameters()), flags.dtype.c_str(),
              static_cast<long long>(seed));
}

}  // namespace

void add_init(CLI::App& app) {
  auto flags = std::make_shared<Flags>();
  CLI::App& c = *app.add_subcommand("init", "write a model directory with random weights");
  c.add_option("--config", flags->config, "run file or config.json, or a model directory")->required();
  c.add_option("--out", flags->out, "model directory to write; an earlier one there is replaced")->required();
  flags->seed_option =
      c.add_option("--seed", flags->seed, "of the weights; default: train.seed of the config");
  c.add_option("--set", flags->sets, "key=value over the config; may be given again and again");
  c.add_option("--dtype", flags->dtype, "dtype of the file: f32 or bf16")
      ->check(CLI::IsMember({"f32", "bf16"}))
      ->capture_default_str();
  flags->tokenizer_option =
      c.add_option("--tokenizer", flags->tokenizer, "folder whose tokenizer files are copied along");
  c.add_option("--threads", flags->threads, "worker threads; 0 = all CPUs this process may use")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
  c.footer(
      "The value of a weight depends on the seed, its tensor's name and its place alone, so twins share what "
      "they have in common.\n"
      "Example: hysparse init --config configs/demo.json --out out/random --seed 1 --set attention=full");
  c.callback([flags] { run(*flags); });
}

}  // namespace hysparse
